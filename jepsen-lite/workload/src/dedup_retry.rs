//! The workload `dedup-retry`: publishers who publish the same thing again, on purpose.
//!
//! Each message has a dedup id. A publisher that does not know what came of a publish tries again, under the
//! same dedup id and with the same body, until it knows; and half of the time also when it does know, at once
//! or after a while, so that a failover or a restart may lie between. *Hasty* publishers have so little
//! patience with an attempt that the client library sends the same request again while the first is under way.
//! However often it is tried, one id is one message for as long as it is remembered.
//!
//! Parameters are those of [`Mix`], where `publishers` counts patient and hasty ones; and `dedup_window_ms`.
//! With a window that is shorter than a run, an id may come to be a second message.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use futures_util::future::BoxFuture;
use jepsen_lite_core::view::Settings;
use rand::RngExt as _;
use rand::rngs::StdRng;
use tokio::task::JoinSet;

use crate::crew::{Post, Side};
use crate::letter::Letter;
use crate::mix::{Habits, Mix};
use crate::native::Native;
use crate::parameters::Parameters;
use crate::participant::{Pace, Participant};
use crate::queue::Queue;
use crate::workload::Workload;

/// The queue that knows ids.
pub const QUEUE: &str = "orders";

const PATIENT: &str = "patient publisher";
const HASTY: &str = "hasty publisher";
/// An attempt of a hasty one is given up after this, and the request sent again.
const HASTE: Duration = Duration::from_millis(15);
/// Most tries of one message beyond the first.
const AGAIN_MAX: u32 = 3;
/// Longest time before one.
const LATER_MS: u64 = 4_000;
/// Messages of one publisher that are tried again at the same time.
const AGAIN_AT_A_TIME: usize = 64;

/// A queue that knows ids, and publishers who repeat themselves.
#[derive(Clone, Debug)]
pub struct DedupRetry {
    mix: Mix,
    workers: Queue<Native>,
}

impl DedupRetry {
    /// As the parameters of a schedule want it.
    ///
    /// # Errors
    ///
    /// When one is unknown.
    pub fn with_parameters(given: &BTreeMap<String, u64>) -> Result<Self> {
        let mut parameters = Parameters::new("dedup-retry", given);
        let mix = Mix {
            per_second: 50,
            consumers: 2,
            pullers: 1,
            deliveries_max: 0,
            habits: Habits {
                ack: 90,
                nack: 4,
                release: 3,
                forget: 3,
                ..Habits::GOOD
            },
            ..Mix::default()
        }
        .with(&mut parameters);
        let window = parameters.number("dedup_window_ms", 300_000);
        parameters.finish()?;
        let workers = Mix {
            publishers: 0,
            ..mix.clone()
        };
        let settings = Settings {
            dedup_window_ms: Some(window),
            ..Settings::default()
        };
        Ok(Self {
            mix,
            workers: Queue::alone(QUEUE, workers).set(settings),
        })
    }
}

impl Workload for DedupRetry {
    fn queues(&self) -> Vec<(String, Settings)> {
        self.workers.queues()
    }

    fn posts(&self) -> Vec<Post> {
        let mut publishers = self.mix.posts(PATIENT, Side::Publisher, self.mix.publishers);
        for post in publishers.iter_mut().skip(1).step_by(2) {
            post.role = HASTY;
        }
        [publishers, self.workers.posts()].concat()
    }

    fn work(&self, me: Participant) -> BoxFuture<'static, ()> {
        let native = match me.post().role {
            PATIENT => me.connect(),
            HASTY => me.connect_hastily(HASTE),
            _ => return self.workers.work(me),
        };
        Box::pin(publish(me, native, self.mix.pace()))
    }
}

async fn publish(me: Participant, native: Native, pace: Option<Duration>) {
    let (mut rng, mut pace, mut tries) = (me.rng(), Pace::new(pace), JoinSet::new());
    for count in 0.. {
        pace.wait(1).await;
        if !me.is_running() {
            break;
        }
        let key = me.key(count);
        let letter = Letter::new(key).dedup_id(format!("order-{key}"));
        let again = again(&mut rng);
        let (me, native) = (me.clone(), native.clone());
        tries.spawn(async move { insist(&me, &native, letter, again).await });
        while tries.len() > AGAIN_AT_A_TIME && tries.join_next().await.is_some() {}
        while tries.try_join_next().is_some() {}
    }
    tries.join_all().await;
}

/// After which pauses a message is tried again although it is known to be there.
fn again(rng: &mut StdRng) -> Vec<Duration> {
    if rng.random_bool(0.5) {
        return Vec::new();
    }
    let count = rng.random_range(1..=AGAIN_MAX);
    (0..count)
        .map(|_| {
            let later = rng.random_bool(0.5);
            Duration::from_millis(if later { rng.random_range(0..LATER_MS) } else { 0 })
        })
        .collect()
}

/// Publishes until it is known to be there, and then again after these pauses.
async fn insist(me: &Participant, native: &Native, letter: Letter, again: Vec<Duration>) {
    let letters = [letter];
    let mut again = again.into_iter();
    while me.is_running() {
        let answer = me.publish(native, QUEUE, &letters).await;
        if answer.outcome.is_done() {
            let Some(pause) = again.next() else { break };
            me.rest(pause).await;
        } else {
            me.rest(HASTE).await;
        }
    }
}
