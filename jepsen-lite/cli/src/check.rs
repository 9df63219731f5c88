//! `jepsen-lite check`: stored runs, judged again without their cluster.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use jepsen_lite_core::judge::judge;
use jepsen_lite_core::run::Run;
use jepsen_lite_core::verdict::{Results, Verdict};

use crate::{folder, table};

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Folders of runs. Their results and pages are written anew.
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Verdict {
    let verdicts = options.folders.iter().map(|folder| match check(folder) {
        Ok(results) => {
            println!("{}: {}", folder.display(), results.verdict);
            println!("{}", table::findings(&results));
            results.verdict
        }
        Err(error) => {
            eprintln!("jepsen-lite: {}: {error:#}", folder.display());
            Verdict::Harness
        }
    });
    verdicts.max().unwrap_or(Verdict::Unknown)
}

fn check(folder: &Path) -> Result<Results> {
    let run = Run::read(folder)?;
    let results = judge(&run);
    results.write(folder)?;
    folder::pages(folder, &run, &results)?;
    Ok(results)
}
