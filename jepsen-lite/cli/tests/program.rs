//! The program as people call it: what it says, and its exit codes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use jepsen_lite_core::audit::Audit;
use jepsen_lite_core::cluster::{Done, Effect};
use jepsen_lite_core::history::{Delivery, History, Mark, MessageId, Outcome, Publish, Settle};
use jepsen_lite_core::run::{Facts, Run};
use jepsen_lite_core::schedule::{Evidence, Fault, Schedule, Workload};
use jepsen_lite_core::verdict::{Results, Verdict};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_jepsen-lite");

/// Calls it; what it says on the standard output, on standard error, and its exit code.
fn call(arguments: &[&str]) -> (String, String, i32) {
    let output = Command::new(PROGRAM)
        .args(arguments)
        // Whatever answers to --version will do for a server here: nothing is to be built by the way.
        .env("QUORATE_BIN", PROGRAM)
        .output();
    let Output {
        status,
        stdout,
        stderr,
    } = output.expect("it can be started");
    (
        String::from_utf8_lossy(&stdout).into_owned(),
        String::from_utf8_lossy(&stderr).into_owned(),
        status.code().expect("no signal ends it"),
    )
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// A run of one message, which was published, delivered and acked.
fn good() -> Run {
    let message = MessageId { index: 5, number: 0 };
    let at = Duration::from_millis;
    let mut history = History::default();
    history.publishes.push(Publish {
        process: 1,
        invoked: at(10),
        answered: at(20),
        key: 7,
        queue: "work".to_owned(),
        outcome: Outcome::Done(message),
        ..Publish::default()
    });
    history.deliveries.push(Delivery {
        process: 2,
        received: at(30),
        queue: "work".to_owned(),
        message,
        key: Some(7),
        token: "t".to_owned(),
        fence: 1,
        attempt: 1,
        lease_ms: 1_000,
        leased_until_ms: 2_000,
        published_at_ms: 900,
        ..Delivery::default()
    });
    history.settles.push(Settle {
        process: 2,
        invoked: at(40),
        answered: at(50),
        token: "t".to_owned(),
        outcome: Outcome::Done(()),
        ..Settle::default()
    });
    history.marks.push(Mark {
        at: at(60),
        name: Mark::DRAINED.to_owned(),
        ..Mark::default()
    });
    Run {
        schedule: Schedule {
            name: "kept".to_owned(),
            about: String::new(),
            seed: 3,
            nodes: 3,
            load_ms: 100,
            heal_ms: 100,
            workload: Workload {
                name: "queue".to_owned(),
                parameters: BTreeMap::new(),
            },
            settings: BTreeMap::new(),
            steps: Vec::new(),
            evidence: Evidence::default(),
        },
        history,
        audit: Audit::default(),
        effects: Vec::new(),
        facts: Facts {
            converged: true,
            ..Facts::default()
        },
        sights: Vec::new(),
    }
}

/// A folder with a run.
fn stored(run: &Run) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    run.write(folder.path()).expect("it can be written");
    folder
}

#[test]
fn a_good_run_is_valid_and_gets_its_pages() {
    let folder = stored(&good());
    let (told, errors, code) = call(&["check", text(folder.path())]);
    assert_eq!(code, 0, "{told}{errors}");
    assert!(
        told.contains(": valid") && told.contains("I1 ") && told.contains("1 confirmed"),
        "{told}"
    );
    let results = Results::read(folder.path()).expect("they are there");
    assert_eq!(results.verdict, Verdict::Valid);
    let page = fs::read_to_string(folder.path().join("report.html")).expect("it is there");
    assert!(page.starts_with("<!doctype html>") || page.starts_with("<!DOCTYPE html>"));
    let history = fs::read_to_string(folder.path().join("history.edn")).expect("it is there");
    assert!(history.starts_with("{:index 0, :time 10000000, :process 0, :type :invoke, :f :publish"));
    let again = fs::read_to_string(folder.path().join("repro.txt")).expect("it is there");
    assert!(
        again.contains(&format!("check {}", text(folder.path()))),
        "{again}"
    );
}

#[test]
fn a_lost_message_is_a_violation_and_outweighs_what_is_valid() {
    let mut run = good();
    run.history.deliveries.clear();
    run.history.settles.clear();
    let (bad, fine) = (stored(&run), stored(&good()));
    let (told, _, code) = call(&["check", text(bad.path()), text(fine.path())]);
    assert_eq!(code, 1, "{told}");
    assert!(told.contains("! I1 no loss: "), "{told}");
    assert!(
        told.contains(&format!("{}: VIOLATED", text(bad.path())))
            && told.contains(&format!("{}: valid", text(fine.path()))),
        "{told}"
    );
}

#[test]
fn a_run_that_shows_too_little_is_unknown() {
    let mut thin = good();
    thin.schedule.evidence.confirmed = 2;
    let mut idle = good();
    idle.effects.push(Effect {
        from_ms: 1,
        until_ms: Some(2),
        fault: Fault::Pause,
        nodes: vec![0],
        state: Done::Yes,
        counters: BTreeMap::new(),
    });
    for (run, why) in [(thin, "confirmed: 1 were seen"), (idle, "pause had no effect")] {
        let folder = stored(&run);
        let (told, _, code) = call(&["check", text(folder.path())]);
        assert_eq!(code, 2, "{told}");
        assert!(told.contains(why), "{told}");
    }
}

#[test]
fn a_folder_that_is_damaged_or_missing_is_a_failure_of_the_harness() {
    let folder = stored(&good());
    let history = folder.path().join("history.jsonl");
    let lines = fs::read_to_string(&history).expect("it is there");
    fs::write(&history, lines.replacen('{', "#", 1)).expect("it can be written");
    let (_, errors, code) = call(&["check", text(folder.path())]);
    assert_eq!(code, 3, "{errors}");
    assert!(
        errors.contains(text(folder.path())) && errors.contains("line 1"),
        "{errors}"
    );
    fs::remove_file(&history).expect("it was there");
    for command in ["check", "report"] {
        let (_, errors, code) = call(&[command, text(folder.path())]);
        assert_eq!(code, 3, "{errors}");
        assert!(errors.contains("history.jsonl"), "{errors}");
    }
    assert!(!folder.path().join("results.json").exists());
}

#[test]
fn a_page_is_written_whatever_the_run_came_to() {
    let mut run = good();
    run.history.deliveries.clear();
    let folder = stored(&run);
    let (told, _, code) = call(&["report", text(folder.path())]);
    assert_eq!(code, 0, "{told}");
    assert!(Path::new(told.trim()).is_file(), "{told}");
}

#[test]
fn what_there_is_is_listed() {
    let (told, _, code) = call(&["list"]);
    assert_eq!(code, 0);
    let lines: Vec<(&str, &str)> = told
        .lines()
        .map(|line| line.trim().split_once(' ').unwrap_or((line.trim(), "")))
        .map(|(name, rest)| (name, rest.trim()))
        .collect();
    let of = |name| {
        let line = lines.iter().find(|(known, _)| *known == name);
        line.unwrap_or_else(|| panic!("no {name} in {told}")).1
    };
    assert!(of("rotate-majority").len() > 20, "{}", of("rotate-majority"));
    assert_eq!(of("dedup-retry"), "");
    assert_eq!(of("power-loss"), "sim processes");
}

#[test]
fn a_doctor_says_what_can_be_done_and_why_not() {
    let (told, errors, code) = call(&["doctor"]);
    assert_eq!(code, 0, "{errors}");
    for what in ["a disk that forgets", "a container engine", "local ports"] {
        assert!(told.contains(what), "{told}");
    }
    assert!(
        told.lines()
            .all(|line| line.starts_with("yes ") || line.starts_with("no ")),
        "{told}"
    );
}

#[test]
fn a_simulated_seed_is_valid_twice_alike_and_can_be_kept() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let seed = ["sim", "--seed", "1", "--load", "2s", "--json"];
    let (line, errors, code) = call(&seed);
    assert_eq!(code, 0, "{errors}");
    let keeping = [&seed[..], &["--folder", text(folder.path())]].concat();
    let (again, errors, code) = call(&keeping);
    assert_eq!(code, 0, "{errors}");
    assert_eq!(line.lines().count(), 1, "{line}");
    let summary = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("it is JSON");
    assert_eq!(summary(&line)["trace"], summary(&again)["trace"]);
    assert_eq!(summary(&line)["results"]["verdict"], "valid");
    let kept = folder.path().join("seed-1");
    for file in [
        "schedule.json",
        "history.edn",
        "report.html",
        "repro.txt",
        "audit",
    ] {
        assert!(kept.join(file).exists(), "no {file}");
    }
    let (told, errors, code) = call(&["check", text(&kept)]);
    assert_eq!(code, 0, "{told}{errors}");
}

#[test]
fn what_cannot_be_is_said_and_is_no_verdict() {
    let missing = ["replay", "no-such.json"];
    for (arguments, why) in [
        (
            &["sim", "--scenario", "peace"][..],
            "there is no scenario \"peace\"",
        ),
        (&["sim", "--scenario", "upgrade-mixed"], "knows no upgrade"),
        (
            &["run", "--layer", "containers", "--scenario", "disk-full-leader"],
            "knows no disk-full",
        ),
        (&["run", "--scenario", "none", "--nodes", "99"], "1 to 9 nodes"),
        (
            &["run", "--scenario", "kill-leader-loop", "--time", "1s"],
            "does not reach",
        ),
        (&missing, "no-such.json"),
        (&["sim", "--seeds", "5..5"], "there is no seed in"),
        (&["sim", "--seed", "1", "--for", "5s"], "cannot be used with"),
        (&["soak"], "--for"),
        (&["mutants", "no-such"], "there is no mutant no-such"),
        (&["nothing"], "unrecognized"),
        (&[], "Usage"),
    ] {
        let (told, errors, code) = call(arguments);
        assert_eq!(code, 3, "{arguments:?}: {told}{errors}");
        assert!(errors.contains(why), "{arguments:?}: {errors}");
    }
    assert_eq!(call(&["--help"]).2, 0);
}
