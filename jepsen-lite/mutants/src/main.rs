//! `jepsen-lite mutants` as a program of its own, for layer 0, which needs nothing else.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use jepsen_lite_mutants::{Options, run};

/// Proves that the suite finds faults that are known to be there.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
}

fn main() -> Result<ExitCode> {
    let Arguments { options } = Arguments::parse();
    Ok(ExitCode::from(u8::from(!run(&options)?)))
}
