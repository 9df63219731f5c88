//! `jepsen-lite replay`: a schedule that was kept, carried out again.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use jepsen_lite_core::schedule::Schedule;
use jepsen_lite_core::verdict::Verdict;

use crate::arguments::Layer;
use crate::layer::Ground;
use crate::run::once;
use crate::table::Sum;
use crate::voice::Voice;
use crate::{folder, schedules};

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// A schedule, or the folder of a run.
    #[arg(value_name = "FILE|DIR")]
    schedule: PathBuf,
    /// On what. What is simulated is the same each time.
    #[arg(long, value_enum, default_value = "sim")]
    layer: Layer,
    /// How often. In the simulation, each time with the next seed.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// Runs are kept below this folder, unless they are valid.
    #[arg(long, value_name = "DIR", default_value = folder::RUNS)]
    folder: PathBuf,
    /// Keeps runs that are valid, too.
    #[arg(long)]
    keep: bool,
}

pub(crate) fn run(options: &Options) -> Result<Verdict> {
    let schedule = schedules::read(&options.schedule)?;
    schedules::fits(&schedule, options.layer.into())?;
    let ground = Ground::prepare(options.layer.into())?;
    let mut sum = Sum::default();
    for time in 0..options.times {
        let further = match options.layer {
            Layer::Sim => u64::from(time),
            Layer::Processes | Layer::Containers => 0,
        };
        let schedule = Schedule {
            seed: schedule.seed.wrapping_add(further),
            ..schedule.clone()
        };
        println!("{} of {}: seed {}", time + 1, options.times, schedule.seed);
        let voice = Some(Voice::Person);
        let ended = once(&ground, &schedule, &options.folder, options.keep, voice)?;
        sum.add_result(&ended.results);
    }
    println!(
        "{} of {} runs violated: {}",
        sum.of(Verdict::Violated),
        sum.runs(),
        sum.verdicts()
    );
    Ok(sum.gravest())
}
