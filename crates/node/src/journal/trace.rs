//! "Where is my message?"

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use quorate_core::browse::Filter;
use quorate_core::event::{Change, Event};
use quorate_core::ids::{MessageId, NodeId, QueueName, Timestamp};
use quorate_core::outcome::Rejection;
use quorate_raft::{Coverage, Journal as Chunks};
use tokio::time::Instant;

use super::codec::{Malformed, Reader, Recorded};
use super::{Journal, View};
use crate::broker::{Broker, Browse};
use crate::error::BrokerError;

/// Most events of one answer.
const EVENTS_MAX: usize = 10_000;
/// Most messages that one question is about.
const MESSAGES_MAX: usize = 1_000;
/// Queues that are listed under one lock of the state.
const QUEUES_PAGE: usize = 64;

/// What to look for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceOf {
    /// One message.
    Message(MessageId),
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

/// What is known of messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// By message, then in order.
    pub events: Vec<Traced>,
    /// Entries of the log of which nothing is known, between those that are.
    pub gaps: Vec<RangeInclusive<u64>>,
    /// Where the journal begins; None if it has nothing, or there is none.
    pub begins: Option<(u64, Timestamp)>,
    /// It ends with this entry; 0 if there is no journal.
    pub read_index: u64,
    /// There is more than fits into one answer, or could be found in time.
    pub truncated: bool,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    /// In this entry.
    pub index: u64,
    /// Among the events of that entry, from 0.
    pub ordinal: u32,
    /// Cluster time of the entry.
    pub at: Timestamp,
    /// What.
    pub event: Event,
    /// Of a lease: what the consumer calls itself; empty if it has no name.
    pub consumer_name: String,
}

/// Decides which events belong into an answer.
struct Search {
    messages: BTreeSet<MessageId>,
    /// Messages published with this belong to it, too.
    dedup_id: Option<String>,
    found: Vec<Traced>,
    truncated: bool,
}

impl Broker {
    /// What happened to messages, as far as this node's journal reaches. Any
    /// node answers.
    ///
    /// # Errors
    ///
    /// If other searches take too long, the search itself broke, or a content
    /// that it had to look at cannot be read. A damaged journal is no error, but
    /// a gap.
    pub async fn trace(&self, of: TraceOf) -> Result<Trace, BrokerError> {
        let patience = self.limits().request_timeout;
        let turns = Arc::clone(&self.journal().searches);
        let turn = tokio::time::timeout(patience, turns.acquire_owned())
            .await
            .map_err(|_| BrokerError::Overloaded)?;
        let search = match of {
            TraceOf::Message(id) => Search::of(BTreeSet::from([id]), None),
            TraceOf::DedupId(id) => Search::of(BTreeSet::new(), Some(id)),
            TraceOf::Header { name, value } => {
                let (messages, truncated) = self.messages_with(name, value).await?;
                Search {
                    truncated,
                    ..Search::of(messages, None)
                }
            }
        };
        self.told().await;
        let journal = Arc::clone(self.journal());
        // The turn is over when the search is, even if nobody waits for it any more.
        let on_disk = journal.is_on();
        let search = move || {
            let _turn = turn;
            journal.trace(search)
        };
        if !on_disk {
            return Ok(search());
        }
        tokio::task::spawn_blocking(search)
            .await
            .map_err(|error| BrokerError::Internal(format!("search the journal: {error}")))
    }

    /// The node that answers.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.consensus().node_id()
    }

    /// Whoever asked may have seen the answer of an entry whose events are about
    /// to be told: waits until they are.
    async fn told(&self) {
        const LOOK_EVERY: Duration = Duration::from_millis(1);
        let index = self.consensus().with_state(quorate_core::Broker::index);
        let until = Instant::now() + self.limits().request_timeout;
        while !self.journal().has_reached(index) && Instant::now() < until {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Messages that have a header now, and whether there may be more: all
    /// queues are searched, until the time of a call is up.
    async fn messages_with(
        &self,
        name: String,
        value: String,
    ) -> Result<(BTreeSet<MessageId>, bool), BrokerError> {
        let until = Instant::now() + self.limits().request_timeout;
        let headers = BTreeMap::from([(name, value)]);
        let mut found = BTreeSet::new();
        let mut after: Option<QueueName> = None;
        loop {
            let names = self.consensus().with_state(|state| {
                let queues = state.queues(after.as_ref(), QUEUES_PAGE);
                queues.into_iter().map(|queue| queue.name).collect::<Vec<_>>()
            });
            let Some(last) = names.last() else {
                return Ok((found, false));
            };
            after = Some(last.clone());
            for queue in names {
                let mut from = Some(0);
                while let Some(position) = from {
                    if found.len() >= MESSAGES_MAX || Instant::now() > until {
                        return Ok((found, true));
                    }
                    let browse = Browse {
                        queue: queue.clone(),
                        filter: Filter::default(),
                        headers: headers.clone(),
                        from: position,
                        count_max: MESSAGES_MAX - found.len(),
                        with_content: false,
                        local: true,
                    };
                    let page = match self.browse(&browse).await {
                        Ok((_, page)) => page,
                        // It was deleted meanwhile.
                        Err(BrokerError::Rejected(Rejection::QueueNotFound(_))) => break,
                        Err(error) => return Err(error),
                    };
                    found.extend(page.messages.iter().map(|seen| seen.view.id));
                    from = page.next;
                }
            }
        }
    }
}

impl Journal {
    /// Reads what may hold something of interest. Blocks on the disk; holds one
    /// chunk at a time.
    fn trace(&self, mut search: Search) -> Trace {
        let Some(chunks) = self.chunks.get() else {
            return Trace {
                truncated: search.truncated,
                ..Trace::default()
            };
        };
        let View {
            chunks: sealed, tail, ..
        } = self.view(chunks);
        let sealed = sealed
            .iter()
            .try_for_each(|coverage| self.search(chunks, coverage, &mut search));
        if let (ControlFlow::Continue(()), Some((_, body))) = (sealed, tail) {
            // What this process has just written makes sense.
            let read = Reader::new(&body).and_then(|events| search.take(events));
            debug_assert!(read.is_ok(), "{read:?}");
        }
        let now = self.view(chunks);
        search.found.sort_by_key(|traced| traced.event.message);
        Trace {
            events: search.found,
            gaps: now.gaps(),
            begins: now.begins(),
            read_index: now.next - 1,
            truncated: search.truncated,
        }
    }

    /// Breaks when the answer is full.
    fn search(&self, chunks: &Chunks, coverage: &Coverage, search: &mut Search) -> ControlFlow<()> {
        if !search.concerns(coverage) {
            return ControlFlow::Continue(());
        }
        // One that is gone was pruned, or is now known to be damaged.
        let Some(body) = chunks.read(coverage.first) else {
            return ControlFlow::Continue(());
        };
        match Reader::new(&body).and_then(|events| search.take(events)) {
            Ok(flow) => flow,
            Err(Malformed { .. }) => {
                chunks.discard(coverage.first);
                ControlFlow::Continue(())
            }
        }
    }
}

impl Search {
    fn of(messages: BTreeSet<MessageId>, dedup_id: Option<String>) -> Self {
        Self {
            messages,
            dedup_id,
            found: Vec::new(),
            truncated: false,
        }
    }

    /// Whether a chunk can hold anything of interest.
    fn concerns(&self, coverage: &Coverage) -> bool {
        let (first, last) = (self.messages.first(), self.messages.last());
        self.dedup_id.is_some()
            || first
                .zip(last)
                .is_some_and(|(first, last)| first.index <= coverage.last && coverage.lowest <= last.index)
    }

    /// Takes what belongs to the answer out of one chunk.
    fn take(&mut self, mut events: Reader<'_>) -> Result<ControlFlow<()>, Malformed> {
        while let Some(recorded) = events.next_wanted(|message, change| self.wants(message, change))? {
            if self.found.len() == EVENTS_MAX {
                self.truncated = true;
                return Ok(ControlFlow::Break(()));
            }
            let Recorded {
                index,
                ordinal,
                at,
                event,
                consumer_name,
            } = recorded;
            self.found.push(Traced {
                index,
                ordinal,
                at,
                event,
                consumer_name: consumer_name.to_string(),
            });
        }
        Ok(ControlFlow::Continue(()))
    }

    fn wants(&mut self, message: MessageId, change: &Change) -> bool {
        if self.messages.contains(&message) {
            return true;
        }
        let Change::Published { dedup_id, .. } = change else {
            return false;
        };
        let more = self.dedup_id.as_ref() == Some(dedup_id);
        if more && self.messages.len() == MESSAGES_MAX {
            self.truncated = true;
            return false;
        }
        more && self.messages.insert(message)
    }
}

#[cfg(test)]
impl Journal {
    pub(super) fn trace_of(&self, message: MessageId) -> Trace {
        self.trace(Search::of(BTreeSet::from([message]), None))
    }

    pub(super) fn trace_dedup(&self, dedup_id: &str) -> Trace {
        self.trace(Search::of(BTreeSet::new(), Some(dedup_id.to_owned())))
    }
}
