//! Between generated messages and the broker's types, by hand.

mod browse;
mod exchanges;
mod explain;
mod leasing;
mod publish;
mod queues;
mod trace;

use quorate_node::BrokerError;
use quorate_node::broker::Position;
use quorate_node::types::{
    ClientId, DeadLetter, DeadReason, ExchangeName, Exit, MessageState, Millis, ParseError, QueueName,
    RequestId, Timestamp,
};
use quorate_proto::v1;

pub(crate) use self::browse::{browse, filter, message_info, operation, selector, selectors, target_queue};
pub(crate) use self::exchanges::{binding, exchange_info, exchange_kind, exchange_settings_patch};
pub(crate) use self::explain::explanation;
pub(crate) use self::leasing::{delivery, settled, settled_result, settlements};
pub(crate) use self::publish::{publish, published};
pub(crate) use self::queues::{purge_states, queue_info, settings_patch};
pub(crate) use self::trace::{trace_of, traced};
use crate::error::invalid;

/// Items on one page of a listing.
const PAGE_SIZE_DEFAULT: u32 = 100;
const PAGE_SIZE_MAX: u32 = 1_000;

pub(crate) fn request_id(id: Option<v1::RequestId>) -> Result<Option<RequestId>, BrokerError> {
    let Some(id) = id else { return Ok(None) };
    if id.client == 0 || id.sequence == 0 {
        return Err(invalid("request_id", "client and sequence are not zero"));
    }
    if id.oldest_unanswered > id.sequence {
        return Err(invalid("request_id", "oldest_unanswered is not above sequence"));
    }
    Ok(Some(RequestId {
        client: ClientId(id.client),
        sequence: id.sequence,
        oldest_unanswered: id.oldest_unanswered.max(1),
    }))
}

pub(crate) fn queue_name(name: &str) -> Result<QueueName, BrokerError> {
    named("queue", name, QueueName::new)
}

pub(crate) fn exchange_name(name: &str) -> Result<ExchangeName, BrokerError> {
    named("exchange", name, ExchangeName::new)
}

/// Empty = none.
pub(crate) fn optional<T>(
    name: &str,
    parse: impl FnOnce(&str) -> Result<T, BrokerError>,
) -> Result<Option<T>, BrokerError> {
    Some(name).filter(|name| !name.is_empty()).map(parse).transpose()
}

fn named<T>(
    field: &'static str,
    name: &str,
    parse: impl FnOnce(&str) -> Result<T, ParseError>,
) -> Result<T, BrokerError> {
    parse(name).map_err(|error| invalid(field, error.to_string()))
}

pub(crate) fn page_size(size: u32) -> Result<usize, BrokerError> {
    match size {
        0 => Ok(PAGE_SIZE_DEFAULT as usize),
        1..=PAGE_SIZE_MAX => Ok(size as usize),
        _ => Err(invalid("page_size", format!("1 to {PAGE_SIZE_MAX}, not {size}"))),
    }
}

pub(crate) fn commit(position: Position) -> v1::Commit {
    v1::Commit {
        log_index: position.index,
        term: position.term,
        cluster_time_ms: position.at.0,
    }
}

fn state(state: MessageState) -> v1::MessageState {
    match state {
        MessageState::Ready => v1::MessageState::Ready,
        MessageState::Delayed => v1::MessageState::Delayed,
        MessageState::Leased => v1::MessageState::Leased,
        MessageState::Dead => v1::MessageState::Dead,
        MessageState::Gone(Exit::Acked) => v1::MessageState::Acked,
        MessageState::Gone(Exit::Expired) => v1::MessageState::Expired,
        MessageState::Gone(Exit::DeadLettered) => v1::MessageState::DeadLettered,
        MessageState::Gone(Exit::Dropped) => v1::MessageState::Dropped,
        MessageState::Gone(Exit::Deleted) => v1::MessageState::Deleted,
        MessageState::Gone(Exit::Moved) => v1::MessageState::Moved,
    }
}

/// Every reason, and how it is spelled.
const DEAD_REASONS: [(DeadReason, &str); 4] = [
    (DeadReason::Rejected, "rejected"),
    (DeadReason::DeliveriesMax, "max-deliveries"),
    (DeadReason::Expired, "expired"),
    (DeadReason::DroppedByLimit, "dropped-by-limit"),
];

fn dead_reason(reason: DeadReason) -> String {
    let spelled = DEAD_REASONS.iter().find(|(is, _)| *is == reason);
    spelled.map_or_else(String::new, |(_, spelled)| (*spelled).to_owned())
}

fn dead_letter(dead: DeadLetter) -> v1::DeadLetterInfo {
    v1::DeadLetterInfo {
        origin_queue: dead.origin.to_string(),
        reason: dead_reason(dead.reason),
        attempts: dead.attempts,
        first_error: dead.first_error,
        last_error: dead.last_error,
        at_ms: dead.at.0,
    }
}

/// Zero on the wire means "the default".
pub(crate) fn nonzero(ms: u64) -> Option<Millis> {
    (ms != 0).then_some(Millis(ms))
}

/// Zero on the wire means "no time".
fn at(ms: u64) -> Option<Timestamp> {
    (ms != 0).then_some(Timestamp(ms))
}

/// Zero on the wire means "none".
pub(crate) fn log_index(index: u64) -> Option<u64> {
    (index != 0).then_some(index)
}

/// Zero on the wire means "no time".
fn at_ms(at: Option<Timestamp>) -> u64 {
    at.map_or(0, |at| at.0)
}
