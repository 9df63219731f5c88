//! What happened in a run, in its order, as one number.
//!
//! Whatever matters is noted: every arrival on the network with its bytes, every entry applied, every change of
//! a leader, every fault, each with its virtual time. Two runs with the same hash did the same. With a
//! writer, the notes are written out as lines too: the first line in which two runs differ is where to look.

use std::fmt;
use std::io::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3;

/// A handle to the trace of one run. Cheap to clone.
#[derive(Clone)]
pub struct Trace(Arc<Mutex<Inner>>);

struct Inner {
    hash: Xxh3,
    notes: u64,
    lines: Option<Box<dyn Write + Send>>,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace({})", self.hash())
    }
}

impl Trace {
    /// An empty trace; its notes go to `lines` as well, if that is given.
    #[must_use]
    pub fn new(lines: Option<Box<dyn Write + Send>>) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            hash: Xxh3::new(),
            notes: 0,
            lines,
        })))
    }

    /// Notes an event: when it happened, in microseconds of virtual time, of what kind it is, and what else is
    /// to be the same: numbers, and bytes.
    pub fn note(&self, at_us: u64, kind: &'static str, numbers: &[u64], bytes: &[u8]) {
        let mut inner = self.0.lock();
        let inner = &mut *inner;
        inner.notes += 1;
        inner.hash.update(&at_us.to_le_bytes());
        inner.hash.update(kind.as_bytes());
        for number in numbers {
            inner.hash.update(&number.to_le_bytes());
        }
        inner.hash.update(bytes);
        if let Some(lines) = &mut inner.lines {
            let sofar = inner.hash.digest();
            let written = writeln!(
                lines,
                "{:>12.3} {kind:<10} {numbers:?} {} B {sofar:016x}",
                at_us as f64 / 1e3,
                bytes.len()
            );
            // A trace that cannot be written is no trace; the hash goes on.
            if written.is_err() {
                inner.lines = None;
            }
        }
    }

    /// The hash of all notes so far.
    #[must_use]
    pub fn hash(&self) -> TraceHash {
        let inner = self.0.lock();
        TraceHash {
            hash: inner.hash.digest128(),
            notes: inner.notes,
        }
    }
}

/// What two runs of a seed must have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceHash {
    hash: u128,
    /// How many events it is of.
    pub notes: u64,
}

impl fmt::Display for TraceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{}", self.hash, self.notes)
    }
}
