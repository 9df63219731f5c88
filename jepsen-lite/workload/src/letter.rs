//! A message as a workload writes it: what is recorded of it, and what is sent.

use std::time::Duration;

use jepsen_lite_core::body;
use jepsen_lite_core::history::Publish;
use quorate_client::Message;

/// A message that tells who it is by its body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Letter {
    key: u64,
    group: Option<String>,
    priority: u32,
    dedup_id: Option<String>,
    delay: Option<Duration>,
    ttl: Option<Duration>,
    routing_key: Option<String>,
}

impl Letter {
    /// A plain one. The key is unique in the run.
    #[must_use]
    pub fn new(key: u64) -> Self {
        Self {
            key,
            ..Self::default()
        }
    }

    /// Of a group.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Of a priority: 0 to 9.
    #[must_use]
    pub fn priority(mut self, priority: u32) -> Self {
        self.priority = priority;
        self
    }

    /// With a dedup id.
    #[must_use]
    pub fn dedup_id(mut self, id: impl Into<String>) -> Self {
        self.dedup_id = Some(id.into());
        self
    }

    /// Not ready before this has passed; in whole milliseconds.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// With a life; in whole milliseconds.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// With a routing key.
    #[must_use]
    pub fn routing_key(mut self, key: impl Into<String>) -> Self {
        self.routing_key = Some(key.into());
        self
    }

    /// Its key.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.key
    }

    /// As the native API has it.
    #[must_use]
    pub fn message(&self) -> Message {
        let mut message = Message::new(body::of(self.key)).priority(self.priority);
        if let Some(group) = &self.group {
            message = message.group(group);
        }
        if let Some(id) = &self.dedup_id {
            message = message.dedup_id(id);
        }
        if let Some(delay) = self.delay {
            message = message.delay(delay);
        }
        if let Some(ttl) = self.ttl {
            message = message.ttl(ttl);
        }
        if let Some(key) = &self.routing_key {
            message = message.routing_key(key);
        }
        message
    }

    /// What is recorded of its publish before there is an answer.
    #[must_use]
    pub fn record(&self, process: u32, queue: &str) -> Publish {
        Publish {
            process,
            key: self.key,
            queue: queue.to_owned(),
            group: self.group.clone(),
            priority: self.priority,
            dedup_id: self.dedup_id.clone(),
            delay_ms: self.delay.map(millis),
            ttl_ms: self.ttl.map(millis),
            ..Publish::default()
        }
    }
}

/// Whole milliseconds.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
