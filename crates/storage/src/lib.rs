//! What a node keeps on disk.
//!
//! Quorate confirms a message when a majority of nodes has it on disk. This crate is "on disk". It keeps the
//! Raft log with vote and identity, the contents of messages that outlived their log entry, and images of
//! the state machine. All of these are bytes to it: it knows neither Raft nor the broker, and it is the only
//! crate that knows sled, the embedded database underneath.
//!
//! # What it promises
//!
//! - When a [`Done`] callback is called with `Ok`, the order and all orders before it survive a crash of the
//!   process, of the system, and of the power.
//! - Orders become durable in the order in which they were given, never one without those before it.
//! - After a failed write nothing more is written, and the node learns it ([`Log::on_failure`]). A failed
//!   sync is never tried again.
//! - What is read back has been checked. Damage is reported, never returned as data, never repaired by
//!   guessing. A directory that lost something it had confirmed is refused.
//!
//! The [`Journal`] is the exception: it follows from the log, so its failures stop nothing.
//!
//! # The directory
//!
//! ```text
//! LOCK              locked while a process has the directory open
//! IDENTITY          format and node id; written last at creation       (see door)
//! progress          how far the log was flushed, as a witness          (see progress)
//! progress-contents the same for the contents
//! data/log/         database: Raft log and meta                        (see meta, chunk)
//! data/contents/N/  one database per volume of message contents        (see contents)
//! data/contents/VOLUMES  which volumes there are
//! data/snap/N/      one database per image                             (see snapshots)
//! journal/          what happened, in chunks; may be deleted           (see journal)
//! ```
//!
//! # When something is flushed
//!
//! | order | durable |
//! |---|---|
//! | append, truncate, vote, purge marker, snapshot pointer, cluster id | before its answer; all that waits shares one flush |
//! | committed point | with the next such flush, behind everything ordered before it |
//! | removal of purged entries | some time after the marker; begun again after a restart |
//! | contents | at [`Contents::flush`] |
//! | dropping a volume of contents | before [`Contents::retain`] returns; its directory goes when the last reader is done |
//! | image | before [`SnapshotWriter::finish`] returns, and before its pointer |
//! | incarnation | before [`Store::open`] returns |
//! | chunk of the journal | at [`Journal::sync`] |
//!
//! # Without a disk
//!
//! With the feature `simulation` a store can be on a disk in memory, which crashes when a test says so, and whose log is
//! written by no thread. The seams are the traits `Engine` and `Medium`, and the two ways to drive the
//! log's writer. See `simulation`.
//!
//! # Limits worth knowing
//!
//! sled never gives space back while it runs: plan two and a half times the peak of the retained log, plus
//! two images at twice their size. Contents give their space back as volumes: one is rewritten when less than a quarter
//! of it is alive. A full disk stops the node, and it cannot start again before there is
//! space. Use a local ext4 or xfs on a disk that honours flushes.

mod chunk;
mod compact;
mod contents;
mod door;
mod engine;
mod error;
mod failure;
mod files;
#[doc(hidden)]
pub mod hook;
mod journal;
mod log;
mod medium;
mod meta;
mod opening;
mod options;
mod panics;
mod progress;
#[cfg(feature = "simulation")]
pub mod simulation;
mod snapshots;
mod store;
mod throttle;

pub use contents::{Content, Contents};
pub use error::{OpenError, StorageError};
pub use journal::{Coverage, Journal, JournalStats};
pub use log::{Done, FLUSH_BUCKETS, Log, LogStats, Record};
pub use options::Options;
pub use panics::panic_is_caught;
pub use snapshots::{SnapshotInfo, SnapshotReader, SnapshotWriter, Snapshots};
pub use store::{DiskUse, Identity, Store};
