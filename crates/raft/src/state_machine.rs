//! [`StateMachine`]: openraft's state machine over [`quorate_core::Broker`].
//!
//! The state lives in memory. What makes it durable is the log, and snapshots
//! of it: on start openraft installs the last snapshot and applies the log
//! after it again, up to the last known committed entry.
//!
//! Apply takes the entries in order: decode the batch, change the state under
//! the write lock, answer the proposer, hand effects and events to the
//! [`Observer`].
//! It reads no clock and no disk. An entry that cannot be decoded, or that
//! breaks the broker's invariants, stops the node.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use futures_util::{Stream, TryStreamExt as _};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, Snapshot};
use parking_lot::{Mutex, RwLock};
use quorate_core::batch;
use quorate_core::command::Request;
use quorate_core::effect::Effect;
use quorate_core::event::Event;
use quorate_core::ids::NodeId;
use quorate_core::{Applied, Broker};
use quorate_mutants::mutant;
use quorate_storage::{Journal, Store};
use tokio::sync::{Notify, watch};

use crate::blocking;
use crate::snapshot::{self, Builder, SnapshotData, View};
use crate::types::{Answer, Batch, LeaderId, LogId, Member, SnapshotMeta, StoredMembership, TypeConfig};

/// Is told what the state machine does, in log order, also for entries that are
/// applied again after a restart. Called by the task that applies: must not
/// block, and should return at once.
pub trait Observer: Send + Sync + 'static {
    /// The node's data is open; comes before everything else, and once. What
    /// follows from the log can be kept in the journal beside it.
    fn opened(&self, node: NodeId, journal: Journal);
    /// An entry was applied, `state` is what came of it, and nobody has been told
    /// yet: what is done here is done before the proposer has its answer, and
    /// delays it. Comes for every entry, also for those that are not about the
    /// broker.
    fn answering(&self, _entry: Answering<'_>, _state: &Broker) {}
    /// An entry was applied, and `state` is what came of it.
    fn applied(&self, entry: Observed<'_>, state: &Broker);
    /// The state was replaced by `state`, from a snapshot: effects and events of
    /// the entries up to `index`, which the leader of `term` wrote, that were not
    /// applied here will not come.
    fn restored(&self, index: u64, term: u64, state: &Broker);
    /// A later start is about to begin after `index`, so that effects and events
    /// up to there, which were all told, will not come again. What is to
    /// outlast that must be durable before this returns. On a thread that may
    /// block.
    fn keep(&self, index: u64);
}

/// An entry that was applied, before its proposer is told.
#[derive(Clone, Copy, Debug)]
pub struct Answering<'a> {
    /// Where it stands in the log.
    pub index: u64,
    /// Of the leader that wrote it.
    pub term: u64,
    /// What it holds.
    pub payload: Payload<'a>,
}

/// What an entry holds.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Nothing: a leader has begun.
    Blank,
    /// Who is a member from here on.
    Members {
        /// The sets of voters of which each must agree: one, or two while they
        /// change.
        voters: &'a [BTreeSet<u64>],
        /// Those that only follow.
        learners: &'a [u64],
    },
    /// Requests, and what came of them.
    Batch {
        /// In order.
        requests: &'a [Request],
        /// One for each request, and all else.
        applied: &'a Applied,
    },
}

/// What came of an entry, as an [`Observer`] is told.
#[derive(Debug)]
pub struct Observed<'a> {
    /// Where it stands in the log.
    pub index: u64,
    /// Of the leader that wrote it.
    pub term: u64,
    /// What is to be done, in order.
    pub effects: Vec<Effect>,
    /// What happened to messages, in order.
    pub events: &'a [Event],
}

/// The state machine. Cheap to clone.
#[derive(Clone)]
pub struct StateMachine {
    shared: Arc<Shared>,
}

/// What the state machine, the snapshots and readers have in common.
pub(crate) struct Shared {
    pub(crate) node_id: u64,
    pub(crate) store: Arc<Store>,
    pub(crate) broker: RwLock<Broker>,
    position: Mutex<Position>,
    observer: Arc<dyn Observer>,
    /// Held while contents or the snapshot pointer are being changed, on a
    /// thread that may block.
    pub(crate) maintenance: Mutex<()>,
    /// Last entry covered by the snapshot on disk; 0 if there is none.
    pub(crate) snapshot_index: AtomicU64,
    /// Cluster time there, in milliseconds.
    pub(crate) snapshot_at: AtomicU64,
    /// Set when applying an entry broke an invariant: what, and at which entry.
    pub(crate) broken: OnceLock<String>,
    /// Woken when the log has grown.
    pub(crate) grown: Notify,
    /// True once a membership without this node was applied.
    removed: watch::Sender<bool>,
}

/// How far the state is, in openraft's terms.
#[derive(Clone, Default)]
struct Position {
    applied: Option<LogId>,
    membership: StoredMembership,
}

impl StateMachine {
    /// An empty state over an open store.
    #[must_use]
    pub fn new(node_id: u64, store: Arc<Store>, observer: Arc<dyn Observer>) -> Self {
        let shared = Shared {
            node_id,
            store,
            broker: RwLock::new(Broker::new()),
            position: Mutex::default(),
            observer,
            maintenance: Mutex::new(()),
            snapshot_index: AtomicU64::new(0),
            snapshot_at: AtomicU64::new(0),
            broken: OnceLock::new(),
            grown: Notify::new(),
            removed: watch::Sender::new(false),
        };
        shared
            .observer
            .opened(NodeId(node_id), shared.store.journal.clone());
        Self {
            shared: Arc::new(shared),
        }
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }
}

impl Shared {
    pub(crate) fn applied(&self) -> Option<LogId> {
        self.position.lock().applied
    }

    /// The next start is about to begin after an entry that was applied here.
    /// Blocks on the disk.
    pub(crate) fn let_keep(&self, index: u64) {
        self.observer.keep(index);
    }

    pub(crate) fn removed(&self) -> watch::Receiver<bool> {
        self.removed.subscribe()
    }

    pub(crate) fn mark_removed(&self) {
        self.removed.send_replace(true);
    }

    /// What the next snapshot is written of.
    fn view(&self) -> View {
        let position = self.position.lock().clone();
        let (state, at) = {
            let broker = self.broker.read();
            (broker.snapshot(), broker.now())
        };
        View {
            state,
            at,
            meta: SnapshotMeta {
                last_log_id: position.applied,
                last_membership: position.membership,
            },
        }
    }

    /// Replaces the state.
    pub(crate) fn replace(&self, broker: Broker, meta: &SnapshotMeta) {
        let index = meta.last_log_id.map_or(0, |id| id.index);
        // Before the state: who sees the new state also sees where it came from.
        self.snapshot_index.store(index, Ordering::Release);
        self.snapshot_at.store(broker.now().0, Ordering::Release);
        // The old state goes after the lock: dropping millions of messages takes time.
        let old = std::mem::replace(&mut *self.broker.write(), broker);
        *self.position.lock() = Position {
            applied: meta.last_log_id,
            membership: meta.last_membership.clone(),
        };
        let term = meta.last_log_id.map_or(0, |id| id.leader_id.term);
        self.observer.restored(index, term, &self.broker.read());
        drop(old);
    }

    fn apply_batch(&self, id: LogId, bytes: bytes::Bytes) -> io::Result<(Vec<Request>, Applied)> {
        let unreadable = |error| io::Error::new(io::ErrorKind::InvalidData, format!("entry {id}: {error}"));
        let batch = batch::Batch::decode(bytes).map_err(unreadable)?;
        let (meta, lengths) = (batch.meta(id.index), batch.content_lengths());
        let applied = catch_unwind(AssertUnwindSafe(|| {
            let mut broker = self.broker.write();
            // As if the snapshot did not know its last entry.
            if mutant!("double-apply") && broker.index() == self.snapshot_index.load(Ordering::Acquire) {
                broker.apply(meta, &batch.requests, &lengths);
            }
            broker.apply(meta, &batch.requests, &lengths)
        }))
        .map_err(|panic| {
            let broken = format!("applying entry {id}: {}", panic_text(&*panic));
            let _ = self.broken.set(broken.clone());
            io::Error::other(broken)
        })?;
        Ok((batch.requests, applied))
    }

    /// Tells that the proposer of an entry is about to be answered.
    fn tell_answering(&self, id: LogId, payload: Payload<'_>) {
        let entry = Answering {
            index: id.index,
            term: id.leader_id.term,
            payload,
        };
        self.observer.answering(entry, &self.broker.read());
    }

    fn take_membership(&self, id: LogId, membership: crate::types::Membership) {
        let mut position = self.position.lock();
        let before = position.membership.membership().get_node(&self.node_id).is_some();
        let after = membership.get_node(&self.node_id).is_some();
        position.membership = StoredMembership::new(Some(id), membership);
        if before && !after {
            self.removed.send_replace(true);
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("panicked")
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let position = self.shared.position.lock().clone();
        Ok((position.applied, position.membership))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let id = entry.log_id;
            let mut observed = None;
            let answer = match entry.payload {
                EntryPayload::Blank => {
                    self.shared.tell_answering(id, Payload::Blank);
                    Answer::default()
                }
                EntryPayload::Membership(membership) => {
                    let payload = Payload::Members {
                        voters: membership.get_joint_config(),
                        learners: &membership.learner_ids().collect::<Vec<_>>(),
                    };
                    self.shared.tell_answering(id, payload);
                    self.shared.take_membership(id, membership);
                    Answer::default()
                }
                EntryPayload::Normal(Batch(bytes)) => {
                    let (requests, applied) = self.shared.apply_batch(id, bytes)?;
                    let payload = Payload::Batch {
                        requests: &requests,
                        applied: &applied,
                    };
                    self.shared.tell_answering(id, payload);
                    observed = Some((applied.effects, applied.events));
                    Answer {
                        outcomes: applied.outcomes,
                        repeated: applied.repeated,
                    }
                }
            };
            self.shared.position.lock().applied = Some(id);
            if let Some(responder) = responder {
                responder.send(answer);
            }
            if let Some((effects, events)) = observed {
                let observed = Observed {
                    index: id.index,
                    term: id.leader_id.term,
                    effects,
                    events: &events,
                };
                self.shared.observer.applied(observed, &self.shared.broker.read());
            }
        }
        self.shared.grown.notify_one();
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder::new(self.shared(), self.shared.view())
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, data: SnapshotData) -> io::Result<()> {
        let (shared, meta) = (self.shared(), meta.clone());
        let install = move || snapshot::install(&shared, &meta, data);
        blocking::run(&self.shared.store.log, install).await?
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> io::Result<Option<Snapshot<LeaderId, u64, Member, SnapshotData>>> {
        snapshot::current(&self.shared)
    }
}

/// Members by id, as a map: openraft hands them out one by one.
pub(crate) fn members(membership: &StoredMembership) -> BTreeMap<u64, Member> {
    membership
        .membership()
        .nodes()
        .map(|(id, member)| (*id, member.clone()))
        .collect()
}
