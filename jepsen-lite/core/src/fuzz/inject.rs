//! Where each anomaly goes, and what it changes.
//!
//! `None` = there is no place for it. What an anomaly does not change stays as it was: who saw what, when, and in
//! which order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Dice;
use crate::audit::{Change, Entry};
use crate::cluster::{Done, Effect};
use crate::history::{
    Act, Delivery, History, Kill, Mark, MessageId, Operation, Outcome, Place, Publish, RequestId,
    STALE_LEASE, Settle, Wish,
};
use crate::run::Run;
use crate::schedule::Fault;
use crate::view::Settings;

/// After everything.
const LATER: Duration = Duration::from_secs(1_000_000);

/// All trace of a confirmed message is gone, as if nobody had ever got it.
pub(super) fn lost_publish(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let message = dice.pick(plain_messages(run))?;
    let history = &mut run.history;
    let of_message = history
        .deliveries
        .iter()
        .filter(|delivery| delivery.message == message);
    let tokens: BTreeSet<String> = of_message.map(|delivery| delivery.token.clone()).collect();
    history.deliveries.retain(|delivery| delivery.message != message);
    history.settles.retain(|settle| !tokens.contains(&settle.token));
    Some(())
}

/// A message comes with the body of a key that nobody has published.
pub(super) fn phantom(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let unknown = run.history.publishes.iter().map(|publish| publish.key).max()? + 1;
    let message = dice.pick(delivered(&run.history))?;
    for delivery in run
        .history
        .deliveries
        .iter_mut()
        .filter(|one| one.message == message)
    {
        delivery.key = Some(unknown);
    }
    Some(())
}

/// A delivery with a damaged body.
pub(super) fn corrupted_body(run: &mut Run, dice: &mut Dice) -> Option<()> {
    dice.pick(&mut run.history.deliveries)?.key = None;
    Some(())
}

/// A message comes from another queue than the one that it was published to.
pub(super) fn wrong_queue(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let queues: BTreeSet<String> = run
        .history
        .publishes
        .iter()
        .map(|one| one.queue.clone())
        .collect();
    let message = dice.pick(delivered(&run.history))?;
    let of_message = run
        .history
        .deliveries
        .iter_mut()
        .filter(|one| one.message == message);
    let deliveries: Vec<&mut Delivery> = of_message.collect();
    let from = deliveries.first()?.queue.clone();
    let to = dice.pick(queues.into_iter().filter(|queue| *queue != from))?;
    for delivery in deliveries {
        delivery.queue.clone_from(&to);
    }
    Some(())
}

/// Somebody else gets a message while its holder, who acks it later, has it.
pub(super) fn second_lease(run: &mut Run, dice: &mut Dice) -> Option<()> {
    unmoved(run).then_some(())?;
    let (lease, ack) = dice.pick(single_acked(&run.history))?;
    let moment = Duration::from_nanos(1);
    (ack.answered > lease.received + 2 * moment && lease.granted_at_ms() < ack.place?.time_ms)
        .then_some(())?;
    let second = Delivery {
        received: lease.received + moment,
        process: lease.process.wrapping_add(1),
        ..next_lease(&run.history, &lease, lease.granted_at_ms() + 1)
    };
    for settle in run
        .history
        .settles
        .iter_mut()
        .filter(|one| one.token == lease.token)
    {
        settle.invoked = settle.invoked.max(lease.received + 2 * moment);
    }
    run.history.deliveries.push(second);
    Some(())
}

/// One lease is given to two.
pub(super) fn one_fence_twice(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let (lease, ack) = dice.pick(single_acked(&run.history))?;
    run.history.deliveries.push(Delivery {
        process: lease.process.wrapping_add(1),
        received: ack.invoked,
        ..lease
    });
    Some(())
}

/// A message comes again after its ack was acknowledged.
pub(super) fn ack_not_final(run: &mut Run, dice: &mut Dice) -> Option<()> {
    unmoved(run).then_some(())?;
    let (lease, ack) = dice.pick(single_acked(&run.history))?;
    let again = Delivery {
        received: ack.answered + Duration::from_millis(1),
        ..next_lease(
            &run.history,
            &lease,
            lease.leased_until_ms.max(ack.place?.time_ms),
        )
    };
    run.history.deliveries.push(again);
    Some(())
}

/// The first attempt is called the second one.
pub(super) fn attempt_skipped(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let unmoved = unmoved(run);
    let single: BTreeSet<u64> = single_acked(&run.history)
        .iter()
        .map(|(lease, _)| lease.fence)
        .collect();
    let of_single = |one: &&mut Delivery| unmoved && single.contains(&one.fence) && !one.redelivered;
    dice.pick(run.history.deliveries.iter_mut().filter(of_single))?
        .attempt = 2;
    Some(())
}

/// There is one attempt more than there may be.
pub(super) fn attempt_over_limit(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let limits = &run.facts.queues;
    let max = |queue: &str| {
        limits
            .get(queue)
            .and_then(|of| of.deliveries_max)
            .filter(|&max| max > 0)
    };
    let last: BTreeSet<u64> = run
        .history
        .leases_by_place()
        .values()
        .filter_map(|leases| leases.last().map(|lease| lease.fence))
        .collect();
    let limited = |one: &&mut Delivery| last.contains(&one.fence) && max(&one.queue).is_some();
    let delivery = dice.pick(run.history.deliveries.iter_mut().filter(limited))?;
    delivery.attempt = max(&delivery.queue)? + 1;
    Some(())
}

/// Two messages of a queue are first delivered in the wrong order.
pub(super) fn first_deliveries_swapped(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let delayed = run
        .history
        .publishes
        .iter()
        .any(|publish| publish.delay_ms.is_some());
    (unmoved(run) && !delayed).then_some(())?;
    let published: BTreeSet<&str> = run
        .history
        .publishes
        .iter()
        .map(|one| one.queue.as_str())
        .collect();
    let mut queues: BTreeMap<&str, Vec<Delivery>> = BTreeMap::new();
    for (lease, _) in single_acked(&run.history) {
        let queue = published.get(lease.queue.as_str());
        if let Some(queue) = queue.filter(|_| !lease.redelivered && lease.group.is_none()) {
            queues.entry(queue).or_default().push(lease);
        }
    }
    let of_queue = dice.pick(queues.into_values().filter(|leases| leases.len() > 1))?;
    let first = dice.pick(of_queue.clone())?;
    let second = dice.pick(
        of_queue
            .into_iter()
            .filter(|lease| lease.message != first.message),
    )?;
    for delivery in &mut run.history.deliveries {
        if delivery.fence == first.fence {
            delivery.fence = second.fence;
        } else if delivery.fence == second.fence {
            delivery.fence = first.fence;
        }
    }
    Some(())
}

/// What a publisher sent first stands in the log last.
pub(super) fn publisher_overtakes_itself(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let plain = |one: &&Publish| {
        one.transaction.is_none() && one.dedup_id.is_none() && one.outcome.is_done() && !one.exchange
    };
    let publishes: Vec<Publish> = run.history.publishes.iter().filter(plain).cloned().collect();
    let one = dice.pick(publishes.clone())?;
    let same =
        |other: &Publish| other.process == one.process && other.queue == one.queue && other.key != one.key;
    let other = dice.pick(publishes.into_iter().filter(same))?;
    // The keys change places, in the bodies too: so each message is still the one that its key says.
    let swapped = |key: u64| match key {
        key if key == one.key => other.key,
        key if key == other.key => one.key,
        key => key,
    };
    for publish in &mut run.history.publishes {
        publish.key = swapped(publish.key);
    }
    for delivery in &mut run.history.deliveries {
        delivery.key = delivery.key.map(swapped);
    }
    Some(())
}

/// One publish becomes two messages, and both are done.
pub(super) fn duplicate_applied(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let (lease, ack) = dice.pick(single_acked(&run.history))?;
    let latest = run
        .history
        .deliveries
        .iter()
        .map(|delivery| delivery.message)
        .max()?;
    let twin = Delivery {
        message: MessageId {
            index: latest.index + 1,
            number: 0,
        },
        redelivered: false,
        received: LATER,
        ..next_lease(&run.history, &lease, lease.leased_until_ms)
    };
    run.history.settles.push(Settle {
        token: twin.token.clone(),
        invoked: LATER,
        answered: LATER,
        place: None,
        request: None,
        transaction: None,
        ..ack
    });
    run.history.deliveries.push(twin);
    Some(())
}

/// The parts of a transaction stand in different entries.
pub(super) fn torn_transaction(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let parts = run.history.settles.iter_mut();
    let part = dice.pick(parts.filter(|one| one.transaction.is_some() && one.outcome.is_done()))?;
    part.place.as_mut()?.index += 1;
    Some(())
}

/// A settlement that came too late was done, and everybody knew that it came too late.
pub(super) fn stale_token_accepted(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let settles = run.history.settles_by_token();
    let leases = run.history.leases_by_message();
    let known_to_be_over = |late: &Settle| {
        let settled = settles.get(late.token.as_str()).is_some_and(|all| {
            let mut done = all
                .iter()
                .filter(|one| one.outcome.is_done() && one.wish.is_final());
            done.any(|one| one.answered < late.invoked)
        });
        let in_other_hands = leases.values().any(|of_message| {
            let mut of_message = of_message
                .iter()
                .skip_while(|lease| lease.token != late.token)
                .skip(1);
            of_message.any(|lease| lease.received < late.invoked)
        });
        settled || in_other_hands
    };
    let stale =
        |one: &Settle| matches!(&one.outcome, Outcome::Refused(Some(reason)) if reason == STALE_LEASE);
    let all = run.history.settles.iter().enumerate();
    let places = all.filter(|(_, one)| stale(one) && known_to_be_over(one));
    let place = dice.pick(places.map(|(place, _)| place).collect::<Vec<_>>())?;
    run.history.settles[place].outcome = Outcome::Done(());
    Some(())
}

/// A replica comes to another state.
pub(super) fn replica_diverges(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let entry = dice.pick(run.audit.entries())?;
    let other =
        serde_json::json!({ "restored": { "index": entry.index, "hash": format!("{}!", entry.hash) } });
    run.audit.add("another", other.to_string().as_bytes()).ok()
}

/// A read shows a state of before something that had been answered.
pub(super) fn stale_read(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let answered = run.history.publishes.iter().filter(|one| one.outcome.is_done());
    let first = answered
        .filter_map(|one| Some((one.answered, one.place?.index)))
        .min()?;
    let reads = run.history.reads.iter_mut();
    let read = dice.pick(reads.filter(|read| read.read_index.is_some() && read.invoked > first.0))?;
    read.read_index = Some(first.1 - 1);
    Some(())
}

/// What was answered before something else was asked for stands behind it in the log.
pub(super) fn index_against_real_time(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let publishes = run.history.publishes.iter().enumerate();
    let placed = publishes.filter(|(_, one)| {
        one.outcome.is_done() && one.place.is_some() && one.transaction.is_none() && !one.duplicate
    });
    let placed: Vec<(usize, Publish)> = placed.map(|(place, one)| (place, one.clone())).collect();
    let (first, one) = dice.pick(placed.clone())?;
    let after = placed
        .into_iter()
        .filter(|(_, other)| other.invoked > one.answered);
    let (second, other) = dice.pick(after)?;
    // Their cluster times stay.
    let index = |of: &Publish| of.place.map(|place| place.index);
    run.history.publishes[first].place.as_mut()?.index = index(&other)?;
    run.history.publishes[second].place.as_mut()?.index = index(&one)?;
    Some(())
}

/// The broker has counted an ack that there was not, and perhaps a message that there was not.
pub(super) fn counts_wrong(run: &mut Run, dice: &mut Dice) -> Option<()> {
    (unmoved(run) && !repeated(&run.history)).then_some(())?;
    let counts = dice.pick(run.facts.counts.values_mut())?;
    counts.acked += 1;
    counts.published += u64::from(dice.number().is_multiple_of(2));
    Some(())
}

/// Cluster time goes back by a millisecond.
pub(super) fn time_goes_back(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let entries: Vec<&Entry> = run.audit.entries().collect();
    let quiet = entries
        .windows(2)
        .filter(|pair| pair[1].events.is_empty() && pair[0].at_ms > 0);
    let (index, at_ms) = dice.pick(
        quiet
            .map(|pair| (pair[1].index, pair[0].at_ms - 1))
            .collect::<Vec<_>>(),
    )?;
    run.audit.edit(|entry| {
        if entry.index == index {
            entry.at_ms = at_ms;
        }
    });
    Some(())
}

/// A lease that nobody has settled is given to another before its time is up.
pub(super) fn early_expiry(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let settles = run.history.settles_by_token();
    let mut pairs = Vec::new();
    for leases in run.history.leases_by_message().values() {
        for pair in leases.windows(2) {
            let forgotten = pair[0].ends_by_time && !settles.contains_key(pair[0].token.as_str());
            if forgotten && pair[1].granted_at_ms() >= pair[0].leased_until_ms {
                pairs.push((pair[0].clone(), pair[1].fence));
            }
        }
    }
    let (lease, next) = dice.pick(pairs)?;
    let mut nexts = run.history.deliveries.iter_mut();
    let next = nexts.find(|delivery| delivery.fence == next)?;
    next.leased_until_ms = lease.leased_until_ms - 1 + next.lease_ms;
    Some(())
}

/// A delayed message comes a millisecond too early.
pub(super) fn early_delivery(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let (fence, due_ms, _) = dice.pick(timed(&run.history, |publish| publish.delay_ms.is_some()))?;
    regrant(&mut run.history, fence, due_ms - 1);
    Some(())
}

/// A message comes when its life is over.
pub(super) fn late_delivery(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let (fence, due_ms, ttl_ms) = dice.pick(timed(&run.history, |publish| publish.ttl_ms.is_some()))?;
    regrant(&mut run.history, fence, due_ms + ttl_ms);
    Some(())
}

/// A publish that was refused is there.
pub(super) fn refused_is_applied(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let delivered = delivered(&run.history);
    let mut attempts: BTreeMap<u64, u32> = BTreeMap::new();
    for publish in &run.history.publishes {
        *attempts.entry(publish.key).or_default() += 1;
    }
    let publishes = run.history.publishes.iter_mut();
    let publish = dice.pick(publishes.filter(|one| {
        let there = one
            .outcome
            .done()
            .is_some_and(|message| delivered.contains(message));
        there && one.transaction.is_none() && !one.duplicate && attempts[&one.key] == 1
    }))?;
    publish.outcome = Outcome::Refused(Some("QUEUE_FULL".to_owned()));
    publish.place = None;
    Some(())
}

/// A request of the run is executed when the run is over.
pub(super) fn late_effect(run: &mut Run, dice: &mut Dice) -> Option<()> {
    run.facts.barrier?;
    let requests = run.history.settles.iter().filter_map(|settle| settle.request);
    let id = dice.pick(requests)?;
    let last = run.audit.entries().last()?;
    let late = serde_json::json!({ "entry": {
        "index": last.index + 1, "term": last.term, "at_ms": last.at_ms, "hash": last.hash,
        "requests": [{ "id": id.to_string(), "kind": "settle" }],
    } });
    run.audit.add("another", late.to_string().as_bytes()).ok()
}

/// A message was confirmed, and no entry brought it.
pub(super) fn confirmed_not_in_log(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let confirmed = run.history.publishes.iter().filter(|one| !one.duplicate);
    let message = *dice.pick(confirmed.filter_map(|one| one.outcome.done()))?;
    remove(run, message, "published")
}

/// An ack was acknowledged, and no entry did it.
pub(super) fn ack_not_in_log(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let (lease, _) = dice.pick(single_acked(&run.history))?;
    remove(run, lease.message, "acked")
}

/// The log leases a message twice.
pub(super) fn leased_while_leased(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let (lease, _) = dice.pick(single_acked(&run.history))?;
    let fence = highest_fence(&run.history) + 1;
    insert_after(run, lease.message, "leased", |event| Change {
        fence: Some(fence),
        ..event.clone()
    })
}

/// The log leases a message that it has acked.
pub(super) fn leased_after_ack(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let (lease, _) = dice.pick(single_acked(&run.history))?;
    let fence = highest_fence(&run.history) + 1;
    insert_after(run, lease.message, "acked", |event| Change {
        change: "leased".to_owned(),
        fence: Some(fence),
        attempt: Some(lease.attempt),
        until_ms: Some(lease.leased_until_ms + 1_000_000),
        ..event.clone()
    })
}

/// The cluster does not come back.
pub(super) fn stuck_after_heal(run: &mut Run, _: &mut Dice) -> Option<()> {
    run.facts
        .overdue
        .push("not whole after 30s: nobody leads".to_owned());
    Some(())
}

/// A worker is killed, and long after that its consumer gets a message: at the place in the log of something that was asked
/// for later still, which therefore contradicts the order of the answers too.
pub(super) fn given_to_the_dead(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let of_consumers: BTreeMap<u64, u64> = run
        .audit
        .entries()
        .flat_map(|entry| entry.events.iter().map(|event| (entry.index, event)))
        .filter(|(_, event)| event.change == "leased" && event.session.is_some())
        .filter_map(|(index, event)| Some((event.fence?, index)))
        .collect();
    let deliveries = run.history.deliveries.iter();
    let leases = deliveries.filter_map(|one| Some((one.process, *of_consumers.get(&one.fence)?)));
    let (process, index) = dice.pick(leases)?;
    run.history.kills.push(Kill { process, at: LATER });
    run.history.operations.push(Operation {
        invoked: 2 * LATER,
        answered: 2 * LATER,
        place: Some(Place {
            index,
            ..Place::default()
        }),
        act: Act::Declare(Settings::default()),
        outcome: Outcome::Done(0),
        ..Operation::default()
    });
    Some(())
}

/// A node panics.
pub(super) fn crash(run: &mut Run, _: &mut Dice) -> Option<()> {
    run.facts.crashes.push("node 1 panicked".to_owned());
    Some(())
}

/// A fault does nothing.
pub(super) fn idle_fault(run: &mut Run, _: &mut Dice) -> Option<()> {
    run.effects.push(Effect {
        from_ms: 1,
        until_ms: Some(2),
        fault: Fault::Throttle { bytes_per_second: 1 },
        nodes: vec![0],
        state: Done::Yes,
        counters: BTreeMap::from([("bytes".to_owned(), 0)]),
    });
    Some(())
}

/// Less was seen than the schedule wants.
pub(super) fn thin_evidence(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let evidence = &mut run.schedule.evidence;
    let wanted = [
        &mut evidence.confirmed,
        &mut evidence.redelivered,
        &mut evidence.leader_changes,
        &mut evidence.snapshots_installed,
        &mut evidence.duplicates,
        &mut evidence.dead_lettered,
        &mut evidence.stale_tokens,
    ];
    *dice.pick(wanted)? = 100_000;
    Some(())
}

/// Nobody was told what became of what he asked for, and there is no log.
pub(super) fn nothing_is_known(run: &mut Run, _: &mut Dice) -> Option<()> {
    run.audit = crate::audit::Audit::default();
    for publish in &mut run.history.publishes {
        publish.outcome = Outcome::Unknown;
        publish.place = None;
    }
    for settle in &mut run.history.settles {
        settle.outcome = Outcome::Unknown;
        settle.place = None;
    }
    Some(())
}

/// The harness fails.
pub(super) fn harness_failure(run: &mut Run, _: &mut Dice) -> Option<()> {
    run.facts.failures.push("heal: no such process".to_owned());
    Some(())
}

/// A client was not told what became of its request: no fault of anybody.
pub(super) fn answer_lost(run: &mut Run, dice: &mut Dice) -> Option<()> {
    let named =
        |request: Option<RequestId>, transaction: Option<u64>| request.is_some() && transaction.is_none();
    if dice.number().is_multiple_of(2) {
        let settles = run.history.settles.iter_mut();
        let settle = dice.pick(settles.filter(|one| named(one.request, one.transaction)))?;
        settle.outcome = Outcome::Unknown;
        settle.place = None;
    } else {
        let publishes = run.history.publishes.iter_mut();
        let publish =
            dice.pick(publishes.filter(|one| named(one.request, one.transaction) && one.batch.is_none()))?;
        publish.outcome = Outcome::Unknown;
        publish.place = None;
    }
    Some(())
}

/// The replicas were not asked to write down what they apply.
pub(super) fn log_lost(run: &mut Run, _: &mut Dice) -> Option<()> {
    run.audit = crate::audit::Audit::default();
    (run.schedule.evidence.dead_lettered == 0).then_some(())
}

/// Nobody moves messages, or lets them go otherwise than by an ack.
fn unmoved(run: &Run) -> bool {
    let operated = run.history.operations.iter().any(|one| {
        !matches!(
            one.act,
            crate::history::Act::Declare(_) | crate::history::Act::Bind(_)
        )
    });
    !operated
        && run
            .history
            .publishes
            .iter()
            .all(|publish| publish.ttl_ms.is_none())
}

fn repeated(history: &History) -> bool {
    history.publishes.iter().any(|publish| publish.dedup_id.is_some())
}

/// Confirmed messages of a run in which none may go but by an ack.
fn plain_messages(run: &Run) -> Vec<MessageId> {
    let drained = run.history.marks.iter().any(|mark| mark.name == Mark::DRAINED);
    if !unmoved(run) || !drained {
        return Vec::new();
    }
    let publishes = run.history.publishes.iter();
    publishes
        .filter_map(|publish| publish.outcome.done().copied())
        .collect()
}

fn delivered(history: &History) -> BTreeSet<MessageId> {
    history
        .deliveries
        .iter()
        .map(|delivery| delivery.message)
        .collect()
}

fn highest_fence(history: &History) -> u64 {
    history
        .deliveries
        .iter()
        .map(|delivery| delivery.fence)
        .max()
        .unwrap_or(0)
}

/// Messages that were leased once, and acked by the one settlement of that lease.
fn single_acked(history: &History) -> Vec<(Delivery, Settle)> {
    let settles = history.settles_by_token();
    let mut single = Vec::new();
    for leases in history.leases_by_message().values() {
        let [lease] = leases[..] else { continue };
        let Some([settle]) = settles.get(lease.token.as_str()).map(Vec::as_slice) else {
            continue;
        };
        if settle.wish == Wish::Ack && settle.outcome.is_done() {
            single.push((lease.clone(), (*settle).clone()));
        }
    }
    single
}

/// Another lease of the same message, the last of all, given at this cluster time.
fn next_lease(history: &History, lease: &Delivery, granted_at_ms: u64) -> Delivery {
    let fence = highest_fence(history) + 1;
    Delivery {
        fence,
        token: format!("{} {fence}", lease.token),
        redelivered: true,
        leased_until_ms: granted_at_ms + lease.lease_ms,
        ..lease.clone()
    }
}

/// First leases of messages that were published with a time and that no operator has named: the fence, when it was due,
/// and its life.
fn timed(history: &History, has: fn(&Publish) -> bool) -> Vec<(u64, u64, u64)> {
    let operated = |publish: &Publish| {
        let id = publish.dedup_id.as_deref().unwrap_or_default();
        let mut operations = history.operations.iter();
        operations.any(|one| format!("{:?}", one.act).split(['"', ' ']).any(|word| word == id))
    };
    let mut timed = Vec::new();
    for publish in history
        .publishes
        .iter()
        .filter(|one| has(one) && !one.duplicate && !operated(one))
    {
        let (Some(&message), Some(place)) = (publish.outcome.done(), publish.place) else {
            continue;
        };
        let leases = history.leases_by_message();
        if let Some([lease]) = leases.get(&message).map(Vec::as_slice) {
            let due_ms = place.time_ms + publish.delay_ms.unwrap_or(0);
            timed.push((lease.fence, due_ms, publish.ttl_ms.unwrap_or(0)));
        }
    }
    timed
}

/// A lease was given at another time.
fn regrant(history: &mut History, fence: u64, granted_at_ms: u64) {
    for delivery in history.deliveries.iter_mut().filter(|one| one.fence == fence) {
        delivery.leased_until_ms = granted_at_ms + delivery.lease_ms;
    }
}

/// Removes one event of a message from the log.
fn remove(run: &mut Run, message: MessageId, change: &str) -> Option<()> {
    let mut removed = None;
    run.audit.edit(|entry| {
        let before = entry.events.len();
        entry
            .events
            .retain(|event| event.message != message || event.change != change);
        if entry.events.len() < before {
            removed = Some(());
        }
    });
    removed
}

/// Puts an event into the log behind one of a message, which it is made of.
fn insert_after(
    run: &mut Run,
    message: MessageId,
    change: &str,
    make: impl Fn(&Change) -> Change,
) -> Option<()> {
    let mut inserted = None;
    run.audit.edit(|entry| {
        let is = |event: &Change| event.message == message && event.change == change;
        if let Some(place) = entry.events.iter().position(is) {
            let event = make(&entry.events[place]);
            entry.events.insert(place + 1, event);
            inserted = Some(());
        }
    });
    inserted
}
