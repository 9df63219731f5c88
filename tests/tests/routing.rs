//! Exchanges route as their kind says, and one publish is one entry.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use quorate_client::{Binding, Client, Destination, ExchangeKind, HeaderMatch, Message, Reason, Target};
use quorate_test_cluster::Cluster;
use quorate_tests::converge::Hashes;
use quorate_tests::harm;

/// Where a message went: the names of the queues that hold it.
type Places = BTreeSet<String>;

#[tokio::test]
async fn exchanges_of_every_kind_route_what_they_should() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;
    topology(&client).await?;
    routes(&client).await?;

    // The same on the nodes that are left, and on nodes that come back.
    let leader = cluster.leader().await?;
    cluster.kill(leader).await?;
    routes(&client).await?;
    cluster.restart(leader).await?;
    harm::restart_all(&mut cluster).await?;
    routes(&client).await?;
    Hashes::default().converge(&cluster).await?;
    Ok(())
}

#[tokio::test]
async fn what_has_no_route_is_named_or_refused() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;
    topology(&client).await?;
    let routed = || Message::new("routed").routing_key("red");
    let lost = || Message::new("lost").routing_key("nobody");
    let published = client
        .publish_all(Target::exchange("direct"), [routed(), lost(), routed()])
        .await?;
    ensure!(published.unroutable == [1], "{published:?}");
    ensure!(places(&client, &published.message_ids[1]).await?.is_empty());

    let before = client.describe_queue("red").await?.counts;
    let mandatory = Target::exchange("direct").mandatory();
    let error = client
        .publish_all(mandatory, [routed(), lost()])
        .await
        .expect_err("one has no route");
    ensure!(error.reason() == Some(Reason::Unroutable), "{error}");
    let after = client.describe_queue("red").await?.counts;
    ensure!(before == after, "a refused publish was done: {after:?}");
    let exchange = client.describe_exchange("direct").await?;
    ensure!(exchange.unroutable == 1, "{exchange:?}");

    let error = client.publish(Target::exchange("nowhere"), "x").await;
    let reason = error.expect_err("there is no such exchange").reason();
    ensure!(reason == Some(Reason::ExchangeNotFound), "{reason:?}");
    Ok(())
}

#[tokio::test]
async fn dead_letters_are_routed_by_an_exchange() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;
    for queue in ["europe", "archive"] {
        client.declare_queue(queue).send().await?;
    }
    client
        .declare_exchange("letters", ExchangeKind::Topic)
        .send()
        .await?;
    for (queue, pattern) in [("europe", "eu.#"), ("archive", "#")] {
        client
            .bind(Binding::new("letters", queue).routing_key(pattern))
            .await?;
    }
    let orders = client.declare_queue("orders").dead_letter_exchange("letters");
    orders.send().await?;
    let message = Message::new("order").routing_key("eu.paid").header("order", "9");
    let published = client.publish("orders", message).await?;
    let delivery = client.lease("orders").send().await?.pop().context("no message")?;
    delivery.dead_letter("no such item").await?;

    harm::replace_leader(&mut cluster).await?;
    for queue in ["europe", "archive"] {
        let letter = client.lease(queue).send().await?.pop();
        let letter = letter.with_context(|| format!("{queue} has no letter"))?;
        let from = letter.dead_letter_info().context("it does not say where from")?;
        ensure!(
            letter.message_id() == published.message_id()
                && letter.body() == "order"
                && letter.headers().get("order").is_some_and(|order| order == "9"),
            "another letter came: {letter:?}"
        );
        ensure!(
            from.origin_queue == "orders"
                && from.reason == "rejected"
                && from.last_error.as_deref() == Some("no such item"),
            "{from:?}"
        );
        letter.ack().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_fan_out_to_a_thousand_queues_is_one_entry_and_one_body() -> Result<()> {
    const QUEUES: u64 = 1_000;
    const BODY_BYTES: usize = 4 << 20;
    let mut cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;
    client
        .declare_exchange("everybody", ExchangeKind::Fanout)
        .send()
        .await?;
    stream::iter(0..QUEUES)
        .map(|number| {
            let (client, queue) = (client.clone(), format!("queue {number:04}"));
            async move {
                client.declare_queue(&queue).send().await?;
                client.bind(Binding::new("everybody", &queue)).await
            }
        })
        .buffer_unordered(100)
        .try_collect::<Vec<_>>()
        .await?;

    let before = Hashes::default().converge(&cluster).await?;
    let published = client
        .publish(Target::exchange("everybody"), vec![7; BODY_BYTES])
        .await?;
    let after = Hashes::default().converge(&cluster).await?;
    // Nodes may have written of themselves meanwhile, a few times.
    let entries = after.last_log_index - before.last_log_index;
    let within = before.last_log_index < published.commit.log_index;
    ensure!(
        within && entries < 10,
        "entry {}, {entries} entries: {before:?}, then {after:?}",
        published.commit.log_index
    );
    let grown = after.log_bytes - before.log_bytes;
    ensure!(
        grown < 2 * BODY_BYTES as u64,
        "the log has grown by {grown} bytes"
    );

    // The one body outlives its log entry, and is there for all of them.
    harm::snapshot_all(&cluster, &client, &Hashes::default()).await?;
    harm::restart_all(&mut cluster).await?;
    let disk = cluster.status(0).await?.disk_bytes;
    ensure!(
        disk < 20 * BODY_BYTES as u64,
        "{QUEUES} messages with one body take {disk} bytes"
    );
    for number in [0, QUEUES / 2, QUEUES - 1] {
        let delivery = client.lease(format!("queue {number:04}")).send().await?.pop();
        ensure!(
            delivery.as_ref().is_some_and(|delivery| {
                delivery.body().len() == BODY_BYTES && delivery.exchange() == Some("everybody")
            }),
            "queue {number} gives {delivery:?}"
        );
        if let Some(delivery) = delivery {
            delivery.ack().await?;
        }
    }
    let all: Vec<_> = client.list_queues().try_collect().await?;
    let ready: u64 = all.iter().map(|queue| queue.counts.ready).sum();
    ensure!(ready == QUEUES - 3, "{ready} of {QUEUES} messages are left");
    Ok(())
}

/// Exchanges of all kinds and the queues behind them:
///
/// - `direct`: keys `red` and `blue` to queues of that name, `blue` to `red` too;
/// - `all`: a fanout to `red`, `blue` and the exchange `topic`;
/// - `topic`: `eu.*` to `europe`, `#.paid` to `paid`, `#` to the exchange `all`, so
///   that two of them lead to each other;
/// - `form`: headers, all of `kind=invoice` and any `total` to `invoices`, any of
///   `urgent=yes` and `vip=yes` to `fast`; what matches neither goes on to `rest`;
/// - `rest`: a fanout to `leftovers`.
async fn topology(client: &Client) -> Result<()> {
    let queues = ["red", "blue", "europe", "paid", "invoices", "fast", "leftovers"];
    for queue in queues {
        client.declare_queue(queue).send().await?;
    }
    let exchanges = [
        ("rest", ExchangeKind::Fanout),
        ("direct", ExchangeKind::Direct),
        ("all", ExchangeKind::Fanout),
        ("topic", ExchangeKind::Topic),
    ];
    for (name, kind) in exchanges {
        client.declare_exchange(name, kind).send().await?;
    }
    let form = client.declare_exchange("form", ExchangeKind::Headers);
    form.alternate_exchange("rest").send().await?;

    let invoice = HeaderMatch::all().header("kind", "invoice").present("total");
    let fast = HeaderMatch::any().header("urgent", "yes").header("vip", "yes");
    let bindings = [
        Binding::new("direct", "red").routing_key("red"),
        Binding::new("direct", "blue").routing_key("blue"),
        Binding::new("direct", "red").routing_key("blue"),
        Binding::new("all", "red"),
        Binding::new("all", "blue"),
        Binding::new("all", Destination::exchange("topic")),
        Binding::new("topic", "europe").routing_key("eu.*"),
        Binding::new("topic", "paid").routing_key("#.paid"),
        Binding::new("topic", Destination::exchange("all")).routing_key("loop"),
        Binding::new("form", "invoices").headers(invoice),
        Binding::new("form", "fast").headers(fast),
        Binding::new("rest", "leftovers"),
    ];
    for binding in bindings {
        let bound = client.bind(binding.clone()).await?;
        ensure!(bound.created, "{binding:?} was there before");
        ensure!(
            !client.bind(binding.clone()).await?.created,
            "{binding:?} is there twice"
        );
    }
    Ok(())
}

/// Publishes one message for each rule and looks where it went.
async fn routes(client: &Client) -> Result<()> {
    let key = |key: &str| Message::new("m").routing_key(key);
    let header = |name: &str, value: &str| Message::new("m").header(name, value);
    let cases: [(&str, Message, &[&str]); 13] = [
        ("direct", key("red"), &["red"]),
        ("direct", key("blue"), &["red", "blue"]),
        ("direct", key("redd"), &[]),
        ("all", key("x"), &["red", "blue"]),
        ("all", key("eu.paid"), &["red", "blue", "europe", "paid"]),
        ("topic", key("eu.new"), &["europe"]),
        ("topic", key("paid"), &["paid"]),
        ("topic", key("us.ca.paid"), &["paid"]),
        ("topic", key("eu.x.y"), &[]),
        ("topic", key("loop"), &["red", "blue"]),
        (
            "form",
            header("kind", "invoice").header("total", "7"),
            &["invoices"],
        ),
        ("form", header("vip", "yes"), &["fast"]),
        ("form", header("kind", "invoice"), &["leftovers"]),
    ];
    for (exchange, message, expected) in cases {
        let published = client
            .publish(Target::exchange(exchange), message.clone())
            .await?;
        ensure!(
            published.unroutable.is_empty() != expected.is_empty(),
            "{published:?}"
        );
        let found = places(client, published.message_id()).await?;
        let expected: Places = expected.iter().map(|&queue| queue.to_owned()).collect();
        ensure!(
            found == expected,
            "{message:?} to {exchange} is in {found:?} instead of {expected:?}"
        );
    }
    Ok(())
}

/// The queues that hold a message.
async fn places(client: &Client, message: &str) -> Result<Places> {
    let mut places = Places::new();
    let queues: Vec<_> = client.list_queues().try_collect().await?;
    for queue in queues {
        let copies: Vec<_> = client.browse(&queue.name).messages().try_collect().await?;
        let count = copies.iter().filter(|copy| copy.message_id == message).count();
        ensure!(count <= 1, "{} holds {message} {count} times", queue.name);
        if count == 1 {
            places.insert(queue.name);
        }
    }
    Ok(places)
}
