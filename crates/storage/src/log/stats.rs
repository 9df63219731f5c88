//! What the log writer has done, for metrics.

use std::time::Duration;

/// Upper bounds of the flush histogram are powers of two microseconds: 1, 2, 4, … 2^22 (4.2 s), more.
pub const FLUSH_BUCKETS: usize = 24;

/// Totals since the store was opened. See [`Log::stats`](crate::Log::stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Group commits: each is one flush.
    pub flushes: u64,
    /// Syncs of files by the engine in this process. About 1.1 for each flush of the log; much more means
    /// that something uses it in a way it should not.
    pub syncs: u64,
    /// Entries made durable.
    pub entries: u64,
    /// Bytes of these entries.
    pub bytes: u64,
    /// Entries in the largest group commit.
    pub group_entries_max: u64,
    /// Time all flushes took together.
    pub flush_total: Duration,
    /// Time the last flush took.
    pub flush_last: Duration,
    /// Time the slowest flush took.
    pub flush_max: Duration,
    /// Flushes that took at most `2^i` microseconds and more than the bucket before.
    pub flush_histogram: [u64; FLUSH_BUCKETS],
    /// Bytes of entries that wait for their flush right now: the queue of this log.
    pub unflushed_bytes: u64,
    /// Bytes of entries held in memory right now, the unflushed included.
    pub cached_bytes: u64,
    /// Chunks removed by purges.
    pub chunks_purged: u64,
}

impl LogStats {
    pub(super) fn record_flush(&mut self, took: Duration, entries: u64, bytes: u64) {
        self.flushes += 1;
        self.entries += entries;
        self.bytes += bytes;
        self.group_entries_max = self.group_entries_max.max(entries);
        self.flush_total += took;
        self.flush_last = took;
        self.flush_max = self.flush_max.max(took);
        self.flush_histogram[bucket(took)] += 1;
    }
}

fn bucket(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    let ceiling_log2 = u64::BITS - micros.saturating_sub(1).leading_zeros();
    (ceiling_log2 as usize).min(FLUSH_BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_powers_of_two() {
        for (micros, expected) in [
            (0, 0),
            (1, 0),
            (2, 1),
            (3, 2),
            (4, 2),
            (5, 3),
            (1000, 10),
            (u64::MAX, 23),
        ] {
            assert_eq!(bucket(Duration::from_micros(micros)), expected, "{micros}");
        }
    }
}
