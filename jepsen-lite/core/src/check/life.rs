//! What a trace tells of a message is a life that a message can have.

use std::collections::BTreeMap;

use super::{Finding, Violation};
use crate::ids::MessageId;
use crate::view::Event;

/// Where a message is in a queue, by what was told of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Absent,
    /// Ready or delayed.
    Waiting,
    Leased,
    Dead,
}

/// What was told of a message in one queue.
#[derive(Clone, Copy, Debug, Default)]
struct Stay {
    place: Place,
    /// Leases that ended in failure.
    failures: u32,
}

/// The changes of each message are told in their order, each can follow the one
/// before it, leases count failures and have growing fences, and a message
/// leaves each queue in one way for each time that it entered it. For traces
/// that reach back to the publish.
#[must_use]
pub fn traces_are_lives(events: &[Event]) -> Vec<Violation> {
    let mut finding = Finding::new("a trace tells a life");
    let mut messages: BTreeMap<MessageId, Vec<&Event>> = BTreeMap::new();
    for event in events {
        messages.entry(event.message).or_default().push(event);
    }
    for events in messages.values() {
        for pair in events.windows(2) {
            let order = |event: &Event| (event.index, event.ordinal);
            if order(pair[0]) >= order(pair[1]) || pair[0].at_ms > pair[1].at_ms {
                finding.add(format!("{:?} is told before {:?}", pair[0], pair[1]));
            }
        }
        lives(events, &mut finding);
    }
    finding.0
}

/// One message, in all queues that it comes to.
fn lives(events: &[&Event], finding: &mut Finding) {
    let mut stays: BTreeMap<&str, Stay> = BTreeMap::new();
    let mut fence = 0;
    for event in events {
        let stay = stays.entry(&event.queue).or_default();
        match next(*stay, &event.change) {
            Some(next) => *stay = next,
            None => finding.add(format!("{event:?} of a message that is {:?}", stay.place)),
        }
        if event.change == "leased" {
            let attempt = Some(stay.failures + 1);
            if event.attempt != attempt || event.fence.is_none_or(|next| next <= fence) {
                finding.add(format!(
                    "{event:?} after {} failures and fence {fence}",
                    stay.failures
                ));
            }
            fence = event.fence.unwrap_or(fence);
        }
    }
}

/// What a change makes of a stay; None if it cannot be.
fn next(stay: Stay, change: &str) -> Option<Stay> {
    use Place::{Absent, Dead, Leased, Waiting};
    let Stay { place, failures } = stay;
    let (place, failures) = match (change, place) {
        ("published" | "arrived", Absent) => (Waiting, 0),
        ("duplicate", _) => (place, failures),
        ("due" | "rescheduled", Waiting) => (Waiting, failures),
        ("leased", Waiting) => (Leased, failures),
        ("extended", Leased) => (Leased, failures),
        ("nacked" | "lease-expired", Leased) => (Waiting, failures + 1),
        ("released" | "session-ended", Leased) => (Waiting, failures),
        ("died", Waiting | Leased) => (Dead, failures),
        ("redriven", Dead) => (Waiting, 0),
        ("redrive-undone", Waiting) => (Dead, failures),
        ("acked", Leased)
        | ("expired", Waiting | Leased)
        | ("dropped", Waiting)
        | ("dead-lettered", Waiting | Leased | Dead)
        | ("moved", Waiting | Dead)
        | ("deleted", Waiting | Leased | Dead) => (Absent, failures),
        _ => return None,
    };
    Some(Stay { place, failures })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A life of these changes in one queue, one entry for each.
    fn life(changes: &[&str]) -> Vec<Event> {
        let (mut failures, mut fence) = (0, 0);
        let event = |(index, change): (u64, &&str)| {
            let mut event = Event {
                message: MessageId { index: 1, number: 0 },
                index,
                at_ms: 1_000 + index / 2,
                queue: "jobs".to_owned(),
                change: (*change).to_owned(),
                ..Event::default()
            };
            match *change {
                "leased" => {
                    fence += 7;
                    event.attempt = Some(failures + 1);
                    event.fence = Some(fence);
                }
                "nacked" | "lease-expired" => failures += 1,
                "redriven" => failures = 0,
                _ => {}
            }
            event
        };
        (1..).zip(changes).map(event).collect()
    }

    const LONG: [&str; 14] = [
        "published",
        "due",
        "leased",
        "extended",
        "nacked",
        "leased",
        "released",
        "leased",
        "lease-expired",
        "leased",
        "died",
        "redriven",
        "leased",
        "acked",
    ];

    #[test]
    fn a_long_life_is_one() {
        assert_eq!(traces_are_lives(&life(&LONG)), []);
    }

    #[test]
    fn nothing_follows_an_exit_but_a_new_beginning() {
        let again = ["published", "leased", "acked", "leased"];
        let twice = ["published", "leased", "acked", "acked"];
        let two_ways = ["published", "dropped", "expired"];
        for bad in [&again[..], &twice, &two_ways] {
            assert_eq!(traces_are_lives(&life(bad)).len(), 1, "{bad:?}");
        }
        assert_eq!(traces_are_lives(&life(&["published", "moved", "arrived"])), []);
    }

    #[test]
    fn what_was_not_leased_is_not_acked() {
        assert_eq!(traces_are_lives(&life(&["published", "acked"])).len(), 1);
        assert_eq!(traces_are_lives(&life(&["leased", "acked"])).len(), 2);
    }

    #[test]
    fn order_fences_and_attempts_are_looked_at() {
        let mut swapped = life(&LONG);
        swapped.swap(3, 4);
        let mut earlier = life(&LONG);
        earlier[7].at_ms = 1;
        let mut old_fence = life(&LONG);
        old_fence[7].fence = Some(1);
        let mut uncounted = life(&LONG);
        uncounted[5].attempt = Some(1);
        for bad in [swapped, earlier, old_fence, uncounted] {
            assert!(!traces_are_lives(&bad).is_empty(), "{bad:?}");
        }
    }
}
