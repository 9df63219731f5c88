//! Where the `quorate` binary and the example programs are.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};

/// The binary that tests run: `$QUORATE_BIN`, else the one beside this
/// executable, which is built if it is missing or older than its sources. Looked
/// up once per process.
///
/// # Errors
///
/// When `$QUORATE_BIN` names no file, this executable is in no cargo target
/// directory, or the build fails.
pub fn find() -> Result<PathBuf> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    FOUND
        .get_or_init(|| look().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(anyhow::Error::msg)
        .context("find the quorate binary")
}

fn look() -> Result<PathBuf> {
    if let Some(path) = env::var_os("QUORATE_BIN") {
        let path = PathBuf::from(path);
        ensure!(
            path.is_file(),
            "QUORATE_BIN names {}, which is no file",
            path.display()
        );
        return Ok(path);
    }
    let target = own_target_directory().context("set QUORATE_BIN")?;
    let binary = target.join("quorate");
    built(&target, binary, &["--package", "quorate-server"])
}

/// An example program of one of our packages, which is built if it is missing or
/// older than its sources, with these features.
///
/// # Errors
///
/// When this executable is in no cargo target directory, or the build fails.
pub fn find_example(package: &str, name: &str, features: &[&str]) -> Result<PathBuf> {
    let target = own_target_directory()?;
    let binary = target.join("examples").join(name);
    let features = features.join(",");
    let what = [
        "--package",
        package,
        "--example",
        name,
        "--features",
        features.as_str(),
    ];
    built(&target, binary, &what).with_context(|| format!("find the example {name}"))
}

/// The binary, after a build of `what` if it is not fresh.
fn built(target: &Path, binary: PathBuf, what: &[&str]) -> Result<PathBuf> {
    if !is_fresh(&binary) {
        build(target, what)?;
    }
    ensure!(binary.is_file(), "the build left no {}", binary.display());
    Ok(binary)
}

fn own_target_directory() -> Result<PathBuf> {
    let executable = env::current_exe().context("find this executable")?;
    target_directory(&executable)
        .with_context(|| format!("{} is in no cargo target directory", executable.display()))
}

/// `target/debug` of `target/debug/deps/some_test-0123`, or of a program
/// directly in it.
fn target_directory(executable: &Path) -> Option<PathBuf> {
    let parent = executable.parent()?;
    let directory = if parent.ends_with("deps") || parent.ends_with("examples") {
        parent.parent()?
    } else {
        parent
    };
    let is_target = ["debug", "release"]
        .iter()
        .any(|profile| directory.ends_with(profile));
    is_target.then(|| directory.to_path_buf())
}

/// Whether no source is newer than the binary: cargo leaves their list beside
/// it, for make. A test of yesterday's binary proves nothing.
fn is_fresh(binary: &Path) -> bool {
    let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let (Some(built), Ok(list)) = (modified(binary), fs::read_to_string(binary.with_extension("d"))) else {
        return false;
    };
    let sources = list.split_once(':').map_or("", |(_, sources)| sources);
    // Spaces within a path are escaped.
    let sources = sources.replace("\\ ", "\0");
    sources.split_whitespace().all(|source| {
        let changed = modified(Path::new(&source.replace('\0', " ")));
        changed.is_some_and(|changed| changed <= built)
    })
}

/// `cargo test` builds no binaries of other packages: on a fresh clone this is
/// what makes the end-to-end tests find one. Two test programs that both come
/// here wait for each other at cargo's own lock.
fn build(directory: &Path, what: &[&str]) -> Result<()> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet"])
        .args(what)
        .arg("--manifest-path");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml"));
    if let Some(target) = directory.parent() {
        command.arg("--target-dir").arg(target);
    }
    if directory.ends_with("release") {
        command.arg("--release");
    }
    let status = command.status().context("run cargo")?;
    ensure!(status.success(), "cargo build {}: {status}", what.join(" "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn the_binary_is_looked_for_beside_the_tests() {
        let found = |path: &str| target_directory(Path::new(path));
        assert_eq!(found("/t/debug/deps/e2e-01"), Some("/t/debug".into()));
        assert_eq!(found("/t/release/jepsen"), Some("/t/release".into()));
        assert_eq!(found("/usr/bin/e2e"), None);
    }

    #[test]
    fn a_binary_that_is_older_than_a_source_is_not_fresh() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = |name: &str| directory.path().join(name);
        let (source, binary) = (file("main file.rs"), file("quorate"));
        let written = |path: &Path, seconds: u64| {
            let file = fs::File::create(path).expect("a writable directory");
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
                .expect("it is ours");
        };
        written(&source, 10);
        written(&binary, 20);
        assert!(!is_fresh(&binary), "without a list nothing is known");
        let escaped = source.display().to_string().replace(' ', "\\ ");
        fs::write(file("quorate.d"), format!("{}: {escaped}\n", binary.display()))
            .expect("a writable directory");
        assert!(is_fresh(&binary));
        written(&source, 30);
        assert!(!is_fresh(&binary));
    }
}
