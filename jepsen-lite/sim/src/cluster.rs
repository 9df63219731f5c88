//! The faults of a schedule, done to the simulated cluster.
//!
//! Everything here runs among the people of the world: it orders what is to be done to machines, disks and the
//! network, and speaks to nodes as an operator does, through the client library. What a fault began is kept with
//! the nodes it was done to, so that it can be undone, and so that overlapping faults do not undo each other.
//!
//! Left out, and said so when asked for: a change of the build, since there is one in this process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use jepsen_lite_core::cluster::{Cluster, Done};
use jepsen_lite_core::schedule::Fault;
use quorate_client::Client;
use quorate_raft::simulation::{DiskStats, Region, Unflushed};
use quorate_raft::{Role, Status};
use tokio::time::{Instant, sleep, timeout};

use crate::net::rule::{Counters, Rule, What};
use crate::net::{Host, Network, Plane};
use crate::rng::Rng;
use crate::world::{Orders, PEOPLE, World};

/// How long a started node may take to know a leader when everything is healed.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// How long it is waited for while other faults may keep it from that.
const READY_PATIENCE: Duration = Duration::from_secs(5);
/// How long a node may take to leave in order.
const STOP_LIMIT: Duration = Duration::from_secs(15);
/// How long a change of the members is tried when everything is healed.
const MEMBERS_LIMIT: Duration = Duration::from_secs(60);
/// How long it is tried while other faults may stand in its way, which wait for their end meanwhile.
const MEMBERS_PATIENCE: Duration = Duration::from_secs(5);
/// How long a node may take to end that the cluster has removed: it finds that out by itself.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);
/// How often somebody looks who waits for a node.
const PAUSE: Duration = Duration::from_millis(20);

/// The simulated cluster, as a nemesis sees it.
#[derive(Debug)]
pub struct SimCluster {
    orders: Orders,
    network: Network,
    client: Client,
    /// Faults that are not undone: rules of the network, and disks as they were.
    open: Vec<Open>,
    /// Nodes that are to be members again, once there are enough to agree to it.
    put_off: BTreeSet<usize>,
    /// Nodes that are to be members no longer, once there are enough to agree to it.
    leaving: BTreeSet<usize>,
}

/// A fault that lasts.
#[derive(Debug)]
struct Open {
    fault: Fault,
    nodes: Vec<usize>,
    rules: Vec<u64>,
    before: BTreeMap<usize, DiskStats>,
    missed: BTreeMap<usize, u64>,
    slow_syncs: BTreeMap<usize, u64>,
}

type Counted = BTreeMap<String, u64>;

impl SimCluster {
    /// The cluster of a world. `client` is for what operators do.
    #[must_use]
    pub fn new(orders: Orders, network: Network, client: Client) -> Self {
        Self {
            orders,
            network,
            client,
            open: Vec::new(),
            put_off: BTreeSet::new(),
            leaving: BTreeSet::new(),
        }
    }

    /// Waits until each of these nodes knows a leader, and hears of it.
    ///
    /// # Errors
    ///
    /// When one does not in time, or has ended; then why.
    pub async fn ready(&self, nodes: &[usize]) -> Result<()> {
        let give_up = Instant::now() + READY_LIMIT;
        for &node in nodes {
            while let Err(why) = self.is_ready(node).await {
                if Instant::now() >= give_up {
                    bail!("n{} is not ready: {why}", node + 1);
                }
                sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    async fn is_ready(&self, node: usize) -> Result<(), String> {
        self.orders
            .order(move |world| match world.broker(node) {
                Some(broker) => broker.ready(),
                None => Err("it does not run".to_owned()),
            })
            .await
    }

    /// What nodes say of themselves that run and do not stand still.
    async fn statuses(&self) -> BTreeMap<usize, Status> {
        self.orders
            .order(|world| {
                let alive = world.alive().into_iter();
                alive
                    .filter_map(|node| world.broker(node).map(|broker| (node, broker.status())))
                    .collect()
            })
            .await
    }

    async fn start(&self, nodes: &[usize]) {
        let nodes = nodes.to_vec();
        self.orders
            .order(move |world| nodes.iter().for_each(|&node| world.start(node)))
            .await;
    }

    /// Starts nodes again, and tells how many are ready soon.
    async fn start_again(&self, nodes: &[usize]) -> Counted {
        self.start(nodes).await;
        BTreeMap::from([("started".to_owned(), nodes.len() as u64)])
    }

    /// Has a node leave in order. One that does not is killed.
    async fn stop(&self, node: usize) {
        self.orders
            .order(move |world| {
                if let Some(program) = world.place(node).program() {
                    program.stop();
                }
            })
            .await;
        let give_up = Instant::now() + STOP_LIMIT;
        while self.orders.running().get(node).copied().unwrap_or(false) {
            if Instant::now() >= give_up {
                self.crash(&[node], false, 0).await;
            }
            sleep(PAUSE).await;
        }
    }

    /// Ends processes, or machines, all in one moment.
    async fn crash(&self, nodes: &[usize], power: bool, seed: u64) -> Counted {
        let nodes = nodes.to_vec();
        self.orders
            .order(move |world| {
                let mut rng = Rng::stream(seed, "crash");
                let mut counted = Counted::new();
                for node in nodes {
                    let before = world.place(node).disk.stats();
                    let unflushed = unflushed(&mut rng, power);
                    let ran = world.crash(node, unflushed, power);
                    let lost = world.place(node).disk.stats().writes_lost - before.writes_lost;
                    count(&mut counted, "ended", u64::from(ran));
                    count(&mut counted, "writes_lost", lost);
                }
                counted
            })
            .await
    }

    /// Directions between these hosts and the rest, `outward` and back.
    async fn directions(&self, nodes: &[usize], outward: bool, inward: bool) -> BTreeSet<(Host, Host)> {
        let hosts = self.hosts().await;
        let mut directions = BTreeSet::new();
        for &node in nodes {
            for other in (0..hosts.len()).filter(|other| !nodes.contains(other)) {
                if outward {
                    directions.insert((hosts[node], hosts[other]));
                }
                if inward {
                    directions.insert((hosts[other], hosts[node]));
                }
            }
        }
        directions
    }

    async fn hosts(&self) -> Vec<Host> {
        self.orders
            .order(|world| (0..world.places()).map(|node| world.place(node).host).collect())
            .await
    }

    fn impose(&self, directions: BTreeSet<(Host, Host)>, plane: Option<Plane>, what: What) -> Vec<u64> {
        vec![self.network.impose(Rule {
            directions,
            plane,
            what,
        })]
    }

    /// What is done to the network by this fault, if it is one of the network.
    async fn rules(&self, fault: &Fault, nodes: &[usize]) -> Option<Vec<u64>> {
        let peers = Some(Plane::Peers);
        Some(match fault {
            Fault::Isolate => self.impose(self.directions(nodes, true, true).await, peers, What::Cut),
            Fault::Deaf => self.impose(self.directions(nodes, false, true).await, peers, What::Cut),
            Fault::Mute => self.impose(self.directions(nodes, true, false).await, peers, What::Cut),
            Fault::Shatter => {
                let hosts = self.hosts().await;
                let pairs = nodes
                    .iter()
                    .flat_map(|&one| nodes.iter().map(move |&other| (one, other)));
                let pairs = pairs.filter(|(one, other)| one != other);
                let directions = pairs.map(|(one, other)| (hosts[one], hosts[other])).collect();
                self.impose(directions, peers, What::Cut)
            }
            Fault::Ring => {
                let hosts = self.hosts().await;
                let count = nodes.len();
                let mut directions = BTreeSet::new();
                for one in 0..count {
                    for other in 0..count {
                        let next_to = (one + 1) % count == other || (other + 1) % count == one;
                        if one != other && !next_to {
                            directions.insert((hosts[nodes[one]], hosts[nodes[other]]));
                        }
                    }
                }
                self.impose(directions, peers, What::Cut)
            }
            Fault::CutClients => {
                let hosts = self.hosts().await;
                let both = nodes
                    .iter()
                    .flat_map(|&node| [(PEOPLE, hosts[node]), (hosts[node], PEOPLE)]);
                self.impose(both.collect(), Some(Plane::Clients), What::Cut)
            }
            Fault::Delay { ms } => {
                let what = What::Delay { us: ms * 1_000 };
                self.impose(self.directions(nodes, true, true).await, peers, what)
            }
            Fault::Throttle { bytes_per_second } => {
                let what = What::Throttle {
                    bytes_per_second: *bytes_per_second,
                };
                self.impose(self.directions(nodes, true, true).await, peers, what)
            }
            Fault::Lossy { percent } => {
                let what = What::Lossy { percent: *percent };
                self.impose(self.directions(nodes, true, true).await, peers, what)
            }
            _ => return None,
        })
    }

    /// The id of the node of a place, as its disk has it.
    async fn node_id(&self, node: usize) -> Option<u64> {
        self.orders
            .order(move |world| world.place(node).disk.node_id())
            .await
    }

    /// Tries a change of the members until it is done.
    async fn insist<T, F>(
        &self,
        what: &str,
        limit: Duration,
        mut change: impl FnMut(quorate_client::Cluster) -> F,
    ) -> Result<T>
    where
        F: Future<Output = quorate_client::Result<T>>,
    {
        let give_up = Instant::now() + limit;
        loop {
            let cluster = self.client.with_timeout(Duration::from_secs(10)).cluster();
            match change(cluster).await {
                Ok(done) => return Ok(done),
                Err(error) if Instant::now() >= give_up => {
                    return Err(error).with_context(|| format!("{what}, for {limit:?}"));
                }
                Err(_) => sleep(Duration::from_millis(200)).await,
            }
        }
    }

    /// Has a node join as a new one, in place of all that were at its address before: it is emptied, but not before the
    /// cluster goes on without it.
    async fn join(&self, node: usize, limit: Duration) -> Result<()> {
        self.remove(node, limit).await?;
        self.orders
            .order(move |world| {
                world.crash(node, Unflushed::Lost, false);
                let place = world.place(node);
                place.disk.wipe();
                place.disk.heal();
                place.damaged = false;
                place.first = false;
                world.start(node);
            })
            .await;
        self.take_in(node, limit).await
    }

    /// Has a node added that is empty, in place of all that were at its address before.
    async fn take_in(&self, node: usize, limit: Duration) -> Result<()> {
        self.start(&[node]).await;
        self.remove(node, limit).await?;
        let address = self.hosts().await[node].address(Plane::Peers).to_string();
        self.insist("add a node", limit, |cluster| {
            let address = address.clone();
            async move { cluster.add(address).await }
        })
        .await?;
        self.ready(&[node]).await
    }

    /// Has a node join, or, if that cannot be done now, puts it off until all is healed.
    async fn join_or_put_off(&mut self, node: usize, counted: &mut Counted) {
        let joined = timeout(2 * MEMBERS_PATIENCE, self.join(node, MEMBERS_PATIENCE)).await;
        self.joined_or_put_off(node, matches!(joined, Ok(Ok(()))), counted);
    }

    /// The same, of a node that was emptied before and is there.
    async fn take_in_or_put_off(&mut self, node: usize, counted: &mut Counted) {
        let joined = timeout(2 * MEMBERS_PATIENCE, self.take_in(node, MEMBERS_PATIENCE)).await;
        self.joined_or_put_off(node, matches!(joined, Ok(Ok(()))), counted);
    }

    /// Has all nodes join that could not before. What one of them waits for may be another one.
    async fn join_those_put_off(&mut self) -> Result<()> {
        let mut left: VecDeque<usize> = std::mem::take(&mut self.put_off).into_iter().collect();
        let mut failed = 0;
        while let Some(node) = left.pop_front() {
            // All of them have failed since one has joined.
            let is_last_try = failed >= left.len();
            let limit = if is_last_try {
                MEMBERS_LIMIT
            } else {
                MEMBERS_PATIENCE
            };
            match self.join(node, limit).await {
                Ok(()) => failed = 0,
                Err(error) if is_last_try => return Err(error),
                Err(_) => {
                    left.push_back(node);
                    failed += 1;
                }
            }
        }
        Ok(())
    }

    /// Nodes whose data is damaged.
    async fn damaged(&self) -> BTreeSet<usize> {
        let nodes = 0..self.node_count();
        self.orders
            .order(move |world| nodes.filter(|&node| world.place(node).damaged).collect())
            .await
    }

    fn joined_or_put_off(&mut self, node: usize, joined: bool, counted: &mut Counted) {
        if joined {
            count(counted, "joined", 1);
        } else {
            self.put_off.insert(node);
            count(counted, "put_off", 1);
        }
    }

    /// Sees to it that a node that was removed is gone. It has to end by itself, unless another fault may keep it
    /// from learning of its removal.
    async fn see_off(&self, node: usize, counted: &mut Counted) {
        let runs = || self.orders.running().get(node).copied().unwrap_or(false);
        if self.open.is_empty() {
            let give_up = Instant::now() + LEAVE_LIMIT;
            while runs() && Instant::now() < give_up {
                sleep(PAUSE).await;
            }
            let goes_on = runs();
            self.orders
                .order(move |world| {
                    let id = world.place(node).disk.node_id();
                    world.watch().removed(node, id, goes_on);
                })
                .await;
            count(counted, "left", u64::from(!goes_on));
        }
        self.crash(&[node], false, 0).await;
    }

    /// Removes whatever members are at the address of a place. Says whether there was one.
    async fn remove(&self, node: usize, limit: Duration) -> Result<bool> {
        let address = self.hosts().await[node].address(Plane::Peers).to_string();
        self.insist("remove a node", limit, |cluster| {
            let address = address.clone();
            async move {
                let members = cluster.status().await?.members;
                let mut removed = false;
                for member in members.iter().filter(|member| member.peer_address == address) {
                    cluster.remove(member.node_id).await?;
                    removed = true;
                }
                Ok(removed)
            }
        })
        .await
    }

    /// What lasting faults have begun on these nodes, so that what they did can be told later.
    async fn begun(&self, fault: &Fault, nodes: &[usize], rules: Vec<u64>) -> Open {
        let (fault, nodes) = (fault.clone(), nodes.to_vec());
        self.orders
            .order(move |world| {
                let mut open = Open {
                    fault,
                    nodes: nodes.clone(),
                    rules,
                    before: BTreeMap::new(),
                    missed: BTreeMap::new(),
                    slow_syncs: BTreeMap::new(),
                };
                for node in nodes {
                    let place = world.place(node);
                    open.before.insert(node, place.disk.stats());
                    open.missed.insert(node, place.missed);
                    let slow = place.slow_syncs.load(Ordering::Relaxed);
                    open.slow_syncs.insert(node, slow);
                }
                open
            })
            .await
    }

    /// Something done to each place by itself.
    async fn each(&self, nodes: &[usize], act: impl Fn(&mut World, usize) + Send + 'static) {
        let nodes = nodes.to_vec();
        self.orders
            .order(move |world| nodes.into_iter().for_each(|node| act(world, node)))
            .await;
    }

    /// Undoes what a fault left, and tells what it did.
    async fn end(&mut self, open: Open) -> Result<Counted> {
        let mut counted = Counted::new();
        for rule in &open.rules {
            tell(&mut counted, self.network.lift(*rule));
        }
        let nodes = open.nodes.clone();
        match open.fault {
            Fault::Kill | Fault::Stop | Fault::PowerLoss => {
                counted.extend(self.start_again(&nodes).await);
            }
            Fault::Pause | Fault::SlowCpu { .. } => {
                self.each(&nodes, |world, node| {
                    world.place(node).paused = false;
                    world.place(node).percent = None;
                })
                .await;
            }
            Fault::ClockJump { ms } => {
                self.each(&nodes, move |world, node| {
                    world.place(node).clock.wall_offset_ms -= ms;
                })
                .await;
            }
            Fault::ClockDrift { .. } => {
                self.each(&nodes, |world, node| world.place(node).clock.drift_per_mille = 0)
                    .await;
            }
            Fault::ClockStrobe { .. } => {
                self.each(&nodes, |world, node| world.place(node).end_strobe())
                    .await;
            }
            Fault::DiskFull | Fault::WriteError | Fault::SyncError { .. } => {
                self.each(&nodes, |world, node| world.place(node).disk.heal())
                    .await;
                self.start(&nodes).await;
            }
            Fault::SlowSync { .. } => {
                self.each(&nodes, |world, node| {
                    world.place(node).sync_delay_ms.store(0, Ordering::Relaxed);
                })
                .await;
            }
            Fault::BitFlip { .. } | Fault::Truncate { .. } | Fault::Rollback => {
                self.start(&nodes).await;
                for &node in &nodes {
                    let started = timeout(READY_PATIENCE, self.ready(&[node])).await;
                    if !matches!(started, Ok(Ok(()))) {
                        self.join_or_put_off(node, &mut counted).await;
                    }
                }
            }
            Fault::Shrink => {
                for &node in &nodes {
                    self.see_off(node, &mut counted).await;
                    self.join_or_put_off(node, &mut counted).await;
                }
            }
            Fault::Wipe => {
                for &node in &nodes {
                    self.take_in_or_put_off(node, &mut counted).await;
                }
            }
            Fault::Grow => {
                for &node in &nodes {
                    self.put_off.remove(&node);
                    let removed = self.remove(node, MEMBERS_PATIENCE);
                    match timeout(2 * MEMBERS_PATIENCE, removed).await {
                        Ok(Ok(true)) => {
                            self.see_off(node, &mut counted).await;
                            count(&mut counted, "removed", 1);
                        }
                        // It has never become one.
                        Ok(Ok(false)) => drop(self.crash(&[node], false, 0).await),
                        Ok(Err(_)) | Err(_) => {
                            self.leaving.insert(node);
                            count(&mut counted, "put_off", 1);
                        }
                    }
                }
            }
            _ => {}
        }
        let Open {
            before,
            missed,
            slow_syncs,
            ..
        } = open;
        let more = self
            .orders
            .order(move |world| {
                let mut counted = Counted::new();
                for node in nodes {
                    let place = world.place(node);
                    let stats = place.disk.stats();
                    count(&mut counted, "disk_faults", stats.faults - before[&node].faults);
                    count(&mut counted, "ticks_missed", place.missed - missed[&node]);
                    let slow = place.slow_syncs.load(Ordering::Relaxed);
                    count(&mut counted, "slow_syncs", slow - slow_syncs[&node]);
                }
                counted
            })
            .await;
        for (name, more) in more {
            count(&mut counted, &name, more);
        }
        counted.retain(|_, count| *count > 0);
        Ok(counted)
    }

    async fn inflict_once(&self, fault: &Fault, nodes: &[usize]) -> Result<(Done, Counted)> {
        let mut counted = Counted::new();
        match fault {
            Fault::Restart => {
                for &node in nodes {
                    self.stop(node).await;
                    self.start(&[node]).await;
                    // Others may be cut off or down: then it is not the restart that keeps it from being ready.
                    let ready = timeout(READY_PATIENCE, self.ready(&[node])).await;
                    count(&mut counted, "restarted", 1);
                    count(&mut counted, "ready", u64::from(matches!(ready, Ok(Ok(())))));
                }
            }
            Fault::Reset => {
                let hosts = self.hosts().await;
                let hosts: Vec<Host> = nodes.iter().map(|&node| hosts[node]).collect();
                count(&mut counted, "connections", self.network.reset(&hosts));
            }
            Fault::Transfer => {
                let Some(id) = self.node_id(nodes[0]).await else {
                    return Ok((Done::Skipped("it has no id yet".to_owned()), counted));
                };
                let cluster = self.client.with_timeout(Duration::from_secs(5)).cluster();
                match cluster.transfer_leader(Some(id)).await {
                    Ok(_) => count(&mut counted, "transferred", 1),
                    Err(error) => return Ok((Done::Unknown(error.to_string()), counted)),
                }
            }
            Fault::Snapshot => {
                let hosts = self.hosts().await;
                let mut failed = None;
                for &node in nodes {
                    let address = hosts[node].address(Plane::Clients).to_string();
                    let cluster = self.client.with_timeout(Duration::from_secs(5)).cluster();
                    match cluster.snapshot(&address).await {
                        Ok(_) => count(&mut counted, "snapshots", 1),
                        Err(error) => failed = Some(error.to_string()),
                    }
                }
                if let Some(why) = failed.filter(|_| counted.is_empty()) {
                    return Ok((Done::Unknown(why), counted));
                }
            }
            _ => {
                return Ok((
                    Done::Skipped(format!("the simulator knows no {}", fault.name())),
                    counted,
                ));
            }
        }
        Ok((Done::Yes, counted))
    }
}

impl Cluster for SimCluster {
    fn node_count(&self) -> usize {
        self.orders.running().len()
    }

    fn running(&self) -> Vec<usize> {
        let running = self.orders.running().into_iter().enumerate();
        running.filter(|(_, runs)| *runs).map(|(node, _)| node).collect()
    }

    async fn leader(&mut self) -> Option<usize> {
        let statuses = self.statuses().await;
        let leaders = statuses
            .into_iter()
            .filter(|(_, status)| status.role == Role::Leader);
        leaders
            .max_by_key(|(_, status)| status.term)
            .map(|(node, _)| node)
    }

    async fn newest(&mut self, of: &[usize]) -> Option<usize> {
        let statuses = self.statuses().await;
        let candidates = statuses.into_iter().filter(|(node, _)| of.contains(node));
        candidates
            .max_by_key(|(_, status)| status.last_log_index)
            .map(|(node, _)| node)
    }

    async fn inflict(&mut self, fault: &Fault, nodes: &[usize], seed: u64) -> Result<(Done, Counted)> {
        if !fault.lasts() {
            return self.inflict_once(fault, nodes).await;
        }
        if let Some(rules) = self.rules(fault, nodes).await {
            let open = self.begun(fault, nodes, rules).await;
            self.open.push(open);
            return Ok((Done::Yes, Counted::new()));
        }
        let mut open = self.begun(fault, nodes, Vec::new()).await;
        let mut counted = Counted::new();
        match fault {
            Fault::Kill => counted = self.crash(nodes, false, seed).await,
            Fault::PowerLoss => counted = self.crash(nodes, true, seed).await,
            Fault::Stop => {
                for &node in nodes {
                    self.stop(node).await;
                    count(&mut counted, "stopped", 1);
                }
            }
            Fault::Pause => {
                self.each(nodes, |world, node| world.place(node).paused = true)
                    .await;
            }
            Fault::SlowCpu { percent } => {
                let percent = *percent;
                self.each(nodes, move |world, node| {
                    world.place(node).percent = Some(percent);
                })
                .await;
            }
            Fault::ClockJump { ms } => {
                let ms = *ms;
                self.each(nodes, move |world, node| {
                    world.place(node).clock.wall_offset_ms += ms;
                })
                .await;
                count(&mut counted, "clocks", nodes.len() as u64);
            }
            Fault::ClockDrift { per_mille } => {
                let per_mille = *per_mille;
                self.each(nodes, move |world, node| {
                    world.place(node).clock.drift_per_mille = per_mille;
                })
                .await;
                count(&mut counted, "clocks", nodes.len() as u64);
            }
            Fault::ClockStrobe { ms } => {
                let ms = *ms;
                self.each(nodes, move |world, node| world.place(node).strobe_ms = Some(ms))
                    .await;
                count(&mut counted, "clocks", nodes.len() as u64);
            }
            Fault::DiskFull => {
                self.each(nodes, |world, node| {
                    let disk = &world.place(node).disk;
                    disk.set_capacity(Some(disk.bytes()));
                })
                .await;
            }
            Fault::WriteError => {
                self.each(nodes, |world, node| world.place(node).disk.fail_write(0))
                    .await;
            }
            // One is enough: the node must stop at the first.
            Fault::SyncError { .. } => {
                self.each(nodes, |world, node| world.place(node).disk.fail_sync(0))
                    .await;
            }
            Fault::SlowSync { ms } => {
                let ms = *ms;
                self.each(nodes, move |world, node| {
                    world.place(node).sync_delay_ms.store(ms, Ordering::Relaxed);
                })
                .await;
            }
            Fault::BitFlip { bits } => {
                self.crash(nodes, false, seed).await;
                let bits = *bits;
                let flipped = self.flip(nodes, bits, seed).await;
                count(&mut counted, "bits_flipped", flipped);
            }
            Fault::Truncate { bytes } => {
                self.crash(nodes, false, seed).await;
                let cut = self.truncate(nodes, *bytes).await;
                count(&mut counted, "writes_cut", cut);
            }
            Fault::Rollback => {
                self.crash(nodes, false, seed).await;
                let rolled = self.roll_back(nodes).await;
                count(&mut counted, "rolled_back", rolled);
            }
            Fault::Wipe => {
                self.crash(nodes, false, seed).await;
                self.each(nodes, World::wipe).await;
                count(&mut counted, "wiped", nodes.len() as u64);
            }
            Fault::Grow => {
                let count_new = nodes.len();
                let first = self.node_count();
                self.orders
                    .order(move |world| {
                        for _ in 0..count_new {
                            world.add_place(false);
                        }
                    })
                    .await;
                open = self
                    .begun(fault, &(first..first + count_new).collect::<Vec<_>>(), Vec::new())
                    .await;
                for node in open.nodes.clone() {
                    self.join_or_put_off(node, &mut counted).await;
                }
            }
            Fault::Shrink => {
                for &node in nodes {
                    if let Err(error) = self.remove(node, MEMBERS_PATIENCE).await {
                        self.put_off.extend(nodes);
                        return Ok((Done::Unknown(format!("{error:#}")), counted));
                    }
                    count(&mut counted, "removed", 1);
                }
            }
            Fault::Upgrade | Fault::KillWorkers | Fault::PauseWorkers | Fault::NackStorm => {
                return Ok((
                    Done::Skipped(format!("the simulator knows no {}", fault.name())),
                    counted,
                ));
            }
            _ => bail!("{} is neither done nor left out", fault.name()),
        }
        self.open.push(open);
        counted.retain(|_, count| *count > 0);
        Ok((Done::Yes, counted))
    }

    async fn undo(&mut self, fault: &Fault, nodes: &[usize]) -> Result<Counted> {
        let place = self
            .open
            .iter()
            .position(|open| open.fault == *fault && open.nodes == nodes);
        match place {
            Some(place) => {
                let open = self.open.remove(place);
                self.end(open).await
            }
            None => Ok(Counted::new()),
        }
    }

    async fn heal(&mut self) -> Result<()> {
        for open in std::mem::take(&mut self.open) {
            self.end(open).await?;
        }
        // Nodes that have stopped by themselves are started by whoever looks after them, or replaced if they are damaged.
        let members = self.client.with_timeout(READY_LIMIT).cluster().status().await;
        let addresses: Option<BTreeSet<String>> = members.ok().map(|status| {
            let members = status.members.into_iter();
            members.map(|member| member.peer_address).collect()
        });
        let hosts = self.hosts().await;
        let running = self.running();
        let down: Vec<usize> = (0..hosts.len())
            .filter(|node| !running.contains(node))
            .filter(|&node| {
                let address = hosts[node].address(Plane::Peers).to_string();
                addresses
                    .as_ref()
                    .is_none_or(|members| members.contains(&address))
            })
            .collect();
        let damaged = self.damaged().await;
        let (damaged, down): (Vec<usize>, Vec<usize>) =
            down.into_iter().partition(|node| damaged.contains(node));
        self.start(&down).await;
        self.put_off.extend(damaged);
        self.join_those_put_off().await?;
        for node in std::mem::take(&mut self.leaving) {
            self.remove(node, MEMBERS_LIMIT).await?;
            self.crash(&[node], false, 0).await;
        }
        let members: Vec<usize> = self.running();
        self.ready(&members).await
    }
}

impl SimCluster {
    async fn flip(&self, nodes: &[usize], bits: u64, seed: u64) -> u64 {
        let nodes = nodes.to_vec();
        self.orders
            .order(move |world| {
                let mut rng = Rng::stream(seed, "flip");
                let mut flipped = 0;
                for node in nodes {
                    for _ in 0..bits {
                        // Not every disk has values of every kind.
                        let mut regions = [Region::Log, Region::Meta, Region::Contents, Region::Images];
                        rng.shuffle(&mut regions);
                        let place = world.place(node);
                        place.damaged = true;
                        let mut regions = regions.into_iter();
                        let struck = regions.any(|region| place.disk.corrupt(region, rng.draw()));
                        flipped += u64::from(struck);
                    }
                }
                flipped
            })
            .await
    }

    async fn truncate(&self, nodes: &[usize], bytes: u64) -> u64 {
        let nodes = nodes.to_vec();
        self.orders
            .order(move |world| {
                let cut = nodes.into_iter().map(|node| {
                    let place = world.place(node);
                    place.damaged = true;
                    place.disk.truncate(bytes)
                });
                cut.sum()
            })
            .await
    }

    async fn roll_back(&self, nodes: &[usize]) -> u64 {
        let nodes = nodes.to_vec();
        self.orders
            .order(move |world| {
                let mut rolled = 0;
                for node in nodes {
                    let place = world.place(node);
                    if let Some(copy) = place.copy.clone() {
                        place.damaged = true;
                        place.disk.put_back(&copy);
                        rolled += 1;
                    }
                }
                rolled
            })
            .await
    }
}

/// What is left of writes that were not flushed. The engine buffers some of them in the process, so a kill may
/// lose a part, too; but not of what it had noted in files beside.
fn unflushed(rng: &mut Rng, power: bool) -> Unflushed {
    let seed = rng.draw();
    match (power, rng.below(4)) {
        (true, 0 | 1) => Unflushed::Lost,
        (true, _) => Unflushed::Prefix { seed },
        (false, 0) => Unflushed::Killed { seed },
        (false, _) => Unflushed::Kept,
    }
}

fn count(counted: &mut Counted, name: &str, more: u64) {
    *counted.entry(name.to_owned()).or_default() += more;
}

fn tell(counted: &mut Counted, counters: Counters) {
    count(counted, "held", counters.held);
    count(counted, "held_bytes", counters.held_bytes);
    count(counted, "delayed", counters.delayed);
    count(counted, "connections_broken", counters.broken);
}
