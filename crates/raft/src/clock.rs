//! [`Clock`]: the time as one node sees it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::time::Instant;

/// The clocks of one node. Cheap to clone: all clones are the same clocks.
///
/// By default they are the machine's. [Virtual](Clock::starting_at) ones follow Tokio's time, which a test may pause, and can
/// be set wrong while the node runs. Waiting is Tokio's business either way: sleep for a [span](Clock::until), not
/// until an instant of this clock.
#[derive(Clone, Default)]
pub struct Clock {
    shared: Option<Arc<Mutex<Virtual>>>,
}

/// A clock that has run at `rate` since `real`, when it showed `shown`.
struct Virtual {
    real: Instant,
    shown: Instant,
    rate: f64,
    /// What the wall clock showed at the instant `origin` of this clock, milliseconds since the Unix epoch.
    origin: Instant,
    origin_ms: u64,
    offset_ms: i64,
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.shared {
            None => f.write_str("Clock(system)"),
            Some(shared) => {
                let (rate, offset_ms) = {
                    let clock = shared.lock();
                    (clock.rate, clock.offset_ms)
                };
                write!(f, "Clock(rate {rate}, {offset_ms} ms off)")
            }
        }
    }
}

impl Clock {
    /// The machine's clocks.
    #[must_use]
    pub fn system() -> Self {
        Self::default()
    }

    /// Virtual clocks, whose wall clock shows `wall_ms` milliseconds since the Unix epoch now.
    #[must_use]
    pub fn starting_at(wall_ms: u64) -> Self {
        let now = Instant::now();
        Self {
            shared: Some(Arc::new(Mutex::new(Virtual {
                real: now,
                shown: now,
                rate: 1.0,
                origin: now,
                origin_ms: wall_ms,
                offset_ms: 0,
            }))),
        }
    }

    /// The monotonic clock. Compare its instants with each other only: it may run faster than Tokio's.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.shared
            .as_ref()
            .map_or_else(Instant::now, |shared| shared.lock().now())
    }

    /// How long to sleep until this clock shows `then`; zero if it has.
    #[must_use]
    pub fn until(&self, then: Instant) -> Duration {
        let Some(shared) = &self.shared else {
            return then.saturating_duration_since(Instant::now());
        };
        let clock = shared.lock();
        then.saturating_duration_since(clock.now()).div_f64(clock.rate)
    }

    /// The wall clock, milliseconds since the Unix epoch. It may jump.
    #[must_use]
    pub fn wall_ms(&self) -> u64 {
        let Some(shared) = &self.shared else {
            return SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
        };
        let clock = shared.lock();
        let since = clock.now().saturating_duration_since(clock.origin);
        let since_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        clock
            .origin_ms
            .saturating_add(since_ms)
            .saturating_add_signed(clock.offset_ms)
    }

    /// Sets the wall clock of virtual clocks so many milliseconds ahead of the right time, or behind it. The machine's
    /// are not touched.
    pub fn set_offset_ms(&self, offset_ms: i64) {
        if let Some(shared) = &self.shared {
            shared.lock().offset_ms = offset_ms;
        }
    }

    /// Has virtual clocks, both of them, run at a multiple of the right speed from now on: 1.01 gains ten milliseconds
    /// each second. The machine's are not touched.
    ///
    /// # Panics
    ///
    /// Unless it is a number between a thousandth and a thousand.
    pub fn set_rate(&self, rate: f64) {
        assert!(
            (0.001..=1_000.0).contains(&rate),
            "a clock does not run at {rate} times the right speed"
        );
        if let Some(shared) = &self.shared {
            let mut clock = shared.lock();
            (clock.shown, clock.real) = (clock.now(), Instant::now());
            clock.rate = rate;
        }
    }
}

impl Virtual {
    fn now(&self) -> Instant {
        self.shown + self.real.elapsed().mul_f64(self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_virtual_clock_follows_tokios_and_can_be_set_wrong() {
        let clock = Clock::starting_at(1_000);
        let (start, second) = (clock.now(), Duration::from_secs(1));
        tokio::time::sleep(second).await;
        assert_eq!(clock.wall_ms(), 2_000);
        clock.set_offset_ms(-500);
        assert_eq!(clock.wall_ms(), 1_500);
        assert_eq!(clock.now() - start, second, "an offset is the wall clock's");
        clock.set_rate(2.0);
        tokio::time::sleep(second).await;
        assert_eq!(clock.now() - start, 3 * second);
        assert_eq!(clock.wall_ms(), 3_500);
        assert_eq!(clock.until(clock.now() + second), second / 2);
        clock.set_rate(1.0);
        assert_eq!(clock.now() - start, 3 * second, "it never goes back");
    }

    #[test]
    fn the_machines_clock_is_not_set() {
        let clock = Clock::system();
        let before = clock.wall_ms();
        clock.set_offset_ms(-1_000_000);
        assert!(clock.wall_ms() >= before && before > 1_700_000_000_000);
    }
}
