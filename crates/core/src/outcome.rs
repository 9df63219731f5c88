//! What a command answers, equal on all nodes.

use serde::{Deserialize, Serialize};

use crate::effect::Leased;
use crate::ids::{MessageId, QueueName, Timestamp};

/// The answer to one command.
pub type Outcome = Result<Reply, Rejection>;

/// A command was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Nothing to tell.
    Done,
    /// Of DeclareQueue.
    Declared {
        /// False: it was there, and agrees.
        created: bool,
    },
    /// Of PurgeQueue.
    Purged {
        /// Messages removed.
        count: u64,
    },
    /// Of DeleteQueue.
    Deleted {
        /// Messages removed.
        count: u64,
    },
    /// Of Publish: ids `first`, and the `count - 1` numbers after it.
    Published {
        /// Id of the first message.
        first: MessageId,
        /// How many.
        count: u32,
    },
    /// Of Lease: what was free. Empty if nothing was and `wait` was zero, or
    /// if nothing came in time.
    Leased(Vec<Leased>),
    /// Of Lease with a wait: nothing was free, and the leases will come as
    /// [`Effect::LeaseAnswered`](crate::effect::Effect::LeaseAnswered).
    Waiting,
    /// Of Settle, in the order of the settlements.
    Settled(Vec<Result<Settled, Rejection>>),
    /// Of AttachSession.
    Attached {
        /// Grows with each attach of this session.
        epoch: u64,
        /// The session existed. Its leases come again as effects.
        resumed: bool,
    },
}

/// One settlement was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// Of an extend: when the lease now ends.
    pub leased_until: Option<Timestamp>,
}

/// A command was refused, on all nodes alike, and changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Rejection {
    /// There is no queue of that name.
    #[error("there is no queue {0}")]
    QueueNotFound(QueueName),
    /// A declare differs from what is there.
    #[error("queue {queue} exists with other settings: {}", differing.join("; "))]
    QueueConflict {
        /// The queue.
        queue: QueueName,
        /// `field: is X, asked Y` for each.
        differing: Vec<String>,
    },
    /// `if_empty` and it is not.
    #[error("queue {queue} is not empty: it holds {count} message(s)")]
    QueueNotEmpty {
        /// The queue.
        queue: QueueName,
        /// In any state.
        count: u64,
    },
    /// `if_unused` and it is not.
    #[error("queue {queue} is in use: it has {consumers} consumer(s)")]
    QueueInUse {
        /// The queue.
        queue: QueueName,
        /// How many.
        consumers: u64,
    },
    /// No room, and the overflow policy is reject.
    #[error("queue {queue} is full: {limit}")]
    QueueFull {
        /// The queue.
        queue: QueueName,
        /// Which limit, with its value.
        limit: String,
    },
    /// A field is out of bounds.
    #[error("{field}: {problem}")]
    InvalidArgument {
        /// Which.
        field: String,
        /// What is wrong, with the bound.
        problem: String,
    },
    /// Not the current lease of its message.
    #[error("the lease is not current: it expired, was settled, or its message is gone")]
    StaleLease,
    /// Older than what is remembered, or of a client that is no longer known.
    #[error("the request id is older than what is remembered: its outcome is not known any more")]
    RequestForgotten,
    /// No such session.
    #[error("the session does not exist, or has ended")]
    SessionNotFound,
    /// A limit of the cluster.
    #[error("limit reached: {0}")]
    LimitExceeded(String),
}
