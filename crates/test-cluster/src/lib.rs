//! A cluster of real `quorate serve` processes on this machine.
//!
//! For end-to-end tests, fault injection, benches, and the `dev` and `demo`
//! commands: all that start, kill and restart nodes do it here.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use quorate_test_cluster::Cluster;
//!
//! let mut cluster = Cluster::start(3).await?;
//! let leader = cluster.leader().await?;
//! cluster.kill(leader).await?;
//! cluster.new_leader(leader).await?;
//! cluster.restart(leader).await?;
//! # Ok(()) }
//! ```
//!
//! What it promises:
//! - no process is left behind: not after a panic, and not when this process
//!   is itself killed;
//! - [`start`](Builder::start) returns when there is a leader and every node is
//!   ready, and all waits are for a condition, with a limit;
//! - the environment does not leak in: the nodes see no `QUORATE_*` variable but
//!   those that the [`Builder`] sets;
//! - when a test fails, the end of each node's log is printed with the failure.
//!
//! Nodes are numbered from 0, which is not their id in the cluster.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use quorate_client::{Client, NodeStatus};
use serde::Deserialize;
use tempfile::TempDir;

mod binary;
mod builder;
mod http;
mod ports;
mod process;
mod wait;

pub use binary::{find as find_binary, find_example};
pub use builder::{AddressTaken, Builder};
pub use ports::{Ports, free_port};
pub use process::Signaller;
pub use wait::wait_until;

use process::Process;

/// How long a node may take to listen, and a cluster to have a leader.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long one node may take to answer a question about itself.
const STATUS_LIMIT: Duration = Duration::from_secs(1);
/// Lines of each node's log that are shown with a failure.
const LOG_LINES_SHOWN: usize = 60;
/// Exit code of a node that cannot have its addresses.
const EXIT_ADDRESS: i32 = 13;

/// A running cluster. Dropping it kills all nodes and removes their data.
#[derive(Debug)]
pub struct Cluster {
    // Before `directory`: the processes end before their files go.
    nodes: Vec<Node>,
    /// Of nodes that may come.
    spare_ports: VecDeque<Ports>,
    binary: PathBuf,
    directory: Directory,
    builder: Builder,
}

#[derive(Debug)]
struct Node {
    ports: Ports,
    /// Peer addresses of the first members; empty for a node added later.
    peers: Vec<String>,
    /// Instead of the cluster's.
    binary: Option<PathBuf>,
    process: Option<Process>,
}

#[derive(Debug)]
enum Directory {
    Kept(PathBuf),
    Temporary(TempDir),
}

/// What a node writes when all its listeners are bound.
#[derive(Debug, Deserialize)]
struct ReadyFile {
    pid: u32,
}

impl Cluster {
    /// A cluster of `node_count` nodes, to be adjusted and started.
    #[must_use]
    pub fn builder(node_count: usize) -> Builder {
        Builder {
            node_count,
            binary: None,
            data_dir: None,
            ports: None,
            settings: BTreeMap::new(),
            node_settings: BTreeMap::new(),
            env: BTreeMap::new(),
        }
    }

    /// Starts `node_count` nodes with default settings.
    ///
    /// # Errors
    ///
    /// As [`Builder::start`].
    pub async fn start(node_count: usize) -> Result<Self> {
        Self::builder(node_count).start().await
    }

    /// How many nodes there are, running or not.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// `host:port` of the client listener of each node.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        (0..self.nodes.len()).map(|node| self.endpoint(node)).collect()
    }

    /// `host:port` of the client listener of one node.
    #[must_use]
    pub fn endpoint(&self, node: usize) -> String {
        local(self.nodes[node].ports.client)
    }

    /// The ports of one node.
    #[must_use]
    pub fn ports(&self, node: usize) -> Ports {
        self.nodes[node].ports
    }

    /// A client that knows all nodes and has found the leader.
    ///
    /// # Errors
    ///
    /// When there is no leader within the client's time limit.
    pub async fn client(&self) -> Result<Client> {
        Client::connect(self.endpoints())
            .await
            .with_context(|| format!("find the leader{}", self.logs()))
    }

    /// What a node says about itself.
    ///
    /// # Errors
    ///
    /// When it does not run or does not answer within a second.
    pub async fn status(&self, node: usize) -> Result<NodeStatus> {
        ensure!(self.is_running(node), "node {node} does not run");
        let endpoint = self.endpoint(node);
        let client = Client::builder()
            .endpoint(endpoint.as_str())
            .probe_timeout(STATUS_LIMIT)
            .connect_lazy()?;
        client
            .cluster()
            .status_of(&endpoint)
            .await
            .with_context(|| format!("status of node {node}"))
    }

    /// Waits for a leader and says which node it is.
    ///
    /// # Errors
    ///
    /// When there is none within a minute.
    pub async fn leader(&self) -> Result<usize> {
        self.wait_until("a leader", async || self.leader_now().await)
            .await
    }

    /// Waits until another node than `former` leads.
    ///
    /// # Errors
    ///
    /// When none does within a minute.
    pub async fn new_leader(&self, former: usize) -> Result<usize> {
        self.wait_until("a new leader", async || {
            self.leader_now().await.filter(|&leader| leader != former)
        })
        .await
    }

    /// The node that leads in the highest term, as far as the nodes say now.
    pub async fn leader_now(&self) -> Option<usize> {
        let mut leader = None;
        for node in 0..self.nodes.len() {
            if let Ok(status) = self.status(node).await
                && status.role == "leader"
                && leader.is_none_or(|(term, _)| term < status.term)
            {
                leader = Some((status.term, node));
            }
        }
        leader.map(|(_, node)| node)
    }

    /// Waits until every running node says that it is ready.
    ///
    /// # Errors
    ///
    /// When one is not within a minute, or ends.
    pub async fn ready(&self) -> Result<()> {
        for node in (0..self.nodes.len()).filter(|&node| self.is_running(node)) {
            self.wait_until(&format!("node {node} to be ready"), async || {
                let page = self.http(node, "/readyz").await;
                page.is_ok_and(|(status, _)| status == 200).then_some(())
            })
            .await?;
        }
        Ok(())
    }

    /// As [`wait_until`], for at most a minute; it gives up at once when a node
    /// has ended by itself, and shows the logs.
    ///
    /// # Errors
    ///
    /// When there is no answer in time or a node has ended.
    pub async fn wait_until<T>(&self, what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> Result<T> {
        let answer = wait_until(what, START_LIMIT, async || match ask().await {
            Some(answer) => Some(Ok(answer)),
            None => self.ended().map(Err),
        });
        answer
            .await
            .and_then(|answer| answer)
            .with_context(|| format!("wait for {what}{}", self.logs()))
    }

    /// Asks one node's HTTP listener: status code and body.
    ///
    /// # Errors
    ///
    /// When it does not answer, or not in HTTP.
    pub async fn http(&self, node: usize, path: &str) -> Result<(u16, String)> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.nodes[node].ports.http));
        let answer = tokio::time::timeout(STATUS_LIMIT, http::get(address, path)).await;
        answer.with_context(|| format!("node {node} does not answer"))?
    }

    /// The process of a node runs, or is paused.
    #[must_use]
    pub fn is_running(&self, node: usize) -> bool {
        self.process_id(node).is_some()
    }

    /// The process id of a node that runs.
    #[must_use]
    pub fn process_id(&self, node: usize) -> Option<u32> {
        let process = self.nodes[node].process.as_ref()?;
        process.exited().is_none().then(|| process.pid())
    }

    /// Kills a node (SIGKILL) and waits until it is gone.
    ///
    /// # Errors
    ///
    /// When it does not run.
    pub async fn kill(&mut self, node: usize) -> Result<()> {
        self.end(node, Signal::SIGKILL).await?;
        Ok(())
    }

    /// Asks a node to stop (SIGTERM), waits for it and says how it ended.
    ///
    /// # Errors
    ///
    /// When it does not run, or still runs after a minute.
    pub async fn terminate(&mut self, node: usize) -> Result<ExitStatus> {
        self.end(node, Signal::SIGTERM).await
    }

    async fn end(&mut self, node: usize, signal: Signal) -> Result<ExitStatus> {
        self.signal(node, signal)?;
        let process = self.nodes[node]
            .process
            .as_ref()
            .context("the node does not run")?;
        let status = tokio::time::timeout(START_LIMIT, process.end()).await;
        let status =
            status.with_context(|| format!("node {node} still runs after {signal}{}", self.logs()))?;
        self.nodes[node].process = None;
        Ok(status)
    }

    /// Asks all running nodes at once to stop, waits for them, and says how each
    /// ended.
    ///
    /// # Errors
    ///
    /// When one still runs after a minute.
    pub async fn terminate_all(&mut self) -> Result<Vec<(usize, ExitStatus)>> {
        let running: Vec<_> = (0..self.nodes.len())
            .filter(|&node| self.is_running(node))
            .collect();
        for &node in &running {
            // One that ended just now needs no signal.
            let _ = self.signal(node, Signal::SIGTERM);
        }
        let mut ended = Vec::new();
        for node in running {
            let process = self.nodes[node].process.take().context("the node does not run")?;
            let status = tokio::time::timeout(START_LIMIT, process.end()).await;
            ended.push((
                node,
                status.with_context(|| format!("node {node} still runs after SIGTERM"))?,
            ));
        }
        Ok(ended)
    }

    /// Freezes a node (SIGSTOP): its sockets stay open and nobody answers.
    ///
    /// # Errors
    ///
    /// When it does not run.
    pub fn pause(&self, node: usize) -> Result<()> {
        self.signal(node, Signal::SIGSTOP)
    }

    /// Lets a paused node go on.
    ///
    /// # Errors
    ///
    /// When it does not run.
    pub fn resume(&self, node: usize) -> Result<()> {
        self.signal(node, Signal::SIGCONT)
    }

    /// Sends signals to the process that a node is now, also while the cluster is
    /// in other hands.
    ///
    /// # Errors
    ///
    /// When it does not run.
    pub fn signaller(&self, node: usize) -> Result<Signaller> {
        let process = self.nodes[node].process.as_ref();
        let process = process.filter(|process| process.exited().is_none());
        Ok(process
            .with_context(|| format!("node {node} does not run"))?
            .signaller())
    }

    /// How a node ended that nobody here has ended, once; `None` if it runs, or was
    /// ended, or this was told before.
    pub fn take_exit(&mut self, node: usize) -> Option<ExitStatus> {
        let status = self.nodes[node].process.as_ref()?.exited()?;
        self.nodes[node].process = None;
        Some(status)
    }

    /// Runs another binary from the node's next start on.
    pub fn set_binary(&mut self, node: usize, path: impl Into<PathBuf>) {
        self.nodes[node].binary = Some(path.into());
    }

    /// Waits until a node ends by itself and says how.
    ///
    /// # Errors
    ///
    /// When it does not run, or still runs after a minute.
    pub async fn wait_exit(&mut self, node: usize) -> Result<ExitStatus> {
        let process = self.nodes[node].process.take().context("the node does not run")?;
        let status = tokio::time::timeout(START_LIMIT, process.end()).await;
        status.with_context(|| format!("node {node} still runs{}", self.logs()))
    }

    /// Waits until any node but `others` ends by itself; says which and how.
    pub async fn any_exit(&self, others: &[usize]) -> (usize, ExitStatus) {
        let mut ends = tokio::task::JoinSet::new();
        for (node, Node { process, .. }) in self.nodes.iter().enumerate() {
            if let Some(process) = process.as_ref().filter(|_| !others.contains(&node)) {
                let end = process.end();
                ends.spawn(async move { (node, end.await) });
            }
        }
        match ends.join_next().await {
            Some(end) => end.expect("waiting does not panic"),
            None => std::future::pending().await,
        }
    }

    /// Starts a node again on its ports and data and waits until it listens.
    /// One that still runs is killed first.
    ///
    /// # Errors
    ///
    /// When it ends while it starts, or does not listen within a minute.
    pub async fn restart(&mut self, node: usize) -> Result<()> {
        if self.is_running(node) {
            self.kill(node).await?;
        }
        self.spawn(node)?;
        self.listening(node).await
    }

    /// Starts nodes that do not run, all at once, on their ports and data, and
    /// waits until each listens or has ended; says which did not come to listen,
    /// and why.
    ///
    /// # Errors
    ///
    /// When a process cannot be started at all.
    pub async fn start_together(&mut self, nodes: &[usize]) -> Result<Vec<(usize, anyhow::Error)>> {
        for &node in nodes {
            ensure!(!self.is_running(node), "node {node} runs");
            self.spawn(node)?;
        }
        let mut failed = Vec::new();
        for &node in nodes {
            if let Err(error) = self.listening(node).await {
                failed.push((node, error));
            }
        }
        Ok(failed)
    }

    /// Kills nodes in one moment: none acts on the death of another.
    ///
    /// # Errors
    ///
    /// When one does not run.
    pub async fn kill_together(&mut self, nodes: &[usize]) -> Result<()> {
        for &node in nodes {
            self.pause(node)?;
        }
        for &node in nodes {
            self.kill(node).await?;
        }
        Ok(())
    }

    /// Removes the data of a node that does not run: with an empty store it is a
    /// new node that nobody knows.
    ///
    /// # Errors
    ///
    /// When it runs, or the files cannot be removed.
    pub fn wipe(&mut self, node: usize) -> Result<()> {
        ensure!(!self.is_running(node), "node {node} runs");
        let data = self.node_dir(node);
        fs::remove_dir_all(&data).with_context(|| format!("remove {}", data.display()))
    }

    /// Starts one more node, without peers: it waits to be added to the cluster.
    /// Says its number.
    ///
    /// # Errors
    ///
    /// As [`restart`](Self::restart).
    pub async fn start_spare(&mut self) -> Result<usize> {
        let node = self.nodes.len();
        self.nodes.push(Node {
            ports: self.spare_ports.pop_front().map_or_else(Ports::free, Ok)?,
            peers: Vec::new(),
            binary: None,
            process: None,
        });
        self.spawn(node)?;
        self.listening(node).await?;
        Ok(node)
    }

    /// The directory with the data of one node.
    #[must_use]
    pub fn node_dir(&self, node: usize) -> PathBuf {
        self.directory.path().join(format!("node-{node}"))
    }

    /// The file with all output of one node, over its restarts.
    #[must_use]
    pub fn log_file(&self, node: usize) -> PathBuf {
        self.directory.path().join(format!("node-{node}.log"))
    }

    /// The end of every node's log, for a failure.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for node in 0..self.nodes.len() {
            let log = fs::read_to_string(self.log_file(node)).unwrap_or_default();
            let skipped = log.lines().count().saturating_sub(LOG_LINES_SHOWN);
            text += &format!("\n--- log of node {node}, without its first {skipped} lines\n");
            for line in log.lines().skip(skipped) {
                text += line;
                text.push('\n');
            }
        }
        text
    }

    fn signal(&self, node: usize, signal: Signal) -> Result<()> {
        let process = self.nodes[node].process.as_ref();
        process
            .context("it does not run")
            .and_then(|p| p.signal(signal))
            .with_context(|| format!("node {node}"))
    }

    /// A node that has ended although nobody here ended it.
    fn ended(&self) -> Option<anyhow::Error> {
        self.nodes
            .iter()
            .enumerate()
            .find_map(|(node, Node { process, .. })| {
                let status = process.as_ref()?.exited()?;
                Some(anyhow::anyhow!("node {node} has ended: {status}"))
            })
    }

    fn spawn(&mut self, node: usize) -> Result<()> {
        let _ = fs::remove_file(self.ready_file(node));
        let process = Process::start(self.command(node), &self.log_file(node));
        self.nodes[node].process = Some(process.with_context(|| format!("start node {node}"))?);
        Ok(())
    }

    fn command(&self, node: usize) -> Command {
        let Node {
            ports, peers, binary, ..
        } = &self.nodes[node];
        let mut settings = BTreeMap::from([
            ("name", format!("node-{node}")),
            ("data", self.node_dir(node).display().to_string()),
            ("bind", Ipv4Addr::LOCALHOST.to_string()),
            ("client-port", ports.client.to_string()),
            ("peer-port", ports.peer.to_string()),
            ("http-port", ports.http.to_string()),
            ("ready-file", self.ready_file(node).display().to_string()),
        ]);
        if !peers.is_empty() {
            settings.insert("peers", peers.join(","));
        }
        settings.extend(
            self.builder
                .settings
                .iter()
                .map(|(key, value)| (key.as_str(), value.clone())),
        );
        let own = self
            .builder
            .node_settings
            .iter()
            .filter(|((of, _), _)| *of == node);
        settings.extend(own.map(|((_, key), value)| (key.as_str(), value.clone())));

        let mut command = Command::new(binary.as_ref().unwrap_or(&self.binary));
        command.arg("serve");
        for (key, value) in settings {
            command.arg(format!("--{key}={value}"));
        }
        // Settings of whoever runs this must not reach a node; the fault that a mutant is to have must.
        let is_setting = |key: &str| key.starts_with("QUORATE_") && key != "QUORATE_MUTANT";
        for (key, _) in std::env::vars_os().filter(|(key, _)| is_setting(&key.to_string_lossy())) {
            command.env_remove(key);
        }
        let own = self.builder.env.iter().filter(|((of, _), _)| *of == node);
        command.envs(own.map(|((_, key), value)| (key, value)));
        command
    }

    /// Waits until the node has bound its listeners.
    async fn listening(&self, node: usize) -> Result<()> {
        let process = self.nodes[node].process.as_ref().context("it was just started")?;
        let file = self.ready_file(node);
        let what = format!("node {node} to listen");
        let outcome = wait_until(&what, START_LIMIT, async || {
            if let Some(status) = process.exited() {
                return Some(Err(status));
            }
            let ready: ReadyFile = serde_json::from_slice(&fs::read(&file).ok()?).ok()?;
            (ready.pid == process.pid()).then_some(Ok(()))
        });
        match outcome.await.with_context(|| self.logs())? {
            Ok(()) => Ok(()),
            Err(status) => {
                let problem = format!("node {node} ended while it started: {status}{}", self.logs());
                if status.code() == Some(EXIT_ADDRESS) {
                    return Err(AddressTaken(problem).into());
                }
                bail!(problem)
            }
        }
    }

    fn ready_file(&self, node: usize) -> PathBuf {
        self.directory.path().join(format!("node-{node}.ready"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        // All at once, then one by one as they are dropped.
        for node in 0..self.nodes.len() {
            let _ = self.signal(node, Signal::SIGKILL);
        }
    }
}

impl Directory {
    fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Temporary(directory) => directory.path(),
        }
    }
}

fn local(port: u16) -> String {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string()
}
