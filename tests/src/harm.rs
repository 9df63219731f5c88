//! What is done to a cluster, other than asking it for something.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use quorate_client::{Client, Overflow};
use quorate_test_cluster::Cluster;

use crate::converge::Hashes;

/// Kills these nodes in one moment: none acts on the death of another.
///
/// # Errors
///
/// When one does not run.
pub async fn kill_together(cluster: &mut Cluster, nodes: &[usize]) -> Result<()> {
    for &node in nodes {
        cluster.pause(node)?;
    }
    for &node in nodes {
        cluster.kill(node).await?;
    }
    Ok(())
}

/// Starts these nodes again, and waits until all nodes are ready.
///
/// # Errors
///
/// When one does not start.
pub async fn restart_together(cluster: &mut Cluster, nodes: &[usize]) -> Result<()> {
    for &node in nodes {
        cluster.restart(node).await?;
    }
    cluster.ready().await
}

/// Kills all nodes in one moment, and starts them again.
///
/// # Errors
///
/// When one does not start.
pub async fn restart_all(cluster: &mut Cluster) -> Result<()> {
    let all: Vec<usize> = (0..cluster.node_count()).collect();
    kill_together(cluster, &all).await?;
    restart_together(cluster, &all).await
}

/// Kills the leader, waits for another one, and starts the old one again, which
/// it names.
///
/// # Errors
///
/// When nobody else leads, or the old leader does not start.
pub async fn replace_leader(cluster: &mut Cluster) -> Result<usize> {
    let leader = cluster.leader().await?;
    cluster.kill(leader).await?;
    cluster.new_leader(leader).await?;
    restart_together(cluster, &[leader]).await?;
    Ok(leader)
}

/// Lets a node lead.
///
/// # Errors
///
/// When it does not.
pub async fn lead(cluster: &Cluster, client: &Client, node: usize) -> Result<()> {
    let id = cluster.status(node).await?.node_id;
    cluster
        .wait_until("the node to lead", async || {
            // Refused while it is not caught up.
            let _ = client.cluster().transfer_leader(Some(id)).await;
            (cluster.leader_now().await? == node).then_some(())
        })
        .await
}

/// A follower loses its data and joins as a new node, after the log of what is
/// there now was shortened away: it gets a snapshot. Says which node.
///
/// # Errors
///
/// When it does not come so far.
pub async fn rejoin_empty(cluster: &mut Cluster, client: &Client) -> Result<usize> {
    let node = (cluster.leader().await? + 1) % cluster.node_count();
    cluster.kill(node).await?;
    cluster.wipe(node)?;
    let missed = forget_log(cluster, client).await?;
    cluster.restart(node).await?;
    let peer = format!("127.0.0.1:{}", cluster.ports(node).peer);
    client.cluster().add(peer).await?;
    let status = cluster
        .wait_until("the node to have the snapshot", async || {
            let status = cluster.status(node).await.ok()?;
            (status.applied_index >= missed).then_some(status)
        })
        .await?;
    ensure!(
        status.snapshot_index >= missed,
        "it did not need a snapshot: {status:?}"
    );
    cluster.ready().await?;
    Ok(node)
}

/// Makes the leader take snapshots until all that is in its log now is gone from
/// there; says up to where. A queue for what it takes is there meanwhile.
async fn forget_log(cluster: &Cluster, client: &Client) -> Result<u64> {
    const FILLER: &str = "filler";
    client
        .declare_queue(FILLER)
        .max_length(1)
        .overflow(Overflow::DropHead)
        .send()
        .await?;
    let last = client.publish(FILLER, "last").await?.commit.log_index;
    let leader = cluster.leader().await?;
    while cluster.status(leader).await?.purged_index < last {
        client.publish(FILLER, vec![0; 64 * 1024]).await?;
    }
    client.delete_queue(FILLER).send().await?;
    Ok(last)
}

/// Lets every node take a snapshot of what it has, all of it at one log index.
///
/// # Errors
///
/// When one does not, or they differ.
pub async fn snapshot_all(cluster: &Cluster, client: &Client, hashes: &Hashes) -> Result<()> {
    let before = hashes.converge(cluster).await?;
    let mut taken = BTreeMap::new();
    for node in 0..cluster.node_count() {
        let index = client.cluster().snapshot(&cluster.endpoint(node)).await?;
        taken.insert(node, index);
    }
    let after = hashes.converge(cluster).await?;
    ensure!(
        taken.values().all(|&index| index >= before.applied_index),
        "snapshots at {taken:?} of a state at {}",
        before.applied_index
    );
    ensure!(
        before.state_index != after.state_index || before.state_hash == after.state_hash,
        "a snapshot changed the state: {before:?}, then {after:?}"
    );
    Ok(())
}
