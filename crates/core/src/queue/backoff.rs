//! How long a failed message waits for its next attempt.

use xxhash_rust::xxh3::xxh3_64;

use crate::command::Settings;
use crate::ids::{MessageId, Millis};

/// The delay after that many failures: `backoff_initial`, doubled for each
/// failure after the first, at most `backoff_max`, less up to a quarter.
///
/// The quarter spreads messages that failed together. It is derived from the
/// message's id and the number of failures, so that all nodes find the same.
pub(crate) fn backoff(settings: &Settings, message: MessageId, failures: u32) -> Millis {
    let doublings = failures.saturating_sub(1);
    let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
    let delay = settings
        .backoff_initial
        .0
        .saturating_mul(factor)
        .min(settings.backoff_max.0);
    let mut seed = [0; 16];
    seed[..8].copy_from_slice(&message.index.to_le_bytes());
    seed[8..12].copy_from_slice(&message.number.to_le_bytes());
    seed[12..].copy_from_slice(&failures.to_le_bytes());
    Millis(delay - xxh3_64(&seed) % (delay / 4 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(initial: u64, max: u64, number: u32) -> Vec<u64> {
        let settings = Settings {
            backoff_initial: Millis(initial),
            backoff_max: Millis(max),
            ..Settings::default()
        };
        let message = MessageId { index: 7, number };
        (1..80)
            .map(|failures| backoff(&settings, message, failures).0)
            .collect()
    }

    #[test]
    fn doubles_up_to_its_cap_less_at_most_a_quarter() {
        for (n, delay) in delays(1_000, 60_000, 0).into_iter().enumerate() {
            let whole = (1_000 << n.min(20)).min(60_000);
            assert!(
                delay <= whole && delay >= whole * 3 / 4,
                "failure {}: {delay}",
                n + 1
            );
        }
    }

    #[test]
    fn spreads_messages_that_failed_together() {
        assert_ne!(delays(1_000, 60_000, 0), delays(1_000, 60_000, 1));
    }

    #[test]
    fn is_nothing_by_default_and_never_above_its_cap() {
        assert!(delays(0, 60_000, 0).iter().all(|delay| *delay == 0));
        assert!(delays(5_000, 10, 0).iter().all(|delay| *delay <= 10));
    }
}
