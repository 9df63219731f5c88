//! What a node tells about itself and its cluster.

use std::fmt;
use std::time::Duration;

use quorate_core::ids::{NodeId, Timestamp};

use crate::identity::ClusterId;
use crate::leadership::LeaderInfo;

/// One look at a node. Its parts are read one after the other, so they may be
/// a few entries apart.
#[derive(Clone, Debug)]
pub struct Status {
    /// None while the node belongs to no cluster.
    pub cluster_id: Option<ClusterId>,
    /// This node.
    pub node_id: NodeId,
    /// What it does.
    pub role: Role,
    /// Its term.
    pub term: u64,
    /// Who leads, if it knows.
    pub leader: Option<LeaderInfo>,
    /// Last entry of its log; 0 if it has none.
    pub last_log_index: u64,
    /// Last entry it knows to be committed.
    pub committed_index: u64,
    /// Last entry in its state.
    pub applied_index: u64,
    /// Last entry in its newest snapshot.
    pub snapshot_index: u64,
    /// Last entry that is gone from its log.
    pub purged_index: u64,
    /// Last batch in its state: two nodes with equal index have equal hash, or
    /// one is broken.
    pub state_index: u64,
    /// Of its state.
    pub state_hash: u128,
    /// Of its state.
    pub cluster_time: Timestamp,
    /// Bytes of its log in use.
    pub log_bytes: u64,
    /// Bytes of all that is in `disk`.
    pub disk_bytes: u64,
    /// What occupies its disk, as last measured.
    pub disk: Vec<quorate_storage::DiskUse>,
    /// Since its start.
    pub uptime: Duration,
    /// As it knows them.
    pub members: Vec<MemberStatus>,
    /// What its log has written so far.
    pub log: quorate_storage::LogStats,
    /// How its journal is doing.
    pub journal: quorate_storage::JournalStats,
    /// Bytes of the image of its newest snapshot.
    pub snapshot_bytes: u64,
    /// Cluster time there; None if it has no snapshot.
    pub snapshot_at: Option<Timestamp>,
    /// How often another leader, or none, was known than before.
    pub leader_changes: u64,
    /// Since a quorum last answered it; leader only.
    pub quorum_ack_age: Option<Duration>,
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Decides on the order of entries.
    Leader,
    /// Votes and follows.
    Follower,
    /// Stands for election.
    Candidate,
    /// Follows, and is to become a voter.
    Learner,
    /// Belongs to no cluster yet.
    Waiting,
    /// Was removed from its cluster.
    Removed,
}

impl fmt::Display for Role {
    /// The word in the public API.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Candidate => "candidate",
            Self::Learner => "learner",
            Self::Waiting => "waiting",
            Self::Removed => "removed",
        })
    }
}

/// A member, as a node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its id.
    pub node_id: NodeId,
    /// For people.
    pub name: String,
    /// For clients.
    pub client_address: String,
    /// For nodes.
    pub peer_address: String,
    /// False: a learner.
    pub voter: bool,
    /// Highest index known to be in its log; from a leader only.
    pub matched_index: Option<u64>,
    /// Since it last answered the leader; from a leader only.
    pub ack_age: Option<Duration>,
    /// It leads.
    pub leader: bool,
}
