//! Queues: settings, counts, and the calls that make and change them.

use std::time::Duration;

use futures_util::Stream;
use futures_util::stream;
use quorate_proto::v1;

use crate::client::Client;
use crate::error::Result;
use crate::message::{Commit, commit, millis};

/// Settings of a queue.
///
/// In a declare, an unset field means the default for a new queue and "whatever
/// it is" for an existing one. In an update, an unset field is left as it is.
/// What [`Client::describe_queue`] returns has all of them set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSettings {
    /// Lease of a delivery whose consumer asks for none: 100 ms to 12 h;
    /// default 30 s.
    pub lease: Option<Duration>,
    /// Failed leases before a message is dead-lettered: 1 to 1,000; 0 =
    /// unlimited; default 5.
    pub max_deliveries: Option<u32>,
    /// The queue that receives dead letters. Empty (default) = the queue's own
    /// dead set.
    pub dead_letter_queue: Option<String>,
    /// Most messages ready, delayed or leased; 0 = unlimited (default).
    pub max_length: Option<u64>,
    /// Most bytes of those messages; 0 = unlimited (default).
    pub max_bytes: Option<u64>,
    /// What happens to a publish beyond a limit: default reject.
    pub overflow: Option<Overflow>,
    /// Life of a message that is not leased: up to 10 years; zero = for ever
    /// (default).
    pub message_ttl: Option<Duration>,
    /// Pause before the first retry after a nack without a delay, or after an
    /// expired lease: default zero = at once.
    pub backoff_initial: Option<Duration>,
    /// The pause doubles per attempt up to this: default 60 s.
    pub backoff_max: Option<Duration>,
}

/// What happens to a publish beyond a queue's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// It is refused with [`Reason::QueueFull`](crate::Reason::QueueFull).
    Reject,
    /// Ready messages at the head make room, and are dead-lettered if the queue
    /// has a dead-letter queue.
    DropHead,
}

/// Settings and counts of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueInfo {
    /// Its name.
    pub name: String,
    /// Differs between two queues that had the same name one after the other.
    pub id: u64,
    /// All set.
    pub settings: QueueSettings,
    /// As of one moment.
    pub counts: QueueCounts,
}

/// Counts of a queue. `published` = ready + delayed + leased + dead + acked +
/// expired + dead_lettered + dropped + deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Messages that can be leased now.
    pub ready: u64,
    /// Messages that wait for their time.
    pub delayed: u64,
    /// Messages that someone holds.
    pub leased: u64,
    /// Messages in the queue's dead set.
    pub dead: u64,
    /// Bytes of the messages in those four states.
    pub bytes: u64,
    /// Consumers.
    pub consumers: u64,
    /// Messages that ever came in.
    pub published: u64,
    /// Messages that were done.
    pub acked: u64,
    /// Messages whose TTL ran out.
    pub expired: u64,
    /// Messages that went to another queue as dead letters.
    pub dead_lettered: u64,
    /// Messages that made room for others.
    pub dropped: u64,
    /// Messages that a purge removed.
    pub deleted: u64,
    /// Leases of messages that had been leased before.
    pub redelivered: u64,
}

/// The answer to a declare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// Where in the log.
    pub commit: Commit,
    /// False: the queue existed, and its settings agree.
    pub created: bool,
}

/// The answer to a purge or delete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Where in the log.
    pub commit: Commit,
    /// Messages removed.
    pub count: u64,
}

/// A declare in the making; see [`Client::declare_queue`].
#[derive(Debug)]
#[must_use = "nothing happens until `send` is called"]
pub struct DeclareQueue {
    client: Client,
    name: String,
    settings: QueueSettings,
}

/// An update in the making; see [`Client::update_queue`].
#[derive(Debug)]
#[must_use = "nothing happens until `send` is called"]
pub struct UpdateQueue {
    client: Client,
    name: String,
    settings: QueueSettings,
}

/// A delete in the making; see [`Client::delete_queue`].
#[derive(Debug)]
#[must_use = "nothing happens until `send` is called"]
pub struct DeleteQueue {
    client: Client,
    request: v1::DeleteQueueRequest,
}

/// Queues per page of a listing.
const PAGE_SIZE: u32 = 500;

impl Client {
    /// Ensures that a queue exists.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(client: quorate_client::Client) -> quorate_client::Result<()> {
    /// let declared = client
    ///     .declare_queue("jobs")
    ///     .lease(Duration::from_secs(30))
    ///     .max_deliveries(5)
    ///     .send()
    ///     .await?;
    /// println!("created: {}", declared.created);
    /// # Ok(()) }
    /// ```
    pub fn declare_queue(&self, name: impl Into<String>) -> DeclareQueue {
        DeclareQueue {
            client: self.clone(),
            name: name.into(),
            settings: QueueSettings::default(),
        }
    }

    /// Changes settings of a queue, for the messages in it too.
    pub fn update_queue(&self, name: impl Into<String>) -> UpdateQueue {
        UpdateQueue {
            client: self.clone(),
            name: name.into(),
            settings: QueueSettings::default(),
        }
    }

    /// Settings and counts of a queue. Linearizable: it contains everything
    /// that was confirmed before the call.
    ///
    /// # Errors
    ///
    /// Refused with `QUEUE_NOT_FOUND`; unreachable.
    pub async fn describe_queue(&self, name: impl Into<String>) -> Result<QueueInfo> {
        let answer = self.call(v1::DescribeQueueRequest { name: name.into() }).await?;
        Ok(answer.queue.unwrap_or_default().into())
    }

    /// All queues by name, fetched in pages as they are read. Linearizable per
    /// page. Ends after the first error.
    pub fn list_queues(&self) -> impl Stream<Item = Result<QueueInfo>> + Send + Unpin + 'static {
        let client = self.clone();
        let pages = stream::unfold(Some(String::new()), move |after| {
            let client = client.clone();
            async move {
                let request = v1::ListQueuesRequest {
                    page_size: PAGE_SIZE,
                    after: after?,
                };
                Some(match client.call(request).await {
                    Ok(page) => {
                        let queues = page.queues.into_iter().map(|queue| Ok(queue.into())).collect();
                        (queues, (!page.next.is_empty()).then_some(page.next))
                    }
                    Err(error) => (vec![Err(error)], None),
                })
            }
        });
        Box::pin(futures_util::StreamExt::flat_map(pages, stream::iter))
    }

    /// Removes the ready and delayed messages of a queue. Leased ones stay with
    /// their holders.
    ///
    /// # Errors
    ///
    /// Refused with `QUEUE_NOT_FOUND`; unknown; unreachable.
    pub async fn purge_queue(&self, name: impl Into<String>) -> Result<Removed> {
        let answer = self
            .call(v1::PurgeQueueRequest {
                name: name.into(),
                ..Default::default()
            })
            .await?;
        Ok(Removed {
            commit: commit(answer.commit),
            count: answer.purged,
        })
    }

    /// Deletes a queue with its messages, and cancels its consumers.
    pub fn delete_queue(&self, name: impl Into<String>) -> DeleteQueue {
        let request = v1::DeleteQueueRequest {
            name: name.into(),
            ..Default::default()
        };
        DeleteQueue {
            client: self.clone(),
            request,
        }
    }
}

macro_rules! settings_setters {
    ($builder:ident) => {
        impl $builder {
            /// Replaces all settings given so far.
            pub fn settings(mut self, settings: QueueSettings) -> Self {
                self.settings = settings;
                self
            }

            /// Lease of a delivery whose consumer asks for none: 100 ms to 12 h.
            pub fn lease(mut self, lease: Duration) -> Self {
                self.settings.lease = Some(lease);
                self
            }

            /// Failed leases before a message is dead-lettered: 1 to 1,000; 0 =
            /// unlimited.
            pub fn max_deliveries(mut self, count: u32) -> Self {
                self.settings.max_deliveries = Some(count);
                self
            }

            /// The queue that receives dead letters; empty = the queue's own
            /// dead set.
            pub fn dead_letter_queue(mut self, name: impl Into<String>) -> Self {
                self.settings.dead_letter_queue = Some(name.into());
                self
            }

            /// Most messages ready, delayed or leased; 0 = unlimited.
            pub fn max_length(mut self, messages: u64) -> Self {
                self.settings.max_length = Some(messages);
                self
            }

            /// Most bytes of those messages; 0 = unlimited.
            pub fn max_bytes(mut self, bytes: u64) -> Self {
                self.settings.max_bytes = Some(bytes);
                self
            }

            /// What happens to a publish beyond a limit.
            pub fn overflow(mut self, overflow: Overflow) -> Self {
                self.settings.overflow = Some(overflow);
                self
            }

            /// Life of a message that is not leased; zero = for ever.
            pub fn message_ttl(mut self, ttl: Duration) -> Self {
                self.settings.message_ttl = Some(ttl);
                self
            }

            /// Pause before a failed message is ready again: `initial` after
            /// the first failure, doubling up to `max`.
            pub fn backoff(mut self, initial: Duration, max: Duration) -> Self {
                self.settings.backoff_initial = Some(initial);
                self.settings.backoff_max = Some(max);
                self
            }
        }
    };
}

settings_setters!(DeclareQueue);
settings_setters!(UpdateQueue);

impl DeclareQueue {
    /// Sends it.
    ///
    /// # Errors
    ///
    /// Refused with `QUEUE_CONFLICT` if the queue exists with other settings
    /// (the context lists them), `INVALID_ARGUMENT` or `LIMIT_EXCEEDED`;
    /// unknown; unreachable.
    pub async fn send(self) -> Result<Declared> {
        let settings = Some(self.settings.into());
        let request = v1::DeclareQueueRequest {
            request_id: None,
            name: self.name,
            settings,
        };
        let answer = self.client.call(request).await?;
        Ok(Declared {
            commit: commit(answer.commit),
            created: answer.created,
        })
    }
}

impl UpdateQueue {
    /// Sends it.
    ///
    /// # Errors
    ///
    /// Refused with `QUEUE_NOT_FOUND` or `INVALID_ARGUMENT`; unknown;
    /// unreachable.
    pub async fn send(self) -> Result<Commit> {
        let settings = Some(self.settings.into());
        let request = v1::UpdateQueueRequest {
            request_id: None,
            name: self.name,
            settings,
        };
        let answer = self.client.call(request).await?;
        Ok(commit(answer.commit))
    }
}

impl DeleteQueue {
    /// Refuse if the queue holds messages in any state.
    pub fn if_empty(mut self) -> Self {
        self.request.if_empty = true;
        self
    }

    /// Refuse if the queue has consumers.
    pub fn if_unused(mut self) -> Self {
        self.request.if_unused = true;
        self
    }

    /// Sends it.
    ///
    /// # Errors
    ///
    /// Refused with `QUEUE_NOT_FOUND`, `QUEUE_NOT_EMPTY` or `QUEUE_IN_USE`;
    /// unknown; unreachable.
    pub async fn send(self) -> Result<Removed> {
        let answer = self.client.call(self.request).await?;
        Ok(Removed {
            commit: commit(answer.commit),
            count: answer.deleted,
        })
    }
}

impl Overflow {
    /// The policy as the command line spells it: `reject` or `drop-head`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Overflow::Reject => "reject",
            Overflow::DropHead => "drop-head",
        }
    }
}

impl From<QueueSettings> for v1::QueueSettings {
    fn from(settings: QueueSettings) -> Self {
        let overflow = settings.overflow.map(|overflow| match overflow {
            Overflow::Reject => v1::Overflow::Reject.into(),
            Overflow::DropHead => v1::Overflow::DropHead.into(),
        });
        Self {
            lease_ms: settings.lease.map(millis),
            max_deliveries: settings.max_deliveries,
            dead_letter_queue: settings.dead_letter_queue,
            max_length: settings.max_length,
            max_bytes: settings.max_bytes,
            overflow,
            message_ttl_ms: settings.message_ttl.map(millis),
            backoff_initial_ms: settings.backoff_initial.map(millis),
            backoff_max_ms: settings.backoff_max.map(millis),
            ..Self::default()
        }
    }
}

impl From<v1::QueueSettings> for QueueSettings {
    fn from(wire: v1::QueueSettings) -> Self {
        let overflow = match wire.overflow() {
            v1::Overflow::Reject => Some(Overflow::Reject),
            v1::Overflow::DropHead => Some(Overflow::DropHead),
            v1::Overflow::Unspecified => None,
        };
        Self {
            lease: wire.lease_ms.map(Duration::from_millis),
            max_deliveries: wire.max_deliveries,
            dead_letter_queue: wire.dead_letter_queue,
            max_length: wire.max_length,
            max_bytes: wire.max_bytes,
            overflow,
            message_ttl: wire.message_ttl_ms.map(Duration::from_millis),
            backoff_initial: wire.backoff_initial_ms.map(Duration::from_millis),
            backoff_max: wire.backoff_max_ms.map(Duration::from_millis),
        }
    }
}

impl From<v1::QueueInfo> for QueueInfo {
    fn from(wire: v1::QueueInfo) -> Self {
        let counts = wire.counts.unwrap_or_default();
        Self {
            name: wire.name,
            id: wire.id,
            settings: wire.settings.unwrap_or_default().into(),
            counts: QueueCounts {
                ready: counts.ready,
                delayed: counts.delayed,
                leased: counts.leased,
                dead: counts.dead,
                bytes: counts.bytes,
                consumers: counts.consumers,
                published: counts.published,
                acked: counts.acked,
                expired: counts.expired,
                dead_lettered: counts.dead_lettered,
                dropped: counts.dropped,
                deleted: counts.deleted,
                redelivered: counts.redelivered,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_the_wire() {
        let settings = QueueSettings {
            lease: Some(Duration::from_secs(30)),
            max_deliveries: Some(0),
            dead_letter_queue: Some("failed".to_owned()),
            max_length: None,
            max_bytes: Some(1 << 30),
            overflow: Some(Overflow::DropHead),
            message_ttl: Some(Duration::ZERO),
            backoff_initial: None,
            backoff_max: Some(Duration::from_secs(60)),
        };
        assert_eq!(
            QueueSettings::from(v1::QueueSettings::from(settings.clone())),
            settings
        );
        assert_eq!(
            v1::QueueSettings::from(QueueSettings::default()),
            v1::QueueSettings::default()
        );
    }
}
