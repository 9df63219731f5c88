//! Opening a directory: look first, then check what the databases hold, and only then write.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use crate::contents::{self, Contents, ContentsDatabase};
use crate::door::{self, Door, Found, Paths};
use crate::engine::Engine;
use crate::engine::disk::{self, Disk};
use crate::error::{OpenError, StorageError};
use crate::log::{Pace, Recovered};
use crate::medium::{Files, Medium};
use crate::meta::{self, MetaKey};
use crate::progress::{Progress, Witness};
use crate::snapshots::{self, SnapshotInfo};
use crate::{Identity, Options, compact, files, hook};

/// A directory, or a simulated disk, that passed every check, with this run noted in it.
pub(crate) struct Opened {
    pub(crate) paths: Paths,
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) identity: Identity,
    pub(crate) log: Arc<dyn Engine>,
    pub(crate) recovered: Recovered,
    pub(crate) progress: Box<dyn Witness>,
    /// Who carries out the orders of the log.
    pub(crate) pace: Pace,
    pub(crate) image: Option<SnapshotInfo>,
    pub(crate) contents: ContentsDatabase,
    /// Last, so that it is dropped last. A simulated disk has another lock.
    pub(crate) door: Option<Arc<Door>>,
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
    if let Some(image) = &image {
        disk::inspect(&snapshots::path_of(&paths.images, image))?;
    }
    let contents = Disk::open(&paths.contents, &contents::SPACES, options.contents_cache_bytes)?;
    let contents_sequence = Contents::check(&contents, &paths.contents, node, contents_reached)?;

    // All is well: from here on the directory is written to.
    clean_up(&paths)?;
    let log = compact_log(log, &recovered, options)?;
    let contents = Contents::compact(contents, options)?;
    let syncs_before = hook::calls();
    let identity = begin_run(&log, &recovered, &past, &contents, created)?;
    // That was the first flush of the run: it proves that the sync hook works.
    if cfg!(target_os = "linux") && hook::calls() == syncs_before {
        return Err(OpenError::HookInactive);
    }
    let progress = Box::new(Progress::open(&paths.progress, recovered.sequence)?);
    let contents = ContentsDatabase {
        engine: Arc::new(contents),
        sequence: contents_sequence,
        progress: Box::new(Progress::open(&paths.contents_progress, contents_sequence)?),
    };
    Ok(Opened {
        paths,
        medium: Arc::new(Files),
        identity,
        log: Arc::new(log),
        recovered,
        progress,
        pace: Pace::Thread,
        image,
        contents,
        door: Some(Arc::new(door)),
    })
}

/// Notes this run in the databases that were checked: it has a number, and until it is closed it has not ended well.
pub(crate) fn begin_run(
    log: &dyn Engine,
    recovered: &Recovered,
    past: &Past,
    contents: &dyn Engine,
    created: bool,
) -> Result<Identity, StorageError> {
    let identity = Identity {
        node_id: past.node,
        cluster_id: past.cluster,
        incarnation: past.incarnation + 1,
        created,
    };
    recovered.repair(log)?;
    let payload = node_payload(identity.node_id, identity.incarnation);
    meta::put(log, MetaKey::Node, &payload)?;
    meta::remove(log, MetaKey::Clean)?;
    log.flush()?;
    Contents::begin_run(contents, past.clean)?;
    Ok(identity)
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
pub(crate) fn check_log(
    paths: &Paths,
    log: &dyn Engine,
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
    create_databases(
        &Disk::open(&paths.log, &meta::SPACES, 1 << 20)?,
        &Disk::open(&paths.contents, &contents::SPACES, 1 << 20)?,
        node,
    )?;
    Progress::create(&paths.progress)?;
    Progress::create(&paths.contents_progress)?;
    files::sync(&paths.dir)?;
    door::write_identity(&paths.identity, node)?;
    files::remove_file(&paths.creating)?;
    files::sync(&paths.dir)?;
    tracing::info!(dir = %paths.dir.display(), node = format!("{node:016x}"), "created a data directory");
    Ok(node)
}

/// Makes two empty databases a node's, as if an earlier run of it had ended well.
pub(crate) fn create_databases(
    log: &dyn Engine,
    contents: &dyn Engine,
    node: u64,
) -> Result<(), StorageError> {
    meta::put(log, MetaKey::Node, &node_payload(node, 0))?;
    meta::put(log, MetaKey::Clean, &[])?;
    log.flush()?;
    Contents::create(contents, node)
}

/// A number nobody else draws: the standard library seeds its hashers from the system's random source.
pub(crate) fn random_id() -> u64 {
    loop {
        match RandomState::new().hash_one("a node") {
            0 => {}
            id => return id,
        }
    }
}

/// What an earlier run left in the `meta` space.
pub(crate) struct Past {
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

fn node_payload(node: u64, incarnation: u64) -> Bytes {
    let mut payload = BytesMut::with_capacity(16);
    payload.put_u64_le(node);
    payload.put_u64_le(incarnation);
    payload.freeze()
}
