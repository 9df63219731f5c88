//! Rewriting a database whose file has grown far beyond what it holds.
//!
//! sled reuses the space of what was removed but never gives it back, so one burst would keep its disk space
//! for ever. At open, before anything uses it, such a database is copied to `<name>.new` beside it, and then
//! takes the place of the old one:
//!
//! 1. write `<name>.new`, flush it and sync its files;
//! 2. rename `<name>` to `<name>.old`;
//! 3. rename `<name>.new` to `<name>`;
//! 4. remove `<name>.old`.
//!
//! Each step is durable before the next. A crash between 2 and 3 leaves no `<name>`: then step 3 is all that
//! is missing, and [`resume`] takes it. After any other crash `<name>` is whole, and [`clean`] removes the
//! rest.

use std::path::{Path, PathBuf};

use crate::engine::disk::Disk;
use crate::engine::{Engine, Space, SpaceName};
use crate::error::{OpenError, StorageError};
use crate::files;

/// A file is worth rewriting when it is so many times its live data.
const EXCESS: u64 = 4;
/// A flush after so many bytes keeps the final one short.
const FLUSH_EVERY: usize = 1 << 20;

fn beside(path: &Path, suffix: &str) -> PathBuf {
    path.with_extension(suffix)
}

/// Takes the last step of an exchange that a crash interrupted.
pub(crate) fn resume(path: &Path) -> Result<(), StorageError> {
    let (new, old) = (beside(path, "new"), beside(path, "old"));
    if !path.exists() && old.exists() && new.exists() {
        files::rename(&new, path)?;
    }
    Ok(())
}

/// Removes what an interrupted rewrite left.
pub(crate) fn clean(path: &Path) -> Result<(), StorageError> {
    for leftover in [beside(path, "new"), beside(path, "old")] {
        if leftover.exists() {
            files::remove_dir(&leftover)?;
            files::sync_parent(path)?;
        }
    }
    Ok(())
}

/// Whether a database is worth rewriting. Only a file of more than `bytes_min` has its live data counted.
pub(crate) fn is_due(
    database: &Disk,
    bytes_min: u64,
    live_bytes: impl FnOnce() -> Result<u64, StorageError>,
) -> Result<bool, StorageError> {
    let file_bytes = database.file_bytes();
    Ok(file_bytes > bytes_min && file_bytes / EXCESS > live_bytes()?)
}

/// Rewrites a database with what each of its spaces holds from a first key on, and returns it, opened again.
///
/// If the copy cannot be made, because the disk is full perhaps, the old database goes on as it is.
pub(crate) fn rewrite(
    database: Disk,
    spaces: &[(SpaceName, &[u8])],
    cache_bytes: u64,
) -> Result<Disk, OpenError> {
    let path = database.path().to_owned();
    let names: Vec<SpaceName> = spaces.iter().map(|(name, _)| *name).collect();
    let bytes_before = database.file_bytes();
    if let Err(error) = copy(&database, &beside(&path, "new"), &names, spaces, cache_bytes) {
        tracing::warn!(database = %path.display(), %error, "could not rewrite an oversized database; going on with it");
        clean(&path)?;
        return Ok(database);
    }
    drop(database);
    files::rename(&path, &beside(&path, "old"))?;
    files::rename(&beside(&path, "new"), &path)?;
    clean(&path)?;
    let database = Disk::open(&path, &names, cache_bytes)?;
    tracing::info!(
        database = %path.display(),
        bytes_before,
        bytes = database.file_bytes(),
        "rewrote an oversized database"
    );
    Ok(database)
}

fn copy(
    from: &Disk,
    path: &Path,
    names: &[SpaceName],
    spaces: &[(SpaceName, &[u8])],
    cache_bytes: u64,
) -> Result<(), OpenError> {
    files::remove_dir(path)?;
    let to = Disk::open(path, names, cache_bytes)?;
    let mut unflushed = 0;
    for (space, (_, first)) in spaces.iter().enumerate() {
        for pair in from.ascend(Space(space), first) {
            let (key, value) = pair?;
            to.put(Space(space), &key, &value)?;
            unflushed += value.len();
            if unflushed >= FLUSH_EVERY {
                to.flush()?;
                unflushed = 0;
            }
        }
    }
    to.flush()?;
    drop(to);
    files::sync(&path.join("db"))?;
    Ok(files::sync(path)?)
}
