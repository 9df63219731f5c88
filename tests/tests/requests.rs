//! A repeated request is done once, and answered as it was the first time.
//!
//! The calls here are made without the client library, under request ids that
//! the test chooses, so that it can repeat a call whose answer it has lost, or
//! whose answer it knows.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::{TryStreamExt as _, stream};
use quorate_proto::v1::broker_client::BrokerClient;
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

        let state = queues(&broker).await?;
        let first = tell(&call, &broker).await;
        let second = tell(&call, &broker).await;
        ensure!(
            first == second,
            "{call:?} was answered {first:?} and then {second:?}"
        );
        ensure!(first.is_ok(), "{call:?} was refused: {first:?}");
        let state_after = queues(&broker).await?;
        ensure!(
            state == state_after,
            "repeating {call:?} changed {state:?} to {state_after:?}"
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

/// Queues in which every kind of call has something to do.
struct Scene {
    leases: Vec<v1::Delivery>,
}

impl Scene {
    async fn set(broker: &BrokerClient<Channel>) -> Result<Self> {
        let mut broker = broker.clone();
        for name in ["jobs", "full", "old"] {
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
        let leases = broker.lease(raw::lease("jobs", 5)).await?.into_inner().deliveries;
        Ok(Self { leases })
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

/// Makes every call once at the leader; with the state that it leaves behind.
async fn fill(cluster: &Cluster) -> Result<(Book, Vec<v1::QueueInfo>)> {
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
    Ok((Book(book), queues(&broker).await?))
}

impl Book {
    /// Every call, repeated at the leader, gets its first answer and changes
    /// nothing.
    async fn is_kept_by(&self, cluster: &Cluster, state: &[v1::QueueInfo]) -> Result<()> {
        for (call, first) in &self.0 {
            let again = tell_leader(call, cluster).await?;
            ensure!(
                again == *first,
                "{call:?} was answered {first:?} and now {again:?}"
            );
        }
        let now = queues(&raw::broker(&cluster.endpoint(cluster.leader().await?)).await?).await?;
        ensure!(now == state, "repeating changed {state:?} to {now:?}");
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
        .map(Answer::without_term)
        .map_err(|status| raw::detail(&status))
}

async fn queues(broker: &BrokerClient<Channel>) -> Result<Vec<v1::QueueInfo>> {
    Ok(broker
        .clone()
        .list_queues(v1::ListQueuesRequest::default())
        .await?
        .into_inner()
        .queues)
}
