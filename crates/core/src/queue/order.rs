//! In which order a queue gives out its messages.
//!
//! This is the order of messages without a group, and of the first messages of
//! [groups](super::groups).
//!
//! A message has its place from when it enters until it leaves: by priority,
//! and by position among equals. Whatever brings it back (a nack, a release, the
//! end of its lease or of its holder's session, a delay that passed) brings it
//! back to that place, before all that have a later one.
//!
//! With ageing, a message counts as if it had been published earlier by one
//! ageing interval for each step of its priority. So its place never changes,
//! and it still overtakes those that came later with a higher priority.

use std::collections::{BTreeMap, BTreeSet};

use quorate_mutants::mutant;

use super::{Head, Queue, Record, State, Tally};
use crate::command::Settings;
use crate::ids::{Millis, Timestamp};
use crate::limits::PRIORITY_MAX;

/// The messages of a queue by state and order. An index.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// The ready messages without a group, in the order in which they are leased.
    pub(crate) ready: BTreeSet<Place>,
    /// The delayed messages, by when they are due.
    pub(crate) delayed: BTreeSet<(Timestamp, u64)>,
    /// Positions of the leased messages, by the number of the grant.
    pub(crate) leased: BTreeMap<u64, u64>,
}

/// Where a ready message stands among those of its queue; lower comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// Falls as the priority rises.
    rank: u64,
    pub(crate) position: u64,
}

impl Place {
    pub(crate) fn of(record: &Record, position: u64, settings: &Settings) -> Self {
        let below = u64::from(PRIORITY_MAX.saturating_sub(record.priority));
        let rank = match settings.priority_ageing {
            Millis(0) => below,
            Millis(ageing) => record.published_at.0.saturating_add(below.saturating_mul(ageing)),
        };
        let rank = match record.grants {
            1.. if mutant!("requeue-at-tail") => rank.saturating_add(1),
            _ => rank,
        };
        Self { rank, position }
    }

    /// Falls as the priority rises, and is equal for all messages of which none
    /// is to be preferred: those of one priority, with ageing after it has risen.
    pub(super) fn level(&self, settings: &Settings) -> u64 {
        self.rank / settings.priority_ageing.0.max(1)
    }
}

impl Order {
    /// Enters a record among those of its state; ready ones of groups are not here.
    pub(crate) fn enlist(&mut self, position: u64, record: &Record, head: &Head) {
        match record.state {
            State::Ready if record.group == 0 => {
                self.ready.insert(Place::of(record, position, &head.settings));
            }
            State::Delayed { until } => {
                self.delayed.insert((until, position));
            }
            State::Leased(lease) => {
                self.leased.insert(lease.grant, position);
            }
            State::Ready | State::Dead { .. } => {}
        }
    }

    /// Takes a record out again.
    pub(crate) fn strike(&mut self, position: u64, record: &Record, head: &Head) {
        match record.state {
            State::Ready if record.group == 0 => {
                self.ready.remove(&Place::of(record, position, &head.settings));
            }
            State::Delayed { until } => {
                self.delayed.remove(&(until, position));
            }
            State::Leased(lease) => {
                self.leased.remove(&lease.grant);
            }
            State::Ready | State::Dead { .. } => {}
        }
    }
}

impl Queue {
    /// Enters a record into the books of its state.
    pub(crate) fn enlist(&mut self, position: u64) -> &Record {
        let record = self.records.get(position).expect("the caller saw it");
        let tally = self.tallies.of_mut(&record.state);
        *tally = tally.plus(Tally::of(record));
        self.order.enlist(position, record, &self.head);
        if record.group != 0 {
            self.groups.enlist(position, record, &self.head);
        }
        record
    }

    /// Takes a record out of the books of its state.
    pub(crate) fn strike(&mut self, position: u64) -> &Record {
        let record = self.records.get(position).expect("the caller saw it");
        let tally = self.tallies.of_mut(&record.state);
        *tally = tally.minus(Tally::of(record));
        self.order.strike(position, record, &self.head);
        if record.group != 0 {
            self.groups.strike(position, record, &self.head);
        }
        record
    }

    /// Takes new settings; the order is theirs from now on.
    pub(crate) fn set_settings(&mut self, settings: Settings) {
        let before = std::mem::replace(&mut self.head.settings, settings.into());
        let settings = &self.head.settings;
        if settings.priority_ageing != before.priority_ageing {
            let ready = std::mem::take(&mut self.order.ready);
            let places = ready.into_iter().map(|Place { position, .. }| {
                let record = self.records.get(position).expect("ready messages are there");
                Place::of(record, position, settings)
            });
            self.order.ready = places.collect();
        }
        if (settings.priority_ageing, settings.group_concurrency)
            != (before.priority_ageing, before.group_concurrency)
        {
            self.groups.reorder(&self.records, settings);
        }
    }

    /// The order is what the records say.
    pub(crate) fn is_in_order(&self) -> bool {
        let mut recounted = Order::default();
        // Most are of this kind, and nearly sorted: a set would be slower to build.
        let mut ready = Vec::new();
        for (position, record) in self.records.iter() {
            if record.state == State::Ready && record.group == 0 {
                ready.push(Place::of(record, position, &self.head.settings));
            } else {
                recounted.enlist(position, record, &self.head);
            }
        }
        ready.sort();
        ready.iter().eq(&self.order.ready)
            && (&recounted.delayed, &recounted.leased) == (&self.order.delayed, &self.order.leased)
    }

    /// When the message that is given out next was published; if none can be,
    /// the ready one that would make room.
    pub(crate) fn oldest_ready(&self) -> Option<Timestamp> {
        let position = self.first_droppable()?;
        Some(self.records.get(position)?.published_at)
    }

    /// When the message was published that has been leased for longest.
    pub(crate) fn oldest_leased(&self) -> Option<Timestamp> {
        let (_, position) = self.order.leased.first_key_value()?;
        Some(self.records.get(*position)?.published_at)
    }
}
