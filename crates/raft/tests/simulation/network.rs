//! A network of memory: addresses, and connections that end when a node does.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use quorate_raft::Transport;
use quorate_raft::transport::{Connection, Listener};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;

/// Bytes on their way in one direction of a connection.
const BUFFER_BYTES: usize = 64 << 10;

/// All nodes' network.
#[derive(Clone, Debug, Default)]
pub(crate) struct Network(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    listeners: BTreeMap<String, mpsc::UnboundedSender<io::Result<Connection>>>,
    /// The wires of each node's connections.
    wires: BTreeMap<String, Vec<AbortHandle>>,
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
            let mut state = network.0.lock().unwrap();
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            let listener = state.listeners.get(&address).ok_or_else(refused)?;
            let (near, mut near_wire) = tokio::io::duplex(BUFFER_BYTES);
            let (far, mut far_wire) = tokio::io::duplex(BUFFER_BYTES);
            listener.send(Ok(Connection::new(far))).map_err(|_| refused())?;
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
