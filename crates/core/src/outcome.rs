//! What a command answers, equal on all nodes.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::command::Selector;
use crate::effect::Leased;
use crate::ids::{ExchangeName, MessageId, QueueName, Timestamp};

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
    /// Of Publish.
    Published(Published),
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
    /// Of DeclareExchange and Bind: false = it was there.
    Created(bool),
    /// Of Transact: what each publish answers. The settlements are done; see
    /// [`Settled`] for those that extend.
    Transacted {
        /// In the order of the settlements.
        settled: Vec<Settled>,
        /// In the order of the publishes.
        published: Vec<Published>,
    },
    /// Of Operate.
    Operated {
        /// In the order of the messages: the id of each.
        results: Vec<Result<MessageId, Rejection>>,
        /// Of a redrive: the queues where it set messages free, each once, in the
        /// order of their ids.
        queues: Vec<QueueName>,
    },
}

/// Messages were accepted: they have the id `first`, and the `count - 1` numbers
/// after it, except those that are named as duplicates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Id of the first message.
    pub first: MessageId,
    /// How many.
    pub count: u32,
    /// Those that no binding led anywhere, by their place in the publish: they
    /// are gone.
    pub unroutable: Vec<u32>,
    /// Those whose dedup id was known, in order: they were not taken again.
    pub duplicates: Vec<Duplicate>,
}

/// A message that had been published before, by its dedup id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duplicate {
    /// Its place in the publish, from 0.
    pub place: u32,
    /// Id of the one that was taken.
    pub first: MessageId,
    /// What became of that one until now. Of one that an exchange routed to
    /// several queues: in the queue of the lowest id.
    pub state: MessageState,
}

/// Where a message is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MessageState {
    /// Can be leased.
    Ready,
    /// Becomes ready later.
    Delayed,
    /// Somebody holds it.
    Leased,
    /// In the dead set.
    Dead,
    /// It left.
    Gone(Exit),
}

/// How a message left a queue. There is no other way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Exit {
    /// Its holder was done with it.
    Acked,
    /// Its life was over.
    Expired,
    /// As a dead letter, to other queues.
    DeadLettered,
    /// To make room.
    Dropped,
    /// By a user: purged, cancelled, or with its queue.
    Deleted,
    /// By a user, to another queue of the broker: moved or redriven.
    Moved,
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
    #[error("queue {queue} is not empty: it holds {}", counted(*count, "message"))]
    QueueNotEmpty {
        /// The queue.
        queue: QueueName,
        /// In any state.
        count: u64,
    },
    /// `if_unused` and it is not.
    #[error("queue {queue} is in use: it has {}", counted(*consumers, "consumer"))]
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
    /// There is no exchange of that name.
    #[error("there is no exchange {0}")]
    ExchangeNotFound(ExchangeName),
    /// A declare differs from what is there.
    #[error("exchange {exchange} exists with other settings: {}", differing.join("; "))]
    ExchangeConflict {
        /// The exchange.
        exchange: ExchangeName,
        /// `field: is X, asked Y` for each.
        differing: Vec<String>,
    },
    /// `if_unused` and it is not.
    #[error("exchange {exchange} is in use: {} from or to it", counted(*bindings, "binding"))]
    ExchangeInUse {
        /// The exchange.
        exchange: ExchangeName,
        /// From it and to it.
        bindings: u64,
    },
    /// The publish is mandatory and a message has no route.
    #[error("exchange {exchange} has no route for the key {routing_key:?}")]
    Unroutable {
        /// The exchange.
        exchange: ExchangeName,
        /// Of the first message that has none.
        routing_key: String,
    },
    /// No such message in the queue.
    #[error("queue {queue} holds no message {message}")]
    MessageNotFound {
        /// The queue.
        queue: QueueName,
        /// How it was asked for.
        message: Selector,
    },
    /// The message is in a state in which this cannot be done.
    #[error("message {message} is {state}: {problem}")]
    WrongState {
        /// The message.
        message: MessageId,
        /// Its state.
        state: MessageState,
        /// What can be done.
        problem: String,
    },
    /// A lease of a queue that has a single active consumer.
    #[error("queue {0} gives messages to its single active consumer only: consume from it")]
    SingleActiveConsumer(QueueName),
    /// A part of a transaction cannot be done, so nothing of it was.
    #[error("{part} of the transaction: {cause}")]
    TransactionRefused {
        /// `settlement N` or `publish N`, from 0.
        part: String,
        /// Why.
        cause: Box<Rejection>,
    },
}

impl MessageState {
    /// The state in a word, such as `dead-lettered`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Delayed => "delayed",
            Self::Leased => "leased",
            Self::Dead => "dead",
            Self::Gone(Exit::Acked) => "acked",
            Self::Gone(Exit::Expired) => "expired",
            Self::Gone(Exit::DeadLettered) => "dead-lettered",
            Self::Gone(Exit::Dropped) => "dropped",
            Self::Gone(Exit::Deleted) => "deleted",
            Self::Gone(Exit::Moved) => "moved",
        }
    }
}

impl fmt::Display for MessageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// `1 message`, `2 messages`.
fn counted(count: u64, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_agree_with_their_nouns() {
        let told = |count| {
            let queue = QueueName::new("jobs").unwrap();
            Rejection::QueueNotEmpty { queue, count }.to_string()
        };
        assert_eq!(told(1), "queue jobs is not empty: it holds 1 message");
        assert_eq!(told(2), "queue jobs is not empty: it holds 2 messages");
    }
}
