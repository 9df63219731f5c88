//! The course of a fault test: a cluster under load, harm, drain, verdict.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jepsen_lite_workload::access::Access;
use jepsen_lite_workload::load::Load;
use jepsen_lite_workload::mix::Mix;
use jepsen_lite_workload::native::Native;
use jepsen_lite_workload::queue::Queue;
use jepsen_lite_workload::recorder::Recorder;
use quorate_test_cluster::{Builder, Cluster, wait_until};

use crate::checker::{self, Ends};
use crate::converge::Hashes;
use crate::harm;
use crate::history::{History, Progress};

/// How long the load may stand still while nothing is wrong any more.
const PROGRESS_LIMIT: Duration = Duration::from_secs(60);
/// How long the queues may take to be empty.
const DRAIN_LIMIT: Duration = Duration::from_secs(120);

/// A cluster, and a load on it that writes its history.
#[derive(Debug)]
pub struct Trial {
    /// To be harmed.
    pub cluster: Cluster,
    /// What happens.
    pub recorder: Recorder,
    /// What the nodes say of their state.
    pub hashes: Hashes,
    /// Of all random choices.
    pub seed: u64,
    /// Words of ERROR lines that the fault makes nodes write.
    pub expected_errors: Vec<&'static str>,
    deliveries_max: u32,
    /// Workers of it may be killed.
    pub load: Load,
}

/// What a trial found when all was over.
#[derive(Debug)]
pub struct Verdict {
    /// All that happened.
    pub history: History,
    /// How much that was.
    pub progress: Progress,
}

/// Nodes that take snapshots and shorten their logs all the time, so that
/// restarts begin from snapshots and followers that were away get them sent.
#[must_use]
pub fn small_snapshots(nodes: usize) -> Builder {
    let builder = Cluster::builder(nodes);
    builder
        .setting("snapshot-log-bytes", "128KiB")
        .setting("log-keep-bytes", "64KiB")
}

impl Trial {
    /// Starts a cluster with small snapshots, and the usual load on it.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub async fn start(test: &str) -> Result<Self> {
        Self::on(small_snapshots(3).start().await?, crate::seed(test)).await
    }

    /// Starts the usual load on a cluster.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub async fn on(cluster: Cluster, seed: u64) -> Result<Self> {
        Self::of(cluster, Mix::default(), seed).await
    }

    /// Starts a load on a cluster.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub async fn of(cluster: Cluster, mix: Mix, seed: u64) -> Result<Self> {
        let recorder = Recorder::default();
        let deliveries_max = mix.deliveries_max;
        let access = Access::tcp(cluster.endpoints());
        let workload = Arc::new(Queue::<Native>::new(mix));
        let load = Box::pin(Load::start(workload, &access, seed, &recorder)).await?;
        Ok(Self {
            cluster,
            recorder,
            hashes: Hashes::default(),
            seed,
            expected_errors: Vec::new(),
            deliveries_max,
            load,
        })
    }

    /// Waits until the load has got some way further: messages confirmed,
    /// delivered and settled, none of which can have been under way before.
    ///
    /// # Errors
    ///
    /// When it stands still for a minute, or nodes differ.
    pub async fn progress(&self) -> Result<()> {
        let before = self.recorder.progress();
        let more = 200;
        let outcome = wait_until("the load to get on", PROGRESS_LIMIT, async || {
            for node in 0..self.cluster.node_count() {
                if let Ok(status) = self.cluster.status(node).await
                    && let Err(error) = self.hashes.note(&status)
                {
                    return Some(Err(error));
                }
            }
            let now = self.recorder.progress();
            let got_on = now.confirmed >= before.confirmed + more
                && now.delivered >= before.delivered + more
                && now.settled >= before.settled + more;
            got_on.then_some(Ok(()))
        });
        let outcome = outcome.await.and_then(|outcome| outcome);
        outcome.with_context(|| {
            format!(
                "{:?}, before {before:?}{}",
                self.recorder.progress(),
                self.cluster.logs()
            )
        })
    }

    /// Kills these nodes in one moment: none acts on the death of another.
    ///
    /// # Errors
    ///
    /// When one does not run.
    pub async fn kill_together(&mut self, nodes: &[usize]) -> Result<()> {
        harm::kill_together(&mut self.cluster, nodes).await
    }

    /// Starts these nodes again, and waits until all nodes are ready.
    ///
    /// # Errors
    ///
    /// When one does not start.
    pub async fn restart_together(&mut self, nodes: &[usize]) -> Result<()> {
        harm::restart_together(&mut self.cluster, nodes).await
    }

    /// Ends the load, drains the queues, lets the nodes agree, and checks every
    /// promise. All nodes must run.
    ///
    /// # Errors
    ///
    /// When a promise was broken, or any of this does not come to an end.
    pub async fn finish(self) -> Result<(Verdict, Cluster)> {
        let Self {
            cluster,
            recorder,
            hashes,
            seed,
            expected_errors,
            deliveries_max,
            load,
        } = self;
        load.stop().await?;
        let drained = load.drain(DRAIN_LIMIT).await;
        drained.with_context(|| cluster.logs())?;
        hashes.converge(&cluster).await?;
        let counts = load.counts().await?;
        let history = recorder.history();
        let violations = checker::check(
            &history,
            &Ends {
                counts,
                deliveries_max,
            },
        );
        checker::verdict(&violations).with_context(|| format!("seed {seed}{}", cluster.logs()))?;
        no_bugs_in_logs(&cluster, &expected_errors)?;
        let progress = recorder.progress();
        eprintln!("seed {seed}: {progress:?}");
        Ok((Verdict { history, progress }, cluster))
    }
}

/// The consensus library calls it an error when a message comes to a node that
/// has begun to stop. What matters of its errors, our own lines say.
const LIBRARY: &str = " ERROR openraft";

/// No node has panicked, or said ERROR but with the expected words.
///
/// # Errors
///
/// When one has.
pub fn no_bugs_in_logs(cluster: &Cluster, expected: &[&str]) -> Result<()> {
    for node in 0..cluster.node_count() {
        let log = fs::read_to_string(cluster.log_file(node)).context("read the log of a node")?;
        let is_expected = |line: &str| {
            expected
                .iter()
                .chain([&LIBRARY])
                .any(|words| line.contains(words))
        };
        let is_error = |line: &str| line.contains(" ERROR ") && !is_expected(line);
        let bug = log
            .lines()
            .find(|line| line.contains("panicked at") || is_error(line));
        ensure!(bug.is_none(), "node {node} says: {}", bug.unwrap_or_default());
    }
    Ok(())
}
