//! Between generated messages and the broker's types, by hand, in one file.

use quorate_node::BrokerError;
use quorate_node::broker::{Position, Publication, Publish};
use quorate_node::content::Content;
use quorate_node::types::{
    ClientId, DeadReason, Exit, Leased, MessageId, MessageState, Millis, Overflow, PurgeStates, QueueName,
    QueueView, Rejection, RequestId, Settings, SettingsPatch, Settled, Settlement, Verdict,
};
use quorate_proto::v1;

use crate::error::{self, invalid};

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
    QueueName::new(name).map_err(|error| invalid("queue", error.to_string()))
}

pub(crate) fn settings_patch(settings: Option<v1::QueueSettings>) -> Result<SettingsPatch, BrokerError> {
    let settings = settings.unwrap_or_default();
    let dead_letter_queue = match settings.dead_letter_queue.as_deref() {
        None => None,
        Some("") => Some(None),
        Some(name) => {
            Some(Some(QueueName::new(name).map_err(|error| {
                invalid("dead_letter_queue", error.to_string())
            })?))
        }
    };
    let overflow = match settings.overflow.map(v1::Overflow::try_from) {
        None | Some(Ok(v1::Overflow::Unspecified)) => None,
        Some(Ok(v1::Overflow::Reject)) => Some(Overflow::Reject),
        Some(Ok(v1::Overflow::DropHead)) => Some(Overflow::DropHead),
        Some(Err(_)) => return Err(invalid("overflow", "not a known policy")),
    };
    Ok(SettingsPatch {
        lease: settings.lease_ms.map(Millis),
        deliveries_max: settings.max_deliveries,
        dead_letter_queue,
        length_max: settings.max_length,
        bytes_max: settings.max_bytes,
        overflow,
        message_ttl: settings.message_ttl_ms.map(Millis),
        backoff_initial: settings.backoff_initial_ms.map(Millis),
        backoff_max: settings.backoff_max_ms.map(Millis),
        ..SettingsPatch::default()
    })
}

fn settings(settings: &Settings) -> v1::QueueSettings {
    let overflow = match settings.overflow {
        Overflow::Reject => v1::Overflow::Reject,
        Overflow::DropHead => v1::Overflow::DropHead,
    };
    v1::QueueSettings {
        lease_ms: Some(settings.lease.0),
        max_deliveries: Some(settings.deliveries_max),
        dead_letter_queue: settings.dead_letter_queue.as_ref().map(ToString::to_string),
        max_length: Some(settings.length_max),
        max_bytes: Some(settings.bytes_max),
        overflow: Some(overflow.into()),
        message_ttl_ms: Some(settings.message_ttl.0),
        backoff_initial_ms: Some(settings.backoff_initial.0),
        backoff_max_ms: Some(settings.backoff_max.0),
        ..v1::QueueSettings::default()
    }
}

pub(crate) fn queue_info(view: &QueueView) -> v1::QueueInfo {
    let counts = &view.counts;
    v1::QueueInfo {
        name: view.name.to_string(),
        id: view.id.0,
        settings: Some(settings(&view.settings)),
        counts: Some(v1::QueueCounts {
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
            redelivered: counts.redelivered,
            ..v1::QueueCounts::default()
        }),
        ..v1::QueueInfo::default()
    }
}

/// No state stands for those that wait to be leased.
pub(crate) fn purge_states(states: &[i32]) -> Result<PurgeStates, BrokerError> {
    if states.is_empty() {
        return Ok(PurgeStates::WAITING);
    }
    let mut purge = PurgeStates {
        ready: false,
        delayed: false,
        dead: false,
    };
    for state in states {
        match v1::MessageState::try_from(*state) {
            Ok(v1::MessageState::Ready) => purge.ready = true,
            Ok(v1::MessageState::Delayed) => purge.delayed = true,
            Ok(v1::MessageState::Dead) => purge.dead = true,
            _ => return Err(invalid("states", "ready, delayed and dead can be purged")),
        }
    }
    Ok(purge)
}

pub(crate) fn commit(position: Position) -> v1::Commit {
    v1::Commit {
        log_index: position.index,
        term: position.term,
        cluster_time_ms: position.at.0,
    }
}

pub(crate) fn publish(request: v1::PublishRequest) -> Result<Publish, BrokerError> {
    let message = |message: v1::OutgoingMessage| Publication {
        content: Content {
            headers: message.headers,
            body: message.body,
        },
        delay: Millis(message.delay_ms),
        ttl: Millis(message.ttl_ms),
    };
    Ok(Publish {
        id: request_id(request.request_id)?,
        queue: queue_name(&request.queue)?,
        messages: request.messages.into_iter().map(message).collect(),
    })
}

pub(crate) fn published(position: Position, ids: &[MessageId]) -> v1::PublishResponse {
    v1::PublishResponse {
        commit: Some(commit(position)),
        message_ids: ids.iter().map(ToString::to_string).collect(),
        ..v1::PublishResponse::default()
    }
}

pub(crate) fn settlements(settlements: Vec<v1::Settlement>) -> Result<Vec<Settlement>, BrokerError> {
    settlements.into_iter().map(settlement).collect()
}

fn settlement(settlement: v1::Settlement) -> Result<Settlement, BrokerError> {
    use v1::settlement::Verdict as Wire;
    let token = settlement
        .token
        .parse()
        .map_err(|error| invalid("token", format!("{error}")))?;
    let verdict = match settlement
        .verdict
        .ok_or_else(|| invalid("verdict", "is missing"))?
    {
        Wire::Ack(_) => Verdict::Ack,
        Wire::Nack(nack) => Verdict::Nack {
            delay: nack.delay_ms.map(Millis),
            reason: nack.reason,
        },
        Wire::Release(_) => Verdict::Release,
        Wire::DeadLetter(dead) => Verdict::DeadLetter { reason: dead.reason },
        Wire::Extend(extend) => Verdict::Extend {
            lease: nonzero(extend.lease_ms),
        },
    };
    Ok(Settlement { token, verdict })
}

pub(crate) fn settled(position: Position, results: Vec<Result<Settled, Rejection>>) -> v1::SettleResponse {
    let result = |result: Result<Settled, Rejection>| match result {
        Ok(settled) => v1::SettleResult {
            error: None,
            leased_until_ms: settled.leased_until.map_or(0, |until| until.0),
        },
        Err(rejection) => v1::SettleResult {
            error: Some(error::rejection(rejection)),
            leased_until_ms: 0,
        },
    };
    v1::SettleResponse {
        commit: Some(commit(position)),
        results: results.into_iter().map(result).collect(),
    }
}

pub(crate) fn delivery(leased: Leased, content: Content) -> v1::Delivery {
    let reason = |reason| match reason {
        DeadReason::Rejected => "rejected",
        DeadReason::DeliveriesMax => "max-deliveries",
        DeadReason::Expired => "expired",
        DeadReason::DroppedByLimit => "dropped-by-limit",
    };
    v1::Delivery {
        message_id: leased.message.to_string(),
        queue: leased.queue.to_string(),
        token: leased.token.to_string(),
        fence: leased.token.grant,
        attempt: leased.token.attempt,
        redelivered: leased.redelivered,
        leased_until_ms: leased.leased_until.0,
        published_at_ms: leased.published_at.0,
        body: content.body,
        headers: content.headers,
        last_error: leased.last_error,
        dead_letter: leased.dead_letter.map(|dead| v1::DeadLetterInfo {
            origin_queue: dead.origin.to_string(),
            reason: reason(dead.reason).to_owned(),
            attempts: dead.attempts,
            first_error: dead.first_error,
            last_error: dead.last_error,
            at_ms: dead.at.0,
        }),
        ..v1::Delivery::default()
    }
}

/// The state in a word, as a person reads it.
pub(crate) fn state_name(state: MessageState) -> &'static str {
    match state {
        MessageState::Ready => "ready",
        MessageState::Delayed => "delayed",
        MessageState::Leased => "leased",
        MessageState::Dead => "dead",
        MessageState::Gone(Exit::Acked) => "acked",
        MessageState::Gone(Exit::Expired) => "expired",
        MessageState::Gone(Exit::DeadLettered) => "dead-lettered",
        MessageState::Gone(Exit::Dropped) => "dropped",
        MessageState::Gone(Exit::Deleted) => "deleted",
        MessageState::Gone(Exit::Moved) => "moved",
    }
}

/// Zero on the wire means "the default".
pub(crate) fn nonzero(ms: u64) -> Option<Millis> {
    (ms != 0).then_some(Millis(ms))
}
