//! What is stored of a run, and where.
//!
//! | file | what it is |
//! | --- | --- |
//! | `schedule.json` | what was to be done |
//! | `history.jsonl` | what clients asked for and were told |
//! | `effects.json` | what the faults did |
//! | `facts.json` | what else is known: how it ended, and what its layer has seen by itself |
//! | `sights.jsonl` | what nodes said of themselves |
//! | `audit/*.jsonl` | what each replica says that it applied |
//! | `results.json` | what it came to |
//!
//! Only the schedule and the history must be there; what is missing decides nothing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::audit::Audit;
use crate::cluster::Effect;
use crate::history::History;
use crate::schedule::Schedule;
use crate::verdict::{Finding, Results};
use crate::view::{Counts, Settings};

/// The file of the schedule.
pub const SCHEDULE: &str = "schedule.json";
const HISTORY: &str = "history.jsonl";
const EFFECTS: &str = "effects.json";
const FACTS: &str = "facts.json";
const SIGHTS: &str = "sights.jsonl";
const RESULTS: &str = "results.json";
/// The folder of the replicas' audit logs.
pub const AUDIT: &str = "audit";

/// A run that is over, as far as it can be judged.
#[derive(Clone, Debug)]
pub struct Run {
    /// What was to be done.
    pub schedule: Schedule,
    /// What clients asked for and were told.
    pub history: History,
    /// What the replicas applied; empty if they were not asked to write it down.
    pub audit: Audit,
    /// What the faults did.
    pub effects: Vec<Effect>,
    /// What else is known.
    pub facts: Facts,
    /// What nodes said of themselves, by time.
    pub sights: Vec<Sight>,
}

/// How a run ended, and what its layer has seen by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// How long it took from the end of the faults until the cluster was whole; `None` = it was not in time.
    pub whole_after_ms: Option<u64>,
    /// All members came to the same state at the end.
    pub converged: bool,
    /// Where the barrier stands in the log, with which the run ended; `None` = it could not be committed.
    pub barrier: Option<u64>,
    /// What the broker counts of each queue at the end; empty if it did not say.
    pub counts: BTreeMap<String, Counts>,
    /// The queues, as they were declared.
    pub queues: BTreeMap<String, Settings>,
    /// What the cluster did not do in time, in words.
    pub overdue: Vec<String>,
    /// What failed in the harness itself, which says nothing about the cluster.
    pub failures: Vec<String>,
    /// How often the leader was seen to change.
    pub leader_changes: u64,
    /// How often a follower was sent a snapshot and took it.
    pub snapshots_installed: u64,
    /// Panics, and ends of nodes that nothing explains: in words.
    pub crashes: Vec<String>,
    /// What the layer has checked as it ran.
    pub observed: Vec<Finding>,
    /// The command that does this run again.
    pub repeat: String,
}

/// What one node said of itself at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sight {
    /// When, in milliseconds since the start of the history.
    pub at_ms: u64,
    /// Which, counted from 0.
    pub node: usize,
    /// Its id in the cluster; `None` = it was silent, or knows none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// `leader`, `follower`, `candidate`, `learner`, …; empty = it was silent.
    pub role: String,
    /// In which term.
    pub term: u64,
    /// How far it has applied its log.
    pub applied_index: u64,
}

impl Run {
    /// Reads what a folder has of a run.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or understood, or there is no schedule or history.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut run = Self {
            schedule: required(folder, SCHEDULE)?,
            history: History::read(open(folder, HISTORY)?)?,
            audit: Audit::default(),
            effects: optional(folder, EFFECTS)?,
            facts: optional(folder, FACTS)?,
            sights: Vec::new(),
        };
        if folder.join(SIGHTS).exists() {
            crate::lines::read(open(folder, SIGHTS)?, |sight| run.sights.push(sight))?;
        }
        run.audit = audit(&folder.join(AUDIT))?;
        Ok(run)
    }

    /// Writes all of it but the audit logs, which the replicas have written, into a folder that exists.
    ///
    /// # Errors
    ///
    /// When a file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        write_json(folder, SCHEDULE, &self.schedule)?;
        write_json(folder, EFFECTS, &self.effects)?;
        write_json(folder, FACTS, &self.facts)?;
        let mut file = create(folder, HISTORY)?;
        self.history.write(&mut file)?;
        file.flush().with_context(|| format!("write {HISTORY}"))?;
        let mut file = create(folder, SIGHTS)?;
        for sight in &self.sights {
            serde_json::to_writer(&mut file, sight).with_context(|| format!("write {SIGHTS}"))?;
            file.write_all(b"\n").with_context(|| format!("write {SIGHTS}"))?;
        }
        file.flush().with_context(|| format!("write {SIGHTS}"))
    }
}

impl Results {
    /// Writes what a run came to into its folder.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        write_json(folder, RESULTS, self)
    }

    /// Reads what a run came to.
    ///
    /// # Errors
    ///
    /// When it is not there, or cannot be understood.
    pub fn read(folder: &Path) -> Result<Self> {
        required(folder, RESULTS)
    }
}

/// The audit logs of a folder, laid over each other. No folder: none.
///
/// # Errors
///
/// When one cannot be read.
pub fn audit(folder: &Path) -> Result<Audit> {
    let mut audit = Audit::default();
    if !folder.is_dir() {
        return Ok(audit);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).context("list the audit logs")? {
        files.push(entry.context("list the audit logs")?.path());
    }
    files.sort();
    for path in files {
        let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        let node = path.file_stem().unwrap_or_default().to_string_lossy();
        audit.add(&node, BufReader::new(file))?;
    }
    Ok(audit)
}

fn open(folder: &Path, name: &str) -> Result<BufReader<File>> {
    let path = folder.join(name);
    let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
    Ok(BufReader::new(file))
}

fn required<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<T> {
    let mut text = String::new();
    open(folder, name)?
        .read_to_string(&mut text)
        .with_context(|| format!("read {name}"))?;
    serde_json::from_str(&text).with_context(|| format!("understand {}", folder.join(name).display()))
}

fn optional<T: DeserializeOwned + Default>(folder: &Path, name: &str) -> Result<T> {
    if folder.join(name).exists() {
        required(folder, name)
    } else {
        Ok(T::default())
    }
}

fn create(folder: &Path, name: &str) -> Result<BufWriter<File>> {
    let path = folder.join(name);
    let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    Ok(BufWriter::new(file))
}

fn write_json(folder: &Path, name: &str, value: &impl Serialize) -> Result<()> {
    let mut file = create(folder, name)?;
    serde_json::to_writer_pretty(&mut file, value).with_context(|| format!("write {name}"))?;
    file.flush().with_context(|| format!("write {name}"))
}
