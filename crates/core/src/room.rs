//! Room in queues: who has a claim on it, and how more is made.

use std::collections::BTreeMap;

use crate::broker::Broker;
use crate::command::Overflow;
use crate::dedup::Drafts;
use crate::effect::DeadReason;
use crate::ids::QueueId;
use crate::limits::EXCESS_DROPPED_MAX;
use crate::outcome::{Exit, Rejection};
use crate::queue::Tally;

/// What will come into queues and leave them, by plans that are not carried out.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Messages that will enter.
    pub(crate) more: BTreeMap<QueueId, Tally>,
    /// Messages that will leave before those enter; they are leased until then.
    pub(crate) freed: BTreeMap<QueueId, Tally>,
    /// Dedup ids that will be known. Planning a publish takes note of its own.
    pub(crate) drafts: Drafts,
}

impl Account {
    /// More messages will enter a queue.
    pub(crate) fn claim(&mut self, queue: QueueId, more: Tally) {
        let claimed = self.more.entry(queue).or_default();
        *claimed = claimed.plus(more);
    }
}

/// Messages that make room for others, and for what.
#[derive(Debug, Default)]
pub(crate) struct Displacing {
    /// The queues that are dropping messages, each for the one before it.
    pub(crate) queues: Vec<QueueId>,
    /// Room that was promised to publishes under way: no dead letter takes it.
    pub(crate) promised: BTreeMap<QueueId, Tally>,
}

impl Displacing {
    /// This will come.
    pub(crate) fn promise(&mut self, queue: QueueId, tally: Tally) {
        let promised = self.promised.entry(queue).or_default();
        *promised = promised.plus(tally);
    }

    /// What was promised comes now.
    pub(crate) fn redeem(&mut self, queue: QueueId, tally: Tally) {
        if let Some(promised) = self.promised.get_mut(&queue) {
            *promised = promised.minus(tally);
        }
    }
}

impl Broker {
    /// There is room for more, or will be when ready messages were dropped.
    pub(crate) fn check_room(&self, queue: QueueId, more: Tally, account: &Account) -> Result<(), Rejection> {
        let claimed = account.more.get(&queue).copied().unwrap_or_default();
        let freed = account.freed.get(&queue).copied().unwrap_or_default();
        let queue = self.held(queue);
        match queue.limit_against(more.plus(claimed), freed) {
            None => Ok(()),
            Some(limit) => Err(Rejection::QueueFull {
                queue: queue.head.name.clone(),
                limit,
            }),
        }
    }

    /// Drops ready messages from the head until there is room for more, if that
    /// is the queue's policy. A queue that holds more than it may, since its limits
    /// were lowered, comes down to them by [`EXCESS_DROPPED_MAX`] at a time.
    pub(crate) fn make_room(&mut self, queue: QueueId, more: Tally, displacing: &mut Displacing) {
        if self.held(queue).head.settings.overflow != Overflow::DropHead {
            return;
        }
        displacing.queues.push(queue);
        let mut dropped = Tally::default();
        while self.held(queue).is_short_of_room(more)
            && (dropped.count < more.count + EXCESS_DROPPED_MAX || dropped.bytes < more.bytes)
        {
            let Some(position) = self.held(queue).first_droppable() else {
                break;
            };
            dropped = dropped.plus(Tally::of(self.record(queue, position)));
            if self.held(queue).head.settings.sends_dead_letters() {
                self.dead_letter(queue, position, DeadReason::DroppedByLimit, displacing);
            } else {
                self.remove(queue, position, Exit::Dropped);
            }
        }
        displacing.queues.pop();
    }
}
