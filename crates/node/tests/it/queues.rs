//! Queues are paused, and say what is in the way of their messages.

use quorate_node::types::{Obstacle, RequestId, Target};
use quorate_node::{BrokerError, types};

use crate::nodes::{Nodes, declare, message, publish, queue, wait_for};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_says_what_is_in_the_way() {
    let nodes = Nodes::start(1).await;
    let broker = nodes.leader().await;
    declare(&broker, "jobs").await;
    publish(&broker, Target::Queue(queue("jobs")), vec![message("x", &[])])
        .await
        .unwrap();
    broker.pause_queue(None, queue("jobs"), true).await.unwrap();
    let (_, explanation) = broker.explain_queue(&queue("jobs")).await.unwrap();
    assert!(explanation.queue.paused && !explanation.no_leader);
    let obstacles = explanation.obstacles;
    assert!(obstacles.contains(&Obstacle::Paused), "{obstacles:?}");
    assert!(
        obstacles.contains(&Obstacle::NoConsumer { ready: 1 }),
        "{obstacles:?}"
    );
    broker.pause_queue(None, queue("jobs"), false).await.unwrap();
    let (_, explanation) = broker.explain_queue(&queue("jobs")).await.unwrap();
    assert_eq!(explanation.obstacles, [Obstacle::NoConsumer { ready: 1 }]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_leader_a_node_says_so_and_what_it_knows() {
    let mut nodes = Nodes::start(3).await;
    declare(&nodes.leader().await, "jobs").await;
    let left = nodes.stop_all_but_one().await;
    let explanation = wait_for("an answer without a leader", || async {
        match left.explain_queue(&queue("jobs")).await {
            Ok((_, explanation)) => explanation.no_leader.then_some(explanation),
            // It has not noticed yet.
            Err(BrokerError::NotLeader(_)) => None,
            Err(error) => panic!("{error}"),
        }
    })
    .await;
    assert_eq!(explanation.queue.name, queue("jobs"));
    assert_eq!(explanation.obstacles, [Obstacle::Empty]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_pause_is_answered_from_where_it_was_done() {
    let nodes = Nodes::start(1).await;
    let broker = nodes.leader().await;
    declare(&broker, "jobs").await;
    let id = Some(RequestId {
        client: types::ClientId(7),
        sequence: 1,
        oldest_unanswered: 1,
    });
    let (first, ()) = broker.pause_queue(id, queue("jobs"), true).await.unwrap();
    broker.pause_queue(None, queue("jobs"), false).await.unwrap();
    let (again, ()) = broker.pause_queue(id, queue("jobs"), true).await.unwrap();
    assert_eq!(first.index, again.index);
    let (_, view) = broker.queue(&queue("jobs")).await.unwrap();
    assert!(!view.paused, "the repetition did nothing");
}
