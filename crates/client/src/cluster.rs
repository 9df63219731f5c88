//! Looking at a cluster and changing its members.

use std::time::Duration;

use futures_util::future::join_all;
use quorate_proto::v1;

use crate::client::Client;
use crate::config::bare;
use crate::error::{Error, Result, Sought};

/// Operations on a cluster; see [`Client::cluster`].
#[derive(Clone, Debug)]
pub struct Cluster {
    client: Client,
}

/// What a node knows of itself and its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStatus {
    /// Hexadecimal; empty while the node belongs to no cluster.
    pub cluster_id: String,
    /// The node.
    pub node_id: u64,
    /// `leader`, `follower`, `candidate`, `learner`, `waiting` (for a cluster)
    /// or `removed`.
    pub role: String,
    /// The highest term it has seen.
    pub term: u64,
    /// Who leads, as far as it knows.
    pub leader: Option<NodeAddress>,
    /// The last entry of its log.
    pub last_log_index: u64,
    /// The last entry that it knows to be on a majority.
    pub committed_index: u64,
    /// The last entry that its state contains.
    pub applied_index: u64,
    /// The last entry that its latest snapshot contains.
    pub snapshot_index: u64,
    /// The last entry that is no longer in its log.
    pub purged_index: u64,
    /// The entry at which `state_hash` was taken.
    pub state_index: u64,
    /// Two nodes with equal `state_index` have equal hashes, or one is broken.
    pub state_hash: String,
    /// The cluster's time, milliseconds since the Unix epoch.
    pub cluster_time_ms: u64,
    /// Bytes of its log.
    pub log_bytes: u64,
    /// Bytes of everything it has on disk.
    pub disk_bytes: u64,
    /// Of the program.
    pub version: String,
    /// Since the process started.
    pub uptime: Duration,
    /// All of them, learners too.
    pub members: Vec<Member>,
    /// Since this leader last heard from a quorum. None = it does not lead.
    pub quorum_ack_age: Option<Duration>,
    /// What takes how much of `disk_bytes`; measured every few seconds.
    pub disk: Vec<DiskUse>,
}

/// What one part of a node's data directory takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskUse {
    /// `log`, `contents`, `snapshots`, `journal`, or what a later node adds.
    pub part: String,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Bytes of what is in it that are in use. None where nobody counts.
    pub live_bytes: Option<u64>,
}

/// A member of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Drawn by the node when its store was created.
    pub node_id: u64,
    /// As configured.
    pub name: String,
    /// `host:port` for clients.
    pub client_address: String,
    /// `host:port` for the other nodes.
    pub peer_address: String,
    /// False: a learner.
    pub voter: bool,
    /// The last entry known to be on it. None unless the leader was asked.
    pub matched_index: Option<u64>,
    /// Whether it leads.
    pub leader: bool,
}

/// A node, and where clients dial it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAddress {
    /// The node.
    pub node_id: u64,
    /// `host:port`.
    pub client_address: String,
}

impl Client {
    /// Operations on the cluster.
    #[must_use]
    pub fn cluster(&self) -> Cluster {
        Cluster { client: self.clone() }
    }
}

impl Cluster {
    /// What the leader knows.
    ///
    /// # Errors
    ///
    /// Unreachable if there is no leader; [`status_all`](Self::status_all)
    /// works without one.
    pub async fn status(&self) -> Result<NodeStatus> {
        Ok(self.client.call(v1::StatusRequest {}).await?.into())
    }

    /// What the node at `endpoint` (`host:port`) knows.
    ///
    /// # Errors
    ///
    /// Unreachable if it does not answer within the probe timeout.
    pub async fn status_of(&self, endpoint: &str) -> Result<NodeStatus> {
        let address = bare(endpoint);
        match self.client.caller.links.status(address).await {
            Ok(status) => Ok(status.into()),
            Err(cause) => Err(Error::Unreachable {
                who: Sought::Node(address.to_owned()),
                cause,
                request_id: None,
            }),
        }
    }

    /// What each node knows, by the address it was asked at: the given
    /// endpoints, and the members that they tell of.
    pub async fn status_all(&self) -> Vec<(String, Result<NodeStatus>)> {
        let mut asked: Vec<String> = self.client.caller.links.addresses();
        let mut answers = self.ask(&asked).await;
        let known = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
        let told: Vec<String> = known
            .clone()
            .flat_map(|status| &status.members)
            // Asked already, perhaps under another address of the same node.
            .filter(|member| known.clone().all(|status| status.node_id != member.node_id))
            .map(|member| bare(&member.client_address).to_owned())
            .collect();
        for address in told {
            if !address.is_empty() && !asked.contains(&address) {
                answers.extend(self.ask(std::slice::from_ref(&address)).await);
                asked.push(address);
            }
        }
        answers
    }

    async fn ask(&self, addresses: &[String]) -> Vec<(String, Result<NodeStatus>)> {
        let asking = addresses
            .iter()
            .map(|address| async move { (address.clone(), self.status_of(address).await) });
        join_all(asking).await
    }

    /// Brings in a node that was started without peers and waits at
    /// `peer_address` (`host:port`), and returns its id. It takes as long as
    /// the node needs to catch up: use a long
    /// [timeout](Client::with_timeout).
    ///
    /// # Errors
    ///
    /// Refused; unknown, then see [`status`](Self::status); unreachable.
    pub async fn add(&self, peer_address: impl Into<String>) -> Result<u64> {
        let request = v1::AddNodeRequest {
            peer_address: peer_address.into(),
        };
        let answer = self.client.call_slow(request).await?;
        Ok(answer.node_id)
    }

    /// Removes a member. Its id is never used again.
    ///
    /// # Errors
    ///
    /// Refused; unknown, then see [`status`](Self::status); unreachable.
    pub async fn remove(&self, node_id: u64) -> Result<()> {
        let request = v1::RemoveNodeRequest { node_id };
        self.client.call_slow(request).await?;
        Ok(())
    }

    /// Hands leadership to a voter (None = the most advanced one), and returns
    /// the node that leads then.
    ///
    /// # Errors
    ///
    /// Refused; unknown, then see [`status`](Self::status); unreachable.
    pub async fn transfer_leader(&self, to: Option<u64>) -> Result<NodeAddress> {
        let request = v1::TransferLeaderRequest { to: to.unwrap_or(0) };
        let answer = self.client.call_slow(request).await?;
        Ok(answer.leader.unwrap_or_default().into())
    }

    /// Writes a snapshot on the node at `endpoint` (`host:port`), and returns
    /// the last log index that it contains.
    ///
    /// # Errors
    ///
    /// Refused; unreachable if the node does not answer within the client's
    /// timeout (a snapshot that it has begun is finished all the same).
    pub async fn snapshot(&self, endpoint: &str) -> Result<u64> {
        let caller = &self.client.caller;
        let answer = caller
            .call_node(bare(endpoint), v1::SnapshotRequest {}, self.client.timeout())
            .await?;
        Ok(answer.snapshot_index)
    }
}

impl From<v1::StatusResponse> for NodeStatus {
    fn from(wire: v1::StatusResponse) -> Self {
        Self {
            cluster_id: wire.cluster_id,
            node_id: wire.node_id,
            role: wire.role,
            term: wire.term,
            leader: wire.leader.map(NodeAddress::from),
            last_log_index: wire.last_log_index,
            committed_index: wire.committed_index,
            applied_index: wire.applied_index,
            snapshot_index: wire.snapshot_index,
            purged_index: wire.purged_index,
            state_index: wire.state_index,
            state_hash: wire.state_hash,
            cluster_time_ms: wire.cluster_time_ms,
            log_bytes: wire.log_bytes,
            disk_bytes: wire.disk_bytes,
            version: wire.version,
            uptime: Duration::from_millis(wire.uptime_ms),
            members: wire.members.into_iter().map(Member::from).collect(),
            quorum_ack_age: wire.quorum_ack_age_ms.map(Duration::from_millis),
            disk: wire.disk.into_iter().map(DiskUse::from).collect(),
        }
    }
}

impl From<v1::DiskUse> for DiskUse {
    fn from(wire: v1::DiskUse) -> Self {
        Self {
            part: wire.part,
            disk_bytes: wire.disk_bytes,
            live_bytes: wire.live_bytes,
        }
    }
}

impl From<v1::Member> for Member {
    fn from(wire: v1::Member) -> Self {
        Self {
            node_id: wire.node_id,
            name: wire.name,
            client_address: wire.client_address,
            peer_address: wire.peer_address,
            voter: wire.voter,
            matched_index: wire.matched_index,
            leader: wire.leader,
        }
    }
}

impl From<v1::NodeAddress> for NodeAddress {
    fn from(wire: v1::NodeAddress) -> Self {
        Self {
            node_id: wire.node_id,
            client_address: wire.client_address,
        }
    }
}
