//! [`Broker`]: the whole state, and [`apply`](Broker::apply), which changes it.

use std::collections::{BTreeMap, BTreeSet};

use quorate_mutants::{elsewhere_ms, mutant, shuffle};
use serde::{Deserialize, Serialize};

use crate::assign::{Pull, Waiters};
use crate::command::{Command, Request};
use crate::contents::SharedContents;
use crate::deadlines::{Deadlines, Due};
use crate::effect::Effect;
use crate::event::{Change, Event, Returned};
use crate::exchange::Exchanges;
use crate::graves::Graves;
use crate::hash::RollingHash;
use crate::ids::{Incarnation, Millis, NodeId, QueueId, QueueName, Timestamp};
use crate::limits::{DUE_PER_ENTRY_MAX, REQUESTS_PER_ENTRY_MAX};
use crate::outcome::{Outcome, Rejection, Reply};
use crate::queue::{Queue, State};
use crate::requests::{Admission, Executed, Requests};
use crate::session::{Asked, Sessions};

/// What the log says of an entry besides its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Where it stands in the log; above that of every entry before.
    pub index: u64,
    /// The leader's stamp. One in the upper half of the 64 bits counts as the
    /// highest of the lower half.
    pub at: Timestamp,
    /// Of the entry's bytes; goes into the state hash.
    pub digest: u64,
}

/// What came of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// One for each request, in order.
    pub outcomes: Vec<Outcome>,
    /// What is to be done, in order.
    pub effects: Vec<Effect>,
    /// Those of its requests that had been executed before, in order.
    pub repeated: Vec<Repeated>,
    /// What happened to messages, in order. Not a part of the state hash.
    #[serde(skip)]
    pub events: Vec<Event>,
}

/// A request that had been executed before: its outcome is of then, and so is
/// its place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeated {
    /// Its place among the outcomes of the entry that repeats it.
    pub ordinal: u32,
    /// Index of the entry in which it was executed. Of a lease that waited: the
    /// entry of the Lease, not the one that answered it.
    pub index: u64,
    /// Cluster time of that entry.
    pub at: Timestamp,
}

/// The broker.
///
/// Fields marked as index follow from the others and are rebuilt by
/// [`restore`](Broker::restore).
#[derive(Debug, Default)]
pub struct Broker {
    pub(crate) index: u64,
    pub(crate) now: Timestamp,
    pub(crate) hash: RollingHash,
    /// Leases granted so far.
    pub(crate) grants: u64,
    /// Attaches so far.
    pub(crate) epochs: u64,
    pub(crate) queues: BTreeMap<QueueId, Queue>,
    /// Index.
    pub(crate) names: BTreeMap<QueueName, QueueId>,
    pub(crate) exchanges: Exchanges,
    /// Index.
    pub(crate) shared: SharedContents,
    pub(crate) sessions: Sessions,
    pub(crate) nodes: BTreeMap<NodeId, Incarnation>,
    pub(crate) waiters: Waiters,
    pub(crate) requests: Requests,
    pub(crate) graves: Graves,
    /// Index.
    pub(crate) deadlines: Deadlines,

    /// Effects of the entry under way; empty between entries.
    pub(crate) effects: Vec<Effect>,
    /// Of the entry under way, as effects.
    pub(crate) repeated: Vec<Repeated>,
    /// Of the entry under way, as effects.
    pub(crate) events: Vec<Event>,
    /// How many of the entry before there were: a guess at how many come.
    pub(crate) events_before: usize,
    /// Messages that dead-letter exchanges brought into several queues in the
    /// entry under way.
    pub(crate) copies: usize,
    /// Lives that ended in the entry under way before their deadline came up.
    pub(crate) ended_early: usize,
    /// Queues in which something may be assigned; empty between commands.
    pub(crate) touched: BTreeSet<QueueId>,
}

impl Broker {
    /// A broker to which nothing has happened.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies one entry: first the time, then its requests in order.
    ///
    /// `contents` has the length in bytes of each content of the entry, by
    /// number. Message *k* of the first publish takes content *k*, and so on in
    /// order; a publish that is refused, or was done before, still takes up its
    /// numbers.
    ///
    /// # Panics
    ///
    /// If the index does not grow, or the broker finds itself broken. The node
    /// must stop then: what it would go on to answer cannot be relied upon.
    pub fn apply(&mut self, meta: Meta, requests: &[Request], contents: &[u32]) -> Applied {
        assert!(
            meta.index > self.index || mutant!("double-apply"),
            "entry {} comes after entry {}",
            meta.index,
            self.index
        );
        self.index = meta.index;
        self.now = self.time_of(&meta);
        self.copies = 0;
        self.ended_early = 0;
        self.events.reserve(self.events_before);
        self.process_due();

        let mut outcomes = Vec::with_capacity(requests.len());
        let mut next_content = 0;
        for (ordinal, request) in requests.iter().enumerate() {
            let content = Contents {
                first: next_content,
                bytes: contents,
            };
            next_content += request.command.contents();
            outcomes.push(self.request(request, ordinal, content));
            self.assign_touched();
        }
        self.drop_buried();
        self.events_before = self.events.len();

        let applied = Applied {
            outcomes,
            effects: std::mem::take(&mut self.effects),
            repeated: std::mem::take(&mut self.repeated),
            events: std::mem::take(&mut self.events),
        };
        self.hash.update(&meta, &applied);
        applied
    }

    /// When something is to happen by itself. If that has passed there is more
    /// to do than fitted into one entry. An entry with a later stamp does
    /// it, be it empty.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let buried = (!self.graves.queue.is_empty()).then_some(self.now);
        [self.deadlines.next(), self.requests.next_deadline(), buried]
            .into_iter()
            .flatten()
            .min()
    }

    /// Index of the last entry.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Cluster time: the highest stamp of any entry.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Two brokers that applied the same entries have the same.
    #[must_use]
    pub fn state_hash(&self) -> u128 {
        self.hash.value()
    }

    fn request(&mut self, request: &Request, ordinal: usize, contents: Contents<'_>) -> Outcome {
        if ordinal >= REQUESTS_PER_ENTRY_MAX {
            return Err(Rejection::LimitExceeded(format!(
                "{REQUESTS_PER_ENTRY_MAX} requests in one entry"
            )));
        }
        let Some(id) = request.id else {
            return self.execute(request, ordinal, contents);
        };
        let (admission, given_up) = self.requests.admit(id, self.now);
        for (client, sequence) in given_up {
            self.remove_waiter(client, sequence);
        }
        match admission {
            Admission::New => {
                let outcome = self.execute(request, ordinal, contents);
                let executed = Executed {
                    outcome: outcome.clone(),
                    index: self.index,
                    at: self.now,
                };
                self.requests.remember(id, executed);
                outcome
            }
            Admission::Repeated(Executed { outcome, index, at }) => {
                if let (Ok(Reply::Waiting), Command::Lease { node, .. }) = (&outcome, &request.command) {
                    self.retarget(id, *node);
                }
                let ordinal = u32::try_from(ordinal).expect("it is below REQUESTS_PER_ENTRY_MAX");
                self.repeated.push(Repeated { ordinal, index, at });
                outcome
            }
            Admission::Refused(rejection) => Err(rejection),
        }
    }

    fn execute(&mut self, request: &Request, ordinal: usize, mut contents: Contents<'_>) -> Outcome {
        match &request.command {
            Command::DeclareQueue { name, settings } => self.declare_queue(name, settings, ordinal),
            Command::UpdateQueue { name, settings } => self.update_queue(name, settings),
            Command::PurgeQueue { name, states } => self.purge_queue(name, *states),
            Command::DeleteQueue {
                name,
                if_empty,
                if_unused,
            } => self.delete_queue(name, *if_empty, *if_unused),
            Command::Publish(publish) => {
                let (first, contents) = contents.next(publish.messages.len());
                self.publish(publish, first, contents)
            }
            Command::Lease {
                queue,
                count_max,
                lease,
                wait,
                node,
            } => self.pull(&Pull {
                request: request.id,
                queue,
                count_max: *count_max,
                lease: *lease,
                wait: *wait,
                node: *node,
            }),
            Command::Settle { settlements } => self.settle(settlements),
            Command::AttachSession {
                session,
                node,
                incarnation,
            } => self.attach_session(*session, *node, *incarnation),
            Command::CloseSession { session, epoch } => self.close_session(*session, *epoch),
            Command::Consume {
                session,
                consumer,
                queue,
                credit,
                lease,
                name,
                priority,
            } => {
                let asked = Asked {
                    credit: *credit,
                    lease: *lease,
                    name,
                    priority: *priority,
                };
                self.consume(*session, *consumer, queue, &asked)
            }
            Command::CancelConsumer { session, consumer } => self.cancel_consumer(*session, *consumer),
            Command::SetCredit {
                session,
                consumer,
                credit,
            } => self.set_credit(*session, *consumer, *credit),
            Command::NodeUp { node, incarnation } => self.node_up(*node, *incarnation),
            Command::NodeDown { node, incarnation } => self.node_down(*node, *incarnation),
            Command::DetachSession { session, epoch } => self.detach_session(*session, *epoch),
            Command::NodeSilent { node, incarnation } => self.node_silent(*node, *incarnation),
            Command::Tick => Ok(Reply::Done),
            Command::PauseQueue { name, paused } => self.pause_queue(name, *paused),
            Command::DeclareExchange { name, kind, settings } => {
                self.declare_exchange(name, *kind, settings, ordinal)
            }
            Command::UpdateExchange { name, settings } => self.update_exchange(name, settings),
            Command::DeleteExchange { name, if_unused } => self.delete_exchange(name, *if_unused),
            Command::Bind(binding) => self.bind(binding),
            Command::Unbind(binding) => self.unbind(binding),
            Command::Transact {
                settlements,
                publishes,
            } => self.transact(settlements, publishes, contents),
            Command::Operate {
                queue,
                messages,
                operation,
            } => self.operate(queue, messages, operation),
        }
    }

    /// Cluster time goes by the log alone, and never back.
    fn time_of(&self, meta: &Meta) -> Timestamp {
        let stamp = meta.at.min(Timestamp::LATEST);
        if mutant!("time-goes-back") {
            return stamp;
        }
        if mutant!("local-clock") {
            return self.now.max(stamp).after(Millis(elsewhere_ms()));
        }
        self.now.max(stamp)
    }

    fn assign_touched(&mut self) {
        if mutant!("map-order") {
            let mut queues: Vec<QueueId> = std::mem::take(&mut self.touched).into_iter().collect();
            shuffle(&mut queues);
            queues.into_iter().for_each(|queue| self.assign(queue));
        }
        while let Some(queue) = self.touched.pop_first() {
            self.assign(queue);
        }
    }

    /// Does what is due, oldest first, as far as one entry may.
    fn process_due(&mut self) {
        for _ in 0..DUE_PER_ENTRY_MAX {
            match self.deadlines.due(self.now) {
                Some(Due::Message { queue, position }) => self.message_due(queue, position),
                Some(Due::Waiter { client, sequence }) => self.answer(client, sequence, Vec::new()),
                Some(Due::Orphan { session }) => self.end_session(session),
                Some(Due::Backlog { queue }) => self.retry_backlog(queue),
                Some(Due::QueueWindow { queue }) => {
                    self.change_queue_window(queue, |queue| queue.dedup.forget_some());
                }
                Some(Due::ExchangeWindow { exchange }) => {
                    self.change_exchange_window(exchange, |exchange| exchange.dedup.forget_some());
                }
                None if self.requests.next_deadline().is_some_and(|at| at <= self.now) => {
                    for (client, sequence) in self.requests.forget_longest_silent() {
                        self.remove_waiter(client, sequence);
                    }
                }
                None => break,
            }
        }
        self.assign_touched();
    }

    fn message_due(&mut self, queue: QueueId, position: u64) {
        let record = self.record(queue, position);
        match record.state {
            State::Leased(lease) => {
                self.lease_ran_out(queue, lease.holder);
                self.fail(queue, position, Returned::LeaseExpired, "lease expired", None);
            }
            State::Delayed { .. } if !record.is_expired(self.now) => {
                let message = record.id;
                self.change(queue, position, |record| record.state = State::Ready);
                self.tell(queue, message, Change::Due);
            }
            State::Delayed { .. } | State::Ready => self.expire(queue, position),
            State::Dead { .. } => unreachable!("nothing falls due in a dead set"),
        }
    }
}

/// The contents of an entry, from the first that is still to be taken.
#[derive(Clone, Copy)]
pub(crate) struct Contents<'a> {
    first: usize,
    bytes: &'a [u32],
}

impl<'a> Contents<'a> {
    /// Takes the next `count`, or what there is of them: the number of the first,
    /// and their lengths.
    pub(crate) fn next(&mut self, count: usize) -> (u32, &'a [u32]) {
        let first = self.first;
        self.first += count;
        let end = self.bytes.len().min(self.first);
        let bytes = self.bytes.get(first..end).unwrap_or_default();
        (u32::try_from(first).unwrap_or(u32::MAX), bytes)
    }
}
