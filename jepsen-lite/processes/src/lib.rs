//! Clusters of real processes, in a world that is made to fail.
//!
//! The shipped binary runs as it ships; what is bent is what surrounds it, and none of it needs root. Between
//! every two nodes, and between clients and nodes, stand [proxies](proxy) that hold back, slow down or break
//! what passes them, in each direction by itself. Under each node lies a [disk](disks) that forgets what was
//! not synced, fails, or fills up. Its wall [clock](wrong_clock) can be wrong.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`network`] | all proxies of a cluster, and who reaches whom |
//! | [`proxy`] | a listener in front of another |
//! | [`link`] | one direction between two places |
//! | [`disks`] | disks that forget, fail or fill up |
//! | [`wrong_clock`] | a clock that is wrong |
//! | [`containers`] | layer c: the shipped image under an engine, as a cluster |

#![forbid(unsafe_code)]

pub mod containers;
pub mod disks;
pub mod link;
pub mod network;
pub mod proxy;
pub mod wrong_clock;
