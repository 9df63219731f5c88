//! What the tests share: nodes that run, and short words for what is asked of them.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_node::broker::{Browse, Publication, Publish, Published};
use quorate_node::content::Content;
use quorate_node::types::{Filter, QueueName, SettingsPatch, Target};
use quorate_node::{Broker, BrokerError, Config, Node};

/// Long enough for a loaded machine; nothing waits that long when all is well.
const PATIENCE: Duration = Duration::from_secs(30);

/// Nodes of one cluster.
pub(crate) struct Nodes {
    nodes: Vec<(Node, tempfile::TempDir)>,
}

impl Nodes {
    /// Started, and with a leader.
    pub(crate) async fn start(count: usize) -> Self {
        let addresses: Vec<_> = (0..count).map(|_| free_address()).collect();
        let mut nodes = Vec::new();
        for address in &addresses {
            nodes.push(start(*address, &addresses).await);
        }
        let nodes = Self { nodes };
        nodes.leader().await;
        nodes
    }

    /// The one that leads, once there is one and it takes commands.
    pub(crate) async fn leader(&self) -> Broker {
        wait_for("a leader", || async {
            for (node, _) in &self.nodes {
                let harmless = node.broker().pause_queue(None, queue("nowhere"), false).await;
                if matches!(harmless, Err(BrokerError::Rejected(_))) {
                    return Some(node.broker());
                }
            }
            None
        })
        .await
    }

    /// Stops all but one, which has applied what the others have; the one that is left.
    pub(crate) async fn stop_all_but_one(&mut self) -> Broker {
        let applied = |(node, _): &(Node, tempfile::TempDir)| node.broker().status().applied_index;
        let all = self.nodes.iter().map(applied).max();
        wait_for("the node that is left to apply", || async {
            (Some(applied(&self.nodes[0])) >= all).then_some(())
        })
        .await;
        for (node, _) in self.nodes.drain(1..) {
            node.stop().await;
        }
        self.nodes[0].0.broker()
    }
}

/// A node that waits for a cluster to form with `peers`, and its directory.
pub(crate) async fn start(address: SocketAddr, peers: &[SocketAddr]) -> (Node, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        data_dir: dir.path().join("data"),
        peer_listen: address,
        peers: peers.iter().map(ToString::to_string).collect(),
        // A busy machine is no reason to lose the leadership.
        election_timeout_min: Duration::from_secs(2),
        election_timeout_max: Duration::from_secs(3),
        ..Config::default()
    };
    std::fs::create_dir_all(&config.data_dir).unwrap();
    (Node::start(config).await.unwrap(), dir)
}

/// Waits for a condition.
pub(crate) async fn wait_for<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A loopback address that nobody listens on, outside of the range from which
/// the system takes ports for outgoing connections.
pub(crate) fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = 10_000 + u16::try_from(std::process::id() % 900).unwrap() * 10;
    loop {
        let port = start + NEXT.fetch_add(1, Ordering::Relaxed) % 1_000;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

pub(crate) fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

pub(crate) async fn declare(broker: &Broker, name: &str) {
    let settings = SettingsPatch::default();
    broker.declare_queue(None, queue(name), settings).await.unwrap();
}

/// A message with a body and headers.
pub(crate) fn message(body: impl Into<Bytes>, headers: &[(&str, &str)]) -> Publication {
    let headers = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Publication {
        content: Content {
            body: body.into(),
            headers: headers.collect(),
            ..Content::default()
        },
        ..Publication::default()
    }
}

pub(crate) async fn publish(
    broker: &Broker,
    target: Target,
    messages: Vec<Publication>,
) -> Result<Published, BrokerError> {
    let publish = Publish {
        id: None,
        target,
        messages,
    };
    broker.publish(publish).await.map(|(_, published)| published)
}

/// All messages of a queue, in the first page.
pub(crate) fn browse(name: &str) -> Browse {
    Browse {
        queue: queue(name),
        filter: Filter::default(),
        headers: BTreeMap::new(),
        from: 0,
        count_max: 1_000,
        with_content: false,
        local: false,
    }
}

/// The bodies of the messages of a queue, in order.
pub(crate) async fn bodies(broker: &Broker, name: &str) -> Vec<String> {
    let with_content = Browse {
        with_content: true,
        ..browse(name)
    };
    let (_, page) = broker.browse(&with_content).await.unwrap();
    assert_eq!(page.next, None, "one page has them all");
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    let contents = page.messages.iter().map(|seen| seen.content.as_ref().unwrap());
    contents.map(|content| text(&content.body)).collect()
}
