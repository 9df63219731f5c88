//! Opening a directory: look first, then check what the databases hold, and only then write.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use crate::contents::OpenVolumes;
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
    pub(crate) contents: OpenVolumes,
    pub(crate) contents_progress: Box<dyn Witness>,
    /// Last, so that it is dropped last. A simulated disk has another lock.
    pub(crate) door: Option<Arc<Door>>,
}

/// Opens a directory, or makes a new node of an empty one.
pub(crate) fn open(dir: &Path, options: &Options) -> Result<Opened, OpenError> {
    let paths = Paths::new(dir);
    let medium: Arc<dyn Medium> = Arc::new(Files);
    let (door, found) = Door::open(&paths)?;
    let (node, created) = match found {
        Found::Node(node) => (node, false),
        Found::Nothing => (create(&paths, &medium)?, true),
    };

    let (reached, contents_reached) = look_around(&paths, &*medium)?;
    let log = Disk::open(&paths.log, &meta::SPACES, options.log_cache_bytes)?;
    let (recovered, past, image) = check_log(&paths, &log, node, reached, options)?;
    if let Some(image) = &image {
        disk::inspect(&snapshots::path_of(&paths.images, image))?;
    }
    let contents = OpenVolumes::open(
        Arc::clone(&medium),
        &paths.contents,
        node,
        contents_reached,
        options,
    )?;

    // All is well: from here on the directory is written to.
    clean_up(&paths)?;
    contents.clean_up()?;
    let log = compact_log(log, &recovered, options)?;
    let syncs_before = hook::calls();
    let identity = begin_run(&log, &recovered, &past, created)?;
    // That was the first flush of the run: it proves that the sync hook works.
    if cfg!(target_os = "linux") && hook::calls() == syncs_before {
        return Err(OpenError::HookInactive);
    }
    let progress = Box::new(Progress::open(&paths.progress, recovered.sequence)?);
    let contents_progress = Box::new(Progress::open(&paths.contents_progress, contents.sequence)?);
    Ok(Opened {
        paths,
        medium,
        identity,
        log: Arc::new(log),
        recovered,
        progress,
        pace: Pace::Thread,
        image,
        contents,
        contents_progress,
        door: Some(Arc::new(door)),
    })
}

/// Notes this run in the log database that was checked: it has a number.
pub(crate) fn begin_run(
    log: &dyn Engine,
    recovered: &Recovered,
    past: &Past,
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
    log.flush()?;
    Ok(identity)
}

/// Checks what can be checked before a database is opened, and returns how far log and contents are
/// known to be durable.
fn look_around(paths: &Paths, medium: &dyn Medium) -> Result<(u64, u64), OpenError> {
    let reached = (
        Progress::read(&paths.progress)?,
        Progress::read(&paths.contents_progress)?,
    );
    compact::resume(&paths.log)?;
    disk::inspect(&paths.log)?;
    for dir in [&paths.images, &paths.contents] {
        if !dir.is_dir() {
            return Err(OpenError::damaged(dir, "it is missing"));
        }
    }
    for volume in OpenVolumes::look(medium, &paths.contents)? {
        disk::inspect(&volume)?;
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
    compact::clean(&paths.log)
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
fn create(paths: &Paths, medium: &Arc<dyn Medium>) -> Result<u64, OpenError> {
    files::replace(&paths.creating, b"this directory is being created\n")?;
    files::remove_dir(&paths.data)?;
    let node = random_id();
    files::create_dir(&paths.data)?;
    files::create_dir(&paths.images)?;
    files::create_dir(&paths.contents)?;
    create_log(&Disk::open(&paths.log, &meta::SPACES, 1 << 20)?, node)?;
    OpenVolumes::create(medium, &paths.contents, node)?;
    Progress::create(&paths.progress)?;
    Progress::create(&paths.contents_progress)?;
    files::sync(&paths.dir)?;
    door::write_identity(&paths.identity, node)?;
    files::remove_file(&paths.creating)?;
    files::sync(&paths.dir)?;
    tracing::info!(dir = %paths.dir.display(), node = format!("{node:016x}"), "created a data directory");
    Ok(node)
}

/// Makes an empty log database a node's.
pub(crate) fn create_log(log: &dyn Engine, node: u64) -> Result<(), StorageError> {
    meta::put(log, MetaKey::Node, &node_payload(node, 0))?;
    log.flush()
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
        })
    }
}

fn node_payload(node: u64, incarnation: u64) -> Bytes {
    let mut payload = BytesMut::with_capacity(16);
    payload.put_u64_le(node);
    payload.put_u64_le(incarnation);
    payload.freeze()
}
