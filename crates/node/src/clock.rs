//! Cluster time, as a leader stamps it.
//!
//! Within a leadership the stamp is a base plus what has passed on the node's monotonic
//! clock, so a jump of the wall clock is not seen. The base is the later of the
//! last applied stamp and the lower median of the wall clocks of a quorum: one
//! node with a wrong clock cannot expire everybody's messages when it comes to
//! lead. Of two samples the lower counts, since expiring late is safe and
//! expiring early is not.

use parking_lot::Mutex;
use quorate_core::ids::{Millis, Timestamp};
use quorate_raft::Clock;
use tokio::time::Instant;

/// The clock of this node's leadership; stopped while it does not lead.
#[derive(Debug, Default)]
pub(crate) struct ClusterClock {
    own: Clock,
    running: Mutex<Option<Running>>,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    base: Timestamp,
    since: Instant,
}

impl ClusterClock {
    /// That goes as this node's clock does; stopped.
    pub(crate) fn new(own: Clock) -> Self {
        Self {
            own,
            running: Mutex::default(),
        }
    }

    /// Starts at a base.
    pub(crate) fn start(&self, base: Timestamp) {
        *self.running.lock() = Some(Running {
            base,
            since: self.own.now(),
        });
    }

    /// The leadership is over.
    pub(crate) fn stop(&self) {
        *self.running.lock() = None;
    }

    /// None while this node does not lead.
    pub(crate) fn now(&self) -> Option<Timestamp> {
        let running = *self.running.lock();
        running.map(|Running { base, since }| {
            let passed = self.own.now().saturating_duration_since(since).as_millis();
            base.after(Millis(u64::try_from(passed).unwrap_or(u64::MAX)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn goes_as_fast_as_the_nodes_own_clock_whatever_the_wall_clock_shows() {
        let own = Clock::starting_at(5_000_000);
        let clock = ClusterClock::new(own.clone());
        clock.start(Timestamp(1_000));
        own.set_rate(1.5);
        own.set_offset_ms(-4_000_000);
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        assert_eq!(clock.now(), Some(Timestamp(4_000)));
    }

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
