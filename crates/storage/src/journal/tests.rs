use std::time::Duration;

use super::*;

fn options() -> Options {
    Options {
        journal_bytes: 1 << 20,
        journal_age: Duration::from_secs(3_600),
        ..Options::default()
    }
}

fn open(dir: &Path) -> Journal {
    Journal::open(dir, 7, &options())
}

/// Covers ten entries, a second each.
fn tenth(number: u64) -> Coverage {
    Coverage {
        first: number * 10 + 1,
        last: number * 10 + 10,
        from_ms: number * 10_000,
        until_ms: number * 10_000 + 9_000,
        lowest: number,
    }
}

fn body(number: u64, len: usize) -> Bytes {
    (0..len).map(|at| (at as u64 * 31 + number) as u8).collect()
}

fn append(journal: &Journal, numbers: std::ops::Range<u64>, len: usize) {
    for number in numbers {
        assert!(journal.append(tenth(number), body(number, len)));
    }
}

fn firsts(journal: &Journal) -> Vec<u64> {
    journal.chunks().iter().map(|coverage| coverage.first).collect()
}

fn file_names(dir: &Path) -> Vec<String> {
    files::names(dir).unwrap()
}

#[test]
fn a_header_looks_like_this() {
    let coverage = Coverage {
        first: 1,
        last: 2,
        from_ms: 3,
        until_ms: 4,
        lowest: 5,
    };
    let header = chunk::header(6, &coverage, b"body");
    let mut sample = b"qjournal\x01\0\0\0\x06\0\0\0\0\0\0\0".to_vec();
    for number in 1..=5_u64 {
        sample.extend(number.to_le_bytes());
    }
    sample.extend([4, 0, 0, 0]);
    sample.extend(crc32fast::hash(b"body").to_le_bytes());
    sample.extend(crc32fast::hash(&sample).to_le_bytes());
    assert_eq!(header[..], sample);
}

#[test]
fn chunks_are_there_at_once_and_after_a_restart_if_they_were_synced() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    append(&journal, 0..3, 1_000);
    assert_eq!(firsts(&journal), [1, 11, 21]);
    assert_eq!(journal.read(11), Some(body(1, 1_000)), "written or not");
    journal.sync();
    append(&journal, 3..4, 1_000);
    assert_eq!(journal.last(), Some(40));
    let stats = journal.stats();
    assert_eq!(
        (stats.chunks, stats.gaps, stats.lost, stats.damaged),
        (4, 0, 0, 0)
    );
    assert_eq!(stats.bytes, 4 * (1_000 + HEADER_BYTES as u64));
    drop(journal);

    let journal = open(dir.path());
    assert_eq!(
        journal.chunks(),
        [tenth(0), tenth(1), tenth(2)],
        "the fourth follows from the log again"
    );
    for number in 0..3 {
        assert_eq!(journal.read(number * 10 + 1), Some(body(number, 1_000)));
    }
    append(&journal, 3..4, 10);
    assert_eq!(journal.stats().gaps, 0);
}

#[test]
fn what_a_crash_tore_is_not_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    append(&journal, 0..1, 100);
    journal.sync();
    append(&journal, 1..3, 100);
    drop(journal);
    // The system died: one file was never written, and one only half.
    let unsynced: Vec<_> = file_names(dir.path())
        .into_iter()
        .filter(|name| name.ends_with(".new"))
        .collect();
    assert_eq!(unsynced.len(), 2);
    fs::write(dir.path().join(&unsynced[0]), b"").unwrap();
    fs::write(dir.path().join(&unsynced[1]), body(9, 50)).unwrap();

    let journal = open(dir.path());
    assert_eq!(journal.chunks(), [tenth(0)]);
    assert_eq!(
        journal.stats().damaged,
        0,
        "a crash damages nothing that was confirmed"
    );
    assert_eq!(file_names(dir.path()).len(), 1);
}

#[test]
fn a_flipped_bit_or_a_cut_costs_one_chunk_and_leaves_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    append(&journal, 0..5, 40);
    journal.sync();
    drop(journal);
    let names = file_names(dir.path());
    let path = dir.path().join(&names[2]);
    let sound = fs::read(&path).unwrap();

    for bit in 0..sound.len() * 8 {
        let mut flipped = sound.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &flipped).unwrap();
        let journal = open(dir.path());
        assert_eq!(journal.read(21), None, "bit {bit}");
        let stats = journal.stats();
        assert_eq!((stats.chunks, stats.gaps, stats.damaged), (4, 1, 1), "bit {bit}");
        assert_eq!(journal.read(31), Some(body(3, 40)));
        assert!(!path.exists());
    }
    for len in 0..sound.len() {
        fs::write(&path, &sound[..len]).unwrap();
        let journal = open(dir.path());
        assert_eq!(journal.stats().damaged, 1, "{len} bytes");
        assert_eq!(firsts(&journal), [1, 11, 31, 41]);
    }
}

#[test]
fn a_journal_of_another_node_is_not_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    append(&journal, 0..2, 40);
    journal.sync();
    drop(journal);
    let other = Journal::open(dir.path(), 8, &options());
    assert_eq!(other.chunks(), []);
    assert_eq!(other.stats().damaged, 2);
}

#[test]
fn the_oldest_chunks_make_room_for_new_ones() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    // The bound is a mebibyte.
    for number in 0..40 {
        append(&journal, number..number + 1, 100_000);
        journal.sync();
    }
    let stats = journal.stats();
    assert!(stats.bytes <= 1 << 20, "{stats:?}");
    assert_eq!(stats.chunks, 10);
    assert_eq!(journal.last(), Some(400));
    assert_eq!(file_names(dir.path()).len(), 10);
    drop(journal);

    let smaller = Options {
        journal_bytes: 250_000,
        ..options()
    };
    let journal = Journal::open(dir.path(), 7, &smaller);
    assert_eq!(
        journal.stats().chunks,
        2,
        "a smaller bound holds from the next start on"
    );
}

#[test]
fn chunks_go_when_they_are_too_old() {
    let dir = tempfile::tempdir().unwrap();
    let young = Options {
        journal_age: Duration::from_secs(25),
        ..options()
    };
    let journal = Journal::open(dir.path(), 7, &young);
    append(&journal, 0..6, 10);
    journal.sync();
    // The last thing happened in second 59: what ended before second 34 is too old.
    assert_eq!(firsts(&journal), [31, 41, 51]);
    assert_eq!(journal.stats().gaps, 0, "what was pruned is no gap");
}

#[test]
fn a_disk_that_fails_costs_chunks_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (path, away) = (dir.path().join("journal"), dir.path().join("away"));
    let journal = open(&path);
    append(&journal, 0..2, 10);
    journal.sync();

    fs::rename(&path, &away).unwrap();
    append(&journal, 2..4, 10);
    assert!(!journal.sync());
    let stats = journal.stats();
    assert_eq!((stats.chunks, stats.lost), (2, 2));

    fs::rename(&away, &path).unwrap();
    append(&journal, 4..5, 10);
    assert!(journal.sync(), "what is lost was told before");
    let stats = journal.stats();
    assert_eq!((stats.chunks, stats.gaps, stats.lost), (3, 1, 2));
    drop(journal);
    assert_eq!(firsts(&open(&path)), [1, 11, 41]);
}

#[test]
fn a_directory_that_cannot_be_had_turns_the_journal_off() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    fs::write(&path, b"a file").unwrap();
    let journal = open(&path);
    assert!(!journal.is_on());
    assert!(!journal.append(tenth(0), body(0, 10)));
    journal.sync();
    assert_eq!(journal.chunks(), []);
}

#[test]
fn without_room_there_is_no_journal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let journal = open(&path);
    append(&journal, 0..1, 10);
    journal.sync();
    drop(journal);
    let off = Options {
        journal_bytes: 0,
        ..options()
    };
    let journal = Journal::open(&path, 7, &off);
    assert!(!journal.is_on());
    assert_eq!(journal.chunks(), []);
    assert!(!path.exists());
}

#[test]
fn a_chunk_that_does_not_come_after_all_others_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    append(&journal, 0..2, 10);
    assert!(!journal.append(tenth(1), body(1, 10)));
    let backwards = Coverage {
        first: 50,
        last: 49,
        ..tenth(5)
    };
    assert!(!journal.append(backwards, body(1, 10)));
    assert_eq!(journal.last(), Some(20));
}

#[test]
fn a_closed_journal_takes_nothing_and_can_still_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    append(&journal, 0..1, 10);
    journal.close();
    journal.close();
    assert!(!journal.append(tenth(1), body(1, 10)));
    journal.sync();
    assert_eq!(journal.read(1), Some(body(0, 10)));
}

#[test]
fn a_chunk_that_the_caller_cannot_read_is_taken_out() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    append(&journal, 0..3, 10);
    journal.sync();
    journal.discard(11);
    assert_eq!(journal.stats().damaged, 1);
    assert_eq!(firsts(&journal), [1, 21]);
    drop(journal);
    assert_eq!(firsts(&open(dir.path())), [1, 21]);
}
