//! The rolling hash over everything that was applied and what came of it.

use postcard::ser_flavors::Flavor;
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_128;

use crate::broker::{Applied, Meta};

/// `h(i) = xxh3_128(h(i-1), index, digest, outcomes, effects)`. Equal on all
/// nodes that applied the same; not equal, but for chance, on any that did not.
/// Which requests were repeated follows from the entries.
#[derive(Debug, Default)]
pub(crate) struct RollingHash {
    value: u128,
    scratch: Vec<u8>,
}

/// A scratch buffer that grows beyond this in one entry is given back.
const SCRATCH_BYTES_MAX: usize = 1 << 20;

impl RollingHash {
    pub(crate) fn new(value: u128) -> Self {
        Self {
            value,
            scratch: Vec::new(),
        }
    }

    pub(crate) fn value(&self) -> u128 {
        self.value
    }

    pub(crate) fn update(&mut self, meta: &Meta, applied: &Applied) {
        let scratch = &mut self.scratch;
        scratch.clear();
        scratch.extend_from_slice(&self.value.to_le_bytes());
        scratch.extend_from_slice(&meta.index.to_le_bytes());
        scratch.extend_from_slice(&meta.digest.to_le_bytes());
        encode_into(&applied.outcomes, scratch);
        encode_into(&applied.effects, scratch);
        self.value = xxh3_128(scratch);
        scratch.shrink_to(SCRATCH_BYTES_MAX);
    }
}

/// Appends the postcard of a value.
pub(crate) fn encode_into(value: &impl Serialize, bytes: &mut Vec<u8>) {
    postcard::serialize_with_flavor(value, Append(bytes)).expect("memory takes all that postcard writes");
}

struct Append<'a>(&'a mut Vec<u8>);

impl Flavor for Append<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}
