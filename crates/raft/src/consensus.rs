//! [`Consensus`]: the handle on a running node's consensus layer.

use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use openraft::async_runtime::{Instant as _, WatchReceiver as _};
use openraft::errors::{ClientWriteError, Fatal, LinearizableReadError, RaftError};
use openraft::impls::ProgressResponder;
use openraft::{EntryPayload, ReadPolicy, ServerState};
use parking_lot::Mutex;
use quorate_core::ids::{Incarnation, MessageId, NodeId, Timestamp};
use quorate_core::outcome::Outcome;
use quorate_core::{Broker, Repeated, batch};
use quorate_mutants::mutant;
use quorate_proto::internal as wire;
use quorate_proto::internal::peer_server::PeerServer;
use quorate_storage::{DiskUse, Store};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tonic::service::Routes;
use tonic::transport::Channel;

use crate::blocking;
use crate::bootstrap::{Bootstrap, Seen};
use crate::clock::Clock;
use crate::compaction;
use crate::config::{Config, KEEPALIVE, MESSAGE_BYTES_MAX, raft_config};
use crate::error::{ContentError, Failure, MembershipError, ProposeError, ReadError, StartError};
use crate::failover::{self, Contact};
use crate::identity::{ClusterId, Identity};
use crate::leadership::{self, Epoch, Leadership, describe};
use crate::log_store::{Appended, LogStore, entry_of};
use crate::membership::Membership;
use crate::network::client::Network;
use crate::network::pool::{Pool, Use};
use crate::network::server::PeerService;
use crate::snapshot::Receiver;
use crate::state_machine::{Observer, Shared, StateMachine, members};
use crate::status::{MemberStatus, Role, Status};
use crate::transport::Listener;
use crate::types::{Batch, Member, Raft, TypeConfig};

/// A running node. Cheap to clone; stop it with [`Consensus::shutdown`].
#[derive(Clone)]
pub struct Consensus {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    identity: Arc<Identity>,
    store: Arc<Store>,
    raft: Raft,
    shared: Arc<Shared>,
    pool: Pool,
    membership: Membership,
    leadership: watch::Receiver<Leadership>,
    appended: watch::Receiver<Appended>,
    contact: Arc<Contact>,
    peer_addr: SocketAddr,
    started: tokio::time::Instant,
    disk: Arc<Mutex<Vec<DiskUse>>>,
    leader_changes: Arc<AtomicU64>,
    entries: Mutex<Entries>,
    /// Room for reads of contents from the disk. Whoever waited for it may find that the read before brought its content
    /// as well; and each thread that reads keeps memory for it.
    reads: Semaphore,
    failure: watch::Sender<Option<Failure>>,
    stopping: AtomicBool,
    stop_serving: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    server: Mutex<Option<JoinHandle<()>>>,
}

/// A proposal that is committed and applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposed {
    /// Where its entry stands in the log.
    pub index: u64,
    /// The term of its leader.
    pub term: u64,
    /// One for each command, in the order of the batch.
    pub outcomes: Vec<Outcome>,
    /// Those of them that had been executed before, in order.
    pub repeated: Vec<Repeated>,
}

impl Consensus {
    /// Opens the data directory, restores the state, and takes part in the
    /// cluster from then on. `observer` is told of the entries that are applied
    /// again before this returns, too. `extra` is served on the peer port
    /// beside the peers' own service.
    pub async fn start(
        config: Config,
        observer: Arc<dyn Observer>,
        extra: Routes,
    ) -> Result<Self, StartError> {
        let raft_config = raft_config(&config)?;
        let listen = |source| StartError::Listen {
            address: config.listen,
            source,
        };
        let listener = config.transport.listen(config.listen).await.map_err(listen)?;
        let peer_addr = listener.address;
        let member = Member {
            name: config.name.clone(),
            client_address: config.client_address.clone(),
            peer_address: advertised(&config, peer_addr)?,
        };

        let (dir, options) = (config.data_dir.clone(), config.storage.clone());
        let store = Arc::new(open(dir, options).await?);
        let identity = Arc::new(Identity::new(
            Arc::clone(&store),
            member,
            !config.peers.is_empty(),
        ));
        let node_id = identity.node_id;
        let pool = Pool::new(&config);
        let machine = StateMachine::new(node_id, Arc::clone(&store), observer);
        let shared = machine.shared();
        let log = LogStore::new(store.log.clone());
        let appended = log.appended();
        let raft = Box::pin(Raft::new(
            node_id,
            raft_config,
            Network::new(Arc::clone(&identity), pool.clone(), store.log.clone(), &config),
            log,
            machine,
        ))
        .await
        .map_err(|error| StartError::Raft(error.to_string()))?;
        tracing::info!(
            node = node_id,
            incarnation = identity.incarnation.0,
            peers = %peer_addr,
            cluster = identity.cluster().map(tracing::field::display),
            "consensus is running"
        );

        let seen = Arc::new(Mutex::new(Seen::default()));
        let contact = Arc::new(Contact::new());
        let service = PeerService {
            identity: Arc::clone(&identity),
            raft: raft.clone(),
            seen: Arc::clone(&seen),
            contact: Arc::clone(&contact),
            receiver: Receiver::new(Arc::clone(&shared), config.snapshot_stall),
            clock: config.clock.clone(),
        };
        let (stop_serving, stopped) = watch::channel(false);
        let serving = serve(listener, service, extra, stopped);
        let (leadership_in, leadership) = watch::channel(Leadership::default());
        let membership = Membership {
            raft: raft.clone(),
            identity: Arc::clone(&identity),
            pool: pool.clone(),
        };

        let inner = Arc::new(Inner {
            identity: Arc::clone(&identity),
            store: Arc::clone(&store),
            raft: raft.clone(),
            shared: Arc::clone(&shared),
            pool: pool.clone(),
            membership: membership.clone(),
            leadership,
            appended,
            contact: Arc::clone(&contact),
            peer_addr,
            started: tokio::time::Instant::now(),
            disk: Arc::default(),
            leader_changes: Arc::default(),
            entries: Mutex::default(),
            reads: Semaphore::new(READS_MAX),
            failure: watch::Sender::new(None),
            stopping: AtomicBool::new(false),
            stop_serving,
            tasks: Mutex::default(),
            server: Mutex::new(Some(tokio::spawn(serving))),
            config: config.clone(),
        });
        let bootstrap = Bootstrap {
            identity,
            raft: raft.clone(),
            pool: pool.clone(),
            seen,
            config: config.clone(),
        };
        let lease = config.election_timeout_max;
        *inner.tasks.lock() = vec![
            tokio::spawn(leadership::run(
                raft.clone(),
                Arc::clone(&shared),
                lease,
                leadership_in,
                Arc::clone(&inner.leader_changes),
            )),
            tokio::spawn(failover::run(
                raft.clone(),
                Arc::clone(&contact),
                pool,
                config.clone(),
            )),
            tokio::spawn(compaction::run(raft.clone(), Arc::clone(&shared), config)),
            tokio::spawn(compaction::measure(shared, Arc::clone(&inner.disk))),
            tokio::spawn(membership.finish_changes()),
            tokio::spawn(bootstrap.run()),
            tokio::spawn(watch_failures(Arc::downgrade(&inner))),
            tokio::spawn(watch_removal(Arc::downgrade(&inner), contact)),
        ];
        let failing = Arc::downgrade(&inner);
        store.log.on_failure(move |error| {
            if let Some(inner) = failing.upgrade() {
                inner.fail(Failure::Storage(error.to_string()));
            }
        });
        Ok(Self { inner })
    }

    /// This node.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        NodeId(self.inner.identity.node_id)
    }

    /// This life of it.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.inner.identity.incarnation
    }

    /// None while it belongs to no cluster.
    #[must_use]
    pub fn cluster_id(&self) -> Option<ClusterId> {
        self.inner.identity.cluster()
    }

    /// The time as this node sees it.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.inner.config.clock
    }

    /// Where the peer listener is bound.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.peer_addr
    }

    /// Who leads, now and at each change.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.inner.leadership.clone()
    }

    /// The batches that were appended to the log here, now and at each change.
    #[must_use]
    pub fn appended(&self) -> watch::Receiver<Appended> {
        self.inner.appended.clone()
    }

    /// Whether a leader is there as far as this node can tell: itself, or one
    /// that it has heard of within a lease. [`leadership`](Self::leadership)
    /// names the last one until there is another.
    #[must_use]
    pub fn hears_leader(&self) -> bool {
        let lease = self.inner.config.election_timeout_max;
        self.inner.leadership.borrow().leading || !self.inner.contact.silent_for(lease)
    }

    /// Proposes one entry, and answers when it is applied here.
    ///
    /// The entry is handed over before this returns: of two calls, the first
    /// one's entry is the first in the log, if it comes to stand there. It is
    /// refused by a leader whose lease has run out for a moment, and the next one
    /// may not be: whoever needs their order waits until the first is
    /// [`appended`](Self::appended). Any number may be on their way. The
    /// epoch is that of the [`Leadership`] under which the caller made the
    /// entry; under any other it is refused.
    ///
    /// Dropping the future does not take the entry back.
    pub fn propose(
        &self,
        entry: Bytes,
        epoch: Epoch,
    ) -> impl Future<Output = Result<Proposed, ProposeError>> + Send + 'static {
        let (responder, answer) = ProgressResponder::complete_only();
        let write = self
            .inner
            .raft
            .write(Batch(entry))
            .with_leader(epoch.leader_id())
            .responder(responder);
        // Handing over is a push into a queue, done at the first poll if there
        // is room; outside of the runtime's budget, which would pause it.
        let pushed = tokio::task::unconstrained(write.into_future()).now_or_never();
        let inner = Arc::clone(&self.inner);
        async move {
            match pushed {
                Some(Ok(())) => {}
                Some(Err(fatal)) => return Err(ProposeError::Fatal(fatal.to_string())),
                // The queue is full, and the push was taken back with its future.
                None => return Err(ProposeError::NotLeader { leader: None }),
            }
            match answer.await {
                Ok(Ok(response)) => Ok(Proposed {
                    index: response.log_id.index,
                    term: response.log_id.leader_id.term,
                    outcomes: response.data.outcomes,
                    repeated: response.data.repeated,
                }),
                Ok(Err(ClientWriteError::ForwardToLeader(to))) => Err(ProposeError::NotLeader {
                    leader: describe(
                        &inner.raft,
                        to.leader_id.filter(|id| *id != inner.identity.node_id),
                    ),
                }),
                Ok(Err(error)) => Err(ProposeError::Unknown(error.to_string())),
                Err(_) => Err(ProposeError::Unknown(
                    "the node stopped while it was on its way".to_owned(),
                )),
            }
        }
    }

    /// Waits until this node's state holds everything that was committed when
    /// this was called; answers the index that it then holds at least. Leader
    /// only; costs a round trip to a quorum.
    pub async fn read_barrier(&self) -> Result<u64, ReadError> {
        if mutant!("stale-reads") || (mutant!("lease-reads") && self.heard_quorum_within(LEASE_OF_MUTANT)) {
            return Ok(self.with_state(Broker::index));
        }
        match self.inner.raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
            Ok(read) => Ok(read.index()),
            Err(RaftError::Fatal(fatal)) => Err(ReadError::Fatal(fatal.to_string())),
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => {
                Err(ReadError::NotLeader { leader: None })
            }
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(to))) => {
                let leader = to.leader_id.filter(|id| *id != self.inner.identity.node_id);
                Err(ReadError::NotLeader {
                    leader: describe(&self.inner.raft, leader),
                })
            }
        }
    }

    /// It leads, and a quorum has said so in that time.
    fn heard_quorum_within(&self, lease: Duration) -> bool {
        let acked = self.inner.raft.metrics().borrow_watched().last_quorum_acked;
        acked.is_some_and(|at| at.elapsed() < lease)
    }

    /// Looks at the state. Entries are not applied meanwhile: be brief, and do
    /// not call this within itself.
    pub fn with_state<T>(&self, look: impl FnOnce(&Broker) -> T) -> T {
        look(&self.inner.shared.broker.read())
    }

    /// The content of a message, which has that many bytes.
    pub async fn content(&self, id: MessageId, bytes: u32) -> Result<Bytes, ContentError> {
        let content = self.inner.find_content(id, bytes).await?;
        if content.len() != bytes as usize {
            let problem = format!("{} bytes instead of {bytes}", content.len());
            return Err(ContentError::Damaged { id, problem });
        }
        Ok(content)
    }

    /// The wall clocks of a quorum of voters, this node's among them if it is
    /// one: the lower median, so that no single clock can run ahead. None if no
    /// quorum answers in time.
    pub async fn quorum_clock(&self) -> Option<Timestamp> {
        let inner = &self.inner;
        let membership = {
            let metrics = inner.raft.server_metrics();
            let metrics = metrics.borrow_watched();
            metrics.membership_config.clone()
        };
        let voters: Vec<u64> = membership.voter_ids().collect();
        let quorum = voters.len() / 2 + 1;
        let known = members(&membership);
        let own = inner.identity.node_id;
        let within = inner.config.election_timeout_max;
        let mut asked: FuturesUnordered<_> = voters
            .iter()
            .filter(|id| **id != own)
            .filter_map(|id| Some((*id, known.get(id)?)))
            .filter_map(|(id, node)| {
                Some((
                    id,
                    inner.pool.client(Some(id), &node.peer_address, Use::Heartbeat)?,
                ))
            })
            .map(|(id, mut client)| async move {
                let request = wire::ClockRequest {
                    envelope: Some(inner.identity.envelope(id)),
                };
                match tokio::time::timeout(within, client.clock(request)).await {
                    Ok(Ok(response)) => Some(response.into_inner().wall_ms),
                    _ => None,
                }
            })
            .collect();
        let mut samples = Vec::with_capacity(quorum);
        if voters.contains(&own) {
            samples.push(inner.config.clock.wall_ms());
        }
        while samples.len() < quorum {
            samples.extend(asked.next().await?);
        }
        samples.sort_unstable();
        Some(Timestamp(samples[(samples.len() - 1) / 2]))
    }

    /// A connection to another member's peer port, for the services that were
    /// given as `extra` there.
    #[must_use]
    pub fn peer_channel(&self, node: NodeId) -> Option<Channel> {
        let address = {
            let metrics = self.inner.raft.server_metrics();
            let metrics = metrics.borrow_watched();
            metrics
                .membership_config
                .membership()
                .get_node(&node.0)?
                .peer_address
                .clone()
        };
        self.inner.pool.channel(Some(node.0), &address, Use::Forward)
    }

    /// What a request to another node has to carry.
    #[must_use]
    pub fn envelope(&self, to: NodeId) -> wire::Envelope {
        self.inner.identity.envelope(to.0)
    }

    /// Checks the envelope of a request from another node; answers its sender.
    /// The status is the refusal to send back.
    pub fn admit(&self, envelope: Option<&wire::Envelope>) -> Result<NodeId, Box<tonic::Status>> {
        let envelope = envelope
            .ok_or_else(|| Box::new(tonic::Status::invalid_argument("a request without envelope")))?;
        self.inner.identity.check(envelope).map_err(Box::new)?;
        Ok(NodeId(envelope.from_node))
    }

    /// One look at this node.
    #[must_use]
    pub fn status(&self) -> Status {
        self.inner.status()
    }

    /// Brings in the node that waits at an address: as a learner, then, when it
    /// has caught up, as a voter. If a member with that address is known, its
    /// data is gone, and the new one takes its place in the same change. Leader
    /// only. Asking again after a failure goes on where it was.
    pub async fn add_node(&self, peer_address: &str) -> Result<NodeId, MembershipError> {
        Box::pin(self.inner.membership.add(peer_address)).await
    }

    /// Removes a member, for good. Leader only.
    pub async fn remove_node(&self, node: NodeId) -> Result<(), MembershipError> {
        Box::pin(self.inner.membership.remove(node)).await
    }

    /// Hands leadership to a voter, the most advanced if none is named, and
    /// waits until it has taken over. Leader only.
    pub async fn transfer_leader(&self, to: Option<NodeId>) -> Result<(), MembershipError> {
        self.inner.membership.transfer(to).await
    }

    /// Writes a snapshot of at least the present state; answers its index.
    pub async fn snapshot(&self) -> Result<u64, SnapshotError> {
        let index = compaction::write(&self.inner.raft, &self.inner.shared)
            .await
            .map_err(SnapshotError)?;
        self.inner.shared.grown.notify_one();
        Ok(index)
    }

    /// Resolves with the reason when the node must stop: the storage failed, an
    /// invariant does not hold, or the cluster removed this node.
    pub fn failed(&self) -> impl Future<Output = Failure> + Send + 'static {
        let mut failure = self.inner.failure.subscribe();
        async move {
            let reason = failure
                .wait_for(Option::is_some)
                .await
                .ok()
                .and_then(|reason| reason.clone());
            match reason {
                Some(reason) => reason,
                // Every handle is gone: it cannot fail any more.
                None => std::future::pending().await,
            }
        }
    }

    /// Stops, and closes the store. A leader [hands over](Self::transfer_leader)
    /// first, or the others have to notice that it is gone.
    pub async fn shutdown(&self) {
        self.inner.stop(Duration::from_millis(500)).await;
        let store = Store::clone(&self.inner.store);
        match blocking::run(&self.inner.store.log, move || store.close()).await {
            Ok(Ok(())) => tracing::info!(node = self.inner.identity.node_id, "consensus has stopped"),
            Ok(Err(error)) => tracing::error!(%error, "close the store"),
            Err(error) => tracing::error!(%error, "close the store"),
        }
    }

    /// Stops like a killed process: hands nothing over, closes nothing. For
    /// tests.
    #[doc(hidden)]
    pub async fn abandon(self) {
        self.inner.stop(Duration::from_millis(20)).await;
    }
}

/// Reads of contents from the disk at one time.
const READS_MAX: usize = 4;

/// A lease that outlives an election, as one does on a clock that was put back.
const LEASE_OF_MUTANT: Duration = Duration::from_secs(5);

/// A snapshot was not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a snapshot: {0}")]
pub struct SnapshotError(String);

/// Opens a store where opening it may block.
async fn open(dir: PathBuf, options: quorate_storage::Options) -> Result<Store, StartError> {
    #[cfg(feature = "simulation")]
    if options.disk.is_some() {
        return Ok(Store::open(&dir, options)?);
    }
    let opened = tokio::task::spawn_blocking(move || Store::open(&dir, options)).await;
    Ok(opened.map_err(|error| StartError::Raft(error.to_string()))??)
}

/// The address others are told.
fn advertised(config: &Config, bound: SocketAddr) -> Result<String, StartError> {
    match &config.advertise_peer {
        Some(address) => Ok(address.clone()),
        None if !bound.ip().is_unspecified() => Ok(bound.to_string()),
        None => Err(StartError::Config(format!(
            "the peer listener is bound to {bound}, which other nodes cannot dial: say under which address they reach \
             this node"
        ))),
    }
}

/// Serves the peer port until told to stop.
async fn serve(listener: Listener, service: PeerService, extra: Routes, mut stopped: watch::Receiver<bool>) {
    let service = PeerServer::new(service)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let served = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(16 << 20)
        .add_routes(extra.add_service(service))
        .serve_with_incoming_shutdown(listener.incoming, async move {
            let _ = stopped.wait_for(|stopped| *stopped).await;
        })
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "the peer listener ended");
    }
}

/// Notices when openraft's core stops by itself.
async fn watch_failures(inner: std::sync::Weak<Inner>) {
    let Some(mut metrics) = inner.upgrade().map(|inner| inner.raft.metrics()) else {
        return;
    };
    loop {
        let failed = metrics.borrow_and_update().running_state.as_ref().err().cloned();
        let ended = metrics.changed().await.is_err();
        if failed.is_some() || ended {
            if let Some(inner) = inner.upgrade() {
                inner.fail(inner.kind_of(failed));
            }
            return;
        }
    }
}

/// Notices when the cluster has removed this node.
async fn watch_removal(inner: std::sync::Weak<Inner>, contact: Arc<Contact>) {
    /// A removed leader still tells the others of its removal.
    const LINGER: Duration = Duration::from_secs(1);
    if mutant!("removed-node-serves") {
        return;
    }
    let Some((mut removed, membership)) = inner
        .upgrade()
        .map(|inner| (inner.shared.removed(), inner.membership.clone()))
    else {
        return;
    };
    tokio::select! {
        applied = removed.wait_for(|removed| *removed) => if applied.is_err() { return },
        () = membership.removed_elsewhere(contact) => {}
    }
    tokio::time::sleep(LINGER).await;
    if let Some(inner) = inner.upgrade() {
        inner.shared.mark_removed();
        inner.fail(Failure::Removed);
    }
}

impl Inner {
    /// What openraft stopped of.
    fn kind_of(&self, fatal: Option<Fatal<TypeConfig>>) -> Failure {
        if let Some(broken) = self.shared.broken.get() {
            return Failure::Consensus(broken.clone());
        }
        if let Some(error) = self.store.log.failed() {
            return Failure::Storage(error.to_string());
        }
        match fatal {
            // Of a snapshot's image, or of the contents.
            Some(Fatal::StorageError(error)) => Failure::Storage(error.to_string()),
            Some(fatal) => Failure::Consensus(fatal.to_string()),
            None => Failure::Consensus("it ended by itself".to_owned()),
        }
    }

    fn fail(&self, reason: Failure) {
        if self.stopping.load(Ordering::Acquire) {
            return;
        }
        self.failure.send_if_modified(|known| {
            let news = known.is_none();
            if news {
                tracing::error!(node = self.identity.node_id, "this node must stop: {reason}");
                *known = Some(reason);
            }
            news
        });
    }

    /// Requests that are being answered get `drain`; the streams of other nodes
    /// go on for ever, and end with the core.
    async fn stop(&self, drain: Duration) {
        self.stopping.store(true, Ordering::Release);
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
        self.stop_serving.send_replace(true);
        let server = self.server.lock().take();
        if let Some(mut server) = server
            && tokio::time::timeout(drain, &mut server).await.is_err()
        {
            server.abort();
        }
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "stop the core");
        }
    }

    fn status(&self) -> Status {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let membership = &metrics.membership_config;
        let own = self.identity.node_id;
        let voters: Vec<u64> = membership.voter_ids().collect();
        let known = members(membership);
        let matched = |id: &u64| {
            metrics
                .replication
                .as_ref()
                .and_then(|all| all.get(id).copied().flatten())
        };
        let acked = |id: &u64| {
            metrics
                .heartbeat
                .as_ref()
                .and_then(|all| all.get(id).copied().flatten())
        };
        let role = match metrics.state {
            _ if *self.shared.removed().borrow() => Role::Removed,
            ServerState::Leader => Role::Leader,
            ServerState::Candidate => Role::Candidate,
            ServerState::Follower => Role::Follower,
            ServerState::Learner | ServerState::Shutdown if known.contains_key(&own) => Role::Learner,
            ServerState::Learner | ServerState::Shutdown => Role::Waiting,
        };
        let (state_index, state_hash, cluster_time) = {
            let broker = self.shared.broker.read();
            (broker.index(), broker.state_hash(), broker.now())
        };
        let disk = self.disk.lock().clone();
        Status {
            cluster_id: self.identity.cluster(),
            node_id: NodeId(own),
            role,
            term: metrics.current_term,
            leader: describe(&self.raft, metrics.current_leader),
            last_log_index: metrics.last_log_index.unwrap_or(0),
            committed_index: metrics.local_committed.map_or(0, |id| id.index),
            applied_index: self.shared.applied().map_or(0, |id| id.index),
            snapshot_index: self.shared.snapshot_index.load(Ordering::Acquire),
            purged_index: metrics.purged.map_or(0, |id| id.index),
            state_index,
            state_hash,
            cluster_time,
            log_bytes: self.store.log.log_bytes(0),
            disk_bytes: disk.iter().map(|part| part.disk_bytes).sum(),
            disk,
            uptime: self.started.elapsed(),
            members: known
                .into_iter()
                .map(|(id, member)| MemberStatus {
                    node_id: NodeId(id),
                    name: member.name,
                    client_address: member.client_address,
                    peer_address: member.peer_address,
                    voter: voters.contains(&id),
                    matched_index: matched(&id).map(|at| at.index),
                    ack_age: acked(&id).map(|at| at.elapsed()),
                    leader: metrics.current_leader == Some(id),
                })
                .collect(),
            log: self.store.log.stats(),
            journal: self.store.journal.stats(),
            snapshot_bytes: self.store.snapshots.current().map_or(0, |image| image.bytes),
            snapshot_at: match self.shared.snapshot_at.load(Ordering::Acquire) {
                0 => None,
                at => Some(Timestamp(at)),
            },
            leader_changes: self.leader_changes.load(Ordering::Relaxed),
            quorum_ack_age: metrics.last_quorum_acked.map(|at| at.elapsed()),
        }
    }

    async fn find_content(&self, id: MessageId, bytes: u32) -> Result<Bytes, ContentError> {
        if let Some(content) = self.find_cached(id)? {
            return Ok(content);
        }
        let _room = self.reads.acquire().await;
        if let Some(content) = self.find_cached(id)? {
            return Ok(content);
        }
        let store = Arc::clone(&self.store);
        let read = move || {
            let storage = |source| ContentError::Storage { id, source };
            let records = store.log.read(id.index, id.index + 1, 0).map_err(storage)?;
            if let Some(record) = records.first() {
                return Ok((Some(batch_of(id, record)?), None));
            }
            let content = store
                .contents
                .get(id.index, id.number, bytes as usize)
                .map_err(storage)?;
            Ok((None, content))
        };
        match blocking::run(&self.store.log, read).await {
            Ok(Ok((Some(entry), _))) => {
                self.entries.lock().put(id.index, entry.clone());
                content_of(id, &entry)
            }
            Ok(Ok((None, Some(content)))) => Ok(content),
            Ok(Ok((None, None))) => Err(ContentError::Gone(id)),
            Ok(Err(error)) => Err(error),
            Err(error) => Err(ContentError::Damaged {
                id,
                problem: error.to_string(),
            }),
        }
    }

    /// Looks for a content where no disk is needed.
    fn find_cached(&self, id: MessageId) -> Result<Option<Bytes>, ContentError> {
        let read_before = self.entries.lock().get(id.index);
        let entry = match read_before {
            Some(entry) => Some(entry),
            None => match self.store.log.read_cached(id.index, id.index + 1, 0) {
                Some(records) => records.first().map(|record| batch_of(id, record)).transpose()?,
                None => None,
            },
        };
        match entry {
            Some(entry) => content_of(id, &entry).map(Some),
            None => Ok(self.store.contents.get_cached(id.index, id.number)),
        }
    }
}

fn batch_of(id: MessageId, record: &quorate_storage::Record) -> Result<Bytes, ContentError> {
    let entry = entry_of(record).map_err(|e| ContentError::Damaged {
        id,
        problem: e.to_string(),
    })?;
    match entry.payload {
        EntryPayload::Normal(Batch(bytes)) => Ok(bytes),
        EntryPayload::Blank | EntryPayload::Membership(_) => Err(ContentError::Damaged {
            id,
            problem: "its entry holds no messages".to_owned(),
        }),
    }
}

fn content_of(id: MessageId, entry: &Bytes) -> Result<Bytes, ContentError> {
    batch::content(entry, id.number).map_err(|e| ContentError::Damaged {
        id,
        problem: e.to_string(),
    })
}

/// The last few entries that were read from disk: the messages of one entry
/// are often delivered one after the other.
#[derive(Default)]
struct Entries {
    recent: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

impl Entries {
    const BYTES_MAX: usize = 32 << 20;
    const COUNT_MAX: usize = 64;

    fn get(&mut self, index: u64) -> Option<Bytes> {
        let at = self.recent.iter().position(|(known, _)| *known == index)?;
        let entry = self.recent.remove(at)?;
        let bytes = entry.1.clone();
        self.recent.push_back(entry);
        Some(bytes)
    }

    fn put(&mut self, index: u64, entry: Bytes) {
        if self.recent.iter().any(|(known, _)| *known == index) {
            return;
        }
        self.bytes += entry.len();
        self.recent.push_back((index, entry));
        while self.recent.len() > Self::COUNT_MAX || (self.bytes > Self::BYTES_MAX && self.recent.len() > 1) {
            let Some((_, oldest)) = self.recent.pop_front() else {
                return;
            };
            self.bytes -= oldest.len();
        }
    }
}
