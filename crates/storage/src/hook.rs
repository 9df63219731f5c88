//! Makes sled's writes durable on Linux. The only `unsafe` code of this crate. Two things are missing in
//! sled 0.34.7, and each is put right by defining a C function in its place.
//!
//! # Writes
//!
//! After each write sled 0.34.7 calls `sync_file_range`, which starts writeback of the data but neither
//! flushes the cache of the device nor writes the metadata of a file that grew. Its `flush()` therefore
//! returns before the data can survive a power cut. An `fdatasync` of our own after `flush()` comes too
//! late: sled has by then told itself that the data is safe, and may have reused a segment whose
//! replacement was not.
//!
//! So this module defines the symbol `sync_file_range` itself. The linker finds it before the one in libc,
//! and every such call in this process becomes an `fdatasync` of the whole file. A failure is returned as
//! the caller expects it, with `errno` set; sled keeps its first I/O error for good, and the log writer
//! reports it as fatal.
//!
//! # Failures
//!
//! A sync that failed must not be followed by one that succeeds. The kernel gives up the dirty pages of a
//! failed sync, and tells each open descriptor of the file of it once; the next sync through that descriptor
//! finds nothing left to write, and succeeds. sled syncs one file through one descriptor from several
//! threads: while some write buffers, another truncates the file, and forgets to look whether the sync after
//! that failed. Then the sync of a buffer whose pages were given up succeeded, and sled said that all was
//! durable up to there.
//!
//! So each database is watched through a descriptor of our own. The syncs of one file go through
//! it, one at a time, so that the first of them after a failure learns of it, whoever else did; and after
//! that all fail.
//!
//! # Names
//!
//! While it opens a database sled writes what it recovered into a file `snap.…`, syncs that, renames it, and
//! then overwrites the segments of the log that the snapshot makes unnecessary. It does not sync the
//! directory. A power cut can take the new name and leave the overwritten segments; the next start, without
//! the snapshot, finds a hole in the log and drops all behind it, which may be everything.
//!
//! Between the renaming and the overwriting sled lists the directory. So this module defines `opendir`, and
//! syncs the directory first while `while_opening` is on the stack of the thread.
//!
//! # Trust
//!
//! Nothing but the link order makes this work, so nothing may trust it blindly: the calls are counted, and
//! [`Store::open`](crate::Store::open) refuses to run unless opening a database and a flushed write moved
//! the counters.
//!
//! On other systems sled calls `File::sync_all` after writes, which is enough. The names are not cared for
//! there.

#![cfg_attr(target_os = "linux", allow(unsafe_code))]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use parking_lot::Mutex;
use quorate_mutants::mutant;

static CALLS: AtomicU64 = AtomicU64::new(0);

/// The files of the open databases, by device and inode.
static FILES: Mutex<BTreeMap<(u64, u64), Arc<Watched>>> = Mutex::new(BTreeMap::new());

struct Watched {
    file: File,
    /// Locked during a sync. The error number of the first that failed.
    failed: Mutex<Option<i32>>,
}

/// Keeps a file watched; dropped when sled has closed it.
pub(crate) struct Watch {
    id: (u64, u64),
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut files = FILES.lock();
        // sled's threads may still be writing. What they are told must not get better now.
        if files
            .get(&self.id)
            .is_some_and(|watched| watched.failed.lock().is_none())
        {
            files.remove(&self.id);
        }
    }
}

thread_local! {
    /// How many directories were listed durably by this thread; `None` outside of `while_opening`.
    static LISTED: Cell<Option<u64>> = const { Cell::new(None) };
}
static MODE: AtomicU8 = AtomicU8::new(Mode::Active as u8);

/// What the interposed call does. Anything but `Active` is for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[doc(hidden)]
pub enum Mode {
    /// Calls `fdatasync`.
    Active = 0,
    /// Calls the kernel's `sync_file_range`, as sled would without us: not durable.
    Stock = 1,
    /// Fails with `EIO`, as a dying disk does.
    Failing = 2,
    /// As `Stock`, and not counted either: as if the linker had taken libc's function.
    Absent = 3,
}

/// How often sled synced a file through us, in this process.
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// Watches the file of a database from now on. What was known of it before is forgotten.
pub(crate) fn watch(path: &Path) -> io::Result<Watch> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let id = (metadata.dev(), metadata.ino());
    let failed = Mutex::default();
    FILES.lock().insert(id, Arc::new(Watched { file, failed }));
    Ok(Watch { id })
}

/// Opens a database, and has every directory that is listed meanwhile synced before. The answer comes with
/// the number of such directories.
pub(crate) fn while_opening<T>(open: impl FnOnce() -> T) -> (T, u64) {
    struct Off;
    impl Drop for Off {
        fn drop(&mut self) {
            LISTED.set(None);
        }
    }
    LISTED.set(Some(0));
    let off = Off;
    let opened = open();
    let listed = LISTED.get().unwrap_or(0);
    drop(off);
    (opened, listed)
}

/// Switches the hook for the whole process, so that a test can show what happens without it.
#[doc(hidden)]
pub fn set_mode_for_test(mode: Mode) {
    MODE.store(mode as u8, Ordering::SeqCst);
}

/// Turns the hook off, so that a power-loss test can show that it fails without it.
#[doc(hidden)]
pub fn disable_for_test() {
    set_mode_for_test(Mode::Stock);
}

/// Syncs a file through every descriptor of this process but our own, as sled does after it cut the file
/// shorter. Whether that fails is not told, as sled does not look at it.
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub fn sync_unwatched_for_test(path: &Path) {
    use std::os::fd::AsRawFd;
    let ours: Vec<i32> = FILES
        .lock()
        .values()
        .map(|watched| watched.file.as_raw_fd())
        .collect();
    for entry in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let fd = entry.file_name().to_str().and_then(|fd| fd.parse().ok());
        if let Some(fd) = fd
            && !ours.contains(&fd)
            && std::fs::read_link(entry.path()).is_ok_and(|target| target == path)
        {
            // SAFETY: `fsync` touches no memory of ours and accepts any descriptor.
            unsafe { libc::fsync(fd) };
        }
    }
}

/// The interposed symbol: sled's only sync on its write path.
///
/// # Safety
///
/// As for the libc function of this name: any `fd` is allowed, a bad one gives `EBADF`.
#[cfg(target_os = "linux")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sync_file_range(
    fd: libc::c_int,
    offset: libc::off64_t,
    len: libc::off64_t,
    flags: libc::c_uint,
) -> libc::c_int {
    let mode = match MODE.load(Ordering::Relaxed) {
        _ if mutant!("flush-without-fsync") => Mode::Stock as u8,
        mode => mode,
    };
    if mode != Mode::Absent as u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
    if mode == Mode::Stock as u8 || mode == Mode::Absent as u8 {
        // SAFETY: the system call takes plain integers and touches no memory of ours.
        return unsafe { libc::syscall(libc::SYS_sync_file_range, fd, offset, len, flags) as libc::c_int };
    }
    match sync_watched(fd, mode == Mode::Failing as u8) {
        Ok(()) => 0,
        Err(errno) => {
            // SAFETY: the location of this thread's `errno` is always valid to write.
            unsafe { *libc::__errno_location() = errno };
            -1
        }
    }
}

/// Syncs a file, if it is watched in its turn. An error is a number of `errno`.
#[cfg(target_os = "linux")]
fn sync_watched(fd: libc::c_int, fail: bool) -> Result<(), i32> {
    use std::os::fd::AsRawFd;
    let sync = |fd| {
        // SAFETY: `fdatasync` touches no memory of ours and accepts any descriptor.
        match unsafe { libc::fdatasync(fd) } {
            _ if fail => Err(libc::EIO),
            0 => Ok(()),
            _ => Err(last_errno()),
        }
    };
    // SAFETY: all zeros is a valid `stat`, and `fstat` fills it in or fails.
    let stat = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &raw mut stat) != 0 {
            return Err(last_errno());
        }
        stat
    };
    let watched = FILES.lock().get(&(stat.st_dev, stat.st_ino)).cloned();
    let Some(watched) = watched else { return sync(fd) };
    let mut failed = watched.failed.lock();
    match *failed {
        Some(errno) => Err(errno),
        None => sync(watched.file.as_raw_fd()).inspect_err(|errno| *failed = Some(*errno)),
    }
}

#[cfg(target_os = "linux")]
fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// The interposed symbol: how the standard library begins to list a directory.
///
/// # Safety
///
/// As for the libc function of this name: `path` ends with a zero byte.
#[cfg(target_os = "linux")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn opendir(path: *const libc::c_char) -> *mut libc::DIR {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the caller promises a string that ends with zero.
    let fd = unsafe { libc::open(path, flags) };
    if fd < 0 {
        return std::ptr::null_mut();
    }
    let mode = MODE.load(Ordering::Relaxed);
    let stock = mode == Mode::Stock as u8 || mode == Mode::Absent as u8;
    if let Some(listed) = LISTED.get() {
        LISTED.set(Some(listed + 1));
        // SAFETY: `fsync` touches no memory of ours and accepts any descriptor.
        if !stock && unsafe { libc::fsync(fd) } != 0 {
            let error = std::io::Error::last_os_error();
            // SAFETY: `fd` is ours and used no more; the location of `errno` is always valid to write.
            unsafe {
                libc::close(fd);
                *libc::__errno_location() = error.raw_os_error().unwrap_or(libc::EIO);
            }
            return std::ptr::null_mut();
        }
    }
    // SAFETY: `fd` is a directory that we just opened; on success the stream owns it.
    let directory = unsafe { libc::fdopendir(fd) };
    if directory.is_null() {
        // SAFETY: the stream does not own it, so we close it.
        unsafe { libc::close(fd) };
    }
    directory
}
