//! Dead letters get another chance: chosen by a filter, in batches, at a pace.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use quorate_proto::v1;
use tokio::time::{Instant, sleep_until};

use crate::client::Client;
use crate::error::{Error, Result};
use crate::filter::MessageFilter;
use crate::message::{Commit, commit, nonzero};
use crate::operate::OperateResult;

/// The most messages of one command, so that it is short.
const BATCH_MAX: u64 = 1_000;
/// At a pace, how many batches a second has.
const BATCHES_PER_SECOND: u64 = 10;
/// The most refusals that [`Redriven`] keeps one by one.
const REFUSALS_KEPT: usize = 1_000;

/// A redrive in the making; see [`Client::redrive`].
#[derive(Debug)]
#[must_use = "nothing happens until `send` or `batches` is called"]
pub struct Redrive {
    client: Client,
    queue: String,
    filter: MessageFilter,
    to: String,
    max: Option<u64>,
    rate: Option<u32>,
}

/// What a redrive did.
#[derive(Clone, Debug, Default)]
pub struct Redriven {
    /// Messages that were set free.
    pub redriven: u64,
    /// Messages that were chosen and refused: they are where they were.
    pub refused: u64,
    /// The first 1,000 of those, each with the reason: a target that is full or
    /// gone.
    pub refusals: Vec<OperateResult>,
    /// Names it, for [`Client::undo_redrive`]. None if nothing was chosen.
    pub redrive: Option<u64>,
    /// The queues where messages were set free, by name.
    pub queues: BTreeSet<String>,
    /// What ended it before its time. Everything counted above was done all the
    /// same; after an [unknown](Error::Unknown) outcome, one batch more may have
    /// been.
    pub stopped: Option<Error>,
}

/// One batch of a redrive.
#[derive(Clone, Debug, Default)]
pub struct RedriveBatch {
    /// Where in the log. None = nothing was chosen.
    pub commit: Option<Commit>,
    /// Names the redrive, the same for all batches. None = nothing was chosen yet.
    pub redrive: Option<u64>,
    /// Messages that were set free.
    pub redriven: u64,
    /// The queues where they were, each once.
    pub queues: Vec<String>,
    /// Messages that were chosen and refused, each with the reason.
    pub refused: Vec<OperateResult>,
}

/// What became of an undo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Undone {
    /// Where in the log; of many messages, the last entry of several.
    pub commit: Commit,
    /// Messages that are back where the redrive took them from.
    pub count: u64,
}

impl Client {
    /// Gives dead letters another chance: those in the dead set of a queue become
    /// ready in their old place, and those that a queue received as dead letters
    /// go back to the queue they came from. Their attempts start anew.
    ///
    /// ```no_run
    /// use quorate_client::MessageFilter;
    ///
    /// # async fn example(client: quorate_client::Client) -> quorate_client::Result<()> {
    /// let failed = MessageFilter::new().reason("max-deliveries");
    /// let redriven = client.redrive("jobs").filter(failed).max(10_000).rate(200).send().await?;
    /// println!("{} redriven, {} refused", redriven.redriven, redriven.refused);
    /// // A mistake? What still waits goes back.
    /// if let Some(redrive) = redriven.redrive {
    ///     for queue in redriven.queues {
    ///         client.undo_redrive(queue, redrive).await?;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn redrive(&self, queue: impl Into<String>) -> Redrive {
        Redrive {
            client: self.clone(),
            queue: queue.into(),
            filter: MessageFilter::new(),
            to: String::new(),
            max: None,
            rate: None,
        }
    }

    /// Takes a redrive back: its messages that still wait in `queue` become dead
    /// letters again, as they were. Messages that went to
    /// [several queues](Redriven::queues) are taken back from each by a call of its
    /// own.
    ///
    /// # Errors
    ///
    /// Refused with `QUEUE_NOT_FOUND`; unknown; unreachable. Of more than 4,096
    /// messages some may have been taken back by then; a further call does the rest.
    pub async fn undo_redrive(&self, queue: impl Into<String>, redrive: u64) -> Result<Undone> {
        let queue = queue.into();
        let mut undone = Undone::default();
        let mut next = Some(0);
        while let Some(from) = next {
            let request = v1::UndoRedriveRequest {
                request_id: None,
                queue: queue.clone(),
                redrive,
                from,
            };
            let answer = self.call(request).await?;
            undone.count += answer.undone;
            if answer.commit.is_some() {
                undone.commit = commit(answer.commit);
            }
            next = nonzero(answer.next);
        }
        Ok(undone)
    }
}

/// Where a redrive stands between two batches.
struct Progress {
    redrive: Redrive,
    /// None = there are no more.
    from: Option<u64>,
    /// The name it got by its first batch.
    name: Option<u64>,
    handled: u64,
    start: Instant,
}

impl Redrive {
    /// Only these; default is all dead letters.
    pub fn filter(mut self, filter: MessageFilter) -> Self {
        self.filter = filter;
        self
    }

    /// To this queue, instead of back to where each came from.
    pub fn to(mut self, queue: impl Into<String>) -> Self {
        self.to = queue.into();
        self
    }

    /// At most so many messages, refused ones included; default is no limit.
    pub fn max(mut self, messages: u64) -> Self {
        self.max = Some(messages);
        self
    }

    /// Not faster than so many messages per second, at least 1; default is no
    /// limit.
    pub fn rate(mut self, messages_per_second: u32) -> Self {
        self.rate = Some(messages_per_second.max(1));
        self
    }

    /// Carries it out to its end. A future that is dropped stops it after the
    /// batch that is under way.
    ///
    /// # Errors
    ///
    /// Of the first batch: refused with `QUEUE_NOT_FOUND` or `INVALID_ARGUMENT`;
    /// unknown; unreachable. Later ones are told in [`Redriven::stopped`].
    pub async fn send(self) -> Result<Redriven> {
        let mut batches = self.batches();
        let mut redriven = Redriven::default();
        let mut first = true;
        while let Some(batch) = batches.next().await {
            match batch {
                Ok(batch) => redriven.add(batch),
                Err(error) if first => return Err(error),
                Err(error) => redriven.stopped = Some(error),
            }
            first = false;
        }
        Ok(redriven)
    }

    /// Carries it out batch by batch, as the stream is read. Ends after the first
    /// error, which is one of those of [`send`](Self::send).
    pub fn batches(self) -> impl Stream<Item = Result<RedriveBatch>> + Send + Unpin + 'static {
        let progress = Progress {
            redrive: self,
            from: Some(0),
            name: None,
            handled: 0,
            start: Instant::now(),
        };
        Box::pin(stream::unfold(progress, Progress::next))
    }

    fn batch_max(&self, handled: u64) -> u64 {
        let paced = self.rate.map_or(BATCH_MAX, |rate| {
            u64::from(rate).div_ceil(BATCHES_PER_SECOND).min(BATCH_MAX)
        });
        let left = self.max.map_or(u64::MAX, |max| max.saturating_sub(handled));
        paced.min(left)
    }

    /// How long `handled` messages take at its pace.
    fn time_for(&self, handled: u64) -> Duration {
        self.rate.map_or(Duration::ZERO, |rate| {
            Duration::from_secs_f64(handled as f64 / f64::from(rate))
        })
    }
}

impl Progress {
    async fn next(mut self) -> Option<(Result<RedriveBatch>, Self)> {
        let from = self.from?;
        let max = self.redrive.batch_max(self.handled);
        if max == 0 {
            return None;
        }
        sleep_until(self.start + self.redrive.time_for(self.handled)).await;
        let request = v1::RedriveRequest {
            request_id: None,
            queue: self.redrive.queue.clone(),
            filter: Some(self.redrive.filter.clone().into_wire()),
            max_messages: u32::try_from(max).unwrap_or(u32::MAX),
            to: self.redrive.to.clone(),
            from,
            continues: self.name.unwrap_or_default(),
        };
        let batch = match self.redrive.client.call(request).await {
            Ok(answer) => {
                self.from = nonzero(answer.next);
                self.name = nonzero(answer.redrive);
                self.handled += answer.redriven + answer.refused.len() as u64;
                Ok(RedriveBatch::from(answer))
            }
            Err(error) => {
                self.from = None;
                Err(error)
            }
        };
        Some((batch, self))
    }
}

impl Redriven {
    fn add(&mut self, batch: RedriveBatch) {
        self.redriven += batch.redriven;
        self.refused += batch.refused.len() as u64;
        let room = REFUSALS_KEPT - self.refusals.len();
        self.refusals.extend(batch.refused.into_iter().take(room));
        self.redrive = batch.redrive;
        self.queues.extend(batch.queues);
    }
}

impl From<v1::RedriveResponse> for RedriveBatch {
    fn from(wire: v1::RedriveResponse) -> Self {
        Self {
            commit: wire.commit.map(|wire| commit(Some(wire))),
            redrive: nonzero(wire.redrive),
            redriven: wire.redriven,
            queues: wire.queues,
            refused: wire.refused.into_iter().map(OperateResult::from).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redrive() -> Redrive {
        let client = Client::builder().endpoint("nobody:1").connect_lazy();
        client.unwrap().redrive("jobs")
    }

    #[tokio::test]
    async fn a_batch_is_a_tenth_of_a_second_at_most() {
        assert_eq!(redrive().batch_max(0), 1_000);
        assert_eq!(redrive().rate(50).batch_max(0), 5);
        assert_eq!(redrive().rate(0).batch_max(0), 1);
        assert_eq!(redrive().rate(1_000_000).batch_max(0), 1_000);
        assert_eq!(redrive().rate(50).max(12).batch_max(10), 2);
        assert_eq!(redrive().max(12).batch_max(12), 0);
    }

    #[tokio::test]
    async fn messages_take_their_time() {
        assert_eq!(redrive().time_for(1_000_000), Duration::ZERO);
        assert_eq!(redrive().rate(200).time_for(500), Duration::from_millis(2_500));
    }
}
