//! Writes down what participants ask for and are told.
//!
//! Times are Tokio's, which is the real clock in front of real processes and the simulated one in the
//! simulator, from the moment at which the recorder was made.
//!
//! A worker may be killed at any moment. So whatever is asked for is held by a [`Pending`], which writes it
//! down when it is dropped: with the answer, if there was one by then, and else as of unknown outcome.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jepsen_lite_core::history::{Delivery, History, Kill, Mark, Progress, Read, Record, View, Write};
use tokio::time::Instant;

/// Writes a history; clones write the same one.
#[derive(Clone, Debug)]
pub struct Recorder {
    start: Instant,
    history: Arc<Mutex<History>>,
    /// Numbers for what must have one of its own: batches and transactions.
    numbers: Arc<AtomicU64>,
}

/// Operations under way that get one answer.
///
/// They are of unknown outcome until somebody says otherwise.
#[derive(Debug)]
#[must_use = "dropped at once, it says that nobody waited for the answer"]
pub struct Pending {
    recorder: Recorder,
    records: Vec<Record>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            history: Arc::default(),
            numbers: Arc::default(),
        }
    }
}

impl Recorder {
    /// The time since the start of the history.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// When the history began.
    #[must_use]
    pub fn start(&self) -> Instant {
        self.start
    }

    /// A number that it has not given before.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Notes that operations are asked for now, which will have one answer.
    pub fn ask(&self, records: impl IntoIterator<Item = Record>) -> Pending {
        let now = self.now();
        let mut records: Vec<Record> = records.into_iter().collect();
        for record in &mut records {
            if let Some((invoked, _)) = times(record) {
                *invoked = now;
            }
        }
        Pending {
            recorder: self.clone(),
            records,
        }
    }

    /// Adds a delivery that a process has just got, before anything is done with it.
    pub fn received(&self, process: u32, delivery: Delivery) {
        let delivery = Delivery {
            process,
            received: self.now(),
            ..delivery
        };
        self.push(Record::Delivery(delivery));
    }

    /// Adds an answer to a look at a queue, which was asked for at `invoked`. A look without an answer is
    /// nothing.
    pub fn read(&self, process: u32, queue: &str, invoked: Duration, read_index: Option<u64>, view: View) {
        self.push(Record::Read(Read {
            process,
            invoked,
            answered: self.now(),
            queue: queue.to_owned(),
            read_index,
            view,
        }));
    }

    /// Adds a write into a register outside of the broker, at this moment.
    pub fn write(&self, write: Write) {
        let at = self.now();
        self.push(Record::Write(Write { at, ..write }));
    }

    /// Notes that a process was killed.
    pub fn killed(&self, process: u32) {
        let at = self.now();
        self.push(Record::Kill(Kill { process, at }));
    }

    /// Notes what the harness did.
    pub fn mark(&self, name: &str, detail: impl Into<String>, index: Option<u64>) {
        self.push(Record::Mark(Mark {
            at: self.now(),
            name: name.to_owned(),
            detail: detail.into(),
            index,
        }));
    }

    /// How much has happened so far.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.change(|history| history.progress())
    }

    /// A copy of what is written so far.
    #[must_use]
    pub fn history(&self) -> History {
        self.change(|history| history.clone())
    }

    fn push(&self, record: Record) {
        self.change(|history| history.push(record));
    }

    fn change<T>(&self, change: impl FnOnce(&mut History) -> T) -> T {
        change(&mut self.history.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Pending {
    /// Fills in the answer, record by record with its place, and writes it down.
    pub fn answer(mut self, mut fill: impl FnMut(usize, &mut Record)) {
        for (place, record) in self.records.iter_mut().enumerate() {
            fill(place, record);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let now = self.recorder.now();
        for mut record in self.records.drain(..) {
            if let Some((_, answered)) = times(&mut record) {
                *answered = now;
            }
            self.recorder.push(record);
        }
    }
}

/// When it was asked for and answered, of what is.
fn times(record: &mut Record) -> Option<(&mut Duration, &mut Duration)> {
    match record {
        Record::Publish(publish) => Some((&mut publish.invoked, &mut publish.answered)),
        Record::Settle(settle) => Some((&mut settle.invoked, &mut settle.answered)),
        Record::Receive(receive) => Some((&mut receive.invoked, &mut receive.answered)),
        Record::Operation(operation) => Some((&mut operation.invoked, &mut operation.answered)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use jepsen_lite_core::history::{Outcome, Settle, Wish};

    use super::*;

    fn ack(token: &str) -> Record {
        Record::Settle(Settle {
            token: token.to_owned(),
            wish: Wish::Ack,
            ..Settle::default()
        })
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_under_way_when_its_process_died_is_unknown() {
        let recorder = Recorder::default();
        let done = recorder.ask([ack("one")]);
        let never = recorder.ask([ack("two")]);
        let task = tokio::spawn(async move {
            let _held = never;
            std::future::pending::<()>().await;
        });
        tokio::time::sleep(Duration::from_millis(5)).await;
        done.answer(|_, record| {
            if let Record::Settle(settle) = record {
                settle.outcome = Outcome::Done(());
            }
        });
        task.abort();
        let _ = task.await;
        let settles = recorder.history().settles;
        let told: Vec<_> = settles
            .iter()
            .map(|settle| (settle.token.as_str(), settle.outcome.is_done()))
            .collect();
        assert_eq!(told, [("one", true), ("two", false)]);
        let span = (settles[1].invoked, settles[1].answered);
        assert_eq!(span, (Duration::ZERO, Duration::from_millis(5)));
    }
}
