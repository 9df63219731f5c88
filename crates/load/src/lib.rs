//! Load for a cluster, and the proof that nothing of it was lost.
//!
//! A [`Workload`] publishes numbered messages and consumes them again. Whatever
//! it measures, it also checks: the [`Ledger`] knows every message by its number
//! and answers, at the end, whether each confirmed one came out. `quorate bench`
//! is [`mod@bench`]; `quorate demo` runs a workload while it kills a node.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`workload`] | publishers and consumers, and their live counts |
//! | [`ledger`] | what is known of each message, and the verdict |
//! | `stamp` | the number and the time inside a body |
//! | `procstat` | CPU, memory and written bytes of the nodes |
//! | [`mod@bench`] | the command: phases and options |
//! | `report` | its table and its JSON |
//! | `series` | what each second was like |
//! | `plot` | that as a picture |
//! | [`progress`] | one live line on a terminal, plain lines elsewhere |
//! | [`size`] | sizes as people write them |
//!
//! It knows a cluster as any client does, by its endpoints; starting one is for
//! the caller.

#![allow(clippy::print_stdout, reason = "the report goes to standard output")]

pub mod bench;
pub mod ledger;
mod plot;
mod procstat;
pub mod progress;
mod report;
mod series;
pub mod size;
mod stamp;
pub mod workload;

pub use ledger::{Ledger, Verdict};
pub use size::Size;
pub use workload::{Shape, Workload};
