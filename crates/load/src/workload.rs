//! Publishers and consumers at work on one queue.
//!
//! Each publisher keeps up to `window` publishes unconfirmed; each consumer
//! leases up to `prefetch` messages and acks every one. Confirms and answers to
//! acks are awaited in the order in which they were asked for, which is the
//! order in which they come.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use quorate_client::{Client, Confirm, Consumer, Error, Settling};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use crate::ledger::{AckOutcome, Ledger, Verdict};
use crate::series::{Second, Series};
use crate::stamp::{Stamp, filler};

/// Longest latency that is told apart from longer ones.
const LATENCY_MAX_US: u64 = 600_000_000;
/// The most publishes that a publisher of the client keeps unconfirmed.
pub(crate) const WINDOW_MAX: usize = 1_000;
/// Between two looks at the queue while it is drained.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Before a consumer or publisher that failed tries again.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// What the load looks like.
#[derive(Clone, Debug, Serialize)]
pub struct Shape {
    /// Each with a stream of its own.
    pub publishers: usize,
    /// Each with a stream of its own.
    pub consumers: usize,
    /// Most publishes of one publisher that wait for their confirm: 1 to 1,000.
    pub window: usize,
    /// Most messages that one consumer holds.
    pub prefetch: u32,
    /// Bytes of a body, at least 32.
    pub body_bytes: usize,
    /// Messages per second of all publishers together; None = as fast as the
    /// window allows. With a rate, latencies count from when a message was due:
    /// a stalled broker is charged for the messages it kept from being sent.
    pub rate: Option<f64>,
    /// Messages of all publishers together; None = until told to stop.
    pub count: Option<u64>,
}

/// A workload under way. Dropping it stops everything at once.
#[derive(Debug)]
pub struct Workload {
    shared: Arc<Shared>,
    publishers: JoinSet<()>,
    consumers: JoinSet<()>,
    stop: watch::Sender<Stop>,
}

/// How many of each so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Publishes that were confirmed.
    pub confirmed: u64,
    /// Publishes that were refused or whose outcome is unknown.
    pub not_confirmed: u64,
    /// Deliveries, redeliveries included.
    pub delivered: u64,
    /// Deliveries of a message that had been delivered before.
    pub redelivered: u64,
    /// Messages whose ack succeeded.
    pub acked: u64,
    /// Deliveries of messages that another run published; acked as well.
    pub foreign: u64,
}

/// Everything there is to say when a workload is over.
#[derive(Debug)]
pub struct Outcome {
    /// The sets compared.
    pub verdict: Verdict,
    /// From due (or sent) to confirmed, in microseconds.
    pub confirm_latency: Histogram<u64>,
    /// From due (or sent) to delivered, in microseconds.
    pub end_to_end: Histogram<u64>,
}

/// How far to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stop {
    Nothing,
    Publishing,
    All,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    queue: String,
    shape: Shape,
    /// Tells this run's messages from others in the queue.
    run: u64,
    began: Instant,
    ledger: Ledger,
    /// Latencies and gaps are recorded now.
    measuring: AtomicBool,
    taken: AtomicU64,
    confirmed: AtomicU64,
    not_confirmed: AtomicU64,
    delivered: AtomicU64,
    redelivered: AtomicU64,
    acked: AtomicU64,
    foreign: AtomicU64,
    gaps: Gaps,
    terms: Terms,
    confirm_latency: Mutex<Histogram<u64>>,
    end_to_end: Mutex<Histogram<u64>>,
    series: Series,
    /// The first thing that went wrong.
    problem: Mutex<Option<String>>,
}

impl Workload {
    /// Prepares a load for a queue that exists. Nothing happens yet.
    #[must_use]
    pub fn new(client: Client, queue: impl Into<String>, shape: Shape) -> Self {
        let shared = Shared {
            client,
            queue: queue.into(),
            run: rand::random(),
            began: Instant::now(),
            ledger: Ledger::new(shape.publishers),
            shape,
            measuring: AtomicBool::new(false),
            taken: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            not_confirmed: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            redelivered: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            foreign: AtomicU64::new(0),
            gaps: Gaps::default(),
            terms: Terms::default(),
            confirm_latency: Mutex::new(latencies()),
            end_to_end: Mutex::new(latencies()),
            series: Series::default(),
            problem: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
            publishers: JoinSet::new(),
            consumers: JoinSet::new(),
            stop: watch::Sender::new(Stop::Nothing),
        }
    }

    /// Starts the publishers.
    pub fn publish(&mut self) {
        for index in 0..self.shared.shape.publishers {
            self.publishers
                .spawn(publish(Arc::clone(&self.shared), index, self.stop.subscribe()));
        }
    }

    /// Starts the consumers.
    pub fn consume(&mut self) {
        for index in 0..self.shared.shape.consumers {
            self.consumers
                .spawn(consume(Arc::clone(&self.shared), index, self.stop.subscribe()));
        }
    }

    /// Records latencies, gaps and what each second was like from now on.
    pub fn begin_measuring(&self) {
        let now_ns = self.shared.now_ns();
        self.shared.gaps.restart(now_ns);
        self.shared.series.begin(now_ns);
        self.shared.measuring.store(true, Relaxed);
    }

    /// Does so no longer; says what the seconds were like.
    pub(crate) fn end_measuring(&self) -> Vec<Second> {
        self.shared.measuring.store(false, Relaxed);
        self.shared.series.end(self.shared.now_ns())
    }

    /// How it stands.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.counts()
    }

    /// Since the workload was prepared.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.shared.began.elapsed()
    }

    /// Longest time between two confirms while it was measured.
    #[must_use]
    pub fn longest_gap(&self) -> Duration {
        Duration::from_nanos(self.shared.gaps.longest.load(Relaxed))
    }

    /// Each term in which a confirm came, and when the first came.
    #[must_use]
    pub fn terms(&self) -> Vec<(u64, Duration)> {
        lock(&self.shared.terms.firsts).clone()
    }

    /// The first thing that went wrong, if any did.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        lock(&self.shared.problem).clone()
    }

    /// Every message of a workload with a count has its answer.
    #[must_use]
    pub fn has_published(&mut self) -> bool {
        while self.publishers.try_join_next().is_some() {}
        self.publishers.is_empty()
    }

    /// Sends nothing more, and waits until every message sent has its answer.
    pub async fn stop_publishing(&mut self) {
        self.stop.send_replace(Stop::Publishing);
        while self.publishers.join_next().await.is_some() {}
    }

    /// Waits until every confirmed message is acked, or else until the queue is
    /// empty.
    ///
    /// # Errors
    ///
    /// When neither is so within `limit`.
    pub async fn drain(&self, limit: Duration) -> Result<()> {
        let give_up = Instant::now() + limit;
        loop {
            let Counts {
                confirmed,
                acked,
                foreign,
                ..
            } = self.counts();
            // Cheap questions first.
            if confirmed > 0 && foreign == 0 && acked >= confirmed && self.shared.ledger.outstanding() == 0 {
                return Ok(());
            }
            let left = self.left().await;
            match left {
                Ok(0) => return Ok(()),
                _ if Instant::now() < give_up => tokio::time::sleep(LOOK_EVERY).await,
                Ok(left) => bail!("{left} messages are still in the queue after {limit:?}"),
                Err(error) => return Err(error).context("look at the queue"),
            }
        }
    }

    /// Messages that the broker still has for the consumers.
    async fn left(&self) -> Result<u64, Error> {
        let counts = self
            .shared
            .client
            .describe_queue(self.shared.queue.as_str())
            .await?
            .counts;
        Ok(counts.ready + counts.delayed + counts.leased)
    }

    /// Stops the consumers and compares the sets; see [`Ledger::verdict`].
    pub async fn finish(mut self) -> Outcome {
        self.stop.send_replace(Stop::All);
        while self.publishers.join_next().await.is_some() {}
        while self.consumers.join_next().await.is_some() {}
        Outcome {
            verdict: self.shared.ledger.verdict(),
            confirm_latency: lock(&self.shared.confirm_latency).clone(),
            end_to_end: lock(&self.shared.end_to_end).clone(),
        }
    }
}

impl Shared {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).expect("a run is shorter than 500 years")
    }

    fn counts(&self) -> Counts {
        Counts {
            confirmed: self.confirmed.load(Relaxed),
            not_confirmed: self.not_confirmed.load(Relaxed),
            delivered: self.delivered.load(Relaxed),
            redelivered: self.redelivered.load(Relaxed),
            acked: self.acked.load(Relaxed),
            foreign: self.foreign.load(Relaxed),
        }
    }

    /// Whether there is one more message to publish.
    fn take(&self) -> bool {
        self.shape
            .count
            .is_none_or(|count| self.taken.fetch_add(1, Relaxed) < count)
    }

    fn failed(&self, what: &str, error: &Error) {
        lock(&self.problem).get_or_insert_with(|| format!("{what}: {error}"));
    }
}

/// A publish that waits for its answer.
struct Sent {
    number: u64,
    due_ns: u64,
    confirm: Confirm,
    /// Its place in the window.
    _place: OwnedSemaphorePermit,
}

async fn publish(shared: Arc<Shared>, index: usize, stop: watch::Receiver<Stop>) {
    // The window is kept here, and not by the client, so that a latency does not
    // contain the wait for a place in it.
    let publisher = shared
        .client
        .publisher(shared.queue.as_str())
        .window(WINDOW_MAX)
        .start();
    let places = Arc::new(Semaphore::new(shared.shape.window));
    // Bounded by the places.
    let (sender, mut sent) = mpsc::unbounded_channel();

    let send = async {
        let filler = filler(shared.shape.body_bytes);
        let pause_ns = shared
            .shape
            .rate
            .map(|rate| (shared.shape.publishers as f64 * 1e9 / rate) as u64);
        // Publishers with a rate take turns.
        let mut next_ns =
            shared.now_ns() + pause_ns.unwrap_or(0) * index as u64 / shared.shape.publishers as u64;
        loop {
            if let Some(pause_ns) = pause_ns {
                let wait = next_ns.saturating_sub(shared.now_ns());
                // A timer has a resolution of a millisecond: what is late goes out
                // at once, and several together.
                if wait > 0 {
                    tokio::time::sleep(Duration::from_nanos(wait)).await;
                }
                next_ns += pause_ns;
            }
            let place = Arc::clone(&places)
                .acquire_owned()
                .await
                .expect("the places are never closed");
            if *stop.borrow() > Stop::Nothing || !shared.take() {
                break;
            }
            let due_ns = pause_ns.map_or_else(|| shared.now_ns(), |pause_ns| next_ns - pause_ns);
            let number = shared.ledger.sent(index);
            let body = Stamp {
                run: shared.run,
                publisher: index as u64,
                number,
                due_ns,
            }
            .body(&filler);
            let confirm = publisher.send(body).await;
            let waiting = Sent {
                number,
                due_ns,
                confirm,
                _place: place,
            };
            sender.send(waiting).expect("its receiver is in the same task");
        }
        drop(sender);
    };
    let confirm = async {
        let mut latencies = latencies();
        while let Some(Sent {
            number,
            due_ns,
            confirm,
            _place,
        }) = sent.recv().await
        {
            let measuring = shared.measuring.load(Relaxed);
            match confirm.await {
                Ok(published) => {
                    let now_ns = shared.now_ns();
                    shared.ledger.confirmed(index, number, published.message_id());
                    shared.confirmed.fetch_add(1, Relaxed);
                    shared.terms.confirm(published.commit.term, now_ns);
                    let latency_us = now_ns.saturating_sub(due_ns) / 1_000;
                    shared.series.confirmed(now_ns, latency_us);
                    if measuring {
                        shared.gaps.confirm(now_ns);
                        latencies.saturating_record(latency_us);
                    }
                }
                Err(error) => {
                    shared
                        .ledger
                        .not_confirmed(index, number, error.may_have_applied());
                    shared.not_confirmed.fetch_add(1, Relaxed);
                    shared.failed("publish", &error);
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            }
        }
        latencies
    };
    let ((), latencies) = tokio::join!(send, confirm);
    lock(&shared.confirm_latency)
        .add(latencies)
        .expect("both have the same bounds");
    publisher.close().await;
}

/// An ack that waits for its answer; whose message it is, unless another run's.
struct Acking {
    message: Option<(u64, u64)>,
    settling: Settling,
}

async fn consume(shared: Arc<Shared>, index: usize, mut stop: watch::Receiver<Stop>) {
    while *stop.borrow() < Stop::All {
        let name = format!("load-{index}");
        let consumer = shared
            .client
            .consume(shared.queue.as_str())
            .prefetch(shared.shape.prefetch)
            .name(name);
        match consumer.open().await {
            Ok(consumer) => consume_from(&shared, consumer, &mut stop).await,
            Err(error) => {
                shared.failed("consume", &error);
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }
}

/// Receives and acks until told to stop, or until the consumer ends.
async fn consume_from(shared: &Shared, mut consumer: Consumer, stop: &mut watch::Receiver<Stop>) {
    // Bounded by the prefetch.
    let (sender, mut acking) = mpsc::unbounded_channel();
    let receive = async {
        let mut latencies = latencies();
        loop {
            let next = tokio::select! {
                next = consumer.next() => next,
                _ = stop.wait_for(|stop| *stop == Stop::All) => None,
            };
            let delivery = match next {
                None => break,
                Some(Ok(delivery)) => delivery,
                Some(Err(error)) => {
                    shared.failed("consume", &error);
                    break;
                }
            };
            shared.delivered.fetch_add(1, Relaxed);
            let stamp = Stamp::of(delivery.body()).filter(|stamp| stamp.run == shared.run);
            let known = stamp.and_then(|stamp| {
                let before = shared
                    .ledger
                    .delivered(stamp.publisher, stamp.number, delivery.message_id())?;
                Some((stamp, before))
            });
            match known {
                Some((stamp, before)) => {
                    shared.redelivered.fetch_add(u64::from(before > 0), Relaxed);
                    let now_ns = shared.now_ns();
                    let latency_us = now_ns.saturating_sub(stamp.due_ns) / 1_000;
                    shared.series.delivered(now_ns, latency_us);
                    if shared.measuring.load(Relaxed) {
                        latencies.saturating_record(latency_us);
                    }
                }
                None => _ = shared.foreign.fetch_add(1, Relaxed),
            }
            let message = known.map(|(stamp, _)| (stamp.publisher, stamp.number));
            let waiting = Acking {
                message,
                settling: delivery.ack(),
            };
            sender.send(waiting).expect("its receiver is in the same task");
        }
        drop(sender);
        consumer.close().await;
        latencies
    };
    let acknowledge = async {
        while let Some(Acking { message, settling }) = acking.recv().await {
            let outcome = match settling.await {
                Ok(_) => AckOutcome::Done,
                Err(error) if error.may_have_applied() => AckOutcome::Unknown,
                Err(_) => AckOutcome::Stale,
            };
            let counts = match message {
                Some((publisher, number)) => shared.ledger.acked(publisher, number, outcome),
                None => outcome == AckOutcome::Done,
            };
            if counts {
                shared.acked.fetch_add(1, Relaxed);
                shared.series.acked(shared.now_ns());
            }
        }
    };
    let (latencies, ()) = tokio::join!(receive, acknowledge);
    lock(&shared.end_to_end)
        .add(latencies)
        .expect("both have the same bounds");
}

/// The longest time between two confirms of any publishers.
#[derive(Debug, Default)]
struct Gaps {
    last_ns: AtomicU64,
    longest: AtomicU64,
}

impl Gaps {
    fn restart(&self, now_ns: u64) {
        self.last_ns.store(now_ns, Relaxed);
        self.longest.store(0, Relaxed);
    }

    fn confirm(&self, now_ns: u64) {
        let last_ns = self.last_ns.fetch_max(now_ns, Relaxed);
        self.longest.fetch_max(now_ns.saturating_sub(last_ns), Relaxed);
    }
}

/// When the first confirm of each leadership came.
#[derive(Debug, Default)]
struct Terms {
    highest: AtomicU64,
    firsts: Mutex<Vec<(u64, Duration)>>,
}

impl Terms {
    fn confirm(&self, term: u64, now_ns: u64) {
        if self.highest.fetch_max(term, Relaxed) < term {
            lock(&self.firsts).push((term, Duration::from_nanos(now_ns)));
        }
    }
}

fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_US, 3).expect("constant bounds are valid")
}

fn lock<T>(value: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_is_between_confirms_of_any_publishers() {
        let gaps = Gaps::default();
        gaps.restart(100);
        for now in [150, 140, 400, 390, 410] {
            gaps.confirm(now);
        }
        assert_eq!(gaps.longest.load(Relaxed), 250);
    }

    #[test]
    fn each_term_is_told_once() {
        let terms = Terms::default();
        for (term, now) in [(1, 10), (1, 20), (3, 30), (2, 40), (3, 50)] {
            terms.confirm(term, now);
        }
        let expected = vec![(1, Duration::from_nanos(10)), (3, Duration::from_nanos(30))];
        assert_eq!(*lock(&terms.firsts), expected);
    }
}
