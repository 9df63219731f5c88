//! Contents to which several messages refer.
//!
//! A message that an exchange brings into several queues has one content. It is
//! dropped with the last of them. Most contents have one message, of which
//! nothing is kept here.

use std::collections::BTreeMap;

use crate::broker::Broker;
use crate::effect::Effect;
use crate::ids::MessageId;
use crate::queue::Record;

/// An index: for each content that is or was shared, how many records refer to
/// it, those in graves included.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedContents {
    references: BTreeMap<MessageId, u64>,
}

impl SharedContents {
    /// Counts a record of those that are there.
    pub(crate) fn count(&mut self, record: &Record) {
        if record.shared {
            self.add(record.id, 1);
        }
    }

    /// More records refer to a content that is shared.
    pub(crate) fn add(&mut self, id: MessageId, references: u64) {
        *self.references.entry(id).or_default() += references;
    }

    /// A record refers to its content no more; true if it was the last.
    fn release(&mut self, record: &Record) -> bool {
        if !record.shared {
            return true;
        }
        let left = self.references.get_mut(&record.id).expect("it was counted");
        *left -= 1;
        if *left > 0 {
            return false;
        }
        self.references.remove(&record.id);
        true
    }
}

impl Broker {
    /// A record that referred to a content is gone.
    pub(crate) fn drop_content(&mut self, record: &Record) {
        if self.shared.release(record) {
            self.effects.push(Effect::ContentDropped { id: record.id });
        }
    }
}
