//! One queue: its settings and counts, its messages, and who wants them.
//!
//! A queue keeps its own books and decides nothing. What happens to a message
//! is decided in [`lifecycle`](crate::lifecycle) and [`assign`](crate::assign),
//! since it touches sessions, deadlines and other queues too.

mod backoff;
mod groups;
mod lookup;
mod order;
mod pages;
mod record;
mod settings;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::Sum;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub(crate) use backoff::backoff;
pub(crate) use groups::{GroupHead, Groups};
pub(crate) use lookup::Lookup;
pub(crate) use order::{Order, Place};
pub(crate) use pages::{Page, Pages};
pub(crate) use record::{Extra, Holder, Lease, Record, State};
pub(crate) use settings::{check_label, check_lease, check_span, differences, invalid};

use crate::command::{Overflow, Settings};
use crate::dead_letter::Retry;
use crate::dedup::Window;
use crate::ids::{ClientId, ConsumerId, QueueId, QueueName, SessionId, Timestamp};
use crate::outcome::Exit;

/// A queue. `head`, `records`, `dedup` and the heads of groups are its state; the rest are indexes that are
/// rebuilt from the state of the broker.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) head: Head,
    pub(crate) records: Pages<Record>,
    pub(crate) order: Order,
    pub(crate) groups: Groups,
    /// What was published to it last.
    pub(crate) dedup: Window,
    pub(crate) lookup: Lookup,
    /// Positions of the dead letters that wait for their target.
    pub(crate) backlog: BTreeSet<u64>,
    pub(crate) tallies: Tallies,
    /// Who could take a message now, but for what a pause or a single active
    /// consumer forbids, in order of service.
    pub(crate) takers: BTreeMap<Turn, Taker>,
    /// All consumers, also those that have no free credit.
    pub(crate) consumers: BTreeSet<(SessionId, ConsumerId)>,
    /// With a single active consumer: those that could become active.
    pub(crate) standby: BTreeMap<Turn, (SessionId, ConsumerId)>,
}

/// What is persisted of a queue besides its messages; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) name: QueueName,
    pub(crate) id: QueueId,
    pub(crate) settings: Arc<Settings>,
    /// The next message that enters gets this position.
    pub(crate) next_position: u64,
    /// Who takes a message gets this turn for the next.
    pub(crate) next_turn: u64,
    pub(crate) totals: Totals,
    /// Nothing is given out.
    pub(crate) paused: bool,
    /// With a single active consumer: which it is.
    pub(crate) active: Option<(SessionId, ConsumerId)>,
    /// Of the last turn of a group, or of messages without one.
    pub(crate) virtual_time: u64,
    /// Virtual time of the next turn of messages without a group.
    pub(crate) ungrouped_pass: u64,
    /// When its backlog of dead letters is tried again, if it has one.
    pub(crate) retry: Option<Retry>,
}

/// What entered and left since the queue was declared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Totals {
    pub(crate) published: u64,
    pub(crate) acked: u64,
    pub(crate) expired: u64,
    pub(crate) dead_lettered: u64,
    pub(crate) dropped: u64,
    pub(crate) deleted: u64,
    pub(crate) moved: u64,
    pub(crate) redelivered: u64,
    pub(crate) duplicates: u64,
}

/// When it is somebody's turn to take a message; lower comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    pub(crate) priority: Reverse<i32>,
    pub(crate) number: u64,
}

/// Messages and bytes by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tallies {
    pub(crate) ready: Tally,
    pub(crate) delayed: Tally,
    pub(crate) leased: Tally,
    pub(crate) dead: Tally,
}

/// Messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

/// Who can take a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taker {
    /// A lease that waits: the client and the sequence of its request.
    Waiter(ClientId, u64),
    /// A consumer with free credit, in a session that is attached.
    Consumer(SessionId, ConsumerId),
}

impl Queue {
    pub(crate) fn new(head: Head) -> Self {
        Self {
            head,
            records: Pages::default(),
            order: Order::default(),
            groups: Groups::default(),
            dedup: Window::default(),
            lookup: Lookup::default(),
            backlog: BTreeSet::new(),
            tallies: Tallies::default(),
            takers: BTreeMap::new(),
            consumers: BTreeSet::new(),
            standby: BTreeMap::new(),
        }
    }

    /// When none of its dedup ids is known any more, if it has any.
    pub(crate) fn window_end(&self) -> Option<Timestamp> {
        self.dedup.end(self.head.settings.dedup())
    }

    /// The number of a turn behind all others of the same priority.
    pub(crate) fn next_turn(&mut self) -> u64 {
        self.head.next_turn += 1;
        self.head.next_turn
    }

    /// Enters a record behind all others and says where. The caller indexes it.
    pub(crate) fn append(&mut self, record: Record) -> u64 {
        let position = self.head.next_position;
        self.head.next_position += 1;
        self.head.totals.published += 1;
        self.lookup.insert(position, &record);
        self.records.insert(position, record);
        position
    }

    /// The limit that does not allow `more` besides what is there without what
    /// will be `freed`, if any, as text for a person. Ready messages do not count
    /// where they can make room.
    pub(crate) fn limit_against(&self, more: Tally, freed: Tally) -> Option<String> {
        let Settings {
            length_max,
            bytes_max,
            ..
        } = *self.head.settings;
        let mut held = self.tallies.live().minus(freed);
        if self.head.settings.overflow == Overflow::DropHead {
            held = held.minus(self.tallies.ready);
        }
        if length_max != 0 && held.count + more.count > length_max {
            let (held, more) = (held.count, more.count);
            return Some(format!(
                "max_length is {length_max}, it holds {held} and {more} would come"
            ));
        }
        if bytes_max != 0 && held.bytes + more.bytes > bytes_max {
            let (held, more) = (held.bytes, more.bytes);
            return Some(format!(
                "max_bytes is {bytes_max}, it holds {held} and {more} would come"
            ));
        }
        None
    }

    /// A record does not even fit if it is the only one.
    pub(crate) fn is_too_small_for(&self, record: &Record) -> bool {
        let bytes_max = self.head.settings.bytes_max;
        bytes_max != 0 && Tally::of(record).bytes > bytes_max
    }

    /// With `more` it would hold more than it may.
    pub(crate) fn is_short_of_room(&self, more: Tally) -> bool {
        let Settings {
            length_max,
            bytes_max,
            ..
        } = *self.head.settings;
        let live = self.tallies.live();
        (length_max != 0 && live.count + more.count > length_max)
            || (bytes_max != 0 && live.bytes + more.bytes > bytes_max)
    }
}

impl Totals {
    pub(crate) fn of_mut(&mut self, exit: Exit) -> &mut u64 {
        match exit {
            Exit::Acked => &mut self.acked,
            Exit::Expired => &mut self.expired,
            Exit::DeadLettered => &mut self.dead_lettered,
            Exit::Dropped => &mut self.dropped,
            Exit::Deleted => &mut self.deleted,
            Exit::Moved => &mut self.moved,
        }
    }

    /// All that left, in whatever way.
    pub(crate) fn left(&self) -> u64 {
        self.acked + self.expired + self.dead_lettered + self.dropped + self.deleted + self.moved
    }
}

impl Turn {
    /// Of those that have no priority of their own.
    pub(crate) fn unranked(number: u64) -> Self {
        Self {
            priority: Reverse(0),
            number,
        }
    }
}

impl Tallies {
    pub(crate) fn of_mut(&mut self, state: &State) -> &mut Tally {
        match state {
            State::Ready => &mut self.ready,
            State::Delayed { .. } => &mut self.delayed,
            State::Leased(_) => &mut self.leased,
            State::Dead { .. } => &mut self.dead,
        }
    }

    /// What counts against the limits.
    pub(crate) fn live(&self) -> Tally {
        self.ready.plus(self.delayed).plus(self.leased)
    }

    pub(crate) fn all(&self) -> Tally {
        self.live().plus(self.dead)
    }
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), Self::plus)
    }
}

impl Tally {
    pub(crate) fn of(record: &Record) -> Self {
        Self {
            count: 1,
            bytes: u64::from(record.content_bytes),
        }
    }

    #[must_use]
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            bytes: self.bytes + other.bytes,
        }
    }

    #[must_use]
    pub(crate) fn minus(self, other: Self) -> Self {
        Self {
            count: self.count - other.count,
            bytes: self.bytes - other.bytes,
        }
    }
}
