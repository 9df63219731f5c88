//! Where the databases of a store are: what the store asks of a file system, and no more.
//!
//! [`Files`] is a directory, with sled in it. The other medium is the simulated disk of
//! [`simulation`](crate::simulation), which is there only with the feature of that name. Everything above this trait and
//! [`Engine`] is the same code on both.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::engine::disk::Disk;
use crate::engine::{Engine, SpaceName};
use crate::error::{OpenError, StorageError};
use crate::files;

/// Holds databases, and small files beside them, by their path. A database that [`Medium::open`] returned is itself durable, its contents from their
/// first flush on.
pub(crate) trait Medium: Send + Sync + 'static {
    /// Opens a database, or creates it, with a space for each name.
    fn open(&self, path: &Path, spaces: &[SpaceName], cache_bytes: u64)
    -> Result<Arc<dyn Engine>, OpenError>;
    /// The names in a directory, sorted.
    fn names(&self, dir: &Path) -> Result<Vec<String>, StorageError>;
    /// Removes a database that nobody has open; a missing one is fine.
    fn remove(&self, path: &Path) -> Result<(), StorageError>;
    /// Reads a small file; `None` if there is none.
    fn read(&self, path: &Path) -> Result<Option<Bytes>, StorageError>;
    /// Puts `bytes` in place of the small file at `path`: whole or not at all, and durable.
    fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), StorageError>;
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

    fn read(&self, path: &Path) -> Result<Option<Bytes>, StorageError> {
        match std::fs::read(path) {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StorageError::io(format!("read {}", path.display()))(error)),
        }
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), StorageError> {
        files::replace(path, bytes)
    }

    fn sync(&self, path: &Path) -> Result<(), StorageError> {
        files::sync(path)
    }

    fn bytes(&self, dir: &Path) -> u64 {
        files::disk_bytes(dir)
    }
}
