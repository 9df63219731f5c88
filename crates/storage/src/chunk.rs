//! Chunks: how log entries become values of at most 16 KiB.
//!
//! A *run* holds consecutive whole entries. An entry too long for a run of its own is cut into *parts*, one
//! chunk each. The key of a chunk is the index of its first entry and the number of its part (0 in a run),
//! both big endian, so that byte order is log order:
//!
//! ```text
//! key    u64 BE index, u16 BE part
//! value  u8 format, u32 LE crc32 of key and rest, rest
//!   format 1, run   rest = (u32 LE length, bytes) for each entry
//!   format 2, part  rest = u32 LE length of the whole entry, bytes of this part
//! ```
//!
//! The checksum covers the key, so a chunk in the wrong place is as bad as a damaged one. Numbers are never
//! given a second meaning: a new layout takes the next format number.

use bytes::{BufMut, Bytes, BytesMut};
use quorate_mutants::mutant;

use crate::Record;
use crate::engine::VALUE_LEN_MAX;
use crate::error::StorageError;

const FORMAT_RUN: u8 = 1;
const FORMAT_PART: u8 = 2;
const HEAD: usize = 1 + 4;
const LEN: usize = 4;

/// The longest entry that fits into a run.
const RUN_ENTRY_MAX: usize = VALUE_LEN_MAX - HEAD - LEN;
/// Bytes of an entry in each part but the last.
const PART_BYTES: usize = VALUE_LEN_MAX - HEAD - LEN;
/// The longest entry that can be stored: as many parts as a key can number.
pub(crate) const ENTRY_LEN_MAX: usize = PART_BYTES * (u16::MAX as usize + 1);

/// The key of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChunkKey {
    pub(crate) index: u64,
    pub(crate) part: u16,
}

impl ChunkKey {
    pub(crate) const LEN: usize = 10;

    pub(crate) fn new(index: u64, part: u16) -> Self {
        ChunkKey { index, part }
    }

    /// Whether no part follows this one in an entry of `entry_len` bytes.
    pub(crate) fn is_last_part_of(self, entry_len: usize) -> bool {
        (usize::from(self.part) + 1) * PART_BYTES >= entry_len
    }

    pub(crate) fn encode(self) -> [u8; Self::LEN] {
        let mut key = [0; Self::LEN];
        key[..8].copy_from_slice(&self.index.to_be_bytes());
        key[8..].copy_from_slice(&self.part.to_be_bytes());
        key
    }

    pub(crate) fn decode(key: &[u8]) -> Result<Self, StorageError> {
        let key: [u8; Self::LEN] = key
            .try_into()
            .map_err(|_| StorageError::corrupt(format!("log key of {} bytes", key.len())))?;
        let (index, part) = key.split_at(8);
        Ok(ChunkKey {
            index: u64::from_be_bytes(index.try_into().expect("eight bytes")),
            part: u16::from_be_bytes(part.try_into().expect("two bytes")),
        })
    }
}

/// A decoded chunk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Chunk {
    /// The entries of a run, starting at the key's index.
    Run(Vec<Bytes>),
    /// One part of the entry at the key's index.
    Part { entry_len: usize, bytes: Bytes },
}

impl Chunk {
    pub(crate) fn decode(key: ChunkKey, value: &Bytes) -> Result<Chunk, StorageError> {
        let damaged =
            |what: &str| StorageError::corrupt(format!("log chunk {}/{}: {what}", key.index, key.part));
        if value.len() < HEAD {
            return Err(damaged("too short"));
        }
        let rest = value.slice(HEAD..);
        let crc = u32::from_le_bytes(value[1..HEAD].try_into().expect("four bytes"));
        if crc != checksum(&key.encode(), &rest) && !mutant!("checksum-not-verified") {
            return Err(damaged("wrong checksum"));
        }
        match value[0] {
            FORMAT_RUN => {
                let mut entries = Vec::new();
                let mut rest = rest;
                while !rest.is_empty() {
                    let len = take_len(&mut rest).ok_or_else(|| damaged("cut short"))?;
                    if rest.len() < len {
                        return Err(damaged("cut short"));
                    }
                    entries.push(rest.split_to(len));
                }
                if entries.is_empty() || key.part != 0 {
                    return Err(damaged("a run without entries or with a part number"));
                }
                Ok(Chunk::Run(entries))
            }
            FORMAT_PART => {
                let mut bytes = rest;
                let entry_len = take_len(&mut bytes).ok_or_else(|| damaged("cut short"))?;
                let from = usize::from(key.part) * PART_BYTES;
                if entry_len <= from || bytes.len() != (entry_len - from).min(PART_BYTES) {
                    return Err(damaged("a part of the wrong length"));
                }
                Ok(Chunk::Part { entry_len, bytes })
            }
            other => Err(damaged(&format!("unknown format {other}"))),
        }
    }
}

fn take_len(bytes: &mut Bytes) -> Option<usize> {
    let len = bytes.get(..LEN)?;
    let len = u32::from_le_bytes(len.try_into().expect("four bytes")) as usize;
    let _ = bytes.split_to(LEN);
    Some(len)
}

fn checksum(key: &[u8], rest: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(rest);
    hasher.finalize()
}

/// Where full chunks go.
pub(crate) type Put<'a> = &'a mut dyn FnMut(ChunkKey, &[u8]) -> Result<(), StorageError>;

/// Packs entries, given in order, into chunks and hands each on when it is full.
pub(crate) struct Packer {
    first: u64,
    run: BytesMut,
}

impl Packer {
    pub(crate) fn new() -> Self {
        Packer {
            first: 0,
            run: BytesMut::with_capacity(VALUE_LEN_MAX),
        }
    }

    /// Adds the next entry. Its index follows the one before, unless [`Packer::finish`] came between.
    pub(crate) fn push(&mut self, record: &Record, put: Put<'_>) -> Result<(), StorageError> {
        let len = record.bytes.len();
        if len > RUN_ENTRY_MAX {
            self.finish(put)?;
            return put_parts(record, put);
        }
        if !self.run.is_empty() && self.run.len() + LEN + len > VALUE_LEN_MAX {
            self.finish(put)?;
        }
        if self.run.is_empty() {
            self.first = record.index;
            self.run.put_u8(FORMAT_RUN);
            self.run.put_u32_le(0);
        }
        self.run.put_u32_le(len as u32);
        self.run.put_slice(&record.bytes);
        Ok(())
    }

    /// Hands on what has gathered.
    pub(crate) fn finish(&mut self, put: Put<'_>) -> Result<(), StorageError> {
        if !self.run.is_empty() {
            let key = ChunkKey::new(self.first, 0);
            seal(key, &mut self.run);
            put(key, &self.run)?;
            self.run.clear();
        }
        Ok(())
    }
}

fn put_parts(record: &Record, put: Put<'_>) -> Result<(), StorageError> {
    let mut value = BytesMut::with_capacity(VALUE_LEN_MAX);
    for (part, bytes) in record.bytes.chunks(PART_BYTES).enumerate() {
        let key = ChunkKey::new(
            record.index,
            u16::try_from(part).expect("the length was checked at the door"),
        );
        value.clear();
        value.put_u8(FORMAT_PART);
        value.put_u32_le(0);
        value.put_u32_le(record.bytes.len() as u32);
        value.put_slice(bytes);
        seal(key, &mut value);
        put(key, &value)?;
    }
    Ok(())
}

/// Fills in the checksum that was left open.
fn seal(key: ChunkKey, value: &mut BytesMut) {
    let crc = checksum(&key.encode(), &value[HEAD..]);
    value[1..HEAD].copy_from_slice(&crc.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pack(records: &[Record]) -> Vec<(ChunkKey, Bytes)> {
        let mut chunks = Vec::new();
        let mut put = |key, value: &[u8]| {
            chunks.push((key, Bytes::copy_from_slice(value)));
            Ok(())
        };
        let mut packer = Packer::new();
        for record in records {
            packer.push(record, &mut put).unwrap();
        }
        packer.finish(&mut put).unwrap();
        chunks
    }

    fn unpack(chunks: &[(ChunkKey, Bytes)]) -> Vec<Record> {
        let mut records: Vec<Record> = Vec::new();
        for (key, value) in chunks {
            match Chunk::decode(*key, value).unwrap() {
                Chunk::Run(entries) => records.extend(
                    (key.index..)
                        .zip(entries)
                        .map(|(index, bytes)| Record { index, bytes }),
                ),
                Chunk::Part { bytes, .. } if key.part == 0 => records.push(Record {
                    index: key.index,
                    bytes,
                }),
                Chunk::Part { bytes, .. } => {
                    let last = records.last_mut().unwrap();
                    last.bytes = [&last.bytes[..], &bytes].concat().into();
                }
            }
        }
        records
    }

    #[test]
    fn a_run_looks_like_this() {
        let records = [(7, &b"ab"[..]), (8, b""), (9, b"c")].map(|(index, bytes)| Record {
            index,
            bytes: Bytes::from_static(bytes),
        });
        let chunks = pack(&records);
        assert_eq!(chunks.len(), 1);
        assert_eq!(chunks[0].0.encode(), [0, 0, 0, 0, 0, 0, 0, 7, 0, 0]);
        let sample = [
            1, 0x9d, 0x31, 0xf4, 0x0d, // format, checksum
            2, 0, 0, 0, b'a', b'b', 0, 0, 0, 0, 1, 0, 0, 0, b'c',
        ];
        assert_eq!(chunks[0].1, &sample[..]);
    }

    #[test]
    fn a_part_looks_like_this() {
        let record = Record {
            index: 1,
            bytes: vec![5; RUN_ENTRY_MAX + 1].into(),
        };
        let chunks = pack(&[record]);
        assert_eq!(chunks.len(), 2);
        assert_eq!(chunks[1].0.encode(), [0, 0, 0, 0, 0, 0, 0, 1, 0, 1]);
        assert_eq!(chunks[0].1.len(), VALUE_LEN_MAX);
        assert_eq!(chunks[1].1[5..], [0xf8, 0x3f, 0, 0, 5]);
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let (key, value) = pack(&[Record {
            index: 3,
            bytes: Bytes::from_static(b"payload"),
        }])
        .remove(0);
        for bit in 0..value.len() * 8 {
            let mut damaged = value.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Chunk::decode(key, &damaged.into()).is_err(), "bit {bit}");
        }
        assert!(
            Chunk::decode(ChunkKey::new(4, 0), &value).is_err(),
            "a chunk in the wrong place"
        );
    }

    proptest! {
        #[test]
        fn what_is_packed_comes_out(
            first in 0_u64..1 << 40,
            lens in prop::collection::vec(
                prop_oneof![0_usize..100, 0_usize..20_000, RUN_ENTRY_MAX - 2..RUN_ENTRY_MAX + 3, 40_000_usize..70_000],
                0..40,
            ),
        ) {
            let records: Vec<Record> = (first..)
                .zip(&lens)
                .map(|(index, len)| Record { index, bytes: vec![index as u8; *len].into() })
                .collect();
            let chunks = pack(&records);
            prop_assert!(chunks.iter().all(|(_, value)| value.len() <= VALUE_LEN_MAX));
            prop_assert!(chunks.windows(2).all(|pair| pair[0].0 < pair[1].0));
            prop_assert_eq!(unpack(&chunks), records);
        }
    }
}
