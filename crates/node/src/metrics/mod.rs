//! What a node tells about itself and its queues.
//!
//! [`METRICS`] is the one table of names, kinds and help; `docs/metrics.md` has
//! the same with more words, and a test holds the two together. Values come from
//! three places: the status of consensus and storage, the state (equal on all
//! nodes at one index, so a counter of a queue survives restarts and failover),
//! and the events of entries as this process applies them (`flow`: histograms,
//! and counters that begin at zero with the process).
//!
//! A scrape copies pages of queues out of the state, one short look each, so
//! that applying entries never waits for all of them. Only the first
//! [`QUEUES_MAX`] queues by name have series of their own;
//! `quorate_queues_without_series` says how many have not. So it is with
//! exchanges.

mod flow;
mod histogram;
mod node;
mod queues;
mod table;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use self::flow::Flow;
pub use self::histogram::Histogram;
pub use self::table::METRICS;
use crate::broker::Broker;

/// Most queues that have series of their own.
pub const QUEUES_MAX: usize = 1_000;

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only grows, except when it begins again at zero.
    Counter,
    /// Counts by size.
    Histogram,
}

/// One line of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// Prometheus name, with unit.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// One line for a person.
    pub help: &'static str,
}

/// A metric with its values.
#[derive(Clone, Debug)]
pub struct Family {
    /// Which.
    pub metric: &'static Metric,
    /// Each with other labels.
    pub samples: Vec<Sample>,
}

/// One value of a metric.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Names and values.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: Value,
}

/// What a sample says.
#[derive(Clone, Debug)]
pub enum Value {
    /// Of a gauge or a counter.
    Number(f64),
    /// Of a histogram.
    Histogram(Histogram),
}

/// Families under construction, in the order of the table.
struct Families(Vec<Family>);

impl Families {
    fn new() -> Self {
        let family = |metric| Family {
            metric,
            samples: Vec::new(),
        };
        Self(METRICS.iter().copied().map(family).collect())
    }

    fn number(&mut self, metric: &'static Metric, labels: &[(&'static str, &str)], value: f64) {
        self.put(metric, labels, Value::Number(value));
    }

    /// Counts and sizes; beyond 2^53 the last digits are lost.
    fn count(&mut self, metric: &'static Metric, labels: &[(&'static str, &str)], value: u64) {
        self.number(metric, labels, value as f64);
    }

    fn histogram(&mut self, metric: &'static Metric, labels: &[(&'static str, &str)], value: Histogram) {
        self.put(metric, labels, Value::Histogram(value));
    }

    fn put(&mut self, metric: &'static Metric, labels: &[(&'static str, &str)], value: Value) {
        let labels = labels
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect();
        let place = self
            .0
            .binary_search_by_key(&metric.name, |family| family.metric.name);
        let family = place.expect("every metric is in the table, which is sorted");
        self.0[family].samples.push(Sample { labels, value });
    }
}

impl Broker {
    /// Values for monitoring, by name; metrics without a value are left out.
    /// Walks through all queues, in pages: not for an async task.
    #[must_use]
    pub fn metrics(&self) -> Vec<Family> {
        let mut families = Families::new();
        node::collect(self, &mut families);
        queues::collect(self, &mut families);
        families.0.retain(|family| !family.samples.is_empty());
        families.0
    }
}

/// Counted on the way of a proposal.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    entries: AtomicU64,
    requests: AtomicU64,
    content_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn entry(&self, requests: usize, content_bytes: usize) {
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(requests as u64, Ordering::Relaxed);
        self.content_bytes
            .fetch_add(content_bytes as u64, Ordering::Relaxed);
    }
}
