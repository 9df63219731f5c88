//! One run: a schedule, carried out in a world of its own, and judged.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jepsen_lite_core::check::{self, Ends};
use jepsen_lite_core::schedule::Schedule;
use jepsen_lite_core::verdict::{Finding, Results, Verdict, Witness};
use jepsen_lite_workload::access::Access;
use jepsen_lite_workload::scenarios;
use jepsen_lite_workload::trial::{self, Course};
use quorate_disk_shim::simulation;
use serde::{Deserialize, Serialize};

use crate::cluster::SimCluster;
use crate::net::{Host, Network, Plane};
use crate::settings;
use crate::trace::Trace;
use crate::world::{PEOPLE, Settings, World};

/// Virtual time that a run may take beyond its load and its healing.
const REST: Duration = Duration::from_secs(600);
/// Most nodes of a cluster.
const NODES_MAX: usize = 9;
/// Wall clocks of machines differ by as much at the start, in milliseconds.
const CLOCK_SPREAD_MS: u64 = 100;
/// Witnesses that are kept of each promise.
const WITNESSES_MAX: usize = 10;

/// What is to be run, and what is wanted of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// What happens.
    pub schedule: Schedule,
    /// Where the files of the run go; `None` = nothing is kept.
    #[serde(default)]
    pub folder: Option<PathBuf>,
    /// Writes every event to `trace.txt` in the folder.
    #[serde(default)]
    pub trace: bool,
    /// Lets a leader that restarts lead on: a known way to lose acknowledged entries.
    #[serde(default)]
    pub restore_leader: bool,
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// The schedule's name.
    pub name: String,
    /// Its seed.
    pub seed: u64,
    /// What the run came to.
    pub results: Results,
    /// The hash of everything that happened.
    pub trace: String,
    /// Virtual time that passed, in milliseconds.
    pub virtual_ms: u64,
}

impl Order {
    /// Of a schedule, with nothing kept.
    #[must_use]
    pub fn new(schedule: Schedule) -> Self {
        Self {
            schedule,
            folder: None,
            trace: false,
            restore_leader: false,
        }
    }
}

/// Carries out an order, in a process whose world is simulated with the seed of the schedule.
///
/// # Errors
///
/// When the harness failed: the order makes no sense, the load could not be started, a file not be written.
pub fn run(order: &Order) -> Result<Summary> {
    ensure!(simulation::is_simulated(), "this process lives in the real world");
    let schedule = &order.schedule;
    ensure!(
        (1..=NODES_MAX).contains(&schedule.nodes),
        "{} nodes",
        schedule.nodes
    );
    if let Some(folder) = &order.folder {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    let trace = Trace::new(match (&order.folder, order.trace) {
        (Some(folder), true) => Some(Box::new(create(folder, "trace.txt")?)),
        _ => None,
    });
    let settings = Settings {
        seed: schedule.seed,
        nodes: schedule.nodes,
        node: settings::node(&schedule.settings)?,
        restore_leader: order.restore_leader,
        clock_spread_ms: CLOCK_SPREAD_MS,
    };
    let mut world = World::new(settings, trace.clone());
    if let Some(at_ms) = rollback_copy_ms(schedule) {
        world.copy_disks_at(at_ms);
    }
    let access = access(world.network(), schedule);
    let operator = access.client(Duration::from_secs(30));
    let mut cluster = SimCluster::new(world.orders(), world.network().clone(), operator);
    let first: Vec<usize> = (0..schedule.nodes).collect();
    let course = async {
        cluster.ready(&first).await.context("form a cluster")?;
        Box::pin(trial::conduct(schedule, &mut cluster, &access)).await
    };
    let limit = REST + Duration::from_millis(schedule.load_ms + 4 * schedule.heal_ms);
    let course = world.run(limit, course);
    let virtual_ms = world.now_us() / 1_000;
    trace.note(world.now_us(), "entropy", &[simulation::drawn_bytes()], &[]);
    let (course, hung) = match course {
        Some(course) => (course?, false),
        None => (Course::default(), true),
    };
    let results = judge(order, &course, &mut world, hung);
    if let Some(folder) = &order.folder {
        keep(folder, order, &course, &mut world, &results)?;
    }
    Ok(Summary {
        name: schedule.name.clone(),
        seed: schedule.seed,
        results,
        trace: trace.hash().to_string(),
        virtual_ms,
    })
}

/// The way of clients to the nodes of a simulated network.
fn access(network: &Network, schedule: &Schedule) -> Access {
    let nodes = u32::try_from(schedule.nodes).expect("few nodes");
    let endpoints = (1..=nodes).map(|node| Host(node).address(Plane::Clients).to_string());
    let network = network.clone();
    Access::by(endpoints, move |address| {
        let network = network.clone();
        async move { network.dial(PEOPLE, &address).await }
    })
    .seeded(schedule.seed)
}

/// When disks are copied, so that a later rollback has something to go back to.
fn rollback_copy_ms(schedule: &Schedule) -> Option<u64> {
    use jepsen_lite_core::schedule::Fault;
    let steps = schedule.steps.iter();
    let first = steps
        .filter(|step| step.fault == Fault::Rollback)
        .map(|step| step.at_ms)
        .min()?;
    // Half-way, counted from the start of the world, which is a little before that of the load.
    Some(first / 2 + 1_000)
}

fn judge(order: &Order, course: &Course, world: &mut World, hung: bool) -> Results {
    let mut findings = Vec::new();
    let [entries, installs, leader_changes, disks] = world.watch().seen();
    let violations = world.watch().violations();
    for (invariant, name, checked) in [
        ("I10", "convergence", entries),
        ("I14", "cluster time", entries),
        ("I19", "raft", disks),
    ] {
        let found = violations.iter().find(|(id, ..)| *id == invariant);
        let (violated, witnesses) =
            found.map_or((0, Vec::new()), |(_, count, first)| (*count, first.clone()));
        findings.push(finding(invariant, name, checked, violated, witnesses));
    }
    let mut broken: BTreeMap<&str, Vec<Witness>> = BTreeMap::new();
    for violation in promises(&order.schedule.workload.name, course) {
        broken.entry(violation.promise).or_default().push(Witness {
            evidence: violation.evidence,
            message: None,
            at_ms: None,
        });
    }
    for (promise, witnesses) in broken {
        let count = witnesses.len() as u64;
        findings.push(finding(promise, promise, count, count, witnesses));
    }
    let mut overdue = course.overdue.clone();
    if hung {
        overdue.push("the run did not come to an end".to_owned());
    }
    let witnesses = overdue.into_iter().map(|evidence| Witness {
        evidence,
        message: None,
        at_ms: None,
    });
    let witnesses: Vec<Witness> = witnesses.collect();
    let count = witnesses.len() as u64;
    findings.push(finding("I24", "progress after healing", 1, count, witnesses));

    let progress = course.history.progress();
    let seen = BTreeMap::from([
        ("confirmed".to_owned(), progress.confirmed as u64),
        ("entries".to_owned(), entries),
        ("snapshots_installed".to_owned(), installs),
        ("leader_changes".to_owned(), leader_changes),
        ("disk_checks".to_owned(), disks),
        ("faults".to_owned(), course.effects.len() as u64),
    ]);
    let mut verdict = findings
        .iter()
        .map(|finding| finding.verdict)
        .max()
        .unwrap_or(Verdict::Valid);
    let mut notes = course.failures.clone();
    if verdict == Verdict::Valid && (progress.confirmed as u64) < order.schedule.evidence.confirmed {
        verdict = Verdict::Unknown;
        notes.push(format!("only {} publishes were confirmed", progress.confirmed));
    }
    if verdict != Verdict::Violated && !course.failures.is_empty() {
        verdict = Verdict::Harness;
    }
    Results {
        verdict,
        findings,
        seen,
        notes,
        repeat: repeat(&order.schedule),
    }
}

/// The command that does a run again. A schedule that is neither a scenario nor generated is in the run folder.
fn repeat(schedule: &Schedule) -> String {
    let seed = schedule.seed;
    let what = match scenarios::by_name(&schedule.name) {
        Ok(_) => format!("jepsen-lite/scenarios/{}.json", schedule.name),
        Err(_) => format!("--load {}", schedule.load_ms / 1_000),
    };
    format!(
        "cargo run --release -p jepsen-lite-sim --example simulate -- --seeds {seed}..{} {what}",
        seed + 1
    )
}

/// What clients can tell of broken promises.
fn promises(workload: &str, course: &Course) -> Vec<check::Violation> {
    let ends = Ends {
        counts: course.counts.clone(),
        ..Ends::default()
    };
    match workload {
        "queue" | "fifo" | "groups" => check::check(&course.history, &ends),
        // Messages expire.
        "delay" => Vec::new(),
        // In these a message is in several queues, or moves on, which only the audit log can follow.
        _ => check::nothing_is_lost(&course.history),
    }
}

fn finding(
    invariant: &str,
    name: &str,
    checked: u64,
    violations: u64,
    mut witnesses: Vec<Witness>,
) -> Finding {
    witnesses.truncate(WITNESSES_MAX);
    Finding {
        invariant: invariant.to_owned(),
        name: name.to_owned(),
        verdict: match (violations, checked) {
            (0, 0) => Verdict::Unknown,
            (0, _) => Verdict::Valid,
            _ => Verdict::Violated,
        },
        checked,
        violations,
        witnesses,
        note: String::new(),
    }
}

fn keep(folder: &Path, order: &Order, course: &Course, world: &mut World, results: &Results) -> Result<()> {
    write_json(folder, "schedule.json", &order.schedule)?;
    write_json(folder, "effects.json", &course.effects)?;
    write_json(folder, "results.json", results)?;
    course.history.write(&mut create(folder, "history.jsonl")?)?;
    let audit = folder.join("audit");
    fs::create_dir_all(&audit).with_context(|| format!("create {}", audit.display()))?;
    for (place, lines) in world.watch().audit_lines() {
        let mut file = create(&audit, &format!("n{}.jsonl", place + 1))?;
        for line in lines {
            writeln!(file, "{line}")?;
        }
        file.flush()?;
    }
    let ends = world.watch().ends().iter();
    let ends: Vec<String> = ends
        .map(|(place, tick, why)| format!("{tick} ms: n{} ended: {why}", place + 1))
        .collect();
    fs::write(folder.join("ends.txt"), ends.join("\n")).context("write ends.txt")?;
    Ok(())
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
