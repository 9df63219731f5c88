//! What was purged or deleted, until its contents are dropped.
//!
//! A purge of ten million messages is done at once, and says so. To tell of ten
//! million contents takes longer: that is done a slice with each entry, and as
//! long as there is more the broker asks for one.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::broker::Broker;
use crate::deadlines::Due;
use crate::event::{Change, Event};
use crate::ids::{QueueId, QueueName};
use crate::limits::BURIED_PER_ENTRY_MAX;
use crate::outcome::Exit;
use crate::queue::{Holder, Lease, Pages, Record, State, Tally};

/// What is to be dropped, the oldest first. None is empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graves {
    pub(crate) queue: VecDeque<Grave>,
}

/// Records that belong to no queue any more.
#[derive(Clone, Debug)]
pub(crate) struct Grave {
    pub(crate) head: GraveHead,
    pub(crate) records: Pages<Record>,
}

/// What is persisted of a grave besides its records: whose they were.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GraveHead {
    pub(crate) queue: QueueId,
    pub(crate) name: QueueName,
}

impl Broker {
    /// Takes all messages in certain states, of which there are `count`, out of a
    /// queue.
    pub(crate) fn bury(&mut self, id: QueueId, count: u64, buried: impl Fn(&State) -> bool) {
        if count == 0 {
            return;
        }
        let queue = self.queues.get_mut(&id).expect("the caller saw it");
        // Those that are fewer are taken out from among the others.
        let few = count < queue.tallies.all().count / 2;
        let records = std::mem::take(&mut queue.records);
        if buried(&State::Ready) {
            queue.order.ready.clear();
        }
        let mut fewer = Vec::new();
        for (position, record) in records.iter() {
            let goes = buried(&record.state);
            if goes == few {
                fewer.push(position);
            }
            if goes {
                self.strike_buried(id, position, record);
            }
        }
        let (taken_out, left) = parted(records, fewer);
        let (grave, staying) = if few { (taken_out, left) } else { (left, taken_out) };
        let queue = self.held_mut(id);
        queue.records = staying;
        queue.head.totals.deleted += count;
        let head = GraveHead {
            queue: id,
            name: queue.head.name.clone(),
        };
        self.graves.queue.push_back(Grave { head, records: grave });
        self.follow_backlog(id);
    }

    /// Takes a message out of all books of its queue.
    fn strike_buried(&mut self, id: QueueId, position: u64, record: &Record) {
        let queue = self.queues.get_mut(&id).expect("the caller saw it");
        let tally = queue.tallies.of_mut(&record.state);
        *tally = tally.minus(Tally::of(record));
        queue.order.strike(position, record, &queue.head);
        if record.group != 0 {
            queue.groups.strike(position, record, &queue.head);
            queue.groups.leave(record.group);
            self.touched.insert(id);
        }
        if let Some(at) = record.due() {
            self.deadlines.remove(at, Due::Message { queue: id, position });
        }
        queue.lookup.remove(position, record);
        queue.dedup.left(id, record, Exit::Deleted);
        self.exchanges.message_left(id, record, Exit::Deleted);
        queue.backlog.remove(&position);
        if let State::Leased(Lease {
            holder: Holder::Consumer { session, consumer },
            ..
        }) = record.state
        {
            self.let_go(session, consumer, id, position);
        }
    }

    /// Drops the contents of what was buried, as many as one entry may, and tells
    /// that those messages left.
    pub(crate) fn drop_buried(&mut self) {
        for _ in 0..BURIED_PER_ENTRY_MAX {
            let Some(Grave { head, records }) = self.graves.queue.front_mut() else {
                return;
            };
            let position = records.first_position().expect("no grave is empty");
            let record = records.remove(position).expect("it was seen just now");
            self.events.push(Event {
                message: record.id,
                queue: head.queue,
                queue_name: head.name.clone(),
                change: Change::left(Exit::Deleted),
            });
            if records.first_position().is_none() {
                self.graves.queue.pop_front();
            }
            self.drop_content(&record);
        }
    }
}

/// Takes records at certain positions out from among others.
fn parted(mut records: Pages<Record>, positions: Vec<u64>) -> (Pages<Record>, Pages<Record>) {
    let mut taken_out = Pages::default();
    for position in positions {
        let record = records.remove(position).expect("it was seen just now");
        taken_out.insert(position, record);
    }
    (taken_out, records)
}
