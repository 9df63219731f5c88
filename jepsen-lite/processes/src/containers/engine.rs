//! The engine's command line.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::process::Command;
use tokio::time::timeout;

/// How long the engine may take for anything, images aside.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);
/// How long an image may take to be built.
pub(super) const BUILD_LIMIT: Duration = Duration::from_secs(1200);
/// How long a question to an engine that may not be there may take.
const PROBE_LIMIT: Duration = Duration::from_secs(10);

/// An engine that answers, and its compose.
#[derive(Clone, Debug)]
pub struct Engine {
    /// `docker compose` or `docker-compose`.
    compose: Vec<&'static str>,
}

impl Engine {
    /// The engine of this machine.
    ///
    /// # Errors
    ///
    /// When none answers, or it has no compose: what is missing, for whoever is told that this layer is skipped.
    pub async fn find() -> Result<Self> {
        let probe = |command: &'static [&'static str]| async move {
            let output = run(command[0], &command[1..], PROBE_LIMIT);
            output.await
        };
        probe(&["docker", "info", "--format", "{{.ServerVersion}}"])
            .await
            .context("no container engine answers")?;
        if probe(&["docker", "compose", "version"]).await.is_ok() {
            return Ok(Self {
                compose: vec!["docker", "compose"],
            });
        }
        match probe(&["docker-compose", "version"]).await {
            Ok(_) => Ok(Self {
                compose: vec!["docker-compose", "--ansi", "never"],
            }),
            Err(_) => bail!(
                "a container engine answers, but neither `docker compose` nor `docker-compose` is there"
            ),
        }
    }

    /// Runs `docker` and returns what it printed.
    ///
    /// # Errors
    ///
    /// When it fails, with what it said, or does not end within two minutes.
    pub async fn docker(&self, arguments: &[&str]) -> Result<String> {
        run("docker", arguments, COMMAND_LIMIT).await
    }

    /// Runs `docker` and returns what it printed, on both of its streams.
    pub(super) async fn output_of(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new("docker");
        command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(COMMAND_LIMIT, command.output())
            .await
            .context("docker does not end")??;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        Ok(text)
    }

    /// Builds an image: [`docker`](Self::docker) with more patience.
    pub(super) async fn build(&self, arguments: &[&str]) -> Result<String> {
        run("docker", arguments, BUILD_LIMIT).await
    }

    /// Runs compose on the file in this folder.
    pub(super) async fn compose(
        &self,
        directory: &Path,
        variables: &BTreeMap<String, String>,
        arguments: &[&str],
    ) -> Result<String> {
        let mut command = Command::new(self.compose[0]);
        command
            .args(&self.compose[1..])
            .args(["--file", "compose.yaml"])
            .args(arguments)
            .current_dir(directory)
            .envs(variables);
        finished(
            command,
            &format!("compose {}", arguments.join(" ")),
            COMMAND_LIMIT,
        )
        .await
    }

    /// Removes what bears the name of a project, whether or not its compose file is still there, and says nothing:
    /// for when nobody is left to wait.
    pub(super) fn remove_in_the_end(&self, project: &str) {
        const SCRIPT: &str = "
            of=label=com.docker.compose.project=$1
            docker rm --force --volumes $(docker ps --all --quiet --filter $of)
            docker network rm $(docker network ls --quiet --filter $of)
            docker volume rm $(docker volume ls --quiet --filter $of)";
        let _ = std::process::Command::new("sh")
            .args(["-c", SCRIPT, "sh", project])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

/// Runs a program to its end and returns what it printed.
///
/// # Errors
///
/// When it cannot be run, fails, or takes longer.
pub(super) async fn run(program: &str, arguments: &[&str], limit: Duration) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments);
    finished(command, &format!("{program} {}", arguments.join(" ")), limit).await
}

async fn finished(mut command: Command, told: &str, limit: Duration) -> Result<String> {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(limit, command.output())
        .await
        .with_context(|| format!("`{told}` did not end within {limit:?}"))?
        .with_context(|| format!("run `{told}`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{told}` failed ({}): {}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_fails_says_why_and_one_that_hangs_is_ended() {
        let failed = run("sh", &["-c", "echo because >&2; exit 3"], PROBE_LIMIT).await;
        let said = format!("{:#}", failed.unwrap_err());
        assert!(said.contains("because") && said.contains('3'), "{said}");
        let hung = run("sleep", &["1000"], Duration::from_millis(50)).await;
        assert!(format!("{:#}", hung.unwrap_err()).contains("did not end"));
        assert_eq!(run("echo", &["well"], PROBE_LIMIT).await.unwrap(), "well");
    }
}
