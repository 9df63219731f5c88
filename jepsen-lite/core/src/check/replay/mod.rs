//! The promises that are decided by replaying the audit log.
//!
//! The log says of every applied entry what was asked, what it was answered and what happened to messages. So
//! nothing is unknown here: each file decides one promise exactly, event by event, from a [`Replay`]. Only where the
//! log itself leaves something open (settings that change within an entry, messages that are purged and told of
//! later) it is counted as [undecided](Looked::undecided) and not held against anybody.
//!
//! A log with a hole, or replicas that differ, decide nothing. All checks take one walk through the log, and look
//! things up in maps; a million events take seconds.

mod acked;
mod attempts;
mod batch;
mod counts;
mod credit;
mod dedup;
mod due;
mod exclusive;
mod fencing;
mod length;
mod order;
mod streams;
#[cfg(test)]
pub(crate) mod testing;
mod time;

use crate::audit::Audit;
use crate::history::History;
use crate::ids::MessageId;
use crate::model::Replay;
use crate::verdict::{Finding, WITNESSES_MAX, Witness};

pub use acked::acked_is_final;
pub use attempts::attempts_are_counted;
pub use batch::publishes_are_whole;
pub use counts::{counts_are_conserved, reads_show_a_state};
pub use credit::credit_is_kept;
pub use dedup::an_id_is_one_message;
pub use due::messages_have_their_time;
pub use exclusive::leases_are_exclusive;
pub use fencing::tokens_are_fenced;
pub use length::length_is_bounded;
pub use order::queues_are_in_order;
pub use streams::streams_get_each_once;
pub use time::leases_last;

/// Of what falls due at one time an entry does at most this much; the next entries do the rest.
const DUE_MAX: usize = 4_096;

/// What a check came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// How many things of the kind were looked at.
    pub checked: u64,
    /// How many more there were, of which the log does not tell enough.
    pub undecided: u64,
    /// How many were wrong.
    pub violations: u64,
    /// The first of them.
    pub witnesses: Vec<Witness>,
}

impl Looked {
    fn add(&mut self, message: Option<MessageId>, evidence: impl FnOnce() -> String) {
        self.violations += 1;
        if self.witnesses.len() < WITNESSES_MAX {
            self.witnesses.push(Witness {
                evidence: evidence(),
                message: message.map(|message| message.to_string()),
                at_ms: None,
            });
        }
    }
}

struct Check {
    invariant: &'static str,
    name: &'static str,
    decide: fn(&Replay<'_>, &History) -> Looked,
}

const CHECKS: [Check; 14] = [
    Check::new("I3", "one lease at a time", leases_are_exclusive),
    Check::new("I4", "acked is final", acked_is_final),
    Check::new("I5", "attempts and deaths", attempts_are_counted),
    Check::new("I6", "order of deliveries", queues_are_in_order),
    Check::new("I7", "one message per dedup id", an_id_is_one_message),
    Check::new("I9", "tokens are fenced", tokens_are_fenced),
    Check::new("I11", "reads show a state", reads_show_a_state),
    Check::new("I13", "conservation", counts_are_conserved),
    Check::new("I14", "leases last", leases_last),
    Check::new("I15", "delays and lives", messages_have_their_time),
    Check::new("I16", "whole publishes", publishes_are_whole),
    Check::new("I17", "length of queues", length_is_bounded),
    Check::new("I17", "credit of consumers", credit_is_kept),
    Check::new("I26", "each once on a stream", streams_get_each_once),
];

impl Check {
    const fn new(
        invariant: &'static str,
        name: &'static str,
        decide: fn(&Replay<'_>, &History) -> Looked,
    ) -> Self {
        Self {
            invariant,
            name,
            decide,
        }
    }

    fn finding(&self, looked: Looked, note: String) -> Finding {
        let Looked {
            checked,
            violations,
            witnesses,
            ..
        } = looked;
        Finding {
            note,
            ..Finding::new(self.invariant, self.name, checked, violations, witnesses)
        }
    }
}

/// Replays the log and decides everything that can be decided so. Where the log has a hole or replicas differ,
/// all of it is unknown.
#[must_use]
pub fn findings(audit: &Audit, history: &History) -> Vec<Finding> {
    let obstacle = if !audit.is_whole() {
        "the audit log has a hole"
    } else if !audit.differences().is_empty() {
        "replicas do not agree on the log"
    } else {
        ""
    };
    if !obstacle.is_empty() {
        let unknown = |check: &Check| check.finding(Looked::default(), obstacle.to_owned());
        return CHECKS.iter().map(unknown).collect();
    }
    let replay = Replay::of(audit);
    let decide = |check: &Check| {
        let looked = (check.decide)(&replay, history);
        let note = match looked.undecided {
            0 => String::new(),
            count => format!("the log does not tell enough to decide {count} more"),
        };
        check.finding(looked, note)
    };
    CHECKS.iter().map(decide).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Verdict;

    const SAMPLE: &str = include_str!("../../../samples/audit.jsonl");

    fn of(logs: &[&str]) -> Vec<Finding> {
        let mut audit = Audit::default();
        for log in logs {
            audit.add("n", log.as_bytes()).expect("memory can be read");
        }
        findings(&audit, &History::default())
    }

    #[test]
    fn what_nodes_write_is_in_order() {
        let findings = of(&[SAMPLE, SAMPLE]);
        let wrong = findings
            .iter()
            .filter(|finding| finding.verdict == Verdict::Violated);
        assert_eq!(wrong.collect::<Vec<_>>(), Vec::<&Finding>::new());
        let valid = findings
            .iter()
            .filter(|finding| finding.verdict == Verdict::Valid);
        assert!(valid.count() >= 9, "{findings:?}");
    }

    #[test]
    fn a_violation_is_told_with_its_message() {
        let findings = of(&[&SAMPLE.replace("\"attempt\":2", "\"attempt\":3")]);
        let attempts = findings.iter().find(|finding| finding.invariant == "I5");
        let attempts = attempts.expect("attempts are looked at");
        assert_eq!((attempts.verdict, attempts.violations), (Verdict::Violated, 1));
        assert_eq!(attempts.witnesses[0].message.as_deref(), Some("5-2"));
    }

    #[test]
    fn ten_witnesses_are_kept_and_all_are_counted() {
        let mut looked = Looked::default();
        for number in 0..25 {
            looked.add(None, || format!("the {number}th"));
        }
        assert_eq!((looked.violations, looked.witnesses.len()), (25, 10));
    }

    #[test]
    fn a_log_with_a_hole_and_logs_that_differ_decide_nothing() {
        let hole: Vec<&str> = SAMPLE
            .lines()
            .filter(|line| !line.contains("\"index\":6,"))
            .collect();
        let differs = SAMPLE.replace("\"attempt\":2", "\"attempt\":3");
        for unknown in [of(&[&hole.join("\n")]), of(&[SAMPLE, &differs]), of(&[])] {
            assert_eq!(unknown.len(), CHECKS.len());
            for finding in unknown {
                assert_eq!((finding.verdict, finding.checked), (Verdict::Unknown, 0));
                assert_ne!(finding.note, "");
            }
        }
    }
}
