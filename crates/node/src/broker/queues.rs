//! Queues: made, changed, emptied, paused, deleted, looked at.

use std::time::Duration;

use quorate_core::QueueView;
use quorate_core::browse::Obstacle;
use quorate_core::command::{Command, PurgeStates, SettingsPatch};
use quorate_core::ids::{QueueName, RequestId, Timestamp};
use quorate_core::outcome::{Rejection, Reply};

use super::{Answered, Broker, unexpected};
use crate::error::BrokerError;

/// A quorum that does not answer a read for so long makes no leader: whoever
/// asks why nothing is delivered is told so, before they lose patience.
const LEADER_PATIENCE: Duration = Duration::from_millis(500);

/// What keeps messages of a queue from being delivered.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The queue.
    pub queue: QueueView,
    /// In the order in which to look at them; empty if nothing is in the way.
    pub obstacles: Vec<Obstacle>,
    /// There is no leader: the above is what this node knows, and may be old.
    pub no_leader: bool,
    /// Cluster time of the answer.
    pub now: Timestamp,
}

impl Broker {
    /// Ensures a queue. True: it was created.
    pub async fn declare_queue(
        &self,
        id: Option<RequestId>,
        name: QueueName,
        settings: SettingsPatch,
    ) -> Answered<bool> {
        match self.one(id, Command::DeclareQueue { name, settings }).await? {
            (position, Reply::Declared { created }) => Ok((position, created)),
            (_, other) => Err(unexpected(&other)),
        }
    }

    /// Changes the given settings of a queue.
    pub async fn update_queue(
        &self,
        id: Option<RequestId>,
        name: QueueName,
        settings: SettingsPatch,
    ) -> Answered<()> {
        self.done(id, Command::UpdateQueue { name, settings }).await
    }

    /// Stops a queue from giving out messages, or lets it go on.
    pub async fn pause_queue(&self, id: Option<RequestId>, name: QueueName, paused: bool) -> Answered<()> {
        self.done(id, Command::PauseQueue { name, paused }).await
    }

    /// Removes the messages in these states; how many.
    pub async fn purge_queue(
        &self,
        id: Option<RequestId>,
        name: QueueName,
        states: PurgeStates,
    ) -> Answered<u64> {
        match self.one(id, Command::PurgeQueue { name, states }).await? {
            (position, Reply::Purged { count }) => Ok((position, count)),
            (_, other) => Err(unexpected(&other)),
        }
    }

    /// Deletes a queue; how many messages went with it.
    pub async fn delete_queue(
        &self,
        id: Option<RequestId>,
        name: QueueName,
        if_empty: bool,
        if_unused: bool,
    ) -> Answered<u64> {
        let command = Command::DeleteQueue {
            name,
            if_empty,
            if_unused,
        };
        match self.one(id, command).await? {
            (position, Reply::Deleted { count }) => Ok((position, count)),
            (_, other) => Err(unexpected(&other)),
        }
    }

    /// One queue, and the log index that the answer contains. Linearizable.
    pub async fn queue(&self, name: &QueueName) -> Result<(u64, QueueView), BrokerError> {
        match self.look(false, |state| state.queue(name)).await? {
            (index, Some(queue)) => Ok((index, queue)),
            (_, None) => Err(Rejection::QueueNotFound(name.clone()).into()),
        }
    }

    /// What keeps messages of a queue from being delivered, and the log index
    /// that the answer contains. Linearizable while there is a leader; else it
    /// is what this node knows.
    pub async fn explain_queue(&self, name: &QueueName) -> Result<(u64, Explanation), BrokerError> {
        let read = match self.read_barrier_within(LEADER_PATIENCE).await {
            // It is slow, not gone.
            Err(BrokerError::NoLeader) if self.consensus().hears_leader() => self.read_barrier().await,
            read => read,
        };
        let no_leader = matches!(read, Err(BrokerError::NoLeader | BrokerError::NotLeader(_)))
            && !self.consensus().hears_leader();
        let read_index = if no_leader { 0 } else { read? };
        let (applied, found) = self.consensus().with_state(|state| {
            let found = state.queue(name).zip(state.explain(name));
            (state.index(), found)
        });
        let (queue, obstacles) = found.ok_or_else(|| Rejection::QueueNotFound(name.clone()))?;
        let explanation = Explanation {
            queue,
            obstacles,
            no_leader,
            now: self.cluster_time(),
        };
        Ok((read_index.max(applied), explanation))
    }

    /// Up to `count_max` queues after a name. Linearizable.
    pub async fn queues(
        &self,
        after: Option<&QueueName>,
        count_max: usize,
    ) -> Result<(u64, Vec<QueueView>), BrokerError> {
        self.look(false, |state| state.queues(after, count_max)).await
    }
}
