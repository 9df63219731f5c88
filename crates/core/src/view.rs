//! What can be seen of a broker from outside, without changing it.

use std::ops::Bound;

use serde::{Deserialize, Serialize};

use crate::broker::Broker;
use crate::browse::ExchangeView;
use crate::command::Settings;
use crate::exchange::Exchange;
use crate::ids::{
    ClientId, ConsumerId, ExchangeName, Incarnation, NodeId, QueueId, QueueName, SessionId, Timestamp,
};
use crate::queue::{Queue, Taker};

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// Its name.
    pub name: QueueName,
    /// Differs between two queues that had the same name one after the other.
    pub id: QueueId,
    /// Its settings.
    pub settings: Settings,
    /// What it holds, and what went through it.
    pub counts: QueueCounts,
    /// It gives out nothing.
    pub paused: bool,
    /// With a single active consumer: the name of the active one, or if it has
    /// none its session and id as `SESSION.ID`.
    pub active_consumer: Option<String>,
    /// When the ready message was published that is leased next; if all of them
    /// wait for others of their groups, the one of the lowest position.
    pub oldest_ready: Option<Timestamp>,
    /// When the message was published that has been leased for longest.
    pub oldest_leased: Option<Timestamp>,
}

/// What a queue holds, and what went through it since it was declared:
/// `published = ready + delayed + leased + dead + acked + expired +
/// dead_lettered + dropped + deleted + moved`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueCounts {
    /// Messages that can be leased.
    pub ready: u64,
    /// Messages whose delay has not passed.
    pub delayed: u64,
    /// Messages that somebody holds.
    pub leased: u64,
    /// Messages in the queue's dead set.
    pub dead: u64,
    /// Those of them that wait for their dead-letter target.
    pub dead_letter_backlog: u64,
    /// Bytes of the messages in those four states.
    pub bytes: u64,
    /// Consumers, whether or not they can take a message now.
    pub consumers: u64,
    /// Messages that entered, also as dead letters of another queue.
    pub published: u64,
    /// Messages acked.
    pub acked: u64,
    /// Messages whose life ended here.
    pub expired: u64,
    /// Messages that went to another queue as dead letters.
    pub dead_lettered: u64,
    /// Messages dropped to make room.
    pub dropped: u64,
    /// Messages that a user removed: purged, or one by one.
    pub deleted: u64,
    /// Messages that a user moved to another queue.
    pub moved: u64,
    /// Leases of a message that had been leased before.
    pub redelivered: u64,
    /// Groups that have messages, in any state.
    pub groups: u64,
    /// Publishes that were not taken because of their dedup id.
    pub duplicates: u64,
}

/// Who could take a message of a queue now, but for what a pause or a single
/// active consumer forbids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Consumers with free credit, in sessions that are attached.
    pub consumers: u64,
    /// Lease commands that wait.
    pub leases: u64,
}

/// What went through an exchange since it was declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeCounts {
    /// Its name.
    pub name: ExchangeName,
    /// Messages published to it, or routed through it.
    pub received: u64,
    /// Messages that it had no route for.
    pub unroutable: u64,
    /// Messages not taken because of their dedup id.
    pub duplicates: u64,
}

/// Sums over the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Queues.
    pub queues: u64,
    /// Exchanges.
    pub exchanges: u64,
    /// Bindings of all of them.
    pub bindings: u64,
    /// The counts of all queues together.
    pub counts: QueueCounts,
    /// Sessions, orphaned ones included.
    pub sessions: u64,
    /// Lease commands that wait.
    pub waiters: u64,
    /// Clients whose outcomes are remembered.
    pub clients: u64,
    /// Leases granted so far.
    pub grants: u64,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// Its id.
    pub id: SessionId,
    /// The node that holds its connection, or held it last.
    pub node: NodeId,
    /// The life of that node.
    pub incarnation: Incarnation,
    /// Of its last attach.
    pub epoch: u64,
    /// Set if that life is over: the session ends here unless it is attached.
    pub orphaned_until: Option<Timestamp>,
    /// Its consumers, by id.
    pub consumers: Vec<ConsumerView>,
    /// Leases that hang on it.
    pub leases: u64,
}

/// A consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerView {
    /// Within its session.
    pub id: ConsumerId,
    /// What it consumes.
    pub queue: QueueName,
    /// Most unsettled deliveries.
    pub credit: u32,
    /// Unsettled deliveries. Above the credit if that was lowered.
    pub in_flight: u32,
    /// For people.
    pub name: String,
}

impl Broker {
    /// One queue.
    #[must_use]
    pub fn queue(&self, name: &QueueName) -> Option<QueueView> {
        self.names.get(name).map(|id| self.queue_view(*id))
    }

    /// The settings of one queue.
    #[must_use]
    pub fn settings(&self, name: &QueueName) -> Option<&Settings> {
        self.names.get(name).map(|id| &*self.queues[id].head.settings)
    }

    /// The queue that has a name.
    #[must_use]
    pub fn queue_named(&self, name: &QueueName) -> Option<QueueId> {
        self.names.get(name).copied()
    }

    /// Who could take a message of a queue; walks through them.
    #[must_use]
    pub fn demand(&self, name: &QueueName) -> Option<Demand> {
        let takers = &self.held(*self.names.get(name)?).takers;
        let leases = takers
            .values()
            .filter(|taker| matches!(taker, Taker::Waiter(..)))
            .count() as u64;
        Some(Demand {
            consumers: takers.len() as u64 - leases,
            leases,
        })
    }

    /// Up to `limit` queues by name, those after the given one.
    #[must_use]
    pub fn queues(&self, after: Option<&QueueName>, limit: usize) -> Vec<QueueView> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.names.range::<QueueName, _>((start, Bound::Unbounded));
        names.take(limit).map(|(_, id)| self.queue_view(*id)).collect()
    }

    /// Bytes of the contents of all messages, dead ones included. One that is in several queues counts once in each. Walks
    /// through the queues.
    #[must_use]
    pub fn content_bytes(&self) -> u64 {
        let queues = self.queues.values();
        queues.map(|queue| queue.tallies.all().bytes).sum()
    }

    fn queue_view(&self, id: QueueId) -> QueueView {
        let queue = self.held(id);
        QueueView {
            name: queue.head.name.clone(),
            id,
            settings: queue.head.settings.as_ref().clone(),
            counts: queue.counts(),
            paused: queue.head.paused,
            active_consumer: queue.head.active.map(|active| self.consumer_name(active)),
            oldest_ready: queue.oldest_ready(),
            oldest_leased: queue.oldest_leased(),
        }
    }

    fn consumer_name(&self, (session, id): (SessionId, ConsumerId)) -> String {
        match self.sessions.by_id[&session].consumers[&id].name.as_str() {
            "" => format!("{}.{}", session.0, id.0),
            name => name.to_owned(),
        }
    }

    /// What a consumer calls itself; empty if it has no name.
    #[must_use]
    pub fn name_of_consumer(&self, session: SessionId, consumer: ConsumerId) -> Option<&str> {
        let session = self.sessions.by_id.get(&session)?;
        session
            .consumers
            .get(&consumer)
            .map(|consumer| consumer.name.as_str())
    }

    /// One exchange.
    #[must_use]
    pub fn exchange(&self, name: &ExchangeName) -> Option<ExchangeView> {
        let id = self.exchanges.names.get(name)?;
        Some(self.exchanges.held(*id).view())
    }

    /// Up to `limit` exchanges by name, those after the given one.
    #[must_use]
    pub fn exchanges(&self, after: Option<&ExchangeName>, limit: usize) -> Vec<ExchangeView> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self
            .exchanges
            .names
            .range::<ExchangeName, _>((start, Bound::Unbounded));
        let views = names.take(limit).map(|(_, id)| self.exchanges.held(*id).view());
        views.collect()
    }

    /// Up to `limit` exchanges by name, those after the given one, without their
    /// bindings.
    #[must_use]
    pub fn exchange_counts(&self, after: Option<&ExchangeName>, limit: usize) -> Vec<ExchangeCounts> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self
            .exchanges
            .names
            .range::<ExchangeName, _>((start, Bound::Unbounded));
        let counts = names.take(limit).map(|(name, id)| {
            let head = &self.exchanges.held(*id).head;
            ExchangeCounts {
                name: name.clone(),
                received: head.received,
                unroutable: head.unroutable,
                duplicates: head.duplicates,
            }
        });
        counts.collect()
    }

    /// Sums over all queues; walks through them.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = Totals {
            queues: self.queues.len() as u64,
            exchanges: self.exchanges.by_id.len() as u64,
            bindings: self.exchanges.bindings as u64,
            sessions: self.sessions.by_id.len() as u64,
            waiters: self.waiters.by_request.len() as u64,
            clients: self.requests.clients().len() as u64,
            grants: self.grants,
            ..Totals::default()
        };
        for queue in self.queues.values() {
            totals.counts.add(&queue.counts());
        }
        totals
    }

    /// One session.
    #[must_use]
    pub fn session(&self, id: SessionId) -> Option<SessionView> {
        let session = self.sessions.by_id.get(&id)?;
        let consumers = session.consumers.iter().map(|(id, consumer)| ConsumerView {
            id: *id,
            queue: self.queues[&consumer.queue].head.name.clone(),
            credit: consumer.credit,
            in_flight: consumer.in_flight,
            name: consumer.name.clone(),
        });
        Some(SessionView {
            id,
            node: session.head.node,
            incarnation: session.head.incarnation,
            epoch: session.head.epoch,
            orphaned_until: session.head.orphaned_until,
            consumers: consumers.collect(),
            leases: session.leases.len() as u64,
        })
    }

    /// The sessions whose connection a node holds, or held last.
    pub fn sessions_on(&self, node: NodeId) -> impl Iterator<Item = SessionId> + '_ {
        self.sessions.on_node(node)
    }

    /// The nodes whose silence matters, and their last known lives: those with
    /// sessions or with leases that wait.
    #[must_use]
    pub fn nodes_with_sessions(&self) -> Vec<(NodeId, Incarnation)> {
        let holds = |node: NodeId| {
            let waits = (node, ClientId(0), 0)..=(node, ClientId(u64::MAX), u64::MAX);
            self.sessions.on_node(node).next().is_some() || self.waiters.by_node.range(waits).next().is_some()
        };
        self.nodes().filter(|(node, _)| holds(*node)).collect()
    }

    /// Every node that was ever up, and its last known life.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, Incarnation)> + '_ {
        self.nodes.iter().map(|(node, incarnation)| (*node, *incarnation))
    }
}

impl Exchange {
    fn view(&self) -> ExchangeView {
        ExchangeView {
            name: self.head.name.clone(),
            kind: self.head.kind,
            settings: self.head.settings.clone(),
            received: self.head.received,
            unroutable: self.head.unroutable,
            duplicates: self.head.duplicates,
            bindings: self.bindings.iter().map(|binding| (**binding).clone()).collect(),
        }
    }
}

impl Queue {
    pub(crate) fn counts(&self) -> QueueCounts {
        let totals = self.head.totals;
        QueueCounts {
            ready: self.tallies.ready.count,
            delayed: self.tallies.delayed.count,
            leased: self.tallies.leased.count,
            dead: self.tallies.dead.count,
            dead_letter_backlog: self.backlog.len() as u64,
            bytes: self.tallies.all().bytes,
            consumers: self.consumers.len() as u64,
            published: totals.published,
            acked: totals.acked,
            expired: totals.expired,
            dead_lettered: totals.dead_lettered,
            dropped: totals.dropped,
            deleted: totals.deleted,
            moved: totals.moved,
            redelivered: totals.redelivered,
            groups: self.groups.count(),
            duplicates: totals.duplicates,
        }
    }
}

impl QueueCounts {
    fn add(&mut self, other: &Self) {
        self.ready += other.ready;
        self.delayed += other.delayed;
        self.leased += other.leased;
        self.dead += other.dead;
        self.dead_letter_backlog += other.dead_letter_backlog;
        self.bytes += other.bytes;
        self.consumers += other.consumers;
        self.published += other.published;
        self.acked += other.acked;
        self.expired += other.expired;
        self.dead_lettered += other.dead_lettered;
        self.dropped += other.dropped;
        self.deleted += other.deleted;
        self.moved += other.moved;
        self.redelivered += other.redelivered;
        self.groups += other.groups;
        self.duplicates += other.duplicates;
    }
}
