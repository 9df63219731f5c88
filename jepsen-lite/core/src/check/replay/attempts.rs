//! I5: attempts count failures, and a message dies of the last one that it has, once.

use std::collections::HashMap;

use super::Looked;
use crate::history::History;
use crate::model::{Place, Replay, Step, undoes};

/// In each stay in a queue attempts are 1, 2, 3, … and never above `max_deliveries`: one more after each lease that
/// was nacked or ran out, the same after one that was given back. The last one that fails is the end: then, and only
/// then, a message is dead of its attempts. One that is dead of another reason was rejected by its holder, or that
/// reason says so. Whoever leaves the dead set for a dead-letter queue takes along the reason it died of. After a
/// redrive all is counted anew.
#[must_use]
pub fn attempts_are_counted(replay: &Replay<'_>, _: &History) -> Looked {
    let mut looked = Looked::default();
    let mut died_of: HashMap<usize, &str> = HashMap::new();
    for (entry, steps) in replay.entries() {
        for step in steps {
            if step.is_double {
                looked.undecided += 1;
                continue;
            }
            // The number of attempts is what it was when they were counted, only if it was never changed.
            let since = replay.stay(step).since;
            let steady = replay.queues[step.queue].is_steady(since, step.index);
            let settings = replay.settings(step).filter(|_| steady);
            let max = settings.map(|settings| settings.max_deliveries);
            let wrong = match step.change.change.as_str() {
                "leased" => {
                    looked.checked += 1;
                    looked.undecided += u64::from(max.is_none());
                    leased(step, max)
                }
                "nacked" | "lease-expired" => goes_on(step, max),
                "died" if step.before.place == Place::Dead => Some("was dead already".to_owned()),
                "died" | "dead-lettered" => {
                    looked.checked += 1;
                    let reason = step.change.reason.as_deref().unwrap_or_default();
                    if step.before.place == Place::Dead {
                        let before = died_of.get(&step.stay).copied().unwrap_or(reason);
                        (before != reason).then(|| format!("is dead of {before}"))
                    } else {
                        died_of.insert(step.stay, reason);
                        dies(step, reason, max, undoes(entry))
                    }
                }
                "redriven" if step.before.place != Place::Dead => Some("was not dead".to_owned()),
                _ => None,
            };
            if let Some(why) = wrong {
                let (change, message) = (&step.change.change, step.change.message);
                looked.add(Some(message), || {
                    let reason = step.change.reason.as_deref().unwrap_or_default();
                    format!("{message}: {change} {reason} in entry {}: {why}", step.index)
                });
            }
        }
    }
    looked
}

fn leased(step: &Step<'_>, max: Option<u32>) -> Option<String> {
    let (attempt, failures) = (step.change.attempt.unwrap_or(0), step.before.failures);
    if attempt != failures + 1 {
        return Some(format!("attempt {attempt} after {failures} that failed"));
    }
    let max = max.filter(|&max| max > 0 && attempt > max)?;
    Some(format!("attempt {attempt} of at most {max}"))
}

/// A failure that is not the end.
fn goes_on(step: &Step<'_>, max: Option<u32>) -> Option<String> {
    let Place::Leased(lease) = step.before.place else {
        return Some("was not leased".to_owned());
    };
    let max = max.filter(|&max| max > 0 && lease.attempt >= max)?;
    Some(format!(
        "attempt {} of at most {max} failed, and it goes on",
        lease.attempt
    ))
}

fn dies(step: &Step<'_>, reason: &str, max: Option<u32>, undone: bool) -> Option<String> {
    let verdict = step.settlement.map(|settlement| settlement.verdict.as_str());
    match (reason, step.before.place) {
        (_, Place::Never | Place::Gone(_)) => Some("was not there".to_owned()),
        // It is put back into the dead set that it came from.
        (_, Place::Ready) if undone => None,
        ("max-deliveries", Place::Leased(lease)) => match (verdict, max) {
            (Some("nack"), Some(max)) if lease.attempt != max => {
                Some(format!("attempt {} of {max}", lease.attempt))
            }
            (None, Some(max)) if lease.attempt != max => Some(format!("attempt {} of {max}", lease.attempt)),
            (None, _) if step.at_ms < lease.until_ms => {
                Some(format!("its lease lasts until {}", lease.until_ms))
            }
            (Some("nack") | None, _) => None,
            (Some(other), _) => Some(format!("its holder said {other}")),
        },
        ("rejected", Place::Leased(_)) if verdict == Some("dead-letter") => None,
        ("max-deliveries" | "rejected", place) => Some(format!("was {place:?}, and {verdict:?} was said")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::attempts_are_counted;
    use crate::check::replay::testing::{leaves_open, refuses};

    const GOOD: &str = r#"
        1000 declare-queue queue=q created=true settings={"lease_ms":500,"max_deliveries":2}
        1000 declare-queue queue=dead created=true settings={"lease_ms":500}
        1000 publish queue=q count=2 first=3-0 / 3-0 published / 3-1 published
        1000 lease queue=q / 3-0 leased fence=1 attempt=1 until_ms=1500
        1000 lease queue=q / 3-1 leased fence=2 attempt=1 until_ms=1500
        1100 settle settlements=[{"token":"9.0.1.1","verdict":"release"}] / 3-0 released
        1100 lease queue=q / 3-0 leased fence=3 attempt=1 until_ms=1600
        1200 settle settlements=[{"token":"9.0.1.3","verdict":"nack"}] / 3-0 nacked
        1200 lease queue=q / 3-0 leased fence=4 attempt=2 until_ms=1700
        1300 settle settlements=[{"token":"9.1.1.2","verdict":"dead-letter"}] / 3-1 died reason=rejected
        1700 tick / 3-0 died reason=max-deliveries
        1700 operate queue=q operation=redrive messages=[{"message":"3-0"}] / 3-0 redriven
        1700 lease queue=q / 3-0 leased fence=5 attempt=1 until_ms=2200
        1800 settle settlements=[{"token":"9.0.1.5","verdict":"nack"}] / 3-0 nacked
        1800 lease queue=q / 3-0 leased fence=6 attempt=2 until_ms=2300
        1900 settle settlements=[{"token":"9.0.2.6","verdict":"nack"}] / 3-0 dead-lettered reason=max-deliveries to=["dead"] / 3-0 arrived queue=dead queue_id=8 from=q exit=dead-lettered
        1900 lease queue=dead / 3-0 leased queue=dead queue_id=8 fence=7 attempt=1 until_ms=2400
        2000 update-queue queue=q / 3-1 dead-lettered reason=rejected to=["dead"] / 3-1 arrived queue=dead queue_id=8 from=q exit=dead-lettered
    "#;

    #[test]
    fn attempts_and_deaths_that_do_not_fit_are_found() {
        refuses(
            attempts_are_counted,
            GOOD,
            &[
                // A gap, a repetition, one that a release counts for.
                ("fence=4 attempt=2", "fence=4 attempt=3"),
                ("fence=4 attempt=2", "fence=4 attempt=1"),
                ("fence=3 attempt=1", "fence=3 attempt=2"),
                // Not anew after a redrive, or in another queue.
                ("fence=5 attempt=1", "fence=5 attempt=3"),
                ("fence=7 attempt=1", "fence=7 attempt=3"),
                // One attempt too many, and one too few.
                (
                    "tick / 3-0 died reason=max-deliveries",
                    "tick / 3-0 lease-expired",
                ),
                ("3-0 nacked", "3-0 died reason=max-deliveries"),
                // Before its time, for the wrong reason, twice.
                ("1700 tick / 3-0 died", "1600 tick / 3-0 died"),
                ("died reason=max-deliveries", "died reason=rejected"),
                ("3-1 died reason=rejected", "3-1 died reason=max-deliveries"),
                (
                    "3-1 dead-lettered reason=rejected",
                    "3-1 dead-lettered reason=expired",
                ),
                (
                    "died reason=max-deliveries",
                    "died reason=max-deliveries / 3-0 died reason=max-deliveries",
                ),
                ("tick / 3-0 died reason=max-deliveries", "tick"),
            ],
        );
    }

    #[test]
    fn a_number_of_attempts_that_changed_decides_nothing() {
        let change =
            "1250 update-queue queue=q settings={\"lease_ms\":500,\"max_deliveries\":3}\n        1300 settle";
        leaves_open(attempts_are_counted, GOOD, &[("1300 settle", change)]);
    }
}
