//! Makes sled's writes durable on Linux. The only `unsafe` code of this crate.
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
//! Nothing but the link order makes this work, so nothing may trust it blindly: the calls are counted, and
//! [`Store::open`](crate::Store::open) refuses to run unless a flushed write moved the counter.
//!
//! On other systems sled calls `File::sync_all`, which is enough, and this module is empty.

#![cfg_attr(target_os = "linux", allow(unsafe_code))]

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

static CALLS: AtomicU64 = AtomicU64::new(0);
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
}

/// How often sled synced a file through us, in this process.
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
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
    CALLS.fetch_add(1, Ordering::Relaxed);
    let mode = MODE.load(Ordering::Relaxed);
    if mode == Mode::Active as u8 {
        // SAFETY: `fdatasync` touches no memory of ours and accepts any descriptor.
        return unsafe { libc::fdatasync(fd) };
    }
    if mode == Mode::Failing as u8 {
        // SAFETY: the location of this thread's `errno` is always valid to write.
        unsafe { *libc::__errno_location() = libc::EIO };
        return -1;
    }
    // SAFETY: the system call takes plain integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_sync_file_range, fd, offset, len, flags) as libc::c_int }
}
