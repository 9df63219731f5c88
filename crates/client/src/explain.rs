//! Why a queue delivers nothing.

use std::time::Duration;

use quorate_proto::v1;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::message::nonzero;
use crate::queue::QueueInfo;

/// How long a leader is looked for.
const LEADER_PATIENCE: Duration = Duration::from_secs(3);

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
    /// Linearizable. If no leader is found within 3 s, that is what is in the way
    /// in the first place, and any node tells what it knows.
    ///
    /// # Errors
    ///
    /// Refused with `QUEUE_NOT_FOUND`; unreachable.
    pub async fn explain_queue(&self, name: impl Into<String>) -> Result<Explanation> {
        let request = v1::ExplainQueueRequest { name: name.into() };
        let brief = self.with_timeout(self.timeout().min(LEADER_PATIENCE));
        let answer = match brief.call(request.clone()).await {
            Err(Error::Unreachable { .. }) => self.caller.call_any(request).await?,
            answer => answer?,
        };
        let obstacles = answer.obstacles.into_iter().map(|obstacle| Obstacle {
            kind: obstacle.kind,
            message: obstacle.message,
            messages: obstacle.messages,
            until_ms: nonzero(obstacle.until_ms),
        });
        Ok(Explanation {
            queue: QueueInfo {
                read_index: answer.read_index,
                ..answer.queue.unwrap_or_default().into()
            },
            obstacles: obstacles.collect(),
            read_index: answer.read_index,
        })
    }
}
