//! Why a queue delivers nothing.

use quorate_proto::v1;

use crate::client::Client;
use crate::error::Result;
use crate::message::nonzero;
use crate::queue::QueueInfo;

/// What keeps messages of a queue from being delivered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// The queue, as of the same moment.
    pub queue: QueueInfo,
    /// In the order in which to look at them. Empty = nothing is in the way.
    pub obstacles: Vec<Obstacle>,
    /// The answer contains everything up to this log index.
    pub read_index: u64,
}

/// One thing that is in the way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Obstacle {
    /// `paused`, `empty`, `no-consumer`, `no-credit`, `groups-busy`, `delayed`,
    /// `all-leased`, `single-active-busy`, `dead-letter-backlog`, `full` or
    /// `no-leader`.
    pub kind: String,
    /// For a person: with numbers, and what to do.
    pub message: String,
    /// Messages that it concerns; 0 = it is not a matter of messages.
    pub messages: u64,
    /// When it ends by itself, in cluster time, milliseconds since the Unix
    /// epoch. None = it does not.
    pub until_ms: Option<u64>,
}

impl Client {
    /// Says what keeps the messages of a queue from being delivered.
    ///
    /// ```no_run
    /// # async fn example(client: quorate_client::Client) -> quorate_client::Result<()> {
    /// for obstacle in client.explain_queue("jobs").await?.obstacles {
    ///     println!("{}: {}", obstacle.kind, obstacle.message);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Refused with `QUEUE_NOT_FOUND`; unreachable, which says by itself what is
    /// in the way.
    pub async fn explain_queue(&self, name: impl Into<String>) -> Result<Explanation> {
        let answer = self.call(v1::ExplainQueueRequest { name: name.into() }).await?;
        let obstacles = answer.obstacles.into_iter().map(|obstacle| Obstacle {
            kind: obstacle.kind,
            message: obstacle.message,
            messages: obstacle.messages,
            until_ms: nonzero(obstacle.until_ms),
        });
        Ok(Explanation {
            queue: answer.queue.unwrap_or_default().into(),
            obstacles: obstacles.collect(),
            read_index: answer.read_index,
        })
    }
}
