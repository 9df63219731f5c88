//! Calls that bring messages in, give them out, and settle them.

use quorate_node::broker::LeaseOptions;
use quorate_node::types::Millis;
use quorate_node::{Broker, BrokerError};
use quorate_proto::v1;

use crate::convert;

type Answer<T> = Result<T, BrokerError>;

pub(crate) async fn publish(broker: &Broker, request: v1::PublishRequest) -> Answer<v1::PublishResponse> {
    let (position, published) = broker.publish(convert::publish(request)?).await?;
    Ok(convert::published(position, published))
}

pub(crate) async fn lease(broker: &Broker, request: v1::LeaseRequest) -> Answer<v1::LeaseResponse> {
    let id = convert::request_id(request.request_id)?;
    let options = LeaseOptions {
        queue: convert::queue_name(&request.queue)?,
        count_max: request.max_messages,
        lease: convert::nonzero(request.lease_ms),
        wait: Millis(request.wait_ms),
    };
    let (position, leases) = broker.lease(id, options).await?;
    let mut deliveries = Vec::with_capacity(leases.leased.len());
    for leased in leases.leased {
        if let Some(content) = broker.content(&leased).await {
            deliveries.push(convert::delivery(leased, content, leases.granted));
        }
    }
    Ok(v1::LeaseResponse {
        commit: Some(convert::commit(position)),
        deliveries,
    })
}

pub(crate) async fn settle(broker: &Broker, request: v1::SettleRequest) -> Answer<v1::SettleResponse> {
    let id = convert::request_id(request.request_id)?;
    let settlements = convert::settlements(request.settlements)?;
    let (position, results) = broker.settle(id, settlements).await?;
    Ok(convert::settled(position, results))
}

pub(crate) async fn transact(broker: &Broker, request: v1::TransactRequest) -> Answer<v1::TransactResponse> {
    let id = convert::request_id(request.request_id)?;
    let settlements = convert::settlements(request.settlements)?;
    let publishes = request
        .publishes
        .into_iter()
        .map(|publish| {
            convert::publish(v1::PublishRequest {
                request_id: None,
                ..publish
            })
        })
        .collect::<Result<_, _>>()?;
    let (position, transacted) = broker.transact(id, settlements, publishes).await?;
    Ok(v1::TransactResponse {
        commit: Some(convert::commit(position)),
        settled: transacted
            .settled
            .into_iter()
            .map(convert::settled_result)
            .collect(),
        published: transacted
            .published
            .into_iter()
            .map(|published| convert::published(position, published))
            .collect(),
    })
}
