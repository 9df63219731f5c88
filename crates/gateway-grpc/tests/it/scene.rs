//! What the tests share: a node, its gateway, and a client.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use prost::Message as _;
use quorate_node::{Config, Node};
use quorate_proto::v1;
use quorate_proto::v1::broker_client::BrokerClient;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// Long enough for a loaded machine; nothing waits that long when all is well.
const PATIENCE: Duration = Duration::from_secs(30);

/// A node with a gateway, and a client of it.
pub(crate) struct Scene {
    pub(crate) client: BrokerClient<Channel>,
    _node: Node,
    _dir: tempfile::TempDir,
}

impl Scene {
    /// With a leader, and the queue `jobs`.
    pub(crate) async fn set() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let peers = free_address();
        let config = Config {
            data_dir: dir.path().join("data"),
            peer_listen: peers,
            peers: vec![peers.to_string()],
            // A busy machine is no reason to lose the leadership.
            election_timeout_min: Duration::from_secs(2),
            election_timeout_max: Duration::from_secs(3),
            ..Config::default()
        };
        std::fs::create_dir_all(&config.data_dir).unwrap();
        let node = Node::start(config).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(quorate_gateway_grpc::serve(
            listener,
            node.broker(),
            std::future::pending(),
        ));
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let mut client = BrokerClient::new(channel.connect().await.unwrap());
        let deadline = Instant::now() + PATIENCE;
        while let Err(status) = client.declare_queue(declare("jobs")).await {
            assert!(Instant::now() < deadline, "no leader came: {status}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Self {
            client,
            _node: node,
            _dir: dir,
        }
    }
}

pub(crate) fn declare(name: &str) -> v1::DeclareQueueRequest {
    v1::DeclareQueueRequest {
        name: name.to_owned(),
        ..v1::DeclareQueueRequest::default()
    }
}

/// A publish of messages to a queue.
pub(crate) fn publish(queue: &str, messages: Vec<v1::OutgoingMessage>) -> v1::PublishRequest {
    v1::PublishRequest {
        queue: queue.to_owned(),
        messages,
        ..v1::PublishRequest::default()
    }
}

pub(crate) fn message(body: &'static str) -> v1::OutgoingMessage {
    v1::OutgoingMessage {
        body: body.into(),
        ..v1::OutgoingMessage::default()
    }
}

/// The detail that every error carries.
pub(crate) fn detail(status: &Status) -> v1::ErrorDetail {
    /// `google.rpc.Status`, as far as it matters here.
    #[derive(Clone, PartialEq, prost::Message)]
    struct RpcStatus {
        #[prost(message, repeated, tag = "3")]
        details: Vec<prost_types::Any>,
    }
    let rpc = RpcStatus::decode(status.details()).unwrap();
    let any = rpc.details.first();
    let any = any.unwrap_or_else(|| panic!("an error without a detail: {status:?}"));
    v1::ErrorDetail::decode(&*any.value).unwrap()
}

/// A loopback address that nobody listens on, outside of the range from which
/// the system takes ports for outgoing connections.
fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = 10_000 + u16::try_from(std::process::id() % 900).unwrap() * 10;
    loop {
        let port = start + NEXT.fetch_add(1, Ordering::Relaxed) % 1_000;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
