//! What a layer must be able to do to a cluster, for a schedule to be carried out on it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::schedule::Fault;

/// What became of one step of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effect {
    /// When it began, in milliseconds since the load began.
    pub from_ms: u64,
    /// When it was undone, or over.
    pub until_ms: Option<u64>,
    /// What was done.
    pub fault: Fault,
    /// To which nodes, counted from 0.
    pub nodes: Vec<usize>,
    /// Whether it was.
    pub state: Done,
    /// What it did, counted: bytes held back, pages lost, faults struck, clients cut off. All zero = the fault
    /// had no effect, and the run proves nothing about it.
    pub counters: BTreeMap<String, u64>,
}

/// Whether a step was carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Done {
    /// It was.
    Yes,
    /// It was not: why. Unsafe with this target, or unknown to this layer.
    Skipped(String),
    /// Nobody knows: why.
    Unknown(String),
}

/// A cluster that faults can be done to. Nodes are counted from 0, in the order in which they were started.
#[allow(async_fn_in_trait)] // the simulator's futures do not leave their thread
pub trait Cluster {
    /// How many nodes there are, running or not.
    fn node_count(&self) -> usize;

    /// Nodes that run, by what the layer itself knows.
    fn running(&self) -> Vec<usize>;

    /// The node that leads, by its own word and the highest term; `None` if none says so.
    async fn leader(&mut self) -> Option<usize>;

    /// The running node, of these, whose log reaches furthest.
    async fn newest(&mut self, of: &[usize]) -> Option<usize>;

    /// Does a fault to nodes. The counters are those that are known at once.
    ///
    /// # Errors
    ///
    /// When the harness itself failed; a fault that cannot be done here is [`Done::Skipped`].
    async fn inflict(
        &mut self,
        fault: &Fault,
        nodes: &[usize],
        seed: u64,
    ) -> anyhow::Result<(Done, BTreeMap<String, u64>)>;

    /// Undoes it, and tells all its counters.
    ///
    /// # Errors
    ///
    /// When the harness itself failed.
    async fn undo(&mut self, fault: &Fault, nodes: &[usize]) -> anyhow::Result<BTreeMap<String, u64>>;

    /// Undoes whatever is left: goes on, connects, sets clocks, mends disks, starts nodes, restores the voters.
    /// Again is fine.
    ///
    /// # Errors
    ///
    /// When the harness itself failed.
    async fn heal(&mut self) -> anyhow::Result<()>;
}
