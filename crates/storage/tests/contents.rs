//! Contents: put, got, walked, and dropped with their volumes.

#![allow(clippy::print_stdout)] // it tells its seed

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bytes::Bytes;
use quorate_storage::{Content, Options, StorageError, Store};
use tempfile::{TempDir, tempdir};

const LENS: [usize; 8] = [0, 1, 100, 16_363, 16_364, 32_750, 100_000, 3 << 20];

fn open() -> (TempDir, Store) {
    let dir = tempdir().unwrap();
    let store = Store::open(dir.path(), options()).unwrap();
    (dir, store)
}

fn options() -> Options {
    Options {
        snapshot_bytes_per_second: None,
        ..Options::default()
    }
}

/// Volumes of so many bytes.
fn volumes_of(bytes: u64) -> Options {
    Options {
        contents_volume_bytes: bytes,
        contents_cache_bytes: 128 << 20,
        ..options()
    }
}

fn content(index: u64, number: u32) -> Content {
    let len = LENS[(index as usize + number as usize) % LENS.len()];
    of_len(index, number, len)
}

fn of_len(index: u64, number: u32, len: usize) -> Content {
    let bytes: Bytes = (0..len)
        .map(|at| (at as u8) ^ (index as u8) ^ (number as u8).rotate_left(4))
        .collect();
    Content { index, number, bytes }
}

fn contents() -> Vec<Content> {
    (1..=8)
        .flat_map(|index| (0..3).map(move |number| content(index, number)))
        .collect()
}

fn put(store: &Store, contents: &[Content]) -> u64 {
    let mut items = contents
        .iter()
        .map(|content| (content.index, content.number, content.bytes.clone()));
    let bytes = store.contents.put_all(&mut items).unwrap();
    store.contents.flush().unwrap();
    bytes
}

fn all(store: &Store) -> Vec<Content> {
    store.contents.range((0, 0)).map(Result::unwrap).collect()
}

/// The numbers of the volumes that are on disk.
fn volumes(dir: &Path) -> Vec<u64> {
    let mut numbers: Vec<_> = std::fs::read_dir(dir.join("data/contents"))
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name();
            u64::from_str_radix(name.to_str().unwrap(), 16).ok()
        })
        .collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn what_was_put_comes_back_also_after_a_restart() {
    let (dir, store) = open();
    let expected = contents();
    assert_eq!(
        put(&store, &expected),
        expected
            .iter()
            .map(|content| content.bytes.len() as u64)
            .sum::<u64>()
    );
    put(&store, &expected[3..5]);
    assert_eq!(all(&store), expected);
    drop(store);
    let store = Store::open(dir.path(), options()).unwrap();
    assert_eq!(all(&store), expected);
    for Content { index, number, bytes } in &expected {
        assert_eq!(
            store.contents.get(*index, *number, bytes.len()).unwrap().as_ref(),
            Some(bytes)
        );
    }
    assert_eq!(store.contents.get(9, 0, 100).unwrap(), None);
    assert!(
        matches!(store.contents.get(1, 0, 5), Err(StorageError::Corrupt { .. })),
        "of another length"
    );
    let from: Vec<_> = store
        .contents
        .range((4, 1))
        .map(|content| content.unwrap())
        .collect();
    assert_eq!(from, expected[10..]);
    assert_eq!(
        volumes(dir.path()),
        [1, 2],
        "what is written again begins a new one"
    );
    for volume in ["0000000000000001", "0000000000000002"] {
        let blobs = dir.path().join("data/contents").join(volume).join("blobs");
        assert_eq!(std::fs::read_dir(blobs).unwrap().count(), 0, "no blob file");
    }
}

#[test]
fn a_volume_goes_when_nothing_in_it_is_alive() {
    let dir = tempdir().unwrap();
    let store = Store::open(dir.path(), volumes_of(10_000)).unwrap();
    let written: Vec<_> = (1..=100).map(|index| of_len(index, 0, 1000)).collect();
    put(&store, &written);
    assert_eq!(volumes(dir.path()), (1..=10).collect::<Vec<_>>());

    // 31 is in the fourth, and later ones are of entries after 85.
    let live: Vec<_> = (31..=85).map(|index| (index, 0)).collect();
    assert_eq!(store.contents.retain(&live, 85).unwrap(), 3);
    assert_eq!(volumes(dir.path()), (4..=10).collect::<Vec<_>>());
    assert_eq!(all(&store), written[30..]);
    assert_eq!(store.contents.get(30, 0, 1000).unwrap(), None);
    assert_eq!(store.contents.live_bytes(), 70_000);

    let half: Vec<_> = (31..=80).step_by(2).map(|index| (index, 0)).collect();
    assert_eq!(store.contents.retain(&half, 80).unwrap(), 0);
    assert_eq!(
        store.contents.live_bytes(),
        45_000,
        "half of five, and two of later entries"
    );

    // A walk keeps what it has begun with.
    let mut walk = store.contents.range((0, 0));
    assert_eq!(walk.next().unwrap().unwrap(), written[30]);
    assert_eq!(store.contents.retain(&[], 100).unwrap(), 7);
    assert_eq!(all(&store), []);
    assert_eq!(store.contents.live_bytes(), 0);
    assert_eq!(volumes(dir.path()), (4..=11).collect::<Vec<_>>());
    assert!(
        walk.by_ref()
            .map(Result::unwrap)
            .eq(written[31..].iter().cloned())
    );
    drop(walk);
    assert_eq!(volumes(dir.path()), [11]);

    assert_eq!(store.contents.retain(&[], 100).unwrap(), 0);
    put(&store, &written[..1]);
    assert_eq!(volumes(dir.path()), [11], "an empty one is used");
    drop(store);
    let store = Store::open(dir.path(), volumes_of(10_000)).unwrap();
    assert_eq!(all(&store), written[..1]);
}

#[test]
fn a_volume_in_which_little_is_alive_is_rewritten() {
    let dir = tempdir().unwrap();
    let store = Store::open(dir.path(), volumes_of(100_000)).unwrap();
    let written: Vec<_> = (1..=950).map(|index| of_len(index, 0, 1000)).collect();
    put(&store, &written);
    assert_eq!(volumes(dir.path()), (1..=10).collect::<Vec<_>>());
    // One in ten of the first five, all of the others.
    let is_live = |index: &u64| *index > 500 || index.is_multiple_of(10);
    let live: Vec<_> = (1..=950).filter(is_live).map(|index| (index, 0)).collect();
    let kept: Vec<_> = written
        .iter()
        .filter(|content| is_live(&content.index))
        .cloned()
        .collect();
    assert_eq!(store.contents.retain(&live, 950).unwrap(), 5);
    assert_eq!(volumes(dir.path()), (6..=11).collect::<Vec<_>>());
    assert_eq!(all(&store), kept);
    drop(store);
    let store = Store::open(dir.path(), volumes_of(100_000)).unwrap();
    assert_eq!(all(&store), kept);
    assert_eq!(store.contents.retain(&live, 950).unwrap(), 0);
    // What comes next has a place behind what was rewritten.
    put(&store, &[of_len(951, 0, 1000)]);
    assert_eq!(volumes(dir.path()), (6..=11).collect::<Vec<_>>());
}

#[test]
fn small_volumes_are_put_together() {
    let (dir, store) = open();
    let written: Vec<_> = (1..=20).map(|index| of_len(index, 0, 1000)).collect();
    for at in (0..20).rev() {
        put(&store, &written[at..=at]);
    }
    assert_eq!(volumes(dir.path()).len(), 20);
    let live: Vec<_> = (1..=20).map(|index| (index, 0)).collect();
    assert_eq!(store.contents.retain(&live, 20).unwrap(), 19);
    assert_eq!(volumes(dir.path()), [20], "the newest begins with the lowest");
    assert_eq!(all(&store), written);
}

#[test]
fn after_a_new_beginning_older_volumes_can_go() {
    let (dir, store) = open();
    let written: Vec<_> = (1..=20).map(|index| of_len(index, 0, 1000)).collect();
    assert_eq!(store.contents.begin_volume().unwrap(), 1, "the first is empty");
    put(&store, &written[..10]);
    let number = store.contents.begin_volume().unwrap();
    put(&store, &written[5..]);
    assert_eq!(all(&store), written);
    assert_eq!(store.contents.drop_before(number).unwrap(), 1);
    assert_eq!(volumes(dir.path()), [number]);
    assert_eq!(all(&store), written[5..]);
}

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// Whatever is put, dropped, retained and opened again: what is alive is there, and nothing else than was put.
#[test]
fn beside_a_model() {
    let seeds = match std::env::var("QUORATE_CONTENTS_SEED") {
        Ok(seed) => vec![seed.parse().expect("a number")],
        Err(_) => (0..5).collect(),
    };
    for seed in seeds {
        println!("QUORATE_CONTENTS_SEED={seed}");
        model(seed);
    }
}

fn model(seed: u64) {
    let mut rng = Rng(seed);
    let dir = tempdir().unwrap();
    let options = Options {
        // Of the first, hardly any volume stays open.
        contents_cache_bytes: if seed == 0 { 0 } else { 128 << 20 },
        ..volumes_of(20_000 + rng.below(100_000))
    };
    let mut store = Store::open(dir.path(), options.clone()).unwrap();
    let mut put_ever = BTreeMap::new();
    let mut live = BTreeSet::new();
    let mut next = 1;
    let steps = if seed == 0 { 25 } else { 60 };
    for step in 0..steps {
        match rng.below(10) {
            0..=4 => {
                // Now and then some that are there already.
                let from = next
                    - if rng.below(5) == 0 {
                        rng.below(next.min(20))
                    } else {
                        0
                    };
                next += rng.below(8);
                let batch: Vec<_> = (from..next)
                    .flat_map(|index| (0..1 + index % 5).map(move |number| (index, number as u32)))
                    .filter(|id| !put_ever.contains_key(id) || live.contains(id))
                    .map(|(index, number)| {
                        let mut lens = Rng(index * 8 + u64::from(number));
                        let max = if lens.below(10) == 0 { 80_000 } else { 3000 };
                        of_len(index, number, lens.below(max) as usize)
                    })
                    .collect();
                put(&store, &batch);
                live.extend(batch.iter().map(|content| (content.index, content.number)));
                put_ever.extend(
                    batch
                        .into_iter()
                        .map(|content| ((content.index, content.number), content)),
                );
            }
            5 | 6 => {
                // From the front, or anywhere.
                let (share, first) = (rng.below(100), rng.below(2) == 0);
                let until = next * share / 100;
                live.retain(|id| {
                    if first {
                        id.0 > until
                    } else {
                        rng.below(100) > share
                    }
                });
            }
            7 | 8 => {
                let live: Vec<_> = live.iter().copied().collect();
                store.contents.retain(&live, next - 1).unwrap();
            }
            _ => {
                drop(store);
                store = Store::open(dir.path(), options.clone()).unwrap();
            }
        }
        for (index, number) in &live {
            let expected = &put_ever[&(*index, *number)].bytes;
            let found = store.contents.get(*index, *number, expected.len()).unwrap();
            assert_eq!(found.as_ref(), Some(expected), "step {step}: {index}/{number}");
        }
        let walked = all(&store);
        let ids: Vec<_> = walked
            .iter()
            .map(|content| (content.index, content.number))
            .collect();
        assert!(ids.is_sorted_by(|one, next| one < next), "step {step}");
        assert!(live.iter().all(|id| ids.binary_search(id).is_ok()), "step {step}");
        for content in walked {
            assert_eq!(
                &content,
                &put_ever[&(content.index, content.number)],
                "step {step}"
            );
        }
    }
    store.contents.retain(&[], next).unwrap();
    assert_eq!(all(&store), []);
    assert_eq!(volumes(dir.path()).len(), 1);
}
