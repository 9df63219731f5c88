//! Pauses that grow, with jitter, so that many clients do not come back at once.

use std::time::Duration;

use crate::config::Config;
use crate::random::Random;

#[derive(Debug)]
pub(crate) struct Backoff {
    initial: Duration,
    max: Duration,
    next: Duration,
    random: Random,
}

impl Backoff {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            initial: config.backoff_initial,
            max: config.backoff_max,
            next: config.backoff_initial,
            random: config.random.clone(),
        }
    }

    /// The next pause: between half and all of a span that doubles each time.
    pub(crate) fn pause(&mut self) -> Duration {
        let span = self.next;
        self.next = (span * 2).min(self.max);
        span.mul_f64(self.random.jitter())
    }

    /// Something went well: start over.
    pub(crate) fn reset(&mut self) {
        self.next = self.initial;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_its_maximum_and_starts_over() {
        let config = Config::default();
        let mut backoff = Backoff::new(&config);
        for _ in 0..20 {
            assert!(backoff.pause() <= config.backoff_max);
        }
        assert!(backoff.pause() >= config.backoff_max / 2);
        backoff.reset();
        assert!(backoff.pause() <= config.backoff_initial);
    }
}
