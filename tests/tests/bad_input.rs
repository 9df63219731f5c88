//! Input that no good client sends gets a typed answer and does no harm.
//!
//! "No harm" is checked the same way after each: the cluster still serves a
//! publish, a lease and an ack, and all nodes have the same state.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures_util::stream;
use quorate_client::Verdict as ClientVerdict;
use quorate_proto::internal::{self, peer_client::PeerClient};
use quorate_proto::v1::settlement::Verdict;
use quorate_proto::v1::{self, Reason};
use quorate_test_cluster::Cluster;
use quorate_tests::alive::serves;
use quorate_tests::converge::Hashes;
use quorate_tests::raw::{self, Mutation};
use quorate_tests::relay::Relay;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Status;

const BODY_MAX: usize = 16 << 20;
const HEADERS_MAX: usize = 64 << 10;

/// A cluster with the queue `jobs`, and a raw connection to its leader.
struct Scene {
    cluster: Cluster,
    leader: usize,
    broker: v1::broker_client::BrokerClient<tonic::transport::Channel>,
}

impl Scene {
    async fn set() -> Result<Self> {
        let cluster = Cluster::start(3).await?;
        let leader = cluster.leader().await?;
        let broker = raw::broker(&cluster.endpoint(leader)).await?;
        cluster.client().await?.declare_queue("jobs").send().await?;
        Ok(Self {
            cluster,
            leader,
            broker,
        })
    }

    /// The call is refused for the reason, and the text says what is the matter.
    async fn refuses(&self, call: Mutation, reason: Reason, text: &str) -> Result<()> {
        let short = format!("{call:?}").chars().take(200).collect::<String>();
        match call.send(&self.broker).await {
            Ok(answer) => anyhow::bail!("{short} was answered {answer:?}"),
            Err(status) => refused(&status, reason, text).with_context(|| short),
        }
    }

    /// The cluster serves, and all nodes have the same state.
    async fn no_harm(self) -> Result<()> {
        serves(&self.cluster.client().await?).await?;
        Hashes::default().converge(&self.cluster).await?;
        quorate_tests::trial::no_bugs_in_logs(&self.cluster, &[])
    }
}

fn refused(status: &Status, reason: Reason, text: &str) -> Result<()> {
    let detail = raw::detail(status);
    ensure!(
        detail.reason() == reason,
        "refused as {:?}: {}",
        detail.reason(),
        detail.message
    );
    ensure!(!detail.may_have_applied, "it may have been applied: {detail:?}");
    ensure!(
        detail.message.contains(text),
        "{:?} does not say {text:?}",
        detail.message
    );
    Ok(())
}

#[tokio::test]
async fn names_that_are_none() -> Result<()> {
    let scene = Scene::set().await?;
    let call = Mutation::Publish(raw::publish("nowhere", "x"));
    scene.refuses(call, Reason::QueueNotFound, "nowhere").await?;
    let bad = [
        String::new(),
        "x".repeat(256),
        "a\nb".to_owned(),
        "\u{0}".to_owned(),
        " padded ".to_owned(),
    ];
    for name in bad {
        let declare = v1::DeclareQueueRequest {
            name: name.clone(),
            ..Default::default()
        };
        for call in [
            Mutation::Declare(declare),
            Mutation::Publish(raw::publish(&name, "x")),
            Mutation::Lease(raw::lease(&name, 1)),
            Mutation::Purge(v1::PurgeQueueRequest {
                name: name.clone(),
                ..Default::default()
            }),
            Mutation::Delete(v1::DeleteQueueRequest {
                name: name.clone(),
                ..Default::default()
            }),
        ] {
            scene.refuses(call, Reason::InvalidArgument, "name").await?;
        }
    }
    let longest = v1::DeclareQueueRequest {
        name: "ü".repeat(127) + "x",
        ..Default::default()
    };
    Mutation::Declare(longest).send(&scene.broker).await?;
    scene.no_harm().await
}

#[tokio::test]
async fn messages_that_are_too_large() -> Result<()> {
    let scene = Scene::set().await?;
    let body = |bytes| Bytes::from(vec![7; bytes]);
    let call = Mutation::Publish(raw::publish("jobs", body(BODY_MAX + 1)));
    scene
        .refuses(call, Reason::MessageTooLarge, &BODY_MAX.to_string())
        .await?;
    // Beyond what the node reads at all.
    let status = Mutation::Publish(raw::publish("jobs", body(64 << 20)))
        .send(&scene.broker)
        .await;
    ensure!(status.is_err(), "64 MiB were taken");

    let with_header = |bytes: usize| {
        let headers = [("k".to_owned(), "v".repeat(bytes - 1))].into();
        let message = v1::OutgoingMessage {
            headers,
            ..raw::message("x")
        };
        Mutation::Publish(v1::PublishRequest {
            messages: vec![message],
            ..raw::publish("jobs", "")
        })
    };
    scene
        .refuses(
            with_header(HEADERS_MAX + 1),
            Reason::HeadersTooLarge,
            &HEADERS_MAX.to_string(),
        )
        .await?;
    with_header(HEADERS_MAX)
        .send(&scene.broker)
        .await
        .context("headers of 64 KiB")?;

    let count = |count| {
        Mutation::Publish(v1::PublishRequest {
            messages: vec![raw::message("x"); count],
            ..raw::publish("jobs", "")
        })
    };
    for bad in [0, 4_097] {
        scene.refuses(count(bad), Reason::InvalidArgument, "4096").await?;
    }

    // The largest and the smallest that are allowed come back as they were.
    let client = scene.cluster.client().await?;
    client.declare_queue("sizes").send().await?;
    for bytes in [BODY_MAX, 0] {
        client
            .publish("sizes", body(bytes))
            .await
            .with_context(|| format!("a body of {bytes} bytes"))?;
        let delivery = client
            .lease("sizes")
            .wait(Duration::from_secs(10))
            .send()
            .await?
            .pop()
            .context("it comes")?;
        ensure!(
            *delivery.body() == body(bytes),
            "it came as {} bytes",
            delivery.body().len()
        );
        delivery.ack().await?;
    }
    scene.no_harm().await
}

#[tokio::test]
async fn tokens_that_are_not_current() -> Result<()> {
    let scene = Scene::set().await?;
    let mut broker = scene.broker.clone();
    broker.publish(raw::publish("jobs", "x")).await?;
    let token = broker.lease(raw::lease("jobs", 1)).await?.into_inner().deliveries[0]
        .token
        .clone();

    for malformed in [
        "",
        "x",
        "1.2.3",
        "-1.0.0.0",
        "99999999999999999999999.1.1.1",
        &"9".repeat(100_000),
    ] {
        let call = Mutation::Settle(raw::settle(malformed, Verdict::Ack(v1::Ack {})));
        scene.refuses(call, Reason::InvalidArgument, "token").await?;
    }
    let without = v1::SettleRequest {
        settlements: vec![v1::Settlement {
            token: token.clone(),
            verdict: None,
        }],
        ..Default::default()
    };
    scene
        .refuses(Mutation::Settle(without), Reason::InvalidArgument, "verdict")
        .await?;
    scene
        .refuses(
            Mutation::Settle(v1::SettleRequest::default()),
            Reason::InvalidArgument,
            "settlements",
        )
        .await?;

    let client = scene.cluster.client().await?;
    ensure!(
        client.ack([token.as_str()]).await?[0].is_ok(),
        "the first ack is done"
    );
    let extend = ClientVerdict::Extend { lease: None };
    let nack = ClientVerdict::Nack {
        delay: None,
        reason: String::new(),
    };
    for verdict in [ClientVerdict::Ack, nack, ClientVerdict::Release, extend] {
        let result = client
            .settle([(token.as_str(), verdict.clone())])
            .await?
            .pop()
            .context("one result")?;
        let reason = result.err().and_then(|error| error.reason());
        ensure!(
            reason == Some(quorate_client::Reason::StaleLease),
            "{verdict:?} after the ack: {reason:?}"
        );
    }
    let acked = client.describe_queue("jobs").await?.counts.acked;
    ensure!(acked == 1, "one message was acked {acked} times");
    scene.no_harm().await
}

#[tokio::test]
async fn durations_that_are_absurd() -> Result<()> {
    let scene = Scene::set().await?;
    let mut broker = scene.broker.clone();
    let ever = u64::MAX;
    let settings = |change: fn(&mut v1::QueueSettings, u64)| {
        let mut settings = v1::QueueSettings::default();
        change(&mut settings, ever);
        Mutation::Declare(v1::DeclareQueueRequest {
            name: "new".to_owned(),
            settings: Some(settings),
            ..Default::default()
        })
    };
    let message = |change: fn(&mut v1::OutgoingMessage, u64)| {
        let mut message = raw::message("x");
        change(&mut message, ever);
        Mutation::Publish(v1::PublishRequest {
            messages: vec![message],
            ..raw::publish("jobs", "")
        })
    };
    let id = v1::RequestId {
        client: 1,
        sequence: 1,
        oldest_unanswered: 1,
    };
    for (call, field) in [
        (settings(|settings, ms| settings.lease_ms = Some(ms)), "lease"),
        (settings(|settings, ms| settings.message_ttl_ms = Some(ms)), "ttl"),
        (
            settings(|settings, ms| settings.backoff_initial_ms = Some(ms)),
            "backoff",
        ),
        (
            settings(|settings, ms| settings.backoff_max_ms = Some(ms)),
            "backoff",
        ),
        (message(|message, ms| message.delay_ms = ms), "delay"),
        (message(|message, ms| message.ttl_ms = ms), "ttl"),
        (
            Mutation::Lease(v1::LeaseRequest {
                lease_ms: ever,
                ..raw::lease("jobs", 1)
            }),
            "lease",
        ),
        (
            Mutation::Lease(v1::LeaseRequest {
                lease_ms: 99,
                ..raw::lease("jobs", 1)
            }),
            "lease",
        ),
        (
            Mutation::Lease(v1::LeaseRequest {
                wait_ms: ever,
                ..raw::lease("jobs", 1)
            })
            .with_id(id),
            "wait",
        ),
        (Mutation::Lease(raw::lease("jobs", 0)), "max_messages"),
        (Mutation::Lease(raw::lease("jobs", u32::MAX)), "max_messages"),
    ] {
        scene.refuses(call, Reason::InvalidArgument, field).await?;
    }

    broker.publish(raw::publish("jobs", "x")).await?;
    let token = broker.lease(raw::lease("jobs", 1)).await?.into_inner().deliveries[0]
        .token
        .clone();
    for verdict in [
        Verdict::Nack(v1::Nack {
            delay_ms: Some(ever),
            reason: String::new(),
        }),
        Verdict::Nack(v1::Nack {
            delay_ms: None,
            reason: "x".repeat(1_025),
        }),
        Verdict::DeadLetter(v1::DeadLetter {
            reason: "x".repeat(1_025),
        }),
        Verdict::Extend(v1::Extend { lease_ms: ever }),
    ] {
        let results = broker
            .settle(raw::settle(&token, verdict.clone()))
            .await?
            .into_inner()
            .results;
        let reason = results[0].error.as_ref().map(v1::ErrorDetail::reason);
        ensure!(
            reason == Some(Reason::InvalidArgument),
            "{verdict:?}: {results:?}"
        );
    }
    let done = broker
        .settle(raw::settle(&token, Verdict::Ack(v1::Ack {})))
        .await?
        .into_inner()
        .results;
    ensure!(
        done[0].error.is_none(),
        "what was refused has ended the lease: {done:?}"
    );
    scene.no_harm().await
}

#[tokio::test]
async fn credit_that_is_none_or_too_much() -> Result<()> {
    let scene = Scene::set().await?;
    for credit in [0, 65_536, 1 << 32, u64::MAX] {
        let open = v1::ConsumeOpen {
            session: 1,
            queue: "jobs".to_owned(),
            credit,
            ..Default::default()
        };
        refuses_consume(
            &scene,
            vec![v1::consume_request::Request::Open(open)],
            Reason::InvalidArgument,
            "credit",
        )
        .await?;
    }
    let open = |session, queue: &str| {
        let (queue, credit) = (queue.to_owned(), 1);
        v1::consume_request::Request::Open(v1::ConsumeOpen {
            session,
            queue,
            credit,
            ..Default::default()
        })
    };
    refuses_consume(&scene, vec![open(0, "jobs")], Reason::InvalidArgument, "session").await?;
    refuses_consume(&scene, vec![open(1, "nowhere")], Reason::QueueNotFound, "nowhere").await?;
    for credit in [1 << 32, u64::MAX] {
        let update = v1::consume_request::Request::Credit(v1::ConsumeCredit { credit });
        let requests = vec![open(2, "jobs"), update.clone()];
        refuses_consume(&scene, requests, Reason::InvalidArgument, "credit").await?;
        refuses_consume(&scene, vec![update], Reason::InvalidArgument, "open").await?;
    }
    scene.no_harm().await
}

/// The stream ends with an error of that reason.
async fn refuses_consume(
    scene: &Scene,
    requests: Vec<v1::consume_request::Request>,
    reason: Reason,
    text: &str,
) -> Result<()> {
    let frames: Vec<_> = requests
        .iter()
        .map(|request| v1::ConsumeRequest {
            request: Some(request.clone()),
        })
        .collect();
    // A client that stays: the broker has to end the stream.
    let frames = futures_util::StreamExt::chain(stream::iter(frames), stream::pending());
    let answers = scene.broker.clone().consume(frames).await;
    let mut answers = match answers {
        Ok(answers) => answers.into_inner(),
        Err(status) => return refused(&status, reason, text),
    };
    loop {
        match answers.message().await {
            Err(status) => return refused(&status, reason, text),
            Ok(Some(v1::ConsumeResponse {
                response: Some(v1::consume_response::Response::Ended(detail)),
            })) => {
                ensure!(
                    detail.reason() == reason && detail.message.contains(text),
                    "{requests:?}: {detail:?}"
                );
                return Ok(());
            }
            Ok(Some(_)) => {}
            Ok(None) => anyhow::bail!("{requests:?}: the stream ended without a reason"),
        }
    }
}

#[tokio::test]
async fn a_consumer_that_does_not_read() -> Result<()> {
    const MESSAGES: u32 = 400;
    const BODY: usize = 256 << 10;
    let scene = Scene::set().await?;
    let client = scene.cluster.client().await?;
    let publisher = client.publisher("jobs").window(32).start();
    for _ in 0..MESSAGES {
        drop(publisher.send(vec![1; BODY]).await);
    }
    publisher.close().await;
    // The caches fill while somebody reads all of it and gives it back.
    let mut reader = client.consume("jobs").prefetch(MESSAGES).open().await?;
    let mut read = Vec::new();
    while read.len() < MESSAGES as usize {
        read.push(reader.next().await.context("the consumer ended")??);
    }
    for delivery in read {
        delivery.release().await?;
    }
    reader.close().await;
    let memory = resident_bytes(&scene)?;

    // It asks for everything and reads nothing.
    let (queue, credit) = ("jobs".to_owned(), 65_535);
    let open = v1::ConsumeOpen {
        session: 9,
        queue,
        credit,
        ..Default::default()
    };
    let open = v1::ConsumeRequest {
        request: Some(v1::consume_request::Request::Open(open)),
    };
    let requests = futures_util::StreamExt::chain(stream::iter([open]), stream::pending());
    let deaf = raw::broker(&scene.cluster.endpoint(scene.leader))
        .await?
        .consume(requests)
        .await?;
    let taken = scene.cluster.wait_until("the messages to be leased", async || {
        let counts = client.describe_queue("jobs").await.ok()?.counts;
        (counts.leased == u64::from(MESSAGES)).then_some(())
    });
    taken.await?;
    for _ in 0..20 {
        serves(&client).await.context("while a consumer does not read")?;
    }
    let grown = resident_bytes(&scene)?.saturating_sub(memory);
    ensure!(
        grown < MESSAGES as usize * BODY / 4,
        "the leader holds {} MiB more",
        grown >> 20
    );

    // It is given up, and others get what it held.
    let mut consumer = client.consume("jobs").prefetch(8).open().await?;
    let patience = Duration::from_secs(60);
    for _ in 0..MESSAGES {
        let delivery = tokio::time::timeout(patience, consumer.next())
            .await
            .context("nothing comes back")?;
        delivery.context("the consumer ended")??.ack().await?;
    }
    consumer.close().await;
    drop(deaf);
    scene.no_harm().await
}

/// Memory of the leader.
fn resident_bytes(scene: &Scene) -> Result<usize> {
    let pid = scene
        .cluster
        .process_id(scene.leader)
        .context("the leader runs")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("no VmRSS")?;
    let kib: usize = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib << 10)
}

#[tokio::test]
async fn a_connection_that_is_cut_in_a_message() -> Result<()> {
    let scene = Scene::set().await?;
    let endpoint = scene.cluster.endpoint(scene.leader);
    for cut in [1, 30, 300, 5_000, 70_000, 900_000] {
        let relay = Relay::to(&endpoint).await?;
        relay.hang_up_after(cut);
        // Where the preface is cut, not even the connection is made.
        if let Ok(broker) = raw::broker(&relay.address()).await {
            let answer = Mutation::Publish(raw::publish("jobs", vec![1; 1 << 20]))
                .send(&broker)
                .await;
            ensure!(answer.is_err(), "a publish cut after {cut} bytes was confirmed");
        }
    }
    let counts = scene.cluster.client().await?.describe_queue("jobs").await?.counts;
    ensure!(counts.published == 0, "half a message was published: {counts:?}");
    scene.no_harm().await
}

#[tokio::test]
async fn noise_on_every_port() -> Result<()> {
    let scene = Scene::set().await?;
    let ports = scene.cluster.ports(scene.leader);
    let mut noise = vec![0; 64 << 10];
    noise.fill_with(rand::random);
    let preface = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &noise].concat();
    let huge_frame = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &[0xff; 64]].concat();
    let http = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec();
    for port in [ports.client, ports.peer, ports.http] {
        for bytes in [&noise, &preface, &huge_frame, &http] {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
            // The node may hang up before it has read everything.
            let _ = stream.write_all(bytes).await;
            let _ = stream.shutdown().await;
            let mut answer = Vec::new();
            let closed = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer)).await;
            ensure!(
                closed.is_ok(),
                "port {port} keeps a connection that makes no sense"
            );
        }
    }
    scene.no_harm().await
}

#[tokio::test]
async fn a_client_on_the_peer_port() -> Result<()> {
    let scene = Scene::set().await?;
    let peer = format!("127.0.0.1:{}", scene.cluster.ports(scene.leader).peer);
    let broker = raw::broker(&peer).await?;
    let status = Mutation::Publish(raw::publish("jobs", "x"))
        .send(&broker)
        .await
        .expect_err("it is not served here");
    ensure!(status.code() == tonic::Code::Unimplemented, "{status:?}");
    scene.no_harm().await
}

#[tokio::test]
async fn a_peer_of_another_cluster() -> Result<()> {
    let scene = Scene::set().await?;
    let before = scene.cluster.status(scene.leader).await?;
    let peer = format!("127.0.0.1:{}", scene.cluster.ports(scene.leader).peer);
    let mut client = PeerClient::new(raw::channel(&peer).await?);
    let own: Bytes = unhex(&before.cluster_id)?.into();
    let envelope = |cluster_id: Bytes, to_node| internal::Envelope {
        cluster_id,
        from_node: 666,
        to_node,
        shard: 0,
    };
    let vote = internal::Vote {
        term: before.term + 1_000,
        node: 666,
        committed: false,
    };
    for envelope in [
        envelope(Bytes::from_static(&[6; 16]), before.node_id),
        envelope(Bytes::new(), before.node_id),
        envelope(own.clone(), before.node_id ^ 1),
        internal::Envelope {
            shard: 1,
            ..envelope(own, before.node_id)
        },
    ] {
        let request = internal::VoteRequest {
            envelope: Some(envelope.clone()),
            vote: Some(vote),
            last_log_id: Some(internal::LogId {
                term: before.term + 1_000,
                node: 666,
                index: 1 << 40,
            }),
            leadership_transfer: true,
        };
        let status = client
            .vote(request)
            .await
            .err()
            .with_context(|| format!("{envelope:?} was let in"))?;
        ensure!(
            status.code() == tonic::Code::FailedPrecondition,
            "{envelope:?}: {status:?}"
        );
    }
    let after = scene.cluster.status(scene.leader).await?;
    ensure!(
        (after.term, after.role.as_str()) == (before.term, "leader"),
        "it moved the leader: {after:?}"
    );
    scene.no_harm().await
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?))
        .collect()
}

#[tokio::test]
async fn request_ids_that_are_malformed() -> Result<()> {
    let scene = Scene::set().await?;
    let id = |client, sequence, oldest_unanswered| v1::RequestId {
        client,
        sequence,
        oldest_unanswered,
    };
    for id in [id(0, 1, 1), id(1, 0, 0), id(1, 1, 2), id(1, 1, u64::MAX)] {
        let call = Mutation::Publish(raw::publish("jobs", "x")).with_id(id);
        scene.refuses(call, Reason::InvalidArgument, "request_id").await?;
    }
    // Whoever has had an answer cannot ask for it again.
    let publish = Mutation::Publish(raw::publish("jobs", "x"));
    for sequence in [1, 2] {
        publish
            .clone()
            .with_id(id(77, sequence, sequence))
            .send(&scene.broker)
            .await?;
    }
    scene
        .refuses(publish.with_id(id(77, 1, 1)), Reason::RequestForgotten, "")
        .await?;
    let counts = scene.cluster.client().await?.describe_queue("jobs").await?.counts;
    ensure!(counts.published == 2, "what was refused was applied: {counts:?}");
    scene.no_harm().await
}
