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

/// Declares [`Mutation`] and [`Answer`] from a list of the calls.
macro_rules! mutations {
    ($($name:ident: $request:ident -> $answer:ident($response:ident), $method:ident;)*) => {
        /// Any call that changes something.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Mutation {
            $(
                /// See the API.
                $name(v1::$request),
            )*
        }

        /// What it was answered.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Answer {
            $(
                /// See the API.
                $answer(v1::$response),
            )*
        }

        impl Mutation {
            /// The call under a request id.
            #[must_use]
            pub fn with_id(mut self, id: v1::RequestId) -> Self {
                let place = match &mut self {
                    $(Self::$name(request) => &mut request.request_id,)*
                };
                *place = Some(id);
                self
            }

            async fn send_and_wait(self, broker: &BrokerClient<Channel>) -> Result<Answer, Status> {
                let mut broker = broker.clone();
                Ok(match self {
                    $(Self::$name(request) => Answer::$answer(broker.$method(request).await?.into_inner()),)*
                })
            }
        }

        impl Answer {
            fn commit(&mut self) -> &mut Option<v1::Commit> {
                match self {
                    $(Self::$answer(answer) => &mut answer.commit,)*
                }
            }
        }
    };
}

mutations! {
    Declare: DeclareQueueRequest -> Declared(DeclareQueueResponse), declare_queue;
    Update: UpdateQueueRequest -> Updated(UpdateQueueResponse), update_queue;
    Purge: PurgeQueueRequest -> Purged(PurgeQueueResponse), purge_queue;
    Pause: PauseQueueRequest -> Paused(PauseQueueResponse), pause_queue;
    Delete: DeleteQueueRequest -> Deleted(DeleteQueueResponse), delete_queue;
    DeclareExchange: DeclareExchangeRequest -> ExchangeDeclared(DeclareExchangeResponse), declare_exchange;
    UpdateExchange: UpdateExchangeRequest -> ExchangeUpdated(UpdateExchangeResponse), update_exchange;
    DeleteExchange: DeleteExchangeRequest -> ExchangeDeleted(DeleteExchangeResponse), delete_exchange;
    Bind: BindRequest -> Bound(BindResponse), bind;
    Unbind: UnbindRequest -> Unbound(UnbindResponse), unbind;
    Publish: PublishRequest -> Published(PublishResponse), publish;
    Lease: LeaseRequest -> Leased(LeaseResponse), lease;
    Settle: SettleRequest -> Settled(SettleResponse), settle;
    Transact: TransactRequest -> Transacted(TransactResponse), transact;
    Operate: OperateMessagesRequest -> Operated(OperateMessagesResponse), operate_messages;
    Redrive: RedriveRequest -> Redriven(RedriveResponse), redrive;
    UndoRedrive: UndoRedriveRequest -> RedriveUndone(UndoRedriveResponse), undo_redrive;
}

impl Mutation {
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
}

impl Answer {
    /// What was done, without what belongs to the one who answers: the term of
    /// the leader, and where a redrive or its undo would go on now.
    #[must_use]
    pub fn without_answerer(mut self) -> Self {
        if let Some(commit) = self.commit() {
            commit.term = 0;
        }
        match &mut self {
            Self::Redriven(answer) => answer.next = 0,
            Self::RedriveUndone(answer) => answer.next = 0,
            Self::Leased(answer) => {
                for commit in answer.deliveries.iter_mut().filter_map(|one| one.commit.as_mut()) {
                    commit.term = 0;
                }
            }
            Self::Transacted(answer) => {
                for commit in answer.published.iter_mut().filter_map(|one| one.commit.as_mut()) {
                    commit.term = 0;
                }
            }
            _ => {}
        }
        self
    }
}
