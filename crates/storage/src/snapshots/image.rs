//! One image on disk.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{BufMut, Bytes, BytesMut};

use crate::engine::disk::Disk;
use crate::engine::{Engine, Space, VALUE_LEN_MAX};
use crate::error::{OpenError, StorageError};
use crate::{files, meta};

const SPACES: [&str; 2] = ["h", "s"];
const HEADER: Space = Space(0);
const CHUNKS: Space = Space(1);
const HEADER_KEY: &str = "header";

const FORMAT: u8 = 1;
const HEAD: usize = 1 + 4;
/// Bytes of the image in each chunk but the last.
pub(super) const CHUNK_BYTES: usize = VALUE_LEN_MAX - HEAD;

/// What the header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) bytes: u64,
    pub(super) chunk_count: u32,
    pub(super) checksum: u32,
    pub(super) meta: Bytes,
}

/// An open image. While it lives its directory does too.
pub(super) struct Image {
    /// `None` only while being dropped.
    disk: Option<Disk>,
    remove: AtomicBool,
}

impl Image {
    /// Opens an image, or creates an empty one.
    pub(super) fn open(path: &Path, cache_bytes: u64) -> Result<Self, StorageError> {
        let disk = Disk::open(path, &SPACES, cache_bytes).map_err(|error| match error {
            OpenError::Storage(error) => error,
            other => StorageError::Corrupt {
                what: other.to_string(),
            },
        })?;
        Ok(Image {
            disk: Some(disk),
            remove: AtomicBool::new(false),
        })
    }

    /// Has the last holder remove the directory.
    pub(super) fn remove_when_dropped(&self) {
        self.remove.store(true, Ordering::SeqCst);
    }

    fn disk(&self) -> &Disk {
        self.disk
            .as_ref()
            .expect("it is there until the image is dropped")
    }

    pub(super) fn put_chunk(&self, number: u32, bytes: &[u8]) -> Result<(), StorageError> {
        let key = number.to_be_bytes();
        let mut value = BytesMut::with_capacity(HEAD + bytes.len());
        value.put_u8(FORMAT);
        value.put_u32_le(checksum(&key, bytes));
        value.put_slice(bytes);
        self.disk().put(CHUNKS, &key, &value)
    }

    pub(super) fn chunk(&self, number: u32) -> Result<Bytes, StorageError> {
        let damaged = |what| {
            StorageError::corrupt(format!(
                "chunk {number} of {}: {what}",
                self.disk().path().display()
            ))
        };
        let key = number.to_be_bytes();
        let value = self
            .disk()
            .get(CHUNKS, &key)?
            .ok_or_else(|| damaged("it is missing"))?;
        if value.len() < HEAD || value[0] != FORMAT {
            return Err(damaged("unknown format"));
        }
        let bytes = value.slice(HEAD..);
        if value[1..HEAD] != checksum(&key, &bytes).to_le_bytes() {
            return Err(damaged("wrong checksum"));
        }
        Ok(bytes)
    }

    pub(super) fn flush(&self) -> Result<(), StorageError> {
        self.disk().flush()
    }

    pub(super) fn put_header(&self, header: &Header) -> Result<(), StorageError> {
        let mut payload = BytesMut::with_capacity(16 + header.meta.len());
        payload.put_u64_le(header.bytes);
        payload.put_u32_le(header.chunk_count);
        payload.put_u32_le(header.checksum);
        payload.put_slice(&header.meta);
        self.disk()
            .put(HEADER, HEADER_KEY.as_bytes(), &meta::encode(HEADER_KEY, &payload))
    }

    pub(super) fn header(&self) -> Result<Header, StorageError> {
        let damaged =
            |what| StorageError::corrupt(format!("header of {}: {what}", self.disk().path().display()));
        let value = self
            .disk()
            .get(HEADER, HEADER_KEY.as_bytes())?
            .ok_or_else(|| damaged("it is missing"))?;
        let mut payload = meta::decode(HEADER_KEY, &value)?;
        let bytes = meta::take_u64(&mut payload)?;
        if payload.len() < 8 {
            return Err(damaged("it is too short"));
        }
        let mut take_u32 = || u32::from_le_bytes(payload.split_to(4)[..].try_into().expect("four bytes"));
        let (chunk_count, checksum) = (take_u32(), take_u32());
        Ok(Header {
            bytes,
            chunk_count,
            checksum,
            meta: payload,
        })
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let Some(disk) = self.disk.take() else { return };
        let path = disk.path().to_owned();
        drop(disk);
        if self.remove.load(Ordering::SeqCst)
            && let Err(error) = files::remove_dir(&path)
        {
            // The next open removes it; until then it only takes space.
            tracing::warn!(%error, "an old image stays behind");
        }
    }
}

fn checksum(key: &[u8], bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(bytes);
    hasher.finalize()
}
