//! Everything that clients asked for and were told.
//!
//! Times are the harness's own monotonic clock, from the start of the history. What the broker says of order,
//! fences and log positions, and what it says of time, cluster time, is kept beside them and never mixed with
//! them.
//!
//! An operation has a *process*: a number that no two participants of a run share, also when one takes the place
//! of another. A process may have several operations under way. What it had asked for and was not told the
//! outcome of, because it gave up or was killed, is of [unknown](Outcome::Unknown) outcome.
//!
//! A transaction has no record of its own: its publishes and settlements are recorded like any others, share
//! times, request and place, and bear one [`transaction`](Publish::transaction) number.
//!
//! On disk a history is one [`Record`] a line, in the order in which operations were over.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

pub use crate::ids::{MessageId, RequestId};
use crate::view::{Counts, Obstacle, Seen, Settings};

/// The reason with which the settlement of a lease that is not current is refused.
pub const STALE_LEASE: &str = "STALE_LEASE";
/// The reason with which a publish to a queue at its limit is refused.
pub const QUEUE_FULL: &str = "QUEUE_FULL";

/// When an answer was there that nobody ever got: its outcome was [found out](crate::resolve) in another way.
pub const NEVER: Duration = Duration::MAX;

/// What became of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome<T> {
    /// It was done.
    Done(T),
    /// It was certainly not done, and never will be. With the broker's reason, such as `QUEUE_FULL`, if it was
    /// the broker who said no.
    Refused(Option<String>),
    /// It may have been done, or may yet be.
    #[default]
    Unknown,
}

/// Where in the log the effect of a request stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Place {
    /// Index of the entry.
    pub index: u64,
    /// Term of the leader that answered.
    pub term: u64,
    /// Cluster time of the entry.
    pub time_ms: u64,
    /// The node that answered, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<u64>,
}

/// One publish of one message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Publish {
    /// Who published: one process's publishes are ordered.
    pub process: u32,
    /// When it was asked for.
    #[serde(with = "nanos")]
    pub invoked: Duration,
    /// When the answer was there, or nobody waited for it any more.
    #[serde(with = "nanos")]
    pub answered: Duration,
    /// What makes it safe to repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestId>,
    /// Where it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// Messages of one process that bear the same number were one publish, in this order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<u64>,
    /// The transaction that it was a part of: a number that is unique in the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction: Option<u64>,
    /// Unique; stands at the head of the body. Attempts to publish the same message again with its dedup id
    /// have the same key.
    pub key: u64,
    /// Where to: a queue, unless `exchange` is set.
    pub queue: String,
    /// `queue` names an exchange.
    #[serde(skip_serializing_if = "is_false")]
    pub exchange: bool,
    /// The group of the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// 0 to 9.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: u32,
    /// Its dedup id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedup_id: Option<String>,
    /// Not ready before this has passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Its life.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// It was not taken because its dedup id was known; the outcome names the first.
    #[serde(skip_serializing_if = "is_false")]
    pub duplicate: bool,
    /// What came of it.
    pub outcome: Outcome<MessageId>,
}

/// One delivery that a process got into its hands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Delivery {
    /// Who got it.
    pub process: u32,
    /// When the process had it.
    #[serde(with = "nanos")]
    pub received: Duration,
    /// From where.
    pub queue: String,
    /// The broker's name for the message.
    pub message: MessageId,
    /// The key that stands in the body; None if the body is damaged.
    pub key: Option<u64>,
    /// The group of the message, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// 0 to 9.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: u32,
    /// The dedup id of the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedup_id: Option<String>,
    /// Names the lease.
    pub token: String,
    /// Orders all leases of all messages.
    pub fence: u64,
    /// As told.
    pub attempt: u32,
    /// As told.
    #[serde(skip_serializing_if = "is_false")]
    pub redelivered: bool,
    /// The lease that was asked for, in cluster time.
    pub lease_ms: u64,
    /// When it ends, in cluster time.
    pub leased_until_ms: u64,
    /// When the message was published, in cluster time.
    pub published_at_ms: u64,
    /// It hangs on nothing but its time and settlements: a pulled one, or of a consumer that stays open.
    pub ends_by_time: bool,
    /// The connection that it came on: a number that is unique in the run; 0 if that is not known.
    #[serde(skip_serializing_if = "is_zero")]
    pub stream: u32,
    /// Of a dead letter: why it died, as told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub died_of: Option<String>,
    /// Of a dead letter: the queue that it came from, as told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub died_in: Option<String>,
    /// Of a dead letter: the attempts that were made there, as told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub died_after: Option<u32>,
}

/// What a process wanted to do with a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wish {
    /// Done.
    #[default]
    Ack,
    /// Failed.
    Nack,
    /// Given back.
    Release,
    /// Never again.
    DeadLetter,
    /// Longer, please.
    Extend,
}

/// One settlement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settle {
    /// Who asked.
    pub process: u32,
    /// When it was asked for.
    #[serde(with = "nanos")]
    pub invoked: Duration,
    /// When the answer was there, or nobody waited for it any more.
    #[serde(with = "nanos")]
    pub answered: Duration,
    /// What makes it safe to repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestId>,
    /// Where it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// The transaction that it was a part of: a number that is unique in the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction: Option<u64>,
    /// Of which lease.
    pub token: String,
    /// What was asked for.
    pub wish: Wish,
    /// Of a nack: not ready again before this has passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Of an extend that was done: when the lease now ends, in cluster time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leased_until_ms: Option<u64>,
    /// What came of it.
    pub outcome: Outcome<()>,
}

/// A call that asked for leases. What it brought is recorded as deliveries, each by itself; this says that it
/// was asked for, since one of unknown outcome may have taken messages that nobody got.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Receive {
    /// Who asked.
    pub process: u32,
    /// When it was asked for.
    #[serde(with = "nanos")]
    pub invoked: Duration,
    /// When the answer was there, or nobody waited for it any more.
    #[serde(with = "nanos")]
    pub answered: Duration,
    /// What makes it safe to repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestId>,
    /// From where.
    pub queue: String,
    /// Most messages that it wanted.
    pub max: u32,
    /// How many it got.
    pub outcome: Outcome<u32>,
}

/// A look at a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Read {
    /// Who looked.
    pub process: u32,
    /// When it was asked for.
    #[serde(with = "nanos")]
    pub invoked: Duration,
    /// When the answer was there.
    #[serde(with = "nanos")]
    pub answered: Duration,
    /// Which queue.
    pub queue: String,
    /// The answer contains everything up to this log index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_index: Option<u64>,
    /// What was seen.
    pub view: View,
}

/// What a look at a queue showed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum View {
    /// Its counts.
    Counts(Counts),
    /// Its messages; all of them if `whole`.
    Messages {
        /// There were no others.
        whole: bool,
        /// By position.
        messages: Vec<Seen>,
    },
    /// What is in the way of its deliveries, and its counts of the same moment.
    Obstacles {
        /// Its counts.
        counts: Counts,
        /// In the order of the answer.
        obstacles: Vec<Obstacle>,
    },
}

/// Something that an operator does to a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Operation {
    /// Who asked.
    pub process: u32,
    /// When it was asked for.
    #[serde(with = "nanos")]
    pub invoked: Duration,
    /// When the answer was there, or nobody waited for it any more.
    #[serde(with = "nanos")]
    pub answered: Duration,
    /// What makes it safe to repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestId>,
    /// Where it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// Which queue or exchange.
    pub queue: String,
    /// What was asked for.
    pub act: Act,
    /// How many messages, queues or bindings it concerned.
    pub outcome: Outcome<u64>,
}

/// What an operator does to a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Act {
    /// Ensures that it exists.
    Declare(Settings),
    /// Ensures that an exchange of this kind exists.
    DeclareExchange(String),
    /// Binds it to this exchange.
    Bind(String),
    /// Removes its messages, but for leased ones.
    #[default]
    Purge,
    /// Deletes it.
    Delete,
    /// Puts dead messages back.
    Redrive,
    /// Removes, moves or reschedules single messages.
    Operate(String),
}

/// A holder of a lock writes into a register outside of the broker.
///
/// The register takes a write only if it has seen no higher fence, so that one whose lock has passed to another
/// is turned away. The holder has read the register under the same fence, and writes one more than it read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Write {
    /// Who wrote.
    pub process: u32,
    /// When, in one moment.
    #[serde(with = "nanos")]
    pub at: Duration,
    /// The fence of the lock that it holds, as it believes.
    pub fence: u64,
    /// What it had read.
    pub read: u64,
    /// Whether the register took it.
    pub taken: bool,
}

/// A process was killed with all that it had under way and in hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kill {
    /// Which.
    pub process: u32,
    /// When.
    #[serde(with = "nanos")]
    pub at: Duration,
}

/// What the harness itself did, for whoever reads the history: `load`, `heal`, `whole`, `drain`, `drained`,
/// `barrier`. Checkers know [`Mark::WHOLE`] and [`Mark::DRAINED`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mark {
    /// When.
    #[serde(with = "nanos")]
    pub at: Duration,
    /// What.
    pub name: String,
    /// For people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The last log index at that moment, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<u64>,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// In the order of the answers.
    pub publishes: Vec<Publish>,
    /// In the order of receipt.
    pub deliveries: Vec<Delivery>,
    /// In the order of the answers.
    pub settles: Vec<Settle>,
    /// In the order of the answers.
    pub receives: Vec<Receive>,
    /// In the order of the answers.
    pub reads: Vec<Read>,
    /// In the order of the answers.
    pub operations: Vec<Operation>,
    /// In the order in which the register saw them.
    pub writes: Vec<Write>,
    /// In the order of their times.
    pub kills: Vec<Kill>,
    /// In the order of their times.
    pub marks: Vec<Mark>,
}

/// A line of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "f", rename_all = "kebab-case")]
#[allow(missing_docs)] // each is told of with its type
pub enum Record {
    Publish(Publish),
    Delivery(Delivery),
    Settle(Settle),
    Receive(Receive),
    Read(Read),
    Operation(Operation),
    Write(Write),
    Kill(Kill),
    Mark(Mark),
}

/// How much has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Publishes that were confirmed.
    pub confirmed: usize,
    /// Deliveries that were received.
    pub delivered: usize,
    /// Settlements that were done.
    pub settled: usize,
    /// Deliveries of messages that had been leased before.
    pub redelivered: usize,
    /// Publishes and settlements of unknown outcome.
    pub unknown: usize,
    /// Settlements that were refused, most of them for a stale token.
    pub refused: usize,
}

impl<T> Outcome<T> {
    /// What was done, if it was.
    pub fn done(&self) -> Option<&T> {
        match self {
            Self::Done(value) => Some(value),
            Self::Refused(_) | Self::Unknown => None,
        }
    }

    /// It is known to have been done.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }

    /// It is known not to have been done.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Refused(_))
    }

    /// Nobody knows whether it was done.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown)
    }

    /// The same of another value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Self::Done(value) => Outcome::Done(change(value)),
            Self::Refused(reason) => Outcome::Refused(reason),
            Self::Unknown => Outcome::Unknown,
        }
    }
}

impl Wish {
    /// It ends the lease.
    #[must_use]
    pub fn is_final(self) -> bool {
        self != Self::Extend
    }
}

impl Default for View {
    fn default() -> Self {
        Self::Counts(Counts::default())
    }
}

impl View {
    /// The counts, if it shows them.
    #[must_use]
    pub fn counts(&self) -> Option<&Counts> {
        match self {
            Self::Counts(counts) | Self::Obstacles { counts, .. } => Some(counts),
            Self::Messages { .. } => None,
        }
    }
}

impl Delivery {
    /// When the lease began, in cluster time.
    #[must_use]
    pub fn granted_at_ms(&self) -> u64 {
        self.leased_until_ms.saturating_sub(self.lease_ms)
    }
}

impl Mark {
    /// All faults are undone and the cluster serves again.
    pub const WHOLE: &'static str = "whole";
    /// The queues were emptied: what is not in the history by now is not there.
    pub const DRAINED: &'static str = "drained";
}

impl Record {
    /// When it was over.
    #[must_use]
    pub fn at(&self) -> Duration {
        match self {
            Self::Publish(publish) => publish.answered,
            Self::Delivery(delivery) => delivery.received,
            Self::Settle(settle) => settle.answered,
            Self::Receive(receive) => receive.answered,
            Self::Read(read) => read.answered,
            Self::Operation(operation) => operation.answered,
            Self::Write(write) => write.at,
            Self::Kill(kill) => kill.at,
            Self::Mark(mark) => mark.at,
        }
    }
}

impl History {
    /// Adds a record.
    pub fn push(&mut self, record: Record) {
        match record {
            Record::Publish(publish) => self.publishes.push(publish),
            Record::Delivery(delivery) => self.deliveries.push(delivery),
            Record::Settle(settle) => self.settles.push(settle),
            Record::Receive(receive) => self.receives.push(receive),
            Record::Read(read) => self.reads.push(read),
            Record::Operation(operation) => self.operations.push(operation),
            Record::Write(write) => self.writes.push(write),
            Record::Kill(kill) => self.kills.push(kill),
            Record::Mark(mark) => self.marks.push(mark),
        }
    }

    /// All records, by the time at which they were over.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let mut records: Vec<Record> = Vec::new();
        records.extend(self.publishes.iter().cloned().map(Record::Publish));
        records.extend(self.deliveries.iter().cloned().map(Record::Delivery));
        records.extend(self.settles.iter().cloned().map(Record::Settle));
        records.extend(self.receives.iter().cloned().map(Record::Receive));
        records.extend(self.reads.iter().cloned().map(Record::Read));
        records.extend(self.operations.iter().cloned().map(Record::Operation));
        records.extend(self.writes.iter().copied().map(Record::Write));
        records.extend(self.kills.iter().copied().map(Record::Kill));
        records.extend(self.marks.iter().cloned().map(Record::Mark));
        records.sort_by_key(Record::at);
        records
    }

    /// Writes one record a line.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write(&self, to: &mut impl std::io::Write) -> Result<()> {
        for record in self.records() {
            serde_json::to_writer(&mut *to, &record).context("write a record")?;
            to.write_all(b"\n").context("write a record")?;
        }
        Ok(())
    }

    /// Reads one record a line. A last line that is not whole is left out: whoever wrote it was killed.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or another line is no record.
    pub fn read(from: impl BufRead) -> Result<Self> {
        let mut history = Self::default();
        crate::lines::read(from, |record| history.push(record))?;
        Ok(history)
    }

    /// How much has happened.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let mut progress = Progress {
            delivered: self.deliveries.len(),
            redelivered: self
                .deliveries
                .iter()
                .filter(|delivery| delivery.redelivered)
                .count(),
            ..Progress::default()
        };
        for publish in &self.publishes {
            match publish.outcome {
                Outcome::Done(_) => progress.confirmed += 1,
                Outcome::Unknown => progress.unknown += 1,
                Outcome::Refused(_) => {}
            }
        }
        for settle in &self.settles {
            match settle.outcome {
                Outcome::Done(()) => progress.settled += 1,
                Outcome::Unknown => progress.unknown += 1,
                Outcome::Refused(_) => progress.refused += 1,
            }
        }
        progress
    }

    /// Every lease once, at its first receipt: one whose holder does not know what became of its settlement may
    /// be handed to it again.
    pub fn leases(&self) -> impl Iterator<Item = &Delivery> {
        let mut seen = BTreeSet::new();
        self.deliveries
            .iter()
            .filter(move |delivery| seen.insert(delivery.fence))
    }

    /// The leases of each message in each queue, by fence.
    #[must_use]
    pub fn leases_by_place(&self) -> BTreeMap<(&str, MessageId), Vec<&Delivery>> {
        self.leases_by(|delivery| (delivery.queue.as_str(), delivery.message))
    }

    /// The leases of each message over all queues, by fence.
    #[must_use]
    pub fn leases_by_message(&self) -> BTreeMap<MessageId, Vec<&Delivery>> {
        self.leases_by(|delivery| delivery.message)
    }

    fn leases_by<'a, K: Ord>(&'a self, key: impl Fn(&'a Delivery) -> K) -> BTreeMap<K, Vec<&'a Delivery>> {
        let mut leases: BTreeMap<_, Vec<&Delivery>> = BTreeMap::new();
        for delivery in self.leases() {
            leases.entry(key(delivery)).or_default().push(delivery);
        }
        for group in leases.values_mut() {
            group.sort_by_key(|delivery| delivery.fence);
        }
        leases
    }

    /// The settlements of each lease, by its token, in the order in which they were asked for.
    #[must_use]
    pub fn settles_by_token(&self) -> BTreeMap<&str, Vec<&Settle>> {
        let mut settles: BTreeMap<_, Vec<&Settle>> = BTreeMap::new();
        for settle in &self.settles {
            settles.entry(settle.token.as_str()).or_default().push(settle);
        }
        for of_token in settles.values_mut() {
            of_token.sort_by_key(|settle| settle.invoked);
        }
        settles
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks for it
fn is_false(value: &bool) -> bool {
    !value
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks for it
fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// Times as whole nanoseconds.
mod nanos {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_record_survives_its_line() -> Result<()> {
        let at = Duration::from_nanos;
        let message = MessageId { index: 7, number: 1 };
        let request = Some(RequestId {
            client: u64::MAX,
            sequence: 3,
        });
        let mut history = History::default();
        history.push(Record::Publish(Publish {
            answered: at(1),
            request,
            place: Some(Place {
                index: 7,
                term: 2,
                time_ms: 5,
                node: Some(1),
            }),
            outcome: Outcome::Done(message),
            ..Publish::default()
        }));
        history.push(Record::Publish(Publish {
            answered: at(2),
            outcome: Outcome::Refused(Some(QUEUE_FULL.to_owned())),
            duplicate: true,
            ..Publish::default()
        }));
        history.push(Record::Delivery(Delivery {
            received: at(3),
            message,
            key: Some(9),
            ..Delivery::default()
        }));
        history.push(Record::Settle(Settle {
            answered: at(4),
            outcome: Outcome::Done(()),
            ..Settle::default()
        }));
        history.push(Record::Receive(Receive {
            answered: at(5),
            ..Receive::default()
        }));
        for (time, view) in [
            (6, View::default()),
            (
                7,
                View::Messages {
                    whole: true,
                    messages: vec![Seen::default()],
                },
            ),
            (
                8,
                View::Obstacles {
                    counts: Counts::default(),
                    obstacles: vec![Obstacle::default()],
                },
            ),
        ] {
            history.push(Record::Read(Read {
                answered: at(time),
                view,
                ..Read::default()
            }));
        }
        history.push(Record::Operation(Operation {
            answered: at(9),
            act: Act::Declare(Settings::default()),
            ..Operation::default()
        }));
        history.push(Record::Write(Write {
            at: at(9),
            fence: 5,
            taken: true,
            ..Write::default()
        }));
        history.push(Record::Kill(Kill {
            process: 4,
            at: at(10),
        }));
        history.push(Record::Mark(Mark {
            at: at(11),
            name: Mark::DRAINED.to_owned(),
            ..Mark::default()
        }));

        let mut lines = Vec::new();
        history.write(&mut lines)?;
        assert_eq!(lines.iter().filter(|&&byte| byte == b'\n').count(), 12);
        assert_eq!(History::read(&lines[..])?, history);

        let torn = &lines[..lines.len() - 5];
        assert_eq!(History::read(torn)?.marks, []);
        let mut broken = lines;
        broken[3] = b'#';
        assert!(History::read(&broken[..]).is_err());
        Ok(())
    }
}
