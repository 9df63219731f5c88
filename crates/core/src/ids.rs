//! Names, ids and times: every one a type of its own, parsed once at the door.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Cluster time: milliseconds since the Unix epoch, as stamped by a leader and
/// kept monotone by the state machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(pub u64);

/// A span of cluster time in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Millis(pub u64);

/// A name of one kind of thing. Checked also where it is decoded.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks and takes a name.
            ///
            /// # Errors
            ///
            /// If it is too long, empty, or not printable.
            pub fn new(name: &str) -> Result<Self, ParseError> {
                check_name($what, name)?;
                Ok(Self(name.into()))
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = ParseError;

            fn try_from(name: String) -> Result<Self, ParseError> {
                Self::new(&name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// Name of a queue: 1 to 255 bytes, printable (no control characters, no
    /// leading or trailing white space).
    QueueName, "a queue name"
}

name! {
    /// Name of an exchange; the same rules as for queues, and a space of names
    /// of its own.
    ExchangeName, "an exchange name"
}

/// One queue, among all that ever had its name: the log index of its declare
/// in the upper 48 bits, and the place of that command in the entry in the
/// lower 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QueueId(pub u64);

/// A message: the index of the log entry that published it, and its number
/// among the contents of that entry. Also the key of its content in storage.
/// Text form `index-number`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MessageId {
    /// Index of the log entry.
    pub index: u64,
    /// Number of the content in the entry, from 0.
    pub number: u32,
}

/// A client of the API for the purpose of safe retries: a random number that
/// the client drew. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientId(pub u64);

/// A session: what a consumer's leases hang on. A random number that the
/// client drew. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub u64);

/// A consumer, unique within its session (an AMQP connection has many, a
/// native stream has one).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ConsumerId(pub u32);

/// A node, by the random id in its own store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u64);

/// One life of a node's process. A restarted node has a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

/// Names one lease of one message. A settlement that names any other lease
/// than the current one is refused as stale.
///
/// Text form `queue.position.attempt.grant`, all decimal; clients treat it as
/// opaque.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Token {
    /// The queue that holds the message.
    pub queue: QueueId,
    /// Where in that queue.
    pub position: u64,
    /// Attempt number of the lease, from 1.
    pub attempt: u32,
    /// Counts every lease ever granted by this broker: strictly growing, so
    /// that a worker can use it as a fence in a store of its own.
    pub grant: u64,
}

/// Makes a mutating request safe to repeat (Raft dissertation, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RequestId {
    /// Who asks.
    pub client: ClientId,
    /// 1 for its first request, then one more for each.
    pub sequence: u64,
    /// The lowest sequence it still waits for. Outcomes below are forgotten.
    pub oldest_unanswered: u64,
}

/// Why a text is not a valid name or id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A name has a length outside 1 to 255 bytes.
    #[error("{0} has 1 to 255 bytes, this one has {1}")]
    NameLength(&'static str, usize),
    /// A name has a control character, or white space at an end.
    #[error("{0} has printable characters only and no white space at its ends: {1:?}")]
    NameCharacter(&'static str, String),
    /// A token or message id is not of its text form.
    #[error("{text:?} is not {what}")]
    Malformed {
        /// What was expected.
        what: &'static str,
        /// What came, or how it begins.
        text: String,
    },
}

/// The longest name in bytes.
pub const NAME_BYTES_MAX: usize = 255;

fn check_name(what: &'static str, name: &str) -> Result<(), ParseError> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(ParseError::NameLength(what, name.len()));
    }
    if name.chars().any(char::is_control) || name.trim() != name {
        return Err(ParseError::NameCharacter(what, name.to_owned()));
    }
    Ok(())
}

impl Timestamp {
    /// Later than every time that is ever reached.
    pub const NEVER: Self = Self(u64::MAX);
    /// Cluster time stops here, so that what follows it by any span that can be
    /// set is still before [`NEVER`](Self::NEVER).
    pub(crate) const LATEST: Self = Self(u64::MAX / 2);

    /// This time and a span later, saturating.
    #[must_use]
    pub fn after(self, span: Millis) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// The first multiple of a step that is not before this time, saturating.
    pub(crate) fn rounded_up(self, step: Millis) -> Self {
        self.0.checked_next_multiple_of(step.0).map_or(Self::NEVER, Self)
    }

    /// How much later this is; zero if it is not.
    #[must_use]
    pub fn since(self, earlier: Self) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl MessageId {
    /// No message comes behind it.
    pub(crate) const MAX: Self = Self {
        index: u64::MAX,
        number: u32::MAX,
    };
}

/// What goes into an error: input has no bound, an answer has.
fn shortened(text: &str) -> String {
    const CHARS_MAX: usize = 64;
    let mut short: String = text.chars().take(CHARS_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.index, self.number)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{}.{}.{}",
            self.queue.0, self.position, self.attempt, self.grant
        )
    }
}

impl FromStr for MessageId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let malformed = || ParseError::Malformed {
            what: "a message id, which is like 17-0",
            text: shortened(text),
        };
        let (index, number) = text.split_once('-').ok_or_else(malformed)?;
        Ok(Self {
            index: index.parse().map_err(|_| malformed())?,
            number: number.parse().map_err(|_| malformed())?,
        })
    }
}

impl FromStr for Token {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let malformed = || ParseError::Malformed {
            what: "a token of a delivery",
            text: shortened(text),
        };
        let mut parts = text.split('.');
        let mut next = || parts.next().ok_or_else(malformed);
        let token = Self {
            queue: QueueId(next()?.parse().map_err(|_| malformed())?),
            position: next()?.parse().map_err(|_| malformed())?,
            attempt: next()?.parse().map_err(|_| malformed())?,
            grant: next()?.parse().map_err(|_| malformed())?,
        };
        if parts.next().is_some() {
            return Err(malformed());
        }
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_malformed_token_is_not_echoed_whole() {
        let error = "9".repeat(100_000).parse::<Token>().unwrap_err();
        assert!(error.to_string().len() < 300, "{error}");
    }

    #[test]
    fn what_is_wrong_with_a_text_is_a_sentence() {
        let told = [
            QueueName::new("").unwrap_err(),
            ExchangeName::new(" x").unwrap_err(),
            "17".parse::<MessageId>().unwrap_err(),
            "x".parse::<Token>().unwrap_err(),
        ];
        assert_eq!(
            told.map(|error| error.to_string()),
            [
                "a queue name has 1 to 255 bytes, this one has 0",
                "an exchange name has printable characters only and no white space at its ends: \" x\"",
                "\"17\" is not a message id, which is like 17-0",
                "\"x\" is not a token of a delivery",
            ]
        );
    }
}
