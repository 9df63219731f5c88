//! From what was recorded to what a page is made of.
//!
//! Clients and nodes tell of the same things by clocks that have nothing to do with each other. Where a client
//! was told a log index, its own clock gives that entry a time; what only the log tells of stands between its
//! neighbours, and is marked as estimated. So a node's clock may be wrong by a year and the page is not.

mod calls;
mod clock;
mod known;
mod moments;

use std::collections::BTreeMap;
use std::time::Duration;

use jepsen_lite_core::history::{Mark, MessageId};
use jepsen_lite_core::run::{Run as Recorded, Sight};
use jepsen_lite_core::verdict::Results;

use crate::run::{Moment, Phase, Role, Run, Status};
use known::Known;

/// Lays a run out for its page, with what it came to. All times are those of the history, whose beginning is
/// that of the load.
#[must_use]
pub fn of(run: &Recorded, results: &Results) -> Run {
    let known = Known::of(&run.history, &run.sights);
    let mut lives: BTreeMap<MessageId, Vec<Moment>> = BTreeMap::new();
    let told = moments::as_clients_saw_it(&known).chain(moments::as_the_log_has_it(&known, &run.audit));
    for (message, moment) in told {
        lives.entry(message).or_default().push(moment);
    }
    let lives = lives.into_iter().map(|(message, mut life)| {
        life.sort_by(by_time);
        (message.to_string(), life)
    });
    Run {
        calls: calls::calls(&known),
        lives: lives.collect(),
        phases: run.history.marks.iter().map(phase).collect(),
        statuses: run.sights.iter().map(status).collect(),
        schedule: run.schedule.clone(),
        effects: run.effects.clone(),
        results: results.clone(),
    }
}

/// By time. At one time the log comes first, by index, and then clients as they were listed: who asks for
/// something to be settled has it before.
fn by_time(a: &Moment, b: &Moment) -> std::cmp::Ordering {
    let at = |moment: &Moment| moment.at_ms.unwrap_or(f64::INFINITY);
    let place = |moment: &Moment| match moment.estimated {
        true => moment.log_index.unwrap_or(0),
        false => u64::MAX,
    };
    at(a).total_cmp(&at(b)).then(place(a).cmp(&place(b)))
}

/// What the harness was about from a mark on.
fn phase(mark: &Mark) -> Phase {
    let name = match mark.name.as_str() {
        "heal" => "faults are undone",
        Mark::WHOLE => "whole again",
        "drain" => "queues are drained",
        Mark::DRAINED => "states are compared",
        "barrier" => "the last entry is committed",
        other => other,
    };
    Phase {
        name: name.to_owned(),
        from_ms: ms(mark.at),
    }
}

fn status(sight: &Sight) -> Status {
    Status {
        at_ms: sight.at_ms,
        node: sight.node,
        role: Role::named(&sight.role),
        term: sight.term,
    }
}

/// A moment of the history, in milliseconds since it began.
fn ms(at: Duration) -> f64 {
    at.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use jepsen_lite_core::audit::Audit;
    use jepsen_lite_core::history::{Delivery, History, Outcome, Place, Publish, Settle};
    use jepsen_lite_core::run::Facts;

    use super::*;
    use crate::run::Answer;
    use crate::sample;

    fn secs(s: f64) -> Duration {
        Duration::from_secs_f64(s)
    }

    fn message(index: u64) -> MessageId {
        MessageId { index, number: 0 }
    }

    /// One message that is received twice; the publisher of another is never told.
    fn history() -> History {
        let place = |index| {
            Some(Place {
                index,
                term: 1,
                time_ms: 1000 + index,
                node: Some(71),
            })
        };
        let delivery = |process, at, attempt, index, key| Delivery {
            process,
            received: secs(at),
            queue: "work".to_owned(),
            message: message(index),
            key: Some(key),
            token: format!("token {attempt} of {index}"),
            fence: index * 10 + u64::from(attempt),
            attempt,
            ..Delivery::default()
        };
        History {
            publishes: vec![
                Publish {
                    invoked: secs(11.0),
                    answered: secs(11.2),
                    place: place(7),
                    key: 1,
                    queue: "work".to_owned(),
                    outcome: Outcome::Done(message(7)),
                    ..Publish::default()
                },
                Publish {
                    invoked: secs(12.0),
                    answered: secs(14.0),
                    key: 2,
                    queue: "work".to_owned(),
                    ..Publish::default()
                },
            ],
            deliveries: vec![
                delivery(1, 11.3, 1, 7, 1),
                delivery(2, 16.0, 2, 7, 1),
                delivery(1, 13.0, 1, 9, 2),
            ],
            settles: vec![Settle {
                process: 1,
                invoked: secs(16.5),
                answered: secs(16.7),
                place: place(27),
                token: "token 1 of 7".to_owned(),
                outcome: Outcome::Refused(Some("STALE_LEASE".to_owned())),
                ..Settle::default()
            }],
            marks: vec![Mark {
                at: secs(15.0),
                name: "heal".to_owned(),
                ..Mark::default()
            }],
            ..History::default()
        }
    }

    /// The run of [`history`], with these changes in the log: index, what, fence.
    fn told_with(changes: &[(u64, &str, Option<u64>)]) -> Run {
        let told = sample::empty();
        let mut audit = Audit::default();
        for (index, change, fence) in changes {
            let event = serde_json::json!({
                "message": "7-0", "queue": "work", "queue_id": 1, "change": change, "fence": fence
            });
            let entry =
                serde_json::json!({ "entry": { "index": index, "at_ms": 1_000_000_000, "events": [event] } });
            audit
                .add("n1", entry.to_string().as_bytes())
                .expect("memory can be read");
        }
        let run = Recorded {
            schedule: told.schedule,
            history: history(),
            audit,
            effects: Vec::new(),
            facts: Facts::default(),
            sights: vec![Sight {
                node: 2,
                id: Some(71),
                role: "leader".to_owned(),
                term: 1,
                ..Sight::default()
            }],
        };
        of(&run, &told.results)
    }

    #[test]
    fn times_nodes_and_phases_are_those_of_the_run() {
        let run = told_with(&[]);
        assert!((run.calls[0].begin_ms - 11_000.0).abs() < 1e-6);
        assert_eq!(run.calls[0].client, "publisher 0");
        assert_eq!(run.calls[2].client, "worker 1");
        assert_eq!(run.lives["7-0"][0].node, Some(2));
        let phase = Phase {
            name: "faults are undone".to_owned(),
            from_ms: 15_000.0,
        };
        assert_eq!(run.phases, [phase]);
    }

    #[test]
    fn a_publish_without_an_answer_is_found_by_its_key() {
        let run = told_with(&[]);
        assert_eq!(run.calls[1].answer, Answer::Unknown);
        assert_eq!(run.calls[1].message.as_deref(), Some("9-0"));
        let what: Vec<&str> = run.lives["9-0"]
            .iter()
            .map(|moment| moment.what.as_str())
            .collect();
        assert_eq!(what, ["publish", "received"]);
    }

    #[test]
    fn what_only_the_log_tells_of_stands_between_its_neighbours() {
        let run = told_with(&[
            (7, "published", None),
            (8, "leased", Some(71)),
            (17, "lease-expired", None),
            (18, "leased", Some(99)),
        ]);
        let life: Vec<(&str, bool)> = run.lives["7-0"]
            .iter()
            .map(|moment| (moment.what.as_str(), moment.odd))
            .collect();
        assert_eq!(
            life,
            [
                ("publish", false),
                ("published", false),
                ("leased", false),
                ("received", false),
                ("lease-expired", true),
                ("leased", true),
                ("received", false),
                ("ack", true),
            ]
        );
        // Halfway between entry 7 (11.1 s) and entry 27 (16.6 s), whatever the cluster's clock says.
        let expired = &run.lives["7-0"][4];
        assert!((expired.at_ms.unwrap() - 13_850.0).abs() < 1e-6, "{expired:?}");
        assert_eq!(run.lives["7-0"][2].who.as_deref(), Some("worker 1"));
        assert_eq!(run.lives["7-0"][5].note, "no client tells of it");
    }
}
