//! One volume: a database of contents that is filled once, in ascending order of their ids, and dropped as a whole.
//!
//! ```text
//! space meta    node: u64 LE node id
//!               sequence: u64 LE, the number of its last flush          (values as in `meta`)
//!               held: u64 LE count, u64 LE bytes, as of that flush
//!               sealed: u64 LE count, u64 LE bytes, u64 LE index and u32 LE number of the lowest and of the highest id;
//!                       there once a newer volume was begun
//! space parts   runs and parts                                          (see `run`)
//! ```

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use parking_lot::Mutex;

use super::run::{self, Kind, Packed, Run};
use super::shelf::{Shelf, Slot};
use super::{Content, Id};
use crate::engine::{Engine, Layout, Space, SpaceName};
use crate::error::{OpenError, StorageError};
use crate::medium::Medium;
use crate::meta;

const SPACES: [SpaceName; 2] = [("meta", Layout::Map), ("parts", Layout::Map)];
const META: Space = Space(0);
pub(crate) const PARTS: Space = Space(1);

/// Page cache of the database. It takes more than that: see `shelf`.
const CACHE_BYTES: u64 = 1 << 20;

const NODE: &str = "node";
const SEQUENCE: &str = "sequence";
const HELD: &str = "held";
const SEALED: &str = "sealed";

/// So many runs are kept in memory of each volume: one MiB at most.
const RUNS_KEPT: usize = 64;

/// A volume. While it lives its directory does too.
pub(super) struct Volume {
    pub(super) number: u64,
    slot: Arc<Slot>,
    shelf: Arc<Shelf>,
    path: PathBuf,
    medium: Arc<dyn Medium>,
    remove: AtomicBool,
    held: Mutex<Held>,
    /// Bytes that are known to be needed no more.
    dead_bytes: AtomicU64,
    /// The runs that were read last, the newest at the back: who reads in order, side by side with others, reads each once.
    last: Mutex<VecDeque<Arc<Run>>>,
}

/// What a volume holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Contents, and their bytes. After a crash these may be too low; nothing but thrift hangs on them.
    pub(super) count: u64,
    pub(super) bytes: u64,
    /// No id in it is below the first or above the second. `None` if it is empty.
    pub(super) ids: Option<(Id, Id)>,
    /// Nothing is added any more.
    pub(super) sealed: bool,
}

/// What became of a search for one content.
pub(super) enum Found {
    Nothing,
    /// A crash interrupted the writing of a content that is cut into parts: this one is missing.
    Partly(StorageError),
    Whole(Bytes),
}

impl Volume {
    /// Begins an empty volume of a node, at a flush sequence. Durable when it returns.
    pub(super) fn create(
        medium: &Arc<dyn Medium>,
        shelf: &Arc<Shelf>,
        path: PathBuf,
        number: u64,
        node: u64,
        sequence: u64,
    ) -> Result<Self, StorageError> {
        medium.remove(&path)?;
        let slot = Slot::open(medium, path.clone(), &SPACES, CACHE_BYTES).map_err(in_use)?;
        let engine = slot.engine().map_err(in_use)?;
        put_number(&*engine, NODE, node)?;
        put_number(&*engine, SEQUENCE, sequence)?;
        engine.flush()?;
        engine.check()?;
        Ok(Self::new(medium, shelf, path, number, slot, Held::default()))
    }

    /// Opens a volume of a node and checks what can be checked without reading it all. Changes nothing that it holds.
    pub(super) fn open(
        medium: &Arc<dyn Medium>,
        shelf: &Arc<Shelf>,
        path: &Path,
        number: u64,
        node: u64,
    ) -> Result<Self, OpenError> {
        let slot = Slot::open(medium, path.to_owned(), &SPACES, CACHE_BYTES)?;
        let engine = slot.engine()?;
        let damaged = |what: String| OpenError::damaged(path.join("db"), what);
        let unreadable = |error: StorageError| damaged(error.to_string());
        let owner = read_number(&*engine, NODE)
            .map_err(unreadable)?
            .ok_or_else(|| damaged("it names no node".into()))?;
        if owner != node {
            return Err(damaged(format!(
                "it belongs to node {owner:016x}, this directory to {node:016x}"
            )));
        }
        let held = read_held(&*engine).map_err(unreadable)?;
        Ok(Self::new(medium, shelf, path.to_owned(), number, slot, held))
    }

    fn new(
        medium: &Arc<dyn Medium>,
        shelf: &Arc<Shelf>,
        path: PathBuf,
        number: u64,
        slot: Arc<Slot>,
        held: Held,
    ) -> Self {
        Volume {
            number,
            slot,
            shelf: Arc::clone(shelf),
            path,
            medium: Arc::clone(medium),
            remove: AtomicBool::new(false),
            held: Mutex::new(held),
            dead_bytes: AtomicU64::new(0),
            last: Mutex::default(),
        }
    }

    /// The number of the last flush of which it knows.
    pub(super) fn sequence(&self) -> Result<u64, StorageError> {
        Ok(read_number(&*self.engine()?, SEQUENCE)?.unwrap_or(0))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn held(&self) -> Held {
        *self.held.lock()
    }

    /// Notes that so much of what it holds now is alive.
    pub(super) fn note_live(&self, bytes: u64) {
        let dead = self.held().bytes.saturating_sub(bytes);
        self.dead_bytes.store(dead, Ordering::Relaxed);
    }

    /// Bytes that may be alive.
    pub(super) fn live_bytes(&self) -> u64 {
        let dead = self.dead_bytes.load(Ordering::Relaxed);
        self.held().bytes.saturating_sub(dead)
    }

    /// Whether its range includes an id.
    pub(super) fn spans(&self, id: Id) -> bool {
        let ids = self.held.lock().ids;
        ids.is_some_and(|(lowest, highest)| lowest <= id && id <= highest)
    }

    /// How many entries its range includes.
    pub(super) fn width(&self) -> u64 {
        let ids = self.held.lock().ids;
        ids.map_or(0, |(lowest, highest)| highest.0 - lowest.0)
    }

    /// Has the last holder remove the directory.
    pub(super) fn remove_when_dropped(&self) {
        self.remove.store(true, Ordering::SeqCst);
    }

    /// Its database, which stays open as long as this is held; the newest volume's always does.
    fn engine(&self) -> Result<Arc<dyn Engine>, StorageError> {
        let engine = self.slot.engine().map_err(in_use)?;
        let held = self.held();
        if held.sealed {
            self.shelf.used(&self.slot, held.bytes);
        }
        Ok(engine)
    }

    /// Closes its database until it is read again.
    pub(super) fn close(&self) {
        self.shelf.forget(&self.slot);
    }

    /// Adds contents, all of them above the highest id so far.
    pub(super) fn put(&self, packed: &Packed) -> Result<(), StorageError> {
        let (lowest, highest) = packed.ids;
        {
            // First, so that whoever sees a content also finds it.
            let mut held = self.held.lock();
            debug_assert!(held.ids.is_none_or(|(_, before)| before < lowest) && !held.sealed);
            held.ids = Some((held.ids.map_or(lowest, |(before, _)| before), highest));
            held.count += packed.count;
            held.bytes += packed.bytes;
        }
        self.engine()?.put_all(PARTS, &packed.pairs)
    }

    /// Makes everything written so far durable, as flush `sequence`.
    pub(super) fn flush(&self, sequence: u64) -> Result<(), StorageError> {
        let held = self.held();
        let engine = self.engine()?;
        put_number(&*engine, SEQUENCE, sequence)?;
        if !held.sealed {
            let mut payload = BytesMut::new();
            payload.put_u64_le(held.count);
            payload.put_u64_le(held.bytes);
            engine.put(META, HELD.as_bytes(), &meta::encode(HELD, &payload))?;
        }
        engine.flush()?;
        engine.check()
    }

    /// Ends it, durably: nothing is added any more. It must not be empty.
    pub(super) fn seal(&self) -> Result<(), StorageError> {
        let held = self.held();
        if !held.sealed {
            let payload = encode_sealed(&held);
            let engine = self.engine()?;
            engine.put(META, SEALED.as_bytes(), &meta::encode(SEALED, &payload))?;
            engine.flush()?;
            engine.check()?;
            self.held.lock().sealed = true;
            // All of it is in memory now, and nobody reads it soon.
            self.slot.close();
        }
        Ok(())
    }

    /// Looks for a content.
    pub(super) fn find(&self, id: Id) -> Result<Found, StorageError> {
        if let Some(run) = self.last_run(id) {
            return Ok(run.find(id).map_or(Found::Nothing, Found::Whole));
        }
        // Runs do not overlap: it is under the next lower key, or nowhere.
        let wanted = run::encode_key(id, 0);
        let engine = self.engine()?;
        let Some((key, value)) = engine.descend(PARTS, &wanted).next().transpose()? else {
            return Ok(Found::Nothing);
        };
        if value.is_empty() {
            return Ok(Found::Nothing);
        }
        match run::kind_of(&key, &value)? {
            Kind::Part if key[..] == wanted => find_parts(&*engine, id, &key, &value),
            Kind::Part => Ok(Found::Nothing),
            Kind::Run => {
                let run = Arc::new(Run::decode(&key, &value)?);
                let found = run.find(id).map_or(Found::Nothing, Found::Whole);
                let mut last = self.last.lock();
                if last.len() == RUNS_KEPT {
                    last.pop_front();
                }
                last.push_back(run);
                Ok(found)
            }
        }
    }

    /// Looks for a content where no disk is needed.
    pub(super) fn find_cached(&self, id: Id) -> Option<Bytes> {
        self.last_run(id)?.find(id)
    }

    fn last_run(&self, id: Id) -> Option<Arc<Run>> {
        let last = self.last.lock();
        let mut newest_first = last.iter().rev();
        newest_first.find(|run| run.spans(id)).cloned()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Closed first.
        self.close();
        if self.remove.load(Ordering::SeqCst)
            && let Err(error) = self.medium.remove(&self.path)
        {
            // The next open removes it; until then it only takes space.
            tracing::warn!(%error, "an old volume of contents stays behind");
        }
    }
}

/// Walks one volume in order. What is added meanwhile may come or not.
pub(super) struct Cursor {
    volume: Arc<Volume>,
    from: Id,
    /// The key to go on at; `None` at the end.
    next: Option<Bytes>,
    ready: VecDeque<Content>,
}

impl Cursor {
    /// Begins at an id.
    pub(super) fn new(volume: Arc<Volume>, from: Id) -> Result<Self, StorageError> {
        let key = run::encode_key(from, 0);
        // It may be within a run.
        let below = volume.engine()?.descend(PARTS, &key).next().transpose()?;
        let next = below.map_or_else(|| Bytes::copy_from_slice(&key), |(key, _)| key);
        Ok(Cursor {
            volume,
            from,
            next: Some(next),
            ready: VecDeque::new(),
        })
    }

    /// The number of the volume.
    pub(super) fn volume(&self) -> u64 {
        self.volume.number
    }

    /// The id of the next content; `None` at the end.
    pub(super) fn peek(&mut self) -> Result<Option<Id>, StorageError> {
        while self.ready.is_empty()
            && let Some(from) = self.next.take()
        {
            self.read_on(&from)?;
        }
        Ok(self.ready.front().map(|content| (content.index, content.number)))
    }

    /// The content that was peeked at.
    pub(super) fn take(&mut self) -> Option<Content> {
        self.ready.pop_front()
    }

    fn read_on(&mut self, from: &[u8]) -> Result<(), StorageError> {
        let engine = self.volume.engine()?;
        let Some((key, value)) = engine.ascend(PARTS, from).next().transpose()? else {
            return Ok(());
        };
        let (index, number, part) = run::decode_key(&key)?;
        let mut last = key.clone();
        if !value.is_empty() {
            match run::kind_of(&key, &value)? {
                Kind::Run => {
                    let contents = Run::decode(&key, &value)?.into_contents();
                    let wanted = contents.into_iter().filter(|(id, _)| *id >= self.from);
                    self.ready.extend(wanted.map(|((index, number), bytes)| Content {
                        index,
                        number,
                        bytes,
                    }));
                }
                Kind::Part => {
                    last = Bytes::copy_from_slice(&run::encode_key((index, number), u16::MAX));
                    if part == 0
                        && (index, number) >= self.from
                        && let Found::Whole(bytes) = find_parts(&*engine, (index, number), &key, &value)?
                    {
                        self.ready.push_back(Content { index, number, bytes });
                    }
                }
            }
        }
        // The next key that could follow.
        self.next = Some([&last[..], &[0]].concat().into());
        Ok(())
    }
}

/// Puts a content together, of which the first part is known.
fn find_parts(engine: &dyn Engine, id: Id, key: &[u8], first: &Bytes) -> Result<Found, StorageError> {
    let (len, bytes) = run::decode_part(key, first)?;
    if bytes.len() == len {
        return Ok(Found::Whole(bytes));
    }
    let mut content = BytesMut::with_capacity(len);
    content.extend_from_slice(&bytes);
    for part in 1..run::part_count(len) {
        let key = run::encode_key(id, part);
        let value = engine.get(PARTS, &key)?;
        let Some(value) = value.filter(|value| !value.is_empty()) else {
            return Ok(Found::Partly(run::damaged(&key, "it is missing")));
        };
        content.extend_from_slice(&run::decode_part(&key, &value)?.1);
    }
    if content.len() != len {
        return Err(run::damaged(key, "its parts are not as long as it is"));
    }
    Ok(Found::Whole(content.freeze()))
}

fn in_use(error: OpenError) -> StorageError {
    match error {
        OpenError::Storage(error) => error,
        other => StorageError::corrupt(other.to_string()),
    }
}

fn put_number(engine: &dyn Engine, name: &str, number: u64) -> Result<(), StorageError> {
    engine.put(META, name.as_bytes(), &meta::encode(name, &number.to_le_bytes()))
}

fn read(engine: &dyn Engine, name: &str) -> Result<Option<Bytes>, StorageError> {
    let value = engine.get(META, name.as_bytes())?;
    value.map(|value| meta::decode(name, &value)).transpose()
}

fn read_number(engine: &dyn Engine, name: &str) -> Result<Option<u64>, StorageError> {
    read(engine, name)?
        .map(|mut payload| meta::take_u64(&mut payload))
        .transpose()
}

fn read_held(engine: &dyn Engine) -> Result<Held, StorageError> {
    if let Some(payload) = read(engine, SEALED)? {
        return decode_sealed(payload)
            .ok_or_else(|| StorageError::corrupt("value `sealed`: it is cut short"));
    }
    let (count, bytes) = match read(engine, HELD)? {
        Some(mut payload) => (meta::take_u64(&mut payload)?, meta::take_u64(&mut payload)?),
        None => (0, 0),
    };
    Ok(Held {
        count,
        bytes,
        ids: read_ids(engine)?,
        sealed: false,
    })
}

/// The lowest and the highest id that a volume can hold, by its keys. Those without a value count: what is added later
/// must come after them.
fn read_ids(engine: &dyn Engine) -> Result<Option<(Id, Id)>, StorageError> {
    let first = engine.ascend(PARTS, &[]).next().transpose()?;
    let last = engine.descend(PARTS, &[0xff; 16]).next().transpose()?;
    let (Some((lowest, _)), Some((key, value))) = (first, last) else {
        return Ok(None);
    };
    let lowest = run::decode_key(&lowest)?;
    let highest = run::decode_key(&key)?;
    let mut highest = (highest.0, highest.1);
    if !value.is_empty()
        && run::kind_of(&key, &value)? == Kind::Run
        && let Some(last) = Run::decode(&key, &value)?.last()
    {
        highest = last;
    }
    Ok(Some(((lowest.0, lowest.1), highest)))
}

fn encode_sealed(held: &Held) -> Bytes {
    let (lowest, highest) = held.ids.unwrap_or_default();
    let mut payload = BytesMut::new();
    payload.put_u64_le(held.count);
    payload.put_u64_le(held.bytes);
    for (index, number) in [lowest, highest] {
        payload.put_u64_le(index);
        payload.put_u32_le(number);
    }
    payload.freeze()
}

fn decode_sealed(mut payload: Bytes) -> Option<Held> {
    Some(Held {
        count: payload.try_get_u64_le().ok()?,
        bytes: payload.try_get_u64_le().ok()?,
        ids: {
            let mut id = || Some((payload.try_get_u64_le().ok()?, payload.try_get_u32_le().ok()?));
            Some((id()?, id()?))
        },
        sealed: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_volume_looks_like_this() {
        let held = Held {
            count: 258,
            bytes: 3,
            ids: Some(((4, 5), (6, 7))),
            sealed: true,
        };
        let payload = encode_sealed(&held);
        let numbers = [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0];
        let lowest = [4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0];
        let highest = [6, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0];
        assert_eq!(payload[..], [&numbers[..], &lowest[..], &highest[..]].concat());
        assert_eq!(decode_sealed(payload.clone()), Some(held));
        assert_eq!(decode_sealed(payload.slice(..39)), None);
    }
}
