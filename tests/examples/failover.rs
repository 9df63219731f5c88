//! How long a cluster confirms nothing when its leader fails.
//!
//! ```text
//! cargo run --release -p quorate-tests --example failover -- --fault kill --rounds 20
//! ```
//!
//! A publisher with a small window confirms all the time. Each round lets the
//! leader die (`kill`), freeze (`freeze`), or be told to stop (`terminate`), and
//! measures the longest time between two confirms from then on. The node comes
//! back before the next round.

#![allow(clippy::print_stdout, reason = "it talks to a person")]

use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use quorate_client::{Client, Publisher};
use quorate_test_cluster::Cluster;

#[derive(Debug, Parser)]
struct Arguments {
    /// What happens to the leader
    #[arg(long, value_enum, default_value_t = Fault::Kill)]
    fault: Fault,
    /// How often
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fault {
    /// SIGKILL
    Kill,
    /// SIGSTOP for four seconds
    Freeze,
    /// SIGTERM
    Terminate,
}

/// When there were confirms.
#[derive(Clone, Debug, Default)]
struct Confirms(Arc<Mutex<Vec<Instant>>>);

#[tokio::main]
async fn main() -> Result<()> {
    let Arguments { fault, rounds } = Arguments::parse();
    let mut cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;
    client
        .declare_queue("failover")
        .max_length(1_000)
        .overflow(quorate_client::Overflow::DropHead)
        .send()
        .await?;
    let confirms = Confirms::default();
    let publishing = tokio::spawn(publish(client.clone(), confirms.clone()));
    let mut gaps = Vec::new();
    for round in 1..=rounds {
        confirms.steady(&cluster).await?;
        let gap = one_round(&mut cluster, fault, &confirms).await?;
        println!("{round:3}  {:6.3} s", gap.as_secs_f64());
        gaps.push(gap);
    }
    publishing.abort();
    gaps.sort();
    let (median, worst) = (gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
    println!("{fault:?} of the leader, {rounds} rounds, to the first new confirm:");
    println!(
        "median {:.3} s, worst {:.3} s",
        median.as_secs_f64(),
        worst.as_secs_f64()
    );
    Ok(())
}

/// The gap in confirms that the fault makes.
async fn one_round(cluster: &mut Cluster, fault: Fault, confirms: &Confirms) -> Result<Duration> {
    let leader = cluster.leader().await?;
    let begin = Instant::now();
    match fault {
        Fault::Kill => cluster.kill(leader).await?,
        Fault::Freeze => cluster.pause(leader)?,
        Fault::Terminate => {
            let status = cluster.terminate(leader).await?;
            ensure!(status.success(), "the leader ended with {status}");
        }
    }
    cluster.new_leader(leader).await?;
    confirms.steady(cluster).await?;
    let gap = confirms
        .longest_gap_since(begin)
        .context("there were no confirms")?;
    if fault == Fault::Freeze {
        tokio::time::sleep((begin + Duration::from_secs(4)).saturating_duration_since(Instant::now())).await;
        cluster.resume(leader)?;
    } else {
        cluster.restart(leader).await?;
    }
    cluster.ready().await?;
    Ok(gap)
}

async fn publish(client: Client, confirms: Confirms) {
    let publisher: Publisher = client.publisher("failover").window(16).start();
    loop {
        let confirm = publisher.send(vec![0; 1024]).await;
        let confirms = confirms.clone();
        tokio::spawn(async move {
            if confirm.await.is_ok() {
                confirms.add();
            }
        });
    }
}

impl Confirms {
    fn add(&self) {
        self.0.lock().expect("nobody panics with it").push(Instant::now());
    }

    /// Waits until there were some hundred more.
    async fn steady(&self, cluster: &Cluster) -> Result<()> {
        let count = || self.0.lock().expect("nobody panics with it").len();
        let enough = count() + 500;
        cluster
            .wait_until("confirms", async || (count() >= enough).then_some(()))
            .await
    }

    /// The longest time without any, from the last one before `begin` on.
    fn longest_gap_since(&self, begin: Instant) -> Option<Duration> {
        let times = self.0.lock().expect("nobody panics with it");
        let from = times.partition_point(|time| *time < begin).saturating_sub(1);
        times[from..]
            .windows(2)
            .map(|pair| pair[1].duration_since(pair[0]))
            .max()
    }
}
