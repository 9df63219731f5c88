//! What a simulation of a cluster needs of this crate, with the feature `simulation`.
//!
//! A node is simulated by its [`Config`](crate::Config): a [`Transport`](crate::Transport) of memory, a
//! [virtual](crate::Clock::starting_at) clock, and a [`Disk`] in its storage options. On a current-thread runtime with paused
//! time nothing then leaves the thread, and all that is left of chance is the process's source of random numbers.
//!
//! Somebody has to be the disk's motor: [`run_disk`].

use std::time::Duration;

pub use quorate_storage::simulation::{Disk, DiskStats, DurableLog, Region, Step, Unflushed};
use tokio::sync::Notify;

use std::sync::Arc;

/// Carries out what is ordered of a disk: each flush takes what `latency` says when it begins. Runs for ever, over all
/// the lives of the nodes that use the disk; a crash in the middle of a flush is a crash of the disk.
pub async fn run_disk(disk: Disk, mut latency: impl FnMut() -> Duration) {
    let work = Arc::new(Notify::new());
    let waker = Arc::clone(&work);
    disk.on_work(move || waker.notify_one());
    loop {
        match disk.step() {
            Step::Idle => work.notified().await,
            Step::Written => tokio::time::sleep(latency()).await,
            // Others first: what they order next may share the next flush.
            Step::Flushed | Step::Purged => tokio::task::yield_now().await,
        }
    }
}
