//! Every feature is state: it is the same on all nodes and after everything that
//! can happen to them, and goes on as it was.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::TryStreamExt as _;
use quorate_client::{
    Binding, Client, Consumer, Delivery, Destination, ExchangeInfo, ExchangeKind, HeaderMatch, Message,
    MessageInfo, MessageState, QueueInfo, Reason, Schedule, Selector, Target,
};
use quorate_test_cluster::Cluster;
use quorate_tests::checker::{nothing_is_forgotten, verdict};
use quorate_tests::converge::Hashes;
use quorate_tests::harm;
use quorate_tests::trial::{no_bugs_in_logs, small_snapshots};
use quorate_tests::views::seen;

/// Longer than the test: what has this length does not end by itself.
const LONG: Duration = Duration::from_secs(3_600);

/// Everything that can be seen of a broker.
#[derive(Debug, PartialEq)]
struct Seen {
    queues: Vec<QueueInfo>,
    exchanges: Vec<ExchangeInfo>,
    messages: BTreeMap<String, Vec<MessageInfo>>,
}

/// What the test holds while the cluster suffers.
struct Hands {
    /// Of the queue with the single active consumer: the active one, and the
    /// delivery that it has not settled.
    active: (Consumer, Delivery),
    _standby: Consumer,
    /// Of a group whose first message was pulled.
    grouped: Delivery,
    /// Log index of a redrive.
    redrive: u64,
}

#[tokio::test(flavor = "multi_thread")]
async fn every_feature_is_the_same_after_snapshots_restarts_and_a_new_node() -> Result<()> {
    let mut cluster = small_snapshots(3).start().await?;
    let client = cluster.client().await?;
    let hashes = Hashes::default();
    let hands = build(&client).await?;
    let before = see(&cluster, &client).await?;
    hashes.converge(&cluster).await?;

    harm::snapshot_all(&cluster, &client, &hashes).await?;
    is_as_before(&cluster, &client, &hashes, &before)
        .await
        .context("after a snapshot")?;
    harm::replace_leader(&mut cluster).await?;
    is_as_before(&cluster, &client, &hashes, &before)
        .await
        .context("after the death of the leader")?;
    harm::restart_all(&mut cluster).await?;
    is_as_before(&cluster, &client, &hashes, &before)
        .await
        .context("after a restart of all")?;
    let node = harm::rejoin_empty(&mut cluster, &client).await?;
    harm::lead(&cluster, &client, node).await?;
    is_as_before(&cluster, &client, &hashes, &before)
        .await
        .context("on a node that was empty")?;

    // And it goes on from there.
    orders_go_on(&client, hands.grouped).await?;
    consumers_go_on(&client, hands.active).await?;
    windows_go_on(&client).await?;
    schedules_go_on(&client).await?;
    dead_letters_go_on(&cluster, &client, hands.redrive).await?;
    routes_go_on(&client).await?;
    hashes.converge(&cluster).await?;
    no_bugs_in_logs(&cluster, &[])
}

async fn build(client: &Client) -> Result<Hands> {
    build_exchanges(client).await?;
    build_windows(client).await?;
    let grouped = build_orders(client).await?;
    let redrive = build_dead_letters(client).await?;

    client.declare_queue("later").send().await?;
    let reminder = Message::new("remind").dedup_id("reminder").delay(LONG);
    client.publish("later", reminder).await?;
    client.declare_queue("paused").send().await?;
    client.pause_queue("paused").await?;
    client.publish("paused", "patience").await?;

    let single = client.declare_queue("single").single_active_consumer(true);
    single.lease(LONG).send().await?;
    client
        .publish_all("single", ["one", "two"].map(Message::new))
        .await?;
    let consume = || client.consume("single").prefetch(1);
    let mut active = consume().name("first").open().await?;
    let held = active.next().await.context("the consumer has ended")??;
    let standby = consume().name("second").open().await?;
    Ok(Hands {
        active: (active, held),
        _standby: standby,
        grouped,
        redrive,
    })
}

/// A topic leads to a headers exchange with an alternate one, and a direct one
/// to a queue.
async fn build_exchanges(client: &Client) -> Result<()> {
    for queue in ["matched", "rest", "keyed"] {
        client.declare_queue(queue).send().await?;
    }
    for (name, kind) in [
        ("others", ExchangeKind::Fanout),
        ("topic", ExchangeKind::Topic),
        ("direct", ExchangeKind::Direct),
    ] {
        client.declare_exchange(name, kind).send().await?;
    }
    let headers = client.declare_exchange("headers", ExchangeKind::Headers);
    headers.alternate_exchange("others").send().await?;
    let vip = HeaderMatch::any().header("vip", "yes").present("urgent");
    for binding in [
        Binding::new("topic", Destination::exchange("headers")).routing_key("orders.#"),
        Binding::new("headers", "matched").headers(vip),
        Binding::new("others", "rest"),
        Binding::new("direct", "keyed").routing_key("key"),
    ] {
        client.bind(binding).await?;
    }
    Ok(())
}

/// Dedup ids of a message that waits, and of one that was acked.
async fn build_windows(client: &Client) -> Result<()> {
    client.declare_queue("once").dedup_window(LONG).send().await?;
    client
        .publish("once", Message::new("acked").dedup_id("acked"))
        .await?;
    let delivery = client.lease("once").send().await?.pop().context("no message")?;
    delivery.ack().await?;
    client
        .publish("once", Message::new("waits").dedup_id("waits"))
        .await?;
    let exchange = client.declare_exchange("once", ExchangeKind::Fanout);
    exchange.dedup_window(LONG).send().await?;
    client.bind(Binding::new("once", "rest")).await?;
    client
        .publish(Target::exchange("once"), Message::new("event").dedup_id("event"))
        .await?;
    Ok(())
}

/// Priorities that age, and three groups: one waits for a retry, of one a
/// message is held, one is free.
async fn build_orders(client: &Client) -> Result<Delivery> {
    let declare = client.declare_queue("priorities").priority_ageing(LONG);
    declare.send().await?;
    for priority in [3, 9, 0, 6] {
        let message = Message::new(format!("priority {priority}")).priority(priority);
        client.publish("priorities", message).await?;
    }
    let weights = BTreeMap::from([("free".to_owned(), 5)]);
    let declare = client.declare_queue("groups").group_weights(weights);
    declare.lease(LONG).send().await?;
    for group in ["retry", "held", "free"] {
        let messages = (1..=3).map(|number| Message::new(format!("{group} {number}")).group(group));
        client.publish_all("groups", messages).await?;
    }
    let mut held = None;
    for delivery in client.lease("groups").max(3).send().await? {
        match delivery.group() {
            Some("retry") => drop(delivery.nack_after(LONG, "later").await?),
            Some("held") => held = Some(delivery),
            _ => drop(delivery.release().await?),
        }
    }
    held.context("a group gave nothing")
}

/// A dead set, a message that a redrive set free, and letters that wait for
/// room.
async fn build_dead_letters(client: &Client) -> Result<u64> {
    client.declare_queue("dead").max_deliveries(1).send().await?;
    let messages = ["stays dead", "lives again"].map(Message::new);
    let ids = client.publish_all("dead", messages).await?.message_ids;
    for delivery in client.lease("dead").max(2).send().await? {
        delivery.nack("no disk").await?;
    }
    let redriven = client.redrive_messages("dead", [&ids[1]], None).await?;
    for result in &redriven.results {
        ensure!(result.result.is_ok(), "{result:?}");
    }

    client.declare_queue("full").max_length(1).send().await?;
    client.publish("full", "filled").await?;
    let letters = client.declare_queue("letters").dead_letter_queue("full");
    letters.send().await?;
    client
        .publish_all("letters", ["first", "second"].map(Message::new))
        .await?;
    for delivery in client.lease("letters").max(2).send().await? {
        delivery.dead_letter("nobody wants it").await?;
    }
    let counts = client.describe_queue("letters").await?.counts;
    ensure!(counts.dead_letter_backlog == 2, "{counts:?}");
    Ok(redriven.commit.log_index)
}

/// All that the leader shows, but for what consumers change by coming back: the
/// node that they are connected to, and whose turn it is. All nodes show the
/// same messages.
async fn see(cluster: &Cluster, client: &Client) -> Result<Seen> {
    let mut queues: Vec<QueueInfo> = client.list_queues().try_collect().await?;
    let exchanges: Vec<ExchangeInfo> = client.list_exchanges().try_collect().await?;
    let mut messages = BTreeMap::new();
    for queue in &mut queues {
        queue.active_consumer = None;
        queue.read_index = 0;
        let mut here: Vec<MessageInfo> = client
            .browse(&queue.name)
            .with_content()
            .messages()
            .try_collect()
            .await?;
        for endpoint in cluster.endpoints() {
            let there = client.browse(&queue.name).with_content().at(&endpoint);
            let there: Vec<MessageInfo> = there.messages().try_collect().await?;
            ensure!(there == here, "{endpoint} shows {there:?} instead of {here:?}");
        }
        verdict(&nothing_is_forgotten(&here.iter().map(seen).collect::<Vec<_>>()))?;
        for message in &mut here {
            if let Some(lease) = &mut message.lease {
                lease.node_id = None;
            }
        }
        messages.insert(queue.name.clone(), here);
    }
    Ok(Seen {
        queues,
        exchanges,
        messages,
    })
}

/// Waits until the consumers are back and all nodes agree, and compares.
async fn is_as_before(cluster: &Cluster, client: &Client, hashes: &Hashes, before: &Seen) -> Result<()> {
    cluster
        .wait_until("the consumers", async || {
            let queue = client.describe_queue("single").await.ok()?;
            (queue.counts.consumers == 2 && queue.active_consumer.is_some()).then_some(())
        })
        .await?;
    hashes.converge(cluster).await?;
    let now = see(cluster, client).await?;
    for (before, now) in before.queues.iter().zip(&now.queues) {
        ensure!(before == now, "{before:#?}\nbecame {now:#?}");
    }
    for (queue, before) in &before.messages {
        let now = now.messages.get(queue);
        ensure!(Some(before) == now, "{queue}: {before:#?}\nbecame {now:#?}");
    }
    ensure!(*before == now, "{before:#?}\nbecame {now:#?}");
    Ok(())
}

/// Bodies of all that a queue gives now, acked one by one.
async fn take_all(client: &Client, queue: &str) -> Result<Vec<String>> {
    let mut bodies = Vec::new();
    while let Some(delivery) = client.lease(queue).send().await?.pop() {
        bodies.push(String::from_utf8_lossy(delivery.body()).into_owned());
        delivery.ack().await?;
    }
    Ok(bodies)
}

async fn gives(client: &Client, queue: &str, expected: &[&str]) -> Result<()> {
    let bodies = take_all(client, queue).await?;
    ensure!(
        bodies == expected,
        "{queue} gives {bodies:?} instead of {expected:?}"
    );
    Ok(())
}

async fn orders_go_on(client: &Client, held: Delivery) -> Result<()> {
    let by_priority = ["priority 9", "priority 6", "priority 3", "priority 0"];
    gives(client, "priorities", &by_priority).await?;
    gives(client, "groups", &["free 1", "free 2", "free 3"]).await?;
    held.ack().await.context("a lease did not outlive it all")?;
    gives(client, "groups", &["held 2", "held 3"]).await?;
    let retry: Vec<MessageInfo> = client.browse("groups").messages().try_collect().await?;
    let first = retry.first().context("a group is gone")?;
    ensure!(
        first.state == MessageState::Delayed && first.last_error.as_deref() == Some("later"),
        "{first:?}"
    );
    let now = client.reschedule_messages("groups", [&first.message_id], Schedule::Now);
    for result in now.await?.results {
        result.result?;
    }
    gives(client, "groups", &["retry 1", "retry 2", "retry 3"]).await
}

async fn consumers_go_on(client: &Client, (active, held): (Consumer, Delivery)) -> Result<()> {
    let error = client
        .lease("single")
        .send()
        .await
        .expect_err("it has its consumer");
    ensure!(error.reason() == Some(Reason::SingleActiveConsumer), "{error}");
    held.ack().await.context("a lease did not outlive it all")?;
    // The consumers of this test come from one client. Whose turn it is after
    // both were away is theirs: the second message goes to one of them.
    let counts = client.describe_queue("single").await?.counts;
    ensure!(counts.acked == 1 && counts.leased == 1, "{counts:?}");
    active.set_credit(0).await?;
    Ok(())
}

async fn windows_go_on(client: &Client) -> Result<()> {
    for (id, state) in [("acked", MessageState::Acked), ("waits", MessageState::Ready)] {
        let again = client.publish("once", Message::new("again").dedup_id(id)).await?;
        ensure!(again.duplicate() == Some(state), "{id}: {again:?}");
        if state == MessageState::Ready {
            let first = client.get_message("once", Selector::dedup_id(id));
            let first = first.send().await?.message_id;
            ensure!(again.message_id() == first, "{again:?} instead of {first}");
        }
    }
    let again = Message::new("again").dedup_id("event");
    let again = client.publish(Target::exchange("once"), again).await?;
    ensure!(again.duplicate() == Some(MessageState::Ready), "{again:?}");
    gives(client, "once", &["waits"]).await
}

async fn schedules_go_on(client: &Client) -> Result<()> {
    gives(client, "later", &[]).await?;
    let reminder = Selector::dedup_id("reminder");
    let found = client.get_message("later", reminder.clone()).send().await?;
    ensure!(found.state == MessageState::Delayed, "{found:?}");
    let now = client.reschedule_messages("later", [reminder], Schedule::Now);
    for result in now.await?.results {
        result.result?;
    }
    gives(client, "later", &["remind"]).await?;
    gives(client, "paused", &[]).await?;
    client.resume_queue("paused").await?;
    gives(client, "paused", &["patience"]).await
}

async fn dead_letters_go_on(cluster: &Cluster, client: &Client, redrive: u64) -> Result<()> {
    let undone = client.undo_redrive("dead", redrive).await?;
    ensure!(undone.count == 1, "{undone:?}");
    gives(client, "dead", &[]).await?;
    let dead: Vec<MessageInfo> = client.browse("dead").messages().try_collect().await?;
    for message in &dead {
        ensure!(
            message.state == MessageState::Dead && message.first_error.as_deref() == Some("no disk"),
            "{message:?}"
        );
    }
    ensure!(dead.len() == 2, "{dead:?}");

    // One after the other, as room is made.
    let mut letters = take_all(client, "full").await?;
    while letters.len() < 3 {
        cluster
            .wait_until("the next letter", async || {
                let counts = client.describe_queue("full").await.ok()?.counts;
                (counts.ready == 1).then_some(())
            })
            .await?;
        letters.extend(take_all(client, "full").await?);
    }
    ensure!(letters == ["filled", "first", "second"], "{letters:?}");
    Ok(())
}

async fn routes_go_on(client: &Client) -> Result<()> {
    gives(client, "rest", &["event"]).await?;
    let topic = Target::exchange("topic");
    let vip = Message::new("vip").routing_key("orders.eu").header("vip", "yes");
    let other = Message::new("other").routing_key("orders");
    let lost = Message::new("lost").routing_key("nowhere");
    let published = client.publish_all(topic, [vip, other, lost]).await?;
    ensure!(published.unroutable == [2], "{published:?}");
    let keyed = Message::new("keyed").routing_key("key");
    client.publish(Target::exchange("direct"), keyed).await?;
    for (queue, body) in [("matched", "vip"), ("rest", "other"), ("keyed", "keyed")] {
        gives(client, queue, &[body]).await?;
    }
    Ok(())
}
