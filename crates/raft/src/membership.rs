//! Changing who belongs to the cluster, and who leads it.
//!
//! A node comes in as a learner and becomes a voter when it has caught up, so
//! that an empty log never counts towards a quorum. Each change is conditional
//! on the membership it was planned on: of two at a time one is refused. And one
//! that a quorum of the new voters could not commit is not begun: it would never
//! end, and until it does, nothing else is committed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::{Instant as _, WatchReceiver as _};
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::{ChangeMembers, Precondition, ServerState};
use quorate_core::ids::NodeId;
use tokio::time::Instant;

use crate::bootstrap;
use crate::error::MembershipError;
use crate::failover::Contact;
use crate::identity::Identity;
use crate::leadership::describe;
use crate::network::pool::Pool;
use crate::state_machine::members;
use crate::types::{LogId, Member, Raft, StoredMembership, TypeConfig};

/// A change that is not committed after this may still be.
const COMMIT_WITHIN: Duration = Duration::from_secs(10);
/// A learner that makes no progress for this long is given up; asking again
/// goes on where it was.
const PROGRESS_WITHIN: Duration = Duration::from_secs(30);
/// A learner this close to the end has caught up.
const CAUGHT_UP_ENTRIES: u64 = 100;
/// Handing over takes two round trips and a few flushes.
const TRANSFER_WITHIN: Duration = Duration::from_millis(1_500);
const HELLO_WITHIN: Duration = Duration::from_secs(3);
/// A voter that runs answers its leader many times within this.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub(crate) struct Membership {
    pub(crate) raft: Raft,
    pub(crate) identity: Arc<Identity>,
    pub(crate) pool: Pool,
}

impl Membership {
    fn own(&self) -> u64 {
        self.identity.node_id
    }

    /// The effective membership, if this node leads.
    fn lead(&self) -> Result<StoredMembership, MembershipError> {
        let (state, leader, membership) = {
            let metrics = self.raft.server_metrics();
            let metrics = metrics.borrow_watched();
            (
                metrics.state,
                metrics.current_leader,
                metrics.membership_config.as_ref().clone(),
            )
        };
        if state == ServerState::Leader {
            return Ok(membership);
        }
        let leader = describe(&self.raft, leader.filter(|id| *id != self.own()));
        Err(MembershipError::NotLeader { leader })
    }

    async fn change(
        &self,
        change: ChangeMembers<u64, Member>,
        based_on: Option<LogId>,
    ) -> Result<(), MembershipError> {
        let unchanged = Precondition::LastMembershipLogId {
            last_membership_log_id: based_on,
        };
        let text = change.to_string();
        let changed = self.raft.change_membership_if(change, false, [unchanged]);
        match tokio::time::timeout(COMMIT_WITHIN, changed).await {
            Ok(result) => result.map(drop).map_err(|error| self.failed(error)),
            Err(_) => Err(MembershipError::Unknown(format!(
                "{text} is not committed after {COMMIT_WITHIN:?}"
            ))),
        }
    }

    fn failed(&self, error: RaftError<TypeConfig, ClientWriteError<TypeConfig>>) -> MembershipError {
        match error {
            RaftError::Fatal(fatal) => MembershipError::Fatal(fatal.to_string()),
            RaftError::APIError(ClientWriteError::ForwardToLeader(to)) => MembershipError::NotLeader {
                leader: describe(&self.raft, to.leader_id.filter(|id| *id != self.own())),
            },
            RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) => {
                MembershipError::Unknown("leadership changed".to_owned())
            }
            RaftError::APIError(ClientWriteError::ChangeMembershipError(
                ChangeMembershipError::InProgress(_),
            )) => MembershipError::Refused("another change of members is under way".to_owned()),
            RaftError::APIError(ClientWriteError::PreconditionFailed(_)) => MembershipError::Refused(
                "the members were changed meanwhile: look, then ask again".to_owned(),
            ),
            RaftError::APIError(error) => MembershipError::Refused(error.to_string()),
        }
    }

    /// Brings in the node at an address.
    pub(crate) async fn add(&self, address: &str) -> Result<NodeId, MembershipError> {
        let membership = self.lead()?;
        let refused = |text: String| Err(MembershipError::Refused(text));
        let hello = bootstrap::hello(&self.pool, &self.identity, address, HELLO_WITHIN)
            .await
            .map_err(MembershipError::Unreachable)?;
        let node = hello.node.clone().unwrap_or_default();
        let id = node.node_id;

        let own_cluster = self.identity.cluster();
        let known = members(&membership);
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        if voters.contains(&id) {
            return refused(format!("node {id} at {address} is a member already"));
        }
        if !hello.cluster_id.is_empty() && own_cluster.is_none_or(|own| own.0[..] != hello.cluster_id[..]) {
            return refused(format!(
                "node {id} at {address} belongs to another cluster; empty its data directory to bring it here"
            ));
        }
        if hello.initialized && !known.contains_key(&id) {
            return refused(format!(
                "node {id} at {address} has data of a time when it was a member; empty its data directory, so that it \
                 becomes a new node"
            ));
        }
        if voters.len() == 1 {
            return refused(
                "a cluster of one does not grow: start three nodes with each other as peers, and move the work there"
                    .to_owned(),
            );
        }
        // Two nodes cannot be at one address: the other one is gone.
        let replaced: BTreeSet<u64> = known
            .iter()
            .filter(|(old, member)| **old != id && member.peer_address == address)
            .map(|(old, _)| *old)
            .collect();

        if !known.contains_key(&id) {
            let member = Member {
                name: node.name,
                client_address: node.client_address,
                peer_address: address.to_owned(),
            };
            let added = self.raft.add_learner(id, member, false);
            tokio::time::timeout(COMMIT_WITHIN, added)
                .await
                .map_err(|_| MembershipError::Unknown(format!("node {id} is not yet known as a learner")))?
                .map_err(|error| self.failed(error))?;
        }
        tracing::info!(node = id, address, ?replaced, "a node is coming in as a learner");
        self.caught_up(id).await?;

        let membership = self.lead()?;
        let mut voters: BTreeSet<u64> = membership
            .voter_ids()
            .filter(|old| !replaced.contains(old))
            .collect();
        voters.insert(id);
        self.quorum_answers(&voters).await?;
        self.change(ChangeMembers::ReplaceAllVoters(voters), *membership.log_id())
            .await?;
        tracing::info!(node = id, address, ?replaced, "a node is a voter now");
        Ok(NodeId(id))
    }

    /// Waits until a learner has nearly all of the log.
    async fn caught_up(&self, id: u64) -> Result<(), MembershipError> {
        let mut metrics = self.raft.data_metrics();
        let (mut best, mut moved) = (None, Instant::now());
        loop {
            self.lead()?;
            let (last, matched) = {
                let metrics = metrics.borrow_and_update();
                let matched = metrics
                    .replication
                    .as_ref()
                    .and_then(|all| all.get(&id).copied().flatten());
                (
                    metrics.last_log.map_or(0, |id| id.index),
                    matched.map(|id| id.index),
                )
            };
            if matched.is_some_and(|index| index + CAUGHT_UP_ENTRIES >= last) {
                return Ok(());
            }
            if matched > best {
                (best, moved) = (matched, Instant::now());
            }
            if moved.elapsed() > PROGRESS_WITHIN {
                // Half of the change has taken place.
                return Err(MembershipError::Unknown(format!(
                    "node {id} is a learner now, and has made no progress for {PROGRESS_WITHIN:?}; once it runs, add it \
                     again, or remove it"
                )));
            }
            let changed = tokio::time::timeout(Duration::from_millis(100), metrics.changed()).await;
            if let Ok(Err(error)) = changed {
                return Err(MembershipError::Fatal(error.to_string()));
            }
        }
    }

    /// Removes a voter or learner, for good.
    pub(crate) async fn remove(&self, node: NodeId) -> Result<(), MembershipError> {
        let membership = self.lead()?;
        let id = node.0;
        if membership.membership().get_node(&id).is_none() {
            return Err(MembershipError::Refused(format!("node {id} is not a member")));
        }
        let mut voters: BTreeSet<u64> = membership.voter_ids().collect();
        let change = if voters.remove(&id) {
            if voters.is_empty() {
                return Err(MembershipError::Refused(
                    "the last node cannot be removed".to_owned(),
                ));
            }
            self.quorum_answers(&voters).await?;
            ChangeMembers::ReplaceAllVoters(voters)
        } else {
            ChangeMembers::RemoveNodes(BTreeSet::from([id]))
        };
        self.change(change, *membership.log_id()).await?;
        tracing::info!(node = id, "a node was removed");
        Ok(())
    }

    /// Refuses voters of which so few answer now that they could decide nothing.
    async fn quorum_answers(&self, voters: &BTreeSet<u64>) -> Result<(), MembershipError> {
        let asked = Instant::now();
        let needed = voters.len() / 2 + 1;
        let mut metrics = self.raft.data_metrics();
        loop {
            let answer = {
                let metrics = metrics.borrow_and_update();
                let has_answered = |id: &&u64| {
                    let heard = metrics
                        .heartbeat
                        .as_ref()
                        .and_then(|all| all.get(id).copied().flatten());
                    **id == self.own() || heard.is_some_and(|at| at.elapsed() <= asked.elapsed())
                };
                voters.iter().filter(has_answered).count()
            };
            if answer >= needed {
                return Ok(());
            }
            if asked.elapsed() > ANSWER_WITHIN {
                return Err(MembershipError::Refused(format!(
                    "the cluster could do nothing then: of the {} voters that it would have {needed} must answer, and {answer} \
                     do; bring back one that does not, or remove such a one instead",
                    voters.len()
                )));
            }
            let changed = tokio::time::timeout(Duration::from_millis(50), metrics.changed()).await;
            if let Ok(Err(error)) = changed {
                return Err(MembershipError::Fatal(error.to_string()));
            }
        }
    }

    /// Hands leadership to a voter, the most advanced if none is named, and
    /// waits until it leads.
    pub(crate) async fn transfer(&self, to: Option<NodeId>) -> Result<(), MembershipError> {
        let membership = self.lead()?;
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        let to = match to {
            Some(NodeId(id)) if id == self.own() => return Ok(()),
            Some(NodeId(id)) if !voters.contains(&id) => {
                return Err(MembershipError::Refused(format!("node {id} is not a voter")));
            }
            Some(NodeId(id)) => id,
            None => self
                .most_advanced(&voters)
                .ok_or_else(|| MembershipError::Refused("there is no other voter that answers".to_owned()))?,
        };
        let mut metrics = self.raft.server_metrics();
        self.raft
            .trigger()
            .transfer_leader(to)
            .await
            .map_err(|error| MembershipError::Fatal(error.to_string()))?;
        let taken_over = async {
            loop {
                let leader = metrics.borrow_and_update().current_leader;
                if leader.is_some_and(|leader| leader != self.own()) || metrics.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(TRANSFER_WITHIN, taken_over)
            .await
            .map_err(|_| {
                MembershipError::Unknown(format!("node {to} has not taken over within {TRANSFER_WITHIN:?}"))
            })
    }

    /// The other voter with the most of the log, among those that answer.
    fn most_advanced(&self, voters: &BTreeSet<u64>) -> Option<u64> {
        let metrics = self.raft.data_metrics();
        let metrics = metrics.borrow_watched();
        let answers = |id: &u64| {
            let heard = metrics
                .heartbeat
                .as_ref()
                .and_then(|all| all.get(id).copied().flatten());
            heard.is_some_and(|at| at.elapsed() < Duration::from_secs(1))
        };
        let matched = |id: &u64| {
            metrics
                .replication
                .as_ref()
                .and_then(|all| all.get(id).copied().flatten())
        };
        voters
            .iter()
            .copied()
            .filter(|id| *id != self.own())
            .max_by_key(|id| (answers(id), matched(id), *id))
    }

    /// A change takes two entries, and a leader may have died between them: the
    /// next one finishes it.
    pub(crate) async fn finish_changes(self) {
        /// Longer than a change that is under way takes.
        const SETTLED: Duration = Duration::from_secs(3);
        let mut metrics = self.raft.server_metrics();
        let mut joint: Option<(Option<LogId>, Instant)> = None;
        loop {
            let (state, membership) = {
                let metrics = metrics.borrow_and_update();
                (metrics.state, metrics.membership_config.as_ref().clone())
            };
            let at = *membership.log_id();
            let half_done = membership.membership().get_joint_config().len() > 1;
            joint = (state == ServerState::Leader && half_done).then(|| {
                joint
                    .filter(|(since, _)| *since == at)
                    .unwrap_or((at, Instant::now()))
            });
            if joint.is_some_and(|(_, since)| since.elapsed() > SETTLED)
                && let Some(target) = membership.membership().get_joint_config().last()
            {
                tracing::info!(?target, "finishing a change of members that was left half-way");
                if let Err(error) = self
                    .change(ChangeMembers::ReplaceAllVoters(target.clone()), at)
                    .await
                {
                    tracing::warn!(%error, "finish a change of members");
                }
                joint = None;
            }
            let wait = if joint.is_some() {
                SETTLED / 6
            } else {
                Duration::from_secs(3_600)
            };
            if let Ok(Err(_)) = tokio::time::timeout(wait, metrics.changed()).await {
                return;
            }
        }
    }

    /// Finds out whether the cluster removed this node while it was away: a
    /// removed node is not told, so one that hears nothing from a leader asks.
    /// So does one that has the change in its own log and cannot know whether it
    /// was committed.
    /// Returns when it was.
    pub(crate) async fn removed_elsewhere(self, contact: Arc<Contact>) {
        const ASK_AFTER: Duration = Duration::from_secs(2);
        loop {
            tokio::time::sleep(ASK_AFTER).await;
            let (state, committed, effective) = {
                let metrics = self.raft.server_metrics();
                let metrics = metrics.borrow_watched();
                let committed = metrics.committed_membership_config.as_ref().clone();
                let effective = metrics.membership_config.as_ref().clone();
                (metrics.state, committed, effective)
            };
            // A node is never taken back: any later membership without it is final.
            let as_member = [&effective, &committed]
                .into_iter()
                .find(|membership| membership.membership().get_node(&self.own()).is_some());
            let led = state == ServerState::Leader || !contact.silent_for(ASK_AFTER);
            let Some(as_member) = as_member.filter(|_| !led) else {
                continue;
            };
            let at = as_member.log_id().map_or(0, |id| id.index);
            let mut others = members(&committed);
            others.extend(members(&effective));
            others.remove(&self.own());
            for (id, member) in others {
                let address = &member.peer_address;
                let Ok(info) = bootstrap::join_info(&self.pool, &self.identity, Some(id), address).await
                else {
                    continue;
                };
                let same = self
                    .identity
                    .cluster()
                    .is_some_and(|own| own.0[..] == info.cluster_id[..]);
                let gone = info.members.iter().all(|member| member.node_id != self.own());
                if same && info.membership_index > at && gone {
                    return;
                }
            }
        }
    }
}
