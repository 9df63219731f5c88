use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use quorate_client::{Error, Message, Reason};
use quorate_proto::v1;

use crate::fake::{Node, Proxy, Replicated, Step, builder, client, detail, nobody, not_leader};

#[tokio::test]
async fn a_redirect_is_followed() {
    let shared = Replicated::default();
    let (a, b) = (Node::start(&shared).await.node, Node::start(&shared).await.node);
    // A believes that it leads until it is asked to publish.
    a.script([Step::Fail(not_leader(Some(&b.address)))]);
    let client = client(&[&a.address]);
    client.publish("jobs", "x").await.unwrap();
    client.publish("jobs", "y").await.unwrap();
    assert_eq!((a.seen().len(), b.seen().len()), (1, 2));
    assert_eq!(a.seen()[0].sequence, b.seen()[0].sequence);
}

/// Nobody could be reached in time; or, if an attempt was under way when the
/// time was up, its outcome is unknown.
fn is_out_of_time(error: &Error) -> bool {
    match error {
        Error::Unreachable { .. } => !error.may_have_applied(),
        Error::Unknown { .. } => error.may_have_applied(),
        _ => false,
    }
}

#[tokio::test]
async fn nodes_that_point_at_each_other_are_asked_a_bounded_number_of_times() {
    let shared = Replicated::default();
    let (a, b) = (Node::start(&shared).await.node, Node::start(&shared).await.node);
    a.follow(Some(&b.address));
    b.follow(Some(&a.address));
    let client = builder(&[&a.address, &b.address])
        .timeout(Duration::from_secs(1))
        .connect_lazy()
        .unwrap();
    let error = client.publish("jobs", "x").await.unwrap_err();
    assert!(is_out_of_time(&error), "{error}");
    // Now both also claim to lead, which keeps the loop going.
    for node in [&a, &b] {
        let other = if node.address == a.address { &b } else { &a };
        node.lead(1);
        node.script((0..1_000).map(|_| Step::Fail(not_leader(Some(&other.address)))));
    }
    let error = client.publish("jobs", "x").await.unwrap_err();
    assert!(is_out_of_time(&error), "{error}");
    let attempts = a.seen().len() + b.seen().len();
    assert!(attempts < 60, "{attempts} attempts in a second");
}

#[tokio::test]
async fn members_are_learned_from_the_one_endpoint_that_answers() {
    let shared = Replicated::default();
    let (a, b) = (Node::start(&shared).await.node, Node::start(&shared).await.node);
    a.follow(None);
    a.knows(&[&a.address, &b.address]);
    let client = builder(&[&nobody().await, &a.address]).connect().await.unwrap();
    client.publish("jobs", "x").await.unwrap();
    assert_eq!((a.seen().len(), b.seen().len()), (0, 1));
}

#[tokio::test]
async fn of_two_that_claim_to_lead_the_higher_term_is_believed() {
    let shared = Replicated::default();
    let (a, b) = (Node::start(&shared).await.node, Node::start(&shared).await.node);
    b.lead(2);
    client(&[&a.address, &b.address])
        .publish("jobs", "x")
        .await
        .unwrap();
    assert_eq!((a.seen().len(), b.seen().len()), (0, 1));
}

#[tokio::test]
async fn a_refusal_says_why_and_is_not_repeated() {
    let node = Node::start(&Replicated::default()).await.node;
    let mut refusal = detail(v1::Reason::QueueNotFound);
    refusal.context.insert("queue".to_owned(), "jobs".to_owned());
    node.script([Step::Fail(refusal)]);
    let error = client(&[&node.address]).publish("jobs", "x").await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::QueueNotFound));
    assert_eq!(error.refusal().unwrap().context["queue"], "jobs");
    assert!(!error.may_have_applied() && !error.is_retryable());
    assert_eq!(node.seen().len(), 1);
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_under_the_same_id() {
    let shared = Replicated::default();
    let node = Node::start(&shared).await.node;
    node.script([Step::LoseAnswer, Step::Hang, Step::LoseAnswer]);
    let client = client(&[&node.address]);
    let published = client.publish("jobs", "x").await.unwrap();
    assert_eq!(published.message_id(), "0-0");
    assert_eq!(shared.log(), ["x"]);
    let seen = node.seen();
    assert_eq!(seen.len(), 4);
    assert!(
        seen.iter()
            .all(|id| (id.client, id.sequence) == (seen[0].client, 1))
    );
    client.publish("jobs", "y").await.unwrap();
    let last = node.seen()[4];
    assert_eq!((last.sequence, last.oldest_unanswered), (2, 2));
}

#[tokio::test]
async fn a_timeout_is_unknown_if_it_was_sent_and_unreachable_if_not() {
    let node = Node::start(&Replicated::default()).await.node;
    node.script((0..100).map(|_| Step::Hang));
    let short = Duration::from_millis(500);
    let sent = builder(&[&node.address]).timeout(short).connect_lazy().unwrap();
    let error = sent.publish("jobs", "x").await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Unknown {
                action: "publish",
                ..
            }
        ),
        "{error}"
    );
    assert!(error.may_have_applied());
    // What changes nothing is not unknown.
    let error = sent.describe_queue("jobs").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");

    let not_sent = builder(&[&nobody().await]).timeout(short);
    let error = not_sent
        .clone()
        .connect_lazy()
        .unwrap()
        .publish("jobs", "x")
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(matches!(not_sent.connect().await, Err(Error::Unreachable { .. })));
}

#[tokio::test]
async fn an_overload_that_lasts_is_a_refusal() {
    let node = Node::start(&Replicated::default()).await.node;
    node.script((0..1_000).map(|_| {
        Step::Fail(v1::ErrorDetail {
            retryable: true,
            retry_after_ms: 50,
            ..detail(v1::Reason::Overloaded)
        })
    }));
    let client = builder(&[&node.address])
        .timeout(Duration::from_millis(500))
        .connect_lazy()
        .unwrap();
    let error = client.publish("jobs", "x").await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::Overloaded));
    assert!(node.seen().len() <= 11, "the advice to wait is heeded");
}

#[tokio::test]
async fn a_forgotten_client_id_is_replaced_at_the_first_attempt() {
    let shared = Replicated::default();
    let node = Node::start(&shared).await.node;
    node.script([Step::Fail(detail(v1::Reason::RequestForgotten))]);
    client(&[&node.address]).publish("jobs", "x").await.unwrap();
    let seen = node.seen();
    assert_ne!(seen[0].client, seen[1].client);
    assert_eq!((seen[1].sequence, shared.log().len()), (1, 1));
}

#[tokio::test]
async fn forgotten_after_a_lost_answer_is_unknown() {
    let shared = Replicated::default();
    let node = Node::start(&shared).await.node;
    node.script([Step::LoseAnswer, Step::Fail(detail(v1::Reason::RequestForgotten))]);
    let error = client(&[&node.address]).publish("jobs", "x").await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error}");
    assert_eq!(shared.log(), ["x"]);
}

#[tokio::test]
async fn a_frozen_leader_is_left_within_a_second() {
    let shared = Replicated::default();
    let (a, b) = (Node::start(&shared).await.node, Node::start(&shared).await.node);
    let proxy = Proxy::start(&a.address).await;
    b.follow(None);
    let client = client(&[&proxy.address, &b.address]);
    client.publish("jobs", "x").await.unwrap();
    proxy.freeze();
    b.lead(2);
    let start = Instant::now();
    client.publish("jobs", "y").await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(shared.log(), ["x", "y"]);
}

#[tokio::test]
async fn a_frozen_leader_is_left_also_under_a_long_call() {
    let shared = Replicated::default();
    let (a, b) = (Node::start(&shared).await.node, Node::start(&shared).await.node);
    let proxy = Proxy::start(&a.address).await;
    b.follow(None);
    let client = client(&[&proxy.address, &b.address]);
    client.publish("jobs", "x").await.unwrap();
    proxy.freeze();
    b.lead(2);
    let start = Instant::now();
    let deliveries = client
        .lease("jobs")
        .max(3)
        .wait(Duration::from_secs(60))
        .send()
        .await
        .unwrap();
    assert_eq!(deliveries.len(), 3);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_change_of_members_is_not_repeated() {
    let node = Node::start(&Replicated::default()).await.node;
    let error = client(&[&node.address])
        .cluster()
        .add("127.0.0.1:1")
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::Unknown {
                action: "add node",
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn each_lease_has_its_own_result() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    let results = client.ack(["a", "stale", "b"]).await.unwrap();
    assert!(results[0].is_ok() && results[2].is_ok());
    assert_eq!(
        results[1].as_ref().unwrap_err().reason(),
        Some(Reason::StaleLease)
    );
    assert!(matches!(
        client.ack(Vec::<String>::new()).await,
        Err(Error::Invalid(_))
    ));
}

#[tokio::test]
async fn acks_of_leased_deliveries_share_requests() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    let deliveries = client.lease("jobs").max(500).send().await.unwrap();
    let acks: Vec<_> = deliveries
        .into_iter()
        .map(quorate_client::Delivery::ack)
        .collect();
    for ack in acks {
        ack.await.unwrap();
    }
    let requests = node.settled();
    assert_eq!(
        requests
            .iter()
            .map(|request| request.settlements.len())
            .sum::<usize>(),
        500
    );
    assert!(requests.len() < 10, "{} requests", requests.len());
}

#[tokio::test]
async fn queues_are_listed_over_pages() {
    let node = Node::start(&Replicated::default()).await.node;
    let queues = client(&[&node.address]).list_queues();
    let names: Vec<_> = queues.map(|queue| queue.unwrap().name).collect().await;
    assert_eq!(names, ["a", "b", "c"]);
}

#[tokio::test]
async fn what_no_broker_would_take_is_not_sent() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    assert!(matches!(
        client.publish_all("jobs", []).await,
        Err(Error::Invalid(_))
    ));
    let large = Message::new(vec![0; (16 << 20) + 1]);
    assert!(matches!(
        client.publish("jobs", large).await,
        Err(Error::Invalid(_))
    ));
    assert!(matches!(
        client.consume("jobs").prefetch(0).open().await,
        Err(Error::Invalid(_))
    ));
    assert!(node.seen().is_empty());
}

#[tokio::test]
async fn a_snapshot_is_asked_of_one_node() {
    let node = Node::start(&Replicated::default()).await.node;
    node.follow(None);
    assert_eq!(
        client(&[&node.address])
            .cluster()
            .snapshot(&node.address)
            .await
            .unwrap(),
        17
    );
    let statuses = client(&[&node.address, &nobody().await])
        .cluster()
        .status_all()
        .await;
    assert_eq!(statuses[0].1.as_ref().unwrap().role, "follower");
    assert!(matches!(statuses[1].1, Err(Error::Unreachable { .. })));
}
