//! Everything that clients asked for and were told.
//!
//! Times are the test's own monotonic clock, from the start of the history. What
//! the broker says of order, fences and log positions, and what it says of time,
//! cluster time, is kept beside them and never mixed with them.
//!
//! A worker may be killed at any moment: what it had asked for by then and was
//! not told the outcome of is written down as unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use quorate_client::{Error, Reason};

use crate::body;

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It was done.
    Done(T),
    /// It was certainly not done.
    Refused(Option<Reason>),
    /// It may have been done, or may yet be.
    Unknown,
}

/// A message as the log orders it: index of its entry, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    /// Index of the log entry.
    pub index: u64,
    /// Number of the message in that entry.
    pub number: u32,
}

/// One publish of one message.
#[derive(Clone, Debug)]
pub struct Publish {
    /// Unique; stands at the head of the body.
    pub key: u64,
    /// Who published: one publisher's publishes are ordered.
    pub publisher: u32,
    /// Where to.
    pub queue: String,
    /// What came of it.
    pub outcome: Outcome<MessageId>,
}

/// One delivery that a worker got into its hands.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// From where.
    pub queue: String,
    /// Who got it.
    pub worker: u32,
    /// The broker's name for the message.
    pub message: MessageId,
    /// The group of the message, if it has one.
    pub group: Option<String>,
    /// The key that stands in the body; None if the body is damaged.
    pub key: Option<u64>,
    /// Names the lease.
    pub token: String,
    /// Orders all leases of all messages.
    pub fence: u64,
    /// As told.
    pub attempt: u32,
    /// As told.
    pub redelivered: bool,
    /// The lease that was asked for, in cluster time.
    pub lease_ms: u64,
    /// When it ends, in cluster time.
    pub leased_until_ms: u64,
    /// It hangs on nothing but its time and settlements: a pulled one, or of a
    /// consumer that stays open.
    pub ends_by_time: bool,
    /// When the worker had it.
    pub received: Duration,
}

/// What a worker wanted to do with a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Done.
    Ack,
    /// Failed.
    Nack,
    /// Given back.
    Release,
    /// Never again.
    DeadLetter,
    /// Longer, please.
    Extend,
}

/// One settlement.
#[derive(Clone, Debug)]
pub struct Settle {
    /// Of which lease.
    pub token: String,
    /// What was asked for.
    pub wish: Wish,
    /// When it was asked for.
    pub invoked: Duration,
    /// When the answer was there.
    pub answered: Duration,
    /// What came of it.
    pub outcome: Outcome<()>,
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// In the order of the answers.
    pub publishes: Vec<Publish>,
    /// In the order of receipt.
    pub deliveries: Vec<Delivery>,
    /// In the order of the answers.
    pub settles: Vec<Settle>,
}

/// Writes a history; clones write the same one.
#[derive(Clone, Debug)]
pub struct Recorder {
    start: Instant,
    history: Arc<Mutex<History>>,
}

/// A settlement under way; dropped, it is written down as it stands.
struct Asked<'a> {
    recorder: &'a Recorder,
    token: String,
    wish: Wish,
    invoked: Duration,
    outcome: Outcome<()>,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let settle = Settle {
            token: std::mem::take(&mut self.token),
            wish: self.wish,
            invoked: self.invoked,
            answered: self.recorder.now(),
            outcome: self.outcome.clone(),
        };
        self.recorder.write(|history| history.settles.push(settle));
    }
}

/// How much has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Publishes that were confirmed.
    pub confirmed: usize,
    /// Deliveries that were received.
    pub delivered: usize,
    /// Settlements that were done.
    pub settled: usize,
    /// Deliveries of messages that had been leased before.
    pub redelivered: usize,
    /// Publishes and settlements of unknown outcome.
    pub unknown: usize,
    /// Settlements that were refused, most of them for a stale token.
    pub refused: usize,
}

impl MessageId {
    /// Reads the text form `index-number`.
    ///
    /// # Errors
    ///
    /// When the text is of another form.
    pub fn parse(text: &str) -> Result<Self> {
        let parts = text.split_once('-').and_then(|(index, number)| {
            Some(Self {
                index: index.parse().ok()?,
                number: number.parse().ok()?,
            })
        });
        parts.with_context(|| format!("{text:?} is not a message id"))
    }

    /// Of a text that the broker gave.
    ///
    /// # Panics
    ///
    /// When it is not of that form.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self::parse(text).expect("the broker names messages by their place in the log")
    }
}

impl<T> Outcome<T> {
    /// What a call came to.
    pub fn of<A>(result: Result<A, Error>, value: impl FnOnce(A) -> T) -> Self {
        match result {
            Ok(answer) => Self::Done(value(answer)),
            Err(error) if error.may_have_applied() => Self::Unknown,
            Err(error) => Self::Refused(error.reason()),
        }
    }

    /// What was done, if it was.
    pub fn done(&self) -> Option<&T> {
        match self {
            Self::Done(value) => Some(value),
            Self::Refused(_) | Self::Unknown => None,
        }
    }

    /// It is known not to have been done.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Refused(_))
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

impl Wish {
    /// It ends the lease.
    #[must_use]
    pub fn is_final(self) -> bool {
        self != Self::Extend
    }
}

impl Delivery {
    /// When the lease began, in cluster time.
    #[must_use]
    pub fn granted_at_ms(&self) -> u64 {
        self.leased_until_ms.saturating_sub(self.lease_ms)
    }
}

impl Recorder {
    /// The time since the start of the history.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Adds a publish with its outcome.
    pub fn publish(&self, publish: Publish) {
        self.write(|history| history.publishes.push(publish));
    }

    /// Adds a delivery that `worker` got, before anything is done with it. It had
    /// asked for a lease of this length; `ends_by_time` as in [`Delivery`].
    pub fn received(
        &self,
        worker: u32,
        delivery: &quorate_client::Delivery,
        lease: Duration,
        ends_by_time: bool,
    ) {
        let delivery = Delivery {
            queue: delivery.queue().to_owned(),
            worker,
            message: MessageId::of(delivery.message_id()),
            group: delivery.group().map(str::to_owned),
            key: body::key(delivery.body()),
            token: delivery.token().to_owned(),
            fence: delivery.fence(),
            attempt: delivery.attempt(),
            redelivered: delivery.redelivered(),
            lease_ms: u64::try_from(lease.as_millis()).expect("a short time"),
            leased_until_ms: delivery.leased_until_ms(),
            ends_by_time,
            received: self.now(),
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
            token: token.to_owned(),
            wish,
            invoked: self.now(),
            outcome: Outcome::Unknown,
        };
        asked.outcome = Outcome::of(ask().await, |_| ());
        asked.outcome.clone()
    }

    /// How much has happened so far.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.write(|history| {
            let mut progress = Progress {
                delivered: history.deliveries.len(),
                ..Progress::default()
            };
            progress.redelivered = history
                .deliveries
                .iter()
                .filter(|delivery| delivery.redelivered)
                .count();
            for publish in &history.publishes {
                match publish.outcome {
                    Outcome::Done(_) => progress.confirmed += 1,
                    Outcome::Unknown => progress.unknown += 1,
                    Outcome::Refused(_) => {}
                }
            }
            for settle in &history.settles {
                match settle.outcome {
                    Outcome::Done(()) => progress.settled += 1,
                    Outcome::Unknown => progress.unknown += 1,
                    Outcome::Refused(_) => progress.refused += 1,
                }
            }
            progress
        })
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

impl History {
    /// Every lease once, at its first receipt: one whose holder does not know what
    /// became of its settlement may be handed to it again.
    pub fn leases(&self) -> impl Iterator<Item = &Delivery> {
        let mut seen = BTreeSet::new();
        self.deliveries
            .iter()
            .filter(move |delivery| seen.insert(delivery.fence))
    }

    /// The leases of each message in each queue, by fence.
    #[must_use]
    pub fn leases_by_place(&self) -> BTreeMap<(&str, MessageId), Vec<&Delivery>> {
        self.leases_by(|delivery| (delivery.queue.as_str(), delivery.message))
    }

    /// The leases of each message over all queues, by fence.
    #[must_use]
    pub fn leases_by_message(&self) -> BTreeMap<MessageId, Vec<&Delivery>> {
        self.leases_by(|delivery| delivery.message)
    }

    fn leases_by<'a, K: Ord>(&'a self, key: impl Fn(&'a Delivery) -> K) -> BTreeMap<K, Vec<&'a Delivery>> {
        let mut leases: BTreeMap<_, Vec<&Delivery>> = BTreeMap::new();
        for delivery in self.leases() {
            leases.entry(key(delivery)).or_default().push(delivery);
        }
        for group in leases.values_mut() {
            group.sort_by_key(|delivery| delivery.fence);
        }
        leases
    }

    /// The settlements of each lease, by its token, in the order in which they
    /// were asked for.
    #[must_use]
    pub fn settles_by_token(&self) -> BTreeMap<&str, Vec<&Settle>> {
        let mut settles: BTreeMap<_, Vec<&Settle>> = BTreeMap::new();
        for settle in &self.settles {
            settles.entry(settle.token.as_str()).or_default().push(settle);
        }
        for of_token in settles.values_mut() {
            of_token.sort_by_key(|settle| settle.invoked);
        }
        settles
    }
}
