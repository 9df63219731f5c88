//! From what went wrong to status codes and `ErrorDetail`, in one table.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message as _;
use quorate_node::BrokerError;
use quorate_node::types::{LeaderInfo, MembershipError, Rejection, Selector};
use quorate_proto::v1::{ERROR_DETAIL_TYPE_URL, ErrorDetail, NodeAddress, Reason};
use tonic::{Code, Status};

/// `google.rpc.Status`, as the status details carry it (AIP-193).
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// The detail of an error.
pub(crate) fn detail(error: &BrokerError) -> ErrorDetail {
    let (_, reason) = classify(error);
    let leader = match error {
        BrokerError::NotLeader(leader) => Some(address(leader)),
        _ => None,
    };
    ErrorDetail {
        reason: reason.into(),
        message: error.to_string(),
        retryable: error.is_retryable(),
        may_have_applied: error.may_have_applied(),
        leader,
        retry_after_ms: error
            .retry_after()
            .map_or(0, |after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
        context: context(error),
    }
}

/// The detail of a refused settlement.
pub(crate) fn rejection(rejection: Rejection) -> ErrorDetail {
    detail(&BrokerError::Rejected(rejection))
}

/// The status of an error, with its detail.
pub(crate) fn status(error: &BrokerError) -> Status {
    with_detail(classify(error).0, detail(error))
}

/// A malformed field.
pub(crate) fn invalid(field: &'static str, problem: impl Into<String>) -> BrokerError {
    BrokerError::Invalid {
        field,
        problem: problem.into(),
    }
}

/// The status of a membership change that failed.
pub(crate) fn membership(error: &MembershipError) -> Status {
    let (code, reason, may_have_applied) = match error {
        MembershipError::NotLeader { leader: Some(leader) } => {
            return status(&BrokerError::NotLeader(leader.clone()));
        }
        MembershipError::NotLeader { leader: None } => return status(&BrokerError::NoLeader),
        MembershipError::Unknown(_) => (Code::Unknown, Reason::UnknownOutcome, true),
        // The node stopped with the change on its way.
        MembershipError::Fatal(_) => (Code::Internal, Reason::Internal, true),
        MembershipError::Refused(_) | MembershipError::Unreachable(_) => {
            (Code::FailedPrecondition, Reason::InvalidArgument, false)
        }
    };
    let detail = ErrorDetail {
        reason: reason.into(),
        message: error.to_string(),
        retryable: may_have_applied,
        may_have_applied,
        ..ErrorDetail::default()
    };
    with_detail(code, detail)
}

/// Most characters of a message, and of each value of a context. Both travel in
/// HTTP/2 headers, twice, and a client may drop the connection over large ones.
const TEXT_CHARS_MAX: usize = 512;

fn with_detail(code: Code, mut detail: ErrorDetail) -> Status {
    for text in detail.context.values_mut().chain([&mut detail.message]) {
        if let Some((end, _)) = text.char_indices().nth(TEXT_CHARS_MAX) {
            text.truncate(end);
        }
    }
    let message = detail.message.clone();
    let any = prost_types::Any {
        type_url: ERROR_DETAIL_TYPE_URL.to_owned(),
        value: detail.encode_to_vec(),
    };
    let rpc = RpcStatus {
        code: code.into(),
        message: message.clone(),
        details: vec![any],
    };
    Status::with_details(code, message, Bytes::from(rpc.encode_to_vec()))
}

fn classify(error: &BrokerError) -> (Code, Reason) {
    match error {
        BrokerError::Rejected(rejection) => classify_rejection(rejection),
        BrokerError::Invalid { .. } => (Code::InvalidArgument, Reason::InvalidArgument),
        BrokerError::MessageTooLarge { .. } => (Code::InvalidArgument, Reason::MessageTooLarge),
        BrokerError::HeadersTooLarge { .. } => (Code::InvalidArgument, Reason::HeadersTooLarge),
        BrokerError::NotLeader(_) => (Code::Unavailable, Reason::NotLeader),
        BrokerError::NoLeader => (Code::Unavailable, Reason::NoLeader),
        BrokerError::Overloaded => (Code::ResourceExhausted, Reason::Overloaded),
        BrokerError::ShuttingDown => (Code::Unavailable, Reason::ShuttingDown),
        BrokerError::SessionLost => (Code::FailedPrecondition, Reason::SessionLost),
        BrokerError::ConsumerCancelled(_) => (Code::NotFound, Reason::ConsumerCancelled),
        BrokerError::Unknown(_) => (Code::Unknown, Reason::UnknownOutcome),
        BrokerError::Internal(_) => (Code::Internal, Reason::Internal),
    }
}

fn classify_rejection(rejection: &Rejection) -> (Code, Reason) {
    match rejection {
        Rejection::QueueNotFound(_) => (Code::NotFound, Reason::QueueNotFound),
        Rejection::QueueConflict { .. } => (Code::AlreadyExists, Reason::QueueConflict),
        Rejection::QueueNotEmpty { .. } => (Code::FailedPrecondition, Reason::QueueNotEmpty),
        Rejection::QueueInUse { .. } => (Code::FailedPrecondition, Reason::QueueInUse),
        Rejection::QueueFull { .. } => (Code::ResourceExhausted, Reason::QueueFull),
        Rejection::InvalidArgument { .. } => (Code::InvalidArgument, Reason::InvalidArgument),
        Rejection::StaleLease => (Code::FailedPrecondition, Reason::StaleLease),
        Rejection::RequestForgotten => (Code::FailedPrecondition, Reason::RequestForgotten),
        Rejection::SessionNotFound => (Code::FailedPrecondition, Reason::SessionLost),
        Rejection::LimitExceeded(_) => (Code::ResourceExhausted, Reason::LimitExceeded),
        Rejection::ExchangeNotFound(_) => (Code::NotFound, Reason::ExchangeNotFound),
        Rejection::ExchangeConflict { .. } => (Code::AlreadyExists, Reason::ExchangeConflict),
        Rejection::ExchangeInUse { .. } => (Code::FailedPrecondition, Reason::ExchangeInUse),
        Rejection::Unroutable { .. } => (Code::FailedPrecondition, Reason::Unroutable),
        Rejection::MessageNotFound { .. } => (Code::NotFound, Reason::MessageNotFound),
        Rejection::WrongState { .. } => (Code::FailedPrecondition, Reason::WrongState),
        Rejection::SingleActiveConsumer(_) => (Code::FailedPrecondition, Reason::SingleActiveConsumer),
        Rejection::TransactionRefused { .. } => (Code::FailedPrecondition, Reason::TransactionRefused),
    }
}

fn context(error: &BrokerError) -> BTreeMap<String, String> {
    let pairs = match error {
        BrokerError::Rejected(rejection) => return rejection_context(rejection),
        BrokerError::Invalid { field, .. } => vec![pair("field", field)],
        BrokerError::ConsumerCancelled(queue) => vec![pair("queue", queue)],
        BrokerError::MessageTooLarge { bytes, limit } | BrokerError::HeadersTooLarge { bytes, limit } => {
            vec![pair("bytes", bytes), pair("limit", limit)]
        }
        _ => vec![],
    };
    pairs.into_iter().collect()
}

fn rejection_context(rejection: &Rejection) -> BTreeMap<String, String> {
    let pairs = match rejection {
        Rejection::QueueNotFound(queue) | Rejection::SingleActiveConsumer(queue) => {
            vec![pair("queue", queue)]
        }
        Rejection::QueueConflict { queue, differing } => {
            vec![pair("queue", queue), pair("differing", &differing.join("; "))]
        }
        Rejection::QueueNotEmpty { queue, count } => vec![pair("queue", queue), pair("messages", count)],
        Rejection::QueueInUse { queue, consumers } => {
            vec![pair("queue", queue), pair("consumers", consumers)]
        }
        Rejection::QueueFull { queue, limit } => vec![pair("queue", queue), pair("limit", limit)],
        Rejection::InvalidArgument { field, .. } => vec![pair("field", field)],
        Rejection::LimitExceeded(limit) => vec![pair("limit", limit)],
        Rejection::StaleLease | Rejection::RequestForgotten | Rejection::SessionNotFound => vec![],
        Rejection::ExchangeNotFound(exchange) => vec![pair("exchange", exchange)],
        Rejection::ExchangeConflict { exchange, differing } => {
            vec![
                pair("exchange", exchange),
                pair("differing", &differing.join("; ")),
            ]
        }
        Rejection::ExchangeInUse { exchange, bindings } => {
            vec![pair("exchange", exchange), pair("bindings", bindings)]
        }
        Rejection::Unroutable {
            exchange,
            routing_key,
        } => {
            vec![pair("exchange", exchange), pair("routing_key", routing_key)]
        }
        Rejection::MessageNotFound { queue, message } => vec![
            pair("queue", queue),
            match message {
                Selector::Message(id) => pair("message", id),
                Selector::DedupId(dedup_id) => pair("dedup_id", dedup_id),
            },
        ],
        Rejection::WrongState { message, state, .. } => {
            vec![pair("message", message), pair("state", state)]
        }
        Rejection::TransactionRefused { part, cause } => return refusal_context(part, cause),
    };
    pairs.into_iter().collect()
}

/// What the refused part says of itself, which part it is, and its own reason.
fn refusal_context(part: &str, cause: &Rejection) -> BTreeMap<String, String> {
    let (_, reason) = classify_rejection(cause);
    let reason = reason.as_str_name().trim_start_matches("REASON_");
    let mut context = rejection_context(cause);
    context.extend([pair("part", &part), pair("reason", &reason)]);
    context
}

fn pair(name: &str, value: &dyn ToString) -> (String, String) {
    (name.to_owned(), value.to_string())
}

pub(crate) fn address(leader: &LeaderInfo) -> NodeAddress {
    NodeAddress {
        node_id: leader.node_id.0,
        client_address: leader.client_address.clone(),
    }
}

#[cfg(test)]
mod tests {
    use quorate_node::types::{MessageId, MessageState, QueueName};

    use super::*;

    fn full() -> Rejection {
        Rejection::QueueFull {
            queue: QueueName::new("jobs").unwrap(),
            limit: "max_length 10".to_owned(),
        }
    }

    fn transaction(cause: Rejection) -> ErrorDetail {
        rejection(Rejection::TransactionRefused {
            part: "publish 1".to_owned(),
            cause: Box::new(cause),
        })
    }

    #[test]
    fn a_refused_transaction_tells_its_part_and_the_reason_of_that() {
        let detail = transaction(full());
        assert_eq!(detail.reason(), Reason::TransactionRefused);
        let context: Vec<_> = detail
            .context
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let expected = [
            ("limit", "max_length 10"),
            ("part", "publish 1"),
            ("queue", "jobs"),
            ("reason", "QUEUE_FULL"),
        ];
        assert_eq!(context, expected);
    }

    #[test]
    fn a_transaction_can_be_tried_again_if_its_part_can() {
        let for_room = transaction(full());
        assert!(for_room.retryable && for_room.retry_after_ms > 0 && !for_room.may_have_applied);
        let stale = transaction(Rejection::StaleLease);
        assert!(!stale.retryable && stale.retry_after_ms == 0 && !stale.may_have_applied);
    }

    #[test]
    fn a_wrong_state_is_named_as_everywhere_else() {
        let detail = rejection(Rejection::WrongState {
            message: MessageId { index: 7, number: 1 },
            state: MessageState::Leased,
            problem: "it is held".to_owned(),
        });
        assert_eq!(detail.reason(), Reason::WrongState);
        assert_eq!(detail.context["state"], "leased");
        assert_eq!(detail.context["message"], "7-1");
        assert_eq!(detail.message, "message 7-1 is leased: it is held");
    }

    #[test]
    fn a_missing_message_is_named_as_it_was_asked_for() {
        let missing = |message| {
            let queue = QueueName::new("jobs").unwrap();
            rejection(Rejection::MessageNotFound { queue, message })
        };
        let by_id = missing(Selector::Message(MessageId { index: 7, number: 1 }));
        assert_eq!(by_id.message, "queue jobs holds no message 7-1");
        assert_eq!(by_id.context["message"], "7-1");
        let by_dedup_id = missing(Selector::DedupId("order-9".to_owned()));
        assert_eq!(
            by_dedup_id.message,
            "queue jobs holds no message with dedup id order-9"
        );
        assert_eq!(by_dedup_id.context["dedup_id"], "order-9");
    }
}
