//! Windows of dedup ids, as vectors that are looked through from the end.

use quorate_core::command::NewMessage;
use quorate_core::ids::{ExchangeName, MessageId, Millis, QueueId};
use quorate_core::outcome::{Duplicate, Exit, MessageState};

use super::{Due, Message, Model};

/// A window clears away at most so many that are too old for one that comes.
const CLEARED_MAX: usize = 4;

/// A window of which nothing is known any more is cleared at a multiple of this.
const SWEEP: u64 = 10_000;

/// A dedup id that was published.
#[derive(Clone)]
pub(super) struct Remembered {
    id: String,
    at: u64,
    first: MessageId,
    /// Of several queues the one of the lowest id.
    queue: QueueId,
    /// As long as it has not left that queue: what it was at first.
    state: MessageState,
}

/// All windows, while publishes are planned: nothing is changed by that yet.
pub(super) struct Windows {
    queues: Vec<(QueueId, Window)>,
    exchanges: Vec<(ExchangeName, Window)>,
}

struct Window {
    time: u64,
    count: usize,
    remembered: Vec<Remembered>,
    /// Messages that it knew.
    hits: u64,
}

pub(super) fn dedup_id(message: &NewMessage) -> &str {
    message.labels.as_ref().map_or("", |labels| &labels.dedup_id)
}

impl Window {
    fn new(remembered: &[Remembered], time: Millis, count: u32) -> Self {
        Self {
            time: time.0,
            count: count as usize,
            remembered: remembered.to_vec(),
            hits: 0,
        }
    }

    fn find(&mut self, id: &str, now: u64) -> Option<Remembered> {
        let known = |r: &&Remembered| r.id == id && now < r.at + self.time;
        let found = self.remembered.iter().rev().take(self.count).find(known).cloned();
        self.hits += u64::from(found.is_some());
        found
    }

    fn remember(&mut self, remembered: Remembered) {
        if self.time == 0 {
            return;
        }
        let now = remembered.at;
        self.remembered.push(remembered);
        for _ in 0..CLEARED_MAX {
            if self.remembered.len() > self.count || self.remembered[0].at + self.time <= now {
                self.remembered.remove(0);
            }
        }
    }
}

impl Model {
    pub(super) fn windows(&self) -> Windows {
        let queues = self.queues.iter().map(|queue| {
            let settings = &queue.settings;
            let window = Window::new(&queue.remembered, settings.dedup_window, settings.dedup_count_max);
            (queue.id, window)
        });
        let exchanges = self.exchanges.iter().map(|exchange| {
            let settings = &exchange.settings;
            let window = Window::new(
                &exchange.remembered,
                settings.dedup_window,
                settings.dedup_count_max,
            );
            (exchange.name.clone(), window)
        });
        Windows {
            queues: queues.collect(),
            exchanges: exchanges.collect(),
        }
    }

    /// Takes out of the routes of each message the queues that know it, or all if
    /// the exchange does.
    pub(super) fn deduplicate(
        &self,
        windows: &mut Windows,
        exchange: Option<&ExchangeName>,
        messages: &[NewMessage],
        first: usize,
        routes: &mut [Vec<QueueId>],
    ) -> Vec<Duplicate> {
        let mut duplicates = Vec::new();
        for (n, message) in messages.iter().enumerate() {
            if dedup_id(message).is_empty() || routes[n].is_empty() {
                continue;
            }
            let known = self.deduplicate_one(windows, exchange, message, first + n, &mut routes[n]);
            duplicates.extend(known.map(|known| Duplicate {
                place: n as u32,
                first: known.first,
                state: self.state_of(&known),
            }));
        }
        duplicates
    }

    /// The first of its id, if that leaves no queue.
    fn deduplicate_one(
        &self,
        windows: &mut Windows,
        exchange: Option<&ExchangeName>,
        message: &NewMessage,
        number: usize,
        route: &mut Vec<QueueId>,
    ) -> Option<Remembered> {
        let id = dedup_id(message);
        let Windows { queues, exchanges } = windows;
        let mut exchange = exchanges.iter_mut().find(|(name, _)| exchange == Some(name));
        if let Some((_, window)) = &mut exchange
            && let Some(known) = window.find(id, self.now)
        {
            route.clear();
            return Some(known);
        }
        route.sort();
        let mut knowing = Vec::new();
        route.retain(|queue| {
            let (_, window) = queues.iter_mut().find(|(id, _)| id == queue).unwrap();
            let known = window.find(id, self.now);
            knowing.extend(known.clone());
            known.is_none()
        });
        let Some(first_queue) = route.first() else {
            return Some(knowing.remove(0));
        };
        let delayed = message.delay.0 > 0 || message.deliver_at.0 > self.now;
        let remembered = |queue| Remembered {
            id: id.to_owned(),
            at: self.now,
            first: MessageId {
                index: self.index,
                number: number as u32,
            },
            queue,
            state: if delayed {
                MessageState::Delayed
            } else {
                MessageState::Ready
            },
        };
        for queue in route.iter() {
            let (_, window) = queues.iter_mut().find(|(id, _)| id == queue).unwrap();
            window.remember(remembered(*queue));
        }
        if let Some((_, window)) = exchange {
            window.remember(remembered(*first_queue));
        }
        None
    }

    /// What was planned is going to be done.
    pub(super) fn take_note(&mut self, windows: Windows) {
        for (queue, window) in windows.queues {
            let q = self.by_id(queue);
            self.queues[q].remembered = window.remembered;
            self.queues[q].gone.duplicates += window.hits;
        }
        for (name, window) in windows.exchanges {
            let exchange = self
                .exchanges
                .iter_mut()
                .find(|exchange| exchange.name == name)
                .unwrap();
            exchange.remembered = window.remembered;
            exchange.duplicates += window.hits;
        }
    }

    /// When nothing of a window is known any more.
    pub(super) fn window_ends(&self) -> Vec<(u64, Due)> {
        let queues = self.queues.iter().map(|queue| {
            let due = Due::QueueWindow(queue.id);
            (&queue.remembered, queue.settings.dedup_window, due)
        });
        let exchanges = self.exchanges.iter().map(|exchange| {
            let due = Due::ExchangeWindow(exchange.name.clone());
            (&exchange.remembered, exchange.settings.dedup_window, due)
        });
        let ends = queues.chain(exchanges).filter_map(|(remembered, time, due)| {
            let newest = remembered.iter().map(|r| r.at).max()?;
            Some(((newest + time.0).div_ceil(SWEEP) * SWEEP, due))
        });
        ends.collect()
    }

    pub(super) fn forget(&mut self, due: &Due) {
        for queue in &mut self.queues {
            if *due == Due::QueueWindow(queue.id) {
                queue.remembered.clear();
            }
        }
        for exchange in &mut self.exchanges {
            if *due == Due::ExchangeWindow(exchange.name.clone()) {
                exchange.remembered.clear();
            }
        }
    }

    /// Where it is now; how it was last known to be if it is not there.
    fn state_of(&self, remembered: &Remembered) -> MessageState {
        let its = |m: &&Message| m.queue == remembered.queue && m.id == remembered.first;
        let message = self.messages.iter().rev().find(its);
        message.map_or(remembered.state, Message::state)
    }

    /// A message left its queue.
    pub(super) fn remember_exit(&mut self, message: &Message, exit: Exit) {
        let queues = self.queues.iter_mut().map(|queue| &mut queue.remembered);
        let exchanges = self.exchanges.iter_mut().map(|exchange| &mut exchange.remembered);
        for remembered in queues.chain(exchanges).flatten() {
            if (remembered.first, remembered.queue) == (message.id, message.queue) {
                remembered.state = MessageState::Gone(exit);
            }
        }
    }
}
