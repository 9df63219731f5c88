//! What is known of each message, and whether any is lost.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

/// Keeps, for each message by its publisher and number, what publishers and
/// consumers learned about it: 24 bytes a message.
#[derive(Debug)]
pub struct Ledger {
    publishers: Vec<Mutex<Vec<Entry>>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// Fingerprint of the message id; 0 while it is not known.
    id: u64,
    deliveries: u32,
    acks: u16,
    publish: Publish,
    /// An ack whose outcome is not known may be what ended the message.
    ack_unknown: bool,
    /// It came under two ids: the broker has it twice.
    duplicated: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Publish {
    #[default]
    Sent,
    Confirmed,
    Refused,
    Unknown,
}

/// What came of an ack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckOutcome {
    /// It ended the message.
    Done,
    /// The lease had ended: the message comes again.
    Stale,
    /// It may have ended the message.
    Unknown,
}

/// The sets of messages compared, once the queue is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Handed to the client.
    pub sent: u64,
    /// Their publish was confirmed.
    pub confirmed: u64,
    /// Certainly not published.
    pub refused: u64,
    /// May have been published.
    pub unknown: u64,
    /// Different messages that were delivered.
    pub delivered: u64,
    /// Deliveries of a message that had been delivered before.
    pub redelivered: u64,
    /// Different messages whose ack succeeded.
    pub acked: u64,
    /// Not acked for certain, but an ack of theirs may have succeeded.
    pub acked_perhaps: u64,
    /// Confirmed, and neither acked nor in the queue.
    pub lost: u64,
    /// In the queue twice, under two ids, although published once.
    pub duplicated: u64,
    /// Refused, and delivered nevertheless.
    pub refused_and_delivered: u64,
    /// Acked twice: two holders had a valid lease.
    pub acked_twice: u64,
}

impl Verdict {
    /// Whether the broker kept its promises.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.lost + self.duplicated + self.refused_and_delivered + self.acked_twice == 0
    }
}

impl Ledger {
    pub(crate) fn new(publishers: usize) -> Self {
        Self {
            publishers: (0..publishers).map(|_| Mutex::default()).collect(),
        }
    }

    /// Opens the entry of a publisher's next message; says its number.
    pub(crate) fn sent(&self, publisher: usize) -> u64 {
        let mut entries = lock(&self.publishers[publisher]);
        entries.push(Entry::default());
        entries.len() as u64 - 1
    }

    pub(crate) fn confirmed(&self, publisher: usize, number: u64, message_id: &str) {
        self.update(publisher, number, |entry| {
            entry.publish = Publish::Confirmed;
            entry.seen_as(message_id);
        });
    }

    pub(crate) fn not_confirmed(&self, publisher: usize, number: u64, may_have_applied: bool) {
        let publish = if may_have_applied {
            Publish::Unknown
        } else {
            Publish::Refused
        };
        self.update(publisher, number, |entry| entry.publish = publish);
    }

    /// Says how often the message had been delivered before; nothing, if it is
    /// not in this ledger.
    pub(crate) fn delivered(&self, publisher: u64, number: u64, message_id: &str) -> Option<u32> {
        let publisher = usize::try_from(publisher).ok()?;
        let mut entries = lock(self.publishers.get(publisher)?);
        let entry = entries.get_mut(usize::try_from(number).ok()?)?;
        entry.seen_as(message_id);
        entry.deliveries += 1;
        Some(entry.deliveries - 1)
    }

    /// Says whether that made the message acked.
    pub(crate) fn acked(&self, publisher: u64, number: u64, outcome: AckOutcome) -> bool {
        let publisher = usize::try_from(publisher).expect("it was delivered, so it is known");
        self.update(publisher, number, |entry| match outcome {
            AckOutcome::Done => {
                entry.acks = entry.acks.saturating_add(1);
                entry.acks == 1
            }
            AckOutcome::Stale => false,
            AckOutcome::Unknown => {
                entry.ack_unknown = true;
                false
            }
        })
    }

    /// Compares the sets. To be asked when the queue is empty: what is neither
    /// acked nor there is lost.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let mut verdict = Verdict::default();
        for publisher in &self.publishers {
            for entry in lock(publisher).iter() {
                entry.add_to(&mut verdict);
            }
        }
        verdict
    }

    /// Confirmed messages that no ack has ended yet, as far as is known.
    pub(crate) fn outstanding(&self) -> u64 {
        let is_outstanding = |entry: &&Entry| entry.publish == Publish::Confirmed && entry.acks == 0;
        let count = |entries: &Mutex<Vec<Entry>>| lock(entries).iter().filter(is_outstanding).count() as u64;
        self.publishers.iter().map(count).sum()
    }

    fn update<T>(&self, publisher: usize, number: u64, change: impl FnOnce(&mut Entry) -> T) -> T {
        let mut entries = lock(&self.publishers[publisher]);
        let index = usize::try_from(number).expect("an entry in memory has an index");
        change(&mut entries[index])
    }
}

impl Entry {
    fn seen_as(&mut self, message_id: &str) {
        let mut hasher = DefaultHasher::new();
        message_id.hash(&mut hasher);
        let fingerprint = hasher.finish().max(1);
        self.duplicated |= self.id != 0 && self.id != fingerprint;
        self.id = fingerprint;
    }

    fn add_to(&self, verdict: &mut Verdict) {
        let settled = self.acks > 0 || self.ack_unknown;
        verdict.sent += 1;
        verdict.confirmed += u64::from(self.publish == Publish::Confirmed);
        verdict.refused += u64::from(self.publish == Publish::Refused);
        verdict.unknown += u64::from(matches!(self.publish, Publish::Unknown | Publish::Sent));
        verdict.delivered += u64::from(self.deliveries > 0);
        verdict.redelivered += u64::from(self.deliveries.saturating_sub(1));
        verdict.acked += u64::from(self.acks > 0);
        verdict.acked_perhaps += u64::from(self.acks == 0 && self.ack_unknown);
        verdict.lost += u64::from(self.publish == Publish::Confirmed && !settled);
        verdict.duplicated += u64::from(self.duplicated);
        verdict.refused_and_delivered += u64::from(self.publish == Publish::Refused && self.deliveries > 0);
        verdict.acked_twice += u64::from(self.acks > 1);
    }
}

fn lock(entries: &Mutex<Vec<Entry>>) -> MutexGuard<'_, Vec<Entry>> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One publisher's message after what happened to it.
    fn verdict(story: impl FnOnce(&Ledger, u64)) -> Verdict {
        let ledger = Ledger::new(1);
        let number = ledger.sent(0);
        story(&ledger, number);
        ledger.verdict()
    }

    #[test]
    fn a_message_that_was_confirmed_and_acked_is_fine() {
        let verdict = verdict(|ledger, n| {
            ledger.delivered(0, n, "a");
            ledger.acked(0, n, AckOutcome::Done);
            ledger.confirmed(0, n, "a");
        });
        assert!(verdict.is_clean());
        assert_eq!((verdict.confirmed, verdict.delivered, verdict.acked), (1, 1, 1));
    }

    #[test]
    fn a_confirmed_message_that_never_came_is_lost() {
        assert_eq!(verdict(|ledger, n| ledger.confirmed(0, n, "a")).lost, 1);
    }

    #[test]
    fn a_confirmed_message_that_came_but_left_without_an_ack_is_lost() {
        let verdict = verdict(|ledger, n| {
            ledger.confirmed(0, n, "a");
            ledger.delivered(0, n, "a");
            ledger.acked(0, n, AckOutcome::Stale);
        });
        assert_eq!(verdict.lost, 1);
    }

    #[test]
    fn an_ack_with_an_unknown_outcome_may_be_why_it_left() {
        let verdict = verdict(|ledger, n| {
            ledger.confirmed(0, n, "a");
            ledger.delivered(0, n, "a");
            ledger.acked(0, n, AckOutcome::Unknown);
        });
        assert!(verdict.is_clean());
        assert_eq!((verdict.acked, verdict.acked_perhaps), (0, 1));
    }

    #[test]
    fn redelivery_is_counted_and_allowed() {
        let verdict = verdict(|ledger, n| {
            ledger.confirmed(0, n, "a");
            ledger.delivered(0, n, "a");
            assert_eq!(ledger.delivered(0, n, "a"), Some(1));
            ledger.acked(0, n, AckOutcome::Done);
        });
        assert!(verdict.is_clean());
        assert_eq!(verdict.redelivered, 1);
    }

    #[test]
    fn one_publish_under_two_ids_is_a_duplicate() {
        let verdict = verdict(|ledger, n| {
            ledger.delivered(0, n, "a");
            ledger.delivered(0, n, "b");
        });
        assert_eq!(verdict.duplicated, 1);
    }

    #[test]
    fn two_acks_and_a_delivery_of_what_was_refused_are_broken_promises() {
        let verdict = verdict(|ledger, n| {
            ledger.not_confirmed(0, n, false);
            ledger.delivered(0, n, "a");
            ledger.acked(0, n, AckOutcome::Done);
            ledger.acked(0, n, AckOutcome::Done);
        });
        assert_eq!((verdict.acked_twice, verdict.refused_and_delivered), (1, 1));
    }

    #[test]
    fn an_unknown_publish_may_come_or_not() {
        assert!(verdict(|ledger, n| ledger.not_confirmed(0, n, true)).is_clean());
    }

    #[test]
    fn messages_of_others_are_not_in_the_ledger() {
        let ledger = Ledger::new(1);
        assert_eq!(ledger.delivered(0, 0, "a"), None);
        assert_eq!(ledger.delivered(9, 0, "a"), None);
    }
}
