//! Events of messages.

use quorate_node::BrokerError;
use quorate_node::journal::{TraceOf, Traced};
use quorate_node::types::{Change, Event, Exit, LeasedBy, QueueName, Returned, Timestamp};
use quorate_proto::v1;

use super::dead_reason;
use crate::error::invalid;

pub(crate) fn trace_of(request: v1::TraceRequest) -> Result<TraceOf, BrokerError> {
    use v1::trace_request::Message as Wire;
    match request.message {
        Some(Wire::MessageId(id)) => id
            .parse()
            .map(TraceOf::Message)
            .map_err(|error| invalid("message_id", format!("{error}"))),
        Some(Wire::DedupId(id)) if !id.is_empty() => Ok(TraceOf::DedupId(id)),
        Some(Wire::Header(v1::Header { name, value })) if !name.is_empty() => {
            Ok(TraceOf::Header { name, value })
        }
        _ => Err(invalid(
            "message",
            "is named by its message id, its dedup id, or a header",
        )),
    }
}

pub(crate) fn traced(traced: Traced) -> v1::TraceEvent {
    let Event {
        message,
        queue_name,
        change,
        ..
    } = traced.event;
    v1::TraceEvent {
        message_id: message.to_string(),
        log_index: traced.index,
        ordinal: traced.ordinal,
        at_ms: traced.at.0,
        queue: queue_name.to_string(),
        consumer_name: traced.consumer_name,
        ..described(change)
    }
}

/// The fields that belong to a change.
fn described(change: Change) -> v1::TraceEvent {
    let named = |change: &str| v1::TraceEvent {
        change: change.to_owned(),
        ..v1::TraceEvent::default()
    };
    match change {
        Change::Published {
            exchange,
            delayed_until,
            dedup_id,
        } => v1::TraceEvent {
            exchange: exchange.map_or_else(String::new, |exchange| exchange.to_string()),
            until_ms: until(delayed_until),
            dedup_id,
            ..named("published")
        },
        Change::Arrived { from, exit } => v1::TraceEvent {
            reason: left(exit).to_owned(),
            queues: vec![from.to_string()],
            ..named("arrived")
        },
        Change::Duplicate { refused } => v1::TraceEvent {
            reason: format!("the publish of {refused} was not taken"),
            ..named("duplicate")
        },
        Change::Due => named("due"),
        Change::Leased {
            grant,
            attempt,
            holder,
            until,
            waited,
        } => v1::TraceEvent {
            attempt,
            fence: grant,
            until_ms: until.0,
            took_ms: waited.map(|waited| waited.0),
            ..held_by(holder, named("leased"))
        },
        Change::Extended { until } => v1::TraceEvent {
            until_ms: until.0,
            ..named("extended")
        },
        Change::Returned {
            reason,
            error,
            until: ready,
        } => v1::TraceEvent {
            error,
            until_ms: until(ready),
            ..named(match reason {
                Returned::Nacked => "nacked",
                Returned::LeaseExpired => "lease-expired",
                Returned::Released => "released",
                Returned::SessionEnded => "session-ended",
            })
        },
        Change::Rescheduled { until: ready } => v1::TraceEvent {
            until_ms: until(ready),
            ..named("rescheduled")
        },
        Change::Died { reason, error } => v1::TraceEvent {
            reason: dead_reason(reason),
            error,
            ..named("died")
        },
        Change::Redriven => named("redriven"),
        Change::RedriveUndone => named("redrive-undone"),
        Change::Left {
            exit,
            reason,
            error,
            to,
            held,
        } => v1::TraceEvent {
            reason: reason.map_or_else(String::new, dead_reason),
            error,
            queues: to.iter().map(QueueName::to_string).collect(),
            took_ms: held.map(|held| held.0),
            ..named(left(exit))
        },
    }
}

fn held_by(holder: LeasedBy, event: v1::TraceEvent) -> v1::TraceEvent {
    match holder {
        LeasedBy::Puller(client) => v1::TraceEvent {
            client: client.map_or(0, |client| client.0),
            ..event
        },
        LeasedBy::Consumer {
            session,
            consumer,
            node,
        } => v1::TraceEvent {
            session: session.0,
            consumer: consumer.0,
            node_id: node.0,
            ..event
        },
    }
}

/// The word for how a message left.
fn left(exit: Exit) -> &'static str {
    match exit {
        Exit::Acked => "acked",
        Exit::Expired => "expired",
        Exit::DeadLettered => "dead-lettered",
        Exit::Dropped => "dropped",
        Exit::Deleted => "deleted",
        Exit::Moved => "moved",
    }
}

/// Zero on the wire means "at once".
fn until(at: Option<Timestamp>) -> u64 {
    at.map_or(0, |at| at.0)
}

#[cfg(test)]
mod tests {
    use quorate_node::types::{ConsumerId, DeadReason, MessageId, Millis, NodeId, SessionId};

    use super::*;

    #[test]
    fn a_lease_says_who_holds_it_and_until_when() {
        let event = described(Change::Leased {
            grant: 9,
            attempt: 2,
            holder: LeasedBy::Consumer {
                session: SessionId(3),
                consumer: ConsumerId(1),
                node: NodeId(4),
            },
            until: Timestamp(500),
            waited: Some(Millis(0)),
        });
        assert_eq!(
            (event.change.as_str(), event.attempt, event.fence),
            ("leased", 2, 9)
        );
        assert_eq!((event.session, event.consumer, event.node_id), (3, 1, 4));
        assert_eq!((event.until_ms, event.took_ms), (500, Some(0)));
    }

    #[test]
    fn a_dead_letter_says_why_it_left_and_where_to() {
        let to = QueueName::new("dead").unwrap();
        let event = described(Change::Left {
            exit: Exit::DeadLettered,
            reason: Some(DeadReason::DeliveriesMax),
            error: "no disk".to_owned(),
            to: vec![to],
            held: None,
        });
        assert_eq!(
            (&*event.change, &*event.reason, &*event.error),
            ("dead-lettered", "max-deliveries", "no disk")
        );
        assert_eq!(event.queues, ["dead"]);
    }

    #[test]
    fn what_names_no_message_is_refused() {
        use v1::trace_request::Message as Wire;
        let ask = |message| trace_of(v1::TraceRequest { message });
        for malformed in [
            None,
            Some(Wire::MessageId("x".to_owned())),
            Some(Wire::DedupId(String::new())),
            Some(Wire::Header(v1::Header::default())),
        ] {
            let refused = ask(malformed.clone());
            assert!(
                matches!(refused, Err(BrokerError::Invalid { .. })),
                "{malformed:?}"
            );
        }
        let id = MessageId { index: 17, number: 2 };
        assert_eq!(
            ask(Some(Wire::MessageId("17-2".to_owned()))).unwrap(),
            TraceOf::Message(id)
        );
    }
}
