//! The JSON shapes that scripts rely on: fields are added, never renamed.

use std::time::Duration;

use quorate_client::{Commit, Delivery, NodeStatus, QueueInfo};
use serde_json::{Value, json};

use crate::body::json_field;

/// Adds where a change stands in the log.
pub(crate) fn with_commit(mut value: Value, commit: &Commit) -> Value {
    value["log_index"] = commit.log_index.into();
    value["term"] = commit.term.into();
    value["cluster_time_ms"] = commit.cluster_time_ms.into();
    value
}

pub(crate) fn queue(queue: &QueueInfo) -> Value {
    let (settings, counts) = (&queue.settings, &queue.counts);
    json!({
        "name": queue.name,
        "id": queue.id,
        "settings": {
            "lease_ms": settings.lease.map(millis),
            "max_deliveries": settings.max_deliveries,
            "dead_letter_queue": settings.dead_letter_queue,
            "max_length": settings.max_length,
            "max_bytes": settings.max_bytes,
            "overflow": settings.overflow.map(quorate_client::Overflow::as_str),
            "message_ttl_ms": settings.message_ttl.map(millis),
            "backoff_initial_ms": settings.backoff_initial.map(millis),
            "backoff_max_ms": settings.backoff_max.map(millis),
        },
        "counts": {
            "ready": counts.ready,
            "delayed": counts.delayed,
            "leased": counts.leased,
            "dead": counts.dead,
            "bytes": counts.bytes,
            "consumers": counts.consumers,
            "published": counts.published,
            "acked": counts.acked,
            "expired": counts.expired,
            "dead_lettered": counts.dead_lettered,
            "dropped": counts.dropped,
            "deleted": counts.deleted,
            "redelivered": counts.redelivered,
        },
    })
}

pub(crate) fn delivery(delivery: &Delivery) -> Value {
    let mut value = json!({
        "message_id": delivery.message_id(),
        "queue": delivery.queue(),
        "token": delivery.token(),
        "fence": delivery.fence(),
        "attempt": delivery.attempt(),
        "redelivered": delivery.redelivered(),
        "leased_until_ms": delivery.leased_until_ms(),
        "published_at_ms": delivery.published_at_ms(),
        "headers": delivery.headers(),
        "last_error": delivery.last_error(),
        "dead_letter": delivery.dead_letter_info().map(|info| json!({
            "origin_queue": info.origin_queue,
            "reason": info.reason,
            "attempts": info.attempts,
        })),
    });
    let (field, body) = json_field(delivery.body());
    value[field] = body;
    value
}

pub(crate) fn node(address: &str, status: &NodeStatus) -> Value {
    json!({
        "address": address,
        "cluster_id": status.cluster_id,
        "node_id": status.node_id.to_string(),
        "role": status.role,
        "term": status.term,
        "leader": status.leader.as_ref().map(|leader| json!({
            "node_id": leader.node_id.to_string(),
            "client_address": leader.client_address,
        })),
        "last_log_index": status.last_log_index,
        "committed_index": status.committed_index,
        "applied_index": status.applied_index,
        "snapshot_index": status.snapshot_index,
        "purged_index": status.purged_index,
        "state_index": status.state_index,
        "state_hash": status.state_hash,
        "cluster_time_ms": status.cluster_time_ms,
        "log_bytes": status.log_bytes,
        "disk_bytes": status.disk_bytes,
        "version": status.version,
        "uptime_ms": millis(status.uptime),
        "quorum_ack_age_ms": status.quorum_ack_age.map(millis),
        "members": status.members.iter().map(|member| json!({
            "node_id": member.node_id.to_string(),
            "name": member.name,
            "client_address": member.client_address,
            "peer_address": member.peer_address,
            "voter": member.voter,
            "matched_index": member.matched_index,
            "leader": member.leader,
        })).collect::<Vec<_>>(),
    })
}

pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
