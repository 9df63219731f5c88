//! Queues with a single active consumer.
//!
//! Of all consumers of such a queue one is active, and only that one is given
//! messages. The others stand by, by priority and then in turn. The active one
//! stays so until it is cancelled, its session ends or is orphaned, or one of
//! its leases runs out while another stands by: then the first of those
//! becomes active. It is given nothing as long as a message is leased to
//! anybody else, so that two holders never work at the same time.

use crate::broker::Broker;
use crate::ids::{ConsumerId, QueueId, SessionId};
use crate::queue::{Holder, Taker};

impl Broker {
    /// The active consumer, if it can take a message now.
    pub(crate) fn active_taker(&self, queue: QueueId) -> Option<Taker> {
        let (session, id) = self.held(queue).head.active?;
        let consumer = &self.sessions.by_id[&session].consumers[&id];
        let can = consumer.has_free_credit() && self.foreign_leases(queue) == 0;
        can.then_some(Taker::Consumer(session, id))
    }

    /// Leases of a queue that are not its active consumer's.
    pub(crate) fn foreign_leases(&self, queue: QueueId) -> u64 {
        let held = self.held(queue);
        let own = held.head.active.map_or(0, |(session, id)| {
            u64::from(self.sessions.by_id[&session].consumers[&id].in_flight)
        });
        held.tallies.leased.count - own
    }

    /// A consumer that is there, of a session that is attached, can become active
    /// at the end of the command.
    pub(crate) fn stand_by(&mut self, session: SessionId, id: ConsumerId) {
        let consumer = &self.sessions.by_id[&session].consumers[&id];
        let (queue, turn) = (consumer.queue, consumer.turn());
        let held = self.held_mut(queue);
        if held.head.active != Some((session, id)) {
            held.standby.insert(turn, (session, id));
        }
        if held.head.active.is_none() {
            self.touched.insert(queue);
        }
    }

    /// A consumer that is still there can be active no longer.
    pub(crate) fn step_down(&mut self, session: SessionId, id: ConsumerId) {
        let consumer = &self.sessions.by_id[&session].consumers[&id];
        let (queue, turn) = (consumer.queue, consumer.turn());
        let held = self.held_mut(queue);
        held.standby.remove(&turn);
        if held.head.active == Some((session, id)) {
            held.head.active = None;
            self.touched.insert(queue);
        }
    }

    /// If no consumer is active, the first of those that stand by is from now on.
    /// Part of the assignment at the end of each command.
    pub(crate) fn elect(&mut self, queue: QueueId) {
        let Some(held) = self.queues.get_mut(&queue) else {
            return;
        };
        if held.head.active.is_none() {
            held.head.active = held.standby.pop_first().map(|(_, first)| first);
        }
    }

    /// A lease ran out. If it was the active consumer's, the next becomes active,
    /// if there is one; who let it run out goes to the back.
    pub(crate) fn lease_ran_out(&mut self, queue: QueueId, holder: Holder) {
        let Holder::Consumer { session, consumer } = holder else {
            return;
        };
        let held = self.held_mut(queue);
        if held.head.active != Some((session, consumer)) {
            return;
        }
        if let Some((_, next)) = held.standby.pop_first() {
            held.head.active = Some(next);
            self.renew_turn(session, consumer);
            self.stand_by(session, consumer);
        }
    }

    /// The setting was switched on or off.
    pub(crate) fn single_active_changed(&mut self, queue: QueueId) {
        let held = self.held_mut(queue);
        held.head.active = None;
        held.standby.clear();
        self.touched.insert(queue);
        if !self.held(queue).head.settings.single_active_consumer {
            return;
        }
        for taker in self.held(queue).takers.values().copied().collect::<Vec<_>>() {
            if let Taker::Waiter(client, sequence) = taker {
                self.answer(client, sequence, Vec::new());
            }
        }
        let consumers = self.held(queue).consumers.iter().copied();
        let attached = consumers.filter(|(session, _)| self.sessions.by_id[session].is_attached());
        for (session, id) in attached.collect::<Vec<_>>() {
            self.stand_by(session, id);
        }
    }
}
