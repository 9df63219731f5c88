//! Message contents that outlived their log entry.
//!
//! A content lives in its log entry first. When a snapshot covers that entry and the message is still alive,
//! its content is copied here, so that the log can be purged. It is named by the entry's index and its
//! number within the entry, and cut into parts of at most 16 KiB:
//!
//! ```text
//! space meta    node: u64 LE node id       sweep: empty, there while orphans may exist
//!               sequence: u64 LE, grows by one with each flush      (values as in `meta`)
//! space parts   key    u64 BE index, u32 BE number, u16 BE part
//!               value  u8 format = 1, u32 LE crc32 of key and rest, rest = u32 LE content length, bytes;
//!                      empty where a crash interrupted the writing: as if the key were not there
//! ```
//!
//! The order of things around a snapshot makes this safe without transactions: `put_all`, `flush`, then
//! [`SnapshotWriter::finish`](crate::SnapshotWriter::finish), then purge the log. What a crash leaves behind
//! in between is an orphan: a content that no snapshot names. [`Contents::retain`] sweeps those.

use std::path::Path;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use quorate_mutants::mutant;

use crate::door::Door;
use crate::engine::disk::Disk;
use crate::engine::{Engine, Layout, Pair, Space, SpaceName, VALUE_LEN_MAX};
use crate::error::{OpenError, StorageError};
use crate::failure::Failure;
use crate::progress::Witness;
use crate::throttle::Throttle;
use crate::{Options, compact, meta};

/// The names of the spaces, in the order of [`META`] and [`PARTS`].
pub(crate) const SPACES: [SpaceName; 2] = [("meta", Layout::Map), ("parts", Layout::Map)];
const META: Space = Space(0);
pub(crate) const PARTS: Space = Space(1);

const NODE: &str = "node";
const SWEEP: &str = "sweep";
const SEQUENCE: &str = "sequence";

const FORMAT: u8 = 1;
const HEAD: usize = 1 + 4;
const LEN: usize = 4;
const PART_BYTES: usize = VALUE_LEN_MAX - HEAD - LEN;
const KEY_LEN: usize = 8 + 4 + 2;
const CONTENT_LEN_MAX: usize = PART_BYTES * u16::MAX as usize;

/// So many bytes are written together, and flushed, so that the final flush is short.
const FLUSH_EVERY: usize = 1 << 20;
/// Keys looked at, or removed, in one go.
const SLICE: usize = 256;

/// One content and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The index of its log entry.
    pub index: u64,
    /// Its number within the entry.
    pub number: u32,
    /// The content itself.
    pub bytes: Bytes,
}

/// A cheap handle on the stored contents. Every call may block on the disk.
#[derive(Clone)]
pub struct Contents {
    inner: Arc<Inner>,
}

/// The open database, before anything uses it.
pub(crate) struct ContentsDatabase {
    pub(crate) engine: Arc<dyn Engine>,
    /// The number of the last flush.
    pub(crate) sequence: u64,
    /// Is told of each further one.
    pub(crate) progress: Box<dyn Witness>,
}

struct Inner {
    engine: Arc<dyn Engine>,
    flushes: Mutex<Flushes>,
    failure: Arc<Failure>,
    bytes_per_second: Option<u64>,
    _door: Option<Arc<Door>>,
}

/// Counts the flushes, in the database and beside it.
struct Flushes {
    sequence: u64,
    progress: Box<dyn Witness>,
}

impl Contents {
    /// Makes an empty database a node's.
    pub(crate) fn create(engine: &dyn Engine, node: u64) -> Result<(), StorageError> {
        engine.put(META, NODE.as_bytes(), &meta::encode(NODE, &node.to_le_bytes()))?;
        engine.flush()
    }

    /// Checks that the database in `path` is the node's own and holds everything up to flush `reached`. Changes
    /// nothing that it holds. Answers the number of its last flush.
    pub(crate) fn check(engine: &dyn Engine, path: &Path, node: u64, reached: u64) -> Result<u64, OpenError> {
        let damaged = |what: String| OpenError::damaged(path.join("db"), what);
        let number = |name| read_number(engine, name).map_err(|error| damaged(error.to_string()));
        let owner = number(NODE)?.ok_or_else(|| damaged("it names no node".into()))?;
        if owner != node {
            return Err(damaged(format!(
                "it belongs to node {owner:016x}, this directory to {node:016x}"
            )));
        }
        let sequence = number(SEQUENCE)?.unwrap_or(0);
        if sequence < reached {
            return Err(damaged(format!(
                "it ends at flush {sequence}, but flush {reached} was confirmed"
            )));
        }
        Ok(sequence)
    }

    /// Rewrites the database if its file is much larger than what it holds.
    pub(crate) fn compact(engine: Disk, options: &Options) -> Result<Disk, OpenError> {
        let live_bytes = || {
            let mut total = 0;
            for pair in engine.ascend(PARTS, &[]) {
                total += pair?.1.len() as u64;
            }
            Ok(total)
        };
        if !compact::is_due(&engine, options.compact_bytes_min, live_bytes)? {
            return Ok(engine);
        }
        let spaces = SPACES.map(|name| (name, &[][..]));
        compact::rewrite(engine, &spaces, options.contents_cache_bytes)
    }

    /// Begins a run: makes durable what an earlier one left, and notes whether it may have left orphans.
    pub(crate) fn begin_run(engine: &dyn Engine, clean: bool) -> Result<(), StorageError> {
        if !clean {
            put_sweep(engine)?;
            engine.flush()?;
        }
        Ok(())
    }

    /// A handle on the opened database.
    pub(crate) fn new(
        database: ContentsDatabase,
        failure: Arc<Failure>,
        options: &Options,
        door: Option<Arc<Door>>,
    ) -> Self {
        let ContentsDatabase {
            engine,
            sequence,
            progress,
        } = database;
        Contents {
            inner: Arc::new(Inner {
                engine,
                flushes: Mutex::new(Flushes { sequence, progress }),
                failure,
                bytes_per_second: options.snapshot_bytes_per_second,
                _door: door,
            }),
        }
    }

    /// Writes contents, given in ascending order, no faster than [`Options::snapshot_bytes_per_second`], and returns
    /// their bytes. Writing one again is fine. None of them is durable before [`Contents::flush`].
    pub fn put_all(&self, items: &mut dyn Iterator<Item = (u64, u32, Bytes)>) -> Result<u64, StorageError> {
        let mut throttle = Throttle::new(self.inner.bytes_per_second);
        let mut total = 0;
        let mut parts = Vec::new();
        let mut parts_bytes = 0;
        for (index, number, bytes) in items {
            self.write(|| encode_parts(index, number, &bytes, &mut parts))?;
            total += bytes.len() as u64;
            parts_bytes += bytes.len();
            if parts_bytes >= FLUSH_EVERY {
                self.write(|| self.inner.engine.put_all(PARTS, &parts))?;
                self.flush()?;
                parts.clear();
                parts_bytes = 0;
            }
            throttle.spend(bytes.len());
        }
        self.write(|| self.inner.engine.put_all(PARTS, &parts))?;
        Ok(total)
    }

    /// Makes everything written and removed so far durable.
    pub fn flush(&self) -> Result<(), StorageError> {
        let mut flushes = self.inner.flushes.lock();
        self.write(|| {
            let sequence = flushes.sequence + 1;
            let value = meta::encode(SEQUENCE, &sequence.to_le_bytes());
            self.inner.engine.put(META, SEQUENCE.as_bytes(), &value)?;
            self.inner.engine.flush()?;
            self.inner.engine.check()?;
            flushes.sequence = sequence;
            flushes.progress.note(sequence)
        })
    }

    /// Reads a content of `len` bytes; `None` if it is not here.
    pub fn get(&self, index: u64, number: u32, len: usize) -> Result<Option<Bytes>, StorageError> {
        let mut content = BytesMut::with_capacity(len);
        for part in 0..part_count(len) {
            let key = encode_key(index, number, part);
            let value = self.inner.engine.get(PARTS, &key)?;
            let Some(value) = value.filter(|value| !value.is_empty()) else {
                return if part == 0 {
                    Ok(None)
                } else {
                    Err(damaged(&key, "it is missing"))
                };
            };
            let (content_len, bytes) = decode_part(&key, &value)?;
            if content_len != len {
                return Err(damaged(
                    &key,
                    &format!("it is of a content of {content_len} bytes, not {len}"),
                ));
            }
            if len <= PART_BYTES {
                return Ok(Some(bytes));
            }
            content.extend_from_slice(&bytes);
        }
        Ok(Some(content.freeze()))
    }

    /// Removes contents, given as index, number and length; missing ones are fine. Not flushed: a removal
    /// that a crash undoes leaves an orphan, which the next sweep finds.
    pub fn remove_all(&self, items: &mut dyn Iterator<Item = (u64, u32, usize)>) -> Result<(), StorageError> {
        for (index, number, len) in items {
            for part in 0..part_count(len) {
                self.write(|| self.inner.engine.remove(PARTS, &encode_key(index, number, part)))?;
            }
        }
        Ok(())
    }

    /// Removes every content of entries up to `index_max` that `live` does not name, makes that durable and
    /// ends the pending sweep. `live` must be in ascending order. Returns how many parts were removed.
    ///
    /// `index_max` keeps the sweep away from contents that are written while it runs: give the index at which
    /// `live` was taken.
    pub fn retain(
        &self,
        live: &mut dyn Iterator<Item = (u64, u32)>,
        index_max: u64,
    ) -> Result<u64, StorageError> {
        let mut live = live.peekable();
        let mut cursor = vec![0; KEY_LEN];
        let mut removed = 0;
        loop {
            let slice: Vec<_> = self.inner.engine.ascend(PARTS, &cursor).take(SLICE).collect();
            let whole = slice.len() == SLICE;
            let mut beyond = false;
            for pair in slice {
                let (key, _value) = pair?;
                let (index, number, _part) = decode_key(&key)?;
                if index > index_max {
                    beyond = true;
                    break;
                }
                while live.next_if(|name| *name < (index, number)).is_some() {}
                if live.peek() != Some(&(index, number)) {
                    self.write(|| self.inner.engine.remove(PARTS, &key))?;
                    removed += 1;
                }
                // The next key that could follow this one.
                cursor = [&key[..], &[0]].concat();
            }
            if beyond || !whole {
                break;
            }
        }
        self.write(|| self.inner.engine.remove(META, SWEEP.as_bytes()))?;
        self.flush()?;
        Ok(removed)
    }

    /// Notes, durably, that orphans may exist: before a snapshot from elsewhere replaces the own one. An
    /// unclean stop is noted by the store itself.
    pub fn mark_sweep_pending(&self) -> Result<(), StorageError> {
        self.write(|| put_sweep(&*self.inner.engine))?;
        self.flush()
    }

    /// Whether orphans may exist, so that [`Contents::retain`] is due.
    pub fn sweep_pending(&self) -> Result<bool, StorageError> {
        Ok(self.inner.engine.get(META, SWEEP.as_bytes())?.is_some())
    }

    /// Walks the contents in order, from a name on. One that a crash cut short while it was written is left
    /// out.
    pub fn range(&self, from: (u64, u32)) -> impl Iterator<Item = Result<Content, StorageError>> + '_ {
        let mut walk = self
            .inner
            .engine
            .ascend(PARTS, &encode_key(from.0, from.1, 0))
            .filter(|pair| !matches!(pair, Ok((_key, value)) if value.is_empty()))
            .peekable();
        std::iter::from_fn(move || {
            loop {
                let content = gather(&mut walk).transpose()?;
                match content {
                    Ok(None) => {}
                    Ok(Some(content)) => return Some(Ok(content)),
                    Err(error) => return Some(Err(error)),
                }
            }
        })
    }

    fn write<T>(&self, step: impl FnOnce() -> Result<T, StorageError>) -> Result<T, StorageError> {
        self.inner.failure.check()?;
        let result = step();
        match &result {
            // The caller's mistake, and nothing was written.
            Err(StorageError::TooLarge { .. }) => result,
            _ => self.inner.failure.note(result),
        }
    }
}

fn read_number(engine: &dyn Engine, name: &str) -> Result<Option<u64>, StorageError> {
    let Some(value) = engine.get(META, name.as_bytes())? else {
        return Ok(None);
    };
    meta::take_u64(&mut meta::decode(name, &value)?).map(Some)
}

fn put_sweep(engine: &dyn Engine) -> Result<(), StorageError> {
    engine.put(META, SWEEP.as_bytes(), &meta::encode(SWEEP, &[]))
}

/// The next content of a walk over parts: `None` at the end, `Some(None)` for an incomplete one.
fn gather(
    walk: &mut std::iter::Peekable<impl Iterator<Item = Result<Pair, StorageError>>>,
) -> Result<Option<Option<Content>>, StorageError> {
    let Some((key, value)) = walk.next().transpose()? else {
        return Ok(None);
    };
    let (index, number, first) = decode_key(&key)?;
    let (len, bytes) = decode_part(&key, &value)?;
    if len <= PART_BYTES {
        return Ok(Some(Some(Content { index, number, bytes })));
    }
    let mut content = BytesMut::with_capacity(len);
    content.extend_from_slice(&bytes);
    let mut whole = first == 0;
    let mut expected = first;
    while let Some((key, value)) = walk
        .next_if(|pair| matches!(pair, Ok((key, _)) if key.starts_with(&encode_key(index, number, 0)[..12])))
        .transpose()?
    {
        expected += 1;
        whole &= decode_key(&key)?.2 == expected;
        content.extend_from_slice(&decode_part(&key, &value)?.1);
    }
    whole &= content.len() == len;
    Ok(Some(whole.then(|| Content {
        index,
        number,
        bytes: content.freeze(),
    })))
}

/// Adds the parts of a content, as the database has them.
fn encode_parts(index: u64, number: u32, content: &[u8], parts: &mut Vec<Pair>) -> Result<(), StorageError> {
    if content.len() > CONTENT_LEN_MAX {
        let (len, max) = (content.len() as u64, CONTENT_LEN_MAX as u64);
        return Err(StorageError::TooLarge {
            what: "content",
            len,
            max,
        });
    }
    for part in 0..part_count(content.len()) {
        let from = usize::from(part) * PART_BYTES;
        let bytes = &content[from..content.len().min(from + PART_BYTES)];
        let key = encode_key(index, number, part);
        let mut value = BytesMut::with_capacity(HEAD + LEN + bytes.len());
        value.put_u8(FORMAT);
        value.put_u32_le(0);
        value.put_u32_le(content.len() as u32);
        value.put_slice(bytes);
        let crc = checksum(&key, &value[HEAD..]);
        value[1..HEAD].copy_from_slice(&crc.to_le_bytes());
        parts.push((Bytes::copy_from_slice(&key), value.freeze()));
    }
    Ok(())
}

/// An empty content has one empty part.
fn part_count(len: usize) -> u16 {
    u16::try_from(len.div_ceil(PART_BYTES).max(1)).unwrap_or(u16::MAX)
}

fn encode_key(index: u64, number: u32, part: u16) -> [u8; KEY_LEN] {
    let mut key = [0; KEY_LEN];
    key[..8].copy_from_slice(&index.to_be_bytes());
    key[8..12].copy_from_slice(&number.to_be_bytes());
    key[12..].copy_from_slice(&part.to_be_bytes());
    key
}

fn decode_key(key: &[u8]) -> Result<(u64, u32, u16), StorageError> {
    if key.len() != KEY_LEN {
        return Err(StorageError::corrupt(format!(
            "content key of {} bytes",
            key.len()
        )));
    }
    Ok((
        u64::from_be_bytes(key[..8].try_into().expect("eight bytes")),
        u32::from_be_bytes(key[8..12].try_into().expect("four bytes")),
        u16::from_be_bytes(key[12..].try_into().expect("two bytes")),
    ))
}

/// The length of the whole content, and the bytes of this part.
fn decode_part(key: &[u8], value: &Bytes) -> Result<(usize, Bytes), StorageError> {
    if value.len() < HEAD + LEN || value[0] != FORMAT {
        return Err(damaged(key, "unknown format"));
    }
    let sound = value[1..HEAD] == checksum(key, &value[HEAD..]).to_le_bytes();
    if !sound && !mutant!("checksum-not-verified") {
        return Err(damaged(key, "wrong checksum"));
    }
    let len = u32::from_le_bytes(value[HEAD..HEAD + LEN].try_into().expect("four bytes")) as usize;
    Ok((len, value.slice(HEAD + LEN..)))
}

fn checksum(key: &[u8], rest: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(rest);
    hasher.finalize()
}

fn damaged(key: &[u8], what: &str) -> StorageError {
    match decode_key(key) {
        Ok((index, number, part)) => {
            StorageError::corrupt(format!("content {index}/{number} part {part}: {what}"))
        }
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::memory::Memory;

    fn put(engine: &dyn Engine, index: u64, number: u32, content: &[u8]) -> Result<(), StorageError> {
        let mut parts = Vec::new();
        encode_parts(index, number, content, &mut parts)?;
        engine.put_all(PARTS, &parts)
    }

    #[test]
    fn a_part_looks_like_this() {
        let engine = Memory::default();
        put(&engine, 258, 3, b"hi").unwrap();
        let (key, value) = engine.ascend(PARTS, &[]).next().unwrap().unwrap();
        assert_eq!(key[..], [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3, 0, 0]);
        assert_eq!(value[..], [1, 0x2d, 0x6a, 0x89, 0x1f, 2, 0, 0, 0, b'h', b'i']);
    }

    #[test]
    fn a_content_cut_short_by_a_crash_is_left_out_of_a_walk_and_an_error_to_a_reader() {
        let engine = Memory::default();
        for index in 1..=3 {
            put(&engine, index, 0, &vec![7; 40_000]).unwrap();
        }
        engine.remove(PARTS, &encode_key(2, 0, 1)).unwrap();
        engine.remove(PARTS, &encode_key(3, 0, 2)).unwrap();
        let mut walk = engine.ascend(PARTS, &[]).peekable();
        assert_eq!(
            gather(&mut walk).unwrap().unwrap().unwrap().bytes,
            vec![7; 40_000]
        );
        assert_eq!(gather(&mut walk).unwrap(), Some(None), "the middle is missing");
        assert_eq!(gather(&mut walk).unwrap(), Some(None), "the end is missing");
        assert_eq!(gather(&mut walk).unwrap(), None);
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let engine = Memory::default();
        put(&engine, 1, 2, b"payload").unwrap();
        let (key, value) = engine.ascend(PARTS, &[]).next().unwrap().unwrap();
        assert_eq!(
            decode_part(&key, &value).unwrap(),
            (7, Bytes::from_static(b"payload"))
        );
        for bit in 0..value.len() * 8 {
            let mut damaged = value.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_part(&key, &damaged.into()).is_err(), "bit {bit}");
        }
        assert!(
            decode_part(&encode_key(1, 3, 0), &value).is_err(),
            "a part in the wrong place"
        );
    }
}
