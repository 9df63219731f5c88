//! The journal's book: each order appends a chunk, and now and then all so far are made durable.

use std::collections::BTreeSet;
use std::sync::Arc;

use quorate_storage::{Coverage, Store};

use crate::ledger::{Book, Facts, Ledger};
use crate::{Rng, filled, stamp_of};

/// Log entries that an order covers.
const SPAN: u64 = 10;

fn coverage(order: u64) -> Coverage {
    Coverage {
        first: order * SPAN + 1,
        last: order * SPAN + SPAN,
        from_ms: order,
        until_ms: order,
        lowest: order,
    }
}

/// Checks that every chunk that was acknowledged is there, and that each chunk is whole.
pub(crate) fn check(store: &Store, facts: &Facts, ledger: &Ledger) -> Result<(), String> {
    let adopted = facts.adopted.as_deref().unwrap_or_default();
    let acknowledged = facts.orders[..facts.done]
        .iter()
        .map(|(order, _)| *order)
        .filter(|order| !facts.failed.contains(order));
    let expected: BTreeSet<u64> = adopted
        .split(',')
        .filter_map(|order| order.parse().ok())
        .chain(acknowledged)
        .collect();
    let mut found = BTreeSet::new();
    for chunk in store.journal.chunks() {
        let order = chunk.lowest;
        let body = store.journal.read(chunk.first);
        let stamp = body.as_deref().and_then(stamp_of);
        if chunk != coverage(order) || stamp != Some((order, 0)) {
            return Err(format!(
                "the journal's chunk {chunk:?} is not what was written, but {stamp:?}"
            ));
        }
        found.insert(order);
    }
    if let Some(missing) = expected.difference(&found).next() {
        return Err(format!(
            "chunk {missing} of the journal was acknowledged and is missing"
        ));
    }
    let stats = store.journal.stats();
    if stats.damaged > 0 {
        return Err(format!(
            "a power loss damaged durable chunks of the journal: {stats:?}"
        ));
    }
    let found: Vec<_> = found.iter().map(ToString::to_string).collect();
    ledger.adopt(Book::Journal, &found.join(","));
    Ok(())
}

/// Gives orders for ever.
pub(crate) fn work(store: &Store, next: u64, ledger: &Arc<Ledger>, rng: &mut Rng) {
    let mut waiting = Vec::new();
    for order in next.. {
        let bytes = rng.within(24..=60_000);
        ledger.order(Book::Journal, order, &bytes.to_string());
        let body = filled(order, 0, bytes as usize);
        if store.journal.append(coverage(order), body.into()) {
            waiting.push(order);
        } else {
            ledger.failed(Book::Journal, order, "the disk does not keep up");
        }
        if rng.chance(30) {
            if !store.journal.sync() {
                for order in &waiting {
                    ledger.failed(Book::Journal, *order, "not all is durable");
                }
            }
            waiting.clear();
            ledger.done(Book::Journal, order);
        }
        std::thread::sleep(std::time::Duration::from_micros(rng.within(0..=20_000)));
    }
}
