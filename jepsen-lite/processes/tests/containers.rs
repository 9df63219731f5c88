//! The cluster in containers, each fault with the effect that it must have.
//!
//! `cargo test -p jepsen-lite-processes --test containers -- --ignored --nocapture`
//!
//! Where no engine answers, this says so in letters that are seen, and tests nothing. One cluster serves all
//! steps: containers are slow to come and go.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jepsen_lite_core::cluster::{Cluster as _, Done};
use jepsen_lite_core::schedule::Fault;
use jepsen_lite_processes::containers::engine::Engine;
use jepsen_lite_processes::containers::{Containers, Settings, image};
use quorate_client::{Client, NodeStatus};
use quorate_test_cluster::{find_binary, wait_until};

const IMAGE: &str = "quorate:jepsen-lite";
const NEXT: &str = "quorate:jepsen-lite-next";
/// How long a cluster may take to do what it must.
const PATIENCE: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds an image, for which it may have to make a Debian: .ci/run does it where an engine answers"]
#[allow(clippy::print_stdout)] // whoever runs the test must see that it did nothing
async fn faults_of_containers_have_their_effect_and_are_undone() -> Result<()> {
    let engine = match Engine::find().await {
        Ok(engine) => engine,
        Err(why) => {
            println!("\n!!! SKIPPED: layer c, containers: {why:#}\n");
            return Ok(());
        }
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let binary: PathBuf = find_binary().context("the server is built: cargo build -p quorate-server")?;
    image::build(&engine, &root, &binary, IMAGE).await?;
    image::tag(&engine, IMAGE, NEXT).await?;
    let settings = Settings {
        nodes: 3,
        image: IMAGE.to_owned(),
        image_next: Some(NEXT.to_owned()),
        memory: "1g".to_owned(),
        settings: [("audit-file".to_owned(), "/var/lib/quorate/audit.jsonl".to_owned())].into(),
    };
    let mut cluster = Containers::start(engine.clone(), settings).await?;
    let result = steps(&mut cluster).await;
    if result.is_err() {
        for node in 0..cluster.node_count() {
            println!(
                "--- node {node}\n{}",
                cluster.log(node, 40).await.unwrap_or_default()
            );
        }
    }
    cluster.down().await?;
    image::remove(&engine, &[NEXT, IMAGE]).await;
    result
}

async fn steps(cluster: &mut Containers) -> Result<()> {
    let client = Client::connect(cluster.endpoints()).await?;
    client.declare_queue("work").send().await?;
    let mut published = 0_usize;
    let mut publish = async || -> Result<()> {
        client.publish("work", b"work".to_vec()).await?;
        published += 1;
        Ok(())
    };
    publish().await?;

    step("kill and start the leader");
    let leader = leads(cluster).await?;
    let term = cluster.status(leader).await?.term;
    assert_eq!(inflict(cluster, &Fault::Kill, &[leader]).await?, 1);
    assert!(!cluster.running().contains(&leader));
    let ended = cluster.ended(leader).await?.context("it runs")?;
    assert_eq!(ended.exit_code, 137);
    wait_until("another leader", PATIENCE, async || {
        newer_leader(cluster, term).await
    })
    .await?;
    publish().await?;
    cluster.undo(&Fault::Kill, &[leader]).await?;
    follows(cluster, leader).await?;

    step("pull the leader out of the peers' network: clients reach it, and it leads no more");
    let leader = leads(cluster).await?;
    let term = cluster.status(leader).await?.term;
    inflict(cluster, &Fault::Isolate, &[leader]).await?;
    wait_until("another leader", PATIENCE, async || {
        newer_leader(cluster, term).await
    })
    .await?;
    cluster
        .status(leader)
        .await
        .context("clients still reach the old leader")?;
    publish().await?;
    cluster.undo(&Fault::Isolate, &[leader]).await?;
    follows(cluster, leader).await?;

    step("a leader that hears nothing steps down");
    let leader = leads(cluster).await?;
    let term = cluster.status(leader).await?.term;
    let (done, _) = cluster.inflict(&Fault::Deaf, &[leader], 0).await?;
    if let Done::Skipped(why) = &done {
        step(&format!("SKIPPED, all packet filters: {why}"));
    } else {
        wait_until("another leader", PATIENCE, async || {
            newer_leader(cluster, term).await
        })
        .await?;
        publish().await?;
        let counters = cluster.undo(&Fault::Deaf, &[leader]).await?;
        assert!(counters["packets_stopped"] > 0, "{counters:?}");
        follows(cluster, leader).await?;

        step("clients do not reach a node that its peers reach");
        inflict(cluster, &Fault::CutClients, &[0]).await?;
        ensure!(
            cluster.status(0).await.is_err(),
            "it was to be cut off from clients"
        );
        publish().await?;
        cluster.undo(&Fault::CutClients, &[0]).await?;
        follows(cluster, 0).await?;
    }

    step("freeze the leader");
    let leader = leads(cluster).await?;
    let term = cluster.status(leader).await?.term;
    inflict(cluster, &Fault::Pause, &[leader]).await?;
    ensure!(
        cluster.status(leader).await.is_err(),
        "a frozen node does not answer"
    );
    wait_until("another leader", PATIENCE, async || {
        newer_leader(cluster, term).await
    })
    .await?;
    publish().await?;
    cluster.undo(&Fault::Pause, &[leader]).await?;
    follows(cluster, leader).await?;

    step("orderly stop, with the exit code of one");
    let follower = (leads(cluster).await? + 1) % 3;
    inflict(cluster, &Fault::Stop, &[follower]).await?;
    let ended = cluster.ended(follower).await?.context("it runs")?;
    assert_eq!(ended.exit_code, 0);
    publish().await?;
    cluster.undo(&Fault::Stop, &[follower]).await?;
    follows(cluster, follower).await?;

    step("a starved processor, and a small memory");
    inflict(cluster, &Fault::SlowCpu { percent: 5 }, &[follower]).await?;
    publish().await?;
    cluster.undo(&Fault::SlowCpu { percent: 5 }, &[follower]).await?;
    cluster.limit_memory(follower, "512m").await?;

    step("restart one after the other");
    assert_eq!(inflict(cluster, &Fault::Restart, &[0, 1, 2]).await?, 3);
    publish().await?;

    step("a wiped node comes back as another one");
    let old = cluster.status(1).await?.node_id;
    inflict(cluster, &Fault::Wipe, &[1]).await?;
    publish().await?;
    let counters = cluster.undo(&Fault::Wipe, &[1]).await?;
    assert_eq!(counters["joined_again"], 1);
    let status = follows(cluster, 1).await?;
    assert_ne!(status.node_id, old);
    assert_eq!(status.members.len(), 3, "{:?}", status.members);

    step("another image, node by node, and back");
    assert_eq!(inflict(cluster, &Fault::Upgrade, &[0, 1, 2]).await?, 3);
    publish().await?;
    cluster.undo(&Fault::Upgrade, &[0, 1, 2]).await?;
    publish().await?;

    step("what cannot be done is said");
    let (done, _) = cluster.inflict(&Fault::DiskFull, &[0], 0).await?;
    assert!(
        matches!(&done, Done::Skipped(why) if why.contains("disk-full")),
        "{done:?}"
    );

    step("everything at once, and healed");
    inflict(cluster, &Fault::Pause, &[0]).await?;
    inflict(cluster, &Fault::Kill, &[1]).await?;
    inflict(cluster, &Fault::Isolate, &[2]).await?;
    cluster.heal().await?;
    publish().await?;

    step("all that was confirmed is there, and on all nodes");
    let queue = client.describe_queue("work").await?;
    assert_eq!(usize::try_from(queue.counts.ready)?, published);
    let leader = leads(cluster).await?;
    let applied = cluster.status(leader).await?.applied_index;
    for node in 0..3 {
        wait_until("the node to have applied it", PATIENCE, async || {
            let status = cluster.status(node).await.ok()?;
            (status.applied_index >= applied).then_some(())
        })
        .await?;
    }
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("audit.jsonl");
    cluster.copy_audit(0, &file).await?;
    let audit = std::fs::read_to_string(&file)?;
    ensure!(audit.contains("\"entry\""), "the audit log says what was applied");
    Ok(())
}

#[allow(clippy::print_stdout)] // shown when the test fails
fn step(what: &str) {
    println!("{what}");
}

/// Does it, for certain, and returns what was counted.
async fn inflict(cluster: &mut Containers, fault: &Fault, nodes: &[usize]) -> Result<u64> {
    let (done, counters) = cluster.inflict(fault, nodes, 0).await?;
    ensure!(done == Done::Yes, "{fault:?}: {done:?}");
    Ok(counters.values().sum())
}

/// Who leads, once somebody does.
async fn leads(cluster: &mut Containers) -> Result<usize> {
    loop {
        // Each question has its own limit; a cluster without a leader fails in `wait_until` of the step before.
        if let Some(leader) = cluster.leader().await {
            return Ok(leader);
        }
    }
}

/// A leader of a later term than this.
async fn newer_leader(cluster: &Containers, term: u64) -> Option<()> {
    for node in cluster.running() {
        if let Ok(status) = cluster.status(node).await
            && status.role == "leader"
            && status.term > term
        {
            return Some(());
        }
    }
    None
}

/// The node answers as a member that knows the leader that a majority has.
async fn follows(cluster: &Containers, node: usize) -> Result<NodeStatus> {
    wait_until(&format!("node {node} to be up to date"), PATIENCE, async || {
        let status = cluster.status(node).await.ok()?;
        let mut furthest = 0;
        for other in cluster.running() {
            furthest = furthest.max(cluster.status(other).await.map_or(0, |status| status.term));
        }
        (status.leader.is_some() && status.term == furthest).then_some(status)
    })
    .await
}
