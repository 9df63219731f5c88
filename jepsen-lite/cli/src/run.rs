//! `jepsen-lite run`: scenarios, or what a seed draws, on real processes or containers.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use jepsen_lite_core::schedule::Schedule;
use jepsen_lite_core::verdict::{Results, Verdict};
use jepsen_lite_workload::generate;

use crate::arguments::{Layer, duration, millis};
use crate::layer::{self, Ground};
use crate::table::{self, Sum};
use crate::voice::Voice;
use crate::{folder, schedules};

/// The length of a load that the seed draws.
const LOAD: Duration = Duration::from_secs(25);

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// On what.
    #[arg(long, value_enum, default_value = "processes")]
    layer: Layer,
    /// Scenarios by name, `all`, or files with schedules. Without: what the seed draws.
    #[arg(long, value_delimiter = ',', value_name = "NAME|FILE")]
    scenario: Vec<String>,
    /// The seed of all random choices; that of the schedule, or 1, if none is given.
    #[arg(long)]
    seed: Option<u64>,
    /// Nodes at the start, 1 to 9; as the schedule has it if none are given.
    #[arg(long)]
    nodes: Option<usize>,
    /// Length of the load, such as 25s; as the schedule has it if none is given.
    #[arg(long, value_parser = duration)]
    time: Option<Duration>,
    /// Runs are kept below this folder.
    #[arg(long, value_name = "DIR", default_value = folder::RUNS)]
    folder: PathBuf,
    /// Keeps runs that are valid, too.
    #[arg(long)]
    keep: bool,
    /// Prints the results of each run as a line of JSON, and nothing else, on the standard output.
    #[arg(long)]
    json: bool,
}

/// How one run ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// What it came to; an error is one of the harness.
    pub(crate) results: Result<Results>,
    /// Where it is kept, if it is.
    pub(crate) folder: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<Verdict> {
    let voice = Voice::of(options.json);
    let layer = options.layer.into();
    let scenarios: Vec<Option<Schedule>> = if options.scenario.is_empty() {
        vec![None]
    } else {
        let scenarios = schedules::several(&options.scenario, layer)?;
        scenarios.into_iter().map(Some).collect()
    };
    // Before anything is built or started: what cannot be carried out is said at once.
    for scenario in &scenarios {
        options.schedule(scenario.as_ref(), options.first_seed(scenario.as_ref()))?;
    }
    let ground = Ground::prepare(layer)?;
    let mut sum = Sum::default();
    for scenario in &scenarios {
        let scenario = scenario.as_ref();
        let schedule = |seed| options.schedule(scenario, seed);
        let ended = with_another_try(options.first_seed(scenario), &schedule, |schedule| {
            voice.say(format!(
                "{}, seed {}: {} on {} nodes for {} s",
                schedule.name,
                schedule.seed,
                schedule.workload.name,
                schedule.nodes,
                schedule.load_ms / 1_000
            ));
            once(&ground, schedule, &options.folder, options.keep, Some(voice))
        })?;
        sum.add_result(&ended.results);
        if let (true, Ok(results)) = (options.json, &ended.results) {
            println!("{}", serde_json::to_string(results).context("write the results")?);
        }
    }
    if scenarios.len() > 1 {
        voice.say(sum.table());
        voice.say(format!("{} runs: {}", sum.runs(), sum.verdicts()));
    }
    Ok(sum.gravest())
}

impl Options {
    fn first_seed(&self, scenario: Option<&Schedule>) -> u64 {
        self.seed.unwrap_or(scenario.map_or(1, |scenario| scenario.seed))
    }

    /// The scenario, or what the seed draws, with what was asked for to be different.
    ///
    /// # Errors
    ///
    /// When the layer cannot carry it out.
    fn schedule(&self, scenario: Option<&Schedule>, seed: u64) -> Result<Schedule> {
        let layer = self.layer.into();
        let mut schedule = match (scenario, self.time) {
            (None, time) => generate::schedule(seed, layer, millis(time.unwrap_or(LOAD))),
            (Some(scenario), None) => scenario.clone(),
            (Some(scenario), Some(time)) => schedules::with_load(scenario.clone(), millis(time))?,
        };
        schedule.seed = seed;
        schedule.nodes = self.nodes.unwrap_or(schedule.nodes);
        schedules::fits(&schedule, layer)?;
        Ok(schedule)
    }
}

/// Makes a run with a seed. One that shows too little is made once more, with the next seed: chance may have been
/// against it. One that shows something wrong never is.
pub(crate) fn with_another_try(
    seed: u64,
    schedule: &dyn Fn(u64) -> Result<Schedule>,
    mut run: impl FnMut(&Schedule) -> Result<Ended>,
) -> Result<Ended> {
    let ended = run(&schedule(seed)?)?;
    match &ended.results {
        Ok(results) if results.verdict == Verdict::Unknown => run(&schedule(seed.wrapping_add(1))?),
        _ => Ok(ended),
    }
}

/// Carries out a schedule once, and says what it came to. It is kept if it is not valid, or `keep` says so.
///
/// # Errors
///
/// When there can be no folder for it.
pub(crate) fn once(
    ground: &Ground,
    schedule: &Schedule,
    parent: &Path,
    keep: bool,
    voice: Option<Voice>,
) -> Result<Ended> {
    let folder = folder::create(parent, schedule)?;
    let began = Instant::now();
    let results = ground.carry_out(schedule, &folder, voice);
    let is_valid = matches!(&results, Ok(results) if results.verdict == Verdict::Valid);
    let kept = keep || !is_valid;
    if let Some(voice) = voice {
        tell(voice, schedule, &results, began.elapsed());
        if kept {
            voice.say(format!("  kept: {}", folder.display()));
        }
    }
    if !kept {
        layer::forget(&folder)?;
    }
    Ok(Ended {
        results,
        folder: kept.then_some(folder),
    })
}

fn tell(voice: Voice, schedule: &Schedule, results: &Result<Results>, took: Duration) {
    let (name, took) = (&schedule.name, took.as_secs());
    match results {
        Ok(results) => {
            voice.say(table::findings(results));
            voice.say(format!("  again: {}", results.repeat));
            voice.say(format!("{name}: {} after {took} s", results.verdict));
        }
        Err(error) => voice.say(format!("{name}: the harness failed after {took} s: {error:#}")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn ended(verdict: Verdict) -> Ended {
        Ended {
            results: Ok(Results {
                verdict,
                findings: Vec::new(),
                seen: BTreeMap::new(),
                notes: Vec::new(),
                repeat: String::new(),
            }),
            folder: None,
        }
    }

    #[test]
    fn only_a_run_that_shows_too_little_is_made_again_and_only_once() {
        let schedule = |seed| Ok(generate::schedule(seed, generate::Layer::Processes, 1_000));
        for (verdict, seeds) in [
            (Verdict::Valid, vec![7]),
            (Verdict::Violated, vec![7]),
            (Verdict::Harness, vec![7]),
            (Verdict::Unknown, vec![7, 8]),
        ] {
            let mut ran = Vec::new();
            let last = with_another_try(7, &schedule, |schedule| {
                ran.push(schedule.seed);
                Ok(ended(verdict))
            });
            assert_eq!(last.unwrap().results.unwrap().verdict, verdict);
            assert_eq!(ran, seeds, "{verdict}");
        }
    }
}
