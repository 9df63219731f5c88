//! Layer b: real processes of the shipped binary on this machine, and everything that can be done to them.
//!
//! Each node has a disk that can fail and forget, clocks that can be wrong, and proxies before it; it writes an
//! audit log and a log of its own. All of it lies in the folder of the run:
//!
//! | path | what it is |
//! | --- | --- |
//! | `cluster/node-N`, `cluster/journal-N` | data of node N, and what its disk knows of it |
//! | `cluster/node-N.log` | its output, over all its starts |
//! | `audit/node-N.jsonl` | what it says it applied |
//! | `nodes/node-N.jsonl` | [samples](crate::samples) of its state and its process |
//!
//! A fault that lasts is kept with the nodes it was done to, so that it can be undone and its effects told.
//! Effects are counted where they strike: by the disk that failed a call, by the clock that was read, by the
//! link that held bytes back. Whether a paused process stood still, its own processor time says.
//!
//! The operator's part is played here too: a node whose data is damaged or gone is emptied and added as a new
//! one, in place of the old.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::future::join_all;
use jepsen_lite_core::run::{self, Run};
use quorate_client::{Client, NodeStatus};
use quorate_disk_shim::{FaultyDisk, JOURNAL_VARIABLE, library_path};
use quorate_test_cluster::{AddressTaken, Cluster as Nodes, Ports};
use tokio::net::TcpStream;

use crate::damage;
use crate::disks::Disks;
use crate::network::{End, NODES_MAX, Network};
use crate::process;
use crate::samples::{Roll, Samples};
use crate::wrong_clock::{Clock, FILE_VARIABLE, WrongClock};

mod exits;
mod faults;
mod members;

pub use exits::{Exit, Oddities};

use faults::Open;

/// What a fault did, by name.
type Counted = BTreeMap<String, u64>;

/// How long an operator's request may take.
const OPERATOR_LIMIT: Duration = Duration::from_secs(10);

/// How a cluster is started.
#[derive(Clone, Debug)]
pub struct Plan {
    /// First members, 1 to 9.
    pub nodes: usize,
    /// Settings of all nodes, as on the command line, without the dashes.
    pub settings: BTreeMap<String, String>,
    /// Where everything goes. It is kept.
    pub folder: PathBuf,
    /// The binary; `None` = the one that belongs to this program.
    pub binary: Option<PathBuf>,
    /// The other build, for upgrades; `None` = `$QUORATE_BIN_OLD`, or a copy of the binary.
    pub other_binary: Option<PathBuf>,
}

/// A cluster of processes, to be harmed. Dropped, it ends.
#[derive(Debug)]
pub struct Machines {
    nodes: Nodes,
    network: Network,
    disks: Disks,
    clocks: Vec<Clock>,
    folder: PathBuf,
    /// The first build, and the other one.
    binaries: [PathBuf; 2],
    /// Nodes that were added and have to go again, or were removed and have not come back.
    outside: BTreeSet<usize>,
    /// Nodes whose data was harmed and not replaced since.
    damaged: BTreeSet<usize>,
    /// Nodes that stand still.
    paused: BTreeSet<usize>,
    open: Vec<Open>,
    exits: Vec<Exit>,
    /// Nodes on whose disk something has failed in this run.
    failed_disks: BTreeSet<usize>,
    roll: Roll,
    samples: Samples,
    // Its library is mapped until the last process has ended.
    _library: WrongClock,
}

impl Machines {
    /// Starts the nodes and waits until they are a cluster.
    ///
    /// # Errors
    ///
    /// When this machine cannot do it ([`doctor`](crate::doctor) says why), or the nodes do not come up.
    pub async fn start(plan: &Plan) -> Result<Self> {
        for _ in 0..5 {
            match Self::try_start(plan).await {
                Err(error) if error.is::<AddressTaken>() => {}
                result => return result,
            }
        }
        bail!("five times ports that had been free were taken by others")
    }

    async fn try_start(plan: &Plan) -> Result<Self> {
        if !(1..=NODES_MAX).contains(&plan.nodes) {
            bail!("{} nodes: 1 to {NODES_MAX} can be", plan.nodes);
        }
        let below = |name: &str| -> Result<PathBuf> {
            let path = plan.folder.join(name);
            if path.exists() {
                std::fs::remove_dir_all(&path).with_context(|| format!("empty {}", path.display()))?;
            }
            std::fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
            path.canonicalize().context("find the folder of the run")
        };
        let binaries = binaries(plan, &below("bin")?)?;
        let (audit, clock_folder, data) = (below("audit")?, below("clocks")?, below("cluster")?);
        let library = WrongClock::build()?;
        let disks = Disks::within(&data, NODES_MAX)?;
        let clocks = (0..NODES_MAX)
            .map(|node| Clock::create(&clock_folder.join(format!("node-{node}"))))
            .collect::<Result<Vec<_>>>()?;
        let ports = (0..NODES_MAX)
            .map(|_| Ports::free())
            .collect::<Result<Vec<_>>>()?;
        let network = Network::start(&ports).await?;

        let mut builder = disks.under(Nodes::builder(plan.nodes))?;
        builder = builder.binary(&binaries[0]).ports(ports.clone());
        builder = builder.setting("drain-timeout", "3s");
        for (key, value) in &plan.settings {
            builder = builder.setting(key, value);
        }
        let mut preload = OsString::from(library_path().context("find the disk shim")?);
        preload.push(":");
        preload.push(library.library());
        for (node, clock) in clocks.iter().enumerate() {
            let others = (0..NODES_MAX).filter(|other| *other != node);
            let dial: Vec<String> = others
                .map(|other| {
                    let proxy = network.address(End::Node(node), other);
                    format!("{}={proxy}", local(ports[other].peer))
                })
                .collect();
            let file = audit.join(format!("node-{node}.jsonl"));
            builder = builder
                .env_of(node, "LD_PRELOAD", &preload)
                .env_of(node, FILE_VARIABLE, clock.path())
                .setting_of(node, "peer-dial", dial.join(","))
                .setting_of(node, "advertise-client", network.address(End::Clients, node))
                .setting_of(node, "audit-file", file.display().to_string());
        }
        // The processes of nodes that come later get theirs too: the disks were made for all.
        let nodes = builder.start().await?;
        let roll = Roll::default();
        let samples = Samples::start(roll.clone(), &below("nodes")?)?;
        let machines = Self {
            nodes,
            network,
            disks,
            clocks,
            folder: plan.folder.clone(),
            binaries,
            outside: BTreeSet::new(),
            damaged: BTreeSet::new(),
            paused: BTreeSet::new(),
            open: Vec::new(),
            exits: Vec::new(),
            failed_disks: BTreeSet::new(),
            roll,
            samples,
            _library: library,
        };
        for node in 0..plan.nodes {
            machines.what_surrounds_it_bites(node)?;
            machines.keep_copy(node)?;
        }
        machines.call_the_roll();
        Ok(machines)
    }

    /// Where clients reach the first members: at their proxies, which the nodes also name.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        let members = (0..self.nodes.node_count()).filter(|node| !self.outside.contains(node));
        members
            .map(|node| self.network.address(End::Clients, node))
            .collect()
    }

    /// The network between nodes, and to clients.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The disk of a node.
    #[must_use]
    pub fn disk(&self, node: usize) -> &FaultyDisk {
        self.disks.of(node)
    }

    /// What a node says of itself, asked past the proxies.
    ///
    /// # Errors
    ///
    /// When it does not run or does not answer.
    pub async fn status(&self, node: usize) -> Result<NodeStatus> {
        self.nodes.status(node).await
    }

    /// The file with all output of one node.
    #[must_use]
    pub fn log_file(&self, node: usize) -> PathBuf {
        self.nodes.log_file(node)
    }

    /// The file with what a node says it applied.
    #[must_use]
    pub fn audit_file(&self, node: usize) -> PathBuf {
        self.folder.join("audit").join(format!("node-{node}.jsonl"))
    }

    /// Ends the sampling, and says what was odd about the processes in this run.
    ///
    /// # Errors
    ///
    /// When logs cannot be read.
    pub async fn finish(mut self) -> Result<Oddities> {
        self.note_exits();
        let peaks = self.samples.stop().await;
        let logs = (0..self.nodes.node_count()).map(|node| (node, self.nodes.log_file(node)));
        exits::oddities(std::mem::take(&mut self.exits), logs, peaks)
    }

    /// Ends, and adds to a run what only the processes can tell: their audit logs, and what crashed.
    ///
    /// # Errors
    ///
    /// When logs cannot be read.
    pub async fn complete(self, run: &mut Run) -> Result<()> {
        let folder = self.folder.join(run::AUDIT);
        let odd = self.finish().await?;
        run.facts.crashes.extend(odd.crashes());
        run.audit = run::audit(&folder)?;
        Ok(())
    }

    /// Nodes that run and do not stand still.
    fn awake(&self) -> Vec<usize> {
        let all = 0..self.nodes.node_count();
        all.filter(|node| self.nodes.is_running(*node) && !self.paused.contains(node))
            .collect()
    }

    /// What the nodes say that can be asked.
    async fn statuses(&self, of: &[usize]) -> Vec<(usize, NodeStatus)> {
        let asked = of
            .iter()
            .map(|&node| async move { (node, self.nodes.status(node).await) });
        let answers = join_all(asked).await.into_iter();
        answers
            .filter_map(|(node, status)| Some((node, status.ok()?)))
            .collect()
    }

    /// A client that goes past the proxies, also where nodes name them.
    fn operator(&self) -> Result<Client> {
        let count = self.nodes.node_count();
        let direct: BTreeMap<String, String> = (0..count)
            .map(|node| {
                (
                    self.network.address(End::Clients, node),
                    self.nodes.endpoint(node),
                )
            })
            .collect();
        let running = (0..count).filter(|node| self.nodes.is_running(*node));
        let endpoints: Vec<String> = running.map(|node| self.nodes.endpoint(node)).collect();
        if endpoints.is_empty() {
            bail!("no node runs");
        }
        let client = Client::builder()
            .endpoints(endpoints)
            .timeout(OPERATOR_LIMIT)
            .connector(move |node| {
                let node = direct.get(&node).cloned().unwrap_or(node);
                async move {
                    let stream = TcpStream::connect(node).await?;
                    stream.set_nodelay(true)?;
                    Ok(stream)
                }
            });
        client.connect_lazy().context("make a client")
    }

    /// Starts those of these nodes that do not run, and that nothing else keeps down; tells which did not come
    /// up, with their exit codes.
    async fn start_nodes(&mut self, nodes: &[usize]) -> Result<Vec<(usize, Option<i32>)>> {
        self.note_exits();
        let down = |node: &usize| !self.nodes.is_running(*node) && !self.is_held_down(*node);
        let down: Vec<usize> = nodes.iter().copied().filter(down).collect();
        for &node in &down {
            self.clocks[node].start_over()?;
            self.network.node_is_up(node);
            self.paused.remove(&node);
        }
        let failed = self.nodes.start_together(&down).await?;
        self.call_the_roll();
        let mut codes = Vec::new();
        for (node, _) in failed {
            let status = self.nodes.take_exit(node);
            if let Some(status) = status {
                self.note_exit(node, status);
                self.network.node_is_down(node);
            }
            codes.push((node, status.and_then(|status| status.code())));
        }
        Ok(codes)
    }

    /// Whether a fault that is not undone wants the node down.
    fn is_held_down(&self, node: usize) -> bool {
        self.open.iter().any(|open| open.keeps_down(node))
    }

    /// Kills those of these nodes that run, in one moment; says which.
    async fn kill(&mut self, nodes: &[usize]) -> Result<Vec<usize>> {
        self.note_exits();
        let running = |node: &usize| self.nodes.is_running(*node);
        let running: Vec<usize> = nodes.iter().copied().filter(running).collect();
        for open in &mut self.open {
            open.let_go(&running);
        }
        self.nodes.kill_together(&running).await?;
        for &node in &running {
            self.network.node_is_down(node);
            self.paused.remove(&node);
        }
        self.call_the_roll();
        Ok(running)
    }

    /// Stops a node that runs, in an orderly way. One that stands still goes on first.
    async fn stop(&mut self, node: usize) -> Result<()> {
        self.note_exits();
        for open in &mut self.open {
            open.let_go(&[node]);
        }
        self.nodes.resume(node)?;
        self.paused.remove(&node);
        let status = self.nodes.terminate(node).await?;
        self.exits.push(Exit::new(node, status, true));
        self.network.node_is_down(node);
        self.call_the_roll();
        Ok(())
    }

    /// Waits until a node says that it is ready; false if it is not in time.
    async fn ready(&self, node: usize, limit: Duration) -> bool {
        let what = format!("node {node} to be ready");
        let ready = quorate_test_cluster::wait_until(&what, limit, async || {
            let page = self.nodes.http(node, "/readyz").await;
            page.is_ok_and(|(status, _)| status == 200).then_some(())
        });
        ready.await.is_ok()
    }

    /// Both libraries are in the process, and its disk counts.
    fn what_surrounds_it_bites(&self, node: usize) -> Result<()> {
        let id = self.nodes.process_id(node).context("the node runs")?;
        let shim = library_path().context("find the disk shim")?;
        for library in [shim.as_path(), Path::new("wrong_clock.so")] {
            let name = library.file_name().unwrap_or_default().to_string_lossy();
            if !process::has_mapped(id, &name)? {
                bail!(
                    "{name} is not in the process of node {node}: faults would not bite ({JOURNAL_VARIABLE})"
                );
            }
        }
        let counters = self.disks.of(node).control()?.counters()?;
        if counters.syncs == 0 || counters.writes == 0 {
            bail!("the disk of node {node} has seen nothing: {counters:?}");
        }
        Ok(())
    }

    /// A copy of a node's data as it is now, which is whole if the node stands still.
    fn keep_copy(&self, node: usize) -> Result<()> {
        let running = self.nodes.is_running(node) && !self.paused.contains(&node);
        if running {
            self.nodes.pause(node)?;
        }
        let copied = damage::copy(&self.nodes.node_dir(node), &self.copy_of(node));
        if running {
            self.nodes.resume(node)?;
        }
        copied.map(drop)
    }

    fn copy_of(&self, node: usize) -> PathBuf {
        self.folder.join("copies").join(format!("node-{node}"))
    }

    /// Tells the samples who runs.
    fn call_the_roll(&self) {
        let all = 0..self.nodes.node_count();
        self.roll.set(all.filter_map(|node| {
            let id = self.nodes.process_id(node)?;
            Some((node, (id, self.nodes.endpoint(node))))
        }));
    }
}

/// The first build and the other, at two paths, so that a process tells by its path which it is.
fn binaries(plan: &Plan, folder: &Path) -> Result<[PathBuf; 2]> {
    let first = match &plan.binary {
        Some(path) => path.clone(),
        None => quorate_test_cluster::find_binary()?,
    };
    let old = std::env::var_os("QUORATE_BIN_OLD").map(PathBuf::from);
    let other = plan.other_binary.clone().or(old).unwrap_or_else(|| first.clone());
    let place = |from: &Path, name: &str| -> Result<PathBuf> {
        let to = folder.join(name);
        // A link costs nothing; on another file system it takes a copy.
        if std::fs::hard_link(from, &to).is_err() {
            std::fs::copy(from, &to).with_context(|| format!("copy {}", from.display()))?;
        }
        Ok(to)
    };
    Ok([place(&first, "quorate")?, place(&other, "quorate-other")?])
}

fn local(port: u16) -> String {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string()
}
