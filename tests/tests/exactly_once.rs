//! The two examples of the client take effect once per message, although they
//! and the leader are killed again and again.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::TryStreamExt as _;
use quorate_client::Client;
use quorate_test_cluster::{Cluster, find_example};
use quorate_tests::checker::{each_exactly_once, verdict};
use quorate_tests::{harm, rounds, seed};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rusqlite::Connection;
use tokio::process::{Child, Command};
use tokio::time::timeout;

const PACKAGE: &str = "quorate-client";
const CHAIN: [&str; 3] = ["first", "second", "last"];
const ITEMS: u64 = 300;
/// What a killed worker held comes again after this.
const LEASE_MS: &str = "1000";
/// How long a worker may take to empty a queue.
const LIMIT: Duration = Duration::from_secs(60);

/// A worker program with its arguments.
struct Program {
    path: PathBuf,
    arguments: Vec<String>,
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_queue_of_a_pipeline_holds_each_item_once() -> Result<()> {
    let seed = seed("the_last_queue_of_a_pipeline_holds_each_item_once");
    let mut rng = StdRng::seed_from_u64(seed);
    let path = find_example(PACKAGE, "transact_pipeline", &[])?;
    let mut cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;
    publish_items(&client, CHAIN[0]).await?;
    let steps = CHAIN.windows(2).map(|pair| {
        let arguments = ["--from", pair[0], "--to", pair[1]];
        Program::new(&path, &cluster, &arguments)
    });
    let steps: Vec<Program> = steps.collect();

    let mut running = Vec::new();
    for step in &steps {
        running.push(step.start()?);
    }
    for round in 0..rounds(4) {
        a_moment(&mut rng).await;
        let place = rng.random_range(0..steps.len());
        kill(&mut running[place]).await?;
        if round == 1 {
            harm::replace_leader(&mut cluster).await?;
        }
        running[place] = steps[place].start()?;
    }
    for worker in &mut running {
        kill(worker).await?;
    }
    for step in &steps {
        step.finish().await?;
    }

    let items: Vec<String> = client
        .browse(CHAIN[2])
        .with_content()
        .messages()
        .map_ok(|message| String::from_utf8_lossy(&message.body.unwrap_or_default()).into_owned())
        .try_collect()
        .await?;
    verdict(&each_exactly_once((0..ITEMS).map(item), items))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_has_the_effect_of_each_message_once() -> Result<()> {
    let seed = seed("a_database_has_the_effect_of_each_message_once");
    let mut rng = StdRng::seed_from_u64(seed);
    let path = find_example(PACKAGE, "idempotent_consumer", &["sqlite"])?;
    let folder = tempfile::tempdir()?;
    let database = folder.path().join("counts.db");
    let mut cluster = Cluster::start(3).await?;
    let client = cluster.client().await?;
    publish_items(&client, CHAIN[0]).await?;
    let file = database.display().to_string();
    let consumer = Program::new(&path, &cluster, &["--queue", CHAIN[0], "--database", &file]);

    for round in 0..rounds(4) {
        let mut worker = consumer.start()?;
        a_moment(&mut rng).await;
        if round == 1 {
            let leader = cluster.leader().await?;
            let (killed, ended) = tokio::join!(cluster.kill(leader), kill(&mut worker));
            killed?;
            ended?;
            cluster.new_leader(leader).await?;
            cluster.restart(leader).await?;
        } else {
            kill(&mut worker).await?;
        }
    }
    consumer.finish().await?;

    let counts = client.describe_queue(CHAIN[0]).await?.counts;
    ensure!(counts.acked == ITEMS, "{counts:?}");
    verdict(&each_exactly_once((0..ITEMS).map(item), effects(&database)?))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_output_nobody_reads_ends_quietly() -> Result<()> {
    let path = find_example(PACKAGE, "transact_pipeline", &[])?;
    let cluster = Cluster::start(3).await?;
    let worker = Program::new(&path, &cluster, &["--from", CHAIN[0], "--to", CHAIN[1]]);
    let (nobody, output) = io::pipe()?;
    drop(nobody);
    let ending = worker
        .command()
        .arg("--until-empty")
        .stdout(output)
        .stderr(Stdio::piped())
        .output();
    let ended = timeout(LIMIT, ending).await.context("a worker took too long")??;
    ensure!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    Ok(())
}

impl Program {
    fn new(path: &Path, cluster: &Cluster, arguments: &[&str]) -> Self {
        let endpoints = cluster.endpoints().join(",");
        let common = ["--endpoint", &endpoints, "--lease-ms", LEASE_MS];
        let arguments = arguments.iter().chain(&common);
        Self {
            path: path.to_owned(),
            arguments: arguments.map(|&argument| argument.to_owned()).collect(),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Starts it, to be killed.
    fn start(&self) -> Result<Child> {
        self.command().spawn().context("start a worker")
    }

    /// Runs it until its queue is empty.
    async fn finish(&self) -> Result<()> {
        let status = self.command().arg("--until-empty").status();
        let status: ExitStatus = timeout(LIMIT, status)
            .await
            .context("a worker does not come to the end of its queue")??;
        ensure!(status.success(), "a worker ended with {status}");
        Ok(())
    }
}

/// Kills a worker, which would not have ended by itself.
async fn kill(worker: &mut Child) -> Result<()> {
    let ended = worker.try_wait()?;
    ensure!(ended.is_none(), "a worker ended by itself: {ended:?}");
    worker.kill().await.context("kill a worker")
}

/// Lets a worker get anywhere: the length of a life, not a wait for anything.
async fn a_moment(rng: &mut StdRng) {
    tokio::time::sleep(Duration::from_millis(rng.random_range(50..700))).await;
}

fn item(number: u64) -> String {
    format!("item {number:03}")
}

async fn publish_items(client: &Client, queue: &str) -> Result<()> {
    client.declare_queue(queue).max_deliveries(0).send().await?;
    let items = (0..ITEMS).map(|number| item(number).into());
    client.publish_all(queue, items).await?;
    Ok(())
}

/// The bodies in the consumer's table, each as often as it took effect.
fn effects(database: &Path) -> Result<Vec<String>> {
    let connection = Connection::open(database)?;
    let mut rows = connection.prepare("SELECT body, times FROM counts")?;
    let counts = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut effects = Vec::new();
    for count in counts {
        let (body, times): (String, u32) = count?;
        effects.extend((0..times).map(|_| body.clone()));
    }
    Ok(effects)
}
