//! Why messages of a queue are not delivered.

use crate::broker::Broker;
use crate::browse::Obstacle;
use crate::ids::{QueueId, QueueName, Timestamp};
use crate::queue::{Lease, Queue, State, Tally};

impl Broker {
    /// What keeps messages of a queue from being delivered; empty if nothing
    /// does. None if there is no such queue.
    #[must_use]
    pub fn explain(&self, name: &QueueName) -> Option<Vec<Obstacle>> {
        let id = *self.names.get(name)?;
        let queue = self.held(id);
        let obstacles = [
            queue.head.paused.then_some(Obstacle::Paused),
            queue.is_idle().then_some(Obstacle::Empty),
            self.nobody_asks(id),
            queue.groups_busy(),
            queue.not_due(),
            queue.all_leased(),
            queue.waiting_letters(),
            queue.refuses_all().then_some(Obstacle::Full),
        ];
        Some(obstacles.into_iter().flatten().collect())
    }

    /// Messages are ready, and the fault is with those who could take them.
    fn nobody_asks(&self, id: QueueId) -> Option<Obstacle> {
        let queue = self.held(id);
        let ready = queue.tallies.ready.count;
        if ready == 0 {
            return None;
        }
        if queue.head.settings.single_active_consumer {
            return self.active_cannot(id, ready);
        }
        let consumers = queue.consumers.iter();
        let attached = consumers.filter(|(session, _)| self.sessions.by_id[session].is_attached());
        let in_flight = attached.map(|(session, id)| self.sessions.by_id[session].consumers[id].in_flight);
        let (consumers, in_flight) = in_flight.fold((0, 0), |(count, sum), leases| {
            (count + 1, sum + u64::from(leases))
        });
        match (queue.takers.is_empty(), consumers) {
            (false, _) => None,
            (true, 0) => Some(Obstacle::NoConsumer { ready }),
            (true, _) => Some(Obstacle::NoCredit { consumers, in_flight }),
        }
    }

    fn active_cannot(&self, id: QueueId, ready: u64) -> Option<Obstacle> {
        let Some((session, consumer)) = self.held(id).head.active else {
            return Some(Obstacle::NoConsumer { ready });
        };
        let foreign = self.foreign_leases(id);
        let active = &self.sessions.by_id[&session].consumers[&consumer];
        if foreign > 0 {
            let own = |lease: &Lease| lease.is_held_by(session, consumer);
            let ends = self.held(id).leases().filter(|lease| !own(lease));
            let until = ends.map(|lease| lease.until).max()?;
            return Some(Obstacle::SingleActiveBusy {
                leases: foreign,
                until,
            });
        }
        (!active.has_free_credit()).then(|| Obstacle::NoCredit {
            consumers: 1,
            in_flight: u64::from(active.in_flight),
        })
    }
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.tallies.live().count == 0
    }

    fn waiting_letters(&self) -> Option<Obstacle> {
        let messages = self.backlog.len() as u64;
        (messages > 0).then_some(Obstacle::DeadLetterBacklog { messages })
    }

    fn groups_busy(&self) -> Option<Obstacle> {
        let (groups, messages) = self.groups.blocked();
        (groups > 0).then_some(Obstacle::GroupsBusy { groups, messages })
    }

    fn not_due(&self) -> Option<Obstacle> {
        let (until, _) = *self.order.delayed.first()?;
        Some(Obstacle::Delayed {
            messages: self.tallies.delayed.count,
            until,
        })
    }

    fn all_leased(&self) -> Option<Obstacle> {
        if self.tallies.ready.count > 0 || self.tallies.delayed.count > 0 {
            return None;
        }
        let until: Timestamp = self.leases().map(|lease| lease.until).min()?;
        Some(Obstacle::AllLeased {
            messages: self.tallies.leased.count,
            until,
        })
    }

    /// Not even the smallest message is taken.
    fn refuses_all(&self) -> bool {
        let smallest = Tally { count: 1, bytes: 1 };
        self.limit_against(smallest, Tally::default()).is_some()
    }

    /// The current leases, by the number of their grant.
    fn leases(&self) -> impl Iterator<Item = Lease> + '_ {
        let records = self
            .order
            .leased
            .values()
            .map(|position| self.records.get(*position));
        records.flatten().filter_map(|record| match record.state {
            State::Leased(lease) => Some(lease),
            _ => None,
        })
    }
}
