//! Snapshot images: the state machine's state at one index.
//!
//! Each image is a database directory of its own, `data/snap/<number>`, so that dropping one gives its space
//! back at once and the log never has to scan it:
//!
//! ```text
//! space h   header: u64 LE length, u32 LE chunk count, u32 LE crc32 of all bytes, opaque meta; written last
//! space s   key u32 BE chunk number; value u8 format = 1, u32 LE crc32 of key and bytes, bytes
//! ```
//!
//! An image is valid because the value `snapshot` of the log database names it, and that pointer is written
//! through the log's writer: it cannot become durable before anything the log was told earlier. A directory
//! without the pointer is what a crash left of an unfinished image, or of one that was replaced, and is
//! removed at the next open.

mod image;
mod reader;
mod writer;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use parking_lot::Mutex;

use self::image::Image;
pub use self::reader::SnapshotReader;
pub use self::writer::SnapshotWriter;
use crate::engine::Engine;
use crate::error::StorageError;
use crate::log::Log;
use crate::medium::Medium;
use crate::meta::{self, MetaKey};

/// A complete, durable image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    number: u64,
    /// What the caller gave to [`SnapshotWriter::finish`].
    pub meta: Bytes,
    /// Length of the image.
    pub bytes: u64,
    /// crc32 of the image.
    pub checksum: u32,
}

impl SnapshotInfo {
    fn encode(&self) -> Bytes {
        let mut payload = BytesMut::with_capacity(20 + self.meta.len());
        payload.put_u64_le(self.number);
        payload.put_u64_le(self.bytes);
        payload.put_u32_le(self.checksum);
        payload.put_slice(&self.meta);
        payload.freeze()
    }

    fn decode(mut payload: Bytes) -> Result<Self, StorageError> {
        let mut take = || {
            Ok::<_, bytes::TryGetError>((
                payload.try_get_u64_le()?,
                payload.try_get_u64_le()?,
                payload.try_get_u32_le()?,
            ))
        };
        let (number, bytes, checksum) =
            take().map_err(|_| StorageError::corrupt("the snapshot pointer is too short"))?;
        Ok(SnapshotInfo {
            number,
            meta: payload,
            bytes,
            checksum,
        })
    }
}

/// A cheap handle on the images. Calls that write or read an image block on the disk.
#[derive(Clone)]
pub struct Snapshots {
    inner: Arc<Inner>,
}

struct Inner {
    medium: Arc<dyn Medium>,
    dir: PathBuf,
    log: Log,
    cache_bytes: u64,
    bytes_per_second: Option<u64>,
    state: Mutex<State>,
    /// Held while an image is opened or replaced, which takes its time. Taken before `state`.
    changing: Mutex<()>,
}

struct State {
    current: Option<SnapshotInfo>,
    next_number: u64,
    open: HashMap<u64, Weak<Image>>,
}

/// Reads the pointer to the current image.
pub(crate) fn read_pointer(log: &dyn Engine) -> Result<Option<SnapshotInfo>, StorageError> {
    meta::get(log, MetaKey::Snapshot)?
        .map(SnapshotInfo::decode)
        .transpose()
}

impl Snapshots {
    /// Starts with the image that the pointer names, and removes all others.
    pub(crate) fn open(
        medium: Arc<dyn Medium>,
        dir: &Path,
        log: Log,
        current: Option<SnapshotInfo>,
    ) -> Result<Self, StorageError> {
        let kept = current.as_ref().map(|info| path_of(dir, info));
        let mut next_number = current.as_ref().map_or(1, |info| info.number + 1);
        for name in medium.names(dir)? {
            let path = dir.join(&name);
            if Some(&path) != kept.as_ref() {
                tracing::info!(image = %path.display(), "removing an image that was never finished or is replaced");
                medium.remove(&path)?;
                if let Ok(number) = u64::from_str_radix(&name, 16) {
                    next_number = next_number.max(number + 1);
                }
            }
        }
        medium.sync(dir)?;
        Ok(Snapshots {
            inner: Arc::new(Inner {
                medium,
                dir: dir.to_owned(),
                cache_bytes: log.options().snapshot_cache_bytes,
                bytes_per_second: log.options().snapshot_bytes_per_second,
                log,
                state: Mutex::new(State {
                    current,
                    next_number,
                    open: HashMap::new(),
                }),
                changing: Mutex::new(()),
            }),
        })
    }

    /// Begins a new image. Its bytes per second are [limited](crate::Options::snapshot_bytes_per_second),
    /// unless it is [`SnapshotWriter::unthrottled`]. Several may be written at the same time; the last one
    /// finished is the current one.
    pub fn create(&self) -> Result<SnapshotWriter, StorageError> {
        self.inner.log.failed().map_or(Ok(()), Err)?;
        let number = {
            let mut state = self.inner.state.lock();
            state.next_number += 1;
            state.next_number - 1
        };
        SnapshotWriter::create(self.clone(), number)
    }

    /// The last finished image, also after a restart.
    pub fn current(&self) -> Option<SnapshotInfo> {
        self.inner.state.lock().current.clone()
    }

    /// Opens an image for reading, and keeps it alive, even if a newer one replaces it meanwhile. Fails if
    /// that has happened already.
    pub fn read(&self, info: &SnapshotInfo) -> Result<SnapshotReader, StorageError> {
        let _changing = self.inner.changing.lock();
        let image = match self.open_image(info.number)? {
            Some(image) => image,
            None => {
                let image = Arc::new(Image::open(
                    Arc::clone(&self.inner.medium),
                    &self.path_of(info.number),
                    self.inner.cache_bytes,
                )?);
                self.inner
                    .state
                    .lock()
                    .open
                    .insert(info.number, Arc::downgrade(&image));
                image
            }
        };
        SnapshotReader::new(self.clone(), image, info.clone())
    }

    /// The image, if somebody reads it already; `None` if it has to be opened.
    fn open_image(&self, number: u64) -> Result<Option<Arc<Image>>, StorageError> {
        let mut state = self.inner.state.lock();
        state.open.retain(|_, image| image.strong_count() > 0);
        if let Some(image) = state.open.get(&number).and_then(Weak::upgrade) {
            return Ok(Some(image));
        }
        match &state.current {
            Some(current) if current.number == number => Ok(None),
            _ => Err(StorageError::SnapshotReplaced),
        }
    }

    /// Makes a written image the current one, durably, and drops the one before.
    fn install(&self, info: &SnapshotInfo) -> Result<(), StorageError> {
        let _changing = self.inner.changing.lock();
        self.inner.log.put_meta(MetaKey::Snapshot, info.encode())?;
        let (replaced, read) = {
            let mut state = self.inner.state.lock();
            let Some(replaced) = state.current.replace(info.clone()) else {
                return Ok(());
            };
            (
                replaced.number,
                state.open.get(&replaced.number).and_then(Weak::upgrade),
            )
        };
        if let Some(image) = read {
            // The last reader removes it.
            image.remove_when_dropped();
            return Ok(());
        }
        self.inner.medium.remove(&self.path_of(replaced))?;
        self.inner.medium.sync(&self.inner.dir)
    }

    fn path_of(&self, number: u64) -> PathBuf {
        path_of_number(&self.inner.dir, number)
    }
}

/// The directory of an image.
pub(crate) fn path_of(dir: &Path, info: &SnapshotInfo) -> PathBuf {
    path_of_number(dir, info.number)
}

fn path_of_number(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::engine::memory::Memory;
    use crate::failure::Failure;
    use crate::log::{Pace, Recovered};

    #[test]
    fn an_image_whose_pointer_may_be_on_disk_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Arc::new(Memory::default());
        let recovered = Recovered::read(&*engine, 0).unwrap();
        let log = Log::start(
            engine.clone(),
            recovered,
            None,
            Arc::new(Failure::default()),
            Options::default(),
            None,
            Pace::Thread,
        );
        let files = Arc::new(crate::medium::Files);
        let snapshots = Snapshots::open(files, dir.path(), log.unwrap(), None).unwrap();
        let writer = snapshots.create().unwrap();
        // The pointer is written, but its flush fails: what the disk then holds nobody knows.
        engine.fail_after(0);
        assert!(writer.finish(Bytes::new()).is_err());
        crate::engine::disk::inspect(&path_of_number(dir.path(), 1)).unwrap();
    }

    #[test]
    fn a_pointer_looks_like_this() {
        let info = SnapshotInfo {
            number: 3,
            meta: Bytes::from_static(b"m"),
            bytes: 256,
            checksum: 7,
        };
        let payload = info.encode();
        assert_eq!(
            payload[..],
            [3, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, b'm']
        );
        assert_eq!(SnapshotInfo::decode(payload.clone()).unwrap(), info);
        assert!(SnapshotInfo::decode(payload.slice(..19)).is_err());
    }
}
