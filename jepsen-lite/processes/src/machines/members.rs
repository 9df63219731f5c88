//! Nodes become members, and stop being ones.
//!
//! A change can take effect though nobody was told. So each is asked for again until the members are what they
//! should be, by the word of the leader.

use std::time::Duration;

use anyhow::{Context, Result};
use quorate_test_cluster::wait_until;

use super::{Machines, local};

/// How long a change is asked for again and again. Without a majority it never takes place.
const CHANGE_LIMIT: Duration = Duration::from_secs(30);
/// How long a removed node may take to notice.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);

impl Machines {
    /// The address that others know a node by.
    fn peer(&self, node: usize) -> String {
        local(self.nodes.ports(node).peer)
    }

    /// The members by the word of who leads: peer address and id.
    async fn members(&self) -> Option<Vec<(String, u64)>> {
        let statuses = self.statuses(&self.awake()).await;
        let leaders = statuses.into_iter().filter(|(_, status)| status.role == "leader");
        let (_, leader) = leaders.max_by_key(|(_, status)| status.term)?;
        let members = leader.members.into_iter().filter(|member| member.voter);
        Some(
            members
                .map(|member| (member.peer_address, member.node_id))
                .collect(),
        )
    }

    /// Empties a node, so that it is a new one, starts it, and has it added, in place of whoever had its
    /// address. False: it is not a member after all this time.
    pub(super) async fn replace(&mut self, node: usize) -> Result<bool> {
        self.kill(&[node]).await?;
        self.empty(node)?;
        self.start_nodes(&[node]).await?;
        self.join(node).await
    }

    /// Removes all data of a node that does not run.
    pub(super) fn empty(&mut self, node: usize) -> Result<()> {
        if self.nodes.node_dir(node).exists() {
            self.nodes.wipe(node)?;
        }
        let disk = self.disks.of(node);
        disk.forget_journal().context("empty a disk")?;
        std::fs::create_dir_all(disk.data()).context("make a folder for data")
    }

    /// Has a node added that runs and waits. False: it is not a member after all this time.
    pub(super) async fn join(&mut self, node: usize) -> Result<bool> {
        let peer = self.peer(node);
        let id = self.nodes.status(node).await.map(|status| status.node_id);
        let id = id.with_context(|| format!("ask node {node} who it is"))?;
        let joined = wait_until("a node to be a member", CHANGE_LIMIT, async || {
            // Refused, too late, or of unknown outcome: the members tell.
            let _ = self.operator().ok()?.cluster().add(&peer).await;
            let members = self.members().await?;
            members.contains(&(peer.clone(), id)).then_some(())
        });
        let joined = joined.await.is_ok();
        if joined {
            self.outside.remove(&node);
            self.damaged.remove(&node);
        }
        Ok(joined)
    }

    /// Removes a node and waits for its end, or ends it. False: it is a member after all this time.
    pub(super) async fn leave(&mut self, node: usize) -> Result<bool> {
        self.outside.insert(node);
        let peer = self.peer(node);
        let left = wait_until("a node to be no member", CHANGE_LIMIT, async || {
            let members = self.members().await?;
            let Some((_, id)) = members.iter().find(|(address, _)| *address == peer) else {
                return Some(());
            };
            let _ = self.operator().ok()?.cluster().remove(*id).await;
            None
        });
        let left = left.await.is_ok();
        // It finds out by asking the others, if it is not told.
        let ended = async || (!self.nodes.is_running(node)).then_some(());
        let by_itself = left && wait_until("a node to leave", LEAVE_LIMIT, ended).await.is_ok();
        if !by_itself {
            self.kill(&[node]).await?;
        }
        self.note_exits();
        self.network.node_is_down(node);
        self.call_the_roll();
        Ok(left)
    }

    /// Starts one node more and has it added. `None`: there can be no more.
    pub(super) async fn grow(&mut self) -> Result<Option<(usize, bool)>> {
        if self.nodes.node_count() == crate::network::NODES_MAX {
            return Ok(None);
        }
        let node = self.nodes.start_spare().await?;
        self.outside.insert(node);
        self.call_the_roll();
        let joined = self.join(node).await?;
        Ok(Some((node, joined)))
    }

    /// Makes the members what they should be: all nodes but those that are outside. Says whether they are.
    pub(super) async fn settle_members(&mut self) -> Result<bool> {
        let mut settled = true;
        let Some(members) = self.members().await else {
            return Ok(false);
        };
        for node in 0..self.nodes.node_count() {
            let peer = self.peer(node);
            let listed = members.iter().find(|(address, _)| *address == peer);
            let status = self.nodes.status(node).await.ok();
            if self.outside.contains(&node) {
                if listed.is_some() || self.nodes.is_running(node) {
                    settled &= self.leave(node).await?;
                }
            } else if listed.is_none()
                || status.is_some_and(|status| listed.is_some_and(|(_, id)| *id != status.node_id))
            {
                settled &= self.replace(node).await?;
            }
        }
        Ok(settled)
    }
}
