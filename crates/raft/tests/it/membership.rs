//! Nodes come and go.

use std::time::Duration;

use bytes::Bytes;
use quorate_core::ids::NodeId;
use quorate_raft::{Failure, MembershipError, Role};

use crate::cluster::{Cluster, PATIENCE, Place, declare, free_address, publish, wait_for};

/// Adds a node, by whoever leads: on a busy machine a lease may run out for a moment.
async fn add(cluster: &mut Cluster, address: &str) -> NodeId {
    let give_up = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        let leader = cluster.leader().await;
        match cluster.places[leader].node().add_node(address).await {
            Ok(node) => return node,
            Err(MembershipError::NotLeader { .. }) if tokio::time::Instant::now() < give_up => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => panic!("{address} is not added: {error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_node_is_a_new_node_and_takes_the_place_of_the_old_when_added() {
    let mut cluster = Cluster::running(3, |_| {}).await;
    cluster
        .propose(&[declare(), publish(vec![Bytes::from_static(b"kept")])])
        .await;
    let leader = cluster.leader().await;
    let wiped = (leader + 1) % 3;
    let old = cluster.places[wiped].node().node_id();
    cluster.places[wiped].kill().await;
    cluster.places[wiped].wipe();
    cluster.places[wiped].start().await;

    let new = cluster.places[wiped].node().node_id();
    assert_ne!(new, old);
    // The cluster goes on, and the newcomer stays outside of it.
    let during = cluster
        .propose(&[publish(vec![Bytes::from_static(b"during")])])
        .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let status = cluster.places[wiped].node().status();
    assert_eq!((status.role, status.cluster_id), (Role::Waiting, None));
    assert_eq!(status.last_log_index, 0);

    let address = cluster.places[wiped].address.to_string();
    assert_eq!(add(&mut cluster, &address).await, new);
    cluster.agree(during.index).await;
    let leader = cluster.leader().await;
    let members = cluster.places[leader].node().status().members;
    assert_eq!(members.len(), 3);
    assert!(members.iter().all(|member| member.voter && member.node_id != old));
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_added_and_removed() {
    let mut cluster = Cluster::running(3, |_| {}).await;
    let declared = cluster.propose(&[declare()]).await;

    let mut place = Place::new(free_address(), &[]);
    place.start().await;
    let address = place.address.to_string();
    let added = place.node().node_id();
    cluster.places.push(place);
    assert_eq!(add(&mut cluster, &address).await, added);
    let leader = cluster.leader().await;
    let node = cluster.places[leader].node().clone();
    assert!(matches!(
        node.add_node(&address).await,
        Err(MembershipError::Refused(_))
    ));
    cluster.agree(declared.index).await;

    // Not by one that does not lead, and not what is not there.
    let follower = (leader + 1) % 3;
    let asked = cluster.places[follower].node().remove_node(added).await;
    assert!(
        matches!(asked, Err(MembershipError::NotLeader { leader: Some(_) })),
        "{asked:?}"
    );
    let asked = node.remove_node(NodeId(7)).await;
    assert!(matches!(asked, Err(MembershipError::Refused(_))), "{asked:?}");

    let failed = cluster.places[3].node().failed();
    node.remove_node(added).await.unwrap();
    let reason = tokio::time::timeout(PATIENCE, failed).await.unwrap();
    assert_eq!(reason, Failure::Removed);
    assert_eq!(cluster.places[3].node().status().role, Role::Removed);
    assert_eq!(node.status().members.len(), 3);
    cluster.places[3].kill().await;

    // A leader can be removed too: another takes over.
    let own = node.node_id();
    node.remove_node(own).await.unwrap();
    drop(node);
    let proposed = cluster.propose(&[publish(vec![Bytes::from_static(b"x")])]).await;
    let leader = wait_for("another leader", || {
        cluster.places.iter().position(|place| {
            place
                .node
                .as_ref()
                .is_some_and(|node| node.node_id() != own && node.leadership().borrow().leading)
        })
    })
    .await;
    assert_eq!(cluster.places[leader].node().status().members.len(), 2);
    assert!(proposed.index > declared.index);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_removed_while_it_was_away_finds_out() {
    let mut cluster = Cluster::running(3, |_| {}).await;
    let leader = cluster.leader().await;
    let away = (leader + 1) % 3;
    let id = cluster.places[away].node().node_id();
    cluster.places[away].kill().await;
    cluster.places[leader].node().remove_node(id).await.unwrap();

    cluster.places[away].start().await;
    let reason = tokio::time::timeout(PATIENCE, cluster.places[away].node().failed())
        .await
        .unwrap();
    assert_eq!(reason, Failure::Removed);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_is_handed_over() {
    let cluster = Cluster::running(3, |_| {}).await;
    cluster.propose(&[declare()]).await;
    let leader = cluster.leader().await;
    let node = cluster.places[leader].node();
    let to = cluster.places[(leader + 2) % 3].node().node_id();
    node.transfer_leader(Some(to)).await.unwrap();
    let next = wait_for("the successor", || {
        let led = |node: &&quorate_raft::Consensus| node.leadership().borrow().leading;
        cluster
            .running_nodes()
            .find(led)
            .map(quorate_raft::Consensus::node_id)
    })
    .await;
    assert_eq!(next, to);
    cluster.propose(&[publish(vec![Bytes::from_static(b"x")])]).await;

    // In an orderly stop too.
    let leader = cluster.leader().await;
    cluster.places[leader].node().shutdown().await;
    let others = wait_for("another leader", || {
        cluster
            .places
            .iter()
            .enumerate()
            .find(|(at, place)| *at != leader && place.node().leadership().borrow().leading)
            .map(|(at, _)| at)
    })
    .await;
    assert_ne!(others, leader);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_that_would_leave_no_quorum_is_refused_and_the_cluster_goes_on() {
    let mut cluster = Cluster::running(3, |_| {}).await;
    cluster.propose(&[declare()]).await;
    let leader = cluster.leader().await;
    let (away, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let (gone, id) = (
        cluster.places[away].node().node_id(),
        cluster.places[other].node().node_id(),
    );
    cluster.places[away].kill().await;

    let node = cluster.places[leader].node().clone();
    let asked = node.remove_node(id).await;
    assert!(
        matches!(&asked, Err(MembershipError::Refused(why)) if why.contains("of the 2 voters")),
        "{asked:?}"
    );
    let after = cluster.propose(&[publish(vec![Bytes::from_static(b"x")])]).await;
    cluster.agree(after.index).await;

    // Whoever is away can be removed, and then the other one.
    node.remove_node(gone).await.unwrap();
    node.remove_node(id).await.unwrap();
    assert_eq!(node.status().members.len(), 1);
    drop(node);
    cluster.shutdown().await;
}
