//! A workload at work on a cluster: from its declarations to the last message.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::future::join_all;
use jepsen_lite_core::history::Wish;
use jepsen_lite_core::view::{Counts, Settings};
use tokio::time::{Instant, sleep};

use crate::access::Access;
use crate::crew::Crew;
use crate::letter::Letter;
use crate::native::{self, Native};
use crate::operator::Operator;
use crate::participant::Participant;
use crate::protocol::Settlement;
use crate::recorder::Recorder;
use crate::workload::Workload;

/// The number of the one who sets up, takes what is left, and looks at what remains.
const CARETAKER: u32 = u32::MAX;
/// The leases of what is left.
const DRAIN_LEASE: Duration = Duration::from_secs(10);
/// How many at a time.
const DRAIN_MAX: u32 = 50;
/// Between two looks at queues that are not empty.
const DRAIN_PAUSE: Duration = Duration::from_millis(50);

/// A load on a cluster.
#[derive(Debug)]
pub struct Load {
    workload: Arc<dyn Workload>,
    crew: Crew,
    caretaker: Participant,
    /// Letters that the caretaker has sent.
    sent: AtomicU32,
}

impl Load {
    /// Declares what the workload needs, and starts everybody.
    ///
    /// # Errors
    ///
    /// When something cannot be declared.
    pub async fn start(
        workload: Arc<dyn Workload>,
        access: &Access,
        seed: u64,
        recorder: &Recorder,
    ) -> Result<Self> {
        let caretaker = Participant::alone(CARETAKER, access, recorder);
        let operator = caretaker.operator();
        for (queue, settings) in workload.queues() {
            let declared = operator.declare(&queue, settings).await;
            declared.with_context(|| format!("declare {queue}"))?;
        }
        workload
            .prepare(&caretaker)
            .await
            .context("prepare the workload")?;
        recorder.mark("load", "", None);
        let crew = Crew::start(Arc::clone(&workload), access, seed, recorder);
        Ok(Self {
            workload,
            crew,
            caretaker,
            sent: AtomicU32::default(),
        })
    }

    /// Those who work, for what is done to them.
    #[must_use]
    pub fn crew(&self) -> &Crew {
        &self.crew
    }

    /// Ends everybody, and waits for the answers that they still get, or do not
    /// get in time.
    ///
    /// # Errors
    ///
    /// When one panicked, or does not end.
    pub async fn stop(&self) -> Result<()> {
        self.crew.stop().await
    }

    /// Takes and acks what is left in the queues, the dead sets included, until nothing is.
    ///
    /// # Errors
    ///
    /// When they are not empty within this time; with what is left.
    pub async fn drain(&self, limit: Duration) -> Result<()> {
        let give_up = Instant::now() + limit;
        let (native, operator) = (self.caretaker.connect::<Native>(), self.caretaker.operator());
        let queues = self.queues();
        self.caretaker.recorder().mark("drain", "", None);
        loop {
            let mut left = Vec::new();
            for (queue, _) in &queues {
                match self.drain_some(&native, &operator, queue).await {
                    Ok(counts) if counts.here() == 0 => {}
                    Ok(counts) => left.push(format!("{queue}: {counts:?}")),
                    Err(error) => left.push(format!("{queue}: {error}")),
                }
            }
            if left.is_empty() {
                return Ok(());
            }
            ensure!(
                Instant::now() < give_up,
                "not empty after {limit:?}: {}",
                left.join(", ")
            );
            sleep(DRAIN_PAUSE).await;
        }
    }

    /// Some of one queue; says what is left.
    async fn drain_some(
        &self,
        native: &Native,
        operator: &Operator,
        queue: &str,
    ) -> quorate_client::Result<Counts> {
        let pull = self
            .caretaker
            .pull(native, queue, DRAIN_MAX, DRAIN_LEASE, Duration::ZERO);
        let acks = pull.await.into_iter().map(|mut held| async move {
            match self.workload.onward(queue) {
                Some(to) => {
                    let count = self.sent.fetch_add(1, Ordering::Relaxed);
                    let letter = Letter::new(self.caretaker.key(count));
                    self.caretaker.ack_and_publish(&mut held, to, &[letter]).await;
                }
                None => {
                    self.caretaker.settle(&mut held, Settlement::of(Wish::Ack)).await;
                }
            }
        });
        join_all(acks).await;
        let counts = native::counts(&operator.describe(queue).await?.counts);
        if counts.dead > counts.dead_letter_backlog {
            operator.redrive(queue, u64::MAX).await?;
        }
        Ok(counts)
    }

    /// What the broker counts of each queue.
    ///
    /// # Errors
    ///
    /// When it does not say.
    pub async fn counts(&self) -> Result<BTreeMap<String, Counts>> {
        let operator = self.caretaker.operator();
        let mut counts = BTreeMap::new();
        for (queue, _) in self.queues() {
            let info = operator.describe(&queue).await;
            let info = info.with_context(|| format!("describe {queue}"))?;
            counts.insert(queue, native::counts(&info.counts));
        }
        Ok(counts)
    }

    /// The queues of the workload, and how they are set.
    #[must_use]
    pub fn queues(&self) -> Vec<(String, Settings)> {
        self.workload.queues()
    }
}
