//! Connections that hold leases, and what waits to be sent to them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use quorate_core::effect::Leased;
use quorate_core::ids::{ConsumerId, QueueName, SessionId, Timestamp};
use quorate_mutants::mutant;
use tokio::sync::Notify;

use crate::broker::{Broker, Position};

/// What a session's connection is to be told.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // almost all are deliveries
pub enum Event {
    /// A lease for one of its consumers.
    Deliver {
        /// Which consumer.
        consumer: ConsumerId,
        /// The lease and its message.
        leased: Leased,
        /// Where in the log it was granted; if its session was resumed since,
        /// where that was.
        position: Position,
    },
    /// A consumer was cancelled, because its queue was deleted.
    Cancelled {
        /// Which consumer.
        consumer: ConsumerId,
        /// The queue that is gone.
        queue: QueueName,
    },
}

/// Deliveries on their way to one connection.
///
/// Bounded by the credit of its consumers: a lease that is not settled takes up
/// credit, and one that ran out is dropped here when its successor arrives.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    events: Mutex<VecDeque<(u64, Event)>>,
    ready: Notify,
    /// Attaches up to this epoch are over.
    lost: AtomicU64,
}

impl Outbox {
    pub(crate) fn push(&self, epoch: u64, event: Event, now: Timestamp) {
        let mut events = self.events.lock();
        while let Some((_, Event::Deliver { leased, .. })) = events.front() {
            if leased.leased_until > now {
                break;
            }
            events.pop_front();
        }
        events.push_back((epoch, event));
        drop(events);
        self.ready.notify_one();
    }

    /// The connection has lost its session, whatever its epoch.
    pub(crate) fn lose(&self) {
        self.lose_epoch(u64::MAX);
    }

    /// The attach of that epoch is over, and all before it.
    pub(crate) fn lose_epoch(&self, epoch: u64) {
        self.lost.fetch_max(epoch, Ordering::AcqRel);
        self.ready.notify_one();
    }

    fn has_lost(&self, epoch: u64) -> bool {
        self.lost.load(Ordering::Acquire) >= epoch
    }

    /// Takes up to `count_max` events of this epoch; drops older ones and
    /// leases that ended before `now`.
    fn take(&self, epoch: u64, count_max: usize, now: Timestamp) -> Vec<Event> {
        let mut events = self.events.lock();
        let mut taken = Vec::new();
        while taken.len() < count_max {
            let Some((of, event)) = events.pop_front() else {
                break;
            };
            let stale = matches!(&event, Event::Deliver { leased, .. } if leased.leased_until <= now);
            if of == epoch && !stale {
                taken.push(event);
            }
        }
        taken
    }
}

/// A session that is attached to this node. Dropping it ends the session, or,
/// after [`keep_for_resume`](Self::keep_for_resume), lets it end after a grace
/// unless the client has resumed it elsewhere.
pub struct Session {
    pub(crate) broker: Broker,
    pub(crate) id: SessionId,
    pub(crate) epoch: u64,
    pub(crate) resumed: bool,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) keep: bool,
}

impl Session {
    /// Its id, as the client drew it.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The session existed before this attach.
    #[must_use]
    pub fn resumed(&self) -> bool {
        self.resumed
    }

    /// Waits for events and takes up to `count_max` of them. None: the session
    /// ended or moved to another stream.
    pub async fn next(&self, count_max: usize) -> Option<Vec<Event>> {
        loop {
            let ready = self.outbox.ready.notified();
            let events = self
                .outbox
                .take(self.epoch, count_max, self.broker.cluster_time());
            if !events.is_empty() {
                return Some(events);
            }
            if self.outbox.has_lost(self.epoch) {
                return None;
            }
            ready.await;
        }
    }

    /// The connection goes, but its client may come back through another node
    /// within the grace: the session is not ended at once.
    pub fn keep_for_resume(&mut self) {
        self.keep = true;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if mutant!("lease-leaked") {
            return;
        }
        self.broker
            .end_session(self.id, self.epoch, &self.outbox, self.keep);
    }
}
