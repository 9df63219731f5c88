//! Entropy and clocks of a simulated world.
//!
//! A program is deterministic if what it draws and what its clocks show are. Both come from the C library, in
//! whichever crate they are asked for: the hash maps of the standard library, tokio's unbiased `select!` and
//! the order in which its `watch` wakes, and every generator of `rand` draw their seeds from `getrandom`;
//! `Instant::now` and `SystemTime::now` are `clock_gettime`. So these two symbols are all that must be caught.
//!
//! With the variable [`SEED_VARIABLE`](crate::simulation::SEED_VARIABLE) in the environment, entropy is a SplitMix64 sequence of
//! that seed and the clocks show what the simulator sets. Without it, both are as they were. The decision is
//! made once, at the first call, before `main`: a world is simulated from its beginning or not at all.
//!
//! One thread is assumed, not checked: two that draw do so in an order that no seed decides. Clocks of
//! processor time stay true.

use std::ffi::c_void;
use std::mem::transmute;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};

use libc::{c_int, c_uint, clockid_t, size_t, ssize_t, timespec};

use super::sys;
use crate::rng;
use crate::simulation::SEED_VARIABLE;

/// Whether the world is simulated: [`UNDECIDED`] until the first call.
static STATE: AtomicU8 = AtomicU8::new(UNDECIDED);
const UNDECIDED: u8 = 0;
const REAL: u8 = 1;
const SIMULATED: u8 = 2;

/// Where the sequence of random numbers stands.
static ENTROPY: AtomicU64 = AtomicU64::new(0);
/// Bytes drawn so far.
static DRAWN: AtomicU64 = AtomicU64::new(0);
/// What the monotonic clocks show, in nanoseconds. They do not begin at 0, since programs subtract.
static MONOTONIC_NS: AtomicU64 = AtomicU64::new(crate::simulation::MONOTONIC_START.as_nanos() as u64);
/// What the wall clocks show, in nanoseconds since 1970.
static WALL_NS: AtomicU64 = AtomicU64::new(crate::simulation::WALL_START.as_nanos() as u64);

/// glibc's own `clock_gettime`, looked up once; 0 = not yet.
static TRUE_CLOCK: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn is_simulated() -> bool {
    match STATE.load(Relaxed) {
        UNDECIDED => decide(),
        state => state == SIMULATED,
    }
}

fn decide() -> bool {
    let seed = sys::environment(SEED_VARIABLE)
        .and_then(|value| value.into_string().ok())
        .and_then(|value| value.parse::<u64>().ok());
    if let Some(seed) = seed {
        ENTROPY.store(seed, Relaxed);
    }
    STATE.store(if seed.is_some() { SIMULATED } else { REAL }, Relaxed);
    seed.is_some()
}

pub(crate) fn drawn_bytes() -> u64 {
    DRAWN.load(Relaxed)
}

pub(crate) fn set_clocks(monotonic_ns: u64, wall_ns: u64) {
    MONOTONIC_NS.store(monotonic_ns, Relaxed);
    WALL_NS.store(wall_ns, Relaxed);
}

pub(super) fn draw(buffer: *mut c_void, length: size_t, flags: c_uint) -> ssize_t {
    if !is_simulated() {
        return sys::call6(
            libc::SYS_getrandom,
            [buffer as usize, length, flags as usize, 0, 0, 0],
        ) as ssize_t;
    }
    if buffer.is_null() {
        return super::fail(libc::EFAULT) as ssize_t;
    }
    DRAWN.fetch_add(length as u64, Relaxed);
    // SAFETY: the caller of getrandom promises so many bytes to write to.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    for piece in buffer.chunks_mut(8) {
        let number = rng::mixed(ENTROPY.fetch_add(rng::STEP, Relaxed).wrapping_add(rng::STEP));
        piece.copy_from_slice(&number.to_le_bytes()[..piece.len()]);
    }
    length.cast_signed()
}

pub(super) fn read_clock(clock: clockid_t, time: *mut timespec) -> c_int {
    let shown = match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => &WALL_NS,
        libc::CLOCK_MONOTONIC
        | libc::CLOCK_MONOTONIC_RAW
        | libc::CLOCK_MONOTONIC_COARSE
        | libc::CLOCK_BOOTTIME => &MONOTONIC_NS,
        _ => return true_clock(clock, time),
    };
    if !is_simulated() {
        return true_clock(clock, time);
    }
    if time.is_null() {
        return super::fail(libc::EFAULT);
    }
    let ns = shown.load(Relaxed).cast_signed();
    let shown = timespec {
        tv_sec: ns / 1_000_000_000,
        tv_nsec: ns % 1_000_000_000,
    };
    // SAFETY: the caller of clock_gettime passes a place for the answer.
    unsafe { time.write(shown) };
    0
}

/// glibc's function reads the clock without entering the kernel, which a system call would not.
fn true_clock(clock: clockid_t, time: *mut timespec) -> c_int {
    let mut address = TRUE_CLOCK.load(Relaxed);
    if address == 0 {
        // SAFETY: the name ends with zero.
        address = unsafe { libc::dlsym(libc::RTLD_NEXT, c"clock_gettime".as_ptr()) } as usize;
        TRUE_CLOCK.store(address, Relaxed);
    }
    if address == 0 {
        return sys::call6(
            libc::SYS_clock_gettime,
            [clock as usize, time as usize, 0, 0, 0, 0],
        ) as c_int;
    }
    // SAFETY: the dynamic linker says that this is the function of that name, which has this signature.
    let function =
        unsafe { transmute::<usize, unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int>(address) };
    // SAFETY: the caller's arguments, whose contract is the same.
    unsafe { function(clock, time) }
}
