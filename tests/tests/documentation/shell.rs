//! Runs the commands of a page in one shell, as if they were pasted into it.

use std::env;
use std::fmt::{self, Write as _};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::page::{Command, Page};

/// Exit code of a shell that does not find a program.
const EXIT_NO_PROGRAM: i32 = 127;

/// What a page, and `page.sh`, may run beside `quorate` and what the shell has
/// built in: a reader has it, and it does no harm. A page that runs anything else
/// marks the block.
const PROGRAMS: &[&str] = &[
    "awk", "bash", "cat", "cut", "date", "env", "false", "grep", "head", "kill", "ls", "mkdir", "rm", "sed",
    "seq", "sh", "sleep", "sort", "tail", "tee", "timeout", "touch", "tr", "true", "uniq", "wc", "xargs",
];

/// Stands for cargo: the program has been built.
const CARGO: &str = r#"#!/bin/sh
case "$*" in
"run -- "* | "run --release -- "*) ;;
*) echo "cargo $*: not run here" >&2; exit 127 ;;
esac
until [ "$1" = -- ]; do shift; done
shift
exec quorate "$@"
"#;

/// What the shell begins with.
const PRELUDE: &str = include_str!("page.sh");

/// Folders and variables of one run of one page.
pub(crate) struct Shell {
    directory: TempDir,
    variables: Vec<(&'static str, String)>,
}

/// A command that did not do what its page says.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Page and line.
    pub(crate) place: String,
    pub(crate) command: String,
    /// Where it went another way.
    pub(crate) problem: String,
    pub(crate) output: String,
    pub(crate) error: String,
}

impl Shell {
    /// A shell in a new folder that knows `quorate` and a few common programs, and
    /// no variables but the given ones.
    pub(crate) fn new(quorate: &Path, variables: &[(&'static str, String)]) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("quorate-page-").tempdir()?;
        let shell = Self {
            directory,
            variables: variables.to_vec(),
        };
        for folder in ["programs", "results", "scratch"] {
            fs::create_dir(shell.folder(folder))?;
        }
        let programs = shell.folder("programs");
        symlink(quorate, programs.join("quorate")).context("link quorate")?;
        for name in PROGRAMS {
            if let Some(path) = find(name) {
                symlink(path, programs.join(name)).with_context(|| format!("link {name}"))?;
            }
        }
        let cargo = programs.join("cargo");
        fs::write(&cargo, CARGO)?;
        fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755))?;
        Ok(shell)
    }

    /// Runs a page to its end, or for as long as it may take, and tells which
    /// commands failed.
    pub(crate) fn run(&self, page: &Page, limit: Duration) -> Result<Vec<Failure>> {
        let script = self.directory.path().join("page.sh");
        fs::write(&script, self.script(page))?;
        let mut shell = process::Command::new("timeout");
        shell
            .args(["--kill-after=5", &limit.as_secs().to_string(), "bash"])
            .arg(&script)
            .current_dir(self.folder("scratch"))
            .env_clear()
            .env("PATH", self.folder("programs"))
            .env("HOME", self.folder("scratch"))
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        shell
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        // How it ends says nothing: it ends itself, with all that it has started.
        shell.status().context("run a shell")?;
        let commands = page.commands.iter().enumerate();
        Ok(commands
            .filter_map(|(number, command)| self.failure(&page.name, number, command))
            .collect())
    }

    fn script(&self, page: &Page) -> String {
        let mut script = PRELUDE.to_owned();
        for (number, command) in page.commands.iter().enumerate() {
            let results = quoted(&self.results(number).display().to_string());
            let text = quoted(&command.text);
            let redirected =
                format!("(exit $_page_status); eval {text} > {results}.out 2> {results}.err < /dev/null");
            let run = match &command.marks.until {
                None => redirected,
                // Job control gives it a process group, as a terminal would.
                Some(until) => format!(
                    "set -m; {redirected} & _page_watched=$!; set +m\n_page_interrupt {results} {}",
                    quoted(until)
                ),
            };
            let _ = writeln!(
                script,
                "{run}\n_page_status=$?; echo $_page_status > {results}.exit"
            );
        }
        script
    }

    /// How a command went another way than its page says, if it did.
    fn failure(&self, page: &str, number: usize, command: &Command) -> Option<Failure> {
        // What was not reached has no files.
        let result = |kind: &str| fs::read(self.results(number).with_extension(kind)).unwrap_or_default();
        let text = |kind: &str| String::from_utf8_lossy(&result(kind)).into_owned();
        let (output, error) = (text("out"), text("err"));
        let exit = text("exit").trim().parse().ok();
        let printed = one_spaced(&output) + "\n" + &one_spaced(&error);
        let marks = &command.marks;
        let mut wanted = marks.until.iter().chain(&marks.prints);
        let missing = wanted.find(|wanted| !printed.contains(&one_spaced(wanted)));
        let problem = match (exit, missing) {
            (None, _) => "no exit code: it hangs or ends the shell, or one before it does".to_owned(),
            (Some(exit), _) if exit != marks.exits => wrong_exit(exit, marks.exits),
            (_, Some(missing)) => format!("it does not print `{missing}`"),
            (Some(_), None) => return None,
        };
        Some(Failure {
            place: format!("{page}:{}", command.line),
            command: command.text.trim_end().to_owned(),
            problem,
            output,
            error,
        })
    }

    fn results(&self, number: usize) -> PathBuf {
        self.folder("results").join(number.to_string())
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            place,
            command,
            problem,
            ..
        } = self;
        writeln!(f, "{place}: {problem}\n  {}", command.replace('\n', "\n  "))?;
        for (name, text) in [("stdout", &self.output), ("stderr", &self.error)] {
            writeln!(f, "--- {name}\n{}", text.trim_end())?;
        }
        Ok(())
    }
}

fn wrong_exit(exit: i32, expected: i32) -> String {
    let hint = match exit {
        EXIT_NO_PROGRAM => {
            " (no such program for a page: mark the block as `not run`, or add it to PROGRAMS)"
        }
        _ => "",
    };
    format!("exit code {exit}, not {expected}{hint}")
}

/// Whether a shell would run this, rather than wait for more lines.
pub(crate) fn is_complete(text: &str) -> bool {
    // The check says nothing about a line that goes on and does not.
    if text.ends_with("\\\n") {
        return false;
    }
    let mut bash = process::Command::new("bash");
    let check = bash.args(["-n", "-c", text]).env("LC_ALL", "C").output();
    check.is_ok_and(|check| check.stderr.is_empty())
}

/// A text with its columns closed up: their widths are nobody's promise.
fn one_spaced(text: &str) -> String {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    text.lines().map(words).collect::<Vec<_>>().join("\n")
}

/// A text as one word for the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn find(program: &str) -> Option<PathBuf> {
    let search = env::var_os("PATH")?;
    env::split_paths(&search)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}
