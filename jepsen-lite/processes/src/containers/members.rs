//! Nodes become members, and stop being ones.

use std::time::Duration;

use anyhow::{Context as _, Result};
use quorate_client::{Client, Error};
use quorate_test_cluster::wait_until;

use super::layout::Layout;
use super::{Containers, PATIENCE};

/// How long one attempt to change the members may take: the new node catches up meanwhile.
const CHANGE_LIMIT: Duration = Duration::from_secs(30);

impl Containers {
    /// Adds a node that waits. One that had its address before is replaced by it.
    pub(super) async fn join(&self, node: usize) -> Result<()> {
        let client = self.operator().await?;
        wait_until(&format!("node {node} to become a member"), PATIENCE, async || {
            let added = client.cluster().add(Layout::peer(node)).await;
            match self.status(node).await {
                Ok(status) if is_member(&status) => Some(()),
                // Not reached yet, no leader, or an attempt of unknown outcome: again.
                _ => added.is_ok().then_some(()),
            }
        })
        .await
    }

    /// Removes the member with this id.
    pub(super) async fn leave(&self, id: u64) -> Result<()> {
        let client = self.operator().await?;
        wait_until(&format!("member {id} to be removed"), PATIENCE, async || {
            let removed: std::result::Result<(), Error> = client.cluster().remove(id).await;
            let gone = match client.cluster().status().await {
                Ok(status) => !status.members.iter().any(|member| member.node_id == id),
                Err(_) => false,
            };
            (removed.is_ok() || gone).then_some(())
        })
        .await
    }

    async fn operator(&self) -> Result<Client> {
        let client = Client::builder()
            .endpoints(self.endpoints())
            .timeout(CHANGE_LIMIT);
        client.connect().await.context("connect to the cluster")
    }
}

/// It belongs to a cluster.
fn is_member(status: &quorate_client::NodeStatus) -> bool {
    !matches!(status.role.as_str(), "waiting" | "removed")
}
