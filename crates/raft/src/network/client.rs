//! The sending side: openraft asks, a [`Peer`] carries it over.
//!
//! Every unary call ends within `soft_ttl`. A stream has no end, so it is
//! bounded by its silence: requests without an answer for `stream_stall` end
//! it, and openraft opens another. What failed how decides about the pause
//! before the next try: a refused connection and a refused envelope are
//! `Unreachable` (pause at once), a broken connection is `Network` and a late
//! answer `Timeout` (a few quick retries first).

use std::collections::{BTreeMap, VecDeque};
use std::error::Error as _;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use openraft::OptionalSend;
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable};
use openraft::network::{
    Backoff, NetBackoff, NetSnapshot, NetStreamAppend, NetTransferLeader, NetVote, RPCOption,
    RaftNetworkFactory,
};
use openraft::raft::{
    AppendEntriesRequest, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{RPCTypes, Snapshot};
use parking_lot::Mutex;
use quorate_proto::internal as wire;
use quorate_proto::internal::peer_client::PeerClient;
use quorate_storage::Log;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::convert;
use super::pool::{Pool, Use};
use crate::codec::Malformed;
use crate::config::Config;
use crate::identity::{self, Identity};
use crate::snapshot::{self, SnapshotData};
use crate::types::{Member, TypeConfig, Vote};

type RpcError = RPCError<TypeConfig>;

/// Makes [`Peer`]s.
#[derive(Clone)]
pub(crate) struct Network {
    pub(crate) identity: Arc<Identity>,
    pub(crate) pool: Pool,
    /// What this node can send.
    log: Log,
    connect: Duration,
    stream_stall: Duration,
    /// What each peer last failed with, so that only news is logged.
    complaints: Arc<Mutex<BTreeMap<u64, String>>>,
}

impl Network {
    pub(crate) fn new(identity: Arc<Identity>, pool: Pool, log: Log, config: &Config) -> Self {
        Self {
            identity,
            pool,
            log,
            connect: config.connect,
            stream_stall: config.stream_stall,
            complaints: Arc::default(),
        }
    }

    /// Whether the entries that should be in a request are gone: the log was cut after openraft had decided to
    /// send them, and the [log store](crate::log_store) has given none in their place. openraft would ask for them for
    /// ever; told that it failed, it looks again, and sends a snapshot.
    fn lacks(&self, request: &AppendEntriesRequest<TypeConfig>) -> bool {
        let next = request.prev_log_id.as_ref().map_or(0, |prev| prev.index + 1);
        request.entries.is_empty() && self.log.purged().is_some_and(|(purged, _)| next <= purged)
    }

    fn peer(&self, target: u64, node: &Member, usage: Use) -> Peer {
        Peer {
            network: self.clone(),
            target,
            address: node.peer_address.clone(),
            usage,
        }
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &Member) -> Peer {
        self.peer(target, node, Use::Log)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &Member) -> Peer {
        self.peer(target, node, Use::Heartbeat)
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &Member) -> Peer {
        self.peer(target, node, Use::Snapshot)
    }
}

/// One other node, for one use.
pub(crate) struct Peer {
    network: Network,
    target: u64,
    address: String,
    usage: Use,
}

impl Peer {
    fn client(&self) -> Result<PeerClient<Channel>, RpcError> {
        self.network
            .pool
            .client(Some(self.target), &self.address, self.usage)
            .ok_or_else(|| {
                RPCError::Unreachable(Unreachable::from_string(format!(
                    "{:?} is not an address",
                    self.address
                )))
            })
    }

    fn envelope(&self) -> wire::Envelope {
        self.network.identity.envelope(self.target)
    }

    fn late(&self, action: RPCTypes, timeout: Duration) -> RpcError {
        RPCError::Timeout(Timeout {
            action,
            id: self.network.identity.node_id,
            target: self.target,
            timeout,
        })
    }

    /// Turns a status into openraft's ranks, and logs it if it is news.
    fn failed(&self, action: RPCTypes, status: &Status) -> RpcError {
        let refused = identity::refusal(status).is_some();
        let unconnected = is_unconnected(status);
        let text = status.message().to_owned();
        if refused {
            let mut complaints = self.network.complaints.lock();
            if complaints.get(&self.target) != Some(&text) {
                tracing::warn!(
                    node = self.network.identity.node_id,
                    target = self.target,
                    address = self.address,
                    "refused by the other node: {text}"
                );
                complaints.insert(self.target, text.clone());
            }
        }
        if refused || unconnected {
            return RPCError::Unreachable(Unreachable::from_string(text));
        }
        match status.code() {
            Code::DeadlineExceeded => self.late(action, Duration::ZERO),
            Code::Unavailable if status.source().is_none() => {
                RPCError::Unreachable(Unreachable::from_string(text))
            }
            _ => RPCError::Network(NetworkError::new(status)),
        }
    }

    /// A unary call within its time.
    async fn call<T>(
        &self,
        action: RPCTypes,
        limit: Duration,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, RpcError> {
        match tokio::time::timeout(limit, call).await {
            Err(_) => Err(self.late(action, limit)),
            Ok(Err(status)) => Err(self.failed(action, &status)),
            Ok(Ok(response)) => Ok(response.into_inner()),
        }
    }

    async fn heartbeat(
        &self,
        request: AppendEntriesRequest<TypeConfig>,
        limit: Duration,
    ) -> Result<StreamAppendResult<TypeConfig>, RpcError> {
        let mut client = self.client()?;
        let request = convert::append(request, self.envelope());
        let response = self
            .call(RPCTypes::AppendEntries, limit, client.heartbeat(request))
            .await?;
        convert::append_result_back(&response).map_err(garbled)
    }
}

/// No connection could be made at all.
fn is_unconnected(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

fn garbled(error: Malformed) -> RpcError {
    RPCError::Network(NetworkError::new(&error))
}

impl NetBackoff<TypeConfig> for Peer {
    fn backoff(&self) -> Option<Backoff> {
        None // the series in the configuration
    }
}

impl NetVote<TypeConfig> for Peer {
    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RpcError> {
        let mut client = self.client()?;
        let request = convert::vote_request(&request, self.envelope());
        let response = self
            .call(RPCTypes::Vote, option.soft_ttl(), client.vote(request))
            .await?;
        convert::vote_response_back(&response).map_err(garbled)
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RpcError> {
        let mut client = self.client()?;
        let request = convert::vote_request(&request, self.envelope());
        let response = self
            .call(RPCTypes::Vote, option.soft_ttl(), client.pre_vote(request))
            .await?;
        convert::vote_response_back(&response).map_err(garbled)
    }
}

impl NetTransferLeader<TypeConfig> for Peer {
    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RpcError> {
        let mut client = self.client()?;
        let request = convert::transfer(&request, self.envelope());
        let response = self
            .call(
                RPCTypes::TransferLeader,
                option.soft_ttl(),
                client.transfer_leader(request),
            )
            .await?;
        convert::transfer_result_back(&response).map_err(garbled)
    }
}

/// When each unanswered request of a stream was handed to the transport.
type Unanswered = Arc<Mutex<VecDeque<Instant>>>;

impl NetStreamAppend<TypeConfig> for Peer {
    fn stream_append<'s, S>(
        &'s mut self,
        mut input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RpcError>>, RpcError>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            if self.usage == Use::Heartbeat {
                let output = futures_util::stream::once(async move {
                    let request = input.next().await?;
                    Some(self.heartbeat(request, option.soft_ttl()).await)
                })
                .filter_map(std::future::ready);
                return Ok(Box::pin(output) as BoxStream<'s, _>);
            }

            let unanswered = Unanswered::default();
            let (identity, target) = (Arc::clone(&self.network.identity), self.target);
            let noted = Arc::clone(&unanswered);
            // openraft pauses after a failure by holding back the first request. Whoever dials without it never pauses: a
            // node that refuses connections would be dialed all the time.
            let Some(first) = input.next().await else {
                return Ok(Box::pin(futures_util::stream::empty()) as BoxStream<'s, _>);
            };
            if self.network.lacks(&first) {
                return Err(self.behind());
            }
            let behind = Arc::new(AtomicBool::new(false));
            let (network, noticed) = (self.network.clone(), Arc::clone(&behind));
            let requests = futures_util::stream::once(std::future::ready(first)).chain(input);
            let requests = requests.take_while(move |request| {
                let lacks = network.lacks(request);
                noticed.fetch_or(lacks, Ordering::Relaxed);
                std::future::ready(!lacks)
            });
            let requests = requests.map(move |request| {
                noted.lock().push_back(Instant::now());
                convert::append(request, identity.envelope(target))
            });
            let limit = self.network.connect;
            let mut client = self.client()?;
            let responses = self
                .call(RPCTypes::AppendEntries, limit, client.stream_append(requests))
                .await?;
            Ok(Box::pin(self.watched(responses, unanswered, behind)) as BoxStream<'s, _>)
        })
    }
}

impl Peer {
    fn behind(&self) -> RpcError {
        RPCError::Network(NetworkError::from_string(format!(
            "what node {} lacks is not in the log any more",
            self.target
        )))
    }

    /// The answers of a stream, until it fails, ends, or falls silent. One that ends because the other node is
    /// `behind` has failed.
    fn watched<'s>(
        &'s self,
        responses: tonic::Streaming<wire::AppendResponse>,
        unanswered: Unanswered,
        behind: Arc<AtomicBool>,
    ) -> impl Stream<Item = Result<StreamAppendResult<TypeConfig>, RpcError>> + Send + 's {
        let stall = self.network.stream_stall;
        let start = Some((responses, unanswered, behind, Instant::now()));
        futures_util::stream::unfold(start, move |state| async move {
            let (mut responses, unanswered, behind, mut heard) = state?;
            loop {
                let answer = tokio::time::timeout(stall / 4, responses.message()).await;
                let result = match answer {
                    Err(_) => {
                        let since = unanswered.lock().front().map(|sent| heard.max(*sent));
                        match since {
                            Some(since) if since.elapsed() >= stall => {
                                return Some((Err(self.late(RPCTypes::AppendEntries, stall)), None));
                            }
                            _ => continue,
                        }
                    }
                    Ok(Ok(None)) if behind.load(Ordering::Relaxed) => {
                        return Some((Err(self.behind()), None));
                    }
                    Ok(Ok(None)) => return None,
                    Ok(Err(status)) => Err(self.failed(RPCTypes::AppendEntries, &status)),
                    Ok(Ok(Some(response))) => convert::append_result_back(&response).map_err(garbled),
                };
                unanswered.lock().pop_front();
                heard = Instant::now();
                let goes_on = matches!(result, Ok(Ok(_)));
                return Some((result, goes_on.then_some((responses, unanswered, behind, heard))));
            }
        })
    }
}

impl NetSnapshot<TypeConfig> for Peer {
    type SnapshotData = SnapshotData;

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot<crate::types::LeaderId, u64, Member, SnapshotData>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let mut client = self.client()?;
        let begin = wire::SnapshotBegin {
            envelope: Some(self.envelope()),
            vote: Some(convert::vote(&vote)),
            meta: crate::codec::encode_snapshot_meta(&snapshot.meta).into(),
        };
        // The frames are read from disk as fast as the other side takes them.
        let (frames, mut progress) = snapshot::send(begin, snapshot.snapshot);
        let mut call = pin!(client.install_snapshot(frames));
        let mut cancel = pin!(cancel);
        // The last frame is followed by the other node's flush and restore.
        let stall = option.hard_ttl();
        let response = loop {
            tokio::select! {
                response = &mut call => break response,
                closed = &mut cancel => return Err(StreamingError::Closed(closed)),
                moved = tokio::time::timeout(stall, progress.changed()) => match moved {
                    Err(_) => return Err(self.late(RPCTypes::InstallSnapshot, stall).into()),
                    // All frames are out: what is left is to wait for the answer.
                    Ok(Err(_)) => break match tokio::time::timeout(stall, &mut call).await {
                        Ok(response) => response,
                        Err(_) => return Err(self.late(RPCTypes::InstallSnapshot, stall).into()),
                    },
                    Ok(Ok(())) => {}
                },
            }
        };
        let response = response
            .map_err(|status| self.failed(RPCTypes::InstallSnapshot, &status))?
            .into_inner();
        let vote = convert::vote_back(response.vote.as_ref()).map_err(garbled)?;
        Ok(SnapshotResponse::new(vote))
    }
}
