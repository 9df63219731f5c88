//! Small file-system helpers whose errors name the path.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;

use crate::error::StorageError;

/// Makes a file, or the list of names in a directory, durable.
pub(crate) fn sync(path: &Path) -> Result<(), StorageError> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(StorageError::io(format!("sync {}", path.display())))
}

/// Makes the name of `path` durable in the directory that holds it.
pub(crate) fn sync_parent(path: &Path) -> Result<(), StorageError> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => sync(Path::new(".")),
        Some(parent) => sync(parent),
        None => Ok(()),
    }
}

/// The names in a directory, sorted.
pub(crate) fn names(dir: &Path) -> Result<Vec<String>, StorageError> {
    let read = || -> std::io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    };
    read().map_err(StorageError::io(format!("list {}", dir.display())))
}

/// Creates a directory, and those above it, and makes their names durable. An existing one is fine.
pub(crate) fn create_dir(dir: &Path) -> Result<(), StorageError> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        create_dir(parent)?;
    }
    match fs::create_dir(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(StorageError::io(format!("create {}", dir.display()))(error))
        }
        _ => sync_parent(dir),
    }
}

/// Removes a file; a missing one is fine.
pub(crate) fn remove_file(path: &Path) -> Result<(), StorageError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(StorageError::io(format!("remove {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}

/// Removes a directory with all it holds; a missing one is fine.
pub(crate) fn remove_dir(path: &Path) -> Result<(), StorageError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(StorageError::io(format!("remove {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}

/// Renames and makes both names durable. Both paths lie in the same directory.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), StorageError> {
    fs::rename(from, to).map_err(StorageError::io(format!(
        "rename {} to {}",
        from.display(),
        to.display()
    )))?;
    sync_parent(to)
}

/// Puts `bytes` in place of the file at `path`: whole or not at all, and durable.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), StorageError> {
    let draft = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&draft)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(StorageError::io(format!("write {}", draft.display())))?;
    rename(&draft, path)
}

/// Bytes that the files under `path` occupy on disk.
pub(crate) fn disk_bytes(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return 0;
    };
    let below = match fs::read_dir(path) {
        Ok(entries) if metadata.is_dir() => entries.flatten().map(|entry| disk_bytes(&entry.path())).sum(),
        _ => 0,
    };
    metadata.blocks() * 512 + below
}
