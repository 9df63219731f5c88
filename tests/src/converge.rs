//! All nodes have the same state.
//!
//! A node shows a log index and the hash of its state there. Two nodes that ever
//! show one index with two hashes have diverged, whatever they show later; so
//! every status that a trial looks at goes through [`Hashes`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use quorate_client::NodeStatus;
use quorate_test_cluster::{Cluster, wait_until};

/// How long nodes may take to catch up.
const LIMIT: Duration = Duration::from_secs(60);

/// Every state hash that was ever seen, by its log index.
#[derive(Clone, Debug, Default)]
pub struct Hashes(Arc<Mutex<BTreeMap<u64, String>>>);

impl Hashes {
    /// Takes note of what a node shows.
    ///
    /// # Errors
    ///
    /// When another node has shown another hash at this index.
    pub fn note(&self, status: &NodeStatus) -> Result<()> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (index, hash) = (status.state_index, &status.state_hash);
        let first = known.entry(index).or_insert_with(|| hash.clone());
        ensure!(
            first == hash,
            "nodes differ at log index {index}: {first} and {hash}"
        );
        Ok(())
    }

    /// Waits until all running nodes show the same index and hash.
    ///
    /// # Errors
    ///
    /// When they differ, or do not get there within a minute.
    pub async fn converge(&self, cluster: &Cluster) -> Result<NodeStatus> {
        let nodes: Vec<usize> = (0..cluster.node_count())
            .filter(|&node| cluster.is_running(node))
            .collect();
        let outcome = wait_until("all nodes to show the same state", LIMIT, async || {
            let mut statuses = Vec::new();
            for &node in &nodes {
                let status = cluster.status(node).await.ok()?;
                if let Err(error) = self.note(&status) {
                    return Some(Err(error));
                }
                statuses.push(status);
            }
            let state = |status: &NodeStatus| (status.state_index, status.state_hash.clone());
            let same = statuses.windows(2).all(|pair| state(&pair[0]) == state(&pair[1]));
            let settled = statuses
                .iter()
                .all(|status| status.applied_index == status.last_log_index);
            (same && settled).then(|| statuses.pop().context("there are no nodes"))
        });
        outcome
            .await
            .and_then(|outcome| outcome)
            .with_context(|| cluster.logs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shows(index: u64, hash: &str) -> NodeStatus {
        NodeStatus {
            state_index: index,
            state_hash: hash.to_owned(),
            ..NodeStatus::default()
        }
    }

    #[test]
    fn two_hashes_at_one_index_are_a_fault() {
        let hashes = Hashes::default();
        for status in [shows(1, "a"), shows(2, "b"), shows(1, "a")] {
            assert!(hashes.note(&status).is_ok());
        }
        let error = hashes.note(&shows(2, "c")).expect_err("it differs");
        assert_eq!(error.to_string(), "nodes differ at log index 2: b and c");
    }
}
