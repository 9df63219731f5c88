//! Looking at messages without touching them.

use crate::effect::{DeadLetter, DeadReason};
use crate::event::LeasedBy;
use crate::ids::{ExchangeName, MessageId, QueueName, Timestamp};
use crate::outcome::MessageState;

/// A message in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageView {
    /// The queue that holds it.
    pub queue: QueueName,
    /// Its place in the queue.
    pub position: u64,
    /// The message, and the key of its content.
    pub id: MessageId,
    /// Never gone.
    pub state: MessageState,
    /// Of a delayed message: ready from here.
    pub ready_at: Option<Timestamp>,
    /// Of a leased message.
    pub lease: Option<LeaseView>,
    /// 0 to 9.
    pub priority: u8,
    /// Empty if it has none.
    pub group: String,
    /// Empty if it has none.
    pub dedup_id: String,
    /// Leases in this queue that ended in failure.
    pub failures: u32,
    /// Leases in this queue.
    pub grants: u32,
    /// When it was published.
    pub published_at: Timestamp,
    /// None if it lives for ever.
    pub expires_at: Option<Timestamp>,
    /// Bytes of its content.
    pub content_bytes: u32,
    /// Why its first failure in this queue was; empty if nobody said.
    pub first_error: String,
    /// Why its last failure was; empty if nobody said.
    pub last_error: String,
    /// Of a message of the dead set: why, and since when.
    pub dead: Option<(DeadReason, Timestamp)>,
    /// It waits for room in its dead-letter target.
    pub backlog: bool,
    /// Of a message that came from another queue as a dead letter.
    pub dead_letter: Option<DeadLetter>,
    /// Index of the redrive that set it free.
    pub redrive: Option<u64>,
}

/// A current lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// Its number among all.
    pub grant: u64,
    /// Who holds it. The client of a pulled one is not kept.
    pub holder: LeasedBy,
    /// When it began.
    pub since: Timestamp,
    /// When it ends.
    pub until: Timestamp,
}

/// Which messages to look at: all that is set must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Empty = any.
    pub states: Vec<MessageState>,
    /// Published before this.
    pub published_before: Option<Timestamp>,
    /// Published at this time or later.
    pub published_from: Option<Timestamp>,
    /// In this group.
    pub group: Option<String>,
    /// With this dedup id.
    pub dedup_id: Option<String>,
    /// Dead, or come as a dead letter, for this reason.
    pub reason: Option<DeadReason>,
    /// One of these; empty = any.
    pub messages: Vec<MessageId>,
    /// Set free by the redrive of this entry.
    pub redrive: Option<u64>,
    /// In the dead set, or come as a dead letter: what a redrive can take.
    pub dead_letters_only: bool,
}

/// A page of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Browsed {
    /// By position.
    pub messages: Vec<MessageView>,
    /// Where to go on; None if this was the end.
    pub next: Option<u64>,
}

/// An exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeView {
    /// Its name.
    pub name: ExchangeName,
    /// How it routes.
    pub kind: crate::command::ExchangeKind,
    /// Its settings.
    pub settings: crate::command::ExchangeSettings,
    /// Messages published to it, or routed through it.
    pub received: u64,
    /// Messages that it had no route for.
    pub unroutable: u64,
    /// Messages not taken because of their dedup id.
    pub duplicates: u64,
    /// From it, in order.
    pub bindings: Vec<crate::command::Binding>,
}

/// One thing that keeps messages of a queue from being delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The queue is paused.
    Paused,
    /// It holds nothing that could be leased, now or later.
    Empty,
    /// Messages are ready, and nobody asks for any.
    NoConsumer {
        /// Ready.
        ready: u64,
    },
    /// Every consumer holds as many as its credit allows.
    NoCredit {
        /// Consumers.
        consumers: u64,
        /// Leases that they hold.
        in_flight: u64,
    },
    /// Ready messages wait for others of their groups.
    GroupsBusy {
        /// Groups with a ready message and no free place.
        groups: u64,
        /// Ready messages in them.
        messages: u64,
    },
    /// The next consumer waits until leases of the one before it are over.
    SingleActiveBusy {
        /// Those leases.
        leases: u64,
        /// The last of them ends here.
        until: Timestamp,
    },
    /// Messages are not due yet.
    Delayed {
        /// How many.
        messages: u64,
        /// The first is due here.
        until: Timestamp,
    },
    /// All that is left is leased.
    AllLeased {
        /// How many.
        messages: u64,
        /// The first of these leases ends here.
        until: Timestamp,
    },
    /// Dead letters wait for room in their target.
    DeadLetterBacklog {
        /// How many.
        messages: u64,
    },
    /// Publishes are refused: a limit is reached.
    Full,
}
