//! Reading entries back from their chunks.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::Record;
use crate::chunk::{Chunk, ChunkKey};
use crate::engine::{Engine, Walk};
use crate::error::StorageError;
use crate::meta::LOG;

/// Walks the entries on disk from one index upwards. The first hole, damaged chunk or incomplete entry ends
/// the walk with an error.
pub(super) struct Entries<'a> {
    walk: Walk<'a>,
    run: VecDeque<Bytes>,
    next: u64,
    /// The first chunk may start before `next`.
    started: bool,
}

impl<'a> Entries<'a> {
    /// Starts at `from`, which must be there, unless nothing follows it either.
    pub(super) fn from(engine: &'a dyn Engine, from: u64) -> Result<Self, StorageError> {
        let start = chunk_of(engine, from)?;
        let walk = engine.ascend(LOG, &start.encode());
        Ok(Entries {
            walk,
            run: VecDeque::new(),
            next: from,
            started: false,
        })
    }

    fn next_chunk(&mut self) -> Option<Result<(ChunkKey, Chunk), StorageError>> {
        let decode = |(key, value): (Bytes, Bytes)| {
            let key = ChunkKey::decode(&key)?;
            Ok((key, Chunk::decode(key, &value)?))
        };
        self.walk.next().map(|pair| pair.and_then(decode))
    }

    /// Gathers the other parts of an entry whose first part is at hand.
    fn gather(&mut self, entry_len: usize, first: &[u8]) -> Result<Bytes, StorageError> {
        let index = self.next;
        let mut entry = BytesMut::with_capacity(entry_len);
        entry.extend_from_slice(first);
        for part in 1_u16.. {
            if entry.len() == entry_len {
                break;
            }
            match self.next_chunk().transpose()? {
                Some((
                    key,
                    Chunk::Part {
                        entry_len: len,
                        bytes,
                    },
                )) if key == ChunkKey::new(index, part) && len == entry_len => {
                    entry.extend_from_slice(&bytes);
                }
                _ => {
                    let have = entry.len();
                    return Err(StorageError::corrupt(format!(
                        "entry {index} has {have} of {entry_len} bytes"
                    )));
                }
            }
        }
        Ok(entry.freeze())
    }

    fn advance(&mut self) -> Result<Option<Record>, StorageError> {
        while self.run.is_empty() {
            let Some((key, chunk)) = self.next_chunk().transpose()? else {
                return Ok(None);
            };
            let skip = if self.started {
                0
            } else {
                self.next.saturating_sub(key.index)
            };
            if key.index + skip != self.next || key.part != 0 {
                return Err(StorageError::corrupt(format!(
                    "the log continues at {}/{} instead of {}",
                    key.index, key.part, self.next
                )));
            }
            self.started = true;
            match chunk {
                Chunk::Run(entries) => {
                    self.run = entries.into();
                    self.run.drain(..usize::try_from(skip).expect("a run is short"));
                }
                Chunk::Part { entry_len, bytes } => self.run = [self.gather(entry_len, &bytes)?].into(),
            }
        }
        let index = self.next;
        self.next += 1;
        Ok(self.run.pop_front().map(|bytes| Record { index, bytes }))
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<Record, StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().transpose()
    }
}

/// The key of the chunk in which entry `index` starts, or would start.
pub(super) fn chunk_of(engine: &dyn Engine, index: u64) -> Result<ChunkKey, StorageError> {
    let own = ChunkKey::new(index, 0);
    let before = engine.descend(LOG, &own.encode()).next().transpose()?;
    match before {
        // The chunk below may be a run that reaches this far, or one that ends before it.
        Some((key, value)) if last_index(&key, &value)? >= index => ChunkKey::decode(&key),
        _ => Ok(own),
    }
}

/// The last entry that a chunk holds, or has a part of.
pub(super) fn last_index(key: &[u8], value: &Bytes) -> Result<u64, StorageError> {
    let key = ChunkKey::decode(key)?;
    Ok(match Chunk::decode(key, value)? {
        Chunk::Run(entries) => key.index + entries.len() as u64 - 1,
        Chunk::Part { .. } => key.index,
    })
}
