//! Requests of a node that does not lead, passed on to the one that does.
//!
//! Each call stands for itself: a caller to whom order matters waits for one
//! answer before the next call. Native clients follow a redirect instead; this
//! is for what a node itself has to say: a session ended, a node is up.

use std::time::Duration;

use bytes::Bytes;
use quorate_core::command::Request;
use quorate_core::ids::Timestamp;
use quorate_core::{Repeated, batch};
use quorate_proto::internal::forward_client::ForwardClient;
use quorate_proto::internal::forward_response::Result as Forwarded;
use quorate_proto::internal::forward_server::{Forward, ForwardServer};
use quorate_proto::internal::{
    ForwardCommitted, ForwardRefused, ForwardRepeated, ForwardRequest, ForwardResponse, ForwardUnknown,
};
use quorate_raft::Leadership;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Code, Request as GrpcRequest, Response, Status};

use crate::batcher::{Committed, Proposal};
use crate::broker::Broker;
use crate::error::BrokerError;

/// Largest forwarded call; a batch is bounded well below.
const CALL_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Sends requests to the leader and waits until they are applied there.
pub(crate) async fn propose(
    broker: &Broker,
    proposal: &Proposal,
    deadline: Instant,
) -> Result<Committed, BrokerError> {
    let consensus = broker.consensus();
    let leader = consensus
        .leadership()
        .borrow()
        .leader
        .clone()
        .ok_or(BrokerError::NoLeader)?;
    let channel = consensus
        .peer_channel(leader.node_id)
        .ok_or(BrokerError::NoLeader)?;
    let mut client = ForwardClient::new(channel).max_decoding_message_size(CALL_BYTES_MAX);
    let batch = batch::encode(Timestamp(0), &proposal.requests, &proposal.contents);
    let request = ForwardRequest {
        envelope: Some(consensus.envelope(leader.node_id)),
        batch,
    };
    let mut request = GrpcRequest::new(request);
    let left = deadline.saturating_duration_since(Instant::now());
    request.set_timeout(left);
    let answer = tokio::time::timeout(left + Duration::from_millis(100), client.propose(request)).await;
    let response = match answer {
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(status)) if status.code() == Code::Unavailable && not_sent(&status) => {
            return Err(BrokerError::NoLeader);
        }
        Ok(Err(status)) => return Err(BrokerError::Unknown(format!("forwarding: {}", status.message()))),
        Err(_) => return Err(BrokerError::Unknown("forwarding: the deadline passed".to_owned())),
    };
    match response.result {
        Some(Forwarded::Committed(committed)) => Ok(Committed {
            index: committed.log_index,
            term: committed.term,
            at: Timestamp(committed.cluster_time_ms),
            outcomes: batch::decode_outcomes(&committed.outcomes)
                .map_err(|error| BrokerError::Internal(format!("forwarding: {error}")))?,
            repeated: committed.repeats.iter().map(repeated_from_wire).collect(),
        }),
        Some(Forwarded::Refused(_)) => Err(BrokerError::NoLeader),
        Some(Forwarded::Unknown(unknown)) => Err(BrokerError::Unknown(unknown.why)),
        None => Err(BrokerError::Unknown("forwarding: an empty answer".to_owned())),
    }
}

fn repeated_to_wire(repeated: &Repeated) -> ForwardRepeated {
    ForwardRepeated {
        ordinal: repeated.ordinal,
        log_index: repeated.index,
        cluster_time_ms: repeated.at.0,
    }
}

fn repeated_from_wire(repeated: &ForwardRepeated) -> Repeated {
    Repeated {
        ordinal: repeated.ordinal,
        index: repeated.log_index,
        at: Timestamp(repeated.cluster_time_ms),
    }
}

/// The call never left this node: there was no connection.
fn not_sent(status: &Status) -> bool {
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        if error
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
        {
            return true;
        }
        source = error.source();
    }
    false
}

/// Takes what other nodes pass on.
pub(crate) struct Service(pub(crate) std::sync::Arc<std::sync::OnceLock<Broker>>);

impl Service {
    pub(crate) fn into_server(self) -> ForwardServer<Self> {
        ForwardServer::new(self)
            .max_decoding_message_size(CALL_BYTES_MAX)
            .max_encoding_message_size(CALL_BYTES_MAX)
    }
}

#[tonic::async_trait]
impl Forward for Service {
    async fn propose(
        &self,
        request: GrpcRequest<ForwardRequest>,
    ) -> Result<Response<ForwardResponse>, Status> {
        let broker = self
            .0
            .get()
            .ok_or_else(|| Status::unavailable("the node is starting"))?;
        let ForwardRequest { envelope, batch } = request.into_inner();
        broker
            .consensus()
            .admit(envelope.as_ref())
            .map_err(|refusal| *refusal)?;
        let batch = batch::Batch::decode(batch)
            .map_err(|error| Status::invalid_argument(format!("the batch is malformed: {error}")))?;
        let deadline = Instant::now() + broker.limits().request_timeout;
        let result = match broker
            .propose_here(batch.requests, batch.contents, deadline)
            .await
        {
            Ok(committed) => Forwarded::Committed(ForwardCommitted {
                log_index: committed.index,
                term: committed.term,
                cluster_time_ms: committed.at.0,
                outcomes: batch::encode_outcomes(&committed.outcomes),
                repeats: committed.repeated.iter().map(repeated_to_wire).collect(),
            }),
            Err(error) if error.may_have_applied() => Forwarded::Unknown(ForwardUnknown {
                why: error.to_string(),
            }),
            Err(error) => Forwarded::Refused(ForwardRefused {
                why: error.to_string(),
            }),
        };
        Ok(Response::new(ForwardResponse { result: Some(result) }))
    }
}

/// A request that a node makes by itself: safe to repeat, so it is, until it is
/// applied, `give_up` has passed or the node has stopped.
pub(crate) async fn insist(broker: &Broker, request: Request, give_up: Duration) {
    let until = Instant::now() + give_up;
    let mut pause = Duration::from_millis(20);
    let mut leadership = broker.consensus().leadership();
    loop {
        leadership.mark_unchanged();
        let deadline = Instant::now() + Duration::from_secs(2);
        let proposal = Proposal {
            requests: vec![request.clone()],
            contents: Vec::<Bytes>::new(),
        };
        match broker.propose_anywhere(proposal, deadline).await {
            Ok(_) | Err(BrokerError::ShuttingDown) => return,
            Err(error) if Instant::now() >= until => {
                tracing::warn!(%error, command = ?request.command, "given up");
                return;
            }
            Err(_) => {
                if !may_try_again(&mut leadership, pause).await {
                    return;
                }
                pause = (pause * 2).min(Duration::from_secs(1));
            }
        }
    }
}

/// Waits for a while; a new leader is worth another try at once. False: this node
/// has stopped, and will know of none.
async fn may_try_again(leadership: &mut watch::Receiver<Leadership>, pause: Duration) -> bool {
    match tokio::time::timeout(pause, leadership.changed()).await {
        Ok(changed) => changed.is_ok(),
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_node_that_has_stopped_does_not_insist() {
        let pause = Duration::from_secs(1);
        let (leads, mut leadership) = watch::channel(Leadership::default());
        let began = Instant::now();
        assert!(may_try_again(&mut leadership, pause).await);
        assert_eq!(began.elapsed(), pause, "nothing has changed");
        leads.send_replace(Leadership::default());
        assert!(may_try_again(&mut leadership, pause).await);
        assert_eq!(began.elapsed(), pause, "somebody else leads");
        drop(leads);
        assert!(!may_try_again(&mut leadership, pause).await);
    }
}
