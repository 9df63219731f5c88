//! One run: a schedule, carried out in a world of its own, and judged.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jepsen_lite_core::audit::Audit;
use jepsen_lite_core::history::History;
use jepsen_lite_core::judge::judge;
use jepsen_lite_core::run::{self, Facts, Run};
use jepsen_lite_core::schedule::Schedule;
use jepsen_lite_core::verdict::{Finding, Results};
use jepsen_lite_workload::access::Access;
use jepsen_lite_workload::generate::Layer;
use jepsen_lite_workload::{repeat, trial};
use parking_lot::Mutex;
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

/// Panics of this process, in words: wherever they are caught, they are found.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

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
    note_panics();
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
    let run = async {
        cluster.ready(&first).await.context("form a cluster")?;
        Box::pin(trial::conduct(schedule, &mut cluster, &access)).await
    };
    let limit = REST + Duration::from_millis(schedule.load_ms + 4 * schedule.heal_ms);
    let run = world.run(limit, run);
    let virtual_ms = world.now_us() / 1_000;
    trace.note(world.now_us(), "entropy", &[simulation::drawn_bytes()], &[]);
    let mut run = match run {
        Some(run) => run?,
        None => hung(schedule),
    };
    complete(&mut run, &mut world, order)?;
    let results = judge(&run);
    if let Some(folder) = &order.folder {
        keep(folder, &run, &mut world, &results)?;
    }
    Ok(Summary {
        name: schedule.name.clone(),
        seed: schedule.seed,
        results,
        trace: trace.hash().to_string(),
        virtual_ms,
    })
}

/// Has each panic noted, and told as before.
fn note_panics() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !quorate_node::panic_is_caught() {
            PANICS.lock().push(panic.to_string());
        }
        tell(panic);
    }));
}

/// A run of which nothing is known but that it did not come to an end.
fn hung(schedule: &Schedule) -> Run {
    Run {
        schedule: schedule.clone(),
        history: History::default(),
        audit: Audit::default(),
        effects: Vec::new(),
        facts: Facts {
            overdue: vec!["the run did not come to an end".to_owned()],
            ..Facts::default()
        },
        sights: Vec::new(),
    }
}

/// Adds what only the world can tell: what the replicas wrote down, and what was seen of them as they ran.
fn complete(run: &mut Run, world: &mut World, order: &Order) -> Result<()> {
    let watch = world.watch();
    for (place, lines) in watch.audit_lines() {
        run.audit
            .add(&format!("n{}", place + 1), lines.join("\n").as_bytes())?;
    }
    let [entries, installs, leader_changes, disks, removals] = watch.seen();
    let violations = watch.violations();
    for (invariant, name, checked) in [
        ("I10", "convergence, as it ran", entries),
        ("I14", "cluster time, as it ran", entries),
        ("I19", "raft", disks),
        ("I20", "removed and emptied nodes are gone", removals),
    ] {
        let found = violations.iter().find(|(id, ..)| *id == invariant);
        let (violated, witnesses) =
            found.map_or((0, Vec::new()), |(_, count, first)| (*count, first.clone()));
        let finding = Finding::new(invariant, name, checked, violated, witnesses);
        run.facts.observed.push(finding);
    }
    run.facts.crashes.extend(watch.crashes().iter().cloned());
    run.facts.crashes.append(&mut PANICS.lock());
    run.facts.leader_changes = run.facts.leader_changes.max(leader_changes);
    run.facts.snapshots_installed = run.facts.snapshots_installed.max(installs);
    run.facts.repeat = repeat::command(&order.schedule, Layer::Simulation, order.folder.as_deref());
    if order.restore_leader {
        run.facts.repeat.push_str(" --restore-leader");
    }
    Ok(())
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

fn keep(folder: &Path, run: &Run, world: &mut World, results: &Results) -> Result<()> {
    run.write(folder)?;
    results.write(folder)?;
    let audit = folder.join(run::AUDIT);
    fs::create_dir_all(&audit).with_context(|| format!("create {}", audit.display()))?;
    for (place, lines) in world.watch().audit_lines() {
        let path = audit.join(format!("n{}.jsonl", place + 1));
        fs::write(&path, lines.join("\n") + "\n").with_context(|| format!("write {}", path.display()))?;
    }
    fs::write(folder.join("ends.txt"), world.watch().ends().join("\n")).context("write ends.txt")
}

fn create(folder: &Path, name: &str) -> Result<BufWriter<File>> {
    let path = folder.join(name);
    let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    Ok(BufWriter::new(file))
}
