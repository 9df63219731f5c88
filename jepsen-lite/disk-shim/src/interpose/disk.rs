//! The disk under test: what is its, what is recorded of it, what is to fail.

#![deny(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libc::c_int;

use super::sys::{self, Stat};
use crate::control::{ALWAYS, CONTROL_BYTES, CONTROL_FILE, SLOTS, Slot};
use crate::journal::{
    FileId, GRAVEYARD_FOLDER, HEADER_BYTES, Header, JOURNAL_FILE, Kind, PAGE_BYTES, page_ceil, page_floor,
};
use crate::power_loss::failed_pages;
use crate::{DATA_VARIABLE, JOURNAL_VARIABLE};

/// Old bytes are read and recorded in slices of this size at most when a file
/// is cut, so that cutting a large one does not take its size in memory.
const SLICE_BYTES: u64 = 1 << 20;

/// The journal starts over once it is this large and nothing in it is needed.
const REWIND_BYTES: u64 = 8 << 20;

pub(super) struct Disk {
    root: Vec<u8>,
    device: (u32, u32),
    journal: RawFd,
    graveyard: RawFd,
    pub(super) numbers: &'static [AtomicU64; SLOTS],
    inner: Mutex<Inner>,
}

/// What is known of the journal beyond its bytes.
#[derive(Default)]
pub(super) struct Inner {
    record: Vec<u8>,
    journal_bytes: u64,
    /// Files and folders with changes that are not durable yet.
    pending: BTreeSet<FileId>,
    /// A failed sync left pages that only the journal can bring back.
    pinned: bool,
    /// How many syncs of a file have failed in this process.
    failures: BTreeMap<FileId, u64>,
    /// How many of them a descriptor was told of. A descriptor that was never synced knows of all.
    told: BTreeMap<(RawFd, FileId), u64>,
    /// What was removed, by the folder whose sync makes the removal durable.
    graves: BTreeMap<FileId, Vec<Grave>>,
}

pub(super) struct Grave {
    /// Name of its link in the graveyard; 0 for a folder, which has none.
    link: u64,
    file: FileId,
}

/// A name below the data folder: its folder and its path in the data folder.
pub(super) struct Place {
    pub(super) folder: FileId,
    pub(super) path: Vec<u8>,
}

/// The disk that the environment names, opened at the first call.
pub(super) fn disk() -> Option<&'static Disk> {
    static DISK: OnceLock<Option<Disk>> = OnceLock::new();
    DISK.get_or_init(Disk::from_environment).as_ref()
}

impl Disk {
    fn from_environment() -> Option<Disk> {
        let data = sys::environment(DATA_VARIABLE)?;
        let folder = sys::environment(JOURNAL_VARIABLE)?;
        let Some(disk) = Disk::open(&data, &folder) else {
            die("disk shim: the data folder or the journal folder cannot be used");
        };
        Some(disk)
    }

    fn open(data: &CStr, folder: &CStr) -> Option<Disk> {
        let root_fd = sys::open(libc::AT_FDCWD, data, libc::O_PATH | libc::O_DIRECTORY)?;
        let root = sys::path_of(root_fd)?;
        let stat = sys::stat(root_fd)?;
        sys::close(root_fd);

        let folder = sys::open(libc::AT_FDCWD, folder, libc::O_PATH | libc::O_DIRECTORY)?;
        let create = libc::O_RDWR | libc::O_CREAT;
        let journal = sys::move_up(sys::open(
            folder,
            &sys::c_string(JOURNAL_FILE),
            create | libc::O_APPEND,
        )?)?;
        sys::make_folder(folder, &sys::c_string(GRAVEYARD_FOLDER));
        let graveyard = sys::open(
            folder,
            &sys::c_string(GRAVEYARD_FOLDER),
            libc::O_PATH | libc::O_DIRECTORY,
        )?;
        let graveyard = sys::move_up(graveyard)?;
        let control = sys::open(folder, &sys::c_string(CONTROL_FILE), create)?;
        if sys::stat(control)?.size < CONTROL_BYTES as u64 {
            sys::truncate(control, CONTROL_BYTES as u64)?;
        }
        let numbers = sys::map_numbers(control)?;
        sys::close(control);
        sys::close(folder);

        let mut inner = Inner::default();
        inner.resume(journal)?;
        Some(Disk {
            root,
            device: stat.device,
            journal,
            graveyard,
            numbers,
            inner: Mutex::new(inner),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self, slot: Slot, number: u64) {
        self.numbers[slot as usize].fetch_add(number, Ordering::Relaxed);
    }

    /// Whether this call is to fail, and one less of the next ones.
    pub(super) fn strikes(&self, slot: Slot) -> bool {
        let struck = self.numbers[slot as usize]
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| match left {
                0 => None,
                ALWAYS => Some(ALWAYS),
                left => Some(left - 1),
            })
            .is_ok();
        if struck {
            self.count(Slot::Faults, 1);
        }
        struck
    }

    pub(super) fn write_fault(&self, needs_room: bool) -> Option<c_int> {
        if needs_room && self.strikes(Slot::WriteNoSpace) {
            Some(libc::ENOSPC)
        } else if self.strikes(Slot::WriteError) {
            Some(libc::EIO)
        } else {
            None
        }
    }

    /// Whether growing by this much would pass the quota. Called with the lock.
    pub(super) fn over_quota(&self, growth: u64) -> bool {
        let quota = self.numbers[Slot::QuotaBytes as usize].load(Ordering::Relaxed);
        let grown = self.numbers[Slot::GrownBytes as usize]
            .load(Ordering::Relaxed)
            .cast_signed();
        let over = quota != 0 && growth != 0 && i128::from(grown) + i128::from(growth) > i128::from(quota);
        if over {
            self.count(Slot::Faults, 1);
        }
        over
    }

    pub(super) fn resized(&self, from: u64, to: u64) {
        self.count(Slot::GrownBytes, to.wrapping_sub(from));
    }

    fn owns(&self, path: &[u8]) -> bool {
        path.strip_prefix(self.root.as_slice())
            .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    }

    /// The file or folder behind a descriptor, if it is one of the disk's. The
    /// cheap questions come first: most descriptors are sockets and pipes.
    pub(super) fn node(&self, fd: RawFd) -> Option<Stat> {
        let stat = sys::stat(fd)?;
        if !(stat.is_file() || stat.is_folder()) || stat.device != self.device {
            return None;
        }
        self.owns(&sys::path_of(fd)?).then_some(stat)
    }

    pub(super) fn file(&self, fd: RawFd) -> Option<Stat> {
        self.node(fd).filter(Stat::is_file)
    }

    pub(super) fn place(&self, folder: RawFd, path: &CStr) -> Option<Place> {
        let path = path.to_bytes();
        let path = &path[..path.iter().rposition(|byte| *byte != b'/')? + 1];
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            None => (&b"."[..], path),
            Some(0) => (&b"/"[..], &path[1..]),
            Some(at) => (&path[..at], &path[at + 1..]),
        };
        if name == b"." || name == b".." {
            return None;
        }
        let parent = CString::new(parent).ok()?;
        let fd = sys::open(folder, &parent, libc::O_PATH | libc::O_DIRECTORY)?;
        let found = sys::stat(fd).zip(sys::path_of(fd));
        sys::close(fd);
        let (stat, parent) = found?;
        if stat.device != self.device || !self.owns(&parent) {
            return None;
        }
        let mut path = parent[self.root.len()..].to_vec();
        path.push(b'/');
        path.extend_from_slice(name);
        Some(Place {
            folder: stat.id,
            path: path[1..].to_vec(),
        })
    }

    // Records. All are called with the lock held.

    fn append(&self, inner: &mut Inner, header: Header) {
        // The payload is behind the room for the header.
        inner.record[..HEADER_BYTES].copy_from_slice(&header.encode());
        if sys::write(self.journal, &inner.record) != Some(inner.record.len()) {
            die("disk shim: the undo journal cannot be written");
        }
        inner.journal_bytes += inner.record.len() as u64;
        self.count(Slot::JournalBytes, inner.record.len() as u64);
        inner.note(&header);
    }

    pub(super) fn append_plain(&self, inner: &mut Inner, kind: Kind, id: FileId, size: u64) {
        inner.record.clear();
        inner.record.resize(HEADER_BYTES, 0);
        self.append(
            inner,
            Header {
                kind,
                payload_bytes: 0,
                id,
                a: 0,
                b: 0,
                c: size,
            },
        );
    }

    /// Records the pages that a write of `[offset, offset + length)` touches.
    pub(super) fn append_write(&self, inner: &mut Inner, fd: RawFd, stat: &Stat, offset: u64, length: u64) {
        let start = page_floor(offset);
        let end = page_ceil(offset.saturating_add(length)).min(stat.size).max(start);
        self.old_bytes(inner, fd, start, end);
        let payload_bytes = end - start;
        self.append(
            inner,
            Header {
                kind: Kind::Write,
                payload_bytes,
                id: stat.id,
                a: offset,
                b: length,
                c: stat.size,
            },
        );
    }

    /// Records a change of size. What is cut off is recorded in slices, the
    /// cut itself last.
    pub(super) fn append_resize(&self, inner: &mut Inner, fd: RawFd, stat: &Stat, size: u64) {
        let mut start = page_floor(size);
        while start + SLICE_BYTES < stat.size {
            self.append_write(inner, fd, stat, start, SLICE_BYTES);
            start += SLICE_BYTES;
        }
        let end = stat.size.max(start);
        self.old_bytes(inner, fd, start, end);
        self.append(
            inner,
            Header {
                kind: Kind::Truncate,
                payload_bytes: end - start,
                id: stat.id,
                a: size,
                b: start,
                c: stat.size,
            },
        );
    }

    fn old_bytes(&self, inner: &mut Inner, fd: RawFd, start: u64, end: u64) {
        inner.record.clear();
        inner.record.resize(
            HEADER_BYTES + usize::try_from(end - start).expect("a size in memory"),
            0,
        );
        if start < end && sys::read_at(fd, &mut inner.record[HEADER_BYTES..], start).is_none() {
            die("disk shim: the old bytes of a file cannot be read");
        }
    }

    pub(super) fn append_name(
        &self,
        inner: &mut Inner,
        kind: Kind,
        folder: FileId,
        other: FileId,
        grave: Option<Grave>,
        paths: &[&[u8]],
    ) {
        inner.record.clear();
        inner.record.resize(HEADER_BYTES, 0);
        inner.record.extend_from_slice(&paths.join(&0));
        let payload_bytes = (inner.record.len() - HEADER_BYTES) as u64;
        let link = grave.as_ref().map_or(0, |grave| grave.link);
        self.append(
            inner,
            Header {
                kind,
                payload_bytes,
                id: folder,
                a: link,
                b: other.inode,
                c: other.born_ns,
            },
        );
        let folder_gone = (kind == Kind::RemoveFolder).then_some(Grave { link: 0, file: other });
        if let Some(grave) = grave.or(folder_gone) {
            inner.graves.entry(folder).or_default().push(grave);
        }
        self.count(Slot::NameChanges, 1);
    }

    /// Keeps a file that is about to lose a name, so that the loss can be
    /// undone. `None` if it is not a file, or cannot be linked.
    pub(super) fn bury(&self, inner: &Inner, folder: RawFd, path: &CStr) -> Option<Grave> {
        let stat = sys::stat_at(folder, path)?;
        if !stat.is_file() {
            return None;
        }
        // No two links are made at one length of the journal, but for one whose removal failed.
        let grave = Grave {
            link: inner.journal_bytes + 1,
            file: stat.id,
        };
        self.exhume(&grave);
        sys::link(
            folder,
            path,
            self.graveyard,
            &sys::c_string(&grave.link.to_string()),
        )
        .then_some(grave)
    }

    pub(super) fn exhume(&self, grave: &Grave) {
        if grave.link == 0 {
            return;
        }
        sys::unlink(self.graveyard, &sys::c_string(&grave.link.to_string()), 0);
    }

    /// Makes a file or folder durable.
    pub(super) fn mark(&self, inner: &mut Inner, stat: &Stat) {
        self.append_plain(inner, Kind::Sync, stat.id, stat.size);
        self.count(Slot::Syncs, 1);
        let mut folders = vec![stat.id];
        while let Some(folder) = folders.pop() {
            inner.pending.remove(&folder);
            for grave in inner.graves.remove(&folder).unwrap_or_default() {
                self.exhume(&grave);
                inner.pending.remove(&grave.file);
                folders.push(grave.file);
            }
        }
        self.rewind(inner);
    }

    /// Lets go of the page cache of a file: pages whose sync failed are again as they are on the disk.
    /// Others stay, since they are either there too or still to be written.
    pub(super) fn drop_cache(&self, inner: &mut Inner, fd: RawFd, stat: &Stat, offset: u64, length: u64) {
        if !inner.pinned {
            return;
        }
        // A plain opening comes back into this module, but does not take the lock.
        let pages = File::open(format!("/proc/self/fd/{}", self.journal))
            .and_then(|journal| failed_pages(&journal, stat.id, offset, length));
        let Ok(pages) = pages else {
            die("disk shim: the undo journal cannot be read");
        };
        for (at, bytes) in pages {
            // What lies behind the end of the file is in no page.
            let length = usize::try_from(stat.size.saturating_sub(at))
                .map_or(bytes.len(), |rest| rest.min(bytes.len()));
            if length > 0 && sys::write_at(fd, &bytes[..length], at).is_none() {
                die("disk shim: the old bytes of a file cannot be written");
            }
        }
        inner.record.clear();
        inner.record.resize(HEADER_BYTES, 0);
        self.append(
            inner,
            Header {
                kind: Kind::Dropped,
                payload_bytes: 0,
                id: stat.id,
                a: offset,
                b: length,
                c: stat.size,
            },
        );
    }

    /// Starts the journal over if nothing in it is needed any more.
    fn rewind(&self, inner: &mut Inner) {
        if inner.journal_bytes > REWIND_BYTES
            && inner.pending.is_empty()
            && !inner.pinned
            && sys::truncate(self.journal, 0).is_some()
        {
            inner.journal_bytes = 0;
        }
    }
}

impl Inner {
    /// A sync of this file failed. The kernel tells every open descriptor of it once.
    pub(super) fn sync_failed(&mut self, file: FileId) {
        *self.failures.entry(file).or_default() += 1;
    }

    /// Whether this sync has to report a failure, be it of another descriptor.
    pub(super) fn is_told_of_failure(&mut self, fd: RawFd, file: FileId) -> bool {
        let failures = self.failures.get(&file).copied().unwrap_or_default();
        self.told.insert((fd, file), failures).unwrap_or(failures) < failures
    }

    /// Takes over the journal of an earlier process, and cuts off a record
    /// that its death tore.
    fn resume(&mut self, journal: RawFd) -> Option<()> {
        let end = sys::stat(journal)?.size;
        let mut bytes = [0; HEADER_BYTES];
        while self.journal_bytes + HEADER_BYTES as u64 <= end {
            sys::read_at(journal, &mut bytes, self.journal_bytes)?;
            let header = Header::decode(&bytes)?;
            let next = self.journal_bytes + HEADER_BYTES as u64 + header.payload_bytes;
            if next > end {
                break;
            }
            self.note(&header);
            self.journal_bytes = next;
        }
        if self.journal_bytes < end {
            sys::truncate(journal, self.journal_bytes)?;
        }
        Some(())
    }

    fn note(&mut self, header: &Header) {
        match header.kind {
            Kind::Sync => {
                self.pending.remove(&header.id);
            }
            Kind::SyncAll => self.pending.clear(),
            Kind::SyncFailed => self.pinned = true,
            Kind::Dropped => {}
            _ => {
                self.pending.insert(header.id);
            }
        }
    }
}

/// Ends the program: a run whose journal has a hole proves nothing.
fn die(message: &str) -> ! {
    sys::write(2, message.as_bytes());
    sys::write(2, b"\n");
    std::process::abort()
}

const _: () = assert!(PAGE_BYTES.is_power_of_two() && SLICE_BYTES.is_multiple_of(PAGE_BYTES));
