//! The engine on disk: sled 0.34.7, and the only module that names it.
//!
//! sled is used within narrow limits, each of which was measured to matter:
//!
//! - single writes and one blocking `flush`; never `flush_async` (deadlocks), `apply_batch` and
//!   `transaction` (a lock over the whole process and extra syncs) or `clear`;
//! - segments of 2 MiB and values of at most 16 KiB, so that no page is ever moved into a *blob file*:
//!   sled does not sync those, and a lost one makes the database unreadable;
//! - no more than a segment unflushed, and few of its I/O threads: see [`pool`];
//! - no flusher thread: a flush happens when someone waits for it;
//! - `snap.*.generating`, left behind by a crash while opening, is removed before opening, because sled
//!   takes it for a damaged snapshot and refuses for ever;
//! - every call is [`caught`], because sled panics on some damage, and when it closes a database whose disk
//!   fails.

mod pool;
mod slots;

use std::fs;
use std::io::ErrorKind;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
#[cfg(target_os = "linux")]
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use self::slots::Slots;
use super::{Engine, Layout, Pair, Space, SpaceName, VALUE_LEN_MAX, Walk};
use crate::error::{OpenError, StorageError};
use crate::panics::caught;
use crate::{files, hook};

/// sled writes its file in segments of this size. It is fixed when a database is created.
const SEGMENT_BYTES: usize = 2 << 20;

/// A handle that is just being dropped elsewhere in this process may hold sled's own lock for a moment.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// One sled database.
pub(crate) struct Disk {
    /// There until it is dropped.
    sled: Option<Sled>,
    path: PathBuf,
    /// Bytes written since the last flush.
    unflushed: AtomicUsize,
    _watch: hook::Watch,
}

/// The order of the fields is the order of dropping: spaces before the database.
struct Sled {
    spaces: Vec<Kept>,
    db: sled::Db,
}

/// A space, and how it is kept.
enum Kept {
    Map(sled::Tree),
    Slots(Slots),
}

impl Disk {
    /// Opens the database in `path`, or creates it there, with a space for each name.
    ///
    /// When this returns the directory and its files are themselves durable, so that a later flush need
    /// only care for the contents.
    pub(crate) fn open(path: &Path, spaces: &[SpaceName], cache_bytes: u64) -> Result<Self, OpenError> {
        let created = !path.exists();
        if !created {
            remove_unfinished_snapshots(path)?;
            // After a crash of the process alone, part of the file may be in the page cache only. sled would
            // read it, and make a snapshot durable that relies on it.
            files::sync(&path.join("db"))?;
            drop_cache(&path.join("db"))?;
        }
        let config = sled::Config::new()
            .path(path)
            .segment_size(SEGMENT_BYTES)
            .cache_capacity(cache_bytes)
            .flush_every_ms(None)
            .use_compression(false);
        let sled = Self::open_patiently(path, spaces, &config)?;
        let file = path.join("db");
        let watch = hook::watch(&file).map_err(StorageError::io(format!("watch {}", file.display())))?;
        // Only now, so that its flushes are watched as well.
        pool::retire_most(&sled.db);
        let disk = Disk {
            sled: Some(sled),
            path: path.to_owned(),
            unflushed: AtomicUsize::new(0),
            _watch: watch,
        };
        if let Some(blob) = disk.first_blob() {
            return Err(OpenError::damaged(
                blob,
                "a blob file exists, which this program never writes",
            ));
        }
        if created {
            disk.flush()?;
            for file in ["conf", "db", "blobs"] {
                files::sync(&path.join(file))?;
            }
            files::sync(path)?;
            files::sync_parent(path)?;
        }
        Ok(disk)
    }

    /// Opening, with a wait for sled's lock, and with panics turned into errors.
    fn open_patiently(path: &Path, spaces: &[SpaceName], config: &sled::Config) -> Result<Sled, OpenError> {
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            let attempt = || {
                let db = config.open()?;
                let spaces = spaces
                    .iter()
                    .map(|(name, layout)| {
                        let tree = db.open_tree(name)?;
                        Ok(match layout {
                            Layout::Map => Kept::Map(tree),
                            Layout::Slots => Kept::Slots(Slots::load(tree)?),
                        })
                    })
                    .collect::<sled::Result<Vec<_>>>()?;
                Ok::<_, sled::Error>(Sled { spaces, db })
            };
            let (opened, listed) = hook::while_opening(|| caught(attempt));
            match opened {
                Ok(Ok(_)) if cfg!(target_os = "linux") && listed == 0 => return Err(OpenError::HookInactive),
                Ok(Ok(opened)) => return Ok(opened),
                Ok(Err(sled::Error::Io(error)))
                    if error.to_string().contains("could not acquire lock") && Instant::now() < deadline =>
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
                // sled's words for "the file ends, or says nothing sensible, where there should be data".
                Ok(Err(sled::Error::Io(error)))
                    if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidData) =>
                {
                    return Err(OpenError::damaged(path.join("db"), error.to_string()));
                }
                Ok(Err(sled::Error::Io(error))) => {
                    return Err(StorageError::io(format!("open database {}", path.display()))(error).into());
                }
                Ok(Err(error)) => return Err(OpenError::damaged(path.join("db"), error.to_string())),
                Err(panic) => return Err(OpenError::damaged(path.join("db"), panic)),
            }
        }
    }

    fn sled(&self) -> &Sled {
        self.sled.as_ref().expect("it is there until this is dropped")
    }

    /// The directory of the database.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Length of the database file.
    pub(crate) fn file_bytes(&self) -> u64 {
        fs::metadata(self.path.join("db")).map_or(0, |file| file.len())
    }

    /// A blob file, if there is one. There must never be.
    pub(crate) fn first_blob(&self) -> Option<PathBuf> {
        first_blob(&self.path)
    }

    fn failed(&self, action: &str, error: &sled::Error) -> StorageError {
        StorageError::Engine {
            path: self.path.clone(),
            what: format!("{action}: {error}"),
        }
    }

    /// Runs one call into sled; a panic inside it is an error like any other.
    fn call<T>(&self, action: &str, call: impl FnOnce() -> sled::Result<T>) -> Result<T, StorageError> {
        match caught(call) {
            Ok(result) => result.map_err(|error| self.failed(action, &error)),
            Err(panic) => Err(StorageError::Engine {
                path: self.path.clone(),
                what: format!("{action} panicked: {panic}"),
            }),
        }
    }

    fn space(&self, space: Space) -> &Kept {
        &self.sled().spaces[space.0]
    }

    fn walk<'a>(&'a self, mut next: impl FnMut() -> Option<sled::Result<Pair>> + 'a) -> Walk<'a> {
        let mut ended = false;
        Box::new(std::iter::from_fn(move || {
            if ended {
                return None;
            }
            let item = self.call("read", || next().transpose());
            ended = !matches!(item, Ok(Some(_)));
            item.transpose()
        }))
    }

    /// Walks by asking for the pair beyond the last one, at first for one at `start` or beyond.
    fn walk_from<'a>(
        &'a self,
        start: &[u8],
        beyond: impl Fn(Bound<&[u8]>) -> sled::Result<Option<Pair>> + 'a,
    ) -> Walk<'a> {
        let mut last = Bound::Included(Bytes::copy_from_slice(start));
        self.walk(move || {
            let pair = beyond(last.as_ref().map(|key| &key[..])).transpose()?;
            if let Ok((key, _)) = &pair {
                last = Bound::Excluded(key.clone());
            }
            Some(pair)
        })
    }
}

impl Drop for Disk {
    /// sled syncs once more, and panics if that fails. Nothing hangs on it: what was confirmed was flushed.
    fn drop(&mut self) {
        let sled = self.sled.take();
        if let Err(panic) = caught(|| drop(sled)) {
            tracing::warn!(database = %self.path.display(), "closing it failed: {panic}");
        }
    }
}

impl Engine for Disk {
    fn put(&self, space: Space, key: &[u8], value: &[u8]) -> Result<(), StorageError> {
        assert!(
            value.len() <= VALUE_LEN_MAX,
            "a value of {} bytes could become a blob file",
            value.len()
        );
        self.call("write", || match self.space(space) {
            Kept::Map(tree) => tree.insert(key, value).map(|_previous| ()),
            Kept::Slots(slots) => slots.put(key, value),
        })?;
        // See `pool` for why.
        let written = key.len() + value.len();
        let unflushed = self.unflushed.fetch_add(written, Ordering::Relaxed) + written;
        if unflushed >= SEGMENT_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    /// A leaf is written anew when it is divided, and a pair whose key is there already makes none longer. So the keys
    /// come first, alone.
    fn put_all(&self, space: Space, pairs: &[Pair]) -> Result<(), StorageError> {
        if let Kept::Map(tree) = self.space(space) {
            for (key, _) in pairs {
                let empty = Some(&[][..]);
                self.call("write", || tree.compare_and_swap(key, None::<&[u8]>, empty))?
                    .ok();
            }
        }
        for (key, value) in pairs {
            self.put(space, key, value)?;
        }
        Ok(())
    }

    fn remove(&self, space: Space, key: &[u8]) -> Result<(), StorageError> {
        self.call("remove", || match self.space(space) {
            Kept::Map(tree) => tree.remove(key).map(|_previous| ()),
            Kept::Slots(slots) => slots.remove(key),
        })
    }

    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        self.call("read", || match self.space(space) {
            Kept::Map(tree) => Ok(tree.get(key)?.map(|value| to_bytes(&value))),
            Kept::Slots(slots) => slots.get(key),
        })
    }

    fn ascend(&self, space: Space, from: &[u8]) -> Walk<'_> {
        match self.space(space) {
            Kept::Map(tree) => {
                let mut range = tree.range(from..);
                self.walk(move || range.next().map(as_bytes))
            }
            Kept::Slots(slots) => self.walk_from(from, |from| slots.next(from)),
        }
    }

    fn descend(&self, space: Space, to: &[u8]) -> Walk<'_> {
        match self.space(space) {
            Kept::Map(tree) => {
                let mut range = tree.range(..=to);
                self.walk(move || range.next_back().map(as_bytes))
            }
            Kept::Slots(slots) => self.walk_from(to, |to| slots.previous(to)),
        }
    }

    fn flush(&self) -> Result<(), StorageError> {
        self.unflushed.store(0, Ordering::Relaxed);
        self.call("flush", || self.sled().db.flush()).map(|_bytes| ())
    }

    fn syncs(&self) -> Option<u64> {
        cfg!(target_os = "linux").then(hook::calls)
    }

    fn check(&self) -> Result<(), StorageError> {
        match self.first_blob() {
            Some(blob) => Err(StorageError::corrupt(format!(
                "blob file {} appeared",
                blob.display()
            ))),
            None => Ok(()),
        }
    }
}

fn as_bytes(pair: sled::Result<(sled::IVec, sled::IVec)>) -> sled::Result<Pair> {
    pair.map(|(key, value)| (to_bytes(&key), to_bytes(&value)))
}

fn to_bytes(value: &sled::IVec) -> Bytes {
    Bytes::copy_from_slice(value)
}

fn first_blob(path: &Path) -> Option<PathBuf> {
    fs::read_dir(path.join("blobs"))
        .ok()?
        .next()?
        .ok()
        .map(|entry| entry.path())
}

/// Looks at a closed database without changing it: is everything there that sled will need?
pub(crate) fn inspect(path: &Path) -> Result<(), OpenError> {
    for name in ["conf", "db", "blobs"] {
        let file = path.join(name);
        if !file.exists() {
            return Err(OpenError::damaged(file, "it is missing"));
        }
    }
    if let Some(blob) = first_blob(path) {
        return Err(OpenError::damaged(
            blob,
            "a blob file exists, which this program never writes",
        ));
    }
    let conf = path.join("conf");
    let bytes = fs::read(&conf).map_err(StorageError::io(format!("read {}", conf.display())))?;
    let expected = format!("segment_size: {SEGMENT_BYTES}\nuse_compression: false\nversion: 0.34\n");
    let intact = bytes.len() == expected.len() + 4
        && bytes.starts_with(expected.as_bytes())
        && bytes.ends_with(&crc32fast::hash(expected.as_bytes()).to_le_bytes());
    if !intact {
        return Err(OpenError::damaged(
            conf,
            "its contents or checksum are not what this program writes",
        ));
    }
    Ok(())
}

/// Has a file read from the disk. After a failed sync of an earlier process the page cache may hold what is not
/// there, and the next sync, which finds nothing to write, would say that it is.
fn drop_cache(path: &Path) -> Result<(), StorageError> {
    #[cfg(target_os = "linux")]
    fs::File::open(path)
        .and_then(|file| {
            Ok(posix_fadvise(
                &file,
                0,
                0,
                PosixFadviseAdvice::POSIX_FADV_DONTNEED,
            )?)
        })
        .map_err(StorageError::io(format!("begin to read {}", path.display())))?;
    Ok(())
}

fn remove_unfinished_snapshots(path: &Path) -> Result<(), OpenError> {
    for name in files::names(path)? {
        if name.starts_with("snap.") && name.ends_with(".generating") {
            tracing::warn!(file = %path.join(&name).display(), "removing what an interrupted start left behind");
            files::remove_file(&path.join(name))?;
        }
    }
    Ok(())
}
