//! Sessions: what a consumer's leases hang on, and on which node its
//! connection is.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::broker::Broker;
use crate::deadlines::Due;
use crate::effect::{Effect, Leased};
use crate::event::Returned;
use crate::ids::{ConsumerId, Incarnation, Millis, NodeId, QueueId, QueueName, SessionId, Timestamp};
use crate::limits;
use crate::outcome::{Outcome, Rejection, Reply};
use crate::queue::{State, Taker, Turn, check_lease, invalid};

/// All sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    pub(crate) by_id: BTreeMap<SessionId, Session>,
    /// Index.
    pub(crate) by_node: BTreeSet<(NodeId, SessionId)>,
}

/// One session.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) head: SessionHead,
    pub(crate) consumers: BTreeMap<ConsumerId, Consumer>,
    /// Index: the leases that hang on it, also those of consumers that are gone.
    pub(crate) leases: BTreeSet<(ConsumerId, QueueId, u64)>,
}

/// What is persisted of a session besides its consumers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionHead {
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) epoch: u64,
    /// It has no connection; it ends here if nobody attaches it.
    pub(crate) orphaned_until: Option<Timestamp>,
}

/// What a new consumer asks for, besides its queue.
pub(crate) struct Asked<'a> {
    pub(crate) credit: u32,
    pub(crate) lease: Option<Millis>,
    pub(crate) name: &'a str,
    pub(crate) priority: i32,
}

/// One consumer. Persisted in snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Consumer {
    pub(crate) queue: QueueId,
    pub(crate) credit: u32,
    pub(crate) lease: Option<Millis>,
    pub(crate) name: String,
    /// Higher ones are served first.
    pub(crate) priority: i32,
    /// Its place among those of its priority that can take a message of the queue.
    pub(crate) turn: u64,
    /// Index: leases that it has of this queue. Above the credit if that was
    /// lowered.
    #[serde(skip)]
    pub(crate) in_flight: u32,
}

impl Session {
    pub(crate) fn new(head: SessionHead) -> Self {
        Self {
            head,
            consumers: BTreeMap::new(),
            leases: BTreeSet::new(),
        }
    }

    /// Its node's life is not over.
    pub(crate) fn is_attached(&self) -> bool {
        self.head.orphaned_until.is_none()
    }

    /// Leases that a consumer has of one queue.
    pub(crate) fn leases_of(&self, consumer: ConsumerId, queue: QueueId) -> usize {
        self.leases
            .range((consumer, queue, 0)..=(consumer, queue, u64::MAX))
            .count()
    }
}

impl Consumer {
    pub(crate) fn has_free_credit(&self) -> bool {
        self.in_flight < self.credit
    }

    pub(crate) fn turn(&self) -> Turn {
        Turn {
            priority: Reverse(self.priority),
            number: self.turn,
        }
    }
}

impl Sessions {
    pub(crate) fn on_node(&self, node: NodeId) -> impl Iterator<Item = SessionId> {
        self.by_node
            .range((node, SessionId(0))..=(node, SessionId(u64::MAX)))
            .map(|(_, session)| *session)
    }

    fn insert(&mut self, id: SessionId, session: Session) {
        self.by_node.insert((session.head.node, id));
        self.by_id.insert(id, session);
    }

    fn get(&self, id: SessionId) -> Result<&Session, Rejection> {
        self.by_id.get(&id).ok_or(Rejection::SessionNotFound)
    }

    fn get_mut(&mut self, id: SessionId) -> Result<&mut Session, Rejection> {
        self.by_id.get_mut(&id).ok_or(Rejection::SessionNotFound)
    }
}

impl Broker {
    pub(crate) fn attach_session(
        &mut self,
        id: SessionId,
        node: NodeId,
        incarnation: Incarnation,
    ) -> Outcome {
        if id.0 == 0 {
            return Err(invalid("session", "a random number, never zero".to_owned()));
        }
        // The caller's process is gone: it must not take the session along.
        if self.nodes.get(&node).is_some_and(|known| *known > incarnation) {
            return Err(Rejection::SessionNotFound);
        }
        let resumed = self.sessions.by_id.contains_key(&id);
        if !resumed && self.sessions.by_id.len() >= limits::SESSIONS_MAX {
            return Err(Rejection::LimitExceeded(format!(
                "{} sessions",
                limits::SESSIONS_MAX
            )));
        }
        self.node_up(node, incarnation)?;
        self.epochs += 1;
        let head = SessionHead {
            node,
            incarnation,
            epoch: self.epochs,
            orphaned_until: None,
        };
        if resumed {
            self.move_session(id, head);
        } else {
            self.sessions.insert(id, Session::new(head));
        }
        Ok(Reply::Attached {
            epoch: head.epoch,
            resumed,
        })
    }

    /// Gives a session to another connection, and all its leases once more.
    fn move_session(&mut self, id: SessionId, head: SessionHead) {
        let session = self.sessions.by_id.get_mut(&id).expect("the caller saw it");
        let before = std::mem::replace(&mut session.head, head);
        self.sessions.by_node.remove(&(before.node, id));
        self.sessions.by_node.insert((head.node, id));
        match before.orphaned_until {
            Some(at) => self.deadlines.remove(at, Due::Orphan { session: id }),
            None => {
                self.effects.push(Effect::SessionLost {
                    node: before.node,
                    session: id,
                    epoch: before.epoch,
                });
            }
        }
        for (consumer, leased) in self.outstanding(id) {
            let (node, epoch) = (head.node, head.epoch);
            self.effects.push(Effect::Deliver {
                node,
                session: id,
                epoch,
                consumer,
                leased,
            });
        }
        self.refresh_takers(id);
    }

    pub(crate) fn close_session(&mut self, id: SessionId, epoch: u64) -> Outcome {
        if self.is_of_epoch(id, epoch) {
            self.end_session(id);
        }
        Ok(Reply::Done)
    }

    pub(crate) fn detach_session(&mut self, id: SessionId, epoch: u64) -> Outcome {
        if self.is_of_epoch(id, epoch) {
            self.orphan(id);
        }
        Ok(Reply::Done)
    }

    /// The session exists, and was not attached again since.
    fn is_of_epoch(&self, id: SessionId, epoch: u64) -> bool {
        let session = self.sessions.by_id.get(&id);
        session.is_some_and(|session| session.head.epoch == epoch)
    }

    /// A session has no connection for the moment. If it has none already, its
    /// grace goes on.
    fn orphan(&mut self, id: SessionId) {
        let until = self.now.after(limits::SESSION_GRACE);
        let session = self.sessions.by_id.get_mut(&id).expect("the caller saw it");
        if session.head.orphaned_until.is_none() {
            session.head.orphaned_until = Some(until);
            self.deadlines.insert(until, Due::Orphan { session: id });
            self.refresh_takers(id);
        }
    }

    /// Its consumers go and its leases are released.
    pub(crate) fn end_session(&mut self, id: SessionId) {
        let session = self.sessions.get(id).expect("the caller saw it");
        let SessionHead {
            node,
            epoch,
            orphaned_until,
            ..
        } = session.head;
        let consumers: Vec<ConsumerId> = session.consumers.keys().copied().collect();
        let leases: Vec<(ConsumerId, QueueId, u64)> = session.leases.iter().copied().collect();
        // The consumers first, so that none of them is given what another releases.
        for consumer in consumers {
            self.remove_consumer(id, consumer);
        }
        for (_, queue, position) in leases {
            self.put_back(queue, position, Returned::SessionEnded, Millis(0));
        }
        if let Some(at) = orphaned_until {
            self.deadlines.remove(at, Due::Orphan { session: id });
        }
        self.sessions.by_node.remove(&(node, id));
        self.sessions.by_id.remove(&id);
        self.effects.push(Effect::SessionLost {
            node,
            session: id,
            epoch,
        });
    }

    pub(crate) fn node_up(&mut self, node: NodeId, incarnation: Incarnation) -> Outcome {
        match self.nodes.get(&node) {
            Some(known) if *known >= incarnation => return Ok(Reply::Done),
            None if self.nodes.len() >= limits::NODES_MAX => {
                return Err(Rejection::LimitExceeded(format!("{} nodes", limits::NODES_MAX)));
            }
            _ => {}
        }
        self.nodes.insert(node, incarnation);
        self.give_up_waiters_of(node);
        for id in self.sessions.on_node(node).collect::<Vec<_>>() {
            self.orphan(id);
        }
        Ok(Reply::Done)
    }

    pub(crate) fn node_silent(&mut self, node: NodeId, incarnation: Incarnation) -> Outcome {
        self.end_life(node, incarnation, Self::orphan)
    }

    pub(crate) fn node_down(&mut self, node: NodeId, incarnation: Incarnation) -> Outcome {
        self.end_life(node, incarnation, Self::end_session)
    }

    /// Nobody waits on that life of a node any more, and its sessions end in some
    /// way.
    fn end_life(&mut self, node: NodeId, incarnation: Incarnation, end: fn(&mut Self, SessionId)) -> Outcome {
        if self.nodes.get(&node).is_none_or(|known| *known <= incarnation) {
            self.give_up_waiters_of(node);
        }
        for id in self.sessions.on_node(node).collect::<Vec<_>>() {
            if self.sessions.by_id[&id].head.incarnation <= incarnation {
                end(self, id);
            }
        }
        Ok(Reply::Done)
    }

    pub(crate) fn consume(
        &mut self,
        session: SessionId,
        id: ConsumerId,
        queue: &QueueName,
        asked: &Asked<'_>,
    ) -> Outcome {
        let Asked {
            credit,
            lease,
            name,
            priority,
        } = *asked;
        check_credit(credit)?;
        check_lease("lease_ms", lease)?;
        if name.len() > limits::CONSUMER_NAME_BYTES_MAX {
            let (max, is) = (limits::CONSUMER_NAME_BYTES_MAX, name.len());
            return Err(invalid("name", format!("at most {max} bytes, not {is}")));
        }
        let held = self.sessions.get(session)?;
        let queue_id = self.queue_id(queue)?;
        if let Some(consumer) = held.consumers.get(&id) {
            if consumer.queue != queue_id {
                let problem = format!("consumer {} of this session consumes another queue", id.0);
                return Err(invalid("consumer", problem));
            }
            return self.set_credit(session, id, credit);
        }
        if held.consumers.len() >= limits::CONSUMERS_PER_SESSION_MAX {
            let max = limits::CONSUMERS_PER_SESSION_MAX;
            return Err(Rejection::LimitExceeded(format!(
                "{max} consumers in one session"
            )));
        }
        let target = self.queues.get_mut(&queue_id).expect("names lead to queues");
        if target.consumers.len() >= limits::CONSUMERS_PER_QUEUE_MAX {
            let max = limits::CONSUMERS_PER_QUEUE_MAX;
            return Err(Rejection::LimitExceeded(format!("{max} consumers on one queue")));
        }
        target.consumers.insert((session, id));
        let turn = target.next_turn();
        let held = self.sessions.get_mut(session)?;
        let in_flight = held.leases_of(id, queue_id);
        let in_flight = u32::try_from(in_flight).expect("no more than were granted with credit");
        let consumer = Consumer {
            queue: queue_id,
            credit,
            lease,
            name: name.to_owned(),
            priority,
            turn,
            in_flight,
        };
        held.consumers.insert(id, consumer);
        self.refresh_taker(session, id);
        Ok(Reply::Done)
    }

    pub(crate) fn cancel_consumer(&mut self, session: SessionId, consumer: ConsumerId) -> Outcome {
        if self.sessions.get(session)?.consumers.contains_key(&consumer) {
            self.remove_consumer(session, consumer);
        }
        Ok(Reply::Done)
    }

    pub(crate) fn set_credit(&mut self, session: SessionId, consumer: ConsumerId, credit: u32) -> Outcome {
        check_credit(credit)?;
        match self.sessions.get_mut(session)?.consumers.get_mut(&consumer) {
            Some(found) => found.credit = credit,
            None => {
                let problem = format!("there is no consumer {} in this session", consumer.0);
                return Err(invalid("consumer", problem));
            }
        }
        self.refresh_taker(session, consumer);
        Ok(Reply::Done)
    }

    /// Takes a consumer out of its session and its queue; its leases stay.
    pub(crate) fn remove_consumer(&mut self, session: SessionId, id: ConsumerId) {
        self.step_down(session, id);
        let held = self.sessions.by_id.get_mut(&session).expect("the caller saw it");
        let consumer = held.consumers.remove(&id).expect("the caller saw it");
        let queue = self
            .queues
            .get_mut(&consumer.queue)
            .expect("a queue outlives its consumers");
        queue.consumers.remove(&(session, id));
        queue.takers.remove(&consumer.turn());
    }

    /// Whether a consumer stands among the takers of its queue: if its session
    /// is attached and it has free credit.
    pub(crate) fn refresh_taker(&mut self, session: SessionId, id: ConsumerId) {
        let Some(held) = self.sessions.by_id.get(&session) else {
            return;
        };
        let Some(consumer) = held.consumers.get(&id) else {
            return;
        };
        let queue = self
            .queues
            .get_mut(&consumer.queue)
            .expect("a queue outlives its consumers");
        if consumer.has_free_credit() && held.is_attached() {
            queue.takers.insert(consumer.turn(), Taker::Consumer(session, id));
            self.touched.insert(consumer.queue);
        } else {
            queue.takers.remove(&consumer.turn());
        }
        if queue.head.settings.single_active_consumer {
            if held.is_attached() {
                self.stand_by(session, id);
            } else {
                self.step_down(session, id);
            }
        }
    }

    /// A consumer goes to the back of those of its priority.
    pub(crate) fn renew_turn(&mut self, session: SessionId, id: ConsumerId) {
        let held = self.sessions.by_id.get_mut(&session).expect("the caller saw it");
        let consumer = held.consumers.get_mut(&id).expect("the caller saw it");
        let queue = self
            .queues
            .get_mut(&consumer.queue)
            .expect("a queue outlives its consumers");
        let before = consumer.turn();
        consumer.turn = queue.next_turn();
        if let Some(taker) = queue.takers.remove(&before) {
            queue.takers.insert(consumer.turn(), taker);
        }
    }

    fn refresh_takers(&mut self, session: SessionId) {
        let consumers: Vec<ConsumerId> = self.sessions.by_id[&session].consumers.keys().copied().collect();
        for consumer in consumers {
            self.refresh_taker(session, consumer);
        }
    }

    /// A lease begins to hang on a session.
    pub(crate) fn hold(&mut self, session: SessionId, consumer: ConsumerId, queue: QueueId, position: u64) {
        let held = self
            .sessions
            .by_id
            .get_mut(&session)
            .expect("leases hang on live sessions only");
        held.leases.insert((consumer, queue, position));
        if let Some(consumer) = held.consumers.get_mut(&consumer).filter(|c| c.queue == queue) {
            consumer.in_flight += 1;
        }
        self.refresh_taker(session, consumer);
    }

    /// A lease hangs on a session no more.
    pub(crate) fn let_go(&mut self, session: SessionId, consumer: ConsumerId, queue: QueueId, position: u64) {
        let held = self
            .sessions
            .by_id
            .get_mut(&session)
            .expect("leases hang on live sessions only");
        held.leases.remove(&(consumer, queue, position));
        if let Some(consumer) = held.consumers.get_mut(&consumer).filter(|c| c.queue == queue) {
            consumer.in_flight -= 1;
        }
        self.refresh_taker(session, consumer);
    }

    /// The current leases of a session and their consumers, in the order in
    /// which they were granted.
    #[must_use]
    pub fn outstanding(&self, session: SessionId) -> Vec<(ConsumerId, Leased)> {
        let Some(held) = self.sessions.by_id.get(&session) else {
            return Vec::new();
        };
        let mut outstanding: Vec<_> = held
            .leases
            .iter()
            .filter_map(|(consumer, queue, position)| {
                let queue = &self.queues[queue];
                let record = queue.records.get(*position)?;
                match record.state {
                    State::Leased(lease) if lease.until > self.now => {
                        Some((*consumer, queue.leased(*position, record, lease)))
                    }
                    _ => None,
                }
            })
            .collect();
        outstanding.sort_by_key(|(_, leased)| leased.token.grant);
        outstanding
    }
}

fn check_credit(credit: u32) -> Result<(), Rejection> {
    if credit > limits::CREDIT_MAX {
        return Err(invalid(
            "credit",
            format!("0 to {}, not {credit}", limits::CREDIT_MAX),
        ));
    }
    Ok(())
}
