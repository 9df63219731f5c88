//! A node from start to end.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quorate_raft::Consensus;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::broker::Broker;
use crate::config::Config;
use crate::dispatch::Dispatch;
use crate::observers::Observers;
use crate::{forward, nodes, ticker};

pub use quorate_raft::{Failure, StartError};

/// A running node. Dropping it does not stop it; see [`drain`](Self::drain).
pub struct Node {
    broker: Broker,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Node {
    /// Opens the data directory and takes part in the cluster.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let (dispatch, mut unclaimed) = Dispatch::new();
        // The peer listener serves before the broker exists; until then it says so.
        let forwarded = Arc::new(OnceLock::new());
        let extra = tonic::service::Routes::new(forward::Service(forwarded.clone()).into_server());
        let mut raft = quorate_raft::Config {
            data_dir: config.data_dir,
            listen: config.peer_listen,
            advertise_peer: config.peer_advertise,
            client_address: config.client_advertise,
            name: config.name,
            peers: config.peers,
            peer_dial: config.peer_dial,
            heartbeat: config.heartbeat,
            election_timeout_min: config.election_timeout_min,
            election_timeout_max: config.election_timeout_max,
            snapshot_log_bytes: config.snapshot_log_bytes,
            log_keep_bytes: config.log_keep_bytes,
            log_keep_entries: config.log_keep_entries,
            transport: config.transport,
            clock: config.clock,
            ..quorate_raft::Config::default()
        };
        #[cfg(feature = "simulation")]
        {
            raft.storage.disk = config.disk;
            raft.restore_leader = config.restore_leader;
        }
        raft.storage.journal_bytes = config.journal_bytes;
        raft.storage.journal_age = config.journal_age;
        let observers = Arc::new(Observers::new(dispatch, config.audit));
        let consensus = Consensus::start(raft, observers.clone(), extra).await?;
        observers.start(consensus.node_id());
        let broker = Broker::new(consensus, observers, config.limits);
        let _ = forwarded.set(broker.clone());

        let give_back = broker.clone();
        let tasks = vec![
            tokio::spawn(ticker::run(broker.clone())),
            tokio::spawn(nodes::announce(broker.clone())),
            tokio::spawn(nodes::watch(broker.clone(), config.node_down_after)),
            tokio::spawn(nodes::end_abandoned(broker.clone(), config.node_down_after)),
            tokio::spawn(async move {
                while let Some(tokens) = unclaimed.recv().await {
                    give_back.release(tokens).await;
                }
            }),
        ];
        Ok(Self { broker, tasks })
    }

    /// The handle for gateways.
    #[must_use]
    pub fn broker(&self) -> Broker {
        self.broker.clone()
    }

    /// Where the peer listener is bound.
    #[must_use]
    pub fn peer_addr(&self) -> std::net::SocketAddr {
        self.broker.consensus().peer_addr()
    }

    /// Resolves with the reason when the node must stop.
    pub async fn failed(&self) -> Failure {
        self.broker.consensus().failed().await
    }

    /// Leaves in order: refuses new requests, hands leadership over if it can be
    /// done before the deadline, and ends the streams of clients. Calls under way
    /// finish.
    pub async fn drain(&self, deadline: Duration) {
        let until = Instant::now() + deadline;
        self.broker.start_draining();
        let leading = self.broker.consensus().leadership().borrow().leading;
        if leading {
            let mut leadership = self.broker.consensus().leadership();
            match self.broker.transfer_leader(None).await {
                Ok(()) => {
                    let handed_over = leadership.wait_for(|now| !now.leading);
                    if tokio::time::timeout_at(until, handed_over).await.is_err() {
                        warn!("leadership was not taken over in time");
                    } else {
                        info!("leadership handed over");
                    }
                }
                Err(error) => warn!(%error, "leadership could not be handed over"),
            }
        }
        self.broker.close_streams();
    }

    /// Stops taking part and closes the store. After this nothing answers.
    pub async fn stop(self) {
        for task in &self.tasks {
            task.abort();
        }
        self.broker.consensus().shutdown().await;
    }
}
