//! Writes down what clients ask for and are told.
//!
//! A worker may be killed at any moment: what it had asked for by then and was not told the outcome of is
//! written down as unknown.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jepsen_lite_core::body;
use jepsen_lite_core::history::{Delivery, History, MessageId, Outcome, Progress, Publish, Settle, Wish};
use quorate_client::Error;

/// Writes a history; clones write the same one.
#[derive(Clone, Debug)]
pub struct Recorder {
    start: Instant,
    history: Arc<Mutex<History>>,
}

/// A settlement under way; dropped, it is written down as it stands.
struct Asked<'a> {
    recorder: &'a Recorder,
    settle: Settle,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let settle = Settle {
            answered: self.recorder.now(),
            ..std::mem::take(&mut self.settle)
        };
        self.recorder.write(|history| history.settles.push(settle));
    }
}

/// What a call came to.
pub fn outcome<A, T>(result: Result<A, Error>, value: impl FnOnce(A) -> T) -> Outcome<T> {
    match result {
        Ok(answer) => Outcome::Done(value(answer)),
        Err(error) if error.may_have_applied() => Outcome::Unknown,
        Err(error) => Outcome::Refused(error.reason().map(|reason| reason.to_string())),
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            history: Arc::default(),
        }
    }
}

impl Recorder {
    /// The time since the start of the history.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Adds a publish with its outcome, which is there now.
    pub fn publish(&self, publish: Publish) {
        let publish = Publish {
            answered: self.now(),
            ..publish
        };
        self.write(|history| history.publishes.push(publish));
    }

    /// Adds a delivery that `process` got, before anything is done with it. It had
    /// asked for a lease of this length; `ends_by_time` as in [`Delivery`].
    pub fn received(
        &self,
        process: u32,
        delivery: &quorate_client::Delivery,
        lease: Duration,
        ends_by_time: bool,
    ) {
        let delivery = Delivery {
            queue: delivery.queue().to_owned(),
            process,
            message: MessageId::of(delivery.message_id()),
            group: delivery.group().map(str::to_owned),
            priority: delivery.priority(),
            dedup_id: delivery.dedup_id().map(str::to_owned),
            key: body::key(delivery.body()),
            token: delivery.token().to_owned(),
            fence: delivery.fence(),
            attempt: delivery.attempt(),
            redelivered: delivery.redelivered(),
            lease_ms: u64::try_from(lease.as_millis()).expect("a short time"),
            leased_until_ms: delivery.leased_until_ms(),
            published_at_ms: delivery.published_at_ms(),
            ends_by_time,
            received: self.now(),
            ..Delivery::default()
        };
        self.write(|history| history.deliveries.push(delivery));
    }

    /// Asks for a settlement, waits for its outcome, and adds it; as unknown if
    /// this is dropped before.
    pub async fn settling<T, S>(&self, token: &str, wish: Wish, ask: impl FnOnce() -> S) -> Outcome<()>
    where
        S: Future<Output = quorate_client::Result<T>>,
    {
        let mut asked = Asked {
            recorder: self,
            settle: Settle {
                token: token.to_owned(),
                wish,
                invoked: self.now(),
                ..Settle::default()
            },
        };
        asked.settle.outcome = outcome(ask().await, |_| ());
        asked.settle.outcome.clone()
    }

    /// How much has happened so far.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.write(|history| history.progress())
    }

    /// A copy of what is written so far.
    #[must_use]
    pub fn history(&self) -> History {
        self.write(|history| history.clone())
    }

    fn write<T>(&self, change: impl FnOnce(&mut History) -> T) -> T {
        change(&mut self.history.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
