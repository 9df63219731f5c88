//! What a node is told: where it listens, whom it knows, and how patient it is.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quorate_mutants::mutant;

use crate::clock::Clock;
use crate::error::StartError;
use crate::transport::{Tcp, Transport};

/// Settings of one node's consensus layer.
#[derive(Clone, Debug)]
pub struct Config {
    /// Holds everything this node keeps. An empty one makes a new node.
    pub data_dir: PathBuf,
    /// The peer listener; port 0 picks one.
    pub listen: SocketAddr,
    /// `host:port` under which other nodes reach the peer listener. None = the
    /// bound address, which must then be a real one (not 0.0.0.0).
    pub advertise_peer: Option<String>,
    /// `host:port` that clients of this node use; told to the whole cluster.
    pub client_address: String,
    /// For people.
    pub name: String,
    /// `host:port` of the peer listeners of all first members, this node's own
    /// included or not. Only looked at until the node belongs to a cluster.
    /// Empty = wait to be added to a cluster that exists.
    pub peers: Vec<String>,
    /// Dials another address than the known one, by node id (decimal) or by
    /// peer address: for address translation, and for tests that put a faulty
    /// proxy between two nodes.
    pub peer_dial: BTreeMap<String, String>,
    /// Between two heartbeats of a leader. Must exceed a round trip plus a slow
    /// flush.
    pub heartbeat: Duration,
    /// Lower end of the random part of the election timeout.
    pub election_timeout_min: Duration,
    /// Upper end of the random part, and the lease of a leader.
    ///
    /// A follower stands for election when it has heard nothing for this long
    /// plus a random time between the two; if the leader's port refuses
    /// connections, as soon as this alone has passed.
    pub election_timeout_max: Duration,
    /// An append stream with unanswered requests and no answer for this long
    /// is given up and opened again.
    pub stream_stall: Duration,
    /// A snapshot transfer without progress for this long starts again.
    pub snapshot_stall: Duration,
    /// Most that establishing a connection may take.
    pub connect: Duration,
    /// A snapshot is due when the log since the last has more bytes than this
    /// and than the last image.
    pub snapshot_log_bytes: u64,
    /// Bytes of log that a snapshot covers and that are kept nevertheless, so
    /// that a briefly absent follower needs no snapshot.
    pub log_keep_bytes: u64,
    /// Most entries of that kept log.
    pub log_keep_entries: u64,
    /// Passed on to storage.
    pub storage: quorate_storage::Options,
    /// Makes the connections between nodes. TCP, but for tests.
    pub transport: Arc<dyn Transport>,
    /// The time as this node sees it. The machine's, but for tests.
    pub clock: Clock,
    /// Lets a leader that restarts lead on without an election, which loses acknowledged entries: so that a
    /// simulation can show that it would notice.
    #[cfg(feature = "simulation")]
    #[doc(hidden)]
    pub restore_leader: bool,
}

impl Default for Config {
    /// A node in `quorate-data` that listens on a free loopback port and waits
    /// to be added. With these timings a cluster is without a leader for about
    /// half a second when the leader's process is killed, and for about a second
    /// when its machine vanishes. Shorter heartbeats cost an idle cluster CPU:
    /// openraft's clock ticks five times in each.
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("quorate-data"),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise_peer: None,
            client_address: String::new(),
            name: String::new(),
            peers: Vec::new(),
            peer_dial: BTreeMap::new(),
            heartbeat: Duration::from_millis(125),
            election_timeout_min: Duration::from_millis(250),
            election_timeout_max: Duration::from_millis(400),
            stream_stall: Duration::from_millis(1_500),
            snapshot_stall: Duration::from_secs(30),
            connect: Duration::from_millis(500),
            snapshot_log_bytes: 64 << 20,
            log_keep_bytes: 64 << 20,
            log_keep_entries: 200_000,
            storage: quorate_storage::Options::default(),
            transport: Arc::new(Tcp),
            clock: Clock::system(),
            #[cfg(feature = "simulation")]
            restore_leader: false,
        }
    }
}

/// Between two pings of an idle connection between nodes. Calls have deadlines
/// of their own: this only clears away connections whose other end is gone.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(3);
/// Most bytes of entries in one append frame, unless one entry alone is larger.
pub(crate) const APPEND_BYTES_MAX: usize = 1 << 20;
/// Most entries in one append frame.
pub(crate) const APPEND_ENTRIES_MAX: u64 = 256;
/// Most bytes of one message on the peer port.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// openraft's settings. Every value that data safety hangs on is asserted by a
/// test below.
pub(crate) fn raft_config(config: &Config) -> Result<Arc<openraft::Config>, StartError> {
    #[cfg(feature = "simulation")]
    let restore_leader = config.restore_leader;
    #[cfg(not(feature = "simulation"))]
    let restore_leader = false;
    let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    openraft::Config {
        cluster_name: "quorate".to_owned(),
        heartbeat_interval: ms(config.heartbeat),
        heartbeat_min_interval: None,
        election_timeout_min: ms(config.election_timeout_min),
        election_timeout_max: ms(config.election_timeout_max),
        // A restored leader may give a log id a second time: an acknowledged
        // entry would be lost. A restarted leader stands for election.
        enable_leader_restore: Some(restore_leader || mutant!("leader-restore")),
        // A follower that lost log entries is not the node it was.
        allow_log_reversion: None,
        enable_pre_vote: Some(true),
        quorum_loss_probe_interval: Some((2 * ms(config.election_timeout_max)).max(1_000)),
        // Ours, by bytes: see `compaction`.
        snapshot_policy: openraft::SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        purge_batch_size: 1,
        replication_lag_threshold: 1_000,
        max_payload_entries: APPEND_ENTRIES_MAX,
        install_snapshot_timeout: ms(config.snapshot_stall),
        backoff: "50ms 100ms 200ms ...500ms".to_owned(),
        api_channel_size: Some(4_096),
        ..openraft::Config::default()
    }
    .validate()
    .map(Arc::new)
    .map_err(|error| StartError::Config(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_that_keep_data_safe() {
        let raft = raft_config(&Config::default()).unwrap();
        assert_eq!(raft.enable_leader_restore, Some(false));
        assert_eq!(raft.allow_log_reversion, None);
        assert_eq!(raft.enable_pre_vote, Some(true));
        assert!(raft.enable_tick && raft.enable_heartbeat && raft.enable_elect);
        assert_eq!(raft.snapshot_policy, openraft::SnapshotPolicy::Never);
    }
}
