//! What ten thousand queues cost: to declare them, while nothing happens, and
//! when all nodes come back at once.
//!
//! ```text
//! cargo run --release -p quorate-tests --example many_queues -- --queues 10000
//! ```

#![allow(clippy::print_stdout, reason = "it talks to a person")]

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use quorate_test_cluster::Cluster;
use quorate_tests::costs::cpu_seconds;
use quorate_tests::many_queues;

#[derive(Debug, Parser)]
struct Arguments {
    /// How many queues
    #[arg(long, default_value_t = 10_000)]
    queues: usize,
    /// Seconds without any request, in which CPU time is measured
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    idle: u64,
}

#[tokio::main]
async fn main() -> Result<()> {
    let Arguments { queues, idle } = Arguments::parse();
    let mut cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;

    let start = Instant::now();
    many_queues::declare(&client, queues).await?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "declare   {queues} queues in {seconds:.2} s, {:.0} per second",
        queues as f64 / seconds
    );

    println!("idle      CPU over {idle} s, in % of one core");
    idle_cpu(&cluster, Duration::from_secs(idle)).await?;

    for node in 0..cluster.node_count() {
        cluster.pause(node)?;
    }
    for node in 0..cluster.node_count() {
        cluster.kill(node).await?;
    }
    let start = Instant::now();
    for node in 0..cluster.node_count() {
        cluster.restart(node).await?;
    }
    cluster.ready().await?;
    println!(
        "restart   all nodes ready {:.2} s after kill -9 of all",
        start.elapsed().as_secs_f64()
    );
    let start = Instant::now();
    many_queues::are_there(&client, queues).await?;
    println!("list      all of them in {:.2} s", start.elapsed().as_secs_f64());

    println!("idle      again, after the restart");
    idle_cpu(&cluster, Duration::from_secs(idle)).await
}

/// Prints what each node uses while nobody asks it for anything.
async fn idle_cpu(cluster: &Cluster, span: Duration) -> Result<()> {
    let leader = cluster.leader().await?;
    // What the last requests have left to do is not idling.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let all = || {
        let nodes = 0..cluster.node_count();
        nodes
            .map(|node| cpu_seconds(cluster, node))
            .collect::<Result<Vec<_>>>()
    };
    let before = all()?;
    tokio::time::sleep(span).await;
    for (node, (before, after)) in before.into_iter().zip(all()?).enumerate() {
        let percent = 100.0 * (after - before) / span.as_secs_f64();
        let role = if node == leader { "leader" } else { "follower" };
        println!("          node {node}  {percent:5.2} %  {role}");
    }
    Ok(())
}
