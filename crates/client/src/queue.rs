//! Queues: counts, and the calls that make and change them.

use std::time::Duration;

use futures_util::Stream;
use quorate_proto::v1;

use crate::client::Client;
use crate::error::Result;
use crate::message::{Commit, commit, given, nonzero};
use crate::pages::pages;
use crate::queue_settings::{Overflow, QueueSettings, settings_setters};
use crate::state::MessageState;

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
    /// It gives out no messages until it is resumed.
    pub paused: bool,
    /// When the message that is leased next was published, in cluster time,
    /// milliseconds since the Unix epoch. None = no message is ready.
    pub oldest_ready_published_at_ms: Option<u64>,
    /// When the message was published that has been leased for longest. None =
    /// no message is leased.
    pub oldest_leased_published_at_ms: Option<u64>,
    /// Of a queue with a single active consumer: the name of that one.
    pub active_consumer: Option<String>,
    /// All this is as of this log index.
    pub read_index: u64,
}

/// Counts of a queue. `published` = ready + delayed + leased + dead + acked +
/// expired + dead_lettered + dropped + deleted + moved.
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
    /// Messages that a purge or an operator removed.
    pub deleted: u64,
    /// Leases of messages that had been leased before.
    pub redelivered: u64,
    /// Messages that an operator moved or redrove to another queue.
    pub moved: u64,
    /// Publishes that were not taken because their dedup id was known.
    pub duplicates: u64,
    /// Of the dead: those that wait for room in their dead-letter target.
    pub dead_letter_backlog: u64,
    /// Groups that have messages.
    pub groups: u64,
}

/// The answer to a declare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// Where in the log.
    pub commit: Commit,
    /// False: it existed, and its settings agree.
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

/// A purge in the making; see [`Client::purge_queue`].
#[derive(Debug)]
#[must_use = "nothing happens until `send` is called"]
pub struct PurgeQueue {
    client: Client,
    request: v1::PurgeQueueRequest,
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
        Ok(QueueInfo {
            read_index: answer.read_index,
            ..answer.queue.unwrap_or_default().into()
        })
    }

    /// All queues by name, fetched in pages as they are read. Linearizable per
    /// page. Ends after the first error.
    pub fn list_queues(&self) -> impl Stream<Item = Result<QueueInfo>> + Send + Unpin + 'static {
        let client = self.clone();
        pages(String::new(), move |after| {
            let client = client.clone();
            async move {
                let request = v1::ListQueuesRequest {
                    page_size: PAGE_SIZE,
                    after,
                };
                let page = client.call(request).await?;
                let read_index = page.read_index;
                let queues = page.queues.into_iter().map(|queue| QueueInfo {
                    read_index,
                    ..queue.into()
                });
                Ok((queues.collect(), given(page.next)))
            }
        })
    }

    /// Removes the ready and delayed messages of a queue, unless other states are
    /// asked for. Leased ones stay with their holders.
    pub fn purge_queue(&self, name: impl Into<String>) -> PurgeQueue {
        let request = v1::PurgeQueueRequest {
            name: name.into(),
            ..Default::default()
        };
        PurgeQueue {
            client: self.clone(),
            request,
        }
    }

    /// Lets a queue give out no messages until it is
    /// [resumed](Self::resume_queue). Consumers stay, and so do leases; publishes
    /// go on.
    ///
    /// # Errors
    ///
    /// Refused with `QUEUE_NOT_FOUND`; unknown; unreachable.
    pub async fn pause_queue(&self, name: impl Into<String>) -> Result<Commit> {
        self.set_paused(name.into(), true).await
    }

    /// Lets a paused queue go on.
    ///
    /// # Errors
    ///
    /// Refused with `QUEUE_NOT_FOUND`; unknown; unreachable.
    pub async fn resume_queue(&self, name: impl Into<String>) -> Result<Commit> {
        self.set_paused(name.into(), false).await
    }

    async fn set_paused(&self, name: String, paused: bool) -> Result<Commit> {
        let request = v1::PauseQueueRequest {
            request_id: None,
            name,
            paused,
        };
        Ok(commit(self.call(request).await?.commit))
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

impl PurgeQueue {
    /// Remove the messages in these states instead: ready, delayed or dead.
    pub fn states(mut self, states: impl IntoIterator<Item = MessageState>) -> Self {
        self.request.states = states.into_iter().map(MessageState::to_wire).collect();
        self
    }

    /// Sends it.
    ///
    /// # Errors
    ///
    /// Refused with `QUEUE_NOT_FOUND` or `INVALID_ARGUMENT`; unknown;
    /// unreachable.
    pub async fn send(self) -> Result<Removed> {
        let answer = self.client.call(self.request).await?;
        Ok(Removed {
            commit: commit(answer.commit),
            count: answer.purged,
        })
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
                moved: counts.moved,
                duplicates: counts.duplicates,
                dead_letter_backlog: counts.dead_letter_backlog,
                groups: counts.groups,
            },
            paused: wire.paused,
            oldest_ready_published_at_ms: nonzero(wire.oldest_ready_published_at_ms),
            oldest_leased_published_at_ms: nonzero(wire.oldest_leased_published_at_ms),
            active_consumer: given(wire.active_consumer),
            read_index: 0,
        }
    }
}
