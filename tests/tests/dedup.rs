//! One dedup id is one message, whatever happens to the cluster meanwhile.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use quorate_client::{Binding, Client, ExchangeKind, Message, MessageState, Published, Target};
use quorate_test_cluster::Cluster;
use quorate_tests::converge::Hashes;
use quorate_tests::harm;
use quorate_tests::trial::small_snapshots;
use quorate_tests::worker::Worker;
use tokio::sync::watch;

/// Remembers ids itself.
const QUEUE: &str = "orders";
/// Remembers what goes through it, to queues that remember nothing.
const EXCHANGE: &str = "events";
const BEHIND: [&str; 2] = ["audit", "mail"];
const WINDOW: Duration = Duration::from_secs(3_600);

/// What a publisher was told that insists on one id.
#[derive(Debug, Default)]
struct Told {
    ids: BTreeSet<String>,
    /// Answers that say that it was published before.
    duplicates: u64,
    /// Answers that say that it was not.
    firsts: u64,
    /// Publishes of unknown outcome.
    unknown: u64,
}

#[tokio::test(flavor = "multi_thread")]
async fn one_id_is_one_message_through_everything() -> Result<()> {
    let mut cluster = small_snapshots(3).start().await?;
    let client = cluster.client().await?;
    declare(&client).await?;
    let end = watch::Sender::new(false);
    let mut publishers = Vec::new();
    for target in [Target::queue(QUEUE), Target::exchange(EXCHANGE)] {
        let publish = insist(cluster.endpoints(), target, end.subscribe());
        publishers.push(Worker::start(publish)?);
    }

    taken_again(&cluster, &client).await?;
    harm::replace_leader(&mut cluster).await?;
    taken_again(&cluster, &client).await?;
    harm::restart_all(&mut cluster).await?;
    taken_again(&cluster, &client).await?;
    let node = harm::rejoin_empty(&mut cluster, &client).await?;
    harm::lead(&cluster, &client, node).await?;
    taken_again(&cluster, &client).await?;

    end.send_replace(true);
    for publisher in publishers {
        let told = publisher.end().await??;
        ensure!(
            told.ids.len() == 1 && told.firsts <= 1 && told.firsts + told.unknown >= 1,
            "one id became {told:?}"
        );
        ensure!(told.duplicates > 3, "it was not published often: {told:?}");
    }
    for queue in [QUEUE].iter().chain(&BEHIND) {
        let counts = client.describe_queue(*queue).await?.counts;
        ensure!(
            counts.published == 1 && counts.ready == 1,
            "{queue} holds more than one: {counts:?}"
        );
    }
    Hashes::default().converge(&cluster).await?;
    Ok(())
}

#[tokio::test]
async fn an_answer_to_a_duplicate_says_what_became_of_the_first() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;
    declare(&client).await?;
    let first = publish(&client).await?;
    ensure!(first.duplicate().is_none(), "{first:?}");

    is_answered(&client, &first, MessageState::Ready).await?;
    let delivery = client.lease(QUEUE).send().await?.pop().context("no message")?;
    is_answered(&client, &first, MessageState::Leased).await?;
    delivery.nack_after(WINDOW, "not now").await?;
    is_answered(&client, &first, MessageState::Delayed).await?;
    harm::replace_leader(&mut cluster).await?;
    is_answered(&client, &first, MessageState::Delayed).await?;
    let now = quorate_client::Schedule::Now;
    for result in client
        .reschedule_messages(QUEUE, [first.message_id()], now)
        .await?
        .results
    {
        result.result?;
    }
    let delivery = client.lease(QUEUE).send().await?.pop().context("no message")?;
    delivery.ack().await?;
    is_answered(&client, &first, MessageState::Acked).await?;
    harm::restart_all(&mut cluster).await?;
    is_answered(&client, &first, MessageState::Acked).await?;

    let counts = client.describe_queue(QUEUE).await?.counts;
    ensure!(
        counts.published == 1 && counts.acked == 1 && counts.duplicates == 6,
        "{counts:?}"
    );
    Ok(())
}

async fn declare(client: &Client) -> Result<()> {
    client.declare_queue(QUEUE).dedup_window(WINDOW).send().await?;
    let exchange = client.declare_exchange(EXCHANGE, ExchangeKind::Fanout);
    exchange.dedup_window(WINDOW).send().await?;
    for queue in BEHIND {
        client
            .declare_queue(queue)
            .dedup_window(Duration::ZERO)
            .send()
            .await?;
        client.bind(Binding::new(EXCHANGE, queue)).await?;
    }
    Ok(())
}

/// Publishes one id again and again until it is told to end.
async fn insist(endpoints: Vec<String>, target: Target, end: watch::Receiver<bool>) -> Result<Told> {
    let client = Client::connect(endpoints).await?;
    let mut told = Told::default();
    while !*end.borrow() {
        let message = Message::new("once").dedup_id("the one");
        match client.publish(target.clone(), message).await {
            Ok(published) => {
                if published.duplicate().is_some() {
                    told.duplicates += 1;
                } else {
                    told.firsts += 1;
                }
                told.ids.extend(published.message_ids);
            }
            Err(error) if error.may_have_applied() => told.unknown += 1,
            Err(error) => return Err(error).context("publish once more"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(told)
}

/// Waits until the queue and the exchange have turned some more duplicates away.
async fn taken_again(cluster: &Cluster, client: &Client) -> Result<()> {
    let now = duplicates(client).await?;
    cluster
        .wait_until("more duplicates", async || {
            let more = duplicates(client).await.ok()?;
            more.iter().zip(&now).all(|(more, now)| more > now).then_some(())
        })
        .await
}

async fn duplicates(client: &Client) -> Result<[u64; 2]> {
    Ok([
        client.describe_queue(QUEUE).await?.counts.duplicates,
        client.describe_exchange(EXCHANGE).await?.duplicates,
    ])
}

async fn publish(client: &Client) -> Result<Published> {
    let message = Message::new("once").dedup_id("the one");
    Ok(client.publish(QUEUE, message).await?)
}

/// Publishes the id once more: the answer names the first message and its state.
async fn is_answered(client: &Client, first: &Published, state: MessageState) -> Result<()> {
    let again = publish(client).await?;
    ensure!(
        again.message_ids == first.message_ids && again.duplicate() == Some(state),
        "{again:?} instead of {state} of {first:?}"
    );
    Ok(())
}
