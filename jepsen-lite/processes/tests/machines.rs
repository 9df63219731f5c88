//! Every fault is done to a cluster of processes, has an effect that can be counted, and can be undone.
//!
//! `cargo test -p jepsen-lite-processes --test machines` does each fault once. The named scenarios, with their
//! load, take about half a minute each and run by name, or all of them, with the seeds of their files or others:
//!
//! ```text
//! JEPSEN_LITE_SCENARIOS=kill-leader-loop,bitflip-minority JEPSEN_LITE_SEEDS=1,2,3 \
//!     cargo test -p jepsen-lite-processes --test machines scenarios -- --ignored --nocapture
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jepsen_lite_core::cluster::{Cluster as _, Done};
use jepsen_lite_core::judge::judge;
use jepsen_lite_core::schedule::{Fault, Schedule};
use jepsen_lite_core::verdict::Verdict;
use jepsen_lite_processes::machines::{Machines, Plan};
use jepsen_lite_workload::access::Access;
use jepsen_lite_workload::{scenarios, trial};
use quorate_client::Client;
use quorate_test_cluster::wait_until;

/// How long a fault lasts here.
const WHILE: Duration = Duration::from_millis(1_500);
/// How long the cluster may take to be whole.
const WHOLE: Duration = Duration::from_secs(60);

fn plan(folder: &Path, nodes: usize) -> Plan {
    Plan {
        nodes,
        settings: BTreeMap::from([
            ("snapshot-log-bytes".to_owned(), "64KiB".to_owned()),
            ("log-keep-bytes".to_owned(), "32KiB".to_owned()),
        ]),
        folder: folder.to_owned(),
        binary: None,
        other_binary: None,
    }
}

/// A cluster, and a client that goes through the proxies.
struct Trial {
    machines: Machines,
    client: Client,
    _folder: tempfile::TempDir,
}

impl Trial {
    async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let machines = Machines::start(&plan(folder.path(), 3)).await?;
        let client = Client::connect(machines.endpoints()).await?;
        client.declare_queue("jobs").send().await?;
        Ok(Self {
            machines,
            client,
            _folder: folder,
        })
    }

    /// Publishes for a while, whatever comes of it.
    async fn load(&self, span: Duration) {
        let end = tokio::time::Instant::now() + span;
        let client = self.client.with_timeout(Duration::from_secs(1));
        while tokio::time::Instant::now() < end {
            let _ = client.publish("jobs", vec![1; 500]).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Does a fault, undoes it, and wants to see these effects.
    async fn fault(
        &mut self,
        fault: Fault,
        nodes: &[usize],
        effects: &[&str],
    ) -> Result<BTreeMap<String, u64>> {
        let (done, mut counted) = self.machines.inflict(&fault, nodes, 2).await?;
        ensure!(done == Done::Yes, "{fault:?}: {done:?}");
        self.load(WHILE).await;
        counted.extend(self.machines.undo(&fault, nodes).await?);
        eprintln!("{fault:?} on {nodes:?}: {counted:?}");
        for effect in effects {
            ensure!(
                counted.get(*effect).is_some_and(|count| *count > 0),
                "{fault:?} had no {effect}: {counted:?}"
            );
        }
        self.whole().await.with_context(|| format!("after {fault:?}"))?;
        Ok(counted)
    }

    /// All nodes come to the same state, and serve.
    async fn whole(&mut self) -> Result<()> {
        self.machines.heal().await?;
        let nodes = self.machines.running();
        wait_until("all nodes to be one", WHOLE, async || {
            let client = self.client.with_timeout(Duration::from_secs(2));
            let index = client.publish("jobs", "whole").await.ok()?.commit.log_index;
            let mut states = Vec::new();
            for &node in &nodes {
                let status = self.machines.status(node).await.ok()?;
                (status.applied_index >= index).then_some(())?;
                states.push((status.state_index, status.state_hash));
            }
            states.windows(2).all(|pair| pair[0] == pair[1]).then_some(())
        })
        .await
    }

    async fn leader(&mut self) -> Result<usize> {
        for _ in 0..100 {
            if let Some(leader) = self.machines.leader().await {
                return Ok(leader);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::bail!("nobody leads")
    }

    async fn follower(&mut self) -> Result<usize> {
        Ok((self.leader().await? + 1) % 3)
    }

    async fn finish(self) -> Result<()> {
        let odd = self.machines.finish().await?;
        ensure!(odd.panics.is_empty(), "{:?}", odd.panics);
        ensure!(odd.exits.iter().all(|exit| exit.expected), "{:?}", odd.exits);
        ensure!(odd.peaks.len() >= 3, "there are no samples: {:?}", odd.peaks);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_are_killed_stopped_frozen_and_exchanged() -> Result<()> {
    let mut trial = Trial::start().await?;
    let leader = trial.leader().await?;
    trial.fault(Fault::Kill, &[leader], &["ended"]).await?;
    let follower = trial.follower().await?;
    trial.fault(Fault::Stop, &[follower], &["ended"]).await?;
    let leader = trial.leader().await?;
    trial
        .fault(Fault::Pause, &[leader], &["paused", "stood_still", "lasted_ms"])
        .await?;
    let leader = trial.leader().await?;
    trial
        .fault(Fault::SlowCpu { percent: 20 }, &[leader], &["slowed"])
        .await?;
    trial.fault(Fault::Restart, &[0, 1, 2], &["restarted"]).await?;
    let both = trial
        .fault(Fault::Upgrade, &[0, 1, 2], &["exchanged", "exchanged_back"])
        .await?;
    ensure!(both["exchanged"] == 3 && both["exchanged_back"] == 3, "{both:?}");
    trial.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn power_is_lost_by_one_and_by_all() -> Result<()> {
    let mut trial = Trial::start().await?;
    let client = trial.client.with_timeout(Duration::from_secs(1));
    let mut publishers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let client = client.clone();
        publishers.spawn(async move {
            loop {
                let _ = client.publish("jobs", vec![1; 500]).await;
            }
        });
    }
    trial.load(Duration::from_secs(1)).await;
    let leader = trial.leader().await?;
    // There is always a write that is not yet synced.
    let lost = ["ended", "pages_at_stake"];
    trial.fault(Fault::PowerLoss, &[leader], &lost).await?;
    trial.load(Duration::from_secs(1)).await;
    trial.fault(Fault::PowerLoss, &[0, 1, 2], &lost).await?;
    publishers.shutdown().await;
    trial.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn networks_are_cut_slowed_and_broken() -> Result<()> {
    let mut trial = Trial::start().await?;
    let leader = trial.leader().await?;
    trial.fault(Fault::Isolate, &[leader], &[]).await?;
    let leader = trial.leader().await?;
    trial.fault(Fault::Deaf, &[leader], &["bytes_held"]).await?;
    let leader = trial.leader().await?;
    trial.fault(Fault::Mute, &[leader], &["bytes_held"]).await?;
    trial.fault(Fault::Shatter, &[0, 1, 2], &[]).await?;
    let leader = trial.leader().await?;
    trial.fault(Fault::CutClients, &[leader], &[]).await?;
    let leader = trial.leader().await?;
    trial
        .fault(Fault::Reset, &[leader], &["connections_broken"])
        .await?;
    trial
        .fault(Fault::Delay { ms: 20 }, &[0, 1, 2], &["bytes_slowed"])
        .await?;
    let throttle = Fault::Throttle {
        bytes_per_second: 50_000,
    };
    trial.fault(throttle, &[0], &["bytes_slowed"]).await?;
    trial
        .fault(Fault::Lossy { percent: 20 }, &[0, 1, 2], &["pieces_lost"])
        .await?;
    trial.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_jump_drift_and_strobe() -> Result<()> {
    let mut trial = Trial::start().await?;
    for ms in [3_600_000, -3_600_000] {
        let leader = trial.leader().await?;
        trial
            .fault(Fault::ClockJump { ms }, &[leader], &["wrong_readings"])
            .await?;
    }
    for per_mille in [300, -300] {
        let leader = trial.leader().await?;
        trial
            .fault(Fault::ClockDrift { per_mille }, &[leader], &["wrong_readings"])
            .await?;
    }
    trial
        .fault(Fault::ClockStrobe { ms: 200 }, &[0, 1, 2], &["wrong_readings"])
        .await?;
    trial.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_fill_up_fail_and_dawdle() -> Result<()> {
    let mut trial = Trial::start().await?;
    for fault in [Fault::DiskFull, Fault::WriteError, Fault::SyncError { count: 3 }] {
        let leader = trial.leader().await?;
        trial.fault(fault, &[leader], &["calls_failed"]).await?;
    }
    let leader = trial.leader().await?;
    trial
        .fault(Fault::SlowSync { ms: 30 }, &[leader], &["slow_syncs"])
        .await?;
    trial.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn data_is_harmed_and_replaced() -> Result<()> {
    let mut trial = Trial::start().await?;
    trial.load(Duration::from_secs(2)).await;
    let follower = trial.follower().await?;
    trial
        .fault(Fault::BitFlip { bits: 4 }, &[follower], &["bits_flipped"])
        .await?;
    let follower = trial.follower().await?;
    trial
        .fault(Fault::Truncate { bytes: 2_000 }, &[follower], &["bytes_cut"])
        .await?;
    let follower = trial.follower().await?;
    trial
        .fault(Fault::Rollback, &[follower], &["bytes_rolled_back"])
        .await?;
    let follower = trial.follower().await?;
    trial
        .fault(
            Fault::Wipe,
            &[follower],
            &["emptied", "waited_as_new", "replaced"],
        )
        .await?;
    trial.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn members_come_and_go() -> Result<()> {
    let mut trial = Trial::start().await?;
    let (done, counted) = trial.machines.inflict(&Fault::Grow, &[0, 1], 1).await?;
    ensure!(done == Done::Yes && counted["added"] == 2, "{done:?} {counted:?}");
    ensure!(trial.machines.node_count() == 5);
    trial.load(WHILE).await;
    let counted = trial.machines.undo(&Fault::Grow, &[3, 4]).await?;
    ensure!(counted["removed"] == 2, "{counted:?}");
    trial.whole().await?;
    let follower = trial.follower().await?;
    trial
        .fault(Fault::Shrink, &[follower], &["removed", "added"])
        .await?;
    let follower = trial.follower().await?;
    trial
        .fault(Fault::Transfer, &[follower], &["transferred"])
        .await?;
    trial.fault(Fault::Snapshot, &[0, 1, 2], &["snapshots"]).await?;
    trial.finish().await
}

/// Runs named scenarios and judges them.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "half a minute each; JEPSEN_LITE_SCENARIOS=NAME,… names them"]
async fn scenarios_take_their_course() -> Result<()> {
    let named = std::env::var("JEPSEN_LITE_SCENARIOS").unwrap_or_default();
    let named: Vec<&str> = named.split(',').filter(|name| !name.is_empty()).collect();
    let seeds = std::env::var("JEPSEN_LITE_SEEDS").unwrap_or_default();
    let seeds = seeds.split(',').filter(|seed| !seed.is_empty());
    let seeds: Vec<u64> = seeds.map(str::parse).collect::<Result<_, _>>()?;
    let mut schedules = Vec::new();
    for name in scenarios::names().filter(|name| named.is_empty() || named.contains(name)) {
        let schedule = scenarios::by_name(name)?;
        let own = [schedule.seed];
        let seeds = if seeds.is_empty() { &own[..] } else { &seeds };
        schedules.extend(seeds.iter().map(|&seed| Schedule {
            seed,
            ..schedule.clone()
        }));
    }
    let mut wrong = Vec::new();
    for schedule in schedules {
        let name = format!("{} with seed {}", schedule.name, schedule.seed);
        let folder = tempfile::Builder::new().prefix("jepsen-lite-").tempdir()?;
        let began = std::time::Instant::now();
        let started = Plan {
            settings: schedule.settings.clone(),
            ..plan(folder.path(), schedule.nodes)
        };
        let mut machines = Machines::start(&started).await?;
        let access = Access::tcp(machines.endpoints());
        let mut run = Box::pin(trial::conduct(&schedule, &mut machines, &access)).await?;
        machines.complete(&mut run).await?;
        let results = judge(&run);
        eprintln!(
            "{name}: {} in {:?}, {:?}",
            results.verdict,
            began.elapsed(),
            results.seen
        );
        for effect in &run.effects {
            eprintln!(
                "  {} on {:?}, {} to {:?} ms: {:?} {:?}",
                effect.fault.name(),
                effect.nodes,
                effect.from_ms,
                effect.until_ms.unwrap_or_default(),
                effect.state,
                effect.counters
            );
        }
        let broken = results.findings.iter().flat_map(|finding| {
            let name = format!("{} {}", finding.invariant, finding.name);
            finding
                .witnesses
                .iter()
                .map(move |witness| format!("{name}: {}", witness.evidence))
        });
        let problems: Vec<String> = broken.chain(results.notes.iter().cloned()).collect();
        for problem in &problems {
            eprintln!("  !!! {problem}");
        }
        if results.verdict != Verdict::Valid {
            run.write(folder.path())?;
            results.write(folder.path())?;
            eprintln!("  kept: {}", folder.keep().display());
            wrong.push(name);
        }
    }
    ensure!(wrong.is_empty(), "not as it should be: {wrong:?}");
    Ok(())
}
