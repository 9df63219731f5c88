//! Connections to other nodes: each is made when first used, and kept.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quorate_proto::internal::peer_client::PeerClient;
use tonic::transport::{Channel, Endpoint};

use crate::config::{Config, KEEPALIVE, MESSAGE_BYTES_MAX};
use crate::transport::{Connector, Transport};

/// What a connection is for. Heartbeats and snapshots have their own, so that
/// neither waits behind a large append, nor appends behind a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Use {
    Log,
    Heartbeat,
    Snapshot,
    Forward,
}

/// The cache. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    dial: BTreeMap<String, String>,
    connect: Duration,
    transport: Arc<dyn Transport>,
    /// Several node ids may share an address, when one replaces another: what
    /// they share is a connection, and the envelope tells them apart.
    channels: Mutex<HashMap<(String, Use), Channel>>,
}

impl Pool {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            shared: Arc::new(Shared {
                dial: config.peer_dial.clone(),
                connect: config.connect,
                transport: Arc::clone(&config.transport),
                channels: Mutex::default(),
            }),
        }
    }

    /// The address to dial for a node: its own, unless overridden.
    pub(crate) fn dial(&self, node: Option<u64>, address: &str) -> String {
        let dial = &self.shared.dial;
        node.and_then(|id| dial.get(&id.to_string()))
            .or_else(|| dial.get(address))
            .map_or_else(|| address.to_owned(), Clone::clone)
    }

    /// A channel; None if the address is not one.
    pub(crate) fn channel(&self, node: Option<u64>, address: &str, usage: Use) -> Option<Channel> {
        let dialed = self.dial(node, address);
        let mut channels = self.shared.channels.lock();
        if let Some(channel) = channels.get(&(dialed.clone(), usage)) {
            return Some(channel.clone());
        }
        let channel = self.endpoint(&dialed)?.connect_with_connector_lazy(Connector {
            transport: Arc::clone(&self.shared.transport),
            address: dialed.clone(),
        });
        channels.insert((dialed, usage), channel.clone());
        Some(channel)
    }

    /// A client on such a channel.
    pub(crate) fn client(&self, node: Option<u64>, address: &str, usage: Use) -> Option<PeerClient<Channel>> {
        self.channel(node, address, usage).map(|channel| {
            PeerClient::new(channel)
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX)
        })
    }

    fn endpoint(&self, address: &str) -> Option<Endpoint> {
        Some(
            Endpoint::from_shared(format!("http://{address}"))
                .ok()?
                .connect_timeout(self.shared.connect)
                .http2_keep_alive_interval(KEEPALIVE)
                .keep_alive_timeout(KEEPALIVE)
                .keep_alive_while_idle(true)
                // A frame of a megabyte should not wait for window updates.
                .initial_stream_window_size(4 << 20)
                .initial_connection_window_size(16 << 20),
        )
    }
}
