//! Everything that happens by itself when its time has come: first what somebody
//! may wait for, in one order, then what only saves memory.

use std::collections::BTreeSet;

use crate::exchange::ExchangeId;
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
    /// No dedup id of a queue is known any more.
    QueueWindow { queue: QueueId },
    /// No dedup id of an exchange is known any more.
    ExchangeWindow { exchange: ExchangeId },
}

/// An index: rebuilt on restore, equal to what was there before.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    by_time: BTreeSet<(Timestamp, Due)>,
    /// Those that may be late: they come when none of the others is due.
    windows: BTreeSet<(Timestamp, Due)>,
}

impl Deadlines {
    pub(crate) fn insert(&mut self, at: Timestamp, due: Due) {
        let new = self.home(due).insert((at, due));
        debug_assert!(new, "{due:?} is there already");
    }

    pub(crate) fn remove(&mut self, at: Timestamp, due: Due) {
        let found = self.home(due).remove(&(at, due));
        debug_assert!(found, "{due:?} is not there");
    }

    /// Moves what may have had a time, and may have one.
    pub(crate) fn change(&mut self, due: Due, before: Option<Timestamp>, after: Option<Timestamp>) {
        if before == after {
            return;
        }
        if let Some(at) = before {
            self.remove(at, due);
        }
        if let Some(at) = after {
            self.insert(at, due);
        }
    }

    /// The time of the first.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        let firsts = [self.by_time.first(), self.windows.first()];
        firsts.into_iter().flatten().map(|(at, _)| *at).min()
    }

    /// The first whose time has come, if any. It stays until it is removed.
    pub(crate) fn due(&self, now: Timestamp) -> Option<Due> {
        let firsts = [self.by_time.first(), self.windows.first()];
        let mut due = firsts.into_iter().flatten().filter(|(at, _)| *at <= now);
        due.next().map(|(_, due)| *due)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Timestamp, Due)> {
        self.by_time.iter().chain(&self.windows)
    }

    fn home(&mut self, due: Due) -> &mut BTreeSet<(Timestamp, Due)> {
        match due {
            Due::QueueWindow { .. } | Due::ExchangeWindow { .. } => &mut self.windows,
            Due::Message { .. } | Due::Waiter { .. } | Due::Orphan { .. } | Due::Backlog { .. } => {
                &mut self.by_time
            }
        }
    }
}
