//! Nodes of one process on loopback, with real stores and real connections.
//!
//! Run with `RUST_LOG=quorate_raft=debug,openraft=info` to see what they say.

mod cluster;
mod membership;
mod peers;
mod replication;
mod suite;
