//! What the rest of the crate asks of a storage engine, and no more.
//!
//! An engine keeps a few *spaces*, each an ordered map from byte keys to byte values. Three promises carry
//! everything above it:
//!
//! 1. After `flush` returns, all that was written before it survives any crash, power cuts included.
//! 2. After a crash the engine holds a *prefix* of the writes made since the last flush, over all its spaces
//!    together, in the order in which they were made. No write is there without all those before it.
//! 3. A write is visible to every reader when it returns.
//!
//! There are two engines: [`disk`], which is sled, and `memory`, a model for tests and simulations that can
//! crash at any write. Both pass the suite in `suite`.

use bytes::Bytes;

use crate::error::StorageError;

pub(crate) mod disk;
#[cfg(any(test, feature = "simulation"))]
pub(crate) mod memory;
#[cfg(test)]
mod suite;

/// The longest value an engine is given. sled moves pages above a quarter of a segment into separate files
/// that it never syncs; a leaf has at most 20 items, and 20 of this size stay below that in a segment of
/// 2 MiB.
pub(crate) const VALUE_LEN_MAX: usize = 16 * 1024;

/// One ordered map of an engine: its place in the list of names given at open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Space(pub(crate) usize);

/// How an engine on disk keeps a space. Readers and writers see no difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// As an ordered map, of any size.
    Map,
    /// For a bounded number of long values, mostly written in order and removed in order: each is written once,
    /// where a map writes it about three times more. The keys are kept in memory.
    Slots,
}

/// The name of a space, and how it is kept.
pub(crate) type SpaceName = (&'static str, Layout);

/// A key and its value.
pub(crate) type Pair = (Bytes, Bytes);

/// A walk over a space, in either direction.
pub(crate) type Walk<'a> = Box<dyn Iterator<Item = Result<Pair, StorageError>> + 'a>;

/// An ordered, crash-safe map of maps. See the module for the three promises.
pub(crate) trait Engine: Send + Sync + 'static {
    /// Writes one value of at most [`VALUE_LEN_MAX`] bytes.
    fn put(&self, space: Space, key: &[u8], value: &[u8]) -> Result<(), StorageError>;
    /// Writes values, in ascending order of their keys, at less cost than one by one. After a crash, any of the keys
    /// that are new may be there with an empty value, whatever is there of the others.
    fn put_all(&self, space: Space, pairs: &[Pair]) -> Result<(), StorageError> {
        pairs
            .iter()
            .try_for_each(|(key, value)| self.put(space, key, value))
    }
    /// Removes one key; a missing key is no error.
    fn remove(&self, space: Space, key: &[u8]) -> Result<(), StorageError>;
    /// Reads one value.
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, StorageError>;
    /// Walks keys from `from` upwards.
    fn ascend(&self, space: Space, from: &[u8]) -> Walk<'_>;
    /// Walks keys from `to`, inclusive, downwards.
    fn descend(&self, space: Space, to: &[u8]) -> Walk<'_>;
    /// Makes everything written so far durable. Blocks on the disk.
    fn flush(&self) -> Result<(), StorageError>;
    /// How many syncs of files there were; `None` if this engine needs none.
    fn syncs(&self) -> Option<u64> {
        None
    }
    /// Looks for signs that a promise is about to be broken.
    fn check(&self) -> Result<(), StorageError> {
        Ok(())
    }
}
