//! The clock of a node is a year ahead, and that node comes to lead: no lease and
//! no life of a message ends early.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use quorate_test_cluster::Cluster;
use quorate_tests::converge::Hashes;
use quorate_tests::wrong_clock::WrongClock;

const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_leader_whose_clock_is_a_year_ahead_ends_nothing_early() -> Result<()> {
    const WRONG: usize = 2;
    let clock = WrongClock::build()?;
    let cluster = clock.ahead(Cluster::builder(3), WRONG, YEAR)?.start().await?;
    let client = cluster.client().await?;
    let id = cluster.status(WRONG).await?.node_id;

    // Set up while another leads.
    if cluster.leader().await? == WRONG {
        client.cluster().transfer_leader(None).await?;
        cluster.new_leader(WRONG).await?;
    }
    client.declare_queue("jobs").lease(10 * MINUTE).send().await?;
    let mortal = quorate_client::Message::new("mortal").ttl(10 * MINUTE);
    let delayed = quorate_client::Message::new("delayed").delay(10 * MINUTE);
    client
        .publish_all("jobs", ["leased".into(), mortal, delayed])
        .await?;
    let mut lease = client.lease("jobs").send().await?.pop().context("a message")?;

    client.cluster().transfer_leader(Some(id)).await?;
    cluster
        .wait_until("the node to lead", async || {
            (cluster.leader_now().await? == WRONG).then_some(())
        })
        .await?;
    clock_is_bent(&cluster, WRONG)?;

    // Whatever time it brings, it has stamped entries with it now.
    let stamp = client.publish("jobs", "more").await?.commit.cluster_time_ms;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let ahead = Duration::from_millis(stamp).saturating_sub(now);
    ensure!(ahead < MINUTE, "cluster time is {ahead:?} ahead");
    let counts = client.describe_queue("jobs").await?.counts;
    let expected = (counts.leased, counts.ready, counts.delayed, counts.expired) == (1, 2, 1, 0);
    ensure!(expected, "something ended early: {counts:?}");
    lease.extend(10 * MINUTE).await.context("the lease ended early")?;
    lease.ack().await.context("the lease ended early")?;
    Hashes::default().converge(&cluster).await?;
    Ok(())
}

/// It writes its log in another year: a test with a right clock would prove
/// nothing.
fn clock_is_bent(cluster: &Cluster, node: usize) -> Result<()> {
    let year = |node| -> Result<String> {
        let log = std::fs::read_to_string(cluster.log_file(node))?;
        Ok(log
            .split('-')
            .next()
            .context("a line begins with its date")?
            .to_owned())
    };
    let (right, wrong) = (year((node + 1) % 3)?, year(node)?);
    ensure!(
        right < wrong,
        "node {node} lives in {wrong}, the others in {right}"
    );
    Ok(())
}
