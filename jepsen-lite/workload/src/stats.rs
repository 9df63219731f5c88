//! The workload `stats`: looks at a queue while it is written to.
//!
//! The people of [`queue`](crate::queue), and readers who ask for its counts, its obstacles and its messages.
//! Such answers are linearizable: each contains all that was done before it was asked for, and nothing else
//! than one moment of the log. Parameters are those of [`Mix`], `readers`, and `read_ms`: the time between two
//! looks of one reader.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use futures_util::future::BoxFuture;
use jepsen_lite_core::view::Settings;
use rand::RngExt as _;

use crate::crew::{Post, Side};
use crate::mix::Mix;
use crate::native::Native;
use crate::parameters::Parameters;
use crate::participant::Participant;
use crate::queue::{DEAD_LETTER_QUEUE, QUEUE, Queue};
use crate::workload::Workload;

/// Messages of one look.
const BROWSE_MAX: u32 = 50;
const READER: &str = "reader";

/// A queue, and readers.
#[derive(Clone, Debug)]
pub struct Stats {
    queue: Queue<Native>,
    readers: Vec<Post>,
    between: Duration,
}

impl Stats {
    /// As the parameters of a schedule want it.
    ///
    /// # Errors
    ///
    /// When one is unknown.
    pub fn with_parameters(given: &BTreeMap<String, u64>) -> Result<Self> {
        let mut parameters = Parameters::new("stats", given);
        let mix = Mix {
            publishers: 2,
            consumers: 2,
            pullers: 1,
            backlog_max: 100,
            ..Mix::default()
        }
        .with(&mut parameters);
        let readers = parameters.number("readers", 3);
        let between = parameters.time("read_ms", Duration::from_millis(50));
        parameters.finish()?;
        Ok(Self {
            readers: mix.posts(READER, Side::Worker, readers),
            between,
            queue: Queue::new(mix),
        })
    }
}

impl Workload for Stats {
    fn queues(&self) -> Vec<(String, Settings)> {
        self.queue.queues()
    }

    fn posts(&self) -> Vec<Post> {
        [self.queue.posts(), self.readers.clone()].concat()
    }

    fn work(&self, me: Participant) -> BoxFuture<'static, ()> {
        match me.post().role {
            READER => Box::pin(read(me, self.between)),
            _ => self.queue.work(me),
        }
    }
}

async fn read(me: Participant, between: Duration) {
    let (operator, mut rng) = (me.operator(), me.rng());
    while me.is_running() {
        me.go_on().await;
        let queue = if rng.random_bool(0.8) {
            QUEUE
        } else {
            DEAD_LETTER_QUEUE
        };
        let told = match rng.random_range(0..3) {
            0 => operator.describe(queue).await.map(|_| ()),
            1 => operator.explain(queue).await,
            _ => operator.browse(queue, BROWSE_MAX).await,
        };
        // A look without an answer is nothing; the next one comes after a while.
        let pause = if told.is_ok() { between } else { between * 2 };
        me.rest(pause).await;
    }
}
