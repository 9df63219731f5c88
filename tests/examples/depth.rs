//! What a deep queue costs, and how a cluster lives with one.
//!
//! ```text
//! cargo run --release -p quorate-tests --example depth -- --messages 1000000 --size 1024
//! ```
//!
//! Fills a queue. Replaces a follower by an empty node while a paced load goes on. Kills all nodes and starts
//! them again. Empties the queue, each message once, and waits for the disk to be given back. `--no-wipe` leaves out the
//! replacing.

#![allow(clippy::print_stdout, reason = "it talks to a person")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use quorate_client::Client;
use quorate_load::{Shape, Workload};
use quorate_test_cluster::Cluster;
use quorate_tests::costs::{disk, peak_memory};

#[derive(Debug, Parser)]
struct Arguments {
    /// How many messages are in the queue
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    messages: u64,
    /// Bytes of a body
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Leave the followers alone
    #[arg(long)]
    no_wipe: bool,
}

/// Messages a second beside the replacing of a follower.
const RATE: f64 = 5_000.0;
/// How long anything here may take.
const LIMIT: Duration = Duration::from_secs(30 * 60);
/// The disk is looked at until it has not shrunk for so long.
const SETTLED: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() -> Result<()> {
    let Arguments {
        messages,
        size,
        no_wipe,
    } = Arguments::parse();
    let mut cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;
    let mut deep = workload(&client, "deep", size, None, Some(messages)).await?;

    let began = Instant::now();
    deep.publish();
    while !deep.has_published() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    report("filled", &cluster, began, Some(messages));

    if !no_wipe {
        replace_follower(&mut cluster, &client, size).await?;
    }

    cluster.kill_together(&[0, 1, 2]).await?;
    let began = Instant::now();
    let failed = cluster.start_together(&[0, 1, 2]).await?;
    ensure!(failed.is_empty(), "not all nodes start: {failed:?}");
    cluster.ready().await?;
    report("ready after kill -9 of all", &cluster, began, None);

    let began = Instant::now();
    deep.consume();
    deep.drain(LIMIT).await?;
    report("drained", &cluster, began, Some(messages));
    let verdict = deep.finish().await.verdict;
    ensure!(verdict.is_clean(), "messages were lost: {verdict:?}");
    println!(
        "{:28} {} confirmed, {} acked, {} redelivered",
        "checked", verdict.confirmed, verdict.acked, verdict.redelivered
    );

    let began = Instant::now();
    let (mut least, mut shrunk) = (u64::MAX, began);
    while shrunk.elapsed() < SETTLED {
        let now = (0..3).map(|node| disk(&cluster, node)).sum();
        if now < least {
            (least, shrunk) = (now, Instant::now());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    report("disk after that", &cluster, began, None);
    Ok(())
}

async fn workload(
    client: &Client,
    queue: &str,
    size: usize,
    rate: Option<f64>,
    count: Option<u64>,
) -> Result<Workload> {
    client
        .declare_queue(queue)
        .max_deliveries(0)
        .send()
        .await
        .context("declare the queue")?;
    let shape = Shape {
        publishers: 16,
        consumers: 16,
        window: 256,
        prefetch: 256,
        body_bytes: size,
        rate,
        count,
    };
    Ok(Workload::new(client.clone(), queue, shape))
}

/// Empties a follower and adds it again, under a paced load.
async fn replace_follower(cluster: &mut Cluster, client: &Client, size: usize) -> Result<()> {
    let wiped = (cluster.leader().await? + 1) % 3;
    let mut load = workload(client, "beside", size, Some(RATE), None).await?;
    load.consume();
    load.publish();
    tokio::time::sleep(Duration::from_secs(3)).await;
    cluster.kill(wiped).await?;
    cluster.wipe(wiped)?;
    cluster.restart(wiped).await?;
    cluster
        .wait_until("the emptied node to wait", async || {
            let status = cluster.status(wiped).await.ok()?;
            (status.role == "waiting").then_some(())
        })
        .await?;
    load.begin_measuring();
    let began = Instant::now();
    let peer = format!("127.0.0.1:{}", cluster.ports(wiped).peer);
    match client.cluster().add(&peer).await {
        Ok(_) => {}
        // It goes on, and takes longer than a call may.
        Err(error) if error.may_have_applied() => {}
        Err(error) => return Err(error.into()),
    }
    let goal = client.cluster().status().await?.applied_index;
    loop {
        ensure!(began.elapsed() < LIMIT, "the emptied node does not catch up");
        let status = cluster.status(wiped).await;
        if status.is_ok_and(|status| status.applied_index >= goal) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    report("emptied follower caught up", cluster, began, None);
    load.stop_publishing().await;
    load.drain(LIMIT).await?;
    let outcome = load.finish().await;
    ensure!(
        outcome.verdict.is_clean(),
        "messages were lost: {:?}",
        outcome.verdict
    );
    let milliseconds = |quantile| outcome.confirm_latency.value_at_quantile(quantile) as f64 / 1e3;
    println!(
        "{:28} confirmed after {:.1} ms, p99 {:.1} ms",
        format!("meanwhile at {RATE}/s"),
        milliseconds(0.5),
        milliseconds(0.99)
    );
    Ok(())
}

/// One line: how long it took, and what each node takes now.
fn report(what: &str, cluster: &Cluster, began: Instant, messages: Option<u64>) {
    let seconds = began.elapsed().as_secs_f64();
    let rate = messages.map_or_else(String::new, |messages| {
        format!(" {:.0}/s", messages as f64 / seconds)
    });
    let nodes = (0..3).map(|node| {
        let memory = peak_memory(cluster, node).unwrap_or(0);
        format!("{}/{}", memory >> 20, disk(cluster, node) >> 20)
    });
    println!(
        "{what:28} {seconds:6.1} s{rate}, MiB of peak memory/disk: {}",
        nodes.collect::<Vec<_>>().join(" ")
    );
}
