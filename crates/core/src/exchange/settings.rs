//! Settings of an exchange: defaults, bounds, and how two of them differ.

use crate::command::{Binding, ExchangeKind, ExchangeSettings, ExchangeSettingsPatch};
use crate::dedup::Span;
use crate::ids::Millis;
use crate::limits;
use crate::outcome::Rejection;
use crate::queue::{differences, invalid};

impl Default for ExchangeSettings {
    fn default() -> Self {
        Self {
            alternate: None,
            dedup_window: Millis(0),
            dedup_count_max: 100_000,
        }
    }
}

impl ExchangeSettings {
    /// These settings, with what the patch sets.
    #[must_use]
    pub fn patched(&self, patch: &ExchangeSettingsPatch) -> Self {
        Self {
            alternate: patch.alternate.clone().unwrap_or_else(|| self.alternate.clone()),
            dedup_window: patch.dedup_window.unwrap_or(self.dedup_window),
            dedup_count_max: patch.dedup_count_max.unwrap_or(self.dedup_count_max),
        }
    }

    /// `field: is X, asked Y` for each field in which `asked` is another. Fields
    /// are called as in the public API.
    #[must_use]
    pub fn differing(&self, asked: &Self) -> Vec<String> {
        differences(self.fields(), asked.fields())
    }

    fn fields(&self) -> [(&'static str, String); 3] {
        let alternate = self.alternate.as_ref();
        [
            (
                "alternate_exchange",
                alternate.map_or_else(|| "none".to_owned(), ToString::to_string),
            ),
            ("dedup_window_ms", self.dedup_window.0.to_string()),
            ("dedup_max_ids", self.dedup_count_max.to_string()),
        ]
    }

    /// Every field is within its bounds.
    pub(crate) fn check(&self) -> Result<(), Rejection> {
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

impl ExchangeKind {
    /// As in the public API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Fanout => "fanout",
            Self::Topic => "topic",
            Self::Headers => "headers",
        }
    }
}

impl Binding {
    /// Every field is within its bounds.
    pub(crate) fn check(&self) -> Result<(), Rejection> {
        check_routing_key("routing_key", &self.routing_key)?;
        let Some(wanted) = &self.headers else {
            return Ok(());
        };
        if wanted.headers.len() > limits::BINDING_HEADERS_MAX {
            let (max, count) = (limits::BINDING_HEADERS_MAX, wanted.headers.len());
            return Err(invalid("headers", format!("at most {max}, not {count}")));
        }
        let bytes =
            |(name, value): (&String, &Option<String>)| name.len() + value.as_ref().map_or(0, String::len);
        let bytes: usize = wanted.headers.iter().map(bytes).sum();
        check_header_bytes(bytes)
    }
}

/// A routing key is within its bound.
pub(crate) fn check_routing_key(field: &str, key: &str) -> Result<(), Rejection> {
    if key.len() > limits::ROUTING_KEY_BYTES_MAX {
        let (max, bytes) = (limits::ROUTING_KEY_BYTES_MAX, key.len());
        return Err(invalid(field, format!("at most {max} bytes, not {bytes}")));
    }
    Ok(())
}

/// Headers, names and values together, are within their bound.
pub(crate) fn check_header_bytes(bytes: usize) -> Result<(), Rejection> {
    if bytes > limits::HEADER_BYTES_MAX {
        let max = limits::HEADER_BYTES_MAX;
        return Err(invalid("headers", format!("at most {max} bytes, not {bytes}")));
    }
    Ok(())
}
