use std::time::Duration;

use futures_util::StreamExt as _;
use quorate_client::{
    Binding, Destination, Duplicate, Error, ExchangeKind, HeaderMatch, Message, MessageState, Reason, Target,
};
use quorate_proto::v1;
use quorate_proto::v1::binding::Destination as WireDestination;
use quorate_proto::v1::confirm::Outcome;

use crate::fake::{Node, Replicated, Step, client, detail};

#[tokio::test]
async fn a_message_carries_what_it_was_given() {
    let mut a = Node::start(&Replicated::default()).await;
    let publisher = client(&[&a.node.address])
        .publisher(Target::exchange("orders").mandatory())
        .start();
    let message = Message::new("order 9")
        .priority(7)
        .group("customer-3")
        .dedup_id("order-9")
        .routing_key("eu.paid")
        .delay(Duration::from_millis(1_500))
        .deliver_at_ms(1_700_000_000_000);
    let confirm = publisher.send(message).await;
    let mut stream = a.publish_streams.recv().await.unwrap();
    let publish = stream.take(1).await.remove(0);
    assert_eq!(
        (
            publish.queue.as_str(),
            publish.exchange.as_str(),
            publish.mandatory
        ),
        ("", "orders", true)
    );
    let expected = v1::OutgoingMessage {
        body: "order 9".into(),
        delay_ms: 1_500,
        deliver_at_ms: 1_700_000_000_000,
        priority: 7,
        group: "customer-3".to_owned(),
        dedup_id: "order-9".to_owned(),
        routing_key: "eu.paid".to_owned(),
        ..Default::default()
    };
    assert_eq!(publish.messages, [expected]);
    let answer = v1::PublishResponse {
        message_ids: vec!["7-0".to_owned()],
        duplicates: vec![v1::Duplicate {
            place: 0,
            state: v1::MessageState::Acked.into(),
        }],
        ..Default::default()
    };
    stream.answer(&publish, Outcome::Confirmed(answer)).await;
    let published = confirm.await.unwrap();
    assert_eq!(
        (published.message_id(), published.duplicate()),
        ("7-0", Some(MessageState::Acked))
    );
}

#[tokio::test]
async fn text_names_a_queue() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    client.publish("jobs", "x").await.unwrap();
    client.publish(String::from("jobs"), "y").await.unwrap();
    client.publish(Target::queue("jobs"), "z").await.unwrap();
    assert_eq!(node.replicated.log(), ["x", "y", "z"]);
}

#[tokio::test]
async fn what_had_no_route_and_what_was_known_is_told_by_its_place() {
    let node = Node::start(&Replicated::default()).await.node;
    node.script([Step::Answer(v1::PublishResponse {
        message_ids: vec!["5-0".to_owned(), "5-1".to_owned(), "2-0".to_owned()],
        unroutable: vec![1],
        duplicates: vec![v1::Duplicate {
            place: 2,
            state: v1::MessageState::Leased.into(),
        }],
        ..Default::default()
    })]);
    let messages = ["a", "b", "c"].map(Message::from);
    let published = client(&[&node.address])
        .publish_all(Target::exchange("orders"), messages)
        .await
        .unwrap();
    assert_eq!(published.unroutable, [1]);
    let known = Duplicate {
        place: 2,
        state: MessageState::Leased,
    };
    assert_eq!(published.duplicates, [known]);
    assert_eq!(published.duplicate(), None, "the first is new");
}

#[tokio::test]
async fn a_mandatory_message_without_a_route_is_refused() {
    let node = Node::start(&Replicated::default()).await.node;
    node.script([Step::Fail(detail(v1::Reason::Unroutable))]);
    let target = Target::exchange("orders").mandatory();
    let error = client(&[&node.address]).publish(target, "x").await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::Unroutable));
    assert!(!error.may_have_applied() && !error.is_retryable());
}

#[tokio::test]
async fn exchanges_are_declared_changed_and_deleted() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    node.will_answer(v1::DeclareExchangeResponse {
        created: true,
        ..Default::default()
    });
    let declared = client
        .declare_exchange("orders", ExchangeKind::Topic)
        .alternate_exchange("unmatched")
        .send()
        .await
        .unwrap();
    assert!(declared.created);
    let declare = node.heard::<v1::DeclareExchangeRequest>().remove(0);
    assert_eq!(declare.kind(), v1::ExchangeKind::Topic);
    let settings = v1::ExchangeSettings {
        alternate_exchange: Some("unmatched".to_owned()),
        dedup_window_ms: None,
        dedup_max_ids: None,
    };
    assert_eq!(declare.settings, Some(settings));

    let hour = Duration::from_secs(3_600);
    let update = client.update_exchange("orders").dedup_window(hour);
    update.dedup_max_ids(10).send().await.unwrap();
    let update = node.heard::<v1::UpdateExchangeRequest>().remove(0);
    let settings = v1::ExchangeSettings {
        alternate_exchange: None,
        dedup_window_ms: Some(3_600_000),
        dedup_max_ids: Some(10),
    };
    assert_eq!(update.settings, Some(settings));

    node.will_refuse::<v1::DeleteExchangeResponse>(detail(v1::Reason::ExchangeInUse));
    let error = client
        .delete_exchange("orders")
        .if_unused()
        .send()
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Some(Reason::ExchangeInUse));
    assert!(node.heard::<v1::DeleteExchangeRequest>()[0].if_unused);
}

#[tokio::test]
async fn bindings_lead_to_queues_and_exchanges() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    let to_queue = Binding::new("orders", "billing").routing_key("*.paid");
    client.bind(to_queue.clone()).await.unwrap();
    let headers = HeaderMatch::any().header("urgency", "high").present("escalated");
    let to_exchange = Binding::new("orders", Destination::exchange("audit")).headers(headers);
    client.bind(to_exchange).await.unwrap();
    client.unbind(to_queue).await.unwrap();

    let bound = node.heard::<v1::BindRequest>();
    let [first, second] = [0, 1].map(|place| bound[place].binding.clone().unwrap());
    assert_eq!(
        first.destination,
        Some(WireDestination::Queue("billing".to_owned()))
    );
    assert_eq!(
        (first.source.as_str(), first.routing_key.as_str()),
        ("orders", "*.paid")
    );
    assert_eq!(
        second.destination,
        Some(WireDestination::Exchange("audit".to_owned()))
    );
    let headers = second.headers.unwrap();
    assert!(headers.any && headers.headers["urgency"] == "high" && headers.present == ["escalated"]);
    assert_eq!(node.heard::<v1::UnbindRequest>()[0].binding, Some(first));
}

#[tokio::test]
async fn exchanges_are_listed_over_pages() {
    let node = Node::start(&Replicated::default()).await.node;
    let page = |names: &[&str], next: &str| v1::ListExchangesResponse {
        exchanges: names
            .iter()
            .map(|&name| v1::ExchangeInfo {
                name: name.to_owned(),
                kind: v1::ExchangeKind::Fanout.into(),
                ..Default::default()
            })
            .collect(),
        next: next.to_owned(),
        read_index: 1,
    };
    node.will_answer(page(&["a", "b"], "b"));
    node.will_answer(page(&["c"], ""));
    let exchanges = client(&[&node.address]).list_exchanges();
    let listed: Vec<_> = exchanges.map(Result::unwrap).collect().await;
    let names: Vec<_> = listed.iter().map(|exchange| exchange.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert!(
        listed
            .iter()
            .all(|exchange| exchange.kind == Some(ExchangeKind::Fanout))
    );
    let after: Vec<_> = node.heard::<v1::ListExchangesRequest>();
    assert_eq!([after[0].after.as_str(), after[1].after.as_str()], ["", "b"]);
}

#[tokio::test]
async fn one_exchange_is_asked_for_by_its_name() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    let binding = v1::Binding {
        source: "orders".to_owned(),
        destination: Some(WireDestination::Queue("billing".to_owned())),
        ..Default::default()
    };
    node.will_answer(v1::ListExchangesResponse {
        exchanges: vec![v1::ExchangeInfo {
            name: "orders".to_owned(),
            kind: v1::ExchangeKind::Headers.into(),
            received: 5,
            unroutable: 2,
            duplicates: 1,
            bindings: vec![binding],
            ..Default::default()
        }],
        ..Default::default()
    });
    let orders = client.describe_exchange("orders").await.unwrap();
    assert_eq!(orders.kind, Some(ExchangeKind::Headers));
    assert_eq!((orders.received, orders.unroutable, orders.duplicates), (5, 2, 1));
    assert_eq!(orders.bindings, [Binding::new("orders", "billing")]);
    assert_eq!(node.heard::<v1::ListExchangesRequest>()[0].name, "orders");
    // Without a name it would be a listing.
    let error = client.describe_exchange("").await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    assert_eq!(node.heard::<v1::ListExchangesRequest>().len(), 1);
}
