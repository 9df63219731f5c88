//! What every engine must do, run against each of them.

use std::sync::Arc;

use super::disk::Disk;
use super::memory::Memory;
use super::{Engine, Layout, Space, SpaceName, VALUE_LEN_MAX};

const A: Space = Space(0);
const B: Space = Space(1);

/// Both spaces of a database, kept in either way.
const LAYOUTS: [[SpaceName; 2]; 2] = [
    [("a", Layout::Map), ("b", Layout::Map)],
    [("a", Layout::Slots), ("b", Layout::Slots)],
];

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

fn many_can_be_written_together(engine: &dyn Engine) {
    let pairs = |value: u8| -> Vec<_> {
        let keys = (0..100_u8).map(|key| vec![b'm', key].into());
        keys.map(|key| (key, vec![value; 1000].into())).collect()
    };
    engine.put(A, &[b'm', 50], b"before").unwrap();
    for value in [1, 2] {
        engine.put_all(A, &pairs(value)).unwrap();
        let found: Vec<_> = engine.ascend(A, b"m").map(Result::unwrap).collect();
        assert_eq!(found, pairs(value));
    }
    for (key, _) in pairs(0) {
        engine.remove(A, &key).unwrap();
    }
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
    many_can_be_written_together(&engine);
    the_longest_values_come_back(&engine);
}

#[test]
fn disk() {
    for spaces in LAYOUTS {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let engine = Arc::new(Disk::open(&path, &spaces, 1 << 20).unwrap());
        spaces_are_ordered_maps_of_their_own(&*engine);
        many_can_be_written_together(&*engine);
        the_longest_values_come_back(&*engine);
        assert_eq!(engine.first_blob(), None);
        drop(engine);
        super::disk::inspect(&path).unwrap();
        let engine = Disk::open(&path, &spaces, 1 << 20).unwrap();
        assert_eq!(keys(engine.ascend(A, &[])), [1, 3]);
        assert_eq!(engine.ascend(B, &[]).count(), 100);
    }
}

#[test]
fn disk_survives_a_leftover_of_an_interrupted_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    drop(Disk::open(&path, &LAYOUTS[0], 1 << 20).unwrap());
    std::fs::write(path.join("snap.0000000000001234.generating"), b"half").unwrap();
    Disk::open(&path, &LAYOUTS[0], 1 << 20).unwrap();
}

#[test]
fn slots_are_a_map_whatever_comes_and_after_each_opening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let mut model = std::collections::BTreeMap::new();
    let mut random = 88_172_645_463_325_252_u64;
    for round in 0..20_u64 {
        let engine = Disk::open(&path, &LAYOUTS[1], 1 << 20).unwrap();
        let there = |from: &[u8]| -> Vec<_> { engine.ascend(A, from).map(Result::unwrap).collect() };
        let expected = |model: &std::collections::BTreeMap<bytes::Bytes, bytes::Bytes>| -> Vec<_> {
            model
                .iter()
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect()
        };
        assert_eq!(there(&[]), expected(&model), "at the beginning of round {round}");
        for step in 0..200_u64 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // As a log has it: mostly at the end, sometimes from the beginning, now and then from the end.
            let (first, last) = (model.keys().next().cloned(), model.keys().next_back().cloned());
            match random % 10 {
                0..=4 => {
                    let key = bytes::Bytes::copy_from_slice(&(round * 1000 + step).to_be_bytes());
                    let value = bytes::Bytes::from(vec![step as u8; (random >> 32) as usize % 3000]);
                    engine.put(A, &key, &value).unwrap();
                    model.insert(key, value);
                }
                5 => {
                    if let Some(key) = last {
                        engine.put(A, &key, b"again").unwrap();
                        model.insert(key, bytes::Bytes::from_static(b"again"));
                    }
                }
                6 => {
                    if let Some(key) = last {
                        engine.remove(A, &key).unwrap();
                        model.remove(&key);
                    }
                }
                _ => {
                    if let Some(key) = first {
                        engine.remove(A, &key).unwrap();
                        model.remove(&key);
                    }
                }
            }
        }
        assert_eq!(there(&[]), expected(&model), "at the end of round {round}");
        let mut down: Vec<_> = engine.descend(A, &[0xff; 9]).map(Result::unwrap).collect();
        down.reverse();
        assert_eq!(down, expected(&model));
        engine.flush().unwrap();
    }
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
