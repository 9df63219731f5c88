//! The real cluster in a simulated world: it forms, serves, and keeps what it confirmed while its nodes are killed,
//! lose power, stand still and are cut off; and the same seed does the same.

#![allow(clippy::print_stdout)]

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use jepsen_lite_core::cluster::Cluster as _;
use jepsen_lite_core::schedule::Fault;
use jepsen_lite_sim::cluster::SimCluster;
use jepsen_lite_sim::net::{Host, Network, Plane};
use jepsen_lite_sim::trace::Trace;
use jepsen_lite_sim::world::{PEOPLE, Settings, World};
use quorate_client::{Client, Message, QueueSettings};
use quorate_disk_shim::simulation;

const SEEDS: u64 = 6;

fn main() {
    if simulation::is_simulated() {
        let seed = std::env::args().nth(1).and_then(|seed| seed.parse().ok());
        println!("{}", world(seed.expect("the parent passes a seed")));
        return;
    }
    if std::env::args().skip(1).any(|argument| argument == "--list") {
        return;
    }
    for seed in 0..SEEDS {
        let first = in_a_process_of_its_own(seed);
        assert_eq!(
            first,
            in_a_process_of_its_own(seed),
            "seed {seed} ran in two ways"
        );
        println!("seed {seed}: {first}");
    }
}

fn in_a_process_of_its_own(seed: u64) -> String {
    let itself = std::env::current_exe().expect("this test");
    let output = Command::new(itself)
        .arg(seed.to_string())
        .env(simulation::SEED_VARIABLE, seed.to_string())
        .output()
        .expect("it can be started again");
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !said.is_empty(),
        "seed {seed}: {complained}"
    );
    said
}

fn client(network: &Network) -> Client {
    let network = network.clone();
    Client::builder()
        .endpoints((1..=3).map(|node| Host(node).address(Plane::Clients).to_string()))
        .timeout(Duration::from_secs(20))
        .connector(move |address| {
            let network = network.clone();
            async move { network.dial(PEOPLE, &address).await }
        })
        .connect_lazy()
        .expect("well-formed endpoints")
}

fn world(seed: u64) -> String {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let lines = std::env::var_os("SIM_TRACE").map(|path| {
        let file = std::fs::File::create(path).expect("a place for the trace");
        Box::new(std::io::BufWriter::new(file)) as Box<dyn std::io::Write + Send>
    });
    let trace = Trace::new(lines);
    let settings = Settings {
        seed,
        nodes: 3,
        node: quorate_node::Config {
            snapshot_log_bytes: 4 << 10,
            log_keep_bytes: 1 << 10,
            ..quorate_node::Config::default()
        },
        restore_leader: false,
        clock_spread_ms: 200,
    };
    let mut world = World::new(settings, trace.clone());
    let client = client(world.network());
    let mut cluster = SimCluster::new(world.orders(), world.network().clone(), client.clone());
    let load = async {
        cluster.ready(&[0, 1, 2]).await.expect("a cluster");
        client
            .declare_queue("jobs")
            .settings(QueueSettings::default())
            .send()
            .await
            .expect("a queue");
        let publishing = tokio::spawn(publish(client.clone()));
        let faults = [
            (Fault::Kill, 2_000),
            (Fault::PowerLoss, 2_000),
            (Fault::Pause, 3_000),
            (Fault::Isolate, 3_000),
            (Fault::Deaf, 2_000),
            (Fault::Mute, 2_000),
        ];
        for (fault, ms) in faults {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let Some(leader) = cluster.leader().await else {
                continue;
            };
            cluster
                .inflict(&fault, &[leader], seed)
                .await
                .expect("it can be done");
            tokio::time::sleep(Duration::from_millis(ms)).await;
            let effect = cluster.undo(&fault, &[leader]).await.expect("it can be undone");
            assert!(!effect.is_empty(), "seed {seed}: {fault:?} had no effect");
        }
        cluster.heal().await.expect("it is whole again");
        let confirmed = publishing.await.expect("no panic");
        let mut received = BTreeSet::new();
        loop {
            let leases = client.lease("jobs").max(100).send().await.expect("leases");
            if leases.is_empty() {
                break;
            }
            for delivery in leases {
                received.insert(delivery.body().to_vec());
                delivery.ack().await.expect("an ack");
            }
        }
        let lost: Vec<_> = confirmed
            .iter()
            .filter(|body| !received.contains(*body))
            .collect();
        assert!(
            lost.is_empty(),
            "seed {seed}: lost {} of {}",
            lost.len(),
            confirmed.len()
        );
        confirmed.len()
    };
    let confirmed = world.run(Duration::from_secs(180), load);
    let confirmed = confirmed.unwrap_or_else(|| panic!("seed {seed}: not done in time"));
    let violations = world.watch().violations();
    assert!(violations.is_empty(), "seed {seed}: {violations:?}");
    let [entries, installs, leaders, disks] = world.watch().seen();
    format!(
        "{} {confirmed} confirmed, {entries} entries, {installs} installs, {leaders} leader changes, {disks} disk checks",
        trace.hash()
    )
}

/// Publishes until the faults are over, and tells what was confirmed.
async fn publish(client: Client) -> Vec<Vec<u8>> {
    let mut confirmed = Vec::new();
    for number in 0..1_000_u32 {
        let body = number.to_be_bytes().to_vec();
        if client.publish("jobs", Message::new(body.clone())).await.is_ok() {
            confirmed.push(body);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    confirmed
}
