//! The handle that gateways use: one method per intent of a client.
//!
//! | file | what it is |
//! | --- | --- |
//! | `queues` | declare, update, purge, pause, delete, look |
//! | `exchanges` | the same for exchanges, and their bindings |
//! | `publish` | publishes to queues and exchanges |
//! | `leasing` | leases that are pulled, and settlements |
//! | `transact` | settlements and publishes as one |
//! | `sessions` | sessions, their consumers and credit |
//! | `browse` | messages and their contents, without touching them |
//! | `operate` | what an operator does with single messages; redrive and its undo |
//! | `cluster` | status, membership, readiness |

mod browse;
mod cluster;
mod exchanges;
mod leasing;
mod operate;
mod publish;
mod queues;
mod sessions;
mod transact;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use quorate_core::Broker as State;
use quorate_core::command::{Command, Request};
use quorate_core::ids::{ClientId, RequestId, Timestamp};
use quorate_core::outcome::Reply;
use quorate_raft::{Consensus, ReadError};
use tokio::sync::watch;
use tokio::time::Instant;

pub use self::browse::{Browse, Page, Seen};
pub use self::leasing::{LeaseOptions, Leases, SubmittedSettle};
pub use self::operate::{Redrive, Redriven, Undone};
pub use self::publish::{Publication, Publish, Published, SubmittedPublishes};
pub use self::queues::Explanation;
pub use self::sessions::ConsumerOptions;
pub use self::transact::Transacted;
use crate::batcher::{Batcher, Committed, Proposal};
use crate::clock::ClusterClock;
use crate::config::{Limits, MESSAGES_PER_REQUEST_MAX};
use crate::dispatch::Dispatch;
use crate::error::BrokerError;
use crate::forward;
use crate::journal::Journal;
use crate::metrics::{Counters, Flow};
use crate::observers::Observers;

/// A node's broker; a cheap clone.
#[derive(Clone)]
pub struct Broker(Arc<Inner>);

struct Inner {
    consensus: Consensus,
    batcher: Batcher,
    clock: Arc<ClusterClock>,
    observers: Arc<Observers>,
    counters: Arc<Counters>,
    limits: Limits,
    draining: AtomicBool,
    /// Set when leadership is handed over, or could not be: streams end now.
    closing: watch::Sender<bool>,
    /// Set when the state knows of this life of the node.
    announced: watch::Sender<bool>,
    /// Request ids for callers that bring none: see `own_request_id`.
    own_client: ClientId,
    own_sequence: AtomicU64,
}

/// Where in the log an answer stands: in the entry in which the request was
/// executed, which is an earlier one if it was repeated.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Index of the entry.
    pub index: u64,
    /// Term of the leader that answers. It is that of the entry unless the
    /// request was repeated.
    pub term: u64,
    /// Cluster time of the entry.
    pub at: Timestamp,
}

/// An answer, and where in the log it stands.
pub type Answered<T> = Result<(Position, T), BrokerError>;

impl Broker {
    pub(crate) fn new(consensus: Consensus, observers: Arc<Observers>, limits: Limits) -> Self {
        let clock = Arc::new(ClusterClock::new(consensus.clock().clone()));
        let counters = Arc::new(Counters::default());
        let batcher = Batcher::start(consensus.clone(), clock.clone(), counters.clone(), limits.clone());
        Self(Arc::new(Inner {
            consensus,
            batcher,
            clock,
            observers,
            counters,
            limits,
            draining: AtomicBool::new(false),
            closing: watch::Sender::new(false),
            announced: watch::Sender::new(false),
            own_client: ClientId(rand::random::<u64>().max(1)),
            own_sequence: AtomicU64::new(0),
        }))
    }

    /// Proposes on this node; refused with a redirect if it does not lead.
    pub(crate) async fn propose_here(
        &self,
        requests: Vec<Request>,
        contents: Vec<Bytes>,
        deadline: Instant,
    ) -> Result<Committed, BrokerError> {
        self.check_draining()?;
        self.0
            .batcher
            .propose(Proposal { requests, contents }, deadline)
            .await
    }

    /// Proposes here or, if another node leads, there.
    pub(crate) async fn propose_anywhere(
        &self,
        proposal: Proposal,
        deadline: Instant,
    ) -> Result<Committed, BrokerError> {
        let leading = self.0.consensus.leadership().borrow().leading;
        if leading {
            self.0.batcher.propose(proposal, deadline).await
        } else {
            forward::propose(self, &proposal, deadline).await
        }
    }

    async fn one(&self, id: Option<RequestId>, command: Command) -> Answered<Reply> {
        let (position, _, reply) = self.one_or_repeat(id, command).await?;
        Ok((position, reply))
    }

    /// The answer to one command. True: the request had been executed before.
    async fn one_or_repeat(
        &self,
        id: Option<RequestId>,
        command: Command,
    ) -> Result<(Position, bool, Reply), BrokerError> {
        let request = Request { id, command };
        let committed = self
            .propose_here(vec![request], Vec::new(), self.deadline())
            .await?;
        let repeated = !committed.repeated.is_empty();
        let (position, outcome) = committed.into_answer();
        Ok((position, repeated, outcome?))
    }

    /// A command that has nothing to tell.
    async fn done(&self, id: Option<RequestId>, command: Command) -> Answered<()> {
        let (position, _) = self.one(id, command).await?;
        Ok((position, ()))
    }

    /// Looks at the state as it is at the leader, or as it is here. The index
    /// is that of what the answer contains.
    async fn look<T>(&self, local: bool, look: impl FnOnce(&State) -> T) -> Result<(u64, T), BrokerError> {
        let index = if local { 0 } else { self.read_barrier().await? };
        let (applied, seen) = self.0.consensus.with_state(|state| (state.index(), look(state)));
        Ok((index.max(applied), seen))
    }

    async fn read_barrier(&self) -> Result<u64, BrokerError> {
        self.read_barrier_within(self.0.limits.request_timeout).await
    }

    async fn read_barrier_within(&self, patience: Duration) -> Result<u64, BrokerError> {
        match tokio::time::timeout(patience, self.0.consensus.read_barrier()).await {
            Ok(Ok(index)) => Ok(index),
            Ok(Err(ReadError::NotLeader { leader: Some(leader) })) => Err(BrokerError::NotLeader(leader)),
            Ok(Err(ReadError::NotLeader { leader: None })) | Err(_) => Err(BrokerError::NoLeader),
            Ok(Err(ReadError::Fatal(why))) => Err(BrokerError::Internal(why)),
        }
    }

    /// Stops serving: new requests are refused or redirected.
    pub(crate) fn start_draining(&self) {
        self.0.draining.store(true, Ordering::Release);
    }

    /// The state knows of this life of the node: from now on nothing that hangs
    /// on the node is taken for a leftover of an earlier one.
    pub(crate) fn set_announced(&self) {
        self.0.announced.send_replace(true);
    }

    async fn announced(&self) -> Result<(), BrokerError> {
        let mut announced = self.0.announced.subscribe();
        let known = announced.wait_for(|announced| *announced);
        match tokio::time::timeout(self.0.limits.request_timeout, known).await {
            Ok(_) => Ok(()),
            Err(_) => Err(BrokerError::NoLeader),
        }
    }

    /// Ends the streams that are still open.
    pub(crate) fn close_streams(&self) {
        self.0.closing.send_replace(true);
    }

    fn check_draining(&self) -> Result<(), BrokerError> {
        if !self.is_draining() {
            return Ok(());
        }
        let leader = self.0.consensus.leadership().borrow().leader.clone();
        Err(
            match leader.filter(|leader| leader.node_id != self.0.consensus.node_id()) {
                Some(leader) => BrokerError::NotLeader(leader),
                None => BrokerError::ShuttingDown,
            },
        )
    }

    fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Acquire)
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.0.limits.request_timeout
    }

    pub(crate) fn consensus(&self) -> &Consensus {
        &self.0.consensus
    }

    pub(crate) fn batcher(&self) -> &Batcher {
        &self.0.batcher
    }

    pub(crate) fn clock(&self) -> &ClusterClock {
        &self.0.clock
    }

    pub(crate) fn dispatch(&self) -> &Arc<Dispatch> {
        &self.0.observers.dispatch
    }

    pub(crate) fn journal(&self) -> &Arc<Journal> {
        &self.0.observers.journal
    }

    pub(crate) fn flow(&self) -> &Flow {
        &self.0.observers.flow
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.0.counters
    }
}

/// At least one, and no more than one request may have.
fn check_count(field: &'static str, count: usize) -> Result<(), BrokerError> {
    if (1..=MESSAGES_PER_REQUEST_MAX).contains(&count) {
        return Ok(());
    }
    let problem = format!("1 to {MESSAGES_PER_REQUEST_MAX}, not {count}");
    Err(BrokerError::Invalid { field, problem })
}

fn unexpected(reply: &Reply) -> BrokerError {
    BrokerError::Internal(format!(
        "the state machine answered something else than asked: {reply:?}"
    ))
}
