//! A broker told naively: what the audit log says happened, message by message.
//!
//! [`Replay`] goes through the log once and keeps, for every event, where its message was before and where it is
//! afterwards. It follows `docs/semantics.md` and `docs/audit-log.md` and shares nothing with the broker: no
//! deadlines, no dispatch, no routing. It believes every event, also one that cannot be, because what is wrong is
//! for the checkers in [`check::replay`](crate::check::replay) to say.
//!
//! Three things the log does not tell, and the replay tells where they are: messages that are purged are told of
//! when their contents are dropped ([`Queue::is_sure_in`]); settings are told as they are after an entry, not as they
//! were within it ([`Queue::settings_in`]); and two copies of a message that come to one queue from others have the same
//! name there ([`Step::is_double`]).

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Range;

use crate::audit::{Asked, Audit, Change, Entry, Publish, Request, Settings, Settlement};
use crate::ids::{MessageId, Token};

/// All that happened, step by step.
#[derive(Debug, Default)]
pub struct Replay<'a> {
    /// All steps, in order.
    pub steps: Vec<Step<'a>>,
    /// Every queue that ever was. Numbers of queues are places in it.
    pub queues: Vec<Queue<'a>>,
    /// Every stay of a message in a queue, in the order in which they began. Numbers of stays are places in it,
    /// so that in one queue they order messages as their positions do.
    pub stays: Vec<Stay<'a>>,
    entries: Vec<(&'a Entry, Range<usize>)>,
    asked: HashMap<MessageId, Origin<'a>>,
    now: HashMap<(MessageId, usize), (usize, State)>,
    ids: HashMap<u64, usize>,
    names: BTreeMap<&'a str, usize>,
    /// Messages of a queue that are purged and not told of yet.
    purged: BTreeMap<usize, u64>,
    /// Messages that went to several queues.
    spread: HashSet<MessageId>,
    /// Messages of which a queue has had two copies.
    doubles: HashSet<(MessageId, usize)>,
}

/// The settlements of an entry that were accepted, in order, by fence and by whether they extend.
type Settled<'a> = HashMap<(u64, bool), VecDeque<&'a Settlement>>;

/// One event.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Index of its entry.
    pub index: u64,
    /// Cluster time of its entry.
    pub at_ms: u64,
    /// As the log tells it.
    pub change: &'a Change,
    /// Number of the queue.
    pub queue: usize,
    /// Number of the stay. One that enters a queue begins a new one.
    pub stay: usize,
    /// Where the message was in this queue; of one that enters, in an earlier stay.
    pub before: State,
    /// Where it is.
    pub after: State,
    /// The settlement of this entry that was accepted and speaks of this: one that names the lease that ends or
    /// is extended here.
    pub settlement: Option<&'a Settlement>,
    /// Copies of this message that had gone to several queues came together in this one, and the log does not tell
    /// which of them this is about. Nothing is decided of them any more.
    pub is_double: bool,
}

impl Step<'_> {
    /// Whether time alone brought it about, as far as the log tells.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.settlement.is_none() && !matches!(self.change.change.as_str(), "leased" | "published")
    }
}

/// A message in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Where it is.
    pub place: Place,
    /// Leases that ended in failure.
    pub failures: u32,
    /// Leases at all.
    pub leases: u32,
    /// When its life is over.
    pub life: Life,
}

impl State {
    /// It is in the queue.
    #[must_use]
    pub fn is_here(&self) -> bool {
        !matches!(self.place, Place::Never | Place::Gone(_))
    }
}

/// Where a message is in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// It never came.
    #[default]
    Never,
    /// It can be leased.
    Ready,
    /// It waits for its time.
    Delayed {
        /// Cluster time.
        until_ms: u64,
        /// It has been leased before, so that it holds up its group.
        retry: bool,
    },
    /// Somebody has it.
    Leased(Lease),
    /// It is in the dead set.
    Dead,
    /// It left.
    Gone(Exit),
}

/// The lease of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its number among all.
    pub fence: u64,
    /// From 1.
    pub attempt: u32,
    /// When it ends, cluster time.
    pub until_ms: u64,
    /// Session, and consumer in it; None if it was pulled.
    pub holder: Option<(u64, u32)>,
}

/// How a message left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // by the words of the log
pub enum Exit {
    Acked,
    Expired,
    DeadLettered,
    Dropped,
    Deleted,
    Moved,
}

/// When the life of a message is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Life {
    /// Never.
    #[default]
    Endless,
    /// At this cluster time.
    Until(u64),
    /// The log does not tell.
    Unknown,
}

/// What does not change of a message while it is in a queue.
#[derive(Clone, Copy, Debug)]
pub struct Stay<'a> {
    /// The message.
    pub message: MessageId,
    /// Number of the queue.
    pub queue: usize,
    /// Index of the entry in which it came.
    pub since: u64,
    /// It came by a publish, and not from another queue.
    pub is_published: bool,
    /// What its publisher asked; None if no publish in the log has it.
    pub asked: Option<&'a Asked>,
}

/// A queue. One that comes after another of the same name is a queue of its own.
#[derive(Debug)]
pub struct Queue<'a> {
    /// Its name.
    pub name: &'a str,
    /// Index of the entry in which it was deleted.
    pub deleted: Option<u64>,
    id: Option<u64>,
    /// Index of the entry from which on they hold.
    settings: Vec<(u64, &'a Settings)>,
    /// Entries, first and last, in and between which not all that is purged was told.
    unsure: Vec<(u64, u64)>,
    /// From this entry on it has had two copies of a message.
    doubled: Option<u64>,
}

/// The publish that a message came from.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// What is asked of this message.
    pub asked: &'a Asked,
    /// It went to an exchange.
    pub by_exchange: bool,
}

/// What is asked of a message of which nothing is asked.
static NOTHING: Asked = Asked {
    group: String::new(),
    dedup_id: String::new(),
    priority: 0,
    ttl_ms: 0,
    message: None,
    refused: None,
};

impl<'a> Replay<'a> {
    /// Goes through a log, which must be [whole](Audit::is_whole).
    #[must_use]
    pub fn of(audit: &'a Audit) -> Self {
        let mut replay = Self::default();
        for entry in audit.entries() {
            let from = replay.steps.len();
            replay.entry(entry);
            replay.entries.push((entry, from..replay.steps.len()));
        }
        replay
    }

    /// All entries, each with its steps.
    pub fn entries(&self) -> impl Iterator<Item = (&'a Entry, &[Step<'a>])> {
        let entries = self.entries.iter();
        entries.map(|(entry, steps)| (*entry, &self.steps[steps.clone()]))
    }

    /// The publish in the log that has this message, taken or not.
    #[must_use]
    pub fn origin(&self, message: MessageId) -> Option<Origin<'a>> {
        self.asked.get(&message).copied()
    }

    /// The stay that a step is about.
    #[must_use]
    pub fn stay(&self, step: &Step<'a>) -> &Stay<'a> {
        &self.stays[step.stay]
    }

    /// The settings that hold for a step, if they can be told.
    #[must_use]
    pub fn settings(&self, step: &Step<'a>) -> Option<&'a Settings> {
        self.queues[step.queue].settings_in(step.index)
    }

    /// What is told of the queue in the entry of this step is all that happened to it.
    #[must_use]
    pub fn is_sure(&self, step: &Step<'a>) -> bool {
        self.queues[step.queue].is_sure_in(step.index)
    }

    fn entry(&mut self, entry: &'a Entry) {
        let mut settled = Settled::new();
        for request in entry.requests.iter().filter(|request| request.is_done()) {
            self.request(entry.index, request);
            for settlement in &request.settlements {
                if let (None, Ok(token)) = (&settlement.refused, settlement.token.parse::<Token>()) {
                    let of_lease = settled.entry((token.fence, settlement.verdict == "extend"));
                    of_lease.or_default().push_back(settlement);
                }
            }
        }
        let mut deleted: BTreeMap<usize, u64> = BTreeMap::new();
        for change in &entry.events {
            let step = self.step(entry, change, &mut settled);
            let purges = !self.purged.is_empty();
            if purges && change.change == "deleted" && !is_by_operator(entry, change.message) {
                *deleted.entry(step.queue).or_default() += 1;
            }
            self.steps.push(step);
        }
        self.purged.retain(|queue, left| {
            *left = left.saturating_sub(deleted.get(queue).copied().unwrap_or(0));
            if let Some((_, last)) = self.queues[*queue].unsure.last_mut().filter(|_| *left == 0) {
                *last = entry.index;
            }
            *left > 0
        });
    }

    fn request(&mut self, index: u64, request: &'a Request) {
        match request.kind.as_str() {
            "declare-queue" | "update-queue" => self.declared(index, request),
            "purge-queue" | "delete-queue" => self.removed(index, request),
            _ => {}
        }
        for publish in &request.publishes {
            self.published(publish);
        }
    }

    fn declared(&mut self, index: u64, request: &'a Request) {
        let known = self.names.get(request.queue.as_str()).copied();
        let number = known.filter(|_| !request.created).unwrap_or_else(|| {
            self.queues.push(Queue::new(&request.queue));
            self.queues.len() - 1
        });
        self.names.insert(&request.queue, number);
        let queue = &mut self.queues[number];
        if let Some(settings) = &request.settings
            && queue.settings.last().is_none_or(|(_, last)| *last != settings)
        {
            queue.settings.push((index, settings));
        }
    }

    fn removed(&mut self, index: u64, request: &'a Request) {
        let Some(&number) = self.names.get(request.queue.as_str()) else {
            return;
        };
        if request.kind == "delete-queue" {
            self.queues[number].deleted = Some(index);
            self.names.remove(request.queue.as_str());
        }
        if request.removed > 0 {
            let left = self.purged.entry(number).or_default();
            if *left == 0 {
                self.queues[number].unsure.push((index, u64::MAX));
            }
            *left += request.removed;
        }
    }

    fn published(&mut self, publish: &'a Publish) {
        let Some(first) = publish.first else { return };
        for (place, number) in (first.number..).take(publish.count as usize).enumerate() {
            let origin = Origin {
                asked: publish.messages.get(place).unwrap_or(&NOTHING),
                by_exchange: publish.exchange.is_some(),
            };
            self.asked.insert(MessageId { number, ..first }, origin);
        }
    }

    fn step(&mut self, entry: &Entry, change: &'a Change, settled: &mut Settled<'a>) -> Step<'a> {
        let queue = self.queue(change);
        let key = (change.message, queue);
        let known = self.now.get(&key).copied();
        let (mut stay, before) = known.unwrap_or((self.stays.len(), State::default()));
        let enters = matches!(change.change.as_str(), "published" | "arrived");
        if change.to.len() > 1 {
            self.spread.insert(change.message);
        }
        if change.change == "arrived" && before.is_here() && self.has_copies(change.message) {
            self.doubles.insert(key);
            self.queues[queue].doubled.get_or_insert(entry.index);
        }
        if enters || known.is_none() {
            stay = self.stays.len();
            self.stays.push(Stay {
                message: change.message,
                queue,
                since: entry.index,
                is_published: change.change == "published",
                asked: self.origin(change.message).map(|origin| origin.asked),
            });
        }
        let after = self.after(entry, change, queue, before);
        self.now.insert(key, (stay, after));
        let settlement = match before.place {
            Place::Leased(lease) if change.change != "duplicate" => {
                let of_lease = settled.get_mut(&(lease.fence, change.change == "extended"));
                of_lease.and_then(VecDeque::pop_front)
            }
            _ => None,
        };
        Step {
            index: entry.index,
            at_ms: entry.at_ms,
            change,
            queue,
            stay,
            before,
            after,
            settlement,
            is_double: self.doubles.contains(&key),
        }
    }

    /// It went to several queues: by an exchange, or as a dead letter.
    fn has_copies(&self, message: MessageId) -> bool {
        let by_exchange = self.origin(message).is_some_and(|origin| origin.by_exchange);
        by_exchange || self.spread.contains(&message)
    }

    /// Number of the queue of a change. The id of a queue is known from its first message on.
    fn queue(&mut self, change: &'a Change) -> usize {
        if let Some(&number) = self.ids.get(&change.queue_id) {
            return number;
        }
        let named = self.names.get(change.queue.as_str()).copied();
        let number = named
            .filter(|&number| self.queues[number].id.is_none())
            .unwrap_or_else(|| {
                self.queues.push(Queue::new(&change.queue));
                self.queues.len() - 1
            });
        self.queues[number].id = Some(change.queue_id);
        self.ids.insert(change.queue_id, number);
        number
    }

    fn after(&self, entry: &Entry, change: &Change, queue: usize, before: State) -> State {
        let retry = before.leases > 0;
        let waiting = |retry| match change.until_ms {
            Some(until_ms) => Place::Delayed { until_ms, retry },
            None => Place::Ready,
        };
        let to = |place| State { place, ..before };
        match change.change.as_str() {
            "published" => {
                let asked = self.origin(change.message).map(|origin| origin.asked.ttl_ms);
                let from = change.until_ms.unwrap_or(entry.at_ms);
                State {
                    place: waiting(false),
                    life: self.life(queue, entry.index, from, asked),
                    ..State::default()
                }
            }
            "arrived" => State {
                place: Place::Ready,
                life: self.arriving(queue, entry),
                ..State::default()
            },
            "due" => to(Place::Ready),
            "leased" => State {
                place: Place::Leased(Lease {
                    fence: change.fence.unwrap_or(0),
                    attempt: change.attempt.unwrap_or(0),
                    until_ms: change.until_ms.unwrap_or(0),
                    holder: change.session.zip(change.consumer),
                }),
                leases: before.leases + 1,
                ..before
            },
            "extended" => match before.place {
                Place::Leased(lease) => to(Place::Leased(Lease {
                    until_ms: change.until_ms.unwrap_or(lease.until_ms),
                    ..lease
                })),
                _ => before,
            },
            "nacked" | "lease-expired" => State {
                place: waiting(true),
                failures: before.failures + 1,
                ..before
            },
            "released" | "session-ended" => to(waiting(true)),
            "rescheduled" => State {
                place: waiting(retry),
                life: put_off(before, entry.at_ms, change.until_ms),
                ..before
            },
            "died" | "redrive-undone" => to(Place::Dead),
            "redriven" => State {
                place: Place::Ready,
                failures: 0,
                life: self.life(queue, entry.index, entry.at_ms, Some(0)),
                ..before
            },
            "acked" => to(Place::Gone(Exit::Acked)),
            "expired" => to(Place::Gone(Exit::Expired)),
            "dead-lettered" => to(Place::Gone(Exit::DeadLettered)),
            "dropped" => to(Place::Gone(Exit::Dropped)),
            "deleted" => to(Place::Gone(Exit::Deleted)),
            "moved" => to(Place::Gone(Exit::Moved)),
            _ => before,
        }
    }

    /// A life that begins: by the TTL of the message (0 = none) or that of the queue, whichever is shorter.
    fn life(&self, queue: usize, index: u64, from_ms: u64, asked_ms: Option<u64>) -> Life {
        let settings = self.queues[queue].settings_in(index);
        let (Some(asked_ms), Some(settings)) = (asked_ms, settings) else {
            return Life::Unknown;
        };
        let spans = [asked_ms, settings.message_ttl_ms];
        let shortest = spans.into_iter().filter(|&span| span > 0).min();
        shortest.map_or(Life::Endless, |span| Life::Until(from_ms.saturating_add(span)))
    }

    /// The life of a message that comes from another queue is that of the new queue, unless it is put back as it
    /// was.
    fn arriving(&self, queue: usize, entry: &Entry) -> Life {
        if undoes(entry) {
            return Life::Unknown;
        }
        self.life(queue, entry.index, entry.at_ms, Some(0))
    }
}

/// What is left of a life, or all of one that has not begun, is left when the message is ready again.
fn put_off(before: State, at_ms: u64, until_ms: Option<u64>) -> Life {
    let Life::Until(ends_ms) = before.life else {
        return before.life;
    };
    let from_ms = match before.place {
        Place::Delayed {
            until_ms,
            retry: false,
        } => until_ms,
        Place::Ready => at_ms,
        _ => return Life::Unknown,
    };
    Life::Until(until_ms.unwrap_or(at_ms) + ends_ms.saturating_sub(from_ms))
}

/// Whether a redrive is undone in this entry.
pub(crate) fn undoes(entry: &Entry) -> bool {
    let mut done = entry.requests.iter().filter(|request| request.is_done());
    done.any(|request| request.operation == "undo-redrive")
}

fn is_by_operator(entry: &Entry, message: MessageId) -> bool {
    let done = entry.requests.iter().filter(|request| request.is_done());
    let mut deletes = done.filter(|request| request.operation == "delete");
    deletes.any(|request| {
        let mut named = request.operated.iter();
        named.any(|one| one.refused.is_none() && one.message == Some(message))
    })
}

impl<'a> Queue<'a> {
    fn new(name: &'a str) -> Self {
        Self {
            name,
            deleted: None,
            id: None,
            settings: Vec::new(),
            unsure: Vec::new(),
            doubled: None,
        }
    }

    /// The settings that hold throughout an entry. None if they change in it, or are not in the log.
    #[must_use]
    pub fn settings_in(&self, index: u64) -> Option<&'a Settings> {
        let count = self.settings.partition_point(|(since, _)| *since <= index);
        let (since, settings) = self.settings[..count].last()?;
        (*since < index || count == 1).then_some(*settings)
    }

    /// Its settings are the same in the entries from the first to the second, both included.
    #[must_use]
    pub fn is_steady(&self, from: u64, to: u64) -> bool {
        let before = self.settings.partition_point(|(since, _)| *since <= from);
        let until = self.settings.partition_point(|(since, _)| *since <= to);
        before == until
    }

    /// It is there, and the log tells all that happened in it up to the end of this entry by then. Not so where messages
    /// are purged whose contents are dropped later, nor in the entry that purges, nor once it has had two copies of a
    /// message.
    #[must_use]
    pub fn is_sure_in(&self, index: u64) -> bool {
        self.is_sure_between(index, index)
    }

    /// As [`is_sure_in`](Self::is_sure_in), for each entry from the first to the second.
    #[must_use]
    pub fn is_sure_between(&self, from: u64, to: u64) -> bool {
        let passed = self.unsure.partition_point(|&(_, last)| last < from);
        let next = self.unsure.get(passed);
        let ends = [self.deleted, self.doubled, next.map(|&(first, _)| first)];
        ends.into_iter().flatten().all(|end| to < end)
    }

    /// Its id is this one. An id is known from the first message on.
    #[must_use]
    pub fn has_id(&self, id: u64) -> bool {
        self.id == Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::replay::testing::audit;

    /// The place and the life of a message of `q` after each step.
    fn states(log: &str, message: &str) -> Vec<(Place, Life)> {
        let audit = audit(log);
        let replay = Replay::of(&audit);
        let message = MessageId::of(message);
        let steps = replay.steps.iter().filter(|step| step.change.message == message);
        steps.map(|step| (step.after.place, step.after.life)).collect()
    }

    #[test]
    fn a_life_starts_when_the_delay_has_passed_and_is_left_when_it_is_put_off() {
        let log = r#"
            1000 declare-queue queue=q created=true settings={"message_ttl_ms":500}
            1000 publish queue=q count=1 messages=[{"ttl_ms":400}] first=2-0 / 2-0 published until_ms=2000
            1100 operate operation=reschedule / 2-0 rescheduled until_ms=3000
            1200 operate operation=reschedule / 2-0 rescheduled
            1300 operate operation=reschedule / 2-0 rescheduled until_ms=5000
            5000 tick / 2-0 due
            5100 lease / 2-0 leased fence=1 attempt=1 until_ms=5200
            5150 settle / 2-0 died reason=rejected
            6000 operate operation=redrive / 2-0 redriven
        "#;
        let delayed = |until_ms| Place::Delayed {
            until_ms,
            retry: false,
        };
        let lease = Lease {
            fence: 1,
            attempt: 1,
            until_ms: 5_200,
            holder: None,
        };
        assert_eq!(
            states(log, "2-0"),
            [
                (delayed(2_000), Life::Until(2_400)),
                (delayed(3_000), Life::Until(3_400)),
                (Place::Ready, Life::Until(1_600)),
                (delayed(5_000), Life::Until(5_300)),
                (Place::Ready, Life::Until(5_300)),
                (Place::Leased(lease), Life::Until(5_300)),
                (Place::Dead, Life::Until(5_300)),
                (Place::Ready, Life::Until(6_500)),
            ]
        );
    }

    #[test]
    fn a_life_that_the_log_does_not_tell_is_unknown() {
        let unknown_queue = "1000 publish queue=q count=1 first=1-0 / 1-0 published";
        let changed = r#"
            1000 declare-queue queue=q created=true settings={"message_ttl_ms":500}
            1000 update-queue queue=q settings={"message_ttl_ms":600} / publish queue=q count=1 first=2-0 / 2-0 published
        "#;
        let retry = r#"
            1000 declare-queue queue=q created=true settings={"message_ttl_ms":500}
            1000 publish queue=q count=1 first=2-0 / 2-0 published / 2-0 leased fence=1 attempt=1 until_ms=1100
            1050 settle / 2-0 nacked until_ms=1100
            1060 operate operation=reschedule / 2-0 rescheduled until_ms=1200
        "#;
        for (log, message) in [(unknown_queue, "1-0"), (changed, "2-0"), (retry, "2-0")] {
            let last = states(log, message).last().copied();
            assert_eq!(last.map(|(_, life)| life), Some(Life::Unknown), "{log}");
        }
    }

    #[test]
    fn a_queue_that_comes_after_another_of_its_name_is_one_of_its_own() {
        let audit = audit(
            r#"
            1000 declare-queue queue=q created=true settings={"lease_ms":1}
            1000 publish queue=q count=1 first=2-0 / 2-0 published
            1000 delete-queue queue=q deleted=1 / declare-queue queue=q created=true settings={"lease_ms":2}
            1000 publish queue=q count=1 first=4-0 / 2-0 deleted / 4-0 published queue_id=10
        "#,
        );
        let replay = Replay::of(&audit);
        let [old, new] = &replay.queues[..] else {
            panic!("there are two queues: {:?}", replay.queues);
        };
        assert!(old.has_id(9) && new.has_id(10));
        assert_eq!((old.deleted, new.deleted), (Some(3), None));
        assert_eq!(new.settings_in(4).map(|settings| settings.lease_ms), Some(2));
        assert!(old.is_sure_in(2) && !old.is_sure_in(3) && new.is_sure_in(4));
        assert_eq!(
            replay.steps.iter().map(|step| step.queue).collect::<Vec<_>>(),
            [0, 0, 1]
        );
    }

    #[test]
    fn nothing_is_sure_while_purged_messages_are_not_told_of() {
        let audit = audit(
            r#"
            1000 declare-queue queue=q created=true settings={}
            1000 publish queue=q count=3 first=2-0 / 2-0 published / 2-1 published / 2-2 published
            1000 purge-queue queue=q purged=2 / 2-0 deleted
            1000 operate queue=q operation=delete messages=[{"message":"2-2"}] / 2-2 deleted
            1000 tick / 2-1 deleted
            1000 tick
        "#,
        );
        let replay = Replay::of(&audit);
        let queue = &replay.queues[0];
        let sure: Vec<u64> = (1..=6).filter(|&index| queue.is_sure_in(index)).collect();
        assert_eq!(sure, [1, 2, 6]);
        assert!(queue.is_sure_between(1, 2) && !queue.is_sure_between(2, 3) && !queue.is_sure_between(1, 6));
    }

    #[test]
    fn settings_hold_between_the_entries_that_change_them() {
        let audit = audit(
            r#"
            1000 declare-queue queue=q created=true settings={"lease_ms":1}
            1000 declare-queue queue=q settings={"lease_ms":1}
            1000 update-queue queue=q settings={"lease_ms":2}
            1000 tick
        "#,
        );
        let replay = Replay::of(&audit);
        let queue = &replay.queues[0];
        let lease = |index| queue.settings_in(index).map(|settings| settings.lease_ms);
        assert_eq!(
            [lease(1), lease(2), lease(3), lease(4)],
            [Some(1), Some(1), None, Some(2)]
        );
        assert!(queue.is_steady(1, 2) && !queue.is_steady(2, 3) && queue.is_steady(3, 4));
    }

    #[test]
    fn copies_that_come_together_are_marked_and_others_are_not() {
        let log = r#"
            1000 publish exchange=x count=1 first=1-0 / 1-0 published / 1-0 published queue=p queue_id=8
            1000 operate / 1-0 moved queue=p queue_id=8 to=["q"] / 1-0 arrived from=p exit=moved
            1000 lease / 1-0 leased fence=1 attempt=1 until_ms=2000
        "#;
        let audit = audit(log);
        let replay = Replay::of(&audit);
        let doubles: Vec<bool> = replay.steps.iter().map(|step| step.is_double).collect();
        assert_eq!(doubles, [false, false, false, true, true]);
        assert!(replay.queues[0].is_sure_in(1) && !replay.queues[0].is_sure_in(2));
    }
}
