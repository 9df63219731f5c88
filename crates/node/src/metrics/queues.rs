//! Queues and exchanges, one by one and all together.

use std::collections::BTreeMap;

use quorate_core::ids::{QueueId, QueueName, Timestamp};
use quorate_core::{Demand, QueueCounts, QueueView};

use super::flow::{Copied, Counts, ENTRIES, RETURNS};
use super::node::seconds;
use super::{Families, QUEUES_MAX, table as metric};
use crate::broker::Broker;

/// Queues that are looked at under one lock of the state.
const PAGE: usize = 256;

pub(super) fn collect(broker: &Broker, families: &mut Families) {
    totals(broker, families);
    exchanges(broker, families);
    let Copied {
        mut queues,
        mut others,
    } = broker.flow().copy();
    let now = broker.cluster_time();
    for (queue, demand) in listed(broker) {
        let name = queue.name.as_str();
        state(&queue, demand, now, families);
        let counts = queues
            .remove(&queue.id)
            .map(|(_, counts)| counts)
            .unwrap_or_default();
        flow(name, &counts, families);
    }
    // What is left belongs to queues without series, or to such as are gone.
    let gone = gone(broker, &queues);
    broker.flow().forget(&gone);
    gone.iter().for_each(|id| drop(queues.remove(id)));
    queues.values().for_each(|(_, counts)| others.add(counts));
    if others != Counts::default() {
        // No queue has this name.
        flow("", &others, families);
    }
}

/// The queues that have series of their own.
fn listed(broker: &Broker) -> impl Iterator<Item = (QueueView, Demand)> + '_ {
    let mut left = QUEUES_MAX;
    let mut after: Option<QueueName> = None;
    let pages = std::iter::from_fn(move || {
        let page = broker.consensus().with_state(|state| {
            let queues = state.queues(after.as_ref(), PAGE.min(left));
            let demand = |queue: QueueView| {
                let demand = state.demand(&queue.name).unwrap_or_default();
                (queue, demand)
            };
            queues.into_iter().map(demand).collect::<Vec<_>>()
        });
        left -= page.len();
        after = Some(page.last()?.0.name.clone());
        Some(page)
    });
    pages.flatten()
}

/// Those of the queues that there are not any more.
fn gone(broker: &Broker, queues: &BTreeMap<QueueId, (QueueName, Counts)>) -> Vec<QueueId> {
    let all: Vec<_> = queues.iter().map(|(id, (name, _))| (*id, name)).collect();
    let gone = all.chunks(PAGE).flat_map(|page| {
        broker.consensus().with_state(|state| {
            let gone = page
                .iter()
                .filter(|(id, name)| state.queue_named(name) != Some(*id));
            gone.map(|(id, _)| *id).collect::<Vec<_>>()
        })
    });
    gone.collect()
}

fn totals(broker: &Broker, families: &mut Families) {
    let totals = broker.consensus().with_state(quorate_core::Broker::totals);
    families.count(metric::QUEUES, &[], totals.queues);
    families.count(
        metric::QUEUES_WITHOUT,
        &[],
        totals.queues.saturating_sub(QUEUES_MAX as u64),
    );
    families.count(metric::EXCHANGES, &[], totals.exchanges);
    families.count(metric::BINDINGS, &[], totals.bindings);
    families.count(metric::SESSIONS, &[], totals.sessions);
    families.count(metric::WAITING_LEASES, &[], totals.waiters);
    families.count(metric::MESSAGE_BYTES, &[], totals.counts.bytes);
    for (state, count) in by_state(&totals.counts) {
        families.count(metric::MESSAGES, &[("state", state)], count);
    }
}

/// The first exchanges, as many as queues.
fn exchanges(broker: &Broker, families: &mut Families) {
    let counts = broker
        .consensus()
        .with_state(|state| state.exchange_counts(None, QUEUES_MAX));
    for exchange in counts {
        let labels = [("exchange", exchange.name.as_str())];
        families.count(metric::EXCHANGE_RECEIVED, &labels, exchange.received);
        families.count(metric::EXCHANGE_UNROUTABLE, &labels, exchange.unroutable);
        families.count(metric::EXCHANGE_DUPLICATES, &labels, exchange.duplicates);
    }
}

fn by_state(counts: &QueueCounts) -> [(&'static str, u64); 4] {
    [
        ("ready", counts.ready),
        ("delayed", counts.delayed),
        ("leased", counts.leased),
        ("dead", counts.dead),
    ]
}

/// What the state says of a queue.
fn state(queue: &QueueView, demand: Demand, now: Timestamp, families: &mut Families) {
    let (counts, name) = (&queue.counts, queue.name.as_str());
    let labels = [("queue", name)];
    for (state, count) in by_state(counts) {
        families.count(
            metric::QUEUE_MESSAGES,
            &[("queue", name), ("state", state)],
            count,
        );
    }
    families.count(metric::QUEUE_BYTES, &labels, counts.bytes);
    families.count(metric::QUEUE_BACKLOG, &labels, counts.dead_letter_backlog);
    families.count(metric::QUEUE_GROUPS, &labels, counts.groups);
    families.count(metric::QUEUE_PAUSED, &labels, u64::from(queue.paused));
    families.count(metric::QUEUE_CONSUMERS, &labels, counts.consumers);
    families.count(metric::QUEUE_CONSUMERS_FREE, &labels, demand.consumers);
    families.count(metric::QUEUE_WAITING, &labels, demand.leases);
    if let Some(at) = queue.oldest_ready {
        families.number(metric::QUEUE_OLDEST_READY, &labels, seconds(now.since(at).0));
    }
    if let Some(at) = queue.oldest_leased {
        families.number(metric::QUEUE_OLDEST_LEASED, &labels, seconds(now.since(at).0));
    }
    families.count(metric::QUEUE_PUBLISHED, &labels, counts.published);
    families.count(metric::QUEUE_REDELIVERED, &labels, counts.redelivered);
    families.count(metric::QUEUE_DUPLICATES, &labels, counts.duplicates);
    for (reason, count) in [
        ("acked", counts.acked),
        ("expired", counts.expired),
        ("dead_lettered", counts.dead_lettered),
        ("dropped", counts.dropped),
        ("deleted", counts.deleted),
        ("moved", counts.moved),
    ] {
        families.count(metric::QUEUE_LEFT, &[("queue", name), ("reason", reason)], count);
    }
}

/// What this process saw happen in a queue.
fn flow(name: &str, counts: &Counts, families: &mut Families) {
    let labels = [("queue", name)];
    for (reason, count) in ENTRIES.iter().zip(counts.entered) {
        families.count(
            metric::QUEUE_ENTERED,
            &[("queue", name), ("reason", reason)],
            count,
        );
    }
    for (reason, count) in RETURNS.iter().zip(counts.returned) {
        families.count(
            metric::QUEUE_RETURNED,
            &[("queue", name), ("reason", reason)],
            count,
        );
    }
    if !counts.to_lease.is_empty() {
        families.histogram(metric::QUEUE_TO_LEASE, &labels, counts.to_lease.to_histogram());
    }
    if !counts.to_ack.is_empty() {
        families.histogram(metric::QUEUE_TO_ACK, &labels, counts.to_ack.to_histogram());
    }
}
