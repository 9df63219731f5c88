//! A sync that fails, and a sync that is not there. Alone in its program, and one test, because it switches
//! the hook of the whole process.

mod common;

use std::sync::mpsc;
use std::time::Duration;

use common::{Acks, append, indexes, record};
use quorate_storage::hook::{self, Mode};
use quorate_storage::{OpenError, Options, StorageError, Store};
use tempfile::tempdir;

#[test]
fn syncs_that_fail_or_are_not_there() {
    a_failed_sync_is_fatal_and_final();
    without_the_hook_nothing_opens_and_nothing_is_confirmed();
}

fn a_failed_sync_is_fatal_and_final() {
    let dir = tempdir().unwrap();
    let store = Store::open(dir.path(), Options::default()).unwrap();
    let acks = Acks::default();
    append(&store, 1..=10, 1000, &acks);
    acks.expect(1);
    let (sender, receiver) = mpsc::channel();
    store
        .log
        .on_failure(move |error| sender.send(error.to_string()).unwrap());
    assert!(store.log.failed().is_none());

    hook::set_mode_for_test(Mode::Failing);
    store.log.append(vec![record(11, 1000)], acks.refused());
    acks.expect(1);
    let told = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(
        told.contains("Input/output error") || told.contains("os error 5"),
        "{told}"
    );

    // The disk seems well again; the store stays failed all the same.
    hook::set_mode_for_test(Mode::Active);
    assert_eq!(store.log.failed().unwrap().to_string(), told);
    store.log.append(vec![record(12, 1000)], acks.refused());
    store.log.put_vote("vote".into(), acks.refused());
    store.log.truncate_from(5, acks.refused());
    acks.expect(3);
    assert!(store.log.flush().is_err());
    assert!(matches!(store.contents.flush(), Err(StorageError::Engine { .. })));
    assert!(store.snapshots.create().is_err());
    let (sender, receiver) = mpsc::channel();
    store
        .log
        .on_failure(move |error| sender.send(error.to_string()).unwrap());
    assert_eq!(
        receiver.recv().unwrap(),
        told,
        "an observer that comes late is told at once"
    );
    drop(store);

    let store = Store::open(dir.path(), Options::default()).unwrap();
    let found = indexes(&store);
    assert!(
        found.starts_with(&(1..=10).collect::<Vec<_>>()),
        "what was confirmed is there: {found:?}"
    );
    assert!(found.len() <= 11);
    drop(store);

    // The contents database fails for itself, and takes the log with it.
    let store = Store::open(dir.path(), Options::default()).unwrap();
    hook::set_mode_for_test(Mode::Failing);
    let mut items = [(1, 0, vec![1; 100].into())].into_iter();
    let failed = store
        .contents
        .put_all(&mut items)
        .and_then(|_| store.contents.flush());
    assert!(failed.is_err());
    hook::set_mode_for_test(Mode::Active);
    assert!(store.log.failed().is_some());
    assert!(store.log.flush().is_err());
}

fn without_the_hook_nothing_opens_and_nothing_is_confirmed() {
    let dir = tempdir().unwrap();
    let store = Store::open(dir.path(), Options::default()).unwrap();
    hook::set_mode_for_test(Mode::Absent);
    let acks = Acks::default();
    store.log.append(vec![record(1, 10)], acks.refused());
    acks.expect(1);
    assert!(store.log.failed().unwrap().to_string().contains("hook"));
    drop(store);
    let opened = Store::open(dir.path(), Options::default());
    hook::set_mode_for_test(Mode::Active);
    assert!(
        matches!(opened, Err(OpenError::HookInactive)),
        "{:?}",
        opened.err()
    );
    Store::open(dir.path(), Options::default()).unwrap();
}
