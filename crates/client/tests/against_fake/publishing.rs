use std::time::{Duration, Instant};

use quorate_client::{Error, Reason};
use quorate_proto::v1;
use quorate_proto::v1::confirm::Outcome;
use tonic::Status;

use crate::fake::{Node, Proxy, PublishStream, Replicated, builder, client, detail, not_leader};

impl PublishStream {
    /// The next `count` publishes, however they are framed.
    pub(crate) async fn take(&mut self, count: usize) -> Vec<v1::PublishRequest> {
        let mut publishes = Vec::new();
        while publishes.len() < count {
            let frame = self.requests.message().await.unwrap().expect("more publishes");
            publishes.extend(frame.publishes);
        }
        publishes
    }

    pub(crate) async fn answer(&self, request: &v1::PublishRequest, outcome: Outcome) {
        let sequence = request.request_id.unwrap().sequence;
        let confirms = vec![v1::Confirm {
            sequence,
            outcome: Some(outcome),
        }];
        self.answers
            .send(Ok(v1::PublishStreamResponse { confirms }))
            .await
            .unwrap();
    }

    /// Applies and confirms everything until the stream ends.
    async fn serve(mut self, replicated: Replicated) {
        while let Ok(Some(frame)) = self.requests.message().await {
            let confirms = frame.publishes.iter().map(|publish| v1::Confirm {
                sequence: publish.request_id.unwrap().sequence,
                outcome: Some(Outcome::Confirmed(replicated.publish(publish))),
            });
            let answer = v1::PublishStreamResponse {
                confirms: confirms.collect(),
            };
            if self.answers.send(Ok(answer)).await.is_err() {
                return;
            }
        }
    }
}

fn bodies(count: usize) -> Vec<String> {
    (0..count).map(|n| n.to_string()).collect()
}

#[tokio::test]
async fn messages_are_confirmed_in_order_and_share_frames() {
    let shared = Replicated::default();
    let mut a = Node::start(&shared).await;
    let client = client(&[&a.node.address]);
    let publisher = client.publisher("jobs").window(100).start();
    let serving = tokio::spawn(async move {
        a.publish_streams
            .recv()
            .await
            .unwrap()
            .serve(shared.clone())
            .await;
    });
    let mut confirms = Vec::new();
    for body in bodies(2_000) {
        confirms.push(publisher.send(body).await);
    }
    for (n, confirm) in confirms.into_iter().enumerate() {
        assert_eq!(confirm.await.unwrap().message_id(), format!("{n}-0"));
    }
    publisher.close().await;
    // Closing ended the stream.
    serving.await.unwrap();
    assert_eq!(a.node.replicated.log(), bodies(2_000));
}

#[tokio::test]
async fn the_unconfirmed_go_again_in_order_over_the_next_stream() {
    let shared = Replicated::default();
    let (mut a, mut b) = (Node::start(&shared).await, Node::start(&shared).await);
    b.node.follow(None);
    let client = client(&[&a.node.address, &b.node.address]);
    let publisher = client.publisher("jobs").start();
    let mut confirms = Vec::new();
    for body in bodies(10) {
        confirms.push(publisher.send(body).await);
    }
    let mut stream = a.publish_streams.recv().await.unwrap();
    let first = stream.take(10).await;
    // Five are applied; of these, the answers of 1 and 3 get through.
    for (n, publish) in first.iter().take(5).enumerate() {
        let published = shared.publish(publish);
        if n == 1 || n == 3 {
            stream.answer(publish, Outcome::Confirmed(published)).await;
        }
    }
    stream
        .answers
        .send(Err(Status::unavailable("killed")))
        .await
        .unwrap();
    a.node.follow(None);
    b.node.lead(2);

    let mut stream = b.publish_streams.recv().await.unwrap();
    let again = stream.take(8).await;
    let sequence = |publish: &v1::PublishRequest| publish.request_id.unwrap().sequence;
    assert_eq!(
        again.iter().map(sequence).collect::<Vec<_>>(),
        [1, 3, 5, 6, 7, 8, 9, 10]
    );
    assert!(
        again
            .iter()
            .all(|publish| publish.request_id.unwrap().client == first[0].request_id.unwrap().client)
    );
    for publish in &again {
        stream
            .answer(publish, Outcome::Confirmed(shared.publish(publish)))
            .await;
    }
    for (n, confirm) in confirms.into_iter().enumerate() {
        assert_eq!(confirm.await.unwrap().message_id(), format!("{n}-0"));
    }
    assert_eq!(shared.log(), bodies(10));
}

#[tokio::test]
async fn a_confirm_that_redirects_moves_the_whole_stream() {
    let shared = Replicated::default();
    let (mut a, mut b) = (Node::start(&shared).await, Node::start(&shared).await);
    let client = client(&[&a.node.address]);
    let publisher = client.publisher("jobs").start();
    let confirms = [publisher.send("0").await, publisher.send("1").await];
    let mut stream = a.publish_streams.recv().await.unwrap();
    let publishes = stream.take(2).await;
    stream
        .answer(&publishes[0], Outcome::Error(not_leader(Some(&b.node.address))))
        .await;
    tokio::spawn(b.publish_streams.recv().await.unwrap().serve(shared.clone()));
    for confirm in confirms {
        confirm.await.unwrap();
    }
    assert_eq!(shared.log(), bodies(2));
}

#[tokio::test]
async fn a_refusal_concerns_its_message_alone() {
    let shared = Replicated::default();
    let mut a = Node::start(&shared).await;
    let publisher = client(&[&a.node.address]).publisher("jobs").start();
    let (full, fine) = (publisher.send("0").await, publisher.send("1").await);
    let mut stream = a.publish_streams.recv().await.unwrap();
    let publishes = stream.take(2).await;
    stream
        .answer(&publishes[0], Outcome::Error(detail(v1::Reason::QueueFull)))
        .await;
    stream
        .answer(&publishes[1], Outcome::Confirmed(shared.publish(&publishes[1])))
        .await;
    assert_eq!(full.await.unwrap_err().reason(), Some(Reason::QueueFull));
    fine.await.unwrap();
}

#[tokio::test]
async fn a_forgotten_client_id_is_replaced_under_way() {
    let shared = Replicated::default();
    let mut a = Node::start(&shared).await;
    let publisher = client(&[&a.node.address]).publisher("jobs").start();
    let confirms = [publisher.send("0").await, publisher.send("1").await];
    let mut stream = a.publish_streams.recv().await.unwrap();
    let publishes = stream.take(2).await;
    for publish in &publishes {
        stream
            .answer(publish, Outcome::Error(detail(v1::Reason::RequestForgotten)))
            .await;
    }
    let again = stream.take(2).await;
    assert_ne!(
        again[0].request_id.unwrap().client,
        publishes[0].request_id.unwrap().client
    );
    assert_eq!(again[0].request_id.unwrap().sequence, 1);
    for publish in &again {
        stream
            .answer(publish, Outcome::Confirmed(shared.publish(publish)))
            .await;
    }
    for confirm in confirms {
        confirm.await.unwrap();
    }
    assert_eq!(shared.log(), bodies(2));
}

#[tokio::test]
async fn a_confirm_that_never_comes_is_unknown_and_frees_the_window() {
    let mut a = Node::start(&Replicated::default()).await;
    let client = builder(&[&a.node.address])
        .timeout(Duration::from_millis(600))
        .connect_lazy()
        .unwrap();
    let publisher = client.publisher("jobs").window(1).start();
    let confirm = publisher.send("0").await;
    let mut stream = a.publish_streams.recv().await.unwrap();
    stream.take(1).await;
    let error = confirm.await.unwrap_err();
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
    let _second = publisher.send("1").await;
    assert_eq!(stream.take(1).await[0].request_id.unwrap().oldest_unanswered, 2);
}

#[tokio::test]
async fn a_frozen_leader_is_left_by_a_publisher() {
    let shared = Replicated::default();
    let (mut a, mut b) = (Node::start(&shared).await, Node::start(&shared).await);
    let proxy = Proxy::start(&a.node.address).await;
    b.node.follow(None);
    let client = client(&[&proxy.address, &b.node.address]);
    let publisher = client.publisher("jobs").start();
    let first = publisher.send("0").await;
    tokio::spawn(a.publish_streams.recv().await.unwrap().serve(shared.clone()));
    first.await.unwrap();
    proxy.freeze();
    b.node.lead(2);
    let start = Instant::now();
    let second = publisher.send("1").await;
    tokio::spawn(b.publish_streams.recv().await.unwrap().serve(shared.clone()));
    second.await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(shared.log(), bodies(2));
}

#[tokio::test]
async fn flush_waits_for_all_confirms() {
    let shared = Replicated::default();
    let mut a = Node::start(&shared).await;
    let publisher = client(&[&a.node.address]).publisher("jobs").window(10).start();
    tokio::spawn(async move {
        a.publish_streams
            .recv()
            .await
            .unwrap()
            .serve(a.node.replicated)
            .await;
    });
    for body in bodies(50) {
        drop(publisher.send(body).await);
    }
    publisher.flush().await;
    assert_eq!(shared.log(), bodies(50));
}
