//! A chain of queues that are joined by transactions loses nothing and doubles
//! nothing, whoever dies.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::TryStreamExt as _;
use quorate_client::{Client, Delivery, Message, QueueCounts, Reason, Refusal, RefusedPart, TransactionPart};
use quorate_test_cluster::Cluster;
use quorate_tests::checker::{each_exactly_once, verdict};
use quorate_tests::trial::{no_bugs_in_logs, small_snapshots};
use quorate_tests::worker::Worker;
use quorate_tests::{body, harm, rounds, seed};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

const CHAIN: [&str; 3] = ["first", "second", "last"];
const ITEMS_PER_ROUND: u64 = 60;
/// What dies with its worker comes again after this.
const LEASE: Duration = Duration::from_secs(1);

/// How a worker gets its messages.
#[derive(Clone, Copy, Debug)]
enum Way {
    Pushed,
    Pulled,
}

/// One worker's work: from where, to where, and how.
#[derive(Clone, Copy, Debug)]
struct Hop {
    from: &'static str,
    to: &'static str,
    way: Way,
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_chain_holds_each_item_exactly_once() -> Result<()> {
    let seed = seed("the_end_of_the_chain_holds_each_item_exactly_once");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut cluster = small_snapshots(3).start().await?;
    let client = cluster.client().await?;
    for queue in CHAIN {
        client.declare_queue(queue).max_deliveries(0).send().await?;
    }
    let mut workers = Vec::new();
    for hop in hops() {
        workers.push((hop, Worker::start(work(hop, cluster.endpoints()))?));
    }

    let rounds = rounds(5);
    for round in 0..rounds {
        let first = round * ITEMS_PER_ROUND;
        let items = (first..first + ITEMS_PER_ROUND).map(|key| body::of(key).into());
        client.publish_all(CHAIN[0], items).await?;
        arrived(&cluster, &client, first + ITEMS_PER_ROUND / 2).await?;

        let (hop, worker) = &mut workers[rng.random_range(0..hops().len())];
        let new = Worker::start(work(*hop, cluster.endpoints()))?;
        let dead = std::mem::replace(worker, new).kill();
        if round % 2 == 0 {
            let leader = cluster.leader().await?;
            let (killed, dead) = tokio::join!(cluster.kill(leader), dead);
            killed?;
            dead?;
            cluster.new_leader(leader).await?;
            cluster.restart(leader).await?;
        } else {
            dead.await?;
        }
    }
    arrived(&cluster, &client, rounds * ITEMS_PER_ROUND).await?;

    for queue in &CHAIN[..2] {
        let counts = client.describe_queue(*queue).await?.counts;
        ensure!(
            counts.acked == rounds * ITEMS_PER_ROUND && counts.published == counts.acked,
            "{queue}: {counts:?}"
        );
    }
    let last: Vec<u64> = client
        .browse(CHAIN[2])
        .with_content()
        .messages()
        .err_into()
        .and_then(async |message| {
            let key = message.body.as_deref().and_then(body::key);
            key.with_context(|| format!("a body is damaged: {message:?}"))
        })
        .try_collect()
        .await?;
    verdict(&each_exactly_once(0..rounds * ITEMS_PER_ROUND, last))?;
    no_bugs_in_logs(&cluster, &[])
}

#[tokio::test]
async fn a_transaction_is_done_as_a_whole_or_not_at_all() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;
    let [from, to, full] = ["from", "to", "full"];
    for queue in [from, to] {
        client.declare_queue(queue).send().await?;
    }
    client.declare_queue(full).max_length(1).send().await?;
    client.publish(full, "filled").await?;
    client
        .publish_all(from, ["one", "two", "three"].map(Message::new))
        .await?;
    let held = client.lease(from).max(2).send().await?;
    let gone = client.lease(from).send().await?.pop().context("no message")?;
    let [one, two] = [0, 1].map(|place: usize| held[place].token());
    let stale = gone.token().to_owned();
    gone.ack().await?;
    let before = counts(&client, [from, to, full]).await?;

    let acks = || client.transaction().ack(one).ack(two);
    let refused = [
        (
            acks().publish(to, "a").publish(full, "b"),
            TransactionPart::Publish(1),
            Reason::QueueFull,
        ),
        (
            acks().publish(to, "a").publish("nowhere", "b"),
            TransactionPart::Publish(1),
            Reason::QueueNotFound,
        ),
        (
            acks().ack(stale.as_str()).publish(to, "a"),
            TransactionPart::Settlement(2),
            Reason::StaleLease,
        ),
    ];
    for (transaction, part, reason) in refused {
        let error = transaction
            .commit()
            .await
            .expect_err("a part of it cannot be done");
        let told = error.refusal().and_then(Refusal::refused_part);
        ensure!(told == Some(RefusedPart { part, reason }), "{error}");
        ensure!(
            counts(&client, [from, to, full]).await? == before,
            "a part of it was done: {error}"
        );
    }

    harm::replace_leader(&mut cluster).await?;
    let done = acks().publish(to, "a").publish(to, "b").commit().await?;
    ensure!(done.settled.len() == 2 && done.published.len() == 2, "{done:?}");
    let index = done.commit.log_index;
    ensure!(
        done.published
            .iter()
            .all(|published| published.commit.log_index == index),
        "it is several entries: {done:?}"
    );
    let [from, to, _] = counts(&client, [from, to, full]).await?;
    ensure!(from.acked == 3 && to.ready == 2, "{from:?}, {to:?}");
    Ok(())
}

async fn counts<const N: usize>(client: &Client, queues: [&str; N]) -> Result<[QueueCounts; N]> {
    let mut counts = [QueueCounts::default(); N];
    for (counts, queue) in counts.iter_mut().zip(queues) {
        *counts = client.describe_queue(queue).await?.counts;
    }
    Ok(counts)
}

/// Two workers for each pair of neighbours.
fn hops() -> Vec<Hop> {
    let pairs = CHAIN.windows(2);
    pairs
        .flat_map(|pair| {
            let (from, to) = (pair[0], pair[1]);
            [Way::Pushed, Way::Pulled].map(|way| Hop { from, to, way })
        })
        .collect()
}

/// Waits until so many items have come to the end of the chain.
async fn arrived(cluster: &Cluster, client: &Client, count: u64) -> Result<()> {
    cluster
        .wait_until(&format!("{count} items at the end"), async || {
            let counts = client.describe_queue(CHAIN[2]).await.ok()?.counts;
            (counts.published >= count).then_some(())
        })
        .await
}

/// Passes on what it gets, for ever.
async fn work(hop: Hop, endpoints: Vec<String>) -> Result<()> {
    let client = Client::builder().endpoints(endpoints).connect_lazy()?;
    loop {
        match hop.way {
            Way::Pushed => {
                let consume = client.consume(hop.from).prefetch(8).lease(LEASE);
                let Ok(mut consumer) = consume.open().await else {
                    continue;
                };
                while let Some(Ok(delivery)) = consumer.next().await {
                    pass_on(hop, delivery).await;
                }
            }
            Way::Pulled => {
                let lease = client.lease(hop.from).max(8).lease(LEASE);
                let deliveries = lease.wait(Duration::from_secs(1)).send().await;
                for delivery in deliveries.unwrap_or_default() {
                    pass_on(hop, delivery).await;
                }
            }
        }
    }
}

/// Acks and publishes as one. Refused, or of unknown outcome and not done, it
/// comes again.
async fn pass_on(hop: Hop, mut delivery: Delivery) {
    let item = delivery.body().clone();
    let _ = delivery.ack_and().publish(hop.to, item).commit().await;
}
