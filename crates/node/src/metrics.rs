//! What a node tells about itself: names, help and values in one table.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::broker::Broker;

/// How a value behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only grows while the node lives.
    Counter,
}

/// One value of one metric.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Prometheus name, with unit.
    pub name: &'static str,
    /// One line for a person.
    pub help: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// Names and values.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: f64,
}

/// Counted on the way.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    entries: AtomicU64,
    requests: AtomicU64,
    content_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn entry(&self, requests: usize, content_bytes: usize) {
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(requests as u64, Ordering::Relaxed);
        self.content_bytes
            .fetch_add(content_bytes as u64, Ordering::Relaxed);
    }
}

/// Most queues that are listed one by one; beyond, scrape `quorate queue list`.
const QUEUES_MAX: usize = 1_000;

pub(crate) fn collect(broker: &Broker) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut push = |name, help, kind, labels: Vec<(&'static str, String)>, value: f64| {
        samples.push(Sample {
            name,
            help,
            kind,
            labels,
            value,
        });
    };
    let status = broker.status();
    let counters = broker.counters();
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;

    push(
        "quorate_info",
        "Always 1; says which node and version this is.",
        Kind::Gauge,
        vec![
            ("node_id", status.node_id.0.to_string()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ],
        1.0,
    );
    push(
        "quorate_leading",
        "1 while this node leads.",
        Kind::Gauge,
        vec![],
        f64::from(u8::from(broker.clock().now().is_some())),
    );
    push(
        "quorate_term",
        "Raft term.",
        Kind::Gauge,
        vec![],
        status.term as f64,
    );
    push(
        "quorate_last_log_index",
        "Index of the last entry in this node's log.",
        Kind::Gauge,
        vec![],
        status.last_log_index as f64,
    );
    push(
        "quorate_committed_index",
        "Index of the last entry known to be committed.",
        Kind::Gauge,
        vec![],
        status.committed_index as f64,
    );
    push(
        "quorate_applied_index",
        "Index of the last entry applied here.",
        Kind::Gauge,
        vec![],
        status.applied_index as f64,
    );
    push(
        "quorate_snapshot_index",
        "Index that this node's snapshot covers.",
        Kind::Gauge,
        vec![],
        status.snapshot_index as f64,
    );
    push(
        "quorate_log_bytes",
        "Live bytes of this node's log.",
        Kind::Gauge,
        vec![],
        status.log_bytes as f64,
    );
    push(
        "quorate_disk_bytes",
        "Bytes of this node's files.",
        Kind::Gauge,
        vec![],
        status.disk_bytes as f64,
    );
    push(
        "quorate_flushes_total",
        "Group commits of this node's log.",
        Kind::Counter,
        vec![],
        status.log.flushes as f64,
    );
    push(
        "quorate_flush_seconds_total",
        "Time spent in group commits.",
        Kind::Counter,
        vec![],
        status.log.flush_total.as_secs_f64(),
    );
    push(
        "quorate_flush_seconds_max",
        "The slowest group commit.",
        Kind::Gauge,
        vec![],
        status.log.flush_max.as_secs_f64(),
    );
    push(
        "quorate_log_unflushed_bytes",
        "Bytes of entries that wait for their flush.",
        Kind::Gauge,
        vec![],
        status.log.unflushed_bytes as f64,
    );
    if let Some(age) = status.quorum_ack_age {
        push(
            "quorate_quorum_ack_age_seconds",
            "Since a quorum last answered this leader.",
            Kind::Gauge,
            vec![],
            age.as_secs_f64(),
        );
    }
    for member in &status.members {
        let label = vec![("node_id", member.node_id.0.to_string())];
        if let Some(matched) = member.matched_index {
            let behind = status.last_log_index.saturating_sub(matched);
            push(
                "quorate_follower_behind_entries",
                "Entries that a member's log lacks, as its leader knows.",
                Kind::Gauge,
                label,
                behind as f64,
            );
        }
    }
    push(
        "quorate_entries_total",
        "Log entries proposed by this node.",
        Kind::Counter,
        vec![],
        load(&counters.entries),
    );
    push(
        "quorate_requests_total",
        "Requests in those entries.",
        Kind::Counter,
        vec![],
        load(&counters.requests),
    );
    push(
        "quorate_content_bytes_total",
        "Bytes of contents in those entries.",
        Kind::Counter,
        vec![],
        load(&counters.content_bytes),
    );
    push(
        "quorate_sessions_attached",
        "Sessions whose connection this node holds.",
        Kind::Gauge,
        vec![],
        broker.dispatch().session_count() as f64,
    );

    let queues = broker
        .consensus()
        .with_state(|state| state.queues(None, QUEUES_MAX));
    for queue in queues {
        let label = || vec![("queue", queue.name.to_string())];
        for (state, count) in [
            ("ready", queue.counts.ready),
            ("delayed", queue.counts.delayed),
            ("leased", queue.counts.leased),
            ("dead", queue.counts.dead),
        ] {
            let mut labels = label();
            labels.push(("state", state.to_owned()));
            push(
                "quorate_queue_messages",
                "Messages in a queue by state.",
                Kind::Gauge,
                labels,
                count as f64,
            );
        }
        push(
            "quorate_queue_bytes",
            "Bytes of the messages in a queue.",
            Kind::Gauge,
            label(),
            queue.counts.bytes as f64,
        );
        push(
            "quorate_queue_consumers",
            "Consumers of a queue.",
            Kind::Gauge,
            label(),
            queue.counts.consumers as f64,
        );
        push(
            "quorate_queue_published_total",
            "Messages that came into a queue.",
            Kind::Counter,
            label(),
            queue.counts.published as f64,
        );
        push(
            "quorate_queue_redelivered_total",
            "Leases of messages that were leased before.",
            Kind::Counter,
            label(),
            queue.counts.redelivered as f64,
        );
        for (reason, count) in [
            ("acked", queue.counts.acked),
            ("expired", queue.counts.expired),
            ("dead_lettered", queue.counts.dead_lettered),
            ("dropped", queue.counts.dropped),
            ("deleted", queue.counts.deleted),
        ] {
            let mut labels = label();
            labels.push(("reason", reason.to_owned()));
            push(
                "quorate_queue_left_total",
                "Messages that left a queue, by reason.",
                Kind::Counter,
                labels,
                count as f64,
            );
        }
    }
    samples.sort_by_key(|sample| sample.name);
    samples
}
