//! The whole course of a run, on any cluster.
//!
//! 1. The load begins, and the schedule is carried out.
//! 2. All faults are undone. The load goes on, so that it can be seen whether the cluster serves again.
//! 3. The cluster has a time, its schedule says how long, to be *whole*: one leads, a write and a read are
//!    served, and every member has applied what was there when the faults were over.
//! 4. The load ends; everybody gets an answer, or does not in time.
//! 5. What is left in the queues is taken.
//! 6. A barrier is committed: what is applied after it is late. All members come to the same state.
//!
//! Everything waits in bounds. Where the cluster does not do in time what it should, that is a finding, and the
//! course goes on with what is left: whatever is there is worth judging. Where the harness itself fails, no new
//! fault is begun, the cluster is healed all the same, and the failure is told.

use std::time::Duration;

use anyhow::{Context as _, Result};
use jepsen_lite_core::audit::Audit;
use jepsen_lite_core::cluster::Cluster;
use jepsen_lite_core::history::Mark;
use jepsen_lite_core::run::{Facts, Run};
use jepsen_lite_core::schedule::Schedule;
use quorate_client::{Client, NodeStatus};
use tokio::time::{Instant, sleep, timeout};

use crate::access::Access;
use crate::load::Load;
use crate::nemesis::Nemesis;
use crate::recorder::Recorder;
use crate::watch::{self, Seen, Watch};

/// How long undoing faults may take, beyond what the cluster has to be whole: nodes that come back read their
/// data, and emptied ones are sent all of it.
const HEAL_LIMIT: Duration = Duration::from_secs(120);
/// Least time for the queues to be empty.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);
/// Between two looks at something that is waited for.
const PAUSE: Duration = Duration::from_millis(100);
/// A look, a write or a read that takes longer was not served.
const ASK_LIMIT: Duration = Duration::from_secs(5);
/// What the writes of the harness declare. Nothing is in it.
const PROBE: &str = "jepsen-lite-probe";

/// Carries out a schedule on a cluster that has just been started for it. What comes of it lacks the audit logs,
/// which only the cluster's layer can reach.
///
/// # Errors
///
/// When the load cannot be started. Whatever happens later is in the facts.
pub async fn conduct<C: Cluster>(schedule: &Schedule, cluster: &mut C, access: &Access) -> Result<Run> {
    let recorder = Recorder::default();
    Box::pin(conduct_before(&recorder, schedule, cluster, access)).await
}

/// The same, before somebody who has the recorder too and can tell how far it is. It has just been made: it
/// counts the time from then on.
///
/// # Errors
///
/// As [`conduct`].
pub async fn conduct_before<C: Cluster>(
    recorder: &Recorder,
    schedule: &Schedule,
    cluster: &mut C,
    access: &Access,
) -> Result<Run> {
    let workload = crate::by_name(&schedule.workload.name, &schedule.workload.parameters)?;
    let load = Load::start(workload, access, schedule.seed, recorder).await;
    let load = load.context("start the load")?;
    let watch = Watch::start(access, recorder.start());
    let mut nemesis = Nemesis::new(cluster, load.crew().clone(), schedule.seed, recorder.start());
    let mut facts = Facts::default();

    if let Err(error) = nemesis.carry_out(schedule).await {
        facts.failures.push(format!("carry out the schedule: {error:#}"));
    }
    recorder.mark("heal", "", None);
    let heal_limit = HEAL_LIMIT + Duration::from_millis(schedule.heal_ms);
    match timeout(heal_limit, nemesis.heal()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => facts.failures.push(format!("heal: {error:#}")),
        Err(_) => facts
            .failures
            .push(format!("heal: not done within {heal_limit:?}")),
    }
    let effects = nemesis.effects().to_vec();
    drop(nemesis);

    let end = Ending {
        client: access.client(ASK_LIMIT),
        recorder,
        limit: Duration::from_millis(schedule.heal_ms),
    };
    end.carry_out(&load, &mut facts).await;
    let sights = watch.stop().await;
    let seen = Seen::of(&sights);
    facts.leader_changes = seen.leader_changes;
    facts.snapshots_installed = seen.snapshots_installed;
    facts.observed.push(seen.finding());
    Ok(Run {
        schedule: schedule.clone(),
        history: recorder.history(),
        audit: Audit::default(),
        effects,
        facts,
        sights: watch::in_short(&sights),
    })
}

/// What comes after the faults.
struct Ending<'a> {
    client: Client,
    recorder: &'a Recorder,
    limit: Duration,
}

impl Ending<'_> {
    async fn carry_out(&self, load: &Load, facts: &mut Facts) {
        match self.whole().await {
            Ok(after) => {
                facts.whole_after_ms = Some(u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
                self.recorder.mark(Mark::WHOLE, "", None);
            }
            Err(why) => facts
                .overdue
                .push(format!("not whole after {:?}: {why}", self.limit)),
        }
        if let Err(error) = load.stop().await {
            facts.overdue.push(format!("stop the load: {error:#}"));
        }
        match load.drain(self.limit.max(DRAIN_LIMIT)).await {
            Ok(()) => self.recorder.mark(Mark::DRAINED, "", None),
            Err(error) => facts.overdue.push(format!("drain the queues: {error:#}")),
        }
        match self.commit().await {
            Ok(index) => {
                facts.barrier = Some(index);
                self.recorder.mark("barrier", "", Some(index));
            }
            Err(error) => facts.overdue.push(format!("commit a barrier: {error}")),
        }
        match self.converge().await {
            Ok(()) => facts.converged = true,
            Err(why) => facts
                .overdue
                .push(format!("no common state after {:?}: {why}", self.limit)),
        }
        match load.counts().await {
            Ok(counts) => facts.counts = counts,
            Err(error) => facts.overdue.push(format!("count what is left: {error:#}")),
        }
        facts.queues = load.queues().into_iter().collect();
    }

    /// Waits until the cluster is whole; says how long that took, or what is missing.
    async fn whole(&self) -> Result<Duration, String> {
        let start = Instant::now();
        let mut goal = None;
        loop {
            let missing = match self.missing(&mut goal).await {
                None => return Ok(start.elapsed()),
                Some(missing) => missing,
            };
            if start.elapsed() >= self.limit {
                return Err(missing);
            }
            sleep(PAUSE).await;
        }
    }

    /// What keeps the cluster from being whole. `goal` is the index that every member must have applied: that of
    /// the first write which is served.
    async fn missing(&self, goal: &mut Option<u64>) -> Option<String> {
        let goal = match *goal {
            Some(index) => index,
            None => match self.commit().await {
                Ok(index) => *goal.insert(index),
                Err(error) => return Some(format!("no write is served: {error}")),
            },
        };
        if let Err(error) = self.client.describe_queue(PROBE).await {
            return Some(format!("no read is served: {error}"));
        }
        match self.members().await {
            Ok(members) => members
                .iter()
                .find(|member| member.applied_index < goal)
                .map(|member| {
                    format!(
                        "{} has applied {} of {goal}",
                        member.node_id, member.applied_index
                    )
                }),
            Err(why) => Some(why),
        }
    }

    /// Waits until all members show the same state, with nothing left to apply; says what is missing.
    async fn converge(&self) -> Result<(), String> {
        let give_up = Instant::now() + self.limit;
        loop {
            let missing = match self.members().await {
                Ok(members) if are_one(&members) => return Ok(()),
                Ok(members) => {
                    let states = members.iter().map(|member| {
                        let NodeStatus {
                            node_id,
                            state_index,
                            state_hash,
                            ..
                        } = member;
                        format!("{node_id} at {state_index} is {state_hash}")
                    });
                    states.collect::<Vec<_>>().join(", ")
                }
                Err(why) => why,
            };
            if Instant::now() >= give_up {
                return Err(missing);
            }
            sleep(PAUSE).await;
        }
    }

    /// What every member says of itself, as the leader knows the members; or who does not answer.
    async fn members(&self) -> Result<Vec<NodeStatus>, String> {
        let looking = watch::look(&self.client, self.recorder.start());
        let sights = timeout(ASK_LIMIT, looking)
            .await
            .map_err(|_| "nobody answers".to_owned())?;
        let statuses: Vec<NodeStatus> = sights.into_iter().filter_map(|sight| sight.status).collect();
        let leaders = statuses.iter().filter(|status| status.role == "leader");
        let leader = leaders.max_by_key(|status| status.term).ok_or("nobody leads")?;
        let members = leader.members.iter().map(|member| {
            let status = statuses.iter().find(|status| status.node_id == member.node_id);
            status
                .cloned()
                .ok_or_else(|| format!("{} does not answer", member.client_address))
        });
        members.collect()
    }

    /// Commits something that changes nothing; says where it stands in the log.
    async fn commit(&self) -> quorate_client::Result<u64> {
        let declared = self.client.declare_queue(PROBE).send().await?;
        Ok(declared.commit.log_index)
    }
}

/// All members have applied all they have, and it is the same.
fn are_one(members: &[NodeStatus]) -> bool {
    let state = |status: &NodeStatus| (status.state_index, status.state_hash.clone());
    members.windows(2).all(|pair| state(&pair[0]) == state(&pair[1]))
        && members
            .iter()
            .all(|status| status.applied_index == status.last_log_index)
}
