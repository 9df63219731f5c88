//! Items by position, in pages that a snapshot can share: the records of a
//! queue, and whatever else of it grows with its length.
//!
//! A page holds the items of 64 positions, a shelf 64 pages. A snapshot clones
//! the handles of the shelves; a write to a page that a snapshot still holds
//! copies that page first, and the handles of its shelf. So taking a snapshot
//! costs one handle for 4,096 items, and holding one costs a copy of what
//! changes meanwhile.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Items by position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pages<T> {
    shelves: BTreeMap<u64, Arc<Shelf<T>>>,
}

/// The items of 64 positions that follow each other. Persisted in snapshots.
pub(crate) type Page<T> = Sparse<T>;

type Shelf<T> = Sparse<Arc<Page<T>>>;

/// Up to 64 items by number. None of those that are kept is ever empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sparse<T> {
    /// Bit *n* says that there is an item of number *n*.
    present: u64,
    /// Those, in order. Most go from the front: that moves none of the others.
    items: VecDeque<T>,
}

const ITEMS: u64 = u64::BITS as u64;

impl<T: Clone> Pages<T> {
    pub(crate) fn get(&self, position: u64) -> Option<&T> {
        let (shelf, page) = numbers(position);
        self.shelves.get(&shelf)?.get(page)?.get(position)
    }

    /// Copies what a snapshot holds too, if there is such an item.
    pub(crate) fn get_mut(&mut self, position: u64) -> Option<&mut T> {
        let (shelf, page) = numbers(position);
        let shelf = self.shelves.get_mut(&shelf)?;
        shelf.get(page)?.get(position)?;
        Arc::make_mut(Arc::make_mut(shelf).get_mut(page)?).get_mut(position)
    }

    /// The position must be free.
    pub(crate) fn insert(&mut self, position: u64, item: T) {
        let (shelf, page) = numbers(position);
        let shelf = Arc::make_mut(self.shelves.entry(shelf).or_default());
        if shelf.get(page).is_none() {
            shelf.insert(page, Arc::default());
        }
        let page = shelf.get_mut(page).expect("it was inserted if it was not there");
        Arc::make_mut(page).insert(position, item);
    }

    pub(crate) fn remove(&mut self, position: u64) -> Option<T> {
        let (shelf_number, page_number) = numbers(position);
        let shelf = self.shelves.get_mut(&shelf_number)?;
        shelf.get(page_number)?.get(position)?;
        let shelf = Arc::make_mut(shelf);
        let page = Arc::make_mut(shelf.get_mut(page_number)?);
        let item = page.remove(position);
        if page.is_empty() {
            shelf.remove(page_number);
        }
        if shelf.is_empty() {
            self.shelves.remove(&shelf_number);
        }
        item
    }

    pub(crate) fn first_position(&self) -> Option<u64> {
        self.iter().next().map(|(position, _)| position)
    }

    /// All items, by position.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.iter_from(0)
    }

    /// The items at a position and behind it. What lies before is not walked.
    pub(crate) fn iter_from(&self, position: u64) -> impl Iterator<Item = (u64, &T)> {
        self.pages_from(position / ITEMS).flat_map(move |(number, page)| {
            let first = number * ITEMS;
            page.iter_from(position.saturating_sub(first))
                .map(move |(offset, item)| (first + offset, item))
        })
    }

    /// All pages, by number.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (u64, &Page<T>)> {
        self.pages_from(0)
    }

    fn pages_from(&self, page: u64) -> impl Iterator<Item = (u64, &Page<T>)> {
        let shelves = self.shelves.range(page / ITEMS..);
        shelves.flat_map(move |(number, shelf)| {
            let first = number * ITEMS;
            shelf
                .iter_from(page.saturating_sub(first))
                .map(move |(offset, page)| (first + offset, &**page))
        })
    }

    /// Takes a page as it was written; false if it is malformed, or not the
    /// next one.
    pub(crate) fn restore(&mut self, number: u64, page: Page<T>) -> bool {
        let last = self
            .shelves
            .last_key_value()
            .and_then(|(shelf, pages)| pages.iter().last().map(|(offset, _)| shelf * ITEMS + offset));
        let follows = last.is_none_or(|last| last < number);
        let sound = !page.is_empty() && page.is_sound() && number <= u64::MAX / ITEMS;
        if follows && sound {
            let shelf = self.shelves.entry(number / ITEMS).or_default();
            Arc::make_mut(shelf).insert(number, Arc::new(page));
        }
        follows && sound
    }
}

/// Of its shelf, and of its page among all pages.
fn numbers(position: u64) -> (u64, u64) {
    (position / ITEMS / ITEMS, position / ITEMS)
}

/// Numbers count modulo 64 here: the caller found the right 64.
impl<T> Sparse<T> {
    fn get(&self, number: u64) -> Option<&T> {
        self.has(number).then(|| &self.items[self.rank(number)])
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let rank = self.rank(number);
        self.has(number).then(|| &mut self.items[rank])
    }

    fn insert(&mut self, number: u64, item: T) {
        assert!(!self.has(number), "{number} is taken");
        self.items.insert(self.rank(number), item);
        self.present |= bit(number);
    }

    fn remove(&mut self, number: u64) -> Option<T> {
        if !self.has(number) {
            return None;
        }
        self.present &= !bit(number);
        self.items.remove(self.rank(number))
    }

    pub(crate) fn items_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.iter_mut()
    }

    fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.iter_from(0)
    }

    /// Those of that number, below 64, and behind.
    fn iter_from(&self, number: u64) -> impl Iterator<Item = (u64, &T)> {
        let items = self.items.iter().skip(self.rank(number));
        (number..ITEMS).filter(|number| self.has(*number)).zip(items)
    }

    fn is_empty(&self) -> bool {
        self.present == 0
    }

    fn is_sound(&self) -> bool {
        self.present.count_ones() as usize == self.items.len()
    }

    fn has(&self, number: u64) -> bool {
        self.present & bit(number) != 0
    }

    /// How many items come before that number.
    fn rank(&self, number: u64) -> usize {
        (self.present & (bit(number) - 1)).count_ones() as usize
    }
}

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self {
            shelves: BTreeMap::new(),
        }
    }
}

impl<T> Default for Sparse<T> {
    fn default() -> Self {
        Self {
            present: 0,
            items: VecDeque::new(),
        }
    }
}

fn bit(number: u64) -> u64 {
    1 << (number % ITEMS)
}

#[cfg(test)]
mod tests {
    use super::super::record::Record;
    use super::*;
    use crate::ids::MessageId;

    fn record(number: u32) -> Record {
        Record {
            content_bytes: number,
            ..Record::ready(MessageId { index: 1, number })
        }
    }

    #[test]
    fn keeps_records_in_order_of_position_with_gaps() {
        let mut pages = Pages::default();
        for position in [3, 64, 200, 0, 63, 65, 4_095, 4_096, 70_000] {
            pages.insert(position, record(u32::try_from(position).unwrap()));
        }
        assert_eq!(pages.remove(63), Some(record(63)));
        assert_eq!(pages.remove(63), None);
        let positions: Vec<u64> = pages.iter().map(|(position, _)| position).collect();
        assert_eq!(positions, [0, 3, 64, 65, 200, 4_095, 4_096, 70_000]);
        assert!(
            pages
                .iter()
                .all(|(position, r)| u64::from(r.content_bytes) == position)
        );
        assert_eq!(pages.get(65), Some(&record(65)));
        assert_eq!(pages.get(66), None);
        assert_eq!(pages.first_position(), Some(0));
    }

    #[test]
    fn walks_from_any_position() {
        let mut pages = Pages::default();
        let taken = [0_u64, 3, 63, 64, 200, 4_095, 4_096, 70_000];
        for position in taken {
            pages.insert(position, position);
        }
        for from in [
            0, 1, 3, 4, 63, 64, 65, 201, 4_094, 4_095, 4_096, 4_097, 70_000, 70_001,
        ] {
            let walked: Vec<u64> = pages.iter_from(from).map(|(position, _)| position).collect();
            let expected: Vec<u64> = taken.into_iter().filter(|position| *position >= from).collect();
            assert_eq!(walked, expected, "from {from}");
            assert!(pages.iter_from(from).all(|(position, item)| position == *item));
        }
    }

    #[test]
    fn what_is_empty_goes() {
        let mut pages = Pages::default();
        pages.insert(70, record(70));
        pages.insert(4_100, record(1));
        pages.remove(70);
        assert_eq!(pages.shelves.len(), 1);
        pages.remove(4_100);
        assert!(pages.shelves.is_empty());
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
        pages.remove(1);
        assert_eq!(before.get(1), Some(&record(1)));
    }

    #[test]
    fn pages_are_restored_in_order_only() {
        let mut written = Pages::default();
        for position in [1, 70, 5_000] {
            written.insert(position, record(u32::try_from(position).unwrap()));
        }
        let pages: Vec<(u64, Page<Record>)> = written
            .pages()
            .map(|(number, page)| (number, page.clone()))
            .collect();
        let mut read = Pages::default();
        assert!(!read.restore(0, Page::default()));
        for (number, page) in &pages {
            assert!(read.restore(*number, page.clone()));
            assert!(!read.restore(*number, page.clone()));
        }
        assert!(read.iter().eq(written.iter()));
        assert!(!read.restore(
            9_999,
            Page {
                present: 3,
                items: VecDeque::from([record(0)])
            }
        ));
    }
}
