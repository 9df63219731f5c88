//! Everybody who takes part in a load, and what can be done to them.
//!
//! A crew has *publishers*, who are told to end first, and *workers*. A worker is killed as a process is: its
//! connections break, its tasks are gone in one moment, nobody says goodbye to the broker, and what it had
//! under way is of unknown outcome. Another one takes its place, under a number of its own.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::access::{Access, Lifeline};
use crate::participant::Participant;
use crate::recorder::Recorder;
use crate::signal::Switch;
use crate::workload::Workload;

/// How long participants may take to end: longer than any call.
const END_LIMIT: Duration = Duration::from_secs(60);

/// Which side a participant is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Ends first.
    Publisher,
    /// Ends when all publishers have.
    Worker,
}

/// One place in a crew.
#[derive(Clone, Copy, Debug)]
pub struct Post {
    /// What it does, for the workload.
    pub role: &'static str,
    /// Which side it is on.
    pub side: Side,
    /// Number among the posts of its role, from 0.
    pub place: u32,
    /// Of a workload with several parts: which.
    pub part: usize,
    /// Its calls may take this long before their outcome is unknown.
    pub timeout: Duration,
    /// It waits so long for an answer before it asks again; `None` = as long as the client library does.
    pub attempt: Option<Duration>,
}

/// A crew at work; clones are the same one.
#[derive(Clone, Debug)]
pub struct Crew(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    hiring: Option<Hiring>,
    signals: Arc<Signals>,
    publishers: Mutex<Vec<Member>>,
    workers: Mutex<Vec<Member>>,
}

/// What it takes to bring in one more participant.
#[derive(Debug)]
struct Hiring {
    workload: Arc<dyn Workload>,
    access: Access,
    seed: u64,
    recorder: Recorder,
    processes: AtomicU32,
}

/// What all participants are told.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    pub(crate) publishers_end: Switch,
    pub(crate) workers_end: Switch,
    /// Workers stand still.
    pub(crate) paused: Switch,
    /// Workers nack everything.
    pub(crate) nacking: Switch,
    /// How often they did for that reason.
    pub(crate) nacks: AtomicU64,
}

#[derive(Debug)]
struct Member {
    post: Post,
    process: u32,
    /// Leases in hand.
    hands: Arc<AtomicU64>,
    lifeline: Lifeline,
    task: JoinHandle<()>,
}

impl Crew {
    /// Brings in everybody that a workload wants. Its queues must be there.
    pub(crate) fn start(
        workload: Arc<dyn Workload>,
        access: &Access,
        seed: u64,
        recorder: &Recorder,
    ) -> Self {
        let posts = workload.posts();
        let crew = Self(Arc::new(Shared {
            hiring: Some(Hiring {
                workload,
                access: access.clone(),
                seed,
                recorder: recorder.clone(),
                processes: AtomicU32::default(),
            }),
            signals: Arc::default(),
            publishers: Mutex::default(),
            workers: Mutex::default(),
        }));
        for post in posts {
            if let Some(member) = crew.hire(post) {
                let side = match post.side {
                    Side::Publisher => crew.publishers(),
                    Side::Worker => crew.workers(),
                };
                let mut side = side;
                side.push(member);
            }
        }
        crew
    }

    /// A crew without anybody, for a cluster without a load.
    #[must_use]
    pub fn nobody() -> Self {
        Self(Arc::new(Shared {
            hiring: None,
            signals: Arc::default(),
            publishers: Mutex::default(),
            workers: Mutex::default(),
        }))
    }

    /// How many workers there are.
    #[must_use]
    pub fn worker_count(&self) -> usize {
        self.workers().len()
    }

    /// Kills a worker; another one takes its place. One that is not there is none.
    pub async fn replace_worker(&self, place: usize) {
        let Some(post) = self.workers().get(place).map(|member| member.post) else {
            return;
        };
        let Some(new) = self.hire(post) else { return };
        let old = self
            .workers()
            .get_mut(place)
            .map(|member| std::mem::replace(member, new));
        if let Some(old) = old {
            self.kill(old).await;
        }
    }

    /// Kills all workers that hold leases, and replaces them; says how many.
    pub async fn kill_holders(&self) -> u64 {
        let holders: Vec<usize> = {
            let workers = self.workers();
            let holds = |member: &Member| member.hands.load(Ordering::Relaxed) > 0;
            (0..workers.len())
                .filter(|&place| holds(&workers[place]))
                .collect()
        };
        for &place in &holders {
            self.replace_worker(place).await;
        }
        holders.len() as u64
    }

    /// Lets all workers stand still, or go on; says how many leases they hold.
    pub fn pause(&self, on: bool) -> u64 {
        self.0.signals.paused.set(on);
        let workers = self.workers();
        workers
            .iter()
            .map(|member| member.hands.load(Ordering::Relaxed))
            .sum()
    }

    /// Lets all workers nack everything, or behave as before; says how often they have done so.
    pub fn nack(&self, on: bool) -> u64 {
        self.0.signals.nacking.set(on);
        self.0.signals.nacks.load(Ordering::Relaxed)
    }

    /// Ends everybody, and waits for the answers that they still get, or do not
    /// get in time.
    ///
    /// # Errors
    ///
    /// When one panicked, or does not end within a minute; with the first, after all were told to end.
    pub async fn stop(&self) -> Result<()> {
        let signals = &self.0.signals;
        self.pause(false);
        self.nack(false);
        signals.publishers_end.set(true);
        let publishers = std::mem::take(&mut *self.publishers());
        let outcome = end(publishers).await.context("publishers");
        signals.workers_end.set(true);
        let workers = std::mem::take(&mut *self.workers());
        outcome.and(end(workers).await.context("workers"))
    }

    fn hire(&self, post: Post) -> Option<Member> {
        let hiring = self.0.hiring.as_ref()?;
        let process = hiring.processes.fetch_add(1, Ordering::Relaxed);
        let (access, lifeline) = hiring.access.of_one_process();
        let participant = Participant::new(
            process,
            post,
            access,
            hiring.seed ^ (u64::from(process) << 32),
            hiring.recorder.clone(),
            Arc::clone(&self.0.signals),
        );
        Some(Member {
            post,
            process,
            hands: participant.hands(),
            lifeline,
            task: tokio::spawn(hiring.workload.work(participant)),
        })
    }

    async fn kill(&self, member: Member) {
        member.lifeline.cut();
        member.task.abort();
        // Cancelled, or it had ended; if it panicked, so will the one in its place.
        let _ = member.task.await;
        if let Some(hiring) = &self.0.hiring {
            hiring.recorder.killed(member.process);
        }
    }

    fn publishers(&self) -> MutexGuard<'_, Vec<Member>> {
        self.0.publishers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Member>> {
        self.0.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the end of members that were told to end.
async fn end(members: Vec<Member>) -> Result<()> {
    let mut outcome = Ok(());
    for mut member in members {
        let name = format!("{} {}", member.post.role, member.process);
        let ended = match timeout(END_LIMIT, &mut member.task).await {
            Ok(ended) => ended.with_context(|| format!("{name} panicked")),
            Err(_) => {
                member.lifeline.cut();
                member.task.abort();
                Err(anyhow::anyhow!("{name} does not end within {END_LIMIT:?}"))
            }
        };
        outcome = outcome.and(ended);
    }
    outcome
}
