//! A cluster in one thread: virtual time, a network of memory, disks of memory. Needs the feature `simulation`.

mod network;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use quorate_core::command::{Command, NewMessage, Publish, Request, SettingsPatch};
use quorate_core::ids::{NodeId, QueueName, Timestamp};
use quorate_core::{Broker, batch};
use quorate_raft::simulation::{Disk, DurableLog, EntryId, Unflushed, run_disk};
use quorate_raft::{
    Clock, Config, Consensus, Failure, Journal, Observed, Observer, ProposeError, Proposed, Role,
};
use tokio::time::Instant;
use tonic::service::Routes;

use self::network::Network;

/// Of virtual time, so it costs nothing.
const PATIENCE: Duration = Duration::from_secs(60);

struct Nobody;

impl Observer for Nobody {
    fn opened(&self, _: NodeId, journal: Journal) {
        assert!(!journal.is_on(), "a simulated node keeps no journal");
    }
    fn applied(&self, _: Observed<'_>, _: &Broker) {}
    fn restored(&self, _: u64, _: u64, _: &Broker) {}
    fn keep(&self, _: u64) {}
}

struct Place {
    address: SocketAddr,
    disk: Disk,
    /// What a flush takes, in milliseconds.
    latency: Arc<AtomicU64>,
    clock: Clock,
    node: Option<Consensus>,
}

struct Cluster {
    network: Network,
    places: Vec<Place>,
    restore_leader: bool,
}

impl Cluster {
    async fn start(count: u8) -> Self {
        let places = (1..=count).map(|number| {
            let disk = Disk::new();
            let latency = Arc::new(AtomicU64::new(2));
            let takes = Arc::clone(&latency);
            tokio::spawn(run_disk(disk.clone(), move || {
                Duration::from_millis(takes.load(Ordering::SeqCst))
            }));
            Place {
                address: SocketAddr::from(([10, 0, 0, number], 7_000)),
                disk,
                latency,
                clock: Clock::starting_at(1_800_000_000_000),
                node: None,
            }
        });
        let mut cluster = Self {
            network: Network::default(),
            places: places.collect(),
            restore_leader: false,
        };
        for at in 0..cluster.places.len() {
            cluster.start_node(at).await;
        }
        cluster
    }

    async fn start_node(&mut self, at: usize) {
        let peers = self
            .places
            .iter()
            .map(|place| place.address.to_string())
            .collect();
        let place = &mut self.places[at];
        let mut config = Config {
            listen: place.address,
            name: format!("n{at}"),
            peers,
            transport: Arc::new(self.network.socket(place.address)),
            clock: place.clock.clone(),
            restore_leader: self.restore_leader,
            log_keep_bytes: 0,
            log_keep_entries: 0,
            ..Config::default()
        };
        config.storage.disk = Some(place.disk.clone());
        let node = Consensus::start(config, Arc::new(Nobody), Routes::default()).await;
        place.node = Some(node.unwrap());
    }

    /// The machine fails: nothing that the node still does reaches its disk, or anybody.
    async fn crash(&mut self, at: usize, unflushed: Unflushed) {
        let place = &mut self.places[at];
        place.disk.crash(unflushed);
        self.network.unplug(place.address);
        place.node.take().expect("it runs").abandon().await;
    }

    fn nodes(&self) -> impl Iterator<Item = &Consensus> {
        self.places.iter().filter_map(|place| place.node.as_ref())
    }

    async fn leader(&self) -> usize {
        wait_for("a leader", || {
            self.places.iter().position(|place| {
                let node = place.node.as_ref();
                node.is_some_and(|node| node.leadership().borrow().leading)
            })
        })
        .await
    }

    async fn propose(&self, command: Command, contents: &[Bytes]) -> Proposed {
        let entry = batch::encode(Timestamp(1_000), &[Request { id: None, command }], contents);
        loop {
            let leader = self.leader().await;
            let node = self.places[leader].node.as_ref().expect("it leads");
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

    async fn publish(&self, body: &str) -> Proposed {
        let publish = Publish::to_queue(queue(), vec![NewMessage::default()]);
        self.propose(
            Command::Publish(publish),
            &[Bytes::copy_from_slice(body.as_bytes())],
        )
        .await
    }

    /// Waits until all that run have the same state.
    async fn agree(&self, index: u64) {
        wait_for("equal states", || {
            let mut states: Vec<_> = self
                .nodes()
                .map(Consensus::status)
                .map(|status| (status.state_index, status.state_hash))
                .collect();
            states.dedup();
            (states.len() == 1 && states[0].0 >= index).then_some(())
        })
        .await;
    }
}

fn queue() -> QueueName {
    QueueName::new("jobs").unwrap()
}

fn declare() -> Command {
    Command::DeclareQueue {
        name: queue(),
        settings: SettingsPatch::default(),
    }
}

async fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs on a runtime of this thread, and sees to it that there is no other.
fn simulate<T>(scene: impl Future<Output = T>) -> T {
    let threads = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&threads);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .on_thread_start(move || {
            count.fetch_add(1, Ordering::SeqCst);
        })
        .build()
        .unwrap();
    // What nodes say is shown with RUST_LOG set.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_test_writer()
        .try_init();
    let result = runtime.block_on(scene);
    assert_eq!(threads.load(Ordering::SeqCst), 0, "blocking threads were started");
    result
}

#[test]
fn a_cluster_survives_the_power_loss_of_its_leader() {
    let real = std::time::Instant::now();
    let virtual_time = simulate(async {
        let began = Instant::now();
        let mut cluster = Cluster::start(3).await;
        cluster.propose(declare(), &[]).await;
        for number in 0..50 {
            cluster.publish(&format!("before {number}")).await;
        }
        let first = cluster.leader().await;
        let last = cluster.publish("the last that it confirmed").await;
        let last = EntryId {
            index: last.index,
            term: last.term,
            node: cluster.places[first].node.as_ref().unwrap().node_id().0,
        };

        let before = Instant::now();
        cluster.crash(first, Unflushed::Lost).await;
        let second = cluster.leader().await;
        assert_ne!(first, second);
        let without_leader = before.elapsed();
        assert!(without_leader < Duration::from_secs(2), "{without_leader:?}");
        // Whoever crashed, a majority of disks holds it.
        let holds = |place: &&Place| DurableLog::of(&place.disk).unwrap().entries.contains(&last);
        assert!(cluster.places.iter().filter(holds).count() >= 2);
        let index = cluster.publish("after").await.index;
        assert!(index > last.index);

        cluster.start_node(first).await;
        cluster.agree(index).await;
        let node = cluster.places[first].node.as_ref().unwrap();
        assert_eq!(node.incarnation().0, 2);
        // A while of peace: nobody stands for election.
        let term = node.status().term;
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(node.status().term, term);
        began.elapsed()
    });
    assert!(virtual_time > Duration::from_secs(120));
    assert!(real.elapsed() < virtual_time / 4, "it took {:?}", real.elapsed());
}

#[test]
fn a_node_that_was_away_gets_a_snapshot_with_its_contents() {
    simulate(async {
        let mut cluster = Cluster::start(3).await;
        cluster.propose(declare(), &[]).await;
        let away = (cluster.leader().await + 1) % 3;
        cluster.crash(away, Unflushed::Prefix { seed: 7 }).await;
        let body = "x".repeat(40_000);
        let first = cluster.publish(&body).await.index;
        let mut last = first;
        for _ in 1..40 {
            last = cluster.publish(&body).await.index;
        }
        cluster.agree(last).await;
        for node in cluster.nodes() {
            node.snapshot().await.unwrap();
        }
        let index = cluster.publish("after").await.index;
        wait_for("the log to be purged", || {
            let purged = |node: &Consensus| node.status().purged_index + 1 >= index;
            cluster.nodes().all(purged).then_some(())
        })
        .await;

        cluster.start_node(away).await;
        cluster.agree(index).await;
        let node = cluster.places[away].node.as_ref().unwrap();
        assert!(node.status().snapshot_index > 0, "it came as a snapshot");
        let id = quorate_core::ids::MessageId {
            index: first,
            number: 0,
        };
        assert_eq!(node.content(id, 40_000).await.unwrap(), body);
    });
}

#[test]
fn a_failed_sync_stops_the_node_and_the_others_go_on() {
    simulate(async {
        let mut cluster = Cluster::start(3).await;
        cluster.propose(declare(), &[]).await;
        let leader = cluster.leader().await;
        let node = cluster.places[leader].node.clone().unwrap();
        cluster.places[leader].disk.fail_sync(0);
        let publish = cluster.publish("its leader's disk fails");
        let (reason, proposed) = tokio::join!(node.failed(), publish);
        assert!(matches!(reason, quorate_raft::Failure::Storage(_)), "{reason:?}");
        drop(node);
        cluster.crash(leader, Unflushed::Kept).await;
        cluster.publish("on the others").await;
        cluster.start_node(leader).await;
        cluster.agree(proposed.index).await;
    });
}

#[test]
fn a_node_that_refuses_connections_is_dialed_now_and_then() {
    simulate(async {
        let mut cluster = Cluster::start(3).await;
        cluster.propose(declare(), &[]).await;
        let away = (cluster.leader().await + 1) % 3;
        cluster.crash(away, Unflushed::Kept).await;
        cluster.publish("without it").await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let before = cluster.network.refused();
        tokio::time::sleep(Duration::from_secs(10)).await;
        let refused = cluster.network.refused() - before;
        // Twenty appends at the longest pause, and a heartbeat for each of eighty.
        assert!((20..=200).contains(&refused), "{refused} in ten seconds");
    });
}

/// It has its own removal in its log, and nobody ever tells it that this is committed.
#[test]
fn a_node_that_does_not_know_whether_its_removal_was_committed_finds_out() {
    simulate(async {
        let mut cluster = Cluster::start(3).await;
        cluster.propose(declare(), &[]).await;
        let leader = cluster.leader().await;
        let node = cluster.places[leader].node.clone().unwrap();
        let own = node.node_id();
        // Time to fall between an entry that is written here and one that is committed.
        for other in [1, 2].map(|next| (leader + next) % 3) {
            cluster.places[other].latency.store(50, Ordering::SeqCst);
        }
        let removing = tokio::spawn(async move { node.remove_node(own).await });
        wait_for("a log with the removal", || {
            let status = cluster.places[leader].node.as_ref()?.status();
            let written = status.members.iter().all(|member| member.node_id != own);
            (written && status.role == Role::Leader).then_some(())
        })
        .await;
        cluster.crash(leader, Unflushed::Kept).await;
        assert!(removing.await.unwrap().is_err());

        cluster.publish("without it").await;
        cluster.start_node(leader).await;
        let node = cluster.places[leader].node.as_ref().unwrap();
        assert_ne!(node.status().role, Role::Removed);
        let reason = tokio::time::timeout(PATIENCE, node.failed()).await.unwrap();
        assert_eq!(reason, Failure::Removed);
    });
}

/// A leader loses an entry that its followers have confirmed for it, and is back before anyone has missed it. Answers where
/// that entry is, and the next.
fn lose_the_leaders_entry(restore_leader: bool) -> (EntryId, EntryId) {
    simulate(async {
        let mut cluster = Cluster::start(3).await;
        cluster.restore_leader = restore_leader;
        cluster.propose(declare(), &[]).await;
        let leader = cluster.leader().await;
        let id_of = |cluster: &Cluster, at: usize, proposed: &Proposed| EntryId {
            index: proposed.index,
            term: proposed.term,
            node: cluster.places[at].node.as_ref().unwrap().node_id().0,
        };
        cluster.places[leader].latency.store(60_000, Ordering::SeqCst);
        let lost = cluster.publish("on the followers' disks").await;
        let lost = id_of(&cluster, leader, &lost);
        let on_disk = DurableLog::of(&cluster.places[leader].disk).unwrap();
        assert!(!on_disk.entries.contains(&lost));

        cluster.crash(leader, Unflushed::Lost).await;
        cluster.places[leader].latency.store(2, Ordering::SeqCst);
        cluster.start_node(leader).await;
        let next = cluster.publish("the next").await;
        let leader = cluster.leader().await;
        (lost, id_of(&cluster, leader, &next))
    })
}

#[test]
fn a_leader_that_lost_an_entry_does_not_give_its_place_to_another() {
    let (lost, next) = lose_the_leaders_entry(false);
    assert!(next.index > lost.index, "{next:?} after {lost:?}");
}

/// That the above can fail, and that the switch does what it says.
#[test]
fn it_would_if_a_leader_were_restored() {
    let (lost, next) = lose_the_leaders_entry(true);
    assert_eq!(next, lost);
}
