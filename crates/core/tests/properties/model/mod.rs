//! The broker once more, as naively as it can be said: everything in vectors,
//! nothing indexed, every question answered by looking through all there is.
//!
//! Written from the semantics, to be compared with the real one. It leaves out
//! the bounds on sizes and numbers, and that one entry does a limited part of
//! what is due: scripts and unit tests look at those.

mod browse;
mod dead_letter;
mod dedup;
mod operate;
mod order;
mod publish;
mod routing;

use std::collections::BTreeMap;

use dedup::{Remembered, dedup_id};
use order::{Turns, group};
use quorate_core::command::{
    Command, Destination, NewMessage, Overflow, Publish, Request, Settings, SettingsPatch, Settlement,
    Target, Verdict,
};
use quorate_core::effect::{DeadLetter, DeadReason, Effect, Leased};
use quorate_core::ids::{
    ClientId, ConsumerId, ExchangeName, Incarnation, MessageId, Millis, NodeId, QueueId, QueueName,
    RequestId, SessionId, Timestamp, Token,
};
use quorate_core::outcome::{Exit, Outcome, Rejection, Reply, Settled};
use quorate_core::{Applied, QueueCounts, Repeated};

const SESSION_GRACE: u64 = 10_000;
const CLIENT_TTL: u64 = 600_000;
const CLIENT_SWEEP: u64 = 10_000;

#[derive(Default)]
pub(crate) struct Model {
    index: u64,
    now: u64,
    grants: u64,
    epochs: u64,
    turns: u64,
    pub(crate) queues: Vec<Queue>,
    pub(crate) exchanges: Vec<routing::Exchange>,
    pub(crate) messages: Vec<Message>,
    /// Messages and bytes that the publishes under way are about to enter.
    promised: Vec<publish::Need>,
    /// Dead letters that have left their queue and are still to enter another.
    under_way: Vec<MessageId>,
    pub(crate) sessions: Vec<Session>,
    consumers: Vec<Consumer>,
    waiters: Vec<Waiter>,
    clients: Vec<Client>,
    nodes: Vec<(NodeId, Incarnation)>,
    effects: Vec<Effect>,
    repeated: Vec<Repeated>,
}

pub(crate) struct Queue {
    pub(crate) name: QueueName,
    id: QueueId,
    settings: Settings,
    entered: u64,
    pub(crate) paused: bool,
    active: Option<(SessionId, ConsumerId)>,
    turns: Turns,
    remembered: Vec<Remembered>,
    gone: QueueCounts,
    retry: Option<dead_letter::Retry>,
}

#[derive(Clone)]
pub(crate) struct Message {
    queue: QueueId,
    position: u64,
    id: MessageId,
    bytes: u32,
    priority: u8,
    group: String,
    failures: u32,
    grants: u32,
    published_at: u64,
    expires_at: u64,
    state: State,
    first_error: String,
    last_error: String,
    dead_letter: Option<DeadLetter>,
    deaths: Vec<QueueId>,
    dedup_id: String,
    redrive: Option<Box<operate::Redrive>>,
    /// Routing key and headers, if an exchange may want to know.
    address: Option<(Option<String>, BTreeMap<String, String>)>,
}

impl Message {
    fn failed(&mut self, error: &str) {
        if self.failures == 0 {
            error.clone_into(&mut self.first_error);
        }
        error.clone_into(&mut self.last_error);
        self.failures += 1;
    }
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Ready,
    Delayed(u64),
    Leased {
        grant: u64,
        until: u64,
        holder: Option<(SessionId, ConsumerId)>,
    },
    Dead {
        reason: DeadReason,
        backlog: bool,
    },
}

pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) node: NodeId,
    incarnation: Incarnation,
    pub(crate) epoch: u64,
    orphaned_until: Option<u64>,
}

struct Consumer {
    session: SessionId,
    id: ConsumerId,
    queue: QueueId,
    credit: u32,
    lease: Option<Millis>,
    priority: i32,
    turn: u64,
}

struct Waiter {
    request: RequestId,
    queue: QueueId,
    node: NodeId,
    count: usize,
    lease: Option<Millis>,
    until: u64,
    turn: u64,
}

struct Client {
    id: ClientId,
    floor: u64,
    used_at: u64,
    outcomes: Vec<Executed>,
}

struct Executed {
    sequence: u64,
    outcome: Outcome,
    index: u64,
    at: u64,
}

impl Client {
    fn forgotten_at(&self) -> u64 {
        (self.used_at + CLIENT_TTL).div_ceil(CLIENT_SWEEP) * CLIENT_SWEEP
    }
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Message(QueueId, u64),
    Waiter(ClientId, u64),
    Orphan(SessionId),
    Backlog(QueueId),
    QueueWindow(QueueId),
    ExchangeWindow(ExchangeName),
}

impl Model {
    pub(crate) fn apply(
        &mut self,
        index: u64,
        at: Timestamp,
        requests: &[Request],
        contents: &[u32],
    ) -> Applied {
        self.index = index;
        self.now = self.now.max(at.0);
        while let Some(due) = self.first_due() {
            self.due(due);
        }
        let silent = |client: &Client, now| client.forgotten_at() <= now;
        let gone: Vec<ClientId> = self
            .clients
            .iter()
            .filter(|c| silent(c, self.now))
            .map(|c| c.id)
            .collect();
        self.clients.retain(|client| !gone.contains(&client.id));
        self.waiters
            .retain(|waiter| !gone.contains(&waiter.request.client));
        self.assign();

        let mut outcomes = Vec::new();
        let mut taken = 0;
        for (ordinal, request) in requests.iter().enumerate() {
            let first = taken;
            taken += request.command.contents();
            outcomes.push(self.request(request, ordinal, first, &contents[first..taken]));
            self.assign();
        }
        Applied {
            outcomes,
            effects: std::mem::take(&mut self.effects),
            repeated: std::mem::take(&mut self.repeated),
            events: Vec::new(),
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let clients = self.clients.iter().map(Client::forgotten_at);
        self.deadlines()
            .into_iter()
            .map(|(at, _)| at)
            .chain(clients)
            .min()
    }

    pub(crate) fn counts(&self, queue: &Queue) -> QueueCounts {
        let mut counts = queue.gone;
        for message in self.messages.iter().filter(|m| m.queue == queue.id) {
            match message.state {
                State::Ready => counts.ready += 1,
                State::Delayed(_) => counts.delayed += 1,
                State::Leased { .. } => counts.leased += 1,
                State::Dead { backlog, .. } => {
                    counts.dead += 1;
                    counts.dead_letter_backlog += u64::from(backlog);
                }
            }
            counts.bytes += u64::from(message.bytes);
        }
        counts.consumers = self.consumers.iter().filter(|c| c.queue == queue.id).count() as u64;
        counts.published = queue.entered;
        counts.groups = self.groups(queue);
        counts
    }

    /// Of each consumer of a session: id, credit, leases of its queue.
    pub(crate) fn consumers_of(&self, session: SessionId) -> Vec<(ConsumerId, u32, u32)> {
        let consumers = self.consumers.iter().filter(|c| c.session == session);
        let mut consumers: Vec<_> = consumers.map(|c| (c.id, c.credit, self.in_flight(c))).collect();
        consumers.sort();
        consumers
    }

    // --------------------------------------------------------------------- time

    fn deadlines(&self) -> Vec<(u64, Due)> {
        let mut deadlines = Vec::new();
        for message in &self.messages {
            let at = match message.state {
                State::Ready => message.expires_at,
                State::Delayed(until) => until.min(message.expires_at),
                State::Leased { until, .. } => until,
                State::Dead { .. } => u64::MAX,
            };
            if at != u64::MAX {
                deadlines.push((at, Due::Message(message.queue, message.position)));
            }
        }
        for waiter in &self.waiters {
            deadlines.push((
                waiter.until,
                Due::Waiter(waiter.request.client, waiter.request.sequence),
            ));
        }
        for session in &self.sessions {
            if let Some(at) = session.orphaned_until {
                deadlines.push((at, Due::Orphan(session.id)));
            }
        }
        for queue in &self.queues {
            if let Some(retry) = queue.retry {
                deadlines.push((retry.at, Due::Backlog(queue.id)));
            }
        }
        deadlines.extend(self.window_ends());
        deadlines
    }

    fn first_due(&self) -> Option<Due> {
        let due = self.deadlines().into_iter().filter(|(at, _)| *at <= self.now);
        due.min().map(|(_, due)| due)
    }

    fn due(&mut self, due: Due) {
        match due {
            Due::Message(queue, position) => {
                let i = self.find(queue, position);
                match self.messages[i].state {
                    State::Leased { holder, .. } => {
                        self.pass_on(queue, holder);
                        self.fail(i, "lease expired", None);
                    }
                    State::Delayed(_) if self.messages[i].expires_at > self.now => {
                        self.messages[i].state = State::Ready;
                    }
                    _ => self.expire(i),
                }
            }
            Due::Waiter(client, sequence) => self.answer(client, sequence, Vec::new()),
            Due::Orphan(session) => self.end_session(session),
            Due::Backlog(queue) => self.retry(queue),
            Due::QueueWindow(_) | Due::ExchangeWindow(_) => self.forget(&due),
        }
    }

    // ----------------------------------------------------------------- requests

    fn request(&mut self, request: &Request, ordinal: usize, first: usize, contents: &[u32]) -> Outcome {
        let Some(id) = request.id else {
            return self.command(request, ordinal, first, contents);
        };
        if id.client.0 == 0 || id.sequence == 0 {
            return Err(invalid());
        }
        if id.oldest_unanswered == 0 || id.oldest_unanswered > id.sequence {
            return Err(invalid());
        }
        let known = self.clients.iter().position(|client| client.id == id.client);
        let place = match known {
            Some(place) if id.sequence < self.clients[place].floor => {
                return Err(Rejection::RequestForgotten);
            }
            Some(place) => place,
            None if id.oldest_unanswered > 1 => return Err(Rejection::RequestForgotten),
            None => {
                let outcomes = Vec::new();
                self.clients.push(Client {
                    id: id.client,
                    floor: 0,
                    used_at: 0,
                    outcomes,
                });
                self.clients.len() - 1
            }
        };
        let client = &mut self.clients[place];
        client.used_at = self.now;
        client.floor = client.floor.max(id.oldest_unanswered);
        let floor = client.floor;
        client.outcomes.retain(|executed| executed.sequence >= floor);
        self.waiters
            .retain(|w| w.request.client != id.client || w.request.sequence >= floor);
        if let Some(executed) = client.outcomes.iter().find(|e| e.sequence == id.sequence) {
            let outcome = &executed.outcome;
            if let (Ok(Reply::Waiting), Command::Lease { node, .. }) = (outcome, &request.command) {
                for waiter in &mut self.waiters {
                    if (waiter.request.client, waiter.request.sequence) == (id.client, id.sequence) {
                        waiter.node = *node;
                        waiter.request = id;
                    }
                }
            }
            self.repeated.push(Repeated {
                ordinal: ordinal as u32,
                index: executed.index,
                at: Timestamp(executed.at),
            });
            return outcome.clone();
        }
        let outcome = self.command(request, ordinal, first, contents);
        self.clients[place].outcomes.push(Executed {
            sequence: id.sequence,
            outcome: outcome.clone(),
            index: self.index,
            at: self.now,
        });
        outcome
    }

    fn command(&mut self, request: &Request, ordinal: usize, first: usize, contents: &[u32]) -> Outcome {
        match &request.command {
            Command::DeclareQueue { name, settings } => self.declare(name, settings, ordinal),
            Command::UpdateQueue { name, settings } => {
                let q = self.queue(name)?;
                let before = self.queues[q].settings.clone();
                self.queues[q].settings = checked(before.patched(settings))?;
                if self.queues[q].settings.dedup_window.0 == 0 {
                    self.queues[q].remembered.clear();
                }
                self.settings_changed(q, &before);
                self.set_retry(self.queues[q].id, self.now, 0, 0);
                Ok(Reply::Done)
            }
            Command::PurgeQueue { name, states } => {
                let queue = self.queues[self.queue(name)?].id;
                let goes = |m: &Message| match m.state {
                    State::Ready => states.ready,
                    State::Delayed(_) => states.delayed,
                    State::Leased { .. } => false,
                    State::Dead { .. } => states.dead,
                };
                let mut count = 0;
                while let Some(i) = self.messages.iter().position(|m| m.queue == queue && goes(m)) {
                    self.drop_message(i, Exit::Deleted);
                    count += 1;
                }
                Ok(Reply::Purged { count })
            }
            Command::DeleteQueue {
                name,
                if_empty,
                if_unused,
            } => self.delete(name, *if_empty, *if_unused),
            Command::Publish(publish) => self.publish(publish, first, contents),
            Command::DeclareExchange { name, kind, settings } => self.declare_exchange(name, *kind, settings),
            Command::UpdateExchange { name, settings } => self.update_exchange(name, settings),
            Command::DeleteExchange { name, if_unused } => self.delete_exchange(name, *if_unused),
            Command::Bind(binding) => self.bind(binding),
            Command::Unbind(binding) => self.unbind(binding),
            Command::Lease { .. } => self.lease(request),
            Command::Settle { settlements } => {
                if settlements.is_empty() {
                    return Err(invalid());
                }
                Ok(Reply::Settled(
                    settlements.iter().map(|s| self.settle(s)).collect(),
                ))
            }
            Command::AttachSession {
                session,
                node,
                incarnation,
            } => self.attach(*session, *node, *incarnation),
            Command::CloseSession { session, epoch } => {
                if self
                    .sessions
                    .iter()
                    .any(|s| s.id == *session && s.epoch == *epoch)
                {
                    self.end_session(*session);
                }
                Ok(Reply::Done)
            }
            Command::Consume {
                session,
                consumer,
                queue,
                credit,
                lease,
                priority,
                ..
            } => {
                self.session(*session)?;
                let queue = self.queues[self.queue(queue)?].id;
                if let Some(there) = self.consumer(*session, *consumer) {
                    if self.consumers[there].queue != queue {
                        return Err(invalid());
                    }
                    self.consumers[there].credit = *credit;
                    return Ok(Reply::Done);
                }
                let (session, id, credit, lease) = (*session, *consumer, *credit, *lease);
                let turn = self.turn();
                self.consumers.push(Consumer {
                    session,
                    id,
                    queue,
                    credit,
                    lease,
                    priority: *priority,
                    turn,
                });
                Ok(Reply::Done)
            }
            Command::CancelConsumer { session, consumer } => {
                self.session(*session)?;
                self.consumers
                    .retain(|c| (c.session, c.id) != (*session, *consumer));
                Ok(Reply::Done)
            }
            Command::SetCredit {
                session,
                consumer,
                credit,
            } => {
                self.session(*session)?;
                let there = self.consumer(*session, *consumer).ok_or_else(invalid)?;
                self.consumers[there].credit = *credit;
                Ok(Reply::Done)
            }
            Command::NodeUp { node, incarnation } => {
                self.node_up(*node, *incarnation);
                Ok(Reply::Done)
            }
            Command::NodeDown { node, incarnation } => {
                for session in self.life_ends(*node, *incarnation) {
                    self.end_session(session);
                }
                Ok(Reply::Done)
            }
            Command::NodeSilent { node, incarnation } => {
                let silent = self.life_ends(*node, *incarnation);
                self.orphan(|session| silent.contains(&session.id));
                Ok(Reply::Done)
            }
            Command::DetachSession { session, epoch } => {
                self.orphan(|s| s.id == *session && s.epoch == *epoch);
                Ok(Reply::Done)
            }
            Command::Tick => Ok(Reply::Done),
            Command::PauseQueue { name, paused } => {
                let q = self.queue(name)?;
                self.queues[q].paused = *paused;
                Ok(Reply::Done)
            }
            Command::Transact {
                settlements,
                publishes,
            } => self.transact(settlements, publishes, first, contents),
            Command::Operate {
                queue,
                messages,
                operation,
            } => self.operate(queue, messages, operation),
        }
    }

    // ------------------------------------------------------------------- queues

    fn declare(&mut self, name: &QueueName, patch: &SettingsPatch, ordinal: usize) -> Outcome {
        if let Ok(q) = self.queue(name) {
            let is = &self.queues[q].settings;
            if is.patched(patch) == *is {
                return Ok(Reply::Declared { created: false });
            }
            let differing = is.differing(&is.patched(patch));
            return Err(Rejection::QueueConflict {
                queue: name.clone(),
                differing,
            });
        }
        self.queues.push(Queue {
            name: name.clone(),
            id: QueueId(self.index * 65_536 + ordinal as u64),
            settings: checked(Settings::default().patched(patch))?,
            entered: 0,
            paused: false,
            active: None,
            turns: Turns::default(),
            remembered: Vec::new(),
            gone: QueueCounts::default(),
            retry: None,
        });
        Ok(Reply::Declared { created: true })
    }

    fn delete(&mut self, name: &QueueName, if_empty: bool, if_unused: bool) -> Outcome {
        let q = self.queue(name)?;
        let id = self.queues[q].id;
        let count = self.messages.iter().filter(|m| m.queue == id).count() as u64;
        if if_empty && count > 0 {
            return Err(Rejection::QueueNotEmpty {
                queue: name.clone(),
                count,
            });
        }
        let mut consumers: Vec<_> = self
            .consumers
            .iter()
            .filter(|c| c.queue == id)
            .map(|c| (c.session, c.id))
            .collect();
        if if_unused && !consumers.is_empty() {
            let consumers = consumers.len() as u64;
            return Err(Rejection::QueueInUse {
                queue: name.clone(),
                consumers,
            });
        }
        consumers.sort();
        for (session, consumer) in consumers {
            let s = &self.sessions[self.session(session)?];
            let (node, epoch, queue) = (s.node, s.epoch, name.clone());
            self.effects.push(Effect::ConsumerCancelled {
                node,
                session,
                epoch,
                consumer,
                queue,
            });
        }
        self.consumers.retain(|c| c.queue != id);
        let mut waiters: Vec<_> = self.waiters.iter().filter(|w| w.queue == id).collect();
        waiters.sort_by_key(|w| w.turn);
        let waiters: Vec<_> = waiters
            .iter()
            .map(|w| (w.request.client, w.request.sequence))
            .collect();
        for (client, sequence) in waiters {
            self.answer(client, sequence, Vec::new());
        }
        while let Some(i) = self.messages.iter().position(|m| m.queue == id) {
            self.drop_message(i, Exit::Deleted);
        }
        self.queues.remove(q);
        self.unbind_all(&Destination::Queue(name.clone()));
        Ok(Reply::Deleted { count })
    }

    fn enter_new(&mut self, queue: QueueId, publish: &Publish, n: usize, first: usize, bytes: u32) {
        let message = &publish.messages[n];
        let settings = &self.queues[self.by_id(queue)].settings;
        let ttls = [message.ttl.0, settings.message_ttl.0];
        let ttl = ttls.into_iter().filter(|ttl| *ttl > 0).min();
        let due = message.deliver_at.0.max(self.now + message.delay.0);
        self.enter(
            queue,
            Message {
                queue,
                position: 0,
                id: MessageId {
                    index: self.index,
                    number: (first + n) as u32,
                },
                bytes,
                priority: message.priority,
                group: group(message).to_owned(),
                failures: 0,
                grants: 0,
                published_at: self.now,
                expires_at: ttl.map_or(u64::MAX, |ttl| due + ttl),
                state: if due > self.now {
                    State::Delayed(due)
                } else {
                    State::Ready
                },
                first_error: String::new(),
                last_error: String::new(),
                dead_letter: None,
                deaths: Vec::new(),
                dedup_id: dedup_id(message).to_owned(),
                redrive: None,
                address: address(publish, message, settings),
            },
        );
    }

    fn enter(&mut self, queue: QueueId, mut message: Message) {
        let q = self.by_id(queue);
        message.queue = queue;
        message.position = self.queues[q].entered;
        self.queues[q].entered += 1;
        self.join_group(queue, &message.group);
        self.messages.push(message);
        self.messages.sort_by_key(|m| (m.queue, m.position));
    }

    /// There is room, or there will be if all that is ready is dropped.
    fn fits(&self, queue: QueueId, count: u64, bytes: u64) -> bool {
        self.fits_without(&[], queue, count, bytes)
    }

    /// The same, when certain messages have gone.
    fn fits_without(&self, gone: &[usize], queue: QueueId, count: u64, bytes: u64) -> bool {
        let settings = &self.queues[self.by_id(queue)].settings;
        let stays = |m: &Message| match m.state {
            State::Ready => settings.overflow == Overflow::Reject,
            State::Delayed(_) | State::Leased { .. } => true,
            State::Dead { .. } => false,
        };
        let messages = self.messages.iter().enumerate();
        let held: Vec<&Message> = messages
            .filter(|(i, m)| m.queue == queue && stays(m) && !gone.contains(i))
            .map(|(_, m)| m)
            .collect();
        let held_bytes: u64 = held.iter().map(|m| u64::from(m.bytes)).sum();
        (settings.length_max == 0 || held.len() as u64 + count <= settings.length_max)
            && (settings.bytes_max == 0 || held_bytes + bytes <= settings.bytes_max)
    }

    fn make_room(&mut self, queue: QueueId, count: u64, bytes: u64, making_room: &[QueueId]) {
        let settings = self.queues[self.by_id(queue)].settings.clone();
        if settings.overflow == Overflow::Reject {
            return;
        }
        let chain = [making_room, &[queue]].concat();
        loop {
            let live = self
                .messages
                .iter()
                .filter(|m| m.queue == queue && !matches!(m.state, State::Dead { .. }));
            let held = live.clone().count() as u64;
            let held_bytes: u64 = live.map(|m| u64::from(m.bytes)).sum();
            let full = (settings.length_max > 0 && held + count > settings.length_max)
                || (settings.bytes_max > 0 && held_bytes + bytes > settings.bytes_max);
            let head = self.first_droppable(queue);
            match head {
                Some(i) if full && self.sends_dead_letters(queue) => {
                    self.dead_letter(i, DeadReason::DroppedByLimit, &chain);
                }
                Some(i) if full => self.drop_message(i, Exit::Dropped),
                _ => return,
            }
        }
    }

    // ---------------------------------------------------------------- messages

    fn fail(&mut self, i: usize, error: &str, delay: Option<Millis>) {
        let settings = &self.queues[self.by_id(self.messages[i].queue)].settings;
        let message = &mut self.messages[i];
        message.failed(error);
        if settings.deliveries_max > 0 && message.failures >= settings.deliveries_max {
            self.dead_letter(i, DeadReason::DeliveriesMax, &[]);
            return;
        }
        let delay = delay.map_or_else(
            || backoff(settings, message.id, message.failures),
            |delay| delay.0,
        );
        self.put_back(i, delay);
    }

    fn put_back(&mut self, i: usize, delay: u64) {
        if self.messages[i].expires_at <= self.now {
            return self.expire(i);
        }
        self.messages[i].state = if delay == 0 {
            State::Ready
        } else {
            State::Delayed(self.now + delay)
        };
    }

    fn expire(&mut self, i: usize) {
        if self.sends_dead_letters(self.messages[i].queue) {
            self.dead_letter(i, DeadReason::Expired, &[]);
        } else {
            self.drop_message(i, Exit::Expired);
        }
    }

    fn drop_message(&mut self, i: usize, exit: Exit) {
        let message = self.messages.remove(i);
        self.leave_group(message.queue, &message.group);
        self.remember_exit(&message, exit);
        let q = self.by_id(message.queue);
        let gone = &mut self.queues[q].gone;
        match exit {
            Exit::Acked => gone.acked += 1,
            Exit::Expired => gone.expired += 1,
            Exit::DeadLettered => gone.dead_lettered += 1,
            Exit::Dropped => gone.dropped += 1,
            Exit::Deleted => gone.deleted += 1,
            Exit::Moved => gone.moved += 1,
        }
        self.follow_backlogs();
        let mut others = self
            .messages
            .iter()
            .map(|other| other.id)
            .chain(self.under_way.clone());
        if others.all(|id| id != message.id) {
            self.effects.push(Effect::ContentDropped { id: message.id });
        }
    }

    // ------------------------------------------------------------------ leases

    fn lease(&mut self, request: &Request) -> Outcome {
        let Command::Lease {
            queue,
            count_max,
            lease,
            wait,
            node,
        } = &request.command
        else {
            unreachable!()
        };
        if *count_max == 0 || *count_max > 1_000 || wait.0 > 60_000 {
            return Err(invalid());
        }
        let q = self.queue(queue)?;
        if self.queues[q].settings.single_active_consumer {
            return Err(Rejection::SingleActiveConsumer(queue.clone()));
        }
        let queue = self.queues[q].id;
        if wait.0 > 0 && request.id.is_none() {
            return Err(invalid());
        }
        let mut leased = Vec::new();
        while leased.len() < *count_max as usize && self.may_take(queue, None) {
            let Some(i) = self.first_ready(queue) else { break };
            leased.push(self.grant(i, *lease, None));
        }
        if !leased.is_empty() || wait.0 == 0 {
            return Ok(Reply::Leased(leased));
        }
        let turn = self.turn();
        self.waiters.push(Waiter {
            request: request.id.unwrap(),
            queue,
            node: *node,
            count: *count_max as usize,
            lease: *lease,
            until: self.now + wait.0,
            turn,
        });
        Ok(Reply::Waiting)
    }

    fn grant(&mut self, i: usize, lease: Option<Millis>, holder: Option<(SessionId, ConsumerId)>) -> Leased {
        self.grants += 1;
        self.take_turn(i);
        let q = self.by_id(self.messages[i].queue);
        let until = self.now + lease.unwrap_or(self.queues[q].settings.lease).0;
        let message = &mut self.messages[i];
        message.grants += 1;
        message.state = State::Leased {
            grant: self.grants,
            until,
            holder,
        };
        if message.grants > 1 {
            self.queues[q].gone.redelivered += 1;
        }
        self.leased(i)
    }

    fn leased(&self, i: usize) -> Leased {
        let message = &self.messages[i];
        let State::Leased { grant, until, .. } = message.state else {
            panic!("not leased")
        };
        let (queue, position) = (message.queue, message.position);
        Leased {
            token: Token {
                queue,
                position,
                attempt: message.failures + 1,
                grant,
            },
            message: message.id,
            queue: self.queues[self.by_id(queue)].name.clone(),
            content_bytes: message.bytes,
            redelivered: message.grants > 1,
            leased_until: Timestamp(until),
            published_at: Timestamp(message.published_at),
            last_error: message.last_error.clone(),
            dead_letter: message.dead_letter.clone(),
        }
    }

    /// Brings ready messages and those who can take them together, one queue
    /// after the other, the longest unserved taker first.
    fn assign(&mut self) {
        self.elect();
        let mut queues: Vec<QueueId> = self.queues.iter().map(|queue| queue.id).collect();
        queues.sort();
        for queue in queues {
            let mut shares: Vec<(ClientId, u64, Vec<Leased>)> = Vec::new();
            while let (Some(i), Some(taker)) = (self.first_ready(queue), self.next_taker(queue, &shares)) {
                let turn = self.turn();
                match taker {
                    Err(c) => {
                        let (session, consumer) = (self.consumers[c].session, self.consumers[c].id);
                        self.consumers[c].turn = turn;
                        let leased = self.grant(i, self.consumers[c].lease, Some((session, consumer)));
                        let s = &self.sessions[self.session(session).unwrap()];
                        let (node, epoch) = (s.node, s.epoch);
                        self.effects.push(Effect::Deliver {
                            node,
                            session,
                            epoch,
                            consumer,
                            leased,
                        });
                    }
                    Ok(w) => {
                        self.waiters[w].turn = turn;
                        let leased = self.grant(i, self.waiters[w].lease, None);
                        let RequestId { client, sequence, .. } = self.waiters[w].request;
                        match shares.iter_mut().find(|s| (s.0, s.1) == (client, sequence)) {
                            Some(share) => share.2.push(leased),
                            None => shares.push((client, sequence, vec![leased])),
                        }
                    }
                }
            }
            for (client, sequence, leased) in shares {
                self.answer(client, sequence, leased);
            }
        }
    }

    fn next_taker(
        &self,
        queue: QueueId,
        shares: &[(ClientId, u64, Vec<Leased>)],
    ) -> Option<Result<usize, usize>> {
        let mut takers = Vec::new();
        let waiters = self.waiters.iter().enumerate().filter(|(_, w)| w.queue == queue);
        for (w, waiter) in waiters.filter(|_| self.may_take(queue, None)) {
            let RequestId { client, sequence, .. } = waiter.request;
            let share = shares.iter().find(|s| (s.0, s.1) == (client, sequence));
            if share.map_or(0, |share| share.2.len()) < waiter.count {
                takers.push((0, waiter.turn, Ok(w)));
            }
        }
        for (c, consumer) in self
            .consumers
            .iter()
            .enumerate()
            .filter(|(_, c)| c.queue == queue)
        {
            let session = &self.sessions[self.session(consumer.session).unwrap()];
            let can_take = self.in_flight(consumer) < consumer.credit && self.may_take(queue, Some(consumer));
            if session.orphaned_until.is_none() && can_take {
                takers.push((-i64::from(consumer.priority), consumer.turn, Err(c)));
            }
        }
        takers
            .into_iter()
            .min_by_key(|(below, turn, _)| (*below, *turn))
            .map(|(_, _, taker)| taker)
    }

    fn in_flight(&self, consumer: &Consumer) -> u32 {
        let held = |m: &&Message| match m.state {
            State::Leased { holder, .. } => {
                holder == Some((consumer.session, consumer.id)) && m.queue == consumer.queue
            }
            _ => false,
        };
        self.messages.iter().filter(held).count() as u32
    }

    fn answer(&mut self, client: ClientId, sequence: u64, leased: Vec<Leased>) {
        let its = |w: &Waiter| (w.request.client, w.request.sequence) == (client, sequence);
        let place = self.waiters.iter().position(its).unwrap();
        let Waiter { request, node, .. } = self.waiters.remove(place);
        self.remember(client, sequence, Ok(Reply::Leased(leased.clone())));
        self.effects.push(Effect::LeaseAnswered {
            node,
            request,
            leased,
        });
    }

    fn remember(&mut self, client: ClientId, sequence: u64, outcome: Outcome) {
        let client = self.clients.iter_mut().find(|c| c.id == client).unwrap();
        client
            .outcomes
            .iter_mut()
            .find(|executed| executed.sequence == sequence)
            .unwrap()
            .outcome = outcome;
    }

    fn settle(&mut self, settlement: &Settlement) -> Result<Settled, Rejection> {
        let i = self.current(settlement.token).ok_or(Rejection::StaleLease)?;
        let queue = self.messages[i].queue;
        let mut leased_until = None;
        match &settlement.verdict {
            Verdict::Ack => self.drop_message(i, Exit::Acked),
            Verdict::Nack { delay, reason } => self.fail(i, reason, *delay),
            Verdict::Release => self.put_back(i, 0),
            Verdict::DeadLetter { reason } => {
                self.messages[i].failed(reason);
                self.dead_letter(i, DeadReason::Rejected, &[]);
            }
            Verdict::Extend { lease } => {
                let q = self.by_id(queue);
                let end = self.now + lease.unwrap_or(self.queues[q].settings.lease).0;
                if let State::Leased { until, .. } = &mut self.messages[i].state {
                    *until = end;
                }
                leased_until = Some(Timestamp(end));
            }
        }
        Ok(Settled { leased_until })
    }

    /// The message that a token holds.
    fn current(&self, token: Token) -> Option<usize> {
        self.messages.iter().position(|m| match m.state {
            State::Leased { grant, .. } => {
                let Token {
                    queue,
                    position,
                    attempt,
                    ..
                } = token;
                (m.queue, m.position, m.failures + 1, grant) == (queue, position, attempt, token.grant)
            }
            _ => false,
        })
    }

    // ---------------------------------------------------------------- sessions

    fn attach(&mut self, id: SessionId, node: NodeId, incarnation: Incarnation) -> Outcome {
        if id.0 == 0 {
            return Err(invalid());
        }
        if self.known(node).is_some_and(|known| known > incarnation) {
            return Err(Rejection::SessionNotFound);
        }
        self.node_up(node, incarnation);
        self.epochs += 1;
        let epoch = self.epochs;
        let Ok(s) = self.session(id) else {
            self.sessions.push(Session {
                id,
                node,
                incarnation,
                epoch,
                orphaned_until: None,
            });
            return Ok(Reply::Attached {
                epoch,
                resumed: false,
            });
        };
        let session = &mut self.sessions[s];
        if session.orphaned_until.is_none() {
            let lost = Effect::SessionLost {
                node: session.node,
                session: id,
                epoch: session.epoch,
            };
            self.effects.push(lost);
        }
        *session = Session {
            id,
            node,
            incarnation,
            epoch,
            orphaned_until: None,
        };
        let mut held = Vec::new();
        for (i, message) in self.messages.iter().enumerate() {
            let State::Leased {
                grant,
                holder: Some((session, consumer)),
                ..
            } = message.state
            else {
                continue;
            };
            if session == id {
                held.push((grant, consumer, i));
            }
        }
        held.sort();
        for (_, consumer, i) in held {
            let leased = self.leased(i);
            self.effects.push(Effect::Deliver {
                node,
                session: id,
                epoch,
                consumer,
                leased,
            });
        }
        Ok(Reply::Attached { epoch, resumed: true })
    }

    fn end_session(&mut self, id: SessionId) {
        let s = self.session(id).unwrap();
        let Session { node, epoch, .. } = self.sessions.remove(s);
        self.consumers.retain(|c| c.session != id);
        let mut held = Vec::new();
        for message in &self.messages {
            match message.state {
                State::Leased {
                    holder: Some((session, consumer)),
                    ..
                } if session == id => held.push((consumer, message.queue, message.position)),
                _ => {}
            }
        }
        held.sort();
        for (_, queue, position) in held {
            self.put_back(self.find(queue, position), 0);
        }
        self.effects.push(Effect::SessionLost {
            node,
            session: id,
            epoch,
        });
    }

    fn node_up(&mut self, node: NodeId, incarnation: Incarnation) {
        if self.known(node).is_some_and(|known| known >= incarnation) {
            return;
        }
        self.nodes.retain(|(known, _)| *known != node);
        self.nodes.push((node, incarnation));
        self.give_up_waiters(node);
        self.orphan(|session| session.node == node);
    }

    fn orphan(&mut self, orphaned: impl Fn(&Session) -> bool) {
        for session in self.sessions.iter_mut().filter(|session| orphaned(session)) {
            session.orphaned_until.get_or_insert(self.now + SESSION_GRACE);
        }
        self.depose();
    }

    /// Gives up who waits on a life of a node and before. Its sessions, by id.
    fn life_ends(&mut self, node: NodeId, incarnation: Incarnation) -> Vec<SessionId> {
        if self.known(node).is_none_or(|known| known <= incarnation) {
            self.give_up_waiters(node);
        }
        let of_it = |s: &&Session| s.node == node && s.incarnation <= incarnation;
        let mut sessions: Vec<SessionId> = self.sessions.iter().filter(of_it).map(|s| s.id).collect();
        sessions.sort();
        sessions
    }

    fn give_up_waiters(&mut self, node: NodeId) {
        while let Some(w) = self.waiters.iter().position(|w| w.node == node) {
            let RequestId { client, sequence, .. } = self.waiters.remove(w).request;
            self.remember(client, sequence, Ok(Reply::Leased(Vec::new())));
        }
    }

    // ------------------------------------------------------------------ finding

    fn queue(&self, name: &QueueName) -> Result<usize, Rejection> {
        let place = self.queues.iter().position(|queue| queue.name == *name);
        place.ok_or_else(|| Rejection::QueueNotFound(name.clone()))
    }

    fn by_id(&self, id: QueueId) -> usize {
        self.queues.iter().position(|queue| queue.id == id).unwrap()
    }

    fn find(&self, queue: QueueId, position: u64) -> usize {
        self.messages
            .iter()
            .position(|m| m.queue == queue && m.position == position)
            .unwrap()
    }

    fn session(&self, id: SessionId) -> Result<usize, Rejection> {
        self.sessions
            .iter()
            .position(|session| session.id == id)
            .ok_or(Rejection::SessionNotFound)
    }

    fn consumer(&self, session: SessionId, id: ConsumerId) -> Option<usize> {
        self.consumers
            .iter()
            .position(|c| (c.session, c.id) == (session, id))
    }

    fn known(&self, node: NodeId) -> Option<Incarnation> {
        self.nodes
            .iter()
            .find(|(known, _)| *known == node)
            .map(|(_, incarnation)| *incarnation)
    }

    fn turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }
}

/// Which field it is, and how it is said, is not the model's business.
fn invalid() -> Rejection {
    Rejection::InvalidArgument {
        field: String::new(),
        problem: String::new(),
    }
}

fn backoff(settings: &Settings, id: MessageId, failures: u32) -> u64 {
    let mut delay = settings.backoff_initial.0;
    for _ in 1..failures {
        delay = delay.saturating_mul(2);
    }
    delay = delay.min(settings.backoff_max.0);
    let mut seed = Vec::new();
    seed.extend(id.index.to_le_bytes());
    seed.extend(id.number.to_le_bytes());
    seed.extend(failures.to_le_bytes());
    delay - xxhash_rust::xxh3::xxh3_64(&seed) % (delay / 4 + 1)
}

fn checked(settings: Settings) -> Result<Settings, Rejection> {
    match (&settings.dead_letter_queue, &settings.dead_letter_exchange) {
        (Some(_), Some(_)) => Err(invalid()),
        _ => Ok(settings),
    }
}

/// What a message's queue keeps for its dead-letter exchange.
fn address(
    publish: &Publish,
    message: &NewMessage,
    settings: &Settings,
) -> Option<(Option<String>, BTreeMap<String, String>)> {
    settings.dead_letter_exchange.as_ref()?;
    let labels = message.labels.as_deref().cloned().unwrap_or_default();
    let key = match publish.target {
        Target::Queue(_) if labels.routing_key.is_empty() => None,
        _ => Some(labels.routing_key),
    };
    Some((key, labels.headers))
}
