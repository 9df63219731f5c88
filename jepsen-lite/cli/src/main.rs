//! `jepsen-lite`: tries to break the broker, and tells what it saw.
//!
//! A run puts a cluster under a load, does harm to it as a schedule says, and judges what is left: in a simulated
//! world ([`sim`]), with real processes or containers ([`run`]). What a run left behind can be judged again
//! ([`check`]), told as a page ([`report`]), carried out again ([`replay`]), and made smaller until it says why ([`shrink`]).
//!
//! Every command exits with 0 if all is valid, 1 if a promise was broken, 2 if too little was seen to say so, and 3
//! if the harness itself failed, which says nothing about the broker.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)] // a program that talks to people

mod arguments;
mod check;
mod doctor;
mod evidence;
mod folder;
mod layer;
mod list;
mod live;
mod replay;
mod report;
mod run;
mod schedules;
mod shrink;
mod sim;
mod soak;
mod table;
mod voice;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use jepsen_lite_core::verdict::Verdict;
use jepsen_lite_sim::fleet;

/// Tries to break a cluster, and proves that it can.
///
/// Exit codes: 0 valid, 1 violated, 2 unknown, 3 the harness failed or was called wrongly.
#[derive(Debug, Parser)]
#[command(name = "jepsen-lite", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs seeds or a scenario in a simulated world, where a seed is the same run, to the byte.
    Sim(sim::Options),
    /// Runs a scenario, or what a seed draws, on real processes or containers.
    Run(run::Options),
    /// Judges stored runs again, without their cluster.
    Check(check::Options),
    /// Carries out a schedule that was kept, once or several times.
    Replay(replay::Options),
    /// Makes the schedule of a run that was violated as small as it can be, and keeps it.
    Shrink(shrink::Options),
    /// Writes the page of a stored run.
    Report(report::Options),
    /// Names the scenarios, the workloads, and the faults of each layer.
    List,
    /// Tries what this machine can do, and says why something would be skipped.
    Doctor(doctor::Options),
    /// Proves that the suite finds faults that are known to be there.
    Mutants(jepsen_lite_mutants::Options),
    /// Runs simulations and processes in turn, until something is broken or the time is over.
    Soak(soak::Options),
}

fn main() -> ExitCode {
    // In a process that is one simulated run, nothing else may have happened before.
    fleet::serve();
    let Arguments { command } = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let verdict = if error.use_stderr() {
                Verdict::Harness
            } else {
                Verdict::Valid
            };
            // There is nobody left to tell if this fails.
            let _ = error.print();
            return verdict.exit_code().into();
        }
    };
    let verdict = carry_out(&command).unwrap_or_else(|error| {
        eprintln!("jepsen-lite: {error:#}");
        Verdict::Harness
    });
    verdict.exit_code().into()
}

fn carry_out(command: &Command) -> Result<Verdict> {
    match command {
        Command::Sim(options) => sim::run(options),
        Command::Run(options) => run::run(options),
        Command::Check(options) => Ok(check::run(options)),
        Command::Replay(options) => replay::run(options),
        Command::Shrink(options) => shrink::run(options),
        Command::Report(options) => report::run(options),
        Command::List => Ok(list::run()),
        Command::Doctor(options) => doctor::run(options),
        Command::Mutants(options) => Ok(match jepsen_lite_mutants::run(options)? {
            true => Verdict::Valid,
            false => Verdict::Violated,
        }),
        Command::Soak(options) => soak::run(options),
    }
}
