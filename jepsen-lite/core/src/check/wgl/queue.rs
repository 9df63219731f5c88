//! A whole queue of few operations.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Finding;
use super::message::{self, Op, State};
use super::{Call, Decision, Searched, search};
use crate::history::{Act, History, MessageId, Outcome, Publish};

/// With more operations than this a queue is not searched.
const OPERATIONS_MAX: usize = 12;

/// A message in a queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place<'a> {
    message: MessageId,
    state: State<'a>,
    /// It has not been leased yet.
    fresh: bool,
}

/// What is done to a queue: to one of its messages.
#[derive(Clone, Debug)]
struct Operation<'a> {
    message: MessageId,
    op: Op<'a>,
}

/// What was done to a queue has an order in which a queue can live: each of its messages does, and none is leased
/// while another that came before it waits for its first lease. For queues of at most twelve operations, all of
/// which are known to have been done or not; without groups, priorities and delays, and whose messages leave by
/// settlements only.
#[must_use]
pub fn a_small_queue_is_linearizable(history: &History) -> Searched {
    let mut searched = Searched::default();
    let mut finding = Finding::new("what was done to a queue has an order");
    let queues: BTreeSet<&str> = history
        .publishes
        .iter()
        .map(|publish| publish.queue.as_str())
        .collect();
    for queue in queues {
        let Some(calls) = calls(history, queue) else {
            continue;
        };
        match search(&calls, Vec::new(), step) {
            Decision::Explained => searched.checked += 1,
            Decision::Undecided => searched.undecided += 1,
            Decision::Contradiction => {
                searched.checked += 1;
                finding.add(format!(
                    "no order explains the {} operations on {queue}",
                    calls.len()
                ));
            }
        }
    }
    searched.violations = finding.0;
    searched
}

/// The messages of a queue after an operation, in the order in which they came, and what cluster time must have been
/// by then; `None` if it cannot be now.
#[allow(clippy::ptr_arg)] // the state of a search
fn step<'a>(places: &Vec<Place<'a>>, operation: &Operation<'a>) -> Option<(Vec<Place<'a>>, u64)> {
    let Operation { message, op } = operation;
    let mut places = places.clone();
    let place = places.iter().position(|place| place.message == *message);
    let place = place.unwrap_or_else(|| {
        places.push(Place {
            message: *message,
            state: State::Absent,
            fresh: true,
        });
        places.len() - 1
    });
    if matches!(op, Op::Leased(_)) {
        let waits = |before: &Place<'_>| before.fresh && matches!(before.state, State::Waiting { .. });
        if places[..place].iter().any(waits) {
            return None;
        }
        places[place].fresh = false;
    }
    let (state, proven_ms) = message::step(&places[place].state, op)?;
    places[place].state = state;
    Some((places, proven_ms))
}

/// The operations on a queue; `None` if it is not one that is searched.
fn calls<'a>(history: &'a History, queue: &str) -> Option<Vec<Call<Operation<'a>>>> {
    let declared = |act: &Act| matches!(act, Act::Declare(_));
    let mut operations = history.operations.iter().filter(|one| one.queue == queue);
    if !operations.all(|one| declared(&one.act)) {
        return None;
    }
    let mut calls = Vec::new();
    let mut published = BTreeSet::new();
    for publish in history.publishes.iter().filter(|publish| publish.queue == queue) {
        let message = match publish.outcome {
            Outcome::Done(message) if is_plain(publish) => message,
            Outcome::Refused(_) => continue,
            _ => return None,
        };
        published.insert(message);
        calls.push(Call {
            invoked: publish.invoked,
            answered: Some(publish.answered),
            at_ms: publish.place.map(|place| place.time_ms),
            sure: true,
            op: Operation {
                message,
                op: Op::Published { ready_at_ms: 0 },
            },
        });
    }
    let mut leases: BTreeMap<&str, MessageId> = BTreeMap::new();
    for lease in history.leases().filter(|lease| lease.queue == queue) {
        if !published.contains(&lease.message) || lease.group.is_some() || lease.priority > 0 {
            return None;
        }
        leases.insert(&lease.token, lease.message);
        calls.push(of(lease.message, message::leased(lease)));
    }
    for settle in &history.settles {
        let Some(&message) = leases.get(settle.token.as_str()) else {
            continue;
        };
        if settle.outcome.is_unknown() {
            return None;
        }
        calls.extend(message::settled(settle).map(|call| of(message, call)));
    }
    let few = calls.len() <= OPERATIONS_MAX;
    calls.sort_by_key(|call| (call.at_ms.unwrap_or(u64::MAX), call.invoked, call.answered));
    few.then_some(calls)
}

fn of<'a>(message: MessageId, call: Call<Op<'a>>) -> Call<Operation<'a>> {
    let Call {
        invoked,
        answered,
        at_ms,
        sure,
        op,
    } = call;
    Call {
        invoked,
        answered,
        at_ms,
        sure,
        op: Operation { message, op },
    }
}

/// Nothing but its place in the queue decides when it is leased.
fn is_plain(publish: &Publish) -> bool {
    !publish.exchange
        && publish.group.is_none()
        && publish.priority == 0
        && publish.delay_ms.is_none()
        && publish.ttl_ms.is_none()
        && publish.dedup_id.is_none()
}
