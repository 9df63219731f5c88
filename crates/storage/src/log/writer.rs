//! What writes the log database: one thread.
//!
//! It takes whatever waits, as one *group*: carries it out in order, flushes once, and then answers in
//! order. Between groups it removes purged chunks, a few at a time, so that no append waits long for them.
//! After the first failure it only answers with that failure.
//!
//! In a simulation there is no thread: the same work is done in `steps`, with time between a group's writes
//! and its flush.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_mutants::mutant;

use super::Shared;
use super::entries::last_index;
use super::state::{Closing, Command, Marker, State};
use crate::Record;
use crate::chunk::{Chunk, ChunkKey, Packer};
use crate::engine::Engine;
use crate::error::StorageError;
use crate::meta::{self, LOG, MetaKey};
use crate::progress::Witness;

/// Chunks removed between two groups by a purge: well under a millisecond.
const PURGE_SLICE: usize = 32;
/// Chunks removed in one go by a truncation.
const TRUNCATE_SLICE: usize = 256;
/// The engine is asked whether all is well once in so many groups.
const CHECK_EVERY: u64 = 1024;

pub(super) struct Writer {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) progress: Option<Box<dyn Witness>>,
    /// The number of the last group commit.
    pub(super) sequence: u64,
    /// Chunks up to this index are still to be removed.
    pub(super) purging: Option<u64>,
    pub(super) packer: Packer,
    pub(super) shared: Arc<Shared>,
}

/// What there is to do next.
pub(super) enum Work {
    Commit(Vec<Command>),
    Purge,
    Stop(Closing),
}

/// A group whose writes were handed to the engine.
pub(super) struct Written {
    group: Vec<Command>,
    syncs_before: Option<u64>,
    outcome: Result<(), StorageError>,
}

impl Writer {
    pub(super) fn run(mut self) {
        loop {
            match self.next_work() {
                Work::Commit(group) => {
                    let written = self.write(group);
                    self.flush(written);
                }
                Work::Purge => {}
                Work::Stop(closing) => return self.end(closing),
            }
            self.purge_some();
        }
    }

    fn next_work(&self) -> Work {
        let mut state = self.shared.state.lock();
        loop {
            if let Some(work) = self.waiting(&mut state) {
                return work;
            }
            self.shared.wake.wait(&mut state);
        }
    }

    /// What there is to do now, if anything.
    pub(super) fn waiting(&self, state: &mut State) -> Option<Work> {
        if state.urgent > 0 || (state.closing.is_some() && !state.queue.is_empty()) {
            let options = &self.shared.options;
            let group = state.take_group(options.group_commands_max, options.group_bytes_max);
            return Some(Work::Commit(group));
        }
        if let Some(closing) = state.closing {
            return Some(Work::Stop(closing));
        }
        self.purging.is_some().then_some(Work::Purge)
    }

    /// Writes a group; only [`Writer::flush`] makes it durable.
    pub(super) fn write(&mut self, group: Vec<Command>) -> Written {
        let syncs_before = self.engine.syncs();
        let outcome = self.guarded("write the log", |writer| writer.put_group(&group));
        Written {
            group,
            syncs_before,
            outcome,
        }
    }

    /// Makes a written group durable, and answers.
    pub(super) fn flush(&mut self, written: Written) {
        let Written {
            mut group,
            syncs_before,
            outcome,
        } = written;
        if mutant!("callbacks-out-of-order") && outcome.is_ok() {
            // The newest is told of its flush before it was flushed, and before the older ones.
            group
                .pop()
                .into_iter()
                .for_each(|newest| self.answer(newest, &Ok(())));
        }
        let outcome = outcome
            .and_then(|()| self.guarded("write the log", |writer| writer.flush_group(&group, syncs_before)));
        if outcome.is_ok() {
            let appends = group
                .iter()
                .filter(|command| matches!(command, Command::Append { .. }))
                .count();
            self.shared
                .state
                .lock()
                .flushed(appends, self.shared.options.tail_bytes);
        }
        for command in group {
            self.answer(command, &outcome);
        }
    }

    fn answer(&self, command: Command, outcome: &Result<(), StorageError>) {
        let (result, done) = match command {
            Command::Answer { result, done } => (outcome.clone().and(result), done),
            Command::Append { done, .. }
            | Command::Truncate { done, .. }
            | Command::Purge { done, .. }
            | Command::Put { done: Some(done), .. } => (outcome.clone(), done),
            Command::Put { done: None, .. } => return,
        };
        if catch_unwind(AssertUnwindSafe(|| done(result))).is_err() {
            let what = "a callback of the log panicked".to_owned();
            self.shared.failure.set(&StorageError::Engine {
                path: "log".into(),
                what,
            });
        }
    }

    /// Runs a step unless the store has failed; an error or a panic in it is the store's failure.
    fn guarded(
        &mut self,
        action: &'static str,
        step: impl FnOnce(&mut Self) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        self.shared.failure.check()?;
        let outcome = catch_unwind(AssertUnwindSafe(|| step(self))).unwrap_or_else(|_panic| {
            Err(StorageError::Engine {
                path: "log".into(),
                what: format!("panic while trying to {action}"),
            })
        });
        self.shared.failure.note(outcome)
    }

    /// Carries out a group.
    fn put_group(&mut self, group: &[Command]) -> Result<(), StorageError> {
        let committed = group.iter().rposition(|c| {
            matches!(
                c,
                Command::Put {
                    key: MetaKey::Committed,
                    ..
                }
            )
        });
        for (position, command) in group.iter().enumerate() {
            if let Command::Append { records, .. } = command {
                for record in records {
                    self.packer.push(record, &mut |key, value| {
                        self.engine.put(LOG, &key.encode(), value)
                    })?;
                }
                continue;
            }
            self.finish_chunk()?;
            match command {
                Command::Append { .. } | Command::Answer { .. } => {}
                Command::Truncate { index, .. } => remove_from(&*self.engine, *index)?,
                Command::Purge { marker, .. } => self.put_marker(marker)?,
                // Of several in a group only the last counts. It stays behind all that came before it.
                Command::Put {
                    key: MetaKey::Committed,
                    ..
                } if committed != Some(position) => {}
                Command::Put { key, payload, .. } => meta::put(&*self.engine, *key, payload)?,
            }
        }
        self.finish_chunk()?;
        self.put_number()
    }

    /// Makes a group durable.
    fn flush_group(&mut self, group: &[Command], syncs_before: Option<u64>) -> Result<(), StorageError> {
        let took = self.seal(syncs_before)?;
        let (mut entries, mut bytes) = (0, 0);
        for command in group {
            if let Command::Append {
                records, bytes: more, ..
            } = command
            {
                entries += records.len() as u64;
                bytes += *more as u64;
            }
        }
        self.shared.state.lock().stats.record_flush(took, entries, bytes);
        for command in group {
            if let Command::Purge { marker, .. } = command {
                self.purging = self.purging.max(Some(marker.index));
            }
        }
        Ok(())
    }

    fn finish_chunk(&mut self) -> Result<(), StorageError> {
        self.packer
            .finish(&mut |key, value| self.engine.put(LOG, &key.encode(), value))
    }

    fn put_marker(&self, marker: &Marker) -> Result<(), StorageError> {
        meta::put(&*self.engine, MetaKey::Purged, &marker.encode())
    }

    /// Numbers what was written.
    fn put_number(&mut self) -> Result<(), StorageError> {
        self.sequence += 1;
        meta::put(&*self.engine, MetaKey::Sequence, &self.sequence.to_le_bytes())
    }

    /// Flushes what was written and numbered, and notes the number outside the database.
    fn seal(&mut self, syncs_before: Option<u64>) -> Result<Duration, StorageError> {
        if mutant!("skip-fsync") {
            return Ok(Duration::ZERO);
        }
        let start = Instant::now();
        match self.engine.flush() {
            Err(_) if mutant!("ignore-sync-errors") => return Ok(Duration::ZERO),
            flushed => flushed?,
        }
        let took = start.elapsed();
        if syncs_before.is_some() && self.engine.syncs() == syncs_before {
            return Err(StorageError::Engine {
                path: "log".into(),
                what: "a flush ended without a sync: the sync hook is not active".into(),
            });
        }
        if let Some(progress) = &self.progress
            && !mutant!("flush-without-fsync")
        {
            progress.note(self.sequence)?;
        }
        if self.sequence.is_multiple_of(CHECK_EVERY) {
            self.engine.check()?;
        }
        Ok(took)
    }

    pub(super) fn purge_some(&mut self) {
        let Some(upto) = self.purging else { return };
        let mut removed = 0;
        let outcome = self.guarded("remove purged entries", |writer| {
            removed = remove_to(&*writer.engine, upto, PURGE_SLICE)?;
            Ok(())
        });
        if outcome.is_err() || removed < PURGE_SLICE {
            self.purging = None;
        }
        self.shared.state.lock().stats.chunks_purged += removed as u64;
    }

    /// The last flush, of an orderly stop.
    pub(super) fn end(mut self, closing: Closing) {
        if closing == Closing::Drop {
            return;
        }
        // A failure is kept by `guarded`.
        let _ = self.guarded("stop in an orderly way", |writer| {
            let syncs_before = writer.engine.syncs();
            writer.put_number()?;
            writer.seal(syncs_before).map(|_took| ())
        });
    }
}

/// Removes every entry from `index` on, from the end backwards, so that a crash on the way leaves no hole.
pub(super) fn remove_from(engine: &dyn Engine, index: u64) -> Result<(), StorageError> {
    let mut cut = None;
    let mut finished = false;
    while !finished {
        let mut keys: Vec<Bytes> = Vec::new();
        finished = true;
        for pair in engine.descend(LOG, &[0xff; ChunkKey::LEN]) {
            let (key, value) = pair?;
            if ChunkKey::decode(&key)?.index < index {
                cut = Some((key, value));
                break;
            }
            keys.push(key);
            if keys.len() == TRUNCATE_SLICE {
                finished = false;
                break;
            }
        }
        for key in keys {
            engine.remove(LOG, &key)?;
        }
    }
    match cut {
        Some((key, value)) if last_index(&key, &value)? >= index => shorten(engine, &key, &value, index),
        _ => Ok(()),
    }
}

/// Rewrites a run without its entries from `index` on.
fn shorten(engine: &dyn Engine, key: &Bytes, value: &Bytes, index: u64) -> Result<(), StorageError> {
    let key = ChunkKey::decode(key)?;
    let Chunk::Run(entries) = Chunk::decode(key, value)? else {
        unreachable!("only a run reaches past its own index")
    };
    let mut put = |key: ChunkKey, value: &[u8]| engine.put(LOG, &key.encode(), value);
    let mut packer = Packer::new();
    for (index, bytes) in (key.index..index).zip(entries) {
        packer.push(&Record { index, bytes }, &mut put)?;
    }
    packer.finish(&mut put)
}

/// Removes at most `slice` chunks that hold nothing after `upto`, and says how many it removed.
fn remove_to(engine: &dyn Engine, upto: u64, slice: usize) -> Result<usize, StorageError> {
    let mut keys: Vec<Bytes> = Vec::new();
    for pair in engine.ascend(LOG, &[]).take(slice) {
        let (key, value) = pair?;
        if last_index(&key, &value)? > upto {
            break;
        }
        keys.push(key);
    }
    for key in &keys {
        engine.remove(LOG, key)?;
    }
    Ok(keys.len())
}
