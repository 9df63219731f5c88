//! Cluster time, as a leader stamps it.
//!
//! Within a leadership the stamp is a base plus what has passed on the monotonic
//! clock, so a jump of the wall clock is not seen. The base is the later of the
//! last applied stamp and the lower median of the wall clocks of a quorum: one
//! node with a wrong clock cannot expire everybody's messages when it comes to
//! lead. Of two samples the lower counts, since expiring late is safe and
//! expiring early is not.

use std::time::Instant;

use parking_lot::Mutex;
use quorate_core::ids::{Millis, Timestamp};

/// The clock of this node's leadership; stopped while it does not lead.
#[derive(Debug, Default)]
pub(crate) struct ClusterClock(Mutex<Option<Running>>);

#[derive(Clone, Copy, Debug)]
struct Running {
    base: Timestamp,
    since: Instant,
}

impl ClusterClock {
    /// Starts at a base.
    pub(crate) fn start(&self, base: Timestamp) {
        *self.0.lock() = Some(Running {
            base,
            since: Instant::now(),
        });
    }

    /// The leadership is over.
    pub(crate) fn stop(&self) {
        *self.0.lock() = None;
    }

    /// None while this node does not lead.
    pub(crate) fn now(&self) -> Option<Timestamp> {
        let running = *self.0.lock();
        running.map(|Running { base, since }| {
            base.after(Millis(
                u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_from_its_base_and_stops() {
        let clock = ClusterClock::default();
        assert_eq!(clock.now(), None);
        clock.start(Timestamp(1_000));
        let first = clock.now().unwrap();
        assert!(first >= Timestamp(1_000));
        assert!(clock.now().unwrap() >= first);
        clock.stop();
        assert_eq!(clock.now(), None);
    }
}
