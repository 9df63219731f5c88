//! `jepsen-lite sim`: seeds or a scenario in simulated worlds, several at a time.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use jepsen_lite_core::run::Run;
use jepsen_lite_core::schedule::Schedule;
use jepsen_lite_core::verdict::Verdict;
use jepsen_lite_sim::fleet::{self, Done, Fleet};
use jepsen_lite_sim::run::{Order, Summary};
use jepsen_lite_workload::generate::{self, Layer};
use jepsen_lite_workload::repeat;

use crate::arguments::{Seeds, duration, millis};
use crate::layer::SIMULATION_LIMIT;
use crate::table::{Sum, counts, problems};
use crate::voice::Voice;
use crate::{folder, schedules};

/// Seeds that are run if nobody says which.
const SEEDS: Seeds = Seeds {
    from: 0,
    to: Some(20),
};
/// Runs that are not valid are carried out again to be kept, but not more than so many.
const KEPT_MAX: usize = 20;

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// One seed.
    #[arg(long, conflicts_with_all = ["seeds", "time"])]
    seed: Option<u64>,
    /// Seeds from A on, before B: `A..B`, or `A..` with `--for`. Without: 0..20, or that of the scenario.
    #[arg(long, value_name = "A..B", value_parser = Seeds::parse)]
    seeds: Option<Seeds>,
    /// No run is begun after so much real time, such as 120s. Seeds are then without end.
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// A scenario by its name, or a file with a schedule. Without: what each seed draws.
    #[arg(long, value_name = "NAME|FILE")]
    scenario: Option<String>,
    /// Length of the load, simulated; 20s for what seeds draw, and as a scenario has it.
    #[arg(long, value_parser = duration)]
    load: Option<Duration>,
    /// Runs at a time; as many as there are processors if none are given.
    #[arg(long)]
    processes: Option<usize>,
    /// Keeps all runs, below this folder. Without: those that are not valid, below target/jepsen-lite.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Writes every event to `trace.txt` in the folder of its run. All runs are then kept.
    #[arg(long)]
    trace: bool,
    /// Lets a leader that restarts lead on: a known way to lose acknowledged messages, which must be found.
    #[arg(long)]
    restore_leader: bool,
    /// Prints a line of JSON for each run, and nothing else, on the standard output.
    #[arg(long)]
    json: bool,
}

/// Length of a load that a seed draws.
pub(crate) const LOAD: Duration = Duration::from_secs(20);

pub(crate) fn run(options: &Options) -> Result<Verdict> {
    let voice = Voice::of(options.json);
    let fleet = Fleet {
        processes: options.processes.unwrap_or_else(processors),
        limit: SIMULATION_LIMIT,
        time_box: options.time,
    };
    let mut batch = Batch::new(Some(voice));
    let began = Instant::now();
    // Orders are made as they are needed; the first that cannot be made ends all.
    let mut failure = None;
    let orders = orders(options)?.map_while(|order| order.map_err(|error| failure = Some(error)).ok());
    let mut unwritten = None;
    fleet.run(orders, |done| {
        if options.json
            && let Ok(summary) = &done.summary
        {
            match serde_json::to_string(summary) {
                Ok(line) => println!("{line}"),
                Err(error) => unwritten = Some(error),
            }
        }
        batch.add(done);
        unwritten.is_none()
    })?;
    if let Some(error) = unwritten {
        return Err(error).context("write what a run came to");
    }
    if let Some(error) = failure {
        return Err(error);
    }
    let took = began.elapsed().as_secs_f64();
    let parent = options.folder.clone().unwrap_or_else(|| folder::RUNS.into());
    batch.keep(&parent, voice)?;
    let sum = &batch.sum;
    voice.say(format!("\n{}", sum.table()));
    voice.say(format!(
        "{} runs in {took:.1} s, {:.2} runs/s, {:.0} simulated seconds: {}",
        sum.runs(),
        sum.runs() as f64 / took,
        batch.virtual_ms as f64 / 1e3,
        sum.verdicts()
    ));
    Ok(sum.of_many())
}

/// What is to be run.
fn orders(options: &Options) -> Result<Box<dyn Iterator<Item = Result<Order>> + '_>> {
    let scenario = options.scenario.as_deref().map(schedules::one).transpose()?;
    let own_seed = scenario.as_ref().map(|schedule| schedule.seed);
    let seeds = match (options.seed, options.seeds, options.time) {
        (Some(seed), ..) => Seeds {
            from: seed,
            to: Some(seed.saturating_add(1)),
        },
        (None, Some(seeds), _) => seeds,
        (None, None, Some(_)) => Seeds { from: 0, to: None },
        (None, None, None) => own_seed.map_or(SEEDS, |seed| Seeds {
            from: seed,
            to: Some(seed.saturating_add(1)),
        }),
    };
    let scenario = match (scenario, options.load) {
        (Some(schedule), Some(load)) => Some(schedules::with_load(schedule, millis(load))?),
        (scenario, _) => scenario,
    };
    if let Some(schedule) = &scenario {
        schedules::fits(schedule, Layer::Simulation)?;
    }
    let load_ms = millis(options.load.unwrap_or(LOAD));
    let keeps = options.folder.clone();
    let keeps = keeps.or_else(|| options.trace.then(|| folder::RUNS.into()));
    Ok(Box::new(seeds.iter().map(move |seed| {
        let schedule = match &scenario {
            Some(schedule) => Schedule {
                seed,
                ..schedule.clone()
            },
            None => generate::schedule(seed, Layer::Simulation, load_ms),
        };
        let parent = keeps.as_deref();
        Ok(Order {
            folder: parent
                .map(|parent| folder::create(parent, &schedule))
                .transpose()?,
            trace: options.trace,
            restore_leader: options.restore_leader,
            ..Order::new(schedule)
        })
    })))
}

/// Simulated runs, told of and summed up.
pub(crate) struct Batch {
    /// `None` = nothing is said of each.
    voice: Option<Voice>,
    pub(crate) sum: Sum,
    pub(crate) virtual_ms: u64,
    /// Those that were not valid, and what is to be said of them.
    bad: Vec<Bad>,
}

struct Bad {
    order: Order,
    verdict: Verdict,
    problems: Vec<String>,
}

impl Batch {
    pub(crate) fn new(voice: Option<Voice>) -> Self {
        Self {
            voice,
            sum: Sum::default(),
            virtual_ms: 0,
            bad: Vec::new(),
        }
    }

    /// Adds a run, and says a line of it.
    pub(crate) fn add(&mut self, done: Done) {
        let Done { order, summary, took } = done;
        self.virtual_ms += summary.as_ref().map_or(0, |summary| summary.virtual_ms);
        if let Some(voice) = self.voice {
            voice.say(line(&order.schedule, &summary, took));
        }
        let results = summary.map(|summary| summary.results);
        self.sum.add_result(&results);
        let (verdict, mut problems) = match &results {
            Ok(results) => (results.verdict, problems(results)),
            Err(error) => (Verdict::Harness, vec![format!("{error:#}")]),
        };
        if let (Some(folder), Ok(results)) = (&order.folder, &results) {
            let pages = Run::read(folder).and_then(|run| folder::pages(folder, &run, results));
            problems.extend(pages.err().map(|error| format!("no pages: {error:#}")));
        }
        if verdict != Verdict::Valid {
            self.bad.push(Bad {
                order,
                verdict,
                problems,
            });
        }
    }

    /// Sees to it that runs which were not valid are kept, the gravest first, and says where and what was wrong. A
    /// simulated run repeats exactly: those that were not kept are carried out once more, in a folder.
    ///
    /// # Errors
    ///
    /// When there can be no folder.
    pub(crate) fn keep(&mut self, parent: &Path, voice: Voice) -> Result<()> {
        self.bad.sort_by_key(|bad| std::cmp::Reverse(bad.verdict));
        for bad in self.bad.drain(..).take(KEPT_MAX) {
            let schedule = &bad.order.schedule;
            voice.say(format!(
                "\n{}, seed {}: {}",
                schedule.name, schedule.seed, bad.verdict
            ));
            for problem in &bad.problems {
                voice.say(format!("  ! {problem}"));
            }
            let folder = match &bad.order.folder {
                Some(folder) => folder.clone(),
                None => {
                    let folder = folder::create(parent, schedule)?;
                    if let Err(error) = once_more(&bad.order, &folder) {
                        voice.say(format!("  ! not whole: {error:#}"));
                    }
                    folder
                }
            };
            let mut again = repeat::command(schedule, Layer::Simulation, Some(&folder));
            if bad.order.restore_leader {
                again.push_str(" --restore-leader");
            }
            voice.say(format!("  kept:  {}\n  again: {again}", folder.display()));
        }
        Ok(())
    }
}

/// Carries out an order again, and keeps the run in a folder.
fn once_more(order: &Order, folder: &Path) -> Result<()> {
    let order = Order {
        folder: Some(folder.to_owned()),
        ..order.clone()
    };
    let summary = fleet::in_a_process(&order, SIMULATION_LIMIT)?;
    folder::pages(folder, &Run::read(folder)?, &summary.results)
}

/// One run in a line.
fn line(schedule: &Schedule, summary: &Result<Summary>, took: Duration) -> String {
    let (name, seed, took) = (&schedule.name, schedule.seed, took.as_secs_f64());
    match summary {
        Ok(summary) => format!(
            "{name}, seed {seed}: {}; {} on {} nodes, {:.1} simulated seconds in {took:.2} s; {}",
            summary.results.verdict,
            schedule.workload.name,
            schedule.nodes,
            summary.virtual_ms as f64 / 1e3,
            counts(&summary.results.seen)
        ),
        Err(error) => format!("{name}, seed {seed}: the harness failed after {took:.2} s: {error:#}"),
    }
}

/// How many runs can go on at a time.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
