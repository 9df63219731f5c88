//! Leases that are pulled, and what becomes of leases.

use std::sync::atomic::Ordering;
use std::time::Duration;

use quorate_core::command::{Command, Request, Settlement, Verdict};
use quorate_core::effect::Leased;
use quorate_core::ids::{ClientId, Millis, QueueName, RequestId, Token};
use quorate_core::outcome::{Rejection, Reply, Settled};

use super::{Answered, Broker, Position, check_count, unexpected};
use crate::batcher::{Order, Proposal, Submitted};
use crate::content::Content;
use crate::error::BrokerError;
use crate::forward;

/// What a Lease asks for.
#[derive(Clone, Debug)]
pub struct LeaseOptions {
    /// The queue.
    pub queue: QueueName,
    /// 1 to 1,000.
    pub count_max: u32,
    /// None = the queue's default.
    pub lease: Option<Millis>,
    /// Wait this long for a first message.
    pub wait: Millis,
}

/// What a Lease got.
#[derive(Clone, Debug)]
pub struct Leases {
    /// Empty if nothing came in time.
    pub leased: Vec<Leased>,
    /// Where in the log they were granted: later than where the Lease stands if
    /// it waited.
    pub granted: Position,
}

impl Broker {
    /// Leases messages, waiting for a first one if asked to.
    pub async fn lease(&self, id: Option<RequestId>, options: LeaseOptions) -> Answered<Leases> {
        let id = id.unwrap_or_else(|| self.own_request_id());
        let wait = Duration::from_millis(options.wait.0);
        if !wait.is_zero() {
            self.announced().await?;
        }
        let mut waiter = self.dispatch().wait_for_lease(id);
        let command = Command::Lease {
            queue: options.queue,
            count_max: options.count_max,
            lease: options.lease,
            wait: options.wait,
            node: self.0.consensus.node_id(),
        };
        let (position, reply) = match self.one(Some(id), command).await {
            Ok(answered) => answered,
            Err(error) => {
                if !error.may_have_applied() {
                    waiter.settled();
                }
                return Err(error);
            }
        };
        match reply {
            Reply::Leased(leased) => {
                waiter.settled();
                let granted = position;
                Ok((position, Leases { leased, granted }))
            }
            Reply::Waiting => {
                let deadline = wait + self.0.limits.request_timeout;
                let mut leadership = self.0.consensus.leadership();
                tokio::select! {
                    biased;
                    answer = waiter.answer() => match answer {
                        Some((granted, leased)) => Ok((position, Leases { leased, granted })),
                        None => Err(BrokerError::Unknown("the request was repeated elsewhere".to_owned())),
                    },
                    // Deliveries would still come, but the client had better wait where the leader is.
                    _ = leadership.wait_for(|now| !now.leading) => {
                        Err(BrokerError::Unknown("leadership was lost while waiting".to_owned()))
                    }
                    () = tokio::time::sleep(deadline) => {
                        Err(BrokerError::Unknown("no answer in time".to_owned()))
                    }
                }
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Settles leases, each by itself; results in order.
    pub async fn settle(
        &self,
        id: Option<RequestId>,
        settlements: Vec<Settlement>,
    ) -> Answered<Vec<Result<Settled, Rejection>>> {
        self.submit_settle(id, settlements).await?.answer().await
    }

    /// The first half of [`settle`](Self::settle): what is handed in first is in
    /// the log first, whenever the answer is awaited.
    pub async fn submit_settle(
        &self,
        id: Option<RequestId>,
        settlements: Vec<Settlement>,
    ) -> Result<SubmittedSettle, BrokerError> {
        check_count("settlements", settlements.len())?;
        self.check_draining()?;
        let requests = vec![Request {
            id,
            command: Command::Settle { settlements },
        }];
        let proposal = Proposal {
            requests,
            contents: Vec::new(),
        };
        let order = Order::default();
        let submitted = self.0.batcher.submit(proposal, &order, self.deadline());
        Ok(SubmittedSettle(submitted.await?))
    }

    /// Properties and body of a leased message. None, and a line in the log, if
    /// they cannot be had: then the lease had better not be passed on. Its
    /// message is gone, or comes again when the lease ends.
    pub async fn content(&self, leased: &Leased) -> Option<Content> {
        match self.find_content(leased.message, leased.content_bytes).await {
            Ok(content) => Some(content),
            Err(error) => {
                tracing::warn!(message = %leased.message, queue = %leased.queue, %error, "not delivered");
                None
            }
        }
    }

    /// Gives back leases that came for callers who had gone.
    pub(crate) async fn release(&self, tokens: Vec<Token>) {
        let settlements = tokens
            .into_iter()
            .map(|token| Settlement {
                token,
                verdict: Verdict::Release,
            })
            .collect();
        let request = Request {
            id: None,
            command: Command::Settle { settlements },
        };
        forward::insist(self, request, Duration::from_secs(30)).await;
    }

    /// An id under which nothing is ever repeated; it only names a waiting call.
    /// Each client id serves a limited number of calls, as if it were new each
    /// time, so that it makes no difference when the state has forgotten it.
    fn own_request_id(&self) -> RequestId {
        const CALLS_PER_CLIENT: u64 = 1_000;
        let call = self.0.own_sequence.fetch_add(1, Ordering::Relaxed);
        RequestId {
            client: ClientId(self.0.own_client.0.wrapping_add(call / CALLS_PER_CLIENT).max(1)),
            sequence: call % CALLS_PER_CLIENT + 1,
            oldest_unanswered: 1,
        }
    }
}

/// Settlements that are on their way.
pub struct SubmittedSettle(Submitted);

impl SubmittedSettle {
    /// Waits until they are applied; results in order.
    pub async fn answer(self) -> Answered<Vec<Result<Settled, Rejection>>> {
        let (position, outcome) = self.0.answer().await?.into_answer();
        match outcome? {
            Reply::Settled(results) => Ok((position, results)),
            other => Err(unexpected(&other)),
        }
    }
}
