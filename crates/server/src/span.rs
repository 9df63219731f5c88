//! Durations as people write them: `150ms`, `1m 30s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A duration, written `75ms` or `1m 30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Span(pub(crate) Duration);

impl FromStr for Span {
    type Err = humantime::DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        humantime::parse_duration(text).map(Self)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl TryFrom<String> for Span {
    type Error = humantime::DurationError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        span.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_as_they_are_written() {
        for (text, ms) in [("75ms", 75), ("1m 30s", 90_000)] {
            assert_eq!(text.parse(), Ok(Span(Duration::from_millis(ms))));
            assert_eq!(Span(Duration::from_millis(ms)).to_string(), text);
        }
        assert!("75".parse::<Span>().is_err());
    }
}
