//! Who gets what: priorities, groups and their turns, single active consumers,
//! and what is in the way.

use quorate_core::browse::Obstacle;
use quorate_core::command::{NewMessage, Settings};
use quorate_core::ids::{ClientId, ConsumerId, QueueId, SessionId, Timestamp};

use super::{Consumer, Message, Model, Queue, State};

/// A turn of a group of weight 1, in virtual time.
const STRIDE: u64 = 1_048_576;

/// Who had how many turns.
#[derive(Default)]
pub(super) struct Turns {
    now: u64,
    ungrouped: u64,
    /// Group number n at n - 1; none if nobody has that number.
    groups: Vec<Option<(String, u64)>>,
}

impl Turns {
    fn number(&self, group: &str) -> Option<usize> {
        let is_its = |slot: &Option<(String, u64)>| slot.as_ref().is_some_and(|(name, _)| name == group);
        self.groups.iter().position(is_its)
    }

    /// When it is next, and its number.
    fn of(&self, group: &str) -> (u64, usize) {
        if group.is_empty() {
            return (self.ungrouped, 0);
        }
        let number = self.number(group).unwrap();
        (self.groups[number].as_ref().unwrap().1, number + 1)
    }
}

pub(super) fn group(message: &NewMessage) -> &str {
    message.labels.as_ref().map_or("", |labels| &labels.group)
}

fn stride(settings: &Settings, group: &str) -> u64 {
    STRIDE / u64::from(settings.group_weights.get(group).copied().unwrap_or(1))
}

fn rank(message: &Message, settings: &Settings) -> u64 {
    let below = 9 - u64::from(message.priority);
    match settings.priority_ageing.0 {
        0 => below,
        ageing => message.published_at + below * ageing,
    }
}

fn level(message: &Message, settings: &Settings) -> u64 {
    rank(message, settings) / settings.priority_ageing.0.max(1)
}

impl Model {
    fn in_queue(&self, queue: QueueId) -> impl Iterator<Item = (usize, &Message)> {
        let messages = self.messages.iter().enumerate();
        messages.filter(move |(_, message)| message.queue == queue)
    }

    fn ready(&self, queue: QueueId) -> impl Iterator<Item = (usize, &Message)> {
        self.in_queue(queue)
            .filter(|(_, message)| message.state == State::Ready)
    }

    fn is_busy(&self, queue: &Queue, group: &str) -> bool {
        let its = self
            .in_queue(queue.id)
            .filter(|(_, message)| message.group == group);
        let busy = its.filter(|(_, message)| match message.state {
            State::Leased { .. } => true,
            State::Delayed(_) => message.grants > 0,
            _ => false,
        });
        !group.is_empty() && busy.count() >= queue.settings.group_concurrency as usize
    }

    /// The message that is given out next.
    pub(super) fn first_ready(&self, queue: QueueId) -> Option<usize> {
        let queue = &self.queues[self.by_id(queue)];
        let settings = &queue.settings;
        let is_first = |message: &Message| {
            let mut others = self
                .ready(queue.id)
                .filter(|(_, other)| other.group == message.group);
            let key = |m: &Message| match m.group.as_str() {
                "" => (rank(m, settings), m.position),
                _ => (0, m.position),
            };
            others.all(|(_, other)| key(message) <= key(other))
        };
        let firsts = self.ready(queue.id).filter(|(_, message)| is_first(message));
        let open = firsts.filter(|(_, message)| !self.is_busy(queue, &message.group));
        open.min_by_key(|(_, message)| (level(message, settings), queue.turns.of(&message.group)))
            .map(|(i, _)| i)
    }

    /// The ready message that makes room for another.
    pub(super) fn first_droppable(&self, queue: QueueId) -> Option<usize> {
        self.first_ready(queue)
            .or_else(|| self.ready(queue).map(|(i, _)| i).next())
    }

    /// A message is given out.
    pub(super) fn take_turn(&mut self, i: usize) {
        let group = self.messages[i].group.clone();
        let q = self.by_id(self.messages[i].queue);
        let Queue { turns, settings, .. } = &mut self.queues[q];
        if turns.groups.iter().all(Option::is_none) {
            return;
        }
        turns.now = turns.now.max(turns.of(&group).0);
        let next = turns.now + stride(settings, &group);
        match turns.number(&group) {
            Some(number) => turns.groups[number] = Some((group, next)),
            None => turns.ungrouped = next,
        }
    }

    /// A message enters.
    pub(super) fn join_group(&mut self, queue: QueueId, group: &str) {
        let q = self.by_id(queue);
        let Queue { turns, settings, .. } = &mut self.queues[q];
        if group.is_empty() || turns.number(group).is_some() {
            return;
        }
        let its = Some((group.to_owned(), turns.now + stride(settings, group)));
        match turns.groups.iter().position(Option::is_none) {
            Some(free) => turns.groups[free] = its,
            None => turns.groups.push(its),
        }
    }

    /// A message left.
    pub(super) fn leave_group(&mut self, queue: QueueId, group: &str) {
        if self.in_queue(queue).any(|(_, message)| message.group == group) {
            return;
        }
        let q = self.by_id(queue);
        let turns = &mut self.queues[q].turns;
        if let Some(number) = turns.number(group) {
            turns.groups[number] = None;
        }
    }

    // ------------------------------------------------------------------- takers

    /// A queue does not give out anything to anybody but one, or to nobody.
    pub(super) fn may_take(&self, queue: QueueId, consumer: Option<&Consumer>) -> bool {
        let queue = &self.queues[self.by_id(queue)];
        if queue.paused {
            return false;
        }
        if !queue.settings.single_active_consumer {
            return true;
        }
        consumer.is_some_and(|c| queue.active == Some((c.session, c.id)))
            && self.foreign_leases(queue).is_empty()
    }

    /// Ends of the leases that are not the active consumer's.
    fn foreign_leases(&self, queue: &Queue) -> Vec<u64> {
        let foreign = self
            .in_queue(queue.id)
            .filter_map(|(_, message)| match message.state {
                State::Leased { until, holder, .. } if holder.is_none() || holder != queue.active => {
                    Some(until)
                }
                _ => None,
            });
        foreign.collect()
    }

    fn attached(&self, queue: QueueId) -> impl Iterator<Item = &Consumer> {
        let is_attached = |c: &&Consumer| {
            let session = &self.sessions[self.session(c.session).unwrap()];
            session.orphaned_until.is_none()
        };
        self.consumers
            .iter()
            .filter(move |c| c.queue == queue)
            .filter(is_attached)
    }

    /// Who is first among those that could become active.
    fn next_active(
        &self,
        queue: QueueId,
        but: Option<(SessionId, ConsumerId)>,
    ) -> Option<(SessionId, ConsumerId)> {
        let others = self.attached(queue).filter(|c| Some((c.session, c.id)) != but);
        let first = others.min_by_key(|c| (-i64::from(c.priority), c.turn));
        first.map(|c| (c.session, c.id))
    }

    /// Who is there no more, or is orphaned, is not active.
    pub(super) fn depose(&mut self) {
        for q in 0..self.queues.len() {
            let Queue { id, active, .. } = self.queues[q];
            if !self.attached(id).any(|c| active == Some((c.session, c.id))) {
                self.queues[q].active = None;
            }
        }
    }

    /// Where there is no active consumer any more, there is another.
    pub(super) fn elect(&mut self) {
        self.depose();
        for q in 0..self.queues.len() {
            let Queue { id, active, .. } = self.queues[q];
            if active.is_none() && self.queues[q].settings.single_active_consumer {
                self.queues[q].active = self.next_active(id, None);
            }
        }
    }

    /// A lease ran out.
    pub(super) fn pass_on(&mut self, queue: QueueId, holder: Option<(SessionId, ConsumerId)>) {
        let q = self.by_id(queue);
        let active = self.queues[q].active;
        if active.is_none() || holder != active {
            return;
        }
        if let Some(next) = self.next_active(queue, active) {
            self.queues[q].active = Some(next);
            let turn = self.turn();
            let is_it = |c: &&mut Consumer| Some((c.session, c.id)) == active;
            self.consumers.iter_mut().find(is_it).unwrap().turn = turn;
        }
    }

    /// A queue has other settings than before.
    pub(super) fn settings_changed(&mut self, q: usize, before: &Settings) {
        let queue = &mut self.queues[q];
        let is_single = queue.settings.single_active_consumer;
        if is_single == before.single_active_consumer {
            return;
        }
        queue.active = None;
        let id = queue.id;
        let mut waiters: Vec<_> = self
            .waiters
            .iter()
            .filter(|w| w.queue == id && is_single)
            .collect();
        waiters.sort_by_key(|w| w.turn);
        let requests: Vec<(ClientId, u64)> = waiters
            .iter()
            .map(|w| (w.request.client, w.request.sequence))
            .collect();
        for (client, sequence) in requests {
            self.answer(client, sequence, Vec::new());
        }
    }

    // -------------------------------------------------------------------- views

    pub(super) fn groups(&self, queue: &Queue) -> u64 {
        queue.turns.groups.iter().flatten().count() as u64
    }

    pub(crate) fn active_consumer(&self, queue: &Queue) -> Option<String> {
        queue
            .active
            .map(|(session, consumer)| format!("{}.{}", session.0, consumer.0))
    }

    pub(crate) fn oldest_ready(&self, queue: &Queue) -> Option<Timestamp> {
        let first = self.first_droppable(queue.id);
        first.map(|i| Timestamp(self.messages[i].published_at))
    }

    pub(crate) fn oldest_leased(&self, queue: &Queue) -> Option<Timestamp> {
        let leased = self
            .in_queue(queue.id)
            .filter_map(|(_, message)| match message.state {
                State::Leased { grant, .. } => Some((grant, message.published_at)),
                _ => None,
            });
        leased.min().map(|(_, at)| Timestamp(at))
    }

    /// All that is in the way of a message.
    pub(crate) fn explain(&self, queue: &Queue) -> Vec<Obstacle> {
        let id = queue.id;
        let ends = |of: fn(&State) -> Option<u64>| -> Vec<u64> {
            self.in_queue(id).filter_map(|(_, m)| of(&m.state)).collect()
        };
        let leased = ends(|state| match state {
            State::Leased { until, .. } => Some(*until),
            _ => None,
        });
        let delayed = ends(|state| match state {
            State::Delayed(until) => Some(*until),
            _ => None,
        });
        let ready = self.ready(id).count() as u64;
        let mut obstacles = Vec::new();
        if queue.paused {
            obstacles.push(Obstacle::Paused);
        }
        if ready == 0 && delayed.is_empty() && leased.is_empty() {
            obstacles.push(Obstacle::Empty);
        }
        if ready > 0 {
            obstacles.extend(self.nobody_takes(queue, ready));
        }
        obstacles.extend(self.busy_groups(queue));
        if let Some(until) = delayed.iter().min() {
            let (messages, until) = (delayed.len() as u64, Timestamp(*until));
            obstacles.push(Obstacle::Delayed { messages, until });
        }
        if let (true, Some(until)) = (ready == 0 && delayed.is_empty(), leased.iter().min()) {
            let (messages, until) = (leased.len() as u64, Timestamp(*until));
            obstacles.push(Obstacle::AllLeased { messages, until });
        }
        let messages = self.counts(queue).dead_letter_backlog;
        if messages > 0 {
            obstacles.push(Obstacle::DeadLetterBacklog { messages });
        }
        if !self.fits(id, 1, 1) {
            obstacles.push(Obstacle::Full);
        }
        obstacles
    }

    fn nobody_takes(&self, queue: &Queue, ready: u64) -> Option<Obstacle> {
        let is_single = queue.settings.single_active_consumer;
        let asking: Vec<&Consumer> = self
            .attached(queue.id)
            .filter(|c| !is_single || queue.active == Some((c.session, c.id)))
            .collect();
        if asking.is_empty() && !self.waiters.iter().any(|w| w.queue == queue.id) {
            return Some(Obstacle::NoConsumer { ready });
        }
        let foreign = self.foreign_leases(queue);
        if let (true, Some(until)) = (is_single, foreign.iter().max()) {
            let (leases, until) = (foreign.len() as u64, Timestamp(*until));
            return Some(Obstacle::SingleActiveBusy { leases, until });
        }
        let has_credit = |c: &&Consumer| self.in_flight(c) < c.credit;
        if asking.iter().any(has_credit) || self.waiters.iter().any(|w| w.queue == queue.id) {
            return None;
        }
        let in_flight = asking.iter().map(|c| u64::from(self.in_flight(c))).sum();
        let consumers = asking.len() as u64;
        Some(Obstacle::NoCredit { consumers, in_flight })
    }

    fn busy_groups(&self, queue: &Queue) -> Option<Obstacle> {
        let waiting = self
            .ready(queue.id)
            .filter(|(_, m)| self.is_busy(queue, &m.group));
        let mut names: Vec<&str> = waiting.map(|(_, message)| message.group.as_str()).collect();
        let messages = names.len() as u64;
        names.sort_unstable();
        names.dedup();
        let groups = names.len() as u64;
        (groups > 0).then_some(Obstacle::GroupsBusy { groups, messages })
    }
}
