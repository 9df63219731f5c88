//! The dedup ids that came last: so many of them, and for so long.
//!
//! What is known of an id follows from the settings. What is too old is cleared
//! away a little with each id that comes, so that no publish pays for a window
//! that has aged as a whole; and by itself, a little at a time, when no more come.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{MessageId, Millis, QueueId, Timestamp};
use crate::limits::{DEDUP_COUNT_MAX, DEDUP_FORGOTTEN_AT_ONCE, DEDUP_SWEEP};
use crate::outcome::{Exit, MessageState, Rejection};
use crate::queue::{Page, Pages, Record, check_span, invalid};

/// The dedup ids that came last. `remembered` is its state.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// In the order in which they came, without gaps but at the front.
    remembered: Pages<Remembered>,
    /// The next one gets this number. Follows from the last one.
    next: u64,
    /// Index: the last of each id.
    by_id: BTreeMap<Arc<str>, u64>,
}

/// A message of which a second is not taken. Persisted in snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Remembered {
    dedup_id: Arc<str>,
    at: Timestamp,
    pub(crate) first: MessageId,
    /// The queue that took it; of several the one of the lowest id.
    pub(crate) queue: QueueId,
    /// How it left that queue last, if it did.
    pub(crate) exit: Option<Exit>,
}

/// How long a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Zero: it knows nothing.
    pub(crate) time: Millis,
    pub(crate) count_max: u32,
}

/// The dedup ids that plans are going to bring into one window.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    by_id: BTreeMap<Arc<str>, Drafted>,
    pub(crate) count: u64,
}

#[derive(Debug)]
struct Drafted {
    number: u64,
    known: Known,
}

/// The first message of an id that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) first: MessageId,
    pub(crate) state: MessageState,
    /// Where it is that.
    pub(crate) queue: QueueId,
}

/// Of what is remembered too long, at most so much is cleared away for one that
/// comes. More than one, so that a window whose settings were lowered shrinks.
const CLEARED_MAX: usize = 4;

impl Window {
    /// What is remembered of an id, when so many more will have come.
    pub(crate) fn get(&self, dedup_id: &str, span: Span, now: Timestamp, more: u64) -> Option<&Remembered> {
        let number = *self.by_id.get(dedup_id)?;
        let last = number + u64::from(span.count_max) >= self.next + more;
        let found = self.remembered.get(number)?;
        (last && now < found.at.after(span.time)).then_some(found)
    }

    /// An id comes, unless the window has no length.
    pub(crate) fn remember(&mut self, remembered: Remembered, span: Span) {
        if span.time == Millis(0) {
            return;
        }
        let now = remembered.at;
        let dedup_id = Arc::clone(&remembered.dedup_id);
        self.remembered.insert(self.next, remembered);
        self.by_id.insert(dedup_id, self.next);
        self.next += 1;
        let mut cleared = 0;
        while cleared < CLEARED_MAX && !self.knows_oldest(span, now) {
            self.forget_oldest();
            cleared += 1;
        }
    }

    /// When none of its ids is known any more, if it has any. With most ids that
    /// come it stays the same: it is a multiple of [`DEDUP_SWEEP`].
    pub(crate) fn end(&self, span: Span) -> Option<Timestamp> {
        let newest = self.remembered.get(self.next.checked_sub(1)?)?;
        Some(newest.at.after(span.time).rounded_up(DEDUP_SWEEP))
    }

    /// It has come to its end: forgets the oldest ids, as many as is done at once.
    pub(crate) fn forget_some(&mut self) {
        for _ in 0..DEDUP_FORGOTTEN_AT_ONCE {
            self.forget_oldest();
        }
    }

    /// The oldest is not too old, nor one too many.
    fn knows_oldest(&self, span: Span, now: Timestamp) -> bool {
        self.remembered.iter().next().is_some_and(|(number, oldest)| {
            let many = number + u64::from(span.count_max) < self.next;
            !many && now < oldest.at.after(span.time)
        })
    }

    fn forget_oldest(&mut self) {
        let Some(number) = self.remembered.first_position() else {
            return;
        };
        let oldest = self.remembered.remove(number).expect("it was seen just now");
        if self.by_id.get(&oldest.dedup_id) == Some(&number) {
            self.by_id.remove(&oldest.dedup_id);
        }
        // As after a restore: it is as if nothing had come.
        if self.by_id.is_empty() {
            self.next = 0;
        }
    }

    /// A message left a queue.
    pub(crate) fn left(&mut self, queue: QueueId, record: &Record, exit: Exit) {
        let number = record.dedup_id().and_then(|id| self.by_id.get(id));
        let found = number.and_then(|number| self.remembered.get_mut(*number));
        if let Some(found) = found
            && (found.first, found.queue) == (record.id, queue)
        {
            found.exit = Some(exit);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// How many ids it may know.
    pub(crate) fn ids(&self) -> usize {
        self.by_id.len()
    }

    /// Its state, for a snapshot.
    pub(crate) fn remembered(&self) -> &Pages<Remembered> {
        &self.remembered
    }

    /// Takes a page as it was written; false if it is malformed, or not the
    /// next one.
    pub(crate) fn restore(&mut self, number: u64, page: Page<Remembered>) -> bool {
        if !self.remembered.restore(number, page) {
            return false;
        }
        for (number, remembered) in self.remembered.iter_from(self.next) {
            self.by_id.insert(Arc::clone(&remembered.dedup_id), number);
            self.next = number + 1;
        }
        true
    }

    /// Its index says what it remembers.
    pub(crate) fn is_consistent(&self) -> bool {
        let by_id = self.remembered.iter();
        let by_id: BTreeMap<_, _> = by_id
            .map(|(number, remembered)| (Arc::clone(&remembered.dedup_id), number))
            .collect();
        let last = self.remembered.iter().last();
        by_id == self.by_id && self.next == last.map_or(0, |(number, _)| number + 1)
    }
}

impl Span {
    /// It is within its bounds.
    pub(crate) fn check(self) -> Result<(), Rejection> {
        check_span("dedup_window_ms", self.time)?;
        if !(1..=DEDUP_COUNT_MAX).contains(&self.count_max) {
            let problem = format!("1 to {DEDUP_COUNT_MAX}, not {}", self.count_max);
            return Err(invalid("dedup_max_ids", problem));
        }
        Ok(())
    }
}

impl Remembered {
    /// A message that enters a queue.
    pub(crate) fn new(dedup_id: Arc<str>, first: MessageId, queue: QueueId, at: Timestamp) -> Self {
        Self {
            dedup_id,
            at,
            first,
            queue,
            exit: None,
        }
    }
}

impl Draft {
    /// An id comes into the window, as far as this draft goes.
    pub(crate) fn note(&mut self, dedup_id: &str, known: Known) {
        let number = self.count;
        self.by_id.insert(dedup_id.into(), Drafted { number, known });
        self.count += 1;
    }

    pub(crate) fn get(&self, dedup_id: &str, span: Span) -> Option<Known> {
        let drafted = self.by_id.get(dedup_id)?;
        let last = drafted.number + u64::from(span.count_max) >= self.count;
        last.then_some(drafted.known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: QueueId = QueueId(1);

    fn remembered(dedup_id: &str, at: u64) -> Remembered {
        let first = MessageId { index: at, number: 0 };
        Remembered::new(dedup_id.into(), first, QUEUE, Timestamp(at))
    }

    fn known(window: &Window, dedup_id: &str, span: Span, now: u64) -> bool {
        window.get(dedup_id, span, Timestamp(now), 0).is_some()
    }

    #[test]
    fn what_is_cleared_away_was_unknown() {
        let span = Span {
            time: Millis(100),
            count_max: 10,
        };
        let mut window = Window::default();
        for at in 0..1_000_u64 {
            // Mostly new ids, some that come again after they were forgotten.
            window.remember(remembered(&(at % 37).to_string(), at * 7), span);
            assert!(window.is_consistent());
            for back in 0..30.min(at) {
                let id = ((at - back) % 37).to_string();
                let expected = back < 10 && back * 7 < 100;
                assert_eq!(known(&window, &id, span, at * 7), expected, "{back} before {at}");
            }
        }
        assert!(window.remembered.iter().count() <= 10);
    }

    #[test]
    fn a_window_that_was_lowered_shrinks_as_ids_come() {
        let wide = Span {
            time: Millis(100),
            count_max: 1_000,
        };
        let narrow = Span { count_max: 3, ..wide };
        let mut window = Window::default();
        for id in 0..1_000 {
            window.remember(remembered(&id.to_string(), 1), wide);
        }
        assert!(known(&window, "0", wide, 1) && !known(&window, "996", narrow, 1));
        for id in 1_000..1_400 {
            window.remember(remembered(&id.to_string(), 1), narrow);
        }
        assert_eq!(window.remembered.iter().count(), 3);
        assert!(window.is_consistent());
    }

    #[test]
    fn it_ends_when_its_newest_is_too_old_and_is_then_forgotten_from_the_front() {
        let span = Span {
            time: Millis(25_000),
            count_max: 100,
        };
        let mut window = Window::default();
        assert_eq!(window.end(span), None);
        let mut ends = Vec::new();
        for at in 0..40_u64 {
            window.remember(remembered(&at.to_string(), at * 500), span);
            ends.push(window.end(span).unwrap());
        }
        // Not before any of them is too old, and seldom another time.
        for (at, end) in (0..).zip(&ends) {
            assert!(end.0 - 10_000 < at * 500 + 25_000 && at * 500 + 25_000 <= end.0);
        }
        ends.dedup();
        assert_eq!(ends, [30_000, 40_000, 50_000].map(Timestamp));
        while window.ids() > DEDUP_FORGOTTEN_AT_ONCE {
            let before = window.ids();
            window.forget_some();
            assert_eq!(window.ids(), before - DEDUP_FORGOTTEN_AT_ONCE);
            assert_eq!(window.end(span), Some(Timestamp(50_000)));
            assert!(window.is_consistent());
            assert!(known(&window, "39", span, 39 * 500));
        }
        window.forget_some();
        assert_eq!((window.ids(), window.end(span)), (0, None));
        assert!(window.is_consistent());
        window.remember(remembered("39", 60_000), span);
        assert!(window.is_consistent() && known(&window, "39", span, 60_000));
    }

    #[test]
    fn it_comes_back_from_its_pages() {
        let span = Span {
            time: Millis(100),
            count_max: 150,
        };
        let mut window = Window::default();
        for at in 0..400_u64 {
            window.remember(remembered(&(at % 170).to_string(), at / 10), span);
        }
        let mut read = Window::default();
        for (number, page) in window.remembered().pages() {
            assert!(read.restore(number, page.clone()));
        }
        assert!(read.is_consistent());
        assert_eq!((read.next, &read.by_id), (window.next, &window.by_id));
    }
}
