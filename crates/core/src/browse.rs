//! Looking at messages without touching them.
//!
//! A browse looks at a bounded number of messages and says where to go on, so
//! that whoever holds the broker for it holds it for a short time.

use std::collections::BTreeSet;

use crate::broker::Broker;
use crate::command::Selector;
use crate::effect::{DeadLetter, DeadReason};
use crate::event::LeasedBy;
use crate::ids::{ExchangeName, MessageId, QueueName, Timestamp};
use crate::outcome::MessageState;
use crate::queue::{Holder, Lease, Queue, Record, State};

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
    /// The redrive that set it free: index of the entry with which that began.
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
    /// Set free by the redrive that began with this entry.
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

impl Broker {
    /// The messages of a queue that pass a filter, by position, from a position
    /// on: at most `count_max`, and as far as they are among the first
    /// `scan_max` that are looked at. None if there is no such queue.
    ///
    /// A filter by id or dedup id looks at those messages only.
    #[must_use]
    pub fn browse(
        &self,
        queue: &QueueName,
        from: u64,
        count_max: usize,
        scan_max: usize,
        filter: &Filter,
    ) -> Option<Browsed> {
        let queue = self.held(*self.names.get(queue)?);
        let mut records: Box<dyn Iterator<Item = (u64, &Record)>> = match filter.candidates(queue) {
            Some(mut positions) => {
                let positions = positions.split_off(&from).into_iter();
                Box::new(positions.filter_map(|position| Some((position, queue.records.get(position)?))))
            }
            None => Box::new(queue.records.iter_from(from)),
        };
        let group = filter.group.as_deref().map(|name| queue.groups.number(name));
        let mut messages = Vec::new();
        let mut scanned = 0;
        let next = loop {
            let Some((position, record)) = records.next() else {
                break None;
            };
            if messages.len() >= count_max || scanned >= scan_max {
                break Some(position);
            }
            scanned += 1;
            if filter.passes(record) && group.is_none_or(|group| group == Some(record.group)) {
                messages.push(self.message_view(queue, position, record));
            }
        };
        Some(Browsed { messages, next })
    }

    /// One message of a queue; None if there is no such queue, or message.
    #[must_use]
    pub fn find(&self, queue: &QueueName, selector: &Selector) -> Option<MessageView> {
        let queue = self.held(*self.names.get(queue)?);
        let position = queue.find(selector)?;
        let record = queue.records.get(position)?;
        Some(self.message_view(queue, position, record))
    }

    fn message_view(&self, queue: &Queue, position: u64, record: &Record) -> MessageView {
        let (ready_at, lease, dead) = match record.state {
            State::Ready => (None, None, None),
            State::Delayed { until } => (Some(until), None, None),
            State::Leased(lease) => (None, Some(self.lease_view(lease)), None),
            State::Dead { reason, at, .. } => (None, None, Some((reason, at))),
        };
        let extra = record.extra.as_deref();
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        MessageView {
            queue: queue.head.name.clone(),
            position,
            id: record.id,
            state: MessageState::of(&record.state),
            ready_at,
            lease,
            priority: record.priority,
            group: queue.groups.name(record.group).as_ref().to_owned(),
            dedup_id: text(record.dedup_id().map(AsRef::as_ref)),
            failures: u32::from(record.failures),
            grants: record.grants,
            published_at: record.published_at,
            expires_at: (record.expires_at != Timestamp::NEVER).then_some(record.expires_at),
            content_bytes: record.content_bytes,
            first_error: text(extra.map(|extra| &*extra.first_error)),
            last_error: text(extra.map(|extra| &*extra.last_error)),
            dead,
            backlog: matches!(record.state, State::Dead { backlog: true, .. }),
            dead_letter: record.dead_letter().cloned(),
            redrive: record.redrive().map(|redrive| redrive.began),
        }
    }

    fn lease_view(&self, lease: Lease) -> LeaseView {
        LeaseView {
            grant: lease.grant,
            holder: self.leased_by(lease.holder),
            since: lease.since,
            until: lease.until,
        }
    }

    fn leased_by(&self, holder: Holder) -> LeasedBy {
        match holder {
            Holder::Puller => LeasedBy::Puller(None),
            Holder::Consumer { session, consumer } => LeasedBy::Consumer {
                session,
                consumer,
                node: self.sessions.by_id[&session].head.node,
            },
        }
    }
}

impl Filter {
    /// The positions of all that can pass, if few can.
    fn candidates(&self, queue: &Queue) -> Option<BTreeSet<u64>> {
        if !self.messages.is_empty() {
            let ids = self.messages.iter();
            return Some(ids.flat_map(|id| queue.with_id(*id)).collect());
        }
        let dedup_id = self.dedup_id.as_ref()?;
        Some(queue.with_dedup_id(dedup_id).collect())
    }

    fn passes(&self, record: &Record) -> bool {
        let dead_letter = record.dead_letter();
        let dead = match record.state {
            State::Dead { reason, .. } => Some(reason),
            _ => None,
        };
        let reason = dead.or(dead_letter.map(|letter| letter.reason));
        (self.states.is_empty() || self.states.contains(&MessageState::of(&record.state)))
            && self.published_before.is_none_or(|at| record.published_at < at)
            && self.published_from.is_none_or(|at| record.published_at >= at)
            && self
                .dedup_id
                .as_ref()
                .is_none_or(|id| record.dedup_id().is_some_and(|is| **is == **id))
            && (self.reason.is_none() || self.reason == reason)
            && (self.messages.is_empty() || self.messages.contains(&record.id))
            && (self.redrive.is_none() || self.redrive == record.redrive().map(|redrive| redrive.began))
            && (!self.dead_letters_only || reason.is_some())
    }
}

impl MessageState {
    pub(crate) fn of(state: &State) -> Self {
        match state {
            State::Ready => Self::Ready,
            State::Delayed { .. } => Self::Delayed,
            State::Leased(_) => Self::Leased,
            State::Dead { .. } => Self::Dead,
        }
    }
}
