//! Who leads, as a value that others watch.
//!
//! openraft tells of state changes; it does not tell when a leader's lease runs
//! out, so a leader looks at the age of its last quorum answer a few times per
//! heartbeat.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::{Instant as _, WatchReceiver as _};
use openraft::vote::RaftLeaderId as _;
use quorate_core::ids::NodeId;
use tokio::sync::watch;

use crate::state_machine::Shared;
use crate::types::{LeaderId, Raft};

/// What a node knows about the cluster's leader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The Raft term.
    pub term: u64,
    /// Who leads, if this node knows.
    pub leader: Option<LeaderInfo>,
    /// This node leads, a quorum has confirmed it within the lease, and this
    /// node's state holds everything that was committed before.
    pub leading: bool,
    /// Names this leadership among all there ever were. A proposal carries it,
    /// and is appended under this leadership or not at all.
    pub epoch: Epoch,
}

/// One leadership of one node.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Epoch {
    term: u64,
    node: u64,
}

impl Epoch {
    /// The leadership of a node in a term.
    #[must_use]
    pub fn of(term: u64, node: NodeId) -> Self {
        Self { term, node: node.0 }
    }

    pub(crate) fn leader_id(self) -> LeaderId {
        LeaderId::new(self.term, self.node)
    }
}

impl From<LeaderId> for Epoch {
    fn from(id: LeaderId) -> Self {
        Self {
            term: id.term,
            node: id.node_id,
        }
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Epoch({}, {})", self.term, self.node)
    }
}

/// Where to find a leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderInfo {
    /// Its id.
    pub node_id: NodeId,
    /// For clients.
    pub client_address: String,
    /// For nodes.
    pub peer_address: String,
}

/// The leader as the membership describes it.
pub(crate) fn describe(raft: &Raft, leader: Option<u64>) -> Option<LeaderInfo> {
    let leader = leader?;
    let metrics = raft.server_metrics();
    let metrics = metrics.borrow_watched();
    let member = metrics.membership_config.membership().get_node(&leader)?;
    Some(LeaderInfo {
        node_id: NodeId(leader),
        client_address: member.client_address.clone(),
        peer_address: member.peer_address.clone(),
    })
}

fn observe(raft: &Raft, state: &Shared, lease: Duration) -> Leadership {
    let (leader_id, current, role, alone) = {
        let metrics = raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        // Without others a leader is its own quorum, and nobody renews its acknowledgement.
        let alone = membership.voter_ids().all(|voter| voter == state.node_id);
        (
            metrics.vote.leader_id,
            metrics.current_leader,
            metrics.state,
            alone,
        )
    };
    let confirmed = || {
        if alone {
            return true;
        }
        let metrics = raft.data_metrics();
        let acked = metrics.borrow_watched().last_quorum_acked;
        acked.is_some_and(|at| at.elapsed() < lease)
    };
    let caught_up = || state.applied().is_some_and(|id| id.leader_id == leader_id);
    let leading = role == ServerState::Leader && caught_up() && confirmed();
    Leadership {
        term: leader_id.term,
        leader: describe(raft, current),
        leading,
        epoch: leader_id.into(),
    }
}

/// Keeps `leadership` up to date until the node stops.
pub(crate) async fn run(
    raft: Raft,
    state: Arc<Shared>,
    lease: Duration,
    leadership: watch::Sender<Leadership>,
    leader_changes: Arc<AtomicU64>,
) {
    let mut server = raft.server_metrics();
    let mut data = raft.data_metrics();
    loop {
        let now = observe(&raft, &state, lease);
        let (leads, leading) = (server.borrow_watched().state == ServerState::Leader, now.leading);
        leadership.send_if_modified(|last| {
            let changed = *last != now;
            let leader = |known: &Leadership| known.leader.as_ref().map(|leader| leader.node_id);
            if leader(last) != leader(&now) {
                leader_changes.fetch_add(1, Ordering::Relaxed);
            }
            if changed && (last.leading, &last.leader) != (now.leading, &now.leader) {
                tracing::info!(
                    term = now.term,
                    leader = now.leader.as_ref().map(|l| l.node_id.0),
                    leading = now.leading,
                    "leadership"
                );
            }
            *last = now;
            changed
        });
        let ended = if leading {
            tokio::select! {
                changed = server.changed() => changed.is_err(),
                // Whether the quorum still answers; openraft refuses proposals
                // as soon as it does not.
                () = tokio::time::sleep(lease / 4) => false,
            }
        } else if leads {
            // About to be confirmed: do not waste a millisecond of it.
            tokio::select! {
                changed = server.changed() => changed.is_err(),
                changed = data.changed() => changed.is_err(),
                () = tokio::time::sleep(lease / 16) => false,
            }
        } else {
            server.changed().await.is_err()
        };
        if ended {
            leadership.send_modify(|last| {
                *last = Leadership {
                    term: last.term,
                    ..Leadership::default()
                }
            });
            return;
        }
    }
}
