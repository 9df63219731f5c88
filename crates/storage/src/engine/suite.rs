//! What every engine must do, run against each of them.

use std::sync::Arc;

use super::disk::Disk;
use super::memory::Memory;
use super::{Engine, Space, VALUE_LEN_MAX};

const A: Space = Space(0);
const B: Space = Space(1);

fn keys(walk: super::Walk<'_>) -> Vec<u8> {
    walk.map(|pair| pair.unwrap().0[0]).collect()
}

fn spaces_are_ordered_maps_of_their_own(engine: &dyn Engine) {
    for key in [3_u8, 1, 2] {
        engine.put(A, &[key], &[key]).unwrap();
    }
    engine.put(B, &[9], b"other").unwrap();
    assert_eq!(engine.get(A, &[2]).unwrap().unwrap(), &[2][..]);
    assert_eq!(engine.get(A, &[9]).unwrap(), None);
    assert_eq!(keys(engine.ascend(A, &[2])), [2, 3]);
    assert_eq!(keys(engine.ascend(A, &[])), [1, 2, 3]);
    assert_eq!(keys(engine.descend(A, &[2])), [2, 1]);
    assert_eq!(keys(engine.descend(B, &[200])), [9]);
    engine.put(A, &[2], b"again").unwrap();
    assert_eq!(engine.get(A, &[2]).unwrap().unwrap(), "again");
    engine.remove(A, &[2]).unwrap();
    engine.remove(A, &[77]).unwrap();
    assert_eq!(keys(engine.ascend(A, &[])), [1, 3]);
    engine.flush().unwrap();
}

fn the_longest_values_come_back(engine: &dyn Engine) {
    let value = vec![7; VALUE_LEN_MAX];
    for key in 0..100_u8 {
        engine.put(B, &[key], &value).unwrap();
    }
    engine.flush().unwrap();
    assert!(engine.ascend(B, &[]).all(|pair| pair.unwrap().1 == value));
}

#[test]
fn memory() {
    let engine = Memory::default();
    spaces_are_ordered_maps_of_their_own(&engine);
    the_longest_values_come_back(&engine);
}

#[test]
fn disk() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let engine = Arc::new(Disk::open(&path, &["a", "b"], 1 << 20).unwrap());
    spaces_are_ordered_maps_of_their_own(&*engine);
    the_longest_values_come_back(&*engine);
    assert_eq!(engine.first_blob(), None);
    drop(engine);
    super::disk::inspect(&path).unwrap();
    let engine = Disk::open(&path, &["a", "b"], 1 << 20).unwrap();
    assert_eq!(keys(engine.ascend(A, &[])), [1, 3]);
    assert_eq!(engine.ascend(B, &[]).count(), 100);
}

#[test]
fn disk_survives_a_leftover_of_an_interrupted_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    drop(Disk::open(&path, &["a", "b"], 1 << 20).unwrap());
    std::fs::write(path.join("snap.0000000000001234.generating"), b"half").unwrap();
    Disk::open(&path, &["a", "b"], 1 << 20).unwrap();
}

#[test]
fn memory_crashes_to_a_prefix() {
    let engine = Memory::default();
    engine.put(A, &[1], b"").unwrap();
    engine.flush().unwrap();
    engine.put(A, &[2], b"").unwrap();
    engine.put(B, &[3], b"").unwrap();
    assert_eq!(engine.unflushed(), 2);
    assert_eq!(keys(engine.crash(0).ascend(A, &[])), [1]);
    let kept = engine.crash(1);
    assert_eq!(keys(kept.ascend(A, &[])), [1, 2]);
    assert_eq!(keys(kept.ascend(B, &[])), []);
}
