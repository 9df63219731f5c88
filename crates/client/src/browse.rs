//! Looking at messages without touching them.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::Stream;
use quorate_proto::v1;
use quorate_proto::v1::message_selector::Selector as WireSelector;

use crate::call::Call;
use crate::client::Client;
use crate::config::bare;
use crate::delivery::DeadLetterInfo;
use crate::error::Result;
use crate::filter::MessageFilter;
use crate::message::{given, nonzero};
use crate::pages::pages;
use crate::state::MessageState;

/// A look at a queue in the making; see [`Client::browse`].
#[derive(Clone, Debug)]
#[must_use = "nothing happens until `page` or `messages` is called"]
pub struct Browse {
    client: Client,
    request: v1::BrowseRequest,
    view: View,
}

/// A look at one message in the making; see [`Client::get_message`].
#[derive(Debug)]
#[must_use = "nothing happens until `send` is called"]
pub struct GetMessage {
    client: Client,
    request: v1::GetMessageRequest,
    view: View,
}

/// Whose state is looked at.
#[derive(Clone, Debug)]
enum View {
    /// The leader's, linearizably.
    Leader,
    /// That of any node, as it is.
    Local,
    /// That of the node at this address, as it is.
    Node(String),
}

/// Some messages of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// In the order of the queue. May be fewer than were asked for, and even
    /// none, although there are more.
    pub messages: Vec<MessageInfo>,
    /// Where the next page begins. None = this was the last.
    pub next: Option<u64>,
    /// The answer contains everything up to this log index.
    pub read_index: u64,
}

/// A message of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageInfo {
    /// Its id.
    pub message_id: String,
    /// The queue it is in.
    pub queue: String,
    /// Its place in that queue.
    pub position: u64,
    /// Its state.
    pub state: MessageState,
    /// Of a delayed message: when it will be ready, in cluster time, milliseconds
    /// since the Unix epoch.
    pub ready_at_ms: Option<u64>,
    /// Of a leased message.
    pub lease: Option<LeaseInfo>,
    /// 0 to 9.
    pub priority: u32,
    /// The group it belongs to.
    pub group: Option<String>,
    /// The dedup id it was published with.
    pub dedup_id: Option<String>,
    /// Leases in this queue that ended in failure.
    pub attempts: u32,
    /// Leases in this queue at all.
    pub grants: u32,
    /// In cluster time, milliseconds since the Unix epoch.
    pub published_at_ms: u64,
    /// In cluster time, milliseconds since the Unix epoch. None = never.
    pub expires_at_ms: Option<u64>,
    /// Bytes of its body and headers.
    pub content_bytes: u64,
    /// Why the first attempt failed, if its holder said.
    pub first_error: Option<String>,
    /// Why the last attempt failed, if its holder said.
    pub last_error: Option<String>,
    /// Of a message in the dead set.
    pub dead: Option<DeadInfo>,
    /// Of a message that came from another queue as a dead letter.
    pub dead_letter: Option<DeadLetterInfo>,
    /// The [redrive](crate::Redriven::redrive) that set it free, if one did.
    pub redrive: Option<u64>,
    /// Its body; None unless it was asked for.
    pub body: Option<Bytes>,
    /// Its headers; empty unless they were asked for.
    pub headers: BTreeMap<String, String>,
    /// The exchange it was published to, if it was one.
    pub exchange: Option<String>,
    /// The routing key it was published with, if it has one.
    pub routing_key: Option<String>,
}

/// Who holds a message. A lease that was pulled has no session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseInfo {
    /// Session of the consumer that holds it.
    pub session: Option<u64>,
    /// Number of the consumer in its session.
    pub consumer: Option<u32>,
    /// The node that the consumer is connected to.
    pub node_id: Option<u64>,
    /// When it began, in cluster time, milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// When it ends, in cluster time, milliseconds since the Unix epoch.
    pub until_ms: u64,
    /// See [`Delivery::fence`](crate::Delivery::fence).
    pub fence: u64,
}

/// Why a message is in the dead set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadInfo {
    /// `rejected`, `max-deliveries`, `expired` or `dropped-by-limit`.
    pub reason: String,
    /// In cluster time, milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// It waits for room in the queue's dead-letter target, and goes there by
    /// itself.
    pub backlog: bool,
}

/// Names a message of a queue. Text is a message id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selector {
    /// By its id. Of several copies in the queue: the one that entered last.
    MessageId(String),
    /// By the dedup id it was published with.
    DedupId(String),
}

impl Client {
    /// Looks at messages of a queue, in its order, without touching them: at all
    /// of them, unless a filter chooses.
    ///
    /// ```no_run
    /// use futures_util::StreamExt as _;
    /// use quorate_client::{MessageFilter, MessageState};
    ///
    /// # async fn example(client: quorate_client::Client) -> quorate_client::Result<()> {
    /// let dead = MessageFilter::new().state(MessageState::Dead);
    /// let mut messages = client.browse("jobs").filter(dead).messages();
    /// while let Some(message) = messages.next().await {
    ///     let message = message?;
    ///     println!("{}: {:?}", message.message_id, message.last_error);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn browse(&self, queue: impl Into<String>) -> Browse {
        let request = v1::BrowseRequest {
            queue: queue.into(),
            ..Default::default()
        };
        Browse {
            client: self.clone(),
            request,
            view: View::Leader,
        }
    }

    /// Looks at one message of a queue, by its id or
    /// [dedup id](Selector::dedup_id).
    pub fn get_message(&self, queue: impl Into<String>, message: impl Into<Selector>) -> GetMessage {
        let request = v1::GetMessageRequest {
            queue: queue.into(),
            message: Some(message.into().into()),
            ..Default::default()
        };
        GetMessage {
            client: self.clone(),
            request,
            view: View::Leader,
        }
    }

    async fn look<C: Call>(&self, view: &View, call: C) -> Result<C::Answer> {
        match view {
            View::Leader => self.call(call).await,
            View::Local => self.caller.call_any(call).await,
            View::Node(address) => self.caller.call_node(address, call, self.timeout()).await,
        }
    }
}

macro_rules! whose_state {
    ($builder:ident) => {
        impl $builder {
            /// Ask any node for its own state, which may be behind. This works without a
            /// leader.
            pub fn local(mut self) -> Self {
                self.request.local = true;
                self.view = View::Local;
                self
            }

            /// Ask the node at `endpoint` (`host:port`) for its own state, which may be
            /// behind.
            pub fn at(mut self, endpoint: &str) -> Self {
                self.request.local = true;
                self.view = View::Node(bare(endpoint).to_owned());
                self
            }
        }
    };
}

whose_state!(Browse);
whose_state!(GetMessage);

impl Browse {
    /// Look only at these.
    pub fn filter(mut self, filter: MessageFilter) -> Self {
        self.request.filter = Some(filter.into_wire());
        self
    }

    /// Bodies and headers too. A page then ends at 4 MiB.
    pub fn with_content(mut self) -> Self {
        self.request.with_content = true;
        self
    }

    /// Most messages of a page: 1 to 1,000; default 100.
    pub fn page_size(mut self, messages: u32) -> Self {
        self.request.page_size = messages;
        self
    }

    /// Begin where the page before [ended](Page::next), instead of at the head.
    pub fn from(mut self, position: u64) -> Self {
        self.request.from = position;
        self
    }

    /// One page.
    ///
    /// # Errors
    ///
    /// Refused with `QUEUE_NOT_FOUND` or `INVALID_ARGUMENT`; unreachable.
    pub async fn page(self) -> Result<Page> {
        let with_content = self.request.with_content;
        let answer = self.client.look(&self.view, self.request).await?;
        let messages = answer.messages.into_iter();
        Ok(Page {
            messages: messages
                .map(|message| MessageInfo::new(message, with_content))
                .collect(),
            next: nonzero(answer.next),
            read_index: answer.read_index,
        })
    }

    /// All pages, each fetched when the one before is read. Messages that move
    /// within the queue meanwhile may be seen twice or not at all. Ends after the
    /// first error, which is one of those of [`page`](Self::page).
    pub fn messages(self) -> impl Stream<Item = Result<MessageInfo>> + Send + Unpin + 'static {
        pages(self.request.from, move |from| {
            let page = self.clone().from(from).page();
            async move {
                let page = page.await?;
                Ok((page.messages, page.next))
            }
        })
    }
}

impl GetMessage {
    /// Body and headers too.
    pub fn with_content(mut self) -> Self {
        self.request.with_content = true;
        self
    }

    /// Sends it.
    ///
    /// # Errors
    ///
    /// Refused with `QUEUE_NOT_FOUND` or `MESSAGE_NOT_FOUND`; unreachable.
    pub async fn send(self) -> Result<MessageInfo> {
        let with_content = self.request.with_content;
        let answer = self.client.look(&self.view, self.request).await?;
        Ok(MessageInfo::new(answer.message.unwrap_or_default(), with_content))
    }
}

impl Selector {
    /// By the id of the message.
    pub fn message_id(id: impl Into<String>) -> Self {
        Self::MessageId(id.into())
    }

    /// By the dedup id it was published with.
    pub fn dedup_id(id: impl Into<String>) -> Self {
        Self::DedupId(id.into())
    }
}

impl From<String> for Selector {
    fn from(message_id: String) -> Self {
        Self::MessageId(message_id)
    }
}

impl From<&str> for Selector {
    fn from(message_id: &str) -> Self {
        Self::message_id(message_id)
    }
}

impl From<&String> for Selector {
    fn from(message_id: &String) -> Self {
        Self::message_id(message_id)
    }
}

impl From<Selector> for v1::MessageSelector {
    fn from(selector: Selector) -> Self {
        let selector = match selector {
            Selector::MessageId(id) => WireSelector::MessageId(id),
            Selector::DedupId(id) => WireSelector::DedupId(id),
        };
        Self {
            selector: Some(selector),
        }
    }
}

impl MessageInfo {
    fn new(wire: v1::MessageInfo, with_content: bool) -> Self {
        let dead = given(wire.dead_reason).map(|reason| DeadInfo {
            reason,
            since_ms: wire.dead_since_ms,
            backlog: wire.dead_letter_backlog,
        });
        Self {
            message_id: wire.message_id,
            queue: wire.queue,
            position: wire.position,
            state: MessageState::from_wire(wire.state),
            ready_at_ms: nonzero(wire.ready_at_ms),
            lease: wire.lease.map(LeaseInfo::from),
            priority: wire.priority,
            group: given(wire.group),
            dedup_id: given(wire.dedup_id),
            attempts: wire.attempts,
            grants: wire.grants,
            published_at_ms: wire.published_at_ms,
            expires_at_ms: nonzero(wire.expires_at_ms),
            content_bytes: wire.content_bytes,
            first_error: given(wire.first_error),
            last_error: given(wire.last_error),
            dead,
            dead_letter: wire.dead_letter.map(DeadLetterInfo::from),
            redrive: nonzero(wire.redrive),
            body: with_content.then_some(wire.body),
            headers: wire.headers,
            exchange: given(wire.exchange),
            routing_key: given(wire.routing_key),
        }
    }
}

impl From<v1::LeaseInfo> for LeaseInfo {
    fn from(wire: v1::LeaseInfo) -> Self {
        let pushed = wire.session != 0;
        Self {
            session: nonzero(wire.session),
            consumer: pushed.then_some(wire.consumer),
            node_id: nonzero(wire.node_id),
            since_ms: wire.since_ms,
            until_ms: wire.until_ms,
            fence: wire.fence,
        }
    }
}
