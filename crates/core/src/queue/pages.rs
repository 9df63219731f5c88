//! The records of a queue by position, in pages that a snapshot can share.
//!
//! A page holds the records of 64 positions. A snapshot clones the handles of
//! the pages; a write to a page that a snapshot still holds copies that page
//! first. So taking a snapshot costs a handle for 64 messages, and holding one
//! costs a copy of what changes meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::record::Record;

/// Records by position.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pages {
    pages: BTreeMap<u64, Arc<Page>>,
}

/// The records of 64 positions that follow each other. Persisted in snapshots.
///
/// Bit *n* of `present` says that there is a record for the *n*-th of them;
/// `records` has those, in order. A page in a queue is never empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Page {
    present: u64,
    records: Vec<Record>,
}

const POSITIONS: u64 = u64::BITS as u64;

impl Pages {
    pub(crate) fn get(&self, position: u64) -> Option<&Record> {
        let page = self.pages.get(&(position / POSITIONS))?;
        page.has(position).then(|| &page.records[page.rank(position)])
    }

    pub(crate) fn get_mut(&mut self, position: u64) -> Option<&mut Record> {
        let page = self.pages.get_mut(&(position / POSITIONS))?;
        if !page.has(position) {
            return None;
        }
        let rank = page.rank(position);
        Some(&mut Arc::make_mut(page).records[rank])
    }

    /// The position must be free.
    pub(crate) fn insert(&mut self, position: u64, record: Record) {
        let page = Arc::make_mut(self.pages.entry(position / POSITIONS).or_default());
        assert!(!page.has(position), "position {position} is taken");
        let rank = page.rank(position);
        page.records.insert(rank, record);
        page.present |= bit(position);
    }

    pub(crate) fn remove(&mut self, position: u64) -> Option<Record> {
        let number = position / POSITIONS;
        let page = self.pages.get_mut(&number)?;
        if !page.has(position) {
            return None;
        }
        let rank = page.rank(position);
        let page = Arc::make_mut(page);
        page.present &= !bit(position);
        let record = page.records.remove(rank);
        if page.present == 0 {
            self.pages.remove(&number);
        }
        Some(record)
    }

    /// All records, by position.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Record)> {
        self.pages.iter().flat_map(|(number, page)| page.iter(*number))
    }

    pub(crate) fn pages(&self) -> impl Iterator<Item = (u64, &Page)> {
        self.pages.iter().map(|(number, page)| (*number, &**page))
    }

    /// Takes a page as it was written; false if it is malformed, or not the
    /// next one.
    pub(crate) fn restore(&mut self, number: u64, page: Page) -> bool {
        let follows = self.pages.last_key_value().is_none_or(|(last, _)| *last < number);
        let sound = page.present != 0 && page.present.count_ones() as usize == page.records.len();
        if follows && sound && number <= u64::MAX / POSITIONS {
            self.pages.insert(number, Arc::new(page));
            return true;
        }
        false
    }
}

impl Page {
    /// Its records and their positions, if it is the page of that number.
    pub(crate) fn iter(&self, number: u64) -> impl Iterator<Item = (u64, &Record)> {
        let positions = (0..POSITIONS).filter(|offset| self.present & bit(*offset) != 0);
        positions
            .map(move |offset| number * POSITIONS + offset)
            .zip(&self.records)
    }

    fn has(&self, position: u64) -> bool {
        self.present & bit(position) != 0
    }

    /// How many records of this page come before that position.
    fn rank(&self, position: u64) -> usize {
        (self.present & (bit(position) - 1)).count_ones() as usize
    }
}

fn bit(position: u64) -> u64 {
    1 << (position % POSITIONS)
}

#[cfg(test)]
mod tests {
    use super::super::record::State;
    use super::*;
    use crate::ids::{MessageId, Timestamp};

    fn record(number: u32) -> Record {
        Record {
            id: MessageId { index: 1, number },
            content_bytes: number,
            failures: 0,
            grants: 0,
            published_at: Timestamp(0),
            expires_at: Timestamp::NEVER,
            state: State::Ready,
            extra: None,
        }
    }

    #[test]
    fn keeps_records_in_order_of_position_with_gaps() {
        let mut pages = Pages::default();
        for position in [3, 64, 200, 0, 63, 65] {
            pages.insert(position, record(u32::try_from(position).unwrap()));
        }
        assert_eq!(pages.remove(63), Some(record(63)));
        assert_eq!(pages.remove(63), None);
        let positions: Vec<u64> = pages.iter().map(|(position, _)| position).collect();
        assert_eq!(positions, [0, 3, 64, 65, 200]);
        assert!(
            pages
                .iter()
                .all(|(position, r)| u64::from(r.content_bytes) == position)
        );
        assert_eq!(pages.get(65), Some(&record(65)));
        assert_eq!(pages.get(66), None);
    }

    #[test]
    fn an_empty_page_goes() {
        let mut pages = Pages::default();
        pages.insert(70, record(70));
        pages.remove(70);
        assert_eq!(pages.pages().count(), 0);
    }

    #[test]
    fn a_clone_does_not_see_later_writes() {
        let mut pages = Pages::default();
        pages.insert(1, record(1));
        let before = pages.clone();
        pages.get_mut(1).unwrap().failures = 9;
        pages.insert(2, record(2));
        assert_eq!(before.get(1), Some(&record(1)));
        assert_eq!(before.get(2), None);
    }
}
