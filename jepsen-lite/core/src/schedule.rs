//! Which faults, when, on which nodes.
//!
//! A schedule is explicit: the runner carries out its steps and draws nothing itself but what a step leaves
//! open by name (which follower, which pages), and that from the seed. It is a JSON file that can be kept,
//! edited, shortened, and carried out on any layer that knows its faults.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A run, written down before it begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// For people; the name of its file without `.json`.
    pub name: String,
    /// What it is meant to show, in one or two sentences.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// Of all random choices that are left.
    pub seed: u64,
    /// Voters at the start, 1 to 9.
    pub nodes: usize,
    /// How long the load runs, in milliseconds. Faults that are not undone by then are.
    pub load_ms: u64,
    /// How long the cluster may take to be whole again after that, in milliseconds.
    pub heal_ms: u64,
    /// What the clients do.
    pub workload: Workload,
    /// Settings of all nodes, as on the command line, without the dashes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// By time. Steps at the same time are carried out in this order.
    pub steps: Vec<Step>,
    /// A run with less than this proves nothing: it is unknown, not valid.
    #[serde(default)]
    pub evidence: Evidence,
}

/// A workload by name, and its parameters. What they mean is told where the workload is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// `queue`, `fifo`, `groups`, …
    pub name: String,
    /// Whatever differs from its defaults.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, u64>,
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// When it begins, in milliseconds since the load began.
    pub at_ms: u64,
    /// What is done.
    pub fault: Fault,
    /// To whom. Resolved when the step begins.
    pub target: Target,
    /// When it is undone; `None` = when all is healed. Faults that are over at once are not undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo_at_ms: Option<u64>,
}

/// Who is meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// The node that leads.
    Leader,
    /// A node that follows, drawn by the seed.
    Follower,
    /// All nodes that follow: whoever leads is left alone.
    Followers,
    /// The follower whose log reaches furthest.
    Newest,
    /// Drawn by the seed: as many as may be missing.
    Minority,
    /// A minority that holds the leader.
    MinorityWithLeader,
    /// Drawn by the seed: one more than half.
    Majority,
    /// Every node.
    All,
    /// This node, counted from 0 in the order of their start.
    Node(usize),
    /// These nodes.
    Nodes(Vec<usize>),
    /// Those of the step before.
    Same,
    /// Those of the step before, each replaced by the node after it: so that several steps go around.
    Next,
}

/// What can be done to nodes. Faults that last are undone; the others are over at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // the fields are told of with their fault
pub enum Fault {
    /// The process is killed at once. Undo: started again.
    Kill,
    /// The process is asked to stop. Undo: started again.
    Stop,
    /// The machine loses power: the process is killed, and of what was not synced a part is gone, by the
    /// seed. Undo: started again. Several targets lose it in one moment.
    PowerLoss,
    /// Stopped and started again at once, one target after the other, each when the one before is ready.
    Restart,
    /// The process stands still, and does not know. Undo: it goes on.
    Pause,
    /// It gets little of the processor: as many per cent of one. Undo: all.
    SlowCpu { percent: u8 },
    /// Targets and the others do not reach each other on the peer port. Clients reach all. Undo: connected.
    Isolate,
    /// Nothing gets from the other nodes to the targets, but what the targets send arrives. Undo: connected.
    Deaf,
    /// Nothing gets from the targets to the other nodes, but what those send arrives. Undo: connected.
    Mute,
    /// No two of the targets reach each other. Undo: connected.
    Shatter,
    /// Each target reaches the node before and after it only. Undo: connected.
    Ring,
    /// Clients do not reach the targets. Undo: they do.
    CutClients,
    /// All connections of the targets break, and can be made again.
    Reset,
    /// Everything between targets and others takes this much longer, up to twice. Undo: not.
    Delay { ms: u64 },
    /// Between targets and others passes no more than this. Undo: as much as can.
    Throttle { bytes_per_second: u64 },
    /// So many per cent of the frames between targets and others are lost, which breaks the connection where
    /// the transport promises delivery. Undo: none.
    Lossy { percent: u8 },
    /// The wall clock jumps. Undo: back.
    ClockJump { ms: i64 },
    /// All clocks of the target run faster by so many parts in a thousand, or slower. Undo: as before.
    ClockDrift { per_mille: i32 },
    /// The wall clock jumps to and fro by this much, several times a second. Undo: it is right.
    ClockStrobe { ms: i64 },
    /// The disk is full. Undo: it is not, and the node is started again if it had stopped.
    DiskFull,
    /// Writes fail. Undo as with `DiskFull`.
    WriteError,
    /// The next syncs fail, so many; what they should have made durable never is. Undo as with `DiskFull`.
    SyncError { count: u64 },
    /// Every sync takes this much longer. Undo: not.
    SlowSync { ms: u64 },
    /// While the node is down, so many bits of its data files are flipped. It was killed before. Undo: repaired
    /// by the operator: emptied and added as a new node, if it did not start.
    BitFlip { bits: u64 },
    /// While the node is down, its log is cut shorter. Undo as with `BitFlip`.
    Truncate { bytes: u64 },
    /// While the node is down, its data is replaced by a copy that was made earlier in this run. Undo as with
    /// `BitFlip`.
    Rollback,
    /// Killed and emptied. In the simulator it is there again at once, at its old address, where nobody may take it for
    /// the node that it was. Undo: started again, it is a new node, which is added in place of the old one.
    Wipe,
    /// One node more is started and added for each target. Undo: removed.
    Grow,
    /// The targets are removed from the cluster. Undo: emptied and added.
    Shrink,
    /// Leadership goes to the target.
    Transfer,
    /// A snapshot is written, and the log shortened.
    Snapshot,
    /// Stopped, and started with the other build, one after the other. Undo: with the first build.
    Upgrade,
    /// The workers that hold leases are killed with all that they have in hand.
    KillWorkers,
    /// The workers stand still for longer than their leases. Undo: they go on.
    PauseWorkers,
    /// Workers nack everything. Undo: as before.
    NackStorm,
}

impl Fault {
    /// One of each kind, with numbers that stand for any.
    #[must_use]
    pub fn of_each_kind() -> Vec<Self> {
        vec![
            Self::Kill,
            Self::Stop,
            Self::PowerLoss,
            Self::Restart,
            Self::Pause,
            Self::SlowCpu { percent: 10 },
            Self::Isolate,
            Self::Deaf,
            Self::Mute,
            Self::Shatter,
            Self::Ring,
            Self::CutClients,
            Self::Reset,
            Self::Delay { ms: 100 },
            Self::Throttle {
                bytes_per_second: 10_000,
            },
            Self::Lossy { percent: 10 },
            Self::ClockJump { ms: 1_000 },
            Self::ClockDrift { per_mille: 100 },
            Self::ClockStrobe { ms: 200 },
            Self::DiskFull,
            Self::WriteError,
            Self::SyncError { count: 1 },
            Self::SlowSync { ms: 50 },
            Self::BitFlip { bits: 1 },
            Self::Truncate { bytes: 1_000 },
            Self::Rollback,
            Self::Wipe,
            Self::Grow,
            Self::Shrink,
            Self::Transfer,
            Self::Snapshot,
            Self::Upgrade,
            Self::KillWorkers,
            Self::PauseWorkers,
            Self::NackStorm,
        ]
    }

    /// Whether it lasts until it is undone.
    #[must_use]
    pub fn lasts(&self) -> bool {
        !matches!(
            self,
            Self::Restart | Self::Reset | Self::Transfer | Self::Snapshot | Self::KillWorkers
        )
    }

    /// Whether it is done to the load's workers, and to no node: it has no target, and is not what the next step refers to.
    #[must_use]
    pub fn is_of_workers(&self) -> bool {
        matches!(self, Self::KillWorkers | Self::PauseWorkers | Self::NackStorm)
    }

    /// Its name, as in the JSON.
    #[must_use]
    pub fn name(&self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::Object(map)) => map.keys().next().cloned().unwrap_or_default(),
            Ok(serde_json::Value::String(name)) => name,
            _ => format!("{self:?}"),
        }
    }
}

/// How much of each a run must have seen to prove anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evidence {
    /// Publishes that were confirmed.
    pub confirmed: u64,
    /// Deliveries of messages that had been delivered before.
    pub redelivered: u64,
    /// Changes of the leader.
    pub leader_changes: u64,
    /// Snapshots that a follower was sent and took.
    pub snapshots_installed: u64,
    /// Publishes that were answered with an earlier one's message.
    pub duplicates: u64,
    /// Messages that were dead-lettered.
    pub dead_lettered: u64,
    /// Settlements that were refused for a stale token.
    pub stale_tokens: u64,
    /// Most operations of unknown outcome, in per cent of all; 0 = 30.
    pub unknown_percent_max: u64,
}
