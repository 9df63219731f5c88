//! How a run went, second by second.
//!
//! Only the second under way has histograms. When it is over they are folded into a few numbers, so an hour
//! costs as little memory as a minute does.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hdrhistogram::Histogram;
use serde::Serialize;

/// Longest latency that is told apart from longer ones, in microseconds.
const LATENCY_MAX_US: u64 = 600_000_000;
/// Digits that count: a hundredth is less than the width of a line in a plot.
const DIGITS: u8 = 2;
const SECOND_NS: u64 = 1_000_000_000;

/// One second of a phase; the last one of a phase is as long as it was.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Second {
    /// Since the phase began.
    pub(crate) at: u64,
    /// How long it was.
    pub(crate) seconds: f64,
    /// Confirms that came in it.
    pub(crate) confirmed: u64,
    /// Acks that succeeded in it.
    pub(crate) acked: u64,
    /// Of the publishes whose confirm came in it; None if none came.
    pub(crate) confirm_latency: Option<Quantiles>,
    /// Of the messages that were delivered in it.
    pub(crate) end_to_end_latency: Option<Quantiles>,
}

/// In milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Quantiles {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
}

/// Collects the seconds of a phase. What comes between two phases is ignored.
#[derive(Debug, Default)]
pub(crate) struct Series {
    /// Two locks, because publishers and consumers are different tasks.
    confirms: Mutex<Option<Track>>,
    deliveries: Mutex<Option<Track>>,
}

impl Series {
    /// A phase begins; what was not taken of the one before is forgotten.
    pub(crate) fn begin(&self, now_ns: u64) {
        *lock(&self.confirms) = Some(Track::new(now_ns));
        *lock(&self.deliveries) = Some(Track::new(now_ns));
    }

    /// A publish was confirmed.
    pub(crate) fn confirmed(&self, now_ns: u64, latency_us: u64) {
        if let Some(track) = &mut *lock(&self.confirms) {
            track.latency(now_ns, latency_us);
            track.count(now_ns);
        }
    }

    /// A message was delivered.
    pub(crate) fn delivered(&self, now_ns: u64, latency_us: u64) {
        if let Some(track) = &mut *lock(&self.deliveries) {
            track.latency(now_ns, latency_us);
        }
    }

    /// An ack succeeded.
    pub(crate) fn acked(&self, now_ns: u64) {
        if let Some(track) = &mut *lock(&self.deliveries) {
            track.count(now_ns);
        }
    }

    /// The phase ends: its seconds, without a gap.
    pub(crate) fn end(&self, now_ns: u64) -> Vec<Second> {
        let ended = |track: &Mutex<Option<Track>>| {
            let track = lock(track).take();
            track.map(|track| track.end(now_ns)).unwrap_or_default()
        };
        let (confirms, deliveries) = (ended(&self.confirms), ended(&self.deliveries));
        let both = confirms.into_iter().zip(deliveries).zip(0..);
        both.map(|((confirms, deliveries), at)| Second {
            at,
            seconds: confirms.ns as f64 / SECOND_NS as f64,
            confirmed: confirms.count,
            acked: deliveries.count,
            confirm_latency: confirms.latency,
            end_to_end_latency: deliveries.latency,
        })
        .collect()
    }
}

/// One kind of latency and one kind of count.
#[derive(Debug)]
struct Track {
    /// Of the second under way.
    begin_ns: u64,
    latencies: Histogram<u32>,
    count: u64,
    over: Vec<Folded>,
}

/// A second that is over.
#[derive(Clone, Copy, Debug, Default)]
struct Folded {
    ns: u64,
    count: u64,
    latency: Option<Quantiles>,
}

impl Track {
    fn new(begin_ns: u64) -> Self {
        Self {
            begin_ns,
            latencies: Histogram::new_with_bounds(1, LATENCY_MAX_US, DIGITS)
                .expect("constant bounds are valid"),
            count: 0,
            over: Vec::new(),
        }
    }

    fn latency(&mut self, now_ns: u64, latency_us: u64) {
        self.go_on(now_ns);
        self.latencies.saturating_record(latency_us);
    }

    fn count(&mut self, now_ns: u64) {
        self.go_on(now_ns);
        self.count += 1;
    }

    /// Folds the seconds that are over. Who looked at the clock just before one was, and came after another
    /// task, is counted in the next.
    fn go_on(&mut self, now_ns: u64) {
        while now_ns >= self.begin_ns + SECOND_NS {
            self.fold(SECOND_NS);
        }
    }

    fn fold(&mut self, ns: u64) {
        let at = |quantile| self.latencies.value_at_quantile(quantile) as f64 / 1e3;
        let latency = (!self.latencies.is_empty()).then(|| Quantiles {
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            max_ms: self.latencies.max() as f64 / 1e3,
        });
        self.over.push(Folded {
            ns,
            count: std::mem::take(&mut self.count),
            latency,
        });
        self.latencies.reset();
        self.begin_ns += ns;
    }

    /// What is left of the last second is one if anything happened in it.
    fn end(mut self, now_ns: u64) -> Vec<Folded> {
        self.go_on(now_ns);
        let rest = now_ns.saturating_sub(self.begin_ns);
        if rest > 0 {
            self.fold(rest);
        }
        self.over
    }
}

fn lock(track: &Mutex<Option<Track>>) -> MutexGuard<'_, Option<Track>> {
    track.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn close(is: f64, should: f64) -> bool {
        (is - should).abs() <= should / 100.0
    }

    #[test]
    fn what_comes_in_a_second_is_in_that_second() {
        let series = Series::default();
        let begin = 5_300 * MS;
        series.begin(begin);
        for number in 1..=100 {
            series.confirmed(begin + number * MS, number * 1_000);
        }
        series.confirmed(begin + 1_000 * MS, 7_000);
        series.delivered(begin + 1_500 * MS, 9_000);
        series.acked(begin + 1_600 * MS);
        series.acked(begin + 1_999 * MS);
        let seconds = series.end(begin + 2_000 * MS);

        assert_eq!(seconds.len(), 2);
        assert_eq!(
            (seconds[0].at, seconds[0].confirmed, seconds[0].acked),
            (0, 100, 0)
        );
        assert_eq!((seconds[1].at, seconds[1].confirmed, seconds[1].acked), (1, 1, 2));
        let first = seconds[0].confirm_latency.expect("there were confirms");
        assert!(close(first.p50_ms, 50.0), "{first:?}");
        assert!(close(first.p99_ms, 99.0), "{first:?}");
        assert!(close(first.max_ms, 100.0), "{first:?}");
        let second = seconds[1].confirm_latency.expect("there was a confirm");
        assert!(
            close(second.p50_ms, 7.0) && close(second.max_ms, 7.0),
            "{second:?}"
        );
        assert_eq!(seconds[0].end_to_end_latency, None);
        assert!(seconds[1].end_to_end_latency.is_some());
    }

    #[test]
    fn seconds_in_which_nothing_happens_are_there() {
        let series = Series::default();
        series.begin(0);
        series.confirmed(1, 5);
        series.confirmed(4_200 * MS, 4_000_000);
        let seconds = series.end(4_250 * MS);
        let counts: Vec<_> = seconds.iter().map(|second| second.confirmed).collect();
        assert_eq!(counts, [1, 0, 0, 0, 1]);
        assert_eq!(seconds[2].confirm_latency, None);
        assert!(close(seconds[4].seconds, 0.25), "{:?}", seconds[4]);
    }

    #[test]
    fn who_comes_late_is_counted_and_who_comes_after_the_end_is_not() {
        let series = Series::default();
        series.begin(0);
        series.acked(1_001 * MS);
        series.acked(999 * MS);
        let acked: Vec<_> = series.end(2_000 * MS).iter().map(|second| second.acked).collect();
        assert_eq!(acked, [0, 2]);
        series.acked(2_001 * MS);
        assert_eq!(series.end(3_000 * MS), []);
    }

    #[test]
    fn an_hour_is_a_few_numbers_a_second() {
        let series = Series::default();
        series.begin(0);
        for second in 0..3_600 {
            for message in 0..20 {
                series.confirmed(second * SECOND_NS + message, 1 << message);
            }
        }
        let track = lock(&series.confirms).take().expect("it was begun");
        assert_eq!(track.over.len(), 3_599);
        assert!(size_of::<Folded>() <= 64);
        assert_eq!(
            track.latencies.len(),
            20,
            "only the second under way has a histogram"
        );
    }
}
