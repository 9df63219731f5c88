//! The `meta` space of the log database: small values that must agree with the log.
//!
//! ```text
//! key                value
//! vote               opaque
//! committed          opaque
//! purged             u64 LE index, opaque marker
//! snapshot           u64 LE image number, u64 LE length, u32 LE checksum, opaque meta: the current image
//! node               u64 LE node id, u64 LE incarnation
//! cluster            16 bytes, once this node belongs to a cluster
//! sequence           u64 LE, grows by one with each group commit
//! ```
//!
//! Each value is stored as `u8 format = 1, u32 LE crc32 of key and payload, payload`.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::engine::{Engine, Layout, Space, SpaceName, VALUE_LEN_MAX};
use crate::error::StorageError;

/// The names of the log database's spaces, in the order of [`META`] and [`LOG`].
pub(crate) const SPACES: [SpaceName; 2] = [("meta", Layout::Map), ("log", Layout::Slots)];
pub(crate) const META: Space = Space(0);
pub(crate) const LOG: Space = Space(1);

const FORMAT: u8 = 1;
const HEAD: usize = 1 + 4;

/// The longest payload of a meta value; our own additions to an opaque part included.
pub(crate) const META_LEN_MAX: usize = VALUE_LEN_MAX - HEAD - 64;

/// The keys. The strings are on disk: never change one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetaKey {
    Vote,
    Committed,
    Purged,
    Snapshot,
    Node,
    Cluster,
    Sequence,
}

impl MetaKey {
    pub(crate) fn name(self) -> &'static str {
        match self {
            MetaKey::Vote => "vote",
            MetaKey::Committed => "committed",
            MetaKey::Purged => "purged",
            MetaKey::Snapshot => "snapshot",
            MetaKey::Node => "node",
            MetaKey::Cluster => "cluster",
            MetaKey::Sequence => "sequence",
        }
    }
}

/// Wraps a payload in format and checksum.
pub(crate) fn encode(name: &str, payload: &[u8]) -> Bytes {
    let mut value = BytesMut::with_capacity(HEAD + payload.len());
    value.put_u8(FORMAT);
    value.put_u32_le(checksum(name, payload));
    value.put_slice(payload);
    value.freeze()
}

/// The reverse of [`encode`].
pub(crate) fn decode(name: &str, value: &Bytes) -> Result<Bytes, StorageError> {
    let damaged = |what| StorageError::corrupt(format!("value `{name}`: {what}"));
    if value.len() < HEAD || value[0] != FORMAT {
        return Err(damaged("unknown format"));
    }
    let payload = value.slice(HEAD..);
    let crc = u32::from_le_bytes(value[1..HEAD].try_into().expect("four bytes"));
    if crc != checksum(name, &payload) {
        return Err(damaged("wrong checksum"));
    }
    Ok(payload)
}

fn checksum(name: &str, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(name.as_bytes());
    hasher.update(payload);
    hasher.finalize()
}

pub(crate) fn put(engine: &dyn Engine, key: MetaKey, payload: &[u8]) -> Result<(), StorageError> {
    if payload.len() > META_LEN_MAX {
        return Err(StorageError::TooLarge {
            what: key.name(),
            len: payload.len() as u64,
            max: META_LEN_MAX as u64,
        });
    }
    engine.put(META, key.name().as_bytes(), &encode(key.name(), payload))
}

pub(crate) fn get(engine: &dyn Engine, key: MetaKey) -> Result<Option<Bytes>, StorageError> {
    let value = engine.get(META, key.name().as_bytes())?;
    value.map(|value| decode(key.name(), &value)).transpose()
}

/// Splits a little-endian number off the front of a payload.
pub(crate) fn take_u64(payload: &mut Bytes) -> Result<u64, StorageError> {
    payload
        .try_get_u64_le()
        .map_err(|_| StorageError::corrupt("a value ends within a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_looks_like_this() {
        let value = encode("vote", b"me");
        assert_eq!(value[..], [1, 0xde, 0x11, 0x11, 0x30, b'm', b'e']);
        assert_eq!(decode("vote", &value).unwrap(), "me");
    }

    #[test]
    fn damage_and_mix_ups_are_noticed() {
        let value = encode("vote", b"me");
        assert!(decode("committed", &value).is_err(), "the value of another key");
        for bit in 0..value.len() * 8 {
            let mut damaged = value.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode("vote", &damaged.into()).is_err(), "bit {bit}");
        }
        assert!(decode("vote", &Bytes::new()).is_err());
    }
}
