//! Work that blocks on the disk, kept away from the runtime's workers.
//!
//! Everything in this crate that may block goes through here. A store on a simulated disk never
//! blocks ([`Log::blocks`]), and a simulation has no other thread: there the work is done in place.

use quorate_storage::Log;

/// The work panicked, or the runtime stops.
#[derive(Debug, thiserror::Error)]
#[error("work on the disk ended early: {0}")]
pub(crate) struct Ended(tokio::task::JoinError);

impl From<Ended> for std::io::Error {
    fn from(ended: Ended) -> Self {
        Self::other(ended)
    }
}

/// Does work that blocks on the disk of a log's store.
pub(crate) async fn run<T: Send + 'static>(
    log: &Log,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Ended> {
    if !log.blocks() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(Ended)
}
