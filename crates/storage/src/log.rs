//! The Raft log: entries, vote, committed point and purge marker.

mod entries;
mod recover;
mod sizes;
mod state;
mod stats;
#[cfg(feature = "simulation")]
mod steps;
mod tail;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use quorate_mutants::mutant;

pub(crate) use self::recover::Recovered;
use self::state::{Closing, Command, Marker, State};
pub use self::stats::{FLUSH_BUCKETS, LogStats};
#[cfg(feature = "simulation")]
pub use self::steps::Step;
#[cfg(feature = "simulation")]
pub(crate) use self::steps::Steps;
use self::writer::Writer;
use crate::Options;
use crate::chunk::Packer;
use crate::door::Door;
use crate::engine::Engine;
use crate::error::StorageError;
use crate::failure::Failure;
use crate::meta::MetaKey;
use crate::progress::Witness;

/// One entry of the log. What the bytes mean is the caller's business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its place in the log.
    pub index: u64,
    /// The entry itself, of at most 1 GiB.
    pub bytes: Bytes,
}

/// Called once, on the writer thread, when an order is durable or has failed. Must not block.
pub type Done = Box<dyn FnOnce(Result<(), StorageError>) + Send>;

/// A cheap handle on the log.
///
/// Orders (`append`, `truncate_from`, `purge_to`, `put_vote`, `put_committed`) take effect for readers at
/// once and never block on the disk. One thread carries them out there, strictly in order, many with one
/// flush; each answer comes after that flush, also in order. If the disk is slower than the orders come,
/// what waits stays in memory: bound it by [`LogStats::unflushed_bytes`].
///
/// Indexes are contiguous. An append must continue the log; a log that never held an entry nor was purged
/// may begin anywhere.
#[derive(Clone)]
pub struct Log {
    inner: Arc<Inner>,
}

struct Inner {
    driver: Driver,
    engine: Arc<dyn Engine>,
    shared: Arc<Shared>,
}

/// Who is to carry out the orders of a log.
pub(crate) enum Pace {
    /// A thread of its own, as soon as they come.
    Thread,
    /// Whoever calls [`Steps::step`], and whoever has to wait for them.
    #[cfg(feature = "simulation")]
    Steps(Arc<Steps>),
}

/// Who carries them out.
enum Driver {
    Thread(Mutex<Option<JoinHandle<()>>>),
    #[cfg(feature = "simulation")]
    Steps(Arc<Steps>),
}

/// What the handles and the writer have in common.
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    failure: Arc<Failure>,
    options: Options,
    /// Held as long as anything may still write.
    _door: Option<Arc<Door>>,
}

impl Log {
    /// Starts the writer over a recovered log.
    pub(crate) fn start(
        engine: Arc<dyn Engine>,
        recovered: Recovered,
        progress: Option<Box<dyn Witness>>,
        failure: Arc<Failure>,
        options: Options,
        door: Option<Arc<Door>>,
        pace: Pace,
    ) -> Result<Log, StorageError> {
        let sequence = recovered.sequence;
        let purging = recovered.purged_index();
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(recovered)),
            wake: Condvar::new(),
            failure,
            options,
            _door: door,
        });
        let writer = Writer {
            engine: Arc::clone(&engine),
            progress,
            sequence,
            purging,
            packer: Packer::new(),
            shared: Arc::clone(&shared),
        };
        let driver = match pace {
            Pace::Thread => {
                let thread = std::thread::Builder::new()
                    .name("storage-log".into())
                    .spawn(move || writer.run())
                    .map_err(StorageError::io("start the log writer"))?;
                Driver::Thread(Mutex::new(Some(thread)))
            }
            #[cfg(feature = "simulation")]
            Pace::Steps(steps) => {
                steps.begin(writer);
                Driver::Steps(steps)
            }
        };
        Ok(Log {
            inner: Arc::new(Inner {
                driver,
                engine,
                shared,
            }),
        })
    }

    /// Adds entries to the end. They can be read when this returns, and are durable when `done` is called.
    ///
    /// An append that does not continue the log is answered with [`StorageError::NotContiguous`] and changes
    /// nothing. An empty one is a barrier: its answer comes when all before it is durable.
    pub fn append(&self, records: Vec<Record>, done: Done) {
        self.order(done, |state, done| state.append(records, done));
    }

    /// Removes every entry at and after `index`.
    pub fn truncate_from(&self, index: u64, done: Done) {
        self.order(done, |state, done| state.truncate_from(index, done));
    }

    /// Removes every entry at and before `index`, and keeps `marker` to describe that point. It may lie
    /// beyond the end: the log then continues at `index + 1`.
    ///
    /// `done` means that the removal is decided for good. The space is given back bit by bit afterwards, also
    /// across a restart.
    pub fn purge_to(&self, index: u64, marker: Bytes, done: Done) {
        self.order(done, |state, done| {
            state.purge_to(Marker { index, bytes: marker }, done);
        });
    }

    /// Replaces the vote.
    pub fn put_vote(&self, vote: Bytes, done: Done) {
        self.order(done, |state, done| {
            state.vote = Some(vote.clone());
            let (key, payload) = (MetaKey::Vote, vote);
            let mut done = Some(done);
            if mutant!("vote-not-durable")
                && let Some(done) = done.take()
            {
                done(Ok(()));
            }
            state.enqueue(Command::Put { key, payload, done });
        });
    }

    /// Replaces the committed point. It becomes durable with the next flush that something else asks for,
    /// never before anything ordered earlier.
    pub fn put_committed(&self, committed: Bytes) {
        let mut state = self.inner.shared.state.lock();
        if state.closing.is_none() {
            state.put_committed(committed);
        }
    }

    /// Replaces another meta value, and waits until it is durable. Blocks on the disk.
    pub(crate) fn put_meta(&self, key: MetaKey, payload: Bytes) -> Result<(), StorageError> {
        self.wait(|state, done| {
            state.enqueue(Command::Put {
                key,
                payload,
                done: Some(done),
            });
        })
    }

    /// Waits until everything ordered so far is durable. Blocks on the disk.
    pub fn flush(&self) -> Result<(), StorageError> {
        self.wait(|state, done| state.append(Vec::new(), done))
    }

    /// The last vote given to [`Log::put_vote`], in this run or an earlier one.
    pub fn vote(&self) -> Option<Bytes> {
        self.inner.shared.state.lock().vote.clone()
    }

    /// The last point given to [`Log::put_committed`]; after a restart, the last that became durable.
    pub fn committed(&self) -> Option<Bytes> {
        self.inner.shared.state.lock().committed.clone()
    }

    /// Index and marker of the last purge.
    pub fn purged(&self) -> Option<(u64, Bytes)> {
        let state = self.inner.shared.state.lock();
        state
            .position
            .purged
            .as_ref()
            .map(|marker| (marker.index, marker.bytes.clone()))
    }

    /// The first entry's index; `None` if there is no entry.
    pub fn first_index(&self) -> Option<u64> {
        let live = self.inner.shared.state.lock().live();
        (!live.is_empty()).then_some(live.start)
    }

    /// The last entry's index; `None` if there is no entry, be it that all are purged.
    pub fn last_index(&self) -> Option<u64> {
        let live = self.inner.shared.state.lock().live();
        (!live.is_empty()).then(|| live.end - 1)
    }

    /// Reads entries of `[from, to)`, in order and without holes, starting at `from` or, if that is purged,
    /// at the first that is not. Ends early when `bytes_max` is reached, but returns at least one entry if
    /// there is any in the range. Blocks on the disk for what is no longer in memory.
    pub fn read(&self, from: u64, to: u64, bytes_max: usize) -> Result<Vec<Record>, StorageError> {
        loop {
            if let Some(records) = self.try_read(from, to, bytes_max)? {
                return Ok(records);
            }
        }
    }

    /// One attempt to read: `None` if entries were purged or truncated meanwhile, so that what was read may be
    /// neither the old nor the new state.
    fn try_read(&self, from: u64, to: u64, bytes_max: usize) -> Result<Option<Vec<Record>>, StorageError> {
        let mut records = Vec::new();
        let mut room = bytes_max;
        let mut state = self.inner.shared.state.lock();
        let epoch = state.epoch;
        let live = state.live();
        let (mut next, to) = (from.max(live.start), to.min(live.end));
        // The tail may have moved on while the disk was read: then the disk has the next entries, too.
        while next < to && next < state.tail.first() {
            let disk_to = to.min(state.tail.first());
            drop(state);
            let outcome = self.read_disk(next, disk_to, &mut room, &mut records);
            state = self.inner.shared.state.lock();
            if state.epoch != epoch {
                return Ok(None);
            }
            outcome?;
            next = records.last().map_or(next, |record| record.index + 1);
            if next < disk_to {
                return Ok(Some(records));
            }
        }
        if next < to {
            state.tail.read(next, to, &mut room, &mut records);
        }
        Ok(Some(records))
    }

    /// Reads `[from, to)` from disk, which must be there, until `room` is used up.
    fn read_disk(
        &self,
        from: u64,
        to: u64,
        room: &mut usize,
        records: &mut Vec<Record>,
    ) -> Result<(), StorageError> {
        let mut entries = entries::Entries::from(&*self.inner.engine, from)?;
        for index in from..to {
            let record = entries.next().transpose()?.ok_or_else(|| {
                StorageError::corrupt(format!("the log ends before entry {index}, which it should hold"))
            })?;
            if !tail::take(room, record.bytes.len(), records.is_empty()) {
                break;
            }
            records.push(record);
        }
        Ok(())
    }

    /// Like [`Log::read`], from memory only: never blocks. `None` if the first entry of the range is not in
    /// memory, or not in the log.
    pub fn read_cached(&self, from: u64, to: u64, bytes_max: usize) -> Option<Vec<Record>> {
        let state = self.inner.shared.state.lock();
        let live = state.live();
        if from < live.start.max(state.tail.first()) || from >= live.end.min(to) {
            return None;
        }
        let mut records = Vec::new();
        state
            .tail
            .read(from, to.min(live.end), &mut { bytes_max }, &mut records);
        Some(records)
    }

    /// Bytes of the entries in memory.
    pub fn cached_bytes(&self) -> u64 {
        self.inner.shared.state.lock().tail.bytes()
    }

    /// Bytes of the live entries from `index` on: an estimate, up to one entry and 64 KiB too high.
    pub fn log_bytes(&self, index: u64) -> u64 {
        let state = self.inner.shared.state.lock();
        state.sizes.since(index.max(state.live().start))
    }

    /// What the writer has done so far.
    pub fn stats(&self) -> LogStats {
        let state = self.inner.shared.state.lock();
        LogStats {
            syncs: self.inner.engine.syncs().unwrap_or(0),
            unflushed_bytes: state.unflushed.iter().map(|(_, bytes)| *bytes as u64).sum(),
            cached_bytes: state.tail.bytes(),
            ..state.stats.clone()
        }
    }

    /// The error that ended this store, if one has. Nothing is written after it, and the node must stop.
    pub fn failed(&self) -> Option<StorageError> {
        self.inner.shared.failure.get()
    }

    /// Calls `observer` when the store fails, on the thread that finds out; at once if it already has.
    pub fn on_failure(&self, observer: impl FnOnce(&StorageError) + Send + 'static) {
        self.inner.shared.failure.observe(Box::new(observer));
    }

    /// Whether calls that say so may block on a disk. Only those of a simulated store never do: what
    /// others do on a thread that may block, its callers must do where they are.
    pub fn blocks(&self) -> bool {
        matches!(self.inner.driver, Driver::Thread(_))
    }

    /// What the store was opened with.
    pub(crate) fn options(&self) -> &Options {
        &self.inner.shared.options
    }

    /// Carries out what was ordered, makes all of it durable, and stops the writer. Later orders are refused.
    pub(crate) fn close(&self) -> Result<(), StorageError> {
        self.inner.stop(Closing::Flush);
        self.inner.shared.failure.check()
    }

    /// Gives an order, unless the log is closed.
    fn order(&self, done: Done, order: impl FnOnce(&mut State, Done)) {
        {
            let mut state = self.inner.shared.state.lock();
            if state.closing.is_none() {
                order(&mut state, done);
                self.inner.wake();
                return;
            }
        }
        done(Err(StorageError::Closed));
    }

    fn wait(&self, order: impl FnOnce(&mut State, Done)) -> Result<(), StorageError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.order(Box::new(move |result| drop(sender.send(result))), order);
        #[cfg(feature = "simulation")]
        if let Driver::Steps(steps) = &self.inner.driver {
            steps.hurry();
        }
        receiver.recv().unwrap_or(Err(StorageError::Closed))
    }
}

impl Inner {
    /// Tells the writer that there is something to do. Called with the lock held.
    fn wake(&self) {
        match &self.driver {
            Driver::Thread(_) => {
                self.shared.wake.notify_one();
            }
            #[cfg(feature = "simulation")]
            Driver::Steps(steps) => steps.wake(),
        }
    }

    fn stop(&self, closing: Closing) {
        {
            let mut state = self.shared.state.lock();
            state.closing.get_or_insert(closing);
            self.wake();
        }
        let writer = match &self.driver {
            Driver::Thread(writer) => writer.lock().take(),
            #[cfg(feature = "simulation")]
            Driver::Steps(steps) => return steps.end(),
        };
        let Some(writer) = writer else { return };
        // The last handle may be dropped by a callback, on the writer thread itself: it ends after that.
        if writer.thread().id() != std::thread::current().id() && writer.join().is_err() {
            let what = "the log writer panicked".to_owned();
            self.shared.failure.set(&StorageError::Engine {
                path: "log".into(),
                what,
            });
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop(Closing::Drop);
    }
}
