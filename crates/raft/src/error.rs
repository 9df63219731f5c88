//! How this crate's operations fail, and what the caller may conclude.

use quorate_core::ids::MessageId;

use crate::leadership::LeaderInfo;

/// The node cannot run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings contradict each other.
    #[error("invalid setting: {0}")]
    Config(String),
    /// The peer port cannot be had.
    #[error("listen for peers on {address}: {source}")]
    Listen {
        /// Where.
        address: std::net::SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// The data directory cannot be used.
    #[error(transparent)]
    Open(#[from] quorate_storage::OpenError),
    /// The log and the state do not fit together, or cannot be read.
    #[error("load the log: {0}")]
    Raft(String),
}

/// Why a running node must stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A write or a sync failed, or what was read is damaged. Nothing was
    /// confirmed on the strength of it.
    #[error("the storage failed: {0}; look at the disk, then start the node again")]
    Storage(String),
    /// The cluster has removed this node.
    #[error(
        "the cluster has removed this node; to bring this machine back, empty its data directory, start it, and run \
         `quorate cluster add`"
    )]
    Removed,
    /// Consensus cannot go on: a bug, or a log that does not fit the state.
    #[error("consensus cannot go on: {0}")]
    Consensus(String),
}

/// A proposal was not answered with outcomes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Certainly not appended: this node does not lead, or no longer in the
    /// given epoch, or has lost touch with its quorum, or has too many
    /// proposals waiting.
    #[error("not the leader")]
    NotLeader {
        /// Who leads, if known. None is often brief: ask again.
        leader: Option<LeaderInfo>,
    },
    /// May still be committed, or not: leadership changed while it was on its
    /// way. Only a repeat with the same request ids is safe.
    #[error("it is unknown whether the proposal is committed: {0}")]
    Unknown(String),
    /// This node has stopped. The proposal may still be committed, if it was
    /// on its way.
    #[error("the node has stopped: {0}")]
    Fatal(String),
}

/// A read could not be made linearizable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Ask there; or again, if nobody is known to lead: so it is also while a
    /// leader cannot confirm that it still leads.
    #[error("not the leader")]
    NotLeader {
        /// Who leads, if known.
        leader: Option<LeaderInfo>,
    },
    /// This node has stopped.
    #[error("the node has stopped: {0}")]
    Fatal(String),
}

/// A content could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    /// No message refers to it any more.
    #[error("content {0} is gone")]
    Gone(MessageId),
    /// What is stored is not what was written.
    #[error("content {id}: {problem}")]
    Damaged {
        /// Its key.
        id: MessageId,
        /// What is wrong.
        problem: String,
    },
    /// The storage failed.
    #[error("read content {id}: {source}")]
    Storage {
        /// Its key.
        id: MessageId,
        /// Why.
        source: quorate_storage::StorageError,
    },
}

/// The members of the cluster were not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    /// Ask there.
    #[error("not the leader")]
    NotLeader {
        /// Who leads, if known.
        leader: Option<LeaderInfo>,
    },
    /// The request does not fit the cluster as it is.
    #[error("{0}")]
    Refused(String),
    /// The other node could not be reached; nothing was changed.
    #[error("{0}")]
    Unreachable(String),
    /// Another change is under way, leadership moved, or a new node has not
    /// caught up yet: look at the status, then ask again.
    #[error("the change may still take place: {0}")]
    Unknown(String),
    /// This node has stopped.
    #[error("the node has stopped: {0}")]
    Fatal(String),
}
