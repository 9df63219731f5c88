//! The folders of runs, and what people read in them.
//!
//! Beside what a run is judged by (see [`jepsen_lite_core::run`]) there are `report.html`, `history.edn` for the
//! checkers of Jepsen, and `repro.txt` with the commands that do it again.

use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use jepsen_lite_core::edn;
use jepsen_lite_core::run::Run;
use jepsen_lite_core::schedule::Schedule;
use jepsen_lite_core::verdict::Results;
use jepsen_lite_workload::repeat::PROGRAM;

use crate::report;

/// Where runs are kept if nobody says where.
pub(crate) const RUNS: &str = "target/jepsen-lite";

/// A new folder for a run: `NAME-SEED` below `parent`, or `NAME-SEED-2`, … so that nothing is overwritten.
pub(crate) fn create(parent: &Path, schedule: &Schedule) -> Result<PathBuf> {
    fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    let name = name(schedule);
    let further = (2..).map(|number| format!("{name}-{number}"));
    for name in std::iter::once(name.clone()).chain(further) {
        let folder = parent.join(name);
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("create {}", folder.display())),
        }
    }
    unreachable!("there is no last number")
}

/// The name of a run's folder.
fn name(schedule: &Schedule) -> String {
    let plain = |c: char| if c.is_alphanumeric() { c } else { '-' };
    let name: String = schedule.name.chars().map(plain).collect();
    let seed = schedule.seed.to_string();
    if name.ends_with(&seed) {
        name
    } else {
        format!("{name}-{seed}")
    }
}

/// Stores a run and what it came to, and writes what people read.
pub(crate) fn store(folder: &Path, run: &Run, results: &Results) -> Result<()> {
    run.write(folder)?;
    results.write(folder)?;
    pages(folder, run, results)
}

/// Writes what people read into the folder of a run.
pub(crate) fn pages(folder: &Path, run: &Run, results: &Results) -> Result<()> {
    report::write(folder, run, results)?;
    let path = folder.join("history.edn");
    let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    let mut file = BufWriter::new(file);
    edn::write(run, &mut file)?;
    file.flush()
        .with_context(|| format!("write {}", path.display()))?;
    let path = folder.join("repro.txt");
    let commands = format!(
        "# The same again:\n{}\n\n# What is stored, judged again:\n{PROGRAM} check {}\n",
        results.repeat,
        folder.display()
    );
    fs::write(&path, commands).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_run_overwrites_another() -> Result<()> {
        let parent = tempfile::tempdir()?;
        let mut schedule = jepsen_lite_workload::scenarios::by_name("none")?;
        schedule.seed = 12;
        schedule.name = "../a b".to_owned();
        let names = (0..3).map(|_| {
            let folder = create(parent.path(), &schedule)?;
            let name = folder.strip_prefix(parent.path())?;
            Ok(name.display().to_string())
        });
        let names: Result<Vec<String>> = names.collect();
        assert_eq!(names?, ["---a-b-12", "---a-b-12-2", "---a-b-12-3"]);
        schedule.name = "seed-12".to_owned();
        assert_eq!(name(&schedule), "seed-12");
        Ok(())
    }
}
