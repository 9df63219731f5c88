//! A whole cluster in one thread, in time that does not pass by itself.
//!
//! The broker's own code runs here: consensus, state machine, node, native gateway and client library, with
//! real HTTP/2 and protobuf between them. What is simulated is what surrounds it: the [network](net), the disks,
//! the [clocks and processors](machine). Everything that happens follows from a schedule and its seed, and
//! happens again from them, to the byte; a minute of it takes about a second.
//!
//! # What makes it deterministic
//!
//! * One process per run, that starts itself again with the seed in its environment, so that what is
//!   process-wide begins equal; entropy and clocks of the C library are those of [`quorate_disk_shim::simulation`].
//! * One thread. Machines run one after the other, in an order drawn anew for each tick, and speak to each
//!   other through the network only.
//! * No real input, no blocking threads: storage does its work in steps that the simulator makes.
//!
//! The [trace] proves it: two runs of a seed have one hash.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod fleet;
pub mod machine;
pub mod net;
pub mod program;
pub mod rng;
pub mod run;
mod settings;
pub mod trace;
pub mod watch;
pub mod world;
