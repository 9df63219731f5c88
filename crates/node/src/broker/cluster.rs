//! The cluster as this node sees it, and its membership.

use quorate_core::Broker as State;
use quorate_core::ids::{NodeId, Timestamp};
use quorate_raft::{MembershipError, Status};

use super::Broker;
use crate::config::Limits;
use crate::error::BrokerError;

impl Broker {
    /// What this node knows of itself and the cluster.
    #[must_use]
    pub fn status(&self) -> Status {
        self.0.consensus.status()
    }

    /// Who leads, now and at each change.
    #[must_use]
    pub fn leadership(&self) -> tokio::sync::watch::Receiver<quorate_raft::Leadership> {
        self.0.consensus.leadership()
    }

    /// Resolves when a client's stream has nothing to expect here any more,
    /// with what to tell it: another node leads, or this one is shutting down.
    pub async fn gone(&self) -> BrokerError {
        let here = self.0.consensus.node_id();
        let mut leadership = self.0.consensus.leadership();
        let mut closing = self.0.closing.subscribe();
        let elsewhere =
            |now: &quorate_raft::Leadership| now.leader.clone().filter(|leader| leader.node_id != here);
        tokio::select! {
            biased;
            Ok(now) = leadership.wait_for(|now| elsewhere(now).is_some()) => {
                elsewhere(&now).map_or(BrokerError::NoLeader, BrokerError::NotLeader)
            }
            _ = closing.wait_for(|closing| *closing) => BrokerError::ShuttingDown,
        }
    }

    /// Ok if the node can serve or redirect; otherwise why not.
    pub fn ready(&self) -> Result<(), String> {
        if self.is_draining() {
            return Err("shutting down".to_owned());
        }
        let status = self.status();
        if status.cluster_id.is_none() {
            return Err("belongs to no cluster yet".to_owned());
        }
        if self.0.consensus.leadership().borrow().leader.is_none() {
            return Err("knows no leader".to_owned());
        }
        Ok(())
    }

    /// Brings in a node that waits at a peer address.
    pub async fn add_node(&self, peer_address: &str) -> Result<NodeId, MembershipError> {
        self.0.consensus.add_node(peer_address).await
    }

    /// Removes a member.
    pub async fn remove_node(&self, node: NodeId) -> Result<(), MembershipError> {
        self.0.consensus.remove_node(node).await
    }

    /// Hands leadership over.
    pub async fn transfer_leader(&self, to: Option<NodeId>) -> Result<(), MembershipError> {
        self.0.consensus.transfer_leader(to).await
    }

    /// Writes a snapshot on this node; the index it covers.
    pub async fn snapshot(&self) -> Result<u64, BrokerError> {
        self.0
            .consensus
            .snapshot()
            .await
            .map_err(|error| BrokerError::Internal(error.to_string()))
    }

    /// Cluster time: the leader's clock, or what was last applied here.
    #[must_use]
    pub fn cluster_time(&self) -> Timestamp {
        self.0
            .clock
            .now()
            .unwrap_or_else(|| self.0.consensus.with_state(State::now))
    }

    /// Bounds of what may wait in this node.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }
}
