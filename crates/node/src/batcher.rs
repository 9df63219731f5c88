//! Merges the requests of all clients into log entries.
//!
//! One task owns the order: what is submitted first is in the log first. While
//! fewer than [`Limits::entries_in_flight`] entries are under way, whatever
//! waits becomes the next one at once; while that many are under way, requests
//! gather. So a single caller pays one round, and many callers share one.
//!
//! When full: callers wait for room ([`Limits::proposal_bytes`]) up to their
//! deadline and are then refused as overloaded.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use quorate_core::command::{Command, Publish, Request, Selector, Settlement, Verdict};
use quorate_core::ids::Timestamp;
use quorate_core::outcome::Outcome;
use quorate_core::{Repeated, batch};
use quorate_mutants::mutant;
use quorate_raft::{Consensus, Leadership, ProposeError, Proposed};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::broker::Position;
use crate::clock::ClusterClock;
use crate::config::Limits;
use crate::error::BrokerError;
use crate::guess;
use crate::metrics::Counters;

/// Requests of one caller that go into one entry, in order.
pub(crate) struct Proposal {
    pub(crate) requests: Vec<Request>,
    pub(crate) contents: Vec<Bytes>,
}

impl Proposal {
    /// Bytes of contents, and of texts in the commands that have no small bound.
    fn bytes(&self) -> usize {
        let contents: usize = self.contents.iter().map(Bytes::len).sum();
        let texts: usize = self
            .requests
            .iter()
            .map(|request| text_bytes(&request.command))
            .sum();
        contents + texts
    }
}

fn text_bytes(command: &Command) -> usize {
    match command {
        Command::Publish(publish) => label_bytes(publish),
        Command::Settle { settlements } => reason_bytes(settlements),
        Command::Transact {
            settlements,
            publishes,
        } => reason_bytes(settlements) + publishes.iter().map(label_bytes).sum::<usize>(),
        Command::Operate { messages, .. } => messages.iter().map(selector_bytes).sum(),
        _ => 0,
    }
}

fn label_bytes(publish: &Publish) -> usize {
    let labels = publish
        .messages
        .iter()
        .filter_map(|message| message.labels.as_ref());
    labels
        .map(|labels| {
            let headers = labels.headers.iter();
            let headers: usize = headers.map(|(name, value)| name.len() + value.len()).sum();
            labels.routing_key.len() + labels.group.len() + labels.dedup_id.len() + headers
        })
        .sum()
}

fn selector_bytes(selector: &Selector) -> usize {
    match selector {
        Selector::Message(id) => size_of_val(id),
        Selector::DedupId(id) => id.len(),
    }
}

fn reason_bytes(settlements: &[Settlement]) -> usize {
    let reasons = settlements.iter().map(|settlement| match &settlement.verdict {
        Verdict::Nack { reason, .. } | Verdict::DeadLetter { reason } => reason.len(),
        Verdict::Ack | Verdict::Release | Verdict::Extend { .. } => 0,
    });
    reasons.sum()
}

/// Requests that were applied.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    /// Index of their entry.
    pub index: u64,
    /// Term of the leader that proposed it.
    pub term: u64,
    /// Cluster time of the entry.
    pub at: Timestamp,
    /// One for each request, in order.
    pub outcomes: Vec<Outcome>,
    /// Those of them that had been executed before, in order.
    pub repeated: Vec<Repeated>,
}

impl Committed {
    /// The outcome of a proposal of one request, and where that was executed.
    pub(crate) fn into_answer(self) -> (Position, Outcome) {
        let mut answers = self.into_answers();
        answers.next().expect("one outcome for one request")
    }

    /// The outcomes in order, each with where in the log its request was executed.
    pub(crate) fn into_answers(self) -> impl Iterator<Item = (Position, Outcome)> {
        let Self { index, term, at, .. } = self;
        let mut repeated = self.repeated.into_iter().peekable();
        (0..).zip(self.outcomes).map(move |(ordinal, outcome)| {
            let (index, at) = match repeated.next_if(|next| next.ordinal == ordinal) {
                Some(before) => (before.index, before.at),
                None => (index, at),
            };
            (Position { index, term, at }, outcome)
        })
    }
}

type Answer = Result<Committed, BrokerError>;

struct Waiting {
    proposal: Proposal,
    /// See [`Proposal::bytes`].
    bytes: usize,
    deadline: Instant,
    reply: oneshot::Sender<Answer>,
    room: OwnedSemaphorePermit,
}

/// The way in.
#[derive(Clone)]
pub(crate) struct Batcher {
    queue: mpsc::Sender<Waiting>,
    room: Arc<Semaphore>,
    room_bytes: usize,
}

/// What a request costs beside its contents, for the bound on what waits.
const REQUEST_BYTES: usize = 256;
/// Calls that may wait; their bytes are bounded as well.
const QUEUE_CALLS: usize = 65_536;

impl Batcher {
    /// Starts the task. It ends when the last handle is dropped.
    pub(crate) fn start(
        consensus: Consensus,
        clock: Arc<ClusterClock>,
        counters: Arc<Counters>,
        limits: Limits,
    ) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE_CALLS);
        let room_bytes = limits.proposal_bytes;
        let room = Arc::new(Semaphore::new(room_bytes));
        let leadership = consensus.leadership();
        let task = Task {
            consensus,
            clock,
            counters,
            limits,
            role: Role::Following(None),
            waiting: VecDeque::new(),
            in_flight: FuturesUnordered::new(),
        };
        tokio::spawn(task.run(waiting, leadership));
        Self {
            queue,
            room,
            room_bytes,
        }
    }

    /// Hands requests in, waiting for room up to the deadline. What is handed in
    /// first is in the log first.
    pub(crate) async fn submit(
        &self,
        proposal: Proposal,
        deadline: Instant,
    ) -> Result<Submitted, BrokerError> {
        let bytes = proposal.bytes();
        let held = bytes + proposal.requests.len() * REQUEST_BYTES;
        let permits = u32::try_from(held.min(self.room_bytes)).unwrap_or(u32::MAX);
        let room = match self.room.clone().try_acquire_many_owned(permits) {
            Ok(room) => room,
            Err(_) => {
                let room = self.room.clone().acquire_many_owned(permits);
                tokio::time::timeout_at(deadline, room)
                    .await
                    .map_err(|_| BrokerError::Overloaded)?
                    .map_err(|_| BrokerError::ShuttingDown)?
            }
        };
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting {
            proposal,
            bytes,
            deadline,
            reply,
            room,
        };
        self.queue
            .send(waiting)
            .await
            .map_err(|_| BrokerError::ShuttingDown)?;
        Ok(Submitted { answer, deadline })
    }

    /// Proposes requests and waits until they are applied.
    pub(crate) async fn propose(&self, proposal: Proposal, deadline: Instant) -> Answer {
        self.submit(proposal, deadline).await?.answer().await
    }
}

/// Requests that are on their way.
pub(crate) struct Submitted {
    answer: oneshot::Receiver<Answer>,
    deadline: Instant,
}

impl Submitted {
    /// Waits until they are applied, or until their fate is unknown.
    pub(crate) async fn answer(self) -> Answer {
        match tokio::time::timeout_at(self.deadline, self.answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(BrokerError::Unknown(
                "the node stopped while it was in flight".to_owned(),
            )),
            Err(_) if mutant!("time-out-is-refused") => Err(BrokerError::Overloaded),
            Err(_) => Err(BrokerError::Unknown(
                "the deadline passed while it was in flight".to_owned(),
            )),
        }
    }
}

enum Role {
    /// Not leading: everybody is told who does.
    Following(Option<quorate_raft::LeaderInfo>),
    /// Leading, but cluster time is not known yet: requests gather.
    Starting(Leadership, BoxFuture<'static, Option<Timestamp>>),
    /// Leading.
    Leading(Leadership),
}

struct Task {
    consensus: Consensus,
    clock: Arc<ClusterClock>,
    counters: Arc<Counters>,
    limits: Limits,
    role: Role,
    waiting: VecDeque<Waiting>,
    in_flight: FuturesUnordered<BoxFuture<'static, ()>>,
}

impl Task {
    async fn run(
        mut self,
        mut queue: mpsc::Receiver<Waiting>,
        mut leadership: tokio::sync::watch::Receiver<Leadership>,
    ) {
        let mut arrived = Vec::new();
        let current = leadership.borrow_and_update().clone();
        self.take_role(current);
        loop {
            tokio::select! {
                biased;
                changed = leadership.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let current = leadership.borrow_and_update().clone();
                    self.take_role(current);
                }
                Some(()) = self.in_flight.next(), if !self.in_flight.is_empty() => {}
                sample = starting(&mut self.role) => self.start_clock(sample),
                count = queue.recv_many(&mut arrived, 1024) => {
                    if count == 0 {
                        return;
                    }
                    self.waiting.extend(arrived.drain(..));
                }
            }
            self.submit();
        }
    }

    fn take_role(&mut self, now: Leadership) {
        match (&self.role, now.leading) {
            (Role::Leading(then) | Role::Starting(then, _), true) if then.epoch == now.epoch => {}
            (_, true) => {
                self.clock.stop();
                let consensus = self.consensus.clone();
                let sample = Box::pin(async move { consensus.quorum_clock().await });
                self.role = Role::Starting(now, sample);
            }
            (_, false) => {
                self.clock.stop();
                self.role = Role::Following(now.leader);
            }
        }
    }

    fn start_clock(&mut self, sample: Option<Timestamp>) {
        let Role::Starting(leadership, _) = std::mem::replace(&mut self.role, Role::Following(None)) else {
            return;
        };
        let Some(sample) = sample else {
            // Without a quorum of clocks there is no quorum to commit either.
            warn!(
                term = leadership.term,
                "no quorum answered a clock sample; asking again"
            );
            self.take_role(leadership);
            return;
        };
        let applied = self.consensus.with_state(quorate_core::Broker::now);
        let base = applied.max(sample);
        info!(term = leadership.term, cluster_time_ms = base.0, "leading");
        self.clock.start(base);
        self.role = Role::Leading(leadership);
    }

    fn submit(&mut self) {
        match &self.role {
            Role::Starting(..) => {}
            Role::Following(leader) => {
                // Elected, and not confirmed yet: nobody leads.
                let here = self.consensus.node_id();
                let leader = leader.as_ref().filter(|leader| leader.node_id != here);
                for waiting in self.waiting.drain(..) {
                    let error = leader
                        .cloned()
                        .map_or(BrokerError::NoLeader, BrokerError::NotLeader);
                    let _ = waiting.reply.send(Err(error));
                }
            }
            Role::Leading(leadership) => {
                let leadership = leadership.clone();
                while !self.waiting.is_empty() && self.in_flight.len() < self.limits.entries_in_flight {
                    self.submit_entry(&leadership);
                }
            }
        }
    }

    fn submit_entry(&mut self, leadership: &Leadership) {
        let Some(at) = self.clock.now() else { return };
        let now = Instant::now();
        let (mut requests, mut contents) = (Vec::new(), Vec::new());
        let mut callers: Vec<(usize, oneshot::Sender<Answer>, OwnedSemaphorePermit)> = Vec::new();
        let mut bytes = 0;
        while let Some(waiting) = self.waiting.front() {
            let fits = bytes + waiting.bytes <= self.limits.entry_bytes
                && requests.len() + waiting.proposal.requests.len() <= self.limits.entry_requests;
            if !fits && !requests.is_empty() {
                break;
            }
            let waiting = self.waiting.pop_front().expect("there is a front");
            if waiting.deadline <= now {
                let _ = waiting.reply.send(Err(BrokerError::Overloaded));
                continue;
            }
            bytes += waiting.bytes;
            callers.push((waiting.proposal.requests.len(), waiting.reply, waiting.room));
            requests.extend(waiting.proposal.requests);
            contents.extend(waiting.proposal.contents);
        }
        if requests.is_empty() {
            return;
        }
        if mutant!("ack-before-commit") {
            let index = self.consensus.status().last_log_index + 1;
            if let Some(outcomes) = guess::outcomes(&requests, index) {
                let (term, repeated) = (leadership.term, Vec::new());
                let proposed = Proposed {
                    index,
                    term,
                    outcomes,
                    repeated,
                };
                distribute(std::mem::take(&mut callers), at, Ok(proposed));
            }
        }
        let guessing = mutant!("ack-before-apply").then(|| requests.clone());
        let content_bytes = contents.iter().map(Bytes::len).sum();
        self.counters.entry(requests.len(), content_bytes);
        let entry = batch::encode(at, &requests, &contents);
        drop((requests, contents));
        let proposed = self.consensus.propose(entry, leadership.epoch);
        self.in_flight.push(Box::pin(async move {
            let mut proposed = proposed.await;
            if let (Ok(proposed), Some(requests)) = (&mut proposed, guessing) {
                guess::replace(proposed, &requests);
            }
            distribute(callers, at, proposed);
        }));
    }
}

/// The clock sample of a leadership that starts; never ready otherwise.
async fn starting(role: &mut Role) -> Option<Timestamp> {
    match role {
        Role::Starting(_, sample) => sample.await,
        _ => std::future::pending().await,
    }
}

fn distribute(
    callers: Vec<(usize, oneshot::Sender<Answer>, OwnedSemaphorePermit)>,
    at: Timestamp,
    result: Result<Proposed, ProposeError>,
) {
    match result {
        Ok(proposed) => {
            let mut outcomes = proposed.outcomes.into_iter();
            let mut repeated = proposed.repeated.into_iter().peekable();
            let mut first = 0;
            for (count, reply, _) in callers {
                let outcomes: Vec<_> = outcomes.by_ref().take(count).collect();
                assert_eq!(outcomes.len(), count, "apply answers every request of an entry");
                let end = first + u32::try_from(count).expect("an entry has less than 4 GiB");
                let its = std::iter::from_fn(|| repeated.next_if(|next| next.ordinal < end));
                let repeated = its
                    .map(|next| Repeated {
                        ordinal: next.ordinal - first,
                        ..next
                    })
                    .collect();
                first = end;
                let _ = reply.send(Ok(Committed {
                    index: proposed.index,
                    term: proposed.term,
                    at,
                    outcomes,
                    repeated,
                }));
            }
        }
        Err(error) => {
            let error = BrokerError::from(error);
            for (_, reply, _) in callers {
                let _ = reply.send(Err(error.clone()));
            }
        }
    }
}

impl From<ProposeError> for BrokerError {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::NotLeader { leader: Some(leader) } => Self::NotLeader(leader),
            ProposeError::NotLeader { leader: None } => Self::NoLeader,
            ProposeError::Unknown(why) => Self::Unknown(why),
            ProposeError::Fatal(why) => Self::Internal(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_core::outcome::Reply;

    use super::*;

    #[test]
    fn each_caller_is_told_where_its_own_requests_stand() {
        let room = Arc::new(Semaphore::new(3));
        let (mut callers, mut answers) = (Vec::new(), Vec::new());
        for count in [2, 1, 3] {
            let (reply, answer) = oneshot::channel();
            callers.push((count, reply, room.clone().try_acquire_owned().unwrap()));
            answers.push(answer);
        }
        let repeated = |ordinal, index| Repeated {
            ordinal,
            index,
            at: Timestamp(index * 10),
        };
        let proposed = Proposed {
            index: 9,
            term: 2,
            outcomes: vec![Ok(Reply::Done); 6],
            repeated: vec![repeated(1, 4), repeated(3, 5), repeated(5, 6)],
        };
        distribute(callers, Timestamp(95), Ok(proposed));
        let told = answers.into_iter().map(|mut answer| {
            let answers = answer.try_recv().unwrap().unwrap().into_answers();
            let places = answers.map(|(position, _)| (position.index, position.term, position.at.0));
            places.collect::<Vec<_>>()
        });
        assert_eq!(
            told.collect::<Vec<_>>(),
            [
                vec![(9, 2, 95), (4, 2, 40)],
                vec![(9, 2, 95)],
                vec![(5, 2, 50), (9, 2, 95), (6, 2, 60)],
            ]
        );
    }
}
