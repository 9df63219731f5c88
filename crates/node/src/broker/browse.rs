//! Messages and their contents, without touching them.
//!
//! What the state machine knows of a message is looked at in steps, so that
//! entries are applied in between; headers and bodies are read from storage. A
//! call does a bounded part of the work and says where to go on.

use std::collections::BTreeMap;

use quorate_core::browse::{Filter, MessageView};
use quorate_core::command::Selector;
use quorate_core::ids::{MessageId, QueueName};
use quorate_core::outcome::Rejection;
use quorate_raft::ContentError;

use super::Broker;
use crate::content::Content;
use crate::error::BrokerError;

/// Messages that are looked at in one step, while no entry is applied.
const STEP: usize = 4_096;
/// Messages that are looked at in one call.
const SCAN_MAX: usize = 64 * 1_024;
/// Messages whose contents are read in one call.
const READS_MAX: usize = 4_096;
/// Bytes of contents that are read in one call, unless a single one is larger.
const READ_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Which messages to look at.
#[derive(Clone, Debug)]
pub struct Browse {
    /// The queue.
    pub queue: QueueName,
    /// What the state machine knows of them.
    pub filter: Filter,
    /// Headers that they have; the node reads contents to see them.
    pub headers: BTreeMap<String, String>,
    /// From this position on.
    pub from: u64,
    /// A page has at most so many.
    pub count_max: usize,
    /// With their contents.
    pub with_content: bool,
    /// In this node's own state, which may be behind the leader's.
    pub local: bool,
}

/// Messages in the order of their positions.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Fewer than were asked for, even none, if looking for more took too long.
    pub messages: Vec<Seen>,
    /// Where to go on; None if this was the end.
    pub next: Option<u64>,
}

/// A message as it was when somebody looked.
#[derive(Clone, Debug)]
pub struct Seen {
    /// What the state machine knows of it.
    pub view: MessageView,
    /// Set if it was asked for.
    pub content: Option<Content>,
}

impl Broker {
    /// A page of the messages of a queue, and the log index that it contains.
    pub async fn browse(&self, browse: &Browse) -> Result<(u64, Page), BrokerError> {
        let (index, ()) = self.look(browse.local, |_| ()).await?;
        Ok((index, self.scan(browse).await?))
    }

    /// One message of a queue, and the log index that the answer contains.
    pub async fn message(
        &self,
        queue: &QueueName,
        selector: &Selector,
        with_content: bool,
        local: bool,
    ) -> Result<(u64, Seen), BrokerError> {
        let find = |state: &quorate_core::Broker| {
            state
                .settings(queue)
                .map(|_| state.find(queue, selector))
                .ok_or_else(|| Rejection::QueueNotFound(queue.clone()))
        };
        let (index, found) = self.look(local, find).await?;
        let not_found = || Rejection::MessageNotFound {
            queue: queue.clone(),
            message: selector.clone(),
        };
        let view = found?.ok_or_else(not_found)?;
        let mut seen = Seen { view, content: None };
        if with_content {
            // It was there, and has left since.
            seen.content = Some(self.content_of(&seen.view).await?.ok_or_else(not_found)?);
        }
        Ok((index, seen))
    }

    /// A page in this node's state.
    pub(super) async fn scan(&self, browse: &Browse) -> Result<Page, BrokerError> {
        let reads = browse.with_content || !browse.headers.is_empty();
        let mut page = Page::default();
        let mut budget = Budget::default();
        let mut from = browse.from;
        loop {
            let missing = browse.count_max - page.messages.len();
            // Of those that headers choose few may be left.
            let wanted = if browse.headers.is_empty() { missing } else { STEP };
            let step = |state: &quorate_core::Broker| {
                state.browse(&browse.queue, from, wanted, STEP, &browse.filter)
            };
            let browsed = self
                .consensus()
                .with_state(step)
                .ok_or_else(|| Rejection::QueueNotFound(browse.queue.clone()))?;
            budget.scan(browsed.messages.len(), wanted);
            for view in browsed.messages {
                let full = page.messages.len() >= browse.count_max;
                if full || (reads && !budget.read(&view)) {
                    page.next = Some(view.position);
                    return Ok(page);
                }
                page.messages.extend(self.see(view, browse, reads).await?);
            }
            page.next = browsed.next;
            match browsed.next {
                Some(next) if page.messages.len() < browse.count_max && budget.scans_left > 0 => from = next,
                _ => return Ok(page),
            }
            tokio::task::yield_now().await;
        }
    }

    /// The message, if its headers are those asked for and it has not left.
    async fn see(
        &self,
        view: MessageView,
        browse: &Browse,
        reads: bool,
    ) -> Result<Option<Seen>, BrokerError> {
        if !reads {
            return Ok(Some(Seen { view, content: None }));
        }
        let content = self.content_of(&view).await?;
        let wanted = content.filter(|content| {
            let mut asked = browse.headers.iter();
            asked.all(|(name, value)| content.headers.get(name) == Some(value))
        });
        Ok(wanted.map(|content| Seen {
            view,
            content: browse.with_content.then_some(content),
        }))
    }

    /// None if the message has left since it was looked at.
    async fn content_of(&self, view: &MessageView) -> Result<Option<Content>, BrokerError> {
        match self.find_content(view.id, view.content_bytes).await {
            Ok(content) => Ok(Some(content)),
            Err(FindError::Gone) => Ok(None),
            Err(FindError::Failed(error)) => Err(error),
        }
    }

    pub(super) async fn find_content(&self, id: MessageId, bytes: u32) -> Result<Content, FindError> {
        let content = self.consensus().content(id, bytes).await;
        let bytes = content.map_err(|error| match error {
            ContentError::Gone(_) => FindError::Gone,
            failed => FindError::Failed(BrokerError::Internal(failed.to_string())),
        })?;
        Content::decode(&bytes).map_err(FindError::Failed)
    }
}

/// Why there is no content.
#[derive(Debug, thiserror::Error)]
pub(super) enum FindError {
    /// No message refers to it any more.
    #[error("the content is gone")]
    Gone,
    /// Storage failed, or returned something else than was written.
    #[error(transparent)]
    Failed(BrokerError),
}

/// What a call may still look at.
struct Budget {
    scans_left: usize,
    reads_left: usize,
    bytes_left: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            scans_left: SCAN_MAX,
            reads_left: READS_MAX,
            bytes_left: READ_BYTES_MAX,
        }
    }
}

impl Budget {
    /// A step found so many of those wanted. If it found them all it may have
    /// looked at no more; else it went as far as it goes.
    fn scan(&mut self, found: usize, wanted: usize) {
        let scanned = if found == wanted { found } else { STEP };
        self.scans_left = self.scans_left.saturating_sub(scanned);
    }

    /// False: not in this call. The first is always read.
    fn read(&mut self, view: &MessageView) -> bool {
        let bytes = view.content_bytes as usize;
        let first = self.reads_left == READS_MAX;
        if !first && (self.reads_left == 0 || self.bytes_left < bytes) {
            return false;
        }
        self.reads_left -= 1;
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        true
    }
}
