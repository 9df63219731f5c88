//! The snapshots' book: each order writes an image and makes it the current one, or gives up half-way.

use std::sync::Arc;

use bytes::Bytes;
use quorate_storage::{SnapshotInfo, StorageError, Store};

use crate::ledger::{Book, Facts, Ledger};
use crate::{Rng, filled, stamp_of};

/// Bytes of an image that are given to its writer at a time.
const PIECE: u64 = 50_000;

/// The image of an order: its pieces, the last one shorter.
fn pieces(order: u64, bytes: u64) -> impl Iterator<Item = Vec<u8>> {
    (0..bytes.div_ceil(PIECE)).map(move |piece| {
        let len = PIECE.min(bytes - piece * PIECE).max(24);
        filled(order, piece, len as usize)
    })
}

/// Checks that the current image is the last acknowledged one or a later one, whole.
pub(crate) fn check(store: &Store, facts: &Facts, ledger: &Ledger) -> Result<(), String> {
    let adopted = facts.adopted.as_deref().and_then(|words| words.parse().ok());
    let image_of = |(number, words): &(u64, String)| words.strip_prefix("image ").map(|_| *number);
    let images = facts.orders.iter().filter_map(image_of);
    // An image that could not be begun does not end the workload: orders after a failed one can be done.
    let over = |number: &u64| {
        facts.orders[..facts.done]
            .iter()
            .any(|(order, _)| order == number)
    };
    let acknowledged = images
        .clone()
        .rfind(|number| over(number) && !facts.failed.contains(number))
        .or(adopted);
    let candidates: Vec<u64> = images
        .filter(|number| !over(number) || facts.failed.contains(number))
        .filter(|number| acknowledged.is_none_or(|acknowledged| acknowledged < *number))
        .chain(acknowledged)
        .collect();

    let current = store.snapshots.current();
    let found = match &current {
        None => None,
        Some(info) => Some(read(store, info)?),
    };
    match found {
        None if acknowledged.is_none() => {}
        Some(order) if candidates.contains(&order) => {}
        _ => {
            return Err(format!(
                "the current image is that of order {found:?}; acknowledged was {acknowledged:?}, possible are {candidates:?}"
            ));
        }
    }
    ledger.adopt(
        Book::Snapshots,
        &found.map_or("-".into(), |order| order.to_string()),
    );
    Ok(())
}

/// Reads an image to its end, and returns the order that wrote it.
fn read(store: &Store, info: &SnapshotInfo) -> Result<u64, String> {
    let (order, bytes) = stamp_of(&info.meta).ok_or("the meta of the image is not one that was written")?;
    let reader = store
        .snapshots
        .read(info)
        .map_err(|error| format!("open image {order}: {error}"))?;
    let mut found = Vec::new();
    for piece in reader {
        found.extend_from_slice(&piece.map_err(|error| format!("read image {order}: {error}"))?);
    }
    let whole = found == pieces(order, bytes).flatten().collect::<Vec<u8>>();
    if whole {
        Ok(order)
    } else {
        Err(format!("image {order} is not what was written"))
    }
}

/// Gives orders for ever, one at a time.
pub(crate) fn work(store: &Store, next: u64, ledger: &Arc<Ledger>, rng: &mut Rng) {
    for order in next.. {
        let bytes = if rng.chance(20) {
            rng.within(0..=100)
        } else {
            rng.within(1000..=3_000_000)
        };
        let gives_up = rng.chance(20);
        // A reader keeps the replaced image alive for a while.
        let current = store.snapshots.current().filter(|_| rng.chance(30));
        let reader = current.map(|info| store.snapshots.read(&info));
        ledger.order(
            Book::Snapshots,
            order,
            &format!("{} {bytes}", if gives_up { "half" } else { "image" }),
        );
        match write(store, order, bytes, gives_up, rng.chance(50)) {
            Ok(()) => ledger.done(Book::Snapshots, order),
            Err(error) => ledger.failed(Book::Snapshots, order, &error.to_string()),
        }
        if let Some(Err(error)) = reader {
            ledger.failed(Book::Snapshots, order, &format!("read the image before: {error}"));
        }
        std::thread::sleep(std::time::Duration::from_micros(rng.within(0..=20_000)));
    }
}

fn write(store: &Store, order: u64, bytes: u64, gives_up: bool, throttled: bool) -> Result<(), StorageError> {
    let mut writer = store.snapshots.create()?;
    if !throttled {
        writer = writer.unthrottled();
    }
    let count = pieces(order, bytes).count();
    for piece in pieces(order, bytes).take(if gives_up { count / 2 } else { count }) {
        writer.write(&piece)?;
    }
    if !gives_up {
        writer.finish(Bytes::from(filled(order, bytes, 64)))?;
    }
    Ok(())
}
