//! The contents' book: each order writes some contents, perhaps again, or forgets those of an earlier order and gives their
//! space back.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use quorate_storage::Store;

use crate::ledger::{Book, Facts, Ledger};
use crate::{Rng, filled, stamp_of};

/// Orders whose contents are kept.
const LIVE_MAX: usize = 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Contents of the order's own number.
    Put { count: u32 },
    /// The contents of an earlier order once more.
    Again { number: u64, count: u32 },
    /// Those of an earlier order are not needed any more, and volumes are dropped and rewritten.
    Forget { number: u64, count: u32 },
}

impl Order {
    fn words(self) -> String {
        match self {
            Order::Put { count } => format!("put {count}"),
            Order::Again { number, count } => format!("again {number} {count}"),
            Order::Forget { number, count } => format!("forget {number} {count}"),
        }
    }

    fn parse(words: &str) -> Order {
        let words: Vec<&str> = words.split(' ').collect();
        let number = |place: usize| words[place].parse::<u64>().expect("a number");
        match words[0] {
            "put" => Order::Put {
                count: number(1) as u32,
            },
            "again" => Order::Again {
                number: number(1),
                count: number(2) as u32,
            },
            "forget" => Order::Forget {
                number: number(1),
                count: number(2) as u32,
            },
            kind => panic!("no order {kind}"),
        }
    }
}

/// The contents of one order. Most are short, some are cut into parts.
fn contents(order: u64, count: u32) -> impl Iterator<Item = (u64, u32, Bytes)> {
    (0..count).map(move |number| {
        let mut rng = Rng::new(order << 16 | u64::from(number));
        let len = if rng.chance(10) {
            rng.within(16_000..=90_000)
        } else {
            rng.within(24..=5000)
        };
        (
            order,
            number,
            Bytes::from(filled(order, number.into(), len as usize)),
        )
    })
}

type Live = BTreeSet<(u64, u32)>;

/// Checks the contents against the facts.
pub(crate) fn check(store: &Store, facts: &Facts, ledger: &Ledger) -> Result<(), String> {
    let mut certain = facts.adopted.as_deref().map(parse).unwrap_or_default();
    for (place, (number, words)) in facts.orders.iter().enumerate() {
        match Order::parse(words) {
            Order::Put { count } if place < facts.done => drop(certain.insert((*number, count))),
            Order::Put { .. } | Order::Again { .. } => {}
            Order::Forget { number, count } => drop(certain.remove(&(number, count))),
        }
    }
    let store = &store.contents;
    for (order, count) in &certain {
        for (index, number, bytes) in contents(*order, *count) {
            match store.get(index, number, bytes.len()) {
                Ok(Some(found)) if found == bytes => {}
                Ok(Some(_)) => return Err(format!("content {index}/{number} is not what was written")),
                Ok(None) => return Err(format!("content {index}/{number} was acknowledged and is gone")),
                Err(error) => return Err(format!("read content {index}/{number}: {error}")),
            }
        }
    }
    let mut walked = BTreeSet::new();
    for content in store.range((0, 0)) {
        let content = content.map_err(|error| format!("walk the contents: {error}"))?;
        if stamp_of(&content.bytes) != Some((content.index, content.number.into())) {
            return Err(format!(
                "content {}/{} is not one that was written",
                content.index, content.number
            ));
        }
        let id = (content.index, content.number);
        if walked.last().is_some_and(|last| *last >= id) {
            return Err(format!(
                "content {}/{} comes out of order",
                content.index, content.number
            ));
        }
        walked.insert(id);
    }
    if let Some((order, _)) = certain
        .iter()
        .find(|(order, count)| (0..*count).any(|number| !walked.contains(&(*order, number))))
    {
        return Err(format!("a walk leaves out contents of order {order}"));
    }
    let words: Vec<String> = certain
        .iter()
        .map(|(order, count)| format!("{order}*{count}"))
        .collect();
    ledger.adopt(Book::Contents, &words.join(" "));
    Ok(())
}

fn parse(words: &str) -> Live {
    let run = |run: &str| {
        let (order, count) = run.split_once('*').expect("an order and a count");
        (order.parse().expect("a number"), count.parse().expect("a number"))
    };
    words.split_whitespace().map(run).collect()
}

/// Gives orders for ever, one at a time.
pub(crate) fn work(store: &Store, facts: &Facts, ledger: &Arc<Ledger>, rng: &mut Rng) {
    let mut live = facts.adopted.as_deref().map(parse).unwrap_or_default();
    let contents_of = &store.contents;
    for next in facts.next.. {
        let any = match live.len() as u64 {
            0 => None,
            count if rng.chance(50) => live.iter().nth(rng.within(0..=count - 1) as usize).copied(),
            _ => live.first().copied(),
        };
        let order = match any {
            Some((number, count)) if live.len() > LIVE_MAX || rng.chance(25) => {
                Order::Forget { number, count }
            }
            Some((number, count)) if rng.chance(10) => Order::Again { number, count },
            _ => Order::Put {
                count: rng.within(1..=40) as u32,
            },
        };
        ledger.order(Book::Contents, next, &order.words());
        let outcome = match order {
            Order::Put { count } => {
                live.insert((next, count));
                contents_of.put_all(&mut contents(next, count)).map(drop)
            }
            Order::Again { number, count } => contents_of.put_all(&mut contents(number, count)).map(drop),
            Order::Forget { number, count } => {
                live.remove(&(number, count));
                let ids: Vec<_> = live
                    .iter()
                    .flat_map(|(order, count)| (0..*count).map(|number| (*order, number)))
                    .collect();
                contents_of.retain(&ids, next).map(drop)
            }
        };
        // Some orders share a flush: none of them is done before it.
        if rng.chance(60) {
            match outcome.and_then(|()| contents_of.flush()) {
                Ok(()) => ledger.done(Book::Contents, next),
                Err(error) => ledger.failed(Book::Contents, next, &error.to_string()),
            }
        }
        std::thread::sleep(std::time::Duration::from_micros(rng.within(0..=8000)));
    }
}
