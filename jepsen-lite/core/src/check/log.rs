//! What clients were told, held against what the replicas applied.
//!
//! The replicas' word is not taken for more than it is: that an entry stands where it stands is believed,
//! because [`replicas_agree`] and [`index_order_is_real_time_order`] would find a lie.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Finding, Violation};
use crate::audit::{Audit, Request};
use crate::history::{History, MessageId, Outcome, RequestId, Wish};

/// Equal entries and equal state hashes at each index, on all replicas and in all their lives.
#[must_use]
pub fn replicas_agree(audit: &Audit) -> Vec<Violation> {
    let mut finding = Finding::new("all replicas apply the same and come to the same state");
    for difference in audit.differences() {
        finding.add(difference);
    }
    finding.0
}

/// Neither cluster time nor the term goes back from one entry to the next.
#[must_use]
pub fn time_goes_forward(audit: &Audit) -> Vec<Violation> {
    let mut finding = Finding::new("cluster time and terms never go back");
    let mut before: Option<(u64, u64, u64)> = None;
    for entry in audit.entries() {
        if let Some((index, at_ms, term)) = before
            && (entry.at_ms < at_ms || entry.term < term)
        {
            finding.add(format!(
                "entry {index} has time {at_ms} and term {term}, and {} after it {} and {}",
                entry.index, entry.at_ms, entry.term
            ));
        }
        before = Some((entry.index, entry.at_ms, entry.term));
    }
    finding.0
}

/// No request that was refused as a whole has been executed.
#[must_use]
pub fn refused_is_not_executed(history: &History, audit: &Audit) -> Vec<Violation> {
    let mut finding = Finding::new("what was refused was not executed");
    let mut refused: BTreeSet<RequestId> = BTreeSet::new();
    refused.extend(
        history
            .publishes
            .iter()
            .filter_map(|one| one.request.filter(|_| one.outcome.is_refused())),
    );
    refused.extend(
        history
            .operations
            .iter()
            .filter_map(|one| one.request.filter(|_| one.outcome.is_refused())),
    );
    refused.extend(
        history
            .receives
            .iter()
            .filter_map(|one| one.request.filter(|_| one.outcome.is_refused())),
    );
    let executed = |request: &&Request| {
        // A settlement is refused by itself, within a request that is not.
        request.kind != "settle" && request.refused.is_none() && request.repeats.is_none()
    };
    for entry in audit.entries() {
        for request in entry.requests.iter().filter(executed) {
            if let Some(id) = request.id.filter(|id| refused.contains(id)) {
                finding.add(format!(
                    "{} {id} was refused, and executed in entry {}",
                    request.kind, entry.index
                ));
            }
        }
    }
    finding.0
}

/// A confirmed publish and an acknowledged ack are in the entry in which they are said to be. Entries that no
/// replica has decide nothing.
#[must_use]
pub fn what_is_done_is_in_the_log(history: &History, audit: &Audit) -> Vec<Violation> {
    let mut finding = Finding::new("what was answered as done is in the log");
    let has = |index: u64, message: MessageId, change: &str| {
        audit.entry(index).is_none_or(|entry| {
            let mut events = entry.events.iter();
            events.any(|event| event.message == message && event.change == change)
        })
    };
    for publish in history.publishes.iter().filter(|publish| !publish.exchange) {
        if let Outcome::Done(message) = publish.outcome
            && !has(message.index, message, "published")
        {
            finding.add(format!(
                "publish {} was confirmed as {message}, which entry {} did not bring",
                publish.key, message.index
            ));
        }
    }
    let leases: BTreeMap<&str, MessageId> = history
        .deliveries
        .iter()
        .map(|delivery| (delivery.token.as_str(), delivery.message))
        .collect();
    let acks = history
        .settles
        .iter()
        .filter(|settle| settle.wish == Wish::Ack && settle.outcome.is_done());
    for settle in acks {
        if let (Some(place), Some(&message)) = (settle.place, leases.get(settle.token.as_str()))
            && !has(place.index, message, "acked")
        {
            finding.add(format!(
                "the ack of {message} with {} was done in entry {}, which did not ack it",
                settle.token, place.index
            ));
        }
    }
    finding.0
}

/// The parts of a transaction have one outcome and one place.
#[must_use]
pub fn transactions_are_whole(history: &History) -> Vec<Violation> {
    let mut finding = Finding::new("a transaction is done as one or not at all");
    let mut parts: BTreeMap<u64, BTreeSet<(&str, Option<u64>)>> = BTreeMap::new();
    for publish in &history.publishes {
        if let Some(number) = publish.transaction {
            let place = publish.place.map(|place| place.index);
            parts
                .entry(number)
                .or_default()
                .insert((word(&publish.outcome), place));
        }
    }
    for settle in &history.settles {
        if let Some(number) = settle.transaction {
            let place = settle.place.map(|place| place.index);
            parts
                .entry(number)
                .or_default()
                .insert((word(&settle.outcome), place));
        }
    }
    for (number, parts) in parts.iter().filter(|(_, parts)| parts.len() > 1) {
        finding.add(format!("the parts of transaction {number} came to {parts:?}"));
    }
    finding.0
}

/// What was answered before something else was asked for stands before it in the log, or in the same entry.
#[must_use]
pub fn index_order_is_real_time_order(history: &History) -> Vec<Violation> {
    let mut finding = Finding::new("the order of the log does not contradict real time");
    let mut placed = placed(history);
    placed.sort_by_key(|&(index, ..)| std::cmp::Reverse(index));
    // The earliest answer of what stands later, and of what stands in the entry that is looked at.
    let mut later: Option<(Duration, u64)> = None;
    for of_entry in placed.chunk_by(|one, two| one.0 == two.0) {
        for &(index, invoked, _) in of_entry {
            if let Some((answered, after)) = later
                && invoked > answered
            {
                finding.add(format!(
                    "entry {after} was answered at {answered:?}, and what stands before it in {index} was asked for at {invoked:?}"
                ));
            }
        }
        let earliest = of_entry
            .iter()
            .map(|&(index, _, answered)| (answered, index))
            .min();
        later = later.into_iter().chain(earliest).min();
    }
    finding.0
}

/// A read contains everything that was answered before it was asked for, and what reads contained before.
#[must_use]
pub fn reads_are_fresh(history: &History) -> Vec<Violation> {
    let mut finding = Finding::new("a read contains all that was answered before it");
    let mut answered: Vec<(Duration, u64)> = placed(history)
        .into_iter()
        .map(|(index, _, answered)| (answered, index))
        .collect();
    let reads = history
        .reads
        .iter()
        .filter_map(|read| Some((read, read.read_index?)));
    answered.extend(reads.clone().map(|(read, index)| (read.answered, index)));
    answered.sort_unstable();
    let mut reads: Vec<_> = reads.collect();
    reads.sort_by_key(|(read, _)| read.invoked);
    let (mut next, mut least) = (0, 0);
    for (read, index) in reads {
        while let Some(&(at, index)) = answered.get(next).filter(|(at, _)| *at < read.invoked) {
            debug_assert!(at < read.invoked, "sorted by time");
            least = least.max(index);
            next += 1;
        }
        if index < least {
            finding.add(format!(
                "a read of {} at {:?} contains the log up to {index}; {least} had been answered before",
                read.queue, read.invoked
            ));
        }
    }
    finding.0
}

/// Index, time of the question and time of the answer of everything that was done and has a place.
fn placed(history: &History) -> Vec<(u64, Duration, Duration)> {
    let publishes = history.publishes.iter().filter(|one| one.outcome.is_done());
    let settles = history.settles.iter().filter(|one| one.outcome.is_done());
    let operations = history.operations.iter().filter(|one| one.outcome.is_done());
    publishes
        .filter_map(|one| Some((one.place?.index, one.invoked, one.answered)))
        .chain(settles.filter_map(|one| Some((one.place?.index, one.invoked, one.answered))))
        .chain(operations.filter_map(|one| Some((one.place?.index, one.invoked, one.answered))))
        .collect()
}

fn word<T>(outcome: &Outcome<T>) -> &'static str {
    match outcome {
        Outcome::Done(_) => "done",
        Outcome::Refused(_) => "refused",
        Outcome::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Delivery, Operation, Place, Publish, Read, Receive, Settle};

    fn audit(lines: &str) -> Audit {
        let mut audit = Audit::default();
        audit.add("n", lines.as_bytes()).expect("memory can be read");
        audit
    }

    const LOG: &str = r#"
        {"entry":{"index":1,"term":1,"at_ms":5,"hash":"a","requests":[{"id":"7-1","kind":"publish"}],"events":[{"message":"1-0","queue":"q","queue_id":1,"change":"published"}]}}
        {"entry":{"index":2,"term":1,"at_ms":6,"hash":"b","requests":[{"id":"7-2","kind":"publish","refused":"QUEUE_FULL"}]}}
        {"entry":{"index":3,"term":2,"at_ms":6,"hash":"c","events":[{"message":"1-0","queue":"q","queue_id":1,"change":"acked"}]}}
    "#;

    fn place(index: u64) -> Option<Place> {
        Some(Place {
            index,
            ..Place::default()
        })
    }

    fn publish(index: u64, from: u64, until: u64) -> Publish {
        Publish {
            invoked: Duration::from_secs(from),
            answered: Duration::from_secs(until),
            place: place(index),
            request: Some(RequestId {
                client: 7,
                sequence: index,
            }),
            outcome: Outcome::Done(MessageId { index, number: 0 }),
            ..Publish::default()
        }
    }

    /// One message, published, leased and acked in a transaction of its own.
    fn good() -> History {
        History {
            publishes: vec![
                publish(1, 1, 2),
                Publish {
                    outcome: Outcome::Refused(None),
                    ..publish(2, 2, 3)
                },
            ],
            deliveries: vec![Delivery {
                message: MessageId { index: 1, number: 0 },
                token: "1.1.1.9".to_owned(),
                ..Delivery::default()
            }],
            settles: vec![Settle {
                invoked: Duration::from_secs(3),
                answered: Duration::from_secs(5),
                token: "1.1.1.9".to_owned(),
                place: place(3),
                outcome: Outcome::Done(()),
                ..Settle::default()
            }],
            reads: vec![Read {
                invoked: Duration::from_secs(6),
                answered: Duration::from_secs(7),
                read_index: Some(3),
                ..Read::default()
            }],
            ..History::default()
        }
    }

    fn check(history: &History, audit: &Audit) -> usize {
        [
            replicas_agree(audit),
            time_goes_forward(audit),
            refused_is_not_executed(history, audit),
            what_is_done_is_in_the_log(history, audit),
            transactions_are_whole(history),
            index_order_is_real_time_order(history),
            reads_are_fresh(history),
        ]
        .concat()
        .len()
    }

    #[test]
    fn a_history_that_agrees_with_the_log_is_accepted() {
        assert_eq!(check(&good(), &audit(LOG)), 0);
        assert_eq!(check(&good(), &Audit::default()), 0);
    }

    #[test]
    fn logs_that_contradict_the_history_are_found() {
        for (from, to) in [
            (r#""at_ms":6,"hash":"b""#, r#""at_ms":4,"hash":"b""#),
            (r#""index":3,"term":2"#, r#""index":3,"term":0"#),
            (r#","refused":"QUEUE_FULL""#, ""),
            (r#""change":"published""#, r#""change":"duplicate""#),
            (r#""change":"acked""#, r#""change":"released""#),
            (
                r#""message":"1-0","queue":"q","queue_id":1,"change":"acked""#,
                r#""message":"1-1","queue":"q","queue_id":1,"change":"acked""#,
            ),
        ] {
            let log = LOG.replace(from, to);
            assert_ne!(log, LOG, "{from}");
            assert_eq!(check(&good(), &audit(&log)), 1, "{to}");
        }
    }

    #[test]
    fn an_index_that_contradicts_real_time_is_found() {
        let mut history = good();
        history.publishes.push(publish(4, 8, 9));
        history.publishes.push(publish(5, 8, 9));
        assert_eq!(index_order_is_real_time_order(&history), []);
        history.publishes.push(publish(2, 6, 7));
        assert_eq!(index_order_is_real_time_order(&history).len(), 1);
    }

    #[test]
    fn a_read_of_the_past_is_found() {
        let mut history = good();
        history.reads[0].read_index = Some(2);
        assert_eq!(reads_are_fresh(&history).len(), 1);
        history.reads[0].invoked = Duration::from_secs(4);
        assert_eq!(reads_are_fresh(&history), []);
        let mut earlier = good();
        earlier.reads.push(Read {
            invoked: Duration::from_secs(8),
            read_index: Some(2),
            ..Read::default()
        });
        assert_eq!(reads_are_fresh(&earlier).len(), 1);
    }

    #[test]
    fn a_transaction_in_two_entries_or_half_done_is_torn() {
        let mut whole = good();
        whole.settles[0].transaction = Some(1);
        whole.publishes.push(Publish {
            transaction: Some(1),
            ..publish(3, 3, 5)
        });
        assert_eq!(transactions_are_whole(&whole), []);
        let mut apart = whole.clone();
        apart.publishes[2].place = place(4);
        let mut half = whole.clone();
        half.publishes[2].outcome = Outcome::Refused(None);
        let mut unsure = whole;
        unsure.settles[0].outcome = Outcome::Unknown;
        for torn in [apart, half, unsure] {
            assert_eq!(transactions_are_whole(&torn).len(), 1);
        }
    }

    #[test]
    fn whatever_was_refused_as_a_whole_must_not_be_in_the_log() {
        let id = Some(RequestId {
            client: 7,
            sequence: 1,
        });
        let publish = History {
            publishes: vec![Publish {
                request: id,
                outcome: Outcome::Refused(None),
                ..Publish::default()
            }],
            ..History::default()
        };
        let receive = History {
            receives: vec![Receive {
                request: id,
                outcome: Outcome::Refused(None),
                ..Receive::default()
            }],
            ..History::default()
        };
        let operation = History {
            operations: vec![Operation {
                request: id,
                outcome: Outcome::Refused(None),
                ..Operation::default()
            }],
            ..History::default()
        };
        for history in [publish, receive, operation] {
            assert_eq!(
                refused_is_not_executed(&history, &audit(LOG)).len(),
                1,
                "{history:?}"
            );
            let refused = LOG.replace(r#""kind":"publish"}"#, r#""kind":"publish","refused":"NO"}"#);
            assert_eq!(refused_is_not_executed(&history, &audit(&refused)), []);
        }
    }

    #[test]
    fn what_stands_before_what_had_been_answered_is_found_among_all_kinds() {
        let settle = |index, from, until| Settle {
            place: place(index),
            invoked: Duration::from_secs(from),
            answered: Duration::from_secs(until),
            outcome: Outcome::Done(()),
            ..Settle::default()
        };
        let operation = |index, from, until| Operation {
            place: place(index),
            invoked: Duration::from_secs(from),
            answered: Duration::from_secs(until),
            outcome: Outcome::Done(1),
            ..Operation::default()
        };
        let mut by_settle = good();
        by_settle.settles.push(settle(2, 6, 7));
        let mut by_operation = good();
        by_operation.operations.push(operation(2, 6, 7));
        let mut before_operation = good();
        before_operation.operations.push(operation(9, 1, 2));
        for history in [by_settle, by_operation, before_operation] {
            assert_eq!(index_order_is_real_time_order(&history).len(), 1, "{history:?}");
        }
        let mut stale = good();
        stale.operations.push(operation(9, 4, 5));
        assert_eq!(reads_are_fresh(&stale).len(), 1);
        stale.operations[0].answered = Duration::from_secs(7);
        assert_eq!(reads_are_fresh(&stale), []);
    }

    #[test]
    fn time_and_terms_go_back_between_any_two_entries() {
        for (from, to) in [
            (r#""at_ms":5"#, r#""at_ms":7"#),
            (r#""at_ms":6,"hash":"c""#, r#""at_ms":5,"hash":"c""#),
            (r#""index":2,"term":1"#, r#""index":2,"term":3"#),
        ] {
            let log = LOG.replace(from, to);
            assert_ne!(log, LOG, "{from}");
            assert_eq!(time_goes_forward(&audit(&log)).len(), 1, "{to}");
        }
    }
}
