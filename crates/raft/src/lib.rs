//! Consensus: one log on every node of a cluster, and the broker's state made of it.
//!
//! This crate joins three others. [`quorate_core`] is the broker as a function
//! of the log; [`quorate_storage`] keeps bytes so that they survive; openraft
//! decides what the log is. It is the only crate that names openraft: what
//! others see is [`Consensus`], plain data, and the [`Observer`] they hand in.
//!
//! # The life of an entry
//!
//! The node encodes a batch of commands once and [proposes](Consensus::propose)
//! it. On the leader it goes to the log's writer thread and to the followers at
//! the same time, as those same bytes; each flushes it. When a quorum has, it
//! is committed: from here on it can only be lost with a majority of disks.
//! Each node's state machine applies it, in order, answers the proposer if it
//! waits here, and hands effects and events to the observer.
//!
//! # Where openraft's traits live
//!
//! | trait | file |
//! |---|---|
//! | `RaftTypeConfig` | [`types`] |
//! | `RaftLogStorage`, `RaftLogReader` | [`log_store`] |
//! | `RaftStateMachine` | [`state_machine`] |
//! | `RaftSnapshotBuilder` | [`snapshot`] |
//! | `RaftNetworkFactory`, `Net*` | `network/client.rs` |
//! | the calls into openraft for requests of other nodes | `network/server.rs` |
//!
//! Beside them: `bootstrap` forms a cluster, `membership` changes it,
//! `leadership` tells who leads, `failover` shortens an election, `compaction`
//! decides when to write a snapshot and what to purge, `identity` checks every
//! request, `codec` is every byte we write to disk.
//!
//! # What is outside
//!
//! A node meets the world in four places, and each can be another than the real
//! one: [`transport`] has the network, [`Clock`] the time, `blocking` the threads
//! that may wait for a disk, and the storage's options the disk itself. With
//! all four replaced a whole cluster runs in one thread, in virtual time; the
//! feature `simulation` adds what that takes.
//!
//! # What must hold
//!
//! Losing any of these loses acknowledged data, or lets two nodes differ:
//!
//! 1. One thread does all writes to the log, in order: entries, vote,
//!    truncation, purge, snapshot pointer. A callback fires after its flush.
//! 2. A leader that restarts stands for election again
//!    (`enable_leader_restore` is off). The entries it replicated before its own
//!    flush may be gone, and it would give their log ids to others.
//! 3. A node's id is in its data. Other nodes name the id they mean, and a node
//!    whose data was wiped is another node. It counts towards no quorum before
//!    it was added.
//! 4. The set of first voters is given to exactly one node, which has seen all
//!    the others empty.
//! 5. A snapshot's pointer becomes durable after the log up to its index, after
//!    the image, and after the contents it refers to. The log is purged after
//!    the pointer.
//! 6. Apply depends on the entry and the state, on nothing else.
//!
//! What an answer means: an outcome is final; [`ProposeError::NotLeader`] is
//! "certainly not appended"; everything else is "unknown", and only a repeat
//! with the same request ids is safe.

#![forbid(unsafe_code)]

mod blocking;
mod bootstrap;
mod clock;
mod codec;
mod compaction;
mod config;
mod consensus;
mod error;
mod failover;
mod identity;
#[cfg(test)]
mod leader_restore;
mod leadership;
pub mod log_store;
mod membership;
mod network;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod snapshot;
pub mod state_machine;
mod status;
pub mod transport;
pub mod types;

pub use clock::Clock;
pub use config::Config;
pub use consensus::{Consensus, Proposed, SnapshotError};
pub use error::{ContentError, Failure, MembershipError, ProposeError, ReadError, StartError};
pub use identity::ClusterId;
pub use leadership::{Epoch, LeaderInfo, Leadership};
pub use log_store::Appended;
pub use quorate_storage::{Coverage, Journal, JournalStats, panic_is_caught};
pub use state_machine::{Answering, Observed, Observer, Payload};
pub use status::{MemberStatus, Role, Status};
pub use transport::Transport;
