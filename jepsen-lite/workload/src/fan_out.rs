//! The workload `fan-out`: one publish to several queues, or to none.
//!
//! Publishers send single messages and small batches to a topic exchange, with routing keys of two words. Each
//! of the three queues behind it is bound by a pattern that all of them match, so that every message is a
//! message of its own in each queue. Parameters are those of [`Mix`]; its `consumers` and `pullers` are for
//! each queue.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::future::BoxFuture;
use jepsen_lite_core::view::Settings;
use quorate_client::{ExchangeKind, Target};
use rand::RngExt as _;

use crate::crew::{Post, Side};
use crate::letter::Letter;
use crate::mix::{Habits, Mix};
use crate::native::Native;
use crate::participant::{Pace, Participant, published};
use crate::queue::Queue;
use crate::workload::Workload;

/// Where messages are published.
pub const EXCHANGE: &str = "fan";
/// The queues behind it, and what each is bound by.
pub const BEHIND: [(&str, &str); 3] = [("fan-all", "#"), ("fan-first", "fan.*"), ("fan-last", "*.out")];

const ROUTING_KEY: &str = "fan.out";
const PUBLISHER: &str = "publisher";
/// Before something is tried again that failed at once.
const PAUSE: Duration = Duration::from_millis(20);

/// An exchange and the queues behind it.
#[derive(Clone, Debug)]
pub struct FanOut {
    mix: Mix,
    behind: [Queue<Native>; 3],
}

impl FanOut {
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
            pullers: 1,
            deliveries_max: 0,
            habits: Habits {
                dead_letter: 0,
                ..Habits::default()
            },
            ..Mix::default()
        }
        .given("fan-out", given)?;
        let workers = Mix {
            publishers: 0,
            ..mix.clone()
        };
        Ok(Self {
            mix,
            behind: BEHIND.map(|(queue, _)| Queue::alone(queue, workers.clone())),
        })
    }

    async fn publish(self, me: Participant) {
        let native: Native = me.connect();
        let (mut rng, mut pace) = (me.rng(), Pace::new(self.mix.pace()));
        let mut count = 0;
        while me.is_running() {
            let batch = rng.random_range(1..=3);
            pace.wait(batch).await;
            let letters: Vec<Letter> = (count..count + batch)
                .map(|count| Letter::new(me.key(count)).routing_key(ROUTING_KEY))
                .collect();
            count += batch;
            let asked = me.publishing(EXCHANGE, true, &letters);
            let answer = native
                .publish_to(Target::exchange(EXCHANGE).mandatory(), &letters)
                .await;
            published(asked, &answer);
            if answer.outcome.is_refused() {
                me.rest(PAUSE).await;
            }
        }
    }
}

impl Workload for FanOut {
    fn queues(&self) -> Vec<(String, Settings)> {
        self.behind.iter().flat_map(Workload::queues).collect()
    }

    fn prepare<'a>(&'a self, caretaker: &'a Participant) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let operator = caretaker.operator();
            let declared = operator.declare_exchange(EXCHANGE, ExchangeKind::Topic).await;
            declared.context("declare the exchange")?;
            for (queue, pattern) in BEHIND {
                let bound = operator.bind(queue, EXCHANGE, pattern).await;
                bound.with_context(|| format!("bind {queue}"))?;
            }
            Ok(())
        })
    }

    fn posts(&self) -> Vec<Post> {
        let mut posts = self.mix.posts(PUBLISHER, Side::Publisher, self.mix.publishers);
        for (part, queue) in self.behind.iter().enumerate() {
            posts.extend(queue.posts().into_iter().map(|post| Post { part, ..post }));
        }
        posts
    }

    fn work(&self, me: Participant) -> BoxFuture<'static, ()> {
        match me.post().role {
            PUBLISHER => Box::pin(self.clone().publish(me)),
            _ => self.behind[me.post().part].work(me),
        }
    }
}
