//! One run, in a process of its own: with a mutant or without, and what it found.
//!
//! A process for each run, because a mutant is chosen for a whole process, and so
//! that one that brings the process down is an answer like any other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use jepsen_lite_core::schedule::Schedule;
use jepsen_lite_core::verdict::{Results, Verdict};
use jepsen_lite_workload::{generate, scenarios};
use serde_json::{Value, json};

use crate::table::{Hunt, Layer, POWER_CUTS};

/// How the simulator knows that its world is simulated, and with which seed.
const SEED_VARIABLE: &str = "JEPSEN_LITE_WORLD";
/// What takes longer in real time hangs.
const LIMIT: Duration = Duration::from_secs(300);
/// Between two looks whether a run is over.
const LOOK: Duration = Duration::from_millis(20);
/// Length of a load that the seed draws.
const LOAD_MS: u64 = 20_000;

/// Programs with the mutants compiled in.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Test programs by what they do: [`LOGS`](crate::table::LOGS), [`POWER_CUTS`].
    pub tests: BTreeMap<&'static str, PathBuf>,
    /// `jepsen-lite` itself; None if only tests are wanted.
    pub program: Option<PathBuf>,
    /// The server, for processes; None if none are wanted.
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

impl Found {
    fn is_clean(&self) -> bool {
        self.broken.is_empty() && self.trouble.is_none()
    }
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
        // A program that finds a fault keeps what shows it. Here that is not wanted.
        let folder = tempfile::tempdir().context("make a temporary folder")?;
        let (mut command, input) = match hunt.layer {
            Layer::Tests => (self.test(hunt, seed)?, Vec::new()),
            Layer::Simulation => self.simulation(hunt, seed)?,
            Layer::Processes => (self.processes(hunt, seed, folder.path())?, Vec::new()),
        };
        match mutant {
            Some(name) => command.env("QUORATE_MUTANT", name),
            None => command.env_remove("QUORATE_MUTANT"),
        };
        command
            .env("TMPDIR", folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().with_context(|| format!("start {program}"))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(&input).context("tell the run what to do")?;
        }
        let Some(output) = output_within(child, LIMIT)? else {
            return Ok(Found {
                broken: BTreeSet::new(),
                trouble: Some(format!("it was not over after {} s", LIMIT.as_secs())),
            });
        };
        let mut found = match hunt.layer {
            Layer::Tests => read_test(&output),
            Layer::Simulation | Layer::Processes => read_results(&output),
        };
        if mutant.is_none() && !found.is_clean() {
            let kept = keep(hunt, seed, &output)?;
            let before = found
                .trouble
                .map_or_else(String::new, |trouble| format!("{trouble}; "));
            found.trouble = Some(format!("{before}all it said is in {}", kept.display()));
        }
        Ok(found)
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

    /// A run in a simulated world, and the order that it reads: see `fleet::serve` of
    /// `jepsen-lite-sim`.
    fn simulation(&self, hunt: &Hunt, seed: u64) -> Result<(Command, Vec<u8>)> {
        let program = self.program.as_ref().context("no simulator was built")?;
        let schedule = match hunt.scenario {
            "" => generate::schedule(seed, generate::Layer::Simulation, LOAD_MS),
            name => Schedule {
                seed,
                ..scenarios::by_name(name)?
            },
        };
        let mut command = Command::new(program);
        command
            .args(["simulate", &schedule.name])
            .env(SEED_VARIABLE, seed.to_string());
        let order = serde_json::to_vec(&json!({ "schedule": schedule }))?;
        Ok((command, order))
    }

    fn processes(&self, hunt: &Hunt, seed: u64, folder: &Path) -> Result<Command> {
        let (Some(program), Some(server)) = (&self.program, &self.server) else {
            bail!("nothing was built for processes");
        };
        let mut command = Command::new(program);
        command
            .args(["run", "--json", "--seed", &seed.to_string()])
            .args(["--scenario", hunt.scenario, "--folder"])
            .arg(folder)
            .env("QUORATE_BIN", server);
        Ok(command)
    }
}

/// All that a run says; None if it takes longer than it may, and had to be killed.
fn output_within(mut child: Child, limit: Duration) -> Result<Option<Output>> {
    let listen = |stream: Option<Box<dyn Read + Send>>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            stream.map(|mut stream| stream.read_to_end(&mut bytes));
            bytes
        })
    };
    let stdout = listen(child.stdout.take().map(|stream| Box::new(stream) as _));
    let stderr = listen(child.stderr.take().map(|stream| Box::new(stream) as _));
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().context("wait for a run")? {
            break status;
        }
        if began.elapsed() > limit {
            child.kill().context("end a run that takes too long")?;
            child.wait().context("end a run that takes too long")?;
            return Ok(None);
        }
        thread::sleep(LOOK);
    };
    let heard = |listener: thread::JoinHandle<Vec<u8>>| listener.join().unwrap_or_default();
    Ok(Some(Output {
        status,
        stdout: heard(stdout),
        stderr: heard(stderr),
    }))
}

/// Keeps what a run without a mutant said that found something all the same: that is a fault of the product, or of the
/// suite, and may not come again.
fn keep(hunt: &Hunt, seed: u64, output: &Output) -> Result<PathBuf> {
    let scenario = match hunt.scenario {
        "" => "random",
        scenario => scenario,
    };
    let name = format!(
        "jepsen-lite-unclean-{}-{scenario}-{seed}.txt",
        hunt.layer.letter()
    );
    let path = std::env::temp_dir().join(name);
    fs::write(&path, [&output.stdout[..], &output.stderr[..]].concat())
        .with_context(|| format!("write {}", path.display()))?;
    Ok(path)
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
    let Some(results) = lines.find_map(results_of) else {
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

/// Results, alone or as a part of a summary.
fn results_of(line: &str) -> Option<Results> {
    let mut value: Value = serde_json::from_str(line).ok()?;
    let part = value.get_mut("results").map(Value::take);
    serde_json::from_value(part.unwrap_or(value)).ok()
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
