//! The power fails: what was not fsynced is forgotten, and nothing that was
//! confirmed is.
//!
//! The nodes run on disks that note every write until it is synced. After they
//! are killed, under load, a random part of what was not synced is taken away,
//! and they have to go on with the rest. `QUORATE_ROUNDS` runs more rounds.

use anyhow::{Result, ensure};
use quorate_disk_shim::{Fault, Names, Variant};
use quorate_tests::disks::Disks;
use quorate_tests::rounds;
use quorate_tests::trial::{Trial, small_snapshots};

#[tokio::test(flavor = "multi_thread")]
async fn one_node_loses_power() -> Result<()> {
    Box::pin(nodes_lose_power("one_node_loses_power", 1)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_lose_power() -> Result<()> {
    Box::pin(nodes_lose_power("two_nodes_lose_power", 2)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn all_nodes_lose_power() -> Result<()> {
    Box::pin(nodes_lose_power("all_nodes_lose_power", 3)).await
}

/// The other tests here prove something only if they fail when syncs do nothing.
#[tokio::test(flavor = "multi_thread")]
async fn disks_that_lie_about_syncs_are_found_out() -> Result<()> {
    let seed = quorate_tests::seed("disks_that_lie_about_syncs_are_found_out");
    let disks = Disks::create(3)?;
    let cluster = disks.under(small_snapshots(3))?.start().await?;
    let mut trial = Trial::on(cluster, seed).await?;
    trial.progress().await?;
    for node in 0..3 {
        disks.of(node).control()?.set_sync_lies(Fault::Always)?;
    }
    trial.progress().await?;
    trial.kill_together(&[0, 1, 2]).await?;
    for node in 0..3 {
        disks.of(node).lose_power(seed, Variant::None, Names::Kept)?;
        disks.of(node).control()?.heal()?;
    }
    // Either a node notices that its files do not fit together, or messages are
    // missing.
    let survived = trial.restart_together(&[0, 1, 2]).await.is_ok() && trial.finish().await.is_ok();
    ensure!(
        !survived,
        "what was confirmed is there although nothing was synced"
    );
    Ok(())
}

async fn nodes_lose_power(test: &str, count: usize) -> Result<()> {
    let seed = quorate_tests::seed(test);
    let disks = Disks::create(3)?;
    let cluster = disks.under(small_snapshots(3))?.start().await?;
    let mut trial = Trial::on(cluster, seed).await?;
    let mut at_stake = 0;
    for round in 0..rounds(2) {
        trial.progress().await?;
        // The leader, and who comes after it.
        let leader = trial.cluster.leader().await?;
        let nodes: Vec<usize> = (leader..leader + count).map(|node| node % 3).collect();
        trial.kill_together(&nodes).await?;
        for &node in &nodes {
            let report = disks.lose_power(&trial.cluster, node, seed ^ (round << 8) ^ node as u64)?;
            at_stake += report.pages + report.names;
        }
        trial.restart_together(&nodes).await?;
    }
    trial.progress().await?;
    trial.finish().await?;
    ensure!(
        at_stake > 0,
        "there was nothing to lose: every kill came between two syncs"
    );
    Ok(())
}
