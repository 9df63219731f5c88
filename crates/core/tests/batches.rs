//! The format of a log entry: what is written can be read, by every later
//! version, and what is not a batch is refused.

#![allow(clippy::disallowed_methods)] // reads samples

use std::path::Path;

use bytes::Bytes;
use proptest::prelude::*;
use quorate_core::batch::{self, Batch, BatchError};
use quorate_core::command::{
    Binding, Command, Destination, ExchangeKind, ExchangeSettingsPatch, HeaderMatch, Labels, NewMessage,
    Operation, Overflow, Publish, PurgeStates, Request, Selector, SettingsPatch, Settlement, Target, Verdict,
};
use quorate_core::ids::{
    ClientId, ConsumerId, ExchangeName, Incarnation, MessageId, Millis, NodeId, QueueId, QueueName,
    RequestId, SessionId, Timestamp, Token,
};
use quorate_core::outcome::{Rejection, Reply};
use quorate_core::{Broker, RestoreError};

fn exchange(name: &str) -> ExchangeName {
    ExchangeName::new(name).unwrap()
}

/// One of each command, with every field set.
fn requests() -> Vec<Request> {
    let queue = || QueueName::new("jobs").unwrap();
    let settings = SettingsPatch {
        lease: Some(Millis(30_000)),
        deliveries_max: Some(5),
        dead_letter_queue: Some(Some(QueueName::new("failed").unwrap())),
        dead_letter_exchange: Some(Some(exchange("failures"))),
        dead_letter_routing_key: Some(Some("jobs.dead".to_owned())),
        length_max: Some(1_000),
        bytes_max: Some(1 << 40),
        overflow: Some(Overflow::DropHead),
        message_ttl: Some(Millis(3_600_000)),
        backoff_initial: Some(Millis(1_000)),
        backoff_max: Some(Millis(60_000)),
        ..SettingsPatch::default()
    };
    let messages = vec![
        NewMessage {
            delay: Millis(0),
            ttl: Millis(0),
            ..NewMessage::default()
        },
        NewMessage {
            delay: Millis(5),
            deliver_at: Timestamp(1_700_000_000_000),
            ttl: Millis(9),
            priority: 9,
            labels: Some(Box::new(Labels {
                routing_key: "orders.paid".to_owned(),
                group: "customer-7".to_owned(),
                dedup_id: "order-1".to_owned(),
                headers: [("region".to_owned(), "eu".to_owned())].into(),
            })),
        },
    ];
    let token = Token {
        queue: QueueId(65_536),
        position: 7,
        attempt: 2,
        grant: 300,
    };
    let exchange_settings = ExchangeSettingsPatch {
        alternate: Some(Some(exchange("rest"))),
        dedup_window: Some(Millis(60_000)),
        dedup_count_max: Some(1_000),
    };
    let reason = || "disk full".to_owned();
    let verdicts = [
        Verdict::Ack,
        Verdict::Nack {
            delay: Some(Millis(5_000)),
            reason: reason(),
        },
        Verdict::Release,
        Verdict::DeadLetter { reason: reason() },
        Verdict::Extend {
            lease: Some(Millis(60_000)),
        },
    ];
    let settlements = verdicts
        .into_iter()
        .map(|verdict| Settlement { token, verdict })
        .collect();
    let transact = Command::Transact {
        settlements: vec![Settlement {
            token,
            verdict: Verdict::Ack,
        }],
        publishes: vec![Publish {
            target: Target::Exchange {
                name: exchange("orders"),
                mandatory: true,
            },
            messages: vec![NewMessage::default()],
        }],
    };
    let (session, consumer) = (SessionId(u64::MAX), ConsumerId(3));
    let (node, incarnation) = (NodeId(11), Incarnation(2));
    let lease = Some(Millis(10_000));
    let commands = vec![
        Command::DeclareQueue {
            name: queue(),
            settings: settings.clone(),
        },
        Command::UpdateQueue {
            name: queue(),
            settings,
        },
        Command::PurgeQueue {
            name: queue(),
            states: PurgeStates::WAITING,
        },
        Command::DeleteQueue {
            name: queue(),
            if_empty: true,
            if_unused: false,
        },
        Command::Publish(Publish::to_queue(queue(), messages)),
        Command::Lease {
            queue: queue(),
            count_max: 10,
            lease,
            wait: Millis(5_000),
            node,
        },
        Command::Settle { settlements },
        Command::AttachSession {
            session,
            node,
            incarnation,
        },
        Command::CloseSession { session, epoch: 4 },
        Command::Consume {
            session,
            consumer,
            queue: queue(),
            credit: 64,
            lease,
            name: "worker".to_owned(),
            priority: -3,
        },
        Command::CancelConsumer { session, consumer },
        Command::SetCredit {
            session,
            consumer,
            credit: 0,
        },
        Command::NodeUp { node, incarnation },
        Command::NodeDown { node, incarnation },
        Command::NodeSilent { node, incarnation },
        Command::DetachSession { session, epoch: 4 },
        Command::Tick,
        Command::PauseQueue {
            name: queue(),
            paused: true,
        },
        Command::DeclareExchange {
            name: exchange("orders"),
            kind: ExchangeKind::Headers,
            settings: exchange_settings.clone(),
        },
        Command::UpdateExchange {
            name: exchange("orders"),
            settings: exchange_settings,
        },
        Command::DeleteExchange {
            name: exchange("orders"),
            if_unused: true,
        },
        Command::Bind(Binding {
            source: exchange("orders"),
            destination: Destination::Queue(queue()),
            routing_key: "orders.#".to_owned(),
            headers: Some(HeaderMatch {
                any: true,
                headers: [
                    ("region".to_owned(), Some("eu".to_owned())),
                    ("urgent".to_owned(), None),
                ]
                .into(),
            }),
        }),
        Command::Unbind(Binding {
            source: exchange("orders"),
            destination: Destination::Exchange(exchange("all")),
            routing_key: String::new(),
            headers: None,
        }),
        transact,
    ]
    .into_iter()
    .chain(operations().map(|operation| Command::Operate {
        queue: queue(),
        messages: vec![
            Selector::Message(MessageId { index: 70, number: 3 }),
            Selector::DedupId("order-1".to_owned()),
        ],
        operation,
    }))
    .collect::<Vec<_>>();
    let id = |n| RequestId {
        client: ClientId(0x1234_5678_9abc_def0),
        sequence: n,
        oldest_unanswered: 1,
    };
    commands
        .into_iter()
        .zip(1..)
        .map(|(command, n)| Request {
            id: (n % 2 == 0).then(|| id(n)),
            command,
        })
        .collect()
}

/// One of each.
fn operations() -> impl Iterator<Item = Operation> {
    let to = QueueName::new("other").unwrap();
    [
        Operation::Delete,
        Operation::Move { to: to.clone() },
        Operation::Reschedule {
            delay: Millis(5_000),
            deliver_at: Timestamp(1_700_000_000_000),
        },
        Operation::Redrive {
            to: Some(to),
            continues: Some(71),
        },
        Operation::UndoRedrive { redrive: 71 },
    ]
    .into_iter()
}

fn contents() -> Vec<Bytes> {
    vec![
        Bytes::from_static(b""),
        Bytes::from_static(b"properties and body"),
        Bytes::from_static(b"another"),
    ]
}

fn sample() -> Bytes {
    batch::encode(Timestamp(1_700_000_000_000), &requests(), &contents())
}

#[test]
fn a_batch_comes_back_as_it_was() {
    let encoded = sample();
    let decoded = Batch::decode(encoded.clone()).unwrap();
    assert_eq!(decoded.at, Timestamp(1_700_000_000_000));
    assert_eq!(decoded.requests, requests());
    assert_eq!(decoded.contents, contents());
    assert_eq!(decoded.content_lengths(), [0, 19, 7]);
    assert_eq!(
        batch::encode(decoded.at, &decoded.requests, &decoded.contents),
        encoded
    );
}

#[test]
fn an_empty_batch_is_one_too() {
    let encoded = batch::encode(Timestamp(5), &[], &[]);
    assert_eq!(Batch::decode(encoded).unwrap().requests, []);
}

#[test]
fn a_content_is_found_by_its_number_and_not_copied() {
    let encoded = sample();
    let content = batch::content(&encoded, 1).unwrap();
    assert_eq!(content, contents()[1]);
    assert!(encoded.as_ptr_range().contains(&content.as_ptr()));
    assert_eq!(batch::content(&encoded, 0).unwrap(), Bytes::new());
    assert_eq!(
        batch::content(&encoded, 3),
        Err(BatchError::NoSuchContent { number: 3, count: 3 })
    );
}

#[test]
fn a_publish_without_its_contents_is_no_batch() {
    let encoded = batch::encode(Timestamp(1), &requests(), &contents()[..2]);
    assert!(matches!(Batch::decode(encoded), Err(BatchError::Malformed(_))));
}

#[test]
fn a_name_is_checked_where_it_is_decoded() {
    let name = QueueName::new("xyz").unwrap();
    let encoded = batch::encode(
        Timestamp(1),
        &[Request {
            id: None,
            command: Command::PurgeQueue {
                name,
                states: PurgeStates::WAITING,
            },
        }],
        &[],
    );
    let mut broken = encoded.to_vec();
    let place = encoded.windows(3).position(|bytes| bytes == b"xyz").unwrap();
    broken[place] = b'\n';
    assert!(matches!(
        Batch::decode(broken.into()),
        Err(BatchError::Malformed(_))
    ));
}

#[test]
fn outcomes_come_back_as_they_were() {
    let outcomes = vec![
        Ok(Reply::Done),
        Err(Rejection::StaleLease),
        Ok(Reply::Settled(vec![Err(Rejection::LimitExceeded(
            "x".to_owned(),
        ))])),
    ];
    let encoded = batch::encode_outcomes(&outcomes);
    assert_eq!(batch::decode_outcomes(&encoded), Ok(outcomes));
    for end in 0..encoded.len() {
        assert!(batch::decode_outcomes(&encoded[..end]).is_err());
    }
}

/// Logs outlive the program that wrote them. A sample is never changed; a new
/// version gets one of its own.
#[test]
fn version_1_can_be_read() {
    let kept = kept("batch-v1.bin", &sample());
    assert_eq!(Batch::decode(kept.clone()).unwrap().requests, requests());
    assert_eq!(batch::content(&kept, 1).unwrap(), contents()[1]);
    assert_eq!(kept, sample(), "version 1 is written otherwise than it was");
}

/// The same of snapshots.
#[test]
fn version_1_of_a_snapshot_can_be_restored() {
    let mut broker = Broker::new();
    for (entry, index) in history().into_iter().zip(1..) {
        let batch = Batch::decode(entry).unwrap();
        broker.apply(batch.meta(index), &batch.requests, &batch.content_lengths());
    }
    let written = write(&broker);
    let kept = kept("snapshot-v1.bin", &written);
    let restored = Broker::restore([Ok::<_, std::io::Error>(&kept)].into_iter()).unwrap();
    assert_eq!(restored.state_hash(), broker.state_hash());
    assert_eq!(write(&restored), kept);
    assert_eq!(kept, written, "version 1 is written otherwise than it was");
}

#[test]
fn a_snapshot_that_cannot_be_restored_says_why() {
    let bytes = write(&Broker::new());
    let restore = |bytes: &[u8]| Broker::restore([Ok::<_, std::io::Error>(bytes.to_vec())].into_iter());
    assert!(restore(&bytes).is_ok());
    assert!(matches!(restore(&[]), Err(RestoreError::Truncated)));
    assert!(matches!(
        restore(&bytes[..bytes.len() - 1]),
        Err(RestoreError::Truncated)
    ));
    assert!(matches!(restore(&[9]), Err(RestoreError::Version(9))));
    let mut flipped = bytes.to_vec();
    flipped[8] ^= 1;
    assert!(matches!(restore(&flipped), Err(RestoreError::Corrupt(_))));
    let failing = [Ok(bytes[..3].to_vec()), Err(std::io::Error::other("disk"))];
    assert!(matches!(
        Broker::restore(failing.into_iter()),
        Err(RestoreError::Source(_))
    ));
}

#[test]
fn a_sink_that_fails_ends_the_writing() {
    let mut pieces = 0;
    let mut sink = |_: &[u8]| {
        pieces += 1;
        Err("full")
    };
    assert_eq!(Broker::new().snapshot().write(&mut sink), Err("full"));
    assert_eq!(pieces, 1);
}

/// Leaves behind one of everything that a snapshot can hold.
fn history() -> Vec<Bytes> {
    let name = |name: &str| QueueName::new(name).unwrap();
    let declare = |queue: &str, settings| Command::DeclareQueue {
        name: name(queue),
        settings,
    };
    let publish = |queue: &str, delay, ttl| {
        let message = NewMessage {
            delay: Millis(delay),
            ttl: Millis(ttl),
            ..NewMessage::default()
        };
        Command::Publish(Publish::to_queue(name(queue), vec![message]))
    };
    let lease = |queue: &str, wait| Command::Lease {
        queue: name(queue),
        count_max: 1,
        lease: None,
        wait: Millis(wait),
        node: NodeId(1),
    };
    let (session, consumer, node) = (SessionId(5), ConsumerId(1), NodeId(1));
    let settled = |grant, position, verdict| Command::Settle {
        settlements: vec![Settlement {
            token: Token {
                queue: QueueId(1 << 16 | 1),
                position,
                attempt: 1,
                grant,
            },
            verdict,
        }],
    };
    let target = SettingsPatch {
        dead_letter_queue: Some(Some(name("failed"))),
        ..SettingsPatch::default()
    };
    let consume = Command::Consume {
        session,
        consumer,
        queue: name("pushed"),
        credit: 2,
        lease: None,
        name: "w".to_owned(),
        priority: 0,
    };
    let consume_alone = |n: u32| Command::Consume {
        session,
        consumer: ConsumerId(10 + n),
        queue: name("single"),
        credit: 1,
        lease: None,
        name: format!("single-{n}"),
        priority: -1,
    };
    let grouped = |queue: &str, group: &str| {
        let labels = Labels {
            group: group.to_owned(),
            ..Labels::default()
        };
        let message = NewMessage {
            priority: 4,
            labels: Some(labels.into()),
            ..NewMessage::default()
        };
        Command::Publish(Publish::to_queue(name(queue), vec![message]))
    };
    let bind_all = |queue: &str| {
        Command::Bind(Binding {
            source: exchange("all"),
            destination: Destination::Queue(name(queue)),
            routing_key: String::new(),
            headers: None,
        })
    };
    // Its copy in one of the queues becomes a dead letter that waits.
    let routed = vec![
        declare("left", SettingsPatch::default()),
        declare(
            "right",
            SettingsPatch {
                message_ttl: Some(Millis(10)),
                dead_letter_exchange: Some(Some(exchange("missing"))),
                ..SettingsPatch::default()
            },
        ),
        Command::DeclareExchange {
            name: exchange("all"),
            kind: ExchangeKind::Fanout,
            settings: ExchangeSettingsPatch::default(),
        },
        bind_all("left"),
        bind_all("right"),
        Command::Publish(Publish {
            target: Target::Exchange {
                name: exchange("all"),
                mandatory: false,
            },
            messages: vec![NewMessage {
                labels: Some(Box::new(Labels {
                    routing_key: "orders.paid".to_owned(),
                    headers: [("region".to_owned(), "eu".to_owned())].into(),
                    ..Labels::default()
                })),
                ..NewMessage::default()
            }],
        }),
    ];
    let pause = |queue: &str, paused| Command::PauseQueue {
        name: name(queue),
        paused,
    };
    let single = SettingsPatch {
        single_active_consumer: Some(true),
        priority_ageing: Some(Millis(60_000)),
        group_weights: Some([("order-2".to_owned(), 7)].into()),
        ..SettingsPatch::default()
    };
    let first = vec![
        declare("failed", SettingsPatch::default()),
        declare("jobs", target),
        declare("pushed", SettingsPatch::default()),
        declare("single", single),
        Command::AttachSession {
            session,
            node,
            incarnation: Incarnation(1),
        },
        consume,
        publish("pushed", 0, 0),
        publish("jobs", 0, 0),
        publish("jobs", 0, 0),
        publish("jobs", 60_000, 0),
        publish("jobs", 0, 600_000),
        consume_alone(1),
        consume_alone(2),
        pause("single", true),
        grouped("single", "order-1"),
        grouped("single", "order-1"),
        grouped("single", "order-2"),
    ];
    let then = vec![
        lease("jobs", 0),
        lease("jobs", 0),
        settled(
            2,
            0,
            Verdict::DeadLetter {
                reason: "no".to_owned(),
            },
        ),
        settled(
            3,
            1,
            Verdict::Nack {
                delay: Some(Millis(5_000)),
                reason: "later".to_owned(),
            },
        ),
        lease("failed", 0),
        lease("failed", 30_000),
        Command::NodeUp {
            node: NodeId(2),
            incarnation: Incarnation(9),
        },
        Command::PurgeQueue {
            name: name("missing"),
            states: PurgeStates::WAITING,
        },
        pause("single", false),
        pause("pushed", true),
    ];
    let request = |(command, n): (Command, u64)| Request {
        id: Some(RequestId {
            client: ClientId(7 + n % 2),
            sequence: n / 2 + 1,
            oldest_unanswered: 1,
        }),
        command,
    };
    let contents = vec![Bytes::from_static(b"content"); 9];
    let first: Vec<Request> = first
        .into_iter()
        .chain(routed)
        .map(|command| Request { id: None, command })
        .collect();
    let then: Vec<Request> = then.into_iter().zip(0..).map(request).collect();
    let redrive = Request {
        id: None,
        command: Command::Operate {
            queue: name("again"),
            messages: vec![Selector::DedupId("order-1".to_owned())],
            operation: Operation::Redrive {
                to: None,
                continues: None,
            },
        },
    };
    vec![
        batch::encode(Timestamp(1_700_000_000_000), &first, &contents),
        batch::encode(Timestamp(1_700_000_000_050), &then, &[]),
        batch::encode(Timestamp(1_700_000_000_100), &remembered(), &contents[..1]),
        batch::encode(Timestamp(1_700_000_000_200), &[redrive], &[]),
    ]
}

/// A message that its exchange and its queue remember, and whose life ends soon.
fn remembered() -> Vec<Request> {
    let queue = QueueName::new("again").unwrap();
    let exchange = ExchangeName::new("once").unwrap();
    let labels = Labels {
        dedup_id: "order-1".to_owned(),
        ..Labels::default()
    };
    let commands = [
        Command::DeclareQueue {
            name: queue.clone(),
            settings: SettingsPatch {
                message_ttl: Some(Millis(10)),
                dead_letter_queue: Some(Some(queue.clone())),
                ..SettingsPatch::default()
            },
        },
        Command::DeclareExchange {
            name: exchange.clone(),
            kind: ExchangeKind::Fanout,
            settings: ExchangeSettingsPatch {
                dedup_window: Some(Millis(60_000)),
                ..ExchangeSettingsPatch::default()
            },
        },
        Command::Bind(Binding {
            source: exchange.clone(),
            destination: Destination::Queue(queue),
            routing_key: String::new(),
            headers: None,
        }),
        Command::Publish(Publish {
            target: Target::Exchange {
                name: exchange,
                mandatory: true,
            },
            messages: vec![NewMessage {
                labels: Some(labels.into()),
                ..NewMessage::default()
            }],
        }),
    ];
    commands.map(|command| Request { id: None, command }).into()
}

fn write(broker: &Broker) -> Bytes {
    let mut bytes = Vec::new();
    let mut sink = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        Ok::<_, std::convert::Infallible>(())
    };
    broker.snapshot().write(&mut sink).unwrap();
    bytes.into()
}

/// The kept sample of that name. `UPDATE_GOLDENFILES=1` writes one that is not
/// there yet; none is ever overwritten.
fn kept(name: &str, fresh: &[u8]) -> Bytes {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/samples")
        .join(name);
    if !path.exists() && std::env::var_os("UPDATE_GOLDENFILES").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, fresh).unwrap();
    }
    std::fs::read(&path).unwrap().into()
}

proptest! {
    #[test]
    fn a_batch_that_is_cut_short_is_refused(end in any::<prop::sample::Index>()) {
        let encoded = sample();
        let cut = encoded.slice(..end.index(encoded.len()));
        prop_assert!(Batch::decode(cut).is_err());
    }

    /// A flipped bit may give another batch (its checksum is storage's), never
    /// a panic, and never a content from outside.
    #[test]
    fn a_flipped_bit_brings_nothing_down(at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let mut bytes = sample().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let bytes = Bytes::from(bytes);
        for number in 0..4 {
            let _ = batch::content(&bytes, number);
        }
        if let Ok(decoded) = Batch::decode(bytes) {
            let mut broker = Broker::new();
            broker.apply(decoded.meta(1), &decoded.requests, &decoded.content_lengths());
        }
    }

    #[test]
    fn noise_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = bytes;
        let _ = Batch::decode(bytes.clone().into());
        if let Some(version) = bytes.first_mut() {
            *version = 1;
        }
        let bytes = Bytes::from(bytes);
        let _ = Batch::decode(bytes.clone());
        let _ = batch::content(&bytes, 0);
    }
}
