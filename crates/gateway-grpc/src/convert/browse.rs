//! Messages that are looked at, and what is done with them one by one.

use quorate_node::BrokerError;
use quorate_node::broker::{Browse, Seen};
use quorate_node::types::{
    DeadReason, Filter, LeaseView, LeasedBy, MessageId, MessageState, Millis, Operation, QueueName, Selector,
    Timestamp,
};
use quorate_proto::v1;
use quorate_proto::v1::operate_messages_request::Operation as WireOperation;

use super::{
    DEAD_REASONS, at, at_ms, dead_letter, dead_reason, log_index, named, optional, page_size, queue_name,
    state,
};
use crate::error::invalid;

pub(crate) fn browse(request: v1::BrowseRequest) -> Result<Browse, BrokerError> {
    let mut wanted = request.filter.unwrap_or_default();
    Ok(Browse {
        queue: queue_name(&request.queue)?,
        headers: std::mem::take(&mut wanted.headers),
        filter: filter(wanted)?,
        from: request.from,
        count_max: page_size(request.page_size)?,
        with_content: request.with_content,
        local: request.local,
    })
}

/// All but the headers, which are not the state machine's.
pub(crate) fn filter(wanted: v1::MessageFilter) -> Result<Filter, BrokerError> {
    let text = |text: String| Some(text).filter(|text| !text.is_empty());
    let states = wanted.states.into_iter().map(held_state);
    let messages = wanted.message_ids.iter().map(|id| message_id(id));
    Ok(Filter {
        states: states.collect::<Result<_, _>>()?,
        published_before: at(wanted.published_before_ms),
        published_from: at(wanted.published_from_ms),
        group: text(wanted.group),
        dedup_id: text(wanted.dedup_id),
        reason: optional(&wanted.reason, parse_dead_reason)?,
        messages: messages.collect::<Result<_, _>>()?,
        redrive: log_index(wanted.redrive),
        dead_letters_only: false,
    })
}

/// A state in which a queue can hold a message.
fn held_state(state: i32) -> Result<MessageState, BrokerError> {
    match v1::MessageState::try_from(state) {
        Ok(v1::MessageState::Ready) => Ok(MessageState::Ready),
        Ok(v1::MessageState::Delayed) => Ok(MessageState::Delayed),
        Ok(v1::MessageState::Leased) => Ok(MessageState::Leased),
        Ok(v1::MessageState::Dead) => Ok(MessageState::Dead),
        _ => Err(invalid("states", "each is ready, delayed, leased or dead")),
    }
}

fn parse_dead_reason(text: &str) -> Result<DeadReason, BrokerError> {
    let spelled = DEAD_REASONS.iter().find(|(_, spelled)| *spelled == text);
    spelled.map(|(reason, _)| *reason).ok_or_else(|| {
        let known = DEAD_REASONS.map(|(_, spelled)| spelled).join(", ");
        invalid("reason", format!("is one of {known}"))
    })
}

fn message_id(text: &str) -> Result<MessageId, BrokerError> {
    text.parse()
        .map_err(|error| invalid("message_id", format!("{error}")))
}

pub(crate) fn selectors(messages: Vec<v1::MessageSelector>) -> Result<Vec<Selector>, BrokerError> {
    messages
        .into_iter()
        .map(|message| selector(Some(message)))
        .collect()
}

pub(crate) fn selector(message: Option<v1::MessageSelector>) -> Result<Selector, BrokerError> {
    use v1::message_selector::Selector as Wire;
    match message.and_then(|message| message.selector) {
        Some(Wire::MessageId(id)) => Ok(Selector::Message(message_id(&id)?)),
        Some(Wire::DedupId(id)) if !id.is_empty() => Ok(Selector::DedupId(id)),
        Some(Wire::DedupId(_)) | None => {
            Err(invalid("message", "is named by its message id or its dedup id"))
        }
    }
}

pub(crate) fn operation(operation: Option<WireOperation>) -> Result<Operation, BrokerError> {
    match operation.ok_or_else(|| invalid("operation", "is missing"))? {
        WireOperation::Delete(_) => Ok(Operation::Delete),
        WireOperation::Move(to) => Ok(Operation::Move {
            to: target_queue(&to.to)?,
        }),
        WireOperation::Reschedule(to) => Ok(Operation::Reschedule {
            delay: Millis(to.delay_ms),
            deliver_at: Timestamp(to.deliver_at_ms),
        }),
        WireOperation::Redrive(to) => Ok(Operation::Redrive {
            to: optional(&to.to, target_queue)?,
            continues: log_index(to.continues),
        }),
    }
}

/// Where messages are to go.
pub(crate) fn target_queue(name: &str) -> Result<QueueName, BrokerError> {
    named("to", name, QueueName::new)
}

pub(crate) fn message_info(seen: Seen) -> v1::MessageInfo {
    let Seen { view, content } = seen;
    let content = content.unwrap_or_default();
    let (reason, since) = view.dead.unzip();
    v1::MessageInfo {
        message_id: view.id.to_string(),
        queue: view.queue.to_string(),
        position: view.position,
        state: state(view.state).into(),
        ready_at_ms: at_ms(view.ready_at),
        lease: view.lease.map(lease_info),
        priority: view.priority.into(),
        group: view.group,
        dedup_id: view.dedup_id,
        attempts: view.failures,
        grants: view.grants,
        published_at_ms: view.published_at.0,
        expires_at_ms: at_ms(view.expires_at),
        content_bytes: view.content_bytes.into(),
        first_error: view.first_error,
        last_error: view.last_error,
        dead_reason: reason.map_or_else(String::new, dead_reason),
        dead_since_ms: at_ms(since),
        dead_letter_backlog: view.backlog,
        dead_letter: view.dead_letter.map(dead_letter),
        redrive: view.redrive.unwrap_or_default(),
        body: content.body,
        headers: content.headers,
        exchange: content.exchange,
        routing_key: content.routing_key,
    }
}

fn lease_info(lease: LeaseView) -> v1::LeaseInfo {
    let (session, consumer, node_id) = match lease.holder {
        LeasedBy::Puller(_) => (0, 0, 0),
        LeasedBy::Consumer {
            session,
            consumer,
            node,
        } => (session.0, consumer.0, node.0),
    };
    v1::LeaseInfo {
        session,
        consumer,
        node_id,
        since_ms: lease.since.0,
        until_ms: lease.until.0,
        fence: lease.grant,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(wanted: v1::MessageFilter) -> String {
        filter(wanted).unwrap_err().to_string()
    }

    #[test]
    fn an_empty_filter_lets_everything_pass() {
        assert_eq!(filter(v1::MessageFilter::default()).unwrap(), Filter::default());
    }

    #[test]
    fn a_malformed_filter_is_named() {
        let gone = problem(v1::MessageFilter {
            states: vec![v1::MessageState::Acked.into()],
            ..v1::MessageFilter::default()
        });
        assert!(gone.starts_with("states: "), "{gone}");
        let reason = problem(v1::MessageFilter {
            reason: "boredom".to_owned(),
            ..v1::MessageFilter::default()
        });
        assert_eq!(
            reason,
            "reason: is one of rejected, max-deliveries, expired, dropped-by-limit"
        );
        let id = problem(v1::MessageFilter {
            message_ids: vec!["7".to_owned()],
            ..v1::MessageFilter::default()
        });
        assert!(id.starts_with("message_id: "), "{id}");
    }

    #[test]
    fn every_dead_reason_can_be_asked_for_as_it_is_told() {
        for (reason, _) in DEAD_REASONS {
            assert_eq!(parse_dead_reason(&dead_reason(reason)).unwrap(), reason);
        }
    }

    #[test]
    fn a_message_without_a_name_is_refused() {
        use v1::message_selector::Selector as Wire;
        let unnamed = [None, Some(Wire::DedupId(String::new()))];
        for wire in unnamed {
            let error = selector(Some(v1::MessageSelector { selector: wire })).unwrap_err();
            assert!(error.to_string().starts_with("message: "), "{error}");
        }
        let error = operation(None).unwrap_err();
        assert!(error.to_string().starts_with("operation: "), "{error}");
    }

    #[test]
    fn a_page_has_1_to_1000_messages() {
        let sized = |page_size| {
            browse(v1::BrowseRequest {
                queue: "q".to_owned(),
                page_size,
                ..v1::BrowseRequest::default()
            })
        };
        assert_eq!(sized(0).unwrap().count_max, 100);
        assert_eq!(sized(1_000).unwrap().count_max, 1_000);
        let error = sized(1_001).unwrap_err().to_string();
        assert_eq!(error, "page_size: 1 to 1000, not 1001");
    }
}
