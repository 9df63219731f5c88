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
            due += usize::from(step.is_due());
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

#[cfg(test)]
mod tests {
    use super::messages_have_their_time;
    use crate::check::replay::testing::{leaves_open, refuses};

    const GOOD: &str = r#"
        1000 declare-queue queue=q created=true settings={"lease_ms":100,"message_ttl_ms":900}
        1000 publish queue=q count=4 messages=[{},{"ttl_ms":300},{"ttl_ms":500},{}] first=2-0 / 2-0 published until_ms=1200 / 2-1 published / 2-2 published until_ms=1400 / 2-3 published
        1100 lease queue=q / 2-1 leased fence=1 attempt=1 until_ms=1200
        1200 tick / 2-0 due / 2-1 lease-expired
        1200 lease queue=q / 2-0 leased fence=2 attempt=1 until_ms=1400 / 2-1 leased fence=3 attempt=2 until_ms=1350
        1300 settle settlements=[{"token":"9.1.2.3","verdict":"release"}] / 2-1 expired
        1400 settle settlements=[{"token":"9.0.1.2","verdict":"ack","refused":"STALE_LEASE"}] / 2-0 lease-expired until_ms=1450 / 2-2 due
        1400 operate queue=q operation=reschedule messages=[{"message":"2-2"}] / 2-2 rescheduled until_ms=1600
        1450 tick / 2-0 due
        1450 lease queue=q / 2-0 leased fence=4 attempt=2 until_ms=1550
        1500 settle settlements=[{"token":"9.0.2.4","verdict":"ack"}] / 2-0 acked
        1600 tick / 2-2 due
        1900 tick / 2-3 expired
        2000 lease queue=q / 2-2 leased fence=5 attempt=1 until_ms=2100
        2099 settle settlements=[{"token":"9.2.1.5","verdict":"release"}] / 2-2 released
        2100 tick / 2-2 expired
    "#;

    #[test]
    fn who_comes_before_its_time_or_after_it_is_found() {
        refuses(
            messages_have_their_time,
            GOOD,
            &[
                // Leased while it is delayed, and when it is no more there.
                (
                    "1100 lease queue=q / 2-1 leased",
                    "1100 lease queue=q / 2-2 leased",
                ),
                (
                    "1500 settle",
                    "1500 lease queue=q / 2-1 leased fence=9 attempt=3 until_ms=1600\n        1500 settle",
                ),
                // Due too early, and too late.
                ("1200 tick / 2-0 due", "1199 tick / 2-0 due"),
                ("1200 tick / 2-0 due", "1200 tick"),
                ("1400 operate", "1400 tick / 2-3 due\n        1400 operate"),
                // Its life ends too early, too late, and never.
                ("1900 tick / 2-3 expired", "1899 tick / 2-3 expired"),
                ("1900 tick / 2-3 expired", "1900 tick"),
                ("2-1 expired", "2-1 released"),
                ("2099 settle", "2100 settle"),
                (
                    "2099 settle settlements=[{\"token\":\"9.2.1.5\",\"verdict\":\"release\"}] / 2-2 released\n        2100 tick",
                    "2099 tick / 2-2 released\n        2100 lease queue=q / 2-2 leased fence=9 attempt=1 until_ms=2200 / 2-2 released\n        2100 tick",
                ),
                // Of one that was put off before its life had begun.
                (
                    "2100 tick / 2-2 expired",
                    "2101 tick\n        2101 tick / 2-2 expired",
                ),
                // Its life had no end.
                ("\"message_ttl_ms\":900", "\"message_ttl_ms\":0"),
            ],
        );
    }

    #[test]
    fn a_ttl_that_changes_in_the_entry_of_a_publish_decides_nothing() {
        let change = "update-queue queue=q settings={\"lease_ms\":100,\"message_ttl_ms\":100} / publish";
        let both = format!(
            "1000 declare-queue queue=q created=true settings={{\"lease_ms\":100,\"message_ttl_ms\":900}}\n        1000 {change}"
        );
        let from = "1000 declare-queue queue=q created=true settings={\"lease_ms\":100,\"message_ttl_ms\":900}\n        1000 publish";
        leaves_open(messages_have_their_time, GOOD, &[(from, &both)]);
    }
}
