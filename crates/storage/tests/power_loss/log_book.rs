//! The log's book: what it may look like after a power loss, and the orders that the workload gives.

use std::collections::VecDeque;
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::sync::{Arc, Condvar, Mutex};

use bytes::Bytes;
use quorate_storage::{Log, Record, Store};

use crate::ledger::{Book, Facts, Ledger};
use crate::{Rng, filled, stamp_of};

/// Orders that may wait for their answers at any time.
const WAITING_MAX: usize = 12;

/// Entries that the log holds before the workload purges.
const ENTRIES_MAX: usize = 6000;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Order {
    Append { first: u64, count: u64, bytes: usize },
    Truncate { from: u64 },
    Purge { upto: u64 },
    Vote,
    Committed,
}

impl Order {
    fn words(&self) -> String {
        match self {
            Order::Append { first, count, bytes } => format!("append {first} {count} {bytes}"),
            Order::Truncate { from } => format!("truncate {from}"),
            Order::Purge { upto } => format!("purge {upto}"),
            Order::Vote => "vote".into(),
            Order::Committed => "committed".into(),
        }
    }

    fn parse(words: &str) -> Order {
        let mut words = words.split(' ');
        let kind = words.next().expect("a kind of order");
        let mut number = || words.next().expect("a number").parse().expect("a number");
        match kind {
            "append" => Order::Append {
                first: number(),
                count: number(),
                bytes: number() as usize,
            },
            "truncate" => Order::Truncate { from: number() },
            "purge" => Order::Purge { upto: number() },
            "vote" => Order::Vote,
            "committed" => Order::Committed,
            _ => panic!("no order {kind}"),
        }
    }
}

/// What the log looks like. Everything is named by the number of the order that wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    /// The first index of `entries`, if there are any.
    first: u64,
    entries: VecDeque<u64>,
    /// Index and order of the last purge.
    purged: Option<(u64, u64)>,
    vote: Option<u64>,
    committed: Option<u64>,
}

impl State {
    /// The index with which the log goes on, in a log that may not begin anywhere.
    fn end(&self) -> Option<u64> {
        match (self.entries.len() as u64, self.purged) {
            (0, None) => None,
            (0, Some((index, _))) => Some(index + 1),
            (count, _) => Some(self.first + count),
        }
    }

    fn apply(&mut self, number: u64, order: &Order) {
        match *order {
            Order::Append { first, count, .. } => {
                if self.entries.is_empty() {
                    self.first = first;
                }
                self.entries.extend((0..count).map(|_| number));
            }
            Order::Truncate { from } => {
                self.entries
                    .truncate(usize::try_from(from.saturating_sub(self.first)).expect("a count"));
            }
            Order::Purge { upto } => {
                while !self.entries.is_empty() && self.first <= upto {
                    self.entries.pop_front();
                    self.first += 1;
                }
                self.purged = Some((upto, number));
            }
            Order::Vote => self.vote = Some(number),
            Order::Committed => self.committed = Some(number),
        }
    }

    /// Whether this is `before`, or what a crash can leave of `order` carried out on it: entries are added
    /// from the front and removed from the back, everything else is done whole or not at all.
    fn is_within(&self, before: &State, number: u64, order: Option<&Order>) -> bool {
        if (self.purged, self.vote) != (before.purged, before.vote) {
            return false;
        }
        let same_first = self.entries.is_empty() || before.entries.is_empty() || self.first == before.first;
        let common = self.entries.len().min(before.entries.len());
        let same = same_first && self.entries.range(..common).eq(before.entries.range(..common));
        let (more, fewer) = (self.entries.len() - common, before.entries.len() - common);
        same && match order {
            _ if more == 0 && fewer == 0 => true,
            Some(Order::Append { first, count, .. }) => {
                fewer == 0
                    && more as u64 <= *count
                    && self.first + common as u64 == *first
                    && self.entries.range(common..).all(|entry| *entry == number)
            }
            Some(Order::Truncate { from }) => more == 0 && before.first + common as u64 >= *from,
            _ => false,
        }
    }

    fn words(&self) -> String {
        let number = |number: Option<u64>| number.map_or("-".into(), |number| number.to_string());
        let (index, order) = self.purged.unzip();
        let mut words = format!(
            "{} {} {} {} {}",
            self.first,
            number(index),
            number(order),
            number(self.vote),
            number(self.committed)
        );
        let mut entries = self.entries.iter().peekable();
        while let Some(order) = entries.next() {
            let mut count = 1;
            while entries.next_if_eq(&order).is_some() {
                count += 1;
            }
            write!(words, " {order}*{count}").expect("a string takes everything");
        }
        words
    }

    fn parse(words: &str) -> State {
        let mut words = words.split(' ');
        let first = words.next().expect("a number").parse().expect("a number");
        let mut optional = || words.next().and_then(|number| number.parse().ok());
        let (index, order, vote, committed) = (optional(), optional(), optional(), optional());
        let mut entries = VecDeque::new();
        for run in words {
            let (order, count) = run.split_once('*').expect("an order and a count");
            let (order, count): (u64, usize) =
                (order.parse().expect("a number"), count.parse().expect("a number"));
            entries.extend(std::iter::repeat_n(order, count));
        }
        State {
            first,
            entries,
            purged: index.zip(order),
            vote,
            committed,
        }
    }

    fn summary(&self) -> String {
        let range = self.first..self.first + self.entries.len() as u64;
        format!(
            "entries {range:?}, purged {:?}, vote {:?}, committed {:?}",
            self.purged, self.vote, self.committed
        )
    }

    /// Reads the whole log. Every entry says itself which order wrote it where.
    fn found(log: &Log) -> Result<State, String> {
        let number = |what: &str, bytes: Option<Bytes>| {
            bytes
                .map(|bytes| stamp_of(&bytes).ok_or(format!("the {what} is not one that was written")))
                .transpose()
        };
        let vote = number("vote", log.vote())?.map(|(order, _)| order);
        let committed = number("committed point", log.committed())?.map(|(order, _)| order);
        let purged = match log.purged() {
            None => None,
            Some((index, marker)) => match stamp_of(&marker) {
                Some((order, place)) if place == index => Some((index, order)),
                _ => return Err(format!("the purge marker at {index} is not one that was written")),
            },
        };
        let mut state = State {
            first: log.first_index().unwrap_or(0),
            entries: VecDeque::new(),
            purged,
            vote,
            committed,
        };
        if let Some((index, _)) = purged
            && log.first_index().is_some_and(|first| first != index + 1)
        {
            return Err(format!(
                "the log begins at {} after a purge to {index}",
                state.first
            ));
        }
        let end = log.last_index().map_or(state.first, |last| last + 1);
        while state.first + (state.entries.len() as u64) < end {
            let next = state.first + state.entries.len() as u64;
            let records = log
                .read(next, end, 1 << 20)
                .map_err(|error| format!("read entry {next}: {error}"))?;
            if records.is_empty() {
                return Err(format!(
                    "the log has a hole at {next}, and says that it ends at {end}"
                ));
            }
            for Record { index, bytes } in records {
                let next = state.first + state.entries.len() as u64;
                match stamp_of(&bytes) {
                    Some((order, place)) if place == index && index == next => state.entries.push_back(order),
                    _ => return Err(format!("entry {next} is not one that was written")),
                }
            }
        }
        Ok(state)
    }
}

/// Checks the log against the facts; what is found is then what is true.
pub(crate) fn check(store: &Store, facts: &Facts, ledger: &Ledger) -> Result<(), String> {
    let found = State::found(&store.log)?;
    let mut state = facts.adopted.as_deref().map(State::parse).unwrap_or_default();
    let orders: Vec<(u64, Order)> = facts
        .orders
        .iter()
        .map(|(number, words)| (*number, Order::parse(words)))
        .collect();
    let (done, open) = orders.split_at(facts.done);
    for (number, order) in done {
        state.apply(*number, order);
    }
    let acknowledged = state.clone();
    let mut fits = false;
    for place in 0..=open.len() {
        let next = open.get(place);
        let number = next.map_or(0, |(number, _)| *number);
        // Of several committed points in one group only the last is written.
        let committed = acknowledged.committed..=state.committed.max(acknowledged.committed);
        if found.is_within(&state, number, next.map(|(_, order)| order))
            && committed.contains(&found.committed)
        {
            fits = true;
            break;
        }
        if let Some((number, order)) = next {
            state.apply(*number, order);
        }
    }
    if !fits {
        return Err(format!(
            "the log is none that {} acknowledged and {} open orders can leave: found {}; acknowledged {}; with all open orders {}",
            done.len(),
            open.len(),
            found.summary(),
            acknowledged.summary(),
            state.summary(),
        ));
    }
    ledger.adopt(Book::Log, &found.words());
    Ok(())
}

/// Gives orders for ever.
pub(crate) fn work(store: &Store, mut number: u64, ledger: &Arc<Ledger>, rng: &mut Rng) {
    let log = &store.log;
    let mut state = State::found(log).expect("the log was just checked");
    let waiting = Arc::new((Mutex::new(0), Condvar::new()));
    loop {
        let order = draw(&state, rng);
        state.apply(number, &order);
        ledger.order(Book::Log, number, &order.words());
        {
            let (count, changed) = &*waiting;
            let count = count.lock().expect("no holder panics");
            let mut count = changed
                .wait_while(count, |count| *count >= WAITING_MAX)
                .expect("no holder panics");
            *count += usize::from(order != Order::Committed);
        }
        let done = {
            let (ledger, waiting) = (Arc::clone(ledger), Arc::clone(&waiting));
            Box::new(move |result: Result<(), quorate_storage::StorageError>| {
                match result {
                    Ok(()) => ledger.done(Book::Log, number),
                    Err(error) => ledger.failed(Book::Log, number, &error.to_string()),
                }
                *waiting.0.lock().expect("no holder panics") -= 1;
                waiting.1.notify_one();
            })
        };
        let stamp = |place| Bytes::from(filled(number, place, 64));
        match order {
            Order::Append { first, count, bytes } => {
                let record = |index| Record {
                    index,
                    bytes: filled(number, index, bytes).into(),
                };
                log.append((first..first + count).map(record).collect(), done);
            }
            Order::Truncate { from } => log.truncate_from(from, done),
            Order::Purge { upto } => log.purge_to(upto, stamp(upto), done),
            Order::Vote => log.put_vote(stamp(0), done),
            Order::Committed => log.put_committed(stamp(0)),
        }
        number += 1;
        if rng.chance(10) {
            std::thread::sleep(std::time::Duration::from_micros(rng.within(0..=2000)));
        }
    }
}

fn draw(state: &State, rng: &mut Rng) -> Order {
    let end = state.end().unwrap_or(1);
    let count = state.entries.len() as u64;
    let back = |rng: &mut Rng, most: u64| end - rng.within(1..=most.min(count));
    let append = |rng: &mut Rng, count: RangeInclusive<u64>, bytes: RangeInclusive<u64>| Order::Append {
        first: end,
        count: rng.within(count),
        bytes: rng.within(bytes) as usize,
    };
    if state.entries.len() > ENTRIES_MAX {
        return Order::Purge {
            upto: end - rng.within(1..=1000),
        };
    }
    match rng.within(0..=99) {
        0..=4 => append(rng, 500..=2000, 24..=600),
        5..=8 => append(rng, 1..=3, 16_000..=120_000),
        9..=11 => append(rng, 20..=60, 3_000..=12_000),
        12..=15 if count > 0 => Order::Truncate { from: back(rng, 10) },
        16..=17 if count > 0 => Order::Truncate {
            from: back(rng, 3000),
        },
        18..=21 if count > 0 => Order::Purge {
            upto: state.first + rng.within(0..=count.min(300) - 1),
        },
        22 if count > 0 => Order::Purge { upto: back(rng, 20) },
        // As after the install of a snapshot that is ahead of the log.
        23 => Order::Purge {
            upto: end + rng.within(0..=50),
        },
        24..=34 => Order::Vote,
        35..=49 => Order::Committed,
        _ => append(rng, 1..=20, 24..=2000),
    }
}
