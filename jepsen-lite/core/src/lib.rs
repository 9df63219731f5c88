//! What every layer of jepsen-lite has in common: data, and decisions about data.
//!
//! A *run* puts a cluster under a workload while a *schedule* of faults is carried out. What the clients asked
//! for and were told is the *history*; what the replicas say they applied is the *audit log*; what the faults
//! did is the *effects*. The *checkers* decide from these, and from nothing else, which *invariants* held. So
//! a stored run can be judged again without the cluster, by a better checker, or by somebody who does not
//! trust this one.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`schedule`] | which faults, when, on which nodes: explicit, so that it can be kept, edited, shortened |
//! | [`cluster`] | what a layer must be able to do to a cluster, for a schedule to be carried out on it |
//! | [`history`] | what the clients asked for and were told |
//! | [`audit`] | what the replicas say that they applied |
//! | [`view`] | what the broker shows of itself |
//! | [`ids`] | names that the broker gives |
//! | [`body`] | bodies that tell who they are |
//! | [`check`] | the promises, each decided from a history |
//! | [`resolve`] | what clients were not told, told by the log |
//! | [`run`] | what is stored of a run |
//! | [`edn`] | the same for the checkers of Jepsen |
//! | [`model`] | a broker told naively, which the audit log is replayed on |
//! | [`judge`] | decides what a stored run came to |
//! | [`fuzz`] | faults of a broker, made up: does the judge see them? |
//! | [`shrink`] | makes a schedule that fails smaller |
//! | [`verdict`] | what a run came to: per invariant, with evidence |
//!
//! Nothing here starts a task, reads a clock or opens a connection.

#![forbid(unsafe_code)]

pub mod audit;
pub mod body;
pub mod check;
pub mod cluster;
pub mod edn;
pub mod fuzz;
pub mod history;
pub mod ids;
pub mod judge;
mod lines;
pub mod model;
pub mod resolve;
pub mod run;
pub mod schedule;
pub mod shrink;
pub mod verdict;
pub mod view;
