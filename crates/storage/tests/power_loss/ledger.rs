//! The ledger: what the program under test was about to do, and what it was told is durable.
//!
//! One file outside the data directory, one line per fact, each appended by one `write` before the next
//! thing happens. It outlives the process in the page cache, and the shim does not touch it.
//!
//! ```text
//! order BOOK NUMBER WORDS…     about to be given to the store
//! done BOOK NUMBER             the store said that it is durable
//! failed BOOK NUMBER WORDS…    the store said that it could not be done
//! adopt BOOK WORDS…            what was found after a power loss, and is the start of what follows
//! identity NODE INCARNATION    who the store says it is
//! ready                        all was found as it should be; the workload begins
//! bad WORDS…                   it was not
//! ```

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// The part of the store that a fact is about. Each has its own numbers and its own thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Book {
    Log,
    Contents,
    Snapshots,
    Journal,
}

impl Book {
    fn name(self) -> &'static str {
        match self {
            Book::Log => "log",
            Book::Contents => "contents",
            Book::Snapshots => "snapshots",
            Book::Journal => "journal",
        }
    }
}

pub(crate) struct Ledger {
    file: File,
}

impl Ledger {
    pub(crate) fn open(path: &Path) -> Ledger {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .expect("open the ledger");
        Ledger { file }
    }

    pub(crate) fn order(&self, book: Book, number: u64, words: &str) {
        self.line(&format!("order {} {number} {words}", book.name()));
    }

    pub(crate) fn done(&self, book: Book, number: u64) {
        self.line(&format!("done {} {number}", book.name()));
    }

    pub(crate) fn failed(&self, book: Book, number: u64, what: &str) {
        self.line(&format!("failed {} {number} {what}", book.name()));
    }

    pub(crate) fn adopt(&self, book: Book, words: &str) {
        self.line(&format!("adopt {} {words}", book.name()));
    }

    pub(crate) fn identity(&self, node: u64, incarnation: u64) {
        self.line(&format!("identity {node} {incarnation}"));
    }

    pub(crate) fn ready(&self) {
        self.line("ready");
    }

    pub(crate) fn bad(&self, what: &str) {
        self.line(&format!("bad {what}"));
    }

    fn line(&self, line: &str) {
        let line = line.replace('\n', " ");
        (&self.file)
            .write_all(format!("{line}\n").as_bytes())
            .expect("write the ledger");
    }
}

/// The facts of one book, since the state of that book was last known for sure.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// The words of the last `adopt`.
    pub(crate) adopted: Option<String>,
    /// The orders since then, with their numbers.
    pub(crate) orders: Vec<(u64, String)>,
    /// How many of them are over: all up to this place in `orders`, and done but for those that failed.
    pub(crate) done: usize,
    /// Those of which the store said that they could not be done. They may have been, all the same.
    pub(crate) failed: BTreeSet<u64>,
    /// The first number that was never used.
    pub(crate) next: u64,
}

impl Facts {
    pub(crate) fn read(ledger: &str, book: Book) -> Facts {
        let mut facts = Facts::default();
        // A kill can cut the last line short.
        let whole = ledger.rsplit_once('\n').map_or("", |(whole, _)| whole);
        for line in whole.lines() {
            let mut words = line.splitn(3, ' ');
            let (Some(kind), Some(name), rest) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            if name != book.name() {
                continue;
            }
            let rest = rest.unwrap_or("");
            let (number, words) = rest.split_once(' ').unwrap_or((rest, ""));
            match kind {
                "order" => {
                    let number = number.parse().expect("a number");
                    facts.orders.push((number, words.to_owned()));
                    facts.next = number + 1;
                }
                "done" => {
                    let number: u64 = number.parse().expect("a number");
                    let place = facts.orders.partition_point(|(order, _)| *order <= number);
                    facts.done = facts.done.max(place);
                }
                "failed" => {
                    facts.failed.insert(number.parse().expect("a number"));
                }
                "adopt" => {
                    facts.failed.clear();
                    facts.adopted = Some(rest.to_owned());
                    facts.orders.clear();
                    facts.done = 0;
                }
                _ => {}
            }
        }
        facts
    }
}
