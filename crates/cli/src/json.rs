//! The JSON shapes that scripts rely on: fields are added, never renamed.

use std::time::Duration;

use quorate_client::{
    Binding, Commit, DeadLetterInfo, Delivery, Destination, Error, ExchangeInfo, ExchangeKind, Explanation,
    LeaseInfo, MessageInfo, NodeStatus, Overflow, Published, QueueInfo, QueueSettings, Reason, Trace,
    TraceEvent,
};
use serde_json::{Value, json};

use crate::body::json_field;

/// Adds where a change stands in the log.
pub(crate) fn with_commit(mut value: Value, commit: &Commit) -> Value {
    value["log_index"] = commit.log_index.into();
    value["term"] = commit.term.into();
    value["cluster_time_ms"] = commit.cluster_time_ms.into();
    value
}

/// Adds why a part was refused, or that its fate is not known.
pub(crate) fn with_error(mut value: Value, error: &Error) -> Value {
    value["result"] = if error.may_have_applied() {
        "unknown"
    } else {
        "refused"
    }
    .into();
    value["reason"] = error.reason().map(Reason::as_str).into();
    value["message"] = error.to_string().into();
    value
}

pub(crate) fn queue(queue: &QueueInfo) -> Value {
    let counts = &queue.counts;
    json!({
        "name": queue.name,
        "id": queue.id,
        "paused": queue.paused,
        "oldest_ready_published_at_ms": queue.oldest_ready_published_at_ms,
        "oldest_leased_published_at_ms": queue.oldest_leased_published_at_ms,
        "active_consumer": queue.active_consumer,
        "settings": queue_settings(&queue.settings),
        "counts": {
            "ready": counts.ready,
            "delayed": counts.delayed,
            "leased": counts.leased,
            "dead": counts.dead,
            "dead_letter_backlog": counts.dead_letter_backlog,
            "bytes": counts.bytes,
            "groups": counts.groups,
            "consumers": counts.consumers,
            "published": counts.published,
            "acked": counts.acked,
            "expired": counts.expired,
            "dead_lettered": counts.dead_lettered,
            "dropped": counts.dropped,
            "deleted": counts.deleted,
            "moved": counts.moved,
            "redelivered": counts.redelivered,
            "duplicates": counts.duplicates,
        },
    })
}

fn queue_settings(settings: &QueueSettings) -> Value {
    json!({
        "lease_ms": settings.lease.map(millis),
        "max_deliveries": settings.max_deliveries,
        "dead_letter_queue": settings.dead_letter_queue,
        "dead_letter_exchange": settings.dead_letter_exchange,
        "dead_letter_routing_key": settings.dead_letter_routing_key,
        "max_length": settings.max_length,
        "max_bytes": settings.max_bytes,
        "overflow": settings.overflow.map(Overflow::as_str),
        "message_ttl_ms": settings.message_ttl.map(millis),
        "backoff_initial_ms": settings.backoff_initial.map(millis),
        "backoff_max_ms": settings.backoff_max.map(millis),
        "priority_ageing_ms": settings.priority_ageing.map(millis),
        "group_concurrency": settings.group_concurrency,
        "group_weights": settings.group_weights,
        "single_active_consumer": settings.single_active_consumer,
        "dedup_window_ms": settings.dedup_window.map(millis),
        "dedup_max_ids": settings.dedup_max_ids,
    })
}

pub(crate) fn explanation(explanation: &Explanation) -> Value {
    json!({
        "queue": queue(&explanation.queue),
        "obstacles": explanation.obstacles.iter().map(|obstacle| json!({
            "kind": obstacle.kind,
            "message": obstacle.message,
            "messages": obstacle.messages,
            "until_ms": obstacle.until_ms,
        })).collect::<Vec<_>>(),
        "read_index": explanation.read_index,
    })
}

pub(crate) fn exchange(exchange: &ExchangeInfo) -> Value {
    let settings = &exchange.settings;
    json!({
        "name": exchange.name,
        "kind": exchange.kind.map(ExchangeKind::as_str),
        "settings": {
            "alternate_exchange": settings.alternate_exchange,
            "dedup_window_ms": settings.dedup_window.map(millis),
            "dedup_max_ids": settings.dedup_max_ids,
        },
        "received": exchange.received,
        "unroutable": exchange.unroutable,
        "duplicates": exchange.duplicates,
        "bindings": exchange.bindings.iter().map(binding).collect::<Vec<_>>(),
    })
}

pub(crate) fn binding(binding: &Binding) -> Value {
    let (destination, name) = match &binding.destination {
        Destination::Queue(name) => ("queue", name),
        Destination::Exchange(name) => ("exchange", name),
    };
    json!({
        "source": binding.source,
        "destination": destination,
        "name": name,
        "routing_key": binding.routing_key,
        "headers": binding.headers.as_ref().map(|headers| json!({
            "any": headers.any,
            "headers": headers.headers,
            "present": headers.present,
        })),
    })
}

/// What came of a publish, with the messages that were not taken as such.
pub(crate) fn published(published: &Published) -> Value {
    json!({
        "message_ids": published.message_ids,
        "unroutable": published.unroutable,
        "duplicates": published.duplicates.iter().map(|duplicate| json!({
            "place": duplicate.place,
            "state": duplicate.state.as_str(),
        })).collect::<Vec<_>>(),
    })
}

pub(crate) fn message(message: &MessageInfo) -> Value {
    let mut value = json!({
        "message_id": message.message_id,
        "queue": message.queue,
        "position": message.position,
        "state": message.state.as_str(),
        "ready_at_ms": message.ready_at_ms,
        "lease": message.lease.as_ref().map(lease),
        "priority": message.priority,
        "group": message.group,
        "dedup_id": message.dedup_id,
        "attempts": message.attempts,
        "grants": message.grants,
        "published_at_ms": message.published_at_ms,
        "expires_at_ms": message.expires_at_ms,
        "content_bytes": message.content_bytes,
        "first_error": message.first_error,
        "last_error": message.last_error,
        "dead": message.dead.as_ref().map(|dead| json!({
            "reason": dead.reason,
            "since_ms": dead.since_ms,
            "backlog": dead.backlog,
        })),
        "dead_letter": message.dead_letter.as_ref().map(dead_letter),
        "redrive": message.redrive,
    });
    if let Some(content) = &message.body {
        value["headers"] = json!(message.headers);
        value["exchange"] = json!(message.exchange);
        value["routing_key"] = json!(message.routing_key);
        let (field, body) = json_field(content);
        value[field] = body;
    }
    value
}

fn lease(lease: &LeaseInfo) -> Value {
    json!({
        "session": lease.session.map(id),
        "consumer": lease.consumer,
        "node_id": lease.node_id.map(id),
        "since_ms": lease.since_ms,
        "until_ms": lease.until_ms,
        "fence": lease.fence,
    })
}

fn dead_letter(info: &DeadLetterInfo) -> Value {
    json!({
        "origin_queue": info.origin_queue,
        "reason": info.reason,
        "attempts": info.attempts,
        "first_error": info.first_error,
        "last_error": info.last_error,
        "at_ms": info.at_ms,
    })
}

/// What the journals tell; how far they reach stands beside it.
pub(crate) fn trace(trace: &Trace) -> Value {
    json!({
        "events": trace.events.iter().map(trace_event).collect::<Vec<_>>(),
        "gaps": trace.gaps.iter().map(|gap| json!({ "from": gap.from, "to": gap.to })).collect::<Vec<_>>(),
        "nodes": trace.nodes.iter().map(|node| json!({
            "address": node.address,
            "node_id": id(node.node_id),
            "begins_at_index": node.begins_at_index,
            "begins_at_ms": node.begins_at_ms,
            "read_index": node.read_index,
        })).collect::<Vec<_>>(),
        "truncated": trace.truncated,
        "failed": trace.failed.iter().map(|(address, error)| json!({
            "address": address,
            "error": error.to_string(),
        })).collect::<Vec<_>>(),
    })
}

fn trace_event(event: &TraceEvent) -> Value {
    json!({
        "message_id": event.message_id,
        "log_index": event.log_index,
        "ordinal": event.ordinal,
        "at_ms": event.at_ms,
        "queue": event.queue,
        "change": event.change,
        "attempt": event.attempt,
        "fence": event.fence,
        "session": event.session.map(id),
        "consumer": event.consumer,
        "consumer_name": event.consumer_name,
        "node_id": event.node_id.map(id),
        "client": event.client.map(id),
        "took_ms": event.took_ms,
        "reason": event.reason,
        "error": event.error,
        "queues": event.queues,
        "until_ms": event.until_ms,
        "exchange": event.exchange,
        "dedup_id": event.dedup_id,
    })
}

/// The id of a node, a session or a client: a random number, with more digits
/// than many readers of JSON keep.
fn id(id: u64) -> String {
    id.to_string()
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
        "exchange": delivery.exchange(),
        "routing_key": delivery.routing_key(),
        "priority": delivery.priority(),
        "group": delivery.group(),
        "dedup_id": delivery.dedup_id(),
        "last_error": delivery.last_error(),
        "dead_letter": delivery.dead_letter_info().as_ref().map(dead_letter),
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
        "disk": status.disk.iter().map(|part| json!({
            "part": part.part,
            "disk_bytes": part.disk_bytes,
            "live_bytes": part.live_bytes,
        })).collect::<Vec<_>>(),
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
