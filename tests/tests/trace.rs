//! "Where is my message?": its whole life, from every node, whoever died.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use quorate_client::{Client, Delivery, Message, Trace, TraceEvent, Traced};
use quorate_proto::v1;
use quorate_test_cluster::{Cluster, wait_until};
use quorate_tests::checker::{traces_are_lives, verdict};
use quorate_tests::converge::Hashes;
use quorate_tests::trial::small_snapshots;
use quorate_tests::views::events;
use quorate_tests::{harm, raw};

const QUEUE: &str = "orders";
const DEAD_LETTERS: &str = "failed";
/// How long a node may take to catch up.
const LIMIT: Duration = Duration::from_secs(30);

/// What happens to the message, queue by queue, and why as far as somebody said.
const LIFE: [(&str, &str, Option<&str>); 17] = [
    (QUEUE, "published", None),
    (QUEUE, "due", None),
    (QUEUE, "leased", None),
    (QUEUE, "nacked", Some("no disk")),
    (QUEUE, "leased", None),
    (QUEUE, "released", None),
    (QUEUE, "leased", None),
    (QUEUE, "lease-expired", None),
    (QUEUE, "leased", None),
    (QUEUE, "dead-lettered", Some("no luck")),
    (DEAD_LETTERS, "arrived", None),
    (DEAD_LETTERS, "leased", None),
    (DEAD_LETTERS, "died", Some("no hope")),
    (DEAD_LETTERS, "redriven", None),
    (DEAD_LETTERS, "moved", None),
    (QUEUE, "arrived", None),
    (QUEUE, "leased", None),
];

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_life_of_a_message_is_known_after_it_is_over() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;
    client.declare_queue(DEAD_LETTERS).send().await?;
    let declare = client.declare_queue(QUEUE).max_deliveries(3);
    declare.dead_letter_queue(DEAD_LETTERS).send().await?;

    let message = Message::new("order 9").dedup_id("order-9").header("order", "9");
    let published = client
        .publish(QUEUE, message.delay(Duration::from_millis(300)))
        .await?;
    let id = published.message_id();
    live(&client, id).await?;

    // While it is held: it can be found by what it is like, too.
    let by_header = client.trace(Traced::header("order", "9")).await?;
    is_told(&by_header, &LIFE)?;

    harm::replace_leader(&mut cluster).await?;
    let held = client.get_message(QUEUE, id).send().await?;
    let fence = held.lease.context("it is not held any more")?.fence;
    let trace = client.trace(id).await?;
    is_told(&trace, &LIFE)?;
    let last = trace.events.last();
    ensure!(
        last.and_then(|event| event.fence) == Some(fence),
        "the last lease is another one: {last:?}"
    );
    is_known_everywhere(&cluster, &Traced::message_id(id), &LIFE).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acked_message_is_traced_after_restarts_and_snapshots() -> Result<()> {
    let mut cluster = small_snapshots(3).start().await?;
    let client = cluster.client().await?;
    client.declare_queue(QUEUE).send().await?;
    let message = Message::new("order 7").dedup_id("order-7");
    let id = client
        .publish(QUEUE, message.clone())
        .await?
        .message_id()
        .to_owned();
    let again = client.publish(QUEUE, message.clone()).await?;
    ensure!(again.message_id() == id, "{again:?}");
    lease(&client, QUEUE).await?.ack().await?;
    let after = client.publish(QUEUE, message).await?;
    ensure!(after.message_id() == id, "{after:?}");
    let hashes = Hashes::default();
    let life = [
        (QUEUE, "published", None),
        (QUEUE, "duplicate", None),
        (QUEUE, "leased", None),
        (QUEUE, "acked", None),
        (QUEUE, "duplicate", None),
    ];

    for round in [
        "at once",
        "after the death of the leader",
        "after a snapshot",
        "after a restart",
    ] {
        match round {
            "after the death of the leader" => {
                harm::replace_leader(&mut cluster).await?;
            }
            "after a snapshot" => harm::snapshot_all(&cluster, &client, &hashes).await?,
            "after a restart" => harm::restart_all(&mut cluster).await?,
            _ => {}
        }
        for traced in [Traced::message_id(&id), Traced::dedup_id("order-7")] {
            is_known_everywhere(&cluster, &traced, &life)
                .await
                .with_context(|| round.to_owned())?;
        }
    }

    // The log of all that is gone now, and one journal with it. The others tell.
    let node = harm::rejoin_empty(&mut cluster, &client).await?;
    let trace = client.trace(&id).await?;
    is_told(&trace, &life)?;
    let address = cluster.endpoint(node);
    let emptied = trace.nodes.iter().find(|told| told.address == address);
    let emptied = emptied.context("the new node does not answer")?;
    ensure!(
        emptied.begins_at_index > trace.events[0].log_index,
        "a node knows what was before it: {emptied:?}"
    );
    ensure!(
        tells(&address, &id).await?.is_empty(),
        "a new node tells of an old message"
    );
    Ok(())
}

/// Lets a message live through [`LIFE`].
async fn live(client: &Client, id: &str) -> Result<()> {
    lease(client, QUEUE).await?.nack("no disk").await?;
    lease(client, QUEUE).await?.release().await?;
    // Longer than the lease: it runs out.
    let short = client.lease(QUEUE).lease(Duration::from_millis(200));
    let kept = short.wait(Duration::from_secs(10)).send().await?;
    ensure!(kept.len() == 1, "{kept:?}");
    lease(client, QUEUE).await?.nack("no luck").await?;
    lease(client, DEAD_LETTERS).await?.dead_letter("no hope").await?;
    // Out of the dead set, and then back to where it came from.
    for _ in 0..2 {
        let redriven = client.redrive_messages(DEAD_LETTERS, [id], None).await?;
        for result in redriven.results {
            result.result?;
        }
    }
    let held = lease(client, QUEUE).await?;
    ensure!(held.message_id() == id && held.body() == "order 9", "{held:?}");
    Ok(())
}

/// One message, when there is one.
async fn lease(client: &Client, queue: &str) -> Result<Delivery> {
    let lease = client.lease(queue).lease(Duration::from_secs(600));
    let mut deliveries = lease.wait(Duration::from_secs(10)).send().await?;
    deliveries.pop().with_context(|| format!("{queue} gives nothing"))
}

/// All nodes together, and each by itself, tell this life of the message.
async fn is_known_everywhere(
    cluster: &Cluster,
    traced: &Traced,
    life: &[(&str, &str, Option<&str>)],
) -> Result<()> {
    let client = cluster.client().await?;
    let together = client.trace(traced.clone()).await?;
    ensure!(together.failed.is_empty(), "{:?}", together.failed);
    ensure!(together.nodes.len() == 3, "{:?}", together.nodes);
    is_told(&together, life)?;
    let TraceEvent { message_id, .. } = &together.events[0];
    for node in 0..3 {
        let mut told = Vec::new();
        let caught_up = wait_until("a node to tell the same", LIMIT, async || {
            told = tells(&cluster.endpoint(node), message_id)
                .await
                .unwrap_or_default();
            let expected = life.iter().map(|(queue, change, _)| (*queue, *change));
            let alike = told.iter().map(|(queue, change)| (&queue[..], &change[..]));
            alike.eq(expected).then_some(())
        });
        let outcome = caught_up.await;
        outcome.with_context(|| format!("node {node} tells {told:?}"))?;
    }
    Ok(())
}

/// What one node tells by itself, of a message whose id is known.
async fn tells(address: &str, message_id: &str) -> Result<Vec<(String, String)>> {
    let message = v1::trace_request::Message::MessageId(message_id.to_owned());
    let request = v1::TraceRequest {
        message: Some(message),
    };
    let told = raw::broker(address).await?.trace(request).await?.into_inner();
    let events = told.events.into_iter();
    Ok(events.map(|event| (event.queue, event.change)).collect())
}

/// The trace tells this life and nothing else, and has no gaps.
fn is_told(trace: &Trace, life: &[(&str, &str, Option<&str>)]) -> Result<()> {
    verdict(&traces_are_lives(&events(&trace.events)))?;
    ensure!(trace.gaps.is_empty(), "{:?}", trace.gaps);
    let told: Vec<(&str, &str)> = trace.events.iter().map(place_and_change).collect();
    let expected: Vec<(&str, &str)> = life.iter().map(|(queue, change, _)| (*queue, *change)).collect();
    ensure!(told == expected, "it tells {told:#?}\ninstead of {expected:#?}");
    for (event, (.., said)) in trace.events.iter().zip(life) {
        ensure!(
            said.is_none() || event.error.as_deref() == *said,
            "{event:?} instead of {said:?}"
        );
    }
    Ok(())
}

fn place_and_change(event: &TraceEvent) -> (&str, &str) {
    (&event.queue, &event.change)
}
