//! Everything that happens by itself when its time has come, in one order.

use std::collections::BTreeSet;

use crate::ids::{ClientId, QueueId, SessionId, Timestamp};

/// What falls due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// A lease or a delay ends, or a message's life.
    Message { queue: QueueId, position: u64 },
    /// A lease has waited long enough.
    Waiter { client: ClientId, sequence: u64 },
    /// Nobody came back for a session.
    Orphan { session: SessionId },
    /// Dead letters of a queue may find room in their target.
    Backlog { queue: QueueId },
}

/// An index: rebuilt on restore, equal to what was there before.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    by_time: BTreeSet<(Timestamp, Due)>,
}

impl Deadlines {
    pub(crate) fn insert(&mut self, at: Timestamp, due: Due) {
        let new = self.by_time.insert((at, due));
        debug_assert!(new, "{due:?} is there already");
    }

    pub(crate) fn remove(&mut self, at: Timestamp, due: Due) {
        let found = self.by_time.remove(&(at, due));
        debug_assert!(found, "{due:?} is not there");
    }

    /// The time of the first.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// The first, if its time has come. It stays until it is removed.
    pub(crate) fn due(&self, now: Timestamp) -> Option<Due> {
        self.by_time
            .first()
            .filter(|(at, _)| *at <= now)
            .map(|(_, due)| *due)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Timestamp, Due)> {
        self.by_time.iter()
    }
}
