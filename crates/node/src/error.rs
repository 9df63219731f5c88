//! What can go wrong, and what a caller may conclude.

use std::time::Duration;

use quorate_core::ids::QueueName;
use quorate_core::outcome::Rejection;
use quorate_raft::LeaderInfo;

/// Why a call did not succeed.
///
/// Two questions matter to a caller: may it try again
/// ([`is_retryable`](Self::is_retryable)), and could the command have taken
/// effect ([`may_have_applied`](Self::may_have_applied)).
#[derive(Clone, Debug, thiserror::Error)]
pub enum BrokerError {
    /// The state machine refused, on all nodes alike.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// The request is malformed; it was not proposed.
    #[error("{field}: {problem}")]
    Invalid {
        /// Which field.
        field: &'static str,
        /// What is wrong, with the bound.
        problem: String,
    },
    /// A message is above the limit.
    #[error("the message has {bytes} bytes, the limit is {limit}")]
    MessageTooLarge {
        /// Its size.
        bytes: usize,
        /// The most that is accepted.
        limit: usize,
    },
    /// The headers of a message are above the limit.
    #[error("the headers have {bytes} bytes, the limit is {limit}")]
    HeadersTooLarge {
        /// Their size.
        bytes: usize,
        /// The most that is accepted.
        limit: usize,
    },
    /// Another node leads.
    #[error("this node does not lead; node {} at {} does", .0.node_id.0, .0.client_address)]
    NotLeader(LeaderInfo),
    /// Nobody leads at the moment, or the leader has lost its majority.
    #[error("there is no leader at the moment; try again in a moment")]
    NoLeader,
    /// More is waiting than the node accepts, or it waited past its deadline.
    #[error("the node has more work queued than it accepts; try again in a moment")]
    Overloaded,
    /// The node is on its way out.
    #[error("the node is shutting down; use another one")]
    ShuttingDown,
    /// The session has ended, or moved to another stream.
    #[error("the session has ended or moved to another stream; open a new one")]
    SessionLost,
    /// The consumer was cancelled, because its queue was deleted.
    #[error("the consumer was cancelled: its queue {0} was deleted")]
    ConsumerCancelled(QueueName),
    /// The command was handed to consensus and its fate is not known.
    #[error("the outcome is unknown: {0}; repeat the request with the same request id")]
    Unknown(String),
    /// This node failed.
    #[error("the node failed: {0}")]
    Internal(String),
}

impl BrokerError {
    /// Repeating the same request, here later or elsewhere, can succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Rejected(rejection) => lacks_room(rejection),
            Self::Invalid { .. }
            | Self::MessageTooLarge { .. }
            | Self::HeadersTooLarge { .. }
            | Self::SessionLost
            | Self::ConsumerCancelled(_) => false,
            Self::NotLeader(_)
            | Self::NoLeader
            | Self::Overloaded
            | Self::ShuttingDown
            | Self::Unknown(_)
            | Self::Internal(_) => true,
        }
    }

    /// False: the command certainly had no effect and never will.
    #[must_use]
    pub fn may_have_applied(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::Internal(_))
    }

    /// How long to wait before a retry, where that is known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::NoLeader => Some(Duration::from_millis(50)),
            Self::Overloaded => Some(Duration::from_millis(100)),
            Self::Rejected(rejection) if lacks_room(rejection) => Some(Duration::from_millis(250)),
            _ => None,
        }
    }
}

/// Refused for what consumers can change: a queue is full.
fn lacks_room(rejection: &Rejection) -> bool {
    match rejection {
        Rejection::QueueFull { .. } => true,
        Rejection::TransactionRefused { cause, .. } => lacks_room(cause),
        _ => false,
    }
}
