//! One run, in a process of its own: with a mutant or without, and what it found.
//!
//! A process for each run, because a mutant is chosen for a whole process, and so
//! that one that brings the process down is an answer like any other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result};
use jepsen_lite_core::verdict::{Results, Verdict};

use crate::table::{Hunt, Layer, POWER_CUTS};

/// Programs with the mutants compiled in.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Test programs by what they do: [`LOGS`], [`POWER_CUTS`].
    pub tests: BTreeMap<&'static str, PathBuf>,
    /// `jepsen-lite` itself; None if only tests are run.
    pub jepsen_lite: Option<PathBuf>,
    /// The server, for processes.
    pub server: Option<PathBuf>,
}

/// What a run found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Invariants that are broken.
    pub broken: BTreeSet<String>,
    /// It ended in a way that says nothing of any invariant.
    pub trouble: Option<String>,
}

/// Random logs in one run of the properties: about ten seconds in a debug build.
const LOGS_PER_SEED: u64 = 100;

impl Programs {
    /// Runs one seed of a hunt.
    ///
    /// # Errors
    ///
    /// If the program cannot be started, or there is none for this layer.
    pub fn run(&self, hunt: &Hunt, seed: u64, mutant: Option<&str>) -> Result<Found> {
        let mut command = match hunt.layer {
            Layer::Tests => self.test(hunt, seed)?,
            Layer::Simulation => self.simulation(hunt, seed)?,
            Layer::Processes => self.processes(hunt, seed)?,
        };
        match mutant {
            Some(name) => command.env("QUORATE_MUTANT", name),
            None => command.env_remove("QUORATE_MUTANT"),
        };
        // A program that finds a fault keeps what shows it. Here that is not wanted.
        let folder = tempfile::tempdir().context("make a temporary folder")?;
        let output = command
            .env("TMPDIR", folder.path())
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("start {}", command.get_program().to_string_lossy()))?;
        Ok(match hunt.layer {
            Layer::Tests => read_test(&output),
            Layer::Simulation | Layer::Processes => read_results(&output),
        })
    }

    fn test(&self, hunt: &Hunt, seed: u64) -> Result<Command> {
        let program = self.tests.get(hunt.scenario);
        let program = program.with_context(|| format!("no test {} was built", hunt.scenario))?;
        let mut command = Command::new(program);
        command
            .env("PROPTEST_CASES", LOGS_PER_SEED.to_string())
            .env("PROPTEST_RNG_SEED", seed.to_string())
            .env("PROPTEST_MAX_SHRINK_ITERS", "0")
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1")
            .env("QUORATE_POWER_LOSS_SEED", seed.to_string())
            .env("RUST_BACKTRACE", "0");
        if hunt.scenario == POWER_CUTS {
            command.arg("everything_acknowledged_survives");
        }
        Ok(command)
    }

    fn simulation(&self, hunt: &Hunt, seed: u64) -> Result<Command> {
        let mut command = self.jepsen_lite()?;
        command.args(["sim", "--json", "--seed", &seed.to_string()]);
        if !hunt.scenario.is_empty() {
            command.args(["--scenario", hunt.scenario]);
        }
        Ok(command)
    }

    fn processes(&self, hunt: &Hunt, seed: u64) -> Result<Command> {
        let server = self
            .server
            .as_ref()
            .context("no server was built for processes")?;
        let mut command = self.jepsen_lite()?;
        command
            .args([
                "run",
                "--json",
                "--seed",
                &seed.to_string(),
                "--scenario",
                hunt.scenario,
            ])
            .env("QUORATE_BIN", server);
        Ok(command)
    }

    fn jepsen_lite(&self) -> Result<Command> {
        let program = self
            .jepsen_lite
            .as_ref()
            .context("no jepsen-lite was built for this layer")?;
        Ok(Command::new(program))
    }
}

/// A test that fails says first which invariant it is about.
fn read_test(output: &Output) -> Found {
    let text = [&output.stdout[..], &output.stderr[..]]
        .map(String::from_utf8_lossy)
        .concat();
    let broken: BTreeSet<String> = text.lines().filter_map(invariant_of).map(str::to_owned).collect();
    let trouble = (!output.status.success() && broken.is_empty()).then(|| last_line(&text));
    Found { broken, trouble }
}

/// `I22` of a line that begins with `I22: ` or has it after a colon: proptest says
/// what two values were before it says what they should have been equal for.
fn invariant_of(line: &str) -> Option<&str> {
    let starts = std::iter::once(0).chain(line.match_indices(": I").map(|(at, _)| at + 2));
    starts.map(|start| &line[start..]).find_map(|rest| {
        let (number, _) = rest.split_once(": ")?;
        let digits = number.strip_prefix('I')?;
        let is_number = (1..=2).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        is_number.then_some(number)
    })
}

/// The last line of the output that is a result.
fn read_results(output: &Output) -> Found {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines().rev();
    let Some(results) = lines.find_map(|line| serde_json::from_str::<Results>(line).ok()) else {
        let told = String::from_utf8_lossy(&output.stderr);
        return Found {
            broken: BTreeSet::new(),
            trouble: Some(format!("{}: {}", output.status, last_line(&told))),
        };
    };
    let broken = results
        .findings
        .into_iter()
        .filter(|finding| finding.verdict == Verdict::Violated);
    Found {
        broken: broken.map(|finding| finding.invariant).collect(),
        trouble: (results.verdict == Verdict::Harness).then(|| results.notes.join("; ")),
    }
}

fn last_line(text: &str) -> String {
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    line.unwrap_or("it said nothing").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_invariant_of_a_failed_property_is_found() {
        let said = [
            (
                "Test failed: I9: settled by a token that is not current (entry 3)",
                Some("I9"),
            ),
            (
                "  right: `[Passed { applied: 7 }]`: I22: restored after entry 3",
                Some("I22"),
            ),
            (
                "assertion `left == right` failed: I10: this process and another",
                Some("I10"),
            ),
            ("I22: what was written cannot be restored: …", Some("I22")),
            ("Test failed: not as the model, at 7: …", None),
            ("I: nothing", None),
            ("I123: no such", None),
        ];
        for (line, expected) in said {
            assert_eq!(invariant_of(line), expected, "{line}");
        }
    }
}
