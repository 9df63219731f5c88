//! How a message goes from one state to the next.
//!
//! All changes of a record go through [`insert`](Broker::insert),
//! [`change`](Broker::change) and [`take`](Broker::take), which keep every index
//! and counter in step. The functions below them are the steps of the
//! life-cycle that [the crate](crate) draws.

use std::sync::Arc;

use quorate_mutants::mutant;

use crate::broker::Broker;
use crate::deadlines::Due;
use crate::effect::DeadReason;
use crate::event::{Change, Returned};
use crate::ids::{Millis, QueueId, Timestamp};
use crate::outcome::Exit;
use crate::queue::{Holder, Lease, Queue, Record, State, backoff};
use crate::room::Displacing;

impl Broker {
    /// A lease ended in failure: the message waits for its next attempt, or its
    /// attempts are used up.
    pub(crate) fn fail(
        &mut self,
        queue: QueueId,
        position: u64,
        failure: Returned,
        error: &str,
        delay: Option<Millis>,
    ) {
        self.change(queue, position, |record| record.failed(error));
        let settings = self.held(queue).head.settings.clone();
        let record = self.record(queue, position);
        let used = u32::from(record.failures) - u32::from(mutant!("max-attempts-off-by-one"));
        if settings.deliveries_max != 0 && used >= settings.deliveries_max {
            self.dead_letter(
                queue,
                position,
                DeadReason::DeliveriesMax,
                &mut Displacing::default(),
            );
        } else {
            let delay = delay.unwrap_or_else(|| backoff(&settings, record.id, u32::from(record.failures)));
            self.put_back(queue, position, failure, delay);
        }
    }

    /// A message is free again, in its old position, now or after a delay. If
    /// its life has passed meanwhile, it ends.
    pub(crate) fn put_back(&mut self, queue: QueueId, position: u64, reason: Returned, delay: Millis) {
        if self.record(queue, position).is_expired(self.now) {
            self.expire(queue, position);
            return;
        }
        let until = (delay != Millis(0)).then(|| self.now.after(delay));
        self.change(queue, position, |record| {
            record.state = until.map_or(State::Ready, |until| State::Delayed { until });
        });
        let record = self.record(queue, position);
        let error = match reason {
            Returned::Nacked => record.last_error().to_owned(),
            Returned::LeaseExpired | Returned::Released | Returned::SessionEnded => String::new(),
        };
        let returned = Change::Returned { reason, error, until };
        self.tell(queue, record.id, returned);
    }

    /// A message's life is over.
    pub(crate) fn expire(&mut self, queue: QueueId, position: u64) {
        // Who could take the one behind it may wait.
        self.touched.insert(queue);
        if self.held(queue).head.settings.sends_dead_letters() {
            self.dead_letter(queue, position, DeadReason::Expired, &mut Displacing::default());
        } else {
            self.remove(queue, position, Exit::Expired);
        }
    }

    /// When a life ends that begins at a time, in a queue.
    pub(crate) fn life_end(&self, queue: QueueId, begin: Timestamp, ttl: Millis) -> Timestamp {
        let ttls = [ttl, self.held(queue).head.settings.message_ttl];
        let ttl = ttls.into_iter().filter(|ttl| *ttl != Millis(0)).min();
        ttl.map_or(Timestamp::NEVER, |ttl| begin.after(ttl))
    }

    /// A message leaves the broker.
    pub(crate) fn remove(&mut self, queue: QueueId, position: u64, exit: Exit) {
        let held = match self.record(queue, position).state {
            State::Leased(lease) if exit == Exit::Acked => Some(self.now.since(lease.since)),
            _ => None,
        };
        let left = Change::Left {
            exit,
            reason: None,
            error: String::new(),
            to: Vec::new(),
            held,
        };
        let record = self.leave(queue, position, exit, left);
        self.drop_content(&record);
    }

    /// A message leaves a queue, and is counted and told of as one that did.
    pub(crate) fn leave(&mut self, queue: QueueId, position: u64, exit: Exit, left: Change) -> Record {
        let record = self.take(queue, position);
        let from = self.held_mut(queue);
        *from.head.totals.of_mut(exit) += 1;
        from.dedup.left(queue, &record, exit);
        self.exchanges.message_left(queue, &record, exit);
        self.tell(queue, record.id, left);
        record
    }

    // ------------------------------------------------ records and their indexes

    /// Enters a record behind all others of the queue, in a group of that name;
    /// in none if it is empty. Says where.
    pub(crate) fn insert(&mut self, id: QueueId, mut record: Record, group: &str) -> u64 {
        let queue = self.held_mut(id);
        record.group = queue.join_group(group);
        let position = queue.append(record);
        self.index_record(id, position);
        position
    }

    /// The group of a message; empty if it has none. To be asked before the
    /// message leaves.
    pub(crate) fn group_name(&self, queue: QueueId, position: u64) -> Arc<str> {
        let group = self.record(queue, position).group;
        self.held(queue).groups.name(group)
    }

    pub(crate) fn change(&mut self, queue: QueueId, position: u64, change: impl FnOnce(&mut Record)) {
        self.unindex_record(queue, position);
        let record = self.held_mut(queue).records.get_mut(position);
        change(record.expect("the caller saw it"));
        self.index_record(queue, position);
    }

    pub(crate) fn take(&mut self, queue: QueueId, position: u64) -> Record {
        self.unindex_record(queue, position);
        let queue = self.held_mut(queue);
        let record = queue.records.remove(position).expect("the caller saw it");
        queue.lookup.remove(position, &record);
        queue.groups.leave(record.group);
        record
    }

    /// Enters a record into the indexes that follow from it.
    pub(crate) fn index_record(&mut self, id: QueueId, position: u64) {
        let queue = self.queues.get_mut(&id).expect("the caller saw it");
        let record = queue.enlist(position);
        if let Some(at) = record.due() {
            self.deadlines.insert(at, Due::Message { queue: id, position });
        }
        match record.state {
            State::Ready => {
                self.touched.insert(id);
            }
            State::Leased(Lease {
                holder: Holder::Consumer { session, consumer },
                ..
            }) => {
                self.hold(session, consumer, id, position);
            }
            State::Dead { backlog: true, .. } => {
                queue.backlog.insert(position);
                self.follow_backlog(id);
            }
            State::Leased(_) | State::Delayed { .. } | State::Dead { .. } => {}
        }
    }

    fn unindex_record(&mut self, id: QueueId, position: u64) {
        let queue = self.queues.get_mut(&id).expect("the caller saw it");
        let is_single_active = queue.head.settings.single_active_consumer;
        let record = queue.strike(position);
        // What keeps others of its group waiting, or the next single active
        // consumer, may be this.
        if record.group != 0 || is_single_active {
            self.touched.insert(id);
        }
        if let Some(at) = record.due() {
            self.deadlines.remove(at, Due::Message { queue: id, position });
        }
        match record.state {
            State::Dead { backlog: true, .. } => {
                queue.backlog.remove(&position);
                self.follow_backlog(id);
            }
            State::Leased(Lease {
                holder: Holder::Consumer { session, consumer },
                ..
            }) => self.let_go(session, consumer, id, position),
            State::Ready | State::Delayed { .. } | State::Leased(_) | State::Dead { .. } => {}
        }
    }

    pub(crate) fn held(&self, queue: QueueId) -> &Queue {
        self.queues
            .get(&queue)
            .expect("ids of queues are not kept longer than the queues")
    }

    pub(crate) fn held_mut(&mut self, queue: QueueId) -> &mut Queue {
        self.queues
            .get_mut(&queue)
            .expect("ids of queues are not kept longer than the queues")
    }

    pub(crate) fn record(&self, queue: QueueId, position: u64) -> &Record {
        self.held(queue)
            .records
            .get(position)
            .expect("positions are not kept longer than the records")
    }
}
