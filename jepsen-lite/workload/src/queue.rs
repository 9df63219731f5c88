//! The workload `queue`: a queue used the way many users do at once, and misused a little.
//!
//! Publishers keep a window of unconfirmed messages, or publish a few as one. Push consumers and pull
//! workers ack most of what they get; by the seed they also nack, put off,
//! release, dead-letter, extend, work for long, forget a delivery, settle it when
//! its lease has run out, settle it twice, and close a consumer that still holds
//! deliveries. What is given up goes to another queue.
//!
//! It knows the broker by [`Protocol`] alone, so that it runs through any protocol. Its parameters are those of
//! [`Mix`]. The workloads [`fifo`](crate::fifo), [`groups`](crate::groups), [`bulk`](crate::bulk) and
//! [`dead_letter`](crate::dead_letter) are the same people with other settings and habits.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use futures_util::future::BoxFuture;
use jepsen_lite_core::body;
use jepsen_lite_core::history::Wish;
use jepsen_lite_core::view::Settings;
use rand::RngExt as _;
use rand::rngs::StdRng;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::crew::{Post, Side};
use crate::letter::Letter;
use crate::mix::{Act, Mix};
use crate::native::Native;
use crate::participant::{Held, Pace, Participant, published};
use crate::protocol::{Answer, Consuming, Protocol, Publishing, Settlement};
use crate::workload::Workload;

/// Where messages are published.
pub const QUEUE: &str = "jobs";
/// Where those go that are given up.
pub const DEAD_LETTER_QUEUE: &str = "failed";

/// A message that is put off comes again after this.
const PUT_OFF: Duration = Duration::from_millis(100);
/// Before something is tried again that failed at once.
const PAUSE: Duration = Duration::from_millis(20);
/// How often a publisher looks whether there is room.
const ROOM_PAUSE: Duration = Duration::from_millis(5);

const STREAMING: &str = "streaming publisher";
const CALLING: &str = "calling publisher";
const CONSUMER: &str = "consumer";
const PULLER: &str = "puller";

/// One queue with publishers and workers, through a protocol.
#[derive(Clone, Debug)]
pub struct Queue<P = Native> {
    mix: Mix,
    queue: &'static str,
    settings: Settings,
    dead_letters: Option<&'static str>,
    large: bool,
    /// Messages that are confirmed and not acked, as far as their clients know.
    backlog: Arc<AtomicU64>,
    protocol: PhantomData<fn() -> P>,
}

/// One of the people.
#[derive(Clone, Debug)]
struct Actor<P> {
    me: Participant,
    protocol: P,
    load: Arc<Queue<P>>,
}

/// A message that leaves the backlog: when this is dropped, unless it stays after all.
#[derive(Debug)]
struct Leaving<'a>(Option<&'a AtomicU64>);

impl<P: Protocol> Queue<P> {
    /// Publishers and workers on [`QUEUE`], whose dead letters go to [`DEAD_LETTER_QUEUE`].
    #[must_use]
    pub fn new(mix: Mix) -> Self {
        Self {
            dead_letters: Some(DEAD_LETTER_QUEUE),
            ..Self::alone(QUEUE, mix)
        }
    }

    /// Publishers and workers on a queue that keeps its dead letters to itself.
    pub(crate) fn alone(queue: &'static str, mix: Mix) -> Self {
        Self {
            mix,
            queue,
            settings: Settings::default(),
            dead_letters: None,
            large: false,
            backlog: Arc::default(),
            protocol: PhantomData,
        }
    }

    /// As the parameters of a schedule want it.
    ///
    /// # Errors
    ///
    /// When one is unknown.
    pub fn with_parameters(given: &BTreeMap<String, u64>) -> Result<Self> {
        Ok(Self::new(Mix::default().given("queue", given)?))
    }

    /// With these settings of the queue besides.
    pub(crate) fn set(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// With bodies up to more than a mebibyte.
    pub(crate) fn large(mut self) -> Self {
        self.large = true;
        self
    }

    fn settings(&self) -> Settings {
        Settings {
            deliveries_max: Some(self.mix.deliveries_max),
            ..self.settings.clone()
        }
    }
}

impl<P: Protocol> Workload for Queue<P> {
    fn queues(&self) -> Vec<(String, Settings)> {
        let dead_letters = self.dead_letters.map(|queue| (queue.to_owned(), self.settings()));
        let queue = Settings {
            dead_letter_target: self.dead_letters.map(str::to_owned),
            ..self.settings()
        };
        dead_letters
            .into_iter()
            .chain([(self.queue.to_owned(), queue)])
            .collect()
    }

    fn posts(&self) -> Vec<Post> {
        let mut publishers = self.mix.posts(CALLING, Side::Publisher, self.mix.publishers);
        for post in publishers.iter_mut().step_by(2) {
            post.role = STREAMING;
        }
        let consumers = self.mix.posts(CONSUMER, Side::Worker, self.mix.consumers);
        let pullers = self.mix.posts(PULLER, Side::Worker, self.mix.pullers);
        [publishers, consumers, pullers].concat()
    }

    fn work(&self, me: Participant) -> BoxFuture<'static, ()> {
        let role = me.post().role;
        let one = Actor {
            protocol: me.connect::<P>(),
            me,
            load: Arc::new(self.clone()),
        };
        match role {
            STREAMING => Box::pin(one.publish_streaming()),
            CALLING => Box::pin(one.publish_calling()),
            CONSUMER => Box::pin(one.consume()),
            _ => Box::pin(one.pull()),
        }
    }
}

impl<P: Protocol> Actor<P> {
    fn mix(&self) -> &Mix {
        &self.load.mix
    }

    fn letter(&self, count: u32) -> Letter {
        let key = self.me.key(count);
        let letter = Letter::new(if self.load.large { body::large(key) } else { key });
        let letter = match u64::from(count).checked_rem(self.mix().groups) {
            Some(group) => letter.group(format!("group {group:02}")),
            None => letter,
        };
        letter.priority(count.checked_rem(self.mix().priorities.min(10)).unwrap_or(0))
    }

    async fn publish_streaming(self) {
        let publisher = self.protocol.publisher(self.load.queue, self.mix().window);
        let (mut confirms, mut pace) = (JoinSet::new(), Pace::new(self.mix().pace()));
        for count in 0.. {
            self.wait_for_room(&mut pace, 1).await;
            if !self.me.is_running() {
                break;
            }
            let letter = self.letter(count);
            let asked = self
                .me
                .publishing(self.load.queue, false, std::slice::from_ref(&letter));
            let confirm = publisher.send(&letter).await;
            let this = self.clone();
            confirms.spawn(async move {
                let answer = confirm.await.map(|placed| vec![placed]);
                published(asked, &answer);
                this.entered(&answer);
            });
            while confirms.try_join_next().is_some() {}
        }
        publisher.close().await;
        confirms.join_all().await;
    }

    async fn publish_calling(self) {
        let (mut rng, mut pace) = (self.me.rng(), Pace::new(self.mix().pace()));
        let mut count = 0;
        while self.me.is_running() {
            let batch = rng.random_range(1..=4);
            self.wait_for_room(&mut pace, batch).await;
            if !self.me.is_running() {
                break;
            }
            let letters: Vec<Letter> = (count..count + batch).map(|count| self.letter(count)).collect();
            count += batch;
            let answer = self.me.publish(&self.protocol, self.load.queue, &letters).await;
            self.entered(&answer);
            if answer.outcome.is_refused() {
                self.me.rest(PAUSE).await;
            }
        }
    }

    /// Waits for the beat, and until the backlog is small enough.
    async fn wait_for_room(&self, pace: &mut Pace, count: u32) {
        pace.wait(count).await;
        while self.me.is_running() && self.load.backlog.load(Ordering::Relaxed) >= self.mix().backlog_max {
            sleep(ROOM_PAUSE).await;
        }
    }

    fn entered<T>(&self, answer: &Answer<Vec<T>>) {
        let count = answer.outcome.done().map_or(0, Vec::len);
        self.load.backlog.fetch_add(count as u64, Ordering::Relaxed);
    }

    async fn consume(self) {
        let (mut rng, mut acts, mut forgotten) = (self.me.rng(), JoinSet::new(), Vec::new());
        while self.me.is_running() {
            let Mix { prefetch, lease, .. } = *self.mix();
            let opened = self.protocol.consume(self.load.queue, prefetch, lease).await;
            let Some(mut consumer) = opened else {
                self.me.rest(PAUSE).await;
                continue;
            };
            for _ in 0..rng.random_range(20..400) {
                let delivery = tokio::select! {
                    biased;
                    () = self.me.told_to_end() => break,
                    delivery = consumer.next() => delivery,
                };
                let Some(delivery) = delivery else { break };
                let held = self.me.received(delivery);
                self.act(&mut rng, &mut acts, &mut forgotten, held).await;
            }
            // What it still holds is given back.
            consumer.close().await;
        }
        acts.join_all().await;
    }

    async fn pull(self) {
        let (mut rng, mut acts, mut forgotten) = (self.me.rng(), JoinSet::new(), Vec::new());
        while self.me.is_running() {
            let Mix { pull_max, lease, .. } = *self.mix();
            let wait = Duration::from_millis(rng.random_range(0..300));
            let pulled = self
                .me
                .pull(&self.protocol, self.load.queue, pull_max, lease, wait)
                .await;
            if pulled.is_empty() {
                self.me.rest(PAUSE).await;
            }
            for held in pulled {
                self.act(&mut rng, &mut acts, &mut forgotten, held).await;
            }
            // Bounds what one worker holds.
            while acts.len() > 4 * pull_max as usize && acts.join_next().await.is_some() {}
        }
        acts.join_all().await;
    }

    /// Begins what the seed wants done with a message in hand.
    async fn act(
        &self,
        rng: &mut StdRng,
        acts: &mut JoinSet<()>,
        forgotten: &mut Vec<Held<P::Lease>>,
        held: Held<P::Lease>,
    ) {
        self.me.go_on().await;
        let act = self.mix().habits.draw(rng);
        match act {
            _ if self.me.nacks() => {
                let this = self.clone();
                acts.spawn(async move { this.carry_out(Act::Settle(Wish::Nack), held).await });
            }
            Act::Forget => forgotten.push(held),
            act => {
                let this = self.clone();
                acts.spawn(async move { this.carry_out(act, held).await });
            }
        }
        while acts.try_join_next().is_some() {}
    }

    async fn carry_out(&self, act: Act, mut held: Held<P::Lease>) {
        let lease = self.mix().lease;
        match act {
            Act::Settle(wish) => self.settle(&mut held, Settlement::of(wish)).await,
            Act::PutOff => {
                let nack = Settlement {
                    wish: Wish::Nack,
                    span: Some(PUT_OFF),
                };
                self.settle(&mut held, nack).await;
            }
            Act::WorkThenAck => {
                sleep(lease / 2).await;
                self.me.go_on().await;
                self.settle(&mut held, ACK).await;
            }
            Act::ExtendThenAck => {
                let extend = Settlement {
                    wish: Wish::Extend,
                    span: Some(lease),
                };
                self.me.settle(&mut held, extend).await;
                self.settle(&mut held, ACK).await;
            }
            Act::AckTwice => {
                self.settle(&mut held, ACK).await;
                self.settle_token(&held.token).await;
            }
            Act::AckLate => {
                sleep(lease.mul_f64(1.1)).await;
                self.me.go_on().await;
                self.settle_token(&held.token).await;
            }
            Act::Forget => {}
        }
    }

    async fn settle(&self, held: &mut Held<P::Lease>, settlement: Settlement) {
        let leaving = Leaving::of(settlement.wish, &self.load.backlog);
        let answer = self.me.settle(held, settlement).await;
        leaving.unless(answer.outcome.is_refused());
    }

    /// Acks by a token that may be stale.
    async fn settle_token(&self, token: &str) {
        let leaving = Leaving::of(Wish::Ack, &self.load.backlog);
        let answer = self.me.settle_token(&self.protocol, token, ACK).await;
        leaving.unless(answer.outcome.is_refused());
    }
}

const ACK: Settlement = Settlement {
    wish: Wish::Ack,
    span: None,
};

impl<'a> Leaving<'a> {
    /// Messages leave by an ack, or for good; an answer that does not come means that it may have.
    fn of(wish: Wish, backlog: &'a AtomicU64) -> Self {
        Self(matches!(wish, Wish::Ack | Wish::DeadLetter).then_some(backlog))
    }

    fn unless(mut self, stays: bool) {
        self.0 = self.0.filter(|_| !stays);
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(backlog) = self.0 {
            let less = |backlog: u64| Some(backlog.saturating_sub(1));
            let _ = backlog.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }
}
