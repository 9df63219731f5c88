//! Consensus, storage and the node itself.

use std::sync::atomic::{AtomicU64, Ordering};

use quorate_raft::Status;

use super::Families;
use super::histogram::of_powers_of_two;
use super::table as metric;
use crate::broker::Broker;

/// The smallest bound of the histogram of flushes: 2^6 microseconds.
const FLUSH_BUCKET_FIRST: usize = 6;
/// What a float holds of the state's hash without loss.
const HASH_MASK: u128 = (1 << 52) - 1;

pub(super) fn collect(broker: &Broker, families: &mut Families) {
    let status = broker.status();
    node(broker, &status, families);
    consensus(&status, families);
    storage(&status, families);
    journal(broker, &status, families);
    let now = broker.cluster_time();
    if let Some(at) = status.snapshot_at {
        families.number(metric::SNAPSHOT_AGE, &[], seconds(now.since(at).0));
    }
}

fn node(broker: &Broker, status: &Status, families: &mut Families) {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let id = status.node_id.0.to_string();
    let labels = [("node_id", id.as_str()), ("version", env!("CARGO_PKG_VERSION"))];
    families.number(metric::INFO, &labels, 1.0);
    families.number(metric::UPTIME, &[], status.uptime.as_secs_f64());
    let leading = broker.clock().now().is_some();
    families.count(metric::LEADING, &[], u64::from(leading));
    let counters = broker.counters();
    families.count(metric::ENTRIES, &[], load(&counters.entries));
    families.count(metric::REQUESTS, &[], load(&counters.requests));
    families.count(metric::CONTENT_BYTES, &[], load(&counters.content_bytes));
    families.count(
        metric::SESSIONS_ATTACHED,
        &[],
        broker.dispatch().session_count() as u64,
    );
}

fn consensus(status: &Status, families: &mut Families) {
    families.count(metric::TERM, &[], status.term);
    families.count(metric::LEADER_CHANGES, &[], status.leader_changes);
    families.count(metric::LAST_LOG_INDEX, &[], status.last_log_index);
    families.count(metric::COMMITTED_INDEX, &[], status.committed_index);
    families.count(metric::APPLIED_INDEX, &[], status.applied_index);
    families.count(metric::PURGED_INDEX, &[], status.purged_index);
    families.count(metric::SNAPSHOT_INDEX, &[], status.snapshot_index);
    families.count(metric::STATE_INDEX, &[], status.state_index);
    families.number(metric::STATE_HASH, &[], (status.state_hash & HASH_MASK) as f64);
    families.number(metric::CLUSTER_TIME, &[], seconds(status.cluster_time.0));
    if let Some(age) = status.quorum_ack_age {
        families.number(metric::QUORUM_ACK_AGE, &[], age.as_secs_f64());
    }
    for member in &status.members {
        let id = member.node_id.0.to_string();
        let labels = [("node_id", id.as_str())];
        if let Some(matched) = member.matched_index {
            let behind = status.last_log_index.saturating_sub(matched);
            families.count(metric::FOLLOWER_BEHIND, &labels, behind);
        }
        if let Some(age) = member.ack_age {
            families.number(metric::FOLLOWER_ACK_AGE, &labels, age.as_secs_f64());
        }
    }
}

fn storage(status: &Status, families: &mut Families) {
    families.count(metric::LOG_BYTES, &[], status.log_bytes);
    families.count(metric::DISK_BYTES, &[], status.disk_bytes);
    families.count(metric::SNAPSHOT_BYTES, &[], status.snapshot_bytes);
    let log = &status.log;
    let flushes = of_powers_of_two(
        &log.flush_histogram,
        FLUSH_BUCKET_FIRST,
        log.flush_total.as_secs_f64(),
    );
    families.histogram(metric::LOG_FLUSH, &[], flushes);
    families.number(metric::LOG_FLUSH_MAX, &[], log.flush_max.as_secs_f64());
    families.count(metric::LOG_ENTRIES, &[], log.entries);
    families.count(metric::LOG_ENTRY_BYTES, &[], log.bytes);
    families.count(metric::LOG_GROUP_MAX, &[], log.group_entries_max);
    families.count(metric::LOG_UNFLUSHED, &[], log.unflushed_bytes);
    families.count(metric::SYNCS, &[], log.syncs);
}

fn journal(broker: &Broker, status: &Status, families: &mut Families) {
    let stats = status.journal;
    families.count(metric::JOURNAL_BYTES, &[], stats.bytes);
    families.count(metric::JOURNAL_CHUNKS, &[], stats.chunks);
    families.count(metric::JOURNAL_GAPS, &[], stats.gaps);
    families.count(metric::JOURNAL_LOST, &[], stats.lost);
    families.count(metric::JOURNAL_DAMAGED, &[], stats.damaged);
    if let Some(begins) = broker.journal().begins() {
        let reach = status.cluster_time.since(begins);
        families.number(metric::JOURNAL_REACH, &[], seconds(reach.0));
    }
}

/// Of milliseconds.
pub(super) fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}
