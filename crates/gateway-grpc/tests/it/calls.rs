//! Calls are answered with what the broker did.

use std::collections::BTreeMap;

use quorate_proto::v1::{self, Reason};

use crate::scene::{Scene, declare, detail, message, publish};

fn id(sequence: u64) -> Option<v1::RequestId> {
    Some(v1::RequestId {
        client: 7,
        sequence,
        oldest_unanswered: 1,
    })
}

fn topic(name: &str) -> v1::DeclareExchangeRequest {
    v1::DeclareExchangeRequest {
        name: name.to_owned(),
        kind: v1::ExchangeKind::Topic.into(),
        ..v1::DeclareExchangeRequest::default()
    }
}

fn binding(source: &str, queue: &str, routing_key: &str) -> v1::Binding {
    v1::Binding {
        source: source.to_owned(),
        destination: Some(v1::binding::Destination::Queue(queue.to_owned())),
        routing_key: routing_key.to_owned(),
        headers: None,
    }
}

fn bind(source: &str, queue: &str, routing_key: &str) -> v1::BindRequest {
    v1::BindRequest {
        request_id: None,
        binding: Some(binding(source, queue, routing_key)),
    }
}

fn lease(queue: &str) -> v1::LeaseRequest {
    v1::LeaseRequest {
        queue: queue.to_owned(),
        max_messages: 10,
        ..v1::LeaseRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_shows_a_message_as_it_was_published() {
    let mut client = Scene::set().await.client;
    client.declare_exchange(topic("orders")).await.unwrap();
    client.bind(bind("orders", "jobs", "eu.#")).await.unwrap();
    let published = v1::OutgoingMessage {
        headers: BTreeMap::from([("kind".to_owned(), "new".to_owned())]),
        routing_key: "eu.de.new".to_owned(),
        priority: 5,
        group: "tenant-7".to_owned(),
        dedup_id: "order-1".to_owned(),
        ..message("x")
    };
    let request = v1::PublishRequest {
        exchange: "orders".to_owned(),
        messages: vec![published.clone()],
        mandatory: true,
        ..v1::PublishRequest::default()
    };
    let confirmed = client.publish(request).await.unwrap().into_inner();
    let deliveries = client.lease(lease("jobs")).await.unwrap().into_inner().deliveries;
    let [delivery] = deliveries.as_slice() else {
        panic!("{deliveries:?}")
    };
    assert_eq!(delivery.message_id, confirmed.message_ids[0]);
    assert_eq!(delivery.body, published.body);
    assert_eq!(delivery.headers, published.headers);
    assert_eq!(delivery.exchange, "orders");
    assert_eq!(delivery.routing_key, published.routing_key);
    assert_eq!(delivery.priority, published.priority);
    assert_eq!(delivery.group, published.group);
    assert_eq!(delivery.dedup_id, published.dedup_id);

    let browse = v1::BrowseRequest {
        queue: "jobs".to_owned(),
        with_content: true,
        ..v1::BrowseRequest::default()
    };
    let page = client.browse(browse).await.unwrap().into_inner();
    let [seen] = page.messages.as_slice() else {
        panic!("{page:?}")
    };
    assert_eq!(page.next, 0);
    assert_eq!(seen.state(), v1::MessageState::Leased);
    assert_eq!(seen.lease.unwrap().fence, delivery.fence);
    assert_eq!(
        (seen.exchange.as_str(), seen.routing_key.as_str()),
        ("orders", "eu.de.new")
    );
    assert_eq!((seen.priority, seen.group.as_str()), (5, "tenant-7"));
    assert_eq!(seen.body, published.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exchanges_are_listed_in_pages_with_their_bindings() {
    let mut client = Scene::set().await.client;
    for name in ["a", "b", "c"] {
        let created = client.declare_exchange(topic(name)).await.unwrap().into_inner();
        assert!(created.created);
    }
    client.bind(bind("b", "jobs", "#")).await.unwrap();
    let mut list = v1::ListExchangesRequest {
        page_size: 2,
        ..v1::ListExchangesRequest::default()
    };
    let first = client.list_exchanges(list.clone()).await.unwrap().into_inner();
    let names = |page: &v1::ListExchangesResponse| {
        let names = page.exchanges.iter().map(|exchange| exchange.name.clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(
        (names(&first), first.next.as_str()),
        (vec!["a".into(), "b".into()], "b")
    );
    assert_eq!(first.exchanges[1].bindings, [binding("b", "jobs", "#")]);
    list.after = first.next;
    let last = client.list_exchanges(list).await.unwrap().into_inner();
    assert_eq!((names(&last), last.next.as_str()), (vec!["c".into()], ""));

    let one = |name: &str| v1::ListExchangesRequest {
        name: name.to_owned(),
        ..v1::ListExchangesRequest::default()
    };
    let found = client.list_exchanges(one("b")).await.unwrap().into_inner();
    assert_eq!(names(&found), ["b"]);
    let missing = client.list_exchanges(one("d")).await.unwrap_err();
    assert_eq!(detail(&missing).reason(), Reason::ExchangeNotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_refusal_has_its_reason() {
    let mut client = Scene::set().await.client;
    client.declare_exchange(topic("orders")).await.unwrap();
    let mut other_kind = topic("orders");
    other_kind.kind = v1::ExchangeKind::Fanout.into();
    let conflict = client.declare_exchange(other_kind).await.unwrap_err();
    assert_eq!(detail(&conflict).reason(), Reason::ExchangeConflict);
    assert!(
        detail(&conflict).context["differing"].contains("kind"),
        "{conflict:?}"
    );

    let unroutable = v1::PublishRequest {
        exchange: "orders".to_owned(),
        mandatory: true,
        messages: vec![v1::OutgoingMessage {
            routing_key: "nowhere".to_owned(),
            ..message("x")
        }],
        ..v1::PublishRequest::default()
    };
    let refused = client.publish(unroutable).await.unwrap_err();
    assert_eq!(detail(&refused).reason(), Reason::Unroutable);
    assert_eq!(detail(&refused).context["routing_key"], "nowhere");

    client.bind(bind("orders", "jobs", "#")).await.unwrap();
    let in_use = v1::DeleteExchangeRequest {
        name: "orders".to_owned(),
        if_unused: true,
        ..v1::DeleteExchangeRequest::default()
    };
    let in_use = client.delete_exchange(in_use).await.unwrap_err();
    assert_eq!(detail(&in_use).reason(), Reason::ExchangeInUse);
    assert_eq!(detail(&in_use).context["bindings"], "1");

    let get = v1::GetMessageRequest {
        queue: "jobs".to_owned(),
        message: Some(v1::MessageSelector {
            selector: Some(v1::message_selector::Selector::MessageId("1-0".to_owned())),
        }),
        ..v1::GetMessageRequest::default()
    };
    let missing = client.get_message(get).await.unwrap_err();
    assert_eq!(detail(&missing).reason(), Reason::MessageNotFound);
    assert_eq!(detail(&missing).context["message"], "1-0");

    let single = v1::DeclareQueueRequest {
        settings: Some(v1::QueueSettings {
            single_active_consumer: Some(true),
            ..v1::QueueSettings::default()
        }),
        ..declare("single")
    };
    client.declare_queue(single).await.unwrap();
    let refused = client.lease(lease("single")).await.unwrap_err();
    assert_eq!(detail(&refused).reason(), Reason::SingleActiveConsumer);
    assert_eq!(detail(&refused).context["queue"], "single");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_request_is_done_once_and_answered_alike() {
    let mut client = Scene::set().await.client;
    let declare = v1::DeclareExchangeRequest {
        request_id: id(1),
        ..topic("orders")
    };
    let first = client
        .declare_exchange(declare.clone())
        .await
        .unwrap()
        .into_inner();
    let bound = v1::BindRequest {
        request_id: id(2),
        ..bind("orders", "jobs", "#")
    };
    let bound_first = client.bind(bound.clone()).await.unwrap().into_inner();
    let pause = v1::PauseQueueRequest {
        request_id: id(3),
        name: "jobs".to_owned(),
        paused: true,
    };
    let paused_first = client.pause_queue(pause.clone()).await.unwrap().into_inner();

    assert_eq!(
        client.declare_exchange(declare).await.unwrap().into_inner(),
        first
    );
    assert_eq!(client.bind(bound).await.unwrap().into_inner(), bound_first);
    assert_eq!(
        client.pause_queue(pause).await.unwrap().into_inner(),
        paused_first
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_explains_itself_in_words() {
    let mut client = Scene::set().await.client;
    let later = v1::OutgoingMessage {
        delay_ms: 3_600_000,
        ..message("x")
    };
    client.publish(publish("jobs", vec![later])).await.unwrap();
    let pause = v1::PauseQueueRequest {
        name: "jobs".to_owned(),
        paused: true,
        ..v1::PauseQueueRequest::default()
    };
    client.pause_queue(pause).await.unwrap();
    let explain = v1::ExplainQueueRequest {
        name: "jobs".to_owned(),
    };
    let explained = client.explain_queue(explain).await.unwrap().into_inner();
    assert!(explained.queue.unwrap().paused);
    let kinds: Vec<_> = explained
        .obstacles
        .iter()
        .map(|obstacle| obstacle.kind.as_str())
        .collect();
    assert_eq!(kinds, ["paused", "delayed"]);
    let delayed = &explained.obstacles[1];
    assert_eq!(delayed.messages, 1);
    assert!(
        delayed.until_ms > 0 && delayed.message.contains(" in "),
        "{delayed:?}"
    );
}

fn settle(token: &str, verdict: v1::settlement::Verdict) -> v1::Settlement {
    v1::Settlement {
        token: token.to_owned(),
        verdict: Some(verdict),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_is_answered_with_the_first_and_its_state() {
    let mut client = Scene::set().await.client;
    let named = |body| v1::OutgoingMessage {
        dedup_id: "order-1".to_owned(),
        ..message(body)
    };
    let first = client
        .publish(publish("jobs", vec![named("x")]))
        .await
        .unwrap()
        .into_inner();
    let again = publish("jobs", vec![message("y"), named("z")]);
    let again = client.publish(again).await.unwrap().into_inner();
    assert_eq!(again.message_ids[1], first.message_ids[0]);
    let [duplicate] = again.duplicates.as_slice() else {
        panic!("{again:?}")
    };
    assert_eq!((duplicate.place, duplicate.state()), (1, v1::MessageState::Ready));
    let describe = v1::DescribeQueueRequest {
        name: "jobs".to_owned(),
    };
    let queue = client.describe_queue(describe).await.unwrap().into_inner().queue;
    let counts = queue.unwrap().counts.unwrap();
    assert_eq!((counts.ready, counts.duplicates), (2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_answers_for_each_part_or_names_the_one_that_is_refused() {
    let mut client = Scene::set().await.client;
    client.declare_queue(declare("next")).await.unwrap();
    client
        .publish(publish("jobs", vec![message("x"), message("y")]))
        .await
        .unwrap();
    let deliveries = client.lease(lease("jobs")).await.unwrap().into_inner().deliveries;
    let transact = v1::TransactRequest {
        request_id: id(1),
        settlements: vec![
            settle(&deliveries[0].token, v1::settlement::Verdict::Ack(v1::Ack {})),
            settle(
                &deliveries[1].token,
                v1::settlement::Verdict::Extend(v1::Extend { lease_ms: 600_000 }),
            ),
        ],
        publishes: vec![publish("next", vec![message("z")])],
    };
    let done = client.transact(transact.clone()).await.unwrap().into_inner();
    assert!(
        done.settled.iter().all(|result| result.error.is_none()),
        "{done:?}"
    );
    assert!(done.settled[1].leased_until_ms > deliveries[1].leased_until_ms);
    assert_eq!(done.published[0].message_ids.len(), 1);
    assert_eq!(done.published[0].commit, done.commit);
    assert_eq!(
        client.transact(transact.clone()).await.unwrap().into_inner(),
        done
    );

    let stale = v1::TransactRequest {
        request_id: None,
        ..transact
    };
    let refused = detail(&client.transact(stale).await.unwrap_err());
    assert_eq!(refused.reason(), Reason::TransactionRefused);
    assert_eq!(refused.context["part"], "settlement 0");
    assert_eq!(refused.context["reason"], "STALE_LEASE");
    assert!(!refused.retryable && !refused.may_have_applied);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_is_looked_at_set_free_put_back_and_deleted() {
    let mut client = Scene::set().await.client;
    client.publish(publish("jobs", vec![message("x")])).await.unwrap();
    let delivery = client
        .lease(lease("jobs"))
        .await
        .unwrap()
        .into_inner()
        .deliveries
        .remove(0);
    let reject = v1::settlement::Verdict::DeadLetter(v1::DeadLetter {
        reason: "no disk".to_owned(),
    });
    let settles = v1::SettleRequest {
        request_id: None,
        settlements: vec![settle(&delivery.token, reject)],
    };
    client.settle(settles).await.unwrap();
    let selector = || v1::MessageSelector {
        selector: Some(v1::message_selector::Selector::MessageId(
            delivery.message_id.clone(),
        )),
    };
    let get = v1::GetMessageRequest {
        queue: "jobs".to_owned(),
        message: Some(selector()),
        ..v1::GetMessageRequest::default()
    };
    let seen = client.get_message(get.clone()).await.unwrap().into_inner();
    let seen = seen.message.unwrap();
    assert_eq!(seen.state(), v1::MessageState::Dead);
    assert_eq!(
        (seen.dead_reason.as_str(), seen.last_error.as_str()),
        ("rejected", "no disk")
    );
    assert!(seen.dead_since_ms > 0 && seen.body.is_empty());

    let redrive = v1::RedriveRequest {
        queue: "jobs".to_owned(),
        filter: Some(v1::MessageFilter {
            reason: "rejected".to_owned(),
            ..v1::MessageFilter::default()
        }),
        ..v1::RedriveRequest::default()
    };
    let redriven = client.redrive(redrive).await.unwrap().into_inner();
    assert_eq!(
        (redriven.redriven, redriven.refused.len(), redriven.next),
        (1, 0, 0)
    );
    let index = redriven.redrive;
    assert_eq!(redriven.commit.unwrap().log_index, index);
    assert_eq!(redriven.queues, ["jobs"]);
    let seen = client.get_message(get.clone()).await.unwrap().into_inner();
    let seen = seen.message.unwrap();
    assert_eq!((seen.state(), seen.redrive), (v1::MessageState::Ready, index));

    let undo = v1::UndoRedriveRequest {
        queue: "jobs".to_owned(),
        redrive: index,
        ..v1::UndoRedriveRequest::default()
    };
    let undone = client.undo_redrive(undo).await.unwrap().into_inner();
    assert_eq!((undone.undone, undone.next), (1, 0));
    let delete = v1::OperateMessagesRequest {
        queue: "jobs".to_owned(),
        messages: vec![selector(), selector()],
        operation: Some(v1::operate_messages_request::Operation::Delete(v1::Delete {})),
        request_id: None,
    };
    let results = client
        .operate_messages(delete)
        .await
        .unwrap()
        .into_inner()
        .results;
    assert!(results[0].error.is_none(), "{results:?}");
    let missing = results[1].error.as_ref().unwrap();
    assert_eq!(missing.reason(), Reason::MessageNotFound);
    assert_eq!(results[1].message_id, delivery.message_id);
}
