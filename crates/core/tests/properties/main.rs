//! Random logs: what must hold of any of them.
//!
//! The cheapest layer of jepsen-lite: no node, no network, no disk, only
//! [`Broker::apply`](quorate_core::Broker::apply) and snapshots of it. A log is
//! drawn with all commands in it, and then
//!
//! - done by the broker and by a [model] of vectors without an index, which was
//!   written from `docs/semantics.md`: both must say and show the same;
//! - done [again](snapshots), in another process too, and from a snapshot at
//!   each of its entries: all must end alike;
//! - read as somebody would who knows the answers, effects and events only, and
//!   what was [promised](promises).
//!
//! What fails says first which of the invariants of jepsen-lite it is about.
//!
//! `PROPTEST_CASES` sets how many logs are tried (256); `just layer-0` tries many
//! in release. A failure prints the log that shows it, shrunk, and keeps its
//! seed beside this file.

mod journal;
mod model;
mod promises;
mod random_log;
mod side_by_side;
mod snapshots;
mod witness;
