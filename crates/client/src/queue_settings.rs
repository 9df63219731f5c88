//! What can be set about a queue.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_proto::v1;

use crate::message::millis;

/// Settings of a queue.
///
/// In a declare, an unset field means the default for a new queue and "whatever
/// it is" for an existing one. In an update, an unset field is left as it is.
/// What [`Client::describe_queue`](crate::Client::describe_queue) returns has all of them set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSettings {
    /// Lease of a delivery whose consumer asks for none: 100 ms to 12 h;
    /// default 30 s.
    pub lease: Option<Duration>,
    /// Failed leases before a message is dead-lettered: 1 to 1,000; 0 =
    /// unlimited; default 5.
    pub max_deliveries: Option<u32>,
    /// The queue that receives dead letters. Empty (default) = the queue's own
    /// dead set.
    pub dead_letter_queue: Option<String>,
    /// Most messages ready, delayed or leased; 0 = unlimited (default).
    pub max_length: Option<u64>,
    /// Most bytes of those messages; 0 = unlimited (default).
    pub max_bytes: Option<u64>,
    /// What happens to a publish beyond a limit: default reject.
    pub overflow: Option<Overflow>,
    /// Life of a message that is not leased: up to 10 years; zero = for ever
    /// (default).
    pub message_ttl: Option<Duration>,
    /// Pause before the first retry after a nack without a delay, or after an
    /// expired lease: default zero = at once.
    pub backoff_initial: Option<Duration>,
    /// The pause doubles per attempt up to this: default 60 s.
    pub backoff_max: Option<Duration>,
    /// The exchange that routes dead letters. Empty (default) = none. Not
    /// together with a dead-letter queue.
    pub dead_letter_exchange: Option<String>,
    /// Routing key of dead letters. Empty (default) = the message's own, or else
    /// the name of this queue.
    pub dead_letter_routing_key: Option<String>,
    /// A waiting message rises by one priority for each time this has passed;
    /// zero (default) = priorities are strict.
    pub priority_ageing: Option<Duration>,
    /// Most messages of one group that are leased, or wait for a retry, at one
    /// time: 1 (default, keeps each group in order) to 1,000.
    pub group_concurrency: Option<u32>,
    /// Shares of groups in deliveries, 1 to 1,000; a group that is not named has
    /// 1 (default).
    pub group_weights: Option<BTreeMap<String, u32>>,
    /// One consumer at a time gets messages; default false.
    pub single_active_consumer: Option<bool>,
    /// A dedup id is remembered for this long: default 5 min; zero = not at all.
    pub dedup_window: Option<Duration>,
    /// At most so many dedup ids are remembered, the oldest go: 1 to 1,000,000;
    /// default 100,000.
    pub dedup_max_ids: Option<u32>,
}

/// What happens to a publish beyond a queue's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// It is refused with [`Reason::QueueFull`](crate::Reason::QueueFull).
    Reject,
    /// Ready messages at the head make room, and are dead-lettered if the queue
    /// has a dead-letter queue.
    DropHead,
}

macro_rules! settings_setters {
    ($builder:ident) => {
        impl $builder {
            /// Replaces all settings given so far.
            pub fn settings(mut self, settings: QueueSettings) -> Self {
                self.settings = settings;
                self
            }

            /// Lease of a delivery whose consumer asks for none: 100 ms to 12 h.
            pub fn lease(mut self, lease: Duration) -> Self {
                self.settings.lease = Some(lease);
                self
            }

            /// Failed leases before a message is dead-lettered: 1 to 1,000; 0 =
            /// unlimited.
            pub fn max_deliveries(mut self, count: u32) -> Self {
                self.settings.max_deliveries = Some(count);
                self
            }

            /// The queue that receives dead letters; empty = the queue's own
            /// dead set.
            pub fn dead_letter_queue(mut self, name: impl Into<String>) -> Self {
                self.settings.dead_letter_queue = Some(name.into());
                self
            }

            /// Most messages ready, delayed or leased; 0 = unlimited.
            pub fn max_length(mut self, messages: u64) -> Self {
                self.settings.max_length = Some(messages);
                self
            }

            /// Most bytes of those messages; 0 = unlimited.
            pub fn max_bytes(mut self, bytes: u64) -> Self {
                self.settings.max_bytes = Some(bytes);
                self
            }

            /// What happens to a publish beyond a limit.
            pub fn overflow(mut self, overflow: Overflow) -> Self {
                self.settings.overflow = Some(overflow);
                self
            }

            /// Life of a message that is not leased; zero = for ever.
            pub fn message_ttl(mut self, ttl: Duration) -> Self {
                self.settings.message_ttl = Some(ttl);
                self
            }

            /// Pause before a failed message is ready again: `initial` after
            /// the first failure, doubling up to `max`.
            pub fn backoff(mut self, initial: Duration, max: Duration) -> Self {
                self.settings.backoff_initial = Some(initial);
                self.settings.backoff_max = Some(max);
                self
            }

            /// The exchange that routes dead letters; empty = none. Not together
            /// with a dead-letter queue.
            pub fn dead_letter_exchange(mut self, name: impl Into<String>) -> Self {
                self.settings.dead_letter_exchange = Some(name.into());
                self
            }

            /// Routing key of dead letters; empty = the message's own, or else the
            /// name of this queue.
            pub fn dead_letter_routing_key(mut self, key: impl Into<String>) -> Self {
                self.settings.dead_letter_routing_key = Some(key.into());
                self
            }

            /// A waiting message rises by one priority for each time this has
            /// passed; zero = priorities are strict.
            pub fn priority_ageing(mut self, ageing: Duration) -> Self {
                self.settings.priority_ageing = Some(ageing);
                self
            }

            /// Most messages of one group that are leased, or wait for a retry,
            /// at one time: 1 to 1,000. With 1, each group keeps its order.
            pub fn group_concurrency(mut self, messages: u32) -> Self {
                self.settings.group_concurrency = Some(messages);
                self
            }

            /// Shares of groups in deliveries, 1 to 1,000: replaces all of them.
            pub fn group_weights<I, G>(mut self, weights: I) -> Self
            where
                I: IntoIterator<Item = (G, u32)>,
                G: Into<String>,
            {
                let weights = weights
                    .into_iter()
                    .map(|(group, weight)| (group.into(), weight));
                self.settings.group_weights = Some(weights.collect());
                self
            }

            /// Whether one consumer at a time gets messages.
            pub fn single_active_consumer(mut self, single: bool) -> Self {
                self.settings.single_active_consumer = Some(single);
                self
            }

            /// A dedup id is remembered for this long; zero = not at all.
            pub fn dedup_window(mut self, window: Duration) -> Self {
                self.settings.dedup_window = Some(window);
                self
            }

            /// At most so many dedup ids are remembered: 1 to 1,000,000.
            pub fn dedup_max_ids(mut self, ids: u32) -> Self {
                self.settings.dedup_max_ids = Some(ids);
                self
            }
        }
    };
}
pub(crate) use settings_setters;

impl Overflow {
    /// The policy as the command line spells it: `reject` or `drop-head`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Overflow::Reject => "reject",
            Overflow::DropHead => "drop-head",
        }
    }
}

impl From<QueueSettings> for v1::QueueSettings {
    fn from(settings: QueueSettings) -> Self {
        let overflow = settings.overflow.map(|overflow| match overflow {
            Overflow::Reject => v1::Overflow::Reject.into(),
            Overflow::DropHead => v1::Overflow::DropHead.into(),
        });
        Self {
            lease_ms: settings.lease.map(millis),
            max_deliveries: settings.max_deliveries,
            dead_letter_queue: settings.dead_letter_queue,
            max_length: settings.max_length,
            max_bytes: settings.max_bytes,
            overflow,
            message_ttl_ms: settings.message_ttl.map(millis),
            backoff_initial_ms: settings.backoff_initial.map(millis),
            backoff_max_ms: settings.backoff_max.map(millis),
            dead_letter_exchange: settings.dead_letter_exchange,
            dead_letter_routing_key: settings.dead_letter_routing_key,
            priority_ageing_ms: settings.priority_ageing.map(millis),
            group_concurrency: settings.group_concurrency,
            group_weights: settings.group_weights.map(|weights| v1::GroupWeights { weights }),
            single_active_consumer: settings.single_active_consumer,
            dedup_window_ms: settings.dedup_window.map(millis),
            dedup_max_ids: settings.dedup_max_ids,
        }
    }
}

impl From<v1::QueueSettings> for QueueSettings {
    fn from(wire: v1::QueueSettings) -> Self {
        let overflow = match wire.overflow() {
            v1::Overflow::Reject => Some(Overflow::Reject),
            v1::Overflow::DropHead => Some(Overflow::DropHead),
            v1::Overflow::Unspecified => None,
        };
        Self {
            lease: wire.lease_ms.map(Duration::from_millis),
            max_deliveries: wire.max_deliveries,
            dead_letter_queue: wire.dead_letter_queue,
            max_length: wire.max_length,
            max_bytes: wire.max_bytes,
            overflow,
            message_ttl: wire.message_ttl_ms.map(Duration::from_millis),
            backoff_initial: wire.backoff_initial_ms.map(Duration::from_millis),
            backoff_max: wire.backoff_max_ms.map(Duration::from_millis),
            dead_letter_exchange: wire.dead_letter_exchange,
            dead_letter_routing_key: wire.dead_letter_routing_key,
            priority_ageing: wire.priority_ageing_ms.map(Duration::from_millis),
            group_concurrency: wire.group_concurrency,
            group_weights: wire.group_weights.map(|weights| weights.weights),
            single_active_consumer: wire.single_active_consumer,
            dedup_window: wire.dedup_window_ms.map(Duration::from_millis),
            dedup_max_ids: wire.dedup_max_ids,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_the_wire() {
        let settings = QueueSettings {
            lease: Some(Duration::from_secs(30)),
            max_deliveries: Some(0),
            dead_letter_queue: Some("failed".to_owned()),
            max_length: None,
            max_bytes: Some(1 << 30),
            overflow: Some(Overflow::DropHead),
            message_ttl: Some(Duration::ZERO),
            backoff_initial: None,
            backoff_max: Some(Duration::from_secs(60)),
            dead_letter_exchange: Some("failures".to_owned()),
            dead_letter_routing_key: Some(String::new()),
            priority_ageing: Some(Duration::from_secs(10)),
            group_concurrency: Some(3),
            group_weights: Some(BTreeMap::from([("gold".to_owned(), 5)])),
            single_active_consumer: Some(false),
            dedup_window: Some(Duration::from_secs(300)),
            dedup_max_ids: Some(1_000),
        };
        assert_eq!(
            QueueSettings::from(v1::QueueSettings::from(settings.clone())),
            settings
        );
        assert_eq!(
            v1::QueueSettings::from(QueueSettings::default()),
            v1::QueueSettings::default()
        );
    }
}
