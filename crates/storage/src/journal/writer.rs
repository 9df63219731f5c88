//! The thread that writes chunks, so that nobody who appends one waits for the disk.

use std::fs;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::{Place, Shared, WAITING_MAX, chunk};
use crate::error::StorageError;
use crate::files;

/// What there is to do, in order.
pub(super) enum Order {
    /// Write the chunk with this first index.
    Write(u64),
    /// Make all that is written durable, and answer.
    Sync(SyncSender<bool>),
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    orders: Receiver<Order>,
}

impl Writer {
    pub(super) fn start(shared: Arc<Shared>) -> Result<(SyncSender<Order>, JoinHandle<()>), StorageError> {
        let (sender, orders) = sync_channel(WAITING_MAX);
        let writer = Writer { shared, orders };
        let thread = std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || writer.run())
            .map_err(StorageError::io("start the journal's thread"))?;
        Ok((sender, thread))
    }

    fn run(self) {
        for order in self.orders {
            match order {
                Order::Write(first) => write(&self.shared, first),
                Order::Sync(done) => {
                    let named = sync(&self.shared);
                    let mut state = self.shared.state.lock();
                    let lost = state.lost > state.lost_before;
                    state.lost_before = state.lost;
                    drop(state);
                    // Whoever asked may be gone.
                    let _ = done.send(named && !lost);
                }
            }
        }
    }
}

fn write(shared: &Shared, first: u64) {
    let Some(chunk) = shared.state.lock().chunks.get(&first).cloned() else {
        return;
    };
    let Place::Memory(body) = &chunk.place else { return };
    match chunk::write(&shared.path(&chunk), shared.node, &chunk.coverage, body) {
        Ok(()) => {
            if let Some(chunk) = shared.state.lock().chunks.get_mut(&first) {
                chunk.place = Place::Written;
            }
            shared.succeeded();
            shared.prune();
        }
        Err(error) => shared.lose(first, &error),
    }
}

/// Answers whether the names are durable. In order, so that what is durable after a crash has no hole that the log could not fill.
fn sync(shared: &Shared) -> bool {
    let written: Vec<_> = {
        let state = shared.state.lock();
        let written = state
            .chunks
            .values()
            .filter(|chunk| matches!(chunk.place, Place::Written));
        written.cloned().collect()
    };
    for chunk in written {
        let first = chunk.coverage.first;
        let mut durable = chunk.clone();
        durable.place = Place::Durable;
        let (from, to) = (shared.path(&chunk), shared.path(&durable));
        let named = files::sync(&from).and_then(|()| {
            fs::rename(&from, &to).map_err(StorageError::io(format!("rename {}", from.display())))
        });
        match named {
            Ok(()) => {
                if let Some(chunk) = shared.state.lock().chunks.get_mut(&first) {
                    chunk.place = Place::Durable;
                }
            }
            // Pruned or discarded meanwhile, if it is not listed any more.
            Err(_) if !shared.state.lock().chunks.contains_key(&first) => {}
            Err(error) => shared.lose(first, &error),
        }
    }
    let named = files::sync(&shared.dir);
    if let Err(error) = &named {
        shared.failed("make the journal durable", error);
    }
    named.is_ok()
}
