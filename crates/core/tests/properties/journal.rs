//! Where every message is, as events alone say.

use std::collections::BTreeMap;

use quorate_core::browse::Filter;
use quorate_core::event::{Change, Event};
use quorate_core::ids::{MessageId, QueueId};
use quorate_core::outcome::{Exit, MessageState};
use quorate_core::{Broker, QueueCounts, QueueView};

/// What a reader of all events knows.
#[derive(Default)]
pub(crate) struct Journal {
    /// The copies of each message in each queue, and their states as far as they
    /// are known: of which of several copies an event is, it does not say.
    places: BTreeMap<(QueueId, MessageId), Vec<Option<MessageState>>>,
    entered: BTreeMap<QueueId, u64>,
    left: BTreeMap<(QueueId, Exit), u64>,
}

impl Journal {
    /// Takes note of an event, which must make sense after those before it.
    pub(crate) fn read(&mut self, event: &Event) -> Result<(), String> {
        use MessageState::{Dead, Delayed, Gone, Leased, Ready};
        let due = |until: Option<_>| if until.is_some() { Delayed } else { Ready };
        let (from, to): (&[MessageState], _) = match &event.change {
            Change::Published { delayed_until, .. } => return self.enter(event, due(*delayed_until)),
            Change::Arrived { .. } => return self.enter(event, Ready),
            Change::Duplicate { .. } => return Ok(()),
            Change::Due => (&[Delayed], Ready),
            Change::Leased { .. } => (&[Ready], Leased),
            Change::Extended { .. } => (&[Leased], Leased),
            Change::Returned { until, .. } => (&[Leased], due(*until)),
            Change::Rescheduled { until } => (&[Ready, Delayed], due(*until)),
            Change::Died { .. } => (&[Ready, Delayed, Leased], Dead),
            Change::Redriven => (&[Dead], Ready),
            Change::RedriveUndone => (&[Ready, Delayed], Dead),
            Change::Left { exit, .. } => {
                *self.left.entry((event.queue, *exit)).or_default() += 1;
                let from: &[MessageState] = match exit {
                    Exit::Acked => &[Leased],
                    _ => &[Ready, Delayed, Leased, Dead],
                };
                (from, Gone(*exit))
            }
        };
        let place = (event.queue, event.message);
        let copies = self.places.get_mut(&place).ok_or_else(|| nonsense(event, &[]))?;
        if !copies
            .iter()
            .any(|state| state.is_none_or(|state| from.contains(&state)))
        {
            return Err(nonsense(event, copies));
        }
        match &mut copies[..] {
            _ if matches!(to, Gone(_)) => drop(copies.pop()),
            [only] => *only = Some(to),
            _ => {}
        }
        Ok(())
    }

    fn enter(&mut self, event: &Event, state: MessageState) -> Result<(), String> {
        *self.entered.entry(event.queue).or_default() += 1;
        let copies = self.places.entry((event.queue, event.message)).or_default();
        copies.push(Some(state));
        if copies.len() > 1 {
            copies.fill(None);
        }
        Ok(())
    }

    /// It knows what the broker knows.
    pub(crate) fn agrees_with(&self, broker: &Broker) -> Result<(), String> {
        let queues = broker.queues(None, usize::MAX);
        let here: Vec<QueueId> = queues.iter().map(|queue| queue.id).collect();
        let ghosts = self
            .places
            .iter()
            .find(|((queue, _), copies)| !copies.is_empty() && !here.contains(queue));
        if let Some(ghost) = ghosts {
            return Err(format!("{ghost:?} is in a queue that is gone"));
        }
        queues.iter().try_for_each(|queue| self.agrees_on(queue, broker))
    }

    fn agrees_on(&self, queue: &QueueView, broker: &Broker) -> Result<(), String> {
        let left = |exit| self.left.get(&(queue.id, exit)).copied().unwrap_or(0);
        let expected = QueueCounts {
            published: self.entered.get(&queue.id).copied().unwrap_or(0),
            acked: left(Exit::Acked),
            expired: left(Exit::Expired),
            dead_lettered: left(Exit::DeadLettered),
            dropped: left(Exit::Dropped),
            deleted: left(Exit::Deleted),
            moved: left(Exit::Moved),
            ..queue.counts
        };
        if queue.counts != expected {
            return Err(format!(
                "{}: {:?}, by events {expected:?}",
                queue.name, queue.counts
            ));
        }
        let browsed = broker.browse(&queue.name, 0, usize::MAX, usize::MAX, &Filter::default());
        let mut held: BTreeMap<MessageId, Vec<MessageState>> = BTreeMap::new();
        for message in browsed.unwrap().messages {
            held.entry(message.id).or_default().push(message.state);
        }
        let known = self.places.range((queue.id, FIRST)..=(queue.id, LAST));
        for ((_, message), copies) in known {
            let held = held.remove(message).unwrap_or_default();
            let agrees = |(held, known): (&_, &Option<_>)| known.is_none_or(|known| known == *held);
            if held.len() != copies.len() || !held.iter().zip(copies).all(agrees) {
                return Err(format!(
                    "{}: {message} is {held:?}, by events {copies:?}",
                    queue.name
                ));
            }
        }
        match held.first_key_value() {
            None => Ok(()),
            Some((message, _)) => Err(format!("{}: no event told of {message}", queue.name)),
        }
    }
}

const FIRST: MessageId = MessageId { index: 0, number: 0 };
const LAST: MessageId = MessageId {
    index: u64::MAX,
    number: u32::MAX,
};

fn nonsense(event: &Event, copies: &[Option<MessageState>]) -> String {
    format!("{event:?} of a message that is {copies:?}")
}
