//! One image on disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::engine::{Engine, Layout, Pair, Space, SpaceName, VALUE_LEN_MAX};
use crate::error::{OpenError, StorageError};
use crate::medium::Medium;
use crate::meta;

const SPACES: [SpaceName; 2] = [("h", Layout::Map), ("s", Layout::Map)];
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
    engine: Option<Arc<dyn Engine>>,
    path: PathBuf,
    medium: Arc<dyn Medium>,
    remove: AtomicBool,
}

impl Image {
    /// Opens an image, or creates an empty one.
    pub(super) fn open(medium: Arc<dyn Medium>, path: &Path, cache_bytes: u64) -> Result<Self, StorageError> {
        let engine = medium
            .open(path, &SPACES, cache_bytes)
            .map_err(|error| match error {
                OpenError::Storage(error) => error,
                other => StorageError::Corrupt {
                    what: other.to_string(),
                },
            })?;
        Ok(Image {
            engine: Some(engine),
            path: path.to_owned(),
            medium,
            remove: AtomicBool::new(false),
        })
    }

    /// Has the last holder remove the directory.
    pub(super) fn remove_when_dropped(&self) {
        self.remove.store(true, Ordering::SeqCst);
    }

    fn engine(&self) -> &dyn Engine {
        self.engine
            .as_deref()
            .expect("it is there until the image is dropped")
    }

    pub(super) fn put_chunks(&self, chunks: &[Pair]) -> Result<(), StorageError> {
        self.engine().put_all(CHUNKS, chunks)
    }

    pub(super) fn chunk(&self, number: u32) -> Result<Bytes, StorageError> {
        let damaged =
            |what| StorageError::corrupt(format!("chunk {number} of {}: {what}", self.path.display()));
        let key = number.to_be_bytes();
        let value = self
            .engine()
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
        self.engine().flush()?;
        self.engine().check()
    }

    pub(super) fn put_header(&self, header: &Header) -> Result<(), StorageError> {
        self.engine().put(
            HEADER,
            HEADER_KEY.as_bytes(),
            &meta::encode(HEADER_KEY, &header.encode()),
        )
    }

    pub(super) fn header(&self) -> Result<Header, StorageError> {
        let damaged = |what| StorageError::corrupt(format!("header of {}: {what}", self.path.display()));
        let value = self
            .engine()
            .get(HEADER, HEADER_KEY.as_bytes())?
            .ok_or_else(|| damaged("it is missing"))?;
        Header::decode(meta::decode(HEADER_KEY, &value)?).ok_or_else(|| damaged("it is too short"))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // Closed first.
        drop(self.engine.take());
        if self.remove.load(Ordering::SeqCst)
            && let Err(error) = self.medium.remove(&self.path)
        {
            // The next open removes it; until then it only takes space.
            tracing::warn!(%error, "an old image stays behind");
        }
    }
}

impl Header {
    fn encode(&self) -> Bytes {
        let mut payload = BytesMut::with_capacity(16 + self.meta.len());
        payload.put_u64_le(self.bytes);
        payload.put_u32_le(self.chunk_count);
        payload.put_u32_le(self.checksum);
        payload.put_slice(&self.meta);
        payload.freeze()
    }

    fn decode(mut payload: Bytes) -> Option<Self> {
        Some(Header {
            bytes: payload.try_get_u64_le().ok()?,
            chunk_count: payload.try_get_u32_le().ok()?,
            checksum: payload.try_get_u32_le().ok()?,
            meta: payload,
        })
    }
}

/// A chunk as the database has it.
pub(super) fn encode_chunk(number: u32, bytes: &[u8]) -> Pair {
    let key = number.to_be_bytes();
    let mut value = BytesMut::with_capacity(HEAD + bytes.len());
    value.put_u8(FORMAT);
    value.put_u32_le(checksum(&key, bytes));
    value.put_slice(bytes);
    (Bytes::copy_from_slice(&key), value.freeze())
}

fn checksum(key: &[u8], bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(bytes);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_looks_like_this() {
        let (key, value) = encode_chunk(2, b"hi");
        assert_eq!(key[..], [0, 0, 0, 2]);
        assert_eq!(value[..], [1, 0x9e, 0x4d, 0x0c, 0x2b, b'h', b'i']);
    }

    #[test]
    fn a_header_looks_like_this() {
        let header = Header {
            bytes: 258,
            chunk_count: 3,
            checksum: 4,
            meta: Bytes::from_static(b"m"),
        };
        let payload = header.encode();
        assert_eq!(
            payload[..],
            [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, b'm']
        );
        assert_eq!(Header::decode(payload.clone()), Some(header));
        assert_eq!(Header::decode(payload.slice(..15)), None);
    }
}
