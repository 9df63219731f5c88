//! Contents: put, got, walked, removed and swept.

use bytes::Bytes;
use quorate_storage::{Content, Options, StorageError, Store};
use tempfile::{TempDir, tempdir};

const LENS: [usize; 8] = [0, 1, 100, 16_375, 16_376, 32_750, 100_000, 3 << 20];

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

fn content(index: u64, number: u32) -> Content {
    let len = LENS[(index as usize + number as usize) % LENS.len()];
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
        std::fs::read_dir(dir.path().join("data/contents/blobs"))
            .unwrap()
            .count(),
        0,
        "no blob file"
    );
}

#[test]
fn removal_takes_all_parts() {
    let (_dir, store) = open();
    let expected = contents();
    put(&store, &expected);
    let (gone, kept): (Vec<_>, Vec<_>) = expected.into_iter().partition(|content| content.index % 2 == 0);
    let mut names = gone
        .iter()
        .map(|content| (content.index, content.number, content.bytes.len()));
    store.contents.remove_all(&mut names).unwrap();
    store.contents.remove_all(&mut [(99, 0, 5)].into_iter()).unwrap();
    assert_eq!(all(&store), kept);
}

#[test]
fn a_sweep_keeps_what_lives_and_what_is_newer() {
    let (dir, store) = open();
    let expected = contents();
    put(&store, &expected);
    assert!(!store.contents.sweep_pending().unwrap());
    store.contents.mark_sweep_pending().unwrap();
    drop(store);
    let store = Store::open(dir.path(), options()).unwrap();
    assert!(store.contents.sweep_pending().unwrap());
    let live = [(0, 7), (2, 1), (3, 0), (3, 2), (5, 9)];
    let removed = store.contents.retain(&mut live.into_iter(), 6).unwrap();
    assert!(removed > 15);
    assert!(!store.contents.sweep_pending().unwrap());
    let kept: Vec<_> = expected
        .into_iter()
        .filter(|content| content.index > 6 || live.contains(&(content.index, content.number)))
        .collect();
    assert_eq!(all(&store), kept);
    store.contents.retain(&mut std::iter::empty(), u64::MAX).unwrap();
    assert_eq!(all(&store), []);
}

#[test]
fn a_sweep_of_many_slices() {
    let (_dir, store) = open();
    let small = |index| Content {
        index,
        number: 0,
        bytes: Bytes::copy_from_slice(&index.to_le_bytes()),
    };
    put(&store, &(0..2000).map(small).collect::<Vec<_>>());
    let removed = store
        .contents
        .retain(&mut (0..2000).step_by(3).map(|index| (index, 0)), 2000)
        .unwrap();
    assert_eq!(removed, 1333);
    assert_eq!(all(&store), (0..2000).step_by(3).map(small).collect::<Vec<_>>());
}
