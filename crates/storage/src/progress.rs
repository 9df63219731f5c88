//! `progress` and `progress-contents`: witnesses, outside the log database and the volumes of contents, of how far
//! each has been flushed.
//!
//! A database that lost its newest part to damage looks, from the inside, just like one that stopped
//! earlier: sled takes the first unreadable message for the end of its log. So each flush has a number, which
//! is in the database and, after the flush, is noted in this file. There it reaches the disk some time later,
//! or never, but it is never ahead of what the database has made durable. A database that ends *before* it
//! has lost something that was confirmed, and must not be used.
//!
//! The file has two slots of 24 bytes, 512 bytes apart, written in turn, so that one is whole at any time:
//!
//! ```text
//! slot   8 bytes "QRPROG1\n", u64 LE sequence, u32 LE crc32 of both, 4 bytes 0
//! ```
//!
//! It is not synced after each write. The page cache keeps it across a crash of the process, which makes the
//! witness exact there; after a power cut it may be a little behind, which makes it lenient.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::{OpenError, StorageError};
use crate::files;

const MAGIC: &[u8; 8] = b"QRPROG1\n";
const SLOT_BYTES: usize = 24;
const SLOT_STRIDE: u64 = 512;

/// Is told how far a database is durable, and never doubts it afterwards.
pub(crate) trait Witness: Send + 'static {
    /// Notes that the database is durable up to `sequence`. Does not wait for the disk.
    fn note(&self, sequence: u64) -> Result<(), StorageError>;
}

/// The open file.
pub(crate) struct Progress {
    file: File,
    path: PathBuf,
}

impl Progress {
    /// Writes the file of a new directory.
    pub(crate) fn create(path: &Path) -> Result<(), OpenError> {
        let mut bytes = vec![0; SLOT_STRIDE as usize + SLOT_BYTES];
        bytes[..SLOT_BYTES].copy_from_slice(&encode(0));
        bytes[SLOT_STRIDE as usize..].copy_from_slice(&encode(0));
        Ok(files::replace(path, &bytes)?)
    }

    /// Reads the number that the database must have reached. Changes nothing.
    pub(crate) fn read(path: &Path) -> Result<u64, OpenError> {
        let bytes = std::fs::read(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => OpenError::damaged(path, "it is missing"),
            _ => StorageError::io(format!("read {}", path.display()))(error).into(),
        })?;
        let slots = [0, SLOT_STRIDE as usize].map(|at| bytes.get(at..at + SLOT_BYTES).and_then(decode));
        slots
            .into_iter()
            .flatten()
            .max()
            .ok_or_else(|| OpenError::damaged(path, "neither of its two records is intact"))
    }

    /// Opens the file for the writer, and makes what it says durable.
    pub(crate) fn open(path: &Path, sequence: u64) -> Result<Self, OpenError> {
        let file = OpenOptions::new()
            .write(true)
            .open(path)
            .map_err(StorageError::io(format!("open {}", path.display())))?;
        let progress = Progress {
            file,
            path: path.to_owned(),
        };
        progress.note(sequence)?;
        progress
            .file
            .sync_data()
            .map_err(StorageError::io(format!("sync {}", path.display())))?;
        Ok(progress)
    }
}

impl Witness for Progress {
    fn note(&self, sequence: u64) -> Result<(), StorageError> {
        let at = (sequence % 2) * SLOT_STRIDE;
        self.file
            .write_all_at(&encode(sequence), at)
            .map_err(StorageError::io(format!("write {}", self.path.display())))
    }
}

fn encode(sequence: u64) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    slot[..8].copy_from_slice(MAGIC);
    slot[8..16].copy_from_slice(&sequence.to_le_bytes());
    let crc = crc32fast::hash(&slot[..16]);
    slot[16..20].copy_from_slice(&crc.to_le_bytes());
    slot
}

fn decode(slot: &[u8]) -> Option<u64> {
    let sequence = u64::from_le_bytes(slot[8..16].try_into().ok()?);
    (slot == encode(sequence)).then_some(sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_intact_slot_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("progress");
        Progress::create(&path).unwrap();
        assert_eq!(Progress::read(&path).unwrap(), 0);
        let progress = Progress::open(&path, 7).unwrap();
        progress.note(8).unwrap();
        assert_eq!(Progress::read(&path).unwrap(), 8);
        progress.file.write_all_at(b"torn", 10).unwrap();
        assert_eq!(Progress::read(&path).unwrap(), 7);
        progress.file.write_all_at(b"torn", SLOT_STRIDE + 10).unwrap();
        assert!(matches!(Progress::read(&path), Err(OpenError::Damaged { .. })));
    }

    #[test]
    fn a_slot_looks_like_this() {
        let slot = encode(5);
        assert_eq!(&slot[..16], b"QRPROG1\n\x05\0\0\0\0\0\0\0");
        assert_eq!(slot[16..], [0xb5, 0x47, 0x33, 0x05, 0, 0, 0, 0]);
    }
}
