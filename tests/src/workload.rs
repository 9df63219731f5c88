//! Clients that use a queue the way many users do at once, and misuse it a little.
//!
//! Publishers keep a window of unconfirmed messages. Push consumers and pull
//! workers ack most of what they get; by the seed they also nack, release,
//! dead-letter, extend, forget a delivery, settle it when its lease has run out,
//! settle it twice, and close a consumer that still holds deliveries. All that
//! they ask for and are told goes into the [`history`](crate::history).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use quorate_client::{Client, Settled, Verdict};
use quorate_test_cluster::wait_until;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::body;
use crate::history::{Delivery, MessageId, Outcome, Publish, Recorder, Settle, Wish};

/// Where messages are published.
pub const QUEUE: &str = "jobs";
/// Where those go that are given up.
pub const DEAD_LETTER_QUEUE: &str = "failed";
/// Most attempts in each queue.
pub const DELIVERIES_MAX: u32 = 5;

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
    workers: JoinSet<&'static str>,
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
            .max_deliveries(DELIVERIES_MAX)
            .send()
            .await?;
        let declare = client.declare_queue(QUEUE).max_deliveries(DELIVERIES_MAX);
        declare.dead_letter_queue(DEAD_LETTER_QUEUE).send().await?;

        let (publishing, consuming) = (watch::Sender::new(true), watch::Sender::new(true));
        let (mut publishers, mut workers) = (JoinSet::new(), JoinSet::new());
        let backlog = Arc::new(AtomicU64::new(0));
        let participant = |number, last: bool, running: &watch::Sender<bool>| Participant {
            number,
            endpoints: endpoints.to_vec(),
            timeout: if last { mix.timeout_impatient } else { mix.timeout },
            mix: mix.clone(),
            seed: seed ^ (u64::from(number) << 32),
            recorder: recorder.clone(),
            backlog: Arc::clone(&backlog),
            running: running.subscribe(),
        };
        for number in 0..mix.publishers {
            let publisher = participant(number, number + 1 == mix.publishers, &publishing);
            if number % 2 == 0 {
                publishers.spawn(publisher.publish_streaming());
            } else {
                publishers.spawn(publisher.publish_calling());
            }
        }
        for number in 0..mix.consumers {
            workers.spawn(participant(1_000 + number, number + 1 == mix.consumers, &consuming).consume());
        }
        for number in 0..mix.pullers {
            workers.spawn(participant(2_000 + number, number + 1 == mix.pullers, &consuming).pull());
        }
        Ok(Self {
            publishing,
            consuming,
            publishers,
            workers,
        })
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
        end(&mut self.workers).await.context("workers")
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
            let pull = client
                .lease(*queue)
                .max(100)
                .lease(LEASE)
                .wait(Duration::from_millis(100));
            for delivery in pull.send().await.ok()? {
                recorder.delivery(received(&delivery, LEASE, true, recorder));
                let token = delivery.token().to_owned();
                recorded(recorder, token, Wish::Ack, delivery.ack()).await;
            }
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

    fn published(&self, key: u64, outcome: Outcome<MessageId>) {
        if outcome.done().is_some() {
            self.backlog.fetch_add(1, Ordering::Relaxed);
        }
        self.recorder.publish(Publish {
            key,
            publisher: self.number,
            queue: QUEUE.to_owned(),
            outcome,
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
            let confirm = publisher.send(body::of(key)).await;
            let this = self.clone();
            confirms.spawn(async move {
                this.published(
                    key,
                    Outcome::of(confirm.await, |published| id(published.message_id())),
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
            let messages = keys.iter().map(|&key| body::of(key).into());
            let outcome = Outcome::of(client.publish_all(QUEUE, messages).await, |published| {
                published.message_ids
            });
            for (place, &key) in keys.iter().enumerate() {
                self.published(
                    key,
                    match &outcome {
                        Outcome::Done(ids) => Outcome::Done(id(&ids[place])),
                        Outcome::Refused(reason) => Outcome::Refused(*reason),
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

    fn received(&self, delivery: &quorate_client::Delivery, pulled: bool) {
        self.recorder
            .delivery(received(delivery, self.mix.lease, pulled, &self.recorder));
    }

    fn act(&self, acts: &mut JoinSet<()>, client: &Client, act: Act, delivery: quorate_client::Delivery) {
        let worker = Worker {
            client: client.clone(),
            participant: self.clone(),
        };
        acts.spawn(async move { worker.carry_out(act, delivery).await });
        while acts.try_join_next().is_some() {}
    }
}

struct Worker {
    client: Client,
    participant: Participant,
}

impl Worker {
    async fn carry_out(&self, act: Act, mut delivery: quorate_client::Delivery) {
        let recorder = &self.participant.recorder;
        let token = delivery.token().to_owned();
        match act {
            Act::Settle(wish) => {
                let settling = match wish {
                    Wish::Ack => delivery.ack(),
                    Wish::Nack => delivery.nack("by the seed"),
                    Wish::Release => delivery.release(),
                    Wish::DeadLetter => delivery.dead_letter("by the seed"),
                    Wish::Extend => unreachable!("extending is an act of its own"),
                };
                let outcome = recorded(recorder, token, wish, settling).await;
                self.settled(wish, &outcome);
            }
            Act::ExtendThenAck => {
                let extending = delivery.extend(self.participant.mix.lease);
                recorded(recorder, token.clone(), Wish::Extend, async {
                    extending.await.map(|()| Settled::default())
                })
                .await;
                let outcome = recorded(recorder, token, Wish::Ack, delivery.ack()).await;
                self.settled(Wish::Ack, &outcome);
            }
            Act::AckTwice => {
                let outcome = recorded(recorder, token.clone(), Wish::Ack, delivery.ack()).await;
                self.settled(Wish::Ack, &outcome);
                self.settle_by_token(token, Wish::Ack, Verdict::Ack).await;
            }
            Act::AckLate => {
                tokio::time::sleep(self.participant.mix.lease.mul_f64(1.1)).await;
                self.settle_by_token(token, Wish::Ack, Verdict::Ack).await;
            }
            Act::Forget => unreachable!("nothing is carried out"),
        }
    }

    async fn settle_by_token(&self, token: String, wish: Wish, verdict: Verdict) {
        let settling = async {
            let mut results = self.client.settle([(token.clone(), verdict)]).await?;
            results.pop().expect("one result for each settlement")
        };
        let outcome = recorded(&self.participant.recorder, token.clone(), wish, settling).await;
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
        0..76 => Act::Settle(Wish::Ack),
        76..82 => Act::Settle(Wish::Nack),
        82..87 => Act::Settle(Wish::Release),
        87..89 => Act::Settle(Wish::DeadLetter),
        89..92 => Act::ExtendThenAck,
        92..95 => Act::AckTwice,
        95..97 => Act::AckLate,
        _ => Act::Forget,
    }
}

/// Waits for the outcome of a settlement and writes it down.
async fn recorded(
    recorder: &Recorder,
    token: String,
    wish: Wish,
    settling: impl Future<Output = quorate_client::Result<Settled>>,
) -> Outcome<()> {
    let invoked = recorder.now();
    let outcome = Outcome::of(settling.await, |_| ());
    recorder.settle(Settle {
        token,
        wish,
        invoked,
        answered: recorder.now(),
        outcome: outcome.clone(),
    });
    outcome
}

fn received(
    delivery: &quorate_client::Delivery,
    lease: Duration,
    pulled: bool,
    recorder: &Recorder,
) -> Delivery {
    Delivery {
        queue: delivery.queue().to_owned(),
        message: id(delivery.message_id()),
        key: body::key(delivery.body()),
        token: delivery.token().to_owned(),
        fence: delivery.fence(),
        attempt: delivery.attempt(),
        redelivered: delivery.redelivered(),
        lease_ms: u64::try_from(lease.as_millis()).expect("a short time"),
        leased_until_ms: delivery.leased_until_ms(),
        pulled,
        received: recorder.now(),
    }
}

fn id(text: &str) -> MessageId {
    MessageId::parse(text).expect("the broker names messages by their place in the log")
}
