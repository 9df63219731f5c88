//! A disk in memory, for a whole cluster in one thread: with the feature `simulation`.
//!
//! [`Options::disk`](crate::Options::disk) puts a [`Store`](crate::Store) on a [`Disk`] instead of into a directory. Above
//! the storage engine it is the same code: the log with its group commits, truncation and purge; contents; images
//! and their pointer; the witnesses that refuse a disk which lost something. What is missing is sled, the files
//! around it, and the journal, which is off.
//!
//! # Time
//!
//! Nothing here waits, and there is no thread. Orders to the log queue up and the disk's [waker](Disk::on_work) is
//! called; the simulator then calls [`Disk::step`], and lets its idea of a disk's latency pass between a group's writes
//! and its flush. Calls that block on a real disk carry out what they need where they are.
//!
//! # Crashes
//!
//! A [`Disk`] outlives the nodes that use it. [`Disk::crash`] ends the life of the open store: from then on every call
//! of its handles is an error and changes nothing, whoever still holds them. Of what was not flushed the
//! next store finds, in each database, a prefix, as the engine's contract says: none, all, or what a seed decides. So
//! does the power of a machine that fails; a process that is killed loses nothing that it has handed to the
//! disk. Crash first, then drop the node: a store that is dropped alive carries out what it was told.
//!
//! # Faults
//!
//! A [full](Disk::set_capacity) disk, a [write](Disk::fail_write) and a [sync](Disk::fail_sync) that fail, a
//! [flipped bit](Disk::corrupt), a [log cut short](Disk::truncate), a [rollback](Disk::put_back) to an older [copy](Disk::copy), and a disk that is
//! [empty](Disk::wipe) again. All are counted in [`DiskStats`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::contents::{self, OpenVolumes};
use crate::door::Paths;
use crate::engine::memory::Memory;
use crate::engine::{Engine, Space, SpaceName, VALUE_LEN_MAX, Walk};
use crate::error::{OpenError, StorageError};
use crate::log::{Pace, Recovered, Steps};
use crate::medium::Medium;
use crate::opening::{self, Opened};
use crate::progress::Witness;
use crate::{Options, Record, meta};

pub use crate::log::Step;

/// The name that messages have for it.
const ROOT: &str = "simulated";

/// A simulated disk. Cheap to clone: all clones are the same disk.
#[derive(Clone, Default)]
pub struct Disk {
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk")
            .field("node", &self.state.lock().node)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    /// The life of the store that is, or was last, open. Handles of an earlier one are dead.
    life: u64,
    /// Whether that store still has handles.
    held: bool,
    /// What `IDENTITY` would say.
    node: Option<u64>,
    databases: BTreeMap<PathBuf, Arc<Memory>>,
    /// Small files, which are durable as soon as they are there.
    files: BTreeMap<PathBuf, Bytes>,
    progress: BTreeMap<PathBuf, Noted>,
    faults: Faults,
    stats: DiskStats,
    steps: Weak<Steps>,
    waker: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// What a witness was told, and how much of that is durable.
#[derive(Clone, Copy, Default)]
struct Noted {
    durable: u64,
    last: u64,
}

#[derive(Clone, Copy, Default)]
struct Faults {
    capacity: Option<u64>,
    /// How many more succeed before one fails.
    write: Option<u64>,
    sync: Option<u64>,
}

/// What became of writes that were not flushed when a disk [crashed](Disk::crash).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unflushed {
    /// They had all made it, as when a process is killed that had written them.
    Kept,
    /// A process is killed whose engine had some of them in a buffer: of each database a prefix is left, as long as
    /// the seed makes it. What was written beside the databases is in the page cache, and stays.
    Killed {
        /// Equal seeds give equal prefixes.
        seed: u64,
    },
    /// They are all gone.
    Lost,
    /// Power is lost: of each database a prefix is left, as long as the seed makes it, and of all else, too.
    Prefix {
        /// Equal seeds give equal prefixes.
        seed: u64,
    },
}

/// A kind of stored value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Entries of the log.
    Log,
    /// Vote, pointers and the like beside the log.
    Meta,
    /// Contents of messages.
    Contents,
    /// Snapshot images.
    Images,
}

/// What happened to a disk since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Writes that were accepted.
    pub writes: u64,
    /// Flushes of any database.
    pub flushes: u64,
    /// Accepted writes that a crash has dropped.
    pub writes_lost: u64,
    /// Crashes.
    pub crashes: u64,
    /// Writes refused, syncs failed, bits flipped and writes cut off.
    pub faults: u64,
}

/// What the log of a disk would be found to hold if all that is not flushed were lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurableLog {
    /// The vote.
    pub vote: Option<Bytes>,
    /// The committed point.
    pub committed: Option<Bytes>,
    /// Index and marker of the last purge.
    pub purged: Option<(u64, Bytes)>,
    /// The live entries, in order.
    pub entries: Vec<Record>,
}

impl Disk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    // ------------------------------------------------------------------ time

    /// Has `waker` called whenever there is a [step](Disk::step) to take. It must not call into disk or store: it may
    /// be called with their locks held.
    pub fn on_work(&self, waker: impl Fn() + Send + Sync + 'static) {
        self.state.lock().waker = Some(Arc::new(waker));
    }

    /// Takes the next step of the log's writer; its callbacks are called in here. `Idle` if no store is open.
    pub fn step(&self) -> Step {
        let steps = self.state.lock().steps.upgrade();
        steps.map_or(Step::Idle, |steps| steps.step())
    }

    // --------------------------------------------------------------- crashes

    /// Ends the life of the open store, if there is one, and decides what is left of unflushed writes.
    pub fn crash(&self, unflushed: Unflushed) {
        let mut chance = Chance(match unflushed {
            Unflushed::Killed { seed } | Unflushed::Prefix { seed } => seed,
            Unflushed::Kept | Unflushed::Lost => 0,
        });
        let mut state = self.state.lock();
        state.end_life();
        state.stats.crashes += 1;
        let mut lost = 0;
        for memory in state.databases.values_mut() {
            let (all, keepable) = (memory.unflushed(), memory.keepable());
            let kept = match unflushed {
                Unflushed::Kept => keepable,
                Unflushed::Lost => 0,
                Unflushed::Killed { .. } | Unflushed::Prefix { .. } => chance.prefix(keepable),
            };
            lost += (all - kept) as u64;
            *memory = Arc::new(memory.crash(kept));
        }
        for noted in state.progress.values_mut() {
            let behind = noted.last - noted.durable;
            noted.last = match unflushed {
                Unflushed::Kept | Unflushed::Killed { .. } => noted.last,
                Unflushed::Lost => noted.durable,
                Unflushed::Prefix { .. } => noted.durable + chance.below(behind + 1),
            };
            noted.durable = noted.last;
        }
        state.stats.writes_lost += lost;
    }

    /// The disk as it would be after a crash that loses everything unflushed, as a disk of its own.
    #[must_use]
    pub fn copy(&self) -> Disk {
        let state = self.state.lock();
        let databases = state.databases.iter();
        let progress = state.progress.iter().map(|(path, noted)| {
            let Noted { durable, .. } = *noted;
            let last = durable;
            (path.clone(), Noted { durable, last })
        });
        Disk {
            state: Arc::new(Mutex::new(State {
                node: state.node,
                databases: databases
                    .map(|(path, memory)| (path.clone(), Arc::new(memory.crash(0))))
                    .collect(),
                files: state.files.clone(),
                progress: progress.collect(),
                ..State::default()
            })),
        }
    }

    /// Ends the life of the open store, and makes this disk what another is without its unflushed writes: an older
    /// [copy](Disk::copy) of itself, say.
    pub fn put_back(&self, copy: &Disk) {
        // A disk may be put back onto itself.
        let copy = copy.copy();
        let mut copy = copy.state.lock();
        let mut state = self.state.lock();
        state.end_life();
        state.node = copy.node;
        state.databases = std::mem::take(&mut copy.databases);
        state.files = std::mem::take(&mut copy.files);
        state.progress = std::mem::take(&mut copy.progress);
    }

    /// Ends the life of the open store, and removes everything: the next one is of a new node.
    pub fn wipe(&self) {
        self.put_back(&Disk::new());
    }

    // ---------------------------------------------------------------- faults

    /// Fails each write beyond so many bytes of keys and values, until there is room again.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.lock().faults.capacity = bytes;
    }

    /// Bytes that its keys and values take.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.state.lock().bytes(Path::new(ROOT))
    }

    /// Fails one write, after `after` more that succeed.
    pub fn fail_write(&self, after: u64) {
        self.state.lock().faults.write = Some(after);
    }

    /// Fails one sync, after `after` more that succeed. What it should have made durable can be read until
    /// the next crash, and is lost then.
    pub fn fail_sync(&self, after: u64) {
        self.state.lock().faults.sync = Some(after);
    }

    /// Takes back faults that have not struck, and the capacity.
    pub fn heal(&self) {
        self.state.lock().faults = Faults::default();
    }

    /// Flips one bit of a durable value; the seed says which. False if there is none of that kind.
    pub fn corrupt(&self, region: Region, seed: u64) -> bool {
        let paths = paths();
        let (under, space) = match region {
            Region::Log => (&paths.log, meta::LOG),
            Region::Meta => (&paths.log, meta::META),
            Region::Contents => (&paths.contents, contents::PARTS),
            Region::Images => (&paths.images, Space(1)),
        };
        let mut state = self.state.lock();
        let databases: Vec<_> = state
            .databases
            .iter()
            .filter(|(path, _)| path.starts_with(under))
            .map(|(_, memory)| Arc::clone(memory))
            .collect();
        let mut chance = Chance(seed);
        let struck = databases
            .iter()
            .any(|memory| memory.flip(space, chance.next(), chance.next()));
        state.stats.faults += u64::from(struck);
        struck
    }

    /// Ends the life of the open store, and cuts its log short: the newest writes of the log are gone, so many bytes
    /// of them, though they were flushed. Says how many writes.
    pub fn truncate(&self, bytes: u64) -> u64 {
        let mut state = self.state.lock();
        state.end_life();
        let log = state.databases.get(&paths().log);
        let cut = log.map_or(0, |memory| memory.cut(bytes));
        state.stats.faults += cut;
        cut
    }

    // --------------------------------------------------------------- looking

    /// What happened to it so far.
    #[must_use]
    pub fn stats(&self) -> DiskStats {
        self.state.lock().stats
    }

    /// The node whose disk it is, once there was one.
    #[must_use]
    pub fn node_id(&self) -> Option<u64> {
        self.state.lock().node
    }

    /// Reads the log from what is flushed, be a store open or not. Costs a walk over the whole log.
    pub fn durable_log(&self) -> Result<DurableLog, StorageError> {
        let memory = self.state.lock().databases.get(&paths().log).cloned();
        let Some(memory) = memory else {
            return Ok(DurableLog::default());
        };
        Recovered::read(&memory.crash(0), u64::MAX).map(|found| DurableLog {
            vote: found.vote().cloned(),
            committed: found.committed().cloned(),
            purged: found.purged(),
            entries: found.entries(),
        })
    }

    // --------------------------------------------------------------- opening

    /// Opens it, or makes a new node of an empty one.
    pub(crate) fn open(&self, options: &Options) -> Result<Opened, OpenError> {
        let paths = paths();
        let life = Arc::new(self.begin_life(&paths)?);
        let medium: Arc<dyn Medium> = Arc::new(Device {
            life: Arc::clone(&life),
        });
        let found = self.state.lock().node;
        let log = medium.open(&paths.log, &meta::SPACES, 0)?;
        let node = match found {
            Some(node) => node,
            None => {
                let node = opening::random_id();
                opening::create_log(&*log, node)?;
                OpenVolumes::create(&medium, &paths.contents, node)?;
                self.state.lock().node = Some(node);
                node
            }
        };
        let reached = |path: &PathBuf| self.state.lock().progress.get(path).map_or(0, |noted| noted.last);
        let (recovered, past, image) =
            opening::check_log(&paths, &*log, node, reached(&paths.progress), options)?;
        let contents_reached = reached(&paths.contents_progress);
        let contents = OpenVolumes::open(
            Arc::clone(&medium),
            &paths.contents,
            node,
            contents_reached,
            options,
        )?;
        contents.clean_up()?;
        let identity = opening::begin_run(&*log, &recovered, &past, found.is_none())?;
        let witness = |path: &PathBuf, sequence: u64| {
            let noted = Noted {
                durable: sequence,
                last: sequence,
            };
            self.state.lock().progress.insert(path.clone(), noted);
            Box::new(Progress {
                life: Arc::clone(&life),
                path: path.clone(),
            })
        };
        let waker = Arc::downgrade(&self.state);
        let steps = Arc::new(Steps::new(Box::new(move || wake(&waker))));
        self.state.lock().steps = Arc::downgrade(&steps);
        Ok(Opened {
            identity,
            progress: witness(&paths.progress, recovered.sequence),
            contents_progress: witness(&paths.contents_progress, contents.sequence),
            contents,
            paths,
            medium,
            log,
            recovered,
            pace: Pace::Steps(steps),
            image,
            door: None,
        })
    }

    /// Locks it. What an earlier process wrote and did not flush is flushed first, as at the opening of a real one.
    fn begin_life(&self, paths: &Paths) -> Result<Life, OpenError> {
        let mut state = self.state.lock();
        if state.held {
            return Err(OpenError::Locked {
                dir: paths.dir.clone(),
            });
        }
        for memory in state.databases.values() {
            memory.flush()?;
        }
        state.life += 1;
        state.held = true;
        Ok(Life {
            state: Arc::clone(&self.state),
            number: state.life,
        })
    }
}

fn paths() -> Paths {
    Paths::new(Path::new(ROOT))
}

fn wake(state: &Weak<Mutex<State>>) {
    let waker = state.upgrade().and_then(|state| state.lock().waker.clone());
    if let Some(waker) = waker {
        waker();
    }
}

impl State {
    fn end_life(&mut self) {
        self.life += 1;
        self.held = false;
        self.steps = Weak::new();
    }

    /// Of all databases in a directory.
    fn bytes(&self, dir: &Path) -> u64 {
        let there = self.databases.iter().filter(|(path, _)| path.starts_with(dir));
        there.map(|(_, memory)| memory.bytes()).sum()
    }

    fn strike(&mut self, source: std::io::Error, action: &str) -> StorageError {
        self.stats.faults += 1;
        StorageError::io(format!("{action} {ROOT}"))(source)
    }
}

/// Counts a fault down. True when it strikes.
fn strikes(left: &mut Option<u64>) -> bool {
    match left {
        Some(0) => {
            *left = None;
            true
        }
        Some(count) => {
            *count -= 1;
            false
        }
        None => false,
    }
}

/// From the opening of a store to its end: held by everything that can write.
struct Life {
    state: Arc<Mutex<State>>,
    number: u64,
}

impl Life {
    /// The disk, if this life has not ended.
    fn state(&self) -> Result<parking_lot::MutexGuard<'_, State>, StorageError> {
        let state = self.state.lock();
        if state.life == self.number {
            Ok(state)
        } else {
            Err(StorageError::Engine {
                path: ROOT.into(),
                what: "this handle is of a store that has crashed".into(),
            })
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if let Ok(mut state) = self.state() {
            state.held = false;
        }
    }
}

/// One database, as long as a life lasts.
struct Database {
    life: Arc<Life>,
    memory: Arc<Memory>,
}

impl Database {
    fn write(
        &self,
        len: usize,
        write: impl FnOnce(&Memory) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let mut state = self.life.state()?;
        let full = |capacity| len > 0 && state.bytes(Path::new(ROOT)) + len as u64 > capacity;
        if state.faults.capacity.is_some_and(full) {
            return Err(state.strike(std::io::ErrorKind::StorageFull.into(), "write to"));
        }
        if strikes(&mut state.faults.write) {
            return Err(state.strike(std::io::Error::other("input/output error"), "write to"));
        }
        state.stats.writes += 1;
        write(&self.memory)
    }
}

impl Engine for Database {
    fn put(&self, space: Space, key: &[u8], value: &[u8]) -> Result<(), StorageError> {
        assert!(value.len() <= VALUE_LEN_MAX);
        self.write(key.len() + value.len(), |memory| memory.put(space, key, value))
    }

    fn remove(&self, space: Space, key: &[u8]) -> Result<(), StorageError> {
        self.write(0, |memory| memory.remove(space, key))
    }

    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        drop(self.life.state()?);
        self.memory.get(space, key)
    }

    fn ascend(&self, space: Space, from: &[u8]) -> Walk<'_> {
        match self.life.state().map(drop) {
            Ok(()) => self.memory.ascend(space, from),
            Err(error) => Box::new(std::iter::once(Err(error))),
        }
    }

    fn descend(&self, space: Space, to: &[u8]) -> Walk<'_> {
        match self.life.state().map(drop) {
            Ok(()) => self.memory.descend(space, to),
            Err(error) => Box::new(std::iter::once(Err(error))),
        }
    }

    fn flush(&self) -> Result<(), StorageError> {
        let mut state = self.life.state()?;
        if strikes(&mut state.faults.sync) {
            self.memory.give_up();
            return Err(state.strike(std::io::Error::other("input/output error"), "sync"));
        }
        state.stats.flushes += 1;
        self.memory.flush()
    }
}

/// The disk, as long as a life lasts.
struct Device {
    life: Arc<Life>,
}

impl Medium for Device {
    fn open(&self, path: &Path, _: &[SpaceName], _: u64) -> Result<Arc<dyn Engine>, OpenError> {
        let mut state = self.life.state()?;
        let memory = Arc::clone(state.databases.entry(path.to_owned()).or_default());
        Ok(Arc::new(Database {
            life: Arc::clone(&self.life),
            memory,
        }))
    }

    fn names(&self, dir: &Path) -> Result<Vec<String>, StorageError> {
        let state = self.life.state()?;
        let below = state
            .databases
            .keys()
            .filter_map(|path| path.strip_prefix(dir).ok());
        Ok(below.map(|name| name.display().to_string()).collect())
    }

    fn remove(&self, path: &Path) -> Result<(), StorageError> {
        self.life.state()?.databases.remove(path);
        Ok(())
    }

    fn read(&self, path: &Path) -> Result<Option<Bytes>, StorageError> {
        Ok(self.life.state()?.files.get(path).cloned())
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), StorageError> {
        let mut state = self.life.state()?;
        if strikes(&mut state.faults.write) {
            return Err(state.strike(std::io::Error::other("input/output error"), "write to"));
        }
        if strikes(&mut state.faults.sync) {
            return Err(state.strike(std::io::Error::other("input/output error"), "sync"));
        }
        state.stats.writes += 1;
        state.stats.flushes += 1;
        state.files.insert(path.to_owned(), Bytes::copy_from_slice(bytes));
        Ok(())
    }

    fn sync(&self, _: &Path) -> Result<(), StorageError> {
        self.life.state().map(drop)
    }

    fn bytes(&self, dir: &Path) -> u64 {
        self.life.state().map_or(0, |state| state.bytes(dir))
    }
}

struct Progress {
    life: Arc<Life>,
    path: PathBuf,
}

impl Witness for Progress {
    fn note(&self, sequence: u64) -> Result<(), StorageError> {
        let mut state = self.life.state()?;
        state.progress.entry(self.path.clone()).or_default().last = sequence;
        Ok(())
    }
}

/// A small generator (SplitMix64): this crate has no other use for one.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// How many of so many writes are kept: often none or all.
    fn prefix(&mut self, count: usize) -> usize {
        match self.below(4) {
            0 => 0,
            1 => count,
            _ => usize::try_from(self.below(count as u64 + 1)).expect("it is at most the count"),
        }
    }
}

#[cfg(test)]
mod tests;
