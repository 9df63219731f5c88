//! Ending or extending leases by their tokens.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quorate_proto::v1;
use tokio::sync::{mpsc, oneshot};

use crate::client::Client;
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::message::{Commit, commit, millis, nonzero};
use crate::request_id::RequestId;

/// The most settlements of one request.
pub const SETTLE_MAX: usize = 4_096;

/// What to do with a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Done: the message leaves the queue.
    Ack,
    /// Failed: it counts as an attempt, and the message comes again.
    Nack {
        /// Ready again after this. None = the queue's backoff policy.
        delay: Option<Duration>,
        /// Kept as the message's last error: up to 1,024 bytes.
        reason: String,
    },
    /// Given back untouched: it does not count as an attempt.
    Release,
    /// Never again: to the dead-letter queue, or the queue's dead set.
    DeadLetter {
        /// Kept as the message's last error.
        reason: String,
    },
    /// The lease ends this much cluster time from now instead. None = the
    /// queue's default.
    Extend {
        /// 100 ms to 12 h.
        lease: Option<Duration>,
    },
}

/// One settlement was carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// After an extend: when the lease now ends, in cluster time, milliseconds
    /// since the Unix epoch.
    pub leased_until_ms: Option<u64>,
    /// Where in the log it stands.
    pub commit: Commit,
    /// The id of the request, in which others may have been settled too.
    pub request_id: Option<RequestId>,
}

/// What came of each settlement of a request, in its order. A refusal, most
/// often [`Reason::StaleLease`](crate::Reason::StaleLease), concerns that one
/// alone.
pub type SettleResults = Vec<Result<Settled>>;

impl Client {
    /// Settles leases by their tokens: 1 to 4,096, each by itself.
    ///
    /// # Errors
    ///
    /// The call as a whole: invalid, if their number is out of bounds; unknown;
    /// unreachable. What the broker says to each lease is in the results.
    pub async fn settle<I, T>(&self, settlements: I) -> Result<SettleResults>
    where
        I: IntoIterator<Item = (T, Verdict)>,
        T: Into<String>,
    {
        let settlements = settlements
            .into_iter()
            .map(|(token, verdict)| wire(token.into(), verdict));
        self.settle_wire(settlements.collect()).await
    }

    /// Done: the messages leave their queues. See [`settle`](Self::settle).
    ///
    /// # Errors
    ///
    /// Those of [`settle`](Self::settle).
    pub async fn ack<I>(&self, tokens: I) -> Result<SettleResults>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.settle_all(tokens, Verdict::Ack).await
    }

    /// Failed: the messages come again, after `delay` or, without one, by their
    /// queue's backoff policy. See [`settle`](Self::settle).
    ///
    /// # Errors
    ///
    /// Those of [`settle`](Self::settle).
    pub async fn nack<I>(
        &self,
        tokens: I,
        delay: Option<Duration>,
        reason: impl Into<String>,
    ) -> Result<SettleResults>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.settle_all(
            tokens,
            Verdict::Nack {
                delay,
                reason: reason.into(),
            },
        )
        .await
    }

    /// Gives messages back without counting an attempt. See
    /// [`settle`](Self::settle).
    ///
    /// # Errors
    ///
    /// Those of [`settle`](Self::settle).
    pub async fn release<I>(&self, tokens: I) -> Result<SettleResults>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.settle_all(tokens, Verdict::Release).await
    }

    /// Takes messages out of circulation. See [`settle`](Self::settle).
    ///
    /// # Errors
    ///
    /// Those of [`settle`](Self::settle).
    pub async fn dead_letter<I>(&self, tokens: I, reason: impl Into<String>) -> Result<SettleResults>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.settle_all(
            tokens,
            Verdict::DeadLetter {
                reason: reason.into(),
            },
        )
        .await
    }

    /// Lets leases end `lease` from now, or, without one, after their queue's
    /// default. See [`settle`](Self::settle).
    ///
    /// # Errors
    ///
    /// Those of [`settle`](Self::settle).
    pub async fn extend<I>(&self, tokens: I, lease: Option<Duration>) -> Result<SettleResults>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.settle_all(tokens, Verdict::Extend { lease }).await
    }

    async fn settle_all<I>(&self, tokens: I, verdict: Verdict) -> Result<SettleResults>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        let settlements = tokens
            .into_iter()
            .map(|token| wire(token.into(), verdict.clone()));
        self.settle_wire(settlements.collect()).await
    }

    async fn settle_wire(&self, settlements: Vec<v1::Settlement>) -> Result<SettleResults> {
        if settlements.is_empty() || settlements.len() > SETTLE_MAX {
            let count = settlements.len();
            return Err(Error::Invalid(format!(
                "one request settles 1 to {SETTLE_MAX} leases, not {count}"
            )));
        }
        let count = settlements.len();
        let (answer, request_id) = self
            .call_named(v1::SettleRequest {
                request_id: None,
                settlements,
            })
            .await?;
        Ok(results(answer, count, request_id).collect())
    }
}

pub(crate) fn wire(token: String, verdict: Verdict) -> v1::Settlement {
    use v1::settlement::Verdict as Wire;
    let verdict = match verdict {
        Verdict::Ack => Wire::Ack(v1::Ack {}),
        Verdict::Nack { delay, reason } => Wire::Nack(v1::Nack {
            delay_ms: delay.map(millis),
            reason,
        }),
        Verdict::Release => Wire::Release(v1::Release {}),
        Verdict::DeadLetter { reason } => Wire::DeadLetter(v1::DeadLetter { reason }),
        Verdict::Extend { lease } => Wire::Extend(v1::Extend {
            lease_ms: lease.map_or(0, millis),
        }),
    };
    v1::Settlement {
        token,
        verdict: Some(verdict),
    }
}

/// The lease goes on after this settlement.
pub(crate) fn is_extend(settlement: &v1::Settlement) -> bool {
    matches!(settlement.verdict, Some(v1::settlement::Verdict::Extend(_)))
}

impl Settled {
    pub(crate) fn new(wire: &v1::SettleResult, commit: Commit, request_id: Option<RequestId>) -> Self {
        Self {
            leased_until_ms: nonzero(wire.leased_until_ms),
            commit,
            request_id,
        }
    }
}

/// What the broker said to one part of a request, which stays as it is.
pub(crate) fn error_of(detail: v1::ErrorDetail, action: &'static str) -> Error {
    match Failure::from_detail(detail) {
        Failure::Final(refusal) | Failure::Forgotten(refusal) | Failure::SessionLost(refusal) => {
            refusal.into()
        }
        Failure::Again(again) => Error::Unknown {
            action,
            cause: again.cause,
            request_id: None,
        },
    }
}

/// One result for each of `count` settlements.
pub(crate) fn results(
    answer: v1::SettleResponse,
    count: usize,
    request_id: Option<RequestId>,
) -> impl Iterator<Item = Result<Settled>> {
    let commit = commit(answer.commit);
    let named = move |error: Error| match request_id {
        Some(id) => error.of(id),
        None => error,
    };
    let told = answer.results.into_iter().map(move |result| match result.error {
        None => Ok(Settled::new(&result, commit, request_id)),
        Some(detail) => Err(named(error_of(detail, "settle"))),
    });
    let untold =
        std::iter::repeat_with(move || Err(named(unknown("the broker's answer does not tell".to_owned()))));
    told.chain(untold).take(count)
}

pub(crate) fn unknown(cause: String) -> Error {
    Error::Unknown {
        action: "settle",
        cause,
        request_id: None,
    }
}

/// A settlement that was asked for, and who wants to know what came of it.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) settlement: v1::Settlement,
    /// See [`Delivery::fence`](crate::Delivery::fence): identifies the lease.
    pub(crate) fence: u64,
    pub(crate) reply: oneshot::Sender<Result<Settled>>,
}

impl Order {
    pub(crate) fn answer(self, result: Result<Settled>) {
        // Nobody has to listen.
        let _ = self.reply.send(result);
    }

    /// The lease goes on after this settlement.
    pub(crate) fn is_extend(&self) -> bool {
        is_extend(&self.settlement)
    }
}

/// Carries out settlements of leased deliveries, those that come together in
/// one request. Its task starts with the first order and ends with the last
/// handle.
#[derive(Debug, Default)]
pub(crate) struct SettleDesk {
    /// Unbounded, and bounded by the leases that this process holds: each has
    /// one settlement, and an extend waits for its answer.
    orders: Mutex<Option<mpsc::UnboundedSender<Order>>>,
}

impl SettleDesk {
    pub(crate) fn place(&self, client: &Client, order: Order) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let order = match &*orders {
            None => order,
            Some(sender) => match sender.send(order) {
                Ok(()) => return,
                Err(mpsc::error::SendError(order)) => order,
            },
        };
        let (sender, receiver) = mpsc::unbounded_channel();
        let _ = sender.send(order);
        *orders = Some(sender);
        tokio::spawn(carry_out(client.without_desk(), receiver));
    }
}

async fn carry_out(client: Client, mut receiver: mpsc::UnboundedReceiver<Order>) {
    let mut orders = Vec::new();
    while receiver.recv_many(&mut orders, SETTLE_MAX).await > 0 {
        let settlements = orders.iter().map(|order| order.settlement.clone()).collect();
        match client.settle_wire(settlements).await {
            Ok(results) => {
                for (order, result) in orders.drain(..).zip(results) {
                    order.answer(result);
                }
            }
            Err(error) => {
                for order in orders.drain(..) {
                    order.answer(Err(error.clone()));
                }
            }
        }
    }
}
