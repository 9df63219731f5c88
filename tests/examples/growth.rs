//! Whether a message costs more when there is more of anything: messages in the queue, queues, consumers, time.
//!
//! ```text
//! cargo run --release -p quorate-tests --example growth
//! ```
//!
//! The same load each time, as long as `--seconds` says: 16 publishers and 16 consumers with windows of 64. Each line
//! has the processor time of all nodes for a million messages, and how many a second there were. One line is no
//! measurement on a machine that others use; the first and the last of each part are what to compare.

#![allow(clippy::print_stdout, reason = "it talks to a person")]

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use quorate_client::Client;
use quorate_load::{Shape, Workload};
use quorate_test_cluster::Cluster;
use quorate_tests::costs::cpu_seconds;
use quorate_tests::many_queues;

#[derive(Debug, Parser)]
struct Arguments {
    /// Length of each load
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Most messages in the queue
    #[arg(long, default_value_t = 1_000_000)]
    depth: u64,
    /// Most queues
    #[arg(long, default_value_t = 10_000)]
    queues: usize,
    /// Loads one after the other on one cluster
    #[arg(long, default_value_t = 10)]
    rounds: usize,
}

const SIZE: usize = 256;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let seconds = Duration::from_secs(arguments.seconds);
    let steps = |most: u64| [0, most / 100, most / 10, most];

    println!("messages in the queue");
    for depth in steps(arguments.depth) {
        let cluster = Cluster::start(3).await?;
        let client = cluster.client().await?;
        let queue = fill(&client, depth).await?;
        println!(
            "{depth:>12}  {}",
            load(&cluster, &client, &queue, 16, seconds).await?
        );
    }

    println!("queues, each with nothing to do");
    for queues in steps(arguments.queues as u64) {
        let cluster = Cluster::start(3).await?;
        let client = cluster.client().await?;
        many_queues::declare(&client, usize::try_from(queues)?).await?;
        let queue = fill(&client, 0).await?;
        println!(
            "{queues:>12}  {}",
            load(&cluster, &client, &queue, 16, seconds).await?
        );
    }

    println!("consumers");
    for consumers in [4, 16, 64, 256] {
        let cluster = Cluster::start(3).await?;
        let client = cluster.client().await?;
        let queue = fill(&client, 0).await?;
        println!(
            "{consumers:>12}  {}",
            load(&cluster, &client, &queue, consumers, seconds).await?
        );
    }

    println!("rounds on one cluster");
    let cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;
    for round in 1..=arguments.rounds {
        let queue = fill(&client, 0).await?;
        println!(
            "{round:>12}  {}",
            load(&cluster, &client, &queue, 16, seconds).await?
        );
    }
    Ok(())
}

/// A queue with so many messages. Its name.
async fn fill(client: &Client, messages: u64) -> Result<String> {
    let queue = "growth".to_owned();
    client
        .declare_queue(queue.as_str())
        .max_deliveries(0)
        .send()
        .await?;
    if messages > 0 {
        let mut workload = Workload::new(client.clone(), queue.as_str(), shape(16, Some(messages)));
        workload.publish();
        while !workload.has_published() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let counts = workload.counts();
        ensure!(counts.confirmed == messages, "not all were confirmed: {counts:?}");
    }
    Ok(queue)
}

/// What a message costs under load.
async fn load(
    cluster: &Cluster,
    client: &Client,
    queue: &str,
    consumers: usize,
    length: Duration,
) -> Result<String> {
    let cpu = || (0..3).map(|node| cpu_seconds(cluster, node)).sum::<Result<f64>>();
    let mut workload = Workload::new(client.clone(), queue, shape(consumers, None));
    workload.consume();
    workload.publish();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (before, from, began) = (cpu()?, workload.counts(), Instant::now());
    tokio::time::sleep(length).await;
    let (after, to, took) = (cpu()?, workload.counts(), began.elapsed());
    let messages = (to.confirmed - from.confirmed) as f64;
    ensure!(messages > 0.0, "nothing was confirmed: {:?}", workload.problem());
    workload.stop_publishing().await;
    workload.finish().await;
    Ok(format!(
        "{:6.1} s of processor time for a million, {:6.0} a second",
        (after - before) / messages * 1e6,
        messages / took.as_secs_f64()
    ))
}

fn shape(consumers: usize, count: Option<u64>) -> Shape {
    Shape {
        publishers: 16,
        consumers,
        window: 64,
        prefetch: 64,
        body_bytes: SIZE,
        rate: None,
        count,
    }
}
