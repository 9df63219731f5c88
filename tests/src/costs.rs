//! What the nodes of a cluster take: processor time, memory, disk. Linux only.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use quorate_test_cluster::Cluster;

/// Of `/proc/PID/stat`: fixed on Linux, whatever the kernel's own clock is.
const TICKS_PER_SECOND: f64 = 100.0;

/// Seconds of processor time of a node's process up to now, in user and system mode.
///
/// # Errors
///
/// If the node does not run, or `/proc` is not that of Linux.
pub fn cpu_seconds(cluster: &Cluster, node: usize) -> Result<f64> {
    let process = cluster.process_id(node).context("the node does not run")?;
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).context("read its CPU time")?;
    // The name of the program, in parentheses, may have spaces in it.
    let (_, fields) = stat.rsplit_once(')').context("no CPU time")?;
    let ticks: Vec<u64> = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<u64>() as f64 / TICKS_PER_SECOND)
}

/// Bytes of the largest resident set that a node's process has had since it began.
///
/// # Errors
///
/// As [`cpu_seconds`].
pub fn peak_memory(cluster: &Cluster, node: usize) -> Result<u64> {
    let process = cluster.process_id(node).context("the node does not run")?;
    let status = fs::read_to_string(format!("/proc/{process}/status")).context("read its memory")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kilobytes.context("no memory")?.parse::<u64>()? << 10)
}

/// Bytes of all files of a node.
#[must_use]
pub fn disk(cluster: &Cluster, node: usize) -> u64 {
    bytes_below(&cluster.node_dir(node))
}

/// Files may go away meanwhile.
fn bytes_below(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    sizes.sum()
}
