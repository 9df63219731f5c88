//! What the broker shows of itself: counts of a queue, messages in it, and what happened to them.
//!
//! These have the fields of the broker's API that a checker decides from, and are filled from it where the
//! API is spoken.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::MessageId;

/// Where the messages of a queue are, and where they went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Messages that can be leased now.
    pub ready: u64,
    /// Messages that wait for their time.
    pub delayed: u64,
    /// Messages that someone holds.
    pub leased: u64,
    /// Messages in the queue's dead set.
    pub dead: u64,
    /// Bytes of the messages in those four states.
    pub bytes: u64,
    /// Consumers.
    pub consumers: u64,
    /// Messages that ever came in.
    pub published: u64,
    /// Messages that were done.
    pub acked: u64,
    /// Messages whose TTL ran out.
    pub expired: u64,
    /// Messages that went to another queue as dead letters.
    pub dead_lettered: u64,
    /// Messages that made room for others.
    pub dropped: u64,
    /// Messages that a purge or an operator removed.
    pub deleted: u64,
    /// Messages that an operator moved or redrove to another queue.
    pub moved: u64,
    /// Leases of messages that had been leased before.
    pub redelivered: u64,
    /// Publishes that were not taken because their dedup id was known.
    pub duplicates: u64,
    /// Of the dead: those that wait for room in their dead-letter target.
    pub dead_letter_backlog: u64,
    /// Groups that have messages.
    pub groups: u64,
}

impl Counts {
    /// Messages in the queue, in any state.
    #[must_use]
    pub fn here(&self) -> u64 {
        self.ready + self.delayed + self.leased + self.dead
    }

    /// Messages that left it, in any way.
    #[must_use]
    pub fn gone(&self) -> u64 {
        self.acked + self.expired + self.dead_lettered + self.dropped + self.deleted + self.moved
    }
}

/// A message as a look at its queue shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Seen {
    /// The message.
    pub message: MessageId,
    /// Its place in the queue.
    pub position: u64,
    /// `ready`, `delayed`, `leased` or `dead`; anything else is nothing that a message in a queue can be.
    pub state: String,
    /// Of a delayed message: when it will be ready, cluster time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_at_ms: Option<u64>,
    /// Of a leased message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<SeenLease>,
    /// 0 to 9.
    pub priority: u32,
    /// The group it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The dedup id it was published with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedup_id: Option<String>,
    /// Leases in this queue that ended in failure.
    pub attempts: u32,
    /// Leases in this queue at all.
    pub grants: u32,
    /// When its life is over, cluster time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
    /// Of a message in the dead set: why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead: Option<String>,
}

/// Who holds a message. A lease that was pulled has no session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SeenLease {
    /// Session of the consumer that holds it.
    pub session: Option<u64>,
    /// Number of the consumer in its session.
    pub consumer: Option<u32>,
    /// When it began, cluster time.
    pub since_ms: u64,
    /// When it ends, cluster time.
    pub until_ms: u64,
    /// Orders all leases of all messages.
    pub fence: u64,
}

/// Something happened to a message: a line of a journal or of an audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// The message.
    pub message: MessageId,
    /// The log entry.
    pub index: u64,
    /// Its place among the events of that entry.
    pub ordinal: u32,
    /// Cluster time of the entry.
    pub at_ms: u64,
    /// The queue.
    pub queue: String,
    /// `published`, `arrived`, `duplicate`, `due`, `leased`, `extended`, `nacked`, `lease-expired`, `released`,
    /// `session-ended`, `rescheduled`, `died`, `redriven`, `redrive-undone`, `acked`, `expired`,
    /// `dead-lettered`, `dropped`, `deleted` or `moved`.
    pub change: String,
    /// Of a lease: number of the attempt, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Of a lease: see [`Delivery::fence`](crate::history::Delivery::fence).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// Of a lease by a consumer: its session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
    /// Of a lease by a consumer: its number in the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer: Option<u32>,
    /// Of a lease that was pulled: who did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<u64>,
    /// The time that the change names, such as the end of a lease or of a delay, cluster time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
    /// Why it died or left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Where the message went, or came from.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<String>,
    /// The dedup id it was published with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedup_id: Option<String>,
    /// Of a duplicate: the id that the refused message would have had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<MessageId>,
}

/// One thing that is in the way of deliveries of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Obstacle {
    /// `paused`, `empty`, `no-consumer`, `no-credit`, `groups-busy`, `delayed`, `all-leased`,
    /// `single-active-busy`, `dead-letter-backlog`, `full` or `no-leader`.
    pub kind: String,
    /// Messages that it concerns; 0 = it is not a matter of messages.
    pub messages: u64,
}

/// Settings of a queue that checkers must know, as they were declared. What is not set is the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Most attempts; 0 = as many as it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deliveries_max: Option<u32>,
    /// The queue or exchange that dead letters go to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter_target: Option<String>,
    /// Most messages that are ready, delayed or leased.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_max: Option<u64>,
    /// At the limit the oldest is dropped; else the publish is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drop_head: Option<bool>,
    /// How long dedup ids are known, cluster time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedup_window_ms: Option<u64>,
    /// Life of messages that have none of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Messages of a group that may be under way at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_concurrency: Option<u32>,
    /// One consumer at a time gets messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub single_active_consumer: Option<bool>,
    /// Whatever else was set, as text.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub others: BTreeMap<String, String>,
}
