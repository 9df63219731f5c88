//! A world whose entropy and clocks are given: for programs that simulate.
//!
//! Linking this crate puts its own `getrandom` and `clock_gettime` into the program. They do nothing of their
//! own unless [`SEED_VARIABLE`] is in the environment when the program starts: then all entropy follows from
//! that seed, and clocks stand still at what [`set_clocks`] was last told. A program that wants this starts
//! itself again with the variable set; what it drew before `main` is then given, too.

use std::time::Duration;

#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
use crate::interpose;

/// Environment variable with the seed of the simulated world, a decimal `u64`.
pub const SEED_VARIABLE: &str = "JEPSEN_LITE_WORLD";

/// What monotonic clocks show before they are set: one day.
pub const MONOTONIC_START: Duration = Duration::from_secs(86_400);

/// What wall clocks show before they are set, since 1970: 2001-09-09 01:46:40 UTC.
pub const WALL_START: Duration = Duration::from_secs(1_000_000_000);

/// Whether this process lives in a simulated world.
#[must_use]
pub fn is_simulated() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
    return interpose::is_simulated();
    #[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
    false
}

/// Sets what the clocks show from now on: the monotonic ones, and the wall clocks since 1970. Without effect
/// in the real world.
pub fn set_clocks(monotonic: Duration, wall: Duration) {
    #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
    interpose::set_clocks(nanoseconds(monotonic), nanoseconds(wall));
    #[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
    let _ = (monotonic, wall);
}

/// How many bytes of entropy were drawn from the seed. Two runs that are the same have drawn the same.
#[must_use]
pub fn drawn_bytes() -> u64 {
    #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
    return interpose::drawn_bytes();
    #[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
    0
}

#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
