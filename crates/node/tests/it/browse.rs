//! Messages are looked at in pages, with and without their contents.

use std::collections::BTreeMap;

use quorate_node::BrokerError;
use quorate_node::broker::{Browse, Publication};
use quorate_node::content::Content;
use quorate_node::types::{MessageState, Millis, Rejection, Selector, Target};

use crate::nodes::{Nodes, browse, declare, free_address, message, publish, queue, start};

fn kind(kind: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("kind".to_owned(), kind.to_owned())])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_choose_and_contents_come_along_if_asked_for() {
    let nodes = Nodes::start(1).await;
    let broker = nodes.leader().await;
    declare(&broker, "jobs").await;
    let mut labelled = message("b", &[("kind", "report")]);
    labelled.content = Content {
        routing_key: "eu.new".to_owned(),
        priority: 4,
        ..labelled.content
    };
    let messages = vec![message("a", &[("kind", "mail")]), labelled, message("c", &[])];
    let ids = publish(&broker, Target::Queue(queue("jobs")), messages)
        .await
        .unwrap()
        .ids;

    let mut reports = Browse {
        headers: kind("report"),
        ..browse("jobs")
    };
    let (index, page) = broker.browse(&reports).await.unwrap();
    assert!(index >= ids[0].index, "the answer contains the publish");
    assert_eq!(page.next, None);
    let found: Vec<_> = page.messages.iter().map(|seen| seen.view.id).collect();
    assert_eq!(found, [ids[1]]);
    assert_eq!(page.messages[0].content, None);

    reports.with_content = true;
    let (_, page) = broker.browse(&reports).await.unwrap();
    let content = page.messages[0].content.clone().unwrap();
    assert_eq!(content.body, "b");
    assert_eq!(content.headers, kind("report"));
    assert_eq!((content.routing_key.as_str(), content.priority), ("eu.new", 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_follow_one_another_without_a_gap() {
    let nodes = Nodes::start(1).await;
    let broker = nodes.leader().await;
    declare(&broker, "jobs").await;
    let messages = (0..25).map(|n| message(n.to_string(), &[])).collect();
    let ids = publish(&broker, Target::Queue(queue("jobs")), messages)
        .await
        .unwrap()
        .ids;
    let mut page_of_ten = Browse {
        count_max: 10,
        ..browse("jobs")
    };
    let (mut seen, mut lengths) = (Vec::new(), Vec::new());
    loop {
        let (_, page) = broker.browse(&page_of_ten).await.unwrap();
        lengths.push(page.messages.len());
        seen.extend(page.messages.into_iter().map(|seen| seen.view.id));
        match page.next {
            Some(next) => page_of_ten.from = next,
            None => break,
        }
    }
    assert_eq!(lengths, [10, 10, 5]);
    assert_eq!(seen, ids);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_with_contents_ends_at_4_mib_but_has_one() {
    const MIB: usize = 1024 * 1024;
    let nodes = Nodes::start(1).await;
    let broker = nodes.leader().await;
    declare(&broker, "large").await;
    for mib in [1, 2, 2, 5] {
        let body = vec![0; mib * MIB];
        publish(&broker, Target::Queue(queue("large")), vec![message(body, &[])])
            .await
            .unwrap();
    }
    let mut with_content = Browse {
        with_content: true,
        ..browse("large")
    };
    let mut lengths = Vec::new();
    loop {
        let (_, page) = broker.browse(&with_content).await.unwrap();
        lengths.push(page.messages.len());
        match page.next {
            Some(next) => with_content.from = next,
            None => break,
        }
    }
    assert_eq!(lengths, [2, 1, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_that_reads_much_is_done_in_parts() {
    let nodes = Nodes::start(1).await;
    let broker = nodes.leader().await;
    declare(&broker, "jobs").await;
    let hay = || vec![message("", &[("kind", "hay")]); 4_096];
    let target = || Target::Queue(queue("jobs"));
    publish(&broker, target(), hay()).await.unwrap();
    let needle = publish(&broker, target(), vec![message("", &[("kind", "needle")])]);
    let needle = needle.await.unwrap().ids[0];
    let mut search = Browse {
        headers: kind("needle"),
        count_max: 1,
        ..browse("jobs")
    };
    let (_, page) = broker.browse(&search).await.unwrap();
    assert!(
        page.messages.is_empty(),
        "it stands behind what is read in one call"
    );
    search.from = page.next.expect("there is more");
    let (_, page) = broker.browse(&search).await.unwrap();
    assert_eq!(page.messages[0].view.id, needle);
    assert_eq!(page.next, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_message_is_found_by_its_id_or_its_absence_is_told() {
    let nodes = Nodes::start(1).await;
    let broker = nodes.leader().await;
    declare(&broker, "jobs").await;
    let delayed = Publication {
        delay: Millis(3_600_000),
        ..message("later", &[])
    };
    let ids = publish(&broker, Target::Queue(queue("jobs")), vec![delayed])
        .await
        .unwrap()
        .ids;
    let by_id = Selector::Message(ids[0]);
    let (_, seen) = broker.message(&queue("jobs"), &by_id, true, false).await.unwrap();
    assert_eq!(seen.view.state, MessageState::Delayed);
    assert_eq!(seen.content.unwrap().body, "later");

    let by_dedup_id = Selector::DedupId("order-7".to_owned());
    let error = broker
        .message(&queue("jobs"), &by_dedup_id, false, false)
        .await
        .unwrap_err();
    let BrokerError::Rejected(Rejection::MessageNotFound { message, .. }) = &error else {
        panic!("{error}");
    };
    assert_eq!(*message, by_dedup_id);
    let error = broker
        .message(&queue("nowhere"), &by_id, false, false)
        .await
        .unwrap_err();
    assert!(
        matches!(error, BrokerError::Rejected(Rejection::QueueNotFound(_))),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_look_needs_no_leader() {
    let (here, absent) = (free_address(), free_address());
    let (node, _dir) = start(here, &[here, absent]).await;
    let mut look = browse("jobs");
    let error = node.broker().browse(&look).await.unwrap_err();
    assert!(matches!(error, BrokerError::NoLeader), "{error}");
    look.local = true;
    let error = node.broker().browse(&look).await.unwrap_err();
    assert!(
        matches!(error, BrokerError::Rejected(Rejection::QueueNotFound(_))),
        "it looked: {error}"
    );
    node.stop().await;
}
