//! The page of a stored run: `cargo run -p jepsen-lite-report --example page -- DIR > page.html`.
//!
//! The run is judged anew; what `results.json` says is not read.

#![allow(clippy::print_stdout)] // it talks to people

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use jepsen_lite_core::judge::judge;
use jepsen_lite_core::run::Run;

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    let run = Run::read(&folder.context("which folder?")?)?;
    println!(
        "{}",
        jepsen_lite_report::html(&jepsen_lite_report::of(&run, &judge(&run)))
    );
    Ok(())
}
