//! Where the databases of a store are: what the store asks of a file system, and no more.
//!
//! [`Files`] is a directory, with sled in it. The other medium is the simulated disk of
//! [`simulation`](crate::simulation), which is there only with the feature of that name. Everything above this trait and
//! [`Engine`] is the same code on both.

use std::path::Path;
use std::sync::Arc;

use crate::engine::disk::Disk;
use crate::engine::{Engine, SpaceName};
use crate::error::{OpenError, StorageError};
use crate::files;

/// Holds databases by their path. A database that [`Medium::open`] returned is itself durable, its contents from their
/// first flush on.
pub(crate) trait Medium: Send + Sync + 'static {
    /// Opens a database, or creates it, with a space for each name.
    fn open(&self, path: &Path, spaces: &[SpaceName], cache_bytes: u64)
    -> Result<Arc<dyn Engine>, OpenError>;
    /// The names in a directory, sorted.
    fn names(&self, dir: &Path) -> Result<Vec<String>, StorageError>;
    /// Removes a database that nobody has open; a missing one is fine.
    fn remove(&self, path: &Path) -> Result<(), StorageError>;
    /// Makes a file, or the names in a directory, durable.
    fn sync(&self, path: &Path) -> Result<(), StorageError>;
    /// Bytes that everything under `dir` occupies.
    fn bytes(&self, dir: &Path) -> u64;
}

/// Directories of the file system.
pub(crate) struct Files;

impl Medium for Files {
    fn open(
        &self,
        path: &Path,
        spaces: &[SpaceName],
        cache_bytes: u64,
    ) -> Result<Arc<dyn Engine>, OpenError> {
        Ok(Arc::new(Disk::open(path, spaces, cache_bytes)?))
    }

    fn names(&self, dir: &Path) -> Result<Vec<String>, StorageError> {
        files::names(dir)
    }

    fn remove(&self, path: &Path) -> Result<(), StorageError> {
        files::remove_dir(path)
    }

    fn sync(&self, path: &Path) -> Result<(), StorageError> {
        files::sync(path)
    }

    fn bytes(&self, dir: &Path) -> u64 {
        files::disk_bytes(dir)
    }
}
