//! Opening a directory: look first, then check what the databases hold, and only then write.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use crate::contents::{Contents, ContentsDatabase};
use crate::door::{self, Door, Found, Paths};
use crate::engine::Engine;
use crate::engine::disk::{self, Disk};
use crate::error::{OpenError, StorageError};
use crate::log::Recovered;
use crate::meta::{self, MetaKey};
use crate::progress::Progress;
use crate::snapshots::{self, SnapshotInfo};
use crate::{Identity, Options, compact, files, hook};

/// A directory that passed every check, with this run noted in it.
pub(crate) struct Opened {
    pub(crate) paths: Paths,
    pub(crate) identity: Identity,
    pub(crate) log: Disk,
    pub(crate) recovered: Recovered,
    pub(crate) progress: Progress,
    pub(crate) image: Option<SnapshotInfo>,
    pub(crate) contents: ContentsDatabase,
    /// Last, so that it is dropped last.
    pub(crate) door: Arc<Door>,
}

/// Opens a directory, or makes a new node of an empty one.
pub(crate) fn open(dir: &Path, options: &Options) -> Result<Opened, OpenError> {
    let paths = Paths::new(dir);
    let (door, found) = Door::open(&paths)?;
    let (node, created) = match found {
        Found::Node(node) => (node, false),
        Found::Nothing => (create(&paths)?, true),
    };

    let (reached, contents_reached) = look_around(&paths)?;
    let log = Disk::open(&paths.log, &meta::SPACES, options.log_cache_bytes)?;
    let (recovered, past, image) = check_log(&paths, &log, node, reached, options)?;
    let contents = Contents::open_database(&paths.contents, node, contents_reached, options)?;

    // All is well: from here on the directory is written to.
    clean_up(&paths)?;
    let log = compact_log(log, &recovered, options)?;
    let contents = Contents::compact(contents, options)?;
    let identity = Identity {
        node_id: node,
        cluster_id: past.cluster,
        incarnation: past.incarnation + 1,
        created,
    };
    begin_incarnation(&log, &recovered, &identity)?;
    Contents::begin_run(&contents, past.clean)?;
    let progress = Progress::open(&paths.progress, recovered.sequence)?;
    Ok(Opened {
        paths,
        identity,
        log,
        recovered,
        progress,
        image,
        contents,
        door: Arc::new(door),
    })
}

/// Checks what can be checked before a database is opened, and returns how far log and contents are
/// known to be durable.
fn look_around(paths: &Paths) -> Result<(u64, u64), OpenError> {
    let reached = (
        Progress::read(&paths.progress)?,
        Progress::read(&paths.contents_progress)?,
    );
    for database in [&paths.log, &paths.contents] {
        compact::resume(database)?;
        disk::inspect(database)?;
    }
    if !paths.images.is_dir() {
        return Err(OpenError::damaged(&paths.images, "it is missing"));
    }
    Ok(reached)
}

/// Checks everything that the log database holds.
fn check_log(
    paths: &Paths,
    log: &Disk,
    node: u64,
    reached: u64,
    options: &Options,
) -> Result<(Recovered, Past, Option<SnapshotInfo>), OpenError> {
    let damaged = |what: String| OpenError::damaged(paths.log.join("db"), what);
    let unreadable = |error: StorageError| damaged(error.to_string());
    let recovered = Recovered::read(log, options.tail_bytes).map_err(unreadable)?;
    let past = Past::read(log).map_err(unreadable)?;
    let image = snapshots::read_pointer(log).map_err(unreadable)?;
    if past.node != node {
        let owner = past.node;
        return Err(damaged(format!(
            "it belongs to node {owner:016x}, this directory to {node:016x}"
        )));
    }
    if recovered.sequence < reached {
        let end = recovered.sequence;
        return Err(damaged(format!(
            "it ends at write {end}, but write {reached} was confirmed"
        )));
    }
    if let Some(image) = &image {
        disk::inspect(&snapshots::path_of(&paths.images, image))?;
    }
    Ok((recovered, past, image))
}

/// Removes what interrupted work left beside the data. The images are the business of `Snapshots`.
fn clean_up(paths: &Paths) -> Result<(), StorageError> {
    // Were it there when IDENTITY is lost one day, the next open would take all this for a new directory.
    files::remove_file(&paths.creating)?;
    compact::clean(&paths.log)?;
    compact::clean(&paths.contents)
}

/// Rewrites the log database, without its purged entries, if its file is much larger than the live ones.
fn compact_log(log: Disk, recovered: &Recovered, options: &Options) -> Result<Disk, OpenError> {
    if !compact::is_due(&log, options.compact_bytes_min, || Ok(recovered.live_bytes))? {
        return Ok(log);
    }
    let first_chunk = recovered.first_chunk(&log)?;
    let spaces = [(meta::SPACES[0], &[][..]), (meta::SPACES[1], &first_chunk[..])];
    compact::rewrite(log, &spaces, options.log_cache_bytes)
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
    Progress::create(&paths.contents_progress)?;
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
