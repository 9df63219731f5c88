//! The maximum length of a queue that rejects.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Finding, Violation};
use crate::history::QUEUE_FULL;
use crate::view::Counts;

/// What a publisher was told when its message was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turned {
    /// Why; None if the broker did not say no.
    pub reason: Option<String>,
    /// Whether to try again.
    pub retryable: bool,
    /// And when.
    pub retry_after: Option<Duration>,
}

/// No look at the queue showed more than `max` messages that are ready, delayed
/// or leased.
#[must_use]
pub fn never_above(max: u64, looks: &[Counts]) -> Vec<Violation> {
    let mut finding = Finding::new("a queue is never longer than its limit");
    for counts in looks {
        let length = counts.ready + counts.delayed + counts.leased;
        if length > max {
            finding.add(format!("{length} messages, {max} are allowed: {counts:?}"));
        }
    }
    finding.0
}

/// Who was turned away was told that the queue is full, and when to come again.
#[must_use]
pub fn refusals_are_typed(turned: &[Turned]) -> Vec<Violation> {
    let mut finding = Finding::new("a full queue says that it is full and when to try again");
    for one in turned {
        let advice = one.retry_after.is_some_and(|after| !after.is_zero());
        if one.reason.as_deref() != Some(QUEUE_FULL) || !one.retryable || !advice {
            finding.add(format!("{one:?}"));
        }
    }
    finding.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_too_many_is_seen_in_any_state() {
        let counts = |ready, delayed, leased| Counts {
            ready,
            delayed,
            leased,
            dead: 7,
            ..Counts::default()
        };
        assert_eq!(never_above(10, &[counts(8, 1, 1), counts(0, 0, 0)]), []);
        for long in [
            counts(11, 0, 0),
            counts(0, 11, 0),
            counts(0, 0, 11),
            counts(4, 4, 3),
        ] {
            assert_eq!(never_above(10, &[long]).len(), 1);
        }
    }

    #[test]
    fn a_refusal_needs_a_reason_and_advice() {
        let good = Turned {
            reason: Some(QUEUE_FULL.to_owned()),
            retryable: true,
            retry_after: Some(Duration::from_millis(50)),
        };
        assert_eq!(refusals_are_typed(std::slice::from_ref(&good)), []);
        let unnamed = Turned {
            reason: Some("LIMIT_EXCEEDED".to_owned()),
            ..good.clone()
        };
        let timeout = Turned {
            reason: None,
            ..good.clone()
        };
        let hopeless = Turned {
            retryable: false,
            ..good.clone()
        };
        let clueless = Turned {
            retry_after: None,
            ..good
        };
        for bad in [unnamed, timeout, hopeless, clueless] {
            assert_eq!(refusals_are_typed(std::slice::from_ref(&bad)).len(), 1, "{bad:?}");
        }
    }
}
