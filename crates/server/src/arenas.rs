//! How much memory the allocator keeps.
//!
//! The system's allocator on Linux, glibc's, gives threads *arenas* of their own, up to eight for each core, and gives
//! little of what is free in one of them back, or to another. A node has many threads that read and write bodies now and then, and
//! each such arena keeps what its busiest moment took: of a node that hands out a million messages, a third of all
//! memory. Four arenas are as fast and keep less.
//!
//! glibc takes their number from the environment of a program that starts, so a node starts itself once more, as the same
//! process.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

const VARIABLE: &str = "MALLOC_ARENA_MAX";
const ARENAS: &str = "4";

/// Begins this program anew with few arenas, unless that is done or the environment says how many. Does not return then;
/// if it does, all is as it was.
pub(crate) fn limit() {
    if cfg!(target_env = "gnu") && std::env::var_os(VARIABLE).is_none() {
        let mut arguments = std::env::args_os();
        if let (Ok(program), Some(name)) = (std::env::current_exe(), arguments.next()) {
            let mut again = Command::new(program);
            again.arg0(name).args(arguments).env(VARIABLE, ARENAS);
            // It is about memory only: a node without it is as good in every other way.
            let _error = again.exec();
        }
    }
}
