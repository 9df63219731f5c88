//! A network of memory: addresses, and connections that end when a node does.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use quorate_raft::Transport;
use quorate_raft::transport::{Connection, Listener};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;

/// Bytes on their way in one direction of a connection.
const BUFFER_BYTES: usize = 64 << 10;
/// What it takes to connect, or to be refused.
const LATENCY: Duration = Duration::from_millis(1);

/// All nodes' network.
#[derive(Clone, Debug, Default)]
pub(crate) struct Network(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    listeners: BTreeMap<String, mpsc::UnboundedSender<io::Result<Connection>>>,
    /// The wires of each node's connections.
    wires: BTreeMap<String, Vec<AbortHandle>>,
    refused: u64,
}

/// The network as one node sees it.
#[derive(Clone, Debug)]
pub(crate) struct Socket {
    network: Network,
    own: String,
}

impl Network {
    pub(crate) fn socket(&self, own: SocketAddr) -> Socket {
        Socket {
            network: self.clone(),
            own: own.to_string(),
        }
    }

    /// How many connections were refused so far.
    pub(crate) fn refused(&self) -> u64 {
        self.0.lock().unwrap().refused
    }

    /// Ends a node's connections, and its listening.
    pub(crate) fn unplug(&self, node: SocketAddr) {
        let mut state = self.0.lock().unwrap();
        state.listeners.remove(&node.to_string());
        for wire in state.wires.remove(&node.to_string()).unwrap_or_default() {
            wire.abort();
        }
    }
}

impl Transport for Socket {
    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Connection>> {
        let (network, own, address) = (self.network.clone(), self.own.clone(), address.to_owned());
        Box::pin(async move {
            // The way there and back.
            tokio::time::sleep(LATENCY).await;
            let state = &mut *network.0.lock().unwrap();
            let State {
                listeners, refused, ..
            } = state;
            let mut refuse = || {
                *refused += 1;
                io::Error::from(io::ErrorKind::ConnectionRefused)
            };
            let Some(listener) = listeners.get(&address) else {
                return Err(refuse());
            };
            let (near, mut near_wire) = tokio::io::duplex(BUFFER_BYTES);
            let (far, mut far_wire) = tokio::io::duplex(BUFFER_BYTES);
            listener.send(Ok(Connection::new(far))).map_err(|_| refuse())?;
            let wire = tokio::spawn(async move {
                let _ = tokio::io::copy_bidirectional(&mut near_wire, &mut far_wire).await;
            });
            for end in [own, address] {
                state.wires.entry(end).or_default().push(wire.abort_handle());
            }
            Ok(Connection::new(near))
        })
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Listener>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.network.0.lock().unwrap();
        state.listeners.insert(address.to_string(), sender);
        let incoming = UnboundedReceiverStream::new(receiver).boxed();
        Box::pin(std::future::ready(Ok(Listener { address, incoming })))
    }
}
