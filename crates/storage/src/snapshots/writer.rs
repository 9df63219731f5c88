//! Writing an image.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::image::{CHUNK_BYTES, Header, Image, encode_chunk};
use super::{SnapshotInfo, Snapshots};
use crate::engine::Pair;
use crate::error::StorageError;
use crate::meta::META_LEN_MAX;
use crate::throttle::Throttle;

/// So many bytes are written together, and flushed, so that the final flush is short.
const FLUSH_EVERY: u64 = 1 << 20;

/// An image being written. Dropped unfinished, it removes what it wrote.
pub struct SnapshotWriter {
    snapshots: Snapshots,
    number: u64,
    /// `None` only while being dropped.
    image: Option<Image>,
    throttle: Throttle,
    pending: BytesMut,
    /// Chunks to be written together, and their bytes.
    full: Vec<Pair>,
    full_bytes: u64,
    checksum: crc32fast::Hasher,
    bytes: u64,
    chunk_count: u32,
}

impl SnapshotWriter {
    pub(super) fn create(snapshots: Snapshots, number: u64) -> Result<Self, StorageError> {
        let path = snapshots.path_of(number);
        let medium = &snapshots.inner.medium;
        let image =
            Image::open(Arc::clone(medium), &path, snapshots.inner.cache_bytes).inspect_err(|_| {
                // The disk may be full, so leave nothing behind. What cannot be removed now goes at the next open.
                let _ = medium.remove(&path);
            })?;
        Ok(SnapshotWriter {
            throttle: Throttle::new(snapshots.inner.bytes_per_second),
            snapshots,
            number,
            image: Some(image),
            pending: BytesMut::with_capacity(CHUNK_BYTES),
            full: Vec::new(),
            full_bytes: 0,
            checksum: crc32fast::Hasher::new(),
            bytes: 0,
            chunk_count: 0,
        })
    }

    /// Lifts the ceiling on bytes per second.
    #[must_use]
    pub fn unthrottled(mut self) -> Self {
        self.throttle = Throttle::new(None);
        self
    }

    /// Adds bytes to the image. Blocks on the disk, and sleeps if it is throttled.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), StorageError> {
        self.checksum.update(bytes);
        self.bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK_BYTES - self.pending.len()));
            self.pending.extend_from_slice(now);
            bytes = later;
            if self.pending.len() == CHUNK_BYTES {
                self.finish_chunk()?;
            }
        }
        Ok(())
    }

    fn finish_chunk(&mut self) -> Result<(), StorageError> {
        let len = self.pending.len();
        self.full.push(encode_chunk(self.chunk_count, &self.pending));
        self.full_bytes += len as u64;
        self.pending.clear();
        self.chunk_count += 1;
        if self.full_bytes >= FLUSH_EVERY {
            self.put_chunks()?;
        }
        self.throttle.spend(len);
        Ok(())
    }

    fn put_chunks(&mut self) -> Result<(), StorageError> {
        self.image().put_chunks(&self.full)?;
        self.full.clear();
        self.full_bytes = 0;
        self.image().flush()
    }

    fn image(&self) -> &Image {
        self.image
            .as_ref()
            .expect("it is there until the writer is dropped")
    }

    /// Completes the image, makes it durable and then the current one; the one before is removed when nobody
    /// reads it any more. `meta` of at most about 16 KB is given back with it. Blocks on the disk.
    pub fn finish(mut self, meta: Bytes) -> Result<SnapshotInfo, StorageError> {
        // The pointer, with the meta in it, is a value of the log database.
        let max = META_LEN_MAX - 20;
        if meta.len() > max {
            return Err(StorageError::TooLarge {
                what: "snapshot meta",
                len: meta.len() as u64,
                max: max as u64,
            });
        }
        if !self.pending.is_empty() {
            self.finish_chunk()?;
        }
        self.put_chunks()?;
        let checksum = self.checksum.clone().finalize();
        let header = Header {
            bytes: self.bytes,
            chunk_count: self.chunk_count,
            checksum,
            meta: meta.clone(),
        };
        let info = SnapshotInfo {
            number: self.number,
            meta,
            bytes: self.bytes,
            checksum,
        };
        let image = self.image();
        image.put_header(&header)?;
        image.flush()?;
        let medium = &self.snapshots.inner.medium;
        medium.sync(&self.snapshots.path_of(self.number))?;
        medium.sync(&self.snapshots.inner.dir)?;
        // From here on the pointer may be on disk even if the answer is an error, so the image must stay. If it
        // is not, the next open removes the image.
        self.image = None;
        self.snapshots.install(&info)?;
        Ok(info)
    }
}

impl Drop for SnapshotWriter {
    fn drop(&mut self) {
        if let Some(image) = self.image.take() {
            image.remove_when_dropped();
        }
    }
}
