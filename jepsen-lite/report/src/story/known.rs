//! A history with what has to be looked up in it.

use std::collections::{BTreeMap, BTreeSet};

use jepsen_lite_core::history::{Delivery, History, MessageId, Outcome, Publish};
use jepsen_lite_core::run::Sight;

use super::clock::Clock;

/// Who sets queues up and takes what is left in them at the end, by its number.
const CARETAKER: u32 = u32::MAX;

/// A history, and who is who in it.
#[derive(Debug)]
pub(super) struct Known<'a> {
    pub(super) history: &'a History,
    pub(super) clock: Clock,
    publishers: BTreeSet<u32>,
    workers: BTreeSet<u32>,
    /// Which message bears a key, also where its publisher was never told.
    by_key: BTreeMap<u64, MessageId>,
    by_token: BTreeMap<&'a str, &'a Delivery>,
    by_fence: BTreeMap<u64, &'a Delivery>,
    /// The number of a node by its id.
    nodes: BTreeMap<u64, usize>,
}

impl<'a> Known<'a> {
    pub(super) fn of(history: &'a History, sights: &[Sight]) -> Self {
        let receivers = history.receives.iter().map(|receive| receive.process);
        let settlers = history.settles.iter().map(|settle| settle.process);
        let mut known = Self {
            history,
            clock: Clock::of(history),
            publishers: history.publishes.iter().map(|publish| publish.process).collect(),
            workers: receivers.chain(settlers).collect(),
            by_key: BTreeMap::new(),
            by_token: BTreeMap::new(),
            by_fence: BTreeMap::new(),
            nodes: sights
                .iter()
                .filter_map(|sight| Some((sight.id?, sight.node)))
                .collect(),
        };
        for delivery in &history.deliveries {
            known.workers.insert(delivery.process);
            if let Some(key) = delivery.key {
                known.by_key.entry(key).or_insert(delivery.message);
            }
            known.by_token.entry(&delivery.token).or_insert(delivery);
            known.by_fence.entry(delivery.fence).or_insert(delivery);
        }
        known
    }

    /// What a process is called.
    pub(super) fn name(&self, process: u32) -> String {
        if process == CARETAKER {
            return "caretaker".to_owned();
        }
        let publishes = self.publishers.contains(&process);
        let kind = match (publishes, self.workers.contains(&process)) {
            (true, false) => "publisher",
            (false, true) => "worker",
            _ => "client",
        };
        format!("{kind} {process}")
    }

    /// The number of a node.
    pub(super) fn node(&self, id: u64) -> Option<usize> {
        self.nodes.get(&id).copied()
    }

    /// The message that a publish became, if anybody knows.
    pub(super) fn message_of(&self, publish: &Publish) -> Option<MessageId> {
        match &publish.outcome {
            Outcome::Done(message) => Some(*message),
            Outcome::Refused(_) => None,
            Outcome::Unknown => self.by_key.get(&publish.key).copied(),
        }
    }

    /// The delivery of the lease that has this token.
    pub(super) fn lease(&self, token: &str) -> Option<&'a Delivery> {
        self.by_token.get(token).copied()
    }

    /// The delivery of the lease that has this number among all.
    pub(super) fn fenced(&self, fence: u64) -> Option<&'a Delivery> {
        self.by_fence.get(&fence).copied()
    }
}
