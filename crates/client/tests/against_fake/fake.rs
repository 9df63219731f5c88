//! A broker that does what a test tells it to.
//!
//! Unary publishes follow a script of [`Step`]s, then are applied. Streams are
//! handed to the test, which plays the broker's part by hand. Other calls are
//! kept, and get the answers that the test has prepared.

mod proxy;
mod service;

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message as _;
use quorate_client::{Builder, Client};
use quorate_proto::v1;
use quorate_proto::v1::broker_server::BrokerServer;
use quorate_proto::v1::cluster_server::ClusterServer;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Request, Response, Status, Streaming};

pub(crate) use self::proxy::Proxy;

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
    /// Answers this.
    Answer(v1::PublishResponse),
    /// Answers an error.
    Fail(v1::ErrorDetail),
    /// Applies it, and breaks off instead of answering.
    LoseAnswer,
    /// Does nothing, for ever.
    Hang,
}

/// What a node says to the next call that has this type of answer.
enum Prepared<A> {
    Answer(A),
    Fail(v1::ErrorDetail),
    LoseAnswer,
}

type Answer<T> = Result<Response<T>, Status>;

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
    heard: Mutex<Vec<Box<dyn Any + Send>>>,
    prepared: Mutex<Vec<Box<dyn Any + Send>>>,
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
                heard: Mutex::default(),
                prepared: Mutex::default(),
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

    /// Its node id: the port where it listens.
    pub(crate) fn id(&self) -> u64 {
        self.address.rsplit_once(':').unwrap().1.parse().unwrap()
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

    /// Prepares the answer to the next call that has this type of answer.
    pub(crate) fn will_answer<A: Any + Send>(&self, answer: A) {
        self.prepare(Prepared::Answer(answer));
    }

    /// Prepares an error for the next call that has this type of answer.
    pub(crate) fn will_refuse<A: Any + Send>(&self, detail: v1::ErrorDetail) {
        self.prepare(Prepared::<A>::Fail(detail));
    }

    /// Breaks off at the next call that has this type of answer.
    pub(crate) fn will_break_off<A: Any + Send>(&self) {
        self.prepare(Prepared::<A>::LoseAnswer);
    }

    fn prepare<A: Any + Send>(&self, prepared: Prepared<A>) {
        self.inner.prepared.lock().unwrap().push(Box::new(prepared));
    }

    /// The calls of this type that reached this node, of those that get prepared
    /// answers.
    pub(crate) fn heard<Q: Any + Clone>(&self) -> Vec<Q> {
        let heard = self.inner.heard.lock().unwrap();
        heard
            .iter()
            .filter_map(|request| request.downcast_ref::<Q>().cloned())
            .collect()
    }

    /// Keeps a call, and gives it the answer that was prepared for it, or else an
    /// empty one.
    fn reply<Q: Any + Send, A: Any + Default>(&self, request: Request<Q>) -> Answer<A> {
        self.inner
            .heard
            .lock()
            .unwrap()
            .push(Box::new(request.into_inner()));
        let mut prepared = self.inner.prepared.lock().unwrap();
        let Some(place) = prepared.iter().position(|prepared| prepared.is::<Prepared<A>>()) else {
            return Ok(Response::new(A::default()));
        };
        match *prepared.remove(place).downcast().unwrap() {
            Prepared::Answer(answer) => Ok(Response::new(answer)),
            Prepared::Fail(detail) => Err(status(detail)),
            Prepared::LoseAnswer => Err(Status::unavailable("broken off")),
        }
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
