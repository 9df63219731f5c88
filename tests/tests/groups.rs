//! The messages of a group are done in their order and one at a time, whoever
//! dies meanwhile; and no group starves another.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use jepsen_lite_workload::mix::Mix;
use jepsen_lite_workload::queue::QUEUE;
use quorate_client::{Delivery, Message};
use quorate_test_cluster::Cluster;
use quorate_tests::history::{History, Wish};
use quorate_tests::trial::{Trial, small_snapshots};
use quorate_tests::{harm, rounds, seed};
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
        lease: Duration::from_millis(750),
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
    for _ in 0..rounds(2) {
        trial.progress().await?;
        let leader = trial.cluster.leader().await?;
        let crew = trial.load.crew().clone();
        let worker = rng.random_range(0..crew.worker_count());
        let (killed, ()) = tokio::join!(trial.cluster.kill(leader), crew.replace_worker(worker));
        killed?;
        trial.cluster.new_leader(leader).await?;
        trial.progress().await?;
        let worker = rng.random_range(0..crew.worker_count());
        crew.replace_worker(worker).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_with_many_messages_does_not_starve_one_with_one() -> Result<()> {
    const MANY: u32 = 20_000;
    let mut cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;
    // Of the large tenant too there may be many under way at a time.
    let declare = client.declare_queue(QUEUE).group_concurrency(1_000);
    declare.send().await?;
    let of = |tenant: &str| Message::new(tenant.to_owned()).group(tenant);
    for _ in 0..MANY / 4_000 {
        client.publish_all(QUEUE, (0..4_000).map(|_| of("large"))).await?;
    }
    let mut taken = client.lease(QUEUE).max(10).send().await?;
    client.publish(QUEUE, of("small")).await?;
    harm::replace_leader(&mut cluster).await?;
    taken.extend(client.lease(QUEUE).max(3).send().await?);
    let groups: Vec<Option<&str>> = taken.iter().map(Delivery::group).collect();
    ensure!(
        groups[..10].iter().all(|group| *group == Some("large")) && groups[10..].contains(&Some("small")),
        "leased were {groups:?}"
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
