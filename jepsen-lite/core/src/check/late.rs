//! Nothing of a run takes effect when it is over.

use std::collections::BTreeSet;

use super::{Finding, Violation};
use crate::audit::{Audit, Request};
use crate::history::{History, RequestId};

/// No request of the run's clients is executed above the barrier. When it was committed, all of them had been answered
/// or given up, and their connections were closed: whatever comes later was kept somewhere and came to life again.
#[must_use]
pub fn nothing_is_late(history: &History, audit: &Audit, barrier: u64) -> Vec<Violation> {
    let mut finding = Finding::new("nothing takes effect after the barrier");
    let asked = asked(history);
    let executed = |request: &&Request| request.refused.is_none() && request.repeats.is_none();
    for entry in audit.entries().filter(|entry| entry.index > barrier) {
        for request in entry.requests.iter().filter(executed) {
            if let Some(id) = request.id.filter(|id| asked.contains(id)) {
                let (kind, index) = (&request.kind, entry.index);
                finding.add(format!(
                    "{kind} {id} is executed in entry {index}, after the barrier {barrier}"
                ));
            }
        }
    }
    finding.0
}

/// The requests that are known by name.
fn asked(history: &History) -> BTreeSet<RequestId> {
    let publishes = history.publishes.iter().map(|one| one.request);
    let settles = history.settles.iter().map(|one| one.request);
    let receives = history.receives.iter().map(|one| one.request);
    let operations = history.operations.iter().map(|one| one.request);
    publishes
        .chain(settles)
        .chain(receives)
        .chain(operations)
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Operation, Publish, Receive, Settle};

    const LOG: &str = r#"
        {"entry":{"index":5,"requests":[{"id":"7-1","kind":"publish"}]}}
        {"entry":{"index":6,"requests":[{"id":"7-9","kind":"declare-queue"}]}}
        {"entry":{"index":7,"requests":[{"id":"7-9","kind":"close-session"},{"kind":"tick"}]}}
        {"entry":{"index":8,"requests":[{"id":"7-2","kind":"settle","refused":"STALE_LEASE"}]}}
        {"entry":{"index":9,"requests":[{"id":"7-3","kind":"lease","repeats":4}]}}
    "#;

    fn request(sequence: u64) -> Option<RequestId> {
        Some(RequestId { client: 7, sequence })
    }

    fn found(log: &str, barrier: u64) -> usize {
        let history = History {
            publishes: vec![Publish {
                request: request(1),
                ..Publish::default()
            }],
            settles: vec![Settle {
                request: request(2),
                ..Settle::default()
            }],
            receives: vec![Receive {
                request: request(3),
                ..Receive::default()
            }],
            operations: vec![Operation {
                request: request(4),
                ..Operation::default()
            }],
            ..History::default()
        };
        let mut audit = Audit::default();
        audit.add("n", log.as_bytes()).expect("memory can be read");
        nothing_is_late(&history, &audit, barrier).len()
    }

    #[test]
    fn what_is_done_before_refused_repeated_or_of_others_is_not_late() {
        assert_eq!(found(LOG, 6), 0);
    }

    #[test]
    fn each_kind_of_request_is_late_after_the_barrier() {
        assert_eq!(found(LOG, 4), 1, "a publish");
        for (from, to, what) in [
            (r#","refused":"STALE_LEASE""#, "", "a settlement"),
            (r#","repeats":4"#, "", "a lease"),
            (
                "7-9\",\"kind\":\"close-session",
                "7-4\",\"kind\":\"purge-queue",
                "an operator",
            ),
        ] {
            let log = LOG.replace(from, to);
            assert_ne!(log, LOG, "{what}");
            assert_eq!(found(&log, 6), 1, "{what}");
        }
    }
}
