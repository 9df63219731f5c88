//! What clients were not told, told by the log.
//!
//! A request of unknown outcome weakens every check: it may have been done, or not, or may yet be. When the run is
//! over the log knows. What is executed up to the barrier was done, there; what is not in the log up to the barrier, nor
//! after it, was not done and never will be. What comes after the barrier stays unknown, and is a [late
//! effect](crate::check::nothing_is_late).
//!
//! That an outcome is known now does not mean that its client was told: such an answer is at
//! [`NEVER`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::audit::{Audit, Entry, Request};
use crate::history::{History, MessageId, NEVER, Outcome, Place, Publish, RequestId, Settle, Wish};

/// A history of which more is known than its clients were told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// The history. The records and their order are the same.
    pub history: History,
    /// Publishes and settlements of unknown outcome that were applied.
    pub applied: u64,
    /// Those that were refused, or never came to the log.
    pub absent: u64,
    /// Those that are unknown still: their request has no name, or was executed after the barrier.
    pub open: u64,
    /// Leases that ended otherwise than by their time and settlements, although they were said not to: their node gave
    /// them back, because the answer to a pull did not reach its client.
    pub given_back: u64,
}

/// Resolves what can be resolved. Where the log has a hole, replicas differ, or nobody knows where the run ended in it,
/// that is nothing.
#[must_use]
pub fn resolve(history: &History, audit: &Audit, barrier: Option<u64>) -> Resolved {
    let mut resolved = Resolved {
        history: history.clone(),
        ..Resolved::default()
    };
    if !audit.is_whole() || !audit.differences().is_empty() {
        return resolved;
    }
    resolved.given_back = give_back(&mut resolved.history, audit);
    let Some(barrier) = barrier.filter(|barrier| audit.entry(*barrier).is_some()) else {
        return resolved;
    };
    let log = Log::of(audit, barrier);
    let mut counts = [0; 3];
    let mut count = |fate: Fate| counts[fate as usize] += 1;
    // The messages of one request, in the order in which they were published with it.
    let mut places: BTreeMap<RequestId, usize> = BTreeMap::new();
    for publish in &mut resolved.history.publishes {
        let place = publish.request.map_or(0, |id| {
            let next = places.entry(id).or_default();
            *next += 1;
            *next - 1
        });
        if publish.outcome.is_unknown() {
            let fate = log.resolve_publish(publish, place);
            publish.answered = told(fate, publish.answered);
            count(fate);
        }
    }
    let unknown = |settle: &&mut Settle| settle.outcome.is_unknown();
    for settle in resolved.history.settles.iter_mut().filter(unknown) {
        let fate = log.resolve_settle(settle);
        settle.answered = told(fate, settle.answered);
        count(fate);
    }
    [resolved.applied, resolved.absent, resolved.open] = counts;
    resolved
}

/// What became of a request.
#[derive(Clone, Copy)]
enum Fate {
    Applied,
    Absent,
    Open,
}

/// When a client was told what it had not been told by `until`: never, if only the log tells.
fn told(fate: Fate, until: Duration) -> Duration {
    match fate {
        Fate::Applied | Fate::Absent => NEVER,
        Fate::Open => until,
    }
}

/// The requests of a log.
struct Log<'a> {
    /// Those that were decided up to the barrier: executed, or refused and never executed.
    decided: BTreeMap<RequestId, (&'a Entry, &'a Request)>,
    /// Those that were executed after it.
    late: BTreeSet<RequestId>,
}

impl<'a> Log<'a> {
    fn of(audit: &'a Audit, barrier: u64) -> Self {
        let mut log = Self {
            decided: BTreeMap::new(),
            late: BTreeSet::new(),
        };
        for entry in audit.entries() {
            for request in entry.requests.iter().filter(|request| request.repeats.is_none()) {
                let Some(id) = request.id else { continue };
                if entry.index > barrier {
                    log.late.extend(request.is_done().then_some(id));
                    continue;
                }
                let known = log.decided.entry(id).or_insert((entry, request));
                // It may have been refused, asked for again, and done.
                if !known.1.is_done() {
                    *known = (entry, request);
                }
            }
        }
        log
    }

    fn resolve_publish(&self, publish: &mut Publish, place: usize) -> Fate {
        let (entry, request) = match self.find(publish.request) {
            Ok(found) => found,
            Err(Fate::Absent) => {
                publish.outcome = Outcome::Refused(None);
                return Fate::Absent;
            }
            Err(fate) => return fate,
        };
        if request.refused.is_some() {
            publish.outcome = Outcome::Refused(request.refused.clone());
            return Fate::Absent;
        }
        let Some((message, duplicate)) = published(request, place) else {
            return Fate::Open;
        };
        publish.outcome = Outcome::Done(message);
        publish.duplicate = duplicate;
        publish.place = Some(place_of(entry));
        Fate::Applied
    }

    fn resolve_settle(&self, settle: &mut Settle) -> Fate {
        let (entry, request) = match self.find(settle.request) {
            Ok(found) => found,
            Err(Fate::Absent) => {
                settle.outcome = Outcome::Refused(None);
                return Fate::Absent;
            }
            Err(fate) => return fate,
        };
        let mut settlements = request.settlements.iter();
        let Some(settlement) = settlements.find(|one| one.token == settle.token) else {
            return Fate::Open;
        };
        if let Some(reason) = request.refused.as_ref().or(settlement.refused.as_ref()) {
            settle.outcome = Outcome::Refused(Some(reason.clone()));
            return Fate::Absent;
        }
        settle.outcome = Outcome::Done(());
        settle.leased_until_ms = settlement.until_ms;
        settle.place = Some(place_of(entry));
        Fate::Applied
    }

    /// Where a request was decided; else it is absent, or open.
    fn find(&self, id: Option<RequestId>) -> Result<(&'a Entry, &'a Request), Fate> {
        let id = id.ok_or(Fate::Open)?;
        let missing = if self.late.contains(&id) {
            Fate::Open
        } else {
            Fate::Absent
        };
        self.decided.get(&id).copied().ok_or(missing)
    }
}

/// What the message at this place of a request became, and whether that was another one. `None` = nothing that has a
/// name.
fn published(request: &Request, place: usize) -> Option<(MessageId, bool)> {
    let mut before = 0;
    for publish in &request.publishes {
        let count = publish.count as usize;
        if place < before + count {
            let number = u32::try_from(place - before).ok()?;
            let mut duplicates = publish.duplicates.iter();
            if let Some(duplicate) = duplicates.find(|duplicate| duplicate.place == number) {
                return Some((duplicate.first, true));
            }
            let first = publish.first.filter(|_| !publish.unroutable.contains(&number))?;
            let message = MessageId {
                number: first.number + number,
                ..first
            };
            return Some((message, false));
        }
        before += count;
    }
    None
}

fn place_of(entry: &Entry) -> Place {
    Place {
        index: entry.index,
        term: entry.term,
        time_ms: entry.at_ms,
        node: None,
    }
}

/// Marks the leases that were said to end by their time and that the log ended otherwise; says how many.
fn give_back(history: &mut History, audit: &Audit) -> u64 {
    let mut current: BTreeMap<(u64, MessageId), u64> = BTreeMap::new();
    let mut ended: BTreeSet<u64> = BTreeSet::new();
    for event in audit.entries().flat_map(|entry| &entry.events) {
        let place = (event.queue_id, event.message);
        match (event.change.as_str(), event.fence) {
            ("leased", Some(fence)) => {
                current.insert(place, fence);
            }
            ("released" | "session-ended", _) => ended.extend(current.remove(&place)),
            _ => {}
        }
    }
    let released = history
        .settles
        .iter()
        .filter(|settle| settle.wish == Wish::Release);
    let released: BTreeSet<&str> = released.map(|settle| settle.token.as_str()).collect();
    let mut count = 0;
    for delivery in &mut history.deliveries {
        let given_back = ended.contains(&delivery.fence) && !released.contains(delivery.token.as_str());
        if delivery.ends_by_time && given_back {
            delivery.ends_by_time = false;
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Delivery;

    const LOG: &str = r#"
        {"entry":{"index":1,"at_ms":10}}
        {"entry":{"index":2,"at_ms":20,"requests":[{"id":"7-1","kind":"publish","queue":"q","count":3,"first":"2-0","duplicates":[{"place":1,"first":"1-0"}]}]}}
        {"entry":{"index":3,"at_ms":30,"requests":[{"id":"7-2","kind":"publish","queue":"q","count":1,"refused":"QUEUE_FULL"}]}}
        {"entry":{"index":4,"at_ms":40,"requests":[{"id":"7-3","kind":"settle","settlements":[{"token":"a","verdict":"extend","until_ms":99},{"token":"b","verdict":"ack","refused":"STALE_LEASE"}]}]}}
        {"entry":{"index":5,"at_ms":50,"requests":[{"id":"7-4","kind":"transact","settlements":[{"token":"c","verdict":"ack"}],"publishes":[{"queue":"p","count":1,"first":"5-0"},{"queue":"q","count":1,"first":"5-1"}]}]}}
        {"entry":{"index":6,"at_ms":60,"requests":[{"id":"7-2","kind":"publish","repeats":3},{"id":"7-5","kind":"publish","count":1,"refused":"QUEUE_FULL"}]}}
        {"entry":{"index":7,"at_ms":70,"requests":[{"id":"7-5","kind":"publish","count":1,"first":"7-1"}]}}
        {"entry":{"index":8,"at_ms":80,"requests":[{"id":"7-6","kind":"publish","count":1,"first":"8-0"}]}}
    "#;

    fn audit(log: &str) -> Audit {
        let mut audit = Audit::default();
        audit.add("n", log.as_bytes()).expect("memory can be read");
        audit
    }

    fn request(sequence: u64) -> Option<RequestId> {
        Some(RequestId { client: 7, sequence })
    }

    fn publish(sequence: u64) -> Publish {
        Publish {
            request: request(sequence),
            ..Publish::default()
        }
    }

    fn settle(sequence: u64, token: &str) -> Settle {
        Settle {
            request: request(sequence),
            token: token.to_owned(),
            ..Settle::default()
        }
    }

    fn message(index: u64, number: u32) -> Outcome<MessageId> {
        Outcome::Done(MessageId { index, number })
    }

    fn refused<T>(reason: &str) -> Outcome<T> {
        Outcome::Refused(Some(reason.to_owned()))
    }

    #[test]
    fn what_nobody_was_told_of_is_told_by_the_log() {
        let history = History {
            publishes: [1, 1, 1, 2, 4, 4, 5, 6, 9].map(publish).into(),
            settles: vec![settle(3, "a"), settle(3, "b"), settle(4, "c"), settle(8, "d")],
            ..History::default()
        };
        let resolved = resolve(&history, &audit(LOG), Some(7));
        let outcomes: Vec<_> = resolved
            .history
            .publishes
            .iter()
            .map(|one| one.outcome.clone())
            .collect();
        let expected = [
            message(2, 0),
            message(1, 0),
            message(2, 2),
            refused("QUEUE_FULL"),
            message(5, 0),
            message(5, 1),
            message(7, 1),
            Outcome::Unknown,
            Outcome::Refused(None),
        ];
        assert_eq!(outcomes, expected);
        let duplicates: Vec<bool> = resolved
            .history
            .publishes
            .iter()
            .map(|one| one.duplicate)
            .collect();
        assert_eq!(duplicates.iter().position(|&duplicate| duplicate), Some(1));
        let outcomes: Vec<_> = resolved
            .history
            .settles
            .iter()
            .map(|one| one.outcome.clone())
            .collect();
        let done = Outcome::Done(());
        let expected = [done.clone(), refused("STALE_LEASE"), done, Outcome::Refused(None)];
        assert_eq!(outcomes, expected);
        let extended = &resolved.history.settles[0];
        assert_eq!(extended.leased_until_ms, Some(99));
        assert_eq!(
            extended.place.map(|place| (place.index, place.time_ms)),
            Some((4, 40))
        );
        let (publishes, settles) = (&resolved.history.publishes, &resolved.history.settles);
        let publishes = publishes.iter().filter(|one| !one.outcome.is_unknown());
        assert!(
            publishes
                .map(|one| one.answered)
                .chain(settles.iter().map(|one| one.answered))
                .all(|at| at == NEVER),
            "nobody was told"
        );
        assert_eq!((resolved.applied, resolved.absent, resolved.open), (8, 4, 1));
    }

    #[test]
    fn what_clients_know_stays_and_a_log_that_does_not_know_changes_nothing() {
        let told = Publish {
            outcome: message(9, 9),
            answered: Duration::from_secs(1),
            ..publish(1)
        };
        let history = History {
            publishes: vec![told, publish(1), Publish::default()],
            ..History::default()
        };
        let resolved = resolve(&history, &audit(LOG), Some(7));
        assert_eq!(resolved.history.publishes[0], history.publishes[0]);
        assert_eq!(
            resolved.history.publishes[1].outcome,
            message(1, 0),
            "the second of its request"
        );
        assert_eq!(
            resolved.history.publishes[2], history.publishes[2],
            "a request without a name"
        );
        let hole = LOG.replace("\"index\":4", "\"index\":3");
        for (log, barrier) in [(LOG, None), (LOG, Some(99)), (&hole, Some(7))] {
            assert_eq!(resolve(&history, &audit(log), barrier).history, history);
        }
    }

    #[test]
    fn a_lease_that_its_node_gave_back_did_not_end_by_its_time() {
        let log = r#"{"entry":{"index":1,"events":[{"message":"1-0","change":"leased","fence":1},{"message":"1-0","change":"CHANGE"},{"message":"1-0","change":"leased","fence":2}]}}"#;
        let lease = |fence: u64| Delivery {
            fence,
            token: fence.to_string(),
            ends_by_time: true,
            ..Delivery::default()
        };
        let history = History {
            deliveries: vec![lease(1), lease(2)],
            ..History::default()
        };
        for (change, wish, by_time) in [
            ("released", None, [false, true]),
            ("released", Some(Wish::Release), [true, true]),
            ("released", Some(Wish::Nack), [false, true]),
            ("session-ended", None, [false, true]),
            ("lease-expired", None, [true, true]),
        ] {
            let mut history = history.clone();
            history.settles.extend(wish.map(|wish| Settle {
                wish,
                ..settle(1, "1")
            }));
            let resolved = resolve(&history, &audit(&log.replace("CHANGE", change)), None);
            let found: Vec<bool> = resolved
                .history
                .deliveries
                .iter()
                .map(|one| one.ends_by_time)
                .collect();
            assert_eq!(found, by_time, "{change} {wish:?}");
        }
    }
}
