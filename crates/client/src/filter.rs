//! Which messages of a queue.

use quorate_proto::v1;

use crate::state::MessageState;

/// Chooses messages of a queue, to [browse](crate::Client::browse) or
/// [redrive](crate::Client::redrive) them. All that is set must hold; without
/// anything set, every message fits.
///
/// ```
/// use quorate_client::{MessageFilter, MessageState};
///
/// let failed_for_acme = MessageFilter::new()
///     .state(MessageState::Dead)
///     .reason("max-deliveries")
///     .header("tenant", "acme");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MessageFilter {
    wire: v1::MessageFilter,
}

impl MessageFilter {
    /// Every message.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a state: in one of those that are added.
    #[must_use]
    pub fn state(self, state: MessageState) -> Self {
        self.states([state])
    }

    /// Adds states: in one of those that are added.
    #[must_use]
    pub fn states(mut self, states: impl IntoIterator<Item = MessageState>) -> Self {
        let states = states.into_iter().map(MessageState::to_wire);
        self.wire.states.extend(states);
        self
    }

    /// Published before this cluster time, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn published_before_ms(mut self, at_ms: u64) -> Self {
        self.wire.published_before_ms = at_ms;
        self
    }

    /// Published at this cluster time or later, in milliseconds since the Unix
    /// epoch.
    #[must_use]
    pub fn published_from_ms(mut self, at_ms: u64) -> Self {
        self.wire.published_from_ms = at_ms;
        self
    }

    /// Adds a header: with all of those that are added. The node reads contents
    /// to see them.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.wire.headers.insert(name.into(), value.into());
        self
    }

    /// Of this group.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.wire.group = group.into();
        self
    }

    /// Published with this dedup id.
    #[must_use]
    pub fn dedup_id(mut self, id: impl Into<String>) -> Self {
        self.wire.dedup_id = id.into();
        self
    }

    /// Dead letters with this reason: `rejected`, `max-deliveries`, `expired` or
    /// `dropped-by-limit`.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.wire.reason = reason.into();
        self
    }

    /// Adds an id: one of those that are added.
    #[must_use]
    pub fn message_id(self, id: impl Into<String>) -> Self {
        self.message_ids([id])
    }

    /// Adds ids: one of those that are added.
    #[must_use]
    pub fn message_ids<I>(mut self, ids: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.wire.message_ids.extend(ids.into_iter().map(Into::into));
        self
    }

    /// Set free by this [redrive](crate::Redriven::redrive).
    #[must_use]
    pub fn redrive(mut self, redrive: u64) -> Self {
        self.wire.redrive = redrive;
        self
    }

    pub(crate) fn into_wire(self) -> v1::MessageFilter {
        self.wire
    }
}
