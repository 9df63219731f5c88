//! The promises, each decided from a history.
//!
//! Every function looks for evidence against one promise and returns what it
//! found. What the clients do not know is never held against the broker: a
//! publish of unknown outcome may appear or not, an ack of unknown outcome may
//! have been the last or not. What they do know is decided by the order that the
//! broker itself vouches for (fences, message ids, cluster time), not by the
//! order of receipt; receipt counts only where it proves that something was
//! known before something else was asked for.
//!
//! The history must be complete: the queues were drained, and what the drain
//! found is part of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Result, ensure};

use crate::history::{Delivery, History, MessageId, NEVER, Outcome, Publish, Settle, Wish};
use crate::view::Counts;

mod bereft;
mod due;
mod exclusive;
mod held;
mod late;
mod life;
mod limit;
mod log;
mod once;
mod register;
pub mod replay;
mod served;
mod told;
mod wgl;

pub use bereft::{Bereft, nothing_goes_to_the_dead, sessions_of_the_dead};
pub use due::messages_come_in_their_time;
pub use exclusive::{a_group_has_one_lease, activity_passes_on, groups_are_in_order, one_consumer_is_active};
pub use held::nothing_is_forgotten;
pub use late::nothing_is_late;
pub use life::traces_are_lives;
pub use limit::{Turned, never_above, refusals_are_typed};
pub use log::{
    index_order_is_real_time_order, reads_are_fresh, refused_is_not_executed, replicas_agree,
    time_goes_forward, transactions_are_whole, what_is_done_is_in_the_log,
};
pub use once::each_exactly_once;
pub use register::a_fence_guards_a_register;
pub use served::{a_minority_stops_nobody, times_without_a_minority};
pub use told::what_is_delivered_is_in_the_log;
pub use wgl::{Searched, a_message_is_linearizable, a_small_queue_is_linearizable};

/// What the broker said at the end, after the drain.
#[derive(Clone, Debug, Default)]
pub struct Ends {
    /// Counts of each queue.
    pub counts: BTreeMap<String, Counts>,
    /// Most attempts per message in one queue; 0 = as many as it takes.
    pub deliveries_max: u32,
}

/// Evidence against a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The promise.
    pub promise: &'static str,
    /// What was seen.
    pub evidence: String,
}

/// Insists that nothing was found.
///
/// # Errors
///
/// When something was; with the first of it.
pub fn verdict(violations: &[Violation]) -> Result<()> {
    let shown: Vec<String> = violations.iter().take(20).map(ToString::to_string).collect();
    ensure!(
        violations.is_empty(),
        "{} violations, the first of them:\n  {}",
        violations.len(),
        shown.join("\n  ")
    );
    Ok(())
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.evidence)
    }
}

/// All promises.
#[must_use]
pub fn check(history: &History, ends: &Ends) -> Vec<Violation> {
    [
        nothing_is_lost(history),
        nothing_comes_from_nowhere(history),
        refused_is_not_applied(history),
        nothing_is_published_twice(history),
        an_ack_is_final(history),
        a_stale_token_is_refused(history),
        a_lease_is_exclusive(history),
        attempts_count_failures(history, ends.deliveries_max),
        first_deliveries_are_in_order(history),
        groups_are_in_order(history),
        a_group_has_one_lease(history),
        publishers_are_in_order(history),
        counts_add_up(history, ends),
        a_fence_guards_a_register(history),
    ]
    .concat()
}

/// Every message that was confirmed, or that anybody has ever held, was acked in
/// the end: in its queue, or in the dead-letter queue that it went to.
#[must_use]
pub fn nothing_is_lost(history: &History) -> Vec<Violation> {
    let mut finding = Finding::new("a confirmed message is delivered until it is acked");
    let settles = history.settles_by_token();
    let acked: BTreeSet<MessageId> = history
        .deliveries
        .iter()
        .filter(|delivery| {
            let settles = settles.get(delivery.token.as_str());
            settles.is_some_and(|all| all.iter().any(|s| s.wish == Wish::Ack && !s.outcome.is_refused()))
        })
        .map(|delivery| delivery.message)
        .collect();
    let confirmed = history
        .publishes
        .iter()
        .filter_map(|publish| publish.outcome.done());
    let held = history.deliveries.iter().map(|delivery| &delivery.message);
    let expected: BTreeSet<MessageId> = confirmed.chain(held).copied().collect();
    for message in expected.difference(&acked) {
        let leases = history
            .deliveries
            .iter()
            .filter(|delivery| delivery.message == *message)
            .count();
        finding.add(format!(
            "message {message:?} is gone, after {leases} deliveries and no ack"
        ));
    }
    finding.0
}

/// Every delivery is a message that somebody published to that queue, with the
/// very same body, or that was dead-lettered from there.
#[must_use]
pub fn nothing_comes_from_nowhere(history: &History) -> Vec<Violation> {
    let mut finding = Finding::new("what is delivered was published");
    let publishes = by_key(history);
    let queues: BTreeSet<&str> = history
        .publishes
        .iter()
        .map(|publish| publish.queue.as_str())
        .collect();
    for delivery in &history.deliveries {
        let Delivery {
            queue,
            message,
            token,
            ..
        } = delivery;
        match delivery.key.map(|key| publishes.get(&key)) {
            None => finding.add(format!(
                "{message:?} of {queue} has a damaged body (lease {token})"
            )),
            Some(None) => finding.add(format!(
                "{message:?} of {queue} was never published (lease {token})"
            )),
            Some(Some(publish)) if publish.queue != *queue && queues.contains(queue.as_str()) => {
                finding.add(format!(
                    "{message:?} was published to {} and came from {queue}",
                    publish.queue
                ));
            }
            Some(Some(_)) => {}
        }
    }
    finding.0
}

/// A publish that was refused never shows up.
#[must_use]
pub fn refused_is_not_applied(history: &History) -> Vec<Violation> {
    let mut finding = Finding::new("refused means not applied");
    let publishes = by_key(history);
    for delivery in &history.deliveries {
        let publish = delivery.key.and_then(|key| publishes.get(&key));
        if let Some(Publish {
            key,
            outcome: Outcome::Refused(reason),
            ..
        }) = publish
        {
            finding.add(format!(
                "publish {key} was refused ({reason:?}) and delivered as {:?}",
                delivery.message
            ));
        }
    }
    finding.0
}

/// One publish is one message, however often the client had to repeat it, and
/// the one that its confirm names.
#[must_use]
pub fn nothing_is_published_twice(history: &History) -> Vec<Violation> {
    let mut finding = Finding::new("a repeated request is applied once");
    let mut messages: BTreeMap<u64, BTreeSet<MessageId>> = BTreeMap::new();
    for delivery in &history.deliveries {
        if let Some(key) = delivery.key {
            messages.entry(key).or_default().insert(delivery.message);
        }
    }
    for publish in &history.publishes {
        if let Outcome::Done(message) = publish.outcome {
            messages.entry(publish.key).or_default().insert(message);
        }
    }
    for (key, messages) in messages.iter().filter(|(_, messages)| messages.len() > 1) {
        finding.add(format!("publish {key} became {messages:?}"));
    }
    finding.0
}

/// After an acknowledged ack no later lease of the message exists, in any queue.
#[must_use]
pub fn an_ack_is_final(history: &History) -> Vec<Violation> {
    let mut finding = Finding::new("an acknowledged ack is final");
    let acked: BTreeSet<&str> = history
        .settles
        .iter()
        .filter(|settle| settle.wish == Wish::Ack && settle.outcome.done().is_some())
        .map(|settle| settle.token.as_str())
        .collect();
    let mut last: BTreeMap<MessageId, &Delivery> = BTreeMap::new();
    for delivery in &history.deliveries {
        let known = last.entry(delivery.message).or_insert(delivery);
        if known.fence < delivery.fence {
            *known = delivery;
        }
    }
    for delivery in history
        .deliveries
        .iter()
        .filter(|delivery| acked.contains(delivery.token.as_str()))
    {
        let later = last[&delivery.message];
        if later.fence > delivery.fence {
            let (message, token, again) = (delivery.message, &delivery.token, &later.token);
            finding.add(format!(
                "{message:?} was acked with {token} and leased again as {again}"
            ));
        }
    }
    finding.0
}

/// A lease that has ended settles nothing: not after its message was settled,
/// and not after the message was seen in other hands.
#[must_use]
pub fn a_stale_token_is_refused(history: &History) -> Vec<Violation> {
    let mut finding = Finding::new("a stale token is refused");
    let settles = history.settles_by_token();
    for leases in history.leases_by_message().values() {
        for (place, lease) in leases.iter().enumerate() {
            let of_lease = settles.get(lease.token.as_str()).map_or(&[][..], Vec::as_slice);
            let done = of_lease.iter().filter(|settle| settle.outcome.done().is_some());
            let ends: Vec<_> = done.clone().filter(|settle| settle.wish.is_final()).collect();
            if ends.len() > 1 {
                finding.add(format!(
                    "{} was settled {} times: {ends:?}",
                    lease.token,
                    ends.len()
                ));
            }
            let seen_elsewhere = leases[place + 1..].iter().map(|later| later.received).min();
            let settled_at = ends.iter().map(|settle| settle.answered).min();
            for settle in done {
                if seen_elsewhere.is_some_and(|at| settle.invoked > at) {
                    finding.add(format!(
                        "{:?} of {} after its message was in other hands",
                        settle.wish, lease.token
                    ));
                }
                if settled_at.is_some_and(|at| settle.invoked > at) {
                    finding.add(format!(
                        "{:?} of {} after it was settled",
                        settle.wish, lease.token
                    ));
                }
            }
        }
    }
    finding.0
}

/// A lease is one message's, and is handed out once, unless its holder does not
/// know whether it has settled it; and it has no successor before it has ended.
/// When it ended is known for certain of one that only its time ends and that
/// nobody has tried to settle: by its time, and not earlier.
#[must_use]
pub fn a_lease_is_exclusive(history: &History) -> Vec<Violation> {
    let mut finding = Finding::new("a lease is exclusive");
    let settles = history.settles_by_token();
    let mut fences: BTreeMap<u64, &Delivery> = BTreeMap::new();
    for delivery in &history.deliveries {
        let Some(first) = fences.insert(delivery.fence, delivery) else {
            continue;
        };
        let of_lease = settles.get(first.token.as_str()).map_or(&[][..], Vec::as_slice);
        let untold = |settle: &&Settle| settle.outcome.is_unknown() || settle.answered == NEVER;
        let unsure = of_lease.iter().any(untold);
        if first.token != delivery.token || !unsure {
            let (fence, one, two) = (delivery.fence, &first.token, &delivery.token);
            finding.add(format!(
                "fence {fence} was handed out twice: as {one} and as {two}"
            ));
        }
    }
    for leases in history.leases_by_message().values() {
        for pair in leases.windows(2) {
            let [lease, next] = pair else { continue };
            let tried = settles
                .get(lease.token.as_str())
                .is_some_and(|all| all.iter().any(|s| s.wish.is_final()));
            if lease.ends_by_time && !tried && next.granted_at_ms() < lease.leased_until_ms {
                let early = lease.leased_until_ms - next.granted_at_ms();
                finding.add(format!(
                    "{} began {early} ms before the end of {}",
                    next.token, lease.token
                ));
            }
        }
    }
    finding.0
}

/// Attempts begin at one and grow by one with each lease that ended in failure:
/// by a nack, or because its time was up. An attempt that nobody here has seen
/// must have had the time to run out.
#[must_use]
pub fn attempts_count_failures(history: &History, deliveries_max: u32) -> Vec<Violation> {
    let mut finding = Finding::new("attempts count failed leases");
    let settles = history.settles_by_token();
    let lease_min = history
        .deliveries
        .iter()
        .map(|delivery| delivery.lease_ms)
        .min()
        .unwrap_or(0);
    let limit = if deliveries_max == 0 {
        u32::MAX
    } else {
        deliveries_max
    };
    let mut check = |token: &str, attempt: u32, least: u32, most: u64| {
        if attempt < least || u64::from(attempt) > most || attempt > limit {
            finding.add(format!(
                "{token} is attempt {attempt}: at least {least} and at most {most} were made"
            ));
        }
    };
    for leases in history.leases_by_place().values() {
        if let Some(first) = leases.first() {
            let most = if first.redelivered { u64::MAX } else { 1 };
            check(&first.token, first.attempt, 1, most);
        }
        for pair in leases.windows(2) {
            let [lease, next] = pair else { continue };
            let of_lease = settles.get(lease.token.as_str()).map_or(&[][..], Vec::as_slice);
            let mut nacks = of_lease.iter().filter(|settle| settle.wish == Wish::Nack);
            let failed = nacks.clone().any(|settle| settle.outcome.done().is_some());
            let may_have_failed = nacks.any(|settle| !settle.outcome.is_refused());
            let passed = next.granted_at_ms().saturating_sub(lease.granted_at_ms());
            let ran_out = passed.checked_div(lease_min).unwrap_or(u64::MAX);
            let most = u64::from(lease.attempt) + u64::from(may_have_failed) + ran_out;
            check(&next.token, next.attempt, lease.attempt + u32::from(failed), most);
        }
    }
    finding.0
}

/// First deliveries of a queue follow the order in which its messages stand in
/// the log; those of groups do so group by group.
#[must_use]
pub fn first_deliveries_are_in_order(history: &History) -> Vec<Violation> {
    let mut finding = Finding::new("first deliveries are in the order of publishing");
    let mut first: BTreeMap<&str, Vec<&Delivery>> = BTreeMap::new();
    let dead_letters: BTreeSet<&str> = dead_letter_queues(history);
    for delivery in history.leases() {
        // A dead-letter queue has the order in which messages died.
        if !delivery.redelivered
            && delivery.group.is_none()
            && !dead_letters.contains(delivery.queue.as_str())
        {
            first.entry(&delivery.queue).or_default().push(delivery);
        }
    }
    for of_queue in first.values_mut() {
        of_queue.sort_by_key(|delivery| delivery.fence);
        for pair in of_queue.windows(2) {
            if pair[0].message >= pair[1].message {
                finding.add(format!(
                    "{:?} was first delivered before {:?}",
                    pair[0].message, pair[1].message
                ));
            }
        }
    }
    for leases in history.leases_by_place().values() {
        for later in leases.iter().skip(1).filter(|lease| !lease.redelivered) {
            finding.add(format!(
                "{} is not the first lease of {:?} and says so",
                later.token, later.message
            ));
        }
    }
    finding.0
}

/// What one publisher sent in order stands in the log in that order. Transactions, of which a process may have
/// several under way, are left out, and so is what is published again with its dedup id, and what it gave up.
#[must_use]
pub fn publishers_are_in_order(history: &History) -> Vec<Violation> {
    let mut finding = Finding::new("one publisher's messages stand in the order of sending");
    let mut confirmed: BTreeMap<u32, BTreeMap<u64, MessageId>> = BTreeMap::new();
    let in_order = |publish: &&Publish| {
        publish.transaction.is_none() && publish.dedup_id.is_none() && publish.answered != NEVER
    };
    for publish in history.publishes.iter().filter(in_order) {
        if let Outcome::Done(message) = publish.outcome {
            confirmed
                .entry(publish.process)
                .or_default()
                .insert(publish.key, message);
        }
    }
    for of_publisher in confirmed.values() {
        let mut last: Option<(u64, MessageId)> = None;
        for (&key, &message) in of_publisher {
            if let Some((key_before, before)) = last
                && before >= message
            {
                finding.add(format!(
                    "publish {key_before} is {before:?}, and {key} after it is {message:?}"
                ));
            }
            last = Some((key, message));
        }
    }
    finding.0
}

/// `published` is the sum of where messages are and went, nothing is left after
/// the drain, and the totals are those that the clients know of, give or take
/// what they do not know.
#[must_use]
pub fn counts_add_up(history: &History, ends: &Ends) -> Vec<Violation> {
    let mut finding = Finding::new("the counts add up");
    let queue_of: BTreeMap<&str, &str> = history
        .deliveries
        .iter()
        .map(|delivery| (delivery.token.as_str(), delivery.queue.as_str()))
        .collect();
    for (queue, counts) in &ends.counts {
        let here = counts.ready + counts.delayed + counts.leased + counts.dead;
        let gone = counts.acked
            + counts.expired
            + counts.dead_lettered
            + counts.dropped
            + counts.deleted
            + counts.moved;
        if counts.published != here + gone {
            finding.add(format!(
                "{queue}: published is not the sum of the others: {counts:?}"
            ));
        }
        if here != 0 {
            finding.add(format!("{queue} is not empty after the drain: {counts:?}"));
        }
        let acks = history.settles.iter().filter(|settle| {
            settle.wish == Wish::Ack && queue_of.get(settle.token.as_str()) == Some(&queue.as_str())
        });
        let acked = acks
            .clone()
            .filter(|settle| settle.outcome.done().is_some())
            .count() as u64;
        let most = acked + acks.filter(|settle| settle.outcome == Outcome::Unknown).count() as u64;
        if !(acked..=most).contains(&counts.acked) {
            finding.add(format!(
                "{queue}: {} acked, the clients know of {acked} to {most}",
                counts.acked
            ));
        }
        let publishes = history.publishes.iter().filter(|publish| publish.queue == *queue);
        let confirmed = publishes
            .clone()
            .filter(|publish| publish.outcome.done().is_some())
            .count() as u64;
        let most = confirmed
            + publishes
                .filter(|publish| publish.outcome == Outcome::Unknown)
                .count() as u64;
        if confirmed > 0 && !(confirmed..=most).contains(&counts.published) {
            finding.add(format!(
                "{queue}: {} published, the clients know of {confirmed} to {most}",
                counts.published
            ));
        }
    }
    finding.0
}

struct Finding(Vec<Violation>, &'static str);

impl Finding {
    fn new(promise: &'static str) -> Self {
        Self(Vec::new(), promise)
    }

    fn add(&mut self, evidence: String) {
        self.0.push(Violation {
            promise: self.1,
            evidence,
        });
    }
}

fn by_key(history: &History) -> BTreeMap<u64, &Publish> {
    history
        .publishes
        .iter()
        .map(|publish| (publish.key, publish))
        .collect()
}

/// Queues to which nobody publishes.
fn dead_letter_queues(history: &History) -> BTreeSet<&str> {
    let published: BTreeSet<&str> = history
        .publishes
        .iter()
        .map(|publish| publish.queue.as_str())
        .collect();
    let delivered = history.deliveries.iter().map(|delivery| delivery.queue.as_str());
    delivered.filter(|queue| !published.contains(queue)).collect()
}

#[cfg(test)]
mod tests;
