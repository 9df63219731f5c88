//! The engine in memory: a model of promises 1 to 3 that can crash between any two writes.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use bytes::Bytes;
use parking_lot::Mutex;

use super::{Engine, Space, VALUE_LEN_MAX, Walk};
use crate::error::StorageError;

type Map = BTreeMap<(Space, Bytes), Bytes>;

/// A write, and what it took the place of.
type Undo = (Space, Bytes, Option<Bytes>);

/// So many bytes of the newest flushed writes can be [cut off](Memory::cut).
const TAIL_BYTES: u64 = 64 << 10;

/// Keeps what is flushed apart from the writes made since, so that a crash can drop any suffix of those.
#[derive(Default)]
pub(crate) struct Memory {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    flushed: Map,
    journal: Vec<(Space, Bytes, Option<Bytes>)>,
    current: Map,
    /// The newest flushed writes, the last at the back, each with its bytes.
    tail: VecDeque<(u64, Undo)>,
    tail_bytes: u64,
    /// Bytes of keys and values in `current`.
    bytes: u64,
    /// A sync has failed: nothing in the journal can become durable any more.
    given_up: bool,
    /// Flushes, and writes, left before everything fails, if set.
    flushes_left: Option<u64>,
    writes_left: Option<u64>,
}

impl Memory {
    /// What another start finds if the power goes now and `kept` of the unflushed writes had made it.
    pub(crate) fn crash(&self, kept: usize) -> Memory {
        let state = self.state.lock();
        let mut left = State {
            flushed: state.flushed.clone(),
            tail: state.tail.clone(),
            tail_bytes: state.tail_bytes,
            ..State::default()
        };
        for (space, key, value) in state.journal.iter().take(kept) {
            left.make_durable(*space, key.clone(), value.clone());
        }
        left.begin_anew();
        Memory {
            state: Mutex::new(left),
        }
    }

    /// How many writes a crash could lose.
    pub(crate) fn unflushed(&self) -> usize {
        self.state.lock().journal.len()
    }

    /// Lets `flushes` more flushes succeed, and then nothing.
    #[cfg(test)]
    pub(crate) fn fail_after(&self, flushes: u64) {
        self.state.lock().flushes_left = Some(flushes);
    }

    /// Lets `writes` more writes succeed, and then nothing. So a crash can come between any two of them.
    #[cfg(test)]
    pub(crate) fn die_after(&self, writes: u64) {
        self.state.lock().writes_left = Some(writes);
    }

    fn write(&self, space: Space, key: &[u8], value: Option<Bytes>) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        state.check()?;
        if let Some(left) = &mut state.writes_left {
            *left -= 1;
        }
        let key = Bytes::copy_from_slice(key);
        let added = value.as_ref().map_or(0, |value| len(&key, value));
        let replaced = apply(&mut state.current, space, key.clone(), value.clone());
        state.bytes += added;
        state.bytes -= replaced.map_or(0, |value| len(&key, &value));
        state.journal.push((space, key, value));
        Ok(())
    }
}

/// What a simulated disk does beyond the engine.
#[cfg(feature = "simulation")]
impl Memory {
    /// Bytes that its keys and values take.
    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// A sync failed: what was written since the last one is visible, and will never be durable.
    pub(crate) fn give_up(&self) {
        self.state.lock().given_up = true;
    }

    /// How many of the unflushed writes a crash could keep.
    pub(crate) fn keepable(&self) -> usize {
        let state = self.state.lock();
        if state.given_up { 0 } else { state.journal.len() }
    }

    /// Undoes the newest writes, flushed or not, until as many bytes of keys and values are gone, as if a file to
    /// which they are appended were cut short. Says how many of the flushed ones: no more than [`TAIL_BYTES`] are
    /// remembered.
    pub(crate) fn cut(&self, bytes: u64) -> u64 {
        let mut state = self.state.lock();
        state.journal.clear();
        let (mut gone, mut count) = (0, 0);
        while gone < bytes
            && let Some((bytes, (space, key, before))) = state.tail.pop_back()
        {
            apply(&mut state.flushed, space, key, before);
            state.tail_bytes -= bytes;
            gone += bytes;
            count += 1;
        }
        state.begin_anew();
        count
    }

    /// Flips a bit of a stored value, on disk and for every reader. False if there is no such value.
    pub(crate) fn flip(&self, space: Space, nth: u64, bit: u64) -> bool {
        let mut state = self.state.lock();
        let count = state.flushed.keys().filter(|(of, _)| *of == space).count() as u64;
        if count == 0 {
            return false;
        }
        let at = usize::try_from(nth % count).expect("there are fewer values than that");
        let Some((key, value)) = state
            .flushed
            .iter()
            .filter(|((of, _), _)| *of == space)
            .nth(at)
            .map(|(key, value)| (key.clone(), value.clone()))
        else {
            return false;
        };
        let mut damaged = value.to_vec();
        if damaged.is_empty() {
            return false;
        }
        let bit = usize::try_from(bit % (damaged.len() as u64 * 8)).expect("a value is short");
        damaged[bit / 8] ^= 1 << (bit % 8);
        let damaged = Bytes::from(damaged);
        if state.current.get(&key) == Some(&value) {
            state.current.insert(key.clone(), damaged.clone());
        }
        state.flushed.insert(key, damaged);
        true
    }
}

impl State {
    fn make_durable(&mut self, space: Space, key: Bytes, value: Option<Bytes>) {
        let bytes = (key.len() + value.as_ref().map_or(0, Bytes::len)) as u64;
        let before = apply(&mut self.flushed, space, key.clone(), value);
        self.tail.push_back((bytes, (space, key, before)));
        self.tail_bytes += bytes;
        while self.tail_bytes > TAIL_BYTES
            && let Some((bytes, _)) = self.tail.pop_front()
        {
            self.tail_bytes -= bytes;
        }
    }

    /// Whoever reads it now sees what is flushed.
    fn begin_anew(&mut self) {
        let values = self.flushed.iter();
        self.bytes = values.map(|((_, key), value)| len(key, value)).sum();
        self.current = self.flushed.clone();
    }

    fn check(&self) -> Result<(), StorageError> {
        if self.flushes_left == Some(0) || self.writes_left == Some(0) {
            return Err(StorageError::Engine {
                path: "memory".into(),
                what: "no space left".into(),
            });
        }
        Ok(())
    }
}

fn len(key: &Bytes, value: &Bytes) -> u64 {
    (key.len() + value.len()) as u64
}

fn apply(map: &mut Map, space: Space, key: Bytes, value: Option<Bytes>) -> Option<Bytes> {
    match value {
        Some(value) => map.insert((space, key), value),
        None => map.remove(&(space, key)),
    }
}

impl Engine for Memory {
    fn put(&self, space: Space, key: &[u8], value: &[u8]) -> Result<(), StorageError> {
        assert!(value.len() <= VALUE_LEN_MAX);
        self.write(space, key, Some(Bytes::copy_from_slice(value)))
    }

    fn remove(&self, space: Space, key: &[u8]) -> Result<(), StorageError> {
        self.write(space, key, None)
    }

    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let key = (space, Bytes::copy_from_slice(key));
        Ok(self.state.lock().current.get(&key).cloned())
    }

    fn ascend(&self, space: Space, from: &[u8]) -> Walk<'_> {
        let mut from = Bound::Included((space, Bytes::copy_from_slice(from)));
        // One look for each step, as a reader of a disk: nothing is locked in between.
        Box::new(std::iter::from_fn(move || {
            let state = self.state.lock();
            let (key, value) = state.current.range((from.clone(), Bound::Unbounded)).next()?;
            from = Bound::Excluded(key.clone());
            (key.0 == space).then(|| Ok((key.1.clone(), value.clone())))
        }))
    }

    fn descend(&self, space: Space, to: &[u8]) -> Walk<'_> {
        let mut to = Bound::Included((space, Bytes::copy_from_slice(to)));
        Box::new(std::iter::from_fn(move || {
            let state = self.state.lock();
            let (key, value) = state.current.range((Bound::Unbounded, to.clone())).next_back()?;
            to = Bound::Excluded(key.clone());
            (key.0 == space).then(|| Ok((key.1.clone(), value.clone())))
        }))
    }

    fn flush(&self) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        state.check()?;
        if let Some(left) = &mut state.flushes_left {
            *left -= 1;
        }
        if !state.given_up {
            for (space, key, value) in std::mem::take(&mut state.journal) {
                state.make_durable(space, key, value);
            }
        }
        Ok(())
    }
}
