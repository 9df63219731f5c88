//! The maximum length of a queue that rejects.

use std::time::Duration;

use quorate_client::{Error, QueueCounts, Reason};

use super::{Finding, Violation};

/// What a publisher was told when its message was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turned {
    /// Why; None if the broker did not say no.
    pub reason: Option<Reason>,
    /// Whether to try again.
    pub retryable: bool,
    /// And when.
    pub retry_after: Option<Duration>,
}

impl Turned {
    /// What the error says.
    #[must_use]
    pub fn away(error: &Error) -> Self {
        Self {
            reason: error.reason(),
            retryable: error.is_retryable(),
            retry_after: error.refusal().and_then(|refusal| refusal.retry_after),
        }
    }
}

/// No look at the queue showed more than `max` messages that are ready, delayed
/// or leased.
#[must_use]
pub fn never_above(max: u64, looks: &[QueueCounts]) -> Vec<Violation> {
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
        if one.reason != Some(Reason::QueueFull) || !one.retryable || !advice {
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
        let counts = |ready, delayed, leased| QueueCounts {
            ready,
            delayed,
            leased,
            dead: 7,
            ..QueueCounts::default()
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
            reason: Some(Reason::QueueFull),
            retryable: true,
            retry_after: Some(Duration::from_millis(50)),
        };
        assert_eq!(refusals_are_typed(std::slice::from_ref(&good)), []);
        let unnamed = Turned {
            reason: Some(Reason::LimitExceeded),
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
