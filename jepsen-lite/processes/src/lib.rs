//! Clusters of real processes, in a world that is made to fail.
//!
//! The shipped binary runs as it ships; what is bent is what surrounds it, and none of it needs root. Between
//! every two nodes, and between clients and nodes, stand [proxies](proxy) that hold back, slow down or break
//! what passes them, in each direction by itself. Under each node lies a [disk](disks) that forgets what was
//! not synced, fails, or fills up. Its [clocks](wrong_clock) go wrong while it runs. Signals freeze it, slow it
//! down and kill it.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`machines`] | layer b: nodes as processes on this machine, as a cluster that every fault can be done to |
//! | [`network`] | all proxies of a cluster, and who reaches whom |
//! | [`proxy`] | a listener in front of another |
//! | [`link`] | one direction between two places |
//! | [`disks`] | disks that forget, fail or fill up |
//! | [`damage`] | harm to the files of a node that does not run |
//! | [`wrong_clock`] | clocks that are wrong |
//! | [`process`] | what the kernel says of a process |
//! | [`samples`] | what nodes and processes say of themselves during a run |
//! | [`doctor`] | what this machine can do, and why not |
//! | [`containers`] | layer c: the shipped image under an engine, as a cluster |

#![forbid(unsafe_code)]

pub mod containers;
pub mod damage;
pub mod disks;
pub mod doctor;
pub mod link;
pub mod machines;
pub mod network;
pub mod process;
pub mod proxy;
pub mod samples;
pub mod wrong_clock;
