//! I15: not before its time, and not after.

use std::collections::BTreeSet;

use super::{DUE_MAX, Looked};
use crate::history::History;
use crate::model::{Life, Place, Replay, State, Step};

/// A message is leased only when it is ready: not while it is delayed, dead or not there, and not when its life is
/// over. Its delay ends in the first entry whose time is the end of it or later, and so does its life, unless somebody
/// holds it; if no more than 4,096 fall due at once. A life that the log does not tell is undecided.
#[must_use]
pub fn messages_have_their_time(replay: &Replay<'_>, _: &History) -> Looked {
    let mut looked = Looked::default();
    let mut delays: BTreeSet<(u64, usize)> = BTreeSet::new();
    let mut lives: BTreeSet<(u64, usize)> = BTreeSet::new();
    for (entry, steps) in replay.entries() {
        let mut due = 0;
        for step in steps {
            if step.is_double {
                looked.undecided += 1;
                continue;
            }
            due += usize::from(
                step.settlement.is_none() && !matches!(step.change.change.as_str(), "leased" | "published"),
            );
            if let Some(why) = wrong(step, &mut looked) {
                let message = step.change.message;
                looked.add(Some(message), || {
                    format!(
                        "{message}: {} in entry {} at {}, {why}",
                        step.change.change, step.index, step.at_ms
                    )
                });
            }
            for (set, of) in [(&mut delays, delay as fn(State) -> _), (&mut lives, life)] {
                if let Some(at_ms) = of(step.before) {
                    set.remove(&(at_ms, step.stay));
                }
                if let Some(at_ms) = of(step.after) {
                    set.insert((at_ms, step.stay));
                }
            }
        }
        // An entry without requests does nothing at all.
        if due >= DUE_MAX || entry.requests.is_empty() {
            continue;
        }
        for (set, what) in [(&mut delays, "was due"), (&mut lives, "had a life")] {
            while let Some(&over) = set.first().filter(|(at_ms, _)| *at_ms <= entry.at_ms) {
                set.remove(&over);
                let (at_ms, stay) = over;
                let stay = &replay.stays[stay];
                if replay.queues[stay.queue].is_sure_in(entry.index) {
                    looked.add(Some(stay.message), || {
                        format!(
                            "{} {what} until {at_ms}, and waits on after entry {} at {}",
                            stay.message, entry.index, entry.at_ms
                        )
                    });
                }
            }
        }
    }
    looked
}

fn delay(state: State) -> Option<u64> {
    match state.place {
        Place::Delayed { until_ms, .. } => Some(until_ms),
        _ => None,
    }
}

/// The end of the life of a message that nobody holds.
fn life(state: State) -> Option<u64> {
    match (state.place, state.life) {
        (Place::Ready | Place::Delayed { .. }, Life::Until(at_ms)) => Some(at_ms),
        _ => None,
    }
}

fn wrong(step: &Step<'_>, looked: &mut Looked) -> Option<String> {
    let of_age = step.change.reason.as_deref() == Some("expired");
    match step.change.change.as_str() {
        "leased" => {
            looked.checked += 1;
            match (step.before.place, step.before.life) {
                // Whether a lease is exclusive is another promise.
                (Place::Leased(_), _) => None,
                (Place::Ready, Life::Until(end_ms)) => {
                    (step.at_ms >= end_ms).then(|| format!("and its life was over at {end_ms}"))
                }
                (Place::Ready, _) => None,
                (place, _) => Some(format!("and it was {place:?}")),
            }
        }
        "due" => match step.before.place {
            Place::Delayed { until_ms, .. } => {
                looked.checked += 1;
                (step.at_ms < until_ms).then(|| format!("and it was delayed until {until_ms}"))
            }
            place => Some(format!("and it was {place:?}")),
        },
        "expired" => age(step, looked),
        "died" | "dead-lettered" if of_age && step.before.place != Place::Dead => age(step, looked),
        _ => None,
    }
}

/// Its life is said to be over.
fn age(step: &Step<'_>, looked: &mut Looked) -> Option<String> {
    match step.before.life {
        Life::Unknown => {
            looked.undecided += 1;
            None
        }
        Life::Endless => Some("and it had no end".to_owned()),
        Life::Until(end_ms) => {
            looked.checked += 1;
            (step.at_ms < end_ms).then(|| format!("and its life lasted until {end_ms}"))
        }
    }
}
