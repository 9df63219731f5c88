//! What the replicas say that they applied.
//!
//! Each replica writes down every entry as it applies it; `docs/audit-log.md` is the page about the format, and
//! only what a checker decides from is read of it. [`Audit`] is the logs of all replicas laid over each other:
//! an entry that several have must be the same, and one that a replica applied again after a restart too.
//!
//! A log may lack its end, where a machine lost power, and entries that a snapshot took the place of. What no
//! replica has is a *hole*, and nothing is concluded from it.

use std::collections::BTreeMap;
use std::io::BufRead;

use anyhow::{Context as _, Result};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::history::RequestId;
use crate::ids::MessageId;
use crate::view::Event;

/// Differences between replicas that are told of; more tell nothing new.
const DIFFERENCES_MAX: usize = 100;

/// The entries that the replicas applied.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    entries: BTreeMap<u64, Entry>,
    restored: BTreeMap<u64, Vec<(String, String)>>,
    differences: Vec<String>,
    compared: u64,
}

/// An applied entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Entry {
    /// Its place in the log.
    pub index: u64,
    /// Term of the leader that wrote it.
    pub term: u64,
    /// Cluster time after it.
    pub at_ms: u64,
    /// State hash after it.
    pub hash: String,
    /// The members from here on, if it is about them.
    pub members: Option<serde_json::Value>,
    /// In the order in which they were applied.
    pub requests: Vec<Request>,
    /// What happened to messages, in order.
    pub events: Vec<Change>,
}

/// One request of a client, or of a node. What its kind does not have is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Line")]
pub struct Request {
    /// Absent for what nodes ask by themselves, or on behalf of a stream.
    pub id: Option<RequestId>,
    /// `publish`, `lease`, `settle`, `transact`, …
    pub kind: String,
    /// Why it was refused; absent = done.
    pub refused: Option<String>,
    /// It had been executed before, in this entry, and changed nothing here.
    pub repeats: Option<u64>,
    /// The queue that it names.
    pub queue: String,
    /// What it publishes: one of a publish, any number of a transaction.
    pub publishes: Vec<Publish>,
    /// What it says of leases.
    pub settlements: Vec<Settlement>,
    /// Settings of the queue that it declares or updates, as they are after the entry.
    pub settings: Option<Settings>,
    /// It made the queue that it declares.
    pub created: bool,
    /// Messages that it purged, or deleted with their queue.
    pub removed: u64,
    /// Of an operator: `delete`, `move`, `reschedule`, `redrive`, `undo-redrive`.
    pub operation: String,
    /// Messages that an operator names.
    pub operated: Vec<Asked>,
    /// Session of a consumer.
    pub session: Option<u64>,
    /// Number of a consumer in its session.
    pub consumer: Option<u32>,
    /// Most messages that the consumer may hold.
    pub credit: u32,
    /// The lease that is asked for; absent = that of the queue.
    pub lease_ms: Option<u64>,
    /// Tokens of what was leased at once. What comes later to one that waits is in the events only.
    pub leased: Vec<String>,
}

/// Messages that go to one place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Publish {
    /// Where to, unless it goes to an exchange.
    pub queue: Option<String>,
    /// Where to, unless it goes to a queue.
    pub exchange: Option<String>,
    /// How many.
    pub count: u32,
    /// What is asked of each; empty if nothing is asked of any.
    pub messages: Vec<Asked>,
    /// The id of the first; the others have the numbers after it. Absent if it was refused.
    pub first: Option<MessageId>,
    /// Those that were not taken because their dedup id was known.
    pub duplicates: Vec<Duplicate>,
    /// Places of those that no binding led anywhere, from 0.
    pub unroutable: Vec<u32>,
}

/// What is asked of one message, or with one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Asked {
    /// The group that it belongs to; empty = none.
    pub group: String,
    /// Its dedup id; empty = none.
    pub dedup_id: String,
    /// 0 to 9.
    pub priority: u8,
    /// Its life; 0 = as the queue says.
    pub ttl_ms: u64,
    /// Of one that an operator names: its id, if it was found.
    pub message: Option<MessageId>,
    /// Of one that an operator names: why it was not done.
    pub refused: Option<String>,
}

/// A message that was not taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Duplicate {
    /// Its place in the publish, from 0.
    pub place: u32,
    /// The message that was taken.
    pub first: MessageId,
}

/// What a holder said of its lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Settlement {
    /// `queue.position.attempt.fence`: see [`Token`](crate::ids::Token).
    pub token: String,
    /// `ack`, `nack`, `release`, `dead-letter`, `extend`.
    pub verdict: String,
    /// Of an extend: the lease from now on; absent = as the queue says.
    pub delay_ms: Option<u64>,
    /// Why it was refused; absent = done, if its request was.
    pub refused: Option<String>,
    /// Of an extend: when the lease ends now.
    pub until_ms: Option<u64>,
}

/// Settings of a queue that checkers decide from. Zero = off, or without bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // as in the broker's API
pub struct Settings {
    pub lease_ms: u64,
    pub max_deliveries: u32,
    pub max_length: u64,
    pub max_bytes: u64,
    pub overflow: String,
    pub message_ttl_ms: u64,
    pub priority_ageing_ms: u64,
    pub group_concurrency: u32,
    pub dedup_window_ms: u64,
    pub dedup_max_ids: u64,
}

/// What happened to a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Change {
    /// The message.
    pub message: MessageId,
    /// Name of the queue where it happened.
    pub queue: String,
    /// Id of that queue.
    pub queue_id: u64,
    /// By the words of the trace: see [`Event::change`].
    pub change: String,
    /// Of a lease: its number among all.
    pub fence: Option<u64>,
    /// Of a lease: from 1.
    pub attempt: Option<u32>,
    /// The time that the change names, cluster time.
    pub until_ms: Option<u64>,
    /// Why it died or left.
    pub reason: Option<String>,
    /// Of a lease by a consumer: its session.
    #[serde(deserialize_with = "decimal")]
    pub session: Option<u64>,
    /// Of a lease by a consumer: its number in the session.
    pub consumer: Option<u32>,
    /// Of a publish: the dedup id.
    pub dedup_id: String,
    /// Of a duplicate: the id that the message would have had.
    pub refused: Option<MessageId>,
    /// Of one that arrived: the queue that it left.
    pub from: String,
    /// Of one that left for other queues: which.
    pub to: Vec<String>,
}

/// A request as it stands in JSON, where the fields of all kinds lie side by side.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Line {
    id: Option<RequestId>,
    kind: String,
    refused: Option<String>,
    repeats: Option<u64>,
    queue: Option<String>,
    exchange: Option<String>,
    count: u32,
    messages: Vec<Asked>,
    first: Option<MessageId>,
    duplicates: Vec<Duplicate>,
    unroutable: Vec<u32>,
    publishes: Vec<Publish>,
    settlements: Vec<Settlement>,
    settings: Option<Settings>,
    created: bool,
    purged: u64,
    deleted: u64,
    operation: String,
    #[serde(deserialize_with = "decimal")]
    session: Option<u64>,
    consumer: Option<u32>,
    credit: u32,
    lease_ms: Option<u64>,
    leased: Vec<String>,
}

impl From<Line> for Request {
    fn from(line: Line) -> Self {
        let is_publish = line.kind == "publish";
        let (publishes, operated, queue) = if is_publish {
            let publish = Publish {
                queue: line.queue,
                exchange: line.exchange,
                count: line.count,
                messages: line.messages,
                first: line.first,
                duplicates: line.duplicates,
                unroutable: line.unroutable,
            };
            (vec![publish], Vec::new(), None)
        } else {
            (line.publishes, line.messages, line.queue)
        };
        Self {
            id: line.id,
            kind: line.kind,
            refused: line.refused,
            repeats: line.repeats,
            queue: queue.unwrap_or_default(),
            publishes,
            settlements: line.settlements,
            settings: line.settings,
            created: line.created,
            removed: line.purged + line.deleted,
            operation: line.operation,
            operated,
            session: line.session,
            consumer: line.consumer,
            credit: line.credit,
            lease_ms: line.lease_ms,
            leased: line.leased,
        }
    }
}

impl Request {
    /// It was executed here: neither refused nor a repetition of what had been executed before.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.refused.is_none() && self.repeats.is_none()
    }
}

/// Ids of 64 bits are decimal texts.
fn decimal<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| text.parse().map_err(D::Error::custom))
        .transpose()
}

/// One line of a log: an entry, a snapshot that took the place of entries, or nothing of interest.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Told {
    entry: Option<Entry>,
    restored: Option<Restored>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Restored {
    index: u64,
    hash: String,
}

impl Audit {
    /// Adds the log of one replica. Lines that do not parse, of which a killed process leaves one, are taken
    /// for absent.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn add(&mut self, node: &str, from: impl BufRead) -> Result<()> {
        for line in from.split(b'\n') {
            let line = line.with_context(|| format!("read the audit log of {node}"))?;
            let Ok(line) = serde_json::from_slice::<Told>(&line) else {
                continue;
            };
            if let Some(entry) = line.entry {
                self.applied(node, entry);
            }
            if let Some(restored) = line.restored {
                let of_index = self.restored.entry(restored.index).or_default();
                of_index.push((node.to_owned(), restored.hash));
            }
        }
        Ok(())
    }

    fn applied(&mut self, node: &str, entry: Entry) {
        let Some(known) = self.entries.get(&entry.index) else {
            self.entries.insert(entry.index, entry);
            return;
        };
        self.compared += 1;
        if *known == entry {
            return;
        }
        if self.differences.len() < DIFFERENCES_MAX {
            self.differences.push(format!(
                "{node} applied another entry {} than others: term {} and hash {}, not {} and {}",
                entry.index, entry.term, entry.hash, known.term, known.hash
            ));
        }
    }

    /// The entry of this index, if a replica has it.
    #[must_use]
    pub fn entry(&self, index: u64) -> Option<&Entry> {
        self.entries.get(&index)
    }

    /// Changes what all replicas have applied, for [made-up faults](crate::fuzz).
    pub(crate) fn edit(&mut self, change: impl FnMut(&mut Entry)) {
        self.entries.values_mut().for_each(change);
    }

    /// All entries, by index.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// There is an entry for each index from the first one of the cluster to the last one that is known.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let ends = self.entries.first_key_value().zip(self.entries.last_key_value());
        ends.is_some_and(|((&first, _), (&last, _))| {
            first <= 1 && last - first + 1 == self.entries.len() as u64
        })
    }

    /// How often an entry or a snapshot could be compared with that of another replica or life.
    #[must_use]
    pub fn compared(&self) -> u64 {
        let restored = self.restored.iter();
        let known = restored.filter(|(index, _)| self.entries.contains_key(index));
        self.compared + known.map(|(_, hashes)| hashes.len() as u64).sum::<u64>()
    }

    /// Where replicas, or lives of one, do not agree: the first hundred of them.
    #[must_use]
    pub fn differences(&self) -> Vec<String> {
        let mut differences = self.differences.clone();
        for (index, hashes) in &self.restored {
            let Some(entry) = self.entries.get(index) else {
                continue;
            };
            for (node, hash) in hashes.iter().filter(|(_, hash)| *hash != entry.hash) {
                differences.push(format!(
                    "{node} restored a snapshot at {index} with hash {hash}; applied was {}",
                    entry.hash
                ));
            }
        }
        differences
    }

    /// What happened to messages, in order. Queues that had one name one after the other are told apart.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for entry in self.entries.values() {
            for (ordinal, change) in (0..).zip(&entry.events) {
                events.push(Event {
                    message: change.message,
                    index: entry.index,
                    ordinal,
                    at_ms: entry.at_ms,
                    queue: format!("{}#{}", change.queue, change.queue_id),
                    change: change.change.clone(),
                    attempt: change.attempt,
                    fence: change.fence,
                    until_ms: change.until_ms,
                    reason: change.reason.clone(),
                    ..Event::default()
                });
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = include_str!("../samples/audit.jsonl");

    fn of(logs: &[&str]) -> Audit {
        let mut audit = Audit::default();
        for log in logs {
            audit.add("n", log.as_bytes()).expect("memory can be read");
        }
        audit
    }

    #[test]
    fn what_nodes_write_is_read_and_equal_logs_are_equal() {
        let audit = of(&[SAMPLE, SAMPLE]);
        assert!(audit.entries().count() > 3 && audit.compared() > 3);
        assert_eq!(audit.differences(), Vec::<String>::new());
        assert!(audit.events().iter().any(|event| event.change == "leased"));
        assert!(
            audit
                .entries()
                .any(|entry| entry.requests.iter().any(|request| request.id.is_some()))
        );
    }

    #[test]
    fn what_was_asked_is_read_by_its_kind() {
        let audit = of(&[SAMPLE]);
        let request = |index, place: usize| &audit.entry(index).expect("it is there").requests[place];
        let declared = request(4, 0);
        let settings = declared.settings.clone().unwrap_or_default();
        assert_eq!(
            (declared.created, settings.max_deliveries, settings.lease_ms),
            (true, 2, 30_000)
        );
        let publish = &request(5, 1).publishes[0];
        assert_eq!(
            (publish.queue.as_deref(), publish.messages[0].priority),
            (Some("jobs"), 3)
        );
        assert_eq!(
            (publish.first, publish.duplicates.len()),
            (Some(MessageId::of("5-2")), 1)
        );
        let consume = request(7, 2);
        assert_eq!(
            (consume.session, consume.consumer, consume.credit),
            (Some(21), Some(1), 1)
        );
        assert_eq!(
            request(9, 0).settlements[0].refused.as_deref(),
            Some("STALE_LEASE")
        );
        assert_eq!(request(11, 0).operated.len(), 2);
        assert_eq!(
            (request(11, 1).publishes.len(), request(11, 1).is_done()),
            (1, false)
        );
        assert!(!request(6, 0).is_done() && request(5, 0).is_done());
        let leased = audit.events();
        assert_eq!(leased.iter().filter(|event| event.change == "leased").count(), 3);
        let holder = &audit.entry(7).expect("it is there").events[0];
        assert_eq!((holder.session, holder.consumer), (Some(21), Some(1)));
    }

    #[test]
    fn another_hash_time_or_event_at_one_index_is_a_difference() {
        let one = r#"{"entry":{"index":5,"term":1,"at_ms":7,"hash":"a","events":[{"message":"5-0","queue":"q","queue_id":1,"change":"due"}]}}"#;
        for (from, to) in [("\"a\"", "\"b\""), (":7,", ":8,"), ("due", "acked")] {
            assert_eq!(of(&[one, &one.replace(from, to)]).differences().len(), 1, "{to}");
        }
        let restored = r#"{"restored":{"index":5,"term":1,"at_ms":7,"hash":"b"}}"#;
        assert_eq!(of(&[restored, one]).differences().len(), 1);
        assert_eq!(
            of(&[&restored.replace("\"b\"", "\"a\""), one])
                .differences()
                .len(),
            0
        );
    }

    #[test]
    fn a_torn_line_is_absent_and_a_hole_is_seen() {
        let entry = |index: u64| format!("{{\"entry\":{{\"index\":{index}}}}}\n");
        let torn = format!("{}{{\"entry\":{{\"ind\n\n{}", entry(1), entry(2));
        assert!(of(&[&torn]).is_whole());
        assert!(!of(&[&entry(1), &entry(3)]).is_whole());
        assert!(!of(&[&entry(9)]).is_whole());
        assert!(!Audit::default().is_whole());
    }
}
