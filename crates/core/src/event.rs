//! What happened to messages, one change of state after the other.
//!
//! Events are what a journal keeps. They follow from the entries, change
//! nothing, and are not part of the state: whoever wants no journal drops them.

use crate::broker::Broker;
use crate::effect::DeadReason;
use crate::ids::{
    ClientId, ConsumerId, ExchangeName, MessageId, Millis, NodeId, QueueId, QueueName, SessionId, Timestamp,
};
use crate::outcome::Exit;

/// Something happened to a message, at the index and time of its entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The message.
    pub message: MessageId,
    /// Where.
    pub queue: QueueId,
    /// Name of that queue.
    pub queue_name: QueueName,
    /// What.
    pub change: Change,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It entered the queue by a publish.
    Published {
        /// The exchange it was published to.
        exchange: Option<ExchangeName>,
        /// Not ready before this.
        delayed_until: Option<Timestamp>,
        /// Empty if it has none.
        dedup_id: String,
    },
    /// It entered the queue as a dead letter, moved or redriven.
    Arrived {
        /// The queue it came from.
        from: QueueName,
        /// How it left that one.
        exit: Exit,
    },
    /// Another publish had its dedup id, and was not taken.
    Duplicate {
        /// The id that the other would have had.
        refused: MessageId,
    },
    /// Its delay has passed.
    Due,
    /// A lease began.
    Leased {
        /// Number of the lease among all.
        grant: u64,
        /// From 1.
        attempt: u32,
        /// Who holds it.
        holder: LeasedBy,
        /// It ends here.
        until: Timestamp,
        /// Since it was published; set for its first lease in this queue.
        waited: Option<Millis>,
    },
    /// The lease ends later, or earlier, than it would have.
    Extended {
        /// Now here.
        until: Timestamp,
    },
    /// A lease ended, and the message comes again.
    Returned {
        /// Why.
        reason: Returned,
        /// What the holder said.
        error: String,
        /// Ready from here; None = at once.
        until: Option<Timestamp>,
    },
    /// It was put off, or called in, by an operator.
    Rescheduled {
        /// Ready from here; None = at once.
        until: Option<Timestamp>,
    },
    /// It entered the queue's dead set.
    Died {
        /// Why.
        reason: DeadReason,
        /// What the last holder said.
        error: String,
    },
    /// A redrive made it ready again, in its place.
    Redriven,
    /// That was undone.
    RedriveUndone,
    /// It left the queue. There is one such event for each exit that is
    /// counted; of messages that were purged or deleted with their queue it comes
    /// when their contents are dropped, which may be some entries later.
    Left {
        /// How.
        exit: Exit,
        /// As a dead letter: why.
        reason: Option<DeadReason>,
        /// As a dead letter: what the last holder said; empty if nobody said
        /// anything.
        error: String,
        /// The queues it went to, if any.
        to: Vec<QueueName>,
        /// Since the current lease began; set if it was acked.
        held: Option<Millis>,
    },
}

/// Who holds a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeasedBy {
    /// Who pulled it; None if the request had no id.
    Puller(Option<ClientId>),
    /// A consumer.
    Consumer {
        /// Its session.
        session: SessionId,
        /// Within the session.
        consumer: ConsumerId,
        /// The node that holds its connection.
        node: NodeId,
    },
}

/// Why a leased message comes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// Its holder failed.
    Nacked,
    /// The lease ran out.
    LeaseExpired,
    /// Its holder gave it back.
    Released,
    /// The session of its holder ended.
    SessionEnded,
}

impl Change {
    /// It left, and there is no more to say of it.
    pub(crate) fn left(exit: Exit) -> Self {
        Self::Left {
            exit,
            reason: None,
            error: String::new(),
            to: Vec::new(),
            held: None,
        }
    }
}

impl Broker {
    /// Tells of a change of a message of a queue.
    #[inline]
    pub(crate) fn tell(&mut self, queue: QueueId, message: MessageId, change: Change) {
        let queue_name = self.held(queue).head.name.clone();
        self.events.push(Event {
            message,
            queue,
            queue_name,
            change,
        });
    }
}
