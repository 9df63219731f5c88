//! How long the log takes for a group commit: entries of 1 KiB, given as one append, until they are durable. The
//! disk is in it, so these are figures of a machine; on one without a disk that flushes (tmpfs) they say little.
//!
//! `cargo bench -p quorate-storage --bench append`. The directory is in the target directory of cargo. The log is as a node
//! keeps it: 100,000 entries stand before the first that is measured, and as many are kept, the older ones are
//! purged. `examples/append_rate.rs` has several groups in flight, for as long as one likes.

use std::path::Path;
use std::sync::mpsc;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use quorate_storage::{Done, Options, Record, Store};

const ENTRY_BYTES: usize = 1024;
/// Entries in the log.
const KEPT: u64 = 100_000;
/// Entries between two purges.
const PURGED_AT_ONCE: u64 = 10_000;

fn appends(criterion: &mut Criterion) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory");
    let mut log = None;
    let mut group = criterion.benchmark_group("append");
    for entries in [1, 16, 64] {
        group.throughput(Throughput::Elements(entries));
        group.bench_with_input(
            BenchmarkId::from_parameter(entries),
            &entries,
            |bencher, entries| {
                let log = log.get_or_insert_with(|| Log::filled(dir.path()));
                bencher.iter(|| log.append(*entries));
            },
        );
    }
    group.finish();
    if let Some(log) = log {
        log.store.close().expect("the disk works");
    }
}

/// A store, and where its log goes on.
struct Log {
    store: Store,
    entry: Bytes,
    next: u64,
    purge_at: u64,
}

impl Log {
    fn filled(dir: &Path) -> Self {
        let mut log = Self {
            store: Store::open(dir, Options::default()).expect("an empty directory"),
            entry: Bytes::from(vec![0x5a; ENTRY_BYTES]),
            next: 1,
            purge_at: KEPT + PURGED_AT_ONCE,
        };
        while log.next <= KEPT {
            log.append(1_000);
        }
        log
    }

    /// Appends a group, and waits until it is durable.
    fn append(&mut self, entries: u64) {
        let records = (self.next..self.next + entries).map(|index| Record {
            index,
            bytes: self.entry.clone(),
        });
        let (sender, answer) = mpsc::sync_channel(1);
        let done: Done = Box::new(move |result| drop(sender.send(result)));
        self.store.log.append(records.collect(), done);
        self.next += entries;
        if self.next > self.purge_at {
            self.purge_at += PURGED_AT_ONCE;
            let last = self.next - KEPT;
            self.store.log.purge_to(last, Bytes::new(), Box::new(drop));
        }
        let answered = answer.recv().expect("every append is answered");
        answered.expect("the disk works");
    }
}

criterion_group!(benches, appends);
criterion_main!(benches);
