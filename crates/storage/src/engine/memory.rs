//! The engine in memory: a model of promises 1 to 3 that can crash between any two writes.

use std::collections::BTreeMap;

use bytes::Bytes;
use parking_lot::Mutex;

use super::{Engine, Space, VALUE_LEN_MAX, Walk};
use crate::error::StorageError;

type Map = BTreeMap<(Space, Bytes), Bytes>;

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
    /// Flushes, and writes, left before everything fails, if set.
    flushes_left: Option<u64>,
    writes_left: Option<u64>,
}

impl Memory {
    /// What another start finds if the power goes now and `kept` of the unflushed writes had made it.
    pub(crate) fn crash(&self, kept: usize) -> Memory {
        let state = self.state.lock();
        let mut flushed = state.flushed.clone();
        for (space, key, value) in state.journal.iter().take(kept) {
            apply(&mut flushed, *space, key.clone(), value.clone());
        }
        Memory {
            state: Mutex::new(State {
                current: flushed.clone(),
                flushed,
                journal: Vec::new(),
                flushes_left: None,
                writes_left: None,
            }),
        }
    }

    /// How many writes a crash could lose.
    pub(crate) fn unflushed(&self) -> usize {
        self.state.lock().journal.len()
    }

    /// Lets `flushes` more flushes succeed, and then nothing.
    pub(crate) fn fail_after(&self, flushes: u64) {
        self.state.lock().flushes_left = Some(flushes);
    }

    /// Lets `writes` more writes succeed, and then nothing. So a crash can come between any two of them.
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
        apply(&mut state.current, space, key.clone(), value.clone());
        state.journal.push((space, key, value));
        Ok(())
    }
}

impl State {
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

fn apply(map: &mut Map, space: Space, key: Bytes, value: Option<Bytes>) {
    match value {
        Some(value) => map.insert((space, key), value),
        None => map.remove(&(space, key)),
    };
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
        Ok(self
            .state
            .lock()
            .current
            .get(&(space, Bytes::copy_from_slice(key)))
            .cloned())
    }

    fn ascend(&self, space: Space, from: &[u8]) -> Walk<'_> {
        let from = (space, Bytes::copy_from_slice(from));
        let state = self.state.lock();
        let pairs: Vec<_> = state
            .current
            .range(from..)
            .take_while(|((of, _), _)| *of == space)
            .map(|((_, key), value)| Ok((key.clone(), value.clone())))
            .collect();
        Box::new(pairs.into_iter())
    }

    fn descend(&self, space: Space, to: &[u8]) -> Walk<'_> {
        let to = (space, Bytes::copy_from_slice(to));
        let state = self.state.lock();
        let pairs: Vec<_> = state
            .current
            .range(..=to)
            .rev()
            .take_while(|((of, _), _)| *of == space)
            .map(|((_, key), value)| Ok((key.clone(), value.clone())))
            .collect();
        Box::new(pairs.into_iter())
    }

    fn flush(&self) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        state.check()?;
        if let Some(left) = &mut state.flushes_left {
            *left -= 1;
        }
        state.flushed = state.current.clone();
        state.journal.clear();
        Ok(())
    }
}
