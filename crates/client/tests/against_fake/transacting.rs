use std::time::Duration;

use quorate_client::{Error, Message, Reason, Target, Transaction, TransactionPart, Verdict};
use quorate_proto::v1;
use quorate_proto::v1::settlement::Verdict as WireVerdict;

use crate::consuming::{fence, is_silent, open};
use crate::fake::{Node, Replicated, client, detail};

fn done(settled: usize, published: &[&str]) -> v1::TransactResponse {
    v1::TransactResponse {
        commit: Some(v1::Commit {
            log_index: 42,
            ..Default::default()
        }),
        settled: vec![v1::SettleResult::default(); settled],
        published: published
            .iter()
            .map(|&id| v1::PublishResponse {
                message_ids: vec![id.to_owned()],
                ..Default::default()
            })
            .collect(),
    }
}

fn refused(part: &str, reason: &str) -> v1::ErrorDetail {
    let mut refusal = detail(v1::Reason::TransactionRefused);
    refusal.context.insert("part".to_owned(), part.to_owned());
    refusal.context.insert("reason".to_owned(), reason.to_owned());
    refusal
}

#[tokio::test]
async fn acks_and_publishes_go_as_one() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    let mut delivery = client.lease("jobs").send().await.unwrap().remove(0);
    node.will_answer(done(1, &["42-0", "42-1"]));
    let transacted = delivery
        .ack_and()
        .publish("next", "x")
        .publish(
            Target::exchange("progress").mandatory(),
            Message::new("y").routing_key("k"),
        )
        .commit()
        .await
        .unwrap();
    assert_eq!((transacted.commit.log_index, transacted.settled.len()), (42, 1));
    assert_eq!(transacted.published[1].message_id(), "42-1");
    assert_eq!(transacted.published[1].commit, transacted.commit);

    let requests = node.heard::<v1::TransactRequest>();
    assert_eq!(requests.len(), 1);
    let request = &requests[0];
    assert_eq!(request.settlements[0].token, "t1");
    assert!(matches!(
        request.settlements[0].verdict,
        Some(WireVerdict::Ack(_))
    ));
    assert_eq!(request.publishes[0].queue, "next");
    assert!(request.publishes[1].mandatory && request.publishes[1].exchange == "progress");
    assert_eq!(delivery.fence(), 1, "a settled delivery still tells what it was");
}

#[tokio::test]
async fn every_verdict_can_take_part() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    let mut extended = client.lease("jobs").send().await.unwrap().remove(0);
    let mut answer = done(6, &[]);
    answer.settled[4].leased_until_ms = 9_000;
    node.will_answer(answer);
    let (minute, kept) = (Duration::from_secs(60), String::from("a"));
    client
        .transaction()
        .ack(&kept)
        .nack("b", Some(minute), "later")
        .release(String::from("c"))
        .dead_letter("d", "broken")
        .extend(&mut extended, Some(minute))
        .settle("f", Verdict::Ack)
        .commit()
        .await
        .unwrap();
    assert_eq!(extended.leased_until_ms(), 9_000);
    let request = node.heard::<v1::TransactRequest>().remove(0);
    let tokens: Vec<_> = request.settlements.iter().map(|s| s.token.as_str()).collect();
    assert_eq!(tokens, ["a", "b", "c", "d", "t1", "f"]);
    let verdicts: Vec<_> = request
        .settlements
        .into_iter()
        .map(|s| s.verdict.unwrap())
        .collect();
    let nack = v1::Nack {
        delay_ms: Some(60_000),
        reason: "later".to_owned(),
    };
    assert_eq!(verdicts[1], WireVerdict::Nack(nack));
    assert_eq!(verdicts[4], WireVerdict::Extend(v1::Extend { lease_ms: 60_000 }));
}

#[tokio::test]
async fn a_refused_transaction_names_the_part_and_leaves_the_delivery_leased() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    let mut delivery = client.lease("jobs").send().await.unwrap().remove(0);
    node.will_refuse::<v1::TransactResponse>(refused("publish 1", "QUEUE_FULL"));
    let transaction = delivery.ack_and().publish("next", "x").publish("full", "y");
    let error = transaction.commit().await.unwrap_err();
    let refused = error.refusal().unwrap().refused_part().unwrap();
    assert_eq!(
        (refused.part, refused.reason),
        (TransactionPart::Publish(1), Reason::QueueFull)
    );
    assert!(!error.may_have_applied());
    delivery.nack("no room").await.unwrap();
    assert_eq!(node.settled()[0].settlements[0].token, "t1");
}

#[tokio::test]
async fn a_part_that_is_not_named_is_none() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    for part in ["", "publish", "publish x", "message 1"] {
        node.will_refuse::<v1::TransactResponse>(refused(part, "QUEUE_FULL"));
        let error = client.transaction().ack("a").commit().await.unwrap_err();
        assert_eq!(error.refusal().unwrap().refused_part(), None, "{part:?}");
    }
    node.will_refuse::<v1::TransactResponse>(refused("settlement 0", "SOMETHING_NEW"));
    let error = client.transaction().ack("a").commit().await.unwrap_err();
    let refused = error.refusal().unwrap().refused_part().unwrap();
    assert_eq!(
        (refused.part, refused.reason),
        (TransactionPart::Settlement(0), Reason::Other)
    );
}

#[tokio::test]
async fn a_transaction_without_an_answer_is_repeated_under_its_id() {
    let node = Node::start(&Replicated::default()).await.node;
    node.will_break_off::<v1::TransactResponse>();
    node.will_answer(done(1, &["42-0"]));
    let transaction = client(&[&node.address]).transaction().ack("a");
    transaction.publish("next", "x").commit().await.unwrap();
    let requests = node.heard::<v1::TransactRequest>();
    assert_eq!(requests.len(), 2);
    let ids: Vec<_> = requests
        .iter()
        .map(|request| request.request_id.unwrap())
        .collect();
    assert_eq!((ids[0].client, ids[0].sequence), (ids[1].client, ids[1].sequence));
}

#[tokio::test]
async fn what_no_broker_would_commit_is_not_sent() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    let tokens = (0..4_097).map(|n| n.to_string());
    let faults = [
        client.transaction(),
        client.transaction().ack("a").publish_all("jobs", []),
        tokens.fold(client.transaction(), Transaction::ack),
        client
            .transaction()
            .publish_all("jobs", vec![Message::new("x"); 4_096])
            .publish("jobs", "one more"),
        client
            .transaction()
            .publish("jobs", vec![0; 9 << 20])
            .publish("jobs", vec![0; 9 << 20]),
    ];
    for transaction in faults {
        assert!(matches!(transaction.commit().await, Err(Error::Invalid(_))));
    }
    assert!(node.heard::<v1::TransactRequest>().is_empty());
}

#[tokio::test]
async fn a_consumer_does_not_pass_a_transacted_delivery_on_again() {
    let mut a = Node::start(&Replicated::default()).await;
    let client = client(&[&a.node.address]);
    let (mut consumer, stream, _) = open(&mut a, client).await;
    stream.deliver([1, 2]).await;
    let mut done_one = consumer.next().await.unwrap().unwrap();
    assert_eq!(fence(&mut consumer).await, 2);
    a.node.will_answer(done(1, &["42-0"]));
    done_one.ack_and().publish("next", "x").commit().await.unwrap();
    drop(done_one);
    // The broker had sent its leases again just before; 2 was dropped unsettled.
    stream.deliver([1, 2]).await;
    assert_eq!(fence(&mut consumer).await, 2);
    assert!(is_silent(&mut consumer).await);
}

#[tokio::test]
async fn a_consumer_passes_a_delivery_on_again_whose_transaction_was_refused() {
    let mut a = Node::start(&Replicated::default()).await;
    let client = client(&[&a.node.address]);
    let (mut consumer, stream, _) = open(&mut a, client).await;
    stream.deliver([1]).await;
    let mut refused_one = consumer.next().await.unwrap().unwrap();
    let refusal = refused("settlement 0", "STALE_LEASE");
    a.node.will_refuse::<v1::TransactResponse>(refusal);
    refused_one
        .ack_and()
        .publish("next", "x")
        .commit()
        .await
        .unwrap_err();
    drop(refused_one);
    stream.deliver([1]).await;
    assert_eq!(fence(&mut consumer).await, 1);
}
