//! The handle that gateways use: one method per intent of a client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_core::command::{
    self, Command, NewMessage, PurgeStates, Request, SettingsPatch, Settlement, Verdict,
};
use quorate_core::effect::Leased;
use quorate_core::ids::{
    ClientId, ConsumerId, MessageId, Millis, NodeId, QueueName, RequestId, SessionId, Timestamp, Token,
};
use quorate_core::outcome::{self, Rejection, Reply, Settled};
use quorate_core::{Broker as State, QueueView};
use quorate_raft::{Consensus, MembershipError, ReadError, Status};
use tokio::sync::watch;

use crate::batcher::{Batcher, Committed, Proposal, Submitted};
use crate::clock::ClusterClock;
use crate::config::{Limits, MESSAGES_PER_REQUEST_MAX};
use crate::content::Content;
use crate::dispatch::Dispatch;
use crate::error::BrokerError;
use crate::forward;
use crate::metrics::{Counters, Sample};
use crate::session::{Outbox, Session};

/// A node's broker; a cheap clone.
#[derive(Clone)]
pub struct Broker(Arc<Inner>);

struct Inner {
    consensus: Consensus,
    batcher: Batcher,
    clock: Arc<ClusterClock>,
    dispatch: Arc<Dispatch>,
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

/// One message of a publish.
#[derive(Clone, Debug, Default)]
pub struct Publication {
    /// Headers and body.
    pub content: Content,
    /// Not delivered before this has passed.
    pub delay: Millis,
    /// Zero = the queue's.
    pub ttl: Millis,
}

/// A publish with its request id.
#[derive(Clone, Debug)]
pub struct Publish {
    /// Makes it safe to repeat.
    pub id: Option<RequestId>,
    /// The queue.
    pub queue: QueueName,
    /// All are accepted or none.
    pub messages: Vec<Publication>,
}

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

impl Broker {
    pub(crate) fn new(consensus: Consensus, dispatch: Arc<Dispatch>, limits: Limits) -> Self {
        let clock = Arc::new(ClusterClock::default());
        let counters = Arc::new(Counters::default());
        let batcher = Batcher::start(consensus.clone(), clock.clone(), counters.clone(), limits.clone());
        Self(Arc::new(Inner {
            consensus,
            batcher,
            clock,
            dispatch,
            counters,
            limits,
            draining: AtomicBool::new(false),
            closing: watch::Sender::new(false),
            announced: watch::Sender::new(false),
            own_client: ClientId(rand::random::<u64>().max(1)),
            own_sequence: AtomicU64::new(0),
        }))
    }

    // -------------------------------------------------------------- queues

    /// Ensures a queue. True: it was created.
    pub async fn declare_queue(
        &self,
        id: Option<RequestId>,
        name: QueueName,
        settings: SettingsPatch,
    ) -> Answered<bool> {
        match self.one(id, Command::DeclareQueue { name, settings }).await? {
            (position, Reply::Declared { created }) => Ok((position, created)),
            (_, other) => Err(unexpected(&other)),
        }
    }

    /// Changes the given settings of a queue.
    pub async fn update_queue(
        &self,
        id: Option<RequestId>,
        name: QueueName,
        settings: SettingsPatch,
    ) -> Answered<()> {
        let (position, _) = self.one(id, Command::UpdateQueue { name, settings }).await?;
        Ok((position, ()))
    }

    /// Removes the messages in these states; how many.
    pub async fn purge_queue(
        &self,
        id: Option<RequestId>,
        name: QueueName,
        states: PurgeStates,
    ) -> Answered<u64> {
        match self.one(id, Command::PurgeQueue { name, states }).await? {
            (position, Reply::Purged { count }) => Ok((position, count)),
            (_, other) => Err(unexpected(&other)),
        }
    }

    /// Deletes a queue; how many messages went with it.
    pub async fn delete_queue(
        &self,
        id: Option<RequestId>,
        name: QueueName,
        if_empty: bool,
        if_unused: bool,
    ) -> Answered<u64> {
        match self
            .one(
                id,
                Command::DeleteQueue {
                    name,
                    if_empty,
                    if_unused,
                },
            )
            .await?
        {
            (position, Reply::Deleted { count }) => Ok((position, count)),
            (_, other) => Err(unexpected(&other)),
        }
    }

    /// One queue, and the log index that the answer contains. Linearizable.
    pub async fn queue(&self, name: &QueueName) -> Result<(u64, QueueView), BrokerError> {
        let index = self.read_barrier().await?;
        self.0
            .consensus
            .with_state(|state| state.queue(name))
            .map(|queue| (index, queue))
            .ok_or_else(|| Rejection::QueueNotFound(name.clone()).into())
    }

    /// Up to `count_max` queues after a name. Linearizable.
    pub async fn queues(
        &self,
        after: Option<&QueueName>,
        count_max: usize,
    ) -> Result<(u64, Vec<QueueView>), BrokerError> {
        let index = self.read_barrier().await?;
        Ok((
            index,
            self.0
                .consensus
                .with_state(|state| state.queues(after, count_max)),
        ))
    }

    // ------------------------------------------------------------- publish

    /// Publishes; the ids in order.
    pub async fn publish(&self, publish: Publish) -> Answered<Vec<MessageId>> {
        let mut answers = self.publish_many(vec![publish]).await?;
        answers.pop().expect("one answer for one publish")
    }

    /// Many publishes, each a command of its own, in one entry. The answers are
    /// in order; an error in place of all of them concerns all.
    pub async fn publish_many(
        &self,
        publishes: Vec<Publish>,
    ) -> Result<Vec<Answered<Vec<MessageId>>>, BrokerError> {
        self.submit_publishes(publishes).await?.answer().await
    }

    /// The first half of [`publish_many`](Self::publish_many): what is handed in
    /// first is in the log first, whenever the answer is awaited.
    pub async fn submit_publishes(&self, publishes: Vec<Publish>) -> Result<SubmittedPublishes, BrokerError> {
        let mut requests = Vec::with_capacity(publishes.len());
        let mut contents = Vec::with_capacity(publishes.len());
        let mut malformed = Vec::with_capacity(publishes.len());
        for publish in publishes {
            match encode_publish(publish) {
                Ok((request, of_request)) => {
                    requests.push(request);
                    contents.extend(of_request);
                    malformed.push(None);
                }
                Err(error) => malformed.push(Some(error)),
            }
        }
        let submitted = if requests.is_empty() {
            None
        } else {
            self.check_draining()?;
            Some(
                self.0
                    .batcher
                    .submit(Proposal { requests, contents }, self.deadline())
                    .await?,
            )
        };
        Ok(SubmittedPublishes { submitted, malformed })
    }

    // ------------------------------------------------------------- leasing

    /// Leases messages, waiting for a first one if asked to.
    pub async fn lease(&self, id: Option<RequestId>, options: LeaseOptions) -> Answered<Vec<Leased>> {
        let id = id.unwrap_or_else(|| self.own_request_id());
        let wait = Duration::from_millis(options.wait.0);
        if !wait.is_zero() {
            self.announced().await?;
        }
        let mut waiter = self.0.dispatch.wait_for_lease(id);
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
                Ok((position, leased))
            }
            Reply::Waiting => {
                let deadline = wait + self.0.limits.request_timeout;
                let mut leadership = self.0.consensus.leadership();
                tokio::select! {
                    answer = waiter.answer() => match answer {
                        Some(leased) => Ok((position, leased)),
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
        if settlements.is_empty() || settlements.len() > MESSAGES_PER_REQUEST_MAX {
            let problem = format!(
                "1 to {MESSAGES_PER_REQUEST_MAX} settlements, not {}",
                settlements.len()
            );
            return Err(BrokerError::Invalid {
                field: "settlements",
                problem,
            });
        }
        self.check_draining()?;
        let requests = vec![Request {
            id,
            command: Command::Settle { settlements },
        }];
        let proposal = Proposal {
            requests,
            contents: Vec::new(),
        };
        Ok(SubmittedSettle(
            self.0.batcher.submit(proposal, self.deadline()).await?,
        ))
    }

    /// Properties and body of a leased message. None, and a line in the log, if
    /// they cannot be had: then the lease had better not be passed on. Its
    /// message is gone, or comes again when the lease ends.
    pub async fn content(&self, leased: &Leased) -> Option<Content> {
        match self.find_content(leased).await {
            Ok(content) => Some(content),
            Err(error) => {
                tracing::warn!(message = %leased.message, queue = %leased.queue, %error, "not delivered");
                None
            }
        }
    }

    async fn find_content(&self, leased: &Leased) -> Result<Content, BrokerError> {
        let bytes = self
            .0
            .consensus
            .content(leased.message, leased.content_bytes)
            .await
            .map_err(|error| BrokerError::Internal(error.to_string()))?;
        Content::decode(&bytes)
    }

    // ------------------------------------------------------------ sessions

    /// Attaches a session to this node: a new one, or one that is resumed.
    pub async fn attach(&self, session: SessionId) -> Answered<Session> {
        let outbox = self.0.dispatch.register(session);
        let command = Command::AttachSession {
            session,
            node: self.0.consensus.node_id(),
            incarnation: self.0.consensus.incarnation(),
        };
        match self.one(None, command).await {
            Ok((position, Reply::Attached { epoch, resumed })) => {
                let broker = self.clone();
                let session = Session {
                    broker,
                    id: session,
                    epoch,
                    resumed,
                    outbox,
                    keep: false,
                };
                Ok((position, session))
            }
            Ok((_, other)) => Err(unexpected(&other)),
            Err(error) => {
                self.0.dispatch.unregister(session, &outbox);
                Err(error)
            }
        }
    }

    /// Adds a consumer to a session, or sets the credit of one that is there.
    pub async fn consume(
        &self,
        session: &Session,
        consumer: ConsumerId,
        queue: QueueName,
        credit: u32,
        lease: Option<Millis>,
        name: String,
    ) -> Answered<()> {
        let command = Command::Consume {
            session: session.id,
            consumer,
            queue,
            credit,
            lease,
            name,
            priority: 0,
        };
        let (position, _) = self.one(None, command).await?;
        Ok((position, ()))
    }

    /// Sets a consumer's credit.
    pub async fn set_credit(&self, session: SessionId, consumer: ConsumerId, credit: u32) -> Answered<()> {
        let (position, _) = self
            .one(
                None,
                Command::SetCredit {
                    session,
                    consumer,
                    credit,
                },
            )
            .await?;
        Ok((position, ()))
    }

    /// A connection is gone. What is kept for its client, or cannot be ended
    /// now, is ended by [`nodes::end_abandoned`](crate::nodes::end_abandoned).
    pub(crate) fn end_session(&self, session: SessionId, epoch: u64, outbox: &Arc<Outbox>, keep: bool) {
        self.0.dispatch.unregister(session, outbox);
        if keep || self.is_draining() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let broker = self.clone();
            runtime.spawn(async move { broker.close_session(session, epoch).await });
        }
    }

    pub(crate) async fn close_session(&self, session: SessionId, epoch: u64) {
        let command = Command::CloseSession { session, epoch };
        forward::insist(self, Request { id: None, command }, Duration::from_secs(10)).await;
    }

    // ------------------------------------------------------------- cluster

    /// What this node knows of itself and the cluster.
    #[must_use]
    pub fn status(&self) -> Status {
        self.0.consensus.status()
    }

    /// Who leads, now and at each change.
    #[must_use]
    pub fn leadership(&self) -> tokio::sync::watch::Receiver<quorate_raft::Leadership> {
        self.0.consensus.leadership()
    }

    /// Resolves when a client's stream has nothing to expect here any more,
    /// with what to tell it: another node leads, or this one is shutting down.
    pub async fn gone(&self) -> BrokerError {
        let here = self.0.consensus.node_id();
        let mut leadership = self.0.consensus.leadership();
        let mut closing = self.0.closing.subscribe();
        let elsewhere =
            |now: &quorate_raft::Leadership| now.leader.clone().filter(|leader| leader.node_id != here);
        tokio::select! {
            biased;
            Ok(now) = leadership.wait_for(|now| elsewhere(now).is_some()) => {
                elsewhere(&now).map_or(BrokerError::NoLeader, BrokerError::NotLeader)
            }
            _ = closing.wait_for(|closing| *closing) => BrokerError::ShuttingDown,
        }
    }

    /// Ok if the node can serve or redirect; otherwise why not.
    pub fn ready(&self) -> Result<(), String> {
        if self.is_draining() {
            return Err("shutting down".to_owned());
        }
        let status = self.status();
        if status.cluster_id.is_none() {
            return Err("belongs to no cluster yet".to_owned());
        }
        if self.0.consensus.leadership().borrow().leader.is_none() {
            return Err("knows no leader".to_owned());
        }
        Ok(())
    }

    /// Brings in a node that waits at a peer address.
    pub async fn add_node(&self, peer_address: &str) -> Result<NodeId, MembershipError> {
        self.0.consensus.add_node(peer_address).await
    }

    /// Removes a member.
    pub async fn remove_node(&self, node: NodeId) -> Result<(), MembershipError> {
        self.0.consensus.remove_node(node).await
    }

    /// Hands leadership over.
    pub async fn transfer_leader(&self, to: Option<NodeId>) -> Result<(), MembershipError> {
        self.0.consensus.transfer_leader(to).await
    }

    /// Writes a snapshot on this node; the index it covers.
    pub async fn snapshot(&self) -> Result<u64, BrokerError> {
        self.0
            .consensus
            .snapshot()
            .await
            .map_err(|error| BrokerError::Internal(error.to_string()))
    }

    /// Values for monitoring.
    #[must_use]
    pub fn metrics(&self) -> Vec<Sample> {
        crate::metrics::collect(self)
    }

    /// Cluster time: the leader's clock, or what was last applied here.
    #[must_use]
    pub fn cluster_time(&self) -> Timestamp {
        self.0
            .clock
            .now()
            .unwrap_or_else(|| self.0.consensus.with_state(State::now))
    }

    /// Bounds of what may wait in this node.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    // ----------------------------------------------------------- internals

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
        let request = Request { id, command };
        let committed = self
            .propose_here(vec![request], Vec::new(), self.deadline())
            .await?;
        let mut answers = committed.into_answers();
        let (position, outcome) = answers.next().expect("one outcome for one request");
        Ok((position, outcome?))
    }

    async fn read_barrier(&self) -> Result<u64, BrokerError> {
        match tokio::time::timeout(self.0.limits.request_timeout, self.0.consensus.read_barrier()).await {
            Ok(Ok(index)) => Ok(index),
            Ok(Err(ReadError::NotLeader { leader: Some(leader) })) => Err(BrokerError::NotLeader(leader)),
            Ok(Err(ReadError::NotLeader { leader: None })) | Err(_) => Err(BrokerError::NoLeader),
            Ok(Err(ReadError::Fatal(why))) => Err(BrokerError::Internal(why)),
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
        &self.0.dispatch
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.0.counters
    }
}

/// Publishes that are on their way.
pub struct SubmittedPublishes {
    /// None if every one was malformed.
    submitted: Option<Submitted>,
    /// For each publish; those that are malformed are answered without taking part.
    malformed: Vec<Option<BrokerError>>,
}

impl SubmittedPublishes {
    /// Waits until they are applied; answers in order.
    pub async fn answer(self) -> Result<Vec<Answered<Vec<MessageId>>>, BrokerError> {
        let committed = match self.submitted {
            Some(submitted) => Some(submitted.answer().await?),
            None => None,
        };
        let mut answers = committed.into_iter().flat_map(Committed::into_answers);
        let answer = |malformed: Option<BrokerError>| {
            if let Some(error) = malformed {
                return Err(error);
            }
            let (position, outcome) = answers.next().expect("an outcome for each request");
            match outcome? {
                Reply::Published(outcome::Published { first, count, .. }) => {
                    let id = |n| MessageId {
                        index: first.index,
                        number: first.number + n,
                    };
                    Ok((position, (0..count).map(id).collect()))
                }
                other => Err(unexpected(&other)),
            }
        };
        Ok(self.malformed.into_iter().map(answer).collect())
    }
}

/// Settlements that are on their way.
pub struct SubmittedSettle(Submitted);

impl SubmittedSettle {
    /// Waits until they are applied; results in order.
    pub async fn answer(self) -> Answered<Vec<Result<Settled, Rejection>>> {
        let committed = self.0.answer().await?;
        let mut answers = committed.into_answers();
        let (position, outcome) = answers.next().expect("one outcome for one request");
        match outcome? {
            Reply::Settled(results) => Ok((position, results)),
            other => Err(unexpected(&other)),
        }
    }
}

fn encode_publish(publish: Publish) -> Result<(Request, Vec<Bytes>), BrokerError> {
    let count = publish.messages.len();
    if count == 0 || count > MESSAGES_PER_REQUEST_MAX {
        let problem = format!("1 to {MESSAGES_PER_REQUEST_MAX} messages, not {count}");
        return Err(BrokerError::Invalid {
            field: "messages",
            problem,
        });
    }
    let mut messages = Vec::with_capacity(count);
    let mut contents = Vec::with_capacity(count);
    for Publication { content, delay, ttl } in publish.messages {
        messages.push(NewMessage {
            delay,
            ttl,
            ..NewMessage::default()
        });
        contents.push(content.encode()?);
    }
    let command = Command::Publish(command::Publish::to_queue(publish.queue, messages));
    Ok((
        Request {
            id: publish.id,
            command,
        },
        contents,
    ))
}

fn unexpected(reply: &Reply) -> BrokerError {
    BrokerError::Internal(format!(
        "the state machine answered something else than asked: {reply:?}"
    ))
}
