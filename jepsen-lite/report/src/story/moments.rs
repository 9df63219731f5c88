//! What happened to each message: as its clients saw it, and as the log has it.

use std::collections::{BTreeMap, BTreeSet};

use jepsen_lite_core::audit::Audit;
use jepsen_lite_core::history::{Delivery, MessageId, Outcome, Place, Publish, Settle, Wish};
use jepsen_lite_core::view::Event;

use super::known::Known;
use super::ms;
use crate::run::Moment;

/// Changes that a message goes through that nothing befalls.
const SMOOTH: [&str; 5] = ["published", "due", "leased", "extended", "acked"];

/// What clients asked for, had in hand, and were told.
pub(super) fn as_clients_saw_it<'a>(known: &'a Known<'_>) -> impl Iterator<Item = (MessageId, Moment)> + 'a {
    let history = known.history;
    let publishes = history.publishes.iter();
    let publishes = publishes.filter_map(|one| Some((known.message_of(one)?, publish(known, one))));
    let deliveries = history
        .deliveries
        .iter()
        .map(|one| (one.message, received(known, one)));
    let settles = history.settles.iter().filter_map(|one| {
        let lease = known.lease(&one.token)?;
        Some((lease.message, settle(known, one, lease)))
    });
    publishes.chain(deliveries).chain(settles)
}

/// What the replicas applied.
pub(super) fn as_the_log_has_it<'a>(
    known: &'a Known<'_>,
    audit: &Audit,
) -> impl Iterator<Item = (MessageId, Moment)> + 'a {
    let events = with_plain_names(audit.events());
    events
        .into_iter()
        .map(|event| (event.message, applied(known, event)))
}

fn publish(known: &Known<'_>, publish: &Publish) -> Moment {
    let (mut note, odd) = told(&publish.outcome, "confirmed");
    if publish.duplicate {
        note.push_str(", known by its dedup id");
    }
    Moment {
        what: "publish".to_owned(),
        at_ms: Some(ms(publish.invoked)),
        until_ms: Some(ms(publish.answered)),
        who: Some(known.name(publish.process)),
        queue: publish.queue.clone(),
        note,
        odd: odd || publish.duplicate,
        ..placed(known, publish.place)
    }
}

fn received(known: &Known<'_>, delivery: &Delivery) -> Moment {
    Moment {
        what: "received".to_owned(),
        at_ms: Some(ms(delivery.received)),
        who: Some(known.name(delivery.process)),
        queue: delivery.queue.clone(),
        attempt: Some(delivery.attempt),
        token: Some(delivery.token.clone()),
        leased_until_ms: Some(delivery.leased_until_ms),
        ..Moment::default()
    }
}

fn settle(known: &Known<'_>, settle: &Settle, lease: &Delivery) -> Moment {
    let what = match settle.wish {
        Wish::Ack => "ack",
        Wish::Nack => "nack",
        Wish::Release => "release",
        Wish::DeadLetter => "dead-letter",
        Wish::Extend => "extend",
    };
    let (note, odd) = told(&settle.outcome, "done");
    Moment {
        what: what.to_owned(),
        at_ms: Some(ms(settle.invoked)),
        until_ms: Some(ms(settle.answered)),
        who: Some(known.name(settle.process)),
        queue: lease.queue.clone(),
        attempt: Some(lease.attempt),
        token: Some(settle.token.clone()),
        leased_until_ms: settle.leased_until_ms,
        note,
        odd,
        ..placed(known, settle.place)
    }
}

/// A moment with nothing but its place.
fn placed(known: &Known<'_>, place: Option<Place>) -> Moment {
    Moment {
        log_index: place.map(|place| place.index),
        cluster_ms: place.map(|place| place.time_ms),
        node: place.and_then(|place| known.node(place.node?)),
        ..Moment::default()
    }
}

fn applied(known: &Known<'_>, event: Event) -> Moment {
    let lease = event.fence.and_then(|fence| known.fenced(fence));
    // A lease of the log that no client tells of may have been lost on its way.
    let unseen = event.change == "leased" && lease.is_none();
    let mut notes: Vec<String> = event.reason.into_iter().collect();
    if unseen {
        notes.push("no client tells of it".to_owned());
    }
    // What a worker has had was leased before, however rough the estimate.
    let had = lease.map_or(f64::INFINITY, |lease| ms(lease.received));
    Moment {
        at_ms: known.clock.time_of(event.index).map(|at_ms| at_ms.min(had)),
        estimated: true,
        who: lease.map(|lease| known.name(lease.process)),
        queue: event.queue,
        log_index: Some(event.index),
        cluster_ms: Some(event.at_ms),
        attempt: event.attempt,
        token: lease.map(|lease| lease.token.clone()),
        leased_until_ms: event.until_ms,
        note: notes.join(", "),
        odd: unseen || !SMOOTH.contains(&event.change.as_str()),
        what: event.change,
        ..Moment::default()
    }
}

/// An event names its queue `name#id`; people call it by its name, unless two had the same.
fn with_plain_names(mut events: Vec<Event>) -> Vec<Event> {
    let mut ids: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for event in &events {
        if let Some((name, id)) = event.queue.rsplit_once('#') {
            ids.entry(name.to_owned()).or_default().insert(id.to_owned());
        }
    }
    for event in &mut events {
        if let Some((name, _)) = event.queue.rsplit_once('#')
            && ids.get(name).is_some_and(|ids| ids.len() == 1)
        {
            event.queue = name.to_owned();
        }
    }
    events
}

/// An outcome in words, and whether it is out of the ordinary.
fn told<T>(outcome: &Outcome<T>, done: &str) -> (String, bool) {
    match outcome {
        Outcome::Done(_) => (done.to_owned(), false),
        Outcome::Refused(Some(reason)) => (format!("refused: {reason}"), true),
        Outcome::Refused(None) => ("refused".to_owned(), true),
        Outcome::Unknown => ("unknown: no answer".to_owned(), true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_its_id_beside_its_name_only_where_another_had_that_name() {
        let in_queue = |queue: &str| Event {
            queue: queue.to_owned(),
            ..Event::default()
        };
        let events = with_plain_names(["work#1", "work#1", "again#2", "again#3"].map(in_queue).into());
        let names: Vec<&str> = events.iter().map(|event| event.queue.as_str()).collect();
        assert_eq!(names, ["work", "work", "again#2", "again#3"]);
    }
}
