//! [`LogStore`]: openraft's log on [`quorate_storage::Log`].
//!
//! The storage gives every promise that openraft asks for, so this is a thin
//! coat: entries become records, callbacks become callbacks. What openraft
//! relies on, and who keeps it:
//!
//! - an appended entry can be read at once, and its callback fires after its
//!   flush, in order: the writer thread of the storage;
//! - `save_vote` and `truncate_after` go through that same thread and return
//!   after the flush;
//! - `purge` returns when its marker is durable; entries at or below the marker
//!   are gone for every reader, however slowly the space comes back;
//! - `save_committed` is not flushed for its own sake, and never overtakes the
//!   log: the same thread writes it behind the entries it speaks of.
//!
//! Nothing here blocks a worker of the runtime: what is not in the in-memory
//! tail is read on the blocking pool.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _};
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::{EntryPayload, LogState, OptionalSend, RaftLogReader};
use quorate_storage::{Log, Record, StorageError};
use tokio::sync::{oneshot, watch};

use crate::blocking;
use crate::codec;
use crate::config::APPEND_BYTES_MAX;
use crate::leadership::Epoch;
use crate::types::{Entry, LogId, TypeConfig, Vote};

/// Bytes read at a time when a long range is walked.
const WALK_BYTES: usize = 4 << 20;

/// The log, for openraft. Cheap to clone; also its own reader.
#[derive(Clone)]
pub struct LogStore {
    log: Log,
    appended: watch::Sender<Appended>,
}

/// The batches that were appended in this life of the node, durable or not, by whomever they were proposed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// The leadership under which the last of them was proposed.
    pub epoch: Epoch,
    /// How many there were.
    pub batches: u64,
}

impl LogStore {
    /// On a log that is open.
    #[must_use]
    pub fn new(log: Log) -> Self {
        Self {
            log,
            appended: watch::Sender::default(),
        }
    }

    /// The batches that were appended, now and at each change.
    #[must_use]
    pub fn appended(&self) -> watch::Receiver<Appended> {
        self.appended.subscribe()
    }

    /// Gives an order to the writer and waits for its answer.
    async fn ordered(&self, order: impl FnOnce(&Log, quorate_storage::Done)) -> io::Result<()> {
        let (done, answer) = oneshot::channel();
        order(&self.log, Box::new(move |result| drop(done.send(result))));
        match answer.await {
            Ok(result) => result.map_err(io::Error::other),
            Err(_) => Err(io::Error::other(StorageError::Closed)),
        }
    }

    async fn records(&self, from: u64, to: u64, bytes_max: usize) -> io::Result<Vec<Record>> {
        if from >= to {
            return Ok(Vec::new());
        }
        if let Some(records) = self.log.read_cached(from, to, bytes_max) {
            return Ok(records);
        }
        let log = self.log.clone();
        blocking::run(&self.log, move || log.read(from, to, bytes_max))
            .await?
            .map_err(io::Error::other)
    }

    async fn entries(&self, from: u64, to: u64, bytes_max: usize) -> io::Result<Vec<Entry>> {
        let records = self.records(from, to, bytes_max).await?;
        records
            .iter()
            .map(|record| entry_of(record).map_err(io::Error::from))
            .collect()
    }

    /// The id of the entry at `index`, if it is in the log.
    async fn log_id_at(&self, index: u64) -> io::Result<Option<LogId>> {
        let entries = self.entries(index, index + 1, 0).await?;
        Ok(entries.first().map(|entry| entry.log_id))
    }

    fn purged(&self) -> io::Result<Option<LogId>> {
        self.log
            .purged()
            .map(|(_, marker)| Ok(codec::decode_log_id(&marker)?))
            .transpose()
    }
}

/// The entry of a record, which must stand where it says.
pub(crate) fn entry_of(record: &Record) -> Result<Entry, codec::Malformed> {
    let entry = codec::decode_record(&record.bytes)?;
    if entry.log_id.index != record.index {
        let problem = format!("entry {} in the place of {}", entry.log_id.index, record.index);
        return Err(codec::Malformed::new("log record", problem));
    }
    Ok(entry)
}

fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(from) => *from,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(to) => *to,
        Bound::Unbounded => u64::MAX,
    };
    (from, to)
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<Entry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(&range);
        self.entries(from, to, usize::MAX).await
    }

    /// From `start`, or nothing. openraft purges what it believes nobody needs, when a call to a follower has
    /// failed and what asks for its entries here has not heard of that. To send others under the log id before
    /// `start` would tear a hole into the follower's log. Of no entries openraft makes a heartbeat; the sending
    /// side (`Network::lacks`) knows it for what it is, and fails.
    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        let mut entries = self.entries(start, end, APPEND_BYTES_MAX).await?;
        if entries.first().is_some_and(|first| first.log_id.index != start) {
            entries.clear();
        }
        Ok(entries)
    }

    /// Piece by piece: a state machine far behind must not load it all.
    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = io::Result<Entry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(&range);
        let store = self.clone();
        futures_util::stream::try_unfold(from, move |from| {
            let store = store.clone();
            async move {
                let entries = store.entries(from, to, WALK_BYTES).await?;
                Ok::<_, io::Error>(
                    entries
                        .last()
                        .map(|last| last.log_id.index + 1)
                        .map(|next| (futures_util::stream::iter(entries.into_iter().map(Ok)), next)),
                )
            }
        })
        .try_flatten()
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        self.log
            .vote()
            .map(|bytes| Ok(codec::decode_vote(&bytes)?))
            .transpose()
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let last_purged_log_id = self.purged()?;
        let last = match self.log.last_index() {
            Some(index) => self.log_id_at(index).await?,
            None => None,
        };
        Ok(LogState {
            last_purged_log_id,
            last_log_id: last.or(last_purged_log_id),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let vote = Bytes::from(codec::encode_vote(vote));
        self.ordered(|log, done| log.put_vote(vote, done)).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        self.log.put_committed(
            committed
                .as_ref()
                .map(codec::encode_log_id)
                .unwrap_or_default()
                .into(),
        );
        Ok(())
    }

    /// Only if the log agrees: what it speaks of may have been lost with the
    /// unflushed end of the log, or replaced since.
    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        let Some(bytes) = self.log.committed().filter(|bytes| !bytes.is_empty()) else {
            return Ok(None);
        };
        let committed = codec::decode_log_id(&bytes)?;
        if self.purged()? == Some(committed) {
            return Ok(Some(committed));
        }
        let found = self.log_id_at(committed.index).await?;
        Ok(found.filter(|id| *id == committed))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let (mut batches, mut last) = (0, None);
        let records = entries
            .into_iter()
            .map(|entry| {
                if matches!(entry.payload, EntryPayload::Normal(_)) {
                    batches += 1;
                    last = Some(entry.log_id);
                }
                Record {
                    index: entry.log_id.index,
                    bytes: codec::encode_record(&entry),
                }
            })
            .collect();
        let done = move |result: Result<(), StorageError>| {
            callback.io_completed(result.map_err(io::Error::other));
        };
        self.log.append(records, Box::new(done));
        if let Some(id) = last {
            self.appended.send_modify(|appended| {
                appended.epoch = id.leader_id.into();
                appended.batches += batches;
            });
        }
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> io::Result<()> {
        let from = last_log_id.map_or(0, |id| id.index + 1);
        self.ordered(|log, done| log.truncate_from(from, done)).await
    }

    async fn purge(&mut self, log_id: LogId) -> io::Result<()> {
        let marker = Bytes::from(codec::encode_log_id(&log_id));
        self.ordered(|log, done| log.purge_to(log_id.index, marker, done))
            .await
    }
}
