//! Which databases of volumes are open.
//!
//! sled keeps up to a whole volume in memory for each database that is open, whatever the capacity of its page cache: it
//! looks for pages to evict only after 64 accesses in one of 256 places. So volumes that are not the newest are opened when they
//! are read, and stay open while what they hold is within bounds.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::engine::{Engine, SpaceName};
use crate::error::OpenError;
use crate::medium::Medium;

/// So many stay open in any case: who reads in order is at the end of one and the beginning of the next.
const OPEN_MIN: usize = 2;
/// What an open database takes beside what it holds, about.
const OPEN_BYTES: u64 = 4 << 20;

/// The databases that may be closed and are open.
pub(super) struct Shelf {
    /// Each with the bytes it takes, the most recently used one at the back.
    open: Mutex<VecDeque<(Arc<Slot>, u64)>>,
    /// Bytes that all of them may take; the least recently used ones go first.
    bytes_max: u64,
}

/// One database, open or not.
pub(super) struct Slot {
    medium: Arc<dyn Medium>,
    path: PathBuf,
    spaces: &'static [SpaceName],
    cache_bytes: u64,
    engine: Mutex<Open>,
}

struct Open {
    /// Keeps it open.
    kept: Option<Arc<dyn Engine>>,
    /// It is open as long as anybody uses it, and cannot be opened twice.
    used: Weak<dyn Engine>,
}

impl Slot {
    /// Opens a database, or creates it.
    pub(super) fn open(
        medium: &Arc<dyn Medium>,
        path: PathBuf,
        spaces: &'static [SpaceName],
        cache_bytes: u64,
    ) -> Result<Arc<Slot>, OpenError> {
        let engine = medium.open(&path, spaces, cache_bytes)?;
        Ok(Arc::new(Slot {
            medium: Arc::clone(medium),
            path,
            spaces,
            cache_bytes,
            engine: Mutex::new(Open {
                used: Arc::downgrade(&engine),
                kept: Some(engine),
            }),
        }))
    }

    /// The database, opened again if it was closed.
    pub(super) fn engine(&self) -> Result<Arc<dyn Engine>, OpenError> {
        let mut open = self.engine.lock();
        if let Some(engine) = &open.kept {
            return Ok(Arc::clone(engine));
        }
        let engine = match open.used.upgrade() {
            Some(engine) => engine,
            None => self.medium.open(&self.path, self.spaces, self.cache_bytes)?,
        };
        *open = Open {
            used: Arc::downgrade(&engine),
            kept: Some(Arc::clone(&engine)),
        };
        Ok(engine)
    }

    /// Has it closed when nobody uses it any more.
    pub(super) fn close(&self) {
        let engine = self.engine.lock().kept.take();
        drop(engine);
    }
}

impl Shelf {
    pub(super) fn new(bytes_max: u64) -> Self {
        Shelf {
            open: Mutex::default(),
            bytes_max,
        }
    }

    /// Notes that a database that holds so many bytes is used, and may be closed later; closes what is too much.
    pub(super) fn used(&self, slot: &Arc<Slot>, bytes: u64) {
        let mut closed = Vec::new();
        {
            let mut open = self.open.lock();
            if open.back().is_some_and(|(last, _)| Arc::ptr_eq(last, slot)) {
                return;
            }
            open.retain(|(other, _)| !Arc::ptr_eq(other, slot));
            open.push_back((Arc::clone(slot), bytes + OPEN_BYTES));
            let mut total: u64 = open.iter().map(|(_, bytes)| bytes).sum();
            while total > self.bytes_max
                && open.len() > OPEN_MIN
                && let Some((slot, bytes)) = open.pop_front()
            {
                total -= bytes;
                closed.push(slot);
            }
        }
        for slot in closed {
            slot.close();
        }
    }

    /// Forgets and closes a database.
    pub(super) fn forget(&self, slot: &Arc<Slot>) {
        self.open.lock().retain(|(other, _)| !Arc::ptr_eq(other, slot));
        slot.close();
    }
}
