//! Runs seeds, or a schedule: `simulate [--seeds A..B] [--for SECONDS] [--load SECONDS] [--processes N]
//! [--folder DIR] [--trace] [--restore-leader] [SCHEDULE.json]`. Prints a line for each run, and at the end how many
//! there were per second.

#![allow(clippy::print_stdout)]

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use jepsen_lite_core::schedule::Schedule;
use jepsen_lite_core::verdict::Verdict;
use jepsen_lite_sim::fleet::{self, Done, Fleet};
use jepsen_lite_sim::run::Order;
use jepsen_lite_workload::generate::{self, Layer};

struct Wanted {
    seeds: Range<u64>,
    load_ms: u64,
    fleet: Fleet,
    folder: Option<PathBuf>,
    trace: bool,
    restore_leader: bool,
    schedule: Option<Schedule>,
}

fn main() -> Result<()> {
    fleet::serve();
    let wanted = wanted()?;
    let orders: Box<dyn Iterator<Item = Order>> = match &wanted.schedule {
        Some(schedule) => {
            let seeds = wanted.seeds.clone();
            Box::new(seeds.map(|seed| {
                Order::new(Schedule {
                    seed,
                    ..schedule.clone()
                })
            }))
        }
        None => {
            let seeds = wanted.seeds.clone();
            let load_ms = wanted.load_ms;
            Box::new(seeds.map(move |seed| Order::new(generate::schedule(seed, Layer::Simulation, load_ms))))
        }
    };
    let orders = orders.map(|order| Order {
        folder: wanted
            .folder
            .as_ref()
            .map(|folder| folder.join(order.schedule.seed.to_string())),
        trace: wanted.trace,
        restore_leader: wanted.restore_leader,
        ..order
    });
    let (began, mut runs, mut virtual_ms, mut bad) = (Instant::now(), 0_u32, 0, 0);
    wanted.fleet.run(orders, |done| {
        runs += 1;
        virtual_ms += done.summary.as_ref().map_or(0, |summary| summary.virtual_ms);
        bad += u32::from(!tell(&done));
        true
    })?;
    let took = began.elapsed().as_secs_f64();
    println!(
        "{runs} runs in {took:.1} s, {:.2} runs/s, {:.0} virtual seconds, {bad} not valid",
        f64::from(runs) / took,
        virtual_ms as f64 / 1e3
    );
    Ok(())
}

fn tell(done: &Done) -> bool {
    let (seed, took) = (done.order.schedule.seed, done.took.as_secs_f64());
    match &done.summary {
        Ok(summary) => {
            println!(
                "seed {seed}: {} {} in {:.1} virtual and {took:.2} real seconds, {:?}, trace {}",
                summary.results.verdict,
                done.order.schedule.workload.name,
                summary.virtual_ms as f64 / 1e3,
                summary.results.seen,
                summary.trace
            );
            for finding in &summary.results.findings {
                for witness in finding.witnesses.iter().take(3) {
                    println!("    {}: {}", finding.invariant, witness.evidence);
                }
            }
            for note in &summary.results.notes {
                println!("    {note}");
            }
            summary.results.verdict == Verdict::Valid
        }
        Err(error) => {
            println!("seed {seed}: harness failed after {took:.2} s: {error:#}");
            false
        }
    }
}

fn wanted() -> Result<Wanted> {
    let mut wanted = Wanted {
        seeds: 0..20,
        load_ms: 20_000,
        fleet: Fleet {
            processes: thread_count(),
            limit: Duration::from_secs(120),
            time_box: None,
        },
        folder: None,
        trace: false,
        restore_leader: false,
        schedule: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .with_context(|| format!("{argument} needs a value"))
        };
        match argument.as_str() {
            "--seeds" => {
                let value = value()?;
                let (from, to) = value.split_once("..").context("seeds are A..B")?;
                wanted.seeds = from.parse()?..to.parse()?;
            }
            "--for" => wanted.fleet.time_box = Some(Duration::from_secs(value()?.parse()?)),
            "--load" => wanted.load_ms = value()?.parse::<u64>()? * 1_000,
            "--processes" => wanted.fleet.processes = value()?.parse()?,
            "--folder" => wanted.folder = Some(value()?.into()),
            "--trace" => wanted.trace = true,
            "--restore-leader" => wanted.restore_leader = true,
            path if path.ends_with(".json") => {
                let text = std::fs::read(path).with_context(|| format!("read {path}"))?;
                wanted.schedule = Some(serde_json::from_slice(&text)?);
            }
            _ => bail!("what is {argument}?"),
        }
    }
    Ok(wanted)
}

fn thread_count() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
