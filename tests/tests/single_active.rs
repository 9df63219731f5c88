//! A queue with a single active consumer goes on when that one is stuck.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use quorate_client::{Client, Delivery};
use quorate_test_cluster::Cluster;
use quorate_tests::body;
use quorate_tests::checker::{self, activity_passes_on, one_consumer_is_active, verdict};
use quorate_tests::history::{MessageId, Outcome, Publish, Recorder, Wish};
use quorate_tests::worker::Worker;
use tokio::sync::watch;

const QUEUE: &str = "ledger";
const CONSUMERS: u32 = 3;
const MESSAGES: u64 = 60;
/// A consumer is stuck with this delivery of its own, counted from one.
const STUCK_AT: usize = 5;
const LEASE: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn delivery_goes_on_although_each_consumer_gets_stuck_once() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;
    let declare = client.declare_queue(QUEUE).single_active_consumer(true);
    declare.max_deliveries(0).send().await?;

    let recorder = Recorder::default();
    let end = watch::Sender::new(false);
    let mut workers = Vec::new();
    for number in 0..CONSUMERS {
        let work = work(number, cluster.endpoints(), recorder.clone(), end.subscribe());
        workers.push(Worker::start(work)?);
    }
    cluster
        .wait_until("all consumers", async || {
            let counts = client.describe_queue(QUEUE).await.ok()?.counts;
            (counts.consumers == u64::from(CONSUMERS)).then_some(())
        })
        .await?;
    for key in 0..MESSAGES {
        let outcome = Outcome::of(client.publish(QUEUE, body::of(key)).await, |published| {
            MessageId::of(published.message_id())
        });
        recorder.publish(Publish {
            key,
            publisher: 0,
            queue: QUEUE.to_owned(),
            outcome,
        });
    }
    cluster
        .wait_until("all messages to be acked", async || {
            let queue = client.describe_queue(QUEUE).await.ok()?;
            (queue.counts.acked == MESSAGES).then_some(())
        })
        .await?;
    let active = client.describe_queue(QUEUE).await?.active_consumer;
    ensure!(
        active.as_ref().is_some_and(|name| name.starts_with("worker ")),
        "active is {active:?}"
    );
    end.send_replace(true);
    for worker in workers {
        let deliveries = worker.end().await??;
        ensure!(
            deliveries >= STUCK_AT,
            "a consumer was never active: {deliveries} deliveries"
        );
    }

    let history = recorder.history();
    verdict(&one_consumer_is_active(&history))?;
    verdict(&activity_passes_on(&history))?;
    verdict(&checker::nothing_is_lost(&history))?;
    verdict(&checker::an_ack_is_final(&history))?;
    verdict(&checker::nothing_is_published_twice(&history))?;
    // Each of them held one message at a time. Refused is who was late by itself.
    let progress = recorder.progress();
    ensure!(
        progress.redelivered <= CONSUMERS as usize + progress.refused,
        "more came again than ran out: {progress:?}"
    );
    Ok(())
}

/// Acks what it gets, but for one delivery that it keeps until its lease has
/// run out, and longer. Says how many it got.
async fn work(
    number: u32,
    endpoints: Vec<String>,
    recorder: Recorder,
    mut end: watch::Receiver<bool>,
) -> Result<usize> {
    let client = Client::connect(endpoints).await?;
    // With credit for one, the stuck delivery is all that it has.
    let consume = client.consume(QUEUE).prefetch(1).lease(LEASE);
    let mut consumer = consume.name(format!("worker {number}")).open().await?;
    let mut kept: Vec<Delivery> = Vec::new();
    let mut count = 0;
    loop {
        let delivery = tokio::select! {
            delivery = consumer.next() => delivery.context("the consumer has ended")??,
            _ = end.wait_for(|end| *end) => break,
        };
        recorder.received(number, &delivery, LEASE, true);
        count += 1;
        if count == STUCK_AT {
            kept.push(delivery);
            continue;
        }
        let token = delivery.token().to_owned();
        recorder.settling(&token, Wish::Ack, || delivery.ack()).await;
    }
    consumer.close().await;
    Ok(count)
}
