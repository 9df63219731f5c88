//! The writer without a thread, for simulations.
//!
//! A group takes two steps: its writes, and its flush with the answers. A simulator lets its idea of a
//! disk's latency pass between them, and a crash there loses any part of what was written.

use parking_lot::Mutex;

use super::writer::{Work, Writer, Written};

/// What a step did, and so what to wait for before the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is nothing to do until the waker is called.
    Idle,
    /// A group was written. The next step flushes it and calls back: let a disk's latency pass first.
    Written,
    /// A group was flushed, and its callbacks were called. There may be more to do at once.
    Flushed,
    /// Some purged entries were removed. There may be more to do at once.
    Purged,
}

/// Carries out the orders of one log when it is called.
pub(crate) struct Steps {
    slot: Mutex<Slot>,
    waker: Box<dyn Fn() + Send + Sync>,
}

enum Slot {
    /// Not begun, or ended.
    Empty,
    Ready(Writer),
    Writing(Writer, Written),
    /// A step is under way, so this call comes from a callback in it.
    Taken,
}

impl Steps {
    /// For a log that is yet to be started. `waker` is called for each order, with the log's lock held: it must
    /// not call into the store.
    pub(crate) fn new(waker: Box<dyn Fn() + Send + Sync>) -> Self {
        Steps {
            slot: Mutex::new(Slot::Empty),
            waker,
        }
    }

    pub(super) fn begin(&self, writer: Writer) {
        *self.slot.lock() = Slot::Ready(writer);
        // A purge may be left from an earlier run.
        self.wake();
    }

    pub(super) fn wake(&self) {
        (self.waker)();
    }

    /// Does the next thing. Callbacks run in here; one that calls this gets `Idle`.
    pub(crate) fn step(&self) -> Step {
        // Not locked while a callback runs.
        let slot = std::mem::replace(&mut *self.slot.lock(), Slot::Taken);
        let (slot, step) = match slot {
            Slot::Ready(writer) => next(writer),
            Slot::Writing(mut writer, written) => {
                writer.flush(written);
                writer.purge_some();
                (Slot::Ready(writer), Step::Flushed)
            }
            same @ (Slot::Empty | Slot::Taken) => (same, Step::Idle),
        };
        *self.slot.lock() = slot;
        step
    }

    /// Carries out all that waits, for a caller that waits for it.
    pub(super) fn hurry(&self) {
        assert!(
            !matches!(*self.slot.lock(), Slot::Taken),
            "a callback of the log must not wait for the log"
        );
        while self.step() != Step::Idle {}
    }

    /// Carries out what was ordered before the log was closed. Called by a callback it leaves that to the step in
    /// which it is.
    pub(super) fn end(&self) {
        while self.step() != Step::Idle {}
    }
}

fn next(mut writer: Writer) -> (Slot, Step) {
    let work = {
        let shared = std::sync::Arc::clone(&writer.shared);
        let mut state = shared.state.lock();
        writer.waiting(&mut state)
    };
    match work {
        None => (Slot::Ready(writer), Step::Idle),
        Some(Work::Commit(group)) => {
            let written = writer.write(group);
            (Slot::Writing(writer, written), Step::Written)
        }
        Some(Work::Purge) => {
            writer.purge_some();
            (Slot::Ready(writer), Step::Purged)
        }
        Some(Work::Stop(closing)) => {
            writer.end(closing);
            (Slot::Empty, Step::Idle)
        }
    }
}
