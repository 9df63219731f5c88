//! When to write a snapshot, and how much log to keep behind it.
//!
//! By bytes: a snapshot is due when the log since the last one is larger than
//! the configured amount and than the last image. So each byte of log pays for
//! at most one byte of image, and a restart replays a bounded log.
//!
//! The disk gets space of contents back behind a snapshot. So one is due earlier when most of what is kept is needed no
//! more, as when a deep queue was emptied, and nothing else might happen for a while.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver as _;
use parking_lot::Mutex;
use quorate_storage::DiskUse;

use crate::blocking;
use crate::config::Config;
use crate::state_machine::Shared;
use crate::types::Raft;

/// The log is measured no more often.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A snapshot that was asked for may have been put off.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// A snapshot for the sake of the disk is due after the log has grown by one part in so many of what makes one due
/// otherwise: how much is alive of what is kept is known about, and it must not be written over and over for nothing.
const EARLIER: u64 = 16;
/// The directory is measured this often.
const MEASURE_EVERY: Duration = Duration::from_secs(5);

/// Runs until the node stops.
pub(crate) async fn run(raft: Raft, shared: Arc<Shared>, config: Config) {
    let mut purged_for = 0;
    loop {
        shared.grown.notified().await;
        tokio::time::sleep(LOOK_EVERY).await;
        if is_due(&shared, &config) && write(&raft, &shared).await.is_err() {
            return;
        }
        let index = shared.snapshot_index.load(Ordering::Acquire);
        if index > purged_for {
            purged_for = index;
            if let Some(upto) = purge_point(&shared, &config, index)
                && raft.trigger().purge_log(upto).await.is_err()
            {
                return;
            }
        }
    }
}

fn is_due(shared: &Shared, config: &Config) -> bool {
    let index = shared.snapshot_index.load(Ordering::Acquire);
    let image = shared
        .store
        .snapshots
        .current()
        .map_or(0, |current| current.bytes);
    let (log, enough) = (
        shared.store.log.log_bytes(index + 1),
        config.snapshot_log_bytes.max(image),
    );
    log > enough || (log > enough / EARLIER && is_mostly_dead(shared, config))
}

/// Whether more contents are kept for nothing than are alive, and so many that it matters.
fn is_mostly_dead(shared: &Shared, config: &Config) -> bool {
    let kept = shared.store.contents.live_bytes();
    if kept <= config.snapshot_log_bytes {
        return false;
    }
    let alive = shared.broker.read().content_bytes();
    kept - alive.min(kept) > config.snapshot_log_bytes.max(alive)
}

/// Writes a snapshot of at least what is applied now. Answers its index.
pub(crate) async fn write(raft: &Raft, shared: &Shared) -> Result<u64, String> {
    let wanted = shared.applied().map_or(0, |id| id.index);
    let mut metrics = raft.data_metrics();
    loop {
        let written = metrics.borrow_and_update().snapshot.map_or(0, |id| id.index);
        if written >= wanted {
            return Ok(written);
        }
        raft.trigger()
            .snapshot()
            .await
            .map_err(|error| error.to_string())?;
        // One that was begun before may end first, and not reach far enough.
        let further = async {
            while metrics.borrow_and_update().snapshot.map_or(0, |id| id.index) == written {
                metrics.changed().await.map_err(|error| error.to_string())?;
            }
            Ok::<(), String>(())
        };
        if let Ok(ended) = tokio::time::timeout(ASK_AGAIN_AFTER, further).await {
            ended?;
        }
    }
}

/// The last entry to purge behind a snapshot at `index`, if any.
fn purge_point(shared: &Shared, config: &Config, index: u64) -> Option<u64> {
    let log = &shared.store.log;
    let first = log.first_index()?;
    // The first entry from which on the log is small enough to keep.
    let (mut low, mut high) = (first, index + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        if log.log_bytes(middle) <= config.log_keep_bytes {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    let keep_from = low.max((index + 1).saturating_sub(config.log_keep_entries));
    (keep_from > first).then(|| keep_from - 1)
}

/// Keeps the size of the directory known, off the runtime.
pub(crate) async fn measure(shared: Arc<Shared>, disk: Arc<Mutex<Vec<DiskUse>>>) {
    loop {
        let store = Arc::clone(&shared.store);
        if let Ok(parts) = blocking::run(&shared.store.log, move || store.disk_use()).await {
            *disk.lock() = parts;
        }
        tokio::time::sleep(MEASURE_EVERY).await;
    }
}
