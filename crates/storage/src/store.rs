//! A node's directory, opened.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;

use crate::contents::Contents;
use crate::door::{self, Door, Found, Paths};
use crate::engine::Engine;
use crate::engine::disk::{self, Disk};
use crate::error::{OpenError, StorageError};
use crate::failure::Failure;
use crate::log::{Log, Recovered};
use crate::meta::{self, MetaKey};
use crate::progress::Progress;
use crate::snapshots::{self, Snapshots};
use crate::{Options, files, hook};

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

/// An open data directory. The handles in it are cheap to clone; the directory stays locked until the last
/// of them is dropped.
///
/// Dropping without [`Store::close`] is safe, and costs the next start a sweep of the contents.
#[derive(Clone)]
pub struct Store {
    /// The Raft log.
    pub log: Log,
    /// Contents that outlived their log entry.
    pub contents: Contents,
    /// Images of the state machine.
    pub snapshots: Snapshots,
    inner: Arc<Inner>,
}

struct Inner {
    identity: Mutex<Identity>,
    paths: Paths,
}

impl Store {
    /// Opens the directory, or makes a new node of an empty one. Blocks on the disk: after an unclean stop
    /// sled reads its whole file, about one to two and a half seconds per gigabyte.
    ///
    /// What is foreign, of a newer format, locked, or visibly damaged is refused before anything is changed.
    /// What only shows once sled has opened a database (a hole in the log, a wrong checksum, less than was
    /// acknowledged) is refused too, and will be again; sled may then have overwritten the unreadable end of
    /// its own file, as it does after every crash.
    pub fn open(dir: &Path, options: Options) -> Result<Store, OpenError> {
        let paths = Paths::new(dir);
        let (door, found) = Door::open(&paths)?;
        let door = Arc::new(door);
        let (node, created) = match found {
            Found::Node(node) => {
                // The last step of a creation, if that was interrupted just before it.
                files::remove_file(&paths.creating)?;
                (node, false)
            }
            Found::Nothing => (create(&paths)?, true),
        };

        let reached = look_around(&paths)?;
        let engine = Arc::new(Disk::open(&paths.log, &meta::SPACES, options.log_cache_bytes)?);
        let damaged = |what: String| OpenError::damaged(paths.log.join("db"), what);
        let read = |error: StorageError| damaged(error.to_string());
        let recovered = Recovered::read(&*engine, options.tail_bytes).map_err(read)?;
        let past = Past::read(&*engine).map_err(read)?;
        if past.node != node {
            return Err(damaged(format!(
                "it belongs to node {:016x}, this directory to {node:016x}",
                past.node
            )));
        }
        if recovered.sequence < reached {
            return Err(damaged(format!(
                "it ends at write {}, but write {reached} was confirmed",
                recovered.sequence
            )));
        }
        let image = snapshots::check_pointer(&paths.images, &*engine).map_err(|error| match error {
            OpenError::Storage(error) => read(error),
            other => other,
        })?;
        let failure = Arc::new(Failure::default());
        let contents = Contents::open(
            &paths.contents,
            node,
            Arc::clone(&failure),
            &options,
            Arc::clone(&door),
        )?;

        // All is well: from here on the directory is written to.
        let identity = Identity {
            node_id: node,
            cluster_id: past.cluster,
            incarnation: past.incarnation + 1,
            created,
        };
        begin_incarnation(&*engine, &recovered, &identity)?;
        if !past.clean {
            contents.mark_sweep_pending()?;
        }
        let progress = Progress::open(&paths.progress, recovered.sequence)?;
        let log = Log::start(
            engine,
            recovered,
            Some(progress),
            failure,
            options.clone(),
            Some(door),
        )?;
        let snapshots = Snapshots::open(&paths.images, log.clone(), image, &options)?;
        let inner = Arc::new(Inner {
            identity: Mutex::new(identity),
            paths,
        });
        Ok(Store {
            log,
            contents,
            snapshots,
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

    /// Bytes the directory occupies on disk. Reads directories; call it now and then.
    pub fn disk_bytes(&self) -> u64 {
        files::disk_bytes(&self.inner.paths.dir)
    }

    /// Carries out everything ordered, flushes, notes that this was an orderly end and stops the writer.
    /// Other handles that are still around get [`StorageError::Closed`] for their writes. Blocks on the disk.
    pub fn close(self) -> Result<(), StorageError> {
        self.contents.flush()?;
        self.log.close()
    }
}

/// Checks what can be checked before a database is opened, and returns the number of the last group commit
/// known to be durable.
fn look_around(paths: &Paths) -> Result<u64, OpenError> {
    let reached = Progress::read(&paths.progress)?;
    disk::inspect(&paths.log)?;
    disk::inspect(&paths.contents)?;
    if !paths.images.is_dir() {
        return Err(OpenError::damaged(&paths.images, "it is missing"));
    }
    Ok(reached)
}

/// Writes the directory of a new node. `IDENTITY` comes last: until it is there, the next open starts again.
fn create(paths: &Paths) -> Result<u64, OpenError> {
    files::replace(&paths.creating, b"this directory is being created\n")?;
    files::remove_dir(&paths.data)?;
    let node = random_id();
    files::create_dir(&paths.data)?;
    files::create_dir(&paths.images)?;
    let engine = Disk::open(&paths.log, &meta::SPACES, 1 << 20)?;
    meta::put(&engine, MetaKey::Node, &node_payload(node, 0))?;
    meta::put(&engine, MetaKey::Clean, &[])?;
    engine.flush()?;
    drop(engine);
    Contents::create(&paths.contents, node)?;
    Progress::create(&paths.progress)?;
    files::sync(&paths.dir)?;
    door::write_identity(&paths.identity, node)?;
    files::remove_file(&paths.creating)?;
    files::sync(&paths.dir)?;
    tracing::info!(dir = %paths.dir.display(), node = format!("{node:016x}"), "created a data directory");
    Ok(node)
}

/// A number nobody else draws: the standard library seeds its hashers from the system's random source.
fn random_id() -> u64 {
    loop {
        match RandomState::new().hash_one(std::process::id()) {
            0 => {}
            id => return id,
        }
    }
}

/// What an earlier run left in the `meta` space.
struct Past {
    node: u64,
    incarnation: u64,
    cluster: Option<[u8; 16]>,
    clean: bool,
}

impl Past {
    fn read(engine: &dyn Engine) -> Result<Past, StorageError> {
        let mut payload = meta::get(engine, MetaKey::Node)?
            .ok_or_else(|| StorageError::corrupt("the node's identity is missing"))?;
        let cluster = meta::get(engine, MetaKey::Cluster)?;
        Ok(Past {
            node: meta::take_u64(&mut payload)?,
            incarnation: meta::take_u64(&mut payload)?,
            cluster: cluster
                .map(|id| {
                    id[..]
                        .try_into()
                        .map_err(|_| StorageError::corrupt("the cluster id is too short"))
                })
                .transpose()?,
            clean: meta::get(engine, MetaKey::Clean)?.is_some(),
        })
    }
}

/// The first flush of a run: it counts the start, and proves that the sync hook works.
fn begin_incarnation(
    engine: &dyn Engine,
    recovered: &Recovered,
    identity: &Identity,
) -> Result<(), OpenError> {
    let syncs_before = hook::calls();
    recovered.repair(engine)?;
    meta::put(
        engine,
        MetaKey::Node,
        &node_payload(identity.node_id, identity.incarnation),
    )?;
    meta::remove(engine, MetaKey::Clean)?;
    engine.flush()?;
    if cfg!(target_os = "linux") && hook::calls() == syncs_before {
        return Err(OpenError::HookInactive);
    }
    Ok(())
}

fn node_payload(node: u64, incarnation: u64) -> Bytes {
    let mut payload = BytesMut::with_capacity(16);
    payload.put_u64_le(node);
    payload.put_u64_le(incarnation);
    payload.freeze()
}
