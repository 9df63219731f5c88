//! What stands at the start of each body: whose message it is, which, and when
//! it was due.

use bytes::{Bytes, BytesMut};

/// Bytes of a stamp; no body is shorter.
pub(crate) const STAMP_BYTES: usize = 32;

/// Identifies a message among those of all runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Drawn for the run.
    pub(crate) run: u64,
    pub(crate) publisher: u64,
    /// Counts from 0 for each publisher.
    pub(crate) number: u64,
    /// When it was due, nanoseconds since the run began.
    pub(crate) due_ns: u64,
}

impl Stamp {
    /// A body with this stamp and the rest of `filler`.
    pub(crate) fn body(self, filler: &[u8]) -> Bytes {
        let mut body = BytesMut::with_capacity(filler.len().max(STAMP_BYTES));
        for field in [self.run, self.publisher, self.number, self.due_ns] {
            body.extend_from_slice(&field.to_le_bytes());
        }
        body.extend_from_slice(filler.get(STAMP_BYTES..).unwrap_or_default());
        body.freeze()
    }

    pub(crate) fn of(body: &[u8]) -> Option<Self> {
        let field = |n: usize| Some(u64::from_le_bytes(body.get(n * 8..n * 8 + 8)?.try_into().ok()?));
        Some(Self {
            run: field(0)?,
            publisher: field(1)?,
            number: field(2)?,
            due_ns: field(3)?,
        })
    }
}

/// Bytes that do not compress, the same in every run.
pub(crate) fn filler(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    std::iter::repeat_with(|| next().to_le_bytes())
        .flatten()
        .take(bytes)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_reads_as_it_was_written_and_keeps_the_size() {
        let stamp = Stamp {
            run: 7,
            publisher: 1,
            number: u64::MAX,
            due_ns: 3,
        };
        for bytes in [0, STAMP_BYTES, 1024] {
            let body = stamp.body(&filler(bytes));
            assert_eq!(body.len(), bytes.max(STAMP_BYTES));
            assert_eq!(Stamp::of(&body), Some(stamp));
        }
        assert_eq!(Stamp::of(b"short"), None);
    }
}
