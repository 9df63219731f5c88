//! Every promise, kept and broken by the smallest history that does.

use std::time::Duration;

use super::*;
use crate::history::{STALE_LEASE, Settle};

pub(super) const LEASE_MS: u64 = 1_000;

/// Tells a history step by step; a clock tick per step.
#[derive(Default)]
pub(super) struct Story {
    pub(super) history: History,
    tick: u64,
}

impl Story {
    fn now(&mut self) -> Duration {
        self.tick += 1;
        Duration::from_secs(self.tick)
    }

    fn publish(mut self, key: u64, outcome: Outcome<MessageId>) -> Self {
        self.history.publishes.push(Publish {
            key,
            process: 1,
            queue: "jobs".to_owned(),
            outcome,
            ..Publish::default()
        });
        self
    }

    /// Published and confirmed as message `key`.
    fn confirmed(self, key: u64) -> Self {
        self.publish(key, Outcome::Done(message(key)))
    }

    pub(super) fn delivery(mut self, key: u64, fence: u64, change: impl FnOnce(&mut Delivery)) -> Self {
        let mut delivery = Delivery {
            queue: "jobs".to_owned(),
            process: 1,
            message: message(key),
            key: Some(key),
            token: token(fence),
            fence,
            attempt: 1,
            lease_ms: LEASE_MS,
            leased_until_ms: fence * 10 * LEASE_MS,
            ends_by_time: true,
            received: self.now(),
            ..Delivery::default()
        };
        change(&mut delivery);
        self.history.deliveries.push(delivery);
        self
    }

    fn first(self, key: u64, fence: u64) -> Self {
        self.delivery(key, fence, |_| {})
    }

    fn again(self, key: u64, fence: u64, attempt: u32) -> Self {
        self.delivery(key, fence, |delivery| {
            delivery.attempt = attempt;
            delivery.redelivered = true;
        })
    }

    pub(super) fn settle(mut self, fence: u64, wish: Wish, outcome: Outcome<()>) -> Self {
        let (invoked, answered) = (self.now(), self.now());
        self.history.settles.push(Settle {
            token: token(fence),
            wish,
            invoked,
            answered,
            outcome,
            ..Settle::default()
        });
        self
    }

    pub(super) fn ack(self, fence: u64) -> Self {
        self.settle(fence, Wish::Ack, Outcome::Done(()))
    }
}

fn message(key: u64) -> MessageId {
    MessageId {
        index: key,
        number: 0,
    }
}

fn token(fence: u64) -> String {
    format!("lease {fence}")
}

pub(super) fn stale() -> Outcome<()> {
    Outcome::Refused(Some(STALE_LEASE.to_owned()))
}

/// One message that is nacked, expires, and is acked at its third attempt; a
/// stale ack in between; one dead letter.
fn good() -> Story {
    let dead = |delivery: &mut Delivery| delivery.queue = "failed".to_owned();
    Story::default()
        .confirmed(1)
        .confirmed(2)
        .publish(3, Outcome::Refused(None))
        .publish(4, Outcome::Unknown)
        .first(1, 1)
        .first(2, 2)
        .settle(1, Wish::Nack, Outcome::Done(()))
        .again(1, 3, 2)
        .again(1, 4, 3)
        .settle(3, Wish::Ack, stale())
        .settle(4, Wish::Extend, Outcome::Done(()))
        .ack(4)
        .settle(4, Wish::Ack, stale())
        .settle(2, Wish::DeadLetter, Outcome::Done(()))
        .delivery(2, 5, dead)
        .ack(5)
}

fn ends() -> Ends {
    let jobs = Counts {
        published: 2,
        acked: 1,
        dead_lettered: 1,
        ..Default::default()
    };
    let failed = Counts {
        published: 1,
        acked: 1,
        ..Default::default()
    };
    Ends {
        counts: BTreeMap::from([("jobs".to_owned(), jobs), ("failed".to_owned(), failed)]),
        deliveries_max: 5,
    }
}

#[test]
fn a_good_history_is_accepted() {
    assert_eq!(check(&good().history, &ends()), []);
}

/// For stories that do not tell of counts.
const NO_COUNTS: Ends = Ends {
    counts: BTreeMap::new(),
    deliveries_max: 5,
};

/// The promise is broken in `story`, and no other is.
fn assert_broken(promise: &str, story: &Story) {
    let broken: BTreeSet<&str> = check(&story.history, &NO_COUNTS)
        .iter()
        .map(|violation| violation.promise)
        .collect();
    assert_eq!(broken, BTreeSet::from([promise]));
}

#[test]
fn a_confirmed_message_that_never_comes_is_lost() {
    assert_broken(
        "a confirmed message is delivered until it is acked",
        &good().confirmed(9),
    );
}

#[test]
fn a_message_that_was_only_nacked_is_lost() {
    let story = good()
        .publish(9, Outcome::Unknown)
        .first(9, 9)
        .settle(9, Wish::Nack, Outcome::Done(()));
    assert_broken("a confirmed message is delivered until it is acked", &story);
}

#[test]
fn a_refused_ack_that_removed_the_message_is_a_loss() {
    let story = good().confirmed(9).first(9, 9).settle(9, Wish::Ack, stale());
    assert_broken("a confirmed message is delivered until it is acked", &story);
}

#[test]
fn an_ack_of_unknown_outcome_may_have_been_the_last() {
    let story = good()
        .confirmed(9)
        .first(9, 9)
        .settle(9, Wish::Ack, Outcome::Unknown);
    assert_eq!(nothing_is_lost(&story.history), []);
}

#[test]
fn a_delivery_that_nobody_published_is_a_phantom() {
    assert_broken("what is delivered was published", &good().first(9, 9).ack(9));
}

#[test]
fn a_damaged_body_is_a_phantom() {
    let story = good()
        .confirmed(9)
        .delivery(9, 9, |delivery| delivery.key = None)
        .ack(9);
    assert_broken("what is delivered was published", &story);
}

#[test]
fn a_message_of_another_queue_is_a_phantom() {
    let mut story = good().confirmed(9).first(9, 9).ack(9);
    story.history.publishes.last_mut().expect("just added").queue = "other".to_owned();
    assert_broken("what is delivered was published", &story);
}

#[test]
fn a_refused_publish_that_is_delivered_was_applied() {
    let story = good().publish(9, Outcome::Refused(None)).first(9, 9).ack(9);
    assert_broken("refused means not applied", &story);
}

#[test]
fn a_publish_that_becomes_two_messages_was_applied_twice() {
    let story = good().confirmed(9).first(9, 9).ack(9);
    let twice = story
        .delivery(9, 10, |delivery| delivery.message = message(10))
        .ack(10);
    assert_broken("a repeated request is applied once", &twice);
}

#[test]
fn a_lease_after_the_ack_breaks_it() {
    let story = good()
        .confirmed(9)
        .first(9, 9)
        .ack(9)
        .again(9, 10, 1)
        .settle(10, Wish::Release, stale());
    assert_broken("an acknowledged ack is final", &story);
}

#[test]
fn a_token_that_settles_twice_is_not_refused() {
    assert_broken(
        "a stale token is refused",
        &good().settle(4, Wish::Release, Outcome::Done(())),
    );
}

#[test]
fn a_token_that_extends_after_its_end_is_not_refused() {
    assert_broken(
        "a stale token is refused",
        &good().settle(4, Wish::Extend, Outcome::Done(())),
    );
}

#[test]
fn a_token_that_works_when_others_hold_the_message_is_not_refused() {
    let story = good()
        .confirmed(9)
        .first(9, 9)
        .again(9, 10, 2)
        .settle(9, Wish::Extend, Outcome::Done(()))
        .ack(10);
    assert_broken("a stale token is refused", &story);
}

#[test]
fn one_fence_in_two_hands_is_no_lease() {
    let story = good().confirmed(9).first(9, 9).ack(9);
    let twice = story.delivery(9, 9, |delivery| delivery.redelivered = true);
    assert_broken("a lease is exclusive", &twice);
}

#[test]
fn a_lease_comes_again_to_a_holder_that_does_not_know_what_became_of_it() {
    let story = good()
        .confirmed(9)
        .first(9, 9)
        .settle(9, Wish::Ack, Outcome::Unknown);
    let mut twice = story.first(9, 9).ack(9);
    assert_eq!(check(&twice.history, &NO_COUNTS), []);
    // Nor did it know if only the log says, afterwards, that nothing became of it.
    let untold = twice
        .history
        .settles
        .iter_mut()
        .find(|one| one.outcome.is_unknown());
    let untold = untold.expect("the first settlement");
    (untold.outcome, untold.answered) = (Outcome::Refused(None), NEVER);
    assert_eq!(check(&twice.history, &NO_COUNTS), []);
}

#[test]
fn a_lease_that_begins_before_the_last_one_ended_is_not_exclusive() {
    let early = |delivery: &mut Delivery| {
        delivery.redelivered = true;
        delivery.leased_until_ms = 9 * 10 * LEASE_MS + LEASE_MS / 2;
    };
    let story = good().confirmed(9).first(9, 9).delivery(9, 10, early).ack(10);
    assert_broken("a lease is exclusive", &story);
}

#[test]
fn a_nack_that_does_not_count_breaks_attempts() {
    let story = good()
        .confirmed(9)
        .first(9, 9)
        .settle(9, Wish::Nack, Outcome::Done(()))
        .again(9, 10, 1)
        .ack(10);
    assert_broken("attempts count failed leases", &story);
}

#[test]
fn an_attempt_for_which_there_was_no_time_breaks_attempts() {
    let soon = |delivery: &mut Delivery| {
        delivery.redelivered = true;
        delivery.attempt = 3;
        delivery.leased_until_ms = 9 * 10 * LEASE_MS + LEASE_MS;
    };
    let story = good().confirmed(9).first(9, 9).delivery(9, 10, soon).ack(10);
    assert_broken("attempts count failed leases", &story);
}

#[test]
fn an_attempt_beyond_the_limit_breaks_attempts() {
    assert_broken(
        "attempts count failed leases",
        &good().confirmed(9).again(9, 9, 6).ack(9),
    );
}

#[test]
fn first_deliveries_out_of_order_are_seen_by_their_fences() {
    let story = good()
        .confirmed(8)
        .confirmed(9)
        .first(8, 9)
        .first(9, 8)
        .ack(8)
        .ack(9);
    assert_broken("first deliveries are in the order of publishing", &story);
}

#[test]
fn a_second_first_delivery_is_out_of_order() {
    let story = good()
        .confirmed(9)
        .first(9, 9)
        .delivery(9, 10, |delivery| delivery.attempt = 2)
        .ack(10);
    assert_broken("first deliveries are in the order of publishing", &story);
}

#[test]
fn a_publisher_that_overtakes_itself_is_out_of_order() {
    let story = good()
        .publish(8, Outcome::Done(message(9)))
        .publish(9, Outcome::Done(message(8)));
    let first = |key| move |delivery: &mut Delivery| delivery.key = Some(key);
    let story = story
        .delivery(8, 8, first(9))
        .ack(8)
        .delivery(9, 9, first(8))
        .ack(9);
    assert_broken("one publisher's messages stand in the order of sending", &story);
}

#[test]
fn counts_that_do_not_add_up_are_seen() {
    let history = good().history;
    let mut leak = ends();
    leak.counts.get_mut("jobs").expect("it is there").expired = 1;
    let mut left = ends();
    left.counts.get_mut("failed").expect("it is there").ready = 1;
    let mut uncounted = ends();
    let jobs = uncounted.counts.get_mut("jobs").expect("it is there");
    (jobs.acked, jobs.dropped) = (0, 1);
    for ends in [leak, left, uncounted] {
        assert!(!counts_add_up(&history, &ends).is_empty(), "{ends:?}");
    }
}

/// Each promise broken once more: most of these differ from a good history by one event.
#[test]
fn there_are_other_ways_to_break_a_promise() {
    let refused = "refused means not applied";
    let twice = "a repeated request is applied once";
    let last = "an acknowledged ack is final";
    let exclusive = "a lease is exclusive";
    let first = "first deliveries are in the order of publishing";
    let publisher = "one publisher's messages stand in the order of sending";
    let full = || Outcome::Refused(Some("QUEUE_FULL".to_owned()));
    let failed = |delivery: &mut Delivery| delivery.queue = "failed".to_owned();
    let also = |index, number| Outcome::Done(MessageId { index, number });
    let done = |key| good().confirmed(key).first(key, key).ack(key);
    let ways = [
        (
            refused,
            "with a reason",
            good().publish(9, full()).first(9, 9).ack(9),
        ),
        (
            refused,
            "as a dead letter",
            good().publish(9, full()).delivery(9, 9, failed).ack(9),
        ),
        (twice, "as two confirms say", done(9).publish(9, also(4, 2))),
        (
            twice,
            "as the confirm and the delivery say",
            good()
                .confirmed(9)
                .delivery(9, 9, |delivery| delivery.message = message(10))
                .ack(9)
                .delivery(9, 10, |delivery| delivery.key = Some(9))
                .ack(10),
        ),
        (last, "in the dead-letter queue", done(9).delivery(9, 10, failed)),
        (
            last,
            "received before the ack was asked for",
            good()
                .confirmed(9)
                .first(9, 9)
                .again(9, 10, 2)
                .ack(9)
                .settle(10, Wish::Nack, stale()),
        ),
        (
            exclusive,
            "one fence for two messages",
            done(8)
                .confirmed(9)
                .delivery(9, 8, |delivery| delivery.token = token(9))
                .ack(9),
        ),
        (
            first,
            "within one publish",
            good()
                .publish(8, also(8, 0))
                .publish(9, also(8, 1))
                .delivery(8, 9, |delivery| {
                    delivery.message = MessageId { index: 8, number: 0 }
                })
                .delivery(9, 8, |delivery| {
                    delivery.message = MessageId { index: 8, number: 1 }
                })
                .ack(8)
                .ack(9),
        ),
        (
            publisher,
            "within one publish",
            good()
                .publish(8, also(8, 1))
                .publish(9, also(8, 0))
                .delivery(9, 8, |delivery| {
                    delivery.message = MessageId { index: 8, number: 0 }
                })
                .delivery(8, 9, |delivery| {
                    delivery.message = MessageId { index: 8, number: 1 }
                })
                .ack(8)
                .ack(9),
        ),
        (publisher, "two in one place", done(9).publish(10, also(9, 0))),
    ];
    for (promise, way, story) in ways {
        let broken: BTreeSet<&str> = check(&story.history, &NO_COUNTS)
            .iter()
            .map(|violation| violation.promise)
            .collect();
        assert!(broken.contains(promise), "{promise}, {way}: {broken:?}");
    }
}
