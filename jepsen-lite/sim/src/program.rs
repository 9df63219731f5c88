//! The program of a node: what the server's `main` does, on a simulated machine.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream;
use parking_lot::Mutex;
use quorate_node::{Broker, Failure, Node};
use quorate_raft::transport::{Connection, Listener, Transport};
use tokio::sync::Notify;

use crate::net::{Host, Network, Plane};

/// How long a node may take to leave in order.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// One life of a node. Clones are the same.
#[derive(Clone, Default)]
pub struct Program {
    state: Arc<Mutex<State>>,
    stop: Arc<Notify>,
}

#[derive(Default)]
enum State {
    /// It opens its disk, and is not heard of yet.
    #[default]
    Starting,
    Running(Broker),
    Ended(End),
}

/// The end of a life of a node, by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// What it said.
    pub why: String,
    /// It was asked to, or removed from its cluster.
    pub in_order: bool,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match &*self.state.lock() {
            State::Starting => "Program(starting)",
            State::Running(_) => "Program(running)",
            State::Ended(_) => "Program(ended)",
        })
    }
}

impl Program {
    /// Its broker, while it runs.
    #[must_use]
    pub fn broker(&self) -> Option<Broker> {
        match &*self.state.lock() {
            State::Running(broker) => Some(broker.clone()),
            State::Starting | State::Ended(_) => None,
        }
    }

    /// How it ended by itself, if it did.
    #[must_use]
    pub fn ended(&self) -> Option<End> {
        match &*self.state.lock() {
            State::Ended(end) => Some(end.clone()),
            State::Starting | State::Running(_) => None,
        }
    }

    /// Asks it to leave in order, as SIGTERM does.
    pub fn stop(&self) {
        self.stop.notify_one();
    }

    /// From the opening of the disk to the end.
    pub(crate) async fn run(self, config: quorate_node::Config, network: Network, host: Host) {
        let end = match self.live(config, &network, host).await {
            Ok(end) => end,
            Err(error) => End {
                why: format!("{error:#}"),
                in_order: false,
            },
        };
        tracing::info!(why = end.why, "the program ends");
        *self.state.lock() = State::Ended(end);
    }

    async fn live(&self, config: quorate_node::Config, network: &Network, host: Host) -> Result<End> {
        let node = Node::start(config).await?;
        let listener = network.listen(host, Plane::Clients)?;
        let refuse = Arc::new(Notify::new());
        let refused = Arc::clone(&refuse);
        let clients =
            quorate_gateway_grpc::serve_with_incoming(incoming(listener), node.broker(), async move {
                refused.notified().await;
            });
        let mut clients = tokio::spawn(clients);
        *self.state.lock() = State::Running(node.broker());
        tokio::select! {
            biased;
            failure = node.failed() => return Ok(End {
                why: failure.to_string(),
                in_order: matches!(failure, Failure::Removed),
            }),
            ended = &mut clients => bail!("the gateway ended: {ended:?}"),
            () = self.stop.notified() => {}
        }
        refuse.notify_one();
        let leave = async {
            node.drain(DRAIN_LIMIT).await;
            let _ = clients.await;
            node.stop().await;
        };
        let why = match tokio::time::timeout(DRAIN_LIMIT, leave).await {
            Ok(()) => "asked to stop",
            Err(_) => "asked to stop, and did not wait longer",
        };
        Ok(End {
            why: why.to_owned(),
            in_order: true,
        })
    }
}

/// Connections between nodes, on a simulated network.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) network: Network,
    pub(crate) host: Host,
}

impl Transport for Wire {
    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Connection>> {
        let (network, host, address) = (self.network.clone(), self.host, address.to_owned());
        Box::pin(async move { network.dial(host, &address).await.map(Connection::new) })
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Listener>> {
        let listening = self.network.listen(self.host, Plane::Peers);
        Box::pin(async move {
            let incoming = incoming(listening?)
                .map(|accepted| accepted.map(Connection::new))
                .boxed();
            Ok(Listener { address, incoming })
        })
    }
}

fn incoming(
    mut listener: crate::net::connection::Listener,
) -> impl stream::Stream<Item = io::Result<crate::net::connection::Connection>> + Send {
    stream::poll_fn(move |context| {
        listener
            .poll_accept(context)
            .map(|connection| Some(Ok(connection)))
    })
}
