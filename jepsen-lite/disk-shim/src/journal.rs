//! The undo journal: what the shim writes before each change of a file, and
//! what [`crate::PowerLoss`] reads after the processes are dead.
//!
//! A record is a header of [`HEADER_BYTES`] and a payload, appended by one
//! `write`. It is in the page cache before the change it describes begins, so
//! a SIGKILL at any point leaves a journal that can undo what was done. Only
//! the last record can be torn, and then its change was never made.
//!
//! Numbers are little-endian. The journal lives for one test run on one
//! machine and is not a format to keep: a reader accepts only its own version.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Pages are the unit in which a kernel writes a file back.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Size of the fixed part of a record.
pub(crate) const HEADER_BYTES: usize = 64;

/// Name of the journal in the journal folder.
pub(crate) const JOURNAL_FILE: &str = "undo";

/// Name of the folder, in the journal folder, that keeps a hard link to each
/// removed file until its removal is durable.
pub(crate) const GRAVEYARD_FOLDER: &str = "removed";

/// Changes with the layout of a record.
const MAGIC: u32 = u32::from_le_bytes(*b"QDJ1");

/// A file or folder, whatever name it has now: inode number and time of birth.
/// An inode number alone is handed out again after a removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileId {
    pub(crate) inode: u64,
    pub(crate) born_ns: u64,
}

/// What one record says. The letters `a`, `b`, `c` are the header's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    /// `a` offset, `b` length, `c` size of the file before. Payload: the old
    /// bytes of every page the write touches, as far as the file reached.
    Write = 1,
    /// `a` new size, `c` size before. Payload: the old bytes from the page of
    /// the new size on. Also used to grow a file.
    Truncate = 2,
    /// All that was written to the file is durable; `c` is its size. Of a
    /// folder: the names in it are.
    Sync = 3,
    /// A sync failed: what was written since the last one is not durable and
    /// no later sync makes it so, because the kernel marks such pages clean.
    SyncFailed = 4,
    /// Everything below the data folder is durable.
    SyncAll = 5,
    /// A name came up in folder `id`. Payload: its path in the data folder.
    Create = 6,
    /// As `Create`, for a folder.
    CreateFolder = 7,
    /// A name went from folder `id`; `a` is its link in the graveyard or 0.
    Remove = 8,
    /// As `Remove`, for an empty folder, whose own id is in `b` and `c`.
    RemoveFolder = 9,
    /// A name moved into folder `id` from the folder whose id is in `b` and
    /// `c`; `a` is the link in the graveyard of the file it replaced, or 0.
    /// Payload: old path, a zero byte, new path.
    Rename = 10,
    /// The page cache let go of `b` bytes of the file from `a` on: pages whose sync had failed are
    /// again what is on the disk.
    Dropped = 11,
}

impl Kind {
    const ALL: [Kind; 11] = [
        Kind::Write,
        Kind::Truncate,
        Kind::Sync,
        Kind::SyncFailed,
        Kind::SyncAll,
        Kind::Create,
        Kind::CreateFolder,
        Kind::Remove,
        Kind::RemoveFolder,
        Kind::Rename,
        Kind::Dropped,
    ];
}

/// The fixed part of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) payload_bytes: u64,
    pub(crate) id: FileId,
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) c: u64,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&(self.kind as u32).to_le_bytes());
        let numbers = [
            self.payload_bytes,
            self.id.inode,
            self.id.born_ns,
            self.a,
            self.b,
            self.c,
        ];
        for (slot, number) in bytes[8..].chunks_exact_mut(8).zip(numbers) {
            slot.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// `None` if these bytes are not the header of a record.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        if word(0) != MAGIC {
            return None;
        }
        Some(Header {
            kind: Kind::ALL.into_iter().find(|kind| *kind as u32 == word(4))?,
            payload_bytes: number(8),
            id: FileId {
                inode: number(16),
                born_ns: number(24),
            },
            a: number(32),
            b: number(40),
            c: number(48),
        })
    }
}

/// The first byte of the page that holds `offset`.
pub(crate) fn page_floor(offset: u64) -> u64 {
    offset / PAGE_BYTES * PAGE_BYTES
}

/// The first page boundary at or after `offset`.
pub(crate) fn page_ceil(offset: u64) -> u64 {
    offset.div_ceil(PAGE_BYTES) * PAGE_BYTES
}

/// Walks the records of a journal, oldest first, without reading payloads.
pub(crate) struct Reader<'a> {
    file: &'a File,
    position: u64,
    end: u64,
}

/// One record, and where its payload is in the journal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) header: Header,
    pub(crate) payload_at: u64,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(file: &'a File) -> io::Result<Reader<'a>> {
        Ok(Reader {
            file,
            position: 0,
            end: file.metadata()?.len(),
        })
    }

    /// The next whole record; `None` at the end or at a torn last one.
    pub(crate) fn next(&mut self) -> io::Result<Option<Record>> {
        let payload_at = self.position + HEADER_BYTES as u64;
        if payload_at > self.end {
            return Ok(None);
        }
        let mut bytes = [0; HEADER_BYTES];
        self.file.read_exact_at(&mut bytes, self.position)?;
        let header = Header::decode(&bytes).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "byte {} of the undo journal is not the start of a record",
                    self.position
                ),
            )
        })?;
        match payload_at.checked_add(header.payload_bytes) {
            Some(end) if end <= self.end => self.position = end,
            _ => return Ok(None),
        }
        Ok(Some(Record { header, payload_at }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn header(kind: Kind, payload_bytes: u64) -> Header {
        Header {
            kind,
            payload_bytes,
            id: FileId { inode: 7, born_ns: 8 },
            a: 1,
            b: 2,
            c: 3,
        }
    }

    #[test]
    fn every_kind_of_header_comes_back_as_it_was() {
        for kind in Kind::ALL {
            let header = header(kind, 99);
            assert_eq!(Header::decode(&header.encode()), Some(header));
        }
        assert_eq!(Header::decode(&[0; HEADER_BYTES]), None);
    }

    #[test]
    fn a_torn_last_record_is_left_out() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&header(Kind::Write, 3).encode()).unwrap();
        file.write_all(b"old").unwrap();
        file.write_all(&header(Kind::Sync, 10).encode()).unwrap();
        file.write_all(b"torn").unwrap();
        let mut reader = Reader::new(&file).unwrap();
        assert_eq!(reader.next().unwrap().unwrap().header.kind, Kind::Write);
        assert!(reader.next().unwrap().is_none());
    }

    #[test]
    fn a_journal_with_foreign_bytes_is_refused() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; HEADER_BYTES]).unwrap();
        assert!(Reader::new(&file).unwrap().next().is_err());
    }
}
