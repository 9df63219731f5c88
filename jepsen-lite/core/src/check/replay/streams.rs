//! I26: nobody is given the same thing twice.

use std::collections::{HashMap, HashSet};

use super::Looked;
use crate::history::History;
use crate::model::{Lease, Place, Replay};

/// A consumer gets an attempt at a message once, unless it was given back, ended with the session or was redriven:
/// these do not count as failures, and the next attempt has the same number. And a connection gets each lease once.
#[must_use]
pub fn streams_get_each_once(replay: &Replay<'_>, history: &History) -> Looked {
    let mut looked = Looked::default();
    // The last lease of each stay by a consumer, as long as the next attempt must have another number.
    let mut last: HashMap<usize, Lease> = HashMap::new();
    for step in &replay.steps {
        if step.is_double {
            looked.undecided += 1;
            continue;
        }
        match (step.change.change.as_str(), step.after.place) {
            ("leased", Place::Leased(lease)) => {
                let Some((session, consumer)) = lease.holder else {
                    last.remove(&step.stay);
                    continue;
                };
                looked.checked += 1;
                let before = last.insert(step.stay, lease);
                let twice = |before: &Lease| before.attempt == lease.attempt && before.holder == lease.holder;
                if let Some(before) = before.filter(twice) {
                    let message = step.change.message;
                    looked.add(Some(message), || {
                        format!(
                            "consumer {consumer} of session {session} got attempt {} of {message} as {} and again as {} in entry {}",
                            lease.attempt, before.fence, lease.fence, step.index
                        )
                    });
                }
            }
            ("released" | "session-ended" | "redriven", _) => {
                last.remove(&step.stay);
            }
            _ => {}
        }
    }
    let mut seen: HashSet<(u32, &str)> = HashSet::new();
    for delivery in history.deliveries.iter().filter(|delivery| delivery.stream != 0) {
        looked.checked += 1;
        if !seen.insert((delivery.stream, &delivery.token)) {
            looked.add(Some(delivery.message), || {
                format!("connection {} got {} twice", delivery.stream, delivery.token)
            });
        }
    }
    looked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::replay::testing::{accepts, looked, refuses};
    use crate::history::Delivery;

    const GOOD: &str = r#"
        1000 declare-queue queue=q created=true settings={"lease_ms":500}
        1000 publish queue=q count=1 first=2-0 / 2-0 published
        1000 consume session="7" consumer=1 queue=q credit=1 / 2-0 leased fence=1 attempt=1 until_ms=1500 session="7" consumer=1
        1100 settle settlements=[{"token":"9.0.1.1","verdict":"release"}] / 2-0 released / 2-0 leased fence=2 attempt=1 until_ms=1600 session="7" consumer=1
        1200 settle settlements=[{"token":"9.0.1.2","verdict":"nack"}] / 2-0 nacked / 2-0 leased fence=3 attempt=2 until_ms=1700 session="7" consumer=1
        1700 tick / 2-0 lease-expired / 2-0 leased fence=4 attempt=3 until_ms=2200 session="7" consumer=1
    "#;

    #[test]
    fn an_attempt_that_comes_again_is_found() {
        refuses(
            streams_get_each_once,
            GOOD,
            &[
                ("2-0 released / ", ""),
                ("fence=3 attempt=2", "fence=3 attempt=1"),
                ("fence=4 attempt=3", "fence=4 attempt=2"),
            ],
        );
    }

    #[test]
    fn a_delivery_that_comes_again_on_its_connection_is_found() {
        accepts(streams_get_each_once, GOOD);
        let delivery = |stream, token: &str| Delivery {
            stream,
            token: token.to_owned(),
            ..Delivery::default()
        };
        let count = |second| {
            let deliveries = vec![delivery(1, "9.0.1.1"), second];
            let history = History {
                deliveries,
                ..History::default()
            };
            looked(streams_get_each_once, GOOD, &history).violations
        };
        assert_eq!(count(delivery(1, "9.0.1.1")), 1);
        // On another connection, another lease, and where the connection is not known.
        assert_eq!(count(delivery(2, "9.0.1.1")), 0);
        assert_eq!(count(delivery(1, "9.0.1.2")), 0);
        let unknown = vec![delivery(0, "9.0.1.1"), delivery(0, "9.0.1.1")];
        let history = History {
            deliveries: unknown,
            ..History::default()
        };
        assert_eq!(looked(streams_get_each_once, GOOD, &history).violations, 0);
    }
}
