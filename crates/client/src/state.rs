//! Where a message stands in its life.

use std::fmt;
use std::str::FromStr;

use quorate_proto::v1;

use crate::error::Error;

/// The state of a message in a queue, or how it left the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MessageState {
    /// It can be leased.
    Ready,
    /// It waits for its time: a delay of its publisher, or of a retry.
    Delayed,
    /// Someone holds it.
    Leased,
    /// It is in the queue's dead set.
    Dead,
    /// It left: it was done.
    Acked,
    /// It left: its TTL ran out.
    Expired,
    /// It left: it went elsewhere as a dead letter.
    DeadLettered,
    /// It left: it made room for others.
    Dropped,
    /// It left: an operator deleted it, by itself or with others.
    Deleted,
    /// It left: an operator moved it to another queue.
    Moved,
    /// One that this version of the library does not know.
    Other,
}

/// Every state with its name and its number on the wire, but
/// [`MessageState::Other`].
const STATES: [(MessageState, &str, v1::MessageState); 10] = [
    (MessageState::Ready, "ready", v1::MessageState::Ready),
    (MessageState::Delayed, "delayed", v1::MessageState::Delayed),
    (MessageState::Leased, "leased", v1::MessageState::Leased),
    (MessageState::Dead, "dead", v1::MessageState::Dead),
    (MessageState::Acked, "acked", v1::MessageState::Acked),
    (MessageState::Expired, "expired", v1::MessageState::Expired),
    (
        MessageState::DeadLettered,
        "dead-lettered",
        v1::MessageState::DeadLettered,
    ),
    (MessageState::Dropped, "dropped", v1::MessageState::Dropped),
    (MessageState::Deleted, "deleted", v1::MessageState::Deleted),
    (MessageState::Moved, "moved", v1::MessageState::Moved),
];

impl MessageState {
    /// The state as the command line spells it, such as `dead-lettered`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        let mut states = STATES.iter();
        states
            .find(|(state, ..)| *state == self)
            .map_or("other", |(_, name, _)| name)
    }

    pub(crate) fn to_wire(self) -> i32 {
        let mut states = STATES.iter();
        let wire = states.find(|(state, ..)| *state == self).map(|(.., wire)| *wire);
        wire.unwrap_or_default().into()
    }

    pub(crate) fn from_wire(wire: i32) -> Self {
        let mut states = STATES.iter();
        states
            .find(|(.., number)| *number as i32 == wire)
            .map_or(Self::Other, |(state, ..)| *state)
    }
}

impl fmt::Display for MessageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for MessageState {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let mut states = STATES.iter();
        match states.find(|(_, known, _)| *known == name) {
            Some((state, ..)) => Ok(*state),
            None => {
                let known: Vec<&str> = STATES.iter().map(|(_, known, _)| *known).collect();
                Err(Error::Invalid(format!(
                    "{name:?} is not a state of a message: {}",
                    known.join(", ")
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_of_the_wire_has_a_name() {
        let mut number = v1::MessageState::Ready as i32;
        while v1::MessageState::try_from(number).is_ok() {
            let state = MessageState::from_wire(number);
            assert_eq!(state.to_wire(), number);
            assert_eq!(state.as_str().parse::<MessageState>().unwrap(), state);
            number += 1;
        }
        assert_eq!(number, STATES.len() as i32 + 1);
        assert_eq!(MessageState::from_wire(number), MessageState::Other);
        assert_eq!(MessageState::Other.to_wire(), 0);
        assert!("other".parse::<MessageState>().is_err());
    }
}
