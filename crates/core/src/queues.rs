//! Queues come and go, and messages enter them.

use std::sync::Arc;

use crate::broker::Broker;
use crate::command::{NewMessage, Publish, PurgeStates, Settings, SettingsPatch, Target};
use crate::effect::Effect;
use crate::ids::{ConsumerId, MessageId, QueueId, QueueName, SessionId};
use crate::limits;
use crate::outcome::{Outcome, Published, Rejection, Reply};
use crate::queue::{Head, Queue, Record, State, Taker, Tally, Totals, check_span, invalid};

impl Broker {
    /// `ordinal` is the command's place in its entry.
    pub(crate) fn declare_queue(
        &mut self,
        name: &QueueName,
        patch: &SettingsPatch,
        ordinal: usize,
    ) -> Outcome {
        if let Ok(existing) = self.queue_id(name) {
            let is = &self.held(existing).head.settings;
            let differing = is.differing(&is.patched(patch));
            if differing.is_empty() {
                return Ok(Reply::Declared { created: false });
            }
            return Err(Rejection::QueueConflict {
                queue: name.clone(),
                differing,
            });
        }
        let settings = Settings::default().patched(patch);
        settings.check()?;
        if self.queues.len() >= limits::QUEUES_MAX {
            return Err(Rejection::LimitExceeded(format!("{} queues", limits::QUEUES_MAX)));
        }
        let id = QueueId(self.index << 16 | ordinal as u64);
        let head = Head {
            name: name.clone(),
            id,
            settings: Arc::new(settings),
            next_position: 0,
            next_turn: 0,
            totals: Totals::default(),
        };
        self.names.insert(name.clone(), id);
        self.queues.insert(id, Queue::new(head));
        Ok(Reply::Declared { created: true })
    }

    pub(crate) fn update_queue(&mut self, name: &QueueName, patch: &SettingsPatch) -> Outcome {
        let queue = self.queue_id(name)?;
        let head = &mut self.held_mut(queue).head;
        let settings = head.settings.patched(patch);
        settings.check()?;
        head.settings = Arc::new(settings);
        Ok(Reply::Done)
    }

    pub(crate) fn purge_queue(&mut self, name: &QueueName, states: PurgeStates) -> Outcome {
        let queue = self.queue_id(name)?;
        let count = self.bury(queue, |state| match state {
            State::Ready => states.ready,
            State::Delayed { .. } => states.delayed,
            State::Dead { .. } => states.dead,
            State::Leased(_) => false,
        });
        Ok(Reply::Purged { count })
    }

    pub(crate) fn delete_queue(&mut self, name: &QueueName, if_empty: bool, if_unused: bool) -> Outcome {
        let id = self.queue_id(name)?;
        let queue = self.held(id);
        let count = queue.tallies.all().count;
        if if_empty && count > 0 {
            return Err(Rejection::QueueNotEmpty {
                queue: name.clone(),
                count,
            });
        }
        let consumers = queue.consumers.len() as u64;
        if if_unused && consumers > 0 {
            return Err(Rejection::QueueInUse {
                queue: name.clone(),
                consumers,
            });
        }
        let consumers: Vec<(SessionId, ConsumerId)> = queue.consumers.iter().copied().collect();
        let takers: Vec<Taker> = queue.takers.values().copied().collect();
        for (session, consumer) in consumers {
            self.remove_consumer(session, consumer);
            let head = self.sessions.by_id[&session].head;
            let (node, epoch, queue) = (head.node, head.epoch, name.clone());
            self.effects.push(Effect::ConsumerCancelled {
                node,
                session,
                epoch,
                consumer,
                queue,
            });
        }
        for taker in takers {
            if let Taker::Waiter(client, sequence) = taker {
                self.answer(client, sequence, Vec::new());
            }
        }
        self.bury(id, |_| true);
        self.queues.remove(&id);
        self.names.remove(name);
        Ok(Reply::Deleted { count })
    }

    /// `first` is the number of the first message's content in the entry.
    pub(crate) fn publish(&mut self, publish: &Publish, first: u32, contents: &[u32]) -> Outcome {
        let Publish { target, messages } = publish;
        let name = match target {
            Target::Queue(name) => name,
            Target::Exchange { name, .. } => return Err(Rejection::ExchangeNotFound(name.clone())),
        };
        let count = check_messages(messages, contents)?;
        let queue = self.queue_id(name)?;
        let bytes = contents.iter().map(|bytes| u64::from(*bytes)).sum();
        let more = Tally {
            count: u64::from(count),
            bytes,
        };
        if let Some(limit) = self.held(queue).limit_against(more) {
            return Err(Rejection::QueueFull {
                queue: name.clone(),
                limit,
            });
        }
        self.make_room(queue, more, &mut Vec::new());
        for ((message, content_bytes), number) in messages.iter().zip(contents).zip(first..) {
            let until = self.now.after(message.delay).max(message.deliver_at);
            let delayed = until > self.now;
            let record = Record {
                id: MessageId {
                    index: self.index,
                    number,
                },
                content_bytes: *content_bytes,
                group: 0,
                failures: 0,
                priority: message.priority,
                shared: false,
                grants: 0,
                published_at: self.now,
                expires_at: self.life_end(queue, until, message.ttl),
                state: if delayed {
                    State::Delayed { until }
                } else {
                    State::Ready
                },
                extra: None,
            };
            self.insert(queue, record);
        }
        Ok(Reply::Published(Published {
            first: MessageId {
                index: self.index,
                number: first,
            },
            count,
            unroutable: Vec::new(),
            duplicates: Vec::new(),
        }))
    }

    pub(crate) fn queue_id(&self, name: &QueueName) -> Result<QueueId, Rejection> {
        self.names
            .get(name)
            .copied()
            .ok_or_else(|| Rejection::QueueNotFound(name.clone()))
    }
}

fn check_messages(messages: &[NewMessage], contents: &[u32]) -> Result<u32, Rejection> {
    let count = messages.len();
    if count == 0 || count > limits::PUBLISH_MESSAGES_MAX {
        let problem = format!("1 to {}, not {count}", limits::PUBLISH_MESSAGES_MAX);
        return Err(invalid("messages", problem));
    }
    if contents.len() != count {
        return Err(invalid(
            "messages",
            format!("{count}, with {} contents", contents.len()),
        ));
    }
    for message in messages {
        check_span("delay_ms", message.delay)?;
        check_span("ttl_ms", message.ttl)?;
    }
    if let Some(bytes) = contents.iter().find(|bytes| **bytes > limits::CONTENT_BYTES_MAX) {
        let problem = format!(
            "at most {} bytes in one message, not {bytes}",
            limits::CONTENT_BYTES_MAX
        );
        return Err(invalid("messages", problem));
    }
    Ok(u32::try_from(count).expect("within its bound"))
}
