//! Settlements and publishes that happen together, or not at all.

use std::time::Duration;

use quorate_proto::v1;

use crate::client::Client;
use crate::delivery::Delivery;
use crate::error::{Error, Result};
use crate::message::{
    Commit, Message, PUBLISH_BYTES_MAX, PUBLISH_MESSAGES_MAX, Published, body_bytes, commit,
};
use crate::request_id::RequestId;
use crate::settle::{SETTLE_MAX, Settled, Verdict, is_extend, wire};
use crate::target::Target;

/// Settles leases and publishes messages as one command.
///
/// It is done as a whole, or refused as a whole with
/// [`Reason::TransactionRefused`](crate::Reason::TransactionRefused): a lease is
/// stale, a queue is full or missing, a mandatory message has no route.
/// [`Refusal::refused_part`](crate::Refusal::refused_part) names the part. Then
/// every lease is as it was, and the deliveries can still be settled otherwise.
///
/// ```no_run
/// use quorate_client::Target;
///
/// # async fn example(client: quorate_client::Client) -> quorate_client::Result<()> {
/// for mut delivery in client.lease("resize").send().await? {
///     let resized = delivery.body().slice(..);
///     let committed = delivery
///         .ack_and()
///         .publish("upload", resized)
///         .publish(Target::exchange("progress"), "resized")
///         .commit()
///         .await;
///     if let Err(error) = committed {
///         delivery.nack(error.to_string()).await?;
///     }
/// }
/// # Ok(()) }
/// ```
///
/// With an unknown outcome it was done, or not, as a whole: if not, its leases
/// run out, and the messages come again.
#[derive(Debug)]
#[must_use = "nothing happens until `commit` is called"]
pub struct Transaction<'a> {
    client: Client,
    settlements: Vec<v1::Settlement>,
    /// Each with its place among the settlements.
    deliveries: Vec<(usize, &'a mut Delivery)>,
    publishes: Vec<(Target, Vec<Message>)>,
}

/// A lease that takes part in a [`Transaction`]: the delivery itself, or its
/// token.
#[derive(Debug)]
pub enum Held<'a> {
    /// Counts as settled once the transaction is done.
    Delivery(&'a mut Delivery),
    /// A [token](Delivery::token).
    Token(String),
}

/// The answer to a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transacted {
    /// Where in the log all of it stands.
    pub commit: Commit,
    /// One for each settlement, in the order of the calls.
    pub settled: Vec<Settled>,
    /// One for each publish, in the order of the calls.
    pub published: Vec<Published>,
    /// The id of the request.
    pub request_id: Option<RequestId>,
}

impl Client {
    /// An empty transaction: up to 4,096 settlements, and up to 4,096 messages
    /// of together 16 MiB.
    pub fn transaction<'a>(&self) -> Transaction<'a> {
        Transaction {
            client: self.clone(),
            settlements: Vec::new(),
            deliveries: Vec::new(),
            publishes: Vec::new(),
        }
    }
}

impl Delivery {
    /// A transaction that acks this delivery.
    pub fn ack_and(&mut self) -> Transaction<'_> {
        self.client().transaction().ack(self)
    }
}

impl<'a> Transaction<'a> {
    /// Done: the message leaves its queue.
    pub fn ack(self, lease: impl Into<Held<'a>>) -> Self {
        self.settle(lease, Verdict::Ack)
    }

    /// Failed: the message comes again, after `delay` or, without one, by its
    /// queue's backoff policy. The reason has up to 1,024 bytes.
    pub fn nack(
        self,
        lease: impl Into<Held<'a>>,
        delay: Option<Duration>,
        reason: impl Into<String>,
    ) -> Self {
        let reason = reason.into();
        self.settle(lease, Verdict::Nack { delay, reason })
    }

    /// Given back without counting an attempt.
    pub fn release(self, lease: impl Into<Held<'a>>) -> Self {
        self.settle(lease, Verdict::Release)
    }

    /// Never again: to the dead-letter target, or the queue's dead set.
    pub fn dead_letter(self, lease: impl Into<Held<'a>>, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        self.settle(lease, Verdict::DeadLetter { reason })
    }

    /// Lets the lease end `lease_time` from now, or, without one, after its
    /// queue's default.
    pub fn extend(self, lease: impl Into<Held<'a>>, lease_time: Option<Duration>) -> Self {
        self.settle(lease, Verdict::Extend { lease: lease_time })
    }

    /// Settles a lease, each at most once.
    pub fn settle(mut self, lease: impl Into<Held<'a>>, verdict: Verdict) -> Self {
        let token = match lease.into() {
            Held::Token(token) => token,
            Held::Delivery(delivery) => {
                let token = delivery.token().to_owned();
                self.deliveries.push((self.settlements.len(), delivery));
                token
            }
        };
        self.settlements.push(wire(token, verdict));
        self
    }

    /// Publishes a message to a queue or an exchange.
    pub fn publish(self, target: impl Into<Target>, message: impl Into<Message>) -> Self {
        self.publish_all(target, [message.into()])
    }

    /// Publishes several messages to a queue or an exchange.
    pub fn publish_all<I>(mut self, target: impl Into<Target>, messages: I) -> Self
    where
        I: IntoIterator<Item = Message>,
    {
        let messages = messages.into_iter().collect();
        self.publishes.push((target.into(), messages));
        self
    }

    /// Carries it out: all of it, or nothing.
    ///
    /// # Errors
    ///
    /// Refused with `TRANSACTION_REFUSED`; invalid if it is empty or over a
    /// limit; unknown; unreachable.
    pub async fn commit(self) -> Result<Transacted> {
        self.check()?;
        let mut publishes = Vec::with_capacity(self.publishes.len());
        for (target, messages) in self.publishes {
            publishes.push(target.request(Message::into_wire(messages)?));
        }
        let extends: Vec<bool> = self.settlements.iter().map(is_extend).collect();
        let request = v1::TransactRequest {
            request_id: None,
            settlements: self.settlements,
            publishes,
        };
        let (answer, request_id) = self.client.call_named(request).await?;
        let transacted = Transacted::new(answer, request_id);
        for (place, delivery) in self.deliveries {
            if extends[place] {
                delivery.extended(transacted.settled.get(place));
            } else {
                delivery.settled();
            }
        }
        Ok(transacted)
    }

    fn check(&self) -> Result<()> {
        let settlements = self.settlements.len();
        let messages: usize = self.publishes.iter().map(|(_, messages)| messages.len()).sum();
        let bytes: usize = self
            .publishes
            .iter()
            .map(|(_, messages)| body_bytes(messages))
            .sum();
        let fault = if settlements == 0 && messages == 0 {
            "a transaction settles or publishes something".to_owned()
        } else if settlements > SETTLE_MAX {
            format!("one transaction settles up to {SETTLE_MAX} leases, not {settlements}")
        } else if messages > PUBLISH_MESSAGES_MAX {
            format!("one transaction publishes up to {PUBLISH_MESSAGES_MAX} messages, not {messages}")
        } else if bytes > PUBLISH_BYTES_MAX {
            format!("one transaction publishes up to {PUBLISH_BYTES_MAX} bytes of bodies, not {bytes}")
        } else {
            return Ok(());
        };
        Err(Error::Invalid(fault))
    }
}

impl<'a> From<&'a mut Delivery> for Held<'a> {
    fn from(delivery: &'a mut Delivery) -> Self {
        Held::Delivery(delivery)
    }
}

impl From<String> for Held<'_> {
    fn from(token: String) -> Self {
        Held::Token(token)
    }
}

impl From<&str> for Held<'_> {
    fn from(token: &str) -> Self {
        Held::Token(token.to_owned())
    }
}

impl From<&String> for Held<'_> {
    fn from(token: &String) -> Self {
        Held::Token(token.clone())
    }
}

impl Transacted {
    fn new(wire: v1::TransactResponse, request_id: Option<RequestId>) -> Self {
        let commit = commit(wire.commit);
        let published = wire.published.into_iter().map(|published| Published {
            commit,
            request_id,
            ..published.into()
        });
        let settled = wire.settled.iter();
        Self {
            commit,
            settled: settled
                .map(|settled| Settled::new(settled, commit, request_id))
                .collect(),
            published: published.collect(),
            request_id,
        }
    }
}
