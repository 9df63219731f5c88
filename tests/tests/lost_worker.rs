//! A worker and the leader die in one moment: nothing that the worker held is
//! lost, or held for ever.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::TryStreamExt as _;
use jepsen_lite_core::view::Seen;
use quorate_client::{Client, Delivery};
use quorate_test_cluster::Cluster;
use quorate_tests::checker::{each_exactly_once, nothing_is_forgotten, traces_are_lives, verdict};
use quorate_tests::trial::no_bugs_in_logs;
use quorate_tests::views::{events, seen};
use quorate_tests::worker::Worker;
use tokio::sync::mpsc;

/// How many messages the worker holds of each queue.
const HELD: u64 = 40;
/// A lease that ends before a session does that nobody resumes.
const SHORT: Duration = Duration::from_secs(3);
/// A lease that ends long after this test.
const LONG: Duration = Duration::from_secs(3_600);

/// How the worker got its messages.
#[derive(Clone, Copy, Debug)]
enum Way {
    Pushed,
    Pulled,
}

/// Queue, way, lease. What comes back from the second can only come back with
/// the end of the session.
const QUEUES: [(&str, Way, Duration); 3] = [
    ("pushed", Way::Pushed, SHORT),
    ("pushed for long", Way::Pushed, LONG),
    ("pulled", Way::Pulled, SHORT),
];

#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_worker_held_comes_back_although_the_leader_is_lost_too() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;
    let mut published = Vec::new();
    for (queue, ..) in QUEUES {
        client.declare_queue(queue).send().await?;
        let messages = (0..HELD).map(|number| format!("{queue} {number}").into());
        published.push(client.publish_all(queue, messages).await?.message_ids);
    }
    let (holds, mut held) = mpsc::unbounded_channel();
    let worker = Worker::start(take_and_keep(cluster.endpoints(), holds))?;
    for _ in QUEUES {
        held.recv()
            .await
            .context("the worker does not get its messages")?;
    }
    for (queue, ..) in QUEUES {
        let counts = client.describe_queue(queue).await?.counts;
        ensure!(
            counts.leased == HELD && counts.ready == 0,
            "{queue}: {counts:?} instead of {HELD} leased"
        );
        verdict(&nothing_is_forgotten(&browse(&client, queue).await?))?;
    }

    let leader = cluster.leader().await?;
    let (killed, lost) = tokio::join!(cluster.kill(leader), worker.kill());
    killed?;
    lost?;
    cluster.new_leader(leader).await?;
    cluster
        .wait_until("all messages to be ready", async || {
            let mut back = 0;
            for (queue, ..) in QUEUES {
                let messages = browse(&client, queue).await.ok()?;
                if let Err(error) = verdict(&nothing_is_forgotten(&messages)) {
                    return Some(Err(error));
                }
                let counts = client.describe_queue(queue).await.ok()?.counts;
                back += u64::from(counts.leased == 0 && counts.ready == HELD);
            }
            (back == QUEUES.len() as u64).then_some(Ok(()))
        })
        .await??;

    for ((queue, way, lease), published) in QUEUES.iter().zip(published) {
        came_back(&client, &published[0], *way, *lease).await?;
        let again = client.lease(*queue).max(100).send().await?;
        ensure!(
            again.iter().all(Delivery::redelivered),
            "{queue} forgot that its messages had been leased"
        );
        let ids = again.iter().map(|delivery| delivery.message_id().to_owned());
        verdict(&each_exactly_once(published, ids))?;
        for delivery in again {
            delivery.ack().await?;
        }
        let counts = client.describe_queue(*queue).await?.counts;
        ensure!(
            counts.acked == HELD && counts.ready + counts.delayed + counts.leased + counts.dead == 0,
            "{queue}: {counts:?}"
        );
        ensure!(counts.consumers == 0, "{queue} still has the consumer");
    }
    no_bugs_in_logs(&cluster, &[])
}

/// A message came back by the end of its lease, not earlier; or by the end of the
/// session, if it had one.
async fn came_back(client: &Client, message: &str, way: Way, lease: Duration) -> Result<()> {
    let trace = client.trace(message).await?;
    verdict(&traces_are_lives(&events(&trace.events)))?;
    let leases = trace.events.iter().filter(|event| event.change == "leased");
    ensure!(
        leases.count() == 1,
        "it was given to the lost worker again: {:?}",
        trace.events
    );
    let mut last = trace.events.iter().rev();
    let (end, begin) = last.next().zip(last.next()).context("no trace")?;
    let of_session = end.change == "session-ended" && begin.session.is_some();
    let of_time = end.change == "lease-expired" && begin.until_ms.is_some_and(|until| end.at_ms >= until);
    let expected = match way {
        Way::Pulled => of_time,
        Way::Pushed if lease == LONG => of_session,
        Way::Pushed => of_time || of_session,
    };
    ensure!(
        expected && begin.change == "leased",
        "after {begin:?} it came back by {end:?}"
    );
    Ok(())
}

/// Takes the messages of all queues and says so each time, and then does
/// nothing.
async fn take_and_keep(endpoints: Vec<String>, holds: mpsc::UnboundedSender<()>) -> Result<()> {
    let client = Client::connect(endpoints).await?;
    let (mut consumers, mut kept) = (Vec::new(), Vec::new());
    for (queue, way, lease) in QUEUES {
        match way {
            Way::Pulled => kept.extend(
                client
                    .lease(queue)
                    .max(u32::try_from(HELD)?)
                    .lease(lease)
                    .send()
                    .await?,
            ),
            Way::Pushed => {
                let consume = client.consume(queue).prefetch(u32::try_from(HELD)?);
                let mut consumer = consume.lease(lease).open().await?;
                for _ in 0..HELD {
                    kept.push(consumer.next().await.context("the consumer has ended")??);
                }
                consumers.push(consumer);
            }
        }
        let _ = holds.send(());
    }
    std::future::pending().await
}

async fn browse(client: &Client, queue: &str) -> Result<Vec<Seen>> {
    Ok(client
        .browse(queue)
        .messages()
        .map_ok(|message| seen(&message))
        .try_collect()
        .await?)
}
