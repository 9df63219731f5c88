//! `jepsen-lite soak`: simulations and processes in turn, until something is broken or the time is over.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use jepsen_lite_core::schedule::Schedule;
use jepsen_lite_core::verdict::Verdict;
use jepsen_lite_sim::fleet::Fleet;
use jepsen_lite_sim::run::Order;
use jepsen_lite_workload::generate::{self, Layer};
use jepsen_lite_workload::scenarios;

use crate::arguments::{duration, millis};
use crate::folder;
use crate::layer::{Ground, SIMULATION_LIMIT};
use crate::run::{Ended, once, with_another_try};
use crate::sim::{Batch, LOAD, processors};
use crate::table::{Sum, counts, problems};
use crate::voice::Voice;

/// Real time of one batch of simulated seeds.
const BATCH: Duration = Duration::from_secs(30);
/// No run on processes is begun when less than this is left: it takes about as long.
const PROCESSES_MIN: Duration = Duration::from_secs(60);
/// Length of the load of generated runs on processes.
const PROCESSES_LOAD_MS: u64 = 25_000;

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// For how long, such as 20m. What is under way then is finished.
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    time: Duration,
    /// Runs that are not valid are kept below this folder.
    #[arg(long, value_name = "DIR", default_value = folder::RUNS)]
    folder: PathBuf,
    /// Where seeds and scenarios begin; drawn if it is not given.
    #[arg(long)]
    seed: Option<u64>,
}

pub(crate) fn run(options: &Options) -> Result<Verdict> {
    let ground = Ground::prepare(Layer::Processes)?;
    let base = options.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    println!(
        "soak for {:?}: the same seeds again with --seed {base}",
        options.time
    );
    let mut soak = Soak {
        options,
        ground,
        began: Instant::now(),
        seed: base,
        sum: Sum::default(),
    };
    let names: Vec<&str> = scenarios::names().collect();
    let first = usize::try_from(base % names.len() as u64).unwrap_or(0);
    let mut names = names.iter().cycle().skip(first).peekable();
    for turn in 0_u64.. {
        if soak.left().is_zero() || soak.is_broken() {
            break;
        }
        soak.simulate()?;
        if soak.left() < PROCESSES_MIN || soak.is_broken() {
            continue;
        }
        let scenario = match names.next_if(|_| turn % 2 == 0) {
            Some(name) => Some(scenarios::by_name(name)?),
            None => None,
        };
        soak.on_processes(&|seed| {
            Ok(match &scenario {
                Some(scenario) => Schedule {
                    seed,
                    ..scenario.clone()
                },
                None => generate::schedule(seed, Layer::Processes, PROCESSES_LOAD_MS),
            })
        })?;
    }
    Ok(soak.end())
}

struct Soak<'a> {
    options: &'a Options,
    ground: Ground,
    began: Instant,
    /// The next that nobody has had.
    seed: u64,
    sum: Sum,
}

impl Soak<'_> {
    fn left(&self) -> Duration {
        self.options.time.saturating_sub(self.began.elapsed())
    }

    fn is_broken(&self) -> bool {
        self.sum.of(Verdict::Violated) > 0
    }

    fn say(&self, line: &str) {
        println!("{:>6} s  {line}", self.began.elapsed().as_secs());
    }

    /// A batch of fresh seeds, on all processors.
    fn simulate(&mut self) -> Result<()> {
        let fleet = Fleet {
            processes: processors(),
            limit: SIMULATION_LIMIT,
            time_box: Some(BATCH.min(self.left())),
        };
        let first = self.seed;
        let orders =
            (first..).map(|seed| Order::new(generate::schedule(seed, Layer::Simulation, millis(LOAD))));
        let mut batch = Batch::new(None);
        fleet.run(orders, |done| {
            batch.add(done);
            batch.sum.of(Verdict::Violated) == 0
        })?;
        self.seed = first + batch.sum.runs();
        self.say(&format!(
            "sim, seeds {first}..{}: {}; {} confirmed",
            self.seed,
            batch.sum.verdicts(),
            batch.sum.seen.get("confirmed").copied().unwrap_or(0)
        ));
        batch.keep(&self.options.folder, Voice::Person)?;
        self.sum.add_all(&batch.sum);
        Ok(())
    }

    /// A run on processes.
    fn on_processes(&mut self, schedule: &dyn Fn(u64) -> Result<Schedule>) -> Result<()> {
        let first = self.seed;
        let ended = with_another_try(first, schedule, |schedule| {
            self.seed = schedule.seed + 1;
            let ended = once(&self.ground, schedule, &self.options.folder, false, None)?;
            self.tell(schedule, &ended);
            Ok(ended)
        })?;
        self.sum.add_result(&ended.results);
        Ok(())
    }

    fn tell(&self, schedule: &Schedule, ended: &Ended) {
        let (name, seed) = (&schedule.name, schedule.seed);
        let told = match &ended.results {
            Ok(results) => format!("{}; {}", results.verdict, counts(&results.seen)),
            Err(error) => format!("the harness failed: {error:#}"),
        };
        self.say(&format!("processes, {name}, seed {seed}: {told}"));
        let problems = ended.results.iter().flat_map(problems);
        for problem in problems {
            println!("            {problem}");
        }
        if let Some(folder) = &ended.folder {
            println!("            kept: {}", folder.display());
        }
    }

    /// Sums up, and says whether it was enough.
    fn end(&self) -> Verdict {
        let seconds = self.began.elapsed().as_secs();
        println!("\n{}", self.sum.table());
        println!("{} runs in {seconds} s: {}", self.sum.runs(), self.sum.verdicts());
        if self.is_broken() {
            println!("{}: see the folder above", Verdict::Violated);
            return Verdict::Violated;
        }
        let thin = self.sum.thin(seconds);
        let verdict = if thin.is_empty() {
            Verdict::Valid
        } else {
            Verdict::Unknown
        };
        println!("{verdict}");
        for reason in thin {
            println!("  {reason}");
        }
        verdict
    }
}
