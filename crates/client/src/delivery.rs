//! A message on its way out, with the lease that its holder has on it.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use quorate_proto::v1;
use tokio::sync::{mpsc, oneshot};

use crate::client::Client;
use crate::error::Result;
use crate::message::{Commit, commit, given};
use crate::settle::{Order, Settled, Verdict, unknown, wire};

/// A leased message.
///
/// Settle it with [`ack`](Self::ack), [`nack`](Self::nack),
/// [`release`](Self::release) or [`dead_letter`](Self::dead_letter). Dropped
/// without that, its lease runs out, and the message comes again with one
/// attempt more.
pub struct Delivery {
    wire: v1::Delivery,
    origin: Origin,
    /// There is nothing to report when it is dropped.
    settled: bool,
}

/// Where a delivery was dead-lettered, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterInfo {
    /// The queue it came from.
    pub origin_queue: String,
    /// `rejected`, `max-deliveries`, `expired` or `dropped-by-limit`.
    pub reason: String,
    /// Attempts made there.
    pub attempts: u32,
    /// Why the first of them failed, if its holder said.
    pub first_error: Option<String>,
    /// Why the last of them failed, if its holder said.
    pub last_error: Option<String>,
    /// When it left that queue, in cluster time, milliseconds since the Unix
    /// epoch.
    pub at_ms: u64,
}

impl From<v1::DeadLetterInfo> for DeadLetterInfo {
    fn from(wire: v1::DeadLetterInfo) -> Self {
        Self {
            origin_queue: wire.origin_queue,
            reason: wire.reason,
            attempts: wire.attempts,
            first_error: given(wire.first_error),
            last_error: given(wire.last_error),
            at_ms: wire.at_ms,
        }
    }
}

/// Who settles a delivery.
#[derive(Clone)]
pub(crate) enum Origin {
    /// The client, by unary calls.
    Leased(Client),
    /// A consumer, over its stream; its client once it is closed.
    Consumed(Arc<ConsumerOrigin>),
}

pub(crate) struct ConsumerOrigin {
    pub(crate) client: Client,
    /// Unbounded, and bounded by the consumer's credit: each delivery has one
    /// settlement, and an extend waits for its answer.
    pub(crate) notices: mpsc::UnboundedSender<Notice>,
}

/// What a consumer hears of its deliveries.
pub(crate) enum Notice {
    Settle(Order),
    /// Settled by a transaction: the fence.
    Settled(u64),
    /// Dropped unsettled: the fence.
    Dropped(u64),
}

/// What will come of a settlement.
///
/// The settlement is already on its way, together with others that were asked
/// for at about the same time: await this to learn how it ended, or drop it to
/// go on without.
#[derive(Debug)]
pub struct Settling {
    reply: oneshot::Receiver<Result<Settled>>,
}

impl Delivery {
    pub(crate) fn new(wire: v1::Delivery, origin: Origin) -> Self {
        Self {
            wire,
            origin,
            settled: false,
        }
    }

    /// Id of the message. The same at each of its deliveries.
    #[must_use]
    pub fn message_id(&self) -> &str {
        &self.wire.message_id
    }

    /// Name of the queue.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.wire.queue
    }

    /// Names this lease. With it, any client can settle it, in any process.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.wire.token
    }

    /// Grows with every lease of every message. A store that remembers the
    /// highest fence it has seen can refuse a worker whose lease has passed on.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.wire.fence
    }

    /// 1 for the first lease, and one more after each that ended in failure.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.wire.attempt
    }

    /// Whether the message had been leased before.
    #[must_use]
    pub fn redelivered(&self) -> bool {
        self.wire.redelivered
    }

    /// Where in the log the lease was granted; if its session was resumed since,
    /// or its lease call repeated, where that stands.
    #[must_use]
    pub fn commit(&self) -> Commit {
        commit(self.wire.commit)
    }

    /// When the lease ends, in cluster time, milliseconds since the Unix epoch.
    #[must_use]
    pub fn leased_until_ms(&self) -> u64 {
        self.wire.leased_until_ms
    }

    /// When the message was published, in cluster time, milliseconds since the
    /// Unix epoch.
    #[must_use]
    pub fn published_at_ms(&self) -> u64 {
        self.wire.published_at_ms
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.wire.body
    }

    /// The headers.
    #[must_use]
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.wire.headers
    }

    /// Why the previous attempt failed, if its holder said.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        given(self.wire.last_error.as_str())
    }

    /// Where the message comes from, if it was dead-lettered into this queue.
    #[must_use]
    pub fn dead_letter_info(&self) -> Option<DeadLetterInfo> {
        self.wire.dead_letter.clone().map(DeadLetterInfo::from)
    }

    /// The exchange it was published to, if it was one.
    #[must_use]
    pub fn exchange(&self) -> Option<&str> {
        given(self.wire.exchange.as_str())
    }

    /// The routing key it was published with, if it has one.
    #[must_use]
    pub fn routing_key(&self) -> Option<&str> {
        given(self.wire.routing_key.as_str())
    }

    /// Its priority: 0 to 9.
    #[must_use]
    pub fn priority(&self) -> u32 {
        self.wire.priority
    }

    /// The group it belongs to, if any.
    #[must_use]
    pub fn group(&self) -> Option<&str> {
        given(self.wire.group.as_str())
    }

    /// The dedup id it was published with, if any.
    #[must_use]
    pub fn dedup_id(&self) -> Option<&str> {
        given(self.wire.dedup_id.as_str())
    }

    /// Done: the message leaves the queue.
    pub fn ack(self) -> Settling {
        self.settle(Verdict::Ack)
    }

    /// Failed: the message comes again, by its queue's backoff policy. The
    /// reason, up to 1,024 bytes, is shown to its next holder.
    pub fn nack(self, reason: impl Into<String>) -> Settling {
        self.settle(Verdict::Nack {
            delay: None,
            reason: reason.into(),
        })
    }

    /// Failed: the message comes again after `delay`.
    pub fn nack_after(self, delay: Duration, reason: impl Into<String>) -> Settling {
        self.settle(Verdict::Nack {
            delay: Some(delay),
            reason: reason.into(),
        })
    }

    /// Given back untouched: this does not count as an attempt.
    pub fn release(self) -> Settling {
        self.settle(Verdict::Release)
    }

    /// Never again: to the dead-letter queue, or the queue's dead set.
    pub fn dead_letter(self, reason: impl Into<String>) -> Settling {
        self.settle(Verdict::DeadLetter {
            reason: reason.into(),
        })
    }

    /// Lets the lease end `lease` from now instead.
    ///
    /// # Errors
    ///
    /// Refused with `STALE_LEASE` if the lease had already ended: someone else
    /// may work on the message by now. Unknown; unreachable.
    pub async fn extend(&mut self, lease: Duration) -> Result<()> {
        let (order, settling) = self.order(Verdict::Extend { lease: Some(lease) });
        self.origin.place(order);
        self.extended(Some(&settling.await?));
        Ok(())
    }

    /// The lease was extended.
    pub(crate) fn extended(&mut self, settled: Option<&Settled>) {
        if let Some(until) = settled.and_then(|settled| settled.leased_until_ms) {
            self.wire.leased_until_ms = until;
        }
    }

    /// It was settled by a transaction, past its consumer.
    pub(crate) fn settled(&mut self) {
        if let Origin::Consumed(origin) = &self.origin {
            let _ = origin.notices.send(Notice::Settled(self.wire.fence));
        }
        self.settled = true;
    }

    pub(crate) fn client(&self) -> Client {
        match &self.origin {
            Origin::Leased(client) => client.clone(),
            Origin::Consumed(origin) => origin.client.clone(),
        }
    }

    fn settle(mut self, verdict: Verdict) -> Settling {
        let (order, settling) = self.order(verdict);
        self.origin.place(order);
        self.settled = true;
        settling
    }

    fn order(&mut self, verdict: Verdict) -> (Order, Settling) {
        let (reply, receiver) = oneshot::channel();
        let settlement = wire(self.wire.token.clone(), verdict);
        (
            Order {
                settlement,
                fence: self.wire.fence,
                reply,
            },
            Settling { reply: receiver },
        )
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Origin::Consumed(origin) = &self.origin
            && !self.settled
        {
            let _ = origin.notices.send(Notice::Dropped(self.wire.fence));
        }
    }
}

impl Origin {
    fn place(&self, order: Order) {
        match self {
            Origin::Leased(client) => client.place(order),
            Origin::Consumed(origin) => {
                let sent = origin.notices.send(Notice::Settle(order));
                if let Err(mpsc::error::SendError(Notice::Settle(order))) = sent {
                    origin.client.place(order);
                }
            }
        }
    }
}

impl Future for Settling {
    type Output = Result<Settled>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let reply = ready!(Pin::new(&mut self.reply).poll(context));
        Poll::Ready(reply.unwrap_or_else(|_| Err(unknown("the client was shut down".to_owned()))))
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("message_id", &self.wire.message_id)
            .field("queue", &self.wire.queue)
            .field("token", &self.wire.token)
            .field("attempt", &self.wire.attempt)
            .field("bytes", &self.wire.body.len())
            .finish_non_exhaustive()
    }
}
