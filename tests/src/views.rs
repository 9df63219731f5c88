//! What the API shows, as checkers read it.

use jepsen_lite_core::check::Turned;
use jepsen_lite_core::ids::MessageId;
use jepsen_lite_core::view::{Counts, Event, Seen, SeenLease};
use quorate_client::{Error, MessageInfo, QueueCounts, TraceEvent};

/// Counts of a queue.
#[must_use]
pub fn counts(counts: &QueueCounts) -> Counts {
    Counts {
        ready: counts.ready,
        delayed: counts.delayed,
        leased: counts.leased,
        dead: counts.dead,
        bytes: counts.bytes,
        consumers: counts.consumers,
        published: counts.published,
        acked: counts.acked,
        expired: counts.expired,
        dead_lettered: counts.dead_lettered,
        dropped: counts.dropped,
        deleted: counts.deleted,
        moved: counts.moved,
        redelivered: counts.redelivered,
        duplicates: counts.duplicates,
        dead_letter_backlog: counts.dead_letter_backlog,
        groups: counts.groups,
    }
}

/// Messages of a queue.
#[must_use]
pub fn seen(messages: &[MessageInfo]) -> Vec<Seen> {
    let seen = |message: &MessageInfo| Seen {
        message: MessageId::of(&message.message_id),
        position: message.position,
        state: message.state.to_string(),
        ready_at_ms: message.ready_at_ms,
        lease: message.lease.map(|lease| SeenLease {
            session: lease.session,
            consumer: lease.consumer,
            since_ms: lease.since_ms,
            until_ms: lease.until_ms,
            fence: lease.fence,
        }),
        priority: message.priority,
        group: message.group.clone(),
        dedup_id: message.dedup_id.clone(),
        attempts: message.attempts,
        grants: message.grants,
        expires_at_ms: message.expires_at_ms,
        dead: message.dead.as_ref().map(|dead| dead.reason.clone()),
    };
    messages.iter().map(seen).collect()
}

/// What happened to messages.
#[must_use]
pub fn events(events: &[TraceEvent]) -> Vec<Event> {
    let event = |event: &TraceEvent| Event {
        message: MessageId::of(&event.message_id),
        index: event.log_index,
        ordinal: event.ordinal,
        at_ms: event.at_ms,
        queue: event.queue.clone(),
        change: event.change.clone(),
        attempt: event.attempt,
        fence: event.fence,
        session: event.session,
        consumer: event.consumer,
        client: event.client,
        until_ms: event.until_ms,
        reason: event.reason.clone(),
        queues: event.queues.clone(),
        dedup_id: event.dedup_id.clone(),
        refused: None,
    };
    events.iter().map(event).collect()
}

/// What a publisher was told when its message was not taken.
#[must_use]
pub fn turned_away(error: &Error) -> Turned {
    Turned {
        reason: error.reason().map(|reason| reason.to_string()),
        retryable: error.is_retryable(),
        retry_after: error.refusal().and_then(|refusal| refusal.retry_after),
    }
}
