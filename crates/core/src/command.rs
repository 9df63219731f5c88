//! What the log holds: entries, each a [batch](crate::batch) of the commands of many clients.

use serde::{Deserialize, Serialize};

use crate::ids::{ConsumerId, Incarnation, Millis, NodeId, QueueName, RequestId, SessionId, Token};

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
    /// Removes ready and delayed messages.
    PurgeQueue {
        /// Its name.
        name: QueueName,
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
    /// Adds messages to a queue: all of them or none. Their contents are the
    /// next `messages.len()` contents of the batch.
    Publish {
        /// The queue.
        queue: QueueName,
        /// One for each content.
        messages: Vec<NewMessage>,
    },
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
}

/// What a publish says of one message. Its content (properties and body) stands
/// in the batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewMessage {
    /// Not delivered before this has passed.
    pub delay: Millis,
    /// Zero = the queue's. If both are set the shorter counts. Its time starts
    /// when the delay has passed.
    pub ttl: Millis,
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
    /// None = this queue's dead set.
    pub dead_letter_queue: Option<QueueName>,
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
}

/// Settings of which each may be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the fields of `Settings`
pub struct SettingsPatch {
    pub lease: Option<Millis>,
    pub deliveries_max: Option<u32>,
    /// `Some(None)` clears it.
    pub dead_letter_queue: Option<Option<QueueName>>,
    pub length_max: Option<u64>,
    pub bytes_max: Option<u64>,
    pub overflow: Option<Overflow>,
    pub message_ttl: Option<Millis>,
    pub backoff_initial: Option<Millis>,
    pub backoff_max: Option<Millis>,
}
