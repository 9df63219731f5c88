//! A queue that is full is full to all publishers alike, to the message.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::TryStreamExt as _;
use jepsen_lite_core::view::Counts;
use quorate_client::{Client, Message, Overflow};
use quorate_test_cluster::Cluster;
use quorate_tests::checker::{Turned, each_exactly_once, never_above, refusals_are_typed, verdict};
use quorate_tests::views::{counts, turned_away};
use quorate_tests::{body, seed};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::JoinSet;

const QUEUE: &str = "jobs";
const LENGTH_MAX: u64 = 1_000;
const PUBLISHERS: u64 = 50;

/// What publishers were told.
#[derive(Default)]
struct Told {
    /// Ids of messages that were taken.
    accepted: Vec<String>,
    turned: Vec<Turned>,
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_publishers_fill_a_queue_to_its_limit_and_not_beyond() -> Result<()> {
    let seed = seed("fifty_publishers_fill_a_queue_to_its_limit_and_not_beyond");
    let cluster = Cluster::start(3).await?;
    let client = declare(&cluster).await?;
    let publishing = all_publishers(cluster.endpoints(), |number, client| {
        fill(client, seed ^ number, number)
    });
    let (told, looks) = watched(&client, publishing).await?;
    let told = told?;

    verdict(&never_above(LENGTH_MAX, &looks))?;
    verdict(&refusals_are_typed(&told.turned))?;
    ensure!(
        told.turned.len() as u64 >= PUBLISHERS,
        "only {} publishes were turned away",
        told.turned.len()
    );
    ensure!(
        told.accepted.len() as u64 == LENGTH_MAX,
        "{} messages were taken",
        told.accepted.len()
    );
    let stored: Vec<String> = client
        .browse(QUEUE)
        .messages()
        .map_ok(|message| message.message_id)
        .try_collect()
        .await?;
    verdict(&each_exactly_once(told.accepted, stored))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_takes_what_its_consumers_make_room_for() -> Result<()> {
    const EACH: u64 = 30;
    let mut cluster = Cluster::start(3).await?;
    let client = declare(&cluster).await?;
    for first in (0..LENGTH_MAX).step_by(100) {
        let messages = (first..first + 100).map(|key| body::of(key).into());
        client.publish_all(QUEUE, messages).await?;
    }
    let publishing = all_publishers(cluster.endpoints(), |number, client| {
        insist(client, (number + 1) * LENGTH_MAX, EACH)
    });
    let consuming = tokio::spawn(consume(client.clone(), LENGTH_MAX + PUBLISHERS * EACH));
    let failover = async {
        let leader = cluster.leader().await?;
        cluster.kill(leader).await?;
        cluster.new_leader(leader).await
    };
    let everything = Box::pin(async { tokio::join!(publishing, consuming, failover) });
    let ((told, consumed, failover), looks) = watched(&client, everything).await?;
    let (told, consumed) = (told?, consumed??);
    failover?;

    verdict(&never_above(LENGTH_MAX, &looks))?;
    verdict(&refusals_are_typed(&told.turned))?;
    ensure!(!told.turned.is_empty(), "the queue was never full");
    let first = 0..LENGTH_MAX;
    let more = (1..=PUBLISHERS).flat_map(|number| number * LENGTH_MAX..number * LENGTH_MAX + EACH);
    verdict(&each_exactly_once(first.chain(more), consumed))?;
    let counts = client.describe_queue(QUEUE).await?.counts;
    ensure!(
        counts.published == LENGTH_MAX + told.accepted.len() as u64 && counts.acked == counts.published,
        "{counts:?}"
    );
    Ok(())
}

async fn declare(cluster: &Cluster) -> Result<Client> {
    let client = cluster.client().await?;
    let declare = client.declare_queue(QUEUE).max_length(LENGTH_MAX);
    declare.overflow(Overflow::Reject).send().await?;
    Ok(client)
}

/// Runs 50 publishers, each with connections of its own, until all have ended.
async fn all_publishers<P>(endpoints: Vec<String>, publish: impl Fn(u64, Client) -> P) -> Result<Told>
where
    P: Future<Output = Result<Told>> + Send + 'static,
{
    let mut publishers = JoinSet::new();
    for number in 0..PUBLISHERS {
        let client = Client::builder().endpoints(endpoints.clone()).connect_lazy()?;
        publishers.spawn(publish(number, client));
    }
    let mut all = Told::default();
    while let Some(told) = publishers.join_next().await {
        let told = told??;
        all.accepted.extend(told.accepted);
        all.turned.extend(told.turned);
    }
    Ok(all)
}

/// Publishes batches, and then single messages until there is no room for one.
async fn fill(client: Client, seed: u64, number: u64) -> Result<Told> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut told = Told::default();
    for key in number * LENGTH_MAX.. {
        let batch = if told.turned.is_empty() {
            rng.random_range(1..=5)
        } else {
            1
        };
        let messages = (0..batch).map(|_| Message::new(body::of(key)));
        match client.publish_all(QUEUE, messages).await {
            Ok(published) => told.accepted.extend(published.message_ids),
            Err(error) => {
                told.turned.push(turned_away(&error));
                if batch == 1 {
                    break;
                }
            }
        }
    }
    Ok(told)
}

/// Publishes `count` messages, each as often as it takes.
async fn insist(client: Client, first: u64, count: u64) -> Result<Told> {
    let mut told = Told::default();
    for key in first..first + count {
        loop {
            let error = match client.publish(QUEUE, body::of(key)).await {
                Ok(published) => break told.accepted.extend(published.message_ids),
                Err(error) => error,
            };
            let turned = turned_away(&error);
            let pause = turned.retry_after;
            told.turned.push(turned);
            tokio::time::sleep(pause.with_context(|| format!("no advice: {error}"))?).await;
        }
    }
    Ok(told)
}

/// Takes messages and acks them until it has `count`; says which.
async fn consume(client: Client, count: u64) -> Result<Vec<u64>> {
    let mut consumer = client.consume(QUEUE).prefetch(32).open().await?;
    let mut fences = BTreeSet::new();
    let (mut keys, mut acks) = (Vec::new(), Vec::new());
    while (keys.len() as u64) < count {
        let delivery = consumer.next().await.context("the consumer has ended")??;
        let key = body::key(delivery.body()).context("a body is damaged")?;
        // One that it acked comes again only if the answer was lost.
        if fences.insert(delivery.fence()) {
            keys.push(key);
        }
        acks.push(delivery.ack());
    }
    for ack in acks {
        ack.await?;
    }
    consumer.close().await;
    Ok(keys)
}

/// Looks at the queue all the time while something is under way.
async fn watched<T>(client: &Client, work: impl Future<Output = T>) -> Result<(T, Vec<Counts>)> {
    let mut looks = Vec::new();
    let mut work = std::pin::pin!(work);
    loop {
        let look = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            client.describe_queue(QUEUE).await
        };
        tokio::select! {
            done = &mut work => return Ok((done, looks)),
            look = look => looks.push(counts(&look?.counts)),
        }
    }
}
