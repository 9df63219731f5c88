//! What the log looks like to its readers, and what waits for its writer.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};

use super::Done;
use super::recover::Recovered;
use super::sizes::Sizes;
use super::stats::LogStats;
use super::tail::Tail;
use crate::Record;
use crate::error::StorageError;
use crate::meta::{self, MetaKey};

/// One order to the writer. They are carried out strictly in the order in which they were given.
pub(super) enum Command {
    Append {
        records: Vec<Record>,
        bytes: usize,
        done: Done,
    },
    Truncate {
        index: u64,
        done: Done,
    },
    Purge {
        marker: Marker,
        done: Done,
    },
    /// A meta value. Without anyone who waits for it, it rides on the next flush.
    Put {
        key: MetaKey,
        payload: Bytes,
        done: Option<Done>,
    },
    /// Nothing to do on disk: refused, or done already. The answer still keeps its place in the order.
    Answer {
        result: Result<(), StorageError>,
        done: Done,
    },
}

impl Command {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Command::Append { bytes, .. } => *bytes,
            _ => 0,
        }
    }

    /// Whether someone waits for this to be durable.
    pub(super) fn wants_flush(&self) -> bool {
        !matches!(self, Command::Put { done: None, .. })
    }
}

/// Everything up to `index` is gone; `bytes` is the caller's own description of that point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    pub(crate) index: u64,
    pub(crate) bytes: Bytes,
}

impl Marker {
    pub(super) fn encode(&self) -> Bytes {
        let mut payload = BytesMut::with_capacity(8 + self.bytes.len());
        payload.put_u64_le(self.index);
        payload.put_slice(&self.bytes);
        payload.freeze()
    }

    pub(super) fn decode(payload: &Bytes) -> Result<Self, StorageError> {
        let mut bytes = payload.clone();
        let index = meta::take_u64(&mut bytes)?;
        Ok(Marker { index, bytes })
    }
}

/// Where the live log begins.
#[derive(Clone, Debug)]
pub(super) struct Position {
    /// The first live index; if the log is empty, the only one it can continue with. `None` in a log that
    /// never held anything: it may begin anywhere.
    pub(super) begin: Option<u64>,
    pub(super) purged: Option<Marker>,
}

/// The state behind the log's lock. Held for moments only, never across a call to the engine.
///
/// Invariants:
/// 1. The live log is `[begin, tail.end())`; what is before `tail.first()` is readable on disk.
/// 2. Everything from the lowest index in `unflushed` on is in the tail.
/// 3. `epoch` grows whenever an index can stop meaning what a reader on its way to the disk believes.
pub(super) struct State {
    pub(super) position: Position,
    pub(super) tail: Tail,
    pub(super) sizes: Sizes,
    pub(super) vote: Option<Bytes>,
    pub(super) committed: Option<Bytes>,
    pub(super) epoch: u64,
    pub(super) stats: LogStats,

    pub(super) queue: VecDeque<Command>,
    /// Commands in `queue` that want a flush.
    pub(super) urgent: usize,
    /// For each append not flushed yet, in order: its first index and its bytes.
    pub(super) unflushed: VecDeque<(u64, usize)>,
    pub(super) closing: Option<Closing>,
}

/// How the writer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closing {
    /// Carry out what waits, and stop.
    Drop,
    /// Also make durable what nobody waits for.
    Flush,
}

impl State {
    pub(super) fn new(recovered: Recovered) -> Self {
        State {
            position: recovered.position,
            tail: recovered.tail,
            sizes: recovered.sizes,
            vote: recovered.vote,
            committed: recovered.committed,
            epoch: 0,
            stats: LogStats::default(),
            queue: VecDeque::new(),
            urgent: 0,
            unflushed: VecDeque::new(),
            closing: None,
        }
    }

    /// The live log as a half-open range.
    pub(super) fn live(&self) -> std::ops::Range<u64> {
        self.position.begin.map_or(0..0, |begin| begin..self.tail.end())
    }

    pub(super) fn enqueue(&mut self, command: Command) {
        self.urgent += usize::from(command.wants_flush());
        self.queue.push_back(command);
    }

    /// Replaces the committed point. Of two in a row in the queue only the later counts, so they never pile up.
    pub(super) fn put_committed(&mut self, committed: Bytes) {
        self.committed = Some(committed.clone());
        match self.queue.back_mut() {
            Some(Command::Put {
                key: MetaKey::Committed,
                payload,
                ..
            }) => *payload = committed,
            _ => self.enqueue(Command::Put {
                key: MetaKey::Committed,
                payload: committed,
                done: None,
            }),
        }
    }

    /// Adds entries to the tail and the queue, or an answer to the queue.
    pub(super) fn append(&mut self, records: Vec<Record>, done: Done) {
        let command = match self.check_append(&records) {
            Err(error) => Command::Answer {
                result: Err(error),
                done,
            },
            Ok(()) => {
                let bytes = records.iter().map(|record| record.bytes.len()).sum();
                if let Some(first) = records.first() {
                    if self.position.begin.is_none() {
                        self.position.begin = Some(first.index);
                        self.tail = Tail::starting_at(first.index);
                    }
                    self.unflushed.push_back((first.index, bytes));
                } else {
                    self.unflushed.push_back((u64::MAX, 0));
                }
                for record in &records {
                    self.sizes.add(record.index, record.bytes.len());
                    self.tail.push(record.bytes.clone());
                }
                Command::Append { records, bytes, done }
            }
        };
        self.enqueue(command);
    }

    fn check_append(&self, records: &[Record]) -> Result<(), StorageError> {
        let mut expected = self.position.begin.map(|_| self.tail.end());
        for Record { index, bytes } in records {
            let next = expected.unwrap_or(*index);
            if *index != next {
                return Err(StorageError::NotContiguous {
                    expected: next,
                    found: *index,
                });
            }
            let max = crate::chunk::ENTRY_LEN_MAX;
            if bytes.len() > max {
                return Err(StorageError::TooLarge {
                    what: "entry",
                    len: bytes.len() as u64,
                    max: max as u64,
                });
            }
            expected = Some(next + 1);
        }
        Ok(())
    }

    pub(super) fn truncate_from(&mut self, index: u64, done: Done) {
        let live = self.live();
        let index = index.max(live.start);
        if index < live.end {
            let before = self.tail.bytes();
            let in_memory = index >= self.tail.first();
            self.tail.truncate_from(index);
            self.sizes
                .truncate_from(index, in_memory.then(|| before - self.tail.bytes()));
            if index == live.start && self.position.purged.is_none() {
                self.position.begin = None;
            }
            self.epoch += 1;
        }
        self.enqueue(Command::Truncate { index, done });
    }

    pub(super) fn purge_to(&mut self, marker: Marker, done: Done) {
        if self
            .position
            .purged
            .as_ref()
            .is_some_and(|purged| purged.index > marker.index)
        {
            self.enqueue(Command::Answer { result: Ok(()), done });
            return;
        }
        let begin = (marker.index + 1).max(self.position.begin.unwrap_or(0));
        self.position.begin = Some(begin);
        self.position.purged = Some(marker.clone());
        self.tail.advance_to(begin);
        self.sizes.advance_to(begin);
        self.epoch += 1;
        self.enqueue(Command::Purge { marker, done });
    }

    /// Takes a group off the queue.
    pub(super) fn take_group(&mut self, commands_max: usize, bytes_max: usize) -> Vec<Command> {
        let mut group = Vec::new();
        let mut bytes = 0;
        while group.len() < commands_max && (bytes < bytes_max || group.is_empty()) {
            let Some(command) = self.queue.pop_front() else {
                break;
            };
            bytes += command.bytes();
            self.urgent -= usize::from(command.wants_flush());
            group.push(command);
        }
        group
    }

    /// Notes that the oldest `appends` appends are on disk, and lets the tail forget what it need not keep.
    pub(super) fn flushed(&mut self, appends: usize, tail_bytes: u64) {
        self.unflushed.drain(..appends);
        let keep_from = self
            .unflushed
            .iter()
            .map(|(first, _)| *first)
            .min()
            .unwrap_or(u64::MAX);
        self.tail.evict(tail_bytes, keep_from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_looks_like_this() {
        let marker = Marker {
            index: 258,
            bytes: Bytes::from_static(b"t3"),
        };
        assert_eq!(marker.encode()[..], [2, 1, 0, 0, 0, 0, 0, 0, b't', b'3']);
        assert_eq!(Marker::decode(&marker.encode()).unwrap(), marker);
        assert!(Marker::decode(&Bytes::from_static(b"short")).is_err());
    }
}
