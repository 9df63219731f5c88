//! Settings of a queue: defaults, bounds, and how two of them differ.
//!
//! Fields are called here as in the public API, since their names end up in
//! rejections that people read.

use std::collections::BTreeMap;

use crate::command::{Overflow, Settings, SettingsPatch};
use crate::dedup::Span;
use crate::exchange::check_routing_key;
use crate::ids::Millis;
use crate::limits;
use crate::outcome::Rejection;

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease: Millis(30_000),
            deliveries_max: 5,
            dead_letter_queue: None,
            dead_letter_exchange: None,
            dead_letter_routing_key: None,
            length_max: 0,
            bytes_max: 0,
            overflow: Overflow::Reject,
            message_ttl: Millis(0),
            backoff_initial: Millis(0),
            backoff_max: Millis(60_000),
            priority_ageing: Millis(0),
            group_concurrency: 1,
            group_weights: BTreeMap::new(),
            single_active_consumer: false,
            dedup_window: Millis(5 * 60 * 1_000),
            dedup_count_max: 100_000,
        }
    }
}

impl Settings {
    /// These settings, with what the patch sets.
    #[must_use]
    pub fn patched(&self, patch: &SettingsPatch) -> Self {
        let mut settings = self.clone();
        macro_rules! take {
            ($($field:ident)*) => {
                $(if let Some(value) = &patch.$field {
                    settings.$field = value.clone();
                })*
            };
        }
        take! {
            lease deliveries_max dead_letter_queue dead_letter_exchange dead_letter_routing_key length_max
            bytes_max overflow message_ttl backoff_initial backoff_max priority_ageing group_concurrency
            group_weights single_active_consumer dedup_window dedup_count_max
        }
        settings
    }

    /// `field: is X, asked Y` for each field in which `asked` is another.
    #[must_use]
    pub fn differing(&self, asked: &Self) -> Vec<String> {
        differences(self.fields(), asked.fields())
    }

    fn fields(&self) -> [(&'static str, String); 17] {
        fn or_none<T: ToString>(value: Option<&T>) -> String {
            value.map_or_else(|| "none".to_owned(), T::to_string)
        }
        let weights = self.group_weights.iter();
        let weights: Vec<String> = weights
            .map(|(group, weight)| format!("{group}={weight}"))
            .collect();
        let overflow = match self.overflow {
            Overflow::Reject => "reject",
            Overflow::DropHead => "drop-head",
        };
        [
            ("lease_ms", self.lease.0.to_string()),
            ("max_deliveries", self.deliveries_max.to_string()),
            ("dead_letter_queue", or_none(self.dead_letter_queue.as_ref())),
            (
                "dead_letter_exchange",
                or_none(self.dead_letter_exchange.as_ref()),
            ),
            (
                "dead_letter_routing_key",
                or_none(self.dead_letter_routing_key.as_ref()),
            ),
            ("max_length", self.length_max.to_string()),
            ("max_bytes", self.bytes_max.to_string()),
            ("overflow", overflow.to_owned()),
            ("message_ttl_ms", self.message_ttl.0.to_string()),
            ("backoff_initial_ms", self.backoff_initial.0.to_string()),
            ("backoff_max_ms", self.backoff_max.0.to_string()),
            ("priority_ageing_ms", self.priority_ageing.0.to_string()),
            ("group_concurrency", self.group_concurrency.to_string()),
            ("group_weights", weights.join(" ")),
            ("single_active_consumer", self.single_active_consumer.to_string()),
            ("dedup_window_ms", self.dedup_window.0.to_string()),
            ("dedup_max_ids", self.dedup_count_max.to_string()),
        ]
    }

    /// Dead letters leave the queue, if they can.
    pub(crate) fn sends_dead_letters(&self) -> bool {
        self.dead_letter_queue.is_some() || self.dead_letter_exchange.is_some()
    }

    /// Every field is within its bounds.
    pub(crate) fn check(&self) -> Result<(), Rejection> {
        check_lease("lease_ms", Some(self.lease))?;
        if self.deliveries_max > limits::DELIVERIES_MAX {
            let problem = format!("0 to {}, not {}", limits::DELIVERIES_MAX, self.deliveries_max);
            return Err(invalid("max_deliveries", problem));
        }
        if self.dead_letter_queue.is_some() && self.dead_letter_exchange.is_some() {
            let problem = "not together with dead_letter_queue".to_owned();
            return Err(invalid("dead_letter_exchange", problem));
        }
        if let Some(key) = &self.dead_letter_routing_key {
            check_routing_key("dead_letter_routing_key", key)?;
        }
        check_span("message_ttl_ms", self.message_ttl)?;
        check_span("backoff_initial_ms", self.backoff_initial)?;
        check_span("backoff_max_ms", self.backoff_max)?;
        check_span("priority_ageing_ms", self.priority_ageing)?;
        if !(1..=limits::GROUP_CONCURRENCY_MAX).contains(&self.group_concurrency) {
            let (max, is) = (limits::GROUP_CONCURRENCY_MAX, self.group_concurrency);
            return Err(invalid("group_concurrency", format!("1 to {max}, not {is}")));
        }
        check_weights(&self.group_weights)?;
        self.dedup().check()
    }

    /// How long dedup ids are known.
    pub(crate) fn dedup(&self) -> Span {
        Span {
            time: self.dedup_window,
            count_max: self.dedup_count_max,
        }
    }
}

fn check_weights(weights: &BTreeMap<String, u32>) -> Result<(), Rejection> {
    const FIELD: &str = "group_weights";
    if weights.len() > limits::GROUP_WEIGHTS_MAX {
        let (max, is) = (limits::GROUP_WEIGHTS_MAX, weights.len());
        return Err(invalid(FIELD, format!("at most {max} groups, not {is}")));
    }
    for (group, weight) in weights {
        check_label(FIELD, group)?;
        if !(1..=limits::GROUP_WEIGHT_MAX).contains(weight) {
            let max = limits::GROUP_WEIGHT_MAX;
            return Err(invalid(FIELD, format!("1 to {max}, not {weight}, for {group:?}")));
        }
    }
    Ok(())
}

/// The name of a group, or a dedup id, is within its bound.
pub(crate) fn check_label(field: &str, label: &str) -> Result<(), Rejection> {
    if label.len() > limits::LABEL_BYTES_MAX {
        let (max, is) = (limits::LABEL_BYTES_MAX, label.len());
        return Err(invalid(field, format!("at most {max} bytes, not {is}")));
    }
    Ok(())
}

/// `field: is X, asked Y` for each field in which two lists of the same fields
/// are not alike.
pub(crate) fn differences<const N: usize>(
    is: [(&'static str, String); N],
    asked: [(&'static str, String); N],
) -> Vec<String> {
    is.into_iter()
        .zip(asked)
        .filter(|((_, is), (_, asked))| is != asked)
        .map(|((field, is), (_, asked))| format!("{field}: is {is}, asked {asked}"))
        .collect()
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
