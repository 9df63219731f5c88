//! Names that the broker gives, in the text form that it gives them.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, Error, Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// A message as the log orders it: index of its entry, and its number there. Its text form is `index-number`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MessageId {
    /// Index of the log entry.
    pub index: u64,
    /// Number of the message in that entry.
    pub number: u32,
}

/// A request as its client numbers it. Its text form is `client-sequence`, both decimal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RequestId {
    /// A number that the client drew for its lifetime.
    pub client: u64,
    /// 1 for its first request, then one more for each.
    pub sequence: u64,
}

/// A lease. Its text form is `queue.position.attempt.fence`, all decimal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// Id of the queue.
    pub queue: u64,
    /// Place of the message in the queue.
    pub position: u64,
    /// From 1.
    pub attempt: u32,
    /// Grows with every lease of every message.
    pub fence: u64,
}

impl MessageId {
    /// Reads the text form `index-number`.
    ///
    /// # Errors
    ///
    /// When the text is of another form.
    pub fn parse(text: &str) -> Result<Self> {
        let parts = text.split_once('-').and_then(|(index, number)| {
            Some(Self {
                index: index.parse().ok()?,
                number: number.parse().ok()?,
            })
        });
        parts.with_context(|| format!("{text:?} is not a message id"))
    }

    /// Of a text that the broker gave.
    ///
    /// # Panics
    ///
    /// When it is not of that form.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self::parse(text).expect("the broker names messages by their place in the log")
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.index, self.number)
    }
}

impl FromStr for MessageId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut numbers = text.split('.').map(|number| number.parse::<u64>().ok());
        let mut number = || numbers.next().flatten();
        let token = (number(), number(), number(), number());
        let (Some(queue), Some(position), Some(attempt), Some(fence)) = token else {
            bail!("{text:?} is not a token");
        };
        ensure!(numbers.next().is_none(), "{text:?} is not a token");
        Ok(Self {
            queue,
            position,
            attempt: u32::try_from(attempt).with_context(|| format!("{text:?} is not a token"))?,
            fence,
        })
    }
}

impl TryFrom<String> for MessageId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}

impl From<MessageId> for String {
    fn from(id: MessageId) -> Self {
        id.to_string()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.client, self.sequence)
    }
}

impl FromStr for RequestId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = text.split_once('-').and_then(|(client, sequence)| {
            Some(Self {
                client: client.parse().ok()?,
                sequence: sequence.parse().ok()?,
            })
        });
        parts.with_context(|| format!("{text:?} is not a request id"))
    }
}

impl TryFrom<String> for RequestId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<RequestId> for String {
    fn from(id: RequestId) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_four_numbers() {
        let token: Token = "262144.3.2.17".parse().expect("it is a token");
        let expected = Token {
            queue: 262_144,
            position: 3,
            attempt: 2,
            fence: 17,
        };
        assert_eq!(token, expected);
        for bad in [
            "",
            "1.2.3",
            "1.2.3.4.5",
            "1.2.3.",
            "a.2.3.4",
            "1.2.4294967296.4",
            "-1.2.3.4",
        ] {
            assert!(bad.parse::<Token>().is_err(), "{bad}");
        }
    }
}
