//! End-to-end tests: real nodes, real clients, real faults.
//!
//! A test runs a cluster of `quorate serve` processes, lets a
//! [workload](jepsen_lite_workload) write down everything it asked for and was told ([`history`]), does harm meanwhile,
//! drains the queues, and hands the history to the [`checker`], which has one
//! function for each promise. [`trial`] is that whole course; a test adds the
//! fault.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`worker`] | a worker that dies as a process does |
//! | [`history`] | what they asked for, what they were told, what they received |
//! | [`views`] | what the API shows, as checkers read it |
//! | [`checker`] | the promises, each decided from a history |
//! | [`converge`] | all nodes have the same state |
//! | [`costs`] | what nodes take of processors, memory and disk |
//! | [`many_queues`] | a great many queues, declared and listed |
//! | [`alive`] | the shortest proof that a cluster serves |
//! | [`body`] | bodies that tell who they are |
//! | [`trial`] | cluster, load, fault, drain, verdict |
//! | [`harm`] | nodes killed, restarted, emptied, made to lead |
//! | [`disks`] | nodes on disks that forget, fail or fill up |
//! | [`wrong_clock`] | a node whose wall clock is wrong |
//! | [`relay`] | a connection that breaks at a chosen byte |
//! | [`program`] | the `quorate` program, as a script runs it |
//! | [`raw`] | the API without the client library, to send what it would not |
//!
//! | variable | what it does |
//! | --- | --- |
//! | `QUORATE_ROUNDS` | rounds of each fault; the default is small |
//! | `QUORATE_SEED` | the seed of all random choices; printed by every trial |
//! | `QUORATE_BIN` | the binary under test |

pub use jepsen_lite_core::check as checker;
pub use jepsen_lite_core::{body, history};
pub use jepsen_lite_processes::{disks, wrong_clock};

pub mod alive;
pub mod converge;
pub mod costs;
pub mod harm;
pub mod many_queues;
pub mod program;
pub mod raw;
pub mod relay;
pub mod trial;
pub mod views;
pub mod worker;

/// How many rounds of a fault to run: `QUORATE_ROUNDS`, or `default`.
///
/// # Panics
///
/// When the variable is set and is no number.
#[must_use]
pub fn rounds(default: u64) -> u64 {
    number("QUORATE_ROUNDS").unwrap_or(default)
}

/// The seed of a test: `QUORATE_SEED`, or a new one. Printed, so that a failed
/// run can be repeated as far as threads and processes let it.
///
/// # Panics
///
/// When the variable is set and is no number.
#[must_use]
pub fn seed(test: &str) -> u64 {
    let seed = number("QUORATE_SEED").unwrap_or_else(rand::random);
    eprintln!("{test}: run again with QUORATE_SEED={seed}");
    seed
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is no number")),
    )
}
