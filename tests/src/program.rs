//! The `quorate` program, as a person or a script runs it.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use quorate_test_cluster::Cluster;
pub use quorate_test_cluster::find_binary as path;
use serde_json::Value;

/// What an operator command came to.
#[derive(Debug)]
pub struct Told {
    /// Its exit code.
    pub code: i32,
    /// Standard output.
    pub output: String,
    /// Standard error.
    pub error: String,
}

/// Runs a command against a cluster and waits for its end.
///
/// # Errors
///
/// When it cannot be run, or was ended by a signal.
pub fn run<A: AsRef<OsStr>>(cluster: &Cluster, arguments: &[A]) -> Result<Told> {
    at(&cluster.endpoints().join(","), arguments)
}

/// Runs a command against endpoints and waits for its end.
///
/// # Errors
///
/// When it cannot be run, or was ended by a signal.
pub fn at<A: AsRef<OsStr>>(endpoints: &str, arguments: &[A]) -> Result<Told> {
    let mut command = Command::new(path()?);
    command.args(arguments).env("QUORATE_ENDPOINT", endpoints);
    told(command.output().context("run quorate")?)
}

/// The first of a block of ports that nobody listens on now, with room for all
/// that `quorate dev` needs.
///
/// # Errors
///
/// When a thousand tries find none.
pub fn free_ports() -> Result<u16> {
    let free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let mut blocks = (0..1_000).map(|_| rand::random_range(10_000..32_000_u16));
    blocks
        .find(|first| (0..=100).all(|more| free(first + more)))
        .context("no free ports")
}

fn told(output: Output) -> Result<Told> {
    Ok(Told {
        code: output
            .status
            .code()
            .with_context(|| format!("it ended by {}", output.status))?,
        output: String::from_utf8(output.stdout).context("standard output")?,
        error: String::from_utf8(output.stderr).context("standard error")?,
    })
}

impl Told {
    /// Insists on an exit code.
    ///
    /// # Errors
    ///
    /// When it is another.
    pub fn exits(self, code: i32) -> Result<Self> {
        ensure!(self.code == code, "expected exit code {code}: {self:?}");
        Ok(self)
    }

    /// Standard output as JSON, one value per line.
    ///
    /// # Errors
    ///
    /// When it is something else.
    pub fn json(&self) -> Result<Vec<Value>> {
        values(&self.output).with_context(|| format!("{self:?}"))
    }

    /// Standard error as one JSON value.
    ///
    /// # Errors
    ///
    /// When it is something else.
    pub fn json_error(&self) -> Result<Value> {
        let values = values(&self.error).with_context(|| format!("{self:?}"))?;
        ensure!(values.len() == 1, "not one error: {self:?}");
        Ok(values[0].clone())
    }
}

fn values(text: &str) -> Result<Vec<Value>> {
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}
