//! `jepsen-lite doctor`: what this machine can do, and why not.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use jepsen_lite_core::verdict::Verdict;
use jepsen_lite_processes::doctor::{Ability, examine};

use crate::folder;

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Where runs would be kept: is there room?
    #[arg(long, value_name = "DIR", default_value = folder::RUNS)]
    folder: PathBuf,
    /// Prints a JSON array, for programs.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<Verdict> {
    // The folder need not be there yet.
    let existing = options.folder.ancestors().find(|folder| folder.is_dir());
    let here = PathBuf::from(".");
    let abilities = examine(
        existing
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or(&here),
    );
    ensure!(!abilities.is_empty(), "nothing was examined");
    if options.json {
        let text = serde_json::to_string(&abilities).context("write what was found")?;
        println!("{text}");
        return Ok(Verdict::Valid);
    }
    println!("{:<4} {:<28} needs nothing", "yes", "a simulated world");
    for Ability {
        name,
        needed_for,
        found,
    } in &abilities
    {
        match found {
            Ok(found) => println!("{:<4} {name:<28} {found}", "yes"),
            Err(why) => println!("{:<4} {name:<28} skipped: {needed_for}. {why}", "no"),
        }
    }
    Ok(Verdict::Valid)
}
