//! What the log holds: entries, each a [batch](crate::batch) of the commands of many clients.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{
    ConsumerId, ExchangeName, Incarnation, MessageId, Millis, NodeId, QueueName, RequestId, SessionId,
    Timestamp, Token,
};

/// A command, and the request id under which its outcome is remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// None for what nodes propose by themselves, which is safe to repeat as it is.
    pub id: Option<RequestId>,
    /// What to do.
    pub command: Command,
}

/// Everything that changes the state. Persisted: new variants go to the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Ensures a queue.
    DeclareQueue {
        /// Its name.
        name: QueueName,
        /// Unset = default for a new queue, "whatever it is" for an existing one.
        settings: SettingsPatch,
    },
    /// Changes the set fields of a queue's settings.
    UpdateQueue {
        /// Its name.
        name: QueueName,
        /// Unset = as it is.
        settings: SettingsPatch,
    },
    /// Removes the messages in certain states.
    PurgeQueue {
        /// Its name.
        name: QueueName,
        /// Which.
        states: PurgeStates,
    },
    /// Deletes a queue, its messages and its consumers.
    DeleteQueue {
        /// Its name.
        name: QueueName,
        /// Refuse if it holds messages in any state.
        if_empty: bool,
        /// Refuse if it has consumers.
        if_unused: bool,
    },
    /// Adds messages to a queue, or to all queues to which an exchange routes
    /// them: all of them or none.
    Publish(Publish),
    /// Leases up to `count_max` messages now, or the first that come within `wait`.
    Lease {
        /// The queue.
        queue: QueueName,
        /// 1 to 1,000.
        count_max: u32,
        /// None = the queue's default.
        lease: Option<Millis>,
        /// Zero = answer at once.
        wait: Millis,
        /// The node that holds the caller, which gets the leases as an effect
        /// if they come later.
        node: NodeId,
    },
    /// Settles leases, each by itself.
    Settle {
        /// What to do with which.
        settlements: Vec<Settlement>,
    },
    /// Opens a session on a node, or moves an existing one there, with its
    /// consumers and leases.
    AttachSession {
        /// The session.
        session: SessionId,
        /// The node that now holds its connection.
        node: NodeId,
        /// Of that node.
        incarnation: Incarnation,
    },
    /// Ends a session, if it has not been attached again since: its consumers
    /// go, its leases are released.
    CloseSession {
        /// The session.
        session: SessionId,
        /// From the outcome of the attach.
        epoch: u64,
    },
    /// Adds a consumer to a session. An existing one of that id with the same
    /// queue is left as it is, but for its credit.
    Consume {
        /// The session.
        session: SessionId,
        /// Within the session.
        consumer: ConsumerId,
        /// The queue.
        queue: QueueName,
        /// Most unsettled deliveries: 0 (paused) to 65,535.
        credit: u32,
        /// None = the queue's default.
        lease: Option<Millis>,
        /// For listings; up to 255 bytes.
        name: String,
        /// A consumer is given nothing while one of a higher priority can take it.
        priority: i32,
    },
    /// Removes a consumer. Its leases stay with the session.
    CancelConsumer {
        /// The session.
        session: SessionId,
        /// Within the session.
        consumer: ConsumerId,
    },
    /// Sets a consumer's credit.
    SetCredit {
        /// The session.
        session: SessionId,
        /// Within the session.
        consumer: ConsumerId,
        /// Most unsettled deliveries: 0 (paused) to 65,535.
        credit: u32,
    },
    /// A node's process has started: leases that wait for callers of its
    /// earlier lives are given up, and sessions of those lives end after
    /// [`SESSION_GRACE`](crate::limits::SESSION_GRACE), unless they are
    /// attached again, here or elsewhere.
    NodeUp {
        /// The node.
        node: NodeId,
        /// Its new life.
        incarnation: Incarnation,
    },
    /// A node is taken for dead: sessions and waiting leases of that life end
    /// at once. If it was not dead, its next attach is as good as any.
    NodeDown {
        /// The node.
        node: NodeId,
        /// The life that ended.
        incarnation: Incarnation,
    },
    /// Nothing but the passage of time.
    Tick,
    /// Ensures an exchange.
    DeclareExchange {
        /// Its name.
        name: ExchangeName,
        /// How it routes; cannot be changed later.
        kind: ExchangeKind,
        /// Unset = default for a new exchange, "whatever it is" for an existing one.
        settings: ExchangeSettingsPatch,
    },
    /// Changes the set fields of an exchange's settings.
    UpdateExchange {
        /// Its name.
        name: ExchangeName,
        /// Unset = as it is.
        settings: ExchangeSettingsPatch,
    },
    /// Deletes an exchange and the bindings from and to it.
    DeleteExchange {
        /// Its name.
        name: ExchangeName,
        /// Refuse if a binding leads from or to it.
        if_unused: bool,
    },
    /// Ensures a binding.
    Bind(Binding),
    /// Removes a binding, if it is there.
    Unbind(Binding),
    /// Stops a queue from giving out messages, or lets it go on. Consumers stay
    /// attached, leases go on, publishes are accepted.
    PauseQueue {
        /// Its name.
        name: QueueName,
        /// False = go on.
        paused: bool,
    },
    /// Settles leases and publishes messages as one: all of it is done, or the
    /// whole is refused.
    Transact {
        /// Each of another lease.
        settlements: Vec<Settlement>,
        /// In order.
        publishes: Vec<Publish>,
    },
    /// A session has lost its connection and may be resumed: it is given nothing,
    /// keeps what it holds, and ends after
    /// [`SESSION_GRACE`](crate::limits::SESSION_GRACE) unless it is attached again.
    DetachSession {
        /// The session.
        session: SessionId,
        /// From the outcome of the attach.
        epoch: u64,
    },
    /// A node is not heard of: the sessions of that life and of earlier ones are
    /// detached, and waiting leases of its callers are given up.
    NodeSilent {
        /// The node.
        node: NodeId,
        /// The life that fell silent.
        incarnation: Incarnation,
    },
    /// Does something with certain messages of a queue, with each by itself.
    Operate {
        /// The queue that holds them.
        queue: QueueName,
        /// 1 to 4,096.
        messages: Vec<Selector>,
        /// What.
        operation: Operation,
    },
}

impl Command {
    /// How many contents of the batch belong to it.
    #[must_use]
    pub fn contents(&self) -> usize {
        match self {
            Self::Publish(publish) => publish.messages.len(),
            Self::Transact { publishes, .. } => publishes.iter().map(|publish| publish.messages.len()).sum(),
            _ => 0,
        }
    }
}

/// Messages that go to one place. Their contents are the next
/// `messages.len()` contents of the batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publish {
    /// Where to.
    pub target: Target,
    /// One for each content.
    pub messages: Vec<NewMessage>,
}

/// Where a publish goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// One queue, which must exist: what AMQP calls the default exchange.
    Queue(QueueName),
    /// The queues to which an exchange routes each message.
    Exchange {
        /// Its name.
        name: ExchangeName,
        /// Refuse the publish if a message has no route. Else such messages are
        /// named in the reply, and dropped.
        mandatory: bool,
    },
}

/// What a publish says of one message. Its content (properties and body) stands
/// in the batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewMessage {
    /// Not delivered before this has passed.
    pub delay: Millis,
    /// Not delivered before this time; zero = now. If a delay is set too the
    /// later counts.
    pub deliver_at: Timestamp,
    /// Zero = the queue's. If both are set the shorter counts. Its time starts
    /// when the delay has passed.
    pub ttl: Millis,
    /// 0 to 9: higher ones are leased first.
    pub priority: u8,
    /// What few messages have, so that the others do not pay for it.
    pub labels: Option<Box<Labels>>,
}

impl NewMessage {
    /// Its group; empty if it has none.
    #[must_use]
    pub fn group(&self) -> &str {
        self.labels.as_ref().map_or("", |labels| &labels.group)
    }
}

/// What routing, order and deduplication know of a message. Empty = none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Labels {
    /// For the exchange; up to 255 bytes.
    pub routing_key: String,
    /// Messages of one group are in order, one at a time; up to 255 bytes.
    pub group: String,
    /// A second message of this id is not taken; up to 255 bytes.
    pub dedup_id: String,
    /// By name. Whoever proposes puts them in where an exchange may look at
    /// them: in publishes to exchanges, and to queues with a dead-letter exchange.
    pub headers: BTreeMap<String, String>,
}

/// How an exchange routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ExchangeKind {
    /// To bindings whose key is the routing key.
    Direct,
    /// To all bindings.
    Fanout,
    /// To bindings whose key, words between dots, matches the routing key: `*`
    /// stands for one word, `#` for any number of them.
    Topic,
    /// To bindings whose header match fits.
    Headers,
}

/// Settings of an exchange; see `ExchangeSettings` in the public API for bounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangeSettings {
    /// Takes what this one has no route for.
    pub alternate: Option<ExchangeName>,
    /// A dedup id is remembered for this long; zero = not at all (default).
    pub dedup_window: Millis,
    /// At most so many dedup ids are remembered.
    pub dedup_count_max: u32,
}

/// Settings of which each may be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the fields of `ExchangeSettings`
pub struct ExchangeSettingsPatch {
    /// `Some(None)` clears it.
    pub alternate: Option<Option<ExchangeName>>,
    pub dedup_window: Option<Millis>,
    pub dedup_count_max: Option<u32>,
}

/// From an exchange to a queue or an exchange. Two that differ in any part are
/// two bindings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Binding {
    /// Routes.
    pub source: ExchangeName,
    /// Is routed to.
    pub destination: Destination,
    /// The key of direct and topic exchanges; up to 255 bytes. Others only keep it.
    pub routing_key: String,
    /// For headers exchanges. Others only keep it.
    pub headers: Option<HeaderMatch>,
}

/// What a binding leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Destination {
    /// A queue.
    Queue(QueueName),
    /// Another exchange.
    Exchange(ExchangeName),
}

/// Which headers a message needs to be routed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HeaderMatch {
    /// One of them is enough. Else it needs all of them.
    pub any: bool,
    /// Name and value; no value = any.
    pub headers: BTreeMap<String, Option<String>>,
}

/// Which states a purge empties. Leased messages stay with their holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // named after the states
pub struct PurgeStates {
    pub ready: bool,
    pub delayed: bool,
    pub dead: bool,
}

impl PurgeStates {
    /// What waits to be leased: all but the dead set.
    pub const WAITING: Self = Self {
        ready: true,
        delayed: true,
        dead: false,
    };
}

impl Publish {
    /// To one queue.
    #[must_use]
    pub fn to_queue(queue: QueueName, messages: Vec<NewMessage>) -> Self {
        Self {
            target: Target::Queue(queue),
            messages,
        }
    }
}

/// One message of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Selector {
    /// By id. A queue that holds several copies of it: the one that entered last.
    Message(MessageId),
    /// By dedup id: the message in the queue that was published with it last.
    DedupId(String),
}

/// As it is said of a message: `message 17-0`, `message with dedup id order-9`.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(id) => id.fmt(f),
            Self::DedupId(dedup_id) => write!(f, "with dedup id {dedup_id}"),
        }
    }
}

/// What an operator does with a message. None touches a message that is leased.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Removes it, in any state but leased. Of a delayed message this is the
    /// cancellation of its schedule.
    Delete,
    /// Appends it to another queue, as ready and with no attempts made.
    Move {
        /// Must exist, and have room.
        to: QueueName,
    },
    /// A ready or delayed message becomes ready at that time; now if it is past.
    Reschedule {
        /// From now.
        delay: Millis,
        /// Or at a time, if that is later.
        deliver_at: Timestamp,
    },
    /// A message of the dead set becomes ready again in its old position; one
    /// that came as a dead letter goes back to the queue it came from. Attempts
    /// start anew.
    Redrive {
        /// Where to instead; must exist.
        to: Option<QueueName>,
        /// Index of the entry with which this redrive began: at most that of this
        /// one. None = it begins here.
        continues: Option<u64>,
    },
    /// Puts a message that a redrive set free back to where that found it.
    UndoRedrive {
        /// Index of the entry with which that redrive began.
        redrive: u64,
    },
}

/// One lease and its end, or its extension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settlement {
    /// Which lease.
    pub token: Token,
    /// What becomes of it.
    pub verdict: Verdict,
}

/// What a holder says of its lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// Done: the message leaves.
    Ack,
    /// Failed: counts as an attempt.
    Nack {
        /// None = the queue's backoff.
        delay: Option<Millis>,
        /// Kept as the last error; up to 1,024 bytes.
        reason: String,
    },
    /// Given back untouched, to its old position, at once.
    Release,
    /// To the dead-letter queue or the dead set.
    DeadLetter {
        /// Kept as the last error; up to 1,024 bytes.
        reason: String,
    },
    /// The lease ends this long from now instead. None = the queue's default.
    Extend {
        /// From now.
        lease: Option<Millis>,
    },
}

/// What to do when a queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Overflow {
    /// Refuse the publish.
    #[default]
    Reject,
    /// Drop ready messages from the head, dead-lettering them if a dead-letter
    /// queue is set.
    DropHead,
}

/// Settings of a queue; see `QueueSettings` in the public API for bounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Default lease.
    pub lease: Millis,
    /// Failed leases before a message is dead-lettered; 0 = unlimited.
    pub deliveries_max: u32,
    /// None = this queue's dead set, unless there is an exchange.
    pub dead_letter_queue: Option<QueueName>,
    /// Routes dead letters instead. Not both.
    pub dead_letter_exchange: Option<ExchangeName>,
    /// Under this key; None = the message's own, or else the name of this queue.
    pub dead_letter_routing_key: Option<String>,
    /// Most messages ready, delayed or leased; 0 = unlimited.
    pub length_max: u64,
    /// Most bytes of those; 0 = unlimited.
    pub bytes_max: u64,
    /// When either is reached.
    pub overflow: Overflow,
    /// Life of a message that is not leased; zero = for ever. Holds for what is
    /// published after it was set.
    pub message_ttl: Millis,
    /// Delay before the first retry.
    pub backoff_initial: Millis,
    /// Doubling stops here.
    pub backoff_max: Millis,
    /// A message rises by one priority for each time this has passed; zero =
    /// priorities are strict.
    pub priority_ageing: Millis,
    /// Most messages of one group that are leased, or wait for a retry, at one
    /// time. 1 keeps each group in order.
    pub group_concurrency: u32,
    /// A group that is not named has weight 1.
    pub group_weights: BTreeMap<String, u32>,
    /// One consumer at a time gets messages.
    pub single_active_consumer: bool,
    /// A dedup id is remembered for this long; zero = not at all.
    pub dedup_window: Millis,
    /// At most so many dedup ids are remembered.
    pub dedup_count_max: u32,
}

/// Settings of which each may be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the fields of `Settings`
pub struct SettingsPatch {
    pub lease: Option<Millis>,
    pub deliveries_max: Option<u32>,
    /// `Some(None)` clears it.
    pub dead_letter_queue: Option<Option<QueueName>>,
    pub dead_letter_exchange: Option<Option<ExchangeName>>,
    pub dead_letter_routing_key: Option<Option<String>>,
    pub length_max: Option<u64>,
    pub bytes_max: Option<u64>,
    pub overflow: Option<Overflow>,
    pub message_ttl: Option<Millis>,
    pub backoff_initial: Option<Millis>,
    pub backoff_max: Option<Millis>,
    pub priority_ageing: Option<Millis>,
    pub group_concurrency: Option<u32>,
    pub group_weights: Option<BTreeMap<String, u32>>,
    pub single_active_consumer: Option<bool>,
    pub dedup_window: Option<Millis>,
    pub dedup_count_max: Option<u32>,
}
