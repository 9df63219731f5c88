//! The API without the client library: to send what the library would not, and
//! to see answers as they are.
//!
//! It talks to one address and follows no redirect.

use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use prost::Message as _;
use quorate_proto::v1;
use quorate_proto::v1::broker_client::BrokerClient;
use quorate_proto::v1::cluster_client::ClusterClient;
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// Larger than any request or answer here.
const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// `google.rpc.Status`, which carries the details of a gRPC error.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// A connection to `host:port`.
///
/// # Errors
///
/// When nobody listens there.
pub async fn channel(address: &str) -> Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    endpoint
        .connect()
        .await
        .with_context(|| format!("connect to {address}"))
}

/// The broker service at `host:port`, without limits of the client's own.
///
/// # Errors
///
/// When nobody listens there.
pub async fn broker(address: &str) -> Result<BrokerClient<Channel>> {
    let client = BrokerClient::new(channel(address).await?);
    Ok(client
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX))
}

/// The cluster service at `host:port`.
///
/// # Errors
///
/// When nobody listens there.
pub async fn cluster(address: &str) -> Result<ClusterClient<Channel>> {
    Ok(ClusterClient::new(channel(address).await?))
}

/// The typed detail of an error.
///
/// # Panics
///
/// When it has none: every error of the API has one.
#[must_use]
pub fn detail(status: &Status) -> v1::ErrorDetail {
    let found = RpcStatus::decode(status.details()).ok().and_then(|rpc| {
        let any = rpc
            .details
            .into_iter()
            .find(|any| any.type_url == v1::ERROR_DETAIL_TYPE_URL)?;
        v1::ErrorDetail::decode(any.value.as_slice()).ok()
    });
    found.unwrap_or_else(|| panic!("an error without a detail: {status:?}"))
}

/// A message with only a body.
#[must_use]
pub fn message(body: impl Into<Bytes>) -> v1::OutgoingMessage {
    v1::OutgoingMessage {
        body: body.into(),
        ..Default::default()
    }
}

/// A publish of one message with only a body.
#[must_use]
pub fn publish(queue: &str, body: impl Into<Bytes>) -> v1::PublishRequest {
    v1::PublishRequest {
        queue: queue.to_owned(),
        messages: vec![message(body)],
        ..Default::default()
    }
}

/// A pull of up to `max_messages` with a long lease.
#[must_use]
pub fn lease(queue: &str, max_messages: u32) -> v1::LeaseRequest {
    v1::LeaseRequest {
        queue: queue.to_owned(),
        max_messages,
        lease_ms: 600_000,
        ..Default::default()
    }
}

/// One settlement.
#[must_use]
pub fn settle(token: &str, verdict: v1::settlement::Verdict) -> v1::SettleRequest {
    let settlement = v1::Settlement {
        token: token.to_owned(),
        verdict: Some(verdict),
    };
    v1::SettleRequest {
        request_id: None,
        settlements: vec![settlement],
    }
}

/// Any call that changes something.
#[derive(Clone, Debug, PartialEq)]
pub enum Mutation {
    /// See the API.
    Declare(v1::DeclareQueueRequest),
    /// See the API.
    Update(v1::UpdateQueueRequest),
    /// See the API.
    Purge(v1::PurgeQueueRequest),
    /// See the API.
    Delete(v1::DeleteQueueRequest),
    /// See the API.
    Publish(v1::PublishRequest),
    /// See the API.
    Lease(v1::LeaseRequest),
    /// See the API.
    Settle(v1::SettleRequest),
}

/// What it was answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// See the API.
    Declared(v1::DeclareQueueResponse),
    /// See the API.
    Updated(v1::UpdateQueueResponse),
    /// See the API.
    Purged(v1::PurgeQueueResponse),
    /// See the API.
    Deleted(v1::DeleteQueueResponse),
    /// See the API.
    Published(v1::PublishResponse),
    /// See the API.
    Leased(v1::LeaseResponse),
    /// See the API.
    Settled(v1::SettleResponse),
}

impl Answer {
    /// The answer but for the term of its commit, which is that of the leader
    /// that answers.
    #[must_use]
    pub fn without_term(mut self) -> Self {
        let commit = match &mut self {
            Self::Declared(answer) => &mut answer.commit,
            Self::Updated(answer) => &mut answer.commit,
            Self::Purged(answer) => &mut answer.commit,
            Self::Deleted(answer) => &mut answer.commit,
            Self::Published(answer) => &mut answer.commit,
            Self::Leased(answer) => &mut answer.commit,
            Self::Settled(answer) => &mut answer.commit,
        };
        if let Some(commit) = commit {
            commit.term = 0;
        }
        self
    }
}

impl Mutation {
    /// The call under a request id.
    #[must_use]
    pub fn with_id(mut self, id: v1::RequestId) -> Self {
        let place = match &mut self {
            Self::Declare(request) => &mut request.request_id,
            Self::Update(request) => &mut request.request_id,
            Self::Purge(request) => &mut request.request_id,
            Self::Delete(request) => &mut request.request_id,
            Self::Publish(request) => &mut request.request_id,
            Self::Lease(request) => &mut request.request_id,
            Self::Settle(request) => &mut request.request_id,
        };
        *place = Some(id);
        self
    }

    /// One attempt.
    ///
    /// # Errors
    ///
    /// The broker's, or the connection's, or that there was no answer within
    /// half a minute.
    pub async fn send(self, broker: &BrokerClient<Channel>) -> Result<Answer, Status> {
        let late = |_| Status::deadline_exceeded("no answer within half a minute");
        timeout(Duration::from_secs(30), self.send_and_wait(broker))
            .await
            .map_err(late)?
    }

    async fn send_and_wait(self, broker: &BrokerClient<Channel>) -> Result<Answer, Status> {
        let mut broker = broker.clone();
        Ok(match self {
            Self::Declare(request) => Answer::Declared(broker.declare_queue(request).await?.into_inner()),
            Self::Update(request) => Answer::Updated(broker.update_queue(request).await?.into_inner()),
            Self::Purge(request) => Answer::Purged(broker.purge_queue(request).await?.into_inner()),
            Self::Delete(request) => Answer::Deleted(broker.delete_queue(request).await?.into_inner()),
            Self::Publish(request) => Answer::Published(broker.publish(request).await?.into_inner()),
            Self::Lease(request) => Answer::Leased(broker.lease(request).await?.into_inner()),
            Self::Settle(request) => Answer::Settled(broker.settle(request).await?.into_inner()),
        })
    }
}
