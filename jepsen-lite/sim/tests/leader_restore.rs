//! A leader that restarts within the election timeout and leads on gives a log id to a second entry: acknowledged
//! messages are lost, or replicas differ. That is openraft's default, and Quorate has it switched off. Here it is
//! switched on, and the simulator must find what it does; and nothing with it off, on the same seeds.

#![allow(clippy::print_stdout)]

use std::path::Path;
use std::time::Duration;

use jepsen_lite_core::schedule::Schedule;
use jepsen_lite_core::verdict::{Results, Verdict};
use jepsen_lite_sim::fleet::{self, Fleet};
use jepsen_lite_sim::run::Order;

/// Most seeds until it must have been found.
const SEEDS_MAX: u64 = 200;

fn main() {
    fleet::serve();
    if std::env::args().skip(1).any(|argument| argument == "--list") {
        return;
    }
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/restart-inside-election-timeout.json");
    let text = std::fs::read(&path).expect("the scenario is kept");
    let schedule: Schedule = serde_json::from_slice(&text).expect("it is a schedule");

    let mut tried = 0;
    let mut found = None;
    run(&schedule, 0..SEEDS_MAX, true, |seed, results| {
        tried += 1;
        let evidence = damage(results);
        if let Some(evidence) = evidence {
            println!("with the leader restored, seed {seed}: {evidence}");
            found.get_or_insert(seed);
        }
        found.is_none()
    });
    let found = found.unwrap_or_else(|| panic!("not found in {SEEDS_MAX} seeds"));
    println!("found with seed {found}, after {tried} seeds");

    run(&schedule, 0..tried.max(found + 1), false, |seed, results| {
        assert!(
            !matches!(results.verdict, Verdict::Violated | Verdict::Harness),
            "seed {seed}, with leaders that stand for election: {results:#?}"
        );
        true
    });
}

fn run(
    schedule: &Schedule,
    seeds: std::ops::Range<u64>,
    restore_leader: bool,
    mut tell: impl FnMut(u64, &Results) -> bool,
) {
    let orders = seeds.map(|seed| Order {
        restore_leader,
        ..Order::new(Schedule {
            seed,
            ..schedule.clone()
        })
    });
    let fleet = Fleet {
        processes: 2,
        limit: Duration::from_secs(300),
        time_box: None,
    };
    let ran = fleet.run(orders, |done| {
        let seed = done.order.schedule.seed;
        match done.summary {
            Ok(summary) => tell(seed, &summary.results),
            // An assertion in openraft is a find, too, but not the one that is meant.
            Err(error) if restore_leader => {
                println!("seed {seed}: {error:#}");
                true
            }
            Err(error) => panic!("seed {seed}: {error:#}"),
        }
    });
    ran.expect("processes can be started");
}

/// Evidence of a lost message or of replicas that differ. That somebody leads in two lives is not enough.
fn damage(results: &Results) -> Option<String> {
    let findings = results.findings.iter();
    let mut grave =
        findings.filter(|finding| finding.verdict == Verdict::Violated && finding.invariant != "I19");
    grave.find_map(|finding| {
        let witness = finding.witnesses.first()?;
        Some(format!("{}: {}", finding.invariant, witness.evidence))
    })
}
