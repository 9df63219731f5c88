//! Delays and lives, as clients can tell.

use std::collections::BTreeMap;

use super::{Finding, Violation};
use crate::history::{Act, History, MessageId, Outcome, Publish};

/// No message is leased before its delay has passed since it was published, or after its life has passed since then
/// and the delay. Messages that an operator may have rescheduled are left out.
#[must_use]
pub fn messages_come_in_their_time(history: &History) -> Vec<Violation> {
    let mut finding = Finding::new("a message comes after its delay and within its life");
    let mut publishes: BTreeMap<MessageId, &Publish> = BTreeMap::new();
    for publish in history.publishes.iter().filter(|publish| !publish.duplicate) {
        if let Outcome::Done(message) = publish.outcome
            && !is_operated(history, publish)
        {
            publishes.insert(message, publish);
        }
    }
    for delivery in history.leases() {
        let Some(publish) = publishes
            .get(&delivery.message)
            .filter(|one| one.queue == delivery.queue)
        else {
            continue;
        };
        let Some(place) = publish.place else { continue };
        let due_ms = place.time_ms + publish.delay_ms.unwrap_or(0);
        let granted_at_ms = delivery.granted_at_ms();
        if granted_at_ms < due_ms {
            finding.add(format!(
                "{} was leased {} ms before it was due, as {}",
                delivery.message,
                due_ms - granted_at_ms,
                delivery.token
            ));
        }
        let expired = |ttl_ms: u64| granted_at_ms >= due_ms + ttl_ms;
        if let Some(ttl_ms) = publish.ttl_ms.filter(|&ttl_ms| expired(ttl_ms)) {
            finding.add(format!(
                "{} was leased {} ms after its life of {ttl_ms} ms, as {}",
                delivery.message,
                granted_at_ms - due_ms - ttl_ms,
                delivery.token
            ));
        }
    }
    finding.0
}

/// An operator names single messages by their dedup ids.
fn is_operated(history: &History, publish: &Publish) -> bool {
    history
        .operations
        .iter()
        .any(|one| match (&one.act, &publish.dedup_id) {
            (Act::Operate(what), Some(id)) => what.split(' ').any(|word| word == id),
            (Act::Operate(_) | Act::Redrive, None) => one.queue == publish.queue,
            _ => false,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Delivery, Operation, Place};

    type Change = fn(&mut History);

    /// Published at 1,000 with a delay of 100, a life of 50 and a dedup id, and leased at 1,100 for 10.
    fn history(change: Change) -> History {
        let message = MessageId { index: 1, number: 0 };
        let mut history = History {
            publishes: vec![Publish {
                place: Some(Place {
                    time_ms: 1_000,
                    ..Place::default()
                }),
                delay_ms: Some(100),
                ttl_ms: Some(50),
                dedup_id: Some("one".to_owned()),
                outcome: Outcome::Done(message),
                ..Publish::default()
            }],
            deliveries: vec![Delivery {
                message,
                lease_ms: 10,
                leased_until_ms: 1_110,
                ..Delivery::default()
            }],
            ..History::default()
        };
        change(&mut history);
        history
    }

    fn operated(history: &mut History, what: &str) {
        history.operations.push(Operation {
            act: Act::Operate(what.to_owned()),
            ..Operation::default()
        });
    }

    #[test]
    fn in_its_time_and_where_nobody_can_tell_is_good() {
        let good: [(&str, Change); 4] = [
            ("first moment", |_| {}),
            ("last moment", |history| {
                history.deliveries[0].leased_until_ms = 1_159;
            }),
            ("rescheduled", |history| {
                history.deliveries[0].leased_until_ms = 1_020;
                operated(history, "reschedule one");
            }),
            ("unknown when it was published", |history| {
                history.deliveries[0].leased_until_ms = 1_020;
                history.publishes[0].place = None;
            }),
        ];
        for (what, change) in good {
            assert_eq!(messages_come_in_their_time(&history(change)), [], "{what}");
        }
    }

    #[test]
    fn a_moment_too_early_or_too_late_is_seen() {
        let bad: [(&str, Change); 4] = [
            ("early", |history| history.deliveries[0].leased_until_ms = 1_109),
            ("late", |history| history.deliveries[0].leased_until_ms = 1_160),
            ("early without a life", |history| {
                history.publishes[0].ttl_ms = None;
                history.deliveries[0].leased_until_ms = 1_015;
            }),
            ("another one is rescheduled", |history| {
                history.deliveries[0].leased_until_ms = 1_109;
                operated(history, "reschedule another");
            }),
        ];
        for (what, change) in bad {
            assert_eq!(messages_come_in_their_time(&history(change)).len(), 1, "{what}");
        }
    }
}
