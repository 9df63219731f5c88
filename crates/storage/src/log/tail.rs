//! The end of the log in memory.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::Record;

/// The newest entries, contiguous up to the end of the log.
///
/// Invariants:
/// 1. Every entry of the log from `first` on is here; `first` never passes `last + 1`.
/// 2. An entry leaves at the front only when it is on disk, or is purged.
#[derive(Debug)]
pub(super) struct Tail {
    first: u64,
    entries: VecDeque<Bytes>,
    bytes: u64,
}

impl Tail {
    /// An empty tail of a log whose next entry is `first`.
    pub(super) fn starting_at(first: u64) -> Self {
        Tail {
            first,
            entries: VecDeque::new(),
            bytes: 0,
        }
    }

    /// The index of the first entry held, or of the next one to come.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// The index after the last entry.
    pub(super) fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn push(&mut self, bytes: Bytes) {
        self.bytes += bytes.len() as u64;
        self.entries.push_back(bytes);
    }

    /// Removes everything from `index` on. Below `first`, the tail is empty afterwards and starts at `index`.
    pub(super) fn truncate_from(&mut self, index: u64) {
        while self.end() > index && !self.entries.is_empty() {
            self.bytes -= self.entries.pop_back().map_or(0, |bytes| bytes.len() as u64);
        }
        self.first = self.first.min(index);
    }

    /// Removes everything before `index`.
    pub(super) fn advance_to(&mut self, index: u64) {
        while self.first < index && self.pop_front() {}
        self.first = self.first.max(index);
    }

    /// Forgets the oldest entries while there are more than `bytes_max` bytes, but none from `keep_from` on.
    pub(super) fn evict(&mut self, bytes_max: u64, keep_from: u64) {
        while self.bytes > bytes_max && self.first < keep_from && self.pop_front() {}
    }

    /// Copies entries of `[from, to)` until the next would pass `room`. `from` must not be before `first`.
    /// The very first entry is taken whatever its size if `records` is empty.
    pub(super) fn read(&self, from: u64, to: u64, room: &mut usize, records: &mut Vec<Record>) {
        let skip = usize::try_from(from - self.first).expect("the tail is in memory");
        for (index, bytes) in (from..to).zip(self.entries.range(skip..)) {
            if !take(room, bytes.len(), records.is_empty()) {
                return;
            }
            records.push(Record {
                index,
                bytes: bytes.clone(),
            });
        }
    }

    fn pop_front(&mut self) -> bool {
        let Some(bytes) = self.entries.pop_front() else {
            return false;
        };
        self.bytes -= bytes.len() as u64;
        self.first += 1;
        true
    }
}

/// Whether an entry of `len` bytes still fits; the first of a read always does.
pub(super) fn take(room: &mut usize, len: usize, is_first: bool) -> bool {
    if len > *room && !is_first {
        *room = 0;
        return false;
    }
    *room = room.saturating_sub(len);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(first: u64, lens: &[usize]) -> Tail {
        let mut tail = Tail::starting_at(first);
        for len in lens {
            tail.push(vec![0; *len].into());
        }
        tail
    }

    fn read(tail: &Tail, from: u64, to: u64, mut room: usize) -> Vec<u64> {
        let mut records = Vec::new();
        tail.read(from, to, &mut room, &mut records);
        records.iter().map(|record| record.index).collect()
    }

    #[test]
    fn reads_stop_at_the_end_at_the_bound_and_at_the_byte_limit() {
        let tail = tail(10, &[1, 2, 3, 4]);
        assert_eq!(read(&tail, 10, 99, 100), [10, 11, 12, 13]);
        assert_eq!(read(&tail, 11, 13, 100), [11, 12]);
        assert_eq!(read(&tail, 10, 99, 3), [10, 11]);
        assert_eq!(read(&tail, 13, 99, 0), [13]);
        assert_eq!(read(&tail, 14, 99, 100), []);
    }

    #[test]
    fn eviction_keeps_what_is_not_on_disk() {
        let mut tail = tail(10, &[5, 5, 5, 5]);
        tail.evict(0, 12);
        assert_eq!((tail.first(), tail.end(), tail.bytes()), (12, 14, 10));
        tail.evict(8, 99);
        assert_eq!((tail.first(), tail.end(), tail.bytes()), (13, 14, 5));
    }

    #[test]
    fn truncation_below_the_tail_moves_it_back() {
        let mut tail = tail(10, &[5, 5, 5]);
        tail.truncate_from(12);
        assert_eq!((tail.first(), tail.end(), tail.bytes()), (10, 12, 10));
        tail.truncate_from(7);
        assert_eq!((tail.first(), tail.end(), tail.bytes()), (7, 7, 0));
    }

    #[test]
    fn a_purge_beyond_the_end_moves_it_on() {
        let mut tail = tail(10, &[5, 5, 5]);
        tail.advance_to(11);
        assert_eq!((tail.first(), tail.end(), tail.bytes()), (11, 13, 10));
        tail.advance_to(40);
        assert_eq!((tail.first(), tail.end(), tail.bytes()), (40, 40, 0));
    }
}
