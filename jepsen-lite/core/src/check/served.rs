//! A minority that is down stops nobody.

use std::time::Duration;

use super::{Finding, Violation};
use crate::cluster::{Done, Effect};
use crate::history::History;
use crate::schedule::Fault;

/// A time without a minority is looked at if it lasts this long: long enough for another node to be elected, and for
/// clients to find it.
const LASTS_MIN: Duration = Duration::from_millis(1_500);
/// One election may fail by bad luck, and several in a row by worse; this often is no luck.
const TIMES_MIN: usize = 3;

/// Times in which nothing was wrong but that a minority of so many nodes was down.
#[must_use]
pub fn times_without_a_minority(effects: &[Effect], nodes: usize) -> Vec<(Duration, Duration)> {
    let time = |effect: &Effect| {
        let until_ms = effect.until_ms.unwrap_or(u64::MAX);
        (
            Duration::from_millis(effect.from_ms),
            Duration::from_millis(until_ms),
        )
    };
    let alone = |effect: &Effect| {
        let (from, until) = time(effect);
        let mut others = effects.iter().filter(|other| *other != effect).map(time);
        others.all(|(begins, ends)| begins >= until || ends <= from)
    };
    let is_down = |effect: &&Effect| {
        let (from, until) = time(effect);
        effect.state == Done::Yes
            && matches!(effect.fault, Fault::Kill | Fault::PowerLoss)
            && effect.nodes.len() * 2 < nodes
            && until.saturating_sub(from) >= LASTS_MIN
            && alone(effect)
    };
    effects.iter().filter(is_down).map(time).collect()
}

/// While a minority is down, the others serve: if nothing was ever published and confirmed within all of these
/// times, and there are several of them, clients do not find who serves.
#[must_use]
pub fn a_minority_stops_nobody(history: &History, times: &[(Duration, Duration)]) -> Vec<Violation> {
    let mut finding = Finding::new("a minority that is down stops nobody");
    let served = |(from, until): &(Duration, Duration)| {
        history.publishes.iter().any(|publish| {
            publish.outcome.is_done() && publish.invoked >= *from && publish.answered <= *until
        })
    };
    if times.len() >= TIMES_MIN && !times.iter().any(served) {
        finding.add(format!(
            "{} times a minority was down, and each time no publish was confirmed until it was back",
            times.len()
        ));
    }
    finding.0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::history::{MessageId, Outcome, Publish};

    fn down(from_ms: u64, until_ms: u64, nodes: &[usize]) -> Effect {
        Effect {
            from_ms,
            until_ms: Some(until_ms),
            fault: Fault::Kill,
            nodes: nodes.to_vec(),
            state: Done::Yes,
            counters: BTreeMap::new(),
        }
    }

    fn publish(from_ms: u64, until_ms: u64) -> History {
        let message = MessageId { index: 1, number: 0 };
        History {
            publishes: vec![Publish {
                invoked: Duration::from_millis(from_ms),
                answered: Duration::from_millis(until_ms),
                outcome: Outcome::Done(message),
                ..Publish::default()
            }],
            ..History::default()
        }
    }

    #[test]
    fn only_a_minority_that_is_down_for_long_and_alone_counts() {
        let long = down(1_000, 3_000, &[0]);
        assert_eq!(times_without_a_minority(std::slice::from_ref(&long), 3).len(), 1);
        assert!(times_without_a_minority(&[down(1_000, 2_000, &[0])], 3).is_empty());
        assert!(times_without_a_minority(&[down(1_000, 3_000, &[0, 1])], 3).is_empty());
        let paused = Effect {
            fault: Fault::Pause,
            ..down(2_000, 4_000, &[1])
        };
        assert!(times_without_a_minority(&[long, paused], 3).is_empty());
    }

    #[test]
    fn one_answer_in_one_of_the_times_is_enough_and_none_in_three_is_not() {
        let effects: Vec<Effect> = [1_000, 4_000, 7_000]
            .map(|from_ms| down(from_ms, from_ms + 2_000, &[0]))
            .into();
        let times = times_without_a_minority(&effects, 3);
        assert_eq!(times.len(), 3);
        assert_eq!(a_minority_stops_nobody(&publish(4_500, 5_500), &times), []);
        // Asked for before, or answered after.
        for (from_ms, until_ms) in [(3_900, 5_500), (5_500, 6_500)] {
            assert_eq!(
                a_minority_stops_nobody(&publish(from_ms, until_ms), &times).len(),
                1
            );
        }
        assert_eq!(a_minority_stops_nobody(&publish(0, 1), &times[..2]), []);
    }
}
