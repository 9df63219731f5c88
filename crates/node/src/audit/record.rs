//! The records of an audit log, as they stand in JSON.
//!
//! They are shapes of their own, apart from the types of the state machine, since whoever reads them is not
//! built with it. A field that says nothing (absent, empty, false, no delay) is left out; a reader takes it
//! for that. Ids of 64 random bits (node, client, session) are decimal texts, so that a reader whose numbers
//! are floating point does not bend them. [`FORMAT`] changes when a reader of the format before would be
//! misled; new fields and kinds do not change it. `docs/audit-log.md` is the page about it.

use serde::{Deserialize, Serialize};

/// The version that [`Record::Opened`] names.
pub const FORMAT: u32 = 1;

/// One line of an audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Record {
    /// A process began to use its data. What it applies again follows, from its last snapshot on.
    Opened(Opened),
    /// The state was replaced by that of a snapshot, on start or because the log was too far behind.
    Restored(Restored),
    /// An entry was applied.
    Entry(Entry),
}

/// The beginning of a life of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// See [`FORMAT`].
    pub format: u32,
    /// The node's id, decimal.
    pub node: String,
}

/// The state of a snapshot, which took the place of what was there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// The last entry that it contains.
    pub index: u64,
    /// Term of the leader that wrote that entry.
    pub term: u64,
    /// Cluster time there, in milliseconds.
    pub at_ms: u64,
    /// State hash there: 32 hexadecimal digits.
    pub hash: String,
}

/// An entry of the replicated log, and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its place in the log. One more than that of the line before, but after a restart or a snapshot.
    pub index: u64,
    /// Term of the leader that wrote it.
    pub term: u64,
    /// Cluster time after it, in milliseconds.
    pub at_ms: u64,
    /// State hash after it: 32 hexadecimal digits.
    pub hash: String,
    /// The members from here on, if it is about them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Members>,
    /// In the order in which they were applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<Request>,
    /// What happened to messages, in order: first what was due, then request by request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
}

/// Who belongs to the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// The sets of voters of which each must agree: one, or two while they change.
    pub voters: Vec<Vec<String>>,
    /// Those that only follow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub learners: Vec<String>,
}

/// One request of a client, or of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// `client-sequence`, both decimal; absent for what nodes ask by themselves, or on behalf of a stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What was asked.
    #[serde(flatten)]
    pub command: Command,
    /// Why it was refused, by the name that the API gives to the reason, such as `QUEUE_FULL`; absent = done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// It had been executed before, in this entry: it changed nothing, and was answered with the outcome of then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<u64>,
}

/// What was asked, under `kind`, and what it was answered. What is answered is absent if it was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[allow(missing_docs)] // as in the API
pub enum Command {
    Publish(Publish),
    Lease {
        queue: String,
        max_messages: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease_ms: Option<u64>,
        #[serde(default, skip_serializing_if = "is_zero")]
        wait_ms: u64,
        /// Tokens of what was leased at once. What comes later is in the events only.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        leased: Vec<String>,
        /// Nothing was free: it waits.
        #[serde(default, skip_serializing_if = "is_false")]
        waits: bool,
    },
    Settle {
        settlements: Vec<Settlement>,
    },
    /// All of it was done, or all of it was refused.
    Transact {
        settlements: Vec<Settlement>,
        publishes: Vec<Publish>,
    },
    Operate {
        queue: String,
        /// `delete`, `move`, `reschedule`, `redrive`, `undo-redrive`.
        operation: String,
        messages: Vec<Operated>,
    },
    DeclareQueue {
        queue: String,
        #[serde(default, skip_serializing_if = "is_false")]
        created: bool,
        /// As they are after the entry; absent if the queue is gone by then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        settings: Option<Settings>,
    },
    UpdateQueue {
        queue: String,
        /// As they are after the entry; absent if there is no such queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        settings: Option<Settings>,
    },
    PurgeQueue {
        queue: String,
        /// Of `ready`, `delayed`, `dead`.
        states: Vec<String>,
        #[serde(default, skip_serializing_if = "is_zero")]
        purged: u64,
    },
    PauseQueue {
        queue: String,
        paused: bool,
    },
    DeleteQueue {
        queue: String,
        #[serde(default, skip_serializing_if = "is_zero")]
        deleted: u64,
    },
    DeclareExchange {
        exchange: String,
        #[serde(default, skip_serializing_if = "is_false")]
        created: bool,
    },
    UpdateExchange {
        exchange: String,
    },
    DeleteExchange {
        exchange: String,
    },
    Bind(Binding),
    Unbind(Binding),
    AttachSession {
        session: String,
        node: String,
        incarnation: u64,
        #[serde(default, skip_serializing_if = "is_zero")]
        epoch: u64,
        #[serde(default, skip_serializing_if = "is_false")]
        resumed: bool,
    },
    DetachSession {
        session: String,
        epoch: u64,
    },
    CloseSession {
        session: String,
        epoch: u64,
    },
    Consume {
        session: String,
        consumer: u32,
        queue: String,
        credit: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease_ms: Option<u64>,
    },
    CancelConsumer {
        session: String,
        consumer: u32,
    },
    SetCredit {
        session: String,
        consumer: u32,
        credit: u32,
    },
    NodeUp {
        node: String,
        incarnation: u64,
    },
    NodeDown {
        node: String,
        incarnation: u64,
    },
    NodeSilent {
        node: String,
        incarnation: u64,
    },
    /// Nothing but the passage of time.
    Tick,
}

/// Messages that go to one place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publish {
    /// To a queue,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// or to an exchange.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<String>,
    /// How many.
    pub count: u32,
    /// What is asked of each; left out if nothing is asked of any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Asked>,
    /// Id of the first, `index-number`; the others have the numbers after it. Absent if it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
    /// Those that had been published before, by their dedup id, and were not taken again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub duplicates: Vec<Duplicate>,
    /// Places of those that no binding led anywhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unroutable: Vec<u32>,
}

/// What a publisher asks of one message, besides its content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // as in the API
pub struct Asked {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub routing_key: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dedup_id: String,
    #[serde(skip_serializing_if = "is_zero_u8")]
    pub priority: u8,
    #[serde(skip_serializing_if = "is_zero")]
    pub delay_ms: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub deliver_at_ms: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub ttl_ms: u64,
}

/// A message that was not taken again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duplicate {
    /// Its place in the publish, from 0.
    pub place: u32,
    /// Id of the one that was taken.
    pub first: String,
    /// What has become of that one: `ready`, `leased`, `acked`, …
    pub state: String,
}

/// What a holder said of its lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settlement {
    /// `queue.position.attempt.fence`, decimal.
    pub token: String,
    /// `ack`, `nack`, `release`, `dead-letter`, `extend`.
    pub verdict: String,
    /// Of a nack: ready again after this; of an extend: the lease from now. Absent = as the queue says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Why this one was refused, as in [`Request::refused`]; absent = done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Of an extend: when the lease ends now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

/// A message that an operator named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operated {
    /// Its id; absent if it was named by its dedup id and not found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Set if it was named by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup_id: Option<String>,
    /// Why this one was refused; absent = done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// From an exchange to a queue or an exchange.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// Routes.
    pub exchange: String,
    /// Is routed to: a queue,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_queue: Option<String>,
    /// or an exchange.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_exchange: Option<String>,
    /// Its key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub routing_key: String,
}

/// Settings of a queue that decide about its messages; zero = off, or without bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // as in the API
pub struct Settings {
    pub lease_ms: u64,
    pub max_deliveries: u32,
    pub max_length: u64,
    pub max_bytes: u64,
    /// `reject`, `drop-head`.
    pub overflow: String,
    pub message_ttl_ms: u64,
    pub backoff_initial_ms: u64,
    pub backoff_max_ms: u64,
    pub priority_ageing_ms: u64,
    pub group_concurrency: u32,
    pub single_active_consumer: bool,
    pub dedup_window_ms: u64,
    pub dedup_max_ids: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter_queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter_exchange: Option<String>,
}

/// Something happened to a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its id, `index-number`.
    pub message: String,
    /// Name of the queue where it happened.
    pub queue: String,
    /// Id of that queue, which differs between two that had the same name one after the other.
    pub queue_id: u64,
    /// What.
    #[serde(flatten)]
    pub change: Change,
}

/// What happened, under `change`, by the words of the trace in the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
#[allow(missing_docs)] // as in the API
pub enum Change {
    /// It entered the queue by a publish.
    Published {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exchange: Option<String>,
        /// Not ready before this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until_ms: Option<u64>,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        dedup_id: String,
    },
    /// It entered the queue from another one.
    Arrived {
        from: String,
        /// How it left that one: `dead-lettered`, `moved`.
        exit: String,
    },
    /// Another publish had its dedup id, and was not taken.
    Duplicate {
        /// The id that the other would have had.
        refused: String,
    },
    /// Its delay has passed.
    Due,
    /// A lease began.
    Leased {
        /// Grows with every lease of every message: the last part of the token.
        fence: u64,
        /// From 1.
        attempt: u32,
        /// When the lease ends.
        until_ms: u64,
        #[serde(flatten)]
        holder: Holder,
    },
    /// The lease ends at another time.
    Extended {
        until_ms: u64,
    },
    Nacked(Returned),
    LeaseExpired(Returned),
    Released(Returned),
    SessionEnded(Returned),
    /// An operator put it off, or called it in.
    Rescheduled {
        /// Ready from here; absent = at once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until_ms: Option<u64>,
    },
    /// It entered the dead set of the queue.
    Died {
        /// `rejected`, `max-deliveries`, `expired`, `dropped-by-limit`.
        reason: String,
    },
    Redriven,
    RedriveUndone,
    /// Its holder was done with it.
    Acked,
    Expired,
    /// To the queues, of which there may be none.
    DeadLettered {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        to: Vec<String>,
    },
    Dropped,
    Deleted,
    /// To the queues.
    Moved {
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        to: Vec<String>,
    },
}

/// A lease ended, and the message comes again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Returned {
    /// Ready from here; absent = at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

/// Who holds a lease: a consumer of a session, or a client that pulled it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // as in the API
pub struct Holder {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks for it
fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks for it
fn is_zero_u8(value: &u8) -> bool {
    *value == 0
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks for it
fn is_false(value: &bool) -> bool {
    !*value
}
