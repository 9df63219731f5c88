//! Generated messages and services, and nothing else.
//!
//! [`v1`] is the public API of a cluster (`proto/quorate/v1`); its comments are
//! the reference. [`internal`] is spoken between nodes of one cluster and on
//! their disks, and may change with any version.

#![allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]

/// The public API, `quorate.v1`.
pub mod v1 {
    tonic::include_proto!("quorate.v1");

    /// The descriptor set of the public API, for gRPC reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/quorate_v1.bin"));

    /// The type URL under which an [`ErrorDetail`] stands in the status details.
    pub const ERROR_DETAIL_TYPE_URL: &str = "type.googleapis.com/quorate.v1.ErrorDetail";
}

/// Between nodes, `quorate.internal.v1`.
pub mod internal {
    tonic::include_proto!("quorate.internal.v1");
}
