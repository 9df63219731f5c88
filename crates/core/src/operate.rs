//! What an operator does with certain messages: each by itself, and none that
//! somebody holds.
//!
//! A message that goes to another queue starts there as a new one would, with its
//! content, group and dedup id. It needs room there like any other, and leaves
//! its queue as [moved](Exit::Moved).
//!
//! A redrive takes dead letters: one of the dead set becomes ready in its place,
//! one that came to this queue as a dead letter goes back to where it died. What
//! the redrive found is kept with the message until it dies again, so that the
//! redrive can be undone as long as nobody holds the message. A redrive of more
//! messages than one command names is several commands, of which each says with
//! which entry the redrive began: that index names all of it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::broker::Broker;
use crate::command::{Operation, Selector};
use crate::effect::DeadLetter;
use crate::event::Change;
use crate::ids::{MessageId, Millis, QueueId, QueueName, Timestamp};
use crate::limits::{OPERATE_MESSAGES_MAX, SPAN_MAX};
use crate::outcome::{Exit, MessageState, Outcome, Rejection, Reply};
use crate::queue::{Extra, Record, State, Tally, check_label, check_span, invalid};
use crate::room::{Account, Displacing};

/// What a redrive found: all that it changed of a message. Persisted in snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Redrive {
    /// Index of the entry with which it began.
    pub(crate) began: u64,
    /// The queue it was in, if another.
    from: Option<QueueName>,
    state: State,
    failures: u16,
    grants: u32,
    dead_letter: Option<DeadLetter>,
    first_error: String,
    deaths: Vec<QueueId>,
}

/// How a message enters another queue.
struct Arrival {
    target: QueueId,
    state: State,
}

impl Broker {
    pub(crate) fn operate(
        &mut self,
        queue: &QueueName,
        messages: &[Selector],
        operation: &Operation,
    ) -> Outcome {
        if messages.is_empty() || messages.len() > OPERATE_MESSAGES_MAX {
            let problem = format!("1 to {OPERATE_MESSAGES_MAX}, not {}", messages.len());
            return Err(invalid("messages", problem));
        }
        let queue = self.queue_id(queue)?;
        self.check_operation(queue, operation)?;
        let mut freed_in = BTreeSet::new();
        let results = messages
            .iter()
            .map(|message| self.operate_on(queue, message, operation, &mut freed_in))
            .collect();
        let queues = freed_in
            .into_iter()
            .map(|queue| self.held(queue).head.name.clone());
        Ok(Reply::Operated {
            results,
            queues: queues.collect(),
        })
    }

    /// What is wrong with it is wrong for all messages.
    fn check_operation(&self, queue: QueueId, operation: &Operation) -> Result<(), Rejection> {
        match operation {
            Operation::Move { to } if self.queue_id(to)? == queue => {
                Err(invalid("to", "another queue, not the one it is in".to_owned()))
            }
            Operation::Redrive { to, continues } => {
                if let Some(began) = continues.filter(|began| *began > self.index) {
                    let problem = format!("the log index of an earlier redrive, not {began}");
                    return Err(invalid("continues", problem));
                }
                to.as_ref().map_or(Ok(()), |to| self.queue_id(to).map(drop))
            }
            Operation::Reschedule { delay, deliver_at } => {
                check_span("delay_ms", *delay)?;
                self.check_deliver_at(*deliver_at)
            }
            _ => Ok(()),
        }
    }

    /// It is not too far ahead.
    pub(crate) fn check_deliver_at(&self, at: Timestamp) -> Result<(), Rejection> {
        if at > self.now.after(SPAN_MAX) {
            let problem = format!("at most {} ms (10 years) from now, not {}", SPAN_MAX.0, at.0);
            return Err(invalid("deliver_at_ms", problem));
        }
        Ok(())
    }

    /// A redrive adds the queue where the message is now to `freed_in`.
    fn operate_on(
        &mut self,
        queue: QueueId,
        selector: &Selector,
        operation: &Operation,
        freed_in: &mut BTreeSet<QueueId>,
    ) -> Result<MessageId, Rejection> {
        let position = self.select(queue, selector)?;
        let record = self.record(queue, position);
        let id = record.id;
        if let State::Leased(_) = record.state {
            return Err(record.refused("wait until its holder settles it, or its lease ends"));
        }
        match operation {
            Operation::Delete => self.remove(queue, position, Exit::Deleted),
            Operation::Move { to } => {
                let target = self.queue_id(to)?;
                self.transfer(queue, position, Arrival::ready(target), |extra| {
                    extra.deaths.clear();
                    extra.redrive = None;
                })?;
            }
            Operation::Reschedule { delay, deliver_at } => {
                self.reschedule(queue, position, *delay, *deliver_at)?;
            }
            Operation::Redrive { to, continues } => {
                let began = continues.unwrap_or(self.index);
                freed_in.insert(self.redrive(queue, position, to.as_ref(), began)?);
            }
            Operation::UndoRedrive { redrive } => self.undo_redrive(queue, position, *redrive)?,
        }
        Ok(id)
    }

    fn select(&self, queue: QueueId, selector: &Selector) -> Result<u64, Rejection> {
        if let Selector::DedupId(dedup_id) = selector {
            check_label("dedup_id", dedup_id)?;
        }
        let queue = self.held(queue);
        queue.find(selector).ok_or_else(|| Rejection::MessageNotFound {
            queue: queue.head.name.clone(),
            message: selector.clone(),
        })
    }

    /// What is left of a message's life is left of it when it becomes ready.
    fn reschedule(
        &mut self,
        queue: QueueId,
        position: u64,
        delay: Millis,
        deliver_at: Timestamp,
    ) -> Result<(), Rejection> {
        let now = self.now;
        let record = self.record(queue, position);
        let id = record.id;
        let life_begins = match record.state {
            // It was scheduled; the delay of a retry is a part of its life.
            State::Delayed { until } if record.grants == 0 => until,
            State::Delayed { .. } | State::Ready => now,
            State::Leased(_) | State::Dead { .. } => {
                return Err(record.refused("redrive it first"));
            }
        };
        let due = now.after(delay).max(deliver_at);
        let until = (due > now).then_some(due);
        self.change(queue, position, |record| {
            if record.expires_at != Timestamp::NEVER {
                record.expires_at = due.after(record.expires_at.since(life_begins));
            }
            record.state = until.map_or(State::Ready, |until| State::Delayed { until });
        });
        self.tell(queue, id, Change::Rescheduled { until });
        Ok(())
    }

    /// Says where the message is now.
    fn redrive(
        &mut self,
        queue: QueueId,
        position: u64,
        to: Option<&QueueName>,
        began: u64,
    ) -> Result<QueueId, Rejection> {
        let record = self.record(queue, position);
        let dead = matches!(record.state, State::Dead { .. });
        let target = match (to, record.dead_letter()) {
            (Some(to), Some(_)) => self.queue_id(to)?,
            (Some(to), None) if dead => self.queue_id(to)?,
            (None, _) if dead => queue,
            (None, Some(letter)) => self.queue_id(&letter.origin)?,
            (_, None) => return Err(record.refused("it is no dead letter")),
        };
        if target == queue && !dead {
            return Err(record.refused("it is in that queue, and can be leased there"));
        }
        let mut found = Redrive::of(record, began);
        if target == queue {
            self.redrive_in_place(queue, position, found)?;
            return Ok(target);
        }
        found.from = Some(self.held(queue).head.name.clone());
        self.transfer(queue, position, Arrival::ready(target), |extra| {
            if let Some(letter) = extra.dead_letter.take() {
                extra.first_error = letter.first_error;
            }
            extra.deaths.clear();
            extra.redrive = Some(Box::new(found));
        })?;
        Ok(target)
    }

    fn redrive_in_place(&mut self, queue: QueueId, position: u64, found: Redrive) -> Result<(), Rejection> {
        let record = self.record(queue, position);
        let (id, tally) = (record.id, Tally::of(record));
        self.check_room(queue, tally, &Account::default())?;
        self.make_room(queue, tally, &mut Displacing::default());
        let expires_at = self.life_end(queue, self.now, Millis(0));
        self.change(queue, position, |record| {
            record.state = State::Ready;
            record.expires_at = expires_at;
            record.failures = 0;
            let extra = record.extra_mut();
            extra.deaths.clear();
            extra.redrive = Some(Box::new(found));
        });
        self.tell(queue, id, Change::Redriven);
        Ok(())
    }

    fn undo_redrive(&mut self, queue: QueueId, position: u64, redrive: u64) -> Result<(), Rejection> {
        let record = self.record(queue, position);
        let id = record.id;
        let found = record.redrive().filter(|found| found.began == redrive);
        let waits = matches!(record.state, State::Ready | State::Delayed { .. });
        let (true, Some(found)) = (waits, found) else {
            return Err(record.refused("that redrive did not set it free, or it has died again since"));
        };
        let found = found.clone();
        let Some(from) = &found.from else {
            self.change(queue, position, |record| found.put_back(record));
            self.tell(queue, id, Change::RedriveUndone);
            return Ok(());
        };
        let target = self.queue_id(from)?;
        let arrival = Arrival {
            target,
            state: found.state.clone(),
        };
        let position = self.transfer_to(queue, position, arrival, |record| found.put_back(record))?;
        if let State::Dead { reason, .. } = found.state {
            let error = self.record(target, position).last_error().to_owned();
            self.tell(target, id, Change::Died { reason, error });
        }
        Ok(())
    }

    /// Moves a message to the end of another queue, with no attempts made, and with
    /// a change of what is known of it.
    fn transfer(
        &mut self,
        queue: QueueId,
        position: u64,
        arrival: Arrival,
        change: impl FnOnce(&mut Extra),
    ) -> Result<(), Rejection> {
        self.transfer_to(queue, position, arrival, |record| {
            record.failures = 0;
            record.grants = 0;
            change(record.extra_mut());
        })?;
        Ok(())
    }

    fn transfer_to(
        &mut self,
        queue: QueueId,
        position: u64,
        Arrival { target, state }: Arrival,
        change: impl FnOnce(&mut Record),
    ) -> Result<u64, Rejection> {
        let live = !matches!(state, State::Dead { .. });
        let record = self.record(queue, position);
        let (id, tally) = (record.id, Tally::of(record));
        if live {
            self.check_room(target, tally, &Account::default())?;
        }
        let group = self.group_name(queue, position);
        let (from, to) = (
            self.held(queue).head.name.clone(),
            self.held(target).head.name.clone(),
        );
        let left = Change::Left {
            exit: Exit::Moved,
            reason: None,
            error: String::new(),
            to: vec![to],
            held: None,
        };
        let mut record = self.leave(queue, position, Exit::Moved, left);
        if live {
            self.make_room(target, tally, &mut Displacing::default());
        }
        record.expires_at = self.life_end(target, self.now, Millis(0));
        change(&mut record);
        record.state = state;
        record.extra_mut().arrived = Some(self.index);
        let exit = Exit::Moved;
        self.tell(target, id, Change::Arrived { from, exit });
        Ok(self.insert(target, record, &group))
    }
}

impl Arrival {
    fn ready(target: QueueId) -> Self {
        let state = State::Ready;
        Self { target, state }
    }
}

impl Redrive {
    fn of(record: &Record, began: u64) -> Self {
        let extra = record.extra.as_deref().cloned().unwrap_or_default();
        Self {
            began,
            from: None,
            state: match record.state {
                State::Delayed { .. } => State::Ready,
                ref state => state.clone(),
            },
            failures: record.failures,
            grants: record.grants,
            dead_letter: extra.dead_letter,
            first_error: extra.first_error,
            deaths: extra.deaths,
        }
    }

    /// Makes a message again what it was.
    fn put_back(&self, record: &mut Record) {
        record.state = self.state.clone();
        record.failures = self.failures;
        record.grants = record.grants.max(self.grants);
        let extra = record.extra_mut();
        extra.dead_letter.clone_from(&self.dead_letter);
        extra.first_error.clone_from(&self.first_error);
        extra.deaths.clone_from(&self.deaths);
        extra.redrive = None;
    }
}

impl Record {
    pub(crate) fn redrive(&self) -> Option<&Redrive> {
        self.extra.as_ref()?.redrive.as_deref()
    }

    /// It dies again: from here on nothing is to be undone.
    pub(crate) fn forget_redrive(&mut self) {
        if let Some(extra) = &mut self.extra {
            extra.redrive = None;
        }
    }

    fn refused(&self, problem: &str) -> Rejection {
        Rejection::WrongState {
            message: self.id,
            state: MessageState::of(&self.state),
            problem: problem.to_owned(),
        }
    }
}
