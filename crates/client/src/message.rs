//! A message on its way in, and what confirms it.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use quorate_proto::v1;

use crate::error::{Error, Result};
use crate::request_id::RequestId;
use crate::state::MessageState;

/// A message to publish.
///
/// ```
/// use std::time::Duration;
/// use quorate_client::Message;
///
/// let message = Message::new("resize 17.png")
///     .header("trace", "a1b2")
///     .delay(Duration::from_secs(10));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    wire: v1::OutgoingMessage,
}

/// Where in the replicated log a change stands: also if its request had to be
/// repeated, the entry in which it was executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Index of its log entry.
    pub log_index: u64,
    /// Term of the leader that answered. It is that of the entry unless the
    /// request was repeated.
    pub term: u64,
    /// The cluster's time at that entry, milliseconds since the Unix epoch.
    pub cluster_time_ms: u64,
}

/// A publish is on disk on a majority of the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Where.
    pub commit: Commit,
    /// One for each message, in the order of the call. Of a duplicate it is the
    /// id of the first.
    pub message_ids: Vec<String>,
    /// Places in the call, from 0, of messages for which the exchange had no
    /// route. They were dropped.
    pub unroutable: Vec<usize>,
    /// Messages that were not taken because their dedup id was known.
    pub duplicates: Vec<Duplicate>,
    /// The id of the request; of a publish in a transaction, that of the
    /// transaction.
    pub request_id: Option<RequestId>,
}

/// A message that was not taken again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// Its place in the call, from 0.
    pub place: usize,
    /// What has become of the first with that dedup id.
    pub state: MessageState,
}

/// The most messages of one atomic publish.
pub const PUBLISH_MESSAGES_MAX: usize = 4_096;

/// The most bytes of bodies in one publish.
pub const PUBLISH_BYTES_MAX: usize = 16 << 20;

impl Message {
    /// A message with a body of up to 16 MiB.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self {
            wire: v1::OutgoingMessage {
                body: body.into(),
                ..Default::default()
            },
        }
    }

    /// Adds a header. Names and values together may have up to 64 KiB.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.wire.headers.insert(name.into(), value.into());
        self
    }

    /// Replaces the headers.
    #[must_use]
    pub fn headers(mut self, headers: BTreeMap<String, String>) -> Self {
        self.wire.headers = headers;
        self
    }

    /// Not delivered before this much cluster time has passed: up to 10 years,
    /// in whole milliseconds.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.wire.delay_ms = millis(delay);
        self
    }

    /// Expires if it was not leased by then; in whole milliseconds, at least
    /// one. Counts only if it is shorter than the queue's own TTL.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.wire.ttl_ms = millis(ttl).max(1);
        self
    }

    /// Not delivered before this cluster time, in milliseconds since the Unix
    /// epoch. Of this and a [`delay`](Self::delay) the later counts.
    #[must_use]
    pub fn deliver_at_ms(mut self, at_ms: u64) -> Self {
        self.wire.deliver_at_ms = at_ms;
        self
    }

    /// 0 (default) to 9. Messages of a higher priority are leased first.
    #[must_use]
    pub fn priority(mut self, priority: u32) -> Self {
        self.wire.priority = priority;
        self
    }

    /// Messages of one group are delivered in their order, and one at a time
    /// unless the queue's settings allow more: up to 255 bytes; empty = none.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.wire.group = group.into();
        self
    }

    /// A second message with this id is not taken for as long as the queue or
    /// exchange remembers it: up to 255 bytes; empty = none. The answer then
    /// has the id of the first, and [its state](Published::duplicates).
    #[must_use]
    pub fn dedup_id(mut self, id: impl Into<String>) -> Self {
        self.wire.dedup_id = id.into();
        self
    }

    /// What direct and topic exchanges route by: up to 255 bytes.
    #[must_use]
    pub fn routing_key(mut self, key: impl Into<String>) -> Self {
        self.wire.routing_key = key.into();
        self
    }

    pub(crate) fn bytes(&self) -> usize {
        let headers = self
            .wire
            .headers
            .iter()
            .map(|(name, value)| name.len() + value.len());
        self.wire.body.len() + headers.sum::<usize>()
    }

    /// The messages as they go out, if one publish may hold them.
    pub(crate) fn into_wire(messages: Vec<Self>) -> Result<Vec<v1::OutgoingMessage>> {
        let bytes = body_bytes(&messages);
        if messages.is_empty() || messages.len() > PUBLISH_MESSAGES_MAX {
            let count = messages.len();
            return Err(Error::Invalid(format!(
                "one publish holds 1 to {PUBLISH_MESSAGES_MAX} messages, not {count}"
            )));
        }
        if bytes > PUBLISH_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "one publish holds up to {PUBLISH_BYTES_MAX} bytes of bodies, not {bytes}"
            )));
        }
        Ok(messages.into_iter().map(|message| message.wire).collect())
    }
}

/// Bytes of the bodies, which are what a limit counts.
pub(crate) fn body_bytes(messages: &[Message]) -> usize {
    messages.iter().map(|message| message.wire.body.len()).sum()
}

impl<B: Into<Bytes>> From<B> for Message {
    fn from(body: B) -> Self {
        Self::new(body)
    }
}

impl Published {
    /// The id of the first message; of a publish of one, its id.
    #[must_use]
    pub fn message_id(&self) -> &str {
        self.message_ids.first().map_or("", String::as_str)
    }

    /// If the first message was not taken because its dedup id was known: what
    /// has become of the one with that id.
    #[must_use]
    pub fn duplicate(&self) -> Option<MessageState> {
        let mut duplicates = self.duplicates.iter();
        duplicates
            .find(|duplicate| duplicate.place == 0)
            .map(|duplicate| duplicate.state)
    }
}

impl From<v1::PublishResponse> for Published {
    fn from(wire: v1::PublishResponse) -> Self {
        let duplicates = wire.duplicates.into_iter().map(|duplicate| Duplicate {
            place: duplicate.place as usize,
            state: MessageState::from_wire(duplicate.state),
        });
        Self {
            commit: commit(wire.commit),
            message_ids: wire.message_ids,
            unroutable: wire.unroutable.into_iter().map(|place| place as usize).collect(),
            duplicates: duplicates.collect(),
            request_id: None,
        }
    }
}

pub(crate) fn commit(wire: Option<v1::Commit>) -> Commit {
    let wire = wire.unwrap_or_default();
    Commit {
        log_index: wire.log_index,
        term: wire.term,
        cluster_time_ms: wire.cluster_time_ms,
    }
}

/// A span as the wire has it. More than 500 million years become that.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// A text of the wire, where an empty one stands for none.
pub(crate) fn given<T: AsRef<str>>(text: T) -> Option<T> {
    Some(text).filter(|text| !text.as_ref().is_empty())
}

/// A number of the wire, where zero stands for none.
pub(crate) fn nonzero<N: Default + PartialEq>(number: N) -> Option<N> {
    Some(number).filter(|number| *number != N::default())
}
