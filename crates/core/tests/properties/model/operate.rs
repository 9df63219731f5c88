//! What an operator does with messages.

use std::collections::BTreeSet;

use quorate_core::command::{Operation, Selector};
use quorate_core::effect::DeadLetter;
use quorate_core::ids::{MessageId, QueueId, QueueName};
use quorate_core::outcome::{Exit, MessageState, Outcome, Rejection, Reply};

use super::{Message, Model, State, invalid};

/// What a redrive found.
#[derive(Clone)]
pub(super) struct Redrive {
    pub(super) began: u64,
    from: Option<QueueName>,
    state: State,
    failures: u32,
    grants: u32,
    dead_letter: Option<DeadLetter>,
    first_error: String,
    deaths: Vec<QueueId>,
}

impl Model {
    pub(super) fn operate(
        &mut self,
        queue: &QueueName,
        messages: &[Selector],
        operation: &Operation,
    ) -> Outcome {
        if messages.is_empty() {
            return Err(invalid());
        }
        let queue = self.queues[self.queue(queue)?].id;
        match operation {
            Operation::Move { to } if self.queues[self.queue(to)?].id == queue => return Err(invalid()),
            Operation::Redrive {
                continues: Some(began),
                ..
            } if *began > self.index => return Err(invalid()),
            Operation::Redrive { to: Some(to), .. } => drop(self.queue(to)?),
            _ => {}
        }
        let mut results = Vec::new();
        let mut freed_in = BTreeSet::new();
        for message in messages {
            results.push(self.operate_on(queue, message, operation, &mut freed_in));
        }
        let queues = freed_in
            .into_iter()
            .map(|id| self.queues[self.by_id(id)].name.clone());
        Ok(Reply::Operated {
            results,
            queues: queues.collect(),
        })
    }

    /// The message that a selector names.
    pub(super) fn selected(&self, queue: QueueId, selector: &Selector) -> Option<usize> {
        let (id, dedup_id) = match selector {
            Selector::Message(id) => (Some(*id), ""),
            Selector::DedupId(dedup_id) => (None, &**dedup_id),
        };
        let named = |m: &Message| m.queue == queue && id.map_or(m.dedup_id == dedup_id, |id| m.id == id);
        let all = self.messages.iter().enumerate().filter(|(_, m)| named(m));
        all.max_by_key(|(_, m)| (m.id, m.position)).map(|(i, _)| i)
    }

    fn operate_on(
        &mut self,
        queue: QueueId,
        selector: &Selector,
        operation: &Operation,
        freed_in: &mut BTreeSet<QueueId>,
    ) -> Result<MessageId, Rejection> {
        let Some(i) = self.selected(queue, selector) else {
            return Err(Rejection::MessageNotFound {
                queue: self.queues[self.by_id(queue)].name.clone(),
                message: selector.clone(),
            });
        };
        let message = self.messages[i].clone();
        if let State::Leased { .. } = message.state {
            return Err(refused(&message));
        }
        match operation {
            Operation::Delete => self.drop_message(i, Exit::Deleted),
            Operation::Move { to } => {
                let moved = Message {
                    failures: 0,
                    grants: 0,
                    state: State::Ready,
                    deaths: Vec::new(),
                    redrive: None,
                    ..message.clone()
                };
                self.transfer(i, to, moved)?;
            }
            Operation::Reschedule { delay, deliver_at } => {
                let due = deliver_at.0.max(self.now + delay.0);
                self.reschedule(i, due)?;
            }
            Operation::Redrive { to, continues } => {
                let began = continues.unwrap_or(self.index);
                freed_in.insert(self.redrive(i, to.as_ref(), began)?);
            }
            Operation::UndoRedrive { redrive } => self.undo_redrive(i, *redrive)?,
        }
        Ok(message.id)
    }

    fn reschedule(&mut self, i: usize, due: u64) -> Result<(), Rejection> {
        let now = self.now;
        let message = &mut self.messages[i];
        let began = match message.state {
            State::Delayed(until) if message.grants == 0 => until,
            State::Delayed(_) | State::Ready => now,
            _ => return Err(refused(message)),
        };
        if message.expires_at != u64::MAX {
            message.expires_at = due + message.expires_at.saturating_sub(began);
        }
        message.state = if due > now {
            State::Delayed(due)
        } else {
            State::Ready
        };
        Ok(())
    }

    fn redrive(&mut self, i: usize, to: Option<&QueueName>, began: u64) -> Result<QueueId, Rejection> {
        let message = self.messages[i].clone();
        let here = self.queues[self.by_id(message.queue)].name.clone();
        let dead = matches!(message.state, State::Dead { .. });
        if !dead && message.dead_letter.is_none() {
            return Err(refused(&message));
        }
        let target = match (to, &message.dead_letter) {
            (Some(to), _) => to.clone(),
            (None, Some(letter)) if !dead => letter.origin.clone(),
            (None, _) => here.clone(),
        };
        let target_id = self.queues[self.queue(&target)?].id;
        if target == here && !dead {
            return Err(refused(&message));
        }
        let found = Redrive {
            began,
            from: (target != here).then_some(here.clone()),
            state: if dead { message.state } else { State::Ready },
            failures: message.failures,
            grants: message.grants,
            dead_letter: message.dead_letter.clone(),
            first_error: message.first_error.clone(),
            deaths: message.deaths.clone(),
        };
        let mut free = Message {
            failures: 0,
            state: State::Ready,
            deaths: Vec::new(),
            redrive: Some(Box::new(found)),
            ..message.clone()
        };
        if target != here {
            free.grants = 0;
            if let Some(letter) = free.dead_letter.take() {
                free.first_error = letter.first_error;
            }
            self.transfer(i, &target, free)?;
            return Ok(target_id);
        }
        let bytes = u64::from(message.bytes);
        self.ensure_room(message.queue, bytes)?;
        self.make_room(message.queue, 1, bytes, &[]);
        let i = self.find(message.queue, message.position);
        free.expires_at = self.life_from_now(message.queue);
        self.messages[i] = free;
        self.follow_backlogs();
        Ok(target_id)
    }

    fn undo_redrive(&mut self, i: usize, began: u64) -> Result<(), Rejection> {
        let message = self.messages[i].clone();
        let found = message.redrive.clone().filter(|found| found.began == began);
        let waits = matches!(message.state, State::Ready | State::Delayed(_));
        let (true, Some(found)) = (waits, found) else {
            return Err(refused(&message));
        };
        let as_found = Message {
            state: found.state,
            failures: found.failures,
            grants: found.grants.max(message.grants),
            dead_letter: found.dead_letter,
            first_error: found.first_error,
            deaths: found.deaths,
            redrive: None,
            ..message
        };
        match &found.from {
            None => {
                self.messages[i] = as_found;
                self.follow_backlogs();
                Ok(())
            }
            Some(from) => self.transfer(i, from, as_found),
        }
    }

    /// Takes a message out of its queue and enters it into another.
    fn transfer(&mut self, i: usize, to: &QueueName, moved: Message) -> Result<(), Rejection> {
        let target = self.queues[self.queue(to)?].id;
        let live = !matches!(moved.state, State::Dead { .. });
        let bytes = u64::from(moved.bytes);
        if live {
            self.ensure_room(target, bytes)?;
        }
        let message = self.messages.remove(i);
        self.leave_group(message.queue, &message.group);
        self.remember_exit(&message, Exit::Moved);
        let q = self.by_id(message.queue);
        self.queues[q].gone.moved += 1;
        self.follow_backlogs();
        self.under_way.push(message.id);
        if live {
            self.make_room(target, 1, bytes, &[]);
        }
        let expires_at = self.life_from_now(target);
        self.enter(target, Message { expires_at, ..moved });
        self.under_way.pop();
        self.follow_backlogs();
        Ok(())
    }

    fn ensure_room(&self, queue: QueueId, bytes: u64) -> Result<(), Rejection> {
        if self.fits(queue, 1, bytes) {
            return Ok(());
        }
        Err(Rejection::QueueFull {
            queue: self.queues[self.by_id(queue)].name.clone(),
            limit: String::new(),
        })
    }

    fn life_from_now(&self, queue: QueueId) -> u64 {
        match self.queues[self.by_id(queue)].settings.message_ttl.0 {
            0 => u64::MAX,
            ttl => self.now + ttl,
        }
    }
}

fn refused(message: &Message) -> Rejection {
    Rejection::WrongState {
        message: message.id,
        state: message.state(),
        problem: String::new(),
    }
}

impl Message {
    pub(super) fn state(&self) -> MessageState {
        match self.state {
            State::Ready => MessageState::Ready,
            State::Delayed(_) => MessageState::Delayed,
            State::Leased { .. } => MessageState::Leased,
            State::Dead { .. } => MessageState::Dead,
        }
    }
}
