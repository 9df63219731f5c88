//! A seed is a run of the whole cluster: generated schedules, carried out twice in processes of their own, the second
//! time from the last seed to the first, do the same to the byte; and nothing is violated in them.

#![allow(clippy::print_stdout)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jepsen_lite_core::verdict::Verdict;
use jepsen_lite_sim::fleet::{self, Fleet};
use jepsen_lite_sim::run::{Order, Summary};
use jepsen_lite_workload::generate::{self, Layer};

const SEEDS: u64 = 20;
/// Virtual.
const LOAD_MS: u64 = 6_000;

fn main() {
    fleet::serve();
    if std::env::args().skip(1).any(|argument| argument == "--list") {
        return;
    }
    let forth = run((0..SEEDS).collect());
    let back = run((0..SEEDS).rev().collect());
    for (seed, first) in &forth {
        let second = &back[seed];
        println!("seed {seed}: {} {}", first.results.verdict, first.trace);
        assert_eq!(first.trace, second.trace, "seed {seed} ran in two ways");
        assert_eq!(
            first.results, second.results,
            "seed {seed} was judged in two ways"
        );
        assert!(
            !matches!(first.results.verdict, Verdict::Violated | Verdict::Harness),
            "seed {seed}: {:#?}",
            first.results
        );
    }
    let traces: BTreeSet<&String> = forth.values().map(|summary| &summary.trace).collect();
    assert_eq!(
        traces.len(),
        forth.len(),
        "two seeds ran alike: the trace shows nothing"
    );
}

fn run(seeds: Vec<u64>) -> BTreeMap<u64, Summary> {
    let fleet = Fleet {
        processes: 2,
        limit: Duration::from_secs(300),
        time_box: None,
    };
    let orders = seeds
        .into_iter()
        .map(|seed| Order::new(generate::schedule(seed, Layer::Simulation, LOAD_MS)));
    let mut summaries = BTreeMap::new();
    let ran = fleet.run(orders, |done| {
        let seed = done.order.schedule.seed;
        let summary = done
            .summary
            .unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
        summaries.insert(seed, summary);
        true
    });
    ran.expect("processes can be started");
    summaries
}
