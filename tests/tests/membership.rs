//! Nodes come late, stay away, lose their data, join and leave.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use quorate_client::NodeStatus;
use quorate_test_cluster::Cluster;
use quorate_tests::alive::serves;
use quorate_tests::converge::Hashes;
use quorate_tests::program;
use quorate_tests::trial::{Trial, small_snapshots};

/// Exit code of a node that the cluster refuses.
const EXIT_IDENTITY: i32 = 12;

#[tokio::test]
async fn any_start_order_and_a_late_node_make_one_cluster() -> Result<()> {
    // Builds the binary if it is not there.
    drop(Cluster::start(1).await?);
    let folder = tempfile::tempdir()?;
    for late in 0..3 {
        // The other two are started first, in one order or the other.
        let script = folder.path().join(format!("quorate-{late}"));
        let program = program::path()?;
        let text = format!(
            "#!/bin/sh\ncase \" $* \" in *\" --name=node-{late} \"*) sleep 2;; esac\nexec '{}' \"$@\"\n",
            program.display()
        );
        fs::write(&script, text)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        let cluster = Cluster::builder(3).binary(script).start().await?;
        let mut clusters = Vec::new();
        for node in 0..3 {
            let status = cluster.status(node).await?;
            ensure!(
                voters(&status) == 3,
                "node {node} knows of other members: {status:?}"
            );
            clusters.push(status.cluster_id);
        }
        ensure!(
            clusters.iter().all(|id| *id == clusters[0]),
            "they form several clusters: {clusters:?}"
        );
        serves(&cluster.client().await?).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_was_away_for_long_gets_a_snapshot() -> Result<()> {
    let mut trial = Box::pin(Trial::start("a_follower_that_was_away_for_long_gets_a_snapshot")).await?;
    trial.progress().await?;
    let leader = trial.cluster.leader().await?;
    let away = (leader + 1) % 3;
    let had = trial.cluster.status(away).await?.last_log_index;
    trial.cluster.kill(away).await?;
    // Until the entry that it needs next is gone everywhere.
    while trial.cluster.status(leader).await?.purged_index <= had {
        trial.progress().await?;
    }
    trial.restart_together(&[away]).await?;
    let caught_up = trial.cluster.wait_until("the node to catch up", async || {
        let status = trial.cluster.status(away).await.ok()?;
        (status.applied_index > had && status.snapshot_index > had).then_some(())
    });
    caught_up.await?;
    trial.finish().await?;
    Ok(())
}

#[tokio::test]
async fn a_wiped_node_is_a_new_node() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;
    serves(&client).await?;
    let wiped = (cluster.leader().await? + 1) % 3;
    let old = cluster.status(wiped).await?.node_id;
    cluster.kill(wiped).await?;
    cluster.wipe(wiped)?;
    cluster.restart(wiped).await?;

    let log = cluster.log_file(wiped);
    let says = cluster.wait_until("the node to say what to do", async || {
        let log = fs::read_to_string(&log).ok()?;
        log.lines()
            .find(|line| line.contains("is not a member of it"))
            .map(str::to_owned)
    });
    let says = says.await?;
    let peer = format!("127.0.0.1:{}", cluster.ports(wiped).peer);
    ensure!(
        says.contains(&format!("quorate cluster add {peer}")),
        "it does not say what to do: {says}"
    );
    let status = cluster.status(wiped).await?;
    ensure!(status.node_id != old, "it has its old id again");
    ensure!(
        status.role == "waiting",
        "a node without data takes part: {status:?}"
    );
    cluster
        .wait_until("the node to refuse what is meant for the old one", async || {
            let log = fs::read_to_string(&log).ok()?;
            log.contains(&format!("not node {old}")).then_some(())
        })
        .await?;

    client.cluster().add(&peer).await?;
    let status = client.cluster().status().await?;
    ensure!(voters(&status) == 3, "{:?}", status.members);
    ensure!(
        status.members.iter().all(|member| member.node_id != old),
        "the old id stays: {:?}",
        status.members
    );
    Hashes::default().converge(&cluster).await?;
    // It counts: the cluster lives with it and one of the others.
    let leader = cluster.leader().await?;
    cluster.kill(leader).await?;
    cluster.new_leader(leader).await?;
    serves(&client).await
}

#[tokio::test]
async fn a_cluster_grows_to_five_and_shrinks() -> Result<()> {
    let mut cluster = small_snapshots(3).start().await?;
    let client = cluster.client().await?.with_timeout(Duration::from_secs(60));
    client.declare_queue("kept").send().await?;
    for number in 0..100 {
        client.publish("kept", vec![number; 10_000]).await?;
    }
    for _ in 0..2 {
        let spare = cluster.start_spare().await?;
        ensure!(
            cluster.status(spare).await?.role == "waiting",
            "a spare node does not wait"
        );
        client
            .cluster()
            .add(format!("127.0.0.1:{}", cluster.ports(spare).peer))
            .await?;
    }
    ensure!(
        voters(&client.cluster().status().await?) == 5,
        "they are not five"
    );
    Hashes::default().converge(&cluster).await?;

    // Five live with the loss of two.
    let leader = cluster.leader().await?;
    let lost = [leader, (leader + 1) % 5];
    for node in lost {
        cluster.kill(node).await?;
    }
    serves(&client).await?;
    for node in lost {
        cluster.restart(node).await?;
    }
    cluster.ready().await?;

    // The leader itself goes, and then a follower.
    for leads in [true, false] {
        let leader = cluster.leader().await?;
        let running = (0..5).find(|&node| node != leader && cluster.is_running(node));
        let node = if leads {
            leader
        } else {
            running.context("there are others")?
        };
        let id = cluster.status(node).await?.node_id;
        client.cluster().remove(id).await?;
        let status = cluster.wait_exit(node).await?;
        stopped_because_removed(&cluster, node, id, status)?;
        serves(&client).await?;
    }
    ensure!(
        voters(&client.cluster().status().await?) == 3,
        "they are not three"
    );
    ensure!(
        client.describe_queue("kept").await?.counts.ready == 100,
        "messages were lost on the way"
    );
    Hashes::default().converge(&cluster).await?;
    Ok(())
}

fn stopped_because_removed(cluster: &Cluster, node: usize, id: u64, status: ExitStatus) -> Result<()> {
    let log = fs::read_to_string(cluster.log_file(node))?;
    let why = log
        .lines()
        .find(|line| line.starts_with("quorate: "))
        .unwrap_or_default();
    ensure!(
        status.code() == Some(EXIT_IDENTITY),
        "removed node {id} ended with {status}: {why}"
    );
    ensure!(why.contains("removed"), "it does not say why:\n{log}");
    Ok(())
}

#[tokio::test]
async fn everything_is_there_after_a_restart_of_all() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;
    let declare = client
        .declare_queue("jobs")
        .lease(Duration::from_secs(600))
        .max_deliveries(7);
    declare.dead_letter_queue("failed").send().await?;
    let ids = client
        .publish_all("jobs", (0..10).map(|number| format!("job {number}").into()))
        .await?
        .message_ids;
    let mut held = client.lease("jobs").max(3).send().await?;
    held.remove(0).nack("once").await?;
    let before = client.describe_queue("jobs").await?;
    let members = client.cluster().status().await?.members.len();

    for (node, status) in cluster.terminate_all().await? {
        ensure!(status.success(), "node {node} ended with {status}");
    }
    for node in 0..3 {
        cluster.restart(node).await?;
    }
    cluster.ready().await?;
    let mut after = client.describe_queue("jobs").await?;
    after.read_index = before.read_index;
    ensure!(after == before, "{before:?} became {after:?}");
    ensure!(
        client.cluster().status().await?.members.len() == members,
        "members have changed"
    );
    for delivery in held {
        delivery
            .ack()
            .await
            .context("a lease did not outlive the restart")?;
    }
    let rest = client.lease("jobs").max(100).send().await?;
    let rest_ids: Vec<&str> = rest.iter().map(quorate_client::Delivery::message_id).collect();
    let expected = [&ids[..1], &ids[3..]].concat();
    ensure!(rest_ids == expected, "{rest_ids:?} instead of {expected:?}");
    ensure!(
        rest[0].attempt() == 2 && rest[0].last_error() == Some("once"),
        "{:?}",
        rest[0]
    );
    ensure!(
        rest.iter().all(|delivery| delivery.body().starts_with(b"job ")),
        "bodies are damaged"
    );
    Ok(())
}

fn voters(status: &NodeStatus) -> usize {
    status.members.iter().filter(|member| member.voter).count()
}
