//! Clients that use a queue the way many users do at once, and misuse it a little.
//!
//! Publishers keep a window of unconfirmed messages. Push consumers and pull
//! workers ack most of what they get; by the seed they also nack, put off,
//! release, dead-letter, extend, work for long, forget a delivery, settle it when
//! its lease has run out, settle it twice, and close a consumer that still holds
//! deliveries. All that they ask for and are told goes into the
//! [`history`](crate::history). Workers can be killed, with all that they have in
//! hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::future::join_all;
use quorate_client::{Client, Message, Verdict};
use quorate_test_cluster::wait_until;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::body;
use crate::history::{MessageId, Outcome, Publish, Wish};
use crate::recorder::{Recorder, outcome};
use crate::worker::Worker;

/// Where messages are published.
pub const QUEUE: &str = "jobs";
/// Where those go that are given up.
pub const DEAD_LETTER_QUEUE: &str = "failed";

/// Numbers of consumers, of pullers, and of workers that take the place of others.
const FIRST_CONSUMER: u32 = 1_000;
const FIRST_PULLER: u32 = 2_000;
const FIRST_REPLACEMENT: u32 = 3_000;
/// Number of the worker that takes what is left.
const DRAINER: u32 = u32::MAX;
/// A message that is put off comes again after this.
const PUT_OFF: Duration = Duration::from_millis(100);
/// How long participants may take to end: longer than any call.
const END_LIMIT: Duration = Duration::from_secs(60);

/// Who takes part, and how hard they work.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Publishers; every second one uses streams, the others single calls.
    pub publishers: u32,
    /// Unconfirmed messages of a streaming publisher.
    pub window: usize,
    /// Push consumers.
    pub consumers: u32,
    /// Unsettled deliveries of each.
    pub prefetch: u32,
    /// Pull workers.
    pub pullers: u32,
    /// Messages in one pull.
    pub pull_max: u32,
    /// Leases of all workers: short, so that those of forgotten deliveries end.
    pub lease: Duration,
    /// Most attempts in each queue; 0 = as many as it takes.
    pub deliveries_max: u32,
    /// The messages of each publisher go to so many groups in turn; 0 = they have
    /// no group.
    pub groups: u64,
    /// Publishers pause while this many messages are confirmed and not acked.
    pub backlog_max: u64,
    /// A call may take this long before its outcome is unknown.
    pub timeout: Duration,
    /// And this long with the last participant of each kind, who gives up while
    /// the others still wait for a new leader.
    pub timeout_impatient: Duration,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            publishers: 4,
            window: 16,
            consumers: 3,
            prefetch: 16,
            pullers: 2,
            pull_max: 8,
            lease: Duration::from_secs(2),
            deliveries_max: 5,
            groups: 0,
            backlog_max: 400,
            timeout: Duration::from_secs(20),
            timeout_impatient: Duration::from_millis(500),
        }
    }
}

/// A running workload.
#[derive(Debug)]
pub struct Load {
    publishing: watch::Sender<bool>,
    consuming: watch::Sender<bool>,
    publishers: JoinSet<&'static str>,
    workers: Vec<Worker<&'static str>>,
    replaced: u32,
    hiring: Hiring,
}

/// What it takes to bring in one more participant.
#[derive(Clone, Debug)]
struct Hiring {
    endpoints: Vec<String>,
    mix: Mix,
    seed: u64,
    recorder: Recorder,
    backlog: Arc<AtomicU64>,
}

/// What every participant has.
#[derive(Clone, Debug)]
struct Participant {
    number: u32,
    endpoints: Vec<String>,
    timeout: Duration,
    mix: Mix,
    seed: u64,
    recorder: Recorder,
    backlog: Arc<AtomicU64>,
    running: watch::Receiver<bool>,
}

/// What a worker does with a delivery.
#[derive(Clone, Copy, Debug)]
enum Act {
    Settle(Wish),
    /// Nacked with a delay.
    PutOff,
    /// Acked when half of its lease is over.
    WorkThenAck,
    ExtendThenAck,
    AckTwice,
    AckLate,
    /// Kept until the end, and never settled. Not dropped: a consumer takes that
    /// for a sign that its lease may be given to it again.
    Forget,
}

impl Load {
    /// Declares the queues, and starts everybody.
    ///
    /// # Errors
    ///
    /// When the queues cannot be declared.
    pub async fn start(endpoints: &[String], mix: Mix, seed: u64, recorder: &Recorder) -> Result<Self> {
        let client = Client::connect(endpoints.to_vec())
            .await
            .context("find the leader")?;
        client
            .declare_queue(DEAD_LETTER_QUEUE)
            .max_deliveries(mix.deliveries_max)
            .send()
            .await?;
        let declare = client.declare_queue(QUEUE).max_deliveries(mix.deliveries_max);
        declare.dead_letter_queue(DEAD_LETTER_QUEUE).send().await?;

        let hiring = Hiring {
            endpoints: endpoints.to_vec(),
            mix,
            seed,
            recorder: recorder.clone(),
            backlog: Arc::default(),
        };
        let mut load = Self {
            publishing: watch::Sender::new(true),
            consuming: watch::Sender::new(true),
            publishers: JoinSet::new(),
            workers: Vec::new(),
            replaced: 0,
            hiring,
        };
        load.hire_publishers();
        load.hire_workers()?;
        Ok(load)
    }

    fn hire_publishers(&mut self) {
        let count = self.hiring.mix.publishers;
        for number in 0..count {
            let publisher = self
                .hiring
                .participant(number, number + 1 == count, &self.publishing);
            if number % 2 == 0 {
                self.publishers.spawn(publisher.publish_streaming());
            } else {
                self.publishers.spawn(publisher.publish_calling());
            }
        }
    }

    fn hire_workers(&mut self) -> Result<()> {
        let Mix {
            consumers, pullers, ..
        } = self.hiring.mix;
        for number in 0..consumers {
            let worker =
                self.hiring
                    .participant(FIRST_CONSUMER + number, number + 1 == consumers, &self.consuming);
            self.workers.push(Worker::start(worker.consume())?);
        }
        for number in 0..pullers {
            let worker =
                self.hiring
                    .participant(FIRST_PULLER + number, number + 1 == pullers, &self.consuming);
            self.workers.push(Worker::start(worker.pull())?);
        }
        Ok(())
    }

    /// How many workers there are.
    #[must_use]
    pub fn worker_count(&self) -> usize {
        self.workers.len()
    }

    /// Kills a worker; another one of its kind takes its place.
    ///
    /// # Errors
    ///
    /// When the other cannot be started.
    pub async fn replace_worker(&mut self, place: usize) -> Result<()> {
        let number = FIRST_REPLACEMENT + self.replaced;
        self.replaced += 1;
        let worker = self.hiring.participant(number, false, &self.consuming);
        let new = if place < self.hiring.mix.consumers as usize {
            Worker::start(worker.consume())?
        } else {
            Worker::start(worker.pull())?
        };
        std::mem::replace(&mut self.workers[place], new).kill().await
    }

    /// Ends everybody and waits for the answers that they still get, or do not
    /// get in time.
    ///
    /// # Errors
    ///
    /// When a participant panicked.
    pub async fn stop(mut self) -> Result<()> {
        self.publishing.send_replace(false);
        end(&mut self.publishers).await.context("publishers")?;
        self.consuming.send_replace(false);
        for worker in self.workers {
            worker.end().await?;
        }
        Ok(())
    }
}

impl Hiring {
    fn participant(&self, number: u32, last: bool, running: &watch::Sender<bool>) -> Participant {
        let mix = &self.mix;
        Participant {
            number,
            endpoints: self.endpoints.clone(),
            timeout: if last { mix.timeout_impatient } else { mix.timeout },
            mix: mix.clone(),
            seed: self.seed ^ (u64::from(number) << 32),
            recorder: self.recorder.clone(),
            backlog: Arc::clone(&self.backlog),
            running: running.subscribe(),
        }
    }
}

/// Waits for the end of tasks that were told to end.
async fn end(tasks: &mut JoinSet<&'static str>) -> Result<()> {
    let count = tasks.len();
    let mut ended = Vec::new();
    let all = async {
        while let Some(task) = tasks.join_next().await {
            ended.push(task?);
        }
        anyhow::Ok(())
    };
    let outcome = timeout(END_LIMIT, all).await;
    outcome.with_context(|| format!("of {count} tasks only these have ended: {ended:?}"))?
}

/// Takes and acks what is left in the queues, until nothing is.
///
/// # Errors
///
/// When they are not empty within two minutes.
pub async fn drain(client: &Client, queues: &[&str], recorder: &Recorder) -> Result<()> {
    const LEASE: Duration = Duration::from_secs(10);
    let last = wait_until("the queues to be empty", Duration::from_secs(120), async || {
        let mut left = 0;
        for queue in queues {
            let pull = client.lease(*queue).max(100).lease(LEASE);
            let deliveries = pull.send().await.ok()?;
            let acks = deliveries.into_iter().map(|delivery| async {
                recorder.received(DRAINER, &delivery, LEASE, true);
                let token = delivery.token().to_owned();
                recorder.settling(&token, Wish::Ack, || delivery.ack()).await
            });
            join_all(acks).await;
            let counts = client.describe_queue(*queue).await.ok()?.counts;
            left += counts.ready + counts.delayed + counts.leased;
        }
        (left == 0).then_some(())
    });
    last.await
}

impl Participant {
    fn client(&self) -> Client {
        let builder = Client::builder()
            .endpoints(self.endpoints.clone())
            .timeout(self.timeout);
        builder
            .connect_lazy()
            .expect("the endpoints of a cluster are well-formed")
    }

    fn rng(&self) -> StdRng {
        StdRng::seed_from_u64(self.seed)
    }

    fn is_running(&self) -> bool {
        *self.running.borrow()
    }

    /// Resolves when it is time to end.
    fn told_to_end(&self) -> impl Future<Output = ()> + use<> {
        let mut running = self.running.clone();
        async move {
            // An error means that the load is gone: the end, too.
            let _ = running.wait_for(|running| !running).await;
        }
    }

    /// Keys grow in the order of sending.
    fn key(&self, count: u32) -> u64 {
        (u64::from(self.number) << 32) | u64::from(count)
    }

    fn message(&self, key: u64) -> Message {
        let message = Message::new(body::of(key));
        match key.checked_rem(self.mix.groups) {
            Some(group) => message.group(format!("group {group:02}")),
            None => message,
        }
    }

    fn published(&self, key: u64, outcome: Outcome<MessageId>) {
        if outcome.done().is_some() {
            self.backlog.fetch_add(1, Ordering::Relaxed);
        }
        self.recorder.publish(Publish {
            key,
            process: self.number,
            queue: QUEUE.to_owned(),
            outcome,
            ..Publish::default()
        });
    }

    async fn wait_for_room(&self) {
        while self.is_running() && self.backlog.load(Ordering::Relaxed) >= self.mix.backlog_max {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn publish_streaming(self) -> &'static str {
        let publisher = self.client().publisher(QUEUE).window(self.mix.window).start();
        let mut confirms = JoinSet::new();
        for count in 0.. {
            self.wait_for_room().await;
            if !self.is_running() {
                break;
            }
            let key = self.key(count);
            let confirm = publisher.send(self.message(key)).await;
            let this = self.clone();
            confirms.spawn(async move {
                this.published(
                    key,
                    outcome(confirm.await, |published| MessageId::of(published.message_id())),
                );
            });
            while confirms.try_join_next().is_some() {}
        }
        publisher.close().await;
        confirms.join_all().await;
        "streaming publisher"
    }

    async fn publish_calling(self) -> &'static str {
        let (client, mut rng) = (self.client(), self.rng());
        let mut count = 0;
        while self.is_running() {
            self.wait_for_room().await;
            let keys: Vec<u64> = (0..rng.random_range(1..=4))
                .map(|more| self.key(count + more))
                .collect();
            count += u32::try_from(keys.len()).expect("a few");
            let messages = keys.iter().map(|&key| self.message(key));
            let outcome = outcome(client.publish_all(QUEUE, messages).await, |published| {
                published.message_ids
            });
            for (place, &key) in keys.iter().enumerate() {
                self.published(
                    key,
                    match &outcome {
                        Outcome::Done(ids) => Outcome::Done(MessageId::of(&ids[place])),
                        Outcome::Refused(reason) => Outcome::Refused(reason.clone()),
                        Outcome::Unknown => Outcome::Unknown,
                    },
                );
            }
        }
        "calling publisher"
    }

    async fn consume(self) -> &'static str {
        let (client, mut rng) = (self.client(), self.rng());
        let (mut acts, mut forgotten) = (JoinSet::new(), Vec::new());
        while self.is_running() {
            let consume = client
                .consume(QUEUE)
                .prefetch(self.mix.prefetch)
                .lease(self.mix.lease);
            let Ok(mut consumer) = consume.open().await else {
                continue;
            };
            for _ in 0..rng.random_range(20..400) {
                let delivery = tokio::select! {
                    () = self.told_to_end() => break,
                    delivery = consumer.next() => delivery,
                };
                let Some(Ok(delivery)) = delivery else { break };
                self.received(&delivery, false);
                match draw(&mut rng) {
                    Act::Forget => forgotten.push(delivery),
                    act => self.act(&mut acts, &client, act, delivery),
                }
            }
            // What it still holds is given back.
            consumer.close().await;
        }
        acts.join_all().await;
        "consumer"
    }

    async fn pull(self) -> &'static str {
        let (client, mut rng) = (self.client(), self.rng());
        let (mut acts, mut forgotten) = (JoinSet::new(), Vec::new());
        while self.is_running() {
            let pull = client.lease(QUEUE).max(self.mix.pull_max).lease(self.mix.lease);
            let deliveries = pull
                .wait(Duration::from_millis(rng.random_range(0..300)))
                .send()
                .await;
            for delivery in deliveries.unwrap_or_default() {
                self.received(&delivery, true);
                match draw(&mut rng) {
                    Act::Forget => forgotten.push(delivery),
                    act => self.act(&mut acts, &client, act, delivery),
                }
            }
            // Bounds what one worker holds.
            while acts.len() > 4 * self.mix.pull_max as usize && acts.join_next().await.is_some() {}
        }
        acts.join_all().await;
        "puller"
    }

    fn received(&self, delivery: &quorate_client::Delivery, ends_by_time: bool) {
        self.recorder
            .received(self.number, delivery, self.mix.lease, ends_by_time);
    }

    fn act(&self, acts: &mut JoinSet<()>, client: &Client, act: Act, delivery: quorate_client::Delivery) {
        let hand = Hand {
            client: client.clone(),
            participant: self.clone(),
        };
        acts.spawn(async move { hand.carry_out(act, delivery).await });
        while acts.try_join_next().is_some() {}
    }
}

struct Hand {
    client: Client,
    participant: Participant,
}

impl Hand {
    async fn carry_out(&self, act: Act, mut delivery: quorate_client::Delivery) {
        let recorder = &self.participant.recorder;
        let token = delivery.token().to_owned();
        match act {
            Act::Settle(wish) => {
                let ask = || match wish {
                    Wish::Ack => delivery.ack(),
                    Wish::Nack => delivery.nack("by the seed"),
                    Wish::Release => delivery.release(),
                    Wish::DeadLetter => delivery.dead_letter("by the seed"),
                    Wish::Extend => unreachable!("extending is an act of its own"),
                };
                let outcome = recorder.settling(&token, wish, ask).await;
                self.settled(wish, &outcome);
            }
            Act::PutOff => {
                let ask = || delivery.nack_after(PUT_OFF, "by the seed");
                let outcome = recorder.settling(&token, Wish::Nack, ask).await;
                self.settled(Wish::Nack, &outcome);
            }
            Act::WorkThenAck => {
                tokio::time::sleep(self.participant.mix.lease / 2).await;
                let outcome = recorder.settling(&token, Wish::Ack, || delivery.ack()).await;
                self.settled(Wish::Ack, &outcome);
            }
            Act::ExtendThenAck => {
                let (extended, lease) = (&mut delivery, self.participant.mix.lease);
                recorder
                    .settling(&token, Wish::Extend, move || extended.extend(lease))
                    .await;
                let outcome = recorder.settling(&token, Wish::Ack, || delivery.ack()).await;
                self.settled(Wish::Ack, &outcome);
            }
            Act::AckTwice => {
                let outcome = recorder.settling(&token, Wish::Ack, || delivery.ack()).await;
                self.settled(Wish::Ack, &outcome);
                self.settle_by_token(&token, Wish::Ack, Verdict::Ack).await;
            }
            Act::AckLate => {
                tokio::time::sleep(self.participant.mix.lease.mul_f64(1.1)).await;
                self.settle_by_token(&token, Wish::Ack, Verdict::Ack).await;
            }
            Act::Forget => unreachable!("nothing is carried out"),
        }
    }

    async fn settle_by_token(&self, token: &str, wish: Wish, verdict: Verdict) {
        let ask = || async {
            let mut results = self.client.settle([(token, verdict)]).await?;
            results.pop().expect("one result for each settlement")
        };
        let recorder = &self.participant.recorder;
        let outcome = recorder.settling(token, wish, ask).await;
        self.settled(wish, &outcome);
    }

    fn settled(&self, wish: Wish, outcome: &Outcome<()>) {
        if matches!(wish, Wish::Ack | Wish::DeadLetter) && outcome.done().is_some() {
            let less = |backlog: u64| Some(backlog.saturating_sub(1));
            let _ = self
                .participant
                .backlog
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }
}

fn draw(rng: &mut StdRng) -> Act {
    match rng.random_range(0..100) {
        0..74 => Act::Settle(Wish::Ack),
        74..76 => Act::WorkThenAck,
        76..80 => Act::Settle(Wish::Nack),
        80..82 => Act::PutOff,
        82..87 => Act::Settle(Wish::Release),
        87..89 => Act::Settle(Wish::DeadLetter),
        89..92 => Act::ExtendThenAck,
        92..95 => Act::AckTwice,
        95..97 => Act::AckLate,
        _ => Act::Forget,
    }
}
