//! How a node comes to belong to a cluster.
//!
//! A node whose data has a log just starts. One without asks the addresses of
//! its peer list, again and again, who they are:
//!
//! - all of them answer, none has a log, and all have seen the same set of ids:
//!   the node with the lowest id draws the cluster id and initializes the whole
//!   set as voters. Nobody else does. The others take the cluster id from the
//!   first Raft message of a node they have seen;
//! - one of them belongs to a cluster: this node waits. If the cluster does not
//!   count it as a member it says what an operator has to do. It never votes
//!   meanwhile, for nobody asks it;
//! - an empty list: it waits to be added.
//!
//! The set must be agreed upon because two nodes with different lists could
//! otherwise both find themselves the lowest, and form two clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use openraft::async_runtime::WatchReceiver as _;
use parking_lot::Mutex;
use quorate_proto::internal as wire;

use crate::config::Config;
use crate::identity::{ClusterId, Identity};
use crate::network::pool::{Pool, Use};
use crate::types::{Member, Raft};

/// What this node has seen of its peer list, told to whoever asks.
#[derive(Clone, Default)]
pub(crate) struct Seen {
    /// Ids that answered, this node's included.
    pub(crate) ids: BTreeSet<u64>,
    /// Nodes in the list, this one included.
    pub(crate) peers: u32,
}

const ASK_EVERY: Duration = Duration::from_millis(100);
const ANSWER_WITHIN: Duration = Duration::from_millis(1_000);

pub(crate) struct Bootstrap {
    pub(crate) identity: Arc<Identity>,
    pub(crate) raft: Raft,
    pub(crate) pool: Pool,
    pub(crate) seen: Arc<Mutex<Seen>>,
    pub(crate) config: Config,
}

impl Bootstrap {
    /// Runs until the node is a member of a cluster.
    pub(crate) async fn run(self) {
        if self.config.peers.is_empty() && !self.is_member() {
            tracing::info!(
                node = self.identity.node_id,
                "no peers are configured: waiting to be added with `quorate cluster add {}`",
                self.identity.member.peer_address
            );
        }
        let mut said = String::new();
        while !self.is_member() {
            if !self.config.peers.is_empty() {
                let state = self.look_around().await;
                if said != state {
                    tracing::info!(node = self.identity.node_id, "{state}");
                    said = state;
                }
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
        // Later requests are judged by the cluster id alone.
        self.seen.lock().ids.clear();
    }

    fn is_member(&self) -> bool {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.membership().nodes().next().is_some()
    }

    /// One round. Answers what this node is waiting for.
    async fn look_around(&self) -> String {
        let asked = self.config.peers.iter().map(|address| async move {
            (
                address.clone(),
                hello(&self.pool, &self.identity, address, ANSWER_WITHIN).await,
            )
        });
        let mut found = BTreeMap::new();
        let mut silent = Vec::new();
        for (address, answer) in join_all(asked).await {
            match answer {
                Ok(hello) => {
                    let id = hello.node.as_ref().map_or(0, |node| node.node_id);
                    found.insert(id, (address, hello));
                }
                Err(_) => silent.push(address),
            }
        }
        let own = self.identity.node_id;
        let mut ids: BTreeSet<u64> = found.keys().copied().collect();
        ids.insert(own);
        let listed = found.contains_key(&own);
        // An own address that does not answer to itself counts twice, and is found out below.
        let peers = self.config.peers.len() + usize::from(!listed);
        *self.seen.lock() = Seen {
            ids: ids.clone(),
            peers: u32::try_from(peers).unwrap_or(u32::MAX),
        };
        self.identity.trust(found.keys().copied());

        let older = found.values().find(|(_, hello)| hello.initialized);
        if let Some((address, hello)) = older {
            return self.meet(address, hello).await;
        }
        if !silent.is_empty() {
            return format!("waiting for an answer from {}", silent.join(", "));
        }
        let others = found.iter().filter(|(id, _)| **id != own);
        for (_, (address, hello)) in others.clone() {
            let theirs: BTreeSet<u64> = hello.seen.iter().copied().collect();
            if theirs != ids {
                return format!(
                    "waiting for {address} to see the same peers as this node (or its list differs)"
                );
            }
        }
        // Whoever drew a cluster id before a crash goes on; else the lowest.
        let drew = others
            .filter(|(_, (_, hello))| !hello.cluster_id.is_empty())
            .map(|(id, _)| *id);
        let drew: BTreeSet<u64> = drew.chain(self.identity.cluster().map(|_| own)).collect();
        let founder = drew.first().or(ids.first()).copied();
        if founder != Some(own) {
            return format!("waiting for node {} to form the cluster", founder.unwrap_or(0));
        }
        self.form(&found).await
    }

    async fn form(&self, found: &BTreeMap<u64, (String, wire::HelloResponse)>) -> String {
        let mut members: BTreeMap<u64, Member> = found
            .iter()
            .map(|(id, (address, hello))| {
                let node = hello.node.clone().unwrap_or_default();
                let (name, client_address) = (node.name, node.client_address);
                (
                    *id,
                    Member {
                        name,
                        client_address,
                        peer_address: address.clone(),
                    },
                )
            })
            .collect();
        members
            .entry(self.identity.node_id)
            .or_insert_with(|| self.identity.member.clone());
        if self.identity.cluster().is_none()
            && let Err(error) = self.identity.adopt(ClusterId(rand::random())).await
        {
            return format!("forming the cluster: {}", error.message());
        }
        let count = members.len();
        match self.raft.initialize(members).await {
            Ok(()) => format!("formed a cluster of {count} nodes"),
            Err(error) => format!("forming the cluster: {error}"),
        }
    }

    /// A peer belongs to a cluster already.
    async fn meet(&self, address: &str, hello: &wire::HelloResponse) -> String {
        let Ok(info) = join_info(&self.pool, &self.identity, None, address).await else {
            return format!("waiting for an answer from {address}");
        };
        self.identity
            .trust(info.members.iter().map(|member| member.node_id));
        let own = self.identity.node_id;
        if info.members.is_empty() || info.members.iter().any(|member| member.node_id == own) {
            return "waiting for the leader to send the log".to_owned();
        }
        let here = &self.identity.member.peer_address;
        let cluster = hello
            .cluster_id
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>();
        let mut text = format!(
            "cluster {cluster} exists and this node ({own}) is not a member of it: add it with `quorate cluster add \
             {here}`"
        );
        if let Some(old) = info.members.iter().find(|member| member.peer_address == *here) {
            text += &format!(
                "; it then takes the place of node {}, which had this address and whose data is gone",
                old.node_id
            );
        }
        text
    }
}

/// Asks an address who is there.
pub(crate) async fn hello(
    pool: &Pool,
    identity: &Identity,
    address: &str,
    within: Duration,
) -> Result<wire::HelloResponse, String> {
    let mut client = pool
        .client(None, address, Use::Forward)
        .ok_or_else(|| format!("{address:?} is not an address"))?;
    let request = wire::HelloRequest {
        envelope: Some(identity.envelope(0)),
    };
    match tokio::time::timeout(within, client.hello(request)).await {
        Err(_) => Err(format!("no answer from {address} within {within:?}")),
        Ok(Err(status)) => Err(format!("{address}: {}", status.message())),
        Ok(Ok(response)) => {
            let response = response.into_inner();
            match &response.node {
                Some(node) if node.node_id != 0 => Ok(response),
                _ => Err(format!("{address} answered without a node id")),
            }
        }
    }
}

/// Asks an address what it knows of its cluster.
pub(crate) async fn join_info(
    pool: &Pool,
    identity: &Identity,
    node: Option<u64>,
    address: &str,
) -> Result<wire::JoinInfoResponse, String> {
    let mut client = pool
        .client(node, address, Use::Forward)
        .ok_or_else(|| format!("{address:?} is not an address"))?;
    let request = wire::JoinInfoRequest {
        envelope: Some(identity.envelope(0)),
    };
    match tokio::time::timeout(ANSWER_WITHIN, client.join_info(request)).await {
        Err(_) => Err(format!("no answer from {address}")),
        Ok(response) => response
            .map(tonic::Response::into_inner)
            .map_err(|status| status.message().to_owned()),
    }
}
