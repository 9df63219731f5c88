//! What happened to messages, kept so that somebody can ask.
//!
//! The journal follows the log: the state machine tells the events of each entry
//! it applies, and they are encoded (`codec`) into the *tail*, in memory. A tail
//! of some size is sealed as a chunk and handed to the storage, which writes it
//! without anybody waiting. So the price on the way of a message is a few dozen
//! bytes appended to a buffer.
//!
//! A restart applies the log after the last snapshot again, so the events of
//! those entries are told again. The journal knows which entries its chunks
//! cover, and takes only what comes after. What the log will not tell again is
//! made durable before a snapshot becomes the place where a restart begins
//! (`keep`); if that does not work out, or if another node's
//! snapshot skips entries, there is a *gap*, and an answer says so.
//!
//! Nothing here can fail a node or a message: the journal is derived. See
//! `docs/adr/0013-the-journal-is-derived.md`.

mod codec;
#[cfg(test)]
mod tests;
mod trace;

use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use quorate_core::Broker as State;
use quorate_core::event::Event;
use quorate_core::ids::Timestamp;
use quorate_raft::{Coverage, Journal as Chunks};
use tokio::sync::Semaphore;

pub use self::trace::{Trace, TraceOf, Traced};

/// Searches at one time; others wait for their turn.
const SEARCHES_MAX: usize = 2;

/// The journal of a node.
#[derive(Debug)]
pub(crate) struct Journal {
    /// Not set: there is none.
    chunks: OnceLock<Chunks>,
    tail: Mutex<Tail>,
    searches: Arc<Semaphore>,
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            chunks: OnceLock::new(),
            tail: Mutex::default(),
            searches: Arc::new(Semaphore::new(SEARCHES_MAX)),
        }
    }
}

/// What is not sealed yet. It covers the entries from `first` up to, not
/// including, `next`.
#[derive(Debug)]
struct Tail {
    first: u64,
    next: u64,
    writer: codec::Writer,
    /// Time of the first event in it.
    from: Option<Timestamp>,
    /// Time of the last event, in it or before.
    until: Timestamp,
}

/// All that can be read, at one moment.
struct View {
    chunks: Vec<Coverage>,
    /// What the tail covers, if anything.
    tail: Option<(Coverage, Vec<u8>)>,
    /// The first entry that the tail covers, or is going to.
    tail_first: u64,
    /// The first entry that nothing covers yet.
    next: u64,
}

impl Default for Tail {
    fn default() -> Self {
        Self {
            first: 1,
            next: 1,
            writer: codec::Writer::new(),
            from: None,
            until: Timestamp(0),
        }
    }
}

impl Tail {
    fn is_empty(&self) -> bool {
        self.first == self.next
    }

    fn coverage(&self) -> Coverage {
        Coverage {
            first: self.first,
            last: self.next - 1,
            from_ms: self.from.unwrap_or(self.until).0,
            until_ms: self.until.0,
            lowest: self.writer.lowest(),
        }
    }

    /// Goes on at another entry.
    fn begin(&mut self, first: u64) {
        *self = Self {
            first,
            next: first,
            until: self.until,
            ..Self::default()
        };
    }

    /// Makes a chunk of what there is.
    fn seal(&mut self, chunks: &Chunks) {
        if self.is_empty() {
            return;
        }
        let coverage = self.coverage();
        let writer = std::mem::replace(&mut self.writer, codec::Writer::new());
        // If it is lost, the chunks show the gap, and the storage says why.
        chunks.append(coverage, writer.into_bytes().into());
        self.begin(self.next);
    }
}

impl Journal {
    /// The storage is open: goes on where the last chunk ends.
    pub(crate) fn opened(&self, chunks: Chunks) {
        if !chunks.is_on() {
            return;
        }
        let last = chunks.chunks().last().copied();
        let mut tail = self.tail.lock();
        if let Some(last) = last {
            tail.until = Timestamp(last.until_ms);
            tail.begin(last.last + 1);
        }
        let _ = self.chunks.set(chunks);
    }

    /// There is one.
    fn is_on(&self) -> bool {
        self.chunks.get().is_some()
    }

    /// Takes the events of an entry, unless they are there already.
    pub(crate) fn applied(&self, index: u64, events: &[Event], state: &State) {
        let Some(chunks) = self.chunks.get() else {
            return;
        };
        // One that is gone already has none.
        let name = |session, consumer| {
            state
                .name_of_consumer(session, consumer)
                .unwrap_or_default()
                .to_owned()
        };
        let mut tail = self.tail.lock();
        if index < tail.next {
            return;
        }
        tail.next = index + 1;
        if events.is_empty() {
            return;
        }
        let at = state.now();
        tail.writer.entry(index, at, events, name);
        tail.from.get_or_insert(at);
        tail.until = at;
        if tail.writer.bytes().len() >= chunks.chunk_bytes() {
            tail.seal(chunks);
        }
    }

    /// The state is now that of a snapshot: what happened in the entries up to
    /// there, beyond what is known, will not be told.
    pub(crate) fn restored(&self, index: u64) {
        let Some(chunks) = self.chunks.get() else {
            return;
        };
        let mut tail = self.tail.lock();
        if index < tail.next {
            return;
        }
        tail.seal(chunks);
        if chunks.last().is_some() {
            tracing::info!(
                from = tail.next,
                to = index,
                "the journal has a gap: a snapshot took its place"
            );
        }
        tail.begin(index + 1);
    }

    /// Makes durable what is known of the entries up to `index`, all of which
    /// were applied. Blocks on the disk.
    pub(crate) fn keep(&self, index: u64) {
        let Some(chunks) = self.chunks.get() else {
            return;
        };
        // First what waits, so that there is room for the tail.
        chunks.sync();
        {
            let mut tail = self.tail.lock();
            // Those of the entries that change no message are not told.
            tail.next = tail.next.max(index + 1);
            tail.seal(chunks);
        }
        chunks.sync();
    }

    /// Whether everything up to an entry is in it, as far as it ever will be.
    fn has_reached(&self, index: u64) -> bool {
        self.chunks.get().is_none() || self.tail.lock().next > index
    }

    /// Time of the first thing in it.
    pub(crate) fn begins(&self) -> Option<Timestamp> {
        let (_, at) = self.view(self.chunks.get()?).begins()?;
        Some(at)
    }

    fn view(&self, chunks: &Chunks) -> View {
        let tail = self.tail.lock();
        View {
            chunks: chunks.chunks(),
            tail: (!tail.is_empty()).then(|| (tail.coverage(), tail.writer.bytes().to_vec())),
            tail_first: tail.first,
            next: tail.next,
        }
    }
}

impl View {
    /// The entries within reach of which nothing is known.
    fn gaps(&self) -> Vec<RangeInclusive<u64>> {
        let firsts = self.chunks.iter().skip(1).map(|chunk| chunk.first);
        let lasts = self.chunks.iter().map(|chunk| chunk.last);
        lasts
            .zip(firsts.chain([self.tail_first]))
            .map(|(last, first)| last + 1..=first - 1)
            .filter(|gap| !gap.is_empty())
            .collect()
    }

    /// Where it begins.
    fn begins(&self) -> Option<(u64, Timestamp)> {
        let tail = self.tail.as_ref().map(|(coverage, _)| coverage);
        let first = self.chunks.first().or(tail)?;
        Some((first.first, Timestamp(first.from_ms)))
    }
}
