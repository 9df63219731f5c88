//! Processes that ended, and what their logs say that no log should.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitStatus;

use anyhow::{Context, Result};
use serde::Serialize;

use super::Machines;
use crate::process::Usage;

/// Exit code of a node whose disk failed.
pub(super) const DISK: i32 = 10;
/// Exit code of a node whose data is damaged.
pub(super) const DAMAGED: i32 = 11;
/// Exit code of a node that the cluster has removed.
pub(super) const REMOVED: i32 = 12;

/// A process that ended without being killed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exit {
    /// The node, counted from 0.
    pub node: usize,
    /// Its exit code; `None` = a signal ended it.
    pub code: Option<i32>,
    /// As text.
    pub status: String,
    /// What was done to it explains it.
    pub expected: bool,
}

/// What was odd about the processes of a run, for invariant I25.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Oddities {
    /// All ends of processes that nobody had killed.
    pub exits: Vec<Exit>,
    /// Lines of logs that tell of a panic, with their node.
    pub panics: Vec<(usize, String)>,
    /// The most that each node has ever used.
    pub peaks: BTreeMap<usize, Usage>,
}

/// A node that uses more than this leaks: the loads of a run are small.
const USAGE_MAX: Usage = Usage {
    files: 1_000,
    resident_bytes: 2 << 30,
    threads: 300,
};

impl Oddities {
    /// What no run may bring, in words: panics, ends that nothing explains, use that has no bound.
    #[must_use]
    pub fn crashes(&self) -> Vec<String> {
        let panics = self
            .panics
            .iter()
            .map(|(node, line)| format!("node {node}: {line}"));
        let unexpected = self.exits.iter().filter(|exit| !exit.expected);
        let ends = unexpected.map(|exit| format!("node {} ended: {}", exit.node, exit.status));
        let much = self.peaks.iter().filter(|(_, usage)| {
            usage.files > USAGE_MAX.files
                || usage.resident_bytes > USAGE_MAX.resident_bytes
                || usage.threads > USAGE_MAX.threads
        });
        let much = much.map(|(node, usage)| format!("node {node} used {usage:?}, {USAGE_MAX:?} is the most"));
        panics.chain(ends).chain(much).collect()
    }
}

impl Exit {
    pub(super) fn new(node: usize, status: ExitStatus, asked: bool) -> Self {
        let code = status.code();
        Self {
            node,
            code,
            status: status.to_string(),
            // 15: it did not hand everything over in time, as when it has no leader.
            expected: asked && matches!(code, Some(0 | 15)),
        }
    }
}

impl Machines {
    /// Writes down which processes have ended by themselves, before they are started again.
    pub(super) fn note_exits(&mut self) {
        for node in 0..self.nodes.node_count() {
            if let Some(status) = self.nodes.take_exit(node) {
                self.note_exit(node, status);
            }
        }
    }

    /// Writes down how a process has ended by itself.
    pub(super) fn note_exit(&mut self, node: usize, status: ExitStatus) {
        let mut exit = Exit::new(node, status, false);
        exit.expected = match exit.code {
            Some(DISK) => self.failed_disks.contains(&node),
            Some(DAMAGED) => self.damaged.contains(&node),
            Some(REMOVED) => self.outside.contains(&node),
            _ => false,
        };
        self.exits.push(exit);
    }
}

/// Puts together what is known of the processes and their logs.
pub(super) fn oddities(
    exits: Vec<Exit>,
    logs: impl Iterator<Item = (usize, PathBuf)>,
    peaks: BTreeMap<usize, Usage>,
) -> Result<Oddities> {
    let mut panics = Vec::new();
    for (node, path) in logs {
        let log = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let told = log.lines().filter(|line| line.contains("panicked at"));
        panics.extend(told.map(|line| (node, line.to_owned())));
    }
    Ok(Oddities { exits, panics, peaks })
}
