//! Each fault, done and undone.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use jepsen_lite_core::cluster::{Cluster, Done};
use jepsen_lite_core::schedule::Fault;
use quorate_disk_shim::{Counters as DiskCounters, Fault as DiskFault, Names, PowerLoss, Variant};
use quorate_test_cluster::{Signaller, wait_until};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::exits::{DAMAGED, REMOVED};
use super::{Counted, Machines};
use crate::wrong_clock::Clock;
use crate::{damage, process};

/// How long a restarted node may take to be ready before the next one is restarted all the same.
const READY_LIMIT: Duration = Duration::from_secs(20);
/// How long a node whose data was harmed may run before it counts as well.
const PROBATION: Duration = Duration::from_secs(3);
/// How long others may take to have what a node has, before that is rolled back.
const OTHERS_LIMIT: Duration = Duration::from_secs(5);
/// A slowed process runs and stands still within this.
const SLICE: Duration = Duration::from_millis(20);
/// Before power is lost, disks are as slow as this. The shim makes nothing durable, so that a sync is over at
/// once, and a loss of power would hardly ever find a write that is under way.
const LAST_SYNCS: Duration = Duration::from_millis(200);
/// For this long. What is written meanwhile is at stake.
const LAST_MOMENTS: Duration = Duration::from_millis(80);
/// How the names of the files begin in which a node keeps how far it was.
const PROGRESS: &str = "progress";
/// A strobing clock stays on one side for this.
const STROBE: Duration = Duration::from_millis(100);
/// How long healing may try to settle who is a member.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);

/// A fault that lasts.
#[derive(Debug)]
pub(super) struct Open {
    fault: Fault,
    nodes: Vec<usize>,
    began: Instant,
    before: BTreeMap<usize, Before>,
    /// What goes on while it lasts, for each node; dropped, it ends.
    tasks: BTreeMap<usize, JoinSet<()>>,
    counted: Counted,
}

/// What was counted when a fault began.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    process: Option<(u32, u64)>,
    disk: DiskCounters,
    readings: u64,
}

impl Open {
    pub(super) fn keeps_down(&self, node: usize) -> bool {
        let down = matches!(
            self.fault,
            Fault::Kill
                | Fault::Stop
                | Fault::PowerLoss
                | Fault::BitFlip { .. }
                | Fault::Truncate { .. }
                | Fault::Rollback
                | Fault::Wipe
                | Fault::Shrink
        );
        down && self.nodes.contains(&node)
    }

    /// These processes are about to end: nothing goes on for them.
    pub(super) fn let_go(&mut self, nodes: &[usize]) {
        if matches!(self.fault, Fault::SlowCpu { .. }) {
            self.tasks.retain(|node, _| !nodes.contains(node));
        }
    }
}

fn add(counted: &mut Counted, name: &str, count: u64) {
    if count > 0 {
        *counted.entry(name.to_owned()).or_default() += count;
    }
}

fn skipped(why: impl Into<String>) -> Result<(Done, Counted)> {
    Ok((Done::Skipped(why.into()), Counted::new()))
}

impl Cluster for Machines {
    fn node_count(&self) -> usize {
        self.nodes.node_count()
    }

    fn running(&self) -> Vec<usize> {
        (0..self.nodes.node_count())
            .filter(|node| self.nodes.is_running(*node))
            .collect()
    }

    async fn leader(&mut self) -> Option<usize> {
        let statuses = self.statuses(&self.awake()).await.into_iter();
        let leaders = statuses.filter(|(_, status)| status.role == "leader");
        leaders
            .max_by_key(|(_, status)| status.term)
            .map(|(node, _)| node)
    }

    async fn newest(&mut self, of: &[usize]) -> Option<usize> {
        let awake = self.awake();
        let of: Vec<usize> = of.iter().copied().filter(|node| awake.contains(node)).collect();
        let statuses = self.statuses(&of).await.into_iter();
        statuses
            .max_by_key(|(_, status)| status.last_log_index)
            .map(|(node, _)| node)
    }

    async fn inflict(&mut self, fault: &Fault, nodes: &[usize], seed: u64) -> Result<(Done, Counted)> {
        self.note_exits();
        let count = self.nodes.node_count();
        if let Some(outcome) = self.network.inflict(fault, nodes, count, seed) {
            return match outcome {
                Ok(counted) => Ok((Done::Yes, counted)),
                Err(why) => skipped(why.to_string()),
            };
        }
        let mut open = self.about_to(fault, nodes)?;
        let done = self.strike(fault, nodes, seed, &mut open).await?;
        let counted = open.counted.clone();
        if !matches!(done, Done::Skipped(_)) && fault.lasts() {
            self.open.push(open);
        }
        Ok((done, counted))
    }

    async fn undo(&mut self, fault: &Fault, nodes: &[usize]) -> Result<Counted> {
        self.note_exits();
        if let Some(counted) = self.network.undo(fault, nodes) {
            return Ok(counted);
        }
        let grown = matches!(fault, Fault::Grow);
        let place = self
            .open
            .iter()
            .position(|open| open.fault == *fault && (grown || open.nodes == nodes));
        let Some(place) = place else {
            return Ok(Counted::new());
        };
        let open = self.open.remove(place);
        self.end(open, nodes).await
    }

    async fn heal(&mut self) -> Result<()> {
        for open in std::mem::take(&mut self.open) {
            let nodes = open.nodes.clone();
            self.end(open, &nodes).await?;
        }
        self.network.heal();
        for node in 0..self.nodes.node_count() {
            if self.nodes.is_running(node) {
                self.nodes.resume(node)?;
            }
            self.clocks[node].set_wall(0)?;
            self.clocks[node].set_rate(0)?;
            self.disks.of(node).control()?.heal()?;
        }
        self.paused.clear();
        let give_up = Instant::now() + SETTLE_LIMIT;
        loop {
            self.note_exits();
            let inside: Vec<usize> = (0..self.nodes.node_count())
                .filter(|node| !self.outside.contains(node))
                .collect();
            for (node, code) in self.start_nodes(&inside).await? {
                if matches!(code, Some(DAMAGED | REMOVED)) {
                    self.replace(node).await?;
                }
            }
            // Whether the cluster is whole is for the run to say; here nothing is left undone.
            if self.settle_members().await? || Instant::now() >= give_up {
                return Ok(());
            }
            sleep(SLICE).await;
        }
    }
}

impl Machines {
    /// Counts what is there before a fault begins.
    fn about_to(&self, fault: &Fault, nodes: &[usize]) -> Result<Open> {
        let mut before = BTreeMap::new();
        for &node in nodes {
            let id = self.nodes.process_id(node);
            let process = id.and_then(|id| Some((id, process::processor(id).ok()?.0)));
            let counted = Before {
                process,
                disk: self.disks.of(node).control()?.counters()?,
                readings: self.clocks[node].readings()?,
            };
            before.insert(node, counted);
        }
        Ok(Open {
            fault: fault.clone(),
            nodes: nodes.to_vec(),
            began: Instant::now(),
            before,
            tasks: BTreeMap::new(),
            counted: Counted::new(),
        })
    }

    async fn strike(&mut self, fault: &Fault, nodes: &[usize], seed: u64, open: &mut Open) -> Result<Done> {
        let counted = &mut open.counted;
        match fault {
            Fault::Kill => add(counted, "ended", self.kill(nodes).await?.len() as u64),
            Fault::Stop => {
                for &node in nodes {
                    self.stop(node).await?;
                    add(counted, "ended", 1);
                }
            }
            Fault::PowerLoss => {
                for &node in nodes {
                    self.disks.of(node).control()?.set_sync_delay(LAST_SYNCS)?;
                }
                sleep(LAST_MOMENTS).await;
                add(counted, "ended", self.kill(nodes).await?.len() as u64);
                // Also of one that had ended by itself.
                for &node in nodes {
                    self.lose_unsynced(node, seed ^ node as u64, counted)?;
                    let delay = self.sync_delay(node);
                    self.disks.of(node).control()?.set_sync_delay(delay)?;
                }
            }
            Fault::Restart => {
                for &node in nodes {
                    self.stop(node).await?;
                    self.start_nodes(&[node]).await?;
                    add(
                        counted,
                        "restarted",
                        u64::from(self.ready(node, READY_LIMIT).await),
                    );
                }
            }
            Fault::Upgrade => {
                let program = self.binaries[1].clone();
                add(counted, "exchanged", self.exchange(nodes, &program).await?);
            }
            Fault::Pause => {
                for &node in nodes {
                    self.nodes.pause(node)?;
                    self.paused.insert(node);
                    let id = self.nodes.process_id(node).context("it runs")?;
                    let stopped = async || process::processor(id).ok().filter(|(_, stopped)| *stopped);
                    let (ticks, _) = wait_until("a process to stand still", PROBATION, stopped).await?;
                    if let Some(before) = open.before.get_mut(&node) {
                        before.process = Some((id, ticks));
                    }
                    add(counted, "paused", 1);
                }
            }
            Fault::SlowCpu { percent } => {
                for &node in nodes {
                    let mut task = JoinSet::new();
                    task.spawn(slow_down(self.nodes.signaller(node)?, *percent));
                    open.tasks.insert(node, task);
                    add(counted, "slowed", 1);
                }
            }
            Fault::ClockJump { ms } => {
                for &node in nodes {
                    self.clocks[node].set_wall(self.jumps(node) + ms)?;
                }
            }
            Fault::ClockDrift { per_mille } => {
                for &node in nodes {
                    self.clocks[node].set_rate(*per_mille)?;
                }
            }
            Fault::ClockStrobe { ms } => {
                for &node in nodes {
                    let mut task = JoinSet::new();
                    task.spawn(strobe(self.clocks[node].clone(), self.jumps(node), *ms));
                    open.tasks.insert(node, task);
                }
            }
            Fault::DiskFull | Fault::WriteError | Fault::SyncError { .. } | Fault::SlowSync { .. } => {
                for &node in nodes {
                    self.set_disk(node, fault, true)?;
                }
            }
            Fault::BitFlip { .. } | Fault::Truncate { .. } | Fault::Rollback | Fault::Wipe => {
                return self.damage(fault, nodes, seed, counted).await;
            }
            Fault::Grow => return self.grow_by(nodes.len(), open).await,
            Fault::Shrink => {
                for &node in nodes {
                    if !self.leave(node).await? {
                        return Ok(Done::Unknown(format!("node {node} is still a member")));
                    }
                    add(counted, "removed", 1);
                }
            }
            Fault::Transfer => {
                let node = nodes.first().copied().context("a target")?;
                let id = self.nodes.status(node).await.map(|status| status.node_id);
                let Ok(id) = id else {
                    return Ok(Done::Skipped(format!("node {node} does not answer")));
                };
                match self.operator()?.cluster().transfer_leader(Some(id)).await {
                    Ok(_) => add(counted, "transferred", 1),
                    Err(error) => return Ok(Done::Unknown(error.to_string())),
                }
            }
            Fault::Snapshot => {
                for &node in nodes {
                    let endpoint = self.nodes.endpoint(node);
                    match self.operator()?.cluster().snapshot(&endpoint).await {
                        Ok(_) => add(counted, "snapshots", 1),
                        Err(error) => return Ok(Done::Unknown(error.to_string())),
                    }
                }
            }
            _ => return Ok(Done::Skipped(format!("{} is not of this layer", fault.name()))),
        }
        Ok(Done::Yes)
    }

    /// Undoes what a fault has left, and tells what it did. `nodes` are those that it was done to, in the end.
    async fn end(&mut self, mut open: Open, nodes: &[usize]) -> Result<Counted> {
        let mut counted = std::mem::take(&mut open.counted);
        for (&node, before) in &open.before {
            self.tell(&open, node, before, &mut counted)?;
        }
        for task in open.tasks.values_mut() {
            task.shutdown().await;
        }
        match &open.fault {
            Fault::Kill | Fault::Stop | Fault::PowerLoss => {
                let failed = self.start_nodes(nodes).await?;
                add(&mut counted, "failed_to_start", failed.len() as u64);
            }
            Fault::Pause | Fault::SlowCpu { .. } => {
                for &node in nodes {
                    self.paused.remove(&node);
                    if self.nodes.is_running(node) {
                        self.nodes.resume(node)?;
                    }
                }
                let ms = u64::try_from(open.began.elapsed().as_millis()).unwrap_or(u64::MAX);
                add(&mut counted, "lasted_ms", ms);
            }
            Fault::Upgrade => {
                let program = self.binaries[0].clone();
                let back = self.exchange(nodes, &program).await?;
                add(&mut counted, "exchanged_back", back);
            }
            Fault::ClockJump { .. } | Fault::ClockStrobe { .. } => {
                for &node in nodes {
                    self.clocks[node].set_wall(self.jumps(node))?;
                }
            }
            Fault::ClockDrift { .. } => {
                for &node in nodes {
                    self.clocks[node].set_rate(0)?;
                }
            }
            Fault::DiskFull | Fault::WriteError | Fault::SyncError { .. } | Fault::SlowSync { .. } => {
                for &node in nodes {
                    self.set_disk(node, &open.fault, false)?;
                }
                self.start_nodes(nodes).await?;
            }
            Fault::BitFlip { .. } | Fault::Truncate { .. } | Fault::Rollback | Fault::Wipe => {
                self.repair(&open.fault, nodes, &mut counted).await?;
            }
            Fault::Grow => {
                for &node in nodes {
                    add(&mut counted, "removed", u64::from(self.leave(node).await?));
                }
            }
            Fault::Shrink => {
                for &node in nodes {
                    self.outside.remove(&node);
                    add(&mut counted, "added", u64::from(self.replace(node).await?));
                }
            }
            _ => {}
        }
        Ok(counted)
    }

    /// What a fault that lasts has done to one node so far.
    fn tell(&self, open: &Open, node: usize, before: &Before, counted: &mut Counted) -> Result<()> {
        match open.fault {
            Fault::Pause => {
                let now = before.process.and_then(|(id, ticks)| {
                    let same = self.nodes.process_id(node) == Some(id);
                    same.then(|| process::processor(id).is_ok_and(|(now, _)| now == ticks))
                });
                add(counted, "stood_still", u64::from(now == Some(true)));
            }
            Fault::ClockJump { .. } | Fault::ClockDrift { .. } | Fault::ClockStrobe { .. } => {
                let readings = self.clocks[node].readings()?;
                add(counted, "wrong_readings", readings - before.readings);
            }
            Fault::DiskFull | Fault::WriteError | Fault::SyncError { .. } => {
                let now = self.disks.of(node).control()?.counters()?;
                add(counted, "calls_failed", now.faults - before.disk.faults);
            }
            Fault::SlowSync { .. } => {
                let now = self.disks.of(node).control()?.counters()?;
                add(counted, "slow_syncs", now.syncs - before.disk.syncs);
            }
            _ => {}
        }
        Ok(())
    }

    /// How far the wall clock of a node is to be ahead, by all faults that last.
    fn jumps(&self, node: usize) -> i64 {
        let here = self.open.iter().filter(|open| open.nodes.contains(&node));
        here.map(|open| match open.fault {
            Fault::ClockJump { ms } => ms,
            _ => 0,
        })
        .sum()
    }

    /// How much longer a sync of a node is to take, by all faults that last.
    fn sync_delay(&self, node: usize) -> Duration {
        let here = self.open.iter().filter(|open| open.nodes.contains(&node));
        let delays = here.map(|open| match open.fault {
            Fault::SlowSync { ms } => ms,
            _ => 0,
        });
        Duration::from_millis(delays.max().unwrap_or(0))
    }

    /// Takes from a node that was killed what a loss of power takes, and counts it.
    fn lose_unsynced(&self, node: usize, seed: u64, counted: &mut Counted) -> Result<()> {
        let disk = self.disks.of(node);
        let loss = PowerLoss::plan(
            disk.data(),
            disk.journal(),
            seed,
            Variant::draw(seed),
            Names::Drawn,
        )?;
        for (path, at_stake, lost) in loss.files() {
            // Hardly ever synced, so at stake always: that it is lost proves little.
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !name.starts_with(PROGRESS) {
                add(counted, "pages_at_stake", at_stake);
                add(counted, "pages_lost", lost);
            }
        }
        let report = loss.undo()?;
        add(counted, "names_undone", report.names_undone);
        Ok(())
    }

    fn set_disk(&mut self, node: usize, fault: &Fault, on: bool) -> Result<()> {
        let control = self.disks.of(node).control()?;
        let always = if on { DiskFault::Always } else { DiskFault::Off };
        match fault {
            Fault::DiskFull => control.set_write_no_space(always)?,
            Fault::WriteError => control.set_write_error(always)?,
            Fault::SyncError { count } => {
                control.set_sync_error(if on {
                    DiskFault::Next(*count)
                } else {
                    DiskFault::Off
                })?;
            }
            Fault::SlowSync { ms } => {
                let others = self.sync_delay(node);
                let delay = Duration::from_millis(if on { *ms } else { 0 });
                return Ok(control.set_sync_delay(delay.max(others))?);
            }
            _ => {}
        }
        self.failed_disks.insert(node);
        Ok(())
    }

    /// Stops nodes and starts them with another build, one after the other; says how many run it then.
    async fn exchange(&mut self, nodes: &[usize], program: &std::path::Path) -> Result<u64> {
        let mut exchanged = 0;
        for &node in nodes {
            self.nodes.set_binary(node, program);
            if !self.nodes.is_running(node) {
                continue;
            }
            self.stop(node).await?;
            self.start_nodes(&[node]).await?;
            self.ready(node, READY_LIMIT).await;
            let id = self.nodes.process_id(node);
            exchanged +=
                u64::from(id.is_some_and(|id| process::program(id).is_ok_and(|path| path == program)));
        }
        Ok(exchanged)
    }

    /// Harms the data of nodes, which are killed before.
    async fn damage(
        &mut self,
        fault: &Fault,
        nodes: &[usize],
        seed: u64,
        counted: &mut Counted,
    ) -> Result<Done> {
        let reach = self.statuses(nodes).await;
        let killed = self.kill(nodes).await?;
        add(counted, "ended", killed.len() as u64);
        if matches!(fault, Fault::Rollback)
            && let Some(why) = self.rollback_is_unsafe(nodes, &reach).await
        {
            self.start_nodes(nodes).await?;
            return Ok(Done::Skipped(why));
        }
        for &node in nodes {
            let (seed, data) = (seed ^ node as u64, self.nodes.node_dir(node));
            match fault {
                Fault::BitFlip { bits } => {
                    add(counted, "bits_flipped", damage::flip_bits(&data, *bits, seed)?);
                }
                Fault::Truncate { bytes } => {
                    add(counted, "bytes_cut", damage::truncate_newest(&data, *bytes)?);
                }
                Fault::Rollback => {
                    add(
                        counted,
                        "bytes_rolled_back",
                        damage::copy(&self.copy_of(node), &data)?,
                    );
                }
                _ => {
                    self.empty(node)?;
                    add(counted, "emptied", 1);
                }
            }
            // What was written before is no longer what is there.
            self.disks.of(node).forget_journal()?;
            self.damaged.insert(node);
        }
        Ok(Done::Yes)
    }

    /// A node that is rolled back has forgotten what it confirmed. That is harmless only if all others have it,
    /// which is waited for. Says why it is not.
    async fn rollback_is_unsafe(
        &self,
        nodes: &[usize],
        reach: &[(usize, quorate_client::NodeStatus)],
    ) -> Option<String> {
        if reach.len() < nodes.len() || nodes.iter().any(|node| !self.copy_of(*node).exists()) {
            return Some("it is not known what the node had, or there is no copy of it".to_owned());
        }
        let last = reach.iter().map(|(_, status)| status.last_log_index).max()?;
        let members = (0..self.nodes.node_count()).filter(|node| !self.outside.contains(node));
        let others: Vec<usize> = members.filter(|node| !nodes.contains(node)).collect();
        let have = async || {
            let statuses = self.statuses(&others).await;
            let all = statuses.len() == others.len();
            (all && statuses.iter().all(|(_, status)| status.last_log_index >= last)).then_some(())
        };
        let waited = wait_until("all others to have its log", OTHERS_LIMIT, have).await;
        waited.err().map(|error| error.to_string())
    }

    /// Starts nodes whose data was harmed. One that refuses, or that was emptied, is replaced by a new one.
    async fn repair(&mut self, fault: &Fault, nodes: &[usize], counted: &mut Counted) -> Result<()> {
        for &node in nodes {
            let log = self.nodes.log_file(node);
            let said = std::fs::metadata(&log).map_or(0, |metadata| metadata.len());
            let mut refused = self.start_nodes(&[node]).await?;
            // What only shows when it is read, shows a little later.
            if refused.is_empty() && !matches!(fault, Fault::Wipe) {
                let ended = async || (!self.nodes.is_running(node)).then_some(());
                if wait_until("its end", PROBATION, ended).await.is_ok() {
                    let status = self.nodes.take_exit(node);
                    if let Some(status) = status {
                        self.note_exit(node, status);
                        refused.push((node, status.code()));
                    }
                }
            }
            let log = std::fs::read(&log).unwrap_or_default();
            let says =
                String::from_utf8_lossy(log.get(usize::try_from(said)?..).unwrap_or_default()).into_owned();
            match refused.first() {
                Some((_, code)) => {
                    add(counted, "refused_to_start", 1);
                    add(counted, "refused_as_damaged", u64::from(*code == Some(DAMAGED)));
                    add(counted, "said_why", u64::from(says.contains("quorate: ")));
                    add(counted, "replaced", u64::from(self.replace(node).await?));
                }
                None if matches!(fault, Fault::Wipe) => {
                    let waits = self.nodes.status(node).await;
                    add(
                        counted,
                        "waited_as_new",
                        u64::from(waits.is_ok_and(|status| status.role == "waiting")),
                    );
                    add(counted, "replaced", u64::from(self.join(node).await?));
                }
                // Its state is compared with that of the others like any.
                None => add(counted, "started_all_the_same", 1),
            }
        }
        Ok(())
    }

    async fn grow_by(&mut self, count: usize, open: &mut Open) -> Result<Done> {
        open.nodes.clear();
        for _ in 0..count {
            let Some((node, joined)) = self.grow().await? else {
                break;
            };
            open.nodes.push(node);
            if !joined {
                return Ok(Done::Unknown(format!("node {node} is not yet a member")));
            }
            add(&mut open.counted, "added", 1);
        }
        if open.nodes.is_empty() {
            return Ok(Done::Skipped("there can be no more nodes".to_owned()));
        }
        Ok(Done::Yes)
    }
}

/// Lets a process run for a share of the time, until it ends or this is dropped; then it goes on.
async fn slow_down(process: Signaller, percent: u8) {
    let process = GoesOn(process);
    let runs = SLICE.mul_f64(f64::from(percent.clamp(1, 100)) / 100.0);
    while process.0.pause().is_ok() {
        sleep(SLICE.saturating_sub(runs)).await;
        if process.0.resume().is_err() {
            return;
        }
        sleep(runs).await;
    }
}

/// A process that goes on when this is dropped.
struct GoesOn(Signaller);

impl Drop for GoesOn {
    fn drop(&mut self) {
        // Refused when it has ended: then there is nothing to do.
        let _ = self.0.resume();
    }
}

/// Lets a wall clock jump to and fro until this is dropped.
async fn strobe(clock: Clock, base_ms: i64, ms: i64) {
    // A file that cannot be written shows when the fault is undone.
    while clock.set_wall(base_ms + ms).is_ok() {
        sleep(STROBE).await;
        if clock.set_wall(base_ms - ms).is_err() {
            return;
        }
        sleep(STROBE).await;
    }
}
