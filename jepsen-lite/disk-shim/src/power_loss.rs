//! What a power loss leaves of the files: planned from the undo journal after
//! the processes were killed, then carried out on the data folder.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::UNIX_EPOCH;

use crate::journal::{FileId, GRAVEYARD_FOLDER, Header, JOURNAL_FILE, Kind, PAGE_BYTES, Reader, Record};
use crate::rng::Rng;
use crate::{Error, Result};

/// Which of the pages that were written since the last sync of their file are
/// on the disk after the power loss.
///
/// A page is kept as it was last written, but where a variant says otherwise.
/// A file is as long as it was when last synced, or longer if a kept page
/// lies beyond that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// None.
    None,
    /// All. What is left is what the program saw.
    All,
    /// Each with this probability, on its own.
    Percent(u8),
    /// Those after a random place in the file.
    Later,
    /// Those before a random place in the file.
    Earlier,
    /// All as they were at one random moment: the writes of each file before
    /// it are kept, those after it lost.
    Prefix,
    /// Each page at a random moment of its own: kept, lost, or as it was in
    /// between, if it was written more than once.
    Stale,
    /// Half of the pages, and one that is kept is cut within: its first
    /// sectors of 512 bytes are new, the others old.
    Torn,
}

impl Variant {
    /// The variants by which storage engines are judged here. `Torn` is not
    /// among them: it breaks the promise of most disks that a 4 KiB block is
    /// written whole or not at all.
    pub const USUAL: [Variant; 9] = [
        Variant::None,
        Variant::All,
        Variant::Percent(10),
        Variant::Percent(50),
        Variant::Percent(90),
        Variant::Later,
        Variant::Earlier,
        Variant::Prefix,
        Variant::Stale,
    ];

    /// One of the usual variants, drawn by the seed.
    pub fn draw(seed: u64) -> Variant {
        Variant::USUAL[Rng::new(seed ^ 0x5641_5249_414e_5421).below(Variant::USUAL.len())]
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Variant::None => f.write_str("none"),
            Variant::All => f.write_str("all"),
            Variant::Percent(percent) => write!(f, "{percent}%"),
            Variant::Later => f.write_str("later"),
            Variant::Earlier => f.write_str("earlier"),
            Variant::Prefix => f.write_str("prefix"),
            Variant::Stale => f.write_str("stale"),
            Variant::Torn => f.write_str("torn"),
        }
    }
}

impl FromStr for Variant {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Variant, String> {
        match text {
            "none" => Ok(Variant::None),
            "all" => Ok(Variant::All),
            "later" => Ok(Variant::Later),
            "earlier" => Ok(Variant::Earlier),
            "prefix" => Ok(Variant::Prefix),
            "stale" => Ok(Variant::Stale),
            "torn" => Ok(Variant::Torn),
            _ => text
                .strip_suffix('%')
                .and_then(|percent| percent.parse().ok())
                .filter(|percent| *percent <= 100)
                .map(Variant::Percent)
                .ok_or_else(|| {
                    format!("no variant {text:?}: none, all, N%, later, earlier, prefix, stale or torn")
                }),
        }
    }
}

/// What becomes of names that were created, renamed or removed since the last
/// sync of their folder. File systems make such changes durable in the order
/// in which they were made, so a power loss undoes the last so many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// All changes are kept.
    Kept,
    /// All changes are undone.
    Lost,
    /// A random number of the last changes is undone.
    #[default]
    Drawn,
}

impl FromStr for Names {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Names, String> {
        match text {
            "kept" => Ok(Names::Kept),
            "lost" => Ok(Names::Lost),
            "drawn" => Ok(Names::Drawn),
            _ => Err(format!("no choice {text:?} for names: kept, lost or drawn")),
        }
    }
}

/// How much was at stake and how much was lost. A power loss without unsynced
/// pages and names tests nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Files with pages that were not durable.
    pub files: u64,
    /// Pages that were not durable.
    pub pages: u64,
    /// Of these, pages that were put back, whole or in part.
    pub pages_lost: u64,
    /// Changes of names that were not durable.
    pub names: u64,
    /// Of these, changes that were undone.
    pub names_undone: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report {
            files,
            pages,
            pages_lost,
            names,
            names_undone,
        } = self;
        write!(
            f,
            "{pages_lost} of {pages} unsynced pages in {files} files lost, \
             {names_undone} of {names} unsynced names undone"
        )
    }
}

/// A power loss, planned but not yet done.
#[derive(Debug)]
pub struct PowerLoss {
    data: PathBuf,
    journal_folder: PathBuf,
    journal: File,
    files: Vec<FilePlan>,
    names: Vec<NameChange>,
    report: Report,
}

#[derive(Debug)]
struct FilePlan {
    path: PathBuf,
    size: u64,
    pages: Vec<PagePlan>,
    pages_at_stake: u64,
    pages_lost: u64,
}

/// A page to put back.
#[derive(Debug)]
struct PagePlan {
    page: u64,
    old: OldPage,
    /// Bytes at the start of the page that stay as they are.
    kept_bytes: u64,
}

/// The bytes of a page before a write: where in the journal, and how many of
/// them the file had.
#[derive(Clone, Copy, Debug)]
struct OldPage {
    journal_at: u64,
    bytes: u64,
    /// Number of the record, to order the writes of one file.
    moment: usize,
}

/// A change of a name in a folder. Folders are known by id: a folder that was
/// renamed meanwhile, durably, may have left its path to another.
#[derive(Clone, Debug)]
struct NameChange {
    folder: FileId,
    name: OsString,
    act: Act,
}

#[derive(Clone, Debug)]
enum Act {
    Created,
    FolderCreated,
    Removed { link: u64 },
    FolderRemoved { id: FileId },
    Renamed { from: (FileId, OsString), link: u64 },
}

/// What the journal says of one file.
#[derive(Debug, Default)]
struct History {
    /// The old contents of each page that was written since the last sync,
    /// oldest first. The first is what is durable.
    unsynced: BTreeMap<u64, Vec<OldPage>>,
    /// Pages whose sync failed and that were not written since.
    failed: BTreeMap<u64, Vec<OldPage>>,
    /// Size when last synced; before the first sync, when first written.
    durable_size: Option<u64>,
    /// The smallest size to which it was cut since the last sync.
    cut_to: Option<u64>,
}

impl History {
    fn touch(&mut self, header: &Header, record_at: u64, moment: usize) {
        let (start, end) = match header.kind {
            Kind::Truncate => (header.b, header.c.max(header.a)),
            _ => (header.a / PAGE_BYTES * PAGE_BYTES, header.a + header.b),
        };
        self.durable_size.get_or_insert(header.c);
        if header.kind == Kind::Truncate && header.a < header.c {
            self.cut_to = Some(self.cut_to.map_or(header.a, |size| size.min(header.a)));
        }
        for page in start / PAGE_BYTES..end.div_ceil(PAGE_BYTES) {
            let at = page * PAGE_BYTES - start;
            let bytes = header.payload_bytes.saturating_sub(at).min(PAGE_BYTES);
            // A page that only a change of size made is not written: it is a hole.
            if bytes == 0 && header.kind == Kind::Truncate {
                continue;
            }
            let old = OldPage {
                journal_at: record_at + at,
                bytes,
                moment,
            };
            let failed = &mut self.failed;
            let versions = self
                .unsynced
                .entry(page)
                .or_insert_with(|| failed.remove(&page).unwrap_or_default());
            versions.push(old);
        }
    }

    fn synced(&mut self, size: u64) {
        self.unsynced.clear();
        self.durable_size = Some(size);
        self.cut_to = None;
    }

    fn sync_failed(&mut self) {
        for (page, mut versions) in std::mem::take(&mut self.unsynced) {
            self.failed.entry(page).or_default().append(&mut versions);
        }
    }

    fn dropped(&mut self, offset: u64, length: u64) {
        self.failed.retain(|page, _| !is_dropped(*page, offset, length));
    }

    fn at_stake(mut self) -> History {
        for (page, versions) in std::mem::take(&mut self.failed) {
            self.unsynced.entry(page).or_insert(versions);
        }
        self
    }

    fn plan(&self, path: PathBuf, newest_size: u64, variant: Variant, rng: &mut Rng) -> FilePlan {
        let durable_size = self.durable_size.unwrap_or(newest_size);
        let cut = self.cut_to.filter(|_| match variant {
            Variant::All => true,
            Variant::None => false,
            _ => rng.chance(50),
        });
        let mut size = if variant == Variant::All {
            newest_size
        } else {
            cut.unwrap_or(durable_size)
        };

        let moments: Vec<usize> = self.unsynced.values().flatten().map(|old| old.moment).collect();
        let moment = match (moments.iter().min(), moments.iter().max()) {
            (Some(first), Some(last)) => first + rng.below(last - first + 2),
            _ => 0,
        };
        let places: Vec<u64> = self.unsynced.keys().copied().collect();
        let place = places.get(rng.below(places.len().max(1))).copied().unwrap_or(0);
        let torn = places
            .get(rng.below(places.len().max(1)))
            .copied()
            .filter(|_| variant == Variant::Torn);

        let mut pages = Vec::new();
        let mut pages_lost = 0;
        for (&page, versions) in &self.unsynced {
            // The number of versions that survive: 0 is the durable page, all of them the newest.
            let if_kept = |kept: bool| if kept { versions.len() } else { 0 };
            let survives = match variant {
                Variant::None => 0,
                Variant::All => versions.len(),
                Variant::Percent(percent) => if_kept(rng.chance(percent)),
                Variant::Later => if_kept(page >= place),
                Variant::Earlier => if_kept(page <= place),
                Variant::Prefix => versions.iter().filter(|old| old.moment < moment).count(),
                Variant::Stale => rng.below(versions.len() + 1),
                Variant::Torn => if_kept(rng.chance(50)),
            };
            let start = page * PAGE_BYTES;
            let newest_end = newest_size.min(start + PAGE_BYTES);
            let torn_here = torn == Some(page);
            let (old, end) = match versions.get(survives) {
                Some(old) if !torn_here => (Some(*old), start + old.bytes),
                // Kept as last written, unless the file was cut before it: then it is as durable.
                _ if newest_end > start => (torn_here.then(|| versions[0]), newest_end),
                _ => (versions.first().copied(), 0),
            };
            let survived = torn_here || survives > 0;
            if survived && variant != Variant::All {
                size = size.max(end);
            }
            pages_lost += u64::from(torn_here || survives < versions.len());
            let kept_bytes = if torn_here {
                512 * (1 + rng.below(7) as u64)
            } else {
                0
            };
            pages.extend(old.map(|old| PagePlan {
                page,
                old,
                kept_bytes,
            }));
        }
        FilePlan {
            path,
            size,
            pages,
            pages_at_stake: self.unsynced.len() as u64,
            pages_lost,
        }
    }
}

impl PowerLoss {
    /// Plans a power loss of the disk whose journal is in `journal_folder`.
    /// The processes that wrote it must be dead. The same journal, seed and
    /// choices give the same plan.
    pub fn plan(
        data: &Path,
        journal_folder: &Path,
        seed: u64,
        variant: Variant,
        names: Names,
    ) -> Result<PowerLoss> {
        let context = |action: &str, path: &Path| {
            let what = format!("{action} {}", path.display());
            move |source| Error::Io { what, source }
        };
        let journal_path = journal_folder.join(JOURNAL_FILE);
        // A program that was killed before it touched a file has left none.
        let journal = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&journal_path)
            .map_err(context("open the journal", &journal_path))?;
        let (histories, changes) = read(&journal).map_err(context("read the journal", &journal_path))?;

        let mut paths = BTreeMap::new();
        find_files(data, &mut paths).map_err(context("list", data))?;
        let graveyard = journal_folder.join(GRAVEYARD_FOLDER);
        find_files(&graveyard, &mut paths).map_err(context("list", &graveyard))?;

        let mut rng = Rng::new(seed);
        let mut report = Report::default();
        let mut files = Vec::new();
        for (id, history) in histories {
            // A file that is gone for good has nothing to lose.
            let Some(path) = paths.remove(&id) else { continue };
            let size = fs::metadata(&path).map_err(context("look at", &path))?.len();
            let history = history.at_stake();
            if history.unsynced.is_empty() && history.durable_size.is_none_or(|durable| durable == size) {
                continue;
            }
            let file = history.plan(path, size, variant, &mut rng);
            report.files += 1;
            report.pages += file.pages_at_stake;
            report.pages_lost += file.pages_lost;
            files.push(file);
        }

        let undone = match names {
            Names::Kept => 0,
            Names::Lost => changes.len(),
            Names::Drawn => rng.below(changes.len() + 1),
        };
        report.names = changes.len() as u64;
        report.names_undone = undone as u64;
        let names = changes.into_iter().rev().take(undone).collect();
        let (data, journal_folder) = (data.to_owned(), journal_folder.to_owned());
        Ok(PowerLoss {
            data,
            journal_folder,
            journal,
            files,
            names,
            report,
        })
    }

    /// What is at stake, and what will be lost.
    pub fn report(&self) -> Report {
        self.report
    }

    /// The files of which something is at stake: where each is now, how many of its pages were not durable,
    /// and how many of these will be put back.
    pub fn files(&self) -> impl Iterator<Item = (&Path, u64, u64)> {
        let files = self.files.iter();
        files.map(|file| (file.path.as_path(), file.pages_at_stake, file.pages_lost))
    }

    /// Changes the files as planned. What is there afterwards is durable: the
    /// journal starts empty.
    pub fn undo(self) -> Result<Report> {
        let context = |path: &Path| {
            let what = format!("undo changes of {}", path.display());
            move |source| Error::Io { what, source }
        };
        for file in &self.files {
            self.undo_file(file).map_err(context(&file.path))?;
        }
        let mut again = BTreeMap::new();
        for change in &self.names {
            self.undo_name(change, &mut again).map_err(context(&self.data))?;
        }
        forget(&self.journal_folder).map_err(context(&self.journal_folder))?;
        Ok(self.report)
    }

    fn undo_file(&self, plan: &FilePlan) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(&plan.path)?;
        let mut buffer = [0; PAGE_BYTES as usize];
        for PagePlan {
            page,
            old,
            kept_bytes,
        } in &plan.pages
        {
            let start = page * PAGE_BYTES;
            let length = PAGE_BYTES.min(plan.size.saturating_sub(start));
            if length <= *kept_bytes {
                continue;
            }
            buffer.fill(0);
            let bytes = usize::try_from(old.bytes).expect("within a page");
            self.journal.read_exact_at(&mut buffer[..bytes], old.journal_at)?;
            let range = usize::try_from(*kept_bytes).expect("within a page")
                ..usize::try_from(length).expect("within a page");
            file.write_all_at(&buffer[range], start + kept_bytes)?;
        }
        file.set_len(plan.size)
    }

    /// Undoes one change of a name. A folder that is gone for good has no
    /// names to undo. `again` holds the folders that came back, by the id they
    /// had.
    fn undo_name(&self, change: &NameChange, again: &mut BTreeMap<FileId, FileId>) -> io::Result<()> {
        let path_of = |folder: &FileId, name: &OsString, again: &BTreeMap<FileId, FileId>| {
            let id = again.get(folder).unwrap_or(folder);
            find_folder(&self.data, *id).map(|path| path.map(|path| path.join(name)))
        };
        let Some(path) = path_of(&change.folder, &change.name, again)? else {
            return Ok(());
        };
        let bring_back = |link: u64| match link {
            0 => Ok(()),
            link => {
                let grave = self.journal_folder.join(GRAVEYARD_FOLDER).join(link.to_string());
                fs::hard_link(grave, &path)
            }
        };
        let result = match &change.act {
            Act::Created => fs::remove_file(&path),
            Act::FolderCreated => fs::remove_dir_all(&path),
            Act::Removed { link } => bring_back(*link),
            Act::FolderRemoved { id } => {
                let made = fs::create_dir(&path).and_then(|()| fs::metadata(&path));
                made.map(|metadata| {
                    again.insert(*id, id_of(&metadata));
                })
            }
            Act::Renamed {
                from: (folder, name),
                link,
            } => match path_of(folder, name, again)? {
                Some(from) => fs::rename(&path, from).and_then(|()| bring_back(*link)),
                None => Ok(()),
            },
        };
        match result {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists
                ) =>
            {
                Ok(())
            }
            result => result,
        }
    }
}

/// Whether the page cache can let go of a page: only of one that lies within the range as a whole.
fn is_dropped(page: u64, offset: u64, length: u64) -> bool {
    let end = offset.saturating_add(length);
    offset <= page * PAGE_BYTES && (page + 1) * PAGE_BYTES <= end
}

/// The pages of a file within a range whose sync failed and that were not written since: where each
/// begins, and what is on the disk there.
pub(crate) fn failed_pages(
    journal: &File,
    file: FileId,
    offset: u64,
    length: u64,
) -> io::Result<Vec<(u64, Vec<u8>)>> {
    let (mut histories, _) = read(journal)?;
    let failed = histories.remove(&file).unwrap_or_default().failed;
    let mut pages = Vec::new();
    for (page, versions) in failed {
        if !is_dropped(page, offset, length) {
            continue;
        }
        let mut bytes = vec![0; PAGE_BYTES as usize];
        if let Some(old) = versions.first() {
            let kept = usize::try_from(old.bytes).expect("within a page");
            journal.read_exact_at(&mut bytes[..kept], old.journal_at)?;
        }
        pages.push((page * PAGE_BYTES, bytes));
    }
    Ok(pages)
}

/// Takes everything on the disk as durable: empties the journal and the
/// graveyard. The processes must be dead.
pub(crate) fn forget(journal_folder: &Path) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(journal_folder.join(JOURNAL_FILE))?;
    match fs::read_dir(journal_folder.join(GRAVEYARD_FOLDER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(entries) => entries
            .into_iter()
            .try_for_each(|entry| fs::remove_file(entry?.path())),
    }
}

/// The files with their histories, and the changes of names that are not
/// durable, oldest first.
fn read(journal: &File) -> io::Result<(BTreeMap<FileId, History>, Vec<NameChange>)> {
    let mut histories: BTreeMap<FileId, History> = BTreeMap::new();
    let mut changes: Vec<NameChange> = Vec::new();
    let mut reader = Reader::new(journal)?;
    let mut moment = 0;
    while let Some(record) = reader.next()? {
        let header = record.header;
        let other = FileId {
            inode: header.b,
            born_ns: header.c,
        };
        let mut note = |act| -> io::Result<()> {
            let bytes = read_payload(journal, &record)?;
            let mut names = bytes.rsplit(|byte| *byte == 0).map(file_name);
            let name = names.next().unwrap_or_default();
            let act = match act {
                Act::Renamed {
                    from: (folder, _),
                    link,
                } => Act::Renamed {
                    from: (folder, names.next().unwrap_or_default()),
                    link,
                },
                act => act,
            };
            changes.push(NameChange {
                folder: header.id,
                name,
                act,
            });
            Ok(())
        };
        match header.kind {
            Kind::Write | Kind::Truncate => {
                histories
                    .entry(header.id)
                    .or_default()
                    .touch(&header, record.payload_at, moment);
            }
            Kind::Sync => {
                histories.entry(header.id).or_default().synced(header.c);
                make_durable(&mut changes, header.id);
            }
            Kind::SyncFailed => histories.entry(header.id).or_default().sync_failed(),
            Kind::Dropped => histories
                .entry(header.id)
                .or_default()
                .dropped(header.a, header.b),
            Kind::SyncAll => {
                histories.clear();
                changes.clear();
            }
            Kind::Create => note(Act::Created)?,
            Kind::CreateFolder => note(Act::FolderCreated)?,
            Kind::Remove => note(Act::Removed { link: header.a })?,
            Kind::RemoveFolder => note(Act::FolderRemoved { id: other })?,
            Kind::Rename => note(Act::Renamed {
                from: (other, OsString::new()),
                link: header.a,
            })?,
        }
        moment += 1;
    }
    Ok((histories, changes))
}

/// Drops the changes that the sync of a folder makes durable. With a folder
/// that is gone for good goes what happened in it.
fn make_durable(changes: &mut Vec<NameChange>, folder: FileId) {
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        changes.retain(|change| {
            let durable = change.folder == folder;
            if let (true, Act::FolderRemoved { id }) = (durable, &change.act) {
                folders.push(*id);
            }
            !durable
        });
    }
}

fn read_payload(journal: &File, record: &Record) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(record.header.payload_bytes).expect("a path in memory")];
    journal.read_exact_at(&mut bytes, record.payload_at)?;
    Ok(bytes)
}

/// The last part of a path.
fn file_name(path: &[u8]) -> OsString {
    OsString::from_vec(
        path.rsplit(|byte| *byte == b'/')
            .next()
            .unwrap_or_default()
            .to_vec(),
    )
}

/// The id under which the shim knows a file or folder.
fn id_of(metadata: &Metadata) -> FileId {
    // A file system without times of birth gives 0 here and in the shim alike.
    let born = metadata
        .created()
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let born_ns = born.map_or(0, |born| {
        born.as_secs().wrapping_mul(1_000_000_000) + u64::from(born.subsec_nanos())
    });
    FileId {
        inode: metadata.ino(),
        born_ns,
    }
}

/// Where a folder is now: `root` itself, or one below it.
fn find_folder(root: &Path, id: FileId) -> io::Result<Option<PathBuf>> {
    if id_of(&fs::metadata(root)?) == id {
        return Ok(Some(root.to_owned()));
    }
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        if entry.file_type()?.is_dir()
            && let Some(found) = find_folder(&entry.path(), id)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// All regular files below a folder, by id.
fn find_files(folder: &Path, found: &mut BTreeMap<FileId, PathBuf>) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            find_files(&entry.path(), found)?;
        } else if metadata.is_file() {
            found.entry(id_of(&metadata)).or_insert(entry.path());
        }
    }
    Ok(())
}
