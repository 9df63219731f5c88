//! What the tests share: nodes that can be started, killed, wiped and asked.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_core::command::{Command, NewMessage, Publish, Request, SettingsPatch};
use quorate_core::ids::{NodeId, QueueName, Timestamp};
use quorate_core::{Broker, batch};
use quorate_raft::{Config, Consensus, Journal, Observed, Observer, ProposeError, Proposed, StartError};
use tonic::service::Routes;

/// Long enough for a loaded machine; nothing waits that long when all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Counts what it is told, and insists on the order of it.
#[derive(Default)]
pub(crate) struct Counter {
    pub(crate) applied: AtomicU64,
    pub(crate) restored: AtomicU64,
    /// What was last to be kept.
    pub(crate) kept: AtomicU64,
    opened: AtomicBool,
    last: AtomicU64,
}

impl Observer for Counter {
    fn opened(&self, _: NodeId, _: Journal) {
        assert!(!self.opened.swap(true, Ordering::SeqCst));
    }

    fn applied(&self, entry: Observed<'_>, state: &Broker) {
        assert!(self.opened.load(Ordering::SeqCst));
        assert_eq!(state.index(), entry.index);
        let before = self.last.swap(entry.index, Ordering::SeqCst);
        assert!(before < entry.index, "entry {} after entry {before}", entry.index);
        self.applied.fetch_add(1, Ordering::SeqCst);
    }

    fn restored(&self, index: u64, _: u64, state: &Broker) {
        assert!(self.opened.load(Ordering::SeqCst));
        assert!(state.index() <= index);
        self.last.store(index, Ordering::SeqCst);
        self.restored.fetch_add(1, Ordering::SeqCst);
    }

    fn keep(&self, index: u64) {
        self.kept.fetch_max(index, Ordering::SeqCst);
    }
}

/// A place for a node: a directory and an address, with or without one running.
pub(crate) struct Place {
    _dir: tempfile::TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) config: Config,
    pub(crate) counter: Arc<Counter>,
    pub(crate) node: Option<Consensus>,
}

impl Place {
    pub(crate) fn new(address: SocketAddr, peers: &[SocketAddr]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = Config {
            data_dir: dir.path().join("data"),
            listen: address,
            client_address: format!("client-of-{}", address.port()),
            name: format!("n{}", address.port()),
            peers: peers.iter().map(ToString::to_string).collect(),
            ..Config::default()
        };
        Self {
            _dir: dir,
            address,
            config,
            counter: Arc::default(),
            node: None,
        }
    }

    pub(crate) async fn start(&mut self) {
        std::fs::create_dir_all(&self.config.data_dir).unwrap();
        self.counter = Arc::default();
        let deadline = Instant::now() + PATIENCE;
        let node = loop {
            let observer = Arc::clone(&self.counter) as Arc<dyn Observer>;
            match Consensus::start(self.config.clone(), observer, Routes::default()).await {
                Ok(node) => break node,
                // Threads of the life before may still hold the directory or the port.
                Err(StartError::Open(_) | StartError::Listen { .. }) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => panic!("start {}: {error}", self.address),
            }
        };
        self.node = Some(node);
    }

    pub(crate) async fn kill(&mut self) {
        self.node.take().expect("it runs").abandon().await;
    }

    pub(crate) fn wipe(&self) {
        let data: PathBuf = self.config.data_dir.clone();
        std::fs::remove_dir_all(data).unwrap();
    }

    pub(crate) fn node(&self) -> &Consensus {
        self.node.as_ref().expect("it runs")
    }
}

pub(crate) struct Cluster {
    pub(crate) places: Vec<Place>,
}

impl Cluster {
    /// Places for a cluster; nothing runs yet.
    pub(crate) fn new(count: usize) -> Self {
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init();
        let addresses: Vec<_> = (0..count).map(|_| free_address()).collect();
        Self {
            places: addresses
                .iter()
                .map(|address| Place::new(*address, &addresses))
                .collect(),
        }
    }

    /// The same, running and led.
    pub(crate) async fn running(count: usize, set: impl Fn(&mut Config)) -> Self {
        let mut cluster = Self::new(count);
        for place in &mut cluster.places {
            set(&mut place.config);
            place.start().await;
        }
        cluster.leader().await;
        cluster
    }

    pub(crate) fn running_nodes(&self) -> impl Iterator<Item = &Consensus> {
        self.places.iter().filter_map(|place| place.node.as_ref())
    }

    /// The place that leads.
    pub(crate) async fn leader(&self) -> usize {
        wait_for("a leader", || {
            self.places.iter().position(|place| {
                place
                    .node
                    .as_ref()
                    .is_some_and(|node| node.leadership().borrow().leading)
            })
        })
        .await
    }

    /// Proposes until it is done.
    pub(crate) async fn propose(&self, commands: &[(Command, Vec<Bytes>)]) -> Proposed {
        let requests: Vec<_> = commands
            .iter()
            .map(|(command, _)| Request {
                id: None,
                command: command.clone(),
            })
            .collect();
        let contents: Vec<_> = commands
            .iter()
            .flat_map(|(_, contents)| contents.clone())
            .collect();
        let entry = batch::encode(Timestamp(1_000), &requests, &contents);
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < deadline, "nobody takes the proposal");
            let leader = self.leader().await;
            let Some(node) = &self.places[leader].node else {
                continue;
            };
            let epoch = node.leadership().borrow().epoch;
            match node.propose(entry.clone(), epoch).await {
                Ok(proposed) => return proposed,
                Err(ProposeError::NotLeader { .. } | ProposeError::Unknown(_)) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Waits until all that run have the same state, at least up to an index.
    pub(crate) async fn agree(&self, index: u64) {
        wait_for("equal states", || {
            let states: BTreeMap<_, _> = self
                .running_nodes()
                .map(Consensus::status)
                .map(|status| ((status.state_index, status.state_hash), status.node_id))
                .collect();
            let state = states.keys().next()?;
            (states.len() == 1 && state.0 >= index).then_some(())
        })
        .await;
    }

    pub(crate) async fn shutdown(mut self) {
        for place in &mut self.places {
            if let Some(node) = place.node.take() {
                node.abandon().await;
            }
        }
    }
}

pub(crate) fn queue() -> QueueName {
    QueueName::new("jobs").unwrap()
}

pub(crate) fn declare() -> (Command, Vec<Bytes>) {
    (
        Command::DeclareQueue {
            name: queue(),
            settings: SettingsPatch::default(),
        },
        Vec::new(),
    )
}

pub(crate) fn publish(bodies: Vec<Bytes>) -> (Command, Vec<Bytes>) {
    let messages = vec![NewMessage::default(); bodies.len()];
    (Command::Publish(Publish::to_queue(queue(), messages)), bodies)
}

/// Waits for a condition.
pub(crate) async fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    wait_for_async(what, || std::future::ready(look())).await
}

pub(crate) async fn wait_for_async<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A loopback address that nobody listens on, outside of the range from which
/// the system takes ports for outgoing connections.
pub(crate) fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = 20_000 + u16::try_from(std::process::id() % 1_000).unwrap() * 10;
    loop {
        let port = start + NEXT.fetch_add(1, Ordering::Relaxed) % 2_000;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
