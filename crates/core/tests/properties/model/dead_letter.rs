//! Where dead letters go, and those that wait until they can.

use quorate_core::command::Labels;
use quorate_core::effect::{DeadLetter, DeadReason};
use quorate_core::ids::{QueueId, Timestamp};
use quorate_core::outcome::Exit;

use super::{Message, Model, State};

const RETRY: u64 = 1_000;
const PASSED_OVER_MAX: u32 = 64;

/// When the backlog of a queue is looked at, from which position, and how many
/// letters were passed over.
#[derive(Clone, Copy)]
pub(super) struct Retry {
    pub(super) at: u64,
    from: u64,
    passed_over: u32,
}

enum Fate {
    Goes(Vec<QueueId>),
    WaitsForRoom,
    WaitsAlone,
    Stays,
}

impl Model {
    pub(super) fn sends_dead_letters(&self, queue: QueueId) -> bool {
        let settings = &self.queues[self.by_id(queue)].settings;
        settings.dead_letter_queue.is_some() || settings.dead_letter_exchange.is_some()
    }

    pub(super) fn dead_letter(&mut self, i: usize, reason: DeadReason, making_room: &[QueueId]) {
        match self.fate(i, making_room) {
            Fate::Goes(targets) => self.send(i, reason, &targets, making_room),
            Fate::WaitsForRoom | Fate::WaitsAlone => self.die(i, reason, true),
            Fate::Stays => self.die(i, reason, false),
        }
        self.follow_backlogs();
    }

    fn die(&mut self, i: usize, reason: DeadReason, backlog: bool) {
        self.messages[i].state = State::Dead { reason, backlog };
        self.messages[i].redrive = None;
    }

    fn fate(&mut self, i: usize, making_room: &[QueueId]) -> Fate {
        let message = self.messages[i].clone();
        let settings = self.queues[self.by_id(message.queue)].settings.clone();
        let found = match (settings.dead_letter_queue, settings.dead_letter_exchange) {
            (None, None) => return Fate::Stays,
            (Some(name), _) => match self.queue(&name) {
                Ok(target) => vec![self.queues[target].id],
                Err(_) => return Fate::WaitsForRoom,
            },
            (None, Some(name)) => {
                if self.exchanges.iter().all(|exchange| exchange.name != name) {
                    return Fate::WaitsForRoom;
                }
                let found = self.route(&name, &self.labels_of_letter(&message), false);
                if found.is_empty() {
                    return Fate::WaitsAlone;
                }
                found
            }
        };
        let circular = |target: &QueueId| {
            *target == message.queue || message.deaths.contains(target) || making_room.contains(target)
        };
        let targets: Vec<QueueId> = found.into_iter().filter(|target| !circular(target)).collect();
        if targets.is_empty() {
            return Fate::Stays;
        }
        let too_small = |target: &QueueId| {
            let most = self.queues[self.by_id(*target)].settings.bytes_max;
            most > 0 && u64::from(message.bytes) > most
        };
        if targets.iter().any(too_small) {
            return Fate::WaitsAlone;
        }
        let has_room = |target: &QueueId| {
            let promised = self.promised.iter().filter(|(promised, ..)| promised == target);
            let (count, bytes) = promised.fold((1, u64::from(message.bytes)), |sum, (_, count, bytes)| {
                (sum.0 + count, sum.1 + bytes)
            });
            self.fits(*target, count, bytes)
        };
        if targets.iter().all(has_room) {
            Fate::Goes(targets)
        } else {
            Fate::WaitsForRoom
        }
    }

    fn labels_of_letter(&self, message: &Message) -> Labels {
        let queue = &self.queues[self.by_id(message.queue)];
        let (own, headers) = message.address.clone().unwrap_or_default();
        let key = queue.settings.dead_letter_routing_key.clone().or(own);
        Labels {
            routing_key: key.unwrap_or_else(|| queue.name.as_str().to_owned()),
            headers,
            ..Labels::default()
        }
    }

    fn send(&mut self, i: usize, reason: DeadReason, targets: &[QueueId], making_room: &[QueueId]) {
        let message = self.messages[i].clone();
        let q = self.by_id(message.queue);
        if let Some(exchange) = self.queues[q].settings.dead_letter_exchange.clone() {
            self.route(&exchange, &self.labels_of_letter(&message), true);
        }
        self.messages.remove(i);
        self.leave_group(message.queue, &message.group);
        self.remember_exit(&message, Exit::DeadLettered);
        self.queues[q].gone.dead_lettered += 1;
        self.follow_backlogs();
        let letter = Message {
            failures: 0,
            grants: 0,
            state: State::Ready,
            first_error: String::new(),
            redrive: None,
            dead_letter: Some(DeadLetter {
                origin: self.queues[q].name.clone(),
                origin_id: message.queue,
                reason,
                attempts: message.failures,
                first_error: message.first_error.clone(),
                last_error: message.last_error.clone(),
                at: Timestamp(self.now),
            }),
            deaths: [&message.deaths[..], &[message.queue]].concat(),
            ..message
        };
        let bytes = u64::from(letter.bytes);
        for target in targets {
            self.promised.push((*target, 1, bytes));
        }
        self.under_way.push(letter.id);
        for target in targets {
            self.make_room(*target, 1, bytes, making_room);
            let its = (*target, 1, bytes);
            let place = self.promised.iter().rposition(|promised| *promised == its);
            self.promised.remove(place.unwrap());
            let ttl = self.queues[self.by_id(*target)].settings.message_ttl.0;
            let expires_at = if ttl == 0 { u64::MAX } else { self.now + ttl };
            let letter = Message {
                expires_at,
                ..letter.clone()
            };
            self.enter(*target, letter);
        }
        self.under_way.pop();
    }

    // ------------------------------------------------------------------ backlog

    /// A retry begins to be due with the first letter that waits, and ends with
    /// the last.
    pub(super) fn follow_backlogs(&mut self) {
        for queue in &mut self.queues {
            let waits =
                |m: &Message| m.queue == queue.id && matches!(m.state, State::Dead { backlog: true, .. });
            let any = self.messages.iter().any(waits);
            match queue.retry {
                None if any => {
                    queue.retry = Some(Retry {
                        at: self.now + RETRY,
                        from: 0,
                        passed_over: 0,
                    });
                }
                Some(_) if !any => queue.retry = None,
                _ => {}
            }
        }
    }

    /// Looks at one letter.
    pub(super) fn retry(&mut self, queue: QueueId) {
        let q = self.by_id(queue);
        let Some(Retry {
            from, passed_over, ..
        }) = self.queues[q].retry
        else {
            panic!("nothing to retry")
        };
        let first = self.messages.iter().position(|m| {
            m.queue == queue && m.position >= from && matches!(m.state, State::Dead { backlog: true, .. })
        });
        let Some(i) = first else {
            return self.set_retry(queue, self.now + RETRY, 0, 0);
        };
        let position = self.messages[i].position;
        let State::Dead { reason, .. } = self.messages[i].state else {
            panic!("not dead")
        };
        match self.fate(i, &[]) {
            Fate::Goes(targets) => {
                self.send(i, reason, &targets, &[]);
                self.set_retry(queue, self.now, position + 1, passed_over);
            }
            Fate::Stays => {
                self.die(i, reason, false);
                self.set_retry(queue, self.now, position + 1, passed_over);
            }
            Fate::WaitsAlone if passed_over < PASSED_OVER_MAX => {
                self.set_retry(queue, self.now, position + 1, passed_over + 1);
            }
            Fate::WaitsAlone => self.set_retry(queue, self.now + RETRY, position, 0),
            Fate::WaitsForRoom => self.set_retry(queue, self.now + RETRY, 0, 0),
        }
        self.follow_backlogs();
    }

    pub(super) fn set_retry(&mut self, queue: QueueId, at: u64, from: u64, passed_over: u32) {
        let q = self.by_id(queue);
        if let Some(retry) = &mut self.queues[q].retry {
            *retry = Retry {
                at,
                from,
                passed_over,
            };
        }
    }
}
