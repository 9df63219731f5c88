//! Directories that must not be used, and stay as they are.

mod common;

use std::fs;
use std::path::Path;

use common::{Acks, append, copy_dir, fingerprint, record};
use quorate_storage::{OpenError, Options, Store};
use tempfile::{TempDir, tempdir};

/// A directory with some of everything, closed in an orderly way.
fn filled() -> TempDir {
    let dir = tempdir().unwrap();
    let options = Options {
        snapshot_bytes_per_second: None,
        ..Options::default()
    };
    let store = Store::open(dir.path(), options).unwrap();
    let acks = Acks::default();
    append(&store, 1..=300, 1000, &acks);
    let mut writer = store.snapshots.create().unwrap();
    writer.write(&[7; 50_000]).unwrap();
    writer.finish("meta".into()).unwrap();
    store.log.purge_to(10, "marker".into(), acks.done("purge"));
    append(&store, 301..=2000, 1000, &acks);
    store.log.put_vote("vote".into(), acks.done("vote"));
    acks.expect(4);
    for indexes in [0..50, 50..100] {
        // In a volume each.
        store.contents.begin_volume().unwrap();
        store
            .contents
            .put_all(&mut indexes.map(|index| (index, 0, record(index, 500).bytes)))
            .unwrap();
    }
    store.close().unwrap();
    dir
}

/// Opening is refused, the message names the file, and not a byte changes.
fn refused_untouched(dir: &Path, file: &str) -> OpenError {
    let before = fingerprint(dir);
    let error = Store::open(dir, Options::default())
        .err()
        .expect("opening must be refused");
    assert_eq!(fingerprint(dir), before, "a refused open changed something");
    assert!(error.to_string().contains(file), "{error}");
    error
}

#[test]
fn a_second_store_is_locked_out() {
    let dir = tempdir().unwrap();
    let store = Store::open(dir.path(), Options::default()).unwrap();
    let error = Store::open(dir.path(), Options::default()).err().unwrap();
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
    let log = store.log.clone();
    drop(store);
    let error = Store::open(dir.path(), Options::default()).err().unwrap();
    assert!(
        matches!(error, OpenError::Locked { .. }),
        "a clone of a handle keeps the lock: {error}"
    );
    drop(log);
    Store::open(dir.path(), Options::default()).unwrap();
}

#[test]
fn foreign_directories() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    let error = refused_untouched(dir.path(), "notes.txt");
    assert!(matches!(error, OpenError::Foreign { .. }), "{error}");

    let dir = tempdir().unwrap();
    fs::create_dir(dir.path().join("lost+found")).unwrap();
    Store::open(dir.path(), Options::default()).unwrap();
}

#[test]
fn a_newer_format() {
    let dir = filled();
    let body = "quorate data directory\nformat 3\nnode 0000000000000001\nsomething new\n";
    let text = format!("{body}check {:08x}\n", crc32fast::hash(body.as_bytes()));
    fs::write(dir.path().join("IDENTITY"), text).unwrap();
    let error = refused_untouched(dir.path(), "IDENTITY");
    assert!(
        matches!(
            error,
            OpenError::NewerFormat {
                found: 3,
                known: 2,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn missing_and_damaged_files() {
    let dir = filled();
    let image = fs::read_dir(dir.path().join("data/snap"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let image = image
        .strip_prefix(dir.path())
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let files = [
        "IDENTITY".into(),
        "progress".into(),
        "progress-contents".into(),
        "data/log/conf".into(),
        "data/log/db".into(),
        "data/contents/VOLUMES".into(),
        "data/contents/0000000000000001/conf".into(),
        "data/contents/0000000000000002/conf".into(),
        "data/contents/0000000000000002/db".into(),
        format!("{image}/conf"),
        format!("{image}/db"),
    ];
    for file in &files {
        let copy = tempdir().unwrap();
        copy_dir(dir.path(), copy.path());
        fs::remove_file(copy.path().join(file)).unwrap();
        if file.starts_with(&image) {
            // Only known once the log database is open.
            let error = Store::open(copy.path(), Options::default()).err().unwrap();
            assert!(
                matches!(&error, OpenError::Damaged { .. }) && error.to_string().contains(file),
                "{error}"
            );
        } else {
            let error = refused_untouched(copy.path(), file);
            assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
        }
    }
    for file in files.iter().filter(|file| {
        ["conf", "IDENTITY", "VOLUMES"]
            .iter()
            .any(|end| file.ends_with(end))
    }) {
        let copy = tempdir().unwrap();
        copy_dir(dir.path(), copy.path());
        let path = copy.path().join(file);
        let mut bytes = fs::read(&path).unwrap();
        bytes[20] ^= 4;
        fs::write(&path, bytes).unwrap();
        let error = Store::open(copy.path(), Options::default()).err().expect(file);
        assert!(
            matches!(&error, OpenError::Damaged { .. }) && error.to_string().contains(file),
            "{error}"
        );
        assert!(error.to_string().contains("it joins as a new node"), "{error}");
    }
}

#[test]
fn the_log_of_another_node() {
    let (one, other) = (filled(), filled());
    for part in ["data/log", "data/contents"] {
        let mixed = tempdir().unwrap();
        copy_dir(one.path(), mixed.path());
        fs::remove_dir_all(mixed.path().join(part)).unwrap();
        copy_dir(&other.path().join(part), &mixed.path().join(part));
        let error = Store::open(mixed.path(), Options::default()).err().unwrap();
        assert!(
            error.to_string().contains(part) && error.to_string().contains("belongs to node"),
            "{error}"
        );
    }
}

#[test]
fn an_older_copy_of_a_database() {
    for part in ["data/log", "data/contents"] {
        let dir = filled();
        let old = tempdir().unwrap();
        copy_dir(dir.path(), old.path());
        let store = Store::open(dir.path(), Options::default()).unwrap();
        let acks = Acks::default();
        append(&store, 2001..=2001, 10, &acks);
        acks.expect(1);
        let mut items = [(160, 0, record(160, 10).bytes)].into_iter();
        store.contents.put_all(&mut items).unwrap();
        store.close().unwrap();
        fs::remove_dir_all(dir.path().join(part)).unwrap();
        copy_dir(&old.path().join(part), &dir.path().join(part));
        for _ in 0..2 {
            let error = Store::open(dir.path(), Options::default())
                .err()
                .expect("must be refused, again and again");
            assert!(
                error.to_string().contains(part) && error.to_string().contains("was confirmed"),
                "{error}"
            );
        }
    }
}

#[test]
fn volumes_that_are_missing_foreign_or_not_at_their_end() {
    let dir = filled();
    let volumes = Path::new("data/contents");
    let (first, second) = ("0000000000000001", "0000000000000002");
    let copy = |name: &str| {
        let copy = tempdir().unwrap();
        copy_dir(dir.path(), copy.path());
        let path = copy.path().join(volumes).join(name);
        (copy, path)
    };

    for name in [first, second] {
        let (copy, path) = copy(name);
        fs::remove_dir_all(path).unwrap();
        refused_untouched(copy.path(), name);
    }

    let other = filled();
    for name in [first, second] {
        let (copy, path) = copy(name);
        fs::remove_dir_all(&path).unwrap();
        copy_dir(&other.path().join(volumes).join(name), &path);
        let error = Store::open(copy.path(), Options::default()).err().unwrap();
        assert!(
            error.to_string().contains(name) && error.to_string().contains("belongs to node"),
            "{error}"
        );
    }

    // The first one as it was before the second was begun: what came after that copy would be missing.
    let dir = tempdir().unwrap();
    let put = |store: &Store, index| {
        let mut items = [(index, 0, record(index, 10).bytes)].into_iter();
        store.contents.put_all(&mut items).unwrap();
    };
    let store = Store::open(dir.path(), Options::default()).unwrap();
    put(&store, 1);
    store.close().unwrap();
    let (unsealed, sealed) = (tempdir().unwrap(), tempdir().unwrap());
    let path = dir.path().join(volumes).join(first);
    copy_dir(&path, unsealed.path());
    let store = Store::open(dir.path(), Options::default()).unwrap();
    put(&store, 2);
    store.contents.begin_volume().unwrap();
    put(&store, 3);
    store.close().unwrap();
    copy_dir(&path, sealed.path());
    fs::remove_dir_all(&path).unwrap();
    copy_dir(unsealed.path(), &path);
    // What is not listed stays while the directory is refused.
    let unlisted = dir.path().join(volumes).join("0000000000000009");
    fs::create_dir(&unlisted).unwrap();
    fs::write(unlisted.join("conf"), "half").unwrap();
    for _ in 0..2 {
        let error = Store::open(dir.path(), Options::default()).err().unwrap();
        assert!(
            error.to_string().contains(first) && error.to_string().contains("its end is missing"),
            "{error}"
        );
        assert!(unlisted.exists());
    }
    fs::remove_dir_all(&path).unwrap();
    copy_dir(sealed.path(), &path);
    let store = Store::open(dir.path(), Options::default()).unwrap();
    assert!(!unlisted.exists());
    assert_eq!(store.contents.range((0, 0)).count(), 3);
}

/// One of `of` ways to damage a file: a flipped bit somewhere, or now and then a missing end.
fn damage(original: &[u8], attempt: usize, of: usize) -> Vec<u8> {
    let mut bytes = original.to_vec();
    if attempt % 4 == 3 {
        bytes.truncate(bytes.len() * (attempt + 1) / (of + 4));
    } else {
        let at = bytes.len() / of * attempt + attempt * 37;
        bytes[at] ^= 1 << (attempt % 8);
    }
    bytes
}

/// Flipped bits and cut ends in the log database: either nothing of value was hit, and everything is there,
/// or opening is refused. Nothing is ever silently lost.
#[test]
fn damage_inside_the_log_is_never_silent() {
    let dir = filled();
    let db = Path::new("data/log/db");
    let original = fs::read(dir.path().join(db)).unwrap();
    let mut refused = 0;
    const TRIES: usize = 40;
    for attempt in 0..TRIES {
        let copy = tempdir().unwrap();
        copy_dir(dir.path(), copy.path());
        fs::write(copy.path().join(db), damage(&original, attempt, TRIES)).unwrap();
        match Store::open(copy.path(), Options::default()) {
            Ok(store) => {
                let records = store.log.read(0, u64::MAX, usize::MAX).unwrap();
                let expected: Vec<_> = (11..=2000).map(|index| record(index, 1000)).collect();
                assert!(
                    records == expected,
                    "attempt {attempt}: entries were lost without a word"
                );
                assert_eq!(store.log.vote().unwrap(), "vote");
                assert_eq!(store.log.purged().unwrap().0, 10);
                assert_eq!(store.snapshots.current().unwrap().bytes, 50_000);
            }
            Err(error) => {
                assert!(
                    matches!(&error, OpenError::Damaged { .. }),
                    "attempt {attempt}: {error}"
                );
                assert!(
                    error.to_string().contains("data/log/db"),
                    "attempt {attempt}: {error}"
                );
                let again = Store::open(copy.path(), Options::default());
                assert!(
                    again.is_err(),
                    "attempt {attempt}: refused once, then accepted; first {error}"
                );
                refused += 1;
            }
        }
    }
    assert!(
        refused > TRIES / 4,
        "only {refused} of {TRIES} were refused: the test tested nothing"
    );
}

/// The same for the contents, which are not all read at open: a damaged one is an error when it is read.
#[test]
fn damage_inside_the_contents_is_never_silent() {
    for volume in ["data/contents/0000000000000001", "data/contents/0000000000000002"] {
        damage_inside(Path::new(volume));
    }
}

fn damage_inside(volume: &Path) {
    let dir = filled();
    let db = volume.join("db");
    let original = fs::read(dir.path().join(&db)).unwrap();
    let mut noticed = 0;
    const TRIES: usize = 24;
    for attempt in 0..TRIES {
        let copy = tempdir().unwrap();
        copy_dir(dir.path(), copy.path());
        // All that was ever written lies at the front; behind it the segment is empty.
        let used = original.iter().rposition(|byte| *byte != 0).unwrap();
        let damaged = [&damage(&original[..used], attempt, TRIES)[..], &original[used..]].concat();
        fs::write(copy.path().join(&db), damaged).unwrap();
        let Ok(store) = Store::open(copy.path(), Options::default()) else {
            noticed += 1;
            continue;
        };
        for index in 0..100 {
            match store.contents.get(index, 0, 500) {
                Ok(content) => assert_eq!(
                    content,
                    Some(record(index, 500).bytes),
                    "attempt {attempt}: {index}"
                ),
                Err(_) => noticed += 1,
            }
        }
    }
    assert!(
        noticed > TRIES / 4,
        "noticed {noticed} times in {TRIES}: the test tested nothing"
    );
}
