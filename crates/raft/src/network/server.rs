//! The receiving side: the `Peer` service.
//!
//! A request reaches openraft only after its envelope was admitted and its
//! fields were read. What comes from elsewhere (another cluster, a client on
//! the wrong port) gets an error and changes nothing.

use std::future::Future;
use std::sync::Arc;

use futures_util::StreamExt as _;
use parking_lot::Mutex;
use quorate_proto::internal as wire;
use quorate_proto::internal::peer_server::Peer;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::convert;
use crate::bootstrap::Seen;
use crate::clock::Clock;
use crate::codec::Malformed;
use crate::failover::Contact;
use crate::identity::Identity;
use crate::snapshot::Receiver;
use crate::types::{Raft, Vote};

/// The service.
#[derive(Clone)]
pub(crate) struct PeerService {
    pub(crate) identity: Arc<Identity>,
    pub(crate) raft: Raft,
    pub(crate) seen: Arc<Mutex<Seen>>,
    pub(crate) contact: Arc<Contact>,
    pub(crate) receiver: Receiver,
    pub(crate) clock: Clock,
}

type Stop = openraft::errors::Fatal<crate::types::TypeConfig>;

fn stopped(error: &Stop) -> Status {
    Status::unavailable(format!("this node has stopped: {error}"))
}

impl From<Malformed> for Status {
    fn from(error: Malformed) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

impl PeerService {
    fn note(&self, from: u64, vote: &Vote) {
        if vote.committed && vote.leader_id.node_id == from {
            self.contact.heard(from);
        }
    }
}

#[tonic::async_trait]
impl Peer for PeerService {
    async fn hello(&self, _: Request<wire::HelloRequest>) -> Result<Response<wire::HelloResponse>, Status> {
        let initialized = self.raft.is_initialized().await.map_err(|e| stopped(&e))?;
        let member = &self.identity.member;
        let seen = self.seen.lock().clone();
        Ok(Response::new(wire::HelloResponse {
            node: Some(wire::PeerNode {
                node_id: self.identity.node_id,
                name: member.name.clone(),
                client_address: member.client_address.clone(),
                peer_address: member.peer_address.clone(),
                voter: false,
            }),
            incarnation: self.identity.incarnation.0,
            cluster_id: self
                .identity
                .cluster()
                .map(|id| id.0.to_vec().into())
                .unwrap_or_default(),
            initialized,
            seen: seen.ids.into_iter().collect(),
            peers: seen.peers,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }))
    }

    async fn join_info(
        &self,
        _: Request<wire::JoinInfoRequest>,
    ) -> Result<Response<wire::JoinInfoResponse>, Status> {
        use openraft::async_runtime::WatchReceiver as _;
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let committed = &metrics.committed_membership_config;
        let voters: std::collections::BTreeSet<u64> = committed.voter_ids().collect();
        let at = committed.log_id().as_ref();
        Ok(Response::new(wire::JoinInfoResponse {
            cluster_id: self
                .identity
                .cluster()
                .map(|id| id.0.to_vec().into())
                .unwrap_or_default(),
            membership_index: at.map_or(0, |id| id.index),
            membership_term: at.map_or(0, |id| id.leader_id.term),
            members: committed
                .membership()
                .nodes()
                .map(|(id, node)| wire::PeerNode {
                    node_id: *id,
                    name: node.name.clone(),
                    client_address: node.client_address.clone(),
                    peer_address: node.peer_address.clone(),
                    voter: voters.contains(id),
                })
                .collect(),
            leader: metrics.current_leader.unwrap_or(0),
        }))
    }

    async fn clock(
        &self,
        request: Request<wire::ClockRequest>,
    ) -> Result<Response<wire::ClockResponse>, Status> {
        self.identity.admit(request.get_ref().envelope.as_ref()).await?;
        Ok(Response::new(wire::ClockResponse {
            wall_ms: self.clock.wall_ms(),
        }))
    }

    async fn vote(
        &self,
        request: Request<wire::VoteRequest>,
    ) -> Result<Response<wire::VoteResponse>, Status> {
        let request = request.into_inner();
        self.identity.admit(request.envelope.as_ref()).await?;
        let response = self
            .raft
            .vote(convert::vote_request_back(&request)?)
            .await
            .map_err(gone)?;
        Ok(Response::new(convert::vote_response(&response)))
    }

    async fn pre_vote(
        &self,
        request: Request<wire::VoteRequest>,
    ) -> Result<Response<wire::VoteResponse>, Status> {
        let request = request.into_inner();
        self.identity.admit(request.envelope.as_ref()).await?;
        let response = self
            .raft
            .pre_vote(convert::vote_request_back(&request)?)
            .await
            .map_err(gone)?;
        Ok(Response::new(convert::vote_response(&response)))
    }

    type StreamAppendStream = ReceiverStream<Result<wire::AppendResponse, Status>>;

    async fn stream_append(
        &self,
        request: Request<Streaming<wire::AppendRequest>>,
    ) -> Result<Response<Self::StreamAppendStream>, Status> {
        let (answers, stream) = mpsc::channel(64);
        let service = self.clone();
        tokio::spawn(async move { service.append_all(request.into_inner(), answers).await });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn heartbeat(
        &self,
        request: Request<wire::AppendRequest>,
    ) -> Result<Response<wire::AppendResponse>, Status> {
        let request = request.into_inner();
        let from = self.identity.admit(request.envelope.as_ref()).await?;
        let request = convert::append_back(request)?;
        self.note(from, &request.vote);
        let one = futures_util::stream::once(std::future::ready(request));
        let mut results = Box::pin(self.raft.stream_append(one));
        match results.next().await {
            Some(Ok(result)) => Ok(Response::new(convert::append_result(result))),
            Some(Err(stop)) => Err(stopped(&stop)),
            None => Err(Status::unavailable("this node is stopping")),
        }
    }

    async fn transfer_leader(
        &self,
        request: Request<wire::TransferLeaderRequest>,
    ) -> Result<Response<wire::TransferLeaderResponse>, Status> {
        let request = request.into_inner();
        self.identity.admit(request.envelope.as_ref()).await?;
        let request = convert::transfer_back(&request)?;
        let result = self
            .raft
            .handle_transfer_leader(request)
            .await
            .map_err(|e| stopped(&e))?;
        Ok(Response::new(convert::transfer_result(&result)))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<wire::SnapshotFrame>>,
    ) -> Result<Response<wire::SnapshotResponse>, Status> {
        let vote = self
            .receiver
            .receive(&self.identity, &self.raft, request.into_inner())
            .await?;
        Ok(Response::new(wire::SnapshotResponse {
            vote: Some(convert::vote(&vote)),
        }))
    }
}

fn gone<E: std::error::Error>(error: openraft::errors::RaftError<crate::types::TypeConfig, E>) -> Status {
    Status::unavailable(format!("this node has stopped: {error}"))
}

impl PeerService {
    /// One append stream: requests in, answers out in their order, until either
    /// side ends it, the log conflicts, or a frame is not admitted.
    async fn append_all(
        self,
        mut frames: Streaming<wire::AppendRequest>,
        answers: mpsc::Sender<Result<wire::AppendResponse, Status>>,
    ) {
        let (accepted, requests) = mpsc::channel(8);
        let service = self.clone();
        let refused = answers.clone();
        // Reading is a task of its own, so that many frames may be under way
        // to the log at once.
        let read = async move {
            let mut leader = None;
            loop {
                let frame = tokio::select! {
                    frame = frames.message() => frame,
                    () = accepted.closed() => return,
                };
                let admitted = match frame {
                    Ok(Some(frame)) => service.admit_append(frame).await,
                    Ok(None) | Err(_) => {
                        // Its other end may be gone.
                        if let Some(leader) = leader {
                            service.contact.ended(leader);
                        }
                        return;
                    }
                };
                match admitted {
                    Ok((from, request)) => {
                        leader = Some(from);
                        if accepted.send(request).await.is_err() {
                            return;
                        }
                    }
                    Err(status) => {
                        let _ = refused.send(Err(status)).await;
                        return;
                    }
                }
            }
        };
        let write = async move {
            let mut results = Box::pin(self.raft.stream_append(ReceiverStream::new(requests)));
            while let Some(result) = results.next().await {
                let answer = result.map(convert::append_result).map_err(|stop| stopped(&stop));
                if answers.send(answer).await.is_err() {
                    return;
                }
            }
        };
        both(read, write).await;
    }

    async fn admit_append(
        &self,
        frame: wire::AppendRequest,
    ) -> Result<
        (
            u64,
            openraft::raft::AppendEntriesRequest<crate::types::TypeConfig>,
        ),
        Status,
    > {
        let from = self.identity.admit(frame.envelope.as_ref()).await?;
        let request = convert::append_back(frame)?;
        self.note(from, &request.vote);
        Ok((from, request))
    }
}

/// Runs two halves of a stream; the second's end ends both.
async fn both(read: impl Future<Output = ()> + Send, write: impl Future<Output = ()> + Send) {
    tokio::pin!(read, write);
    tokio::select! {
        () = &mut write => {}
        () = &mut read => write.await,
    }
}
