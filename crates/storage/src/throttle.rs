//! A ceiling for background writing.

use std::time::{Duration, Instant};

/// Time not used is forgotten beyond this, so that a slow source is not followed by a burst.
const CREDIT: Duration = Duration::from_millis(100);

/// Sleeps so that bytes are spent no faster than a rate.
pub(crate) struct Throttle {
    bytes_per_second: Option<u64>,
    /// When the bytes spent so far are paid for.
    paid: Instant,
}

impl Throttle {
    pub(crate) fn new(bytes_per_second: Option<u64>) -> Self {
        Throttle {
            bytes_per_second: bytes_per_second.filter(|rate| *rate > 0),
            paid: Instant::now(),
        }
    }

    /// Spends some bytes, and sleeps if that was too fast.
    pub(crate) fn spend(&mut self, bytes: usize) {
        let Some(rate) = self.bytes_per_second else { return };
        let now = Instant::now();
        let oldest = now.checked_sub(CREDIT).unwrap_or(now);
        self.paid = self.paid.max(oldest) + Duration::from_secs_f64(bytes as f64 / rate as f64);
        let ahead = self.paid.saturating_duration_since(now);
        if ahead > Duration::from_millis(1) {
            std::thread::sleep(ahead);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_megabyte_at_ten_per_second_takes_a_tenth() {
        let start = Instant::now();
        let mut throttle = Throttle::new(Some(10 << 20));
        for _ in 0..64 {
            throttle.spend(32 << 10);
        }
        assert!(
            start.elapsed() > Duration::from_millis(80),
            "{:?}",
            start.elapsed()
        );
        let start = Instant::now();
        Throttle::new(None).spend(usize::MAX);
        assert!(start.elapsed() < Duration::from_secs(1));
    }
}
