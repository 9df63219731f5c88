//! The life of one message in one queue.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::Finding;
use super::{Call, Decision, Searched, search};
use crate::history::{Delivery, History, MessageId, Outcome, Publish, STALE_LEASE, Settle, Wish};

/// What happens to a message.
#[derive(Clone, Debug)]
pub(super) enum Op<'a> {
    Published {
        /// Not ready before this, cluster time.
        ready_at_ms: u64,
    },
    Leased(&'a Delivery),
    /// The holder of a lease settled it, or extended it.
    Settled {
        settle: &'a Settle,
        /// Of a nack: not ready before this, cluster time.
        ready_at_ms: u64,
    },
    /// The holder was told that the lease had ended.
    Stale(&'a Settle),
}

/// Where the message is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State<'a> {
    Absent,
    Waiting {
        failures: u32,
        ready_at_ms: u64,
    },
    Leased {
        token: &'a str,
        failures: u32,
        until_ms: u64,
        /// Nothing but its time and settlements can end it.
        ends_by_time: bool,
        /// When its holder was told.
        received: Duration,
        /// Its holder has extended it.
        in_hand: bool,
    },
    Gone,
}

/// What was done to each message in each queue has an order in which a message can live: it is leased when it is
/// there and nobody else's, its holder settles it while the lease runs and not after that, nobody has it once it is
/// acked, and leases count the failures before them. For queues whose messages no operator moves.
#[must_use]
pub fn a_message_is_linearizable(history: &History) -> Searched {
    let mut searched = Searched::default();
    let mut finding = Finding::new("what was done to a message has an order");
    let publishes = Publishes::of(history);
    let settles = history.settles_by_token();
    for ((queue, message), leases) in history.leases_by_place() {
        let published = publishes.of_message(queue, message, &leases);
        let start = match published {
            Some(_) => State::Absent,
            // It came by an exchange, or as a dead letter.
            None => State::Waiting {
                failures: 0,
                ready_at_ms: 0,
            },
        };
        let mut calls: Vec<Call<Op<'_>>> = published.into_iter().collect();
        for lease in leases {
            calls.push(leased(lease));
            let of_lease = settles.get(lease.token.as_str()).map_or(&[][..], Vec::as_slice);
            calls.extend(of_lease.iter().filter_map(|settle| settled(settle)));
        }
        calls.sort_by_key(|call| (!call.sure, call.at_ms.unwrap_or(u64::MAX), call.invoked));
        match search(&calls, start, step) {
            Decision::Explained => searched.checked += 1,
            Decision::Undecided => searched.undecided += 1,
            Decision::Contradiction => {
                searched.checked += 1;
                finding.add(format!(
                    "{message} of {queue}: no order explains {}",
                    listed(&mut calls)
                ));
            }
        }
    }
    searched.violations = finding.0;
    searched
}

/// The state after an operation, and what cluster time must have been by then; `None` if it cannot be in this state.
pub(super) fn step<'a>(state: &State<'a>, op: &Op<'a>) -> Option<(State<'a>, u64)> {
    let mut proven_ms = 0;
    let next = match (op, state) {
        (Op::Published { ready_at_ms }, State::Absent) => State::Waiting {
            failures: 0,
            ready_at_ms: *ready_at_ms,
        },
        (Op::Leased(lease), _) => {
            let (failures, ready_at_ms) = taken_over(state, lease)?;
            proven_ms = ready_at_ms;
            // There may have been leases between that nobody has seen, so there is no upper bound.
            if lease.attempt <= failures {
                return None;
            }
            State::Leased {
                token: &lease.token,
                failures: lease.attempt - 1,
                until_ms: lease.leased_until_ms,
                ends_by_time: lease.ends_by_time,
                received: lease.received,
                in_hand: false,
            }
        }
        (Op::Settled { settle, ready_at_ms }, State::Leased { token, failures, .. })
            if *token == settle.token =>
        {
            match settle.wish {
                Wish::Ack | Wish::DeadLetter => State::Gone,
                Wish::Nack => State::Waiting {
                    failures: failures + 1,
                    ready_at_ms: *ready_at_ms,
                },
                Wish::Release => State::Waiting {
                    failures: *failures,
                    ready_at_ms: 0,
                },
                Wish::Extend => extended(state, settle),
            }
        }
        (
            Op::Stale(settle),
            State::Leased {
                token,
                failures,
                in_hand,
                ..
            },
        ) if *token == settle.token => {
            // A node gives back what it pulled for somebody whom the answer did not reach, and whom it may reach later.
            let (failures, ready_at_ms) = if *in_hand { waiting(state)? } else { (*failures, 0) };
            proven_ms = ready_at_ms;
            State::Waiting {
                failures,
                ready_at_ms,
            }
        }
        (Op::Stale(_), _) => state.clone(),
        (Op::Published { .. } | Op::Settled { .. }, _) => return None,
    };
    Some((next, proven_ms))
}

/// The same as [`waiting`], for whoever has it next. A node gives back what it pulled for somebody whom the answer did not
/// reach; whoever asks again is told the same lease, when another one may have got a later one long ago.
fn taken_over(state: &State<'_>, by: &Delivery) -> Option<(u32, u64)> {
    match *state {
        State::Leased {
            failures,
            received,
            in_hand: false,
            ..
        } if received >= by.received => Some((failures, 0)),
        _ => waiting(state),
    }
}

/// Failures that are counted for sure, and from when on it can be leased, if it waits, or its lease ends by itself.
fn waiting(state: &State<'_>) -> Option<(u32, u64)> {
    match *state {
        State::Waiting {
            failures,
            ready_at_ms,
        } => Some((failures, ready_at_ms)),
        State::Leased {
            failures,
            until_ms,
            ends_by_time: true,
            ..
        } => Some((failures + 1, until_ms)),
        // Its consumer may have gone, which is no failure.
        State::Leased { failures, .. } => Some((failures, 0)),
        State::Absent | State::Gone => None,
    }
}

fn extended<'a>(state: &State<'a>, settle: &Settle) -> State<'a> {
    let mut longer = state.clone();
    if let State::Leased {
        until_ms, in_hand, ..
    } = &mut longer
    {
        *in_hand = true;
        *until_ms = settle.leased_until_ms.unwrap_or(*until_ms);
    }
    longer
}

/// The publishes of a history, by what they became and by what stands in the body.
struct Publishes<'a> {
    keys: BTreeMap<MessageId, u64>,
    by_key: BTreeMap<(u64, &'a str), Vec<&'a Publish>>,
}

impl<'a> Publishes<'a> {
    fn of(history: &'a History) -> Self {
        let mut publishes = Self {
            keys: BTreeMap::new(),
            by_key: BTreeMap::new(),
        };
        let to_queues = history.publishes.iter().filter(|publish| !publish.exchange);
        for publish in to_queues.filter(|publish| !publish.outcome.is_refused()) {
            let of_key = publishes.by_key.entry((publish.key, &publish.queue)).or_default();
            of_key.push(publish);
            if let Outcome::Done(message) = publish.outcome {
                publishes.keys.insert(message, publish.key);
            }
        }
        publishes
    }

    /// How a message that was leased came to this queue, if it was published there. Several publishes are one if
    /// they bear one key: it was there when the first of them was answered.
    fn of_message(&self, queue: &str, message: MessageId, leases: &[&Delivery]) -> Option<Call<Op<'static>>> {
        let key = self.keys.get(&message).copied();
        let key = key.or_else(|| leases.first().and_then(|lease| lease.key))?;
        let of_key = self.by_key.get(&(key, queue))?.iter();
        // Another message of the same key is one that was published twice, and no concern of this one.
        let all: Vec<&&Publish> = of_key
            .filter(|publish| publish.outcome.done().is_none_or(|&done| done == message))
            .collect();
        let done = || all.iter().filter(|publish| publish.outcome.is_done());
        let first = done().find(|publish| !publish.duplicate);
        let at_ms = first.and_then(|publish| Some(publish.place?.time_ms));
        let delay_ms = first.and_then(|publish| publish.delay_ms);
        Some(Call {
            invoked: all.iter().map(|publish| publish.invoked).min()?,
            answered: done().map(|publish| publish.answered).min(),
            at_ms,
            sure: true,
            op: Op::Published {
                ready_at_ms: at_ms.zip(delay_ms).map_or(0, |(at, delay)| at + delay),
            },
        })
    }
}

/// A lease was given at some time before it was received.
pub(super) fn leased(lease: &Delivery) -> Call<Op<'_>> {
    Call {
        invoked: Duration::ZERO,
        answered: Some(lease.received),
        at_ms: Some(lease.granted_at_ms()),
        sure: true,
        op: Op::Leased(lease),
    }
}

/// `None` = it says nothing: refused for another reason than the end of the lease, or an extension that may or may
/// not have been.
pub(super) fn settled(settle: &Settle) -> Option<Call<Op<'_>>> {
    let at_ms = settle.place.map(|place| place.time_ms);
    let op = match &settle.outcome {
        Outcome::Refused(Some(reason)) if reason == STALE_LEASE && settle.transaction.is_none() => {
            Op::Stale(settle)
        }
        Outcome::Refused(_) => return None,
        Outcome::Unknown if settle.wish == Wish::Extend => return None,
        Outcome::Done(()) | Outcome::Unknown => Op::Settled {
            settle,
            ready_at_ms: at_ms.zip(settle.delay_ms).map_or(0, |(at, delay)| at + delay),
        },
    };
    let sure = !settle.outcome.is_unknown();
    Some(Call {
        invoked: settle.invoked,
        answered: sure.then_some(settle.answered),
        at_ms,
        sure,
        op,
    })
}

/// Operations in words, by the time at which they were over.
fn listed(calls: &mut [Call<Op<'_>>]) -> String {
    calls.sort_by_key(|call| call.answered.unwrap_or(Duration::MAX));
    let words: Vec<String> = calls.iter().map(in_words).collect();
    words.join("; ")
}

fn in_words(call: &Call<Op<'_>>) -> String {
    let ms = |time: Duration| time.as_millis();
    let answered = call
        .answered
        .map_or_else(|| "?".to_owned(), |at| ms(at).to_string());
    let what = match &call.op {
        Op::Published { .. } => "published".to_owned(),
        Op::Leased(lease) => format!(
            "attempt {} leased as {} until {}",
            lease.attempt, lease.token, lease.leased_until_ms
        ),
        Op::Settled { settle, .. } => format!("{:?} of {}", settle.wish, settle.token),
        Op::Stale(settle) => format!("{:?} of {} refused as stale", settle.wish, settle.token),
    };
    let sure = if call.sure { "" } else { ", perhaps" };
    let at = call.at_ms.map_or_else(String::new, |at| format!(" at {at}"));
    format!("{what}{at} ({} to {answered} ms{sure})", ms(call.invoked))
}
