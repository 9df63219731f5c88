use quorate_client::{Error, JournalGap, Reason, Traced};
use quorate_proto::v1;
use quorate_proto::v1::trace_request::Message as WireTraced;

use crate::fake::{Node, Replicated, client, detail, nobody};

fn event(message_id: &str, log_index: u64, ordinal: u32, change: &str) -> v1::TraceEvent {
    v1::TraceEvent {
        message_id: message_id.to_owned(),
        log_index,
        ordinal,
        change: change.to_owned(),
        ..Default::default()
    }
}

fn journal(begins: u64, read: u64, gaps: &[(u64, u64)], events: Vec<v1::TraceEvent>) -> v1::TraceResponse {
    v1::TraceResponse {
        events,
        gaps: gaps
            .iter()
            .map(|&(from, to)| v1::JournalGap { from, to })
            .collect(),
        begins_at_index: begins,
        read_index: read,
        ..Default::default()
    }
}

#[tokio::test]
async fn what_one_journal_does_not_have_another_may() {
    let shared = Replicated::default();
    let (a, b) = (Node::start(&shared).await.node, Node::start(&shared).await.node);
    // B is known only by what A tells.
    a.knows(&[&a.address, &b.address]);
    b.follow(Some(&a.address));
    let published = event("5-0", 5, 0, "published");
    let (leased, acked) = (event("5-0", 6, 1, "leased"), event("5-0", 9, 0, "acked"));
    a.will_answer(journal(1, 9, &[(6, 7)], vec![published, acked.clone()]));
    b.will_answer(journal(6, 9, &[(7, 7)], vec![leased, acked]));
    let silent = nobody().await;
    let trace = client(&[&a.address, &silent]).trace("5-0").await.unwrap();
    let changes: Vec<_> = trace.events.iter().map(|event| event.change.as_str()).collect();
    assert_eq!(changes, ["published", "leased", "acked"]);
    assert_eq!(trace.gaps, [JournalGap { from: 7, to: 7 }]);
    let begins: Vec<_> = trace.nodes.iter().map(|node| node.begins_at_index).collect();
    assert_eq!(begins, [1, 6]);
    assert_eq!(trace.failed.len(), 1);
    assert_eq!(trace.failed[0].0, silent);
}

#[tokio::test]
async fn a_journal_that_does_not_reach_the_publish_is_asked_by_id() {
    let shared = Replicated::default();
    let (a, b) = (Node::start(&shared).await.node, Node::start(&shared).await.node);
    a.will_answer(journal(1, 9, &[(6, 9)], vec![event("5-0", 5, 0, "published")]));
    b.will_answer(journal(6, 9, &[], Vec::new()));
    let mut rest = journal(6, 9, &[], vec![event("5-0", 8, 0, "acked")]);
    rest.truncated = true;
    b.will_answer(rest);
    let client = client(&[&a.address, &b.address]);
    let trace = client.trace(Traced::dedup_id("order-9")).await.unwrap();
    let changes: Vec<_> = trace.events.iter().map(|event| event.change.as_str()).collect();
    assert_eq!(changes, ["published", "acked"]);
    assert!(trace.gaps.is_empty() && trace.truncated);
    assert_eq!(a.heard::<v1::TraceRequest>().len(), 1);
    let asked: Vec<_> = b
        .heard::<v1::TraceRequest>()
        .into_iter()
        .map(|request| request.message.unwrap())
        .collect();
    let expected = [
        WireTraced::DedupId("order-9".to_owned()),
        WireTraced::MessageId("5-0".to_owned()),
    ];
    assert_eq!(asked, expected);
}

#[tokio::test]
async fn a_node_under_two_addresses_is_asked_once() {
    let node = Node::start(&Replicated::default()).await.node;
    let other_name = format!("localhost:{}", node.id());
    let trace = client(&[&node.address, &other_name]).trace("5-0").await.unwrap();
    assert_eq!((trace.nodes.len(), trace.failed.len()), (1, 0));
    assert_eq!(node.heard::<v1::TraceRequest>().len(), 1);
}

#[tokio::test]
async fn without_any_answer_it_is_an_error() {
    let node = Node::start(&Replicated::default()).await.node;
    node.will_refuse::<v1::TraceResponse>(detail(v1::Reason::InvalidArgument));
    let error = client(&[&node.address]).trace("what").await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::InvalidArgument));
    let error = client(&[&nobody().await]).trace("5-0").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}
