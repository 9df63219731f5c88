//! Publishes go through exchanges, with what the exchanges look at.

use std::collections::BTreeMap;

use quorate_node::types::{
    Binding, Destination, ExchangeKind, ExchangeName, ExchangeSettingsPatch, HeaderMatch, Rejection, Target,
};
use quorate_node::{Broker, BrokerError};

use crate::nodes::{Nodes, bodies, declare, message, publish, queue};

fn exchange(name: &str) -> ExchangeName {
    ExchangeName::new(name).unwrap()
}

fn through(name: &str, mandatory: bool) -> Target {
    Target::Exchange {
        name: exchange(name),
        mandatory,
    }
}

fn binding(source: &str, to: &str, routing_key: &str) -> Binding {
    Binding {
        source: exchange(source),
        destination: Destination::Queue(queue(to)),
        routing_key: routing_key.to_owned(),
        headers: None,
    }
}

async fn declare_exchange(broker: &Broker, name: &str, kind: ExchangeKind) -> bool {
    let settings = ExchangeSettingsPatch::default();
    let declared = broker
        .declare_exchange(None, exchange(name), kind, settings)
        .await;
    declared.unwrap().1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_reaches_the_queues_that_its_key_leads_to() {
    let nodes = Nodes::start(1).await;
    let broker = nodes.leader().await;
    declare(&broker, "eu").await;
    declare(&broker, "all").await;
    assert!(declare_exchange(&broker, "orders", ExchangeKind::Topic).await);
    assert!(!declare_exchange(&broker, "orders", ExchangeKind::Topic).await);
    let (_, created) = broker.bind(None, binding("orders", "eu", "eu.*")).await.unwrap();
    assert!(created);
    broker.bind(None, binding("orders", "all", "#")).await.unwrap();

    let keyed = |body: &'static str, key: &str| {
        let mut message = message(body, &[]);
        message.content.routing_key = key.to_owned();
        message
    };
    let messages = vec![keyed("a", "eu.new"), keyed("b", "us.new")];
    publish(&broker, through("orders", false), messages)
        .await
        .unwrap();
    assert_eq!(bodies(&broker, "eu").await, ["a"]);
    assert_eq!(bodies(&broker, "all").await, ["a", "b"]);

    broker.unbind(None, binding("orders", "all", "#")).await.unwrap();
    let published = publish(&broker, through("orders", false), vec![keyed("c", "us.new")]);
    assert_eq!(published.await.unwrap().unroutable, [0]);
    let refused = publish(&broker, through("orders", true), vec![keyed("d", "us.new")])
        .await
        .unwrap_err();
    assert!(
        matches!(refused, BrokerError::Rejected(Rejection::Unroutable { .. })),
        "{refused}"
    );

    let (_, view) = broker.exchange(&exchange("orders")).await.unwrap();
    assert_eq!(view.bindings, [binding("orders", "eu", "eu.*")]);
    let (_, views) = broker.exchanges(None, 10).await.unwrap();
    assert_eq!(views, [view]);
    broker
        .delete_exchange(None, exchange("orders"), false)
        .await
        .unwrap();
    let error = broker.exchange(&exchange("orders")).await.unwrap_err();
    assert!(
        matches!(error, BrokerError::Rejected(Rejection::ExchangeNotFound(_))),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_sees_the_headers_of_what_is_published_to_it() {
    let nodes = Nodes::start(1).await;
    let broker = nodes.leader().await;
    declare(&broker, "reports").await;
    declare_exchange(&broker, "by-kind", ExchangeKind::Headers).await;
    let reports = HeaderMatch {
        any: false,
        headers: BTreeMap::from([("kind".to_owned(), Some("report".to_owned()))]),
    };
    let binding = Binding {
        headers: Some(reports),
        ..binding("by-kind", "reports", "")
    };
    broker.bind(None, binding).await.unwrap();
    let messages = vec![
        message("a", &[("kind", "report"), ("tenant", "7")]),
        message("b", &[("kind", "mail")]),
        message("c", &[]),
    ];
    let published = publish(&broker, through("by-kind", false), messages)
        .await
        .unwrap();
    assert_eq!(published.unroutable, [1, 2]);
    assert_eq!(bodies(&broker, "reports").await, ["a"]);
}
