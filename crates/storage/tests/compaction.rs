//! Space that came back at a start.

mod common;

use std::fs;
use std::path::Path;

use common::{Acks, append, copy_dir, record};
use quorate_storage::{Options, Store};
use tempfile::{TempDir, tempdir};

fn options(compact_bytes_min: u64) -> Options {
    Options {
        compact_bytes_min,
        snapshot_bytes_per_second: None,
        ..Options::default()
    }
}

fn file_bytes(dir: &Path) -> u64 {
    fs::metadata(dir.join("data/log/db")).unwrap().len()
}

/// A store that once held 12 MB of log, and holds little now.
fn shrunk() -> TempDir {
    let dir = tempdir().unwrap();
    let store = Store::open(dir.path(), options(u64::MAX)).unwrap();
    let acks = Acks::default();
    for first in (1..12_000).step_by(1000) {
        append(&store, first..=first + 999, 1000, &acks);
    }
    store.log.put_vote("vote".into(), acks.done("vote"));
    store.log.purge_to(11_789, "marker".into(), acks.done("purge"));
    acks.expect(14);
    store.set_cluster_id([9; 16]).unwrap();
    store.close().unwrap();
    dir
}

fn check(store: &Store) {
    let expected: Vec<_> = (11_790..=12_000).map(|index| record(index, 1000)).collect();
    assert!(store.log.read(0, u64::MAX, usize::MAX).unwrap() == expected);
    assert_eq!(store.log.purged().unwrap(), (11_789, "marker".into()));
    assert_eq!(store.log.vote().unwrap(), "vote");
    assert_eq!(store.identity().cluster_id, Some([9; 16]));
}

#[test]
fn an_oversized_log_is_rewritten_at_open() {
    let dir = shrunk();
    let before = file_bytes(dir.path());
    assert!(before > 12_000_000, "{before}");
    drop(Store::open(dir.path(), options(1 << 30)).unwrap());
    let after = file_bytes(dir.path());
    assert!(after >= before, "not due: {after} {before}");

    let store = Store::open(dir.path(), options(8 << 20)).unwrap();
    check(&store);
    assert!(file_bytes(dir.path()) < 8 << 20);
    let acks = Acks::default();
    append(&store, 12_001..=12_100, 10, &acks);
    acks.expect(1);
    let incarnation = store.identity().incarnation;
    drop(store);
    let store = Store::open(dir.path(), options(8 << 20)).unwrap();
    assert_eq!(store.log.last_index(), Some(12_100));
    assert_eq!(store.identity().incarnation, incarnation + 1);
}

#[test]
fn a_crash_at_any_step_of_the_exchange() {
    let dir = shrunk();
    let (log, new, old) = (
        Path::new("data/log"),
        Path::new("data/log.new"),
        Path::new("data/log.old"),
    );
    let whole = tempdir().unwrap();
    copy_dir(dir.path(), whole.path());
    drop(Store::open(whole.path(), options(8 << 20)).unwrap());

    // While the copy is being written.
    let crash = tempdir().unwrap();
    copy_dir(dir.path(), crash.path());
    fs::create_dir_all(crash.path().join(new)).unwrap();
    fs::write(crash.path().join(new).join("conf"), "half").unwrap();
    check(&Store::open(crash.path(), options(8 << 20)).unwrap());
    assert!(!crash.path().join(new).exists());

    // Between the two renames.
    let crash = tempdir().unwrap();
    copy_dir(whole.path(), crash.path());
    fs::rename(crash.path().join(log), crash.path().join(new)).unwrap();
    copy_dir(&dir.path().join(log), &crash.path().join(old));
    check(&Store::open(crash.path(), options(1 << 30)).unwrap());
    assert!(!crash.path().join(old).exists());

    // Before the old one is removed.
    let crash = tempdir().unwrap();
    copy_dir(whole.path(), crash.path());
    copy_dir(&dir.path().join(log), &crash.path().join(old));
    check(&Store::open(crash.path(), options(1 << 30)).unwrap());
    assert!(!crash.path().join(old).exists());

    // No crash leaves only the old one.
    let crash = tempdir().unwrap();
    copy_dir(whole.path(), crash.path());
    fs::rename(crash.path().join(log), crash.path().join(old)).unwrap();
    assert!(Store::open(crash.path(), options(1 << 30)).is_err());
}
