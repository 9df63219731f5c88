//! Deliveries and settlements.

use quorate_node::BrokerError;
use quorate_node::broker::Position;
use quorate_node::content::Content;
use quorate_node::types::{Leased, Millis, Rejection, Settled, Settlement, Verdict};
use quorate_proto::v1;

use super::{at_ms, commit, dead_letter, nonzero};
use crate::error::{self, invalid};

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
        Ok(settled) => settled_result(settled),
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

pub(crate) fn settled_result(settled: Settled) -> v1::SettleResult {
    v1::SettleResult {
        error: None,
        leased_until_ms: at_ms(settled.leased_until),
    }
}

pub(crate) fn delivery(leased: Leased, content: Content, position: Position) -> v1::Delivery {
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
        dead_letter: leased.dead_letter.map(dead_letter),
        exchange: content.exchange,
        routing_key: content.routing_key,
        priority: content.priority.into(),
        group: content.group,
        dedup_id: content.dedup_id,
        commit: Some(commit(position)),
    }
}
