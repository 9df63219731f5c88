//! Input that no good client sends gets an answer that names the field and, if
//! there is one, the bound.

use quorate_proto::v1::operate_messages_request::Operation;
use quorate_proto::v1::{self, Reason};
use tonic::{Response, Status};

use crate::scene::{Scene, detail, message, publish};

const MESSAGES_MAX: usize = 4_096;

/// Certainly not applied, and of no use to repeat.
fn refused<T>(answer: Result<Response<T>, Status>, field: &str, text: &str) {
    let Err(status) = answer else {
        panic!("{field}: it was accepted")
    };
    let detail = detail(&status);
    assert_eq!(detail.reason(), Reason::InvalidArgument, "{field}: {detail:?}");
    assert_eq!(
        detail.context.get("field").map(String::as_str),
        Some(field),
        "{detail:?}"
    );
    assert!(
        detail.message.contains(text),
        "{:?} does not say {text:?}",
        detail.message
    );
    assert!(!detail.may_have_applied && !detail.retryable, "{detail:?}");
}

fn text(bytes: usize) -> String {
    "x".repeat(bytes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_exchanges() {
    let mut client = Scene::set().await.client;
    let good = || v1::DeclareExchangeRequest {
        name: "orders".to_owned(),
        kind: v1::ExchangeKind::Topic.into(),
        ..v1::DeclareExchangeRequest::default()
    };
    for name in ["", " x", "x\n", &text(256)] {
        let mut bad = good();
        bad.name = name.to_owned();
        refused(client.declare_exchange(bad).await, "exchange", "exchange name");
    }
    for kind in [0, 77] {
        let mut bad = good();
        bad.kind = kind;
        refused(client.declare_exchange(bad).await, "kind", "fanout");
    }
    let settings = |settings| v1::DeclareExchangeRequest {
        settings: Some(settings),
        ..good()
    };
    let bad = settings(v1::ExchangeSettings {
        alternate_exchange: Some("x ".to_owned()),
        ..v1::ExchangeSettings::default()
    });
    refused(
        client.declare_exchange(bad).await,
        "alternate_exchange",
        "white space",
    );
    for ids in [0, 1_000_001] {
        let bad = settings(v1::ExchangeSettings {
            dedup_max_ids: Some(ids),
            ..v1::ExchangeSettings::default()
        });
        refused(client.declare_exchange(bad).await, "dedup_max_ids", "1000000");
    }
    let list = v1::ListExchangesRequest {
        page_size: 1_001,
        ..v1::ListExchangesRequest::default()
    };
    refused(
        client.list_exchanges(list).await,
        "page_size",
        "1 to 1000, not 1001",
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_bindings() {
    let mut client = Scene::set().await.client;
    let declare = v1::DeclareExchangeRequest {
        name: "orders".to_owned(),
        kind: v1::ExchangeKind::Headers.into(),
        ..v1::DeclareExchangeRequest::default()
    };
    client.declare_exchange(declare).await.unwrap();
    let good = || v1::Binding {
        source: "orders".to_owned(),
        destination: Some(v1::binding::Destination::Queue("jobs".to_owned())),
        ..v1::Binding::default()
    };
    let mut bind = async |binding: Option<v1::Binding>, field: &str, text: &str| {
        let bound = v1::BindRequest {
            request_id: None,
            binding: binding.clone(),
        };
        refused(client.bind(bound).await, field, text);
        let unbound = v1::UnbindRequest {
            request_id: None,
            binding,
        };
        refused(client.unbind(unbound).await, field, text);
    };
    bind(None, "binding", "missing").await;
    let mut bad = good();
    bad.destination = None;
    bind(Some(bad), "destination", "queue or an exchange").await;
    let mut bad = good();
    bad.source = String::new();
    bind(Some(bad), "source", "1 to 255").await;
    let mut bad = good();
    bad.headers = Some(v1::HeaderMatch {
        headers: [("k".to_owned(), "v".to_owned())].into(),
        present: vec!["k".to_owned()],
        any: false,
    });
    bind(Some(bad), "headers", "any value").await;

    let mut bad = good();
    bad.routing_key = text(256);
    let bad = v1::BindRequest {
        request_id: None,
        binding: Some(bad),
    };
    refused(client.bind(bad).await, "routing_key", "255");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_publishes() {
    let mut client = Scene::set().await.client;
    let mut refuse = async |bad: v1::PublishRequest, field: &str, text: &str| {
        refused(client.publish(bad).await, field, text);
    };
    let mut both = publish("jobs", vec![message("x")]);
    both.exchange = "orders".to_owned();
    refuse(both, "exchange", "a queue or to an exchange").await;
    refuse(publish("", vec![message("x")]), "queue", "1 to 255").await;
    refuse(publish("jobs", vec![]), "messages", "1 to 4096, not 0").await;

    let one = |message| publish("jobs", vec![message]);
    for priority in [10, u32::MAX] {
        let bad = v1::OutgoingMessage {
            priority,
            ..message("x")
        };
        refuse(one(bad), "priority", &format!("0 to 9, not {priority}")).await;
    }
    let bad = v1::OutgoingMessage {
        group: text(256),
        ..message("x")
    };
    refuse(one(bad), "group", "255").await;
    let bad = v1::OutgoingMessage {
        routing_key: text(256),
        ..message("x")
    };
    refuse(one(bad), "routing_key", "255").await;
    let bad = v1::OutgoingMessage {
        dedup_id: text(256),
        ..message("x")
    };
    refuse(one(bad), "dedup_id", "255").await;
    let bad = v1::OutgoingMessage {
        deliver_at_ms: u64::MAX,
        ..message("x")
    };
    refuse(one(bad), "deliver_at_ms", "10 years").await;
    let mib = v1::OutgoingMessage {
        body: vec![0; 1024 * 1024].into(),
        ..v1::OutgoingMessage::default()
    };
    refuse(publish("jobs", vec![mib; 17]), "messages", "16842752 bytes").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_browsing() {
    let mut client = Scene::set().await.client;
    let mut refuse = async |filter: v1::MessageFilter, field: &str, text: &str| {
        let browse = v1::BrowseRequest {
            queue: "jobs".to_owned(),
            filter: Some(filter.clone()),
            ..v1::BrowseRequest::default()
        };
        refused(client.browse(browse).await, field, text);
        let redrive = v1::RedriveRequest {
            queue: "jobs".to_owned(),
            filter: Some(filter),
            ..v1::RedriveRequest::default()
        };
        refused(client.redrive(redrive).await, field, text);
    };
    let gone = v1::MessageFilter {
        states: vec![v1::MessageState::Acked.into()],
        ..v1::MessageFilter::default()
    };
    refuse(gone, "states", "leased").await;
    let reason = v1::MessageFilter {
        reason: "boredom".to_owned(),
        ..v1::MessageFilter::default()
    };
    refuse(reason, "reason", "max-deliveries").await;
    for id in ["", "7", "7-x", "-"] {
        let ids = v1::MessageFilter {
            message_ids: vec![id.to_owned()],
            ..v1::MessageFilter::default()
        };
        refuse(ids, "message_id", "is not a message id").await;
    }
    let page = v1::BrowseRequest {
        queue: "jobs".to_owned(),
        page_size: 1_001,
        ..v1::BrowseRequest::default()
    };
    refused(client.browse(page).await, "page_size", "1 to 1000, not 1001");
    let unnamed = v1::GetMessageRequest {
        queue: "jobs".to_owned(),
        ..v1::GetMessageRequest::default()
    };
    refused(client.get_message(unnamed).await, "message", "dedup id");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_operations() {
    let mut client = Scene::set().await.client;
    let selector = |id: &str| v1::MessageSelector {
        selector: Some(v1::message_selector::Selector::MessageId(id.to_owned())),
    };
    let mut refuse = async |messages, operation, field: &str, text: &str| {
        let bad = v1::OperateMessagesRequest {
            queue: "jobs".to_owned(),
            messages,
            operation,
            request_id: None,
        };
        refused(client.operate_messages(bad).await, field, text);
    };
    let delete = || Some(Operation::Delete(v1::Delete {}));
    refuse(vec![selector("1-0")], None, "operation", "missing").await;
    refuse(vec![], delete(), "messages", "1 to 4096, not 0").await;
    let many = vec![selector("1-0"); MESSAGES_MAX + 1];
    refuse(many, delete(), "messages", "1 to 4096, not 4097").await;
    refuse(
        vec![selector("one")],
        delete(),
        "message_id",
        "is not a message id",
    )
    .await;
    let nowhere = Operation::Move(v1::Move { to: String::new() });
    refuse(vec![selector("1-0")], Some(nowhere), "to", "1 to 255").await;

    let to_itself = Operation::Move(v1::Move {
        to: "jobs".to_owned(),
    });
    refuse(vec![selector("1-0")], Some(to_itself), "to", "another queue").await;
    let never = Operation::Reschedule(v1::Reschedule {
        delay_ms: u64::MAX,
        deliver_at_ms: 0,
    });
    refuse(vec![selector("1-0")], Some(never), "delay_ms", "10 years").await;
    let never = Operation::Reschedule(v1::Reschedule {
        delay_ms: 0,
        deliver_at_ms: u64::MAX,
    });
    refuse(vec![selector("1-0")], Some(never), "deliver_at_ms", "10 years").await;
    let later = Operation::Redrive(v1::RedriveTo {
        to: String::new(),
        continues: u64::MAX,
    });
    refuse(vec![selector("1-0")], Some(later), "continues", "earlier redrive").await;

    let redrive = v1::RedriveRequest {
        queue: "jobs".to_owned(),
        max_messages: 4_097,
        ..v1::RedriveRequest::default()
    };
    refused(
        client.redrive(redrive).await,
        "max_messages",
        "1 to 4096, not 4097",
    );
    let undo = v1::UndoRedriveRequest {
        queue: "jobs".to_owned(),
        ..v1::UndoRedriveRequest::default()
    };
    refused(client.undo_redrive(undo).await, "redrive", "not 0");
    let purge = v1::PurgeQueueRequest {
        name: "jobs".to_owned(),
        states: vec![v1::MessageState::Leased.into()],
        ..v1::PurgeQueueRequest::default()
    };
    refused(client.purge_queue(purge).await, "states", "dead");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_transactions() {
    let mut client = Scene::set().await.client;
    let mut refuse = async |settlements, publishes, field: &str, text: &str| {
        let bad = v1::TransactRequest {
            request_id: None,
            settlements,
            publishes,
        };
        refused(client.transact(bad).await, field, text);
    };
    let ack = |token: &str| v1::Settlement {
        token: token.to_owned(),
        verdict: Some(v1::settlement::Verdict::Ack(v1::Ack {})),
    };
    refuse(vec![], vec![], "settlements", "at least one").await;
    refuse(vec![ack("x")], vec![], "token", "is not a token").await;
    let many = vec![ack("1.1.1.1"); MESSAGES_MAX + 1];
    refuse(many, vec![], "settlements", "1 to 4096, not 4097").await;
    let half = || publish("jobs", vec![message("x"); MESSAGES_MAX / 2 + 1]);
    refuse(vec![], vec![half(), half()], "messages", "1 to 4096, not 4098").await;
    refuse(
        vec![],
        vec![publish("jobs", vec![])],
        "messages",
        "1 to 4096, not 0",
    )
    .await;
    let large = || {
        let message = v1::OutgoingMessage {
            body: vec![0; 9 * 1024 * 1024].into(),
            ..v1::OutgoingMessage::default()
        };
        publish("jobs", vec![message])
    };
    refuse(vec![], vec![large(), large()], "messages", "16842752 bytes").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_settings() {
    let mut client = Scene::set().await.client;
    let mut refuse = async |settings: v1::QueueSettings, field: &str, text: &str| {
        let declare = v1::DeclareQueueRequest {
            name: "new".to_owned(),
            settings: Some(settings.clone()),
            ..v1::DeclareQueueRequest::default()
        };
        refused(client.declare_queue(declare).await, field, text);
        let update = v1::UpdateQueueRequest {
            name: "jobs".to_owned(),
            settings: Some(settings),
            ..v1::UpdateQueueRequest::default()
        };
        refused(client.update_queue(update).await, field, text);
    };
    for concurrency in [0, 1_001] {
        let settings = v1::QueueSettings {
            group_concurrency: Some(concurrency),
            ..v1::QueueSettings::default()
        };
        refuse(settings, "group_concurrency", "1 to 1000").await;
    }
    for weight in [0, 1_001] {
        let settings = v1::QueueSettings {
            group_weights: Some(v1::GroupWeights {
                weights: [("g".to_owned(), weight)].into(),
            }),
            ..v1::QueueSettings::default()
        };
        refuse(settings, "group_weights", "1 to 1000").await;
    }
    let ageing = v1::QueueSettings {
        priority_ageing_ms: Some(u64::MAX),
        ..v1::QueueSettings::default()
    };
    refuse(ageing, "priority_ageing_ms", "").await;
    let both = v1::QueueSettings {
        dead_letter_queue: Some("q".to_owned()),
        dead_letter_exchange: Some("x".to_owned()),
        ..v1::QueueSettings::default()
    };
    refuse(both, "dead_letter_exchange", "not together").await;
    for ids in [0, 1_000_001] {
        let settings = v1::QueueSettings {
            dedup_max_ids: Some(ids),
            ..v1::QueueSettings::default()
        };
        refuse(settings, "dedup_max_ids", "1000000").await;
    }
    let exchange = v1::QueueSettings {
        dead_letter_exchange: Some(" x".to_owned()),
        ..v1::QueueSettings::default()
    };
    refuse(exchange, "dead_letter_exchange", "white space").await;
}
