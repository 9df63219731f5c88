//! Whole nodes and a client in one thread: virtual time, a network and disks of memory. Needs the feature `simulation`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use quorate_client::Client;
use quorate_node::audit::{Audit, AuditSink, Record};
use quorate_node::environment::{Clock, Connection, Disk, Listener, Transport, run_disk};
use quorate_node::{Config, Node};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

/// Addresses, and who listens there.
#[derive(Clone, Debug, Default)]
struct Network(Arc<Mutex<BTreeMap<String, mpsc::UnboundedSender<io::Result<Connection>>>>>);

impl Network {
    fn dial(&self, address: &str) -> io::Result<Connection> {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let listeners = self.0.lock().unwrap();
        let (near, far) = tokio::io::duplex(64 << 10);
        let listener = listeners.get(address).ok_or_else(refused)?;
        listener.send(Ok(Connection::new(far))).map_err(|_| refused())?;
        Ok(Connection::new(near))
    }

    fn bind(&self, address: SocketAddr) -> BoxStream<'static, io::Result<Connection>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.lock().unwrap().insert(address.to_string(), sender);
        UnboundedReceiverStream::new(receiver).boxed()
    }
}

impl Transport for Network {
    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Connection>> {
        Box::pin(std::future::ready(self.dial(address)))
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Listener>> {
        let incoming = self.bind(address);
        Box::pin(std::future::ready(Ok(Listener { address, incoming })))
    }
}

/// A node's audit log, in memory.
#[derive(Default)]
struct Kept(Mutex<Vec<Record>>);

impl AuditSink for Kept {
    fn record(&self, record: &Record) {
        self.0.lock().unwrap().push(record.clone());
    }
}

impl Kept {
    /// `kind` of every request that was applied, by the request's id.
    fn ids(&self) -> BTreeSet<String> {
        let records = self.0.lock().unwrap();
        let entries = records.iter().filter_map(|record| match record {
            Record::Entry(entry) => Some(entry),
            _ => None,
        });
        let requests = entries.flat_map(|entry| &entry.requests);
        requests.filter_map(|request| request.id.clone()).collect()
    }

    /// State hash after each entry.
    fn hashes(&self) -> BTreeMap<u64, String> {
        let records = self.0.lock().unwrap();
        let entries = records.iter().filter_map(|record| match record {
            Record::Entry(entry) => Some((entry.index, entry.hash.clone())),
            _ => None,
        });
        entries.collect()
    }
}

struct Cluster {
    network: Network,
    endpoints: Vec<String>,
    nodes: Vec<Node>,
    audits: Vec<Arc<Kept>>,
}

impl Cluster {
    async fn start(count: u8) -> Self {
        let network = Network::default();
        let peer = |number| SocketAddr::from(([10, 0, 0, number], 7401));
        let mut cluster = Self {
            network: network.clone(),
            endpoints: Vec::new(),
            nodes: Vec::new(),
            audits: Vec::new(),
        };
        for number in 1..=count {
            let disk = Disk::new();
            tokio::spawn(run_disk(disk.clone(), || Duration::from_millis(2)));
            let client = SocketAddr::from(([10, 0, 0, number], 7400));
            let audit = Arc::new(Kept::default());
            let node = Node::start(Config {
                name: format!("n{number}"),
                peer_listen: peer(number),
                client_advertise: client.to_string(),
                peers: (1..=count).map(|number| peer(number).to_string()).collect(),
                transport: Arc::new(network.clone()),
                clock: Clock::starting_at(1_800_000_000_000),
                disk: Some(disk),
                audit: Audit::to(audit.clone()),
                ..Config::default()
            });
            let node = node.await.unwrap();
            let (incoming, broker) = (network.bind(client), node.broker());
            let serving =
                quorate_gateway_grpc::serve_with_incoming(incoming, broker, std::future::pending::<()>());
            tokio::spawn(serving);
            cluster.endpoints.push(client.to_string());
            cluster.nodes.push(node);
            cluster.audits.push(audit);
        }
        cluster
    }

    async fn client(&self, seed: u64) -> Client {
        let network = self.network.clone();
        let client = Client::builder()
            .endpoints(&self.endpoints)
            .seed(seed)
            .connector(move |node| std::future::ready(network.dial(&node)));
        client.connect().await.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn three_nodes_and_their_client_live_through_a_lease_in_virtual_time() {
    let wall = std::time::Instant::now();
    let cluster = Cluster::start(3).await;
    let client = cluster.client(1).await;
    client.declare_queue("jobs").send().await.unwrap();
    let published = client.publish("jobs", "hello").await.unwrap();

    let mut consumer = client
        .consume("jobs")
        .lease(Duration::from_secs(600))
        .open()
        .await
        .unwrap();
    let first = consumer.next().await.unwrap().unwrap();
    assert_eq!((first.message_id(), first.attempt()), (published.message_id(), 1));
    let until = first.leased_until_ms();
    let granted = first.commit();
    assert!(granted.log_index > published.commit.log_index && granted.term == published.commit.term);
    assert_eq!(granted.cluster_time_ms + 600_000, until);
    let started = tokio::time::Instant::now();
    // Held too long: the lease runs out, and it comes again.
    let second = consumer.next().await.unwrap().unwrap();
    assert_eq!(
        (second.message_id(), second.attempt()),
        (published.message_id(), 2)
    );
    let passed = started.elapsed();
    assert!(
        (Duration::from_secs(595)..Duration::from_secs(605)).contains(&passed),
        "{passed:?} of virtual time"
    );
    assert!(second.leased_until_ms() >= until + 600_000);
    let stale = first.ack().await.unwrap_err();
    assert_eq!(stale.reason(), Some(quorate_client::Reason::StaleLease));
    let settled = second.ack().await.unwrap();
    assert!(settled.commit.log_index > granted.log_index);
    let queue = client.describe_queue("jobs").await.unwrap();
    assert_eq!((queue.counts.acked, queue.counts.leased), (1, 0));
    assert!(queue.read_index >= settled.commit.log_index);
    consumer.close().await;
    assert!(
        wall.elapsed() < Duration::from_secs(300),
        "ten minutes took as long as ten minutes"
    );

    // What the client was told is found in what the nodes say they applied, by its request ids.
    let ids = [published.request_id, stale.request_id(), settled.request_id];
    let ids: Vec<_> = ids.iter().map(|id| id.unwrap().to_string()).collect();
    let leader = cluster
        .nodes
        .iter()
        .position(|node| node.broker().leadership().borrow().leading);
    let applied = cluster.audits[leader.unwrap()].ids();
    assert!(
        ids.iter().all(|id| applied.contains(id)),
        "{ids:?} are not all in {applied:?}"
    );
    tokio::time::sleep(Duration::from_secs(5)).await;
    let hashes: Vec<_> = cluster.audits.iter().map(|audit| audit.hashes()).collect();
    let last = settled.commit.log_index;
    assert!(
        hashes.iter().all(|of| of.contains_key(&last)),
        "some node lags behind {last}"
    );
    for of in &hashes[1..] {
        for (index, hash) in of {
            if let Some(other) = hashes[0].get(index) {
                assert_eq!(hash, other, "at {index}");
            }
        }
    }
}
