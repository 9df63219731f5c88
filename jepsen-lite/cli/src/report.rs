//! `jepsen-lite report`: the page of a stored run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use jepsen_lite_core::judge::judge;
use jepsen_lite_core::run::Run;
use jepsen_lite_core::verdict::{Results, Verdict};

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// The folder of a run.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(crate) fn run(options: &Options) -> Result<Verdict> {
    let run = Run::read(&options.folder)?;
    let path = write(&options.folder, &run, &judge(&run))?;
    println!("{}", path.display());
    // The page is there, whatever it says.
    Ok(Verdict::Valid)
}

/// Writes the page into the folder of its run, and says where it is.
///
/// # Errors
///
/// When it cannot be written.
pub(crate) fn write(folder: &Path, run: &Run, results: &Results) -> Result<PathBuf> {
    let path = folder.join("report.html");
    let page = jepsen_lite_report::html(&jepsen_lite_report::of(run, results));
    fs::write(&path, page).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}
