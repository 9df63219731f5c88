//! The types openraft is instantiated with.
//!
//! Terms, votes, log ids and entries are openraft's own; `leader_id_adv` puts
//! the node id into the leader id, so that two candidates of one term do not
//! split the vote. Application data is [`Batch`]: bytes that are encoded once,
//! by the leader's node, and are those same bytes in the log on disk, on the
//! wire and in every state machine.

use std::fmt;

use bytes::Bytes;
use quorate_core::Repeated;
use quorate_core::outcome::Outcome;
use serde::{Deserialize, Serialize};

use crate::state_machine::StateMachine;

openraft::declare_raft_types!(
    /// What openraft is instantiated with.
    pub TypeConfig:
        D = Batch,
        R = Answer,
        NodeId = u64,
        Node = Member,
);

pub(crate) type Raft = openraft::Raft<TypeConfig, StateMachine>;
pub(crate) type LeaderId = openraft::type_config::alias::LeaderIdOf<TypeConfig>;
pub(crate) type LogId = openraft::type_config::alias::LogIdOf<TypeConfig>;
pub(crate) type Vote = openraft::type_config::alias::VoteOf<TypeConfig>;
pub(crate) type Entry = openraft::type_config::alias::EntryOf<TypeConfig>;
pub(crate) type Payload = openraft::type_config::alias::PayloadOf<TypeConfig>;
pub(crate) type Membership = openraft::Membership<u64, Member>;
pub(crate) type StoredMembership = openraft::type_config::alias::StoredMembershipOf<TypeConfig>;
pub(crate) type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<TypeConfig>;

/// One entry of the log: an encoded `quorate_core` batch.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch(pub Bytes);

/// What the state machine answers to the proposer of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// One for each command of the batch, in its order.
    pub outcomes: Vec<Outcome>,
    /// Those of them that had been executed before, in order.
    pub repeated: Vec<Repeated>,
}

/// A node as the membership in the log knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// For people.
    pub name: String,
    /// `host:port` of its client gRPC listener.
    pub client_address: String,
    /// `host:port` of its peer listener.
    pub peer_address: String,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "batch of {} bytes", self.0.len())
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.peer_address)
    }
}
