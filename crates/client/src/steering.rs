//! What to do between a failed attempt and the next.

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::config::Config;
use crate::failure::Again;
use crate::links::Links;

/// Redirects that are followed at once. After that many in a row, nodes point
/// at each other, and the next attempt waits and asks all of them.
const REDIRECTS_MAX: u32 = 3;

/// Remembers how the attempts went.
#[derive(Debug)]
pub(crate) struct Steering {
    backoff: Backoff,
    redirects: u32,
}

impl Steering {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            backoff: Backoff::new(config),
            redirects: 0,
        }
    }

    /// An attempt at `address` failed: turns to another node if that is called
    /// for, and returns the pause before the next attempt.
    pub(crate) fn turn(&mut self, links: &Links, address: &str, again: &Again) -> Duration {
        if again.moved {
            links.lost(address);
        }
        if let Some(leader) = &again.leader
            && leader != address
            && self.redirects < REDIRECTS_MAX
        {
            self.redirects += 1;
            links.follow(leader);
            return Duration::ZERO;
        }
        self.redirects = 0;
        self.backoff.pause().max(again.after)
    }

    /// The pause before the next attempt if there was nobody to ask.
    pub(crate) fn pause(&mut self) -> Duration {
        self.backoff.pause()
    }

    /// An attempt went well.
    pub(crate) fn reset(&mut self) {
        self.backoff.reset();
        self.redirects = 0;
    }
}

/// Notices that a stream with requests under way has gone silent.
#[derive(Debug)]
pub(crate) struct Stall {
    heard: Instant,
    patience: Duration,
}

impl Stall {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            heard: Instant::now(),
            patience: config.attempt_timeout,
        }
    }

    /// An answer came, or there was nothing to answer.
    pub(crate) fn heard(&mut self) {
        self.heard = Instant::now();
    }

    /// Whether the stream at `address` has been silent for too long while
    /// another node leads. If the same node still leads, it is slow, and is
    /// given twice the time.
    pub(crate) async fn is_elsewhere(&mut self, links: &Links, address: &str) -> bool {
        if self.heard.elapsed() < self.patience {
            return false;
        }
        let elsewhere = links.rediscover().await.is_ok_and(|leader| leader != address);
        self.patience *= 2;
        self.heard();
        elsewhere
    }
}
