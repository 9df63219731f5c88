//! What may be tuned, with the defaults.

use std::time::Duration;

/// Settings of one store. None of them changes what is on disk, so they may differ from start to start.
#[derive(Clone, Debug)]
pub struct Options {
    /// Entries of the log kept in memory after they are on disk, so that followers and the state machine
    /// read them without touching it. Entries that are not flushed yet come on top. Default 32 MiB.
    pub tail_bytes: u64,
    /// Page cache of the log database. Default 32 MiB.
    pub log_cache_bytes: u64,
    /// Volumes of contents that are not the newest stay open, and largely in memory, while they hold no more than this
    /// together; two of them do in any case. Default 64 MiB.
    pub contents_cache_bytes: u64,
    /// A volume of contents that holds this many bytes is followed by a new one. Smaller ones give space back sooner and
    /// take less memory while they are open; more of them take longer to open at a start. Default 16 MiB.
    pub contents_volume_bytes: u64,
    /// Page cache of each open snapshot image. Default 4 MiB.
    pub snapshot_cache_bytes: u64,
    /// Ceiling for bytes written per second by a snapshot and by [`Contents::put_all`](crate::Contents::put_all),
    /// each, so that the log keeps its latency beside them. `None` is no ceiling. Default 60 MiB/s.
    pub snapshot_bytes_per_second: Option<u64>,
    /// A group commit takes what waits, until it holds this many bytes. Default 1 MiB.
    pub group_bytes_max: usize,
    /// A group commit takes at most this many commands. Default 1024.
    pub group_commands_max: usize,
    /// At open a log whose file is larger than this, and than four times its live data, is rewritten. sled
    /// never gives space back by itself. Default 1 GiB.
    pub compact_bytes_min: u64,
    /// Most bytes of the journal, the oldest chunks go; 0 keeps none, and removes what there is. Default 256 MiB.
    pub journal_bytes: u64,
    /// Chunks of the journal go when this much cluster time has passed since the last thing in them. Default 7 days.
    pub journal_age: Duration,
    /// Opens the store on this disk instead of in a directory, without journal and without a ceiling for snapshots.
    /// Default none.
    #[cfg(feature = "simulation")]
    pub disk: Option<crate::simulation::Disk>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            tail_bytes: 32 << 20,
            log_cache_bytes: 32 << 20,
            contents_cache_bytes: 64 << 20,
            contents_volume_bytes: 16 << 20,
            snapshot_cache_bytes: 4 << 20,
            snapshot_bytes_per_second: Some(60 << 20),
            group_bytes_max: 1 << 20,
            group_commands_max: 1024,
            compact_bytes_min: 1 << 30,
            journal_bytes: 256 << 20,
            journal_age: Duration::from_secs(7 * 24 * 60 * 60),
            #[cfg(feature = "simulation")]
            disk: None,
        }
    }
}
