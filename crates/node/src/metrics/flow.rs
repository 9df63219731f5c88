//! What flows through queues, counted from the events of the entries that this
//! process applies.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use quorate_core::event::{Change, Event, Returned};
use quorate_core::ids::{QueueId, QueueName};
use quorate_core::outcome::Exit;

use super::histogram::Spans;

/// Most queues that are counted by themselves; the others are counted together.
const QUEUES_MAX: usize = 10_000;

/// Why messages enter a queue.
pub(super) const ENTRIES: [&str; 3] = ["published", "dead_lettered", "moved"];
/// Why leased messages come again.
pub(super) const RETURNS: [&str; 4] = ["nacked", "lease_expired", "released", "session_ended"];

/// Counts of all queues.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Entries that are applied again at a start were counted in an earlier life.
    counting: AtomicBool,
    queues: Mutex<Queues>,
}

#[derive(Debug, Default)]
struct Queues {
    by_id: HashMap<QueueId, (QueueName, Counts)>,
    others: Counts,
}

/// What happened in one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// By [`ENTRIES`].
    pub(super) entered: [u64; ENTRIES.len()],
    /// By [`RETURNS`].
    pub(super) returned: [u64; RETURNS.len()],
    /// From the publish to the first lease.
    pub(super) to_lease: Spans,
    /// From the lease to its ack.
    pub(super) to_ack: Spans,
}

impl Flow {
    /// From now on.
    pub(crate) fn start(&self) {
        self.counting.store(true, Ordering::Relaxed);
    }

    /// Counts the events of an entry.
    pub(crate) fn applied(&self, events: &[Event]) {
        if events.is_empty() || !self.counting.load(Ordering::Relaxed) {
            return;
        }
        let mut queues = self.queues.lock();
        for run in events.chunk_by(|one, next| one.queue == next.queue) {
            let counts = queues.counts(&run[0]);
            run.iter().for_each(|event| counts.count(&event.change));
        }
    }

    /// A copy of all counts. Nothing else is locked meanwhile: entries are applied
    /// under a look at the state, and wait for this.
    pub(super) fn copy(&self) -> Copied {
        let queues = self.queues.lock();
        Copied {
            queues: queues
                .by_id
                .iter()
                .map(|(id, (name, counts))| (*id, (name.clone(), *counts)))
                .collect(),
            others: queues.others,
        }
    }

    /// Queues that are gone: their places are free.
    pub(super) fn forget(&self, gone: &[QueueId]) {
        let mut queues = self.queues.lock();
        for queue in gone {
            queues.by_id.remove(queue);
        }
    }
}

/// Counts at one moment.
pub(super) struct Copied {
    pub(super) queues: BTreeMap<QueueId, (QueueName, Counts)>,
    /// Of queues that are not counted by themselves.
    pub(super) others: Counts,
}

impl Queues {
    fn counts(&mut self, event: &Event) -> &mut Counts {
        if self.by_id.len() >= QUEUES_MAX && !self.by_id.contains_key(&event.queue) {
            return &mut self.others;
        }
        let (_, counts) = self
            .by_id
            .entry(event.queue)
            .or_insert_with(|| (event.queue_name.clone(), Counts::default()));
        counts
    }
}

impl Counts {
    fn count(&mut self, change: &Change) {
        match change {
            Change::Published { .. } => self.entered[0] += 1,
            Change::Arrived { exit, .. } => self.entered[if *exit == Exit::Moved { 2 } else { 1 }] += 1,
            Change::Leased {
                waited: Some(waited), ..
            } => self.to_lease.record(waited.0),
            Change::Returned { reason, .. } => {
                let place = match reason {
                    Returned::Nacked => 0,
                    Returned::LeaseExpired => 1,
                    Returned::Released => 2,
                    Returned::SessionEnded => 3,
                };
                self.returned[place] += 1;
            }
            Change::Left { held: Some(held), .. } => self.to_ack.record(held.0),
            _ => {}
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        let sum = |to: &mut [u64], from: &[u64]| to.iter_mut().zip(from).for_each(|(to, more)| *to += more);
        sum(&mut self.entered, &other.entered);
        sum(&mut self.returned, &other.returned);
        self.to_lease.add(&other.to_lease);
        self.to_ack.add(&other.to_ack);
    }
}

#[cfg(test)]
mod tests {
    use quorate_core::effect::DeadReason;
    use quorate_core::ids::{MessageId, Millis};

    use super::*;

    fn event(queue: u64, change: Change) -> Event {
        Event {
            message: MessageId { index: 1, number: 0 },
            queue: QueueId(queue),
            queue_name: QueueName::new("q").unwrap(),
            change,
        }
    }

    fn published() -> Change {
        Change::Published {
            exchange: None,
            delayed_until: None,
            dedup_id: String::new(),
        }
    }

    fn acked(held: u64) -> Change {
        Change::Left {
            exit: Exit::Acked,
            reason: None,
            error: String::new(),
            to: Vec::new(),
            held: Some(Millis(held)),
        }
    }

    #[test]
    fn events_are_counted_by_queue_and_reason() {
        let flow = Flow::default();
        flow.applied(&[event(1, published())]);
        assert!(
            flow.copy().queues.is_empty(),
            "entries of an earlier life are not counted"
        );
        flow.start();
        let returned = |reason| Change::Returned {
            reason,
            error: String::new(),
            until: None,
        };
        flow.applied(&[
            event(1, published()),
            event(1, published()),
            event(
                2,
                Change::Arrived {
                    from: QueueName::new("p").unwrap(),
                    exit: Exit::DeadLettered,
                },
            ),
            event(1, returned(Returned::SessionEnded)),
            event(1, acked(40)),
            event(
                1,
                Change::Left {
                    exit: Exit::DeadLettered,
                    reason: Some(DeadReason::Rejected),
                    error: String::new(),
                    to: vec![],
                    held: None,
                },
            ),
        ]);
        let copied = flow.copy();
        let counts = |queue| copied.queues[&QueueId(queue)].1;
        assert_eq!((counts(1).entered, counts(1).returned), ([2, 0, 0], [0, 0, 0, 1]));
        assert_eq!(counts(1).to_ack.to_histogram().counts.iter().sum::<u64>(), 1);
        assert!(counts(1).to_lease.is_empty());
        assert_eq!(counts(2).entered, [0, 1, 0]);
        assert_eq!(copied.others, Counts::default());
    }

    #[test]
    fn what_is_beyond_the_bound_is_counted_together() {
        let flow = Flow::default();
        flow.start();
        for queue in 0..QUEUES_MAX as u64 + 5 {
            flow.applied(&[event(queue, published())]);
        }
        let copied = flow.copy();
        assert_eq!(
            (copied.queues.len(), copied.others.entered),
            (QUEUES_MAX, [5, 0, 0])
        );

        flow.forget(&[QueueId(3)]);
        flow.applied(&[event(QUEUES_MAX as u64 + 7, published())]);
        assert_eq!(flow.copy().queues.len(), QUEUES_MAX, "a place was free");
    }
}
