//! Reading an image.

use std::sync::Arc;

use bytes::Bytes;

use super::image::{Header, Image};
use super::{SnapshotInfo, Snapshots};
use crate::error::StorageError;

/// The bytes of an image, in pieces of at most 16 KiB. Every piece is checked, and the whole at its end: an
/// image is good only once the iterator has returned `None` without an error before it.
pub struct SnapshotReader {
    image: Arc<Image>,
    /// The directory stays locked as long as this reads in it.
    _snapshots: Snapshots,
    header: Header,
    next: u32,
    bytes: u64,
    checksum: crc32fast::Hasher,
    ended: bool,
}

impl SnapshotReader {
    pub(super) fn new(
        snapshots: Snapshots,
        image: Arc<Image>,
        info: SnapshotInfo,
    ) -> Result<Self, StorageError> {
        let header = image.header()?;
        let expected = Header {
            chunk_count: header.chunk_count,
            ..Header::of(info)
        };
        if header != expected {
            return Err(StorageError::corrupt(
                "the header of the image is not the one its pointer describes",
            ));
        }
        Ok(SnapshotReader {
            image,
            _snapshots: snapshots,
            header,
            next: 0,
            bytes: 0,
            checksum: crc32fast::Hasher::new(),
            ended: false,
        })
    }

    /// The length of the whole image.
    pub fn bytes_total(&self) -> u64 {
        self.header.bytes
    }

    fn advance(&mut self) -> Result<Option<Bytes>, StorageError> {
        if self.next == self.header.chunk_count {
            let checksum = self.checksum.clone().finalize();
            if (self.bytes, checksum) != (self.header.bytes, self.header.checksum) {
                return Err(StorageError::corrupt(
                    "the image is not the one its header describes",
                ));
            }
            return Ok(None);
        }
        let chunk = self.image.chunk(self.next)?;
        self.next += 1;
        self.bytes += chunk.len() as u64;
        self.checksum.update(&chunk);
        Ok(Some(chunk))
    }
}

impl Iterator for SnapshotReader {
    type Item = Result<Bytes, StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let item = self.advance().transpose();
        self.ended = !matches!(item, Some(Ok(_)));
        item
    }
}

impl Header {
    fn of(info: SnapshotInfo) -> Self {
        Header {
            bytes: info.bytes,
            chunk_count: 0,
            checksum: info.checksum,
            meta: info.meta,
        }
    }
}
