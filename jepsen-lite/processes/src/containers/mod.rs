//! Layer c: the cluster as it ships, in containers.
//!
//! What only this layer sees is what lies around the binary: image, entry point, signals to process 1, volumes,
//! addresses that go and come, the kernel's own retransmission, the out-of-memory killer, a starved processor,
//! an image that is exchanged node by node. The engine is driven by its command line, `docker` and
//! `docker compose` or `docker-compose`, as an operator would; nothing is mocked. Where no engine answers, or one
//! lacks what a fault needs, that is said, and the fault is skipped with the reason.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`engine`] | the command line, with a deadline for everything |
//! | [`image`] | images from a finished binary, without a registry |
//! | [`layout`] | names, ports, addresses, as in `jepsen-lite/processes/compose/compose.yaml` |
//! | `filter` | who drops whose packets, and which part of them |
//! | `members` | a node that was emptied or added becomes a member; one that left is forgotten |
//!
//! A node that is cut off alone leaves the `peer` network; its address and route are gone, as when a cable is
//! pulled. Cuts in one direction, or between groups, are packet filters in the network namespace of the
//! container, which needs root on the engine's machine. So does keeping clients away: were a node to leave the
//! `client` network, the engine would publish its port through the other one.

mod cluster;
pub mod engine;
mod filter;
pub mod image;
pub mod layout;
mod members;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use jepsen_lite_core::run::{self, Run};
use quorate_client::{Client, NodeStatus};
use quorate_test_cluster::wait_until;
use tempfile::TempDir;

use engine::Engine;
use filter::Filter;
use layout::{COMPOSE, Layout, NODES_MAX};

/// Settings of the first members, who know each other.
const FIRST: &str = "first.env";
/// Settings of nodes that wait to be added.
const ADDED: &str = "added.env";
/// How long a cluster or a node may take to do what was asked for.
const PATIENCE: Duration = Duration::from_secs(90);
/// Lines of a node's output that are shown when a cluster does not come up.
const LOG_LINES: usize = 40;
/// Lines of a node's output that are kept of a run.
const LOG_LINES_KEPT: usize = 100_000;
/// How long a node may take to answer a question about itself.
const STATUS_LIMIT: Duration = Duration::from_secs(1);

/// What is to be started.
#[derive(Clone, Debug)]
pub struct Settings {
    /// First members, 1 to 5.
    pub nodes: usize,
    /// The image of all nodes; see [`image`].
    pub image: String,
    /// The image of [`Fault::Upgrade`](jepsen_lite_core::schedule::Fault::Upgrade); without one it is skipped.
    pub image_next: Option<String>,
    /// Memory of a node, as the engine writes it: `512m`. A node that takes more is killed.
    pub memory: String,
    /// Settings of all nodes, as on the command line, without the dashes.
    pub settings: BTreeMap<String, String>,
}

/// How a container ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// 0 = in order; 137 = killed; others as in `docs/errors.md`.
    pub exit_code: i32,
    /// The kernel killed it, because it had more memory than it may.
    pub out_of_memory: bool,
}

impl Ended {
    /// Reads `running exit-code out-of-memory`; `None` = it runs.
    fn parse(text: &str) -> Result<Option<Self>> {
        let mut parts = text.split_whitespace();
        let mut next = || parts.next().context("a part is missing");
        let (running, exit_code, out_of_memory) = (next()?, next()?, next()?);
        if running.parse()? {
            return Ok(None);
        }
        Ok(Some(Self {
            exit_code: exit_code.parse()?,
            out_of_memory: out_of_memory.parse()?,
        }))
    }
}

/// A cluster in containers. [`down`](Self::down) removes it; dropped without, it is removed too, without a word.
#[derive(Debug)]
pub struct Containers {
    engine: Engine,
    layout: Layout,
    /// Its compose file and settings.
    directory: TempDir,
    settings: Settings,
    /// Which image each node has.
    images: Vec<String>,
    /// Nodes that have been started, so that there is something to look at.
    made: usize,
    /// Nodes that are no part of the `peer` network.
    unplugged: BTreeSet<usize>,
    filter: Filter,
    /// Nodes that do not run, by what was done to them.
    down: BTreeSet<usize>,
    paused: BTreeSet<usize>,
    slowed: BTreeSet<usize>,
    /// Nodes whose data is gone: what their id was.
    emptied: BTreeMap<usize, u64>,
}

impl Containers {
    /// Starts a cluster and waits until it has a leader and all nodes know it.
    ///
    /// # Errors
    ///
    /// When it does not come up.
    pub async fn start(engine: Engine, settings: Settings) -> Result<Self> {
        ensure!(
            (1..=NODES_MAX).contains(&settings.nodes),
            "a cluster in containers has 1 to {NODES_MAX} nodes, not {}",
            settings.nodes
        );
        let directory = tempfile::Builder::new()
            .prefix("jepsen-lite-containers-")
            .tempdir()
            .context("make a folder for the compose file")?;
        fs::write(directory.path().join("compose.yaml"), COMPOSE).context("write the compose file")?;
        let alone = environment(&settings.settings)?;
        let peers: Vec<String> = (0..settings.nodes).map(Layout::peer).collect();
        let first = format!("{alone}QUORATE_PEERS={}\n", peers.join(","));
        fs::write(directory.path().join(FIRST), first).context("write the settings of the first nodes")?;
        fs::write(directory.path().join(ADDED), alone).context("write the settings of further nodes")?;
        let mut cluster = Self {
            engine,
            layout: Layout::new().context("choose ports")?,
            directory,
            images: vec![settings.image.clone(); NODES_MAX],
            made: 0,
            settings,
            unplugged: BTreeSet::new(),
            filter: Filter::default(),
            down: BTreeSet::new(),
            paused: BTreeSet::new(),
            slowed: BTreeSet::new(),
            emptied: BTreeMap::new(),
        };
        let first: Vec<usize> = (0..cluster.settings.nodes).collect();
        cluster.up(&first, FIRST).await?;
        if let Err(error) = cluster.ready(&first).await {
            // Nobody can look once they are gone.
            let log = cluster.log(0, LOG_LINES).await.unwrap_or_default();
            return Err(error.context(format!("node 0 says:\n{log}")));
        }
        Ok(cluster)
    }

    /// Where clients reach the nodes, in their order.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        (0..self.made).map(|node| self.layout.endpoint(node)).collect()
    }

    /// What a node says of itself.
    ///
    /// # Errors
    ///
    /// When it does not answer within a second.
    pub async fn status(&self, node: usize) -> Result<NodeStatus> {
        let endpoint = self.layout.endpoint(node);
        let client = Client::builder()
            .endpoints([endpoint.clone()])
            .timeout(STATUS_LIMIT)
            .connect_lazy()?;
        let status = tokio::time::timeout(STATUS_LIMIT, client.cluster().status_of(&endpoint)).await;
        Ok(status.with_context(|| format!("node {node} does not answer"))??)
    }

    /// Copies the audit log that a node has in its volume, whether it runs or not. The setting `audit-file` must
    /// name it, in `/var/lib/quorate`, beside the data.
    ///
    /// # Errors
    ///
    /// When there is none, or it cannot be copied.
    pub async fn copy_audit(&self, node: usize, to: &Path) -> Result<()> {
        let Some(file) = self.settings.settings.get("audit-file") else {
            bail!("the nodes were started without `audit-file`");
        };
        let from = format!("{}:{file}", self.layout.container(node));
        let to = to.to_str().context("a path that is text")?;
        self.engine.docker(&["cp", &from, to]).await?;
        Ok(())
    }

    /// What the engine kept of a node's output, its last lines.
    ///
    /// # Errors
    ///
    /// When the engine does not say.
    pub async fn log(&self, node: usize, lines: usize) -> Result<String> {
        let (name, lines) = (self.layout.container(node), lines.to_string());
        self.engine.output_of(&["logs", "--tail", &lines, &name]).await
    }

    /// How a node ended, if it did.
    ///
    /// # Errors
    ///
    /// When the engine does not say.
    pub async fn ended(&self, node: usize) -> Result<Option<Ended>> {
        const ASK: &str = "{{.State.Running}} {{.State.ExitCode}} {{.State.OOMKilled}}";
        let said = self
            .engine
            .docker(&["inspect", "--format", ASK, &self.layout.container(node)])
            .await?;
        Ended::parse(&said).with_context(|| format!("the engine says {said:?} of node {node}"))
    }

    /// Changes the memory that a node may have. One that has more is killed by the kernel, and stays dead.
    ///
    /// # Errors
    ///
    /// When the engine refuses.
    pub async fn limit_memory(&self, node: usize, memory: &str) -> Result<()> {
        let name = self.layout.container(node);
        // Without a word about swap the engine refuses to go below what was there.
        let update = ["update", "--memory", memory, "--memory-swap", memory, &name];
        self.engine.docker(&update).await?;
        Ok(())
    }

    /// Ends, and adds to a run what only the containers can tell: their audit logs, and what crashed. All is kept
    /// in the folder of the run: `audit/node-N.jsonl`, and the output of each node as `nodes/node-N.log`. A node
    /// that was emptied has no audit log of the time before.
    ///
    /// # Errors
    ///
    /// When the engine refuses, or a file cannot be written or read.
    pub async fn complete(self, run: &mut Run, folder: &Path) -> Result<()> {
        let (audit, nodes) = (folder.join(run::AUDIT), folder.join("nodes"));
        for folder in [&audit, &nodes] {
            fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        }
        for node in 0..self.made {
            self.copy_audit(node, &audit.join(format!("node-{node}.jsonl")))
                .await
                .with_context(|| format!("the audit log of node {node}"))?;
            let log = self.log(node, LOG_LINES_KEPT).await?;
            let panics = log.lines().filter(|line| line.contains("panicked at"));
            run.facts
                .crashes
                .extend(panics.map(|line| format!("node {node}: {line}")));
            let ended = self.ended(node).await?;
            // All were started again when the faults were over.
            run.facts
                .crashes
                .extend(ended.map(|ended| format!("node {node} ended: {ended:?}")));
            let path = nodes.join(format!("node-{node}.log"));
            fs::write(&path, log).with_context(|| format!("write {}", path.display()))?;
        }
        self.down().await?;
        run.audit = run::audit(&audit)?;
        Ok(())
    }

    /// Removes containers, networks and volumes.
    ///
    /// # Errors
    ///
    /// When the engine refuses.
    pub async fn down(mut self) -> Result<()> {
        let removed = self
            .compose(FIRST, &["down", "--volumes", "--timeout", "1"])
            .await;
        self.made = 0;
        removed.map(|_| ())
    }

    /// Makes and starts these nodes.
    async fn up(&mut self, nodes: &[usize], settings: &str) -> Result<()> {
        let names: Vec<String> = nodes.iter().map(|node| Layout::service(*node)).collect();
        let mut arguments = vec!["up", "--detach", "--no-deps"];
        arguments.extend(names.iter().map(String::as_str));
        // Before: what comes up in part must be removed too.
        self.made = nodes.iter().map(|node| node + 1).fold(self.made, usize::max);
        self.compose(settings, &arguments).await?;
        Ok(())
    }

    /// Waits until these nodes know a leader.
    async fn ready(&self, nodes: &[usize]) -> Result<()> {
        for &node in nodes {
            wait_until(&format!("node {node} to know a leader"), PATIENCE, async || {
                self.status(node).await.ok()?.leader.map(|_| ())
            })
            .await?;
        }
        Ok(())
    }

    async fn compose(&self, settings: &str, arguments: &[&str]) -> Result<String> {
        let mut variables = self.layout.variables(settings);
        variables.insert("MEMORY".to_owned(), self.settings.memory.clone());
        for (node, image) in self.images.iter().enumerate() {
            variables.insert(format!("IMAGE_{node}"), image.clone());
        }
        self.engine
            .compose(self.directory.path(), &variables, arguments)
            .await
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        if self.made > 0 {
            self.engine.remove_in_the_end(&self.layout.project);
        }
    }
}

/// Settings of nodes as an environment file.
fn environment(settings: &BTreeMap<String, String>) -> Result<String> {
    let mut lines = String::new();
    for (name, value) in settings {
        ensure!(
            !value.contains(['\n', '\r']),
            "the setting {name} has a line break, which an environment file cannot hold"
        );
        let _ = writeln!(lines, "QUORATE_{}={value}", name.to_uppercase().replace('-', "_"));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_engine_says_of_an_end_is_understood() {
        let ended = Ended {
            exit_code: 137,
            out_of_memory: true,
        };
        assert_eq!(Ended::parse("false 137 true").unwrap(), Some(ended));
        assert_eq!(Ended::parse("true 0 false").unwrap(), None);
        assert!(Ended::parse("false 137").is_err());
    }

    #[test]
    fn settings_are_written_as_the_server_reads_its_environment() {
        let settings = [("snapshot-entries".to_owned(), "200".to_owned())].into();
        assert_eq!(environment(&settings).unwrap(), "QUORATE_SNAPSHOT_ENTRIES=200\n");
        let broken = [("name".to_owned(), "a\nb".to_owned())].into();
        assert!(environment(&broken).is_err());
    }
}
