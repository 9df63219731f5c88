//! What is to be done outside, as plain data.
//!
//! Every node computes every effect; an effect that names a node is performed
//! by that node and no other. Performing one twice does no harm: deliveries
//! carry their token, answers their request.

use serde::{Deserialize, Serialize};

use crate::ids::{ConsumerId, MessageId, NodeId, QueueId, QueueName, RequestId, SessionId, Timestamp, Token};

/// Something to do outside of the state machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Pass a lease on to a consumer.
    Deliver {
        /// Holds the session.
        node: NodeId,
        /// The session.
        session: SessionId,
        /// Of the attach that this is meant for.
        epoch: u64,
        /// Within the session.
        consumer: ConsumerId,
        /// The lease and its message.
        leased: Leased,
    },
    /// Answer a Lease that was waiting; empty if its time ran out.
    LeaseAnswered {
        /// Holds the caller.
        node: NodeId,
        /// The Lease command's.
        request: RequestId,
        /// Up to what it asked for.
        leased: Vec<Leased>,
    },
    /// Tell a consumer that it was cancelled, because its queue was deleted.
    ConsumerCancelled {
        /// Holds the session.
        node: NodeId,
        /// The session.
        session: SessionId,
        /// Of the attach that this is meant for.
        epoch: u64,
        /// Within the session.
        consumer: ConsumerId,
        /// The queue that is gone.
        queue: QueueName,
    },
    /// The session ended or moved to another stream: let go of it.
    SessionLost {
        /// Held the session.
        node: NodeId,
        /// The session.
        session: SessionId,
        /// Of the attach that ended.
        epoch: u64,
    },
    /// No message refers to this content any more.
    ContentDropped {
        /// Its key in storage.
        id: MessageId,
    },
}

/// A lease that was granted, and what its holder gets to see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leased {
    /// Names the lease.
    pub token: Token,
    /// The message, and the key of its content.
    pub message: MessageId,
    /// Name of its queue.
    pub queue: QueueName,
    /// Bytes of the content, to check what storage returns.
    pub content_bytes: u32,
    /// The message was leased before.
    pub redelivered: bool,
    /// The lease ends here.
    pub leased_until: Timestamp,
    /// When it was published.
    pub published_at: Timestamp,
    /// What the last holder said when it failed; empty if nothing.
    pub last_error: String,
    /// Where it comes from, if it was dead-lettered into this queue.
    pub dead_letter: Option<DeadLetter>,
}

/// Why and where from a message was dead-lettered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// The queue it came from.
    pub origin: QueueName,
    /// That queue's id.
    pub origin_id: QueueId,
    /// Why.
    pub reason: DeadReason,
    /// Attempts made there.
    pub attempts: u32,
    /// Why the first of those failed; empty if nobody said.
    pub first_error: String,
    /// Why the last of those failed; empty if nobody said.
    pub last_error: String,
    /// When it left the origin.
    pub at: Timestamp,
}

/// Why a message was dead-lettered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DeadReason {
    /// Its holder said so.
    Rejected,
    /// Its attempts are used up.
    DeliveriesMax,
    /// Its TTL ran out, and its queue has a dead-letter queue.
    Expired,
    /// Its queue was full with drop-head.
    DroppedByLimit,
}
