//! Leases that exclude each other: those of a group, and those of different
//! consumers of a queue that has a single active one.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Finding, Violation};
use crate::history::{Delivery, History, Settle, Wish};

/// No message of a group is leased before the one before it has left, and
/// messages leave in their order. For queues with a group concurrency of one
/// and without a limit of attempts.
#[must_use]
pub fn groups_are_in_order(history: &History) -> Vec<Violation> {
    let mut finding = Finding::new("the messages of a group are done in their order");
    let settles = history.settles_by_token();
    for ((queue, group), leases) in scopes(history, of_group) {
        for pair in leases.windows(2) {
            let [lease, next] = pair else { continue };
            if next.message < lease.message {
                finding.add(format!(
                    "group {group} of {queue} went back from {:?} to {:?} with {}",
                    lease.message, next.message, next.token
                ));
            }
            let done = |settle: &&Settle| {
                matches!(settle.wish, Wish::Ack | Wish::DeadLetter) && !settle.outcome.is_refused()
            };
            let of_lease = settles.get(lease.token.as_str()).map_or(&[][..], Vec::as_slice);
            if next.message > lease.message && !of_lease.iter().any(done) {
                finding.add(format!(
                    "group {group} of {queue} went on to {:?} before {:?} was done",
                    next.message, lease.message
                ));
            }
        }
    }
    finding.0
}

/// Of the messages of a group one at a time is leased. For queues with a group
/// concurrency of one.
#[must_use]
pub fn a_group_has_one_lease(history: &History) -> Vec<Violation> {
    let finding = Finding::new("a group has one live lease");
    no_overlap(history, finding, of_group, |delivery| delivery.fence)
}

/// One process at a time holds messages of a queue.
#[must_use]
pub fn one_consumer_is_active(history: &History) -> Vec<Violation> {
    let finding = Finding::new("one consumer at a time is active");
    no_overlap(
        history,
        finding,
        |delivery| Some(&delivery.queue),
        |delivery| delivery.process,
    )
}

/// A process that lets a lease run out is given nothing more before another one
/// was. For queues with a single active consumer and several to choose from.
#[must_use]
pub fn activity_passes_on(history: &History) -> Vec<Violation> {
    let mut finding = Finding::new("a consumer whose lease runs out makes way");
    let settles = history.settles_by_token();
    for (queue, leases) in scopes(history, |delivery| Some(&delivery.queue)) {
        for (place, lease) in leases.iter().enumerate() {
            if !runs_out(lease, &settles) {
                continue;
            }
            let mut later = leases[place + 1..].iter();
            let next = later.find(|next| next.granted_at_ms() >= lease.leased_until_ms);
            if let Some(next) = next.filter(|next| next.process == lease.process) {
                finding.add(format!(
                    "process {} of {queue} let {} run out and was given {}",
                    lease.process, lease.token, next.token
                ));
            }
        }
    }
    finding.0
}

/// Queue and name of the group of a message, if it has one.
fn of_group(delivery: &Delivery) -> Option<(&String, &String)> {
    Some((&delivery.queue, delivery.group.as_ref()?))
}

/// The leases of each scope, by fence.
fn scopes<'a, S: Ord>(
    history: &'a History,
    scope: impl Fn(&'a Delivery) -> Option<S>,
) -> BTreeMap<S, Vec<&'a Delivery>> {
    let mut scopes: BTreeMap<S, Vec<&Delivery>> = BTreeMap::new();
    for lease in history.leases() {
        if let Some(scope) = scope(lease) {
            scopes.entry(scope).or_default().push(lease);
        }
    }
    for leases in scopes.values_mut() {
        leases.sort_by_key(|lease| lease.fence);
    }
    scopes
}

/// Leases of one scope that are not of one owner have no moment in common. A
/// lease was still alive when a later one had been received if it was settled
/// after that with success, or if nothing but its time could have ended it and
/// the later one began before.
fn no_overlap<'a, S: Ord, O: PartialEq>(
    history: &'a History,
    mut finding: Finding,
    scope: impl Fn(&'a Delivery) -> Option<S>,
    owner: impl Fn(&'a Delivery) -> O,
) -> Vec<Violation> {
    let settles = history.settles_by_token();
    for leases in scopes(history, scope).values() {
        for (place, lease) in leases.iter().enumerate() {
            let alive_at = alive_at(lease, &settles);
            let ends_at_ms = runs_out(lease, &settles).then_some(lease.leased_until_ms);
            let overlaps = |later: &&&'a Delivery| {
                owner(later) != owner(lease)
                    && (alive_at.is_some_and(|at| at > later.received)
                        || ends_at_ms.is_some_and(|end| later.granted_at_ms() < end))
            };
            if let Some(later) = leases[place + 1..].iter().find(overlaps) {
                finding.add(format!(
                    "{} (process {}) was alive beside {} (process {})",
                    lease.token, lease.process, later.token, later.process
                ));
            }
        }
    }
    finding.0
}

/// The last moment at which the lease is known to have been alive.
fn alive_at(lease: &Delivery, settles: &BTreeMap<&str, Vec<&Settle>>) -> Option<Duration> {
    let of_lease = settles.get(lease.token.as_str())?;
    let done = of_lease.iter().filter(|settle| settle.outcome.done().is_some());
    done.map(|settle| settle.invoked).max()
}

/// Nothing but its time could have ended the lease.
fn runs_out(lease: &Delivery, settles: &BTreeMap<&str, Vec<&Settle>>) -> bool {
    lease.ends_by_time && !settles.contains_key(lease.token.as_str())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{LEASE_MS, Story, stale};
    use super::*;
    use crate::history::Outcome;

    fn of(group: &'static str) -> impl FnOnce(&mut Delivery) {
        move |delivery| delivery.group = Some(group.to_owned())
    }

    /// Two messages of a group, the first of them nacked once, and one of another
    /// group beside them.
    fn in_order() -> Story {
        Story::default()
            .delivery(1, 1, of("a"))
            .delivery(2, 2, of("b"))
            .settle(1, Wish::Nack, Outcome::Done(()))
            .delivery(1, 3, of("a"))
            .ack(3)
            .delivery(3, 4, of("a"))
            .ack(2)
            .ack(4)
    }

    fn of_process(process: u32) -> impl FnOnce(&mut Delivery) {
        move |delivery| delivery.process = process
    }

    /// Process 1 lets a lease run out, process 2 goes on.
    fn one_active() -> Story {
        Story::default()
            .delivery(1, 1, of_process(1))
            .ack(1)
            .delivery(2, 2, of_process(1))
            .delivery(2, 3, of_process(2))
            .settle(2, Wish::Ack, stale())
            .ack(3)
            .delivery(3, 4, of_process(2))
            .delivery(3, 5, of_process(1))
            .ack(5)
    }

    #[test]
    fn groups_in_order_and_active_consumers_are_accepted() {
        let history = in_order().history;
        assert_eq!(groups_are_in_order(&history), []);
        assert_eq!(a_group_has_one_lease(&history), []);
        let history = one_active().history;
        assert_eq!(one_consumer_is_active(&history), []);
        assert_eq!(activity_passes_on(&history), []);
    }

    #[test]
    fn a_group_that_goes_back_is_out_of_order() {
        let story = in_order().delivery(1, 9, of("a")).ack(9);
        assert_eq!(groups_are_in_order(&story.history).len(), 1);
    }

    #[test]
    fn a_group_that_skips_a_failed_message_is_out_of_order() {
        let story = Story::default()
            .delivery(1, 1, of("a"))
            .settle(1, Wish::Nack, Outcome::Done(()))
            .delivery(2, 2, of("a"))
            .ack(2);
        assert_eq!(groups_are_in_order(&story.history).len(), 1);
    }

    #[test]
    fn a_lease_that_is_settled_while_another_of_its_group_is_held_is_a_second_one() {
        let story = Story::default()
            .delivery(1, 1, of("a"))
            .delivery(2, 2, of("a"))
            .ack(1)
            .ack(2);
        assert_eq!(a_group_has_one_lease(&story.history).len(), 1);
    }

    #[test]
    fn a_lease_that_begins_in_the_time_of_another_of_its_group_is_a_second_one() {
        let early = |delivery: &mut Delivery| {
            of("a")(delivery);
            delivery.leased_until_ms = 10 * LEASE_MS + LEASE_MS / 2;
        };
        let story = Story::default().delivery(1, 1, of("a")).delivery(2, 2, early);
        assert_eq!(a_group_has_one_lease(&story.history).len(), 1);
    }

    #[test]
    fn a_consumer_that_settles_while_another_holds_messages_is_a_second_one() {
        let story = Story::default()
            .delivery(1, 1, of_process(1))
            .delivery(2, 2, of_process(2))
            .settle(1, Wish::Release, Outcome::Done(()));
        assert_eq!(one_consumer_is_active(&story.history).len(), 1);
        let same = Story::default()
            .delivery(1, 1, of_process(1))
            .delivery(2, 2, of_process(1))
            .ack(1);
        assert_eq!(one_consumer_is_active(&same.history), []);
    }

    #[test]
    fn a_consumer_that_goes_on_after_its_lease_ran_out_does_not_make_way() {
        let story = Story::default()
            .delivery(1, 1, of_process(1))
            .delivery(1, 2, of_process(1))
            .ack(2);
        assert_eq!(activity_passes_on(&story.history).len(), 1);
    }

    /// Two deliveries of one queue and group, with what is done between and after them.
    fn pair(
        first: impl FnOnce(&mut Delivery),
        between: impl FnOnce(Story) -> Story,
        second: impl FnOnce(&mut Delivery),
        after: impl FnOnce(Story) -> Story,
    ) -> History {
        let group = |delivery: &mut Delivery| delivery.group = Some("a".to_owned());
        let story = Story::default().delivery(1, 1, |delivery| {
            group(delivery);
            first(delivery);
        });
        let story = between(story).delivery(2, 2, |delivery| {
            group(delivery);
            second(delivery);
        });
        after(story).history
    }

    #[test]
    fn a_group_breaks_its_promises_in_other_ways_too() {
        let nothing = |_: &mut Delivery| {};
        let soon = |delivery: &mut Delivery| delivery.leased_until_ms = 10 * LEASE_MS + 1;
        let refused = pair(
            nothing,
            |story| story.settle(1, Wish::Ack, stale()),
            nothing,
            |story| story,
        );
        let released = |story: Story| story.settle(1, Wish::Release, Outcome::Done(()));
        let released = pair(nothing, released, nothing, |story| story);
        for (way, history) in [("its ack was refused", refused), ("it was released", released)] {
            assert_eq!(groups_are_in_order(&history).len(), 1, "{way}");
        }
        let extended = |story: Story| story.settle(1, Wish::Extend, Outcome::Done(()));
        let extended = pair(nothing, |story| story, nothing, extended);
        let early = pair(nothing, |story| story, soon, |story| story);
        for (way, history) in [("extended beside it", extended), ("a moment too early", early)] {
            assert_eq!(a_group_has_one_lease(&history).len(), 1, "{way}");
        }
    }

    #[test]
    fn a_single_consumer_breaks_its_promises_in_other_ways_too() {
        let as_is = |story: Story| story;
        let early = |delivery: &mut Delivery| {
            delivery.process = 2;
            delivery.leased_until_ms = 10 * LEASE_MS + LEASE_MS / 2;
        };
        let by_time = pair(of_process(1), as_is, early, as_is);
        let by_ack = pair(of_process(1), as_is, of_process(2), |story| story.ack(1));
        for (way, history) in [("before the lease ran out", by_time), ("before the ack", by_ack)] {
            assert_eq!(one_consumer_is_active(&history).len(), 1, "{way}");
        }
        let other = pair(of_process(1), as_is, of_process(1), |story| story.ack(2));
        let acked_before = Story::default()
            .delivery(1, 1, of_process(1))
            .ack(1)
            .delivery(2, 2, of_process(1))
            .delivery(3, 3, of_process(1))
            .ack(3);
        for (way, history) in [
            ("another message", other),
            ("the second of two", acked_before.history),
        ] {
            assert_eq!(activity_passes_on(&history).len(), 1, "{way}");
        }
    }
}
