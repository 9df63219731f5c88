//! Events as bytes: the body of a chunk.
//!
//! A chunk is read from its beginning, so that almost everything can be said by
//! its difference from what came before: a message's life of publish, lease and
//! ack takes some twenty bytes. Numbers are varints (LEB128), signed ones in
//! zigzag; indexes of messages are differences from the index of the entry, and
//! times from its time. What occurs again and again is written out once in a chunk and then
//! named by its number, from 1; number 0 says that the next number follows
//! written out.
//!
//! ```text
//! chunk    u8 version = 1, entries to the end
//! entry    index after the one before, time after the one before (signed), number of events, events
//! event    u8 tag = kind + flags, message, queue, what belongs to the kind
//! message  nothing if SAME_ENTRY_NEXT, else: entries ago, number
//! queue    nothing if SAME_QUEUE, else: number, or 0 and id and name
//! name     number, or 0 and text
//! holder   number, or 0 and u8 kind (0 nobody, 1 client u64, 2 session u64, consumer, node u64, name of it)
//! text     length, UTF-8
//! ```
//!
//! What belongs to each kind stands once in [`Writer::change`] and once, in the
//! same order, in [`Reader::change`]. A new kind takes the next number; whatever
//! else changes takes the next version.

use std::collections::HashMap;
use std::sync::Arc;

use quorate_core::effect::DeadReason;
use quorate_core::event::{Change, Event, LeasedBy, Returned};
use quorate_core::ids::{
    ClientId, ConsumerId, ExchangeName, MessageId, Millis, NodeId, QueueId, QueueName, SessionId, Timestamp,
};
use quorate_core::outcome::Exit;

const VERSION: u8 = 1;

/// In the tag, beside the kind.
const KIND: u8 = 0x0f;
const SAME_QUEUE: u8 = 0x10;
const SAME_ENTRY_NEXT: u8 = 0x20;
/// Their meaning depends on the kind.
const FLAG_A: u8 = 0x40;
const FLAG_B: u8 = 0x80;

/// Parts that a published message may have, in one byte.
const HAS_EXCHANGE: u8 = 1;
const HAS_DELAY: u8 = 2;
const HAS_DEDUP_ID: u8 = 4;

const EXITS: [Exit; 6] = [
    Exit::Acked,
    Exit::Expired,
    Exit::DeadLettered,
    Exit::Dropped,
    Exit::Deleted,
    Exit::Moved,
];
const REASONS: [DeadReason; 4] = [
    DeadReason::Rejected,
    DeadReason::DeliveriesMax,
    DeadReason::Expired,
    DeadReason::DroppedByLimit,
];
const RETURNS: [Returned; 4] = [
    Returned::Nacked,
    Returned::LeaseExpired,
    Returned::Released,
    Returned::SessionEnded,
];

/// One event, as it is read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    /// Index of its entry.
    pub(super) index: u64,
    /// Among the events of that entry, from 0.
    pub(super) ordinal: u32,
    /// Time of that entry.
    pub(super) at: Timestamp,
    pub(super) event: Event,
    /// What the consumer that leased it calls itself.
    pub(super) consumer_name: Arc<str>,
}

/// A chunk does not make sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a chunk of the journal is malformed: {0}")]
pub(super) struct Malformed(&'static str);

/// What writer and reader both know at any point of a chunk.
#[derive(Debug, Default)]
struct Context {
    index: u64,
    at: Timestamp,
    message: Option<MessageId>,
    /// Number of the queue of the event before; 0 = none.
    queue: u64,
    grant: u64,
}

impl Context {
    /// The message that has the number after the last one.
    fn next_message(&self) -> Option<MessageId> {
        let MessageId { index, number } = self.message?;
        Some(MessageId {
            index,
            number: number.checked_add(1)?,
        })
    }
}

// ------------------------------------------------------------------------ writing

/// Makes the body of one chunk.
#[derive(Debug)]
pub(super) struct Writer {
    bytes: Vec<u8>,
    context: Context,
    lowest: u64,
    queues: HashMap<QueueId, u64>,
    names: HashMap<String, u64>,
    holders: HashMap<LeasedBy, u64>,
}

impl Writer {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![VERSION],
            context: Context::default(),
            lowest: u64::MAX,
            queues: HashMap::new(),
            names: HashMap::new(),
            holders: HashMap::new(),
        }
    }

    /// Bytes so far.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The lowest index of a message so far; `u64::MAX` if there is none.
    pub(super) fn lowest(&self) -> u64 {
        self.lowest
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Adds the events of an entry; its index is above those before.
    /// `consumer_name` says what a consumer calls itself.
    pub(super) fn entry(
        &mut self,
        index: u64,
        at: Timestamp,
        events: &[Event],
        consumer_name: impl Fn(SessionId, ConsumerId) -> String,
    ) {
        self.number(index.wrapping_sub(self.context.index));
        self.signed(at.0.wrapping_sub(self.context.at.0));
        self.number(events.len() as u64);
        self.context.index = index;
        self.context.at = at;
        for event in events {
            self.event(event, &consumer_name);
        }
    }

    fn event(&mut self, event: &Event, consumer_name: &impl Fn(SessionId, ConsumerId) -> String) {
        let known = self.queues.get(&event.queue).copied();
        let mut tag = 0;
        if known == Some(self.context.queue) {
            tag |= SAME_QUEUE;
        }
        if self.context.next_message() == Some(event.message) {
            tag |= SAME_ENTRY_NEXT;
        }
        let place = self.bytes.len();
        self.bytes.push(tag);
        if tag & SAME_ENTRY_NEXT == 0 {
            self.message(event.message);
        }
        if tag & SAME_QUEUE == 0 {
            self.context.queue = self.queue(event, known);
        }
        self.context.message = Some(event.message);
        self.lowest = self.lowest.min(event.message.index);
        let kind = self.change(&event.change, consumer_name);
        self.bytes[place] |= kind;
    }

    fn message(&mut self, id: MessageId) {
        self.number(self.context.index.wrapping_sub(id.index));
        self.number(u64::from(id.number));
    }

    fn queue(&mut self, event: &Event, known: Option<u64>) -> u64 {
        if let Some(number) = known {
            self.number(number);
            return number;
        }
        self.number(0);
        self.number(event.queue.0);
        self.text(event.queue_name.as_str());
        let number = self.queues.len() as u64 + 1;
        self.queues.insert(event.queue, number);
        number
    }

    /// Writes what belongs to a change; answers its kind and flags.
    fn change(&mut self, change: &Change, consumer_name: &impl Fn(SessionId, ConsumerId) -> String) -> u8 {
        match change {
            Change::Published {
                exchange,
                delayed_until,
                dedup_id,
            } => {
                let parts = part(HAS_EXCHANGE, exchange.is_some())
                    | part(HAS_DELAY, delayed_until.is_some())
                    | part(HAS_DEDUP_ID, !dedup_id.is_empty());
                if parts == 0 {
                    return 0;
                }
                self.bytes.push(parts);
                if let Some(exchange) = exchange {
                    self.name(exchange.as_str());
                }
                if let Some(until) = delayed_until {
                    self.relative(*until);
                }
                if !dedup_id.is_empty() {
                    self.text(dedup_id);
                }
                FLAG_A
            }
            Change::Arrived { from, exit } => {
                self.name(from.as_str());
                self.one_of(&EXITS, exit);
                1
            }
            Change::Duplicate { refused } => {
                self.message(*refused);
                2
            }
            Change::Due => 3,
            Change::Leased {
                grant,
                attempt,
                holder,
                until,
                waited,
            } => {
                self.signed(grant.wrapping_sub(self.context.grant));
                self.context.grant = *grant;
                self.number(u64::from(*attempt));
                self.holder(*holder, consumer_name);
                self.relative(*until);
                4 | self.flagged(FLAG_A, waited.as_ref(), |writer, waited| writer.number(waited.0))
            }
            Change::Extended { until } => {
                self.relative(*until);
                5
            }
            Change::Returned { reason, error, until } => {
                self.one_of(&RETURNS, reason);
                let error = self.flagged(FLAG_A, said(error), Self::text);
                let until = self.flagged(FLAG_B, until.as_ref(), |writer, until| writer.relative(*until));
                6 | error | until
            }
            Change::Rescheduled { until } => {
                7 | self.flagged(FLAG_A, until.as_ref(), |writer, until| writer.relative(*until))
            }
            Change::Died { reason, error } => {
                self.one_of(&REASONS, reason);
                8 | self.flagged(FLAG_A, said(error), Self::text)
            }
            Change::Redriven => 9,
            Change::RedriveUndone => 10,
            Change::Left {
                exit,
                reason,
                error,
                to,
                held,
            } => {
                let held = self.flagged(FLAG_A, held.as_ref(), |writer, held| writer.number(held.0));
                if (exit, reason, &**error, to.as_slice()) == (&Exit::Acked, &None, "", &[]) {
                    return 11 | held;
                }
                self.one_of(&EXITS, exit);
                match reason {
                    Some(reason) => self.one_of(&REASONS, reason),
                    None => self.bytes.push(u8::MAX),
                }
                self.text(error);
                self.number(to.len() as u64);
                for queue in to {
                    self.name(queue.as_str());
                }
                11 | held | FLAG_B
            }
        }
    }

    /// Writes a part if it is there; answers the flag that says so.
    fn flagged<T: ?Sized>(&mut self, flag: u8, value: Option<&T>, write: impl FnOnce(&mut Self, &T)) -> u8 {
        match value {
            Some(value) => {
                write(self, value);
                flag
            }
            None => 0,
        }
    }

    fn holder(&mut self, holder: LeasedBy, consumer_name: &impl Fn(SessionId, ConsumerId) -> String) {
        if let Some(number) = self.holders.get(&holder) {
            return self.number(*number);
        }
        self.number(0);
        match holder {
            LeasedBy::Puller(None) => self.bytes.push(0),
            LeasedBy::Puller(Some(client)) => {
                self.bytes.push(1);
                self.bytes.extend(client.0.to_le_bytes());
            }
            LeasedBy::Consumer {
                session,
                consumer,
                node,
            } => {
                self.bytes.push(2);
                self.bytes.extend(session.0.to_le_bytes());
                self.number(u64::from(consumer.0));
                self.bytes.extend(node.0.to_le_bytes());
                self.text(&consumer_name(session, consumer));
            }
        }
        self.holders.insert(holder, self.holders.len() as u64 + 1);
    }

    fn name(&mut self, name: &str) {
        if let Some(number) = self.names.get(name) {
            return self.number(*number);
        }
        self.number(0);
        self.text(name);
        self.names.insert(name.to_owned(), self.names.len() as u64 + 1);
    }

    fn one_of<T: PartialEq>(&mut self, all: &[T], value: &T) {
        let place = all
            .iter()
            .position(|one| one == value)
            .expect("the table names all");
        self.bytes.push(u8::try_from(place).expect("the table is short"));
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes.extend(text.as_bytes());
    }

    fn relative(&mut self, at: Timestamp) {
        self.signed(at.0.wrapping_sub(self.context.at.0));
    }

    /// A difference, which may be negative, as wrapped to 64 bits.
    fn signed(&mut self, difference: u64) {
        let signed = difference.cast_signed();
        self.number(((signed << 1) ^ (signed >> 63)).cast_unsigned());
    }

    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }
}

fn part(flag: u8, there: bool) -> u8 {
    if there { flag } else { 0 }
}

fn said(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

// ------------------------------------------------------------------------ reading

/// Reads the body of a chunk, event by event. Of no use after an error.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    context: Context,
    /// Of the entry under way.
    events_left: u64,
    ordinal: u32,
    queues: Vec<(QueueId, QueueName)>,
    names: Vec<QueueName>,
    holders: Vec<(LeasedBy, Arc<str>)>,
}

type Read<T> = Result<T, Malformed>;

impl<'a> Reader<'a> {
    pub(super) fn new(body: &'a [u8]) -> Read<Self> {
        match body.split_first() {
            Some((&VERSION, rest)) => Ok(Self {
                rest,
                context: Context::default(),
                events_left: 0,
                ordinal: 0,
                queues: Vec::new(),
                names: Vec::new(),
                holders: Vec::new(),
            }),
            _ => Err(Malformed("unknown version")),
        }
    }

    /// The next event that is wanted. Of the others little more is read than
    /// where they end.
    pub(super) fn next_wanted(
        &mut self,
        mut wanted: impl FnMut(MessageId, &Change) -> bool,
    ) -> Read<Option<Recorded>> {
        loop {
            while self.events_left == 0 {
                if self.rest.is_empty() {
                    return Ok(None);
                }
                self.context.index = self.context.index.wrapping_add(self.number()?);
                self.context.at = self.relative()?;
                self.events_left = self.number()?;
                self.ordinal = 0;
            }
            let (message, change, holder) = self.event()?;
            let ordinal = self.ordinal;
            self.events_left -= 1;
            self.ordinal = self.ordinal.wrapping_add(1);
            if wanted(message, &change) {
                return self.recorded(ordinal, message, change, holder).map(Some);
            }
        }
    }

    /// The next event, with the number of its holder, 0 if it has none.
    fn event(&mut self) -> Read<(MessageId, Change, u64)> {
        let tag = self.byte()?;
        let message = if tag & SAME_ENTRY_NEXT == 0 {
            self.message()?
        } else {
            self.context
                .next_message()
                .ok_or(Malformed("no message before"))?
        };
        if tag & SAME_QUEUE == 0 {
            self.context.queue = self.queue()?;
        }
        self.context.message = Some(message);
        let (change, holder) = self.change(tag)?;
        Ok((message, change, holder))
    }

    /// Writes out what was named by a number.
    fn recorded(&self, ordinal: u32, message: MessageId, change: Change, holder: u64) -> Read<Recorded> {
        let (queue, queue_name) = known(&self.queues, self.context.queue)?;
        let consumer_name = match holder {
            0 => Arc::from(""),
            number => known(&self.holders, number)?.1,
        };
        Ok(Recorded {
            index: self.context.index,
            ordinal,
            at: self.context.at,
            event: Event {
                message,
                queue,
                queue_name,
                change,
            },
            consumer_name,
        })
    }

    fn message(&mut self) -> Read<MessageId> {
        Ok(MessageId {
            index: self.context.index.wrapping_sub(self.number()?),
            number: self.small()?,
        })
    }

    fn queue(&mut self) -> Read<u64> {
        match self.number()? {
            0 => {
                let queue = (QueueId(self.number()?), self.queue_name()?);
                self.queues.push(queue);
                Ok(self.queues.len() as u64)
            }
            number => Ok(number),
        }
    }

    fn change(&mut self, tag: u8) -> Read<(Change, u64)> {
        let (a, b) = (tag & FLAG_A != 0, tag & FLAG_B != 0);
        let change = match tag & KIND {
            0 => {
                let parts = if a { self.byte()? } else { 0 };
                let has = |part: u8| parts & part != 0;
                Change::Published {
                    exchange: optional(has(HAS_EXCHANGE), || {
                        ExchangeName::new(self.name()?.as_str()).map_err(|_| Malformed("not a name"))
                    })?,
                    delayed_until: optional(has(HAS_DELAY), || self.relative())?,
                    dedup_id: optional(has(HAS_DEDUP_ID), || self.text())?.unwrap_or_default(),
                }
            }
            1 => Change::Arrived {
                from: self.name()?,
                exit: self.one_of(&EXITS)?,
            },
            2 => Change::Duplicate {
                refused: self.message()?,
            },
            3 => Change::Due,
            4 => {
                self.context.grant = self.context.grant.wrapping_add(self.signed()?);
                let attempt = self.small()?;
                let (holder, number) = self.holder()?;
                let change = Change::Leased {
                    grant: self.context.grant,
                    attempt,
                    holder,
                    until: self.relative()?,
                    waited: optional(a, || self.number().map(Millis))?,
                };
                return Ok((change, number));
            }
            5 => Change::Extended {
                until: self.relative()?,
            },
            6 => Change::Returned {
                reason: self.one_of(&RETURNS)?,
                error: optional(a, || self.text())?.unwrap_or_default(),
                until: optional(b, || self.relative())?,
            },
            7 => Change::Rescheduled {
                until: optional(a, || self.relative())?,
            },
            8 => Change::Died {
                reason: self.one_of(&REASONS)?,
                error: optional(a, || self.text())?.unwrap_or_default(),
            },
            9 => Change::Redriven,
            10 => Change::RedriveUndone,
            11 => {
                let held = optional(a, || self.number().map(Millis))?;
                if b {
                    self.departure(held)?
                } else {
                    Change::Left {
                        exit: Exit::Acked,
                        reason: None,
                        error: String::new(),
                        to: Vec::new(),
                        held,
                    }
                }
            }
            _ => return Err(Malformed("unknown kind of event")),
        };
        Ok((change, 0))
    }

    fn departure(&mut self, held: Option<Millis>) -> Read<Change> {
        let exit = self.one_of(&EXITS)?;
        let reason = match self.byte()? {
            u8::MAX => None,
            place => Some(pick(&REASONS, place)?),
        };
        let error = self.text()?;
        let mut to = Vec::new();
        for _ in 0..self.number()? {
            to.push(self.name()?);
        }
        Ok(Change::Left {
            exit,
            reason,
            error,
            to,
            held,
        })
    }

    /// The holder and its number.
    fn holder(&mut self) -> Read<(LeasedBy, u64)> {
        let number = self.number()?;
        if number != 0 {
            let holder = at(&self.holders, number).ok_or(NOT_GIVEN)?.0;
            return Ok((holder, number));
        }
        let (holder, name) = match self.byte()? {
            0 => (LeasedBy::Puller(None), String::new()),
            1 => (LeasedBy::Puller(Some(ClientId(self.fixed()?))), String::new()),
            2 => {
                let holder = LeasedBy::Consumer {
                    session: SessionId(self.fixed()?),
                    consumer: ConsumerId(self.small()?),
                    node: NodeId(self.fixed()?),
                };
                (holder, self.text()?)
            }
            _ => return Err(Malformed("unknown kind of holder")),
        };
        self.holders.push((holder, Arc::from(name)));
        Ok((holder, self.holders.len() as u64))
    }

    fn name(&mut self) -> Read<QueueName> {
        match self.number()? {
            0 => {
                let name = self.queue_name()?;
                self.names.push(name.clone());
                Ok(name)
            }
            number => known(&self.names, number),
        }
    }

    fn queue_name(&mut self) -> Read<QueueName> {
        QueueName::new(&self.text()?).map_err(|_| Malformed("not a name"))
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> Read<T> {
        let place = self.byte()?;
        pick(all, place)
    }

    fn text(&mut self) -> Read<String> {
        let length = usize::try_from(self.number()?).map_err(|_| Malformed("cut short"))?;
        let bytes = self.take(length)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| Malformed("not a text"))
    }

    fn fixed(&mut self) -> Read<u64> {
        let bytes = self.take(8)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }

    fn relative(&mut self) -> Read<Timestamp> {
        Ok(Timestamp(self.context.at.0.wrapping_add(self.signed()?)))
    }

    fn signed(&mut self) -> Read<u64> {
        let zigzag = self.number()?;
        Ok((zigzag >> 1) ^ (zigzag & 1).wrapping_neg())
    }

    fn small(&mut self) -> Read<u32> {
        u32::try_from(self.number()?).map_err(|_| Malformed("a number is too large"))
    }

    fn number(&mut self) -> Read<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Malformed("a number is too long"))
    }

    fn byte(&mut self) -> Read<u8> {
        Ok(self.take(1)?[0])
    }

    fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Malformed("cut short"))?;
        self.rest = rest;
        Ok(taken)
    }
}

const NOT_GIVEN: Malformed = Malformed("a number that was not given");

/// What was written out under a number, from 1.
fn at<T>(all: &[T], number: u64) -> Option<&T> {
    all.get(usize::try_from(number).ok()?.checked_sub(1)?)
}

fn known<T: Clone>(all: &[T], number: u64) -> Read<T> {
    at(all, number).cloned().ok_or(NOT_GIVEN)
}

fn pick<T: Copy>(all: &[T], place: u8) -> Read<T> {
    all.get(usize::from(place))
        .copied()
        .ok_or(Malformed("unknown value"))
}

fn optional<T>(there: bool, read: impl FnOnce() -> Read<T>) -> Read<Option<T>> {
    if there { read().map(Some) } else { Ok(None) }
}
