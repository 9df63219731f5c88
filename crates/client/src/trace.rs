//! What happened to a message, put together from the journals of all nodes.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use quorate_proto::v1;
use quorate_proto::v1::trace_request::Message as WireTraced;

use crate::client::Client;
use crate::error::{Error, Result, Sought};
use crate::message::{given, nonzero};

/// Which messages to trace. Text is a message id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Traced {
    /// The message of this id.
    MessageId(String),
    /// Every message that was published with this dedup id.
    DedupId(String),
    /// Every message that is in a queue now and has this header.
    Header {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
    },
}

/// What the journals tell.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// By message, and of each message in the order in which it happened.
    pub events: Vec<TraceEvent>,
    /// Log indexes of which no node that answered has the journal, from the
    /// first that one of them reaches to the last.
    pub gaps: Vec<JournalGap>,
    /// There is more than the nodes say at once, or could find in time.
    pub truncated: bool,
    /// The nodes that answered.
    pub nodes: Vec<TracedNode>,
    /// The nodes that did not, or not to all they were asked, by their address.
    pub failed: Vec<(String, Error)>,
}

/// How far the journal of a node reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracedNode {
    /// Where it was asked.
    pub address: String,
    /// The node.
    pub node_id: u64,
    /// First log index of its journal; 0 if it has none.
    pub begins_at_index: u64,
    /// Cluster time of that entry, milliseconds since the Unix epoch.
    pub begins_at_ms: u64,
    /// The answer contains everything up to this log index.
    pub read_index: u64,
}

/// Log indexes that are missing, both ends included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalGap {
    /// The first.
    pub from: u64,
    /// The last.
    pub to: u64,
}

/// Something happened to a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceEvent {
    /// The message.
    pub message_id: String,
    /// The log entry.
    pub log_index: u64,
    /// Its place among the events of that entry.
    pub ordinal: u32,
    /// Cluster time of the entry, milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The queue.
    pub queue: String,
    /// `published`, `arrived`, `duplicate`, `due`, `leased`, `extended`,
    /// `nacked`, `lease-expired`, `released`, `session-ended`, `rescheduled`,
    /// `died`, `redriven`, `redrive-undone`, `acked`, `expired`,
    /// `dead-lettered`, `dropped`, `deleted` or `moved`.
    pub change: String,
    /// Of a lease: number of the attempt, from 1.
    pub attempt: Option<u32>,
    /// Of a lease: see [`Delivery::fence`](crate::Delivery::fence).
    pub fence: Option<u64>,
    /// Of a lease by a consumer: its session.
    pub session: Option<u64>,
    /// Of a lease by a consumer: its number in the session.
    pub consumer: Option<u32>,
    /// Of a lease by a consumer: the name it gave itself.
    pub consumer_name: Option<String>,
    /// Of a lease by a consumer: the node it is connected to.
    pub node_id: Option<u64>,
    /// Of a lease that was pulled: who did.
    pub client: Option<u64>,
    /// Of a first lease in a queue: milliseconds since the publish; of an ack:
    /// since the lease.
    pub took_ms: Option<u64>,
    /// Why it died or left, if there is a reason.
    pub reason: Option<String>,
    /// What the holder said.
    pub error: Option<String>,
    /// Where the message went, or came from.
    pub queues: Vec<String>,
    /// The time that the change names, such as the end of a lease or of a delay:
    /// cluster time, milliseconds since the Unix epoch.
    pub until_ms: Option<u64>,
    /// The exchange it was published to.
    pub exchange: Option<String>,
    /// The dedup id it was published with.
    pub dedup_id: Option<String>,
}

/// A node that answered, with what it knows.
struct Told {
    address: String,
    answer: v1::TraceResponse,
}

impl Client {
    /// Tells what happened to a message, also after it left, as far as journals
    /// reach. Every known node is asked for its own, and what one does not have
    /// another may.
    ///
    /// ```no_run
    /// # async fn example(client: quorate_client::Client) -> quorate_client::Result<()> {
    /// for event in client.trace("17-0").await?.events {
    ///     println!("{} {} {}", event.at_ms, event.queue, event.change);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The first error of a node, if none answered: refused with
    /// `INVALID_ARGUMENT`; unreachable.
    pub async fn trace(&self, traced: impl Into<Traced>) -> Result<Trace> {
        let traced = traced.into();
        let (addresses, mut failed) = self.nodes_apart().await;
        let asking = addresses.into_iter().map(|address| {
            let request = traced.request();
            async move {
                let answer = self.trace_at(&address, request).await;
                (address, answer)
            }
        });
        let mut told = Vec::new();
        for (address, answer) in join_all(asking).await {
            match answer {
                Ok(answer) => told.push(Told { address, answer }),
                Err(error) => failed.push((address, error)),
            }
        }
        if told.is_empty() {
            let error = failed.into_iter().map(|(_, error)| error).next();
            return Err(error.unwrap_or_else(|| Error::Unreachable {
                who: Sought::Any,
                cause: "no node is known".to_owned(),
                request_id: None,
            }));
        }
        if !matches!(traced, Traced::MessageId(_)) {
            self.ask_by_id(&mut told, &mut failed).await;
        }
        Ok(merge(told, failed))
    }

    /// The address of every node that answers, once each, and what came of the
    /// others.
    async fn nodes_apart(&self) -> (Vec<String>, Vec<(String, Error)>) {
        let (mut addresses, mut failed) = (Vec::new(), Vec::new());
        let mut nodes = BTreeSet::new();
        for (address, status) in self.cluster().status_all().await {
            match status {
                Ok(status) if nodes.insert(status.node_id) => addresses.push(address),
                Ok(_) => {}
                Err(error) => failed.push((address, error)),
            }
        }
        (addresses, failed)
    }

    /// A node whose journal begins later than a message does not find it by
    /// anything but its id: asks for those that only others found.
    async fn ask_by_id(&self, told: &mut [Told], failed: &mut Vec<(String, Error)>) {
        let found: BTreeSet<String> = told.iter().flat_map(Told::messages).collect();
        let asking = told.iter_mut().map(|told| {
            let found = &found;
            async move {
                let known: BTreeSet<String> = told.messages().collect();
                for id in found.difference(&known) {
                    let request = Traced::MessageId(id.clone()).request();
                    let answer = self.trace_at(&told.address, request).await;
                    let answer = answer.map_err(|error| (told.address.clone(), error))?;
                    told.answer.events.extend(answer.events);
                    told.answer.truncated |= answer.truncated;
                }
                Ok(())
            }
        });
        let results: Vec<Result<(), (String, Error)>> = join_all(asking).await;
        failed.extend(results.into_iter().filter_map(Result::err));
    }

    async fn trace_at(&self, address: &str, request: v1::TraceRequest) -> Result<v1::TraceResponse> {
        self.caller.call_node(address, request, self.timeout()).await
    }
}

impl Told {
    fn messages(&self) -> impl Iterator<Item = String> {
        self.answer.events.iter().map(|event| event.message_id.clone())
    }

    /// Spans of log indexes that its journal has, in order, ends included.
    fn has(&self) -> Vec<(u64, u64)> {
        if self.answer.begins_at_index == 0 {
            return Vec::new();
        }
        let mut gaps: Vec<_> = self.answer.gaps.iter().map(|gap| (gap.from, gap.to)).collect();
        gaps.sort_unstable();
        let mut has = Vec::new();
        let mut next = self.answer.begins_at_index;
        for (from, to) in gaps {
            if from > next {
                has.push((next, from - 1));
            }
            next = next.max(to.saturating_add(1));
        }
        if next <= self.answer.read_index {
            has.push((next, self.answer.read_index));
        }
        has
    }
}

fn merge(told: Vec<Told>, failed: Vec<(String, Error)>) -> Trace {
    let gaps = gaps(told.iter().flat_map(Told::has).collect());
    let mut events = BTreeMap::new();
    let mut nodes = Vec::new();
    let mut truncated = false;
    for Told { address, answer } in told {
        truncated |= answer.truncated;
        nodes.push(TracedNode {
            address,
            node_id: answer.node_id,
            begins_at_index: answer.begins_at_index,
            begins_at_ms: answer.begins_at_ms,
            read_index: answer.read_index,
        });
        for event in answer.events.into_iter().map(TraceEvent::from) {
            let key = (event.message_id.clone(), event.log_index, event.ordinal);
            events.entry(key).or_insert(event);
        }
    }
    Trace {
        events: events.into_values().collect(),
        gaps,
        truncated,
        nodes,
        failed,
    }
}

/// What lies between spans of log indexes.
fn gaps(mut spans: Vec<(u64, u64)>) -> Vec<JournalGap> {
    spans.sort_unstable();
    let mut gaps = Vec::new();
    let mut reached: Option<u64> = None;
    for (from, to) in spans {
        if let Some(reached) = reached
            && from > reached + 1
        {
            gaps.push(JournalGap {
                from: reached + 1,
                to: from - 1,
            });
        }
        reached = reached.max(Some(to));
    }
    gaps
}

impl Traced {
    /// By the id of the message.
    pub fn message_id(id: impl Into<String>) -> Self {
        Self::MessageId(id.into())
    }

    /// By the dedup id it was published with.
    pub fn dedup_id(id: impl Into<String>) -> Self {
        Self::DedupId(id.into())
    }

    /// By a header, as long as it is in a queue.
    pub fn header(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self::Header {
            name: name.into(),
            value: value.into(),
        }
    }

    fn request(&self) -> v1::TraceRequest {
        let message = match self.clone() {
            Self::MessageId(id) => WireTraced::MessageId(id),
            Self::DedupId(id) => WireTraced::DedupId(id),
            Self::Header { name, value } => WireTraced::Header(v1::Header { name, value }),
        };
        v1::TraceRequest {
            message: Some(message),
        }
    }
}

impl From<String> for Traced {
    fn from(message_id: String) -> Self {
        Self::MessageId(message_id)
    }
}

impl From<&str> for Traced {
    fn from(message_id: &str) -> Self {
        Self::message_id(message_id)
    }
}

impl From<&String> for Traced {
    fn from(message_id: &String) -> Self {
        Self::message_id(message_id)
    }
}

impl From<v1::TraceEvent> for TraceEvent {
    fn from(wire: v1::TraceEvent) -> Self {
        let pushed = wire.session != 0;
        Self {
            message_id: wire.message_id,
            log_index: wire.log_index,
            ordinal: wire.ordinal,
            at_ms: wire.at_ms,
            queue: wire.queue,
            change: wire.change,
            attempt: nonzero(wire.attempt),
            fence: nonzero(wire.fence),
            session: nonzero(wire.session),
            consumer: pushed.then_some(wire.consumer),
            consumer_name: given(wire.consumer_name),
            node_id: nonzero(wire.node_id),
            client: nonzero(wire.client),
            took_ms: wire.took_ms,
            reason: given(wire.reason),
            error: given(wire.error),
            queues: wire.queues,
            until_ms: nonzero(wire.until_ms),
            exchange: given(wire.exchange),
            dedup_id: given(wire.dedup_id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(begins: u64, read: u64, gaps: &[(u64, u64)]) -> Told {
        let gaps = gaps.iter().map(|&(from, to)| v1::JournalGap { from, to });
        Told {
            address: String::new(),
            answer: v1::TraceResponse {
                begins_at_index: begins,
                read_index: read,
                gaps: gaps.collect(),
                ..Default::default()
            },
        }
    }

    fn merged_gaps(told: Vec<Told>) -> Vec<(u64, u64)> {
        let trace = merge(told, Vec::new());
        trace.gaps.iter().map(|gap| (gap.from, gap.to)).collect()
    }

    #[test]
    fn a_gap_that_another_node_fills_is_none() {
        assert_eq!(merged_gaps(vec![told(10, 90, &[(20, 40)])]), [(20, 40)]);
        let both = || vec![told(10, 90, &[(20, 40), (60, 70)]), told(30, 80, &[(65, 80)])];
        assert_eq!(merged_gaps(both()), [(20, 29), (65, 70)]);
        let mut without = both();
        without.push(told(0, 0, &[]));
        assert_eq!(
            merged_gaps(without),
            [(20, 29), (65, 70)],
            "a node without a journal has no part in it"
        );
        let mut three = both();
        three.push(told(15, 100, &[]));
        assert_eq!(merged_gaps(three), []);
    }

    #[test]
    fn a_journal_that_is_all_gap_has_nothing() {
        assert_eq!(told(10, 20, &[(5, 30)]).has(), []);
        assert_eq!(told(10, 20, &[(10, 12), (20, u64::MAX)]).has(), [(13, 19)]);
    }
}
