//! A quicker election when the leader is plainly dead.
//!
//! By itself a follower waits for the lease and a random time on top. But when
//! the leader's process dies, the kernel closes its connections at once and
//! refuses new ones. So: if an append stream ends and no heartbeat follows, this
//! node dials the leader, and if that is refused it asks its peers for a
//! pre-vote as soon as the lease has run out. A wrong guess costs a pre-vote round that everybody declines; a
//! frozen or cut-off leader is still found by the timeout.

use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver as _;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::config::Config;
use crate::network::pool::Pool;
use crate::transport::Transport;
use crate::types::Raft;

/// When this node last heard from a leader, and whether its stream ended.
pub(crate) struct Contact {
    last: Mutex<Option<(u64, Instant)>>,
    ended: Mutex<Option<(u64, Instant)>>,
    wake: Notify,
}

impl Contact {
    pub(crate) fn new() -> Self {
        Self {
            last: Mutex::default(),
            ended: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// A request of a leader arrived.
    pub(crate) fn heard(&self, leader: u64) {
        *self.last.lock() = Some((leader, Instant::now()));
    }

    /// An append stream of a leader ended or broke.
    pub(crate) fn ended(&self, leader: u64) {
        *self.ended.lock() = Some((leader, Instant::now()));
        self.wake.notify_one();
    }

    /// Whether no leader has been heard of for that long.
    pub(crate) fn silent_for(&self, span: Duration) -> bool {
        self.last.lock().is_none_or(|(_, at)| at.elapsed() >= span)
    }

    fn heard_at(&self, leader: u64) -> Option<Instant> {
        self.last
            .lock()
            .filter(|(who, _)| *who == leader)
            .map(|(_, at)| at)
    }
}

/// Most rounds for one dead leader, before the ordinary timeout takes over.
const ROUNDS: u32 = 8;

/// Watches for ended streams until the node stops.
pub(crate) async fn run(raft: Raft, contact: Arc<Contact>, pool: Pool, config: Config) {
    loop {
        contact.wake.notified().await;
        let Some((leader, ended)) = contact.ended.lock().take() else {
            continue;
        };
        // Streams also end in the course of things: then heartbeats go on.
        tokio::time::sleep(config.heartbeat * 3 / 2).await;
        if contact.heard_at(leader).is_some_and(|at| at > ended) {
            continue;
        }
        campaign(&raft, &contact, &pool, &config, leader).await;
    }
}

async fn campaign(raft: &Raft, contact: &Contact, pool: &Pool, config: &Config, leader: u64) {
    for round in 0..ROUNDS {
        let address = {
            let metrics = raft.server_metrics();
            let metrics = metrics.borrow_watched();
            if metrics.current_leader != Some(leader) {
                return;
            }
            metrics
                .membership_config
                .membership()
                .get_node(&leader)
                .map(|node| node.peer_address.clone())
        };
        let Some(address) = address else { return };
        let address = pool.dial(Some(leader), &address);
        if !is_refused(&*config.transport, &address, config.heartbeat).await {
            return;
        }
        if round == 0 {
            tracing::info!(
                leader,
                "the leader's port refuses connections: standing for election early"
            );
        }
        // Another stream of a new leader, or of this one come back, moves this on.
        let heard = contact.heard_at(leader).unwrap_or_else(Instant::now);
        let lease_end = heard + config.election_timeout_max + Duration::from_millis(2);
        tokio::time::sleep_until(lease_end).await;
        if raft.trigger().elect(true).await.is_err() {
            return;
        }
        // Time for two round trips and the flushes between, apart for each node.
        let jitter = rand::random_range(0..=config.heartbeat.as_millis() as u64);
        tokio::time::sleep(config.heartbeat + Duration::from_millis(jitter)).await;
    }
}

/// True only if somebody answered that nobody listens there.
async fn is_refused(transport: &dyn Transport, address: &str, limit: Duration) -> bool {
    match tokio::time::timeout(limit, transport.connect(address)).await {
        Ok(Err(error)) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        Ok(Ok(_)) | Err(_) => false,
    }
}
