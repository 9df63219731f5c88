//! The program of a node: what the server's `main` does, on a simulated machine.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream;
use parking_lot::Mutex;
use quorate_node::{Broker, Node};
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
    /// By itself: why.
    Ended(String),
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

    /// Why it ended by itself, if it did.
    #[must_use]
    pub fn ended(&self) -> Option<String> {
        match &*self.state.lock() {
            State::Ended(why) => Some(why.clone()),
            State::Starting | State::Running(_) => None,
        }
    }

    /// Asks it to leave in order, as SIGTERM does.
    pub fn stop(&self) {
        self.stop.notify_one();
    }

    /// From the opening of the disk to the end.
    pub(crate) async fn run(self, config: quorate_node::Config, network: Network, host: Host) {
        let why = match self.live(config, &network, host).await {
            Ok(()) => "asked to stop".to_owned(),
            Err(why) => why,
        };
        tracing::info!(why, "the program ends");
        *self.state.lock() = State::Ended(why);
    }

    async fn live(&self, config: quorate_node::Config, network: &Network, host: Host) -> Result<(), String> {
        let node = Node::start(config).await.map_err(|error| error.to_string())?;
        let listener = network
            .listen(host, Plane::Clients)
            .map_err(|error| error.to_string())?;
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
            failure = node.failed() => return Err(failure.to_string()),
            ended = &mut clients => return Err(format!("the gateway ended: {ended:?}")),
            () = self.stop.notified() => {}
        }
        refuse.notify_one();
        let leave = async {
            node.drain(DRAIN_LIMIT).await;
            let _ = clients.await;
            node.stop().await;
        };
        let left = tokio::time::timeout(DRAIN_LIMIT, leave).await;
        left.map_err(|_| "stopped without waiting longer".to_owned())
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
