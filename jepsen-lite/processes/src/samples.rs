//! What nodes say of themselves, and what the kernel says of them, again and again during a run.
//!
//! Nodes are asked past the proxies, so that a node that is cut off tells its part too. Each sample is a line of
//! `node-N.jsonl`: `at_ms` since the samples began, `process` with what it uses, `status` with what it says of
//! itself or null.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::future::join_all;
use quorate_client::{Client, NodeStatus};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::process::{self, Usage};

/// Between two samples.
const BETWEEN: Duration = Duration::from_millis(250);
/// A node that takes longer is silent.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);

/// Who runs: process id and client address of each node. Clones are the same roll.
#[derive(Clone, Debug, Default)]
pub struct Roll(Arc<Mutex<BTreeMap<usize, (u32, String)>>>);

impl Roll {
    /// These run, and nobody else.
    pub fn set(&self, running: impl Iterator<Item = (usize, (u32, String))>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = running.collect();
    }

    fn now(&self) -> BTreeMap<usize, (u32, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Takes samples until it is stopped or dropped.
#[derive(Debug)]
pub struct Samples {
    end: watch::Sender<bool>,
    task: Option<JoinHandle<BTreeMap<usize, Usage>>>,
}

impl Samples {
    /// Begins, and writes into this folder.
    ///
    /// # Errors
    ///
    /// When it cannot be written there.
    pub fn start(roll: Roll, folder: &Path) -> Result<Self> {
        let probe = folder.join("node-0.jsonl");
        open(&probe)?;
        let (end, ended) = watch::channel(false);
        let task = tokio::spawn(take(roll, folder.to_owned(), ended));
        Ok(Self {
            end,
            task: Some(task),
        })
    }

    /// Ends; says the most that each node has ever used.
    pub async fn stop(&mut self) -> BTreeMap<usize, Usage> {
        self.end.send_replace(true);
        match self.task.take() {
            Some(task) => task.await.unwrap_or_default(),
            None => BTreeMap::new(),
        }
    }
}

async fn take(roll: Roll, folder: PathBuf, mut ended: watch::Receiver<bool>) -> BTreeMap<usize, Usage> {
    let began = Instant::now();
    let mut ticks = interval(BETWEEN);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut files, mut clients, mut peaks) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    loop {
        tokio::select! {
            // An error means that the sender is gone.
            _ = ended.changed() => return peaks,
            _ = ticks.tick() => {}
        }
        let running = roll.now();
        for (node, (_, address)) in &running {
            clients.entry(*node).or_insert_with(|| client(address));
        }
        let asked = running.iter().map(|(node, (_, address))| {
            let client: Option<Client> = clients.get(node).cloned().flatten();
            async move { client?.cluster().status_of(address).await.ok() }
        });
        let statuses = join_all(asked).await;
        for ((node, (id, _)), status) in running.iter().zip(statuses) {
            let Ok(usage) = process::usage(*id) else { continue };
            let peak: &mut Usage = peaks.entry(*node).or_default();
            *peak = Usage {
                files: peak.files.max(usage.files),
                resident_bytes: peak.resident_bytes.max(usage.resident_bytes),
                threads: peak.threads.max(usage.threads),
            };
            let line = json!({
                "at_ms": u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
                "pid": id,
                "process": usage,
                "status": status.as_ref().map(told),
            });
            let file = files
                .entry(*node)
                .or_insert_with(|| open(&folder.join(format!("node-{node}.jsonl"))).ok());
            if let Some(file) = file {
                // A sample that cannot be kept is not worth a run.
                let _ = writeln!(file, "{line}");
            }
        }
    }
}

fn open(path: &Path) -> Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.with_context(|| format!("open {}", path.display()))
}

fn client(address: &str) -> Option<Client> {
    let builder = Client::builder().endpoint(address).probe_timeout(ANSWER_LIMIT);
    builder.connect_lazy().ok()
}

/// A status in JSON. Ids are texts, as they use all 64 bits.
fn told(status: &NodeStatus) -> Value {
    let members = status.members.iter().map(|member| {
        json!({
            "node_id": member.node_id.to_string(),
            "name": member.name,
            "voter": member.voter,
        })
    });
    json!({
        "cluster_id": status.cluster_id,
        "node_id": status.node_id.to_string(),
        "role": status.role,
        "term": status.term,
        "leader": status.leader.as_ref().map(|leader| leader.node_id.to_string()),
        "last_log_index": status.last_log_index,
        "committed_index": status.committed_index,
        "applied_index": status.applied_index,
        "snapshot_index": status.snapshot_index,
        "purged_index": status.purged_index,
        "state_index": status.state_index,
        "state_hash": status.state_hash,
        "cluster_time_ms": status.cluster_time_ms,
        "members": members.collect::<Vec<_>>(),
    })
}
