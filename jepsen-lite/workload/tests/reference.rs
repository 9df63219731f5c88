//! Every workload on a cluster where nothing is wrong: what it writes down must be valid in every respect, so
//! that whatever a checker finds in a run with faults was not there before. And a run with a fault or two, from
//! its schedule to its end.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use jepsen_lite_core::cluster::{Cluster, Done};
use jepsen_lite_core::judge::judge;
use jepsen_lite_core::run::Run;
use jepsen_lite_core::schedule::{Evidence, Fault, Schedule, Step, Target, Workload};
use jepsen_lite_core::verdict::Verdict;
use jepsen_lite_workload::access::Access;
use jepsen_lite_workload::trial::conduct;

/// Processes on this machine that can be killed and paused, and no more.
struct Processes(quorate_test_cluster::Cluster);

impl Cluster for Processes {
    fn node_count(&self) -> usize {
        self.0.node_count()
    }

    fn running(&self) -> Vec<usize> {
        (0..self.0.node_count())
            .filter(|&node| self.0.is_running(node))
            .collect()
    }

    async fn leader(&mut self) -> Option<usize> {
        self.0.leader_now().await
    }

    async fn newest(&mut self, of: &[usize]) -> Option<usize> {
        let mut newest = None;
        for &node in of {
            let last = self.0.status(node).await.ok().map(|status| status.last_log_index);
            newest = newest.max(last.map(|last| (last, node)));
        }
        newest.map(|(_, node)| node)
    }

    async fn inflict(
        &mut self,
        fault: &Fault,
        nodes: &[usize],
        _seed: u64,
    ) -> Result<(Done, BTreeMap<String, u64>)> {
        for &node in nodes {
            match fault {
                Fault::Kill => self.0.kill(node).await?,
                Fault::Pause => self.0.pause(node)?,
                _ => return Ok((Done::Skipped("unknown here".to_owned()), BTreeMap::new())),
            }
        }
        Ok((
            Done::Yes,
            BTreeMap::from([("nodes".to_owned(), nodes.len() as u64)]),
        ))
    }

    async fn undo(&mut self, fault: &Fault, nodes: &[usize]) -> Result<BTreeMap<String, u64>> {
        for &node in nodes {
            match fault {
                Fault::Kill => self.0.restart(node).await?,
                _ => self.0.resume(node)?,
            }
        }
        Ok(BTreeMap::new())
    }

    async fn heal(&mut self) -> Result<()> {
        self.0.ready().await
    }
}

/// A few seconds of this workload, with these faults.
fn schedule(workload: &str, steps: Vec<Step>) -> Schedule {
    Schedule {
        name: workload.to_owned(),
        about: String::new(),
        seed: quorate_seed(workload),
        nodes: 3,
        load_ms: if steps.is_empty() { 5_000 } else { 8_000 },
        heal_ms: 30_000,
        workload: Workload {
            name: workload.to_owned(),
            parameters: BTreeMap::new(),
        },
        settings: BTreeMap::new(),
        steps,
        evidence: Evidence::default(),
    }
}

fn quorate_seed(test: &str) -> u64 {
    let given = std::env::var("QUORATE_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(rand::random);
    eprintln!("{test}: run again with QUORATE_SEED={seed}");
    seed
}

async fn run(schedule: &Schedule) -> Result<Run> {
    let cluster = quorate_test_cluster::Cluster::builder(3)
        .setting("snapshot-log-bytes", "128KiB")
        .setting("log-keep-bytes", "64KiB")
        .start()
        .await?;
    let access = Access::tcp(cluster.endpoints());
    let run = Box::pin(conduct(schedule, &mut Processes(cluster), &access)).await?;
    let facts = &run.facts;
    ensure!(facts.converged && facts.whole_after_ms.is_some() && facts.barrier.is_some());
    let results = judge(&run);
    eprintln!("{}: {:?}", schedule.name, results.seen);
    ensure!(results.verdict == Verdict::Valid, "{results:#?}");
    Ok(run)
}

macro_rules! workloads {
    ($($name:ident: $workload:literal),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $name() -> Result<()> {
                let run = Box::pin(run(&schedule($workload, Vec::new()))).await?;
                let progress = run.history.progress();
                ensure!(progress.confirmed > 0 && progress.settled > 10, "{progress:?}");
                Ok(())
            }
        )*

        #[test]
        fn every_workload_is_here() {
            assert_eq!([$($workload),*], jepsen_lite_workload::NAMES);
        }
    };
}

workloads! {
    queue: "queue",
    fifo: "fifo",
    groups: "groups",
    dedup_retry: "dedup-retry",
    chain: "chain",
    dead_letter: "dead-letter",
    delay: "delay",
    stats: "stats",
    mutex: "mutex",
    bulk: "bulk",
    fan_out: "fan-out",
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_from_its_first_fault_to_its_end() -> Result<()> {
    let step = |at_ms, fault, target, undo_at_ms| Step {
        at_ms,
        fault,
        target,
        undo_at_ms,
    };
    let steps = vec![
        step(1_000, Fault::Kill, Target::Leader, Some(3_000)),
        step(2_000, Fault::KillWorkers, Target::All, None),
        step(3_500, Fault::NackStorm, Target::All, Some(4_500)),
        step(4_000, Fault::Pause, Target::Leader, Some(6_000)),
        step(4_500, Fault::PauseWorkers, Target::All, Some(7_000)),
        step(5_000, Fault::Grow, Target::Follower, None),
    ];
    let run = Box::pin(run(&schedule("queue", steps))).await?;
    let done = run
        .effects
        .iter()
        .filter(|effect| effect.state == Done::Yes)
        .count();
    ensure!(done == 5 && run.effects.len() == 6, "{:?}", run.effects);
    ensure!(
        run.effects
            .iter()
            .all(|effect| effect.until_ms.is_some() == (effect.state == Done::Yes))
    );
    ensure!(!run.history.kills.is_empty(), "nobody was killed");
    ensure!(run.facts.leader_changes >= 2, "{:?}", run.facts);
    Ok(())
}
