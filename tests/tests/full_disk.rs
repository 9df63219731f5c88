//! A disk fills up: that node stops and says so, the others go on, and with
//! space again it comes back.

use std::fs;

use anyhow::{Context, Result, ensure};
use quorate_disk_shim::Fault;
use quorate_tests::disks::Disks;
use quorate_tests::trial::{Trial, small_snapshots};

/// Exit code of a node whose disk failed.
const EXIT_STORAGE: i32 = 10;

#[tokio::test(flavor = "multi_thread")]
async fn the_disk_of_a_follower_and_then_of_the_leader_is_full() -> Result<()> {
    let seed = quorate_tests::seed("the_disk_of_a_follower_and_then_of_the_leader_is_full");
    let disks = Disks::create(3)?;
    let cluster = disks.under(small_snapshots(3))?.start().await?;
    let mut trial = Trial::on(cluster, seed).await?;
    trial.expected_errors.push("No space left on device");
    trial.progress().await?;
    let follower = (trial.cluster.leader().await? + 1) % 3;
    fill_and_free(&mut trial, &disks, follower)
        .await
        .context("the disk of a follower")?;
    trial.progress().await?;
    let leader = trial.cluster.leader().await?;
    fill_and_free(&mut trial, &disks, leader)
        .await
        .context("the disk of the leader")?;
    trial.finish().await?;
    Ok(())
}

async fn fill_and_free(trial: &mut Trial, disks: &Disks, node: usize) -> Result<()> {
    let disk = disks.of(node).control()?;
    let log = trial.cluster.log_file(node);
    let said = fs::read_to_string(&log)?.len();
    disk.set_write_no_space(Fault::Always)?;
    let status = trial.cluster.wait_exit(node).await?;
    let log = fs::read_to_string(&log)?.split_off(said);
    ensure!(
        status.code() == Some(EXIT_STORAGE),
        "it ended with {status}:\n{log}"
    );
    let why = log
        .lines()
        .find(|line| line.starts_with("quorate: "))
        .unwrap_or_default();
    ensure!(
        why.contains("No space left on device"),
        "it does not say why:\n{log}"
    );

    // The majority goes on, and the node does not start on a full disk.
    trial.progress().await?;
    ensure!(
        trial.cluster.restart(node).await.is_err(),
        "it starts on a full disk"
    );
    disk.heal()?;
    trial.restart_together(&[node]).await
}
