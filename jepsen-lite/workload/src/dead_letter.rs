//! The workload `dead-letter`: a storm of nacks, and an operator who gives dead letters another chance.
//!
//! Workers nack and reject nearly half of what they get, so that messages die of their attempts and of
//! rejections all the time. The dead of one queue go to another; those of a second queue stay in its dead set.
//! An operator redrives some of both now and then, back to where they died. Parameters are those of [`Mix`],
//! for each of the two queues, and `redrive_ms`: the time between two redrives.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use futures_util::future::BoxFuture;
use jepsen_lite_core::view::Settings;
use rand::RngExt as _;

use crate::crew::{Post, Side};
use crate::mix::{Habits, Mix};
use crate::native::Native;
use crate::parameters::Parameters;
use crate::participant::Participant;
use crate::queue::{DEAD_LETTER_QUEUE, Queue};
use crate::workload::Workload;

/// The queue that keeps its dead.
const DOOMED: &str = "doomed";
/// Most letters of one redrive.
const REDRIVE_MAX: u64 = 40;
const REDRIVER: &str = "redriver";

/// Two queues whose messages die, and an operator.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    parts: [Queue<Native>; 2],
    timeout: Duration,
    between: Duration,
}

impl DeadLetter {
    /// As the parameters of a schedule want it.
    ///
    /// # Errors
    ///
    /// When one is unknown.
    pub fn with_parameters(given: &BTreeMap<String, u64>) -> Result<Self> {
        let mut parameters = Parameters::new("dead-letter", given);
        let mix = Mix {
            publishers: 2,
            per_second: Mix::PER_SECOND / 2,
            consumers: 2,
            pullers: 1,
            deliveries_max: 3,
            habits: Habits {
                ack: 45,
                nack: 25,
                put_off: 5,
                release: 5,
                dead_letter: 15,
                ack_late: 2,
                forget: 3,
                ..Habits::GOOD
            },
            ..Mix::default()
        }
        .with(&mut parameters);
        let between = parameters.time("redrive_ms", Duration::from_millis(700));
        parameters.finish()?;
        Ok(Self {
            timeout: mix.timeout,
            between,
            parts: [Queue::new(mix.clone()), Queue::alone(DOOMED, mix)],
        })
    }
}

impl Workload for DeadLetter {
    fn queues(&self) -> Vec<(String, Settings)> {
        self.parts.iter().flat_map(Workload::queues).collect()
    }

    fn posts(&self) -> Vec<Post> {
        let redriver = Post {
            role: REDRIVER,
            side: Side::Worker,
            place: 0,
            part: 0,
            timeout: self.timeout,
            attempt: None,
        };
        let parts = self.parts.iter().enumerate();
        let posts = parts.flat_map(|(part, queue)| {
            let posts = queue.posts().into_iter();
            posts.map(move |post| Post { part, ..post })
        });
        posts.chain([redriver]).collect()
    }

    fn work(&self, me: Participant) -> BoxFuture<'static, ()> {
        match me.post().role {
            REDRIVER => Box::pin(redrive(me, self.between)),
            _ => self.parts[me.post().part].work(me),
        }
    }
}

async fn redrive(me: Participant, between: Duration) {
    let (operator, mut rng) = (me.operator(), me.rng());
    while me.is_running() {
        me.rest(between).await;
        me.go_on().await;
        let queue = if rng.random_bool(0.5) {
            DEAD_LETTER_QUEUE
        } else {
            DOOMED
        };
        // What came of it is written down, and the next one comes anyway.
        let _ = operator.redrive(queue, rng.random_range(1..=REDRIVE_MAX)).await;
    }
}
