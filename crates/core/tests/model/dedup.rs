//! Windows of dedup ids, as vectors that are looked through from the end.

use quorate_core::command::NewMessage;
use quorate_core::ids::{ExchangeName, MessageId, Millis, QueueId};
use quorate_core::outcome::{Duplicate, Exit, MessageState};

use super::{Message, Model, State};

/// A window clears away at most so many that are too old for one that comes.
const CLEARED_MAX: usize = 4;

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

/// What came of looking for duplicates; nothing is changed by that yet.
pub(super) struct Deduplicated {
    pub(super) duplicates: Vec<Duplicate>,
    queues: Vec<(QueueId, Window)>,
    exchange: Option<(usize, Window)>,
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
    /// Takes out of the routes of each message the queues that know it, or all if
    /// the exchange does.
    pub(super) fn deduplicate(
        &self,
        exchange: Option<&ExchangeName>,
        messages: &[NewMessage],
        first: usize,
        routes: &mut [Vec<QueueId>],
    ) -> Deduplicated {
        let queues = self.queues.iter().map(|queue| {
            let settings = &queue.settings;
            let window = Window::new(&queue.remembered, settings.dedup_window, settings.dedup_count_max);
            (queue.id, window)
        });
        let exchange = exchange.map(|name| {
            let place = self
                .exchanges
                .iter()
                .position(|exchange| exchange.name == *name)
                .unwrap();
            let exchange = &self.exchanges[place];
            let settings = &exchange.settings;
            let window = Window::new(
                &exchange.remembered,
                settings.dedup_window,
                settings.dedup_count_max,
            );
            (place, window)
        });
        let mut done = Deduplicated {
            duplicates: Vec::new(),
            queues: queues.collect(),
            exchange,
        };
        for (n, message) in messages.iter().enumerate() {
            if !dedup_id(message).is_empty() && !routes[n].is_empty() {
                self.deduplicate_one(&mut done, message, (n, first + n), &mut routes[n]);
            }
        }
        done
    }

    fn deduplicate_one(
        &self,
        done: &mut Deduplicated,
        message: &NewMessage,
        (place, number): (usize, usize),
        route: &mut Vec<QueueId>,
    ) {
        let id = dedup_id(message);
        let duplicate = |known: &Remembered| Duplicate {
            place: place as u32,
            first: known.first,
            state: self.state_of(known),
        };
        if let Some((_, window)) = &mut done.exchange
            && let Some(known) = window.find(id, self.now)
        {
            done.duplicates.push(duplicate(&known));
            route.clear();
            return;
        }
        route.sort();
        let mut knowing = Vec::new();
        route.retain(|queue| {
            let (_, window) = done.queues.iter_mut().find(|(id, _)| id == queue).unwrap();
            let known = window.find(id, self.now);
            knowing.extend(known.clone());
            known.is_none()
        });
        if route.is_empty() {
            done.duplicates.push(duplicate(&knowing[0]));
        }
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
            let (_, window) = done.queues.iter_mut().find(|(id, _)| id == queue).unwrap();
            window.remember(remembered(*queue));
        }
        if let (Some((_, window)), Some(queue)) = (&mut done.exchange, route.first()) {
            window.remember(remembered(*queue));
        }
    }

    /// The publish is done.
    pub(super) fn take_note(&mut self, done: Deduplicated) {
        for (queue, window) in done.queues {
            let q = self.by_id(queue);
            self.queues[q].remembered = window.remembered;
            self.queues[q].gone.duplicates += window.hits;
        }
        if let Some((place, window)) = done.exchange {
            self.exchanges[place].remembered = window.remembered;
            self.exchanges[place].duplicates += window.hits;
        }
    }

    /// Where it is now; how it was last known to be if it is not there.
    fn state_of(&self, remembered: &Remembered) -> MessageState {
        let its = |m: &&Message| m.queue == remembered.queue && m.id == remembered.first;
        match self.messages.iter().rev().find(its).map(|message| message.state) {
            Some(State::Ready) => MessageState::Ready,
            Some(State::Delayed(_)) => MessageState::Delayed,
            Some(State::Leased { .. }) => MessageState::Leased,
            Some(State::Dead { .. }) => MessageState::Dead,
            None => remembered.state,
        }
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
