//! How a cluster is started.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use crate::{Cluster, Directory, Node, Ports, binary, local};

/// How a cluster is started. See [`Cluster::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    pub(crate) node_count: usize,
    pub(crate) binary: Option<PathBuf>,
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) ports: Option<Vec<Ports>>,
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) node_settings: BTreeMap<(usize, String), String>,
    pub(crate) env: BTreeMap<(usize, OsString), OsString>,
}

impl Builder {
    /// Runs this binary instead of the one that belongs to the tests.
    #[must_use]
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// Keeps everything below this directory, also afterwards; by default it is
    /// a temporary one that goes with the [`Cluster`].
    #[must_use]
    pub fn data_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(path.into());
        self
    }

    /// Uses these ports, one item for each node, instead of free ones; further
    /// items are for spare nodes.
    #[must_use]
    pub fn ports(mut self, ports: Vec<Ports>) -> Self {
        self.ports = Some(ports);
        self
    }

    /// Gives every node the flag `--key value` (see `quorate serve --help`).
    #[must_use]
    pub fn setting(mut self, key: &str, value: impl Into<String>) -> Self {
        self.settings.insert(key.to_owned(), value.into());
        self
    }

    /// Gives one node the flag `--key value`, over what all of them have.
    #[must_use]
    pub fn setting_of(mut self, node: usize, key: &str, value: impl Into<String>) -> Self {
        self.node_settings.insert((node, key.to_owned()), value.into());
        self
    }

    /// Sets a variable in the environment of one node.
    #[must_use]
    pub fn env_of(mut self, node: usize, key: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.insert((node, key.into()), value.into());
        self
    }

    /// Starts the nodes and waits until there is a leader and all are ready.
    ///
    /// # Errors
    ///
    /// When the binary cannot be found or built, when a node ends while it
    /// starts, or when the cluster is not ready in time; with the end of the
    /// nodes' logs.
    pub async fn start(self) -> Result<Cluster> {
        let fixed = self.ports.is_some();
        for _ in 0..10 {
            match self.clone().try_start().await {
                Err(error) if !fixed && error.is::<AddressTaken>() => {}
                result => return result,
            }
        }
        bail!("ten times the ports that had been free were taken by others")
    }

    async fn try_start(self) -> Result<Cluster> {
        let binary = self.binary.clone().map_or_else(binary::find, Ok)?;
        let directory = match &self.data_dir {
            Some(path) => {
                fs::create_dir_all(path).with_context(|| format!("create {}", path.display()))?;
                Directory::Kept(path.canonicalize().context("find the data directory")?)
            }
            None => Directory::Temporary(
                tempfile::Builder::new()
                    .prefix("quorate-")
                    .tempdir()
                    .context("create a temporary directory")?,
            ),
        };
        let ports = match &self.ports {
            Some(ports) => ports.clone(),
            None => (0..self.node_count)
                .map(|_| Ports::free())
                .collect::<Result<_>>()?,
        };
        ensure!(
            ports.len() >= self.node_count,
            "ports for {} nodes, not {}",
            ports.len(),
            self.node_count
        );
        let mut ports = ports;
        let spare_ports = ports.split_off(self.node_count).into();
        let peers: Vec<_> = ports.iter().map(|ports| local(ports.peer)).collect();
        let nodes = ports
            .into_iter()
            .map(|ports| Node {
                ports,
                peers: peers.clone(),
                binary: None,
                process: None,
            })
            .collect();
        let mut cluster = Cluster {
            nodes,
            spare_ports,
            binary,
            directory,
            builder: self,
        };
        for node in 0..cluster.nodes.len() {
            cluster.spawn(node)?;
        }
        for node in 0..cluster.nodes.len() {
            cluster.listening(node).await?;
        }
        cluster.ready().await?;
        Ok(cluster)
    }
}

/// A node ended because a port that had been free was taken: with given ports,
/// [`Builder::start`] fails with this, and the caller may try others.
#[derive(Debug)]
pub struct AddressTaken(pub(crate) String);

impl std::fmt::Display for AddressTaken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AddressTaken {}
