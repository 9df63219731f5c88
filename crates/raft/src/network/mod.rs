//! Raft over gRPC: one peer port per node, every request with an envelope that
//! says which cluster, which sender and which receiver it is of.
//!
//! - [`client`] has openraft's `Net*` traits and its network factory;
//! - [`server`] is the `Peer` service, which calls into openraft;
//! - [`convert`] turns messages both ways;
//! - [`pool`] keeps connections.

pub(crate) mod client;
pub(crate) mod convert;
pub(crate) mod pool;
pub(crate) mod server;
