//! The broker as a pure function.
#![forbid(unsafe_code)]

mod assign;
pub mod batch;
mod broker;
pub mod command;
mod deadlines;
pub mod effect;
mod hash;
pub mod ids;
pub mod invariants;
mod lifecycle;
pub mod limits;
pub mod outcome;
mod queue;
mod queues;
mod requests;
mod session;
mod settle;
pub mod snapshot;
mod view;

pub use broker::{Applied, Broker, Meta};
pub use snapshot::{RestoreError, Snapshot};
pub use view::{ConsumerView, QueueCounts, QueueView, SessionView, Totals};
