//! How contents are packed into values.
//!
//! ```text
//! key     u64 BE index, u32 BE number, u16 BE part
//! part    u8 format = 1, u32 LE crc32 of key and rest, rest = u32 LE content length, bytes
//! run     u8 format = 2, u32 LE crc32 of key and rest, rest = for each content:
//!         u64 LE index, u32 LE number, u32 LE length, bytes
//! ```
//!
//! Contents that follow each other share a *run*, up to 16 KiB, under the key of the first one. What does not fit into a
//! run is cut into parts, each under its own key. A value that is empty is one that a crash interrupted: as if the key
//! were not there.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_mutants::mutant;

use super::Id;
use crate::engine::{Pair, VALUE_LEN_MAX};
use crate::error::StorageError;

const PART: u8 = 1;
const RUN: u8 = 2;
const HEAD: usize = 1 + 4;
const LEN: usize = 4;
/// Before each content of a run: its name and length.
const NAME: usize = 8 + 4 + LEN;
pub(super) const PART_BYTES: usize = VALUE_LEN_MAX - HEAD - LEN;
const KEY_LEN: usize = 8 + 4 + 2;
const CONTENT_LEN_MAX: usize = PART_BYTES * u16::MAX as usize;

/// What a value is, by its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Part,
    Run,
}

/// The kind of a value, which is not empty.
pub(super) fn kind_of(key: &[u8], value: &[u8]) -> Result<Kind, StorageError> {
    match value.first() {
        Some(&PART) => Ok(Kind::Part),
        Some(&RUN) => Ok(Kind::Run),
        _ => Err(damaged(key, "unknown format")),
    }
}

/// Gathers contents, in ascending order of their ids, as pairs of a database.
#[derive(Default)]
pub(super) struct Packer {
    pairs: Vec<Pair>,
    /// The run that is not full yet, with room for its head.
    run: BytesMut,
    /// The id of its first content.
    first: Option<Id>,
    /// Lowest and highest id of all.
    ids: Option<(Id, Id)>,
    count: u64,
    bytes: u64,
}

/// What a [`Packer`] gathered.
pub(super) struct Packed {
    pub(super) pairs: Vec<Pair>,
    /// Lowest and highest id in it.
    pub(super) ids: (Id, Id),
    /// How many contents.
    pub(super) count: u64,
    /// Their bytes.
    pub(super) bytes: u64,
}

impl Packer {
    /// The id that was added last.
    pub(super) fn last(&self) -> Option<Id> {
        self.ids.map(|(_, highest)| highest)
    }

    /// Bytes of the contents in it.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a content; its id must be above the [last](Packer::last).
    pub(super) fn add(&mut self, id: Id, content: &[u8]) -> Result<(), StorageError> {
        if content.len() > CONTENT_LEN_MAX {
            return Err(StorageError::TooLarge {
                what: "content",
                len: content.len() as u64,
                max: CONTENT_LEN_MAX as u64,
            });
        }
        if HEAD + NAME + content.len() > VALUE_LEN_MAX {
            self.end_run();
            self.add_parts(id, content);
        } else {
            if self.run.len() + NAME + content.len() > VALUE_LEN_MAX {
                self.end_run();
            }
            if self.first.is_none() {
                self.first = Some(id);
                self.run.reserve(VALUE_LEN_MAX);
                self.run.put_bytes(0, HEAD);
            }
            self.run.put_u64_le(id.0);
            self.run.put_u32_le(id.1);
            self.run.put_u32_le(content.len() as u32);
            self.run.put_slice(content);
        }
        self.ids = Some((self.ids.map_or(id, |(lowest, _)| lowest), id));
        self.count += 1;
        self.bytes += content.len() as u64;
        Ok(())
    }

    /// Takes all of it; `None` if there is nothing.
    pub(super) fn take(&mut self) -> Option<Packed> {
        self.end_run();
        let Packer {
            pairs,
            ids,
            count,
            bytes,
            ..
        } = std::mem::take(self);
        Some(Packed {
            pairs,
            ids: ids?,
            count,
            bytes,
        })
    }

    fn end_run(&mut self) {
        if let Some(first) = self.first.take() {
            self.push(encode_key(first, 0), RUN);
        }
    }

    fn add_parts(&mut self, id: Id, content: &[u8]) {
        for part in 0..part_count(content.len()) {
            let from = usize::from(part) * PART_BYTES;
            let bytes = &content[from..content.len().min(from + PART_BYTES)];
            self.run.reserve(HEAD + LEN + bytes.len());
            self.run.put_bytes(0, HEAD);
            self.run.put_u32_le(content.len() as u32);
            self.run.put_slice(bytes);
            self.push(encode_key(id, part), PART);
        }
    }

    /// Ends the value that is in `run`.
    fn push(&mut self, key: [u8; KEY_LEN], format: u8) {
        let mut value = self.run.split();
        let crc = checksum(&key, &value[HEAD..]);
        value[0] = format;
        value[1..HEAD].copy_from_slice(&crc.to_le_bytes());
        self.pairs.push((Bytes::copy_from_slice(&key), value.freeze()));
    }
}

/// A run, read back and checked.
pub(super) struct Run {
    /// In ascending order of the ids; all share one allocation.
    contents: Vec<(Id, Bytes)>,
}

impl Run {
    pub(super) fn decode(key: &[u8], value: &Bytes) -> Result<Run, StorageError> {
        let mut rest = check(key, value)?;
        let mut contents: Vec<(Id, Bytes)> = Vec::new();
        while !rest.is_empty() {
            let ends = || damaged(key, "it ends within a content");
            let mut take = || {
                let id = (rest.try_get_u64_le().ok()?, rest.try_get_u32_le().ok()?);
                let len = rest.try_get_u32_le().ok()? as usize;
                (len <= rest.len()).then(|| (id, rest.split_to(len)))
            };
            let content = take().ok_or_else(ends)?;
            if contents.last().is_some_and(|last| last.0 >= content.0) {
                return Err(damaged(key, "it is out of order"));
            }
            contents.push(content);
        }
        let (index, number, part) = decode_key(key)?;
        if part != 0 || contents.first().is_none_or(|first| first.0 != (index, number)) {
            return Err(damaged(key, "it begins with another content"));
        }
        Ok(Run { contents })
    }

    /// Whether an id lies between its first and its last.
    pub(super) fn spans(&self, id: Id) -> bool {
        self.contents.first().is_some_and(|first| first.0 <= id) && self.last() >= Some(id)
    }

    pub(super) fn last(&self) -> Option<Id> {
        self.contents.last().map(|last| last.0)
    }

    pub(super) fn find(&self, id: Id) -> Option<Bytes> {
        let at = self
            .contents
            .binary_search_by_key(&id, |content| content.0)
            .ok()?;
        Some(self.contents[at].1.clone())
    }

    pub(super) fn into_contents(self) -> Vec<(Id, Bytes)> {
        self.contents
    }
}

/// The length of the whole content, and the bytes of this part.
pub(super) fn decode_part(key: &[u8], value: &Bytes) -> Result<(usize, Bytes), StorageError> {
    let mut rest = check(key, value)?;
    let len = rest
        .try_get_u32_le()
        .map_err(|_| damaged(key, "it ends within its length"))?;
    Ok((len as usize, rest))
}

/// How many parts a content is cut into, if it is cut.
pub(super) fn part_count(len: usize) -> u16 {
    u16::try_from(len.div_ceil(PART_BYTES).max(1)).unwrap_or(u16::MAX)
}

pub(super) fn encode_key(id: Id, part: u16) -> [u8; KEY_LEN] {
    let mut key = [0; KEY_LEN];
    key[..8].copy_from_slice(&id.0.to_be_bytes());
    key[8..12].copy_from_slice(&id.1.to_be_bytes());
    key[12..].copy_from_slice(&part.to_be_bytes());
    key
}

/// Index, number and part.
pub(super) fn decode_key(key: &[u8]) -> Result<(u64, u32, u16), StorageError> {
    let mut rest = key;
    let mut take =
        || Ok::<_, bytes::TryGetError>((rest.try_get_u64()?, rest.try_get_u32()?, rest.try_get_u16()?));
    match take() {
        Ok(decoded) if rest.is_empty() => Ok(decoded),
        _ => Err(StorageError::corrupt(format!(
            "content key of {} bytes",
            key.len()
        ))),
    }
}

/// What follows the head of a value, if the checksum is right.
fn check(key: &[u8], value: &Bytes) -> Result<Bytes, StorageError> {
    if value.len() < HEAD {
        return Err(damaged(key, "it ends within its head"));
    }
    let sound = value[1..HEAD] == checksum(key, &value[HEAD..]).to_le_bytes();
    if !sound && !mutant!("checksum-not-verified") {
        return Err(damaged(key, "wrong checksum"));
    }
    Ok(value.slice(HEAD..))
}

fn checksum(key: &[u8], rest: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(rest);
    hasher.finalize()
}

pub(super) fn damaged(key: &[u8], what: &str) -> StorageError {
    match decode_key(key) {
        Ok((index, number, part)) => {
            StorageError::corrupt(format!("content {index}/{number} part {part}: {what}"))
        }
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(contents: &[(Id, &[u8])]) -> Vec<Pair> {
        let mut packer = Packer::default();
        for (id, content) in contents {
            packer.add(*id, content).unwrap();
        }
        packer.take().unwrap().pairs
    }

    #[test]
    fn a_run_looks_like_this() {
        let pairs = pack(&[((258, 3), b"hi"), ((259, 0), b"")]);
        let [(key, value)] = &pairs[..] else {
            panic!("one run")
        };
        assert_eq!(key[..], [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3, 0, 0]);
        let hi = [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, b'h', b'i'];
        let empty = [3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let head = [2, 0x6a, 0xe3, 0x85, 0xd3];
        assert_eq!(value[..], [&head[..], &hi[..], &empty[..]].concat());
        let run = Run::decode(key, value).unwrap();
        assert_eq!(run.find((258, 3)).unwrap(), "hi");
        assert_eq!(run.find((259, 0)).unwrap(), "");
        assert_eq!(run.find((258, 4)), None);
        assert!(run.spans((258, 4)) && !run.spans((258, 2)) && !run.spans((259, 1)));
    }

    #[test]
    fn a_part_looks_like_this() {
        let (key, value) = &pack(&[((258, 3), &[7; 20_000])])[1];
        assert_eq!(key[..], [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3, 0, 1]);
        assert_eq!(
            value[..12],
            [1, 0xa9, 0x1e, 0xb6, 0x5e, 0x20, 0x4e, 0, 0, 7, 7, 7]
        );
        assert_eq!(value.len(), HEAD + LEN + 20_000 - PART_BYTES);
        assert_eq!(decode_part(key, value).unwrap().0, 20_000);
    }

    #[test]
    fn values_are_as_full_as_they_may_be() {
        let longest = VALUE_LEN_MAX - HEAD - NAME;
        let lens = [longest, longest + 1, 0, longest - NAME, 1, 3 * PART_BYTES, 5];
        let contents: Vec<Vec<u8>> = lens.iter().map(|len| vec![1; *len]).collect();
        let named: Vec<(Id, &[u8])> = (0..).zip(&contents).map(|(at, of)| ((at, 0), &of[..])).collect();
        let pairs = pack(&named);
        let kinds: Vec<_> = pairs
            .iter()
            .map(|(key, value)| {
                assert!(value.len() <= VALUE_LEN_MAX);
                (decode_key(key).unwrap().0, kind_of(key, value).unwrap())
            })
            .collect();
        let expected = [
            (0, Kind::Run),
            (1, Kind::Part),
            (2, Kind::Run),
            (4, Kind::Run),
            (5, Kind::Part),
            (5, Kind::Part),
            (5, Kind::Part),
            (6, Kind::Run),
        ];
        assert_eq!(kinds, expected);
        assert_eq!(pairs[2].1.len(), VALUE_LEN_MAX, "contents 2 and 3");
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let large = vec![7; VALUE_LEN_MAX];
        let pairs = pack(&[((1, 2), b"payload"), ((1, 3), b"other"), ((2, 0), &large)]);
        let read = |key: &[u8], value: &Bytes| match kind_of(key, value)? {
            Kind::Part => decode_part(key, value).map(drop),
            Kind::Run => Run::decode(key, value).map(drop),
        };
        for (key, value) in [&pairs[0], &pairs[2]] {
            read(key, value).unwrap();
            for bit in 0..value.len() * 8 {
                let mut damaged = value.to_vec();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(read(key, &damaged.into()).is_err(), "bit {bit}");
            }
            let elsewhere = encode_key((1, 4), 0);
            assert!(read(&elsewhere, value).is_err(), "a value in the wrong place");
        }
    }
}
