//! The workload `chain`: three queues that transactions join.
//!
//! Items are published to the first queue. Workers take an item from one queue, ack it and publish it to the
//! next, as one transaction; at the last queue it is acked alone. So every item that is acked in one queue is
//! in the next exactly once, and at the end the last queue has acked as many as were published to the first.
//! Workers also nack, forget, and try the same transaction twice, which must be refused as a whole. Parameters
//! are those of [`Mix`]; its `consumers` and `pullers` are for each queue.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use futures_util::future::BoxFuture;
use jepsen_lite_core::history::Wish;
use jepsen_lite_core::view::Settings;
use rand::RngExt as _;
use rand::rngs::StdRng;

use crate::crew::{Post, Side};
use crate::letter::Letter;
use crate::mix::Mix;
use crate::native::{Native, NativeLease};
use crate::participant::{Held, Pace, Participant};
use crate::protocol::{Consuming as _, Protocol as _, Settlement};
use crate::workload::Workload;

/// The queues, in the order of an item's way.
pub const QUEUES: [&str; 3] = ["chain-1", "chain-2", "chain-3"];

const PUBLISHER: &str = "publisher";
const CONSUMER: &str = "consumer";
const PULLER: &str = "puller";
/// Before something is tried again that failed at once.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a pull waits.
const WAIT: Duration = Duration::from_millis(200);

/// A chain of queues.
#[derive(Clone, Debug)]
pub struct Chain {
    mix: Mix,
}

/// One of the people.
struct Actor {
    me: Participant,
    native: Native,
    mix: Mix,
    rng: StdRng,
    /// Items that it has sent on.
    sent: u32,
    forgotten: Vec<Held<NativeLease>>,
}

impl Chain {
    /// As the parameters of a schedule want it.
    ///
    /// # Errors
    ///
    /// When one is unknown.
    pub fn with_parameters(given: &BTreeMap<String, u64>) -> Result<Self> {
        let mix = Mix {
            publishers: 2,
            per_second: 40,
            consumers: 1,
            prefetch: 8,
            pullers: 1,
            pull_max: 4,
            lease: Duration::from_secs(1),
            deliveries_max: 0,
            ..Mix::default()
        };
        Ok(Self {
            mix: mix.given("chain", given)?,
        })
    }
}

impl Workload for Chain {
    fn queues(&self) -> Vec<(String, Settings)> {
        let settings = Settings {
            deliveries_max: Some(self.mix.deliveries_max),
            ..Settings::default()
        };
        QUEUES.map(|queue| (queue.to_owned(), settings.clone())).to_vec()
    }

    fn posts(&self) -> Vec<Post> {
        let mut posts = self.mix.posts(PUBLISHER, Side::Publisher, self.mix.publishers);
        for part in 0..QUEUES.len() {
            let consumers = self.mix.posts(CONSUMER, Side::Worker, self.mix.consumers);
            let pullers = self.mix.posts(PULLER, Side::Worker, self.mix.pullers);
            let of_part = consumers.into_iter().chain(pullers);
            posts.extend(of_part.map(|post| Post { part, ..post }));
        }
        posts
    }

    fn onward(&self, queue: &str) -> Option<&str> {
        let place = QUEUES.iter().position(|one| *one == queue)?;
        QUEUES.get(place + 1).copied()
    }

    fn work(&self, me: Participant) -> BoxFuture<'static, ()> {
        let role = me.post().role;
        let one = Actor {
            native: me.connect(),
            rng: me.rng(),
            me,
            mix: self.mix.clone(),
            sent: 0,
            forgotten: Vec::new(),
        };
        match role {
            PUBLISHER => Box::pin(one.publish()),
            CONSUMER => Box::pin(one.consume()),
            _ => Box::pin(one.pull()),
        }
    }
}

impl Actor {
    /// A new item, or one on its way: each attempt to send one on has a key of its own.
    fn letter(&mut self) -> Letter {
        self.sent += 1;
        Letter::new(self.me.key(self.sent))
    }

    async fn publish(mut self) {
        let mut pace = Pace::new(self.mix.pace());
        while self.me.is_running() {
            pace.wait(1).await;
            let letter = self.letter();
            let answer = self.me.publish(&self.native, QUEUES[0], &[letter]).await;
            if answer.outcome.is_refused() {
                self.me.rest(PAUSE).await;
            }
        }
    }

    async fn consume(mut self) {
        let from = QUEUES[self.me.post().part];
        while self.me.is_running() {
            let opened = self.native.consume(from, self.mix.prefetch, self.mix.lease).await;
            let Some(mut consumer) = opened else {
                self.me.rest(PAUSE).await;
                continue;
            };
            loop {
                let delivery = tokio::select! {
                    biased;
                    () = self.me.told_to_end() => break,
                    delivery = consumer.next() => delivery,
                };
                let Some(delivery) = delivery else { break };
                let held = self.me.received(delivery);
                self.pass_on(held).await;
            }
            consumer.close().await;
        }
    }

    async fn pull(mut self) {
        let from = QUEUES[self.me.post().part];
        while self.me.is_running() {
            let Mix { pull_max, lease, .. } = self.mix;
            let pulled = self.me.pull(&self.native, from, pull_max, lease, WAIT).await;
            if pulled.is_empty() {
                self.me.rest(PAUSE).await;
            }
            for held in pulled {
                self.pass_on(held).await;
            }
        }
    }

    /// Sends an item on its way, most of the time.
    async fn pass_on(&mut self, mut held: Held<NativeLease>) {
        self.me.go_on().await;
        let drawn = self.rng.random_range(0..100);
        if self.me.nacks() || drawn < 4 {
            self.me.settle(&mut held, Settlement::of(Wish::Nack)).await;
            return;
        }
        if drawn < 7 {
            self.forgotten.push(held);
            return;
        }
        let Some(to) = QUEUES.get(self.me.post().part + 1) else {
            self.me.settle(&mut held, Settlement::of(Wish::Ack)).await;
            return;
        };
        let letter = self.letter();
        self.me.ack_and_publish(&mut held, to, &[letter]).await;
        if drawn < 14 {
            let letter = self.letter();
            self.me.ack_and_publish(&mut held, to, &[letter]).await;
        }
    }
}
