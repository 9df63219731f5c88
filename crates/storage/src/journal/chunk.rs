//! The file of one chunk.
//!
//! ```text
//! magic    8 bytes "qjournal"
//! format   u32 LE = 1
//! node     u64 LE, whose journal it is
//! first, last, from_ms, until_ms, lowest   u64 LE each, see Coverage
//! length   u32 LE, bytes of the body
//! crc32    u32 LE of the body
//! crc32    u32 LE of all of the above
//! body
//! ```
//!
//! The header can be checked by itself, so that an open need not read the bodies.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use bytes::{Buf, BufMut, Bytes};

use super::Coverage;
use crate::error::StorageError;

const MAGIC: &[u8; 8] = b"qjournal";
const FORMAT: u32 = 1;
/// Bytes before the body.
pub(super) const HEADER_BYTES: usize = 8 + 4 + 8 + 5 * 8 + 4 + 4 + 4;

/// The bytes before a body.
pub(super) fn header(node: u64, coverage: &Coverage, body: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.put_slice(MAGIC);
    header.put_u32_le(FORMAT);
    header.put_u64_le(node);
    for number in [
        coverage.first,
        coverage.last,
        coverage.from_ms,
        coverage.until_ms,
        coverage.lowest,
    ] {
        header.put_u64_le(number);
    }
    header.put_u32_le(u32::try_from(body.len()).expect("a chunk is small"));
    header.put_u32_le(crc32fast::hash(body));
    header.put_u32_le(crc32fast::hash(&header));
    header.try_into().expect("each field was written")
}

/// What a checked header says.
struct Header {
    coverage: Coverage,
    body_len: u32,
    body_crc: u32,
}

impl Header {
    fn decode(bytes: &[u8; HEADER_BYTES], node: u64) -> Result<Self, StorageError> {
        let (fields, mut crc) = bytes.split_at(HEADER_BYTES - 4);
        if crc.get_u32_le() != crc32fast::hash(fields) {
            return Err(StorageError::corrupt("wrong checksum of the header"));
        }
        let mut rest = fields
            .strip_prefix(MAGIC)
            .ok_or_else(|| StorageError::corrupt("not a chunk of a journal"))?;
        let format = rest.get_u32_le();
        if format != FORMAT {
            return Err(StorageError::corrupt(format!("unknown format {format}")));
        }
        let owner = rest.get_u64_le();
        if owner != node {
            return Err(StorageError::corrupt(format!("it belongs to node {owner:016x}")));
        }
        let coverage = Coverage {
            first: rest.get_u64_le(),
            last: rest.get_u64_le(),
            from_ms: rest.get_u64_le(),
            until_ms: rest.get_u64_le(),
            lowest: rest.get_u64_le(),
        };
        if coverage.last < coverage.first {
            return Err(StorageError::corrupt("it ends before it begins"));
        }
        Ok(Header {
            coverage,
            body_len: rest.get_u32_le(),
            body_crc: rest.get_u32_le(),
        })
    }
}

/// Writes a chunk; it is not durable yet.
pub(super) fn write(path: &Path, node: u64, coverage: &Coverage, body: &[u8]) -> Result<(), StorageError> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(&header(node, coverage, body))?;
        file.write_all(body)
    };
    write().map_err(StorageError::io(format!("write {}", path.display())))
}

/// Looks at the header and the length of a file: what the chunk covers, and the bytes of the file.
pub(super) fn inspect(path: &Path, node: u64) -> Result<(Coverage, u64), StorageError> {
    let (header, file_len, _) = open(path, node)?;
    if file_len != HEADER_BYTES as u64 + u64::from(header.body_len) {
        return Err(StorageError::corrupt("it is cut short"));
    }
    Ok((header.coverage, file_len))
}

/// Reads the body of a chunk that covers just this, and checks it.
pub(super) fn read(path: &Path, node: u64, expected: &Coverage) -> Result<Bytes, StorageError> {
    let (header, _, file) = open(path, node)?;
    if header.coverage != *expected {
        return Err(StorageError::corrupt("it covers something else than it did"));
    }
    let mut body = Vec::new();
    file.take(u64::from(header.body_len))
        .read_to_end(&mut body)
        .map_err(StorageError::io(format!("read {}", path.display())))?;
    if body.len() != header.body_len as usize || crc32fast::hash(&body) != header.body_crc {
        return Err(StorageError::corrupt("wrong checksum"));
    }
    Ok(body.into())
}

fn open(path: &Path, node: u64) -> Result<(Header, u64, File), StorageError> {
    let io_error = || StorageError::io(format!("read {}", path.display()));
    let mut file = File::open(path).map_err(io_error())?;
    let len = file.metadata().map_err(io_error())?.len();
    if len < HEADER_BYTES as u64 {
        return Err(StorageError::corrupt("it is cut short"));
    }
    let mut header = [0; HEADER_BYTES];
    file.read_exact(&mut header).map_err(io_error())?;
    Ok((Header::decode(&header, node)?, len, file))
}
