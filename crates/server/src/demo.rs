//! `quorate demo`: the promise, shown.
//!
//! Three nodes as real processes; publishers with confirms, consumers with
//! leases and acks. Half-way the leader is killed with SIGKILL, and started
//! again when another leads. At the end the sets of messages are compared: each
//! that was confirmed must have come out. The last line of proof is that all
//! three nodes, the killed one too, have the same state.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use quorate_load::progress::{Progress, grouped, short};
use quorate_load::workload::{Outcome, Shape};
use quorate_load::{Size, Workload};
use quorate_test_cluster::Cluster;

use crate::commands::this_program;
use crate::exit::{Exit, Fatal};
use crate::signals::Signals;

const QUEUE: &str = "demo";
/// Between two looks at the counts.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long consumers may take to empty the queue at the end.
const DRAIN_LIMIT: Duration = Duration::from_secs(120);

/// Options of `quorate demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Messages to publish
    #[arg(long, default_value_t = 20_000, value_name = "N", value_parser = clap::value_parser!(u64).range(2..))]
    messages: u64,
    /// Bytes of a message
    #[arg(long, default_value = "1KiB")]
    size: Size,
    /// Keep the nodes' data and logs, and say where
    #[arg(long)]
    keep: bool,
}

pub(crate) async fn run(args: DemoArgs) -> Result<(), Fatal> {
    let mut signals = Signals::listen()?;
    // Whatever ends first, the nodes and their data go with the cluster.
    tokio::select! {
        result = demonstrate(&args) => result,
        at_once = signals.at_once() => Err(at_once),
    }
}

/// What happened to the cluster meanwhile.
struct Story {
    killed: usize,
    new_leader: usize,
    killed_at: Duration,
    published_in: Duration,
    longest_gap: Duration,
    /// From the kill to the first confirm by another leader.
    failover: Option<Duration>,
    problem: Option<String>,
}

async fn demonstrate(args: &DemoArgs) -> Result<(), Fatal> {
    let mut progress = Progress::new(false);
    let mut builder = Cluster::builder(3).binary(this_program()?);
    if args.keep {
        let directory = kept_directory()?;
        progress.tell(&format!("data and logs stay in {}", directory.display()));
        builder = builder.data_dir(directory);
    }
    progress.show("starting three nodes");
    let mut cluster = builder.start().await?;
    for node in 0..cluster.node_count() {
        let pid = cluster.process_id(node).unwrap_or_default();
        progress.tell(&format!(
            "node {node} is process {pid}, clients at {}",
            cluster.endpoint(node)
        ));
    }

    let client = cluster.client().await?;
    // A message that comes a sixth time is not lost: no limit on attempts.
    let declared = client.declare_queue(QUEUE).max_deliveries(0).send().await;
    declared.map_err(|error| anyhow::Error::from(error).context("declare the queue"))?;
    let mut workload = Workload::new(client, QUEUE, shape(args)?);
    let story = kill_half_way(args, &mut cluster, &mut workload, &mut progress).await?;

    progress.show("emptying the queue");
    workload.drain(DRAIN_LIMIT).await?;
    let outcome = workload.finish().await;
    let (index, hash) = same_state(&cluster).await?;
    progress.clear();
    print_table(&story, &outcome, cluster.node_count(), index, &hash);

    if outcome.verdict.is_clean() {
        Ok(())
    } else {
        Err(Fatal::new(Exit::Failed, "a promise was broken: see the table"))
    }
}

/// Publishes and consumes everything, and kills the leader in the middle of it.
async fn kill_half_way(
    args: &DemoArgs,
    cluster: &mut Cluster,
    workload: &mut Workload,
    progress: &mut Progress,
) -> anyhow::Result<Story> {
    workload.consume();
    workload.publish();
    workload.begin_measuring();
    let published = publish_until(args, workload, progress, |workload| {
        workload.counts().confirmed >= args.messages / 2
    });
    published.await;

    let killed = cluster.leader().await?;
    let killed_at = workload.elapsed();
    cluster.kill(killed).await?;
    let counts = workload.counts();
    progress.tell(&format!(
        "{} of {} confirmed: killed node {killed}, the leader",
        grouped(counts.confirmed),
        grouped(args.messages)
    ));

    let new_leader = cluster.new_leader(killed).await?;
    progress.tell(&format!("node {new_leader} leads; starting node {killed} again"));
    cluster.restart(killed).await?;

    publish_until(args, workload, progress, Workload::has_published).await;
    Ok(Story {
        killed,
        new_leader,
        killed_at,
        published_in: workload.elapsed(),
        longest_gap: workload.longest_gap(),
        failover: workload
            .terms()
            .iter()
            .find_map(|(_, first)| first.checked_sub(killed_at)),
        problem: workload.problem(),
    })
}

/// Shows how it goes until `done`, or until there is nothing more to publish.
async fn publish_until(
    args: &DemoArgs,
    workload: &mut Workload,
    progress: &mut Progress,
    mut done: impl FnMut(&mut Workload) -> bool,
) {
    while !done(workload) && !workload.has_published() {
        let counts = workload.counts();
        progress.show(&format!(
            "{} of {} confirmed, {} acked, {} redelivered",
            grouped(counts.confirmed),
            grouped(args.messages),
            grouped(counts.acked),
            grouped(counts.redelivered),
        ));
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Waits until all nodes have applied the same entries, and says which state
/// they agree on.
async fn same_state(cluster: &Cluster) -> anyhow::Result<(u64, String)> {
    cluster
        .wait_until("all nodes to have the same state", async || {
            let mut states = Vec::new();
            for node in 0..cluster.node_count() {
                let status = cluster.status(node).await.ok()?;
                states.push((status.state_index, status.state_hash));
            }
            let first = states.pop()?;
            states.iter().all(|state| *state == first).then_some(first)
        })
        .await
}

fn shape(args: &DemoArgs) -> Result<Shape, Fatal> {
    Ok(Shape {
        publishers: 4,
        consumers: 4,
        window: 64,
        prefetch: 64,
        body_bytes: usize::try_from(args.size.0).map_err(|error| Fatal::usage(format!("--size: {error}")))?,
        rate: None,
        count: Some(args.messages),
    })
}

fn kept_directory() -> anyhow::Result<PathBuf> {
    let directory = std::env::temp_dir().join(format!("quorate-demo-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    Ok(directory)
}

fn print_table(story: &Story, outcome: &Outcome, nodes: usize, index: u64, hash: &str) {
    let verdict = &outcome.verdict;
    let row = |name: &str, value: String| println!("  {name:<34}{value}");
    println!();
    row("confirmed", grouped(verdict.confirmed));
    row("delivered", grouped(verdict.delivered));
    row("acked", grouped(verdict.acked));
    row("redelivered", grouped(verdict.redelivered));
    row("lost", grouped(verdict.lost));
    for (name, count) in [
        ("publish refused", verdict.refused),
        ("publish outcome unknown", verdict.unknown),
        ("ack outcome unknown", verdict.acked_perhaps),
        ("duplicated", verdict.duplicated),
        ("refused, yet delivered", verdict.refused_and_delivered),
        ("acked twice", verdict.acked_twice),
    ] {
        if count > 0 {
            row(name, grouped(count));
        }
    }
    println!();
    let rate = verdict.confirmed as f64 / story.published_in.as_secs_f64();
    row(
        "throughput, failover included",
        format!("{} confirmed/s", grouped(rate as u64)),
    );
    row("leader killed after", short(story.killed_at));
    let failover = story.failover.map_or_else(|| "none came".to_owned(), short);
    row("kill to first confirm by another", failover);
    row("longest gap in confirms", short(story.longest_gap));
    row(
        "leader",
        format!("node {} before, node {} after", story.killed, story.new_leader),
    );
    row(
        "same state on all nodes",
        format!("{nodes} of {nodes} at index {index}, hash {hash}"),
    );
    if let Some(problem) = &story.problem {
        row("first problem", problem.clone());
    }
    println!();
    if verdict.is_clean() {
        println!("Nothing was lost.");
    }
}
