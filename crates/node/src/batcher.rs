//! Merges the requests of all clients into log entries.
//!
//! One task owns the order: what is submitted first is in the log first. While
//! fewer than [`Limits::entries_in_flight`] entries are under way, whatever
//! waits becomes the next one at once; while that many are under way, requests
//! gather. So a single caller pays one round, and many callers share one.
//!
//! Consensus may refuse an entry and take the next, as when the leader's lease
//! has run out for a moment. So whoever needs its requests in order has an [`Order`],
//! of which nothing is handed over before it is known that what came earlier is in
//! the log, and nothing at all once something has failed.
//!
//! When full: callers wait for room ([`Limits::proposal_bytes`]) up to their
//! deadline and are then refused as overloaded.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use quorate_core::command::{Command, Publish, Request, Selector, Settlement, Verdict};
use quorate_core::ids::Timestamp;
use quorate_core::outcome::Outcome;
use quorate_core::{Repeated, batch};
use quorate_mutants::mutant;
use quorate_raft::{Appended, Consensus, Epoch, Leadership, ProposeError, Proposed};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
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

/// What is handed in under one order comes to stand in the log in that order, or from some point on not at all:
/// once something was refused, or its outcome is unknown, all that is handed in after it is refused. Clones are
/// the same one.
#[derive(Clone, Debug, Default)]
pub struct Order {
    // Set and looked at by the batcher's task alone.
    state: Arc<OrderState>,
}

#[derive(Debug, Default)]
struct OrderState {
    /// Something of it was refused, or is of unknown outcome.
    broken: AtomicBool,
    /// Number of the last entry in which something of it was handed over.
    last: AtomicU64,
}

impl Order {
    fn is_broken(&self) -> bool {
        self.state.broken.load(Ordering::Relaxed)
    }

    fn fail(&self) {
        self.state.broken.store(true, Ordering::Relaxed);
    }

    fn last(&self) -> u64 {
        self.state.last.load(Ordering::Relaxed)
    }

    fn hand_over(&self, number: u64) {
        self.state.last.store(number, Ordering::Relaxed);
    }
}

/// Somebody who waits for an answer.
struct Caller {
    order: Order,
    reply: oneshot::Sender<Answer>,
    /// Given back when the answer is there.
    _room: OwnedSemaphorePermit,
}

impl Caller {
    /// Answers with an error, which says whether the request may have been applied.
    fn fail(self, error: BrokerError) {
        self.order.fail();
        // An error means that nobody waits any more.
        let _ = self.reply.send(Err(error));
    }
}

struct Waiting {
    proposal: Proposal,
    /// See [`Proposal::bytes`].
    bytes: usize,
    deadline: Instant,
    caller: Caller,
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
        let appended = consensus.appended();
        let task = Task {
            consensus,
            clock,
            counters,
            limits,
            role: Role::Following(None),
            waiting: VecDeque::new(),
            in_flight: FuturesUnordered::new(),
            entries: 0,
            undecided: Undecided::default(),
            appended,
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
        order: &Order,
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
            caller: Caller {
                order: order.clone(),
                reply,
                _room: room,
            },
        };
        self.queue
            .send(waiting)
            .await
            .map_err(|_| BrokerError::ShuttingDown)?;
        Ok(Submitted { answer, deadline })
    }

    /// Proposes requests and waits until they are applied.
    pub(crate) async fn propose(&self, proposal: Proposal, deadline: Instant) -> Answer {
        self.submit(proposal, &Order::default(), deadline)
            .await?
            .answer()
            .await
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
    /// Each gives its number.
    in_flight: FuturesUnordered<BoxFuture<'static, u64>>,
    /// How many entries were ever handed over.
    entries: u64,
    undecided: Undecided,
    appended: watch::Receiver<Appended>,
}

/// Entries that were handed over and are not known to be in the log or refused.
#[derive(Debug, Default)]
struct Undecided {
    numbers: Vec<u64>,
    /// The leadership of the newest.
    epoch: Epoch,
    /// All of them are in the log when so many batches were appended. Fewer do not tell which.
    all_at: u64,
}

impl Undecided {
    /// An entry is handed over, when this is in the log.
    fn hand_over(&mut self, number: u64, epoch: Epoch, appended: Appended) {
        self.all_at = if self.numbers.is_empty() {
            appended.batches + 1
        } else if self.epoch == epoch {
            self.all_at.saturating_add(1)
        } else {
            // Followers append too: what became of the earlier ones is known when they end.
            u64::MAX
        };
        self.epoch = epoch;
        self.numbers.push(number);
    }

    /// This is in the log.
    fn look_at(&mut self, appended: Appended) {
        if appended.epoch == self.epoch && appended.batches >= self.all_at {
            self.numbers.clear();
        }
    }

    /// An entry was applied, or has failed.
    fn end(&mut self, number: u64) {
        self.numbers.retain(|undecided| *undecided != number);
    }

    fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Whether something of an order is in one of them.
    fn holds(&self, order: &Order) -> bool {
        self.numbers.contains(&order.last())
    }
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
                Some(number) = self.in_flight.next(), if !self.in_flight.is_empty() => {
                    self.undecided.end(number);
                }
                Ok(()) = self.appended.changed(), if !self.undecided.is_empty() => {}
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
                    waiting.caller.fail(error);
                }
            }
            Role::Leading(leadership) => {
                let leadership = leadership.clone();
                self.undecided.look_at(*self.appended.borrow_and_update());
                while self.in_flight.len() < self.limits.entries_in_flight
                    && let Some(waiting) = self.waiting.front()
                    && !self.undecided.holds(&waiting.caller.order)
                {
                    self.submit_entry(&leadership);
                }
            }
        }
    }

    fn submit_entry(&mut self, leadership: &Leadership) {
        let Some(at) = self.clock.now() else { return };
        let now = Instant::now();
        let Merged {
            requests,
            contents,
            mut callers,
        } = merge(&mut self.waiting, &self.undecided, &self.limits, now);
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
        self.entries += 1;
        let number = self.entries;
        for (_, caller) in &callers {
            caller.order.hand_over(number);
        }
        self.undecided
            .hand_over(number, leadership.epoch, *self.appended.borrow());
        let proposed = self.consensus.propose(entry, leadership.epoch);
        self.in_flight.push(Box::pin(async move {
            let mut proposed = proposed.await;
            if let (Ok(proposed), Some(requests)) = (&mut proposed, guessing) {
                guess::replace(proposed, &requests);
            }
            distribute(callers, at, proposed);
            number
        }));
    }
}

/// What becomes one entry.
struct Merged {
    requests: Vec<Request>,
    contents: Vec<Bytes>,
    /// Each with the number of its requests.
    callers: Vec<(usize, Caller)>,
}

/// Takes from those that wait, in order, as many as one entry may hold, up to one that has to wait for what is
/// undecided. Refuses those that have waited for too long, and those before which something of their order was
/// refused.
fn merge(queue: &mut VecDeque<Waiting>, undecided: &Undecided, limits: &Limits, now: Instant) -> Merged {
    let mut merged = Merged {
        requests: Vec::new(),
        contents: Vec::new(),
        callers: Vec::new(),
    };
    let mut bytes = 0;
    while let Some(waiting) = queue.front() {
        let fits = bytes + waiting.bytes <= limits.entry_bytes
            && merged.requests.len() + waiting.proposal.requests.len() <= limits.entry_requests;
        if !fits && !merged.requests.is_empty() || undecided.holds(&waiting.caller.order) {
            break;
        }
        let waiting = queue.pop_front().expect("there is a front");
        if waiting.caller.order.is_broken() {
            waiting.caller.fail(BrokerError::NoLeader);
            continue;
        }
        if waiting.deadline <= now {
            waiting.caller.fail(BrokerError::Overloaded);
            continue;
        }
        bytes += waiting.bytes;
        merged
            .callers
            .push((waiting.proposal.requests.len(), waiting.caller));
        merged.requests.extend(waiting.proposal.requests);
        merged.contents.extend(waiting.proposal.contents);
    }
    merged
}

/// The clock sample of a leadership that starts; never ready otherwise.
async fn starting(role: &mut Role) -> Option<Timestamp> {
    match role {
        Role::Starting(_, sample) => sample.await,
        _ => std::future::pending().await,
    }
}

fn distribute(callers: Vec<(usize, Caller)>, at: Timestamp, result: Result<Proposed, ProposeError>) {
    match result {
        Ok(proposed) => {
            let mut outcomes = proposed.outcomes.into_iter();
            let mut repeated = proposed.repeated.into_iter().peekable();
            let mut first = 0;
            for (count, caller) in callers {
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
                let _ = caller.reply.send(Ok(Committed {
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
            for (_, caller) in callers {
                caller.fail(error.clone());
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
    use quorate_core::ids::NodeId;
    use quorate_core::outcome::Reply;

    use super::*;

    fn caller(room: &Arc<Semaphore>, order: &Order, reply: oneshot::Sender<Answer>) -> Caller {
        Caller {
            order: order.clone(),
            reply,
            _room: room.clone().try_acquire_owned().unwrap(),
        }
    }

    #[tokio::test]
    async fn nothing_of_an_order_gets_in_after_something_was_refused() {
        let room = Arc::new(Semaphore::new(10));
        let (one, other) = (Order::default(), Order::default());
        let now = Instant::now();
        let mut queue = VecDeque::new();
        let mut hand_in = |order: &Order, deadline: Instant| {
            let (reply, answer) = oneshot::channel();
            let request = Request {
                id: None,
                command: Command::Settle {
                    settlements: Vec::new(),
                },
            };
            queue.push_back(Waiting {
                proposal: Proposal {
                    requests: vec![request],
                    contents: Vec::new(),
                },
                bytes: 0,
                deadline,
                caller: caller(&room, order, reply),
            });
            let undecided = Undecided::default();
            (merge(&mut queue, &undecided, &Limits::default(), now), answer)
        };
        let later = now + Limits::default().request_timeout;
        let (taken, _answer) = hand_in(&one, later);
        assert_eq!(taken.callers.len(), 1);
        let refused = Err(ProposeError::NotLeader { leader: None });
        distribute(taken.callers, Timestamp(1), refused);
        // Handed in before the news of it came.
        let (taken, mut answer) = hand_in(&one, later);
        assert!(taken.requests.is_empty() && taken.callers.is_empty());
        assert!(matches!(answer.try_recv(), Ok(Err(BrokerError::NoLeader))));
        assert_eq!(hand_in(&other, later).0.callers.len(), 1);
        assert!(
            hand_in(&other, now).0.callers.is_empty(),
            "it has waited for too long"
        );
        assert!(hand_in(&other, later).0.callers.is_empty());
        assert_eq!(hand_in(&Order::default(), later).0.callers.len(), 1);
    }

    #[test]
    fn an_order_waits_for_its_own_entries_until_all_are_in_the_log() {
        let first = Epoch::default();
        let appended = |batches| Appended {
            epoch: first,
            batches,
        };
        let (one, other) = (Order::default(), Order::default());
        let mut undecided = Undecided::default();
        assert!(!undecided.holds(&one), "nothing was handed over");
        one.hand_over(1);
        undecided.hand_over(1, first, appended(7));
        assert!(undecided.holds(&one) && !undecided.holds(&other));
        other.hand_over(2);
        undecided.hand_over(2, first, appended(7));
        // One of the two was refused perhaps.
        undecided.look_at(appended(8));
        assert!(undecided.holds(&one) && undecided.holds(&other));
        undecided.look_at(appended(9));
        assert!(undecided.is_empty());

        undecided.hand_over(3, first, appended(9));
        one.hand_over(3);
        undecided.end(3);
        assert!(!undecided.holds(&one), "it has failed, or was applied");
    }

    #[test]
    fn what_was_handed_over_under_an_earlier_leadership_is_undecided_until_it_ends() {
        let order = Order::default();
        let mut undecided = Undecided::default();
        let (first, second) = (Epoch::of(1, NodeId(1)), Epoch::of(2, NodeId(1)));
        order.hand_over(1);
        undecided.hand_over(1, first, Appended::default());
        undecided.hand_over(2, second, Appended::default());
        undecided.look_at(Appended {
            epoch: second,
            batches: 1_000,
        });
        assert!(undecided.holds(&order));
        undecided.end(1);
        assert!(!undecided.holds(&order));
    }

    #[test]
    fn each_caller_is_told_where_its_own_requests_stand() {
        let room = Arc::new(Semaphore::new(3));
        let (mut callers, mut answers) = (Vec::new(), Vec::new());
        for count in [2, 1, 3] {
            let (reply, answer) = oneshot::channel();
            callers.push((count, caller(&room, &Order::default(), reply)));
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
