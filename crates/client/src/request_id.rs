//! Ids that make a call safe to repeat.
//!
//! The broker remembers what it answered to (client, sequence), and gives a
//! repeated request that answer instead of doing the work again. It remembers
//! a bounded number per client, so a client says with each request which of
//! its older ones still wait, and keeps those few.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use quorate_proto::v1;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::random::Random;

/// The most requests of one client id that wait for an answer at a time. The
/// broker remembers 4,096 outcomes per client id.
pub(crate) const UNANSWERED_MAX: usize = 1_000;

/// The most sequences from the oldest unanswered to the last: what the broker
/// remembers, and some to spare.
pub(crate) const SPREAD_MAX: u64 = 3_000;

/// Hands out request ids for unary calls, which may be answered in any order.
#[derive(Debug)]
pub(crate) struct RequestIds {
    current: Mutex<Arc<Series>>,
    room: Arc<Semaphore>,
    random: Random,
}

/// The requests under one client id.
#[derive(Debug)]
struct Series {
    client: u64,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    last: u64,
    unanswered: BTreeSet<u64>,
}

/// Names a request that changes something, for good: the same at each attempt,
/// and in the broker's log. Its text is `client-sequence`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// A random number that this client drew.
    pub client: u64,
    /// Among the requests under that number, from 1.
    pub sequence: u64,
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.client, self.sequence)
    }
}

impl From<v1::RequestId> for RequestId {
    fn from(wire: v1::RequestId) -> Self {
        Self {
            client: wire.client,
            sequence: wire.sequence,
        }
    }
}

/// A request that waits for its answer. Dropped when nobody waits any more.
#[derive(Debug)]
pub(crate) struct Ticket {
    series: Arc<Series>,
    sequence: u64,
    room: Option<OwnedSemaphorePermit>,
}

impl RequestIds {
    pub(crate) fn new(random: Random) -> Self {
        Self {
            current: Mutex::new(Arc::new(Series::new(&random))),
            room: Arc::new(Semaphore::new(UNANSWERED_MAX)),
            random,
        }
    }

    /// An id for a new request; waits while [`UNANSWERED_MAX`] are under way.
    pub(crate) async fn begin(&self) -> Ticket {
        let room = Arc::clone(&self.room)
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        self.dense().ticket(Some(room))
    }

    /// Another id for a request that the broker certainly did not apply, and
    /// whose client id it has forgotten.
    pub(crate) fn renew(&self, mut ticket: Ticket) -> Ticket {
        let series = {
            let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            if Arc::ptr_eq(&current, &ticket.series) {
                *current = Arc::new(Series::new(&self.random));
            }
            Arc::clone(&current)
        };
        tracing::debug!("the broker has forgotten this client id; going on under another");
        series.ticket(ticket.room.take())
    }

    /// The series for the next request. One request without an answer keeps all
    /// later outcomes of its series remembered: when they get many, a new series
    /// begins.
    fn dense(&self) -> Arc<Series> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.lock().spread() >= SPREAD_MAX {
            *current = Arc::new(Series::new(&self.random));
        }
        Arc::clone(&current)
    }
}

impl Progress {
    /// Sequences from the oldest unanswered to the last.
    fn spread(&self) -> u64 {
        self.unanswered.first().map_or(0, |oldest| self.last - oldest + 1)
    }
}

impl Series {
    fn new(random: &Random) -> Self {
        Self {
            client: random.id(),
            progress: Mutex::default(),
        }
    }

    fn ticket(self: Arc<Self>, room: Option<OwnedSemaphorePermit>) -> Ticket {
        let sequence = {
            let mut progress = self.lock();
            progress.last += 1;
            let sequence = progress.last;
            progress.unanswered.insert(sequence);
            sequence
        };
        Ticket {
            series: self,
            sequence,
            room,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    /// The id as of now: the same client and sequence at every attempt.
    pub(crate) fn id(&self) -> v1::RequestId {
        let oldest = self.series.lock().unanswered.first().copied();
        v1::RequestId {
            client: self.series.client,
            sequence: self.sequence,
            oldest_unanswered: oldest.unwrap_or(self.sequence),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.series.lock().unanswered.remove(&self.sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn oldest_unanswered_follows_the_answers() {
        let ids = RequestIds::new(Random::default());
        let (first, second, third) = (ids.begin().await, ids.begin().await, ids.begin().await);
        assert_eq!(
            (
                third.id().client,
                third.id().sequence,
                third.id().oldest_unanswered
            ),
            (first.id().client, 3, 1)
        );
        drop(second);
        assert_eq!(third.id().oldest_unanswered, 1);
        drop(first);
        assert_eq!(third.id().oldest_unanswered, 3);
    }

    #[tokio::test]
    async fn a_forgotten_client_id_is_replaced_once() {
        let ids = RequestIds::new(Random::default());
        let (first, second) = (ids.begin().await, ids.begin().await);
        let forgotten = first.id().client;
        let first = ids.renew(first);
        let second = ids.renew(second);
        assert_ne!(first.id().client, forgotten);
        assert_eq!(first.id().client, second.id().client);
        assert_eq!((first.id().sequence, second.id().sequence), (1, 2));
    }
    #[tokio::test]
    async fn one_request_without_an_answer_does_not_use_up_what_the_broker_remembers() {
        let ids = RequestIds::new(Random::default());
        let waits = ids.begin().await;
        for _ in 1..SPREAD_MAX {
            assert_eq!(ids.begin().await.id().client, waits.id().client);
        }
        let next = ids.begin().await;
        assert_ne!(next.id().client, waits.id().client);
        assert_eq!((next.id().sequence, next.id().oldest_unanswered), (1, 1));
    }
}
