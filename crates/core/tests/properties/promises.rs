//! What is promised of any log, and can be seen in what came of it.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use quorate_core::command::Command;
use quorate_core::effect::Effect;
use quorate_core::event::Change;
use quorate_core::ids::{MessageId, Timestamp};
use quorate_core::outcome::{Exit, Outcome, Published, Rejection, Reply};
use quorate_core::{Applied, Broker, invariants};

use crate::journal::Journal;
use crate::random_log::{Entry, log_of, one_by_one, plan};
use crate::witness::Witness;

proptest! {
    /// The broker is in order after every entry, and after every command.
    #[test]
    fn the_invariants_hold(plan in plan()) {
        for plan in [one_by_one(&plan), plan] {
            let mut broker = Broker::new();
            for entry in log_of(&plan) {
                entry.apply(&mut broker);
                let violations = invariants::check(&broker);
                prop_assert!(violations.is_empty(), "I13: after entry {}: {:?}", entry.meta.index, violations);
            }
        }
    }

    /// Whoever sees all answers, effects and events finds no promise broken; also if
    /// the broker is another at each entry, restored from the one before.
    #[test]
    fn what_is_seen_is_what_was_promised(plan in plan(), restores in any::<bool>()) {
        let log = log_of(&one_by_one(&plan));
        let mut broker = Broker::new();
        let mut witness = Witness::default();
        for entry in &log {
            let applied = entry.apply(&mut broker);
            witness.see(entry, &applied, &broker).map_err(|found| told(entry, &found))?;
            if restores {
                broker = crate::snapshots::restore(&crate::snapshots::bytes_of(&broker));
            }
        }
    }

    /// Events leave nothing out, and tell of nothing that was not.
    #[test]
    fn events_alone_say_where_every_message_is(plan in plan()) {
        let mut broker = Broker::new();
        let mut journal = Journal::default();
        for entry in log_of(&plan) {
            for event in entry.apply(&mut broker).events {
                journal.read(&event).map_err(|found| told(&entry, &format!("I13: {found}")))?;
            }
            journal.agrees_with(&broker).map_err(|found| told(&entry, &format!("I13: {found}")))?;
        }
    }

    /// Contents are dropped once, after their last message.
    #[test]
    fn every_content_is_live_or_was_dropped(plan in plan()) {
        let mut broker = Broker::new();
        let mut live = BTreeSet::new();
        for entry in log_of(&plan) {
            let applied = entry.apply(&mut broker);
            for (request, outcome) in entry.requests.iter().zip(&applied.outcomes) {
                let published = match (&request.command, outcome) {
                    (Command::Publish(_), Ok(Reply::Published(published))) => std::slice::from_ref(published),
                    (Command::Transact { .. }, Ok(Reply::Transacted { published, .. })) => published,
                    _ => &[],
                };
                // A repeated request says again what was published earlier.
                let new = published.iter().filter(|published| published.first.index == entry.meta.index);
                live.extend(new.flat_map(taken));
            }
            for effect in &applied.effects {
                if let Effect::ContentDropped { id } = effect {
                    prop_assert!(live.remove(id), "I1: {} was dropped twice, or never there", id);
                }
            }
            let mut contents: Vec<_> = broker.snapshot().contents().map(|(id, _)| id).collect();
            contents.sort();
            prop_assert_eq!(contents, live.iter().copied().collect::<Vec<_>>(), "I1: contents");
        }
    }
}

fn told(entry: &Entry, found: &str) -> TestCaseError {
    TestCaseError::fail(format!("{found} (entry {})", entry.meta.index))
}

/// What is never done is never tested: each kind of command is, in many logs.
#[test]
fn random_logs_do_every_command() {
    let mut runner = TestRunner::deterministic();
    let mut done: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..200 {
        let log = log_of(&plan().new_tree(&mut runner).unwrap().current());
        let mut broker = Broker::new();
        for entry in log {
            let applied = entry.apply(&mut broker);
            let all = entry.requests.iter().zip(&applied.outcomes);
            let done_ones = all.filter(|(_, outcome)| changed_something(outcome));
            for (request, _) in done_ones {
                *done.entry(kind(&request.command)).or_default() += 1;
            }
        }
    }
    let rare: Vec<_> = done.iter().filter(|(_, times)| **times < 10).collect();
    assert!(rare.is_empty(), "{rare:?}");
    assert_eq!(done.len(), COMMANDS, "{done:?}");
}

/// Kinds of commands, and of operations for themselves.
const COMMANDS: usize = 24 + 5;

fn changed_something(outcome: &Outcome) -> bool {
    match outcome {
        Ok(Reply::Operated { results, .. }) => results.iter().any(Result::is_ok),
        Ok(Reply::Settled(settled)) => settled.iter().any(Result::is_ok),
        outcome => outcome.is_ok(),
    }
}

/// Its name, as Debug says it.
fn kind(command: &Command) -> String {
    let first_word = |text: String| {
        text.split(|c: char| !c.is_alphanumeric())
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    match command {
        Command::Operate { operation, .. } => format!("Operate {}", first_word(format!("{operation:?}"))),
        other => first_word(format!("{other:?}")),
    }
}

/// The messages of a publish that entered a queue.
fn taken(published: &Published) -> impl Iterator<Item = MessageId> {
    let Published { first, count, .. } = *published;
    let gone = |place| {
        let mut duplicates = published.duplicates.iter();
        published.unroutable.contains(&place) || duplicates.any(|duplicate| duplicate.place == place)
    };
    (0..count)
        .filter(move |place| !gone(*place))
        .map(move |place| MessageId {
            number: first.number + place,
            ..first
        })
}

// ------------------------------------------------ the witness finds what is wrong

/// One thing that is changed in what a good broker said, and of which invariant the
/// witness must speak then. False if there was nothing to change.
struct Anomaly {
    name: &'static str,
    found_as: &'static str,
    inject: fn(&mut Applied) -> bool,
}

const ANOMALIES: &[Anomaly] = &[
    Anomaly {
        name: "an attempt is left out",
        found_as: "I5",
        inject: |applied| {
            change(applied, |change| match change {
                Change::Leased { attempt, .. } => {
                    *attempt += 1;
                    true
                }
                _ => false,
            })
        },
    },
    Anomaly {
        name: "a grant has the number of an earlier one",
        found_as: "I9",
        inject: |applied| {
            change(applied, |change| match change {
                Change::Leased { grant, .. } if *grant > 1 => {
                    *grant -= 1;
                    true
                }
                _ => false,
            })
        },
    },
    Anomaly {
        name: "a message is given to two",
        found_as: "I3",
        inject: |applied| {
            let leased = applied
                .events
                .iter()
                .find(|event| matches!(event.change, Change::Leased { .. }));
            let Some(mut again) = leased.cloned() else {
                return false;
            };
            if let Change::Leased { grant, .. } = &mut again.change {
                *grant += 1_000_000;
            }
            applied.events.push(again);
            true
        },
    },
    Anomaly {
        name: "a delayed message comes at once",
        found_as: "I15",
        inject: |applied| {
            change(applied, |change| match change {
                Change::Published { delayed_until, .. } => delayed_until.take().is_some(),
                _ => false,
            })
        },
    },
    Anomaly {
        name: "a lease is cut short",
        found_as: "I9",
        inject: |applied| {
            change(applied, |change| match change {
                Change::Leased { until, .. } => {
                    *until = Timestamp(until.0 + 1);
                    true
                }
                _ => false,
            })
        },
    },
    Anomaly {
        name: "an acked message comes again",
        found_as: "I4",
        inject: |applied| {
            let is_ack = |change: &Change| {
                matches!(
                    change,
                    Change::Left {
                        exit: Exit::Acked,
                        ..
                    }
                )
            };
            let Some(mut again) = applied.events.iter().find(|event| is_ack(&event.change)).cloned() else {
                return false;
            };
            again.change = Change::Due;
            applied.events.push(again);
            true
        },
    },
    Anomaly {
        name: "a stale settlement is answered as done",
        found_as: "I9",
        inject: |applied| {
            let settled = applied.outcomes.iter_mut().find_map(|outcome| match outcome {
                Ok(Reply::Settled(settled)) => {
                    settled.iter_mut().find(|one| **one == Err(Rejection::StaleLease))
                }
                _ => None,
            });
            let is_there = settled.is_some();
            if let Some(settled) = settled {
                *settled = Ok(quorate_core::outcome::Settled { leased_until: None });
            }
            is_there
        },
    },
    Anomaly {
        name: "one of an answer's messages did not enter",
        found_as: "I16",
        inject: |applied| {
            let [Ok(Reply::Published(published))] = &mut applied.outcomes[..] else {
                return false;
            };
            let fits = applied.repeated.is_empty() && published.count > 0;
            published.count += u32::from(fits);
            fits
        },
    },
    Anomaly {
        name: "a transaction is answered as refused and was done",
        found_as: "I18",
        inject: |applied| {
            let is_done = matches!(applied.outcomes[..], [Ok(Reply::Transacted { .. })]);
            let enters = |change: &Change| matches!(change, Change::Published { .. });
            if !is_done || !applied.events.iter().any(|event| enters(&event.change)) {
                return false;
            }
            applied.outcomes[0] = Err(Rejection::StaleLease);
            applied.repeated.is_empty()
        },
    },
];

const NOTHING: &str = "nothing";

fn change(applied: &mut Applied, change: impl FnMut(&mut Change) -> bool) -> bool {
    applied
        .events
        .iter_mut()
        .map(|event| &mut event.change)
        .any(change)
}

/// A checker that finds nothing is worth nothing: each anomaly, put into a log that
/// is all right, is found as what it is.
#[test]
fn the_witness_refuses_each_anomaly() {
    let mut runner = TestRunner::deterministic();
    let mut logs = Vec::new();
    for _ in 0..40 {
        logs.push(log_of(&one_by_one(
            &plan().new_tree(&mut runner).unwrap().current(),
        )));
    }
    for Anomaly {
        name,
        found_as,
        inject,
    } in ANOMALIES
    {
        let found: Vec<String> = logs
            .iter()
            .filter_map(|log| find_injected(log, *inject))
            .collect();
        let right = |found: &&String| found.starts_with(&format!("{found_as}:"));
        // An exchange may bring messages to any number of queues, so not all is seen.
        let wrong = |found: &&String| !right(found) && *found != NOTHING;
        assert!(found.iter().any(|found| right(&found)), "{name}: {found:#?}");
        assert_eq!(
            found.iter().find(wrong),
            None,
            "{name} is taken for something else"
        );
    }
}

/// Puts an anomaly into a log where it first fits, and says what the witness found.
fn find_injected(log: &[Entry], inject: fn(&mut Applied) -> bool) -> Option<String> {
    let (mut broker, mut witness) = (Broker::new(), Witness::default());
    let mut injected = false;
    for entry in log {
        let mut applied = entry.apply(&mut broker);
        if !injected {
            injected = inject(&mut applied);
        }
        if let Err(found) = witness.see(entry, &applied, &broker) {
            return Some(found);
        }
    }
    injected.then(|| NOTHING.to_owned())
}
