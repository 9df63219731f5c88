//! Ten thousand queues are kept, and cost nothing while nothing happens.

use std::time::Duration;

use anyhow::Result;
use quorate_test_cluster::Cluster;
use quorate_tests::alive::serves;
use quorate_tests::converge::Hashes;
use quorate_tests::{harm, many_queues};

const QUEUES: usize = 10_000;

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_queues_are_kept_and_cost_no_log_when_idle() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;
    many_queues::declare(&client, QUEUES).await?;
    harm::restart_all(&mut cluster).await?;
    many_queues::are_there(&client, QUEUES).await?;

    // What the restart has left to do is soon done; then nothing happens, so
    // nothing is written.
    cluster
        .wait_until("two seconds without an entry", async || {
            let before = Hashes::default().converge(&cluster).await.ok()?;
            tokio::time::sleep(Duration::from_secs(2)).await;
            let after = Hashes::default().converge(&cluster).await.ok()?;
            (after.last_log_index == before.last_log_index).then_some(())
        })
        .await?;
    serves(&client).await
}
