//! A node's directory, opened.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::contents::Contents;
use crate::door::Paths;
use crate::error::{OpenError, StorageError};
use crate::failure::Failure;
use crate::journal::Journal;
use crate::log::Log;
use crate::medium::Medium;
use crate::meta::MetaKey;
use crate::opening::Opened;
use crate::snapshots::Snapshots;
use crate::{Options, opening};

/// Who this node is. It lives and dies with the data: an empty directory is a new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Drawn at random when the directory was created; never zero.
    pub node_id: u64,
    /// The cluster this node belongs to, once it does.
    pub cluster_id: Option<[u8; 16]>,
    /// Grows by one with each open, durably, starting at 1.
    pub incarnation: u64,
    /// Whether this open created the directory.
    pub created: bool,
}

/// What one part of a data directory occupies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskUse {
    /// `log`, `contents`, `snapshots` or `journal`.
    pub name: &'static str,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Bytes of what is in it that are in use; `None` where nobody counts.
    pub live_bytes: Option<u64>,
}

/// An open data directory. The handles in it are cheap to clone; the directory stays locked until the last
/// of them is dropped.
///
/// Dropping without [`Store::close`] is safe.
#[derive(Clone)]
pub struct Store {
    /// The Raft log.
    pub log: Log,
    /// Contents that outlived their log entry.
    pub contents: Contents,
    /// Images of the state machine.
    pub snapshots: Snapshots,
    /// What happened, as far back as there is room for. The node can do without it.
    pub journal: Journal,
    inner: Arc<Inner>,
}

struct Inner {
    identity: Mutex<Identity>,
    paths: Paths,
    medium: Arc<dyn Medium>,
}

impl Store {
    /// Opens the directory, or makes a new node of an empty one. Blocks on the disk: sled reads what was
    /// written since the last open, at worst its whole files, about one to two and a half seconds per
    /// gigabyte; then every live entry of the log is read and checked.
    ///
    /// What is foreign, of a newer format, locked, or visibly damaged is refused before anything is changed.
    /// What only shows once sled has opened a database (a hole in the log, a wrong checksum, less than was
    /// acknowledged) is refused too, and will be again; sled may then have overwritten the unreadable end of
    /// its own file, as it does after every crash.
    pub fn open(dir: &Path, options: Options) -> Result<Store, OpenError> {
        #[cfg(feature = "simulation")]
        if let Some(disk) = &options.disk {
            let opened = disk.open(&options)?;
            // A simulation does not wait for real time.
            let options = Options {
                snapshot_bytes_per_second: None,
                ..options
            };
            return Self::assemble(opened, Journal::off(&options), options);
        }
        let opened = opening::open(dir, &options)?;
        let journal = Journal::open_behind(
            opened.door.clone(),
            &opened.paths.journal,
            opened.identity.node_id,
            &options,
        );
        Self::assemble(opened, journal, options)
    }

    fn assemble(opened: Opened, journal: Journal, options: Options) -> Result<Store, OpenError> {
        let paths = opened.paths;
        let failure = Arc::new(Failure::default());
        let contents = Contents::new(
            opened.contents,
            opened.contents_progress,
            Arc::clone(&failure),
            &options,
            opened.door.clone(),
        );
        let log = Log::start(
            opened.log,
            opened.recovered,
            Some(opened.progress),
            failure,
            options,
            opened.door,
            opened.pace,
        )?;
        let medium = Arc::clone(&opened.medium);
        let snapshots = Snapshots::open(medium, &paths.images, log.clone(), opened.image)?;
        let inner = Arc::new(Inner {
            identity: Mutex::new(opened.identity),
            paths,
            medium: opened.medium,
        });
        Ok(Store {
            log,
            contents,
            snapshots,
            journal,
            inner,
        })
    }

    /// Who this node is.
    pub fn identity(&self) -> Identity {
        *self.inner.identity.lock()
    }

    /// Makes this node a member of a cluster, for good and durably. Again with the same id is fine; another
    /// id is refused. Blocks on the disk.
    pub fn set_cluster_id(&self, cluster_id: [u8; 16]) -> Result<(), StorageError> {
        let mut identity = self.inner.identity.lock();
        match identity.cluster_id {
            Some(same) if same == cluster_id => Ok(()),
            Some(_other) => Err(StorageError::ClusterAlreadySet),
            None => {
                self.log
                    .put_meta(MetaKey::Cluster, Bytes::copy_from_slice(&cluster_id))?;
                identity.cluster_id = Some(cluster_id);
                Ok(())
            }
        }
    }

    /// What occupies the disk. Reads directories; call it now and then.
    pub fn disk_use(&self) -> Vec<DiskUse> {
        let paths = &self.inner.paths;
        let part = |name, path: &Path, live_bytes| DiskUse {
            name,
            disk_bytes: self.inner.medium.bytes(path),
            live_bytes,
        };
        let image = self.snapshots.current().map_or(0, |current| current.bytes);
        vec![
            part("log", &paths.log, Some(self.log.log_bytes(0))),
            part("contents", &paths.contents, Some(self.contents.live_bytes())),
            part("snapshots", &paths.images, Some(image)),
            part("journal", &paths.journal, None),
        ]
    }

    /// Carries out everything ordered, flushes, and stops the writer. Other handles that are still around get
    /// [`StorageError::Closed`] for their writes. Blocks on the disk.
    pub fn close(self) -> Result<(), StorageError> {
        self.journal.close();
        self.contents.flush()?;
        self.log.close()
    }
}
