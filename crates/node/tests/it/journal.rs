//! What happened to messages is told once, through restarts and snapshots.

use std::future::Future;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorate_node::broker::{ConsumerOptions, LeaseOptions, Publication, Publish};
use quorate_node::journal::{Trace, TraceOf};
use quorate_node::types::{
    Change, ClientId, ConsumerId, LeasedBy, MessageId, Millis, RequestId, SessionId, SettingsPatch,
    Settlement, Target, Verdict,
};
use quorate_node::{Broker, BrokerError, Config, Node, StartError};

use crate::nodes::{free_address, message, queue, wait_for};

/// A place for a node that is stopped and started again.
struct Place {
    _dir: tempfile::TempDir,
    config: Config,
    node: Option<Node>,
}

impl Place {
    fn new(address: SocketAddr, peers: &[SocketAddr]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = Config {
            data_dir: dir.path().join("data"),
            peer_listen: address,
            peers: peers.iter().map(ToString::to_string).collect(),
            // One that comes up behind gets a snapshot.
            snapshot_log_bytes: 32 << 10,
            log_keep_bytes: 8 << 10,
            ..Config::default()
        };
        Self {
            _dir: dir,
            config,
            node: None,
        }
    }

    async fn start(&mut self) {
        std::fs::create_dir_all(&self.config.data_dir).unwrap();
        let node = wait_for("the directory and the port", || async {
            match Node::start(self.config.clone()).await {
                Ok(node) => Some(node),
                // Threads of the life before may still hold them.
                Err(StartError::Open(_) | StartError::Listen { .. }) => None,
                Err(error) => panic!("{error}"),
            }
        })
        .await;
        self.node = Some(node);
    }

    async fn stop(&mut self) {
        self.node.take().unwrap().stop().await;
    }

    fn broker(&self) -> Broker {
        self.node.as_ref().unwrap().broker()
    }

    fn files(&self) -> Vec<String> {
        let dir = std::fs::read_dir(self.config.data_dir.join("journal")).unwrap();
        dir.map(|file| file.unwrap().file_name().to_string_lossy().into_owned())
            .collect()
    }
}

/// The nodes of a cluster, and a client of it that does not give up.
struct Cluster {
    places: Vec<Place>,
    calls: AtomicU64,
}

impl Cluster {
    async fn start(count: usize, set: impl Fn(&mut Config)) -> Self {
        let addresses: Vec<_> = (0..count).map(|_| free_address()).collect();
        let mut places = Vec::new();
        for address in &addresses {
            let mut place = Place::new(*address, &addresses);
            set(&mut place.config);
            place.start().await;
            places.push(place);
        }
        Self {
            places,
            calls: AtomicU64::new(1),
        }
    }

    async fn stop(&mut self) {
        for place in self.places.iter_mut().filter(|place| place.node.is_some()) {
            place.stop().await;
        }
    }

    fn brokers(&self) -> Vec<Broker> {
        let running = self.places.iter().filter(|place| place.node.is_some());
        running.map(Place::broker).collect()
    }

    /// Asks whoever leads, again and again with one request id.
    async fn ask<T, F>(&self, call: impl Fn(Broker, RequestId) -> F) -> T
    where
        F: Future<Output = Result<T, BrokerError>>,
    {
        let id = RequestId {
            client: ClientId(1),
            sequence: self.calls.fetch_add(1, Ordering::Relaxed),
            oldest_unanswered: 1,
        };
        wait_for("an answer", || async {
            for broker in self.brokers() {
                match call(broker, id).await {
                    Ok(answer) => return Some(answer),
                    Err(error) if error.is_retryable() => {}
                    Err(error) => panic!("{error}"),
                }
            }
            None
        })
        .await
    }

    async fn declare(&self) {
        let declare = |broker: Broker, id| async move {
            let settings = SettingsPatch::default();
            broker.declare_queue(Some(id), queue("jobs"), settings).await
        };
        self.ask(declare).await;
    }

    async fn publish(&self, message: Publication) -> MessageId {
        let publish = |broker: Broker, id| {
            let publish = Publish {
                id: Some(id),
                target: Target::Queue(queue("jobs")),
                messages: vec![message.clone()],
            };
            async move { broker.publish(publish).await }
        };
        let (_, published) = self.ask(publish).await;
        published.ids[0]
    }

    /// Leases one message and acks it.
    async fn work_one(&self) {
        let lease = |broker: Broker, id| async move {
            let options = LeaseOptions {
                queue: queue("jobs"),
                count_max: 1,
                lease: None,
                wait: Millis(0),
            };
            broker.lease(Some(id), options).await
        };
        let (_, leases) = self.ask(lease).await;
        let token = leases.leased[0].token;
        let ack = |broker: Broker, id| async move {
            let verdict = Verdict::Ack;
            broker.settle(Some(id), vec![Settlement { token, verdict }]).await
        };
        let (_, settled) = self.ask(ack).await;
        settled[0].as_ref().unwrap();
    }
}

/// Waits until a node has applied an entry.
async fn applied(broker: &Broker, index: u64) {
    wait_for("the node to catch up", || async {
        (broker.status().applied_index >= index).then_some(())
    })
    .await;
}

async fn trace(broker: &Broker, id: MessageId) -> Trace {
    broker.trace(TraceOf::Message(id)).await.unwrap()
}

/// The kinds of what happened, in order.
fn kinds(trace: &Trace) -> Vec<&'static str> {
    let kind = |change: &Change| match change {
        Change::Published { .. } => "published",
        Change::Leased { .. } => "leased",
        Change::Left { .. } => "left",
        _ => "other",
    };
    trace
        .events
        .iter()
        .map(|traced| kind(&traced.event.change))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_tells_everything_once() {
    let mut cluster = Cluster::start(1, |_| {}).await;
    cluster.declare().await;
    let before = cluster.publish(message("a", &[])).await;
    cluster.work_one().await;
    let broker = cluster.places[0].broker();
    broker.snapshot().await.unwrap();
    let across = cluster.publish(message("b", &[])).await;
    broker.snapshot().await.unwrap();
    cluster.work_one().await;
    let after = cluster.publish(message("c", &[])).await;

    let ids = [before, across, after];
    let mut traces = Vec::new();
    for id in ids {
        traces.push(trace(&broker, id).await);
    }
    assert_eq!(kinds(&traces[0]), ["published", "leased", "left"]);
    assert_eq!(kinds(&traces[1]), ["published", "leased", "left"]);
    assert_eq!(kinds(&traces[2]), ["published"]);
    let durable = cluster.places[0].files();
    assert!(
        durable.len() >= 2,
        "each snapshot waited for its chunk: {durable:?}"
    );
    assert!(durable.iter().all(|name| name.ends_with(".chunk")), "{durable:?}");

    drop(broker);
    for restart in 0..2 {
        cluster.places[0].stop().await;
        cluster.places[0].start().await;
        let broker = cluster.places[0].broker();
        applied(&broker, after.index).await;
        for (id, known) in ids.iter().zip(&traces) {
            let again = trace(&broker, *id).await;
            assert_eq!(again.events, known.events, "restart {restart}, message {id}");
            assert!(again.gaps.is_empty(), "restart {restart}: {:?}", again.gaps);
            assert_eq!(again.begins, known.begins);
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_got_a_snapshot_knows_what_it_missed() {
    const AWAY: usize = 1;
    let mut cluster = Cluster::start(3, |_| {}).await;
    cluster.declare().await;
    let early = cluster.publish(message("a", &[])).await;
    cluster.work_one().await;
    let last = cluster.publish(message("b", &[])).await;
    cluster.work_one().await;
    let behind = cluster.places[AWAY].broker();
    applied(&behind, last.index).await;
    let known = trace(&behind, early).await;
    assert_eq!(kinds(&known), ["published", "leased", "left"]);
    drop(behind);
    cluster.places[AWAY].stop().await;

    let missed = cluster.publish(message("missed", &[])).await;
    cluster.work_one().await;
    for _ in 0..40 {
        cluster.publish(message(vec![0; 2_000], &[])).await;
    }
    let others = cluster.brokers();
    wait_for("the log to be purged", || async {
        let purged = |broker: &Broker| broker.status().purged_index >= missed.index;
        others.iter().all(purged).then_some(())
    })
    .await;
    cluster.places[AWAY].start().await;
    let back = cluster.places[AWAY].broker();
    // Until one comes to it as an entry: the first may still be in the snapshot.
    let late = wait_for("an entry after the snapshot", || async {
        let late = cluster.publish(message("late", &[])).await;
        applied(&back, late.index).await;
        let here = trace(&back, late).await;
        (!here.events.is_empty()).then_some(late)
    })
    .await;
    for broker in cluster.brokers() {
        applied(&broker, late.index).await;
    }

    // A slow machine may have given one of the others a snapshot, too.
    let mut whole = Vec::new();
    for broker in &others {
        let there = trace(broker, missed).await;
        if there.gaps.is_empty() {
            whole.push(kinds(&there));
        }
    }
    assert!(
        !whole.is_empty()
            && whole
                .iter()
                .all(|kinds| *kinds == ["published", "leased", "left"])
    );
    let here = trace(&back, early).await;
    assert_eq!(
        here.events, known.events,
        "what it knew before it still knows, once"
    );
    let here = trace(&back, missed).await;
    assert!(here.events.is_empty(), "{:?}", here.events);
    let contains = |gap: &RangeInclusive<u64>| gap.contains(&missed.index);
    assert!(here.gaps.iter().any(contains), "{:?}", here.gaps);
    assert!(
        here.gaps.iter().all(|gap| *gap.end() < late.index),
        "{:?}",
        here.gaps
    );
    let here = trace(&back, late).await;
    assert_eq!(kinds(&here), ["published"]);
    assert_eq!(here.events, trace(&others[0], late).await.events);

    drop((back, others));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_found_by_dedup_id_and_by_header() {
    let mut cluster = Cluster::start(1, |_| {}).await;
    cluster.declare().await;
    let mut named = message("a", &[("order", "7")]);
    named.content.dedup_id = "order-7".to_owned();
    let first = cluster.publish(named).await;
    let second = cluster
        .publish(message("b", &[("order", "7"), ("kind", "mail")]))
        .await;
    cluster.publish(message("c", &[("order", "8")])).await;

    let broker = cluster.places[0].broker();
    let found = broker
        .trace(TraceOf::DedupId("order-7".to_owned()))
        .await
        .unwrap();
    assert_eq!(kinds(&found), ["published"]);
    assert_eq!(found.events[0].event.message, first);
    let by_header = || async {
        let of = TraceOf::Header {
            name: "order".to_owned(),
            value: "7".to_owned(),
        };
        let found = broker.trace(of).await.unwrap();
        assert!(!found.truncated);
        found
            .events
            .iter()
            .map(|traced| traced.event.message)
            .collect::<Vec<_>>()
    };
    assert_eq!(by_header().await, [first, second]);
    cluster.work_one().await;
    assert_eq!(
        by_header().await,
        [second],
        "only messages that are in a queue are found by a header"
    );
    drop(broker);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_told_with_the_name_of_its_consumer() {
    let mut cluster = Cluster::start(1, |_| {}).await;
    cluster.declare().await;
    let attach = |broker: Broker, _| async move { broker.attach(SessionId(77)).await };
    let (_, session) = cluster.ask(attach).await;
    let consume = |broker: Broker, _| {
        let session = &session;
        let options = ConsumerOptions {
            queue: queue("jobs"),
            credit: 1,
            lease: None,
            name: "resizer-3".to_owned(),
            priority: 0,
        };
        async move { broker.consume(session, ConsumerId(1), options).await }
    };
    cluster.ask(consume).await;
    let id = cluster.publish(message("a", &[])).await;
    let broker = cluster.places[0].broker();
    let told = trace(&broker, id).await;
    assert_eq!(kinds(&told), ["published", "leased"]);
    assert_eq!(told.events[1].consumer_name, "resizer-3");
    let Change::Leased { holder, .. } = told.events[1].event.change else {
        panic!("{told:?}");
    };
    let expected = LeasedBy::Consumer {
        session: SessionId(77),
        consumer: ConsumerId(1),
        node: broker.node_id(),
    };
    assert_eq!(holder, expected);
    drop((session, broker));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_room_there_is_no_journal_and_messages_do_not_notice() {
    let mut cluster = Cluster::start(1, |config| config.journal_bytes = 0).await;
    cluster.declare().await;
    let id = cluster.publish(message("a", &[])).await;
    cluster.work_one().await;
    let broker = cluster.places[0].broker();
    broker.snapshot().await.unwrap();
    assert_eq!(trace(&broker, id).await, Trace::default());
    drop(broker);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_that_cannot_be_written_costs_no_message() {
    let mut cluster = Cluster::start(1, |_| {}).await;
    cluster.declare().await;
    // Whatever the journal writes from now on fails.
    std::fs::remove_dir_all(cluster.places[0].config.data_dir.join("journal")).unwrap();
    let lost = cluster.publish(message("a", &[])).await;
    let broker = cluster.places[0].broker();
    broker.snapshot().await.unwrap();
    assert!(broker.status().journal.lost >= 1);
    cluster.work_one().await;
    let after = cluster.publish(message("b", &[])).await;
    assert_eq!(kinds(&trace(&broker, after).await), ["published"]);
    assert_eq!(kinds(&trace(&broker, lost).await), ["leased", "left"]);
    let failed = cluster.places[0].node.as_ref().unwrap().failed();
    assert!(
        tokio::time::timeout(Duration::ZERO, failed).await.is_err(),
        "the node goes on"
    );
    drop(broker);
    cluster.stop().await;
}
