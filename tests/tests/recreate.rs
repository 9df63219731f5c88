//! What was purged or deleted does not come back, whatever stands in its place.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::TryStreamExt as _;
use quorate_client::{Client, Consumer, Delivery, Message, MessageState, Reason, Verdict};
use quorate_test_cluster::Cluster;
use quorate_tests::checker::{each_exactly_once, verdict};
use quorate_tests::harm;

/// How many messages there are in each state.
const EACH: usize = 10;
/// When delayed messages of the first queue are due, and leases on it end.
const SOON: Duration = Duration::from_secs(4);
/// When all of them are over.
const LATER: Duration = Duration::from_secs(5);

/// A queue with messages in every state.
struct Filled {
    /// Of leases that a worker pulled.
    tokens: Vec<String>,
    leased: BTreeSet<String>,
    /// Holds messages of its own.
    consumer: Consumer,
    _held: Vec<Delivery>,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_queue_leaves_nothing_to_one_of_the_same_name() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;
    for leader_dies in [false, true] {
        let queue = if leader_dies { "failing over" } else { "steady" };
        let filled = fill(&client, queue).await?;
        let old = client.describe_queue(queue).await?;
        let removed = client.delete_queue(queue).send().await?;
        ensure!(
            removed.count == 5 * EACH as u64,
            "{} messages were deleted of {old:?}",
            removed.count
        );
        if leader_dies {
            harm::replace_leader(&mut cluster).await?;
        }
        is_cancelled(filled.consumer).await?;
        let declared = client.declare_queue(queue).send().await?;
        ensure!(declared.created, "{queue} still exists");
        are_stale(&client, &filled.tokens).await?;

        let new = client.describe_queue(queue).await?;
        ensure!(new.id != old.id, "{queue} has its old id");
        ensure!(
            new.counts == quorate_client::QueueCounts::default(),
            "{queue} begins with {:?}",
            new.counts
        );
        let published = publish_marked(&client, queue).await?;
        let seen = take_until_marker(&client, queue).await?;
        verdict(&each_exactly_once(published, seen)).context(queue)?;
        are_stale(&client, &filled.tokens).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_purged_does_not_come_back_and_what_was_held_does() -> Result<()> {
    const QUEUE: &str = "purged";
    let mut cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;
    let filled = fill(&client, QUEUE).await?;
    filled.consumer.close().await;
    let all = [MessageState::Ready, MessageState::Delayed, MessageState::Dead];
    let removed = client.purge_queue(QUEUE).states(all).send().await?;
    // What the consumer held was ready again.
    ensure!(
        removed.count == 4 * EACH as u64,
        "{} messages were purged",
        removed.count
    );
    let left: Vec<String> = client
        .browse(QUEUE)
        .messages()
        .map_ok(|message| message.message_id)
        .try_collect()
        .await?;
    verdict(&each_exactly_once(filled.leased.clone(), left)).context("what the purge left")?;

    harm::replace_leader(&mut cluster).await?;
    let published = publish_marked(&client, QUEUE).await?;
    let seen = take_until_marker(&client, QUEUE).await?;
    // Their leases have run out meanwhile.
    verdict(&each_exactly_once(
        published.into_iter().chain(filled.leased),
        seen,
    ))?;
    are_stale(&client, &filled.tokens).await
}

/// Declares a queue and puts messages into each state, and as many into the
/// hands of a consumer.
async fn fill(client: &Client, queue: &str) -> Result<Filled> {
    client.declare_queue(queue).send().await?;
    publish(client, queue, |body| body).await?;
    for delivery in client.lease(queue).max(EACH as u32).send().await? {
        delivery.dead_letter("to be in the dead set").await?;
    }
    publish(client, queue, |body| body).await?;
    let mut consumer = client
        .consume(queue)
        .prefetch(EACH as u32)
        .lease(SOON)
        .open()
        .await?;
    let mut held = Vec::new();
    for _ in 0..EACH {
        held.push(consumer.next().await.context("the consumer has ended")??);
    }
    consumer.set_credit(0).await?;
    let leased = publish(client, queue, |body| body).await?;
    let pulled = client.lease(queue).max(EACH as u32).lease(SOON).send().await?;
    let tokens: Vec<String> = pulled
        .iter()
        .map(|delivery| delivery.token().to_owned())
        .collect();
    ensure!(tokens.len() == EACH, "{} messages were leased", tokens.len());
    publish(client, queue, |body| body).await?;
    publish(client, queue, |body| body.delay(SOON)).await?;
    let counts = client.describe_queue(queue).await?.counts;
    let states = [counts.ready, counts.delayed, counts.dead, counts.leased];
    ensure!(
        states == [EACH as u64, EACH as u64, EACH as u64, 2 * EACH as u64],
        "{counts:?}"
    );
    Ok(Filled {
        tokens,
        leased: leased.into_iter().collect(),
        consumer,
        _held: held,
    })
}

async fn publish(client: &Client, queue: &str, change: impl Fn(Message) -> Message) -> Result<Vec<String>> {
    let messages = (0..EACH).map(|number| change(Message::new(format!("{queue} {number}"))));
    Ok(client.publish_all(queue, messages).await?.message_ids)
}

/// Publishes messages, and one that comes when everything old would have come.
async fn publish_marked(client: &Client, queue: &str) -> Result<Vec<String>> {
    let mut ids = publish(client, queue, |body| body).await?;
    let marker = client.publish(queue, Message::new("marker").delay(LATER)).await?;
    ids.extend(marker.message_ids);
    Ok(ids)
}

/// Takes and acks messages up to the marker; says which.
async fn take_until_marker(client: &Client, queue: &str) -> Result<Vec<String>> {
    let mut seen = Vec::new();
    loop {
        let deliveries = client
            .lease(queue)
            .max(100)
            .wait(Duration::from_secs(60))
            .send()
            .await?;
        ensure!(!deliveries.is_empty(), "the marker does not come after {seen:?}");
        let mut is_last = false;
        for delivery in deliveries {
            seen.push(delivery.message_id().to_owned());
            is_last |= &delivery.body()[..] == b"marker";
            delivery.ack().await?;
        }
        if is_last {
            return Ok(seen);
        }
    }
}

/// Nothing can be done any more with these tokens.
async fn are_stale(client: &Client, tokens: &[String]) -> Result<()> {
    let reason = || "too late".to_owned();
    let verdicts = [
        Verdict::Ack,
        Verdict::Nack {
            delay: None,
            reason: reason(),
        },
        Verdict::Release,
        Verdict::DeadLetter { reason: reason() },
        Verdict::Extend { lease: None },
    ];
    for verdict in verdicts {
        let settlements = tokens.iter().map(|token| (token.clone(), verdict.clone()));
        for result in client.settle(settlements).await? {
            let refused = result
                .as_ref()
                .is_err_and(|error| error.reason() == Some(Reason::StaleLease));
            ensure!(refused, "{verdict:?} with an old token: {result:?}");
        }
    }
    Ok(())
}

/// The consumer ends, and says that its queue is gone.
async fn is_cancelled(mut consumer: Consumer) -> Result<()> {
    loop {
        match consumer.next().await {
            Some(Ok(_)) => {}
            Some(Err(error)) if error.reason() == Some(Reason::ConsumerCancelled) => return Ok(()),
            other => anyhow::bail!("the consumer of a deleted queue was told {other:?}"),
        }
    }
}
