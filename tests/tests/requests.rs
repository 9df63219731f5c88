//! A repeated request is done once, and answered as it was the first time.
//!
//! The calls here are made without the client library, under request ids that
//! the test chooses, so that it can repeat a call whose answer it has lost, or
//! whose answer it knows.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::{TryStreamExt as _, stream};
use quorate_proto::v1::broker_client::BrokerClient;
use quorate_proto::v1::operate_messages_request::Operation;
use quorate_proto::v1::settlement::Verdict;
use quorate_proto::v1::{self, Reason};
use quorate_test_cluster::Cluster;
use quorate_tests::harm;
use quorate_tests::raw::{self, Answer, Mutation};
use quorate_tests::relay::Relay;
use quorate_tests::trial::small_snapshots;
use tokio::time::timeout;
use tonic::transport::Channel;

/// How long a stream may take to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// One API client in the sense of request ids. It never says that it has an
/// answer, so the broker has to remember them all.
struct Requester {
    client: u64,
    sequence: u64,
}

/// What a call was answered: done, or refused for a reason.
type Told = Result<Answer, v1::ErrorDetail>;

/// Calls under their ids, with their first answers.
struct Book(Vec<(Mutation, Told)>);

#[tokio::test]
async fn a_call_whose_answer_was_lost_can_be_repeated() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let leader = cluster.leader().await?;
    let broker = raw::broker(&cluster.endpoint(leader)).await?;
    let mut requester = Requester::new();
    let scene = Scene::set(&broker).await?;
    for call in scene.calls() {
        let call = requester.identify(call);
        let applied = cluster.status(leader).await?.applied_index;

        // The node gets the call, and nobody gets its answer.
        let relay = Relay::to(&cluster.endpoint(leader)).await?;
        let deaf = raw::broker(&relay.address()).await?;
        relay.swallow_answers();
        let lost = tokio::spawn({
            let call = call.clone();
            async move { call.send(&deaf).await }
        });
        let done = cluster.wait_until("the call to be applied", async || {
            let status = cluster.status(leader).await.ok()?;
            (status.applied_index > applied).then_some(())
        });
        done.await?;
        ensure!(!lost.is_finished(), "an answer came through: {:?}", lost.await?);
        lost.abort();
        drop(relay);

        let before = state(&broker).await?;
        let first = tell(&call, &broker).await;
        let second = tell(&call, &broker).await;
        ensure!(
            first == second,
            "{call:?} was answered {first:?} and then {second:?}"
        );
        ensure!(first.is_ok(), "{call:?} was refused: {first:?}");
        let after = state(&broker).await?;
        ensure!(
            before == after,
            "repeating {call:?} changed {before:?} to {after:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn answers_outlive_leaders_and_restarts() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let (book, state) = fill(&cluster).await?;

    let leader = cluster.leader().await?;
    cluster.client().await?.cluster().transfer_leader(None).await?;
    let leader = cluster.new_leader(leader).await?;
    book.is_kept_by(&cluster, &state)
        .await
        .context("after a transfer of leadership")?;

    cluster.kill(leader).await?;
    cluster.new_leader(leader).await?;
    book.is_kept_by(&cluster, &state)
        .await
        .context("after the death of the leader")?;
    cluster.restart(leader).await?;

    harm::restart_all(&mut cluster).await?;
    book.is_kept_by(&cluster, &state)
        .await
        .context("after the death of all nodes")
}

#[tokio::test]
async fn answers_travel_with_snapshots() -> Result<()> {
    let mut cluster = small_snapshots(3).start().await?;
    let leader = cluster.leader().await?;
    let away = (leader + 1) % 3;
    cluster.kill(away).await?;
    let (book, state) = fill(&cluster).await?;

    // Until the log that the node has missed is gone.
    let client = cluster.client().await?;
    client
        .declare_queue("filler")
        .max_length(1)
        .overflow(quorate_client::Overflow::DropHead)
        .send()
        .await?;
    let missed = client.publish("filler", "missed").await?.commit.log_index;
    while cluster.status(leader).await?.purged_index < missed {
        client.publish("filler", vec![0; 64 * 1024]).await?;
    }
    cluster.restart(away).await?;
    let caught_up = cluster.wait_until("the node to have the snapshot", async || {
        let status = cluster.status(away).await.ok()?;
        (status.applied_index > missed && status.snapshot_index >= missed).then_some(())
    });
    caught_up.await?;
    let id = cluster.status(away).await?.node_id;
    client.cluster().transfer_leader(Some(id)).await?;
    cluster
        .wait_until("the node to lead", async || {
            (cluster.leader_now().await? == away).then_some(())
        })
        .await?;
    client.delete_queue("filler").send().await?;
    book.is_kept_by(&cluster, &state)
        .await
        .context("on a node that got a snapshot")
}

#[tokio::test]
async fn a_stream_and_a_call_share_request_ids() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let leader = cluster.leader().await?;
    let mut broker = raw::broker(&cluster.endpoint(leader)).await?;
    let mut requester = Requester::new();
    let declare = v1::DeclareQueueRequest {
        name: "jobs".to_owned(),
        ..Default::default()
    };
    broker.declare_queue(declare).await?;

    let Mutation::Publish(publish) = requester.identify(Mutation::Publish(raw::publish("jobs", "once")))
    else {
        unreachable!("it stays a publish");
    };
    let frame = v1::PublishStreamRequest {
        publishes: vec![publish.clone(), publish.clone()],
    };
    let confirms = broker.publish_stream(stream::iter([frame])).await?.into_inner();
    let answers: Vec<_> = timeout(PATIENCE, confirms.try_collect())
        .await
        .context("a stream that the client has closed does not end")??;
    let mut published = Vec::new();
    for confirm in answers
        .into_iter()
        .flat_map(|answer: v1::PublishStreamResponse| answer.confirms)
    {
        let Some(v1::confirm::Outcome::Confirmed(confirmed)) = confirm.outcome else {
            anyhow::bail!("not confirmed: {confirm:?}");
        };
        published.push(confirmed);
    }
    published.push(broker.publish(publish).await?.into_inner());
    let [stream, again, call] = &published[..] else {
        anyhow::bail!("three publishes were confirmed as {published:?}");
    };
    ensure!(
        stream == again && again == call,
        "one publish became {published:?}"
    );

    let leased = broker
        .lease(raw::lease("jobs", 10))
        .await?
        .into_inner()
        .deliveries;
    ensure!(leased.len() == 1, "one publish became {} messages", leased.len());
    let settle = raw::settle(&leased[0].token, Verdict::Ack(v1::Ack {}));
    let Mutation::Settle(settle) = requester.identify(Mutation::Settle(settle)) else {
        unreachable!("it stays a settle");
    };
    let called = broker.settle(settle.clone()).await?.into_inner();
    let open = v1::ConsumeOpen {
        session: 7,
        queue: "jobs".to_owned(),
        credit: 1,
        ..Default::default()
    };
    let requests = [
        v1::consume_request::Request::Open(open),
        v1::consume_request::Request::Settle(settle),
    ];
    let requests = requests.map(|request| v1::ConsumeRequest {
        request: Some(request),
    });
    let answers = broker.consume(stream::iter(requests)).await?.into_inner();
    let answers: Vec<v1::ConsumeResponse> = timeout(PATIENCE, answers.try_collect())
        .await
        .context("a consumer whose client has nothing more to say does not end")??;
    let settled = answers.into_iter().find_map(|answer| match answer.response {
        Some(v1::consume_response::Response::Settled(settled)) => settled.outcome,
        _ => None,
    });
    let Some(v1::settled::Outcome::Response(again)) = settled else {
        anyhow::bail!("the settle was answered {settled:?}");
    };
    ensure!(called == again, "{called:?}, then {again:?}");
    Ok(())
}

impl Requester {
    fn new() -> Self {
        Self {
            client: rand::random_range(1..=u64::MAX),
            sequence: 0,
        }
    }

    fn identify(&mut self, call: Mutation) -> Mutation {
        self.sequence += 1;
        call.with_id(v1::RequestId {
            client: self.client,
            sequence: self.sequence,
            oldest_unanswered: 1,
        })
    }
}

/// Queues and exchanges on which every kind of call has something to do.
struct Scene {
    leases: Vec<v1::Delivery>,
    /// In the dead set of the queue `dead`.
    dead: Vec<String>,
    /// Log index of a redrive there.
    redrive: u64,
}

impl Scene {
    async fn set(broker: &BrokerClient<Channel>) -> Result<Self> {
        let mut broker = broker.clone();
        for name in ["jobs", "full", "old", "dead"] {
            let declare = v1::DeclareQueueRequest {
                name: name.to_owned(),
                ..Default::default()
            };
            broker.declare_queue(declare).await?;
            let messages = (0..8)
                .map(|number| raw::message(format!("{name} {number}")))
                .collect();
            let publish = v1::PublishRequest {
                messages,
                ..raw::publish(name, "")
            };
            broker.publish(publish).await?;
        }
        for name in ["orders", "unused"] {
            let declare = v1::DeclareExchangeRequest {
                name: name.to_owned(),
                kind: v1::ExchangeKind::Fanout.into(),
                ..Default::default()
            };
            broker.declare_exchange(declare).await?;
        }
        broker.bind(bind("orders", "full")).await?;

        let dead = broker.lease(raw::lease("dead", 4)).await?.into_inner().deliveries;
        for delivery in &dead {
            let reject = Verdict::DeadLetter(v1::DeadLetter::default());
            broker.settle(raw::settle(&delivery.token, reject)).await?;
        }
        let first = v1::RedriveRequest {
            queue: "dead".to_owned(),
            max_messages: 1,
            ..Default::default()
        };
        let redriven = broker.redrive(first).await?.into_inner();
        let redrive = redriven.commit.context("nothing was redriven")?.log_index;
        let leases = broker.lease(raw::lease("jobs", 6)).await?.into_inner().deliveries;
        Ok(Self {
            leases,
            dead: dead.into_iter().map(|delivery| delivery.message_id).collect(),
            redrive,
        })
    }

    /// Every call of the API that changes something, all of which succeed once
    /// and would fail or do more if they were applied again.
    fn calls(&self) -> Vec<Mutation> {
        let verdicts = [
            Verdict::Ack(v1::Ack {}),
            Verdict::Nack(v1::Nack {
                delay_ms: Some(600_000),
                reason: "later".to_owned(),
            }),
            Verdict::Release(v1::Release {}),
            Verdict::DeadLetter(v1::DeadLetter {
                reason: "never".to_owned(),
            }),
            Verdict::Extend(v1::Extend { lease_ms: 1_200_000 }),
        ];
        let settlements = self.leases.iter().zip(verdicts);
        let settlements = settlements
            .map(|(lease, verdict)| v1::Settlement {
                token: lease.token.clone(),
                verdict: Some(verdict),
            })
            .collect();
        let settings = v1::QueueSettings {
            lease_ms: Some(45_000),
            ..Default::default()
        };
        let name = |name: &str| name.to_owned();
        vec![
            Mutation::Declare(v1::DeclareQueueRequest {
                name: name("new"),
                ..Default::default()
            }),
            Mutation::Update(v1::UpdateQueueRequest {
                name: name("jobs"),
                settings: Some(settings),
                ..Default::default()
            }),
            Mutation::Publish(raw::publish("jobs", "one more")),
            Mutation::Lease(raw::lease("jobs", 2)),
            Mutation::Settle(v1::SettleRequest {
                request_id: None,
                settlements,
            }),
            Mutation::Lease(v1::LeaseRequest {
                wait_ms: 200,
                ..raw::lease("new", 1)
            }),
            Mutation::Pause(v1::PauseQueueRequest {
                name: name("new"),
                paused: true,
                ..Default::default()
            }),
            Mutation::Transact(v1::TransactRequest {
                request_id: None,
                settlements: vec![acked(&self.leases[5].token)],
                publishes: vec![raw::publish("new", "done"), raw::publish("full", "done")],
            }),
            Mutation::Publish(v1::PublishRequest {
                queue: String::new(),
                exchange: name("orders"),
                ..raw::publish("", "to all")
            }),
            Mutation::Operate(v1::OperateMessagesRequest {
                queue: name("dead"),
                messages: vec![message(&self.dead[3])],
                operation: Some(Operation::Delete(v1::Delete {})),
                ..Default::default()
            }),
            Mutation::Redrive(v1::RedriveRequest {
                queue: name("dead"),
                max_messages: 1,
                ..Default::default()
            }),
            Mutation::UndoRedrive(v1::UndoRedriveRequest {
                queue: name("dead"),
                redrive: self.redrive,
                ..Default::default()
            }),
            Mutation::DeclareExchange(v1::DeclareExchangeRequest {
                name: name("events"),
                kind: v1::ExchangeKind::Topic.into(),
                ..Default::default()
            }),
            Mutation::UpdateExchange(v1::UpdateExchangeRequest {
                name: name("orders"),
                settings: Some(v1::ExchangeSettings {
                    alternate_exchange: Some(name("events")),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            Mutation::Bind(bind("events", "new")),
            Mutation::Unbind(v1::UnbindRequest {
                request_id: None,
                binding: bind("orders", "full").binding,
            }),
            Mutation::DeleteExchange(v1::DeleteExchangeRequest {
                name: name("unused"),
                ..Default::default()
            }),
            Mutation::Purge(v1::PurgeQueueRequest {
                name: name("full"),
                ..Default::default()
            }),
            Mutation::Delete(v1::DeleteQueueRequest {
                name: name("old"),
                ..Default::default()
            }),
        ]
    }

    /// Calls that the broker refuses, which is an answer to be remembered, too.
    fn refused(&self) -> Vec<Mutation> {
        let settings = v1::QueueSettings {
            lease_ms: Some(50_000),
            ..Default::default()
        };
        vec![
            Mutation::Publish(raw::publish("old", "too late")),
            Mutation::Declare(v1::DeclareQueueRequest {
                name: "jobs".to_owned(),
                settings: Some(settings),
                ..Default::default()
            }),
        ]
    }
}

fn acked(token: &str) -> v1::Settlement {
    v1::Settlement {
        token: token.to_owned(),
        verdict: Some(Verdict::Ack(v1::Ack {})),
    }
}

fn message(id: &str) -> v1::MessageSelector {
    v1::MessageSelector {
        selector: Some(v1::message_selector::Selector::MessageId(id.to_owned())),
    }
}

/// Binds a queue to an exchange.
fn bind(exchange: &str, queue: &str) -> v1::BindRequest {
    v1::BindRequest {
        request_id: None,
        binding: Some(v1::Binding {
            source: exchange.to_owned(),
            destination: Some(v1::binding::Destination::Queue(queue.to_owned())),
            ..Default::default()
        }),
    }
}

/// Makes every call once at the leader; with the state that it leaves behind.
async fn fill(cluster: &Cluster) -> Result<(Book, State)> {
    let broker = raw::broker(&cluster.endpoint(cluster.leader().await?)).await?;
    let scene = Scene::set(&broker).await?;
    let mut requester = Requester::new();
    let mut book = Vec::new();
    for call in scene.calls() {
        let call = requester.identify(call);
        let answer = tell(&call, &broker).await;
        ensure!(answer.is_ok(), "{call:?} was refused: {answer:?}");
        book.push((call, answer));
    }
    for call in scene.refused() {
        let call = requester.identify(call);
        let answer = tell(&call, &broker).await;
        ensure!(
            answer.as_ref().is_err_and(|detail| !detail.may_have_applied),
            "{call:?}: {answer:?}"
        );
        book.push((call, answer));
    }
    Ok((Book(book), state(&broker).await?))
}

impl Book {
    /// Every call, repeated at the leader, gets its first answer and changes
    /// nothing.
    async fn is_kept_by(&self, cluster: &Cluster, expected: &State) -> Result<()> {
        for (call, first) in &self.0 {
            let again = tell_leader(call, cluster).await?;
            ensure!(
                again == *first,
                "{call:?} was answered {first:?} and now {again:?}"
            );
        }
        let now = state(&raw::broker(&cluster.endpoint(cluster.leader().await?)).await?).await?;
        ensure!(now == *expected, "repeating changed {expected:?} to {now:?}");
        Ok(())
    }
}

/// Asks the node that leads; another one if leadership moves meanwhile.
async fn tell_leader(call: &Mutation, cluster: &Cluster) -> Result<Told> {
    let told = cluster.wait_until("a leader that answers", async || {
        let broker = raw::broker(&cluster.endpoint(cluster.leader_now().await?))
            .await
            .ok()?;
        let told = tell(call, &broker).await;
        let elsewhere =
            |detail: &v1::ErrorDetail| matches!(detail.reason(), Reason::NotLeader | Reason::NoLeader);
        (!told.as_ref().is_err_and(elsewhere)).then_some(told)
    });
    told.await
}

async fn tell(call: &Mutation, broker: &BrokerClient<Channel>) -> Told {
    let answer = call.clone().send(broker).await;
    answer
        .map(Answer::without_answerer)
        .map_err(|status| raw::detail(&status))
}

/// All that listings show.
type State = (Vec<v1::QueueInfo>, Vec<v1::ExchangeInfo>);

async fn state(broker: &BrokerClient<Channel>) -> Result<State> {
    let mut broker = broker.clone();
    let queues = broker.list_queues(v1::ListQueuesRequest::default()).await?;
    let exchanges = broker.list_exchanges(v1::ListExchangesRequest::default()).await?;
    Ok((queues.into_inner().queues, exchanges.into_inner().exchanges))
}
