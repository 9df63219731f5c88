//! What clients got is what replicas gave.

use std::collections::BTreeMap;

use super::{Finding, Violation};
use crate::audit::{Audit, Change};
use crate::history::History;

/// Each lease that a client got is one that the log gave, of this message, with this attempt and end. For logs that
/// are whole.
#[must_use]
pub fn what_is_delivered_is_in_the_log(history: &History, audit: &Audit) -> Vec<Violation> {
    let mut finding = Finding::new("what was delivered is in the log");
    let mut given: BTreeMap<u64, &Change> = BTreeMap::new();
    for event in audit.entries().flat_map(|entry| &entry.events) {
        if let Some(fence) = event.fence.filter(|_| event.change == "leased") {
            given.insert(fence, event);
        }
    }
    for delivery in history.leases() {
        let same = |event: &&&Change| {
            event.message == delivery.message
                && event.queue == delivery.queue
                && event.attempt == Some(delivery.attempt)
                && event.until_ms == Some(delivery.leased_until_ms)
        };
        if given.get(&delivery.fence).filter(same).is_none() {
            let found = given.get(&delivery.fence);
            finding.add(format!(
                "attempt {} of {} until {} was delivered as {}; the log has {found:?}",
                delivery.attempt, delivery.message, delivery.leased_until_ms, delivery.token
            ));
        }
    }
    finding.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Delivery, MessageId};

    const LOG: &str = r#"{"entry":{"index":3,"events":[
        {"message":"1-0","queue":"q","change":"published"},
        {"message":"1-0","queue":"q","change":"leased","fence":7,"attempt":1,"until_ms":90}]}}"#;

    type Change = fn(&mut Delivery);

    /// One delivery, of the lease in the log, but for the change.
    fn found(change: Change) -> usize {
        let mut audit = Audit::default();
        let log = LOG.replace('\n', "");
        audit.add("n", log.as_bytes()).expect("memory can be read");
        let mut delivery = Delivery {
            message: MessageId { index: 1, number: 0 },
            queue: "q".to_owned(),
            fence: 7,
            attempt: 1,
            leased_until_ms: 90,
            ..Delivery::default()
        };
        change(&mut delivery);
        let history = History {
            deliveries: vec![delivery],
            ..History::default()
        };
        what_is_delivered_is_in_the_log(&history, &audit).len()
    }

    #[test]
    fn a_lease_of_the_log_is_known_and_any_other_is_not() {
        assert_eq!(found(|_| {}), 0);
        let others: [(&str, Change); 5] = [
            ("another message", |delivery| delivery.message.number = 1),
            ("another queue", |delivery| delivery.queue = "p".to_owned()),
            ("another attempt", |delivery| delivery.attempt = 2),
            ("another end", |delivery| delivery.leased_until_ms = 91),
            ("a lease that nobody gave", |delivery| delivery.fence = 8),
        ];
        for (what, change) in others {
            assert_eq!(found(change), 1, "{what}");
        }
    }
}
