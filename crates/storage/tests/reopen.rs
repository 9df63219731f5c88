//! What is there after a stop, clean or not.

mod common;

use common::{Acks, append, indexes, record};
use quorate_storage::{Options, StorageError, Store};
use tempfile::tempdir;

#[test]
fn everything_acknowledged_is_there_after_a_clean_stop() {
    let dir = tempdir().unwrap();
    let store = Store::open(dir.path(), Options::default()).unwrap();
    let first = store.identity();
    assert!(first.created && first.node_id != 0 && first.cluster_id.is_none());
    assert_eq!(first.incarnation, 1);
    let acks = Acks::default();
    append(&store, 1..=100, 1000, &acks);
    store.log.put_vote("vote".into(), acks.done("vote"));
    store.log.put_committed("committed".into());
    store.log.flush().unwrap();
    acks.expect(2);
    store.set_cluster_id([7; 16]).unwrap();
    store.set_cluster_id([7; 16]).unwrap();
    assert!(matches!(
        store.set_cluster_id([8; 16]),
        Err(StorageError::ClusterAlreadySet)
    ));
    store.close().unwrap();

    let store = Store::open(dir.path(), Options::default()).unwrap();
    let second = store.identity();
    assert_eq!(
        (second.node_id, second.incarnation, second.created),
        (first.node_id, 2, false)
    );
    assert_eq!(second.cluster_id, Some([7; 16]));
    assert_eq!(store.log.vote().unwrap(), "vote");
    assert_eq!(store.log.committed().unwrap(), "committed");
    assert_eq!(
        (store.log.first_index(), store.log.last_index()),
        (Some(1), Some(100))
    );
    assert_eq!(
        store.log.read(0, 101, usize::MAX).unwrap(),
        (1..=100).map(|i| record(i, 1000)).collect::<Vec<_>>()
    );
}

#[test]
fn dropping_without_closing_loses_nothing() {
    let dir = tempdir().unwrap();
    for round in 0..3_u64 {
        let store = Store::open(dir.path(), Options::default()).unwrap();
        assert_eq!(store.log.last_index(), round.checked_sub(1).map(|r| r * 10 + 9));
        let acks = Acks::default();
        append(&store, round * 10..=round * 10 + 9, 100, &acks);
        acks.expect(1);
    }
}

#[test]
fn truncation_then_append() {
    let dir = tempdir().unwrap();
    let store = Store::open(dir.path(), Options::default()).unwrap();
    let acks = Acks::default();
    append(&store, 1..=50, 100, &acks);
    store.log.truncate_from(31, acks.done("truncate"));
    assert_eq!(store.log.last_index(), Some(30));
    append(&store, 31..=35, 200, &acks);
    acks.expect(3);
    let expected: Vec<_> = (1..=30)
        .map(|i| record(i, 100))
        .chain((31..=35).map(|i| record(i, 200)))
        .collect();
    assert_eq!(store.log.read(1, 99, usize::MAX).unwrap(), expected);
    drop(store);
    let store = Store::open(dir.path(), Options::default()).unwrap();
    assert_eq!(store.log.read(1, 99, usize::MAX).unwrap(), expected);
    store.log.truncate_from(0, acks.done("all"));
    assert_eq!(store.log.last_index(), None);
    append(&store, 7..=8, 10, &acks);
    acks.expect(2);
    drop(store);
    let store = Store::open(dir.path(), Options::default()).unwrap();
    assert_eq!(indexes(&store), [7, 8]);
}

#[test]
fn a_purge_survives_a_restart_and_goes_on_after_it() {
    let dir = tempdir().unwrap();
    let store = Store::open(dir.path(), Options::default()).unwrap();
    let acks = Acks::default();
    append(&store, 1..=4000, 1000, &acks);
    store.log.purge_to(3990, "term 3".into(), acks.done("purge"));
    assert_eq!(store.log.first_index(), Some(3991));
    assert_eq!(store.log.read(1, 3993, usize::MAX).unwrap()[0].index, 3991);
    acks.expect(2);
    drop(store);
    let store = Store::open(dir.path(), Options::default()).unwrap();
    assert_eq!(store.log.purged().unwrap(), (3990, "term 3".into()));
    assert_eq!(indexes(&store), (3991..=4000).collect::<Vec<_>>());
    // Beyond the end, as after the installation of a snapshot.
    store.log.purge_to(5000, "term 4".into(), acks.done("purge"));
    assert_eq!((store.log.first_index(), store.log.last_index()), (None, None));
    store.log.append(vec![record(4001, 1)], acks.refused());
    append(&store, 5001..=5002, 10, &acks);
    acks.expect(3);
    drop(store);
    let store = Store::open(dir.path(), Options::default()).unwrap();
    assert_eq!(store.log.purged().unwrap(), (5000, "term 4".into()));
    assert_eq!(indexes(&store), [5001, 5002]);
}

#[test]
fn entries_of_every_size() {
    let dir = tempdir().unwrap();
    let options = Options {
        tail_bytes: 0,
        ..Options::default()
    };
    let store = Store::open(dir.path(), options.clone()).unwrap();
    let acks = Acks::default();
    let lens = [
        0,
        1,
        16_374,
        16_375,
        16_376,
        32_750,
        32_751,
        100_000,
        17 << 20,
        3,
        0,
        16_376,
    ];
    let records: Vec<_> = (1..).zip(lens).map(|(index, len)| record(index, len)).collect();
    store.log.append(records.clone(), acks.done("append"));
    assert_eq!(
        store.log.read(0, 99, usize::MAX).unwrap(),
        records,
        "before they are on disk"
    );
    acks.expect(1);
    assert_eq!(store.log.cached_bytes(), 0);
    assert_eq!(store.log.read(0, 99, usize::MAX).unwrap(), records, "from disk");
    assert_eq!(
        store.log.read(9, 99, 10).unwrap(),
        records[8..9],
        "one entry however large"
    );
    assert_eq!(store.log.read(10, 99, 10).unwrap(), records[9..11]);
    assert_eq!(store.log.read_cached(9, 10, 10), None);
    drop(store);
    let store = Store::open(dir.path(), options).unwrap();
    assert_eq!(
        store.log.read(0, 99, usize::MAX).unwrap(),
        records,
        "after a restart"
    );
    store.log.truncate_from(9, acks.done("truncate"));
    acks.expect(1);
    assert_eq!(store.log.read(0, 99, usize::MAX).unwrap(), records[..8]);
    assert_eq!(
        std::fs::read_dir(dir.path().join("data/log/blobs"))
            .unwrap()
            .count(),
        0,
        "no blob file"
    );
}

#[test]
fn a_closed_store_refuses() {
    let dir = tempdir().unwrap();
    let store = Store::open(dir.path(), Options::default()).unwrap();
    let log = store.log.clone();
    store.close().unwrap();
    assert!(matches!(log.flush(), Err(StorageError::Closed)));
    log.put_committed("late".into());
    let acks = Acks::default();
    log.append(vec![record(1, 1)], acks.refused());
    acks.expect(1);
}

#[test]
fn a_callback_may_drop_the_last_handle() {
    let dir = tempdir().unwrap();
    let store = Store::open(dir.path(), Options::default()).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let log = store.log.clone();
    let held = store.clone();
    log.append(
        vec![record(1, 1)],
        Box::new(move |result| {
            drop(held);
            sender.send(result).unwrap();
        }),
    );
    drop((log, store));
    receiver.recv().unwrap().unwrap();
}
