//! What a page is made of.
//!
//! Plain data in the words of the page: one clock (milliseconds since the load began), clients by name, nodes by
//! number, messages by id. Whoever has a run, stored or just ended, lays it out like this; nothing in here knows
//! how a history is written down.

use std::collections::BTreeMap;

use jepsen_lite_core::cluster::Effect;
use jepsen_lite_core::schedule::Schedule;
use jepsen_lite_core::verdict::Results;

/// A run, told for a page.
#[derive(Clone, Debug)]
pub struct Run {
    /// What was to be done.
    pub schedule: Schedule,
    /// What was done.
    pub effects: Vec<Effect>,
    /// What it came to.
    pub results: Results,
    /// What clients asked for, in any order.
    pub calls: Vec<Call>,
    /// What happened to each message, in order.
    pub lives: BTreeMap<String, Vec<Moment>>,
    /// What nodes said of themselves, in any order.
    pub statuses: Vec<Status>,
    /// What the harness was about, by time.
    pub phases: Vec<Phase>,
}

/// What the harness was about, until the next phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// In a few words: `load`, `faults are undone`.
    pub name: String,
    /// Since when, in milliseconds since the load began.
    pub from_ms: f64,
}

/// One request of a client, and its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Who asked: `publisher 2`, `worker 1`.
    pub client: String,
    /// What for.
    pub act: Act,
    /// When it was asked, in milliseconds since the load began.
    pub begin_ms: f64,
    /// When the answer came; `None` = there never was one.
    pub end_ms: Option<f64>,
    /// What the answer was.
    pub answer: Answer,
    /// The message it was about, or became.
    pub message: Option<String>,
    /// Where to or from.
    pub queue: String,
}

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Act {
    /// A message taken in.
    Publish,
    /// A message to work on.
    Receive,
    /// A lease ended, or made longer.
    Settle,
    /// Anything else: statistics, administration.
    Other,
}

/// What a client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// It was done.
    Done,
    /// It was certainly not done.
    Refused,
    /// It may have been done, or not.
    Unknown,
}

/// Something that happened to a message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moment {
    /// What, as the journal calls it: `published`, `leased`, `acked`, `dead-lettered`, …; or a call that only its
    /// client tells of: `publish`, `received`, `ack`, …
    pub what: String,
    /// When, in milliseconds since the load began.
    pub at_ms: Option<f64>,
    /// The moment is derived from its place in the log: no client tells of it.
    pub estimated: bool,
    /// Until when it took, if it was a call that was answered.
    pub until_ms: Option<f64>,
    /// The client that asked for it, or holds the lease.
    pub who: Option<String>,
    /// The queue in which it happened; the exchange, for a publish to one.
    pub queue: String,
    /// The node that answered, counted from 0.
    pub node: Option<usize>,
    /// The index of its log entry.
    pub log_index: Option<u64>,
    /// The cluster time of its log entry, in milliseconds.
    pub cluster_ms: Option<u64>,
    /// Which delivery of the message it belongs to, from 1.
    pub attempt: Option<u32>,
    /// The token of the lease.
    pub token: Option<String>,
    /// When the lease ends, in cluster time, in milliseconds.
    pub leased_until_ms: Option<u64>,
    /// What was answered or decided.
    pub note: String,
    /// It is out of the ordinary: refused, without an answer, repeated.
    pub odd: bool,
}

/// What one node said of itself at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// When, in milliseconds since the load began.
    pub at_ms: u64,
    /// Which, counted from 0.
    pub node: usize,
    /// What it is.
    pub role: Role,
    /// In which term.
    pub term: u64,
}

/// What a node is, by its own word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Decides what is written.
    Leader,
    /// Writes what the leader decided.
    Follower,
    /// Wants to lead.
    Candidate,
    /// Follows without a vote.
    Learner,
    /// Belongs to no cluster, or no longer.
    Outside,
    /// Gave no answer.
    Silent,
}

impl Role {
    /// By the word of the protocol; what it does not know is [`Role::Outside`].
    #[must_use]
    pub fn named(name: &str) -> Self {
        match name {
            "leader" => Self::Leader,
            "follower" => Self::Follower,
            "candidate" => Self::Candidate,
            "learner" => Self::Learner,
            "" => Self::Silent,
            _ => Self::Outside,
        }
    }
}
