//! Images: written, replaced, read while replaced, and left unfinished.

mod common;

use std::path::Path;

use common::{Acks, append};
use quorate_storage::{Options, SnapshotInfo, Snapshots, StorageError, Store};
use tempfile::tempdir;

fn options() -> Options {
    Options {
        snapshot_bytes_per_second: None,
        ..Options::default()
    }
}

fn image(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(7).wrapping_add(seed))
        .collect()
}

fn write(snapshots: &Snapshots, seed: u8, len: usize, meta: &'static str) -> SnapshotInfo {
    let mut writer = snapshots.create().unwrap();
    for piece in image(seed, len).chunks(70_001) {
        writer.write(piece).unwrap();
    }
    writer.finish(meta.into()).unwrap()
}

fn read(snapshots: &Snapshots, info: &SnapshotInfo) -> Vec<u8> {
    snapshots
        .read(info)
        .unwrap()
        .map(Result::unwrap)
        .collect::<Vec<_>>()
        .concat()
}

fn images(dir: &Path) -> usize {
    std::fs::read_dir(dir.join("data/snap")).unwrap().count()
}

#[test]
fn the_last_finished_image_is_the_current_one_also_after_a_restart() {
    let dir = tempdir().unwrap();
    let store = Store::open(dir.path(), options()).unwrap();
    assert_eq!(store.snapshots.current(), None);
    for (seed, len) in [(1, 0), (2, 1), (3, 16_379), (4, 16_380), (5, 3_000_000)] {
        let info = write(&store.snapshots, seed, len, "meta");
        assert_eq!((info.bytes, &info.meta[..]), (len as u64, &b"meta"[..]));
        assert_eq!(store.snapshots.current().as_ref(), Some(&info));
        assert_eq!(read(&store.snapshots, &info), image(seed, len));
        assert_eq!(images(dir.path()), 1, "the one before is gone");
    }
    let info = store.snapshots.current().unwrap();
    drop(store);
    let store = Store::open(dir.path(), options()).unwrap();
    assert_eq!(store.snapshots.current().as_ref(), Some(&info));
    assert_eq!(read(&store.snapshots, &info), image(5, 3_000_000));
}

#[test]
fn a_reader_keeps_its_image_alive() {
    let dir = tempdir().unwrap();
    let store = Store::open(dir.path(), options()).unwrap();
    let old = write(&store.snapshots, 1, 200_000, "old");
    let mut reader = store.snapshots.read(&old).unwrap();
    let other = store.snapshots.read(&old).unwrap();
    let first = reader.next().unwrap().unwrap();
    let new = write(&store.snapshots, 2, 100, "new");
    assert_eq!(images(dir.path()), 2);
    let rest: Vec<_> = reader.map(Result::unwrap).collect();
    assert_eq!([&first[..], &rest.concat()].concat(), image(1, 200_000));
    assert_eq!(images(dir.path()), 2, "another reader has it");
    drop(other);
    assert_eq!(images(dir.path()), 1);
    assert!(matches!(
        store.snapshots.read(&old),
        Err(StorageError::SnapshotReplaced)
    ));
    assert_eq!(read(&store.snapshots, &new), image(2, 100));
}

#[test]
fn an_unfinished_image_is_never_seen() {
    let dir = tempdir().unwrap();
    let store = Store::open(dir.path(), options()).unwrap();
    let info = write(&store.snapshots, 1, 1000, "good");
    let mut writer = store.snapshots.create().unwrap();
    writer.write(&image(2, 100_000)).unwrap();
    drop(writer);
    assert_eq!(images(dir.path()), 1, "dropped");
    let mut writer = store.snapshots.create().unwrap();
    writer.write(&image(3, 100_000)).unwrap();
    // As if the process had died here.
    std::mem::forget(writer);
    assert_eq!(store.snapshots.current().as_ref(), Some(&info));
    let copy = tempdir().unwrap();
    store.log.flush().unwrap();
    common::copy_dir(dir.path(), copy.path());
    let reopened = Store::open(copy.path(), options()).unwrap();
    assert_eq!(images(copy.path()), 1, "removed at open");
    assert_eq!(
        read(&reopened.snapshots, &reopened.snapshots.current().unwrap()),
        image(1, 1000)
    );
}

#[test]
fn a_pointer_waits_for_the_log_before_it() {
    let dir = tempdir().unwrap();
    let store = Store::open(dir.path(), options()).unwrap();
    let acks = Acks::default();
    append(&store, 1..=1000, 1000, &acks);
    write(&store.snapshots, 1, 10, "at 1000");
    // The pointer is durable, so the answer to the append was given before.
    acks.expect(1);
}

#[test]
fn too_much_meta_is_refused() {
    let dir = tempdir().unwrap();
    let store = Store::open(dir.path(), options()).unwrap();
    let writer = store.snapshots.create().unwrap();
    assert!(matches!(
        writer.finish(vec![0; 20_000].into()),
        Err(StorageError::TooLarge { .. })
    ));
    assert!(store.log.failed().is_none());
    let mut writer = store.snapshots.create().unwrap();
    writer.write(b"x").unwrap();
    writer.finish(vec![0; 16_000].into()).unwrap();
}

#[test]
fn a_damaged_image_is_not_returned() {
    let dir = tempdir().unwrap();
    let store = Store::open(dir.path(), options()).unwrap();
    let info = write(&store.snapshots, 1, 1_000_000, "meta");
    let path = std::fs::read_dir(dir.path().join("data/snap"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let db = path.join("db");
    let mut bytes = std::fs::read(&db).unwrap();
    for at in (100_000..bytes.len()).step_by(50_000) {
        bytes[at] ^= 0x10;
    }
    std::fs::write(&db, bytes).unwrap();
    let good = store
        .snapshots
        .read(&info)
        .is_ok_and(|reader| reader.into_iter().all(|piece| piece.is_ok()));
    assert!(!good, "damage went unnoticed");
    assert!(
        store.log.failed().is_none(),
        "a bad image alone does not end the store"
    );
}

#[test]
fn the_throttle_holds() {
    let dir = tempdir().unwrap();
    let options = Options {
        snapshot_bytes_per_second: Some(256 << 10),
        ..Options::default()
    };
    let store = Store::open(dir.path(), options).unwrap();
    let start = std::time::Instant::now();
    let mut writer = store.snapshots.create().unwrap();
    writer.write(&image(1, 160 << 10)).unwrap();
    assert!(start.elapsed().as_millis() >= 400, "{:?}", start.elapsed());
    // Sixteen seconds' worth.
    let start = std::time::Instant::now();
    let mut writer = store.snapshots.create().unwrap().unthrottled();
    writer.write(&image(1, 4 << 20)).unwrap();
    assert!(start.elapsed().as_secs() < 12, "{:?}", start.elapsed());
}
