//! What an operator does with single messages.
//!
//! A redrive chooses messages in the leader's state, and is then one command
//! that names them: what is chosen may have changed meanwhile, and is refused
//! message by message.

use std::collections::BTreeMap;

use quorate_core::browse::Filter;
use quorate_core::command::{Command, Operation, Selector};
use quorate_core::ids::{MessageId, QueueName, RequestId};
use quorate_core::outcome::{MessageState, Rejection, Reply};

use super::browse::Browse;
use super::{Answered, Broker, Position, check_count, unexpected};
use crate::config::MESSAGES_PER_REQUEST_MAX;
use crate::error::BrokerError;

/// Which dead letters to set free, and where to.
#[derive(Clone, Debug)]
pub struct Redrive {
    /// The queue that holds them: in its dead set, or because they came to it as
    /// dead letters.
    pub queue: QueueName,
    /// Which of them.
    pub filter: Filter,
    /// Headers that they have.
    pub headers: BTreeMap<String, String>,
    /// 1 to 4,096.
    pub count_max: usize,
    /// None = back to where each came from.
    pub to: Option<QueueName>,
    /// From this position on.
    pub from: u64,
    /// The [redrive](Redriven::redrive) of which this is a further part; None = a
    /// new one.
    pub continues: Option<u64>,
}

/// What became of a redrive.
#[derive(Clone, Debug, Default)]
pub struct Redriven {
    /// None if nothing was chosen.
    pub position: Option<Position>,
    /// Names the redrive, to undo it: index of the entry with which it began.
    /// None if nothing was chosen yet.
    pub redrive: Option<u64>,
    /// Messages that were set free.
    pub count: u64,
    /// Those that were refused, with the id, unless the request was repeated.
    pub refused: Vec<(Option<MessageId>, Rejection)>,
    /// The queues where messages were set free, each once.
    pub queues: Vec<QueueName>,
    /// Where to go on; None if there are no more.
    pub next: Option<u64>,
}

/// What became of the undoing of a redrive.
#[derive(Clone, Copy, Debug, Default)]
pub struct Undone {
    /// None if there was nothing to undo.
    pub position: Option<Position>,
    /// Messages that were put back.
    pub count: u64,
    /// Where to go on; None if there are no more.
    pub next: Option<u64>,
}

impl Broker {
    /// Does something with certain messages of a queue, with each by itself;
    /// results in order: the id of each, or why not.
    pub async fn operate(
        &self,
        id: Option<RequestId>,
        queue: QueueName,
        messages: Vec<Selector>,
        operation: Operation,
    ) -> Answered<Vec<Result<MessageId, Rejection>>> {
        check_count("messages", messages.len())?;
        let command = Command::Operate {
            queue,
            messages,
            operation,
        };
        match self.one(id, command).await? {
            (position, Reply::Operated { results, .. }) => Ok((position, results)),
            (_, other) => Err(unexpected(&other)),
        }
    }

    /// Sets dead letters of a queue free that a filter chooses.
    pub async fn redrive(&self, id: Option<RequestId>, redrive: Redrive) -> Result<Redriven, BrokerError> {
        check_count("max_messages", redrive.count_max)?;
        let mut filter = redrive.filter;
        filter.dead_letters_only = true;
        if filter.states.is_empty() {
            // What somebody holds would be refused.
            filter.states = vec![MessageState::Ready, MessageState::Delayed, MessageState::Dead];
        }
        let choice = Browse {
            queue: redrive.queue.clone(),
            filter,
            headers: redrive.headers,
            from: redrive.from,
            count_max: redrive.count_max,
            with_content: false,
            local: false,
        };
        let (_, page) = self.browse(&choice).await?;
        let chosen: Vec<MessageId> = page.messages.iter().map(|seen| seen.view.id).collect();
        let Redrive {
            queue,
            to,
            from,
            continues,
            ..
        } = redrive;
        if let (true, Some(to)) = (chosen.is_empty(), &to) {
            self.check_exists(to)?;
        }
        let operation = Operation::Redrive { to, continues };
        let Some(operated) = self.operate_chosen(id, queue, &chosen, operation).await? else {
            return Ok(Redriven {
                redrive: continues,
                next: page.next,
                ..Redriven::default()
            });
        };
        let next = operated.next(from, page.next);
        Ok(operated.redriven(&chosen, continues, next))
    }

    /// What the command would have checked, had there been one.
    fn check_exists(&self, queue: &QueueName) -> Result<(), Rejection> {
        let exists = |state: &quorate_core::Broker| state.settings(queue).is_some();
        if self.consensus().with_state(exists) {
            return Ok(());
        }
        Err(Rejection::QueueNotFound(queue.clone()))
    }

    /// Puts messages that a redrive set free, and that still wait in this queue
    /// from a position on, back to where it found them: so many as one command
    /// names.
    pub async fn undo_redrive(
        &self,
        id: Option<RequestId>,
        queue: QueueName,
        redrive: u64,
        from: u64,
    ) -> Result<Undone, BrokerError> {
        let (chosen, next) = self.set_free_by(&queue, redrive, from).await?;
        let operation = Operation::UndoRedrive { redrive };
        let Some(operated) = self.operate_chosen(id, queue, &chosen, operation).await? else {
            return Ok(Undone {
                next,
                ..Undone::default()
            });
        };
        Ok(Undone {
            position: Some(operated.position),
            count: operated.results.iter().filter(|result| result.is_ok()).count() as u64,
            next: operated.next(from, next),
        })
    }

    /// The first messages of a queue, from a position on, that wait since a
    /// redrive set them free; and where to go on.
    async fn set_free_by(
        &self,
        queue: &QueueName,
        redrive: u64,
        from: u64,
    ) -> Result<(Vec<MessageId>, Option<u64>), BrokerError> {
        let mut choice = Browse {
            queue: queue.clone(),
            filter: Filter {
                states: vec![MessageState::Ready, MessageState::Delayed],
                redrive: Some(redrive),
                ..Filter::default()
            },
            headers: BTreeMap::new(),
            from,
            count_max: MESSAGES_PER_REQUEST_MAX,
            with_content: false,
            local: false,
        };
        let mut chosen = Vec::new();
        self.read_barrier().await?;
        loop {
            let page = self.scan(&choice).await?;
            chosen.extend(page.messages.iter().map(|seen| seen.view.id));
            choice.count_max = MESSAGES_PER_REQUEST_MAX - chosen.len();
            match page.next {
                Some(next) if choice.count_max > 0 => choice.from = next,
                next => return Ok((chosen, next)),
            }
        }
    }

    /// An operation on messages that were chosen in the state. None if there are
    /// none, and were none when the request was first made.
    async fn operate_chosen(
        &self,
        id: Option<RequestId>,
        queue: QueueName,
        chosen: &[MessageId],
        operation: Operation,
    ) -> Result<Option<Operated>, BrokerError> {
        let command = match (chosen, id) {
            ([], None) => return Ok(None),
            // A repeated request is answered with what it did at first: after
            // that, there may be nothing left to choose.
            ([], Some(_)) => Command::Tick,
            _ => Command::Operate {
                queue,
                messages: chosen.iter().copied().map(Selector::Message).collect(),
                operation,
            },
        };
        let (position, repeated, reply) = self.one_or_repeat(id, command).await?;
        match reply {
            Reply::Done => Ok(None),
            Reply::Operated { results, queues } => Ok(Some(Operated {
                position,
                repeated,
                results,
                queues,
            })),
            other => Err(unexpected(&other)),
        }
    }
}

/// What became of messages that were chosen.
struct Operated {
    position: Position,
    /// By an earlier request of the same id: the messages are those chosen then.
    repeated: bool,
    results: Vec<Result<MessageId, Rejection>>,
    queues: Vec<QueueName>,
}

impl Operated {
    /// Where to go on after what was chosen from a position to another.
    fn next(&self, from: u64, to: Option<u64>) -> Option<u64> {
        // What is chosen now is what was left by what was chosen then.
        if self.repeated { Some(from.max(1)) } else { to }
    }

    fn redriven(self, chosen: &[MessageId], continues: Option<u64>, next: Option<u64>) -> Redriven {
        let chosen = if self.repeated { &[] } else { chosen };
        let mut redriven = Redriven {
            position: Some(self.position),
            redrive: continues.or(Some(self.position.index)),
            queues: self.queues,
            next,
            ..Redriven::default()
        };
        for (place, result) in self.results.into_iter().enumerate() {
            match result {
                Ok(_) => redriven.count += 1,
                Err(why) => redriven.refused.push((chosen.get(place).copied(), why)),
            }
        }
        redriven
    }
}
