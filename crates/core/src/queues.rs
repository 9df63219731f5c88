//! Queues come and go.

use std::sync::Arc;

use crate::broker::Broker;
use crate::command::{PurgeStates, Settings, SettingsPatch};
use crate::effect::Effect;
use crate::exchange::Node;
use crate::ids::{ConsumerId, Millis, QueueId, QueueName, SessionId};
use crate::limits;
use crate::outcome::{Outcome, Rejection, Reply};
use crate::queue::{Head, Queue, State, Taker, Totals};

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
            paused: false,
            active: None,
            virtual_time: 0,
            ungrouped_pass: 0,
            retry: None,
        };
        self.names.insert(name.clone(), id);
        self.queues.insert(id, Queue::new(head));
        Ok(Reply::Declared { created: true })
    }

    pub(crate) fn update_queue(&mut self, name: &QueueName, patch: &SettingsPatch) -> Outcome {
        let id = self.queue_id(name)?;
        let before = &self.held(id).head.settings;
        let settings = before.patched(patch);
        settings.check()?;
        let single_active_changed = settings.single_active_consumer != before.single_active_consumer;
        self.change_queue_window(id, |queue| {
            if settings.dedup_window == Millis(0) {
                queue.dedup.clear();
            }
            queue.set_settings(settings);
        });
        if single_active_changed {
            self.single_active_changed(id);
        }
        self.touched.insert(id);
        self.hurry_backlog(id);
        Ok(Reply::Done)
    }

    pub(crate) fn pause_queue(&mut self, name: &QueueName, paused: bool) -> Outcome {
        let queue = self.queue_id(name)?;
        self.held_mut(queue).head.paused = paused;
        self.touched.insert(queue);
        Ok(Reply::Done)
    }

    pub(crate) fn purge_queue(&mut self, name: &QueueName, states: PurgeStates) -> Outcome {
        let queue = self.queue_id(name)?;
        let tallies = self.held(queue).tallies;
        let named = [
            (states.ready, tallies.ready),
            (states.delayed, tallies.delayed),
            (states.dead, tallies.dead),
        ];
        let count = named
            .into_iter()
            .map(|(named, tally)| if named { tally.count } else { 0 })
            .sum();
        self.bury(queue, count, |state| match state {
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
        self.bury(id, count, |_| true);
        self.change_queue_window(id, |queue| queue.dedup.clear());
        self.exchanges.unbind_all_to(Node::Queue(id));
        self.queues.remove(&id);
        self.names.remove(name);
        Ok(Reply::Deleted { count })
    }

    pub(crate) fn queue_id(&self, name: &QueueName) -> Result<QueueId, Rejection> {
        self.names
            .get(name)
            .copied()
            .ok_or_else(|| Rejection::QueueNotFound(name.clone()))
    }
}
