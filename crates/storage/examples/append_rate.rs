//! How fast does the log take entries on this disk?
//!
//! ```text
//! cargo run --release -p quorate-storage --example append_rate [-- DIR [ENTRY_BYTES [GROUP [SECONDS]]]]
//! ```
//!
//! Appends groups of entries, each when the one before is durable, so every group costs one flush; then the
//! same with a few groups in flight, where the writer merges what waits.

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_storage::{Options, Record, StorageError, Store, hook};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments
        .next()
        .map_or_else(|| PathBuf::from("append-rate-data"), PathBuf::from);
    let entry_bytes: usize = arguments.next().map_or(Ok(1024), |text| text.parse())?;
    let group: u64 = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let seconds: u64 = arguments.next().map_or(Ok(5), |text| text.parse())?;

    let store = Store::open(&dir, Options::default())?;
    println!(
        "{entry_bytes} B entries, groups of {group}, {seconds} s each, in {}",
        dir.display()
    );
    for in_flight in [1, 4, 16] {
        run(
            &store,
            entry_bytes,
            group,
            Duration::from_secs(seconds),
            in_flight,
        )?;
    }
    store.close()?;
    Ok(())
}

/// Appends until the time is over, and prints what came of it.
fn run(
    store: &Store,
    entry_bytes: usize,
    group: u64,
    time: Duration,
    in_flight: usize,
) -> Result<(), StorageError> {
    let bytes = Bytes::from(vec![0x5a; entry_bytes]);
    let (sender, answers) = mpsc::channel();
    let before = store.log.stats();
    let mut first = store.log.last_index().map_or(1, |last| last + 1);
    let mut purge_at = first + 150_000;
    let mut waits: Vec<Duration> = Vec::new();
    let mut waiting = 0;
    let syncs_before = hook::calls();
    let used_before = Used::so_far();
    let start = Instant::now();
    while waiting > 0 || start.elapsed() < time {
        if waiting < in_flight && start.elapsed() < time {
            let records = (first..first + group).map(|index| Record {
                index,
                bytes: bytes.clone(),
            });
            let sender = sender.clone();
            let given = Instant::now();
            let done = move |result: Result<(), StorageError>| {
                let _ = sender.send(result.map(|()| given.elapsed()));
            };
            store.log.append(records.collect(), Box::new(done));
            first += group;
            waiting += 1;
            // A sliding window, as snapshots would keep it.
            if first > purge_at {
                store.log.purge_to(first - 100_000, Bytes::new(), Box::new(drop));
                purge_at = first + 50_000;
            }
            continue;
        }
        match answers.recv() {
            Ok(answer) => waits.push(answer?),
            Err(_) => return Err(StorageError::Closed),
        }
        waiting -= 1;
    }
    let elapsed = start.elapsed().as_secs_f64();
    let after = store.log.stats();
    let (entries, flushes) = (after.entries - before.entries, after.flushes - before.flushes);
    let used = Used::so_far();
    let megabytes = entries as f64 * entry_bytes as f64 / 1e6;
    waits.sort();
    let at = |part: f64| waits[((waits.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    println!(
        "{in_flight:>2} in flight: {:>9.0} entries/s {:>6.1} MB/s; {:>5.1} entries and {:.2} syncs per flush; ms p50 {:.2} p99 {:.2} max {:.2}; \
         {:.2} bytes written per byte, {:.2} ms of CPU per MB",
        entries as f64 / elapsed,
        megabytes / elapsed,
        entries as f64 / flushes as f64,
        (hook::calls() - syncs_before) as f64 / flushes as f64,
        at(0.5),
        at(0.99),
        at(1.0),
        (used.written - used_before.written) as f64 / 1e6 / megabytes,
        (used.cpu_ticks - used_before.cpu_ticks) as f64 * 10.0 / megabytes,
    );
    Ok(())
}

/// What this process has used, as Linux counts it; nothing elsewhere.
#[derive(Default)]
struct Used {
    written: u64,
    /// Of a hundredth of a second.
    cpu_ticks: u64,
}

impl Used {
    fn so_far() -> Self {
        let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
        let written = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // Times of user and system are the fourteenth and fifteenth field; the second may hold spaces.
        let times = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(11)
            .take(2);
        Used {
            written: written.and_then(|number| number.parse().ok()).unwrap_or(0),
            cpu_ticks: times.filter_map(|number| number.parse::<u64>().ok()).sum(),
        }
    }
}
