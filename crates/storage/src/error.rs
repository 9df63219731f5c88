//! What can go wrong, in two kinds: while opening, and afterwards.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// A call on an open store failed.
///
/// A failed *write* is final: the store keeps the first such error, answers every later write with it, and
/// tells whoever asked through [`Log::on_failure`](crate::Log::on_failure). Retrying a failed sync is never
/// safe, because the kernel may have dropped the pages it could not write.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StorageError {
    /// The file system refused an operation.
    #[error("{action}: {source}")]
    Io {
        /// What was being done, and to which path.
        action: String,
        /// The system's answer.
        source: Arc<io::Error>,
    },
    /// The storage engine reported an error or panicked.
    #[error("storage engine at {}: {what}", path.display())]
    Engine {
        /// The directory of the database.
        path: PathBuf,
        /// The engine's words.
        what: String,
    },
    /// Something read back is not what was written.
    #[error("damaged data: {what}")]
    Corrupt {
        /// What was found where.
        what: String,
    },
    /// An append would leave a hole in the log, or overwrite part of it. The caller is at fault.
    #[error("append at {found} to a log that continues at {expected}")]
    NotContiguous {
        /// The index that would have continued the log.
        expected: u64,
        /// The index that came.
        found: u64,
    },
    /// A value is larger than its place on disk allows.
    #[error("{what} of {len} bytes exceeds the limit of {max}")]
    TooLarge {
        /// Which value.
        what: &'static str,
        /// Its length.
        len: u64,
        /// The limit.
        max: u64,
    },
    /// The snapshot asked for is gone, because a newer one took its place: ask for the current one.
    #[error("this snapshot was replaced by a newer one")]
    SnapshotReplaced,
    /// The cluster id is set for good and is another one.
    #[error("this node already belongs to another cluster")]
    ClusterAlreadySet,
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl StorageError {
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| StorageError::Io {
            action,
            source: Arc::new(source),
        }
    }

    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        StorageError::Corrupt { what: what.into() }
    }
}

/// The store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process (or another `Store` of this one) has the directory open.
    #[error("{} is in use by another process; stop it first, or give this node a directory of its own", dir.display())]
    Locked {
        /// The data directory.
        dir: PathBuf,
    },
    /// The directory holds something that is not ours.
    #[error("{} holds files that are not a Quorate data directory (found {found:?}); nothing was changed; choose an empty directory", dir.display())]
    Foreign {
        /// The data directory.
        dir: PathBuf,
        /// One name that does not belong.
        found: String,
    },
    /// A later release wrote the directory.
    #[error("{} has format {found}, this program knows up to {known}; nothing was changed; run the release that wrote it, or a later one", file.display())]
    NewerFormat {
        /// The file that says so.
        file: PathBuf,
        /// Its format.
        found: u32,
        /// The newest format this program reads.
        known: u32,
    },
    /// An earlier state of this program wrote the directory, and this one has no way to read it.
    #[error("{} has format {found}, this program reads {known}; nothing was changed. To go on with this release, move the data directory away and start the node with an empty one, one node after the other: it joins as a new node and copies everything from the others; then remove the old node id from the cluster", file.display())]
    OlderFormat {
        /// The file that says so.
        file: PathBuf,
        /// Its format.
        found: u32,
        /// The format this program reads.
        known: u32,
    },
    /// A file of ours is damaged, missing, or older than what this node has acknowledged.
    #[error("{} is damaged: {what}. This node must not continue with it. To restore the node, move its data directory away and start it with an empty one: it joins as a new node and copies everything from the others; then remove the old node id from the cluster", file.display())]
    Damaged {
        /// The file or directory that failed its check.
        file: PathBuf,
        /// What the check found.
        what: String,
    },
    /// The sync hook is not linked in, so a flush would not survive a power cut.
    #[error(
        "the sync hook is not active in this build: a write was flushed without an fdatasync, so confirmed messages could be lost in a power cut; do not run this binary"
    )]
    HookInactive,
    /// The file system or the engine refused an operation.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl OpenError {
    pub(crate) fn damaged(file: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        OpenError::Damaged {
            file: file.into(),
            what: what.into(),
        }
    }
}
