//! Dead letters: messages that cannot be done, and where they go.
//!
//! A queue sends them to its dead-letter queue, or to what its dead-letter
//! exchange routes them to: to all of these queues or, for now, to none. A
//! letter never goes to a queue that it left as a dead letter before, nor to
//! one that is making room for it; where that leaves nothing, or no target is set,
//! it stays in the dead set of its queue for good.
//!
//! If a target is full, or missing, or nothing routes it, the letter stays in
//! the dead set as *backlog*. The broker tries again each
//! [`BACKLOG_RETRY`], in the order of their positions, until one
//! finds no room. One that nothing routes, or that no empty target could take,
//! holds up nobody. So nothing is lost, and no limit is passed.

use std::collections::BTreeMap;

use quorate_mutants::mutant;
use serde::{Deserialize, Serialize};

use crate::broker::Broker;
use crate::deadlines::Due;
use crate::effect::{DeadLetter, DeadReason};
use crate::event::Change;
use crate::exchange::{ExchangeId, Flow, NO_HEADERS, Routed};
use crate::ids::{Millis, QueueId, QueueName, Timestamp};
use crate::limits::{BACKLOG_RETRY, COPIES_PER_ENTRY, DEATHS_MAX, DISPLACEMENTS_MAX, PASSED_OVER_MAX};
use crate::outcome::Exit;
use crate::queue::{Queue, Record, State, Tally};
use crate::room::Displacing;

/// When the backlog of a queue is tried again. Persisted in its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Retry {
    pub(crate) at: Timestamp,
    /// With the first letter of the backlog at this position or after it.
    from: u64,
    /// Letters that were passed over in this round.
    passed_over: u32,
}

/// Where a dead letter goes.
struct Way {
    /// To these queues, in the order of their ids.
    targets: Vec<QueueId>,
    /// Through these exchanges.
    flows: BTreeMap<ExchangeId, Flow>,
}

/// Why a dead letter goes nowhere.
enum Stays {
    /// Until there is room, and so do those after it.
    ForRoom,
    /// Nothing routes it, or it would not fit into an empty target either: others
    /// may go.
    Alone,
    ForGood,
}

impl Broker {
    /// Sends a message to where dead letters of its queue go, or leaves it in the
    /// dead set. `displacing` says for what it makes room, if it does.
    pub(crate) fn dead_letter(
        &mut self,
        queue: QueueId,
        position: u64,
        reason: DeadReason,
        displacing: &mut Displacing,
    ) {
        match self.way_of_letter(queue, position, displacing) {
            Ok(way) => self.send_letter(queue, position, reason, &way, displacing),
            // Taken out before it is known to get in.
            Err(Stays::ForRoom) if mutant!("dead-letter-in-two-steps") => {
                let (targets, flows) = (Vec::new(), BTreeMap::new());
                self.send_letter(queue, position, reason, &Way { targets, flows }, displacing);
            }
            Err(Stays::ForRoom | Stays::Alone) => self.die(queue, position, reason, true),
            Err(Stays::ForGood) => self.die(queue, position, reason, false),
        }
    }

    /// A message enters the dead set.
    fn die(&mut self, queue: QueueId, position: u64, reason: DeadReason, backlog: bool) {
        let at = self.now;
        self.change(queue, position, |record| {
            record.state = State::Dead { reason, at, backlog };
            record.forget_redrive();
        });
        let record = self.record(queue, position);
        let error = record.last_error().to_owned();
        self.tell(queue, record.id, Change::Died { reason, error });
    }

    fn way_of_letter(&self, queue: QueueId, position: u64, displacing: &Displacing) -> Result<Way, Stays> {
        let letter = self.record(queue, position);
        let Routed { mut queues, flows } = self.route_letter(queue, letter)?;
        let circular =
            |target| target == queue || letter.died_in(target) || displacing.queues.contains(&target);
        queues.retain(|target| !circular(*target));
        let weary = letter.deaths() >= DEATHS_MAX || displacing.queues.len() >= DISPLACEMENTS_MAX;
        if queues.is_empty() || weary {
            return Err(Stays::ForGood);
        }
        if queues
            .iter()
            .any(|target| self.held(*target).is_too_small_for(letter))
        {
            return Err(Stays::Alone);
        }
        let full = |target: &QueueId| {
            let promised = displacing.promised.get(target).copied().unwrap_or_default();
            let more = Tally::of(letter).plus(promised);
            self.held(*target).limit_against(more, Tally::default()).is_some()
        };
        if queues.iter().any(full) {
            return Err(Stays::ForRoom);
        }
        let targets = queues.into_iter().collect();
        Ok(Way { targets, flows })
    }

    /// The queues to which dead letters of a queue go, whether or not they can take
    /// this one; none if no target is set.
    fn route_letter(&self, queue: QueueId, letter: &Record) -> Result<Routed, Stays> {
        let queue = self.held(queue);
        let mut routed = Routed::default();
        if let Some(name) = &queue.head.settings.dead_letter_queue {
            let target = self.names.get(name).ok_or(Stays::ForRoom)?;
            routed.queues.insert(*target);
        } else if let Some(name) = &queue.head.settings.dead_letter_exchange {
            if self.copies >= COPIES_PER_ENTRY {
                return Err(Stays::ForRoom);
            }
            let exchange = self.exchanges.names.get(name).ok_or(Stays::ForRoom)?;
            let key = queue.letter_key(letter);
            let headers = letter.address().map_or(&NO_HEADERS, |address| &address.headers);
            self.route(*exchange, key, headers, &mut routed);
            if routed.queues.is_empty() {
                return Err(Stays::Alone);
            }
        }
        Ok(routed)
    }

    fn send_letter(
        &mut self,
        queue: QueueId,
        position: u64,
        reason: DeadReason,
        Way { targets, flows }: &Way,
        displacing: &mut Displacing,
    ) {
        self.count_flows(flows);
        let names = targets.iter().map(|target| self.held(*target).head.name.clone());
        let left = Change::Left {
            exit: Exit::DeadLettered,
            reason: Some(reason),
            error: self.record(queue, position).last_error().to_owned(),
            to: names.collect(),
            held: None,
        };
        let group = self.group_name(queue, position);
        let mut letter = self.leave(queue, position, Exit::DeadLettered, left);
        let from = self.held(queue).head.name.clone();
        letter.seal(queue, from.clone(), reason, self.index, self.now);
        self.share(&mut letter, targets.len());
        let tally = Tally::of(&letter);
        for target in targets {
            displacing.promise(*target, tally);
        }
        for target in targets {
            self.make_room(*target, tally, displacing);
            displacing.redeem(*target, tally);
            let mut letter = letter.clone();
            letter.expires_at = self.life_end(*target, self.now, Millis(0));
            let (from, exit) = (from.clone(), Exit::DeadLettered);
            self.tell(*target, letter.id, Change::Arrived { from, exit });
            self.insert(*target, letter, &group);
        }
    }

    /// One record becomes several.
    fn share(&mut self, record: &mut Record, records: usize) {
        if records < 2 {
            return;
        }
        let known = u64::from(record.shared);
        record.shared = true;
        self.shared.add(record.id, records as u64 - known);
        self.copies += records;
    }

    // ------------------------------------------------------------------ backlog

    /// It is time to try the first letter of a backlog, or the next.
    pub(crate) fn retry_backlog(&mut self, queue: QueueId) {
        let held = self.held(queue);
        let Some(retry) = held.head.retry else {
            return;
        };
        let Some(position) = held.backlog.range(retry.from..).next().copied() else {
            self.retry_later(queue, 0);
            return;
        };
        let State::Dead { reason, at, .. } = self.record(queue, position).state else {
            unreachable!("a backlog is of dead messages");
        };
        let mut displacing = Displacing::default();
        let Retry { passed_over, .. } = retry;
        match self.way_of_letter(queue, position, &displacing) {
            Ok(way) => {
                self.send_letter(queue, position, reason, &way, &mut displacing);
                self.retry_now(queue, position + 1, passed_over);
            }
            Err(Stays::ForGood) => {
                self.change(queue, position, |record| {
                    let backlog = false;
                    record.state = State::Dead { reason, at, backlog };
                });
                self.retry_now(queue, position + 1, passed_over);
            }
            Err(Stays::ForRoom) => self.retry_later(queue, 0),
            Err(Stays::Alone) if passed_over < PASSED_OVER_MAX => {
                self.retry_now(queue, position + 1, passed_over + 1);
            }
            Err(Stays::Alone) => self.retry_later(queue, position),
        }
    }

    /// The settings of a queue have changed, or its backlog may go for another
    /// reason.
    pub(crate) fn hurry_backlog(&mut self, queue: QueueId) {
        self.retry_now(queue, 0, 0);
    }

    fn retry_now(&mut self, queue: QueueId, from: u64, passed_over: u32) {
        self.set_retry(queue, self.now, from, passed_over);
    }

    fn retry_later(&mut self, queue: QueueId, from: u64) {
        self.set_retry(queue, self.now.after(BACKLOG_RETRY), from, 0);
    }

    /// Tries then instead; not at all if there is no backlog any more.
    fn set_retry(&mut self, queue: QueueId, at: Timestamp, from: u64, passed_over: u32) {
        let head = &mut self.queues.get_mut(&queue).expect("the caller saw it").head;
        if let Some(retry) = &mut head.retry {
            self.deadlines.remove(retry.at, Due::Backlog { queue });
            self.deadlines.insert(at, Due::Backlog { queue });
            *retry = Retry {
                at,
                from,
                passed_over,
            };
        }
    }

    /// A backlog begins to be tried with its first letter, and ends with its last.
    pub(crate) fn follow_backlog(&mut self, id: QueueId) {
        let queue = self.queues.get_mut(&id).expect("the caller saw it");
        match (queue.backlog.is_empty(), queue.head.retry) {
            (false, None) => {
                let at = self.now.after(BACKLOG_RETRY);
                let (from, passed_over) = (0, 0);
                queue.head.retry = Some(Retry {
                    at,
                    from,
                    passed_over,
                });
                self.deadlines.insert(at, Due::Backlog { queue: id });
            }
            (true, Some(retry)) => {
                queue.head.retry = None;
                self.deadlines.remove(retry.at, Due::Backlog { queue: id });
            }
            _ => {}
        }
    }
}

/// What exchanges know of a message. Kept of those that may be routed once more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Address {
    /// None = the name of its queue.
    pub(crate) routing_key: Option<String>,
    pub(crate) headers: BTreeMap<String, String>,
}

impl Queue {
    /// The key under which a dead letter of this queue is routed.
    fn letter_key<'a>(&'a self, letter: &'a Record) -> &'a str {
        let set = self.head.settings.dead_letter_routing_key.as_deref();
        let own = || letter.address()?.routing_key.as_deref();
        set.or_else(own).unwrap_or(self.head.name.as_str())
    }
}

impl Record {
    /// Makes it a dead letter of a queue, with its attempts still to be made.
    fn seal(&mut self, origin_id: QueueId, origin: QueueName, reason: DeadReason, index: u64, at: Timestamp) {
        let attempts = u32::from(self.failures);
        let last_error = self.last_error().to_owned();
        let extra = self.extra_mut();
        extra.arrived = Some(index);
        extra.dead_letter = Some(DeadLetter {
            origin,
            origin_id,
            reason,
            attempts,
            first_error: std::mem::take(&mut extra.first_error),
            last_error,
            at,
        });
        extra.deaths.push(origin_id);
        extra.redrive = None;
        self.failures = 0;
        self.grants = 0;
        self.state = State::Ready;
    }
}
