//! `jepsen-lite shrink`: the smallest schedule that still breaks what a run broke, kept as a file.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use jepsen_lite_core::schedule::Schedule;
use jepsen_lite_core::shrink::{Shrunk, shrink};
use jepsen_lite_core::verdict::{Results, Verdict};
use jepsen_lite_sim::fleet;
use jepsen_lite_sim::run::Order;

use crate::arguments::Layer;
use crate::layer::{self, Ground, SIMULATION_LIMIT};
use crate::{folder, schedules};

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// The folder of a run that was violated, or a schedule.
    #[arg(value_name = "DIR|FILE")]
    schedule: PathBuf,
    /// The name of what is found: its file is NAME.json.
    #[arg(long)]
    name: String,
    /// Where the file goes.
    #[arg(long, value_name = "DIR", default_value = "jepsen-lite/regress")]
    to: PathBuf,
    /// On what it is tried out.
    #[arg(long, value_enum, default_value = "sim")]
    layer: Layer,
    /// Most schedules that are tried.
    #[arg(long, default_value_t = 200)]
    trials: u32,
    /// Not simulated: a schedule is carried out so often …
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// … and fails if so many of the runs do.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    of_which: u32,
    /// Simulated: as the run was, if it was run so.
    #[arg(long)]
    restore_leader: bool,
}

pub(crate) fn run(options: &Options) -> Result<Verdict> {
    let schedule = schedules::read(&options.schedule)?;
    schedules::fits(&schedule, options.layer.into())?;
    ensure!(
        options.of_which <= options.times,
        "{} of {} runs can never fail",
        options.of_which,
        options.times
    );
    let file = options.to.join(format!("{}.json", options.name));
    ensure!(!file.exists(), "{} is there already", file.display());
    let mut trials = Trials {
        options,
        ground: Ground::prepare(options.layer.into())?,
        broken: broken_before(&options.schedule),
        count: 0,
    };
    let shrunk = shrink(&schedule, options.trials, |candidate| trials.fails(candidate))?;
    tell(&shrunk);
    let kept = Schedule {
        name: options.name.clone(),
        about: about(&trials.broken, &schedule),
        ..shrunk.schedule
    };
    write(&file, &kept)?;
    println!("{}", file.display());
    Ok(Verdict::Valid)
}

/// What the stored run broke; nothing if there are no results beside its schedule.
fn broken_before(folder: &Path) -> BTreeSet<String> {
    Results::read(folder).map_or_else(|_| BTreeSet::new(), |results| broken(&results))
}

/// The promises that a run broke.
fn broken(results: &Results) -> BTreeSet<String> {
    let findings = results.findings.iter();
    let violated = findings.filter(|finding| finding.verdict == Verdict::Violated);
    violated.map(|finding| finding.invariant.clone()).collect()
}

fn about(broken: &BTreeSet<String>, from: &Schedule) -> String {
    let broken = broken.iter().cloned().collect::<Vec<_>>().join(", ");
    format!("Broke {broken}. Found as {}, seed {}.", from.name, from.seed)
}

fn tell(shrunk: &Shrunk) {
    for gone in &shrunk.removed {
        println!("  gone: {gone}");
    }
    let left = shrunk.schedule.steps.len();
    let minimal = match shrunk.minimal {
        true => "nothing more can go",
        false => "there may be more to gain: --trials",
    };
    println!("{left} steps are left after {} trials; {minimal}", shrunk.trials);
}

fn write(file: &Path, schedule: &Schedule) -> Result<()> {
    if let Some(parent) = file.parent() {
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    }
    let text = serde_json::to_string_pretty(schedule).context("write the schedule")?;
    fs::write(file, text + "\n").with_context(|| format!("write {}", file.display()))
}

/// Schedules that are tried out.
struct Trials<'a> {
    options: &'a Options,
    ground: Ground,
    /// One of these promises must be broken again; empty until that is known.
    broken: BTreeSet<String>,
    count: u32,
}

impl Trials<'_> {
    /// Whether a schedule breaks what is to be broken, as often as it must.
    fn fails(&mut self, candidate: &Schedule) -> Result<bool> {
        self.count += 1;
        if schedules::fits(candidate, self.options.layer.into()).is_err() {
            return Ok(false);
        }
        let (times, of_which) = match self.options.layer {
            Layer::Sim => (1, 1),
            Layer::Processes | Layer::Containers => (self.options.times, self.options.of_which),
        };
        let mut failed = 0;
        for time in 0..times {
            failed += u32::from(self.breaks(candidate)?);
            let left = times - time - 1;
            if failed >= of_which || failed + left < of_which {
                break;
            }
        }
        let fails = failed >= of_which;
        println!(
            "trial {}: {} steps, {} nodes, {} ms: {}",
            self.count,
            candidate.steps.len(),
            candidate.nodes,
            candidate.load_ms,
            if fails { "fails" } else { "does not fail" }
        );
        Ok(fails)
    }

    fn breaks(&mut self, candidate: &Schedule) -> Result<bool> {
        let broken = match self.carry_out(candidate) {
            Ok(results) => broken(&results),
            Err(error) => {
                // It says nothing about the broker, so this is not what is looked for.
                println!("  the harness failed: {error:#}");
                return Ok(false);
            }
        };
        if self.broken.is_empty() {
            self.broken.clone_from(&broken);
        }
        Ok(!self.broken.is_disjoint(&broken))
    }

    fn carry_out(&self, candidate: &Schedule) -> Result<Results> {
        if self.options.layer == Layer::Sim {
            let order = Order {
                restore_leader: self.options.restore_leader,
                ..Order::new(candidate.clone())
            };
            return Ok(fleet::in_a_process(&order, SIMULATION_LIMIT)?.results);
        }
        let folder = folder::create(Path::new(folder::RUNS), candidate)?;
        let results = self.ground.carry_out(candidate, &folder, None);
        layer::forget(&folder)?;
        results
    }
}
