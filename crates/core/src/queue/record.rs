//! What the broker knows of one message: some ninety bytes, without its content.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::dead_letter::Address;
use crate::effect::{DeadLetter, DeadReason};
use crate::event::LeasedBy;
use crate::ids::{ConsumerId, ExchangeName, MessageId, QueueId, SessionId, Timestamp};
use crate::operate::Redrive;

/// One message in one queue. Persisted in snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: MessageId,
    pub(crate) content_bytes: u32,
    /// Its group in this queue; none has 0.
    pub(crate) group: u32,
    /// Leases in this queue that ended in failure, as far as that can count.
    pub(crate) failures: u16,
    /// 0 to 9.
    pub(crate) priority: u8,
    /// Other records refer to its content too, or did.
    pub(crate) shared: bool,
    /// Leases granted in this queue, the current one included.
    pub(crate) grants: u32,
    pub(crate) published_at: Timestamp,
    /// [`Timestamp::NEVER`] if it lives for ever.
    pub(crate) expires_at: Timestamp,
    pub(crate) state: State,
    /// What few messages have, so that the others do not pay for it.
    pub(crate) extra: Option<Box<Extra>>,
}

/// Where a message is in its life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum State {
    Ready,
    Delayed {
        until: Timestamp,
    },
    Leased(Lease),
    /// In the queue's dead set.
    Dead {
        reason: DeadReason,
        at: Timestamp,
        /// It waits for its dead-letter target to take it.
        backlog: bool,
    },
}

/// A current lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) grant: u64,
    pub(crate) since: Timestamp,
    pub(crate) until: Timestamp,
    pub(crate) holder: Holder,
}

/// On what a lease hangs, besides its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Holder {
    /// On nothing: it was pulled.
    Puller,
    /// On a session, which got it through one of its consumers.
    Consumer {
        session: SessionId,
        consumer: ConsumerId,
    },
}

impl From<LeasedBy> for Holder {
    fn from(holder: LeasedBy) -> Self {
        match holder {
            LeasedBy::Puller(_) => Self::Puller,
            LeasedBy::Consumer {
                session, consumer, ..
            } => Self::Consumer { session, consumer },
        }
    }
}

/// The rare part of a record: what is said of it by few publishers, and what
/// befell it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Extra {
    /// Index of the entry by which it came into this queue, if not by a publish.
    pub(crate) arrived: Option<u64>,
    /// Shared with the index of them.
    pub(crate) dedup_id: Option<Arc<str>>,
    /// The exchange that remembers this dedup id, if it was published to one.
    pub(crate) exchange: Option<ExchangeName>,
    /// Kept if its queue had a dead-letter exchange when it was published.
    pub(crate) address: Option<Arc<Address>>,
    /// Of the first lease in this queue that ended in failure.
    pub(crate) first_error: String,
    pub(crate) last_error: String,
    /// How it came into this queue, if as a dead letter.
    pub(crate) dead_letter: Option<DeadLetter>,
    /// Every queue that it left as a dead letter, oldest first.
    pub(crate) deaths: Vec<QueueId>,
    /// Since the redrive that set it free; none after it dies again.
    pub(crate) redrive: Option<Box<Redrive>>,
}

impl Lease {
    pub(crate) fn is_held_by(&self, session: SessionId, consumer: ConsumerId) -> bool {
        self.holder == Holder::Consumer { session, consumer }
    }
}

impl Record {
    /// When something happens to this message by itself; a record stands in
    /// the broker's deadlines exactly once if there is such a time.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        let due = match self.state {
            State::Ready => self.expires_at,
            State::Delayed { until } => until.min(self.expires_at),
            State::Leased(lease) => lease.until,
            State::Dead { .. } => Timestamp::NEVER,
        };
        (due != Timestamp::NEVER).then_some(due)
    }

    /// Its life is over. Says nothing of leased and dead messages, which stay.
    pub(crate) fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at <= now
    }

    /// Number of the current or next attempt, from 1.
    pub(crate) fn attempt(&self) -> u32 {
        u32::from(self.failures) + 1
    }

    pub(crate) fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    fn first_error(&self) -> &str {
        self.extra.as_ref().map_or("", |extra| &extra.first_error)
    }

    pub(crate) fn last_error(&self) -> &str {
        self.extra.as_ref().map_or("", |extra| &extra.last_error)
    }

    /// A lease ended in failure.
    pub(crate) fn failed(&mut self, error: &str) {
        if self.failures == 0 && self.first_error() != error {
            error.clone_into(&mut self.extra_mut().first_error);
        }
        if self.last_error() != error {
            error.clone_into(&mut self.extra_mut().last_error);
        }
        self.failures = self.failures.saturating_add(1);
    }

    /// Index of the entry by which it came into this queue; never lower than
    /// that of a record before it.
    pub(crate) fn entered(&self) -> u64 {
        self.arrived().unwrap_or(self.id.index)
    }

    /// The same, if it did not come by a publish.
    pub(crate) fn arrived(&self) -> Option<u64> {
        self.extra.as_ref()?.arrived
    }

    pub(crate) fn dedup_id(&self) -> Option<&Arc<str>> {
        self.extra.as_ref()?.dedup_id.as_ref()
    }

    pub(crate) fn address(&self) -> Option<&Arc<Address>> {
        self.extra.as_ref()?.address.as_ref()
    }

    pub(crate) fn address_mut(&mut self) -> Option<&mut Arc<Address>> {
        self.extra.as_mut()?.address.as_mut()
    }

    pub(crate) fn dead_letter(&self) -> Option<&DeadLetter> {
        self.extra.as_ref()?.dead_letter.as_ref()
    }

    /// How many queues it left as a dead letter.
    pub(crate) fn deaths(&self) -> usize {
        self.extra.as_ref().map_or(0, |extra| extra.deaths.len())
    }

    /// It left that queue as a dead letter.
    pub(crate) fn died_in(&self, queue: QueueId) -> bool {
        self.extra
            .as_ref()
            .is_some_and(|extra| extra.deaths.contains(&queue))
    }
}

#[cfg(test)]
impl Record {
    /// A plain one.
    pub(super) fn ready(id: MessageId) -> Self {
        Self {
            id,
            content_bytes: 1,
            group: 0,
            failures: 0,
            priority: 0,
            shared: false,
            grants: 0,
            published_at: Timestamp(0),
            expires_at: Timestamp::NEVER,
            state: State::Ready,
            extra: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten million of them have to fit into memory.
    #[test]
    fn a_record_is_small() {
        assert!(size_of::<Record>() <= 96, "{} bytes", size_of::<Record>());
    }
}
