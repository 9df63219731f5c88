//! The same log gives the same broker: done twice, done in another process, and
//! done from a snapshot on, wherever that is taken.

use std::convert::Infallible;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use bytes::Bytes;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use quorate_core::batch::{self, Batch};
use quorate_core::{Applied, Broker};

use crate::random_log::{Entry, log_of, plan};

proptest! {
    /// Equal logs, equal brokers.
    #[test]
    fn the_same_log_gives_the_same_state_answers_and_effects(plan in plan()) {
        let log = log_of(&plan);
        let (mut one, mut other) = (Broker::new(), Broker::new());
        for entry in &log {
            prop_assert_eq!(entry.apply(&mut one), entry.apply(&mut other), "I10: at {}", entry.meta.index);
            prop_assert_eq!(one.state_hash(), other.state_hash(), "I10: at {}", entry.meta.index);
        }
        prop_assert_eq!(bytes_of(&one), bytes_of(&other), "I10: at the end");
    }

    /// A snapshot forgets nothing, wherever it is taken: what is restored from it
    /// goes through the rest of the log as the broker did that was never
    /// restored, and is at each entry the same to the last byte.
    #[test]
    fn every_snapshot_of_a_log_leads_to_the_same_end(plan in plan()) {
        let log = log_of(&plan);
        let passed = pass_through(&log, &mut Broker::new());
        for (at, taken) in passed.iter().enumerate() {
            let mut restored = restore(&taken.bytes);
            prop_assert_eq!(restored.next_deadline(), taken.next_deadline, "I22: restored after entry {}", at);
            let again = pass_through(&log[at + 1..], &mut restored);
            for (again, before) in again.iter().zip(&passed[at + 1..]) {
                prop_assert_eq!(again, before, "I22: restored after entry {}", at);
            }
        }
    }

    /// Nor do a hundred snapshots, each of what the one before was restored to.
    #[test]
    fn a_broker_that_is_always_restored_is_the_one_that_never_was(plan in plan()) {
        let log = log_of(&plan);
        let (mut original, mut restored) = (Broker::new(), Broker::new());
        for entry in &log {
            let expected = entry.apply(&mut original);
            prop_assert_eq!(entry.apply(&mut restored), expected, "I22: at {}", entry.meta.index);
            let bytes = bytes_of(&restored);
            prop_assert_eq!(&bytes, &bytes_of(&original), "I22: at {}", entry.meta.index);
            restored = restore(&bytes);
            prop_assert_eq!(restored.state_hash(), original.state_hash(), "I22: at {}", entry.meta.index);
        }
    }

    /// What a snapshot shows is what was there when it was taken.
    #[test]
    fn a_snapshot_does_not_see_what_comes_after(plan in plan(), at in any::<prop::sample::Index>()) {
        let log = log_of(&plan);
        let at = at.index(log.len());
        let mut broker = Broker::new();
        let mut taken = None;
        for (n, entry) in log.iter().enumerate() {
            entry.apply(&mut broker);
            if n == at {
                taken = Some((broker.snapshot(), bytes_of(&broker)));
            }
        }
        let (snapshot, bytes) = taken.unwrap();
        prop_assert_eq!(write(&snapshot), bytes, "I22: taken after entry {}", at);
    }

    /// Broken bytes are refused, not believed, and do not bring the node down.
    #[test]
    fn a_damaged_snapshot_is_refused(plan in plan(), at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let mut broker = Broker::new();
        for entry in log_of(&plan) {
            entry.apply(&mut broker);
        }
        let bytes = bytes_of(&broker);
        let at = at.index(bytes.len());
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << bit;
        let refused = |bytes: &[u8]| Broker::restore([Ok::<_, Infallible>(bytes)].into_iter()).is_err();
        prop_assert!(refused(&flipped), "I21: bit {} of byte {}", bit, at);
        prop_assert!(refused(&bytes[..at]), "I21: cut at {}", at);
        prop_assert!(refused(&[&bytes[..], &[0]].concat()), "I21: a byte too many");
    }
}

/// What can be compared of a broker after an entry.
#[derive(Debug, PartialEq)]
struct Passed {
    applied: Applied,
    state_hash: u128,
    next_deadline: Option<quorate_core::ids::Timestamp>,
    bytes: Vec<u8>,
}

fn pass_through(log: &[Entry], broker: &mut Broker) -> Vec<Passed> {
    let pass = |entry: &Entry| Passed {
        applied: entry.apply(broker),
        state_hash: broker.state_hash(),
        next_deadline: broker.next_deadline(),
        bytes: bytes_of(broker),
    };
    log.iter().map(pass).collect()
}

pub(crate) fn bytes_of(broker: &Broker) -> Vec<u8> {
    write(&broker.snapshot())
}

fn write(snapshot: &quorate_core::Snapshot) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut sink = |piece: &[u8]| {
        assert!(piece.len() <= quorate_core::snapshot::PIECE_BYTES_MAX);
        bytes.extend_from_slice(piece);
        Ok::<_, Infallible>(())
    };
    snapshot.write(&mut sink).unwrap();
    bytes
}

pub(crate) fn restore(bytes: &[u8]) -> Broker {
    match Broker::restore(bytes.chunks(1000).map(Ok::<_, Infallible>)) {
        Ok(broker) => broker,
        Err(error) => panic!("I22: what was written cannot be restored: {error}"),
    }
}

// ------------------------------------------------------------- another process

/// In the process that is started, this is set.
const IS_OTHER: &str = "QUORATE_TEST_IS_OTHER_PROCESS";

/// Another process has other addresses, and another seed for each hash map. It
/// gets logs as they stand on a disk, and comes to the same hashes and bytes.
#[test]
fn another_process_comes_to_the_same_bytes() {
    if std::env::var_os(IS_OTHER).is_some() {
        return be_the_other();
    }
    let mut runner = TestRunner::deterministic();
    let logs: Vec<Vec<(u64, Bytes)>> = (0..24)
        .map(|_| encoded(&log_of(&plan().new_tree(&mut runner).unwrap().current())))
        .collect();
    let this = digests(&logs);

    let name = "snapshots::another_process_comes_to_the_same_bytes";
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(IS_OTHER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = other.stdin.take().unwrap();
    input.write_all(&postcard::to_allocvec(&logs).unwrap()).unwrap();
    drop(input);
    let output = other.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    let output = String::from_utf8(output.stdout).unwrap();
    let that: Vec<&str> = output
        .lines()
        .filter(|line| line.starts_with("digest "))
        .collect();
    assert_eq!(that.len(), this.len(), "{output}");
    for (this, that) in this.iter().zip(that) {
        assert_eq!(this, that, "I10: this process and another");
    }
}

#[allow(clippy::print_stdout)] // it is how the processes talk
fn be_the_other() {
    let mut input = Vec::new();
    std::io::stdin().read_to_end(&mut input).unwrap();
    for line in digests(&postcard::from_bytes::<Vec<Vec<(u64, Bytes)>>>(&input).unwrap()) {
        println!("\n{line}");
    }
}

/// Each entry under its index.
fn encoded(log: &[Entry]) -> Vec<(u64, Bytes)> {
    let contents = |entry: &Entry| -> Vec<Bytes> {
        let content = |bytes: &u32| Bytes::from(vec![7; *bytes as usize]);
        entry.contents.iter().map(content).collect()
    };
    let encoded = |entry: &Entry| batch::encode(entry.meta.at, &entry.requests, &contents(entry));
    log.iter()
        .map(|entry| (entry.meta.index, encoded(entry)))
        .collect()
}

/// A line for each entry: the state hash, and a hash of the snapshot.
fn digests(logs: &[Vec<(u64, Bytes)>]) -> Vec<String> {
    let mut lines = Vec::new();
    for (number, log) in logs.iter().enumerate() {
        let mut broker = Broker::new();
        for (index, bytes) in log {
            let batch = Batch::decode(bytes.clone()).unwrap();
            broker.apply(batch.meta(*index), &batch.requests, &batch.content_lengths());
            let (hash, snapshot) = (
                broker.state_hash(),
                xxhash_rust::xxh3::xxh3_128(&bytes_of(&broker)),
            );
            lines.push(format!(
                "digest of log {number}, entry {index}: {hash:032x} {snapshot:032x}"
            ));
        }
    }
    lines
}
