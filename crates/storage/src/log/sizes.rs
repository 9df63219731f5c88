//! How many bytes of log lie behind an index, without asking the disk.

use std::collections::VecDeque;

/// One mark is kept for each of so many bytes; the answers are that coarse.
const MARK_BYTES: u64 = 64 << 10;

/// Running totals at some indexes.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    /// `(index, bytes of all entries before it)`, ascending.
    marks: VecDeque<(u64, u64)>,
    total: u64,
}

impl Sizes {
    pub(super) fn add(&mut self, index: u64, len: usize) {
        if self
            .marks
            .back()
            .is_none_or(|(_, before)| self.total - before >= MARK_BYTES)
        {
            self.marks.push_back((index, self.total));
        }
        self.total += len as u64;
    }

    /// Forgets everything from `index` on; `removed` is how much that was, where it is known.
    pub(super) fn truncate_from(&mut self, index: u64, removed: Option<u64>) {
        let mut estimate = self.total;
        while let Some((at, before)) = self.marks.back().copied() {
            if at < index {
                break;
            }
            estimate = before;
            self.marks.pop_back();
        }
        let known = removed.map_or(estimate, |removed| self.total - removed);
        self.total = known.max(self.marks.back().map_or(0, |(_, before)| *before));
    }

    /// Forgets everything before `index`, as far as the marks allow.
    pub(super) fn advance_to(&mut self, index: u64) {
        while self.marks.get(1).is_some_and(|(at, _)| *at <= index) {
            self.marks.pop_front();
        }
    }

    /// Bytes of all entries from `index` on: never too few, and too many by one mark at most.
    pub(super) fn since(&self, index: u64) -> u64 {
        let after = self.marks.partition_point(|(at, _)| *at <= index);
        let mark = after
            .checked_sub(1)
            .or(if self.marks.is_empty() { None } else { Some(0) });
        mark.map_or(0, |mark| self.total - self.marks[mark].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_right_to_within_a_mark() {
        let mut sizes = Sizes::default();
        assert_eq!(sizes.since(0), 0);
        for index in 100..1100 {
            sizes.add(index, 1000);
        }
        for index in [0, 100, 101, 500, 1099] {
            let exact = (1100 - index.max(100)) * 1000;
            let answer = sizes.since(index);
            assert!(
                (exact..exact + MARK_BYTES + 1000).contains(&answer),
                "{index}: {answer} for {exact}"
            );
        }
        sizes.truncate_from(600, Some(500_000));
        assert_eq!(sizes.since(0), 500_000);
        sizes.truncate_from(300, None);
        assert!((200_000 - MARK_BYTES..=200_000 + MARK_BYTES).contains(&sizes.since(0)));
        sizes.advance_to(250);
        assert!(sizes.since(0) < 50_000 + 2 * MARK_BYTES);
    }
}
