//! From the disk to the state in memory, at open. Reads everything, changes nothing.

use bytes::Bytes;

use super::entries::{Entries, chunk_of};
use super::sizes::Sizes;
use super::state::{Marker, Position};
use super::tail::Tail;
use crate::chunk::{Chunk, ChunkKey};
use crate::engine::Engine;
use crate::error::StorageError;
use crate::meta::{self, LOG, MetaKey};

/// What a log database holds.
pub(crate) struct Recovered {
    pub(super) position: Position,
    pub(super) tail: Tail,
    pub(super) sizes: Sizes,
    pub(super) vote: Option<Bytes>,
    pub(super) committed: Option<Bytes>,
    /// An entry of several parts whose write a crash cut short. It was never acknowledged.
    pub(super) torn: Option<u64>,
    /// The number of the last group commit.
    pub(crate) sequence: u64,
    /// Bytes of all live entries.
    pub(crate) live_bytes: u64,
}

impl Recovered {
    /// Reads and checks every live entry. A hole or a wrong checksum anywhere is an error.
    pub(crate) fn read(engine: &dyn Engine, tail_bytes: u64) -> Result<Recovered, StorageError> {
        let purged = meta::get(engine, MetaKey::Purged)?
            .map(|payload| Marker::decode(&payload))
            .transpose()?;
        let sequence = match meta::get(engine, MetaKey::Sequence)? {
            Some(mut payload) => meta::take_u64(&mut payload)?,
            None => 0,
        };
        let torn = torn_entry(engine)?;
        let first = match &purged {
            Some(marker) => Some(marker.index + 1),
            None => first_key(engine)?.filter(|first| Some(*first) != torn),
        };
        let mut recovered = Recovered {
            tail: Tail::starting_at(first.unwrap_or(0)),
            position: Position { begin: first, purged },
            sizes: Sizes::default(),
            vote: meta::get(engine, MetaKey::Vote)?,
            committed: meta::get(engine, MetaKey::Committed)?,
            torn,
            sequence,
            live_bytes: 0,
        };
        if let Some(first) = first {
            for record in Entries::from(engine, first)? {
                let record = match record {
                    Err(_) if torn == Some(recovered.tail.end()) => break,
                    record => record?,
                };
                recovered.sizes.add(record.index, record.bytes.len());
                recovered.live_bytes += record.bytes.len() as u64;
                recovered.tail.push(record.bytes);
                recovered.tail.evict(tail_bytes, u64::MAX);
            }
        }
        Ok(recovered)
    }

    /// The vote.
    #[cfg(feature = "simulation")]
    pub(crate) fn vote(&self) -> Option<&Bytes> {
        self.vote.as_ref()
    }

    /// The committed point.
    #[cfg(feature = "simulation")]
    pub(crate) fn committed(&self) -> Option<&Bytes> {
        self.committed.as_ref()
    }

    /// Index and marker of the last purge.
    #[cfg(feature = "simulation")]
    pub(crate) fn purged(&self) -> Option<(u64, Bytes)> {
        let marker = self.position.purged.as_ref()?;
        Some((marker.index, marker.bytes.clone()))
    }

    /// The live entries that were to be kept in memory.
    #[cfg(feature = "simulation")]
    pub(crate) fn entries(&self) -> Vec<crate::Record> {
        let (from, to) = (self.tail.first(), self.tail.end());
        let mut records = Vec::new();
        self.tail.read(from, to, &mut { usize::MAX }, &mut records);
        records
    }

    pub(super) fn purged_index(&self) -> Option<u64> {
        self.position.purged.as_ref().map(|marker| marker.index)
    }

    /// The key of the first chunk that holds a live entry.
    pub(crate) fn first_chunk(&self, engine: &dyn Engine) -> Result<[u8; ChunkKey::LEN], StorageError> {
        Ok(chunk_of(engine, self.position.begin.unwrap_or(0))?.encode())
    }

    /// Removes the torn entry, if there is one.
    pub(crate) fn repair(&self, engine: &dyn Engine) -> Result<(), StorageError> {
        let Some(torn) = self.torn else { return Ok(()) };
        tracing::warn!(
            index = torn,
            "removing the last log entry: its write was interrupted, and never confirmed"
        );
        super::writer::remove_from(engine, torn)
    }
}

fn first_key(engine: &dyn Engine) -> Result<Option<u64>, StorageError> {
    let first = engine.ascend(LOG, &[]).next().transpose()?;
    first
        .map(|(key, _)| ChunkKey::decode(&key).map(|key| key.index))
        .transpose()
}

/// The last entry of the log, if some of its parts are missing at the end. A crash can leave that, because
/// parts are written in ascending and removed in descending order.
fn torn_entry(engine: &dyn Engine) -> Result<Option<u64>, StorageError> {
    let Some((key, value)) = engine.descend(LOG, &[0xff; ChunkKey::LEN]).next().transpose()? else {
        return Ok(None);
    };
    let key = ChunkKey::decode(&key)?;
    Ok(match Chunk::decode(key, &value)? {
        Chunk::Part { entry_len, .. } if !key.is_last_part_of(entry_len) => Some(key.index),
        _ => None,
    })
}
