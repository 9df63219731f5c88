//! Message contents that outlived their log entry.
//!
//! A content lives in its log entry first. When a snapshot covers that entry and the message is still alive,
//! its content is copied here, so that the log can be purged. Its *id* is the entry's index and its number within the
//! entry.
//!
//! # Volumes
//!
//! Contents are kept in *volumes*, a database and a directory each: `data/contents/<number as 016x>`. They are put
//! into the newest one; when that holds [`Options::contents_volume_bytes`], a newer one is begun. No content is ever
//! removed singly: a volume is dropped as a whole, once nothing in it is alive, and one in which little is alive has
//! that copied to the newest first ([`Contents::retain`]). Contents that nobody refers to, which a crash may leave,
//! go with their volume like all others.
//!
//! Within a volume the ids ascend in the order of writing. So each volume knows its lowest and its highest id, runs of
//! contents (see `run`) do not overlap, and a search looks at one key. What would break the order begins a new volume:
//! contents that are written again after a crash or are copied from older volumes. The same content may be in
//! several volumes, always with the same bytes.
//!
//! # Trust
//!
//! `data/contents/VOLUMES` lists the volumes (see `list`), and is durable before a volume is used and before one is removed:
//!
//! 1. *begin*: end the newest volume with the mark `sealed`, and flush; create the next, and flush; list it; use it.
//! 2. *drop*: flush what was copied; list the others; remove the directory, when the last reader is done with it.
//!
//! Only the newest volume has anything that is not flushed. Flushes are numbered across volumes; the newest has the number of the
//! last, and the witness `progress-contents` knows how far it must reach. An open refuses a listed volume that is missing,
//! belongs to another node, or is not the newest and not sealed.
//!
//! The order of things around a snapshot makes all this safe without transactions: `put_all`, `flush`, then
//! [`SnapshotWriter::finish`](crate::SnapshotWriter::finish), then purge the log and `retain`.

mod list;
mod run;
mod shelf;
mod volume;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use self::run::Packer;
use self::shelf::Shelf;
#[cfg(feature = "simulation")]
pub(crate) use self::volume::PARTS;
use self::volume::{Cursor, Found, Held, Volume};
use crate::Options;
use crate::door::Door;
use crate::error::{OpenError, StorageError};
use crate::failure::Failure;
use crate::medium::Medium;
use crate::progress::Witness;
use crate::throttle::Throttle;

/// Index of the log entry, and number within it.
type Id = (u64, u32);

/// So many bytes are written together, and flushed, so that the final flush is short.
const FLUSH_EVERY: u64 = 1 << 20;
/// A volume of which less than one in so many is alive is rewritten; and one that holds less than one in so many
/// of the bytes that it may hold counts as small.
const THIN: u64 = 4;
/// Volumes that were ended while they were small are put together when there are more than these.
const SMALL_MAX: usize = 4;

/// One content and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The index of its log entry.
    pub index: u64,
    /// Its number within the entry.
    pub number: u32,
    /// The content itself.
    pub bytes: Bytes,
}

impl Content {
    fn id(&self) -> Id {
        (self.index, self.number)
    }
}

/// A cheap handle on the stored contents. Every call may block on the disk.
#[derive(Clone)]
pub struct Contents {
    inner: Arc<Inner>,
}

/// The open volumes, before anything uses them.
pub(crate) struct OpenVolumes {
    volumes: Vec<Arc<Volume>>,
    shelf: Arc<Shelf>,
    medium: Arc<dyn Medium>,
    dir: PathBuf,
    node: u64,
    /// The number of the last flush.
    pub(crate) sequence: u64,
}

struct Inner {
    medium: Arc<dyn Medium>,
    dir: PathBuf,
    node: u64,
    /// In ascending order of their numbers, and never empty: the last one is the newest.
    volumes: Mutex<Vec<Arc<Volume>>>,
    shelf: Arc<Shelf>,
    /// Held by whoever adds contents, or begins or drops a volume, all the while. Taken before the others.
    writing: Mutex<()>,
    flushes: Mutex<Flushes>,
    failure: Arc<Failure>,
    bytes_per_second: Option<u64>,
    volume_bytes: u64,
    _door: Option<Arc<Door>>,
}

/// Counts the flushes, in the newest volume and beside it.
struct Flushes {
    sequence: u64,
    progress: Box<dyn Witness>,
}

impl OpenVolumes {
    /// Makes an empty directory a node's.
    pub(crate) fn create(medium: &Arc<dyn Medium>, dir: &Path, node: u64) -> Result<(), StorageError> {
        let shelf = Arc::new(Shelf::new(0));
        Volume::create(medium, &shelf, list::path_of(dir, 1), 1, node, 0)?;
        list::write(&**medium, dir, &[1])
    }

    /// Looks which volumes there are and must be, and changes nothing. The directories of those that must be.
    pub(crate) fn look(medium: &dyn Medium, dir: &Path) -> Result<Vec<PathBuf>, OpenError> {
        let names = medium.names(dir)?;
        let mut paths = Vec::new();
        for number in list::read(medium, dir)? {
            let path = list::path_of(dir, number);
            if !names.iter().any(|name| list::number_of(name) == Some(number)) {
                return Err(OpenError::damaged(path, "it is missing"));
            }
            paths.push(path);
        }
        Ok(paths)
    }

    /// Opens the volumes, and checks that they are the node's own and hold everything up to flush `reached`. Changes
    /// nothing that they hold.
    pub(crate) fn open(
        medium: Arc<dyn Medium>,
        dir: &Path,
        node: u64,
        reached: u64,
        options: &Options,
    ) -> Result<Self, OpenError> {
        Self::look(&*medium, dir)?;
        let numbers = list::read(&*medium, dir)?;
        let newest = numbers.last().copied();
        let shelf = Arc::new(Shelf::new(options.contents_cache_bytes));
        let mut volumes = Vec::new();
        let mut sequence = 0;
        for number in numbers {
            let path = list::path_of(dir, number);
            let is_newest = Some(number) == newest;
            let volume = Volume::open(&medium, &shelf, &path, number, node)?;
            let damaged = |what: String| OpenError::damaged(path.join("db"), what);
            if is_newest {
                sequence = volume.sequence().map_err(|error| damaged(error.to_string()))?;
                if sequence < reached {
                    return Err(damaged(format!(
                        "it ends at flush {sequence}, but flush {reached} was confirmed"
                    )));
                }
            } else if !volume.held().sealed {
                return Err(damaged(
                    "it is not the newest volume, and its end is missing".into(),
                ));
            } else {
                volume.close();
            }
            volumes.push(Arc::new(volume));
        }
        Ok(OpenVolumes {
            volumes,
            shelf,
            medium,
            dir: dir.to_owned(),
            node,
            sequence,
        })
    }

    /// Removes what is left of volumes that were being begun or dropped.
    pub(crate) fn clean_up(&self) -> Result<(), StorageError> {
        for name in self.medium.names(&self.dir)? {
            let Some(number) = list::number_of(&name) else {
                continue;
            };
            if self.volumes.iter().all(|volume| volume.number != number) {
                let path = list::path_of(&self.dir, number);
                tracing::info!(volume = %path.display(), "removing a volume that was never used or is dropped");
                self.medium.remove(&path)?;
            }
        }
        self.medium.sync(&self.dir)
    }
}

impl Contents {
    /// A handle on the opened volumes.
    pub(crate) fn new(
        opened: OpenVolumes,
        progress: Box<dyn Witness>,
        failure: Arc<Failure>,
        options: &Options,
        door: Option<Arc<Door>>,
    ) -> Self {
        let OpenVolumes {
            volumes,
            shelf,
            medium,
            dir,
            node,
            sequence,
        } = opened;
        Contents {
            inner: Arc::new(Inner {
                medium,
                dir,
                node,
                volumes: Mutex::new(volumes),
                shelf,
                writing: Mutex::new(()),
                flushes: Mutex::new(Flushes { sequence, progress }),
                failure,
                bytes_per_second: options.snapshot_bytes_per_second,
                volume_bytes: options.contents_volume_bytes.max(1),
                _door: door,
            }),
        }
    }

    // --------------------------------------------------------------- writing

    /// Writes contents, given in ascending order, no faster than [`Options::snapshot_bytes_per_second`], and returns
    /// their bytes. Writing one again is fine. None of them is durable before [`Contents::flush`]. Waits until nobody
    /// else writes.
    pub fn put_all(&self, items: &mut dyn Iterator<Item = (u64, u32, Bytes)>) -> Result<u64, StorageError> {
        self.put_within(Throttle::new(self.inner.bytes_per_second), items)
    }

    /// Like [`Contents::put_all`], as fast as the disk takes them: for a node whose log has to wait for them anyway.
    pub fn put_all_unthrottled(
        &self,
        items: &mut dyn Iterator<Item = (u64, u32, Bytes)>,
    ) -> Result<u64, StorageError> {
        self.put_within(Throttle::new(None), items)
    }

    fn put_within(
        &self,
        throttle: Throttle,
        items: &mut dyn Iterator<Item = (u64, u32, Bytes)>,
    ) -> Result<u64, StorageError> {
        let _writing = self.inner.writing.lock();
        let mut items = items.map(|(index, number, bytes)| Ok(Content { index, number, bytes }));
        self.pour(throttle, &mut items)
    }

    /// Makes everything written so far durable.
    pub fn flush(&self) -> Result<(), StorageError> {
        let mut flushes = self.inner.flushes.lock();
        self.write(|| {
            let sequence = flushes.sequence + 1;
            self.newest().flush(sequence)?;
            flushes.sequence = sequence;
            flushes.progress.note(sequence)
        })
    }

    /// Begins a new volume, durably, if the newest one is not empty. Answers the number of the newest one: what is
    /// written from here on is in it or in a newer one. See [`Contents::drop_before`].
    pub fn begin_volume(&self) -> Result<u64, StorageError> {
        let _writing = self.inner.writing.lock();
        Ok(self.begin()?.number)
    }

    /// Adds contents to the newest volume, or to new ones. The caller holds `writing`.
    fn pour(
        &self,
        mut throttle: Throttle,
        items: &mut dyn Iterator<Item = Result<Content, StorageError>>,
    ) -> Result<u64, StorageError> {
        let mut packer = Packer::default();
        let mut volume = self.newest();
        let mut total = 0;
        for item in items {
            let content = item?;
            let held = volume.held();
            let last = packer.last().or(held.ids.map(|(_, highest)| highest));
            let full = held.bytes + packer.bytes() >= self.inner.volume_bytes;
            if held.sealed || full || last.is_some_and(|last| content.id() <= last) {
                self.put(&volume, &mut packer)?;
                volume = self.begin()?;
            }
            packer.add(content.id(), &content.bytes)?;
            total += content.bytes.len() as u64;
            if packer.bytes() >= FLUSH_EVERY {
                self.put(&volume, &mut packer)?;
                self.flush()?;
            }
            throttle.spend(content.bytes.len());
        }
        self.put(&volume, &mut packer)?;
        Ok(total)
    }

    fn put(&self, volume: &Volume, packer: &mut Packer) -> Result<(), StorageError> {
        match packer.take() {
            Some(packed) => self.write(|| volume.put(&packed)),
            None => self.inner.failure.check(),
        }
    }

    /// Begins a new volume if the newest is not empty. The caller holds `writing`.
    fn begin(&self) -> Result<Arc<Volume>, StorageError> {
        // So that no flush goes to a volume that has ended.
        let flushes = self.inner.flushes.lock();
        let newest = self.newest();
        if newest.held().ids.is_none() && !newest.held().sealed {
            return Ok(newest);
        }
        self.write(|| {
            let inner = &self.inner;
            newest.seal()?;
            let number = newest.number + 1;
            let path = list::path_of(&inner.dir, number);
            let volume = Arc::new(Volume::create(
                &inner.medium,
                &inner.shelf,
                path,
                number,
                inner.node,
                flushes.sequence,
            )?);
            let mut volumes = self.volumes();
            volumes.push(Arc::clone(&volume));
            self.list(volumes)?;
            Ok(volume)
        })
    }

    /// Has these be the volumes, durably.
    fn list(&self, volumes: Vec<Arc<Volume>>) -> Result<(), StorageError> {
        let numbers: Vec<u64> = volumes.iter().map(|volume| volume.number).collect();
        list::write(&*self.inner.medium, &self.inner.dir, &numbers)?;
        *self.inner.volumes.lock() = volumes;
        Ok(())
    }

    fn volumes(&self) -> Vec<Arc<Volume>> {
        self.inner.volumes.lock().clone()
    }

    fn newest(&self) -> Arc<Volume> {
        let volumes = self.inner.volumes.lock();
        Arc::clone(volumes.last().expect("there is always a volume"))
    }

    fn write<T>(&self, step: impl FnOnce() -> Result<T, StorageError>) -> Result<T, StorageError> {
        self.inner.failure.check()?;
        self.inner.failure.note(step())
    }

    /// Bytes of contents that are alive, about: what was, when [`Contents::retain`] looked last, and all that was written since.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.volumes().iter().map(|volume| volume.live_bytes()).sum()
    }

    // -------------------------------------------------------------- dropping

    /// Gives back the space of contents that are not `live`: drops volumes in which nothing is, and rewrites those in
    /// which little is, as many as hold no more than [`Options::contents_volume_bytes`] of live ones together; the
    /// rest waits for the next call. Durable when it returns. Answers how many volumes were dropped.
    ///
    /// `live` are the ids of all live contents of entries up to `index_max`, in ascending order. Volumes with contents of
    /// later entries are left alone, so give the index at which `live` was taken. Call it
    /// when the image at that index is durable and the current one: a restart from an older one needs what is dropped.
    pub fn retain(&self, live: &[(u64, u32)], index_max: u64) -> Result<usize, StorageError> {
        let _writing = self.inner.writing.lock();
        let before = self.volumes();
        if let Some(newest) = before.last()
            && Share::of(newest, live, index_max).is_some_and(|share| share.live == 0)
        {
            self.begin()?;
        }
        let newest = self.newest().number;
        let mut dead = BTreeSet::new();
        let (mut thin, mut small) = (Vec::new(), Vec::new());
        for volume in &before {
            let Some(share) = Share::of(volume, live, index_max) else {
                continue;
            };
            volume.note_live(share.bytes());
            if volume.number == newest {
                continue;
            }
            if share.live == 0 {
                dead.insert(volume.number);
            } else if share.live * THIN < share.held.count {
                thin.push((share, volume));
            } else if share.held.bytes * THIN < self.inner.volume_bytes {
                small.push((share, volume));
            }
        }
        if small.len() > SMALL_MAX {
            thin.append(&mut small);
            thin.sort_by_key(|(_, volume)| volume.number);
        }
        let mut room = self.inner.volume_bytes;
        let mut rewritten = Vec::new();
        for (share, volume) in thin {
            let bytes = share.bytes();
            if bytes > room && !rewritten.is_empty() {
                break;
            }
            room = room.saturating_sub(bytes);
            rewritten.push(Arc::clone(volume));
        }
        self.rewrite(&rewritten, live)?;
        dead.extend(rewritten.iter().map(|volume| volume.number));
        self.drop_volumes(|number| dead.contains(&number))
    }

    /// Drops all volumes older than `number`, durably: everything that is alive must be in it or in newer ones. Answers
    /// how many.
    pub fn drop_before(&self, number: u64) -> Result<usize, StorageError> {
        let _writing = self.inner.writing.lock();
        self.drop_volumes(|other| other < number)
    }

    /// Copies what is live in some volumes, and not in a newer one, to the newest, durably.
    fn rewrite(&self, volumes: &[Arc<Volume>], live: &[Id]) -> Result<(), StorageError> {
        if volumes.is_empty() {
            return Ok(());
        }
        let others: Vec<_> = self
            .volumes()
            .into_iter()
            .filter(|other| volumes.iter().all(|volume| volume.number != other.number))
            .collect();
        let elsewhere = |id: Id, than: u64| {
            for other in others
                .iter()
                .filter(|other| other.number > than && other.spans(id))
            {
                if matches!(other.find(id)?, Found::Whole(_)) {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        let mut walk = Walk::new(volumes.to_vec(), (0, 0));
        let mut wanted = std::iter::from_fn(|| {
            loop {
                match walk.step().transpose()? {
                    Ok((number, content)) => {
                        if live.binary_search(&content.id()).is_err() {
                            continue;
                        }
                        match elsewhere(content.id(), number) {
                            Ok(true) => {}
                            Ok(false) => return Some(Ok(content)),
                            Err(error) => return Some(Err(error)),
                        }
                    }
                    Err(error) => return Some(Err(error)),
                }
            }
        });
        let bytes = self.pour(Throttle::new(self.inner.bytes_per_second), &mut wanted)?;
        tracing::debug!(volumes = volumes.len(), bytes, "rewrote volumes of contents");
        self.flush()
    }

    /// Drops volumes. Never the newest. The caller holds `writing`.
    fn drop_volumes(&self, gone: impl Fn(u64) -> bool) -> Result<usize, StorageError> {
        let mut volumes = self.volumes();
        let newest = self.newest().number;
        let dropped: Vec<_> = volumes
            .extract_if(.., |volume| volume.number != newest && gone(volume.number))
            .collect();
        if dropped.is_empty() {
            return Ok(0);
        }
        self.write(|| self.list(volumes))?;
        for volume in &dropped {
            tracing::debug!(volume = %volume.path().display(), held = ?volume.held(), "dropping a volume of contents");
            // The last reader removes it.
            volume.remove_when_dropped();
        }
        Ok(dropped.len())
    }

    // --------------------------------------------------------------- reading

    /// Reads a content of `len` bytes; `None` if it is not here.
    pub fn get(&self, index: u64, number: u32, len: usize) -> Result<Option<Bytes>, StorageError> {
        let id = (index, number);
        let mut spanning: Vec<_> = {
            let volumes = self.inner.volumes.lock();
            volumes
                .iter()
                .filter(|volume| volume.spans(id))
                .cloned()
                .collect()
        };
        // Those that span many entries hold a few of each, and to look into one may mean to open it.
        spanning.sort_by_key(|volume| volume.width());
        let mut partly = None;
        for volume in spanning {
            match volume.find(id)? {
                Found::Whole(bytes) if bytes.len() == len => return Ok(Some(bytes)),
                Found::Whole(bytes) => {
                    return Err(StorageError::corrupt(format!(
                        "content {index}/{number}: it is of {} bytes, not {len}",
                        bytes.len()
                    )));
                }
                Found::Partly(error) => partly = partly.or(Some(error)),
                Found::Nothing => {}
            }
        }
        partly.map_or(Ok(None), Err)
    }

    /// Reads a content that was read lately, or is stored beside one that was. Never blocks on the disk; `None` says
    /// nothing.
    pub fn get_cached(&self, index: u64, number: u32) -> Option<Bytes> {
        let id = (index, number);
        let volumes = self.inner.volumes.lock();
        let mut newest_first = volumes.iter().rev().filter(|volume| volume.spans(id));
        newest_first.find_map(|volume| volume.find_cached(id))
    }

    /// Walks the contents in order, from a name on. One that a crash cut short while it was written is left
    /// out. Dropped volumes stay until the walk is done with them.
    pub fn range(&self, from: (u64, u32)) -> impl Iterator<Item = Result<Content, StorageError>> + '_ {
        let mut walk = Walk::new(self.volumes(), from);
        std::iter::from_fn(move || {
            let step = walk.step().transpose()?;
            Some(step.map(|(_, content)| content))
        })
    }
}

/// How much of a volume is alive, at most.
struct Share {
    held: Held,
    /// Live contents with ids in its range, some of which may be elsewhere; but 0 says that nothing in it is alive.
    live: u64,
}

impl Share {
    /// `None` if the volume is empty or has contents of entries after `index_max`.
    fn of(volume: &Volume, live: &[Id], index_max: u64) -> Option<Share> {
        let held = volume.held();
        let (lowest, highest) = held.ids.filter(|(_, highest)| highest.0 <= index_max)?;
        let from = live.partition_point(|id| *id < lowest);
        let to = live.partition_point(|id| *id <= highest);
        let live = (to - from) as u64;
        Some(Share { held, live })
    }

    /// Bytes that are alive, about.
    fn bytes(&self) -> u64 {
        let Held { count, bytes, .. } = self.held;
        bytes / count.max(1) * self.live.min(count)
    }
}

/// Walks several volumes as one: in order, each content once.
struct Walk {
    /// Not begun yet, in descending order of their lowest ids.
    waiting: Vec<(Id, Arc<Volume>)>,
    cursors: Vec<Cursor>,
    from: Id,
}

impl Walk {
    fn new(volumes: Vec<Arc<Volume>>, from: Id) -> Self {
        let mut waiting: Vec<_> = volumes
            .into_iter()
            .filter_map(|volume| {
                let (lowest, highest) = volume.held().ids?;
                (highest >= from).then_some((lowest, volume))
            })
            .collect();
        waiting.sort_by_key(|(lowest, _)| std::cmp::Reverse(*lowest));
        Walk {
            waiting,
            cursors: Vec::new(),
            from,
        }
    }

    /// The next content, and the number of the volume that has it: the newest of them.
    fn step(&mut self) -> Result<Option<(u64, Content)>, StorageError> {
        loop {
            let mut least: Option<Id> = None;
            let mut ended = false;
            for cursor in &mut self.cursors {
                match cursor.peek()? {
                    Some(id) => least = Some(least.map_or(id, |least| least.min(id))),
                    None => ended = true,
                }
            }
            if ended {
                self.cursors
                    .retain_mut(|cursor| !matches!(cursor.peek(), Ok(None)));
            }
            if let Some((_, volume)) = self
                .waiting
                .pop_if(|(lowest, _)| least.is_none_or(|least| *lowest <= least))
            {
                self.cursors.push(Cursor::new(volume, self.from)?);
                continue;
            }
            let Some(least) = least else { return Ok(None) };
            let mut best: Option<(u64, Content)> = None;
            for cursor in &mut self.cursors {
                if cursor.peek()? == Some(least)
                    && let Some(content) = cursor.take()
                    && best.as_ref().is_none_or(|(number, _)| *number < cursor.volume())
                {
                    best = Some((cursor.volume(), content));
                }
            }
            return Ok(best);
        }
    }
}
