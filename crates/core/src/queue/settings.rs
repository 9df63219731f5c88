//! Settings of a queue: defaults, bounds, and how two of them differ.
//!
//! Fields are called here as in the public API, since their names end up in
//! rejections that people read.

use crate::command::{Overflow, Settings, SettingsPatch};
use crate::ids::{Millis, QueueName};
use crate::limits;
use crate::outcome::Rejection;

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease: Millis(30_000),
            deliveries_max: 5,
            dead_letter_queue: None,
            length_max: 0,
            bytes_max: 0,
            overflow: Overflow::Reject,
            message_ttl: Millis(0),
            backoff_initial: Millis(0),
            backoff_max: Millis(60_000),
        }
    }
}

impl Settings {
    /// These settings, with what the patch sets.
    #[must_use]
    pub fn patched(&self, patch: &SettingsPatch) -> Self {
        Self {
            lease: patch.lease.unwrap_or(self.lease),
            deliveries_max: patch.deliveries_max.unwrap_or(self.deliveries_max),
            dead_letter_queue: match &patch.dead_letter_queue {
                Some(name) => name.clone(),
                None => self.dead_letter_queue.clone(),
            },
            length_max: patch.length_max.unwrap_or(self.length_max),
            bytes_max: patch.bytes_max.unwrap_or(self.bytes_max),
            overflow: patch.overflow.unwrap_or(self.overflow),
            message_ttl: patch.message_ttl.unwrap_or(self.message_ttl),
            backoff_initial: patch.backoff_initial.unwrap_or(self.backoff_initial),
            backoff_max: patch.backoff_max.unwrap_or(self.backoff_max),
        }
    }

    /// `field: is X, asked Y` for each field in which `asked` is another.
    #[must_use]
    pub fn differing(&self, asked: &Self) -> Vec<String> {
        let mine = self.fields();
        let theirs = asked.fields();
        mine.into_iter()
            .zip(theirs)
            .filter(|((_, is), (_, asked))| is != asked)
            .map(|((field, is), (_, asked))| format!("{field}: is {is}, asked {asked}"))
            .collect()
    }

    fn fields(&self) -> [(&'static str, String); 9] {
        let dead_letter_queue = self.dead_letter_queue.as_ref();
        let overflow = match self.overflow {
            Overflow::Reject => "reject",
            Overflow::DropHead => "drop-head",
        };
        [
            ("lease_ms", self.lease.0.to_string()),
            ("max_deliveries", self.deliveries_max.to_string()),
            (
                "dead_letter_queue",
                dead_letter_queue.map_or("none".to_owned(), QueueName::to_string),
            ),
            ("max_length", self.length_max.to_string()),
            ("max_bytes", self.bytes_max.to_string()),
            ("overflow", overflow.to_owned()),
            ("message_ttl_ms", self.message_ttl.0.to_string()),
            ("backoff_initial_ms", self.backoff_initial.0.to_string()),
            ("backoff_max_ms", self.backoff_max.0.to_string()),
        ]
    }

    /// Every field is within its bounds.
    pub(crate) fn check(&self) -> Result<(), Rejection> {
        check_lease("lease_ms", Some(self.lease))?;
        if self.deliveries_max > limits::DELIVERIES_MAX {
            let problem = format!("0 to {}, not {}", limits::DELIVERIES_MAX, self.deliveries_max);
            return Err(invalid("max_deliveries", problem));
        }
        check_span("message_ttl_ms", self.message_ttl)?;
        check_span("backoff_initial_ms", self.backoff_initial)?;
        check_span("backoff_max_ms", self.backoff_max)
    }
}

/// A lease, if one is given, is within its bounds.
pub(crate) fn check_lease(field: &str, lease: Option<Millis>) -> Result<(), Rejection> {
    match lease {
        Some(lease) if !(limits::LEASE_MIN..=limits::LEASE_MAX).contains(&lease) => {
            let (min, max) = (limits::LEASE_MIN.0, limits::LEASE_MAX.0);
            Err(invalid(
                field,
                format!("{min} to {max} ms (12 hours), not {}", lease.0),
            ))
        }
        _ => Ok(()),
    }
}

/// A delay or a life is within its bound.
pub(crate) fn check_span(field: &str, span: Millis) -> Result<(), Rejection> {
    if span > limits::SPAN_MAX {
        let problem = format!("at most {} ms (10 years), not {}", limits::SPAN_MAX.0, span.0);
        return Err(invalid(field, problem));
    }
    Ok(())
}

pub(crate) fn invalid(field: &str, problem: String) -> Rejection {
    Rejection::InvalidArgument {
        field: field.to_owned(),
        problem,
    }
}
