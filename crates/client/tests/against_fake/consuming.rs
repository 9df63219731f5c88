use std::time::Duration;

use quorate_client::{Consumer, Error, Reason};
use quorate_proto::v1;
use quorate_proto::v1::consume_request::Request;
use quorate_proto::v1::consume_response::Response;
use quorate_proto::v1::settled::Outcome;
use tokio::time::timeout;
use tonic::Status;

use crate::fake::{ConsumeStream, Node, Replicated, Started, builder, client, delivery, detail, not_leader};

impl ConsumeStream {
    async fn request(&mut self) -> Request {
        self.requests
            .message()
            .await
            .unwrap()
            .expect("a request")
            .request
            .unwrap()
    }

    /// Expects the opening, and answers it.
    async fn open(&mut self, resumed: bool) -> v1::ConsumeOpen {
        let Request::Open(open) = self.request().await else {
            panic!("the first request opens")
        };
        self.answer(Response::Opened(v1::ConsumeOpened {
            commit: None,
            resumed,
        }))
        .await;
        open
    }

    pub(crate) async fn settle(&mut self) -> v1::SettleRequest {
        match self.request().await {
            Request::Settle(settle) => settle,
            other => panic!("not a settle: {other:?}"),
        }
    }

    async fn answer(&self, response: Response) {
        self.answers
            .send(Ok(v1::ConsumeResponse {
                response: Some(response),
            }))
            .await
            .unwrap();
    }

    pub(crate) async fn deliver(&self, fences: impl IntoIterator<Item = u64>) {
        let deliveries = fences.into_iter().map(delivery).collect();
        self.answer(Response::Deliveries(v1::Deliveries { deliveries }))
            .await;
    }

    /// Says that all settlements of a request are done.
    pub(crate) async fn settled(&self, settle: &v1::SettleRequest) {
        let results = settle
            .settlements
            .iter()
            .map(|_| v1::SettleResult::default())
            .collect();
        let outcome = Outcome::Response(v1::SettleResponse {
            commit: None,
            results,
        });
        self.settled_with(settle, outcome).await;
    }

    async fn settled_with(&self, settle: &v1::SettleRequest, outcome: Outcome) {
        let sequence = settle.request_id.unwrap().sequence;
        self.answer(Response::Settled(v1::Settled {
            sequence,
            outcome: Some(outcome),
        }))
        .await;
    }

    async fn break_off(self) {
        self.answers
            .send(Err(Status::unavailable("killed")))
            .await
            .unwrap();
    }
}

/// A consumer, and the broker's end of its first stream.
pub(crate) async fn open(
    started: &mut Started,
    client: quorate_client::Client,
) -> (Consumer, ConsumeStream, v1::ConsumeOpen) {
    let opening = tokio::spawn(client.consume("jobs").prefetch(10).name("worker").open());
    let mut stream = started.consume_streams.recv().await.unwrap();
    let open = stream.open(false).await;
    (opening.await.unwrap().unwrap(), stream, open)
}

pub(crate) async fn fence(consumer: &mut Consumer) -> u64 {
    consumer.next().await.unwrap().unwrap().fence()
}

/// Nothing comes for a while.
pub(crate) async fn is_silent(consumer: &mut Consumer) -> bool {
    timeout(Duration::from_millis(100), consumer.next())
        .await
        .is_err()
}

#[tokio::test]
async fn deliveries_come_out_and_settlements_go_in_together() {
    let mut a = Node::start(&Replicated::default()).await;
    let client = client(&[&a.node.address]);
    let (mut consumer, mut stream, opened) = open(&mut a, client).await;
    assert_eq!(
        (opened.queue.as_str(), opened.credit, opened.name.as_str()),
        ("jobs", 10, "worker")
    );
    assert_ne!(opened.session, 0);
    stream.deliver([1, 2, 3]).await;
    let one = consumer.next().await.unwrap().unwrap();
    let two = consumer.next().await.unwrap().unwrap();
    let mut three = consumer.next().await.unwrap().unwrap();
    let (one, two) = (one.ack(), two.nack_after(Duration::from_secs(5), "no"));
    let settle = stream.settle().await;
    assert_eq!(settle.request_id.unwrap().client, opened.session);
    assert_eq!(settle.settlements.len(), 2);
    let stale = v1::SettleResult {
        error: Some(detail(v1::Reason::StaleLease)),
        leased_until_ms: 0,
    };
    let results = vec![v1::SettleResult::default(), stale];
    stream
        .settled_with(
            &settle,
            Outcome::Response(v1::SettleResponse {
                commit: None,
                results,
            }),
        )
        .await;
    one.await.unwrap();
    assert_eq!(two.await.unwrap_err().reason(), Some(Reason::StaleLease));

    let extending = tokio::spawn(async move {
        three.extend(Duration::from_secs(60)).await.unwrap();
        three
    });
    let settle = stream.settle().await;
    let results = vec![v1::SettleResult {
        error: None,
        leased_until_ms: 77,
    }];
    stream
        .settled_with(
            &settle,
            Outcome::Response(v1::SettleResponse {
                commit: None,
                results,
            }),
        )
        .await;
    assert_eq!(extending.await.unwrap().leased_until_ms(), 77);
}

#[tokio::test]
async fn a_session_is_resumed_on_another_node() {
    let shared = Replicated::default();
    let (mut a, mut b) = (Node::start(&shared).await, Node::start(&shared).await);
    b.node.follow(None);
    let client = client(&[&a.node.address, &b.node.address]);
    let (mut consumer, mut stream, opened) = open(&mut a, client).await;
    stream.deliver([1, 2, 3]).await;
    let one = consumer.next().await.unwrap().unwrap();
    let two = consumer.next().await.unwrap().unwrap();
    let three = consumer.next().await.unwrap().unwrap();
    let ack = one.ack();
    let settle = stream.settle().await;
    a.node.follow(None);
    b.node.lead(2);
    stream.break_off().await;

    let mut stream = b.consume_streams.recv().await.unwrap();
    assert_eq!(stream.open(true).await, opened);
    // The broker had not applied the ack: all three come again, and one more.
    stream.deliver([1, 2, 3, 4]).await;
    assert_eq!(fence(&mut consumer).await, 4);
    // The settlement comes again under its id.
    assert_eq!(stream.settle().await, settle);
    stream.settled(&settle).await;
    ack.await.unwrap();
    // A late copy of what is settled is not passed on.
    stream.deliver([1]).await;
    assert!(is_silent(&mut consumer).await);
    drop((two, three));
}

#[tokio::test]
async fn a_delivery_that_was_dropped_may_come_again() {
    let mut a = Node::start(&Replicated::default()).await;
    let client = client(&[&a.node.address]);
    let (mut consumer, stream, _) = open(&mut a, client).await;
    stream.deliver([1]).await;
    assert_eq!(fence(&mut consumer).await, 1);
    stream.break_off().await;
    let mut stream = a.consume_streams.recv().await.unwrap();
    stream.open(true).await;
    stream.deliver([1]).await;
    assert_eq!(fence(&mut consumer).await, 1);
}

#[tokio::test]
async fn a_lost_session_is_replaced_and_its_leases_are_dropped() {
    let mut a = Node::start(&Replicated::default()).await;
    let client = client(&[&a.node.address]);
    let (mut consumer, mut stream, opened) = open(&mut a, client).await;
    stream.deliver([1, 2]).await;
    let one = consumer.next().await.unwrap().unwrap();
    let ack = one.ack();
    let settle = stream.settle().await;
    stream
        .answer(Response::Ended(detail(v1::Reason::SessionLost)))
        .await;

    let mut stream = a.consume_streams.recv().await.unwrap();
    let opened_again = stream.open(false).await;
    assert_ne!(opened_again.session, opened.session);
    // The settlement is still asked about, under its old id.
    assert_eq!(stream.settle().await, settle);
    let stale = v1::SettleResult {
        error: Some(detail(v1::Reason::StaleLease)),
        leased_until_ms: 0,
    };
    let outcome = Outcome::Response(v1::SettleResponse {
        commit: None,
        results: vec![stale],
    });
    stream.settled_with(&settle, outcome).await;
    assert_eq!(ack.await.unwrap_err().reason(), Some(Reason::StaleLease));
    // 2 had not been taken: its lease is gone, and so is the delivery.
    stream.deliver([3]).await;
    assert_eq!(fence(&mut consumer).await, 3);
}

#[tokio::test]
async fn a_redirect_at_the_end_of_a_stream_is_followed() {
    let shared = Replicated::default();
    let (mut a, mut b) = (Node::start(&shared).await, Node::start(&shared).await);
    let client = client(&[&a.node.address]);
    let (_consumer, stream, opened) = open(&mut a, client).await;
    stream
        .answer(Response::Ended(not_leader(Some(&b.node.address))))
        .await;
    assert_eq!(
        b.consume_streams.recv().await.unwrap().open(true).await.session,
        opened.session
    );
}

#[tokio::test]
async fn a_deleted_queue_ends_the_consumer() {
    let mut a = Node::start(&Replicated::default()).await;
    let client = client(&[&a.node.address]);
    let (mut consumer, stream, _) = open(&mut a, client).await;
    stream
        .answer(Response::Ended(detail(v1::Reason::ConsumerCancelled)))
        .await;
    let error = consumer.next().await.unwrap().unwrap_err();
    assert_eq!(error.reason(), Some(Reason::ConsumerCancelled));
    assert!(consumer.next().await.is_none());
}

#[tokio::test]
async fn a_missing_queue_is_told_when_opening() {
    let mut a = Node::start(&Replicated::default()).await;
    let opening = tokio::spawn(client(&[&a.node.address]).consume("jobs").open());
    let mut stream = a.consume_streams.recv().await.unwrap();
    assert!(matches!(stream.request().await, Request::Open(_)));
    stream
        .answer(Response::Ended(detail(v1::Reason::QueueNotFound)))
        .await;
    assert_eq!(
        opening.await.unwrap().unwrap_err().reason(),
        Some(Reason::QueueNotFound)
    );
}

#[tokio::test]
async fn no_leader_for_too_long_ends_the_consumer() {
    let mut a = Node::start(&Replicated::default()).await;
    let client = builder(&[&a.node.address])
        .timeout(Duration::from_millis(500))
        .connect_lazy()
        .unwrap();
    let (mut consumer, mut stream, _) = open(&mut a, client).await;
    stream.deliver([1]).await;
    let ack = consumer.next().await.unwrap().unwrap().ack();
    stream.settle().await;
    a.node.follow(None);
    stream.break_off().await;
    let error = consumer.next().await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(matches!(ack.await, Err(Error::Unknown { action: "settle", .. })));
}

#[tokio::test]
async fn credit_can_be_changed_and_lasts() {
    let mut a = Node::start(&Replicated::default()).await;
    let client = client(&[&a.node.address]);
    let (consumer, mut stream, _) = open(&mut a, client).await;
    consumer.set_credit(0).await.unwrap();
    assert_eq!(
        stream.request().await,
        Request::Credit(v1::ConsumeCredit { credit: 0 })
    );
    stream.break_off().await;
    // A session cannot be opened paused.
    let mut stream = a.consume_streams.recv().await.unwrap();
    assert_eq!(stream.open(true).await.credit, 1);
    let paused = Request::Credit(v1::ConsumeCredit { credit: 0 });
    assert_eq!(stream.request().await, paused);
    assert!(matches!(
        consumer.set_credit(65_536).await,
        Err(Error::Invalid(_))
    ));
}

#[tokio::test]
async fn close_waits_for_settlements_and_ends_the_stream() {
    let mut a = Node::start(&Replicated::default()).await;
    let client = client(&[&a.node.address]);
    let (mut consumer, mut stream, _) = open(&mut a, client).await;
    stream.deliver([1, 2]).await;
    let one = consumer.next().await.unwrap().unwrap();
    let two = consumer.next().await.unwrap().unwrap();
    let ack = one.ack();
    let closing = tokio::spawn(consumer.close());
    let settle = stream.settle().await;
    assert!(!closing.is_finished());
    stream.settled(&settle).await;
    ack.await.unwrap();
    assert!(
        stream.requests.message().await.unwrap().is_none(),
        "ended from the consumer's side"
    );
    drop(stream);
    closing.await.unwrap();
    // What is settled later goes to the broker by itself.
    two.ack().await.unwrap();
    assert_eq!(a.node.settled()[0].settlements[0].token, "t2");
}

#[tokio::test]
async fn a_consumer_says_its_priority() {
    let mut a = Node::start(&Replicated::default()).await;
    let client = client(&[&a.node.address]);
    let opening = tokio::spawn(client.consume("jobs").priority(-3).open());
    let mut stream = a.consume_streams.recv().await.unwrap();
    assert_eq!(stream.open(false).await.priority, -3);
    opening.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_delivery_tells_how_it_was_published_and_where_it_died() {
    let mut a = Node::start(&Replicated::default()).await;
    let client = client(&[&a.node.address]);
    let (mut consumer, stream, _) = open(&mut a, client).await;
    let told = v1::Delivery {
        exchange: "orders".to_owned(),
        routing_key: "eu.paid".to_owned(),
        priority: 7,
        group: "customer-3".to_owned(),
        dedup_id: "order-9".to_owned(),
        last_error: "timeout".to_owned(),
        dead_letter: Some(v1::DeadLetterInfo {
            origin_queue: "billing".to_owned(),
            reason: "max-deliveries".to_owned(),
            attempts: 5,
            first_error: "no such account".to_owned(),
            last_error: String::new(),
            at_ms: 9_000,
        }),
        ..delivery(1)
    };
    let deliveries = vec![told, delivery(2)];
    stream
        .answer(Response::Deliveries(v1::Deliveries { deliveries }))
        .await;
    let told = consumer.next().await.unwrap().unwrap();
    assert_eq!(
        (told.exchange(), told.routing_key()),
        (Some("orders"), Some("eu.paid"))
    );
    assert_eq!((told.priority(), told.group()), (7, Some("customer-3")));
    assert_eq!(
        (told.dedup_id(), told.last_error()),
        (Some("order-9"), Some("timeout"))
    );
    let died = told.dead_letter_info().unwrap();
    assert_eq!(
        (died.origin_queue.as_str(), died.reason.as_str()),
        ("billing", "max-deliveries")
    );
    assert_eq!((died.attempts, died.at_ms), (5, 9_000));
    assert_eq!(
        (died.first_error.as_deref(), died.last_error),
        (Some("no such account"), None)
    );

    let plain = consumer.next().await.unwrap().unwrap();
    assert_eq!(
        (plain.exchange(), plain.routing_key(), plain.group()),
        (None, None, None)
    );
    assert_eq!((plain.dedup_id(), plain.last_error()), (None, None));
    assert_eq!(plain.dead_letter_info(), None);
}
