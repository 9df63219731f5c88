//! Who gets which message.
//!
//! Assignment happens in the command that makes it possible. After each command
//! every queue that gained a ready message or a free taker is gone through:
//! the [next message](Queue::next_ready) goes to the taker whose turn it is,
//! until one of the two is used up. Takers of the highest priority come first
//! and take turns: a consumer takes one message and goes to the back; a lease
//! that waits, whose priority is 0, takes its share in the same rounds, and is
//! answered at the end of the command with what it has, if it has anything.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::broker::Broker;
use crate::deadlines::Due;
use crate::effect::{Effect, Leased};
use crate::event::{Change, LeasedBy};
use crate::ids::{
    ClientId, ConsumerId, Millis, NodeId, QueueId, QueueName, RequestId, SessionId, Timestamp, Token,
};
use crate::limits;
use crate::outcome::{Outcome, Rejection, Reply};
use crate::queue::{Holder, Lease, Queue, Record, State, Taker, Turn, check_lease, invalid};

/// Lease commands that wait.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    pub(crate) by_request: BTreeMap<(ClientId, u64), Waiter>,
    /// Index.
    pub(crate) by_node: BTreeSet<(NodeId, ClientId, u64)>,
}

/// One lease command that waits. Persisted in snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Waiter {
    pub(crate) request: RequestId,
    pub(crate) queue: QueueId,
    pub(crate) node: NodeId,
    pub(crate) count_max: u32,
    pub(crate) lease: Option<Millis>,
    pub(crate) until: Timestamp,
    pub(crate) turn: u64,
}

/// What a lease command asks for.
pub(crate) struct Pull<'a> {
    pub(crate) request: Option<RequestId>,
    pub(crate) queue: &'a QueueName,
    pub(crate) count_max: u32,
    pub(crate) lease: Option<Millis>,
    pub(crate) wait: Millis,
    pub(crate) node: NodeId,
}

impl Waiters {
    pub(crate) fn insert(&mut self, waiter: Waiter) {
        let RequestId { client, sequence, .. } = waiter.request;
        self.by_node.insert((waiter.node, client, sequence));
        self.by_request.insert((client, sequence), waiter);
    }

    fn remove(&mut self, client: ClientId, sequence: u64) -> Option<Waiter> {
        let waiter = self.by_request.remove(&(client, sequence))?;
        self.by_node.remove(&(waiter.node, client, sequence));
        Some(waiter)
    }
}

impl Broker {
    pub(crate) fn pull(&mut self, pull: &Pull<'_>) -> Outcome {
        if !(1..=limits::LEASE_COUNT_MAX).contains(&pull.count_max) {
            let problem = format!("1 to {}, not {}", limits::LEASE_COUNT_MAX, pull.count_max);
            return Err(invalid("max_messages", problem));
        }
        check_lease("lease_ms", pull.lease)?;
        if pull.wait > limits::WAIT_MAX {
            let problem = format!("at most {} ms, not {}", limits::WAIT_MAX.0, pull.wait.0);
            return Err(invalid("wait_ms", problem));
        }
        let queue = self.queue_id(pull.queue)?;
        if self.held(queue).head.settings.single_active_consumer {
            return Err(Rejection::SingleActiveConsumer(pull.queue.clone()));
        }
        let waits = pull.wait != Millis(0);
        if waits && pull.request.is_none() {
            return Err(invalid("request_id", "a lease that waits needs one".to_owned()));
        }
        let leased = self.lease_ready(queue, pull);
        match pull.request {
            Some(request) if waits && leased.is_empty() => self.wait(queue, request, pull),
            _ => Ok(Reply::Leased(leased)),
        }
    }

    fn wait(&mut self, queue: QueueId, request: RequestId, pull: &Pull<'_>) -> Outcome {
        if self.waiters.by_request.len() >= limits::WAITERS_MAX {
            return Err(Rejection::LimitExceeded(format!(
                "{} leases that wait",
                limits::WAITERS_MAX
            )));
        }
        let RequestId { client, sequence, .. } = request;
        let until = self.now.after(pull.wait);
        let held = self.held_mut(queue);
        let turn = held.next_turn();
        held.takers
            .insert(Turn::unranked(turn), Taker::Waiter(client, sequence));
        self.deadlines.insert(until, Due::Waiter { client, sequence });
        let (node, count_max, lease) = (pull.node, pull.count_max, pull.lease);
        self.waiters.insert(Waiter {
            request,
            queue,
            node,
            count_max,
            lease,
            until,
            turn,
        });
        Ok(Reply::Waiting)
    }

    fn lease_ready(&mut self, queue: QueueId, pull: &Pull<'_>) -> Vec<Leased> {
        let holder = LeasedBy::Puller(pull.request.map(|request| request.client));
        let mut leased = Vec::new();
        if self.held(queue).head.paused {
            return leased;
        }
        while leased.len() < pull.count_max as usize {
            let Some(position) = self.first_ready(queue) else {
                break;
            };
            leased.push(self.grant(queue, position, holder, pull.lease));
        }
        leased
    }

    /// Passes what is ready on to who can take it.
    pub(crate) fn assign(&mut self, id: QueueId) {
        self.elect(id);
        let mut served = Vec::new();
        let mut shares: BTreeMap<(ClientId, u64), Vec<Leased>> = BTreeMap::new();
        while let Some(taker) = self.next_taker(id) {
            let Some(position) = self.first_ready(id) else {
                break;
            };
            match taker {
                Taker::Consumer(session, consumer) => self.deliver(id, position, session, consumer),
                Taker::Waiter(client, sequence) => {
                    let share = shares.entry((client, sequence)).or_default();
                    if share.is_empty() {
                        served.push((client, sequence));
                    }
                    self.serve(id, position, (client, sequence), share);
                }
            }
        }
        for (client, sequence) in served {
            let leased = shares.remove(&(client, sequence)).unwrap_or_default();
            self.answer(client, sequence, leased);
        }
    }

    /// Whose turn it is, if anybody can take a message.
    pub(crate) fn next_taker(&self, id: QueueId) -> Option<Taker> {
        let queue = self.queues.get(&id)?;
        if queue.head.paused {
            return None;
        }
        if queue.head.settings.single_active_consumer {
            return self.active_taker(id);
        }
        queue.takers.values().next().copied()
    }

    /// The first message that can be leased. Those before it whose life is over
    /// end here, if their deadline did not get to it; where they are more than
    /// one entry may end, nothing is leased until the next has ended the others.
    fn first_ready(&mut self, queue: QueueId) -> Option<u64> {
        loop {
            let position = self.held(queue).next_ready()?;
            if !self.record(queue, position).is_expired(self.now) {
                return Some(position);
            }
            if self.ended_early >= limits::DUE_PER_ENTRY_MAX {
                return None;
            }
            self.ended_early += 1;
            self.expire(queue, position);
        }
    }

    /// The consumer whose turn it is takes a message, and goes to the back.
    fn deliver(&mut self, queue: QueueId, position: u64, session: SessionId, id: ConsumerId) {
        let turn = self.held_mut(queue).next_turn();
        let held = self
            .sessions
            .by_id
            .get_mut(&session)
            .expect("takers are of live sessions");
        let (node, epoch) = (held.head.node, held.head.epoch);
        let consumer = held.consumers.get_mut(&id).expect("takers are live consumers");
        let lease = consumer.lease;
        let before = consumer.turn();
        consumer.turn = turn;
        self.held_mut(queue).takers.remove(&before);
        // Holding the lease puts the consumer back in line if it can take more.
        let holder = LeasedBy::Consumer {
            session,
            consumer: id,
            node,
        };
        let leased = self.grant(queue, position, holder, lease);
        self.effects.push(Effect::Deliver {
            node,
            session,
            epoch,
            consumer: id,
            leased,
        });
    }

    /// The waiter whose turn it is takes a message, and goes to the back if it
    /// asked for more.
    fn serve(&mut self, queue: QueueId, position: u64, request: (ClientId, u64), share: &mut Vec<Leased>) {
        let turn = self.held_mut(queue).next_turn();
        let waiter = self
            .waiters
            .by_request
            .get_mut(&request)
            .expect("takers are live waiters");
        let (lease, count_max) = (waiter.lease, waiter.count_max as usize);
        let before = std::mem::replace(&mut waiter.turn, turn);
        let takers = &mut self.held_mut(queue).takers;
        takers.remove(&Turn::unranked(before));
        if share.len() + 1 < count_max {
            takers.insert(Turn::unranked(turn), Taker::Waiter(request.0, request.1));
        }
        let holder = LeasedBy::Puller(Some(request.0));
        share.push(self.grant(queue, position, holder, lease));
    }

    fn grant(&mut self, id: QueueId, position: u64, holder: LeasedBy, lease: Option<Millis>) -> Leased {
        self.grants += 1;
        self.held_mut(id).take_turn(position);
        let queue = self.held(id);
        let until = self.now.after(lease.unwrap_or(queue.head.settings.lease));
        let lease = Lease {
            grant: self.grants,
            since: self.now,
            until,
            holder: Holder::from(holder),
        };
        self.change(id, position, |record| {
            record.grants = record.grants.saturating_add(1);
            record.state = State::Leased(lease);
        });
        let queue = self.held_mut(id);
        let record = queue.records.get(position).expect("it was changed just now");
        let leased = queue.leased(position, record, lease);
        queue.head.totals.redelivered += u64::from(leased.redelivered);
        let began = Change::Leased {
            grant: lease.grant,
            attempt: leased.token.attempt,
            holder,
            until,
            waited: (!leased.redelivered).then(|| self.now.since(leased.published_at)),
        };
        self.tell(id, leased.message, began);
        leased
    }

    // ------------------------------------------------------------------ waiters

    /// A request that waits came again: its caller is on this node now.
    pub(crate) fn retarget(&mut self, request: RequestId, node: NodeId) {
        if let Some(mut waiter) = self.waiters.remove(request.client, request.sequence) {
            waiter.node = node;
            waiter.request = request;
            self.waiters.insert(waiter);
        }
    }

    /// Ends a wait with what it got.
    pub(crate) fn answer(&mut self, client: ClientId, sequence: u64, leased: Vec<Leased>) {
        let Some(Waiter { node, request, .. }) = self.remove_waiter(client, sequence) else {
            return;
        };
        self.requests
            .replace(client, sequence, Ok(Reply::Leased(leased.clone())));
        self.effects.push(Effect::LeaseAnswered {
            node,
            request,
            leased,
        });
    }

    /// Ends a wait of which the client says that it does not wait.
    pub(crate) fn remove_waiter(&mut self, client: ClientId, sequence: u64) -> Option<Waiter> {
        let waiter = self.waiters.remove(client, sequence)?;
        self.deadlines
            .remove(waiter.until, Due::Waiter { client, sequence });
        if let Some(queue) = self.queues.get_mut(&waiter.queue) {
            queue.takers.remove(&Turn::unranked(waiter.turn));
        }
        Some(waiter)
    }

    /// Ends all waits of callers on a node that is gone. Repeated, such a
    /// request is answered like one whose time ran out.
    pub(crate) fn give_up_waiters_of(&mut self, node: NodeId) {
        let all = (node, ClientId(0), 0)..=(node, ClientId(u64::MAX), u64::MAX);
        let waiters: Vec<_> = self.waiters.by_node.range(all).copied().collect();
        for (_, client, sequence) in waiters {
            self.remove_waiter(client, sequence);
            self.requests
                .replace(client, sequence, Ok(Reply::Leased(Vec::new())));
        }
    }
}

impl Queue {
    /// What the holder of a lease gets to see.
    pub(crate) fn leased(&self, position: u64, record: &Record, lease: Lease) -> Leased {
        let attempt = record.attempt();
        Leased {
            token: Token {
                queue: self.head.id,
                position,
                attempt,
                grant: lease.grant,
            },
            message: record.id,
            queue: self.head.name.clone(),
            content_bytes: record.content_bytes,
            redelivered: record.grants > 1,
            leased_until: lease.until,
            published_at: record.published_at,
            last_error: record.last_error().to_owned(),
            dead_letter: record.dead_letter().cloned(),
        }
    }
}
