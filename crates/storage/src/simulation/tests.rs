//! A store on a simulated disk: the same store, through crashes and faults.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use super::{Disk, Region, Step, Unflushed};
use crate::{OpenError, Options, Record, StorageError, Store};

fn open(disk: &Disk) -> Result<Store, OpenError> {
    let options = Options {
        disk: Some(disk.clone()),
        ..Options::default()
    };
    Store::open(Path::new("nowhere"), options)
}

fn record(index: u64) -> Record {
    Record {
        index,
        bytes: Bytes::from(vec![index as u8; 100]),
    }
}

/// Appends, and counts the good answers.
fn append(store: &Store, index: u64, answers: &Arc<AtomicUsize>) {
    let answers = Arc::clone(answers);
    store.log.append(
        vec![record(index)],
        Box::new(move |result| {
            answers.fetch_add(usize::from(result.is_ok()), Ordering::SeqCst);
        }),
    );
}

#[test]
fn a_group_is_written_and_then_flushed_and_then_answered() {
    let disk = Disk::new();
    let woken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&woken);
    disk.on_work(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let store = open(&disk).unwrap();
    assert!(store.identity().created && !store.log.blocks());
    assert_eq!(disk.step(), Step::Idle);
    woken.store(0, Ordering::SeqCst);

    let answers = Arc::default();
    append(&store, 1, &answers);
    append(&store, 2, &answers);
    assert_eq!(woken.load(Ordering::SeqCst), 2);
    assert_eq!(disk.step(), Step::Written);
    append(&store, 3, &answers);
    assert_eq!(answers.load(Ordering::SeqCst), 0);
    assert_eq!(disk.durable_log().unwrap().entries, []);
    assert_eq!(disk.step(), Step::Flushed);
    assert_eq!(answers.load(Ordering::SeqCst), 2);
    assert_eq!(disk.durable_log().unwrap().entries, [record(1), record(2)]);
    // Who waits does the steps that are missing.
    store.log.flush().unwrap();
    assert_eq!(answers.load(Ordering::SeqCst), 3);
    assert_eq!(disk.step(), Step::Idle);
}

#[test]
fn a_crash_takes_what_was_not_flushed_and_leaves_dead_handles() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    let node = store.identity().node_id;
    let answers = Arc::default();
    append(&store, 1, &answers);
    store.log.flush().unwrap();
    append(&store, 2, &answers);
    assert_eq!(disk.step(), Step::Written);
    disk.crash(Unflushed::Lost);
    assert!(disk.stats().writes_lost > 0);

    // The old handles say so, and change nothing.
    assert_eq!(disk.step(), Step::Idle);
    append(&store, 3, &answers);
    assert!(store.log.flush().is_err());
    assert!(store.contents.flush().is_err());
    assert!(store.snapshots.create().is_err());
    assert!(store.log.failed().is_some());
    assert_eq!(answers.load(Ordering::SeqCst), 1);

    let again = open(&disk).unwrap();
    drop(store);
    assert_eq!(again.identity().node_id, node);
    assert_eq!(again.identity().incarnation, 2);
    assert_eq!(again.log.last_index(), Some(1));
    assert!(matches!(open(&disk), Err(OpenError::Locked { .. })));
    drop(again);
    open(&disk).unwrap();
}

#[test]
fn what_a_crash_keeps_is_a_prefix_that_holds_all_that_was_answered() {
    let (mut partial, mut whole) = (0, 0);
    for seed in 0..200 {
        let disk = Disk::new();
        let store = open(&disk).unwrap();
        let answers = Arc::default();
        append(&store, 1, &answers);
        store.log.flush().unwrap();
        for index in 2..=6 {
            // Of several chunks each.
            store.log.append(
                vec![Record {
                    index,
                    bytes: vec![index as u8; 40_000].into(),
                }],
                Box::new(drop),
            );
        }
        assert_eq!(disk.step(), Step::Written);
        disk.crash(Unflushed::Prefix { seed });
        let last = open(&disk).unwrap().log.last_index().unwrap();
        assert!((1..=6).contains(&last), "seed {seed}");
        partial += u32::from(last > 1 && last < 6);
        whole += u32::from(last == 6);
    }
    assert!(
        partial > 20 && whole > 20,
        "{partial} were cut short, {whole} were kept"
    );
}

#[test]
fn an_orderly_end_and_a_killed_process_lose_nothing() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    let answers = Arc::default();
    append(&store, 1, &answers);
    store
        .contents
        .put_all(&mut std::iter::once((1, 0, Bytes::from_static(b"content"))))
        .unwrap();
    store.close().unwrap();
    assert_eq!(answers.load(Ordering::SeqCst), 1);

    let store = open(&disk).unwrap();
    append(&store, 2, &answers);
    assert_eq!(disk.step(), Step::Written);
    disk.crash(Unflushed::Kept);
    let store = open(&disk).unwrap();
    assert_eq!(store.log.last_index(), Some(2));
    assert_eq!(store.contents.get(1, 0, 7).unwrap().unwrap(), "content");
}

#[test]
fn images_survive_from_their_pointer_on() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    let image = vec![7; 50_000];
    let mut writer = store.snapshots.create().unwrap();
    writer.write(&image).unwrap();
    writer.finish(Bytes::from_static(b"meta")).unwrap();
    let mut unfinished = store.snapshots.create().unwrap();
    unfinished.write(&image).unwrap();
    disk.crash(Unflushed::Lost);
    drop(unfinished);

    let store = open(&disk).unwrap();
    let current = store.snapshots.current().unwrap();
    assert_eq!(current.meta, "meta");
    let read: Vec<u8> = store
        .snapshots
        .read(&current)
        .unwrap()
        .flat_map(Result::unwrap)
        .collect();
    assert_eq!(read, image);
    // A newer one replaces it.
    let before = disk.bytes();
    let writer = store.snapshots.create().unwrap();
    writer.finish(Bytes::from_static(b"empty")).unwrap();
    assert!(disk.bytes() < before);
}

#[test]
fn a_failed_sync_stops_the_store_and_what_it_should_have_flushed_is_lost() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    let answers = Arc::default();
    append(&store, 1, &answers);
    store.log.flush().unwrap();
    disk.fail_sync(0);
    append(&store, 2, &answers);
    assert!(store.log.flush().is_err());
    assert!(store.log.failed().is_some());
    disk.crash(Unflushed::Kept);
    assert_eq!(disk.stats().faults, 1);
    let store = open(&disk).unwrap();
    assert_eq!(store.log.last_index(), Some(1));
}

#[test]
fn a_full_disk_and_a_failing_write_stop_the_store() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    disk.set_capacity(Some(disk.bytes()));
    append(&store, 1, &Arc::default());
    assert!(matches!(store.log.flush(), Err(StorageError::Io { .. })));
    disk.crash(Unflushed::Kept);
    assert!(open(&disk).is_err(), "there is no room for a start");
    disk.heal();
    let store = open(&disk).unwrap();
    disk.fail_write(2);
    append(&store, 1, &Arc::default());
    append(&store, 2, &Arc::default());
    assert!(store.log.flush().is_ok(), "two writes: a chunk and its number");
    append(&store, 3, &Arc::default());
    assert!(store.log.flush().is_err());
    assert_eq!(disk.durable_log().unwrap().entries, [record(1), record(2)]);
}

#[test]
fn damage_and_a_rollback_of_the_log_alone_are_found() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    append(&store, 1, &Arc::default());
    store.log.flush().unwrap();
    let old = disk.copy();
    append(&store, 2, &Arc::default());
    store.log.flush().unwrap();
    disk.crash(Unflushed::Kept);
    let new = disk.copy();

    assert!(disk.corrupt(Region::Log, 5));
    assert!(matches!(open(&disk), Err(OpenError::Damaged { .. })));
    assert!(!disk.corrupt(Region::Images, 5), "there is none");

    // A whole older disk is an honest one, as far as it can tell; half of one is not.
    disk.put_back(&old);
    assert_eq!(open(&disk).unwrap().log.last_index(), Some(1));
    disk.put_back(&new);
    let log = super::paths().log;
    let stale = Arc::clone(&old.state.lock().databases[&log]);
    disk.state.lock().databases.insert(log, stale);
    let Err(OpenError::Damaged { what, .. }) = open(&disk) else {
        panic!("it must be refused");
    };
    assert!(what.contains("was confirmed"), "{what}");
    disk.wipe();
    assert!(open(&disk).unwrap().identity().created);
}

#[test]
fn a_log_that_is_cut_short_is_found() {
    // However much of what was not flushed a kill leaves.
    let kills = (0..8).map(|seed| Unflushed::Killed { seed });
    for kill in kills.chain([Unflushed::Kept]) {
        let disk = Disk::new();
        assert_eq!(disk.truncate(100), 0, "there is nothing to cut");
        let store = open(&disk).unwrap();
        append(&store, 1, &Arc::default());
        store.log.flush().unwrap();
        append(&store, 2, &Arc::default());
        store.log.flush().unwrap();
        disk.crash(kill);
        assert!(disk.truncate(1) > 0);
        let Err(OpenError::Damaged { what, .. }) = open(&disk) else {
            panic!("it must be refused after {kill:?}");
        };
        assert!(what.contains("was confirmed"), "{what}");
        assert!(disk.truncate(u64::MAX) > 1, "everything can be cut");
    }
}

#[test]
fn contents_survive_crashes_between_their_volumes() {
    for seed in 0..60 {
        let disk = Disk::new();
        let options = Options {
            disk: Some(disk.clone()),
            contents_volume_bytes: 1000,
            ..Options::default()
        };
        let content = |index: u64| Bytes::from(vec![index as u8; 150]);
        let mut live = Vec::new();
        let mut next = 1;
        for round in 0..12 {
            let store = Store::open(Path::new("nowhere"), options.clone()).unwrap();
            for &(index, number) in &live {
                let found = store.contents.get(index, number, 150).unwrap();
                assert_eq!(found, Some(content(index)), "seed {seed}, round {round}");
            }
            // Whatever was not confirmed is written again.
            let put = next..next + 10;
            let mut items = put.clone().map(|index| (index, 0, content(index)));
            disk.fail_write(seed * 7 % 40 + round);
            let done = store
                .contents
                .put_all(&mut items)
                .and_then(|_| store.contents.flush());
            if done.is_ok() {
                live.extend(put.clone().map(|index| (index, 0)));
                next = put.end;
                live.retain(|(index, _)| index % 9 == 0 || index + 15 > next);
                let _ = store.contents.retain(&live, next - 1);
            }
            disk.heal();
            disk.crash(Unflushed::Prefix {
                seed: seed * 100 + round,
            });
        }
        assert!(next > 1);
    }
}

#[test]
fn damage_in_the_contents_is_found() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    let mut items = (1..=3).map(|index| (index, 0, Bytes::from(vec![7; 9000])));
    store.contents.put_all(&mut items).unwrap();
    store.contents.flush().unwrap();
    assert!(disk.corrupt(Region::Contents, 5));
    let damaged = |index| store.contents.get(index, 0, 9000).is_err();
    assert_eq!((1..=3).filter(|index| damaged(*index)).count(), 1);

    // A volume that is not there.
    store.contents.begin_volume().unwrap();
    disk.crash(Unflushed::Kept);
    let volume = super::paths().contents.join("0000000000000001");
    assert!(disk.state.lock().databases.remove(&volume).is_some());
    let Err(OpenError::Damaged { file, what }) = open(&disk) else {
        panic!("it must be refused");
    };
    assert_eq!((file, &what[..]), (volume, "it is missing"));
}

#[test]
fn a_purge_goes_on_after_a_restart() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    for index in 1..=300 {
        store.log.append(
            vec![Record {
                index,
                bytes: vec![1; 10_000].into(),
            }],
            Box::new(drop),
        );
    }
    store.log.flush().unwrap();
    store.log.purge_to(299, Bytes::from_static(b"m"), Box::new(drop));
    assert_eq!(disk.step(), Step::Written);
    assert_eq!(disk.step(), Step::Flushed);
    assert_eq!(disk.step(), Step::Purged);
    disk.crash(Unflushed::Lost);
    let store = open(&disk).unwrap();
    let full = disk.bytes();
    while disk.step() != Step::Idle {}
    assert!(disk.bytes() * 10 < full, "{} of {full}", disk.bytes());
    assert_eq!(store.log.first_index(), Some(300));
    assert_eq!(disk.durable_log().unwrap().purged.unwrap().0, 299);
}
