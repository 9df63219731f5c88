//! The C functions that the shim puts in place of glibc's, and what they keep.
//!
//! This is the one module with `unsafe` code: it defines C symbols, gets raw
//! pointers from its callers and talks to the kernel directly. Three rules
//! hold throughout.
//!
//! * Only raw system calls are made here. A call of the standard library's
//!   file functions would come back into this module, at worst for a lock that
//!   is held; reading is not ours and may be done.
//! * A change is recorded, made and counted under one lock, so the journal has
//!   the order in which things happened and old bytes are read before they
//!   change.
//! * Without the environment variables every function is its system call.
//!
//! Not seen: stores into mapped files, io_uring, direct system calls, glibc's
//! own stdio, and `sync_file_range`. The last is left out on purpose. It makes
//! nothing durable that a power loss would leave alone, and the storage crate
//! puts its own function, a call of `fdatasync`, in that place; two
//! definitions could not be linked into one program.

#![allow(unsafe_code)] // see above: symbols, pointers and system calls

mod disk;
mod sys;
mod world;

pub(crate) use world::{drawn_bytes, is_simulated, set_clocks};

use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{
    c_char, c_int, c_long, c_uint, c_void, clockid_t, iovec, mode_t, off64_t, size_t, ssize_t, timespec,
};

use crate::control::Slot;
use crate::journal::{FileId, Kind};
use disk::disk;
use sys::Stat;

// ---------------------------------------------------------------------------
// What the C functions do

/// Where a write begins.
#[derive(Clone, Copy)]
enum Start {
    At(off64_t),
    Cursor,
}

fn write_through(fd: c_int, start: Start, length: u64, perform: impl FnOnce() -> c_long) -> ssize_t {
    let perform = || perform() as ssize_t;
    let Some(disk) = disk() else { return perform() };
    if disk.file(fd).is_none() {
        return perform();
    }
    if let Some(errno) = disk.write_fault(true) {
        return fail(errno) as ssize_t;
    }
    let mut inner = disk.lock();
    let Some(stat) = sys::stat(fd) else {
        return perform();
    };
    let flags = sys::flags(fd);
    let offset = match start {
        _ if flags & libc::O_APPEND != 0 => stat.size,
        Start::At(offset) => u64::try_from(offset).unwrap_or(0),
        Start::Cursor => sys::cursor(fd),
    };
    let size = stat.size.max(offset.saturating_add(length));
    if disk.over_quota(size - stat.size) {
        return fail(libc::ENOSPC) as ssize_t;
    }
    disk.append_write(&mut inner, fd, &stat, offset, length);
    let written = perform();
    if let Ok(written) = u64::try_from(written) {
        disk.count(Slot::Writes, 1);
        disk.count(Slot::WrittenBytes, written);
        if let Some(after) = sys::stat(fd) {
            disk.resized(stat.size, after.size);
            if flags & libc::O_DSYNC != 0 {
                disk.mark(&mut inner, &after);
            }
        }
    }
    written
}

fn resize_through(fd: c_int, size: impl Fn(&Stat) -> u64, perform: impl FnOnce() -> c_long) -> c_int {
    let perform = || perform() as c_int;
    let Some(disk) = disk() else { return perform() };
    if disk.file(fd).is_none() {
        return perform();
    }
    let mut inner = disk.lock();
    let Some(stat) = sys::stat(fd) else {
        return perform();
    };
    let size = size(&stat);
    if let Some(errno) = disk.write_fault(size > stat.size) {
        return fail(errno);
    }
    if disk.over_quota(size.saturating_sub(stat.size)) {
        return fail(libc::ENOSPC);
    }
    disk.append_resize(&mut inner, fd, &stat, size);
    let result = perform();
    if result == 0 {
        disk.count(Slot::Writes, 1);
        disk.resized(stat.size, size);
    }
    result
}

fn sync_through(fd: c_int, perform: impl FnOnce() -> c_long) -> c_int {
    let Some(disk) = disk() else {
        return perform() as c_int;
    };
    let Some(node) = disk.node(fd) else {
        return perform() as c_int;
    };
    let delay = disk.numbers[Slot::SyncDelayMs as usize].load(Ordering::Relaxed);
    if delay != 0 {
        std::thread::sleep(Duration::from_millis(delay));
    }
    let mut inner = disk.lock();
    if disk.strikes(Slot::SyncError) {
        disk.append_plain(&mut inner, Kind::SyncFailed, node.id, node.size);
        inner.sync_failed(node.id);
        inner.is_told_of_failure(fd, node.id);
        return fail(libc::EIO);
    }
    if inner.is_told_of_failure(fd, node.id) {
        return fail(libc::EIO);
    }
    if disk.strikes(Slot::SyncLies) {
        disk.count(Slot::SyncsSkipped, 1);
        return 0;
    }
    // The real sync is left out: the page cache outlives the process, and the runs get faster.
    if let Some(stat) = sys::stat(fd) {
        disk.mark(&mut inner, &stat);
    }
    0
}

/// Returns the error instead of setting it.
fn advise_through(fd: c_int, offset: off64_t, length: off64_t, advice: c_int) -> c_int {
    let performed = sys::call6(
        libc::SYS_fadvise64,
        [
            fd as usize,
            offset as usize,
            length as usize,
            advice as usize,
            0,
            0,
        ],
    );
    if performed != 0 {
        return sys::errno();
    }
    if advice == libc::POSIX_FADV_DONTNEED
        && let Some(disk) = disk()
        && let Some(stat) = disk.file(fd)
    {
        let offset = u64::try_from(offset).unwrap_or(0);
        let length = match u64::try_from(length) {
            // To the end of the file.
            Ok(0) | Err(_) => u64::MAX,
            Ok(length) => length,
        };
        disk.drop_cache(&mut disk.lock(), fd, &stat, offset, length);
    }
    0
}

fn sync_all_through(perform: impl FnOnce() -> c_long) -> c_int {
    let result = perform() as c_int;
    if let Some(disk) = disk() {
        if disk.strikes(Slot::SyncLies) {
            disk.count(Slot::SyncsSkipped, 1);
        } else {
            disk.append_plain(&mut disk.lock(), Kind::SyncAll, FileId::default(), 0);
            disk.count(Slot::Syncs, 1);
        }
    }
    result
}

fn open_through(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let perform = |flags| sys::open_raw(folder, path, flags, mode);
    let plain = flags & (libc::O_CREAT | libc::O_TRUNC) == 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE;
    let (false, Some(disk)) = (plain, disk()) else {
        return perform(flags);
    };
    let Some(name) = sys::borrow(path) else {
        return perform(flags);
    };
    let Some(place) = disk.place(folder, name) else {
        return perform(flags);
    };
    let mut inner = disk.lock();
    let existed = sys::stat_following(folder, name).is_some();
    if existed {
        let truncates = flags & libc::O_TRUNC != 0 && flags & libc::O_ACCMODE != libc::O_RDONLY;
        let fd = perform(if truncates { flags & !libc::O_TRUNC } else { flags });
        if fd >= 0 && truncates {
            drop(inner);
            if resize_through(fd, |_| 0, || sys::truncate_raw(fd, 0)) != 0 {
                let errno = sys::errno();
                sys::close(fd);
                return fail(errno);
            }
        }
        return fd;
    }
    if disk.strikes(Slot::WriteNoSpace) {
        return fail(libc::ENOSPC);
    }
    let fd = perform(flags);
    if fd >= 0 {
        disk.append_name(
            &mut inner,
            Kind::Create,
            place.folder,
            FileId::default(),
            None,
            &[&place.path],
        );
    }
    fd
}

/// A new name: a folder or a link.
fn name_through(kind: Kind, folder: c_int, path: *const c_char, perform: impl FnOnce() -> c_long) -> c_int {
    let perform = || perform() as c_int;
    let Some(disk) = disk() else { return perform() };
    let Some(place) = sys::borrow(path).and_then(|name| disk.place(folder, name)) else {
        return perform();
    };
    if disk.strikes(Slot::WriteNoSpace) {
        return fail(libc::ENOSPC);
    }
    let mut inner = disk.lock();
    let result = perform();
    if result == 0 {
        disk.append_name(
            &mut inner,
            kind,
            place.folder,
            FileId::default(),
            None,
            &[&place.path],
        );
    }
    result
}

fn unlink_through(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    let perform = || sys::unlink_raw(folder, path, flags) as c_int;
    let Some(disk) = disk() else { return perform() };
    let Some(name) = sys::borrow(path) else {
        return perform();
    };
    let Some(place) = disk.place(folder, name) else {
        return perform();
    };
    let mut inner = disk.lock();
    let removes_folder = flags & libc::AT_REMOVEDIR != 0;
    let grave = if removes_folder {
        None
    } else {
        disk.bury(&inner, folder, name)
    };
    let before = sys::stat_at(folder, name);
    let size = before
        .as_ref()
        .filter(|stat| stat.is_file())
        .map_or(0, |stat| stat.size);
    let result = perform();
    if result == 0 {
        let kind = if removes_folder {
            Kind::RemoveFolder
        } else {
            Kind::Remove
        };
        let id = before.map_or(FileId::default(), |stat| stat.id);
        disk.append_name(&mut inner, kind, place.folder, id, grave, &[&place.path]);
        disk.resized(size, 0);
    } else if let Some(grave) = grave {
        let errno = sys::errno();
        disk.exhume(&grave);
        sys::set_errno(errno);
    }
    result
}

fn rename_through(
    old_folder: c_int,
    old: *const c_char,
    new_folder: c_int,
    new: *const c_char,
    flags: c_uint,
) -> c_int {
    let perform = || sys::rename_raw(old_folder, old, new_folder, new, flags) as c_int;
    let (Some(disk), true) = (disk(), flags & libc::RENAME_EXCHANGE == 0) else {
        return perform();
    };
    let (Some(old_name), Some(new_name)) = (sys::borrow(old), sys::borrow(new)) else {
        return perform();
    };
    let Some(to) = disk.place(new_folder, new_name) else {
        return perform();
    };
    let from = disk.place(old_folder, old_name);
    let mut inner = disk.lock();
    let grave = disk.bury(&inner, new_folder, new_name);
    let result = perform();
    if result != 0 {
        let errno = sys::errno();
        if let Some(grave) = grave {
            disk.exhume(&grave);
        }
        sys::set_errno(errno);
        return result;
    }
    match from {
        Some(from) => {
            disk.append_name(
                &mut inner,
                Kind::Rename,
                to.folder,
                from.folder,
                grave,
                &[&from.path, &to.path],
            );
        }
        None => disk.append_name(
            &mut inner,
            Kind::Create,
            to.folder,
            FileId::default(),
            grave,
            &[&to.path],
        ),
    }
    result
}

/// A copy inside the kernel into a file of the disk is refused: callers then
/// copy with `write`. Else it is performed.
fn copy_through(fd: c_int, perform: impl FnOnce() -> c_long) -> ssize_t {
    match disk() {
        Some(disk) if disk.file(fd).is_some() => fail(libc::EINVAL) as ssize_t,
        _ => perform() as ssize_t,
    }
}

fn total_bytes(vectors: *const iovec, count: c_int) -> u64 {
    let count = usize::try_from(count).unwrap_or(0);
    if count == 0 || vectors.is_null() {
        return 0;
    }
    // SAFETY: the caller of writev promises so many valid vectors.
    let vectors = unsafe { std::slice::from_raw_parts(vectors, count) };
    vectors.iter().map(|vector| vector.iov_len as u64).sum()
}

fn fail(errno: c_int) -> c_int {
    sys::set_errno(errno);
    -1
}

// ---------------------------------------------------------------------------
// The symbols. Each has the signature of glibc's function, except that `mode`
// of `open` is an ordinary parameter there: on the 64-bit targets of Linux a
// variadic integer arrives in the same register.

macro_rules! symbols {
    ($($(#[$attribute:meta])* fn $name:ident($($parameter:ident: $type:ty),* $(,)?) -> $result:ty $body:block)*) => {$(
        $(#[$attribute])*
        // SAFETY: the name and the signature are those of glibc's function, whose contract is kept.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($parameter: $type),*) -> $result $body
    )*};
}

symbols! {
    fn write(fd: c_int, bytes: *const c_void, length: size_t) -> ssize_t {
        write_through(fd, Start::Cursor, length as u64, || sys::call3(libc::SYS_write, fd, bytes, length))
    }

    fn pwrite(fd: c_int, bytes: *const c_void, length: size_t, offset: off64_t) -> ssize_t {
        write_through(fd, Start::At(offset), length as u64, || {
            sys::call4(libc::SYS_pwrite64, fd, bytes, length, offset)
        })
    }

    fn pwrite64(fd: c_int, bytes: *const c_void, length: size_t, offset: off64_t) -> ssize_t {
        write_through(fd, Start::At(offset), length as u64, || {
            sys::call4(libc::SYS_pwrite64, fd, bytes, length, offset)
        })
    }

    fn writev(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
        write_through(fd, Start::Cursor, total_bytes(vectors, count), || {
            sys::call3(libc::SYS_writev, fd, vectors, count as size_t)
        })
    }

    fn pwritev(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
        write_through(fd, Start::At(offset), total_bytes(vectors, count), || {
            sys::call4(libc::SYS_pwritev, fd, vectors, count as size_t, offset)
        })
    }

    fn pwritev64(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
        write_through(fd, Start::At(offset), total_bytes(vectors, count), || {
            sys::call4(libc::SYS_pwritev, fd, vectors, count as size_t, offset)
        })
    }

    fn ftruncate(fd: c_int, size: off64_t) -> c_int {
        resize_through(fd, |_| u64::try_from(size).unwrap_or(0), || sys::truncate_raw(fd, size))
    }

    fn ftruncate64(fd: c_int, size: off64_t) -> c_int {
        resize_through(fd, |_| u64::try_from(size).unwrap_or(0), || sys::truncate_raw(fd, size))
    }

    fn fallocate(fd: c_int, mode: c_int, offset: off64_t, length: off64_t) -> c_int {
        allocate_through(fd, mode, offset, length)
    }

    fn fallocate64(fd: c_int, mode: c_int, offset: off64_t, length: off64_t) -> c_int {
        allocate_through(fd, mode, offset, length)
    }

    /// Returns the error instead of setting it.
    fn posix_fallocate(fd: c_int, offset: off64_t, length: off64_t) -> c_int {
        if allocate_through(fd, 0, offset, length) == 0 { 0 } else { sys::errno() }
    }

    /// Returns the error instead of setting it.
    fn posix_fallocate64(fd: c_int, offset: off64_t, length: off64_t) -> c_int {
        if allocate_through(fd, 0, offset, length) == 0 { 0 } else { sys::errno() }
    }

    fn posix_fadvise(fd: c_int, offset: off64_t, length: off64_t, advice: c_int) -> c_int {
        advise_through(fd, offset, length, advice)
    }

    fn posix_fadvise64(fd: c_int, offset: off64_t, length: off64_t, advice: c_int) -> c_int {
        advise_through(fd, offset, length, advice)
    }

    fn fsync(fd: c_int) -> c_int {
        sync_through(fd, || sys::call1(libc::SYS_fsync, fd))
    }

    fn fdatasync(fd: c_int) -> c_int {
        sync_through(fd, || sys::call1(libc::SYS_fdatasync, fd))
    }

    fn syncfs(fd: c_int) -> c_int {
        sync_all_through(|| sys::call1(libc::SYS_syncfs, fd))
    }

    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_through(libc::AT_FDCWD, path, flags, mode)
    }

    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_through(libc::AT_FDCWD, path, flags, mode)
    }

    fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_through(folder, path, flags, mode)
    }

    fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_through(folder, path, flags, mode)
    }

    fn creat(path: *const c_char, mode: mode_t) -> c_int {
        open_through(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode)
    }

    fn creat64(path: *const c_char, mode: mode_t) -> c_int {
        open_through(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode)
    }

    fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
        name_through(Kind::CreateFolder, libc::AT_FDCWD, path, || {
            sys::call3(libc::SYS_mkdirat, libc::AT_FDCWD, path, mode as size_t)
        })
    }

    fn mkdirat(folder: c_int, path: *const c_char, mode: mode_t) -> c_int {
        name_through(Kind::CreateFolder, folder, path, || {
            sys::call3(libc::SYS_mkdirat, folder, path, mode as size_t)
        })
    }

    fn link(old: *const c_char, new: *const c_char) -> c_int {
        name_through(Kind::Create, libc::AT_FDCWD, new, || {
            sys::link_raw(libc::AT_FDCWD, old, libc::AT_FDCWD, new, 0)
        })
    }

    fn linkat(old_folder: c_int, old: *const c_char, new_folder: c_int, new: *const c_char, flags: c_int) -> c_int {
        name_through(Kind::Create, new_folder, new, || sys::link_raw(old_folder, old, new_folder, new, flags))
    }

    fn unlink(path: *const c_char) -> c_int {
        unlink_through(libc::AT_FDCWD, path, 0)
    }

    fn unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
        unlink_through(folder, path, flags)
    }

    fn rmdir(path: *const c_char) -> c_int {
        unlink_through(libc::AT_FDCWD, path, libc::AT_REMOVEDIR)
    }

    fn rename(old: *const c_char, new: *const c_char) -> c_int {
        rename_through(libc::AT_FDCWD, old, libc::AT_FDCWD, new, 0)
    }

    fn renameat(old_folder: c_int, old: *const c_char, new_folder: c_int, new: *const c_char) -> c_int {
        rename_through(old_folder, old, new_folder, new, 0)
    }

    fn renameat2(
        old_folder: c_int, old: *const c_char, new_folder: c_int, new: *const c_char, flags: c_uint,
    ) -> c_int {
        rename_through(old_folder, old, new_folder, new, flags)
    }

    fn copy_file_range(
        from: c_int, from_at: *mut off64_t, to: c_int, to_at: *mut off64_t, length: size_t, flags: c_uint,
    ) -> ssize_t {
        copy_through(to, || sys::call6(libc::SYS_copy_file_range, [
            from as usize, from_at as usize, to as usize, to_at as usize, length, flags as usize,
        ]))
    }

    fn sendfile(to: c_int, from: c_int, from_at: *mut off64_t, length: size_t) -> ssize_t {
        copy_through(to, || sys::call6(libc::SYS_sendfile, [
            to as usize, from as usize, from_at as usize, length, 0, 0,
        ]))
    }

    fn sendfile64(to: c_int, from: c_int, from_at: *mut off64_t, length: size_t) -> ssize_t {
        copy_through(to, || sys::call6(libc::SYS_sendfile, [
            to as usize, from as usize, from_at as usize, length, 0, 0,
        ]))
    }

    fn getrandom(buffer: *mut c_void, length: size_t, flags: c_uint) -> ssize_t {
        world::draw(buffer, length, flags)
    }

    fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
        world::read_clock(clock, time)
    }
}

/// Only plain growing is modelled; holes and moved ranges are refused, as some
/// file systems do.
fn allocate_through(fd: c_int, mode: c_int, offset: off64_t, length: off64_t) -> c_int {
    if mode != 0 && disk().is_some_and(|disk| disk.file(fd).is_some()) {
        return fail(libc::EOPNOTSUPP);
    }
    let end = u64::try_from(offset.saturating_add(length)).unwrap_or(0);
    resize_through(
        fd,
        |stat| stat.size.max(end),
        || {
            sys::call6(
                libc::SYS_fallocate,
                [fd as usize, mode as usize, offset as usize, length as usize, 0, 0],
            )
        },
    )
}
