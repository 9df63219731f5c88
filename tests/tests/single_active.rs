//! A queue with a single active consumer goes on when that one is stuck or dies,
//! and never has two.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jepsen_lite_workload::access::Access;
use jepsen_lite_workload::letter::Letter;
use jepsen_lite_workload::native::{Native, NativeLease};
use jepsen_lite_workload::participant::Participant;
use jepsen_lite_workload::protocol::Settlement;
use jepsen_lite_workload::recorder::Recorder;
use quorate_client::Client;
use quorate_test_cluster::Cluster;
use quorate_tests::checker::{self, activity_passes_on, one_consumer_is_active, verdict};
use quorate_tests::history::{History, Wish};
use quorate_tests::worker::Worker;
use quorate_tests::{harm, rounds, seed};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::watch;

const QUEUE: &str = "ledger";
const CONSUMERS: u32 = 3;
/// The number of the one who publishes.
const PUBLISHER: u32 = u32::MAX;
const MESSAGES: u64 = 60;
/// A consumer is stuck with this delivery of its own, counted from one.
const STUCK_AT: usize = 5;
const LEASE: Duration = Duration::from_secs(1);

/// The queue, its consumers, and what happens.
struct Scene {
    cluster: Cluster,
    client: Client,
    recorder: Recorder,
    end: watch::Sender<bool>,
    workers: Vec<Worker<Result<usize>>>,
    hired: u32,
}

/// A consumer, and how it behaves.
#[derive(Clone, Copy, Debug)]
struct Character {
    number: u32,
    prefetch: u32,
    /// It keeps this delivery of its own without settling it, counted from one.
    stuck_at: Option<usize>,
}

#[tokio::test(flavor = "multi_thread")]
async fn delivery_goes_on_although_each_consumer_gets_stuck_once() -> Result<()> {
    // With credit for one, the stuck delivery is all that it has.
    let mut scene = Scene::set(1, Some(STUCK_AT)).await?;
    scene.publish(0..MESSAGES).await;
    scene.acked(MESSAGES).await?;
    let active = scene.client.describe_queue(QUEUE).await?.active_consumer;
    ensure!(
        active.as_ref().is_some_and(|name| name.starts_with("worker ")),
        "active is {active:?}"
    );
    for deliveries in scene.finish().await? {
        ensure!(
            deliveries >= STUCK_AT,
            "a consumer was never active: {deliveries} deliveries"
        );
    }
    let history = scene.recorder.history();
    verdict(&activity_passes_on(&history))?;
    keeps_promises(&history)?;
    // Each of them held one message at a time. Refused is who was late by itself.
    let progress = scene.recorder.progress();
    ensure!(
        progress.redelivered <= CONSUMERS as usize + progress.refused,
        "more came again than ran out: {progress:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_one_active_consumer_while_consumers_and_leaders_die() -> Result<()> {
    let seed = seed("there_is_one_active_consumer_while_consumers_and_leaders_die");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut scene = Scene::set(8, None).await?;
    let rounds = rounds(3);
    for round in 0..rounds {
        let first = round * MESSAGES;
        scene.publish(first..first + MESSAGES).await;
        scene.acked(first + rng.random_range(1..MESSAGES)).await?;
        scene.replace(rng.random_range(0..CONSUMERS as usize), 8).await?;
        harm::replace_leader(&mut scene.cluster).await?;
    }
    scene.acked(rounds * MESSAGES).await?;
    scene.finish().await?;
    keeps_promises(&scene.recorder.history())
}

impl Scene {
    /// Declares the queue and starts the consumers.
    async fn set(prefetch: u32, stuck_at: Option<usize>) -> Result<Self> {
        let cluster = Cluster::start(3).await?;
        let client = cluster.client().await?;
        let declare = client.declare_queue(QUEUE).single_active_consumer(true);
        declare.max_deliveries(0).send().await?;
        let mut scene = Self {
            cluster,
            client,
            recorder: Recorder::default(),
            end: watch::Sender::new(false),
            workers: Vec::new(),
            hired: 0,
        };
        for _ in 0..CONSUMERS {
            let worker = scene.hire(prefetch, stuck_at)?;
            scene.workers.push(worker);
        }
        scene
            .cluster
            .wait_until("all consumers", async || {
                let counts = scene.client.describe_queue(QUEUE).await.ok()?.counts;
                (counts.consumers == u64::from(CONSUMERS)).then_some(())
            })
            .await?;
        Ok(scene)
    }

    fn hire(&mut self, prefetch: u32, stuck_at: Option<usize>) -> Result<Worker<Result<usize>>> {
        let character = Character {
            number: self.hired,
            prefetch,
            stuck_at,
        };
        self.hired += 1;
        let endpoints = self.cluster.endpoints();
        Worker::start(work(
            character,
            endpoints,
            self.recorder.clone(),
            self.end.subscribe(),
        ))
    }

    /// Kills a consumer; another one takes its place.
    async fn replace(&mut self, place: usize, prefetch: u32) -> Result<()> {
        let new = self.hire(prefetch, None)?;
        std::mem::replace(&mut self.workers[place], new).kill().await
    }

    async fn publish(&self, keys: std::ops::Range<u64>) {
        let access = Access::tcp(self.cluster.endpoints());
        let publisher = Participant::alone(PUBLISHER, &access, &self.recorder);
        let native = Native(self.client.clone());
        for key in keys {
            publisher.publish(&native, QUEUE, &[Letter::new(key)]).await;
        }
    }

    /// Waits until so many messages are acked.
    async fn acked(&self, count: u64) -> Result<()> {
        self.cluster
            .wait_until(&format!("{count} messages to be acked"), async || {
                let queue = self.client.describe_queue(QUEUE).await.ok()?;
                (queue.counts.acked >= count).then_some(())
            })
            .await
    }

    /// Ends all consumers; says how many deliveries each of them got.
    async fn finish(&mut self) -> Result<Vec<usize>> {
        self.end.send_replace(true);
        let mut deliveries = Vec::new();
        for worker in self.workers.drain(..) {
            deliveries.push(worker.end().await??);
        }
        Ok(deliveries)
    }
}

fn keeps_promises(history: &History) -> Result<()> {
    verdict(&one_consumer_is_active(history))?;
    verdict(&checker::nothing_is_lost(history))?;
    verdict(&checker::nothing_comes_from_nowhere(history))?;
    verdict(&checker::nothing_is_published_twice(history))?;
    verdict(&checker::an_ack_is_final(history))?;
    verdict(&checker::a_stale_token_is_refused(history))
}

/// Acks what it gets, but for the delivery with which it gets stuck: that one it
/// keeps until its lease has run out, and longer. Says how many it got.
async fn work(
    character: Character,
    endpoints: Vec<String>,
    recorder: Recorder,
    mut end: watch::Receiver<bool>,
) -> Result<usize> {
    let Character {
        number,
        prefetch,
        stuck_at,
    } = character;
    let me = Participant::alone(number, &Access::tcp(endpoints.clone()), &recorder);
    let client = Client::connect(endpoints).await?;
    let consume = client.consume(QUEUE).prefetch(prefetch).lease(LEASE);
    let mut consumer = consume.name(format!("worker {number}")).open().await?;
    let mut kept = Vec::new();
    let mut count = 0;
    loop {
        let delivery = tokio::select! {
            delivery = consumer.next() => delivery.context("the consumer has ended")??,
            _ = end.wait_for(|end| *end) => break,
        };
        // One that gets stuck is there to the end, so nothing but time ends its lease.
        let mut held = me.received(NativeLease::of(delivery, LEASE, stuck_at.is_some()));
        count += 1;
        if stuck_at == Some(count) {
            kept.push(held);
            continue;
        }
        me.settle(&mut held, Settlement::of(Wish::Ack)).await;
    }
    consumer.close().await;
    Ok(count)
}
