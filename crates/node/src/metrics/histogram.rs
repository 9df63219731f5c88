//! Counts by size, with fixed bounds.

/// How many values were at most as large as each bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Upper bounds, ascending, in the unit of the metric.
    pub bounds: Vec<f64>,
    /// Values up to each bound and above the one before; one more for those
    /// above all.
    pub counts: Vec<u64>,
    /// Of all values, in the unit of the metric.
    pub sum: f64,
}

/// Upper bounds of the spans of messages, in milliseconds: from what a fast
/// consumer takes to what a person should look at.
const SPAN_BOUNDS_MS: [u64; 13] = [
    1, 5, 10, 50, 100, 500, 1_000, 5_000, 10_000, 60_000, 300_000, 3_600_000, 86_400_000,
];

/// A histogram of spans of cluster time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spans {
    counts: [u64; SPAN_BOUNDS_MS.len() + 1],
    sum_ms: u64,
}

impl Spans {
    pub(super) fn record(&mut self, ms: u64) {
        let bucket = SPAN_BOUNDS_MS.partition_point(|bound| *bound < ms);
        self.counts[bucket] += 1;
        self.sum_ms = self.sum_ms.saturating_add(ms);
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum_ms = self.sum_ms.saturating_add(other.sum_ms);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| *count == 0)
    }

    /// In seconds.
    pub(super) fn to_histogram(self) -> Histogram {
        Histogram {
            bounds: SPAN_BOUNDS_MS.iter().map(|ms| *ms as f64 / 1e3).collect(),
            counts: self.counts.to_vec(),
            sum: self.sum_ms as f64 / 1e3,
        }
    }
}

/// A histogram whose bucket `i` ends at `2^i` microseconds, in seconds, without
/// the bounds below `first`; the last bucket has no bound.
pub(super) fn of_powers_of_two(buckets: &[u64], first: usize, sum: f64) -> Histogram {
    let last = buckets.len() - 1;
    let bounds = (first..last).map(|i| (1_u64 << i) as f64 / 1e6).collect();
    let below = buckets[..=first].iter().sum();
    let counts = std::iter::once(below).chain(buckets[first + 1..].iter().copied());
    Histogram {
        bounds,
        counts: counts.collect(),
        sum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let mut spans = Spans::default();
        for ms in [0, 1, 2, 5, 6, 86_400_000, 86_400_001] {
            spans.record(ms);
        }
        let histogram = spans.to_histogram();
        assert_eq!(histogram.counts, [2, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(histogram.bounds.len() + 1, histogram.counts.len());
        assert_eq!(histogram.bounds[..2], [0.001, 0.005]);
        assert!((histogram.sum - 172_800.015).abs() < 1e-6);
    }

    #[test]
    fn small_powers_of_two_share_a_bucket() {
        let histogram = of_powers_of_two(&[1, 2, 4, 8, 16], 2, 3.0);
        assert_eq!(histogram.bounds, [4e-6, 8e-6]);
        assert_eq!(histogram.counts, [7, 8, 16]);
    }
}
