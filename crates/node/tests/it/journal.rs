//! What happened to messages is told once, through restarts and snapshots.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use quorate_node::broker::{ConsumerOptions, LeaseOptions, Publication};
use quorate_node::journal::{Trace, TraceOf};
use quorate_node::types::{
    Change, ConsumerId, LeasedBy, MessageId, Millis, SessionId, Settlement, Target, Verdict,
};
use quorate_node::{Broker, Config, Node, StartError};

use crate::nodes::{declare, free_address, message, publish, queue, wait_for};

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

    async fn start(&mut self) -> Broker {
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
        let broker = node.broker();
        self.node = Some(node);
        broker
    }

    async fn stop(&mut self) {
        self.node.take().unwrap().stop().await;
    }

    fn broker(&self) -> Broker {
        self.node.as_ref().unwrap().broker()
    }
}

async fn alone() -> (Place, Broker) {
    let address = free_address();
    let mut place = Place::new(address, &[address]);
    let broker = place.start().await;
    leading(&broker).await;
    (place, broker)
}

async fn leading(broker: &Broker) {
    wait_for("a leader", || async { broker.queues(None, 1).await.ok() }).await;
}

async fn publish_one(broker: &Broker, message: Publication) -> MessageId {
    let target = Target::Queue(queue("jobs"));
    publish(broker, target, vec![message]).await.unwrap().ids[0]
}

/// Leases one message and acks it.
async fn work_one(broker: &Broker) {
    let options = LeaseOptions {
        queue: queue("jobs"),
        count_max: 1,
        lease: None,
        wait: Millis(0),
    };
    let (_, leased) = broker.lease(None, options).await.unwrap();
    let settlement = Settlement {
        token: leased[0].token,
        verdict: Verdict::Ack,
    };
    let (_, settled) = broker.settle(None, vec![settlement]).await.unwrap();
    settled[0].as_ref().unwrap();
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
    let (mut place, broker) = alone().await;
    declare(&broker, "jobs").await;
    let before = publish_one(&broker, message("a", &[])).await;
    work_one(&broker).await;
    broker.snapshot().await.unwrap();
    let across = publish_one(&broker, message("b", &[])).await;
    broker.snapshot().await.unwrap();
    work_one(&broker).await;
    let after = publish_one(&broker, message("c", &[])).await;

    let ids = [before, across, after];
    let mut traces = Vec::new();
    for id in ids {
        traces.push(trace(&broker, id).await);
    }
    assert_eq!(kinds(&traces[0]), ["published", "leased", "left"]);
    assert_eq!(kinds(&traces[1]), ["published", "leased", "left"]);
    assert_eq!(kinds(&traces[2]), ["published"]);
    let path = place.config.data_dir.join("journal");
    let durable = std::fs::read_dir(path)
        .unwrap()
        .filter(|file| {
            file.as_ref()
                .unwrap()
                .file_name()
                .to_string_lossy()
                .ends_with(".chunk")
        })
        .count();
    assert_eq!(durable, 2, "each snapshot waited for its chunk");

    drop(broker);
    for restart in 0..2 {
        place.stop().await;
        let broker = place.start().await;
        leading(&broker).await;
        for (id, known) in ids.iter().zip(&traces) {
            let again = trace(&broker, *id).await;
            assert_eq!(again.events, known.events, "restart {restart}, message {id}");
            assert!(again.gaps.is_empty(), "restart {restart}: {:?}", again.gaps);
            assert_eq!(again.begins, known.begins);
        }
    }
    place.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_got_a_snapshot_knows_what_it_missed() {
    let addresses: Vec<_> = (0..3).map(|_| free_address()).collect();
    let mut places: Vec<_> = addresses
        .iter()
        .map(|address| Place::new(*address, &addresses))
        .collect();
    for place in &mut places {
        place.start().await;
    }
    let leader = || {
        let brokers: Vec<_> = places
            .iter()
            .filter(|place| place.node.is_some())
            .map(Place::broker)
            .collect();
        async move {
            wait_for("a leader", || async {
                for (number, broker) in brokers.iter().enumerate() {
                    if broker.queues(None, 1).await.is_ok() {
                        return Some((number, broker.clone()));
                    }
                }
                None
            })
            .await
        }
    };
    let (leads, broker) = leader().await;
    declare(&broker, "jobs").await;
    let early = publish_one(&broker, message("a", &[])).await;
    work_one(&broker).await;
    let away = (leads + 1) % 3;
    let applied = |broker: &Broker| broker.status().applied_index;
    let behind = places[away].broker();
    let reached = broker.status().committed_index;
    wait_for("the follower", || async {
        (applied(&behind) >= reached).then_some(())
    })
    .await;
    let known = trace(&behind, early).await;
    assert_eq!(kinds(&known), ["published", "leased", "left"]);
    drop(behind);
    places[away].stop().await;

    let missed = publish_one(&broker, message("missed", &[])).await;
    work_one(&broker).await;
    for _ in 0..40 {
        publish_one(&broker, message(vec![0; 2_000], &[])).await;
    }
    let others: Vec<_> = places
        .iter()
        .filter(|place| place.node.is_some())
        .map(Place::broker)
        .collect();
    wait_for("the log to be purged", || async {
        let purged = |broker: &Broker| broker.status().purged_index >= missed.index;
        others.iter().all(purged).then_some(())
    })
    .await;
    let back = places[away].start().await;
    let late = publish_one(&broker, message("late", &[])).await;
    wait_for("the follower", || async {
        (applied(&back) >= late.index).then_some(())
    })
    .await;

    let here = trace(&back, early).await;
    assert_eq!(
        here.events, known.events,
        "what it knew before it still knows, once"
    );
    let there = trace(&broker, missed).await;
    assert_eq!(kinds(&there), ["published", "leased", "left"]);
    assert!(there.gaps.is_empty(), "{:?}", there.gaps);
    let here = trace(&back, missed).await;
    assert_eq!(kinds(&here), Vec::<&str>::new());
    let contains = |gap: &RangeInclusive<u64>| gap.contains(&missed.index);
    assert!(here.gaps.iter().any(contains), "{:?}", here.gaps);
    let snapshot = back.status().snapshot_index;
    assert!(
        here.gaps.iter().all(|gap| *gap.end() <= snapshot),
        "{:?}",
        here.gaps
    );
    assert_eq!(trace(&back, late).await.events, trace(&broker, late).await.events);

    drop((broker, back, others));
    for place in &mut places {
        place.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_found_by_dedup_id_and_by_header() {
    let (mut place, broker) = alone().await;
    declare(&broker, "jobs").await;
    let mut named = message("a", &[("order", "7")]);
    named.content.dedup_id = "order-7".to_owned();
    let first = publish_one(&broker, named).await;
    let second = publish_one(&broker, message("b", &[("order", "7"), ("kind", "mail")])).await;
    publish_one(&broker, message("c", &[("order", "8")])).await;

    let found = broker
        .trace(TraceOf::DedupId("order-7".to_owned()))
        .await
        .unwrap();
    assert_eq!(kinds(&found), ["published"]);
    assert_eq!(found.events[0].event.message, first);
    let by_header = || {
        broker.trace(TraceOf::Header {
            name: "order".to_owned(),
            value: "7".to_owned(),
        })
    };
    let found = by_header().await.unwrap();
    let ids: Vec<_> = found.events.iter().map(|traced| traced.event.message).collect();
    assert_eq!((ids, found.truncated), (vec![first, second], false));
    work_one(&broker).await;
    let found = by_header().await.unwrap();
    let ids: Vec<_> = found.events.iter().map(|traced| traced.event.message).collect();
    assert_eq!(
        ids,
        [second],
        "only messages that are in a queue are found by a header"
    );
    drop(broker);
    place.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_told_with_the_name_of_its_consumer() {
    let (mut place, broker) = alone().await;
    declare(&broker, "jobs").await;
    let (_, session) = broker.attach(SessionId(77)).await.unwrap();
    let options = ConsumerOptions {
        queue: queue("jobs"),
        credit: 1,
        lease: None,
        name: "resizer-3".to_owned(),
        priority: 0,
    };
    broker.consume(&session, ConsumerId(1), options).await.unwrap();
    let id = publish_one(&broker, message("a", &[])).await;
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
    place.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_room_there_is_no_journal_and_messages_do_not_notice() {
    let address = free_address();
    let mut place = Place::new(address, &[address]);
    place.config.journal_bytes = 0;
    let broker = place.start().await;
    leading(&broker).await;
    declare(&broker, "jobs").await;
    let id = publish_one(&broker, message("a", &[])).await;
    work_one(&broker).await;
    broker.snapshot().await.unwrap();
    let told = trace(&broker, id).await;
    assert_eq!(told, Trace::default());
    drop(broker);
    place.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_that_cannot_be_written_costs_no_message() {
    let (mut place, broker) = alone().await;
    declare(&broker, "jobs").await;
    publish_one(&broker, message("a", &[])).await;
    // Whatever the journal writes from now on fails.
    std::fs::remove_dir_all(place.config.data_dir.join("journal")).unwrap();
    let lost = publish_one(&broker, message("b", &[])).await;
    broker.snapshot().await.unwrap();
    work_one(&broker).await;
    let after = publish_one(&broker, message("c", &[])).await;
    let told = trace(&broker, after).await;
    assert_eq!(kinds(&told), ["published"]);
    assert!(broker.status().journal.lost >= 1);
    let told = trace(&broker, lost).await;
    assert!(told.events.is_empty(), "{told:?}");
    assert!(
        tokio::time::timeout(Duration::ZERO, place.node.as_ref().unwrap().failed())
            .await
            .is_err()
    );
    drop(broker);
    place.stop().await;
}
