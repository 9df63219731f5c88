//! Messages that were published before, by their dedup ids.
//!
//! Each queue and each exchange has a [`Window`] of the ids that came last. A
//! message that its exchange knows is not routed; a queue that knows it does not
//! take its copy; if that leaves no queue it is a duplicate. What became of the
//! first of an id is known even after it left, since what makes a message leave
//! tells the windows. Only publishes are looked at: dead letters and what is moved
//! take their ids along as labels.

mod window;

use std::collections::{BTreeMap, BTreeSet};

use quorate_mutants::{elsewhere_ms, mutant};

use crate::broker::Broker;
use crate::command::NewMessage;
use crate::deadlines::Due;
use crate::event::Change;
use crate::exchange::{Exchange, ExchangeId, Exchanges};
use crate::ids::{Millis, QueueId};
use crate::outcome::{Duplicate, Exit, MessageState};
use crate::publish::Plan;
use crate::queue::{Queue, Record};

use window::Draft;
pub(crate) use window::{Known, Remembered, Span, Window};

/// The dedup ids that plans are going to bring into windows.
#[derive(Debug, Default)]
pub(crate) struct Drafts {
    queues: BTreeMap<QueueId, Draft>,
    exchanges: BTreeMap<ExchangeId, Draft>,
}

/// What windows know of the messages of a plan, and will.
#[derive(Debug, Default)]
pub(crate) struct Sightings {
    /// The exchange of the plan, if it remembers ids.
    pub(crate) exchange: Option<ExchangeId>,
    /// Messages that this exchange knows, by their places.
    known_to_exchange: Vec<(u32, Known)>,
    /// Messages that a queue knows.
    known_to_queues: Vec<(u32, QueueId, Known)>,
    /// Messages that the exchange is to remember, and the first queue that takes
    /// each.
    new: Vec<(u32, QueueId)>,
}

impl NewMessage {
    pub(crate) fn dedup_id(&self) -> Option<&str> {
        let labels = self.labels.as_ref()?;
        (!labels.dedup_id.is_empty()).then_some(&labels.dedup_id)
    }
}

impl Broker {
    /// Takes out of a plan what is known, and enters its other ids into the
    /// drafts.
    pub(crate) fn deduplicate(&self, plan: &mut Plan<'_>, drafts: &mut Drafts) {
        let mut messages = (0..).zip(plan.messages);
        if messages.all(|(_, message)| message.dedup_id().is_none()) {
            return;
        }
        plan.sightings.exchange = plan.exchange.and_then(|name| {
            let id = *self.exchanges.names.get(name)?;
            let remembers = self.exchanges.held(id).head.settings.dedup().time != Millis(0);
            remembers.then_some(id)
        });
        let mut not_taken = BTreeSet::new();
        for (place, queues) in plan.queues_by_place() {
            let Some(dedup_id) = plan.messages[place as usize].dedup_id() else {
                continue;
            };
            let known = self.known_to_exchange(plan.sightings.exchange, dedup_id, drafts);
            if let Some(known) = known {
                plan.sightings.known_to_exchange.push((place, known));
                plan.duplicates.push(known.as_duplicate(place));
                not_taken.extend(queues.iter().map(|queue| (*queue, place)));
                continue;
            }
            let knowing = queues
                .iter()
                .filter_map(|queue| Some((*queue, self.known_to_queue(*queue, dedup_id, drafts)?)));
            let knowing: BTreeMap<QueueId, Known> = knowing.collect();
            for (queue, known) in &knowing {
                plan.sightings.known_to_queues.push((place, *queue, *known));
                not_taken.insert((*queue, place));
            }
            let taking: Vec<QueueId> = queues
                .into_iter()
                .filter(|queue| !knowing.contains_key(queue))
                .collect();
            match (taking.first(), knowing.first_key_value()) {
                (Some(first), _) => self.draft(plan, place, *first, &taking, drafts),
                (None, Some((_, known))) => plan.duplicates.push(known.as_duplicate(place)),
                (None, None) => {}
            }
        }
        plan.withdraw(&not_taken);
    }

    /// A message is going to be taken by these queues.
    fn draft(
        &self,
        plan: &mut Plan<'_>,
        place: u32,
        first: QueueId,
        taking: &[QueueId],
        drafts: &mut Drafts,
    ) {
        let message = &plan.messages[place as usize];
        let dedup_id = message.dedup_id().expect("it is looked at because it has one");
        let known = |queue| Known {
            first: plan.id(self.index, place),
            state: match self.due(message) {
                None => MessageState::Ready,
                Some(_) => MessageState::Delayed,
            },
            queue,
        };
        for queue in taking {
            drafts
                .queues
                .entry(*queue)
                .or_default()
                .note(dedup_id, known(*queue));
        }
        if let Some(exchange) = plan.sightings.exchange {
            drafts
                .exchanges
                .entry(exchange)
                .or_default()
                .note(dedup_id, known(first));
            plan.sightings.new.push((place, first));
        }
    }

    fn known_to_exchange(&self, id: Option<ExchangeId>, dedup_id: &str, drafts: &Drafts) -> Option<Known> {
        let id = id?;
        let exchange = self.exchanges.held(id);
        let span = exchange.head.settings.dedup();
        self.known(&exchange.dedup, span, dedup_id, drafts.exchanges.get(&id))
    }

    fn known_to_queue(&self, id: QueueId, dedup_id: &str, drafts: &Drafts) -> Option<Known> {
        let queue = self.held(id);
        let span = queue.head.settings.dedup();
        self.known(&queue.dedup, span, dedup_id, drafts.queues.get(&id))
    }

    /// The first message of an id, if a window knows it after what a draft says
    /// will have come.
    fn known(&self, window: &Window, span: Span, dedup_id: &str, draft: Option<&Draft>) -> Option<Known> {
        if span.time == Millis(0) {
            return None;
        }
        let more = draft.map_or(0, |draft| draft.count);
        draft.and_then(|draft| draft.get(dedup_id, span)).or_else(|| {
            let local = Millis(if mutant!("dedup-by-local-clock") {
                elsewhere_ms()
            } else {
                0
            });
            let found = window.get(dedup_id, span, self.now.after(local), more)?;
            Some(Known {
                first: found.first,
                state: self.state_of(found),
                queue: found.queue,
            })
        })
    }

    /// Where the first message of an id is in its life.
    fn state_of(&self, remembered: &Remembered) -> MessageState {
        let record = self.queues.get(&remembered.queue).and_then(|queue| {
            let position = queue.with_id(remembered.first).last()?;
            queue.records.get(position)
        });
        match record {
            Some(record) => MessageState::of(&record.state),
            None => MessageState::Gone(remembered.exit.unwrap_or(Exit::Deleted)),
        }
    }

    /// A message is about to enter a queue by a publish.
    pub(crate) fn remember_in_queue(&mut self, id: QueueId, record: &Record) {
        let Some(dedup_id) = record.dedup_id() else {
            return;
        };
        let remembered = Remembered::new(dedup_id.clone(), record.id, id, self.now);
        self.change_queue_window(id, |queue| {
            let span = queue.head.settings.dedup();
            queue.dedup.remember(remembered, span);
        });
    }

    /// Changes the window of a queue, or how long it is. Its deadline follows.
    pub(crate) fn change_queue_window(&mut self, id: QueueId, change: impl FnOnce(&mut Queue)) {
        let queue = self.held_mut(id);
        let before = queue.window_end();
        change(queue);
        let after = queue.window_end();
        self.deadlines
            .change(Due::QueueWindow { queue: id }, before, after);
    }

    /// As [`change_queue_window`](Self::change_queue_window), of an exchange.
    pub(crate) fn change_exchange_window(&mut self, id: ExchangeId, change: impl FnOnce(&mut Exchange)) {
        let exchange = self.exchanges.held_mut(id);
        let before = exchange.window_end();
        change(exchange);
        let after = exchange.window_end();
        self.deadlines
            .change(Due::ExchangeWindow { exchange: id }, before, after);
    }

    /// A plan was carried out: what its exchange is to remember it does, and what
    /// was not taken is counted and told of.
    pub(crate) fn record_sightings(&mut self, plan: &Plan<'_>) {
        let sightings = &plan.sightings;
        for (place, queue, known) in &sightings.known_to_queues {
            self.held_mut(*queue).head.totals.duplicates += 1;
            let refused = plan.id(self.index, *place);
            self.tell(*queue, known.first, Change::Duplicate { refused });
        }
        let Some(id) = sightings.exchange else {
            return;
        };
        for (place, known) in &sightings.known_to_exchange {
            self.exchanges.held_mut(id).head.duplicates += 1;
            if self.queues.contains_key(&known.queue) {
                let refused = plan.id(self.index, *place);
                self.tell(known.queue, known.first, Change::Duplicate { refused });
            }
        }
        for (place, queue) in &sightings.new {
            let dedup_id = plan.messages[*place as usize].dedup_id().unwrap_or_default();
            let message = plan.id(self.index, *place);
            let remembered = Remembered::new(dedup_id.into(), message, *queue, self.now);
            self.change_exchange_window(id, |exchange| {
                let span = exchange.head.settings.dedup();
                exchange.dedup.remember(remembered, span);
            });
        }
    }
}

impl Exchanges {
    /// A message left a queue: the exchange that remembers it is told.
    pub(crate) fn message_left(&mut self, queue: QueueId, record: &Record, exit: Exit) {
        let name = record.extra.as_ref().and_then(|extra| extra.exchange.as_ref());
        if let Some(id) = name.and_then(|name| self.names.get(name).copied()) {
            self.held_mut(id).dedup.left(queue, record, exit);
        }
    }
}

impl Known {
    fn as_duplicate(self, place: u32) -> Duplicate {
        let Self { first, state, .. } = self;
        Duplicate { place, first, state }
    }
}
