//! Finding a message by its id or its dedup id.
//!
//! There is no map of all ids: it would take as much room as the records. What
//! is published enters in the order of ids, and records stand in the order in
//! which they entered, so ids are searched for as words are in a dictionary.
//! Those that came otherwise (dead letters, what was moved) stand in a map of
//! their own, and those with a dedup id in another.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Queue;
use super::pages::Pages;
use super::record::Record;
use crate::command::Selector;
use crate::ids::MessageId;

/// The messages of a queue that need to be listed to be found. An index: follows
/// from the records.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Lookup {
    /// Those that did not come by a publish, with their positions.
    arrived: BTreeSet<(MessageId, u64)>,
    /// Those with a dedup id.
    dedup_ids: BTreeSet<(Arc<str>, MessageId, u64)>,
}

impl Lookup {
    /// A record entered the queue.
    pub(crate) fn insert(&mut self, position: u64, record: &Record) {
        if record.extra.is_none() {
            return;
        }
        if record.arrived().is_some() {
            self.arrived.insert((record.id, position));
        }
        if let Some(dedup_id) = record.dedup_id() {
            self.dedup_ids.insert((Arc::clone(dedup_id), record.id, position));
        }
    }

    /// A record left the queue.
    pub(crate) fn remove(&mut self, position: u64, record: &Record) {
        if record.extra.is_none() {
            return;
        }
        self.arrived.remove(&(record.id, position));
        if let Some(dedup_id) = record.dedup_id() {
            self.dedup_ids
                .remove(&(Arc::clone(dedup_id), record.id, position));
        }
    }

    fn arrived(&self, id: MessageId) -> impl DoubleEndedIterator<Item = u64> {
        let positions = self.arrived.range((id, 0)..=(id, u64::MAX));
        positions.map(|(_, position)| *position)
    }

    fn with_dedup_id(&self, dedup_id: &str) -> impl DoubleEndedIterator<Item = u64> {
        let dedup_id: Arc<str> = dedup_id.into();
        let first = (Arc::clone(&dedup_id), MessageId { index: 0, number: 0 }, 0);
        let last = (dedup_id, MessageId::MAX, u64::MAX);
        let found = self.dedup_ids.range(first..=last);
        found.map(|(_, _, position)| *position)
    }
}

impl Queue {
    /// Where the message is that a selector names.
    pub(crate) fn find(&self, selector: &Selector) -> Option<u64> {
        match selector {
            Selector::Message(id) => self.with_id(*id).last(),
            Selector::DedupId(dedup_id) => self.with_dedup_id(dedup_id).next_back(),
        }
    }

    /// Where the copies of a message are, by position.
    pub(crate) fn with_id(&self, id: MessageId) -> impl Iterator<Item = u64> {
        // A message can have come back to the queue that it was published to
        // only behind where it was.
        let published = published_as(&self.records, self.head.next_position, id);
        published.into_iter().chain(self.lookup.arrived(id))
    }

    /// Where the messages with a dedup id are, in the order in which they were
    /// published.
    pub(crate) fn with_dedup_id(&self, dedup_id: &str) -> impl DoubleEndedIterator<Item = u64> {
        self.lookup.with_dedup_id(dedup_id)
    }
}

/// Where a record is that came by the publish of that id. All are below `end`.
fn published_as(records: &Pages<Record>, end: u64, id: MessageId) -> Option<u64> {
    let (mut low, mut high) = (0, end);
    while low < high {
        let middle = low + (high - low) / 2;
        match records.iter_from(middle).next() {
            Some((position, record)) if position < high && is_before(record, id) => low = position + 1,
            _ => high = middle,
        }
    }
    // Within one entry a record that came otherwise says nothing of its place.
    records
        .iter_from(low)
        .take_while(|(_, record)| record.entered() == id.index)
        .find(|(_, record)| record.id == id && record.arrived().is_none())
        .map(|(position, _)| position)
}

/// All that were published under that id or a later one stand behind it.
fn is_before(record: &Record, id: MessageId) -> bool {
    match record.arrived() {
        Some(index) => index < id.index,
        None => record.id < id,
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Extra;
    use super::*;

    fn record(index: u64, number: u32, arrived: Option<u64>) -> Record {
        Record {
            extra: arrived.map(|index| {
                Box::new(Extra {
                    arrived: Some(index),
                    ..Extra::default()
                })
            }),
            ..Record::ready(MessageId { index, number })
        }
    }

    /// Entries of a few publishes each, with arrivals anywhere among them, and
    /// gaps.
    #[test]
    fn every_published_record_is_found_among_others() {
        let mut records = Pages::default();
        let mut position = 0;
        for index in 10..200_u64 {
            for number in 0..5 {
                if (index * 7 + u64::from(number) * 3) % 4 == 0 {
                    // Under an id that would mislead if it counted.
                    records.insert(position, record(400 - index, number, Some(index)));
                    position += 1;
                }
                records.insert(position, record(index, number, None));
                position += 1 + (index % 9) * 40;
            }
        }
        let published = records.iter().filter(|(_, record)| record.arrived().is_none());
        for (position, record) in published {
            assert_eq!(published_as(&records, 1 << 40, record.id), Some(position));
        }
        for (index, number) in [(9, 0), (10, 5), (200, 0), (399, 1), (0, 0)] {
            assert_eq!(published_as(&records, 1 << 40, MessageId { index, number }), None);
        }
    }
}
