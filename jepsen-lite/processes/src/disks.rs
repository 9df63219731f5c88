//! Nodes on disks that forget what was not synced, or fill up.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use quorate_disk_shim::{FaultyDisk, Names, Report, Variant};
use quorate_test_cluster::{Builder, Cluster};
use tempfile::TempDir;

/// One disk for each node. If [`create`](Self::create) has made the folder, it
/// goes with this value: drop it after the cluster.
#[derive(Debug)]
pub struct Disks {
    disks: Vec<FaultyDisk>,
    folder: PathBuf,
    _temporary: Option<TempDir>,
}

impl Disks {
    /// Makes the disks, with all faults off.
    ///
    /// # Errors
    ///
    /// When folders cannot be made.
    pub fn create(nodes: usize) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("quorate-disks-")
            .tempdir()
            .context("make a folder")?;
        let disks = Self::within(folder.path(), nodes)?;
        Ok(Self {
            _temporary: Some(folder),
            ..disks
        })
    }

    /// Makes the disks in a folder that stays, with all faults off.
    ///
    /// # Errors
    ///
    /// When folders cannot be made.
    pub fn within(folder: &Path, nodes: usize) -> Result<Self> {
        let disk = |node| {
            FaultyDisk::create(
                folder.join(format!("node-{node}")),
                folder.join(format!("journal-{node}")),
            )
        };
        let disks = (0..nodes)
            .map(disk)
            .collect::<Result<_, _>>()
            .context("make the disks")?;
        Ok(Self {
            disks,
            folder: folder.to_owned(),
            _temporary: None,
        })
    }

    /// Lets the nodes of a cluster keep their data on these disks.
    ///
    /// # Errors
    ///
    /// When the shim was not built.
    pub fn under(&self, mut builder: Builder) -> Result<Builder> {
        builder = builder.data_dir(&self.folder);
        for (node, disk) in self.disks.iter().enumerate() {
            for (name, value) in disk.preload_environment().context("find the shim")? {
                builder = builder.env_of(node, name, value);
            }
        }
        Ok(builder)
    }

    /// The disk of one node.
    #[must_use]
    pub fn of(&self, node: usize) -> &FaultyDisk {
        &self.disks[node]
    }

    /// Takes from the disk of a node that does not run what a power loss would
    /// have taken: which of the unsynced pages is up to the seed.
    ///
    /// # Errors
    ///
    /// When the shim did not see the node sync anything: then nothing was tested.
    pub fn lose_power(&self, cluster: &Cluster, node: usize, seed: u64) -> Result<Report> {
        ensure!(!cluster.is_running(node), "node {node} runs");
        let disk = self.of(node);
        let counters = disk.control()?.counters()?;
        ensure!(
            counters.syncs > 0 && counters.writes > 0,
            "the shim saw nothing of node {node}: {counters:?}"
        );
        let variant = Variant::draw(seed);
        let report = disk.lose_power(seed, variant, Names::Drawn)?;
        eprintln!("node {node} loses power (seed {seed}, pages kept: {variant}): {report}");
        Ok(report)
    }
}
