//! The system calls that the shim makes for itself, behind safe functions.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicU64;

use libc::{c_char, c_int, c_long, c_uint, mode_t, off64_t, size_t};

use crate::control::{CONTROL_BYTES, SLOTS};
use crate::journal::FileId;

/// Descriptors of the shim start here, out of the way of programs that expect
/// the lowest free number.
const DESCRIPTORS_FROM: c_int = 200;

const NO_PATH: &CStr = c"";

pub(super) struct Stat {
    pub(super) id: FileId,
    pub(super) device: (u32, u32),
    pub(super) size: u64,
    mode: u32,
}

impl Stat {
    pub(super) fn is_file(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }

    pub(super) fn is_folder(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }
}

/// A system call. A wrong address among the arguments makes the kernel
/// answer EFAULT; only buffers that it fills need care.
pub(super) fn call6(number: c_long, arguments: [usize; 6]) -> c_long {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: callers pass buffers of their own that are as large as they say, or those of the
    // interposed function's caller, whose duty it is.
    unsafe { libc::syscall(number, a, b, c, d, e, f) }
}

pub(super) fn call1(number: c_long, fd: c_int) -> c_long {
    call6(number, [fd as usize, 0, 0, 0, 0, 0])
}

pub(super) fn call3<T>(number: c_long, fd: c_int, pointer: *const T, length: size_t) -> c_long {
    call6(number, [fd as usize, pointer as usize, length, 0, 0, 0])
}

pub(super) fn call4<T>(number: c_long, fd: c_int, pointer: *const T, length: size_t, at: off64_t) -> c_long {
    call6(number, [fd as usize, pointer as usize, length, at as usize, 0, 0])
}

pub(super) fn errno() -> c_int {
    // SAFETY: the address is that of this thread's errno.
    unsafe { *libc::__errno_location() }
}

pub(super) fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

pub(super) fn c_string(text: &str) -> CString {
    CString::new(text).expect("a name without a zero byte")
}

/// The string that a caller passed, if it passed one.
pub(super) fn borrow<'a>(path: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the interposed functions require a string that ends with zero, and it outlives the call.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })
}

pub(super) fn environment(name: &str) -> Option<CString> {
    let name = c_string(name);
    // SAFETY: the name ends with zero, and the value is copied before anything else can run here.
    borrow(unsafe { libc::getenv(name.as_ptr()) }).map(CStr::to_owned)
}

pub(super) fn stat(fd: RawFd) -> Option<Stat> {
    statx(fd, NO_PATH, libc::AT_EMPTY_PATH)
}

pub(super) fn stat_at(folder: RawFd, path: &CStr) -> Option<Stat> {
    statx(folder, path, libc::AT_SYMLINK_NOFOLLOW)
}

pub(super) fn stat_following(folder: RawFd, path: &CStr) -> Option<Stat> {
    statx(folder, path, 0)
}

fn statx(folder: RawFd, path: &CStr, flags: c_int) -> Option<Stat> {
    let saved = errno();
    let mut answer = MaybeUninit::<libc::statx>::zeroed();
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    let arguments = [
        folder as usize,
        path.as_ptr() as usize,
        flags as usize,
        mask as usize,
        answer.as_mut_ptr() as usize,
        0,
    ];
    if call6(libc::SYS_statx, arguments) != 0 {
        set_errno(saved);
        return None;
    }
    // SAFETY: zero is a value of every field, and the kernel filled them.
    let answer = unsafe { answer.assume_init() };
    let born = answer.stx_btime;
    let born_ns = born.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000) + u64::from(born.tv_nsec);
    Some(Stat {
        id: FileId {
            inode: answer.stx_ino,
            born_ns,
        },
        device: (answer.stx_dev_major, answer.stx_dev_minor),
        size: answer.stx_size,
        mode: u32::from(answer.stx_mode),
    })
}

/// The path of an open file, as the kernel knows it now.
pub(super) fn path_of(fd: RawFd) -> Option<Vec<u8>> {
    let link = c_string(&format!("/proc/self/fd/{fd}"));
    let mut path = [0_u8; libc::PATH_MAX as usize];
    let length = call6(
        libc::SYS_readlinkat,
        [
            libc::AT_FDCWD as usize,
            link.as_ptr() as usize,
            path.as_mut_ptr() as usize,
            path.len(),
            0,
            0,
        ],
    );
    path.get(..usize::try_from(length).ok()?).map(<[u8]>::to_vec)
}

pub(super) fn open_raw(folder: RawFd, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let arguments = [
        folder as usize,
        path as usize,
        flags as usize,
        mode as usize,
        0,
        0,
    ];
    call6(libc::SYS_openat, arguments) as c_int
}

pub(super) fn open(folder: RawFd, path: &CStr, flags: c_int) -> Option<RawFd> {
    let fd = open_raw(folder, path.as_ptr(), flags | libc::O_CLOEXEC, 0o644);
    (fd >= 0).then_some(fd)
}

/// Moves a descriptor of the shim out of the way.
pub(super) fn move_up(fd: RawFd) -> Option<RawFd> {
    let arguments = [
        fd as usize,
        libc::F_DUPFD_CLOEXEC as usize,
        DESCRIPTORS_FROM as usize,
        0,
        0,
        0,
    ];
    let moved = call6(libc::SYS_fcntl, arguments) as c_int;
    close(fd);
    (moved >= 0).then_some(moved)
}

pub(super) fn close(fd: RawFd) {
    call1(libc::SYS_close, fd);
}

pub(super) fn make_folder(folder: RawFd, path: &CStr) {
    call3(libc::SYS_mkdirat, folder, path.as_ptr(), 0o755);
}

pub(super) fn write(fd: RawFd, bytes: &[u8]) -> Option<usize> {
    usize::try_from(call3(libc::SYS_write, fd, bytes.as_ptr(), bytes.len())).ok()
}

/// Fills the buffer. Bytes past the end of the file stay as they are.
pub(super) fn read_at(fd: RawFd, buffer: &mut [u8], offset: u64) -> Option<()> {
    let mut reader = None;
    let mut done = 0;
    while done < buffer.len() {
        let rest = &mut buffer[done..];
        let from = reader.unwrap_or(fd);
        let at = off64_t::try_from(offset + done as u64).ok()?;
        let count = call4(libc::SYS_pread64, from, rest.as_mut_ptr(), rest.len(), at);
        match count {
            0 => break,
            count if count > 0 => done += usize::try_from(count).ok()?,
            // The descriptor is for writing only: read through one of our own.
            _ if errno() == libc::EBADF && reader.is_none() => {
                let path = c_string(&format!("/proc/self/fd/{fd}"));
                reader = Some(open(libc::AT_FDCWD, &path, libc::O_RDONLY)?);
            }
            _ if errno() == libc::EINTR => {}
            _ => return None,
        }
    }
    if let Some(reader) = reader {
        close(reader);
    }
    Some(())
}

/// Writes through a descriptor of our own, because `fd` may be for reading only.
pub(super) fn write_at(fd: RawFd, bytes: &[u8], offset: u64) -> Option<()> {
    let path = c_string(&format!("/proc/self/fd/{fd}"));
    let writer = open(libc::AT_FDCWD, &path, libc::O_WRONLY)?;
    let at = off64_t::try_from(offset).ok()?;
    let written = call4(libc::SYS_pwrite64, writer, bytes.as_ptr(), bytes.len(), at);
    close(writer);
    (usize::try_from(written) == Ok(bytes.len())).then_some(())
}

pub(super) fn truncate_raw(fd: RawFd, size: off64_t) -> c_long {
    call6(libc::SYS_ftruncate, [fd as usize, size as usize, 0, 0, 0, 0])
}

pub(super) fn truncate(fd: RawFd, size: u64) -> Option<()> {
    (truncate_raw(fd, off64_t::try_from(size).ok()?) == 0).then_some(())
}

pub(super) fn flags(fd: RawFd) -> c_int {
    (call6(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) as c_int).max(0)
}

pub(super) fn cursor(fd: RawFd) -> u64 {
    let position = call6(
        libc::SYS_lseek,
        [fd as usize, 0, libc::SEEK_CUR as usize, 0, 0, 0],
    );
    u64::try_from(position).unwrap_or(0)
}

pub(super) fn link_raw(
    old_folder: RawFd,
    old: *const c_char,
    new_folder: RawFd,
    new: *const c_char,
    flags: c_int,
) -> c_long {
    let arguments = [
        old_folder as usize,
        old as usize,
        new_folder as usize,
        new as usize,
        flags as usize,
        0,
    ];
    call6(libc::SYS_linkat, arguments)
}

pub(super) fn link(old_folder: RawFd, old: &CStr, new_folder: RawFd, new: &CStr) -> bool {
    link_raw(old_folder, old.as_ptr(), new_folder, new.as_ptr(), 0) == 0
}

pub(super) fn unlink_raw(folder: RawFd, path: *const c_char, flags: c_int) -> c_long {
    call3(libc::SYS_unlinkat, folder, path, flags as size_t)
}

pub(super) fn unlink(folder: RawFd, path: &CStr, flags: c_int) {
    unlink_raw(folder, path.as_ptr(), flags);
}

pub(super) fn rename_raw(
    old_folder: RawFd,
    old: *const c_char,
    new_folder: RawFd,
    new: *const c_char,
    flags: c_uint,
) -> c_long {
    let arguments = [
        old_folder as usize,
        old as usize,
        new_folder as usize,
        new as usize,
        flags as usize,
        0,
    ];
    call6(libc::SYS_renameat2, arguments)
}

/// Maps the control file, for the life of the process.
pub(super) fn map_numbers(fd: RawFd) -> Option<&'static [AtomicU64; SLOTS]> {
    // SAFETY: a new shared mapping of a file of at least this size, which nobody cuts or unmaps.
    // It is aligned to a page, any bits are an AtomicU64, and all access is atomic.
    unsafe {
        let address = libc::mmap(
            std::ptr::null_mut(),
            CONTROL_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd,
            0,
        );
        (address != libc::MAP_FAILED).then(|| &*address.cast::<[AtomicU64; SLOTS]>())
    }
}
