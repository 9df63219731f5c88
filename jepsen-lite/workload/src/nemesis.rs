//! Carries out a schedule.
//!
//! The nemesis begins and undoes each step at its time, on any [`Cluster`]. It decides two things only: which
//! nodes a step means when it begins, drawn by the seed where the step leaves that open; and whether the step
//! is safe there. A step is *unsafe* if the system does not promise to survive it (data of a majority
//! damaged), and *void* if there is nobody to do it to. Neither is done; both are written down, as is what was
//! done and what it did. So the effects of a run say what it proved.
//!
//! A step begins when it is known whom it means, which may take until somebody leads. What takes long, as to remove a
//! node does, delays the steps after it. All last as long as they would have.
//!
//! At the end everything is undone that is not, in the order in which that can work: what stands still goes
//! on, then networks, clocks, disks, stopped nodes, members. Healing again does no harm.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use anyhow::Result;
use jepsen_lite_core::cluster::{Cluster, Done, Effect};
use jepsen_lite_core::schedule::{Fault, Schedule, Step, Target};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::{Instant, sleep, sleep_until};

use crate::crew::Crew;

/// How long a step waits for a leader that it needs.
const LEADER_LIMIT: Duration = Duration::from_secs(3);
/// A step that begins later than this, because the one before took so long or nobody led, ends as much later.
const LATE_MS: u64 = 200;
/// How often it looks.
const LEADER_PAUSE: Duration = Duration::from_millis(50);

/// Does harm to one cluster, by one schedule.
#[derive(Debug)]
pub struct Nemesis<'a, C> {
    cluster: &'a mut C,
    crew: Crew,
    rng: StdRng,
    start: Instant,
    effects: Vec<Effect>,
    /// Effects that are not undone: their places, and the step that each comes from.
    open: Vec<Open>,
    /// Nodes that have been taken out of the cluster, or were added and are gone again.
    absent: BTreeSet<usize>,
    /// Whom the last step meant.
    last: Vec<usize>,
    /// What workers had nacked when they began to nack everything.
    nacks_before: u64,
}

/// An effect that lasts.
#[derive(Clone, Copy, Debug)]
struct Open {
    effect: usize,
    step: usize,
}

/// A moment of a schedule. At one time, what ends comes before what begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    Undo(usize),
    Begin(usize),
}

impl<'a, C: Cluster> Nemesis<'a, C> {
    /// Of a cluster whose load began at `start`, with the load's workers for the faults that concern them.
    pub fn new(cluster: &'a mut C, crew: Crew, seed: u64, start: Instant) -> Self {
        Self {
            cluster,
            crew,
            // Other numbers than the load draws from the same seed.
            rng: StdRng::seed_from_u64(seed ^ 0x6e65_6d65_7369_7321),
            start,
            effects: Vec::new(),
            open: Vec::new(),
            absent: BTreeSet::new(),
            last: Vec::new(),
            nacks_before: 0,
        }
    }

    /// Carries out a schedule up to the end of its load. Steps that last longer are left to
    /// [`heal`](Self::heal).
    ///
    /// # Errors
    ///
    /// When the harness itself failed. What was begun can still be healed.
    pub async fn carry_out(&mut self, schedule: &Schedule) -> Result<()> {
        let mut moments: VecDeque<_> = moments(schedule).into();
        while let Some((at_ms, moment)) = moments.pop_front() {
            sleep_until(self.start + Duration::from_millis(at_ms.min(schedule.load_ms))).await;
            match moment {
                Moment::Begin(place) => {
                    let from_ms = self.begin(place, &schedule.steps[place]).await?;
                    let late_ms = from_ms.saturating_sub(at_ms);
                    if late_ms > LATE_MS {
                        put_off(&mut moments, place, late_ms);
                    }
                }
                // So late that all is healed first.
                Moment::Undo(_) if at_ms >= schedule.load_ms => {}
                Moment::Undo(place) => self.undo_step(place).await?,
            }
        }
        sleep_until(self.start + Duration::from_millis(schedule.load_ms)).await;
        Ok(())
    }

    /// Undoes all that is not undone, and lets the layer undo whatever else is left.
    ///
    /// # Errors
    ///
    /// When the harness itself failed: with the first failure, after everything was tried.
    pub async fn heal(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        let mut open = std::mem::take(&mut self.open);
        open.sort_by_key(|open| (undo_rank(&self.effects[open.effect].fault), open.effect));
        for open in open {
            outcome = outcome.and(self.undo(open.effect).await);
        }
        self.crew.pause(false);
        self.crew.nack(false);
        outcome.and(self.cluster.heal().await)
    }

    /// The cluster, between steps.
    pub fn cluster(&mut self) -> &mut C {
        self.cluster
    }

    /// What was done so far, in the order in which it began.
    #[must_use]
    pub fn effects(&self) -> &[Effect] {
        &self.effects
    }

    /// Begins a step; says when.
    async fn begin(&mut self, place: usize, step: &Step) -> Result<u64> {
        let target = if step.fault.is_of_workers() {
            Ok(Vec::new())
        } else {
            self.resolve(&step.target).await
        };
        let from_ms = self.now_ms();
        let (done, nodes, counters) = match target {
            Ok(nodes) => self.inflict(step, nodes).await?,
            Err(why) => (Done::Skipped(why), Vec::new(), BTreeMap::new()),
        };
        let lasts = done == Done::Yes && step.fault.lasts();
        let is_over = done == Done::Yes && !lasts;
        self.effects.push(Effect {
            from_ms,
            until_ms: is_over.then(|| self.now_ms()),
            fault: step.fault.clone(),
            nodes,
            state: done,
            counters,
        });
        if lasts {
            let effect = self.effects.len() - 1;
            self.open.push(Open { effect, step: place });
        }
        Ok(from_ms)
    }

    async fn inflict(
        &mut self,
        step: &Step,
        nodes: Vec<usize>,
    ) -> Result<(Done, Vec<usize>, BTreeMap<String, u64>)> {
        if let Some(counters) = self.inflict_on_workers(&step.fault).await {
            return Ok((Done::Yes, Vec::new(), counters));
        }
        let skipped = |why: String, nodes| Ok((Done::Skipped(why), nodes, BTreeMap::new()));
        self.last.clone_from(&nodes);
        let nodes = self.those_concerned(&step.fault, nodes);
        if nodes.is_empty() {
            return skipped("no target runs".to_owned(), nodes);
        }
        if let Some(why) = self.unsafe_on(&step.fault, &nodes) {
            return skipped(why, nodes);
        }
        let before = self.cluster.node_count();
        let seed = self.rng.random();
        let (done, counters) = self.cluster.inflict(&step.fault, &nodes, seed).await?;
        if step.fault == Fault::Shrink && !matches!(done, Done::Skipped(_)) {
            self.absent.extend(&nodes);
        }
        if step.fault == Fault::Grow {
            // Those that were started; they are members only until that is undone.
            let new = (before..self.cluster.node_count()).collect();
            return Ok((done, new, counters));
        }
        Ok((done, nodes, counters))
    }

    /// Some = the fault is one of workers, and was done.
    async fn inflict_on_workers(&mut self, fault: &Fault) -> Option<BTreeMap<String, u64>> {
        let (name, count) = match fault {
            Fault::KillWorkers => ("workers_killed", self.crew.kill_holders().await),
            Fault::PauseWorkers => ("leases_held", self.crew.pause(true)),
            Fault::NackStorm => {
                self.nacks_before = self.crew.nack(true);
                return Some(BTreeMap::new());
            }
            _ => return None,
        };
        Some(BTreeMap::from([(name.to_owned(), count)]))
    }

    async fn undo_step(&mut self, step: usize) -> Result<()> {
        let Some(place) = self.open.iter().position(|open| open.step == step) else {
            return Ok(()); // it was not done
        };
        let open = self.open.remove(place);
        self.undo(open.effect).await
    }

    async fn undo(&mut self, effect: usize) -> Result<()> {
        let Effect { fault, nodes, .. } = self.effects[effect].clone();
        let counters = match fault {
            Fault::PauseWorkers => {
                self.crew.pause(false);
                BTreeMap::new()
            }
            Fault::NackStorm => {
                let nacks = self.crew.nack(false);
                BTreeMap::from([("nacks".to_owned(), nacks - self.nacks_before)])
            }
            _ => {
                let counters = self.cluster.undo(&fault, &nodes).await?;
                match fault {
                    Fault::Grow => self.absent.extend(&nodes),
                    Fault::Shrink => self.absent.retain(|node| !nodes.contains(node)),
                    _ => {}
                }
                counters
            }
        };
        let until_ms = self.now_ms();
        let effect = &mut self.effects[effect];
        effect.until_ms = Some(until_ms);
        effect.counters.extend(counters);
        Ok(())
    }

    /// Whom a target means now. The error says why nobody.
    async fn resolve(&mut self, target: &Target) -> Result<Vec<usize>, String> {
        let members = self.members();
        let (minority, majority) = (members.len().saturating_sub(1) / 2, members.len() / 2 + 1);
        let nodes = match target {
            Target::Leader => vec![self.leader().await.ok_or("nobody leads")?],
            Target::Follower => {
                let followers = self.followers().await;
                self.draw(followers, 1)
            }
            Target::Followers => {
                self.leader().await.ok_or("nobody leads")?;
                self.followers().await
            }
            Target::Newest => {
                let followers = self.followers().await;
                self.cluster.newest(&followers).await.into_iter().collect()
            }
            Target::Minority => self.draw(members, minority),
            Target::MinorityWithLeader => {
                let leader = self.leader().await.ok_or("nobody leads")?;
                let others = members.into_iter().filter(|&node| node != leader).collect();
                let mut nodes = vec![leader];
                if minority == 0 {
                    nodes.clear();
                } else {
                    nodes.extend(self.draw(others, minority - 1));
                }
                nodes
            }
            Target::Majority => self.draw(members, majority),
            Target::All => members,
            Target::Node(node) => vec![*node],
            Target::Nodes(nodes) => nodes.clone(),
            Target::Same => self.last.clone(),
            Target::Next => self.last.iter().map(|&node| after(&members, node)).collect(),
        };
        if nodes.is_empty() {
            return Err(format!(
                "there is no {target:?} of {} nodes",
                self.members().len()
            ));
        }
        if let Some(unknown) = nodes.iter().find(|&&node| node >= self.cluster.node_count()) {
            return Err(format!("there is no node {unknown}"));
        }
        Ok(nodes)
    }

    /// Nodes that belong to the cluster, running or not.
    fn members(&self) -> Vec<usize> {
        let all = 0..self.cluster.node_count();
        all.filter(|node| !self.absent.contains(node)).collect()
    }

    async fn leader(&mut self) -> Option<usize> {
        let give_up = Instant::now() + LEADER_LIMIT;
        loop {
            let leader = self.cluster.leader().await;
            if leader.is_some() || Instant::now() >= give_up {
                return leader;
            }
            sleep(LEADER_PAUSE).await;
        }
    }

    /// Members that run and do not lead. One that was emptied may run, and is none until that is undone.
    async fn followers(&mut self) -> Vec<usize> {
        let (leader, running) = (self.cluster.leader().await, self.cluster.running());
        let members = self.members().into_iter();
        members
            .filter(|node| running.contains(node) && Some(*node) != leader && !self.is_held_down(*node))
            .collect()
    }

    /// So many of these, in their order.
    fn draw(&mut self, mut of: Vec<usize>, count: usize) -> Vec<usize> {
        of.shuffle(&mut self.rng);
        of.truncate(count);
        of.sort_unstable();
        of
    }

    /// Those of the targets that the fault can be done to: most need a process. One that ended by itself has
    /// left what it had not synced, which a loss of power takes.
    fn those_concerned(&self, fault: &Fault, nodes: Vec<usize>) -> Vec<usize> {
        if !needs_process(fault) {
            return nodes;
        }
        let running = self.cluster.running();
        let ended = |node| *fault == Fault::PowerLoss && !self.is_held_down(node);
        let concerned = |node: &usize| running.contains(node) || ended(*node);
        nodes.into_iter().filter(concerned).collect()
    }

    /// Whether a fault that is not undone wants the node down.
    fn is_held_down(&self, node: usize) -> bool {
        let effects = self.open.iter().map(|open| &self.effects[open.effect]);
        effects
            .filter(|effect| ends(&effect.fault))
            .any(|effect| effect.nodes.contains(&node))
    }

    /// Why the system would not have to survive this, if that is so.
    fn unsafe_on(&self, fault: &Fault, nodes: &[usize]) -> Option<String> {
        let members = self.members();
        if damages(fault) {
            let open = self.open.iter().map(|open| &self.effects[open.effect]);
            let damaged = open.filter(|effect| damages(&effect.fault));
            let unfinished = self.effects.iter().filter(|effect| is_unfinished(effect));
            let damaged = damaged.chain(unfinished).flat_map(|effect| effect.nodes.iter());
            let all: BTreeSet<usize> = damaged.chain(nodes).copied().collect();
            let may = members.len().saturating_sub(1) / 2;
            return (all.len() > may)
                .then(|| format!("the data of {} nodes would be damaged, {may} may be", all.len()));
        }
        let all_go = *fault == Fault::Shrink && members.iter().all(|node| nodes.contains(node));
        all_go.then(|| "nobody would be left".to_owned())
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// All beginnings and ends before the end of the load, by time.
fn moments(schedule: &Schedule) -> Vec<(u64, Moment)> {
    let mut moments = Vec::new();
    for (place, step) in schedule.steps.iter().enumerate() {
        moments.push((step.at_ms, Moment::Begin(place)));
        if let Some(undo_at_ms) = step.undo_at_ms {
            moments.push((undo_at_ms.max(step.at_ms), Moment::Undo(place)));
        }
    }
    moments.retain(|(at_ms, _)| *at_ms < schedule.load_ms);
    // A step that would be undone as it begins is over at once: its end comes after its beginning.
    moments.sort_by_key(|&(at_ms, moment)| {
        let at_once = match moment {
            Moment::Undo(place) => schedule.steps[place].at_ms == at_ms,
            Moment::Begin(_) => false,
        };
        (at_ms, at_once, moment)
    });
    moments
}

/// Lets a step that begins late end as much later.
fn put_off(moments: &mut VecDeque<(u64, Moment)>, place: usize, late_ms: u64) {
    let end = |(_, moment): &(u64, Moment)| *moment == Moment::Undo(place);
    let Some((at_ms, moment)) = moments.iter().position(end).and_then(|at| moments.remove(at)) else {
        return;
    };
    let at_ms = at_ms + late_ms;
    let after = moments.partition_point(|(other_ms, _)| *other_ms <= at_ms);
    moments.insert(after, (at_ms, moment));
}

/// The member after this one, around.
fn after(members: &[usize], node: usize) -> usize {
    let next = members.iter().copied().find(|&member| member > node);
    next.or_else(|| members.first().copied()).unwrap_or(node)
}

/// Its nodes are replaced, or are members again, only when all is healed: what stood in the way of it while the load went
/// on, the layer has put off.
fn is_unfinished(effect: &Effect) -> bool {
    let may_have_left = effect.fault == Fault::Shrink && matches!(effect.state, Done::Unknown(_));
    may_have_left || effect.counters.contains_key("put_off")
}

/// Faults of a process cannot be done to a node that does not run; networks, clocks and files are there
/// without it.
fn needs_process(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::Kill
            | Fault::Stop
            | Fault::PowerLoss
            | Fault::Restart
            | Fault::Pause
            | Fault::SlowCpu { .. }
            | Fault::Transfer
            | Fault::Snapshot
            | Fault::Upgrade
    )
}

/// What ends a process and keeps it from being there until that is undone.
fn ends(fault: &Fault) -> bool {
    damages(fault)
        || matches!(
            fault,
            Fault::Kill | Fault::Stop | Fault::PowerLoss | Fault::Shrink
        )
}

/// What is lost or changed of data that was durable. More than a minority is not promised to be survived.
fn damages(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::BitFlip { .. } | Fault::Truncate { .. } | Fault::Rollback | Fault::Wipe
    )
}

/// In which order what is left is undone.
fn undo_rank(fault: &Fault) -> u8 {
    match fault {
        Fault::Pause | Fault::SlowCpu { .. } | Fault::PauseWorkers | Fault::NackStorm => 0,
        Fault::Isolate
        | Fault::Deaf
        | Fault::Mute
        | Fault::Shatter
        | Fault::Ring
        | Fault::CutClients
        | Fault::Delay { .. }
        | Fault::Throttle { .. }
        | Fault::Lossy { .. } => 1,
        Fault::ClockJump { .. } | Fault::ClockDrift { .. } | Fault::ClockStrobe { .. } => 2,
        Fault::DiskFull | Fault::WriteError | Fault::SyncError { .. } | Fault::SlowSync { .. } => 3,
        Fault::Kill | Fault::Stop | Fault::PowerLoss | Fault::Upgrade => 4,
        Fault::BitFlip { .. } | Fault::Truncate { .. } | Fault::Rollback | Fault::Wipe => 5,
        Fault::Grow | Fault::Shrink => 6,
        Fault::Restart | Fault::Reset | Fault::Transfer | Fault::Snapshot | Fault::KillWorkers => 7,
    }
}

#[cfg(test)]
mod tests;
