//! Settings of a node, and the limits it keeps.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quorate_raft::{Clock, Transport};

use crate::audit::Audit;

/// Largest body of a message: 16 MiB.
pub const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Most bytes of names and values of a message's headers: 64 KiB.
pub const HEADERS_BYTES_MAX: usize = 64 * 1024;
/// Most messages that one command publishes or operates on, and settlements in one.
pub const MESSAGES_PER_REQUEST_MAX: usize = 4096;

/// Settings of one node.
#[derive(Clone, Debug)]
pub struct Config {
    /// Shown in status and logs; free text.
    pub name: String,
    /// Everything the node keeps is below this directory.
    pub data_dir: PathBuf,
    /// Where the node listens for its peers. Port 0 picks one.
    pub peer_listen: SocketAddr,
    /// `host:port` under which peers reach this node; default: where it listens.
    pub peer_advertise: Option<String>,
    /// `host:port` under which clients reach this node, as told in redirects.
    pub client_advertise: String,
    /// `host:port` of the peer listeners of all first members of the cluster.
    /// Used by a node with an empty data directory only. Empty: wait to be added.
    pub peers: Vec<String>,
    /// Dial another address than a peer advertises: `advertised -> dialled`.
    pub peer_dial: BTreeMap<String, String>,
    /// Between two heartbeats of a leader.
    pub heartbeat: Duration,
    /// Least random part of the time without a leader after which a node campaigns.
    pub election_timeout_min: Duration,
    /// Most of it; also the lease of a leader.
    pub election_timeout_max: Duration,
    /// A snapshot is taken when the log since the last one is larger than this
    /// and than the last image.
    pub snapshot_log_bytes: u64,
    /// Log kept behind a snapshot for followers that were away.
    pub log_keep_bytes: u64,
    /// Most entries of that kept log.
    pub log_keep_entries: u64,
    /// Most bytes of the journal, in which [`Broker::trace`](crate::Broker::trace)
    /// looks; the oldest goes first. 0 = no journal.
    pub journal_bytes: u64,
    /// What happened longer ago, in cluster time, goes from the journal.
    pub journal_age: Duration,
    /// Sessions of a node that is not heard of end after this long; so do those
    /// whose connection is gone and whose client has not resumed them.
    pub node_down_after: Duration,
    /// Makes the connections between nodes: TCP, but in a simulation.
    pub transport: Arc<dyn Transport>,
    /// The time as this node sees it: the machine's, but in a simulation.
    pub clock: Clock,
    /// Keeps everything on this disk of memory instead of in the data directory,
    /// without a journal.
    #[cfg(feature = "simulation")]
    pub disk: Option<quorate_raft::simulation::Disk>,
    /// Lets a leader that restarts lead on, which loses acknowledged entries: so
    /// that a simulation can show that it would notice.
    #[cfg(feature = "simulation")]
    #[doc(hidden)]
    pub restore_leader: bool,
    /// Where what this node applies is written down, for fault injection;
    /// nowhere by default.
    pub audit: Audit,
    /// Bounds of what may wait in this node.
    pub limits: Limits,
}

/// Bounds of what may wait in one node.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most bytes of requests and contents that wait for their entry to commit.
    /// Callers beyond wait, up to their deadline.
    pub proposal_bytes: usize,
    /// Most bytes of contents in one log entry; a single larger request has an
    /// entry of its own.
    pub entry_bytes: usize,
    /// Most requests in one log entry.
    pub entry_requests: usize,
    /// Most log entries handed to consensus and not yet applied.
    pub entries_in_flight: usize,
    /// For a call that brings no deadline of its own.
    pub request_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            proposal_bytes: 64 * 1024 * 1024,
            entry_bytes: 1024 * 1024,
            entry_requests: 4096,
            entries_in_flight: 4,
            request_timeout: Duration::from_secs(10),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        let raft = quorate_raft::Config::default();
        Self {
            name: String::new(),
            data_dir: PathBuf::from("quorate-data"),
            peer_listen: (Ipv4Addr::UNSPECIFIED, 7401).into(),
            peer_advertise: None,
            client_advertise: "127.0.0.1:7400".to_owned(),
            peers: Vec::new(),
            peer_dial: BTreeMap::new(),
            heartbeat: raft.heartbeat,
            election_timeout_min: raft.election_timeout_min,
            election_timeout_max: raft.election_timeout_max,
            snapshot_log_bytes: raft.snapshot_log_bytes,
            log_keep_bytes: raft.log_keep_bytes,
            log_keep_entries: raft.log_keep_entries,
            journal_bytes: raft.storage.journal_bytes,
            journal_age: raft.storage.journal_age,
            node_down_after: Duration::from_secs(10),
            transport: raft.transport,
            clock: raft.clock,
            #[cfg(feature = "simulation")]
            disk: None,
            #[cfg(feature = "simulation")]
            restore_leader: false,
            audit: Audit::default(),
            limits: Limits::default(),
        }
    }
}
