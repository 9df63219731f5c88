//! Groups: messages that belong together, in order and a few at a time.
//!
//! Within a group messages are given out strictly by position. A group is *busy*
//! with those of its messages that are leased or wait for a retry, and gives out
//! another only while they are fewer than the queue's `group_concurrency`. With
//! one at a time, the next message is not given out before the one ahead of it
//! is settled for good. A message that its publisher scheduled for later holds
//! up nobody.
//!
//! Between groups whose first messages have the same priority, turns are
//! shared by weight, as start-time fair queueing does it (Goyal, Vin, Cheng,
//! 1996): a queue has a virtual time, and each group a *pass*, the virtual time
//! of its next turn. The lowest pass comes first; taking a turn sets the virtual
//! time to it and puts the group's next one off by a stride, the shorter the
//! higher the weight. Who was idle or busy for a while does not catch up, and a
//! group that comes starts one stride ahead, so that neither one that waited nor
//! one that comes and goes with each message can keep out the others. Messages
//! without a group are together one more group, without a bound.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::order::Place;
use super::pages::Pages;
use super::record::{Record, State};
use super::{Head, Queue};
use crate::command::Settings;

/// How far a turn puts off a group of weight 1. Divided by the highest weight it
/// is still exact to a thousandth; 64 bits last for 10^13 turns.
const STRIDE: u64 = 1 << 20;

/// The groups of a queue that have messages. `heads` is state; the rest follows
/// from it and the records.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Groups {
    /// By number, from 1.
    pub(crate) heads: Pages<GroupHead>,
    numbers: BTreeMap<Arc<str>, u32>,
    /// Numbers below the highest that no group has.
    free: BTreeSet<u32>,
    books: BTreeMap<u32, Book>,
    /// Those that can give out a message, by turn.
    open: BTreeSet<GroupTurn>,
    /// Those that have a ready message and are busy, by its position.
    blocked: BTreeSet<(u64, u32)>,
    /// Ready messages of those.
    waiting: u64,
}

/// What is persisted of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupHead {
    name: Arc<str>,
    /// Virtual time of its next turn, if that has not passed.
    pass: u64,
}

/// When a group gives out its next message; lower comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupTurn {
    /// Of its first message.
    level: u64,
    pass: u64,
    number: u32,
}

/// What a group has.
#[derive(Debug, Default, PartialEq, Eq)]
struct Book {
    /// Messages in any state.
    members: u64,
    /// Those that are leased or wait for a retry.
    busy: u32,
    /// Positions of the ready ones, and their levels.
    ready: BTreeMap<u64, u64>,
    standing: Standing,
}

/// Where a group stands among the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Standing {
    /// It has nothing ready.
    #[default]
    Idle,
    Open(GroupTurn),
    /// With the position of its first ready message.
    Blocked(u64),
}

impl Groups {
    pub(crate) fn is_empty(&self) -> bool {
        self.books.is_empty()
    }

    pub(crate) fn count(&self) -> u64 {
        self.books.len() as u64
    }

    /// Groups that have a ready message and are busy, and their ready messages.
    pub(crate) fn blocked(&self) -> (u64, u64) {
        (self.blocked.len() as u64, self.waiting)
    }

    fn counted(heads: &Pages<GroupHead>, records: &Pages<Record>) -> Self {
        let mut groups = Self {
            heads: heads.clone(),
            ..Self::default()
        };
        for (number, head) in heads.iter() {
            let number = u32::try_from(number).expect("numbers of groups are below 2^32");
            groups.numbers.insert(Arc::clone(&head.name), number);
        }
        if groups.numbers.is_empty() {
            return groups;
        }
        for (_, record) in records.iter().filter(|(_, record)| record.group != 0) {
            groups.count_in(record.group);
        }
        let highest = groups.highest();
        groups.free = (1..highest)
            .filter(|number| !groups.books.contains_key(number))
            .collect();
        groups
    }

    /// Each has messages and a name of its own.
    pub(crate) fn are_sound(&self) -> bool {
        let numbers = self.heads.iter().map(|(number, _)| number);
        let named = self.numbers.len() == self.books.len();
        named && numbers.eq(self.books.keys().map(|number| u64::from(*number)))
    }

    /// There is a group of that number, or it is none.
    pub(crate) fn knows(&self, number: u32) -> bool {
        number == 0 || self.heads.get(u64::from(number)).is_some()
    }

    /// The name of a group; empty for those that have none.
    pub(crate) fn name(&self, number: u32) -> Arc<str> {
        let head = self.heads.get(u64::from(number));
        head.map_or_else(Arc::default, |head| Arc::clone(&head.name))
    }

    /// Number of the group of that name, if it has messages; 0 of no name.
    pub(crate) fn number(&self, name: &str) -> Option<u32> {
        if name.is_empty() {
            return Some(0);
        }
        self.numbers.get(name).copied()
    }

    /// A message enters: finds the group's number, or the lowest free one.
    fn join(&mut self, name: &str, head: &Head) -> u32 {
        if name.is_empty() {
            return 0;
        }
        let number = match self.number(name) {
            Some(number) => number,
            None => self.found(name, head),
        };
        self.count_in(number);
        number
    }

    fn found(&mut self, name: &str, head: &Head) -> u32 {
        let number = self.free.pop_first().unwrap_or_else(|| self.highest() + 1);
        let name: Arc<str> = name.into();
        self.numbers.insert(Arc::clone(&name), number);
        let pass = head.virtual_time.saturating_add(stride(&head.settings, &name));
        self.heads.insert(u64::from(number), GroupHead { name, pass });
        number
    }

    fn highest(&self) -> u32 {
        self.books.last_key_value().map_or(0, |(number, _)| *number)
    }

    fn count_in(&mut self, number: u32) {
        self.books.entry(number).or_default().members += 1;
    }

    /// A message left, and is in no book any more. The last one takes the group along.
    pub(crate) fn leave(&mut self, number: u32) {
        if number == 0 {
            return;
        }
        let book = self.book_mut(number);
        book.members -= 1;
        if book.members > 0 {
            return;
        }
        self.books.remove(&number);
        let head = self.heads.remove(u64::from(number));
        self.numbers
            .remove(&head.expect("every group in the books is there").name);
        self.free.insert(number);
        let highest = self.highest();
        while self.free.last().is_some_and(|last| *last > highest) {
            self.free.pop_last();
        }
    }

    /// Enters a message into the books of its state.
    pub(super) fn enlist(&mut self, position: u64, record: &Record, head: &Head) {
        self.update(record.group, &head.settings, |book| {
            if is_busy_with(record) {
                book.busy += 1;
            } else if record.state == State::Ready {
                let level = Place::of(record, position, &head.settings).level(&head.settings);
                book.ready.insert(position, level);
            }
        });
    }

    /// Takes a message out of the books of its state.
    pub(crate) fn strike(&mut self, position: u64, record: &Record, head: &Head) {
        self.update(record.group, &head.settings, |book| {
            if is_busy_with(record) {
                book.busy -= 1;
            } else if record.state == State::Ready {
                book.ready.remove(&position);
            }
        });
    }

    /// Changes a group's book, and finds its place among the others anew.
    fn update(&mut self, number: u32, settings: &Settings, change: impl FnOnce(&mut Book)) {
        let book = self.book_mut(number);
        let waited = book.waiting();
        change(book);
        self.settle(number, settings);
        self.waiting = self.waiting - waited + self.books[&number].waiting();
    }

    /// Where a group stands after its book, or the settings, changed.
    fn settle(&mut self, number: u32, settings: &Settings) {
        let book = &self.books[&number];
        let standing = match book.ready.first_key_value() {
            None => Standing::Idle,
            Some((_, level)) if book.busy < settings.group_concurrency => Standing::Open(GroupTurn {
                level: *level,
                pass: self.head(number).pass,
                number,
            }),
            Some((position, _)) => Standing::Blocked(*position),
        };
        let before = book.standing;
        if standing == before {
            return;
        }
        match before {
            Standing::Idle => {}
            Standing::Open(turn) => drop(self.open.remove(&turn)),
            Standing::Blocked(position) => drop(self.blocked.remove(&(position, number))),
        }
        match standing {
            Standing::Idle => {}
            Standing::Open(turn) => drop(self.open.insert(turn)),
            Standing::Blocked(position) => drop(self.blocked.insert((position, number))),
        }
        self.book_mut(number).standing = standing;
    }

    /// Whatever follows from the settings is found anew.
    pub(super) fn reorder(&mut self, records: &Pages<Record>, settings: &Settings) {
        for number in self.books.keys().copied().collect::<Vec<_>>() {
            self.update(number, settings, |book| {
                for (position, level) in &mut book.ready {
                    let record = records.get(*position).expect("ready messages are there");
                    *level = Place::of(record, *position, settings).level(settings);
                }
            });
        }
    }

    fn head(&self, number: u32) -> &GroupHead {
        self.heads
            .get(u64::from(number))
            .expect("numbers are not kept longer than the groups")
    }

    fn book_mut(&mut self, number: u32) -> &mut Book {
        self.books
            .get_mut(&number)
            .expect("numbers are not kept longer than the groups")
    }
}

impl Queue {
    /// The message that is given out next, if there is one that can be.
    pub(crate) fn next_ready(&self) -> Option<u64> {
        let ungrouped = self.order.ready.first();
        let Some(turn) = self.groups.open.first() else {
            return ungrouped.map(|place| place.position);
        };
        match ungrouped {
            Some(place) if self.ungrouped_turn(place) < *turn => Some(place.position),
            _ => self.groups.books[&turn.number].first_ready(),
        }
    }

    /// The ready message that makes room for another, if there is one: the next,
    /// or else the first that waits for others of its group.
    pub(crate) fn first_droppable(&self) -> Option<u64> {
        let blocked = || self.groups.blocked.first().map(|(position, _)| *position);
        self.next_ready().or_else(blocked)
    }

    fn ungrouped_turn(&self, first: &Place) -> GroupTurn {
        GroupTurn {
            level: first.level(&self.head.settings),
            pass: self.head.ungrouped_pass,
            number: 0,
        }
    }

    /// The next message is given out: its group has had its turn.
    pub(crate) fn take_turn(&mut self, position: u64) {
        if self.groups.is_empty() {
            return;
        }
        let group = self.records.get(position).expect("the caller saw it").group;
        let Head {
            settings,
            virtual_time,
            ungrouped_pass,
            ..
        } = &mut self.head;
        let (pass, stride) = match self.groups.heads.get_mut(u64::from(group)) {
            Some(head) => {
                let stride = stride(settings, &head.name);
                (&mut head.pass, stride)
            }
            None => (ungrouped_pass, STRIDE),
        };
        *virtual_time = (*virtual_time).max(*pass);
        *pass = virtual_time.saturating_add(stride);
        debug_assert!(
            group == 0 || self.groups.books[&group].busy < self.head.settings.group_concurrency,
            "group {group} is busy"
        );
    }

    /// A message enters a group; none has the empty name. Says which number it
    /// has in this queue.
    pub(crate) fn join_group(&mut self, name: &str) -> u32 {
        self.groups.join(name, &self.head)
    }

    /// Whose the messages are, after the records and the heads of groups were
    /// restored: every group of a record has a head. In the books of their
    /// states they are not yet.
    pub(crate) fn count_groups(&mut self) {
        self.groups = Groups::counted(&self.groups.heads, &self.records);
    }

    /// The groups as records and heads say, to compare with.
    pub(crate) fn recounted_groups(&self) -> Groups {
        let mut groups = Groups::counted(&self.groups.heads, &self.records);
        if groups.is_empty() {
            return groups;
        }
        for (position, record) in self.records.iter().filter(|(_, record)| record.group != 0) {
            groups.enlist(position, record, &self.head);
        }
        groups
    }
}

impl Book {
    /// Ready messages that wait for others of the group.
    fn waiting(&self) -> u64 {
        match self.standing {
            Standing::Blocked(_) => self.ready.len() as u64,
            Standing::Idle | Standing::Open(_) => 0,
        }
    }

    fn first_ready(&self) -> Option<u64> {
        self.ready.first_key_value().map(|(position, _)| *position)
    }
}

/// It is leased, or was and waits for a retry.
fn is_busy_with(record: &Record) -> bool {
    match record.state {
        State::Leased(_) => true,
        State::Delayed { .. } => record.grants > 0,
        State::Ready | State::Dead { .. } => false,
    }
}

fn stride(settings: &Settings, group: &str) -> u64 {
    let weight = settings.group_weights.get(group).copied().unwrap_or(1);
    STRIDE / u64::from(weight.max(1))
}
