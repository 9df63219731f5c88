//! Somebody who sees entries, and the answers, effects and events that came of them,
//! and knows what was promised. Looks at no state but settings and counts.
//!
//! Each rule is one of the numbered invariants of jepsen-lite, and is checked by what
//! was said alone: a broker that is wrong together with its model is found here.
//! Entries hold one command at most, so that what came of one is known to come of
//! that command, or of the time.
//!
//! Events do not say of which copy they are if a queue holds several of one message
//! (moved there and back, it may). Of those nothing is asked until they are gone.

use std::collections::{BTreeMap, BTreeSet};

use quorate_core::command::{Command, NewMessage, Operation, Publish, Settings, Settlement, Target, Verdict};
use quorate_core::effect::{DeadReason, Effect, Leased};
use quorate_core::event::{Change, Event, Returned};
use quorate_core::ids::{MessageId, Millis, QueueId, Timestamp, Token};
use quorate_core::outcome::{Exit, Outcome, Published, Rejection, Reply, Settled};
use quorate_core::{Applied, Broker};

use crate::random_log::Entry;

/// What was seen so far.
#[derive(Default)]
pub(crate) struct Witness {
    now: Timestamp,
    /// Of queues, as they were before the entry under way.
    settings: BTreeMap<QueueId, Settings>,
    /// What was said of messages when they were published.
    published: BTreeMap<MessageId, NewMessage>,
    copies: BTreeMap<(QueueId, MessageId), Copy>,
    /// Of these a queue holds several copies: how many.
    blurred: BTreeMap<(QueueId, MessageId), usize>,
    acked: BTreeSet<(QueueId, MessageId)>,
    /// By the number of the grant.
    leases: BTreeMap<u64, Lease>,
    dedup_ids: BTreeMap<(QueueId, String), Sighting>,
    /// How many copies have entered anywhere.
    entered: u64,
}

/// A message in a queue.
#[derive(Clone, Debug)]
struct Copy {
    entered: u64,
    /// Before this nobody may be given it.
    due: Option<Timestamp>,
    /// Nor from here on, as far as its publisher set a life.
    expires: Option<Timestamp>,
    /// Leases that ended in failure; None if an undone redrive brought some back.
    failures: Option<u32>,
    ready: bool,
    grant: Option<u64>,
}

/// A lease as its holder was told.
#[derive(Clone, Copy, Debug)]
struct Lease {
    queue: QueueId,
    message: MessageId,
    attempt: u32,
    until: Timestamp,
    /// None until its holder was told.
    token: Option<Token>,
    over: bool,
    /// Of one of several copies: when it ends is not known.
    blurred: bool,
}

/// The last message of a dedup id, and the narrowest window of its queue since.
#[derive(Clone, Copy, Debug)]
struct Sighting {
    at: Timestamp,
    window: Millis,
    count_max: u64,
    others: u64,
}

impl Lease {
    fn begun(event: &Event, attempt: u32, until: Timestamp) -> Self {
        Self {
            queue: event.queue,
            message: event.message,
            attempt,
            until,
            token: None,
            over: false,
            blurred: false,
        }
    }
}

impl Witness {
    /// Sees an entry and what came of it; `broker` has applied it. What is wrong is
    /// a sentence that begins with the number of the invariant.
    pub(crate) fn see(&mut self, entry: &Entry, applied: &Applied, broker: &Broker) -> Result<(), String> {
        assert!(entry.requests.len() <= 1, "one command at a time");
        let expected = self.now.max(entry.meta.at);
        ensure(broker.now() == expected, || {
            format!("I14: cluster time is {}, not {}", broker.now().0, expected.0)
        })?;
        self.now = expected;
        self.learn_published(entry);
        self.check_answers(entry, applied)?;
        for event in &applied.events {
            self.see_event(entry, event)?;
        }
        check_moves(&applied.events)?;
        self.learn_tokens(applied)?;
        self.learn_queues(broker);
        self.check_conservation(broker)?;
        let late = self
            .leases
            .values()
            .find(|lease| !lease.over && !lease.blurred && lease.until <= self.now);
        ensure(late.is_none(), || {
            format!("I14: at {} a lease goes on: {late:?}", self.now.0)
        })
    }

    fn learn_published(&mut self, entry: &Entry) {
        let publishes: &[Publish] = match entry.requests.first().map(|request| &request.command) {
            Some(Command::Publish(publish)) => std::slice::from_ref(publish),
            Some(Command::Transact { publishes, .. }) => publishes,
            _ => return,
        };
        let messages = publishes.iter().flat_map(|publish| &publish.messages);
        for (number, message) in (0..).zip(messages) {
            let id = MessageId {
                index: entry.meta.index,
                number,
            };
            self.published.insert(id, message.clone());
        }
    }

    // ------------------------------------------------------------------ answers

    fn check_answers(&mut self, entry: &Entry, applied: &Applied) -> Result<(), String> {
        let (Some(request), Some(outcome)) = (entry.requests.first(), applied.outcomes.first()) else {
            return Ok(());
        };
        let count = |found: fn(&Change) -> bool| applied.events.iter().filter(|e| found(&e.change)).count();
        let of_command = applied
            .events
            .iter()
            .find(|event| comes_of_a_command(&event.change));
        if !applied.repeated.is_empty() {
            return ensure(of_command.is_none(), || {
                format!("I7: a repeated request was done again: {of_command:?}")
            });
        }
        let Ok(reply) = outcome else {
            return ensure(of_command.is_none(), || {
                format!("I18: refused by {outcome:?}, and still: {of_command:?}")
            });
        };
        let acks = count(|change| {
            matches!(
                change,
                Change::Left {
                    exit: Exit::Acked,
                    ..
                }
            )
        });
        let enters = count(|change| matches!(change, Change::Published { .. }));
        match (&request.command, reply) {
            (Command::Settle { settlements }, Reply::Settled(settled)) => {
                for (settlement, settled) in settlements.iter().zip(settled) {
                    self.check_settled(settlement, settled)?;
                }
            }
            (
                Command::Transact {
                    settlements,
                    publishes,
                },
                Reply::Transacted { settled, published },
            ) => {
                for (settlement, settled) in settlements.iter().zip(settled) {
                    self.check_settled(settlement, &Ok(*settled))?;
                }
                let asked = settlements.iter().filter(|s| s.verdict == Verdict::Ack).count();
                let whole = acks == asked && entered_fits(publishes, published, enters);
                ensure(whole, || {
                    format!("I8: {acks} of {asked} acked, {enters} entered: {published:?}")
                })?;
            }
            (Command::Publish(publish), Reply::Published(published)) => {
                let (publishes, published) = (std::slice::from_ref(publish), std::slice::from_ref(published));
                ensure(entered_fits(publishes, published, enters), || {
                    format!("I16: {enters} entered, answered {published:?}")
                })?;
            }
            _ => {}
        }
        Ok(())
    }

    /// A settlement is done if its token is that of a lease that goes on, and else is
    /// refused.
    fn check_settled(
        &mut self,
        Settlement { token, verdict }: &Settlement,
        settled: &Result<Settled, Rejection>,
    ) -> Result<(), String> {
        let lease = self.leases.get(&token.grant).copied();
        if lease.is_some_and(|lease| lease.blurred) {
            return Ok(());
        }
        let lease = lease.filter(|lease| lease.token == Some(*token));
        let is_current = lease.is_some_and(|lease| !lease.over && lease.until > self.now);
        match settled {
            Ok(_) => ensure(is_current, || {
                format!("I9: settled by a token that is not current: {token:?} of {lease:?}")
            })?,
            Err(Rejection::StaleLease) => ensure(!is_current, || {
                format!("I9: refused by a token that is current: {token:?} of {lease:?}")
            })?,
            Err(_) => {}
        }
        if settled.is_ok() && !matches!(verdict, Verdict::Extend { .. }) {
            // A second settlement of the same command comes too late.
            if let Some(lease) = self.leases.get_mut(&token.grant) {
                lease.over = true;
            }
        }
        Ok(())
    }

    // ------------------------------------------------------------------- events

    fn see_event(&mut self, entry: &Entry, event: &Event) -> Result<(), String> {
        let place = (event.queue, event.message);
        match &event.change {
            Change::Published {
                dedup_id,
                delayed_until,
                ..
            } => {
                self.check_dedup(event.queue, dedup_id)?;
                let copy = self.published_copy(event, *delayed_until)?;
                self.enter(place, copy);
                return Ok(());
            }
            Change::Arrived { .. } => {
                let undone = entry.requests.iter().any(|request| {
                    matches!(
                        request.command,
                        Command::Operate {
                            operation: Operation::UndoRedrive { .. },
                            ..
                        }
                    )
                });
                let copy = Copy {
                    entered: 0,
                    due: None,
                    expires: None,
                    failures: (!undone).then_some(0),
                    ready: true,
                    grant: None,
                };
                self.enter(place, copy);
                return Ok(());
            }
            Change::Duplicate { .. } => return Ok(()),
            Change::Leased {
                grant,
                attempt,
                until,
                ..
            } if self.blurred.contains_key(&place) => {
                let lease = Lease {
                    blurred: true,
                    ..Lease::begun(event, *attempt, *until)
                };
                self.leases.insert(*grant, lease);
                return Ok(());
            }
            Change::Left { .. } if self.blurred.contains_key(&place) => return self.leave_blurred(place),
            _ if self.blurred.contains_key(&place) => return Ok(()),
            _ => {}
        }
        let acked = self.acked.contains(&place);
        let Some(mut copy) = self.copies.remove(&place) else {
            let number = if acked {
                "I4: acked, and still"
            } else {
                "I2: never published, and still"
            };
            return Err(format!("{number}: {event:?}"));
        };
        let gone = self.see_change(event, &mut copy)?;
        if !gone {
            self.copies.insert(place, copy);
        }
        Ok(())
    }

    /// What happens to a copy; true if it leaves.
    fn see_change(&mut self, event: &Event, copy: &mut Copy) -> Result<bool, String> {
        let now = self.now;
        match &event.change {
            Change::Leased {
                grant,
                attempt,
                until,
                ..
            } => {
                self.check_grant(event, copy, *attempt)?;
                let lease = Lease::begun(event, *attempt, *until);
                ensure(self.leases.insert(*grant, lease).is_none(), || {
                    format!("I9: grant {grant} was given out before: {event:?}")
                })?;
                copy.grant = Some(*grant);
                copy.failures = Some(attempt - 1);
                copy.ready = false;
            }
            Change::Extended { until } => {
                if let Some(lease) = copy.grant.and_then(|grant| self.leases.get_mut(&grant)) {
                    lease.until = *until;
                }
            }
            Change::Returned { reason, until, .. } => {
                let lease = self.end_lease(copy);
                let ran_out = lease.is_none_or(|lease| lease.until <= now);
                let is_failure = matches!(reason, Returned::LeaseExpired | Returned::Nacked);
                ensure(*reason != Returned::LeaseExpired || ran_out, || {
                    format!("I3: at {} a lease ended before its time: {lease:?}", now.0)
                })?;
                if is_failure {
                    self.check_attempts_left(event, copy, true)?;
                }
                copy.failures = copy.failures.map(|failures| failures + u32::from(is_failure));
                (copy.due, copy.ready) = (*until, until.is_none());
            }
            Change::Due => {
                let due = copy.due.take();
                ensure(due.is_none_or(|due| due <= now), || {
                    format!("I15: due at {due:?}: {event:?}")
                })?;
                copy.ready = true;
            }
            Change::Rescheduled { until } => {
                (copy.due, copy.ready, copy.expires) = (*until, until.is_none(), None);
            }
            Change::Died { reason, .. } => {
                if *reason == DeadReason::DeliveriesMax {
                    self.check_attempts_left(event, copy, false)?;
                }
                self.end_lease(copy);
                copy.ready = false;
            }
            Change::Redriven => {
                (copy.ready, copy.due, copy.expires, copy.failures) = (true, None, None, Some(0));
            }
            Change::RedriveUndone => copy.ready = false,
            Change::Left { exit, reason, .. } => {
                if *reason == Some(DeadReason::DeliveriesMax) && copy.grant.is_some() {
                    self.check_attempts_left(event, copy, false)?;
                }
                self.end_lease(copy);
                if *exit == Exit::Acked {
                    self.acked.insert((event.queue, event.message));
                }
                return Ok(true);
            }
            Change::Published { .. } | Change::Arrived { .. } | Change::Duplicate { .. } => {}
        }
        Ok(false)
    }

    /// A copy is leased: nobody has it, it is time, and it is the next.
    fn check_grant(&self, event: &Event, copy: &Copy, attempt: u32) -> Result<(), String> {
        let now = self.now;
        let held = copy.grant.map(|grant| self.leases[&grant]);
        ensure(held.is_none_or(|lease| lease.over), || {
            format!("I3: held by {held:?}: {event:?}")
        })?;
        ensure(copy.due.is_none_or(|due| due <= now), || {
            format!("I15: leased at {}, due at {:?}", now.0, copy.due)
        })?;
        ensure(copy.expires.is_none_or(|end| end > now), || {
            format!("I15: leased at {}, its life ended at {:?}", now.0, copy.expires)
        })?;
        ensure(
            copy.failures.is_none_or(|failures| attempt == failures + 1),
            || {
                format!(
                    "I5: attempt {attempt} after {:?} failures: {event:?}",
                    copy.failures
                )
            },
        )?;
        self.check_is_next(event, copy)
    }

    /// Nothing that is ready stands before it. Of groups, and with ageing, the model
    /// knows the order.
    fn check_is_next(&self, event: &Event, copy: &Copy) -> Result<(), String> {
        let plain = |message: &MessageId| {
            let said = self.published.get(message)?;
            said.group().is_empty().then_some(said.priority)
        };
        let ages = self
            .settings
            .get(&event.queue)
            .is_none_or(|s| s.priority_ageing != Millis(0));
        let Some(priority) = plain(&event.message).filter(|_| !ages) else {
            return Ok(());
        };
        let of_queue = (event.queue, FIRST)..=(event.queue, LAST);
        let before = self.copies.range(of_queue).find(|((_, message), other)| {
            let stands = |of| (9 - of, other.entered) < (9 - priority, copy.entered);
            other.ready && plain(message).is_some_and(stands)
        });
        ensure(before.is_none(), || {
            format!("I6: {before:?} stands before {event:?}")
        })
    }

    /// A message comes again if it has attempts left, and dies of them if not.
    fn check_attempts_left(&self, event: &Event, copy: &Copy, comes_again: bool) -> Result<(), String> {
        let (Some(settings), Some(failures)) = (self.settings.get(&event.queue), copy.failures) else {
            return Ok(());
        };
        let max = settings.deliveries_max;
        let used_up = max != 0 && failures + 1 >= max;
        ensure(used_up != comes_again, || {
            format!("I5: attempt {} of {max} failed: {event:?}", failures + 1)
        })
    }

    fn end_lease(&mut self, copy: &mut Copy) -> Option<Lease> {
        let lease = self.leases.get_mut(&copy.grant.take()?)?;
        lease.over = true;
        Some(*lease)
    }

    // ------------------------------------------------------------ entering, ending

    /// What is known of a message that was published into a queue.
    fn published_copy(&self, event: &Event, delayed_until: Option<Timestamp>) -> Result<Copy, String> {
        let Some(said) = self.published.get(&event.message) else {
            return Err(format!("I2: nobody published {event:?}"));
        };
        let asked = said.deliver_at.max(Timestamp(self.now.0 + said.delay.0));
        let due = (asked > self.now).then_some(asked);
        ensure(due == delayed_until, || {
            format!("I15: it was to be delayed until {due:?}: {event:?}")
        })?;
        Ok(Copy {
            entered: 0,
            due,
            expires: (said.ttl != Millis(0)).then(|| Timestamp(asked.0 + said.ttl.0)),
            failures: Some(0),
            ready: due.is_none(),
            grant: None,
        })
    }

    fn enter(&mut self, place: (QueueId, MessageId), copy: Copy) {
        self.entered += 1;
        self.acked.remove(&place);
        let entered = self.entered;
        if self.copies.remove(&place).is_some() {
            self.blurred.insert(place, 2);
            let of_place = |lease: &&mut Lease| (lease.queue, lease.message) == place;
            self.leases
                .values_mut()
                .filter(of_place)
                .for_each(|lease| lease.blurred = true);
        } else if let Some(copies) = self.blurred.get_mut(&place) {
            *copies += 1;
        } else {
            self.copies.insert(place, Copy { entered, ..copy });
        }
    }

    fn leave_blurred(&mut self, place: (QueueId, MessageId)) -> Result<(), String> {
        if let Some(copies) = self.blurred.get_mut(&place) {
            *copies -= 1;
            if *copies == 0 {
                self.blurred.remove(&place);
            }
        }
        Ok(())
    }

    // -------------------------------------------------------------------- dedup

    /// An id is taken again only if its window has passed.
    fn check_dedup(&mut self, queue: QueueId, dedup_id: &str) -> Result<(), String> {
        if dedup_id.is_empty() {
            return Ok(());
        }
        let Some(settings) = self.settings.get(&queue) else {
            return Ok(());
        };
        let sighting = Sighting {
            at: self.now,
            window: settings.dedup_window,
            count_max: settings.dedup_count_max.into(),
            others: 0,
        };
        let of_queue = self.dedup_ids.range_mut((queue, String::new())..);
        for (_, seen) in of_queue.take_while(|((other, _), _)| *other == queue) {
            seen.others += 1;
        }
        let before = self.dedup_ids.insert((queue, dedup_id.to_owned()), sighting);
        let known = before.filter(|seen| {
            // Itself among the others.
            seen.others <= seen.count_max && self.now.0 < seen.at.0 + seen.window.0
        });
        ensure(known.is_none(), || {
            format!(
                "I7: at {} {dedup_id} was taken again, after {known:?}",
                self.now.0
            )
        })
    }

    // ------------------------------------------------------- what is told afterwards

    /// A lease that was told of is one that was granted.
    fn learn_tokens(&mut self, applied: &Applied) -> Result<(), String> {
        // A repeated request is told again what it was told then, be the lease long over.
        let repeated: BTreeSet<usize> = applied
            .repeated
            .iter()
            .map(|repeated| repeated.ordinal as usize)
            .collect();
        let answered = applied.outcomes.iter().enumerate();
        let replies = answered
            .filter(|(ordinal, _)| !repeated.contains(ordinal))
            .flat_map(|(_, outcome): (usize, &Outcome)| match outcome {
                Ok(Reply::Leased(leased)) => leased.iter().collect::<Vec<_>>(),
                _ => Vec::new(),
            });
        let effects = applied.effects.iter().flat_map(|effect| match effect {
            Effect::Deliver { leased, .. } => vec![leased],
            Effect::LeaseAnswered { leased, .. } => leased.iter().collect(),
            _ => Vec::new(),
        });
        let told: Vec<&Leased> = replies.chain(effects).collect();
        for leased in told {
            let Leased {
                token,
                message,
                leased_until,
                ..
            } = leased;
            let known = self.leases.get_mut(&token.grant);
            let granted = |lease: &Lease| {
                (lease.queue, lease.message, lease.attempt, lease.until)
                    == (token.queue, *message, token.attempt, *leased_until)
            };
            match known {
                Some(lease) if granted(lease) && lease.token.is_none_or(|before| before == *token) => {
                    lease.token = Some(*token);
                }
                Some(lease) if lease.blurred => {}
                other => return Err(format!("I9: {leased:?} is told of {other:?}")),
            }
        }
        Ok(())
    }

    fn learn_queues(&mut self, broker: &Broker) {
        self.settings.clear();
        for queue in broker.queues(None, usize::MAX) {
            let settings = queue.settings;
            let of_queue = self.dedup_ids.range_mut((queue.id, String::new())..);
            for (_, seen) in of_queue.take_while(|((other, _), _)| *other == queue.id) {
                seen.window = seen.window.min(settings.dedup_window);
                seen.count_max = seen.count_max.min(settings.dedup_count_max.into());
            }
            self.settings.insert(queue.id, settings);
        }
        let (settings, leases) = (&self.settings, &mut self.leases);
        leases.retain(|_, lease| settings.contains_key(&lease.queue));
    }

    /// What entered a queue is in it, or left it by a way that is counted.
    fn check_conservation(&self, broker: &Broker) -> Result<(), String> {
        for queue in broker.queues(None, usize::MAX) {
            let c = queue.counts;
            let held = c.ready + c.delayed + c.leased + c.dead;
            let left = c.acked + c.expired + c.dead_lettered + c.dropped + c.deleted + c.moved;
            ensure(c.published == held + left, || {
                format!(
                    "I13: {}: {} entered, {held} are there, {left} left",
                    queue.name, c.published
                )
            })?;
        }
        Ok(())
    }
}

const FIRST: MessageId = MessageId { index: 0, number: 0 };
const LAST: MessageId = MessageId {
    index: u64::MAX,
    number: u32::MAX,
};

/// A message that leaves for other queues comes to all of them, and to one at least.
fn check_moves(events: &[Event]) -> Result<(), String> {
    let mut on_its_way: BTreeMap<MessageId, usize> = BTreeMap::new();
    for event in events {
        match &event.change {
            Change::Left {
                exit: Exit::DeadLettered | Exit::Moved,
                to,
                ..
            } => {
                ensure(!to.is_empty(), || format!("I5: it went nowhere: {event:?}"))?;
                *on_its_way.entry(event.message).or_default() += to.len();
            }
            Change::Arrived { .. } => {
                let left = on_its_way.get_mut(&event.message).filter(|left| **left > 0);
                let left = left.ok_or_else(|| format!("I2: it came from nowhere: {event:?}"))?;
                *left -= 1;
            }
            _ => {}
        }
    }
    let lost = on_its_way.iter().find(|(_, left)| **left > 0);
    ensure(lost.is_none(), || {
        format!("I5: on its way, and nowhere: {lost:?}")
    })
}

/// No time that passes brings it about, nor that somebody is free.
fn comes_of_a_command(change: &Change) -> bool {
    match change {
        Change::Published { .. } | Change::Extended { .. } | Change::Rescheduled { .. } => true,
        Change::Redriven | Change::RedriveUndone => true,
        Change::Returned { reason, .. } => matches!(reason, Returned::Nacked | Returned::Released),
        Change::Left { exit, .. } => matches!(exit, Exit::Acked | Exit::Moved),
        Change::Arrived { .. } | Change::Duplicate { .. } | Change::Due => false,
        Change::Leased { .. } | Change::Died { .. } => false,
    }
}

/// As many messages entered queues as the answers say; of those that went to an
/// exchange that may be any number.
fn entered_fits(publishes: &[Publish], published: &[Published], entered: usize) -> bool {
    let to_queues = publishes
        .iter()
        .all(|publish| matches!(publish.target, Target::Queue(_)));
    let taken = |p: &Published| p.count as usize - p.duplicates.len() - p.unroutable.len();
    let least = published.iter().map(taken).sum::<usize>();
    entered == least || (!to_queues && entered > least)
}

fn ensure(holds: bool, violation: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(violation()) }
}
