//! What the tests share.
#![allow(dead_code, unreachable_pub)] // each test program uses a part

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use quorate_storage::{Done, Record, Store};

/// Collects answers, and insists that they are as expected and in order.
pub struct Acks {
    given: std::cell::Cell<u64>,
    taken: std::cell::Cell<u64>,
    sender: mpsc::Sender<u64>,
    receiver: mpsc::Receiver<u64>,
}

impl Default for Acks {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel();
        Acks {
            given: 0.into(),
            taken: 0.into(),
            sender,
            receiver,
        }
    }
}

impl Acks {
    fn next(&self, check: impl FnOnce(bool) + Send + 'static) -> Done {
        let number = self.given.get();
        self.given.set(number + 1);
        let sender = self.sender.clone();
        Box::new(move |result| {
            check(result.is_ok());
            let _ = sender.send(number);
        })
    }

    /// A callback that wants success.
    pub fn done(&self, what: &'static str) -> Done {
        self.next(move |ok| assert!(ok, "{what} failed"))
    }

    /// A callback that wants an error.
    pub fn refused(&self) -> Done {
        self.next(|ok| assert!(!ok))
    }

    /// Waits for that many more answers.
    pub fn expect(&self, count: u64) {
        for _ in 0..count {
            let number = self
                .receiver
                .recv_timeout(Duration::from_secs(30))
                .expect("an answer in time");
            assert_eq!(number, self.taken.get(), "answers come in order");
            self.taken.set(number + 1);
        }
        assert!(self.receiver.try_recv().is_err(), "no answer too many");
    }
}

/// An entry whose bytes depend on its index and length.
pub fn record(index: u64, len: usize) -> Record {
    let seed = (index as u8).wrapping_mul(31).wrapping_add(len as u8);
    let bytes: Bytes = (0..len).map(|at| seed.wrapping_add(at as u8)).collect();
    Record { index, bytes }
}

/// Appends a range as one order.
pub fn append(store: &Store, indexes: RangeInclusive<u64>, len: usize, acks: &Acks) {
    store.log.append(
        indexes.map(|index| record(index, len)).collect(),
        acks.done("append"),
    );
}

/// The indexes of all entries.
pub fn indexes(store: &Store) -> Vec<u64> {
    let records = store.log.read(0, u64::MAX, usize::MAX).unwrap();
    records.iter().map(|record| record.index).collect()
}

/// Copies a directory as a crash would leave it, without its lock.
pub fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The bytes of every file below a directory, by path.
pub fn fingerprint(dir: &Path) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
    let mut files = std::collections::BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            files.insert(entry.path(), Vec::new());
            files.extend(fingerprint(&entry.path()));
        } else {
            files.insert(entry.path(), std::fs::read(entry.path()).unwrap());
        }
    }
    files
}
