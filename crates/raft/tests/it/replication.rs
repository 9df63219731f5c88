//! Entries reach every node, through kills, restarts and snapshots.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quorate_core::command::PurgeStates;
use quorate_core::ids::MessageId;
use quorate_raft::Config;

use crate::cluster::{Cluster, declare, publish, wait_for};

fn bodies(count: usize, bytes: usize) -> Vec<Bytes> {
    (0..count).map(|n| Bytes::from(vec![n as u8; bytes])).collect()
}

/// Snapshots all the time.
fn tiny_snapshots(config: &mut Config) {
    config.snapshot_log_bytes = 32 << 10;
    config.log_keep_bytes = 8 << 10;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_forms_in_any_order_of_starts() {
    let mut cluster = Cluster::new(3);
    for late in [2, 0] {
        cluster.places[late].start().await;
    }
    // Two of three do not form a cluster: the third might belong to another.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(cluster.running_nodes().all(|node| node.cluster_id().is_none()));

    cluster.places[1].start().await;
    cluster.leader().await;
    let proposed = cluster.propose(&[declare(), publish(bodies(3, 10))]).await;
    assert_eq!(proposed.outcomes.len(), 2);
    cluster.agree(proposed.index).await;
    let ids: Vec<_> = cluster
        .running_nodes()
        .map(quorate_raft::Consensus::cluster_id)
        .collect();
    assert!(ids[0].is_some() && ids.iter().all(|id| *id == ids[0]));
    for node in cluster.running_nodes() {
        assert_eq!(node.status().members.len(), 3);
        assert!(node.status().members.iter().all(|member| member.voter));
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proposals_are_in_the_log_in_the_order_of_the_calls() {
    let cluster = Cluster::running(1, |_| {}).await;
    cluster.propose(&[declare()]).await;
    let node = cluster.places[0].node();
    let epoch = node.leadership().borrow().epoch;
    let entry = quorate_core::batch::encode(quorate_core::ids::Timestamp(1), &[], &[]);
    let answers: Vec<_> = (0..500).map(|_| node.propose(entry.clone(), epoch)).collect();
    let mut last = 0;
    for answer in answers {
        let index = answer.await.unwrap().index;
        assert!(last < index);
        last = index;
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_is_replaced_and_catches_up_when_it_returns() {
    let mut cluster = Cluster::running(3, |_| {}).await;
    let before = cluster.propose(&[declare(), publish(bodies(10, 100))]).await;
    cluster.agree(before.index).await;

    let mut outages = Vec::new();
    for _ in 0..3 {
        let leader = cluster.leader().await;
        cluster.places[leader].kill().await;
        let started = Instant::now();
        let after = cluster.propose(&[publish(bodies(1, 100))]).await;
        outages.push(started.elapsed());
        assert!(after.index > before.index);
        cluster.places[leader].start().await;
        cluster.agree(after.index).await;
    }
    eprintln!("from the leader's kill to the next confirm: {outages:?}");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_nodes_restart_and_nothing_is_gone() {
    let mut cluster = Cluster::running(3, tiny_snapshots).await;
    cluster.propose(&[declare()]).await;
    let mut last = 0;
    for _ in 0..20 {
        last = cluster.propose(&[publish(bodies(4, 1_000))]).await.index;
    }
    cluster.agree(last).await;
    let hash = cluster.places[0].node().status().state_hash;
    for place in &mut cluster.places {
        place.kill().await;
    }
    for place in &mut cluster.places {
        place.start().await;
    }
    cluster.agree(last).await;
    assert_eq!(cluster.places[0].node().status().state_hash, hash);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_was_away_too_long_gets_a_snapshot_with_contents() {
    let mut cluster = Cluster::running(3, tiny_snapshots).await;
    cluster.propose(&[declare()]).await;
    let leader = cluster.leader().await;
    let away = (leader + 1) % 3;
    let known = cluster.places[away].node().status().last_log_index;
    cluster.places[away].kill().await;

    let mut published = Vec::new();
    for n in 0..40u8 {
        // One of them larger than a chunk of the storage.
        let size = if n == 7 { 40_000 } else { 2_000 };
        let proposed = cluster
            .propose(&[publish(vec![Bytes::from(vec![n; size])])])
            .await;
        published.push((
            MessageId {
                index: proposed.index,
                number: 0,
            },
            vec![n; size],
        ));
    }
    // On both, whichever leads later: else the entries themselves could bring it up.
    wait_for("the log to be purged", || {
        cluster
            .running_nodes()
            .all(|node| node.status().purged_index > known)
            .then_some(())
    })
    .await;

    cluster.places[away].start().await;
    cluster.agree(published.last().unwrap().0.index).await;
    let node = cluster.places[away].node();
    assert!(node.status().snapshot_index > known);
    let restored = &cluster.places[away].counter.restored;
    wait_for("word of the restored state", || {
        (restored.load(Ordering::SeqCst) > 0).then_some(())
    })
    .await;
    let told = cluster.places[away].counter.kept.load(Ordering::SeqCst);
    assert!(
        told > 0,
        "what was applied before another's snapshot came could be kept"
    );
    for (id, body) in &published {
        let content = node.content(*id, body.len() as u32).await.unwrap();
        assert_eq!(content, body, "content {id}");
    }
    let gone = MessageId {
        index: published[0].0.index,
        number: 9,
    };
    assert!(node.content(gone, 1).await.is_err());
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_one_leads_longer_than_a_lease() {
    let cluster = Cluster::running(1, |_| {}).await;
    cluster.propose(&[declare()]).await;
    let node = cluster.places[0].node();
    let lease = cluster.places[0].config.election_timeout_max;
    wait_for("several leases to pass", || {
        (node.status().uptime > lease * 5).then_some(())
    })
    .await;
    assert!(node.leadership().borrow().leading);
    let index = cluster.propose(&[publish(bodies(1, 10))]).await.index;
    assert!(node.read_barrier().await.unwrap() >= index);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contents_live_as_long_as_their_message_and_no_longer() {
    let mut cluster = Cluster::running(1, |_| {}).await;
    cluster.propose(&[declare()]).await;
    let kept = cluster.propose(&[publish(bodies(2, 500))]).await.index;
    let node = cluster.places[0].node().clone();
    let snapshot = node.snapshot().await.unwrap();
    assert!(snapshot >= kept);
    let told = cluster.places[0].counter.kept.load(Ordering::SeqCst);
    assert_eq!(told, snapshot, "who watches could keep what the snapshot covers");
    let id = MessageId {
        index: kept,
        number: 1,
    };
    assert_eq!(node.content(id, 500).await.unwrap(), vec![1; 500]);

    let purge = quorate_core::command::Command::PurgeQueue {
        name: crate::cluster::queue(),
        states: PurgeStates::WAITING,
    };
    cluster.propose(&[(purge, Vec::new())]).await;
    node.snapshot().await.unwrap();
    // Twice: what the first one's log still holds, the second one's does not.
    cluster.propose(&[publish(bodies(1, 10))]).await;
    node.snapshot().await.unwrap();
    drop(node);
    cluster.places[0].node.take().unwrap().shutdown().await;

    let store = wait_for("the directory", || {
        quorate_storage::Store::open(
            &cluster.places[0].config.data_dir,
            quorate_storage::Options::default(),
        )
        .ok()
    })
    .await;
    let stored: Vec<_> = store
        .contents
        .range((0, 0))
        .map(|content| content.unwrap().index)
        .collect();
    assert!(!stored.contains(&kept), "{stored:?}");
    assert_eq!(stored.len(), 1);
}

/// Not a test: prints how fast this machine is, beside whatever else it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn measure() {
    let cluster = Cluster::running(3, |_| {}).await;
    cluster.propose(&[declare()]).await;
    let mut alone = Vec::new();
    for _ in 0..200 {
        let started = Instant::now();
        cluster.propose(&[publish(bodies(1, 100))]).await;
        alone.push(started.elapsed());
    }
    alone.sort_unstable();
    eprintln!("one at a time: median {:?}, p99 {:?}", alone[100], alone[198]);

    let node = cluster.places[cluster.leader().await].node();
    let epoch = node.leadership().borrow().epoch;
    let (command, contents) = publish(bodies(64, 1_000));
    let request = quorate_core::command::Request { id: None, command };
    let entry = quorate_core::batch::encode(quorate_core::ids::Timestamp(1), &[request], &contents);
    let started = Instant::now();
    let mut flying = std::collections::VecDeque::new();
    for _ in 0..500 {
        flying.push_back(node.propose(entry.clone(), epoch));
        if flying.len() == 16 {
            flying.pop_front().unwrap().await.unwrap();
        }
    }
    for proposal in flying {
        proposal.await.unwrap();
    }
    let rate = 500.0 * 64.0 / started.elapsed().as_secs_f64();
    eprintln!("16 entries of 64 x 1,000 bytes in flight: {rate:.0} messages/s");
    cluster.shutdown().await;
}
