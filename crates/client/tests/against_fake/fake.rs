//! A broker that does what a test tells it to.
//!
//! Unary publishes follow a script of [`Step`]s, then are applied. Streams are
//! handed to the test, which plays the broker's part by hand.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message as _;
use quorate_client::{Builder, Client};
use quorate_proto::v1;
use quorate_proto::v1::broker_server::{Broker, BrokerServer};
use quorate_proto::v1::cluster_server::{Cluster, ClusterServer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Code, Request, Response, Status, Streaming};

/// What the nodes of one cluster have in common.
#[derive(Clone, Default)]
pub(crate) struct Replicated(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Bodies in the order of their commit.
    log: Vec<String>,
    outcomes: BTreeMap<(u64, u64), v1::PublishResponse>,
}

impl Replicated {
    /// Applies a publish once, and gives a repeat the first answer.
    pub(crate) fn publish(&self, request: &v1::PublishRequest) -> v1::PublishResponse {
        let mut state = self.0.lock().unwrap();
        let id = request.request_id.unwrap();
        if let Some(outcome) = state.outcomes.get(&(id.client, id.sequence)) {
            return outcome.clone();
        }
        let mut answer = v1::PublishResponse::default();
        for message in &request.messages {
            answer.message_ids.push(format!("{}-0", state.log.len()));
            state.log.push(String::from_utf8(message.body.to_vec()).unwrap());
        }
        state.outcomes.insert((id.client, id.sequence), answer.clone());
        answer
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.0.lock().unwrap().log.clone()
    }
}

/// What a node does with the next unary publish.
pub(crate) enum Step {
    /// Answers an error.
    Fail(v1::ErrorDetail),
    /// Applies it, and breaks off instead of answering.
    LoseAnswer,
    /// Does nothing, for ever.
    Hang,
}

#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) address: String,
    pub(crate) replicated: Replicated,
    inner: Arc<Inner>,
}

struct Inner {
    role: Mutex<Role>,
    script: Mutex<VecDeque<Step>>,
    seen: Mutex<Vec<v1::RequestId>>,
    settled: Mutex<Vec<v1::SettleRequest>>,
    publish_streams: mpsc::UnboundedSender<PublishStream>,
    consume_streams: mpsc::UnboundedSender<ConsumeStream>,
}

#[derive(Clone)]
struct Role {
    leads: bool,
    term: u64,
    leader: Option<String>,
    members: Vec<String>,
}

/// The broker's end of a publisher's stream.
pub(crate) struct PublishStream {
    pub(crate) requests: Streaming<v1::PublishStreamRequest>,
    pub(crate) answers: mpsc::Sender<Result<v1::PublishStreamResponse, Status>>,
}

/// The broker's end of a consumer's stream.
pub(crate) struct ConsumeStream {
    pub(crate) requests: Streaming<v1::ConsumeRequest>,
    pub(crate) answers: mpsc::Sender<Result<v1::ConsumeResponse, Status>>,
}

/// A node, and the streams that are opened on it.
pub(crate) struct Started {
    pub(crate) node: Node,
    pub(crate) publish_streams: mpsc::UnboundedReceiver<PublishStream>,
    pub(crate) consume_streams: mpsc::UnboundedReceiver<ConsumeStream>,
}

impl Node {
    /// A node that leads in term 1 until told otherwise.
    pub(crate) async fn start(replicated: &Replicated) -> Started {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (publish_sender, publish_streams) = mpsc::unbounded_channel();
        let (consume_sender, consume_streams) = mpsc::unbounded_channel();
        let node = Node {
            address,
            replicated: replicated.clone(),
            inner: Arc::new(Inner {
                role: Mutex::new(Role {
                    leads: true,
                    term: 1,
                    leader: None,
                    members: Vec::new(),
                }),
                script: Mutex::default(),
                seen: Mutex::default(),
                settled: Mutex::default(),
                publish_streams: publish_sender,
                consume_streams: consume_sender,
            }),
        };
        let server = tonic::transport::Server::builder()
            .add_service(BrokerServer::new(node.clone()))
            .add_service(ClusterServer::new(node.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        Started {
            node,
            publish_streams,
            consume_streams,
        }
    }

    pub(crate) fn lead(&self, term: u64) {
        let mut role = self.inner.role.lock().unwrap();
        (role.leads, role.term) = (true, term);
    }

    pub(crate) fn follow(&self, leader: Option<&str>) {
        let mut role = self.inner.role.lock().unwrap();
        (role.leads, role.leader) = (false, leader.map(str::to_owned));
    }

    /// Lets its status tell of other nodes.
    pub(crate) fn knows(&self, members: &[&str]) {
        self.inner.role.lock().unwrap().members = members.iter().map(|&member| member.to_owned()).collect();
    }

    pub(crate) fn script(&self, steps: impl IntoIterator<Item = Step>) {
        self.inner.script.lock().unwrap().extend(steps);
    }

    /// Request ids of the unary publishes that reached this node.
    pub(crate) fn seen(&self) -> Vec<v1::RequestId> {
        self.inner.seen.lock().unwrap().clone()
    }

    /// Unary settles that reached this node.
    pub(crate) fn settled(&self) -> Vec<v1::SettleRequest> {
        self.inner.settled.lock().unwrap().clone()
    }

    fn check_leads(&self) -> Result<(), Status> {
        let role = self.inner.role.lock().unwrap().clone();
        if role.leads {
            return Ok(());
        }
        Err(status(not_leader(role.leader.as_deref())))
    }
}

pub(crate) fn detail(reason: v1::Reason) -> v1::ErrorDetail {
    v1::ErrorDetail {
        reason: reason.into(),
        message: reason.as_str_name().to_owned(),
        ..Default::default()
    }
}

pub(crate) fn not_leader(leader: Option<&str>) -> v1::ErrorDetail {
    let reason = if leader.is_some() {
        v1::Reason::NotLeader
    } else {
        v1::Reason::NoLeader
    };
    v1::ErrorDetail {
        retryable: true,
        leader: leader.map(|address| v1::NodeAddress {
            node_id: 0,
            client_address: address.to_owned(),
        }),
        ..detail(reason)
    }
}

/// An error as the broker puts it on the wire.
pub(crate) fn status(detail: v1::ErrorDetail) -> Status {
    #[derive(Clone, PartialEq, prost::Message)]
    struct RpcStatus {
        #[prost(int32, tag = "1")]
        code: i32,
        #[prost(string, tag = "2")]
        message: String,
        #[prost(message, repeated, tag = "3")]
        details: Vec<prost_types::Any>,
    }
    let any = prost_types::Any {
        type_url: v1::ERROR_DETAIL_TYPE_URL.to_owned(),
        value: detail.encode_to_vec(),
    };
    let code = Code::FailedPrecondition;
    let rpc = RpcStatus {
        code: code as i32,
        message: detail.message.clone(),
        details: vec![any],
    };
    Status::with_details(code, detail.message, rpc.encode_to_vec().into())
}

/// Short limits, so that tests are quick, over these nodes.
pub(crate) fn builder(addresses: &[&str]) -> Builder {
    Client::builder()
        .endpoints(addresses.iter().copied())
        .timeout(Duration::from_secs(10))
        .attempt_timeout(Duration::from_millis(300))
        .probe_timeout(Duration::from_millis(300))
        .keepalive(Duration::from_millis(150), Duration::from_millis(250))
}

pub(crate) fn client(addresses: &[&str]) -> Client {
    builder(addresses).connect_lazy().unwrap()
}

/// An address where nobody listens.
pub(crate) async fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Stands in front of a node, and freezes: connections stay open, and nothing
/// comes through any more, like with a process that was sent SIGSTOP.
pub(crate) struct Proxy {
    pub(crate) address: String,
    frozen: watch::Sender<bool>,
}

impl Proxy {
    pub(crate) async fn start(to: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (frozen, watch) = watch::channel(false);
        let to = to.to_owned();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(&to).await.unwrap();
                let (near_read, near_write) = near.into_split();
                let (far_read, far_write) = far.into_split();
                tokio::spawn(pass(near_read, far_write, watch.clone()));
                tokio::spawn(pass(far_read, near_write, watch.clone()));
            }
        });
        Self { address, frozen }
    }

    pub(crate) fn freeze(&self) {
        self.frozen.send_replace(true);
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut frozen: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        // The sender lives as long as the test.
        let _ = frozen.wait_for(|frozen| !frozen).await;
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Broker for Node {
    async fn declare_queue(&self, _: Request<v1::DeclareQueueRequest>) -> Answer<v1::DeclareQueueResponse> {
        self.check_leads()?;
        Ok(Response::new(v1::DeclareQueueResponse {
            created: true,
            ..Default::default()
        }))
    }

    async fn update_queue(&self, _: Request<v1::UpdateQueueRequest>) -> Answer<v1::UpdateQueueResponse> {
        Err(status(detail(v1::Reason::QueueNotFound)))
    }

    async fn describe_queue(
        &self,
        _: Request<v1::DescribeQueueRequest>,
    ) -> Answer<v1::DescribeQueueResponse> {
        std::future::pending().await
    }

    /// Queues a, b, c, in pages of two.
    async fn list_queues(&self, request: Request<v1::ListQueuesRequest>) -> Answer<v1::ListQueuesResponse> {
        let after = request.into_inner().after;
        let names = ["a", "b", "c"].into_iter().filter(|name| *name > after.as_str());
        let queues: Vec<_> = names
            .map(|name| v1::QueueInfo {
                name: name.to_owned(),
                ..Default::default()
            })
            .take(2)
            .collect();
        let next = if queues.len() == 2 {
            queues[1].name.clone()
        } else {
            String::new()
        };
        Ok(Response::new(v1::ListQueuesResponse {
            queues,
            next,
            read_index: 1,
        }))
    }

    async fn purge_queue(&self, _: Request<v1::PurgeQueueRequest>) -> Answer<v1::PurgeQueueResponse> {
        Ok(Response::new(v1::PurgeQueueResponse {
            commit: None,
            purged: 3,
        }))
    }

    async fn delete_queue(&self, _: Request<v1::DeleteQueueRequest>) -> Answer<v1::DeleteQueueResponse> {
        Ok(Response::new(v1::DeleteQueueResponse {
            commit: None,
            deleted: 4,
        }))
    }

    async fn publish(&self, request: Request<v1::PublishRequest>) -> Answer<v1::PublishResponse> {
        let request = request.into_inner();
        self.inner.seen.lock().unwrap().push(request.request_id.unwrap());
        self.check_leads()?;
        let step = self.inner.script.lock().unwrap().pop_front();
        match step {
            None => Ok(Response::new(self.replicated.publish(&request))),
            Some(Step::Fail(detail)) => Err(status(detail)),
            Some(Step::LoseAnswer) => {
                self.replicated.publish(&request);
                Err(Status::unavailable("broken off"))
            }
            Some(Step::Hang) => std::future::pending().await,
        }
    }

    type PublishStreamStream = ReceiverStream<Result<v1::PublishStreamResponse, Status>>;

    async fn publish_stream(
        &self,
        request: Request<Streaming<v1::PublishStreamRequest>>,
    ) -> Answer<Self::PublishStreamStream> {
        self.check_leads()?;
        let (answers, receiver) = mpsc::channel(64);
        let _ = self.inner.publish_streams.send(PublishStream {
            requests: request.into_inner(),
            answers,
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn lease(&self, request: Request<v1::LeaseRequest>) -> Answer<v1::LeaseResponse> {
        let count = request.into_inner().max_messages;
        let deliveries = (1..=count).map(|n| delivery(n.into())).collect();
        Ok(Response::new(v1::LeaseResponse {
            commit: None,
            deliveries,
        }))
    }

    /// Every token that begins with `stale` is.
    async fn settle(&self, request: Request<v1::SettleRequest>) -> Answer<v1::SettleResponse> {
        self.inner.settled.lock().unwrap().push(request.get_ref().clone());
        let settlements = request.into_inner().settlements.into_iter();
        let results = settlements.map(|settlement| v1::SettleResult {
            error: settlement
                .token
                .starts_with("stale")
                .then(|| detail(v1::Reason::StaleLease)),
            leased_until_ms: 0,
        });
        Ok(Response::new(v1::SettleResponse {
            commit: None,
            results: results.collect(),
        }))
    }

    type ConsumeStream = ReceiverStream<Result<v1::ConsumeResponse, Status>>;

    async fn consume(&self, request: Request<Streaming<v1::ConsumeRequest>>) -> Answer<Self::ConsumeStream> {
        self.check_leads()?;
        let (answers, receiver) = mpsc::channel(64);
        let _ = self.inner.consume_streams.send(ConsumeStream {
            requests: request.into_inner(),
            answers,
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn pause_queue(&self, _: Request<v1::PauseQueueRequest>) -> Answer<v1::PauseQueueResponse> {
        Err(not_played())
    }

    async fn explain_queue(&self, _: Request<v1::ExplainQueueRequest>) -> Answer<v1::ExplainQueueResponse> {
        Err(not_played())
    }

    async fn declare_exchange(
        &self,
        _: Request<v1::DeclareExchangeRequest>,
    ) -> Answer<v1::DeclareExchangeResponse> {
        Err(not_played())
    }

    async fn update_exchange(
        &self,
        _: Request<v1::UpdateExchangeRequest>,
    ) -> Answer<v1::UpdateExchangeResponse> {
        Err(not_played())
    }

    async fn delete_exchange(
        &self,
        _: Request<v1::DeleteExchangeRequest>,
    ) -> Answer<v1::DeleteExchangeResponse> {
        Err(not_played())
    }

    async fn list_exchanges(
        &self,
        _: Request<v1::ListExchangesRequest>,
    ) -> Answer<v1::ListExchangesResponse> {
        Err(not_played())
    }

    async fn bind(&self, _: Request<v1::BindRequest>) -> Answer<v1::BindResponse> {
        Err(not_played())
    }

    async fn unbind(&self, _: Request<v1::UnbindRequest>) -> Answer<v1::UnbindResponse> {
        Err(not_played())
    }

    async fn transact(&self, _: Request<v1::TransactRequest>) -> Answer<v1::TransactResponse> {
        Err(not_played())
    }

    async fn browse(&self, _: Request<v1::BrowseRequest>) -> Answer<v1::BrowseResponse> {
        Err(not_played())
    }

    async fn get_message(&self, _: Request<v1::GetMessageRequest>) -> Answer<v1::GetMessageResponse> {
        Err(not_played())
    }

    async fn operate_messages(
        &self,
        _: Request<v1::OperateMessagesRequest>,
    ) -> Answer<v1::OperateMessagesResponse> {
        Err(not_played())
    }

    async fn redrive(&self, _: Request<v1::RedriveRequest>) -> Answer<v1::RedriveResponse> {
        Err(not_played())
    }

    async fn undo_redrive(&self, _: Request<v1::UndoRedriveRequest>) -> Answer<v1::UndoRedriveResponse> {
        Err(not_played())
    }

    async fn trace(&self, _: Request<v1::TraceRequest>) -> Answer<v1::TraceResponse> {
        Err(not_played())
    }
}

#[tonic::async_trait]
impl Cluster for Node {
    async fn status(&self, _: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let role = self.inner.role.lock().unwrap().clone();
        let members = role.members.into_iter().map(|client_address| v1::Member {
            client_address,
            ..Default::default()
        });
        Ok(Response::new(v1::StatusResponse {
            role: if role.leads { "leader" } else { "follower" }.to_owned(),
            term: role.term,
            members: members.collect(),
            ..Default::default()
        }))
    }

    async fn add_node(&self, _: Request<v1::AddNodeRequest>) -> Answer<v1::AddNodeResponse> {
        Err(Status::unavailable("broken off"))
    }

    async fn remove_node(&self, _: Request<v1::RemoveNodeRequest>) -> Answer<v1::RemoveNodeResponse> {
        Ok(Response::new(v1::RemoveNodeResponse {}))
    }

    async fn transfer_leader(
        &self,
        _: Request<v1::TransferLeaderRequest>,
    ) -> Answer<v1::TransferLeaderResponse> {
        Ok(Response::new(v1::TransferLeaderResponse::default()))
    }

    async fn snapshot(&self, _: Request<v1::SnapshotRequest>) -> Answer<v1::SnapshotResponse> {
        Ok(Response::new(v1::SnapshotResponse { snapshot_index: 17 }))
    }
}

/// What a call answers that no test makes.
fn not_played() -> Status {
    Status::unimplemented("the fake broker does not play this call")
}

/// The lease number `fence`, with token `t<fence>`.
pub(crate) fn delivery(fence: u64) -> v1::Delivery {
    v1::Delivery {
        message_id: format!("m{fence}"),
        token: format!("t{fence}"),
        queue: "jobs".to_owned(),
        fence,
        attempt: 1,
        ..Default::default()
    }
}
