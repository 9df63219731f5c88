//! What the API shows, as checkers read it.

use jepsen_lite_core::check::Turned;
use jepsen_lite_core::ids::MessageId;
use jepsen_lite_core::view::Event;
use quorate_client::{Error, TraceEvent};

pub use jepsen_lite_workload::native::{counts, seen};

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
