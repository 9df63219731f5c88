//! The workload `delay`: messages that are published for later, and messages that do not live long.
//!
//! Most messages have a delay, some a short life, some both. An operator puts delayed ones off, calls them in,
//! and cancels them, by their dedup ids. Nobody may get a message before its time, or when its life is over.
//! Parameters are those of [`Mix`], `delay_ms` and `ttl_ms` (the longest delay and the longest life), and
//! `operate_ms`: the time between two acts of the operator.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use futures_util::future::BoxFuture;
use jepsen_lite_core::view::Settings;
use rand::RngExt as _;

use crate::crew::{Post, Side};
use crate::letter::Letter;
use crate::mix::{Habits, Mix};
use crate::native::Native;
use crate::parameters::Parameters;
use crate::participant::{Pace, Participant};
use crate::queue::Queue;
use crate::workload::Workload;

/// The queue of what waits for its time.
pub const QUEUE: &str = "later";

const PUBLISHER: &str = "publisher";
const OPERATOR: &str = "operator";
/// Messages that an operator remembers.
const RECENT_MAX: usize = 200;
/// Before something is tried again that failed at once.
const PAUSE: Duration = Duration::from_millis(20);

/// A queue of messages that wait for their time.
#[derive(Clone, Debug)]
pub struct Delay {
    mix: Mix,
    workers: Queue<Native>,
    delay_ms: u64,
    ttl_ms: u64,
    between: Duration,
    /// Dedup ids of what was published lately.
    recent: Arc<Mutex<VecDeque<String>>>,
}

impl Delay {
    /// As the parameters of a schedule want it.
    ///
    /// # Errors
    ///
    /// When one is unknown.
    pub fn with_parameters(given: &BTreeMap<String, u64>) -> Result<Self> {
        let mut parameters = Parameters::new("delay", given);
        let mix = Mix {
            publishers: 2,
            per_second: 50,
            consumers: 2,
            pullers: 1,
            deliveries_max: 0,
            habits: Habits {
                ack: 88,
                nack: 3,
                put_off: 3,
                release: 3,
                forget: 3,
                ..Habits::GOOD
            },
            ..Mix::default()
        }
        .with(&mut parameters);
        let delay_ms = parameters.number("delay_ms", 3_000);
        let ttl_ms = parameters.number("ttl_ms", 2_000);
        let between = parameters.time("operate_ms", Duration::from_millis(150));
        parameters.finish()?;
        let workers = Mix {
            publishers: 0,
            ..mix.clone()
        };
        Ok(Self {
            mix,
            workers: Queue::alone(QUEUE, workers),
            delay_ms,
            ttl_ms,
            between,
            recent: Arc::default(),
        })
    }

    async fn publish(self, me: Participant) {
        let native: Native = me.connect();
        let (mut rng, mut pace) = (me.rng(), Pace::new(self.mix.pace()));
        for count in 0.. {
            pace.wait(1).await;
            if !me.is_running() {
                break;
            }
            let (key, id) = (me.key(count), format!("later-{}", me.key(count)));
            let mut letter = Letter::new(key).dedup_id(&id);
            if rng.random_bool(0.7) {
                letter = letter.delay(Duration::from_millis(rng.random_range(1..=self.delay_ms.max(1))));
            }
            if rng.random_bool(0.2) {
                letter = letter.ttl(Duration::from_millis(rng.random_range(1..=self.ttl_ms.max(1))));
            }
            let answer = me.publish(&native, QUEUE, &[letter]).await;
            if answer.outcome.is_refused() {
                me.rest(PAUSE).await;
            } else {
                self.remember(id);
            }
        }
    }

    async fn operate(self, me: Participant) {
        let (operator, mut rng) = (me.operator(), me.rng());
        while me.is_running() {
            me.rest(self.between).await;
            me.go_on().await;
            let Some(id) = self.recall(rng.random_range(0..RECENT_MAX)) else {
                continue;
            };
            let after = Duration::from_millis(rng.random_range(1..=self.delay_ms.max(1)));
            // Most are refused, because the message is gone or in hand: that is written down.
            let _ = match rng.random_range(0..3) {
                0 => operator.delete(QUEUE, &[id]).await,
                1 => operator.reschedule(QUEUE, &[id], None).await,
                _ => operator.reschedule(QUEUE, &[id], Some(after)).await,
            };
        }
    }

    fn remember(&self, id: String) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == RECENT_MAX {
            recent.pop_front();
        }
        recent.push_back(id);
    }

    fn recall(&self, drawn: usize) -> Option<String> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.get(drawn.checked_rem(recent.len())?).cloned()
    }
}

impl Workload for Delay {
    fn queues(&self) -> Vec<(String, Settings)> {
        self.workers.queues()
    }

    fn posts(&self) -> Vec<Post> {
        let publishers = self.mix.posts(PUBLISHER, Side::Publisher, self.mix.publishers);
        let operators = self.mix.posts(OPERATOR, Side::Worker, 1);
        [publishers, self.workers.posts(), operators].concat()
    }

    fn work(&self, me: Participant) -> BoxFuture<'static, ()> {
        match me.post().role {
            PUBLISHER => Box::pin(self.clone().publish(me)),
            OPERATOR => Box::pin(self.clone().operate(me)),
            _ => self.workers.work(me),
        }
    }
}
