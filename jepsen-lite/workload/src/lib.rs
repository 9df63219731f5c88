//! What clients do to a cluster, and what is done to the cluster meanwhile.
//!
//! A *workload* is some people with queues: publishers, workers, operators, who behave well or not, by the
//! seed. All that they ask for and are told goes into the history of `jepsen-lite-core`. The *nemesis* carries
//! out a schedule of faults on whatever implements [`Cluster`](jepsen_lite_core::cluster::Cluster).
//!
//! All of it runs unchanged in front of real processes and in the simulator. So it knows no time but Tokio's,
//! starts nothing but Tokio's tasks, draws from the seed alone, waits in an order that does not depend on
//! chance, and gets its connections from whoever runs it ([`access`]).
//!
//! | module | what it is |
//! | --- | --- |
//! | [`load`] | a workload at work: from its declarations to the last message |
//! | [`workload`] | what a workload is; [`by_name`] makes one |
//! | [`queue`] | one queue, used as many users do at once, and misused a little |
//! | [`crew`] | everybody who takes part, and what can be done to them: killed, paused, made to nack |
//! | [`protocol`] | how the queue workload talks to the broker; the place for other protocols |
//! | [`native`] | the native API, and how its types become those of the history |
//! | [`recorder`] | writes the history |
//! | [`operator`] | what an operator does to queues, written down |
//! | [`nemesis`] | carries out a schedule of faults |
//! | [`watch`] | what nodes say of themselves |
//! | [`trial`] | the whole course of a run |
//! | [`scenarios`] | the schedules that have a name |
//! | [`generate`] | a schedule out of a seed |
//! | [`repeat`] | the command that does a run again |

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Result, bail};

pub mod access;
pub mod bulk;
pub mod chain;
pub mod crew;
pub mod dead_letter;
pub mod dedup_retry;
pub mod delay;
pub mod fan_out;
pub mod fifo;
pub mod generate;
pub mod groups;
pub mod letter;
pub mod load;
pub mod mix;
pub mod mutex;
pub mod native;
pub mod nemesis;
pub mod operator;
mod parameters;
pub mod participant;
pub mod protocol;
pub mod queue;
pub mod recorder;
pub mod repeat;
pub mod scenarios;
mod signal;
pub mod stats;
pub mod trial;
pub mod watch;
pub mod workload;

/// The names of all workloads.
pub const NAMES: [&str; 11] = [
    "queue",
    "fifo",
    "groups",
    "dedup-retry",
    "chain",
    "dead-letter",
    "delay",
    "stats",
    "mutex",
    "bulk",
    "fan-out",
];

/// The workload of this name, with the parameters of a schedule.
///
/// # Errors
///
/// When there is none of that name, or a parameter is unknown to it or does not fit.
pub fn by_name(name: &str, parameters: &BTreeMap<String, u64>) -> Result<Arc<dyn workload::Workload>> {
    Ok(match name {
        "queue" => Arc::new(queue::Queue::<native::Native>::with_parameters(parameters)?),
        "fifo" => Arc::new(fifo::with_parameters(parameters)?),
        "groups" => Arc::new(groups::with_parameters(parameters)?),
        "dedup-retry" => Arc::new(dedup_retry::DedupRetry::with_parameters(parameters)?),
        "chain" => Arc::new(chain::Chain::with_parameters(parameters)?),
        "dead-letter" => Arc::new(dead_letter::DeadLetter::with_parameters(parameters)?),
        "delay" => Arc::new(delay::Delay::with_parameters(parameters)?),
        "stats" => Arc::new(stats::Stats::with_parameters(parameters)?),
        "mutex" => Arc::new(mutex::Mutex::with_parameters(parameters)?),
        "bulk" => Arc::new(bulk::with_parameters(parameters)?),
        "fan-out" => Arc::new(fan_out::FanOut::with_parameters(parameters)?),
        _ => bail!("there is no workload {name}; there are {}", NAMES.join(", ")),
    })
}
