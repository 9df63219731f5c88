//! Tells the program which commit it is built from, for `--version`.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=QUORATE_COMMIT");
    // Grows with every commit and checkout; absent outside a git work tree.
    let history = "../../.git/logs/HEAD";
    if Path::new(history).exists() {
        println!("cargo::rerun-if-changed={history}");
    } else {
        println!("cargo::rerun-if-changed=build.rs");
    }
    let commit = std::env::var("QUORATE_COMMIT")
        .ok()
        .or_else(git_commit)
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=QUORATE_COMMIT={commit}");
    let target = std::env::var("TARGET").expect("cargo sets TARGET");
    println!("cargo::rustc-env=QUORATE_TARGET={target}");
}

fn git_commit() -> Option<String> {
    let output = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output()
        .ok()?;
    let commit = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| commit.trim().to_owned())
}
