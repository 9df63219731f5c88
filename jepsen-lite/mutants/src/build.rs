//! The programs with the mutants compiled in, made by cargo in a target directory of
//! their own, so that none is taken for a program that is to be used.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::table::{LOGS, Layer, POWER_CUTS};
use crate::trial::Programs;

/// Builds what these layers need. `repository` has the workspace.
///
/// # Errors
///
/// If cargo fails, or does not make what was asked for.
pub fn programs(repository: &Path, layers: &[Layer]) -> Result<Programs> {
    let needs = |layer| layers.contains(&layer);
    let build = |arguments: &[&str], name: &str| executable(repository, arguments, name);
    let mut tests = BTreeMap::new();
    if needs(Layer::Tests) {
        for (what, package, program) in [
            (LOGS, "quorate-core", "properties"),
            (POWER_CUTS, "quorate-storage", "power_loss"),
        ] {
            let arguments = [
                "test",
                "--no-run",
                "--features=mutants",
                "-p",
                package,
                "--test",
                program,
            ];
            tests.insert(what, build(&arguments, program)?);
        }
    }
    let release = |package: &str, name: &str| {
        let arguments = ["build", "--release", "--features=mutants", "-p", package];
        build(&arguments, name)
    };
    let program = needs(Layer::Simulation) || needs(Layer::Processes);
    let program = program.then(|| release("jepsen-lite", "jepsen-lite"));
    let server = needs(Layer::Processes).then(|| release("quorate-server", "quorate"));
    Ok(Programs {
        tests,
        program: program.transpose()?,
        server: server.transpose()?,
    })
}

/// Runs cargo, and says where the program of that name is.
fn executable(repository: &Path, arguments: &[&str], name: &str) -> Result<PathBuf> {
    let output = Command::new("cargo")
        .current_dir(repository)
        .args(arguments)
        .args(["--message-format=json-render-diagnostics", "--target-dir"])
        .arg(target_dir(repository))
        .stderr(Stdio::inherit())
        .output()
        .context("start cargo")?;
    if !output.status.success() {
        bail!("cargo {}: {}", arguments.join(" "), output.status);
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let mut made = messages.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == name;
        let path = message["executable"].as_str().filter(|_| is_it)?;
        Some(PathBuf::from(path))
    });
    made.next_back()
        .with_context(|| format!("cargo {} made no program {name}", arguments.join(" ")))
}

/// Beside the target directory that is used otherwise.
fn target_dir(repository: &Path) -> PathBuf {
    let usual = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    usual.unwrap_or_else(|| repository.join("target")).join("mutants")
}
