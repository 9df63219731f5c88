//! What this crate writes to disk, byte by byte.
//!
//! Every shape begins with its version. The tests keep a sample of each: a
//! change that breaks one needs a new version beside the old, not a new sample.
//!
//! | shape       | bytes                                                            |
//! |-------------|------------------------------------------------------------------|
//! | record      | version, kind, term, node, index (u64 little endian each), payload |
//! | log id      | version, term, node, index                                       |
//! | vote        | version, committed, term, node                                   |
//! | membership  | version, postcard of [`MembershipShape`]                         |
//! | snapshot    | version, postcard of [`SnapshotShape`]                           |

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use openraft::EntryPayload;
use openraft::entry::RaftEntry as _;
use openraft::vote::RaftLeaderId as _;
use serde::{Deserialize, Serialize};

use crate::types::{
    Batch, Entry, LeaderId, LogId, Member, Membership, Payload, SnapshotMeta, StoredMembership, Vote,
};

const VERSION: u8 = 1;
const RECORD_HEADER: usize = 2 + 24;

/// Kinds of payload, on disk and on the wire.
mod kind {
    pub(super) const BLANK: u8 = 0;
    pub(super) const BATCH: u8 = 1;
    pub(super) const MEMBERSHIP: u8 = 2;
}

/// Bytes that are not of the shape they should have.
#[derive(Debug, thiserror::Error)]
#[error("{what} is malformed: {problem}")]
pub(crate) struct Malformed {
    what: &'static str,
    problem: String,
}

impl Malformed {
    pub(crate) fn new(what: &'static str, problem: impl ToString) -> Self {
        Self {
            what,
            problem: problem.to_string(),
        }
    }
}

impl From<Malformed> for io::Error {
    fn from(error: Malformed) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// An entry as one record of the log.
pub(crate) fn encode_record(entry: &Entry) -> Bytes {
    let (kind, payload) = split_payload(&entry.payload);
    let mut out = BytesMut::with_capacity(RECORD_HEADER + payload.len());
    out.put_u8(VERSION);
    out.put_u8(kind);
    put_log_id(&mut out, &entry.log_id);
    out.put_slice(&payload);
    out.freeze()
}

/// The entry of a record; a batch shares the record's memory.
pub(crate) fn decode_record(record: &Bytes) -> Result<Entry, Malformed> {
    let what = "log record";
    if record.len() < RECORD_HEADER {
        return Err(Malformed::new(what, format!("{} bytes", record.len())));
    }
    version(what, record)?;
    let log_id = get_log_id(&record[2..RECORD_HEADER]);
    let payload = join_payload(record[1], record.slice(RECORD_HEADER..))?;
    Ok(Entry::new(log_id, payload))
}

/// A payload as its kind and bytes, without a copy of a batch.
pub(crate) fn split_payload(payload: &Payload) -> (u8, Bytes) {
    match payload {
        EntryPayload::Blank => (kind::BLANK, Bytes::new()),
        EntryPayload::Normal(Batch(bytes)) => (kind::BATCH, bytes.clone()),
        EntryPayload::Membership(membership) => (kind::MEMBERSHIP, encode_membership(membership).into()),
    }
}

/// The inverse of [`split_payload`].
pub(crate) fn join_payload(kind: u8, bytes: Bytes) -> Result<Payload, Malformed> {
    match kind {
        kind::BLANK => Ok(EntryPayload::Blank),
        kind::BATCH => Ok(EntryPayload::Normal(Batch(bytes))),
        kind::MEMBERSHIP => Ok(EntryPayload::Membership(decode_membership(&bytes)?)),
        other => Err(Malformed::new("entry", format!("payload kind {other}"))),
    }
}

/// A log id by itself.
pub(crate) fn encode_log_id(id: &LogId) -> Vec<u8> {
    let mut out = Vec::with_capacity(25);
    out.put_u8(VERSION);
    put_log_id(&mut out, id);
    out
}

/// The inverse of [`encode_log_id`].
pub(crate) fn decode_log_id(bytes: &[u8]) -> Result<LogId, Malformed> {
    let what = "log id";
    version(what, bytes)?;
    exactly(what, bytes, 25)?;
    Ok(get_log_id(&bytes[1..]))
}

/// A vote.
pub(crate) fn encode_vote(vote: &Vote) -> Vec<u8> {
    let mut out = Vec::with_capacity(18);
    out.put_u8(VERSION);
    out.put_u8(u8::from(vote.committed));
    out.put_u64_le(vote.leader_id.term);
    out.put_u64_le(vote.leader_id.node_id);
    out
}

/// The inverse of [`encode_vote`].
pub(crate) fn decode_vote(bytes: &[u8]) -> Result<Vote, Malformed> {
    let what = "vote";
    version(what, bytes)?;
    exactly(what, bytes, 18)?;
    let leader_id = LeaderId::new(get_u64(&bytes[2..]), get_u64(&bytes[10..]));
    Ok(Vote {
        leader_id,
        committed: bytes[1] != 0,
    })
}

/// A membership. Persisted: new fields go to the end, with a new version.
#[derive(Serialize, Deserialize)]
struct MembershipShape {
    /// One set of voters, or two while it changes.
    configs: Vec<Vec<u64>>,
    /// Voters and learners: id, name, client address, peer address.
    nodes: Vec<(u64, String, String, String)>,
}

/// A snapshot's meta. Persisted, as [`MembershipShape`].
#[derive(Serialize, Deserialize)]
struct SnapshotShape {
    /// Term, node, index.
    last_log_id: Option<(u64, u64, u64)>,
    membership_log_id: Option<(u64, u64, u64)>,
    membership: MembershipShape,
}

fn encode_membership(membership: &Membership) -> Vec<u8> {
    with_version(&MembershipShape::from(membership))
}

fn decode_membership(bytes: &[u8]) -> Result<Membership, Malformed> {
    read_shape::<MembershipShape>("membership", bytes)?.into_membership()
}

/// A snapshot's meta, as it stands beside its image.
pub(crate) fn encode_snapshot_meta(meta: &SnapshotMeta) -> Vec<u8> {
    let parts = |id: &LogId| (id.leader_id.term, id.leader_id.node_id, id.index);
    with_version(&SnapshotShape {
        last_log_id: meta.last_log_id.as_ref().map(parts),
        membership_log_id: meta.last_membership.log_id().as_ref().map(parts),
        membership: meta.last_membership.membership().into(),
    })
}

/// The inverse of [`encode_snapshot_meta`].
pub(crate) fn decode_snapshot_meta(bytes: &[u8]) -> Result<SnapshotMeta, Malformed> {
    let shape: SnapshotShape = read_shape("snapshot meta", bytes)?;
    let log_id = |(term, node, index)| LogId::new(LeaderId::new(term, node), index);
    Ok(SnapshotMeta {
        last_log_id: shape.last_log_id.map(log_id),
        last_membership: StoredMembership::new(
            shape.membership_log_id.map(log_id),
            shape.membership.into_membership()?,
        ),
    })
}

impl From<&Membership> for MembershipShape {
    fn from(membership: &Membership) -> Self {
        Self {
            configs: membership
                .get_joint_config()
                .iter()
                .map(|set| set.iter().copied().collect())
                .collect(),
            nodes: membership
                .nodes()
                .map(|(id, m)| {
                    (
                        *id,
                        m.name.clone(),
                        m.client_address.clone(),
                        m.peer_address.clone(),
                    )
                })
                .collect(),
        }
    }
}

impl MembershipShape {
    fn into_membership(self) -> Result<Membership, Malformed> {
        let configs: Vec<BTreeSet<u64>> = self
            .configs
            .into_iter()
            .map(|set| set.into_iter().collect())
            .collect();
        let nodes: BTreeMap<u64, Member> = self
            .nodes
            .into_iter()
            .map(|(id, name, client_address, peer_address)| {
                (
                    id,
                    Member {
                        name,
                        client_address,
                        peer_address,
                    },
                )
            })
            .collect();
        if configs.is_empty() && nodes.is_empty() {
            return Ok(Membership::default());
        }
        Membership::new(configs, nodes).map_err(|error| Malformed::new("membership", error))
    }
}

fn with_version<T: Serialize>(shape: &T) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend(postcard::to_allocvec(shape).expect("a plain shape is always encodable"));
    out
}

fn read_shape<'a, T: Deserialize<'a>>(what: &'static str, bytes: &'a [u8]) -> Result<T, Malformed> {
    version(what, bytes)?;
    postcard::from_bytes(&bytes[1..]).map_err(|error| Malformed::new(what, error))
}

fn version(what: &'static str, bytes: &[u8]) -> Result<(), Malformed> {
    match bytes.first() {
        Some(&VERSION) => Ok(()),
        Some(other) => Err(Malformed::new(
            what,
            format!("version {other}, this program knows {VERSION}"),
        )),
        None => Err(Malformed::new(what, "empty")),
    }
}

fn exactly(what: &'static str, bytes: &[u8], length: usize) -> Result<(), Malformed> {
    if bytes.len() == length {
        return Ok(());
    }
    Err(Malformed::new(
        what,
        format!("{} bytes instead of {length}", bytes.len()),
    ))
}

fn put_log_id(out: &mut impl BufMut, id: &LogId) {
    out.put_u64_le(id.leader_id.term);
    out.put_u64_le(id.leader_id.node_id);
    out.put_u64_le(id.index);
}

/// The caller has checked that there are 24 bytes.
fn get_log_id(bytes: &[u8]) -> LogId {
    LogId::new(
        LeaderId::new(get_u64(bytes), get_u64(&bytes[8..])),
        get_u64(&bytes[16..]),
    )
}

fn get_u64(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("the caller has checked the length"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_id(term: u64, node: u64, index: u64) -> LogId {
        LogId::new(LeaderId::new(term, node), index)
    }

    fn membership() -> Membership {
        let member = |n: u64| Member {
            name: format!("n{n}"),
            client_address: format!("h{n}:7400"),
            peer_address: format!("h{n}:7401"),
        };
        Membership::new(
            vec![BTreeSet::from([1, 2]), BTreeSet::from([1, 3])],
            (1..=4).map(|n| (n, member(n))).collect::<BTreeMap<_, _>>(),
        )
        .unwrap()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn records_round_trip() {
        for payload in [
            EntryPayload::Blank,
            EntryPayload::Normal(Batch(Bytes::from_static(b"commands"))),
            EntryPayload::Membership(membership()),
        ] {
            let entry = Entry::new(log_id(7, 9, 42), payload);
            let record = encode_record(&entry);
            assert_eq!(decode_record(&record).unwrap(), entry);
            for cut in 0..RECORD_HEADER {
                assert!(decode_record(&record.slice(..cut)).is_err());
            }
        }
    }

    #[test]
    fn a_batch_shares_the_memory_of_its_record() {
        let record = encode_record(&Entry::new(
            log_id(1, 2, 3),
            EntryPayload::Normal(Batch(Bytes::from_static(b"commands"))),
        ));
        let EntryPayload::Normal(Batch(bytes)) = decode_record(&record).unwrap().payload else {
            panic!("another payload")
        };
        assert_eq!(bytes.as_ptr(), record[RECORD_HEADER..].as_ptr());
    }

    #[test]
    fn samples_of_version_1_are_read() {
        let record = encode_record(&Entry::new(
            log_id(7, 9, 42),
            EntryPayload::Normal(Batch(Bytes::from_static(b"ab"))),
        ));
        let id = "0700000000000000_0900000000000000_2a00000000000000".replace('_', "");
        assert_eq!(hex(&record), format!("0101{id}6162"));
        assert_eq!(hex(&encode_log_id(&log_id(7, 9, 42))), format!("01{id}"));
        assert_eq!(
            hex(&encode_vote(&Vote::new_committed(7, 9))),
            "0101_0700000000000000_0900000000000000".replace('_', "")
        );
        let meta = SnapshotMeta {
            last_log_id: Some(log_id(7, 9, 42)),
            last_membership: StoredMembership::new(Some(log_id(7, 9, 41)), membership()),
        };
        assert_eq!(
            hex(&encode_snapshot_meta(&meta)),
            include_str!("samples/snapshot_meta_v1.hex").trim()
        );
        assert_eq!(decode_snapshot_meta(&encode_snapshot_meta(&meta)).unwrap(), meta);
    }
}
