//! What a simulation of a cluster needs of this crate, with the feature `simulation`.
//!
//! A node is simulated by its [`Config`](crate::Config): a [`Transport`](crate::Transport) of memory, a
//! [virtual](crate::Clock::starting_at) clock, and a [`Disk`] in its storage options. On a current-thread runtime with paused
//! time nothing then leaves the thread, and all that is left of chance is the process's source of random numbers.
//!
//! Somebody has to be the disk's motor: [`run_disk`]. And a machine fails in this order:
//!
//! 1. [`Disk::crash`]: nothing that the node still does reaches its disk, and it learns that with an error.
//! 2. Its connections end, and nobody can connect: nothing that it still does reaches anybody.
//! 3. [`Consensus::abandon`](crate::Consensus::abandon) ends its tasks.
//!
//! What a majority of disks holds is asked of the disks themselves, those of crashed nodes included: [`DurableLog`].

use std::io;
use std::sync::Arc;
use std::time::Duration;

pub use quorate_storage::simulation::{Disk, DiskStats, Region, Step, Unflushed};
use tokio::sync::Notify;

use crate::codec;
use crate::log_store::entry_of;
use crate::types::LogId;

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

/// Names an entry among all that there ever were: where it stands, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId {
    /// Its place in the log.
    pub index: u64,
    /// The term of the leader that made it.
    pub term: u64,
    /// The node id of that leader.
    pub node: u64,
}

/// For whom a node has voted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurableVote {
    /// The term.
    pub term: u64,
    /// The candidate, or leader.
    pub node: u64,
    /// Whether a quorum is known to have voted so.
    pub committed: bool,
}

/// What a node would find on its disk if all that is not flushed were lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurableLog {
    /// Its last vote.
    pub vote: Option<DurableVote>,
    /// Up to where it knows that the log is committed. It may know more than its disk has.
    pub committed: Option<EntryId>,
    /// The last entry that is purged, behind a snapshot.
    pub purged: Option<EntryId>,
    /// The entries after that, in order.
    pub entries: Vec<EntryId>,
}

impl DurableLog {
    /// Reads it, be a node running there or not. Costs a walk over the whole log.
    pub fn of(disk: &Disk) -> io::Result<Self> {
        let found = disk.durable_log().map_err(io::Error::other)?;
        let vote = found.vote.as_ref().map(|vote| codec::decode_vote(vote));
        let committed = found.committed.as_ref().filter(|bytes| !bytes.is_empty());
        Ok(Self {
            vote: vote.transpose()?.map(|vote| DurableVote {
                term: vote.leader_id.term,
                node: vote.leader_id.node_id,
                committed: vote.committed,
            }),
            committed: committed
                .map(|id| codec::decode_log_id(id))
                .transpose()?
                .map(EntryId::from),
            purged: found
                .purged
                .map(|(_, id)| codec::decode_log_id(&id))
                .transpose()?
                .map(EntryId::from),
            entries: found
                .entries
                .iter()
                .map(|record| Ok(entry_of(record)?.log_id.into()))
                .collect::<io::Result<_>>()?,
        })
    }
}

impl From<LogId> for EntryId {
    fn from(id: LogId) -> Self {
        Self {
            index: id.index,
            term: id.leader_id.term,
            node: id.leader_id.node_id,
        }
    }
}
