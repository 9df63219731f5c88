//! The messages of a group are done in their order and one at a time, whoever
//! dies meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use quorate_tests::history::{History, Wish};
use quorate_tests::trial::{Trial, small_snapshots};
use quorate_tests::workload::{Mix, QUEUE};
use quorate_tests::{rounds, seed};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

const GROUPS: u64 = 20;
const MESSAGES_PER_GROUP: u64 = 100;

/// 20 groups, and 8 workers that ack, nack, put off, give back and forget.
fn mix() -> Mix {
    Mix {
        publishers: 2,
        consumers: 4,
        pullers: 4,
        lease: Duration::from_secs(1),
        // A message that is given up would leave its group by the order of time.
        deliveries_max: 0,
        groups: GROUPS,
        ..Mix::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_keep_their_order_while_workers_and_leaders_die() -> Result<()> {
    let seed = seed("groups_keep_their_order_while_workers_and_leaders_die");
    let mut rng = StdRng::seed_from_u64(seed);
    let cluster = small_snapshots(3).start().await?;
    let mut trial = Trial::of(cluster, mix(), seed).await?;
    for _ in 0..rounds(3) {
        trial.progress().await?;
        let leader = trial.cluster.leader().await?;
        let worker = rng.random_range(0..trial.load.worker_count());
        let (killed, replaced) = tokio::join!(trial.cluster.kill(leader), trial.load.replace_worker(worker));
        killed?;
        replaced?;
        trial.cluster.new_leader(leader).await?;
        trial.progress().await?;
        let worker = rng.random_range(0..trial.load.worker_count());
        trial.load.replace_worker(worker).await?;
        trial.restart_together(&[leader]).await?;
    }
    while groups_done(&trial.recorder.history()) < GROUPS {
        trial.progress().await?;
    }
    let (verdict, _cluster) = trial.finish().await?;
    ensure!(
        verdict.progress.redelivered > 0 && verdict.progress.refused > 0,
        "the load was too tame: {:?}",
        verdict.progress
    );
    Ok(())
}

/// How many groups have had [`MESSAGES_PER_GROUP`] messages acked.
fn groups_done(history: &History) -> u64 {
    let settles = history.settles_by_token();
    let mut acked: BTreeMap<&String, u64> = BTreeMap::new();
    for lease in history.leases().filter(|lease| lease.queue == QUEUE) {
        let of_lease = settles.get(lease.token.as_str()).map_or(&[][..], Vec::as_slice);
        let done = of_lease
            .iter()
            .any(|settle| settle.wish == Wish::Ack && settle.outcome.done().is_some());
        if let Some(group) = lease.group.as_ref().filter(|_| done) {
            *acked.entry(group).or_default() += 1;
        }
    }
    let done = acked.values().filter(|&&count| count >= MESSAGES_PER_GROUP);
    done.count() as u64
}
