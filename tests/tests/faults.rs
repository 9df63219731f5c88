//! Nodes die, stop and freeze under load, and no promise is broken.
//!
//! Each test runs rounds of one fault against a three-node cluster that takes
//! snapshots and shortens its log all the time. `QUORATE_ROUNDS=20` runs as many
//! as a release has to survive.

use std::time::Duration;

use anyhow::{Result, ensure};
use quorate_tests::rounds;
use quorate_tests::trial::{Trial, Verdict};

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_is_killed() -> Result<()> {
    let mut trial = Trial::start("the_leader_is_killed").await?;
    for _ in 0..rounds(3) {
        trial.progress().await?;
        let leader = trial.cluster.leader().await?;
        trial.cluster.kill(leader).await?;
        trial.cluster.new_leader(leader).await?;
        trial.progress().await?;
        trial.restart_together(&[leader]).await?;
    }
    messages_came_again(&finish(trial).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn all_nodes_are_killed_at_once() -> Result<()> {
    let mut trial = Trial::start("all_nodes_are_killed_at_once").await?;
    for _ in 0..rounds(2) {
        trial.progress().await?;
        let term = trial.cluster.status(trial.cluster.leader().await?).await?.term;
        trial.kill_together(&[0, 1, 2]).await?;
        trial.restart_together(&[0, 1, 2]).await?;
        let leader = trial.cluster.leader().await?;
        ensure!(
            trial.cluster.status(leader).await?.term > term,
            "nobody was elected: were they killed?"
        );
    }
    trial.progress().await?;
    messages_came_again(&finish(trial).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_and_a_follower_are_told_to_stop() -> Result<()> {
    let mut trial = Trial::start("the_leader_and_a_follower_are_told_to_stop").await?;
    for round in 0..rounds(4) {
        trial.progress().await?;
        let leader = trial.cluster.leader().await?;
        let leads = round % 2 == 0;
        let node = if leads {
            leader
        } else {
            (leader + 1) % trial.cluster.node_count()
        };
        let status = trial.cluster.terminate(node).await?;
        ensure!(
            status.success(),
            "node {node} ended with {status}{}",
            trial.cluster.logs()
        );
        if leads {
            trial.cluster.new_leader(leader).await?;
        }
        trial.progress().await?;
        trial.restart_together(&[node]).await?;
    }
    finish(trial).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_freezes_for_three_seconds() -> Result<()> {
    let trial = Trial::start("the_leader_freezes_for_three_seconds").await?;
    for _ in 0..rounds(2) {
        trial.progress().await?;
        let leader = trial.cluster.leader().await?;
        trial.cluster.pause(leader)?;
        // The length of the fault, not a wait for anything.
        let thawed = tokio::time::sleep(Duration::from_secs(3));
        trial.cluster.new_leader(leader).await?;
        thawed.await;
        trial.cluster.resume(leader)?;
        trial.cluster.ready().await?;
    }
    trial.progress().await?;
    messages_came_again(&finish(trial).await?)
}

/// The verdict, if the trial was one: nodes had to start from snapshots, and
/// their logs were shortened.
async fn finish(trial: Trial) -> Result<Verdict> {
    let (verdict, cluster) = trial.finish().await?;
    for node in 0..cluster.node_count() {
        let status = cluster.status(node).await?;
        ensure!(
            status.snapshot_index > 0 && status.purged_index > 0,
            "node {node} took no snapshot: {status:?}"
        );
    }
    Ok(verdict)
}

/// The load did what it is there for: leases ended without an ack, and stale
/// tokens were tried.
fn messages_came_again(verdict: &Verdict) -> Result<()> {
    let progress = &verdict.progress;
    ensure!(
        progress.redelivered > 0 && progress.refused > 0,
        "the load was too tame: {progress:?}"
    );
    Ok(())
}
