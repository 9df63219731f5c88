//! The journal's files: what happened, in chunks that can be done without.
//!
//! A chunk says which entries of the log it follows from; what it holds is the caller's business. Nothing in
//! it is needed to run: it follows from the log, and as long as the log has its entries it can be made again.
//! That is why it is kept apart from everything else here, and treated otherwise:
//!
//! - It lies in plain files, one for each chunk, written once and deleted whole. That costs no page cache and
//!   no rewriting, and gives space back at once, which sled does not.
//! - [`Journal::append`] never waits for the disk, and nobody waits for a chunk's flush, until the caller is
//!   about to give up the log from which it follows and calls [`Journal::sync`].
//! - No failure stops the node. What cannot be written or read is *missing*: [`Journal::chunks`] shows a hole
//!   there, the log has one warning, and [`JournalStats`] count it.
//!
//! ```text
//! journal/<first>-<last>.new    written, perhaps not durable
//! journal/<first>-<last>.chunk  durable
//! ```
//!
//! An open removes every `.new`: whoever called [`Journal::sync`] in time still has the log that they follow
//! from. So a chunk that was torn by a crash is never looked at, and a damaged one is one that the disk has
//! damaged since.

mod chunk;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::thread::JoinHandle;

use bytes::Bytes;
use parking_lot::Mutex;

use self::chunk::HEADER_BYTES;
use self::writer::{Order, Writer};
use crate::Options;
use crate::door::Door;
use crate::error::StorageError;
use crate::files;

/// Chunks that may wait for the disk; one more is lost.
const WAITING_MAX: usize = 32;

/// Which entries a chunk follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// Index of the first of them.
    pub first: u64,
    /// Index of the last.
    pub last: u64,
    /// Cluster time of the first thing in it, milliseconds since the Unix epoch.
    pub from_ms: u64,
    /// Cluster time of the last thing in it.
    pub until_ms: u64,
    /// The lowest key of anything in it, so that a reader can leave it out. What a key is the caller decides.
    pub lowest: u64,
}

/// How the journal is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Chunks that can be read.
    pub chunks: u64,
    /// Bytes of them, on disk or on their way.
    pub bytes: u64,
    /// Holes between them.
    pub gaps: u64,
    /// Chunks that could not be written since the store was opened.
    pub lost: u64,
    /// Chunks that turned out to be damaged since then.
    pub damaged: u64,
}

/// A cheap handle on the journal.
#[derive(Clone)]
pub struct Journal {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

struct Inner {
    shared: Arc<Shared>,
    /// `None` if the journal is off, or closed.
    orders: Mutex<Option<SyncSender<Order>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What the handles and the writer thread have in common.
struct Shared {
    dir: PathBuf,
    node: u64,
    bytes_max: u64,
    age_max_ms: u64,
    state: Mutex<State>,
    /// Held as long as anything may still write.
    _door: Option<Arc<Door>>,
}

#[derive(Default)]
struct State {
    /// By the first index that they cover; none overlaps another.
    chunks: BTreeMap<u64, Chunk>,
    bytes: u64,
    lost: u64,
    damaged: u64,
    /// What was lost at the last sync.
    lost_before: u64,
    /// The last write failed: the next failure is no news.
    failing: bool,
}

#[derive(Clone)]
struct Chunk {
    coverage: Coverage,
    bytes: u64,
    place: Place,
}

/// Where the bytes of a chunk are.
#[derive(Clone)]
enum Place {
    Memory(Bytes),
    Written,
    Durable,
}

impl Journal {
    /// Opens the journal of a node, apart from any store. Nobody else may have it open.
    ///
    /// If that fails it is off for this run, because nothing depends on it.
    pub fn open(dir: &Path, node: u64, options: &Options) -> Self {
        Self::open_behind(None, dir, node, options)
    }

    /// One that keeps nothing, and has no files.
    #[cfg(feature = "simulation")]
    pub(crate) fn off(options: &Options) -> Self {
        let options = Options {
            journal_bytes: 0,
            ..options.clone()
        };
        Journal {
            inner: Arc::new(Inner {
                shared: Arc::new(Shared::new(None, Path::new(""), 0, &options)),
                orders: Mutex::default(),
                writer: Mutex::default(),
            }),
        }
    }

    /// Opens the journal in a store's directory.
    pub(crate) fn open_behind(door: Option<Arc<Door>>, dir: &Path, node: u64, options: &Options) -> Self {
        let shared = Arc::new(Shared::new(door, dir, node, options));
        let started = if options.journal_bytes == 0 {
            files::remove_dir(dir).map(|()| None)
        } else {
            shared
                .load()
                .and_then(|()| Writer::start(Arc::clone(&shared)))
                .map(Some)
        };
        let (orders, writer) = started
            .unwrap_or_else(|error| {
                shared.failed("open the journal", &error);
                None
            })
            .unzip();
        Journal {
            inner: Arc::new(Inner {
                shared,
                orders: Mutex::new(orders),
                writer: Mutex::new(writer),
            }),
        }
    }

    /// Whether anything that is appended is kept.
    pub fn is_on(&self) -> bool {
        self.inner.orders.lock().is_some()
    }

    /// The chunk size that suits the room there is, in bytes.
    pub fn chunk_bytes(&self) -> usize {
        const CHUNK_BYTES_MAX: u64 = 256 << 10;
        usize::try_from((self.inner.shared.bytes_max / 16).min(CHUNK_BYTES_MAX)).expect("it is small")
    }

    /// Appends a chunk; it can be read at once, and is on disk some time later. `false`: it is lost, because
    /// the disk does not keep up, or failed earlier, or the chunk does not come after all others.
    pub fn append(&self, coverage: Coverage, bytes: Bytes) -> bool {
        let shared = &self.inner.shared;
        let orders = self.inner.orders.lock();
        let Some(orders) = orders.as_ref() else {
            return false;
        };
        if coverage.last < coverage.first
            || shared
                .state
                .lock()
                .last()
                .is_some_and(|last| coverage.first <= last)
        {
            return false;
        }
        let chunk = Chunk {
            coverage,
            bytes: HEADER_BYTES as u64 + bytes.len() as u64,
            place: Place::Memory(bytes),
        };
        shared.state.lock().insert(chunk);
        match orders.try_send(Order::Write(coverage.first)) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                let error = StorageError::io("write the journal")(io::ErrorKind::TimedOut.into());
                shared.lose(coverage.first, &error);
                false
            }
        }
    }

    /// Makes everything that was appended durable, as far as the disk lets it. `true`: all that was appended
    /// since the sync before is. Blocks on the disk.
    pub fn sync(&self) -> bool {
        let Some(orders) = self.inner.orders.lock().clone() else {
            return false;
        };
        let (done, synced) = mpsc::sync_channel(1);
        // An error: the thread has ended, which it does when the journal is closed.
        orders.send(Order::Sync(done)).is_ok() && synced.recv().unwrap_or(false)
    }

    /// What there is, in order. A hole between two is what is missing.
    pub fn chunks(&self) -> Vec<Coverage> {
        let state = self.inner.shared.state.lock();
        state.chunks.values().map(|chunk| chunk.coverage).collect()
    }

    /// The last entry that anything here follows from.
    pub fn last(&self) -> Option<u64> {
        self.inner.shared.state.lock().last()
    }

    /// The bytes of the chunk whose first index this is. `None`: it is gone, or damaged, and is not listed any
    /// more. Blocks on the disk.
    pub fn read(&self, first: u64) -> Option<Bytes> {
        self.inner.shared.read(first)
    }

    /// Takes a chunk out that the caller could not make sense of.
    pub fn discard(&self, first: u64) {
        self.inner
            .shared
            .damaged(first, &StorageError::corrupt("its contents make no sense"));
    }

    /// How it is doing.
    pub fn stats(&self) -> JournalStats {
        let state = self.inner.shared.state.lock();
        let covers = state.chunks.values().map(|chunk| chunk.coverage);
        let gaps = covers
            .clone()
            .zip(covers.skip(1))
            .filter(|(before, after)| before.last + 1 < after.first)
            .count();
        JournalStats {
            chunks: state.chunks.len() as u64,
            bytes: state.bytes,
            gaps: gaps as u64,
            lost: state.lost,
            damaged: state.damaged,
        }
    }

    /// Writes what waits and stops. Later appends are lost.
    pub(crate) fn close(&self) {
        self.inner.stop();
    }
}

impl Inner {
    fn stop(&self) {
        drop(self.orders.lock().take());
        if let Some(writer) = self.writer.lock().take()
            && writer.join().is_err()
        {
            tracing::error!("the journal's writer panicked");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop();
    }
}

impl State {
    fn last(&self) -> Option<u64> {
        self.chunks.last_key_value().map(|(_, chunk)| chunk.coverage.last)
    }

    fn insert(&mut self, chunk: Chunk) {
        self.bytes += chunk.bytes;
        self.chunks.insert(chunk.coverage.first, chunk);
    }

    fn remove(&mut self, first: u64) -> Option<Chunk> {
        let chunk = self.chunks.remove(&first)?;
        self.bytes -= chunk.bytes;
        Some(chunk)
    }
}

impl Shared {
    fn new(door: Option<Arc<Door>>, dir: &Path, node: u64, options: &Options) -> Self {
        Shared {
            dir: dir.to_owned(),
            node,
            bytes_max: options.journal_bytes,
            age_max_ms: u64::try_from(options.journal_age.as_millis()).unwrap_or(u64::MAX),
            state: Mutex::default(),
            _door: door,
        }
    }

    /// Takes stock of the directory; removes what cannot be relied upon.
    fn load(&self) -> Result<(), StorageError> {
        files::create_dir(&self.dir)?;
        for name in files::names(&self.dir)? {
            let path = self.dir.join(&name);
            if !name.ends_with(".chunk") {
                files::remove_file(&path)?;
                continue;
            }
            match chunk::inspect(&path, self.node) {
                Ok((coverage, bytes))
                    if self.state.lock().last().is_none_or(|last| last < coverage.first) =>
                {
                    self.state.lock().insert(Chunk {
                        coverage,
                        bytes,
                        place: Place::Durable,
                    });
                }
                unsound => {
                    let what = unsound
                        .err()
                        .map_or("it overlaps another".to_owned(), |e| e.to_string());
                    tracing::warn!(chunk = %path.display(), what, "a chunk of the journal is removed");
                    self.state.lock().damaged += 1;
                    files::remove_file(&path)?;
                }
            }
        }
        self.prune();
        Ok(())
    }

    fn path(&self, chunk: &Chunk) -> PathBuf {
        let suffix = match chunk.place {
            Place::Durable => "chunk",
            Place::Memory(_) | Place::Written => "new",
        };
        let Coverage { first, last, .. } = chunk.coverage;
        self.dir.join(format!("{first:016x}-{last:016x}.{suffix}"))
    }

    fn read(&self, first: u64) -> Option<Bytes> {
        // Its file may get its durable name, or be pruned, between the look and the read.
        for _ in 0..3 {
            let chunk = self.state.lock().chunks.get(&first)?.clone();
            if let Place::Memory(bytes) = chunk.place {
                return Some(bytes);
            }
            match chunk::read(&self.path(&chunk), self.node, &chunk.coverage) {
                Ok(bytes) => return Some(bytes),
                Err(StorageError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    self.damaged(first, &error);
                    return None;
                }
            }
        }
        self.damaged(first, &StorageError::corrupt("its file is missing"));
        None
    }

    /// Deletes the oldest chunks, until what is left is within its bounds. The newest stays.
    fn prune(&self) {
        loop {
            let mut state = self.state.lock();
            let Some((_, newest)) = state.chunks.last_key_value() else {
                return;
            };
            let age_from = newest.coverage.until_ms.saturating_sub(self.age_max_ms);
            let Some((first, oldest)) = state.chunks.first_key_value() else {
                return;
            };
            let within = state.bytes <= self.bytes_max && oldest.coverage.until_ms >= age_from;
            // One that is not written yet is the writer's.
            if within || state.chunks.len() == 1 || matches!(oldest.place, Place::Memory(_)) {
                return;
            }
            let first = *first;
            let removed = state.remove(first);
            drop(state);
            if let Some(chunk) = removed
                && let Err(error) = files::remove_file(&self.path(&chunk))
            {
                self.failed("prune the journal", &error);
            }
        }
    }

    /// A chunk did not get onto the disk.
    fn lose(&self, first: u64, error: &StorageError) {
        let removed = {
            let mut state = self.state.lock();
            state.lost += 1;
            state.remove(first)
        };
        if let Some(chunk) = removed {
            // What is left of it goes at the next open, if not now.
            let _ = fs::remove_file(self.path(&chunk));
        }
        self.failed("write the journal", error);
    }

    /// A chunk on disk is not what was written.
    fn damaged(&self, first: u64, error: &StorageError) {
        let mut state = self.state.lock();
        let Some(chunk) = state.remove(first) else {
            return;
        };
        state.damaged += 1;
        drop(state);
        let path = self.path(&chunk);
        let Coverage { first, last, .. } = chunk.coverage;
        tracing::warn!(chunk = %path.display(), first, last, %error, "a chunk of the journal is damaged; the journal goes on without it");
        let _ = fs::remove_file(path);
    }

    /// Says so, unless the last attempt failed too.
    fn failed(&self, action: &str, error: &StorageError) {
        let before = std::mem::replace(&mut self.state.lock().failing, true);
        if !before {
            tracing::warn!(%error, "{action} failed; the node goes on, and the journal has a gap");
        }
    }

    fn succeeded(&self) {
        let before = std::mem::replace(&mut self.state.lock().failing, false);
        if before {
            tracing::info!("the journal is written again");
        }
    }
}
