//! Every bound of the core, in one place.
//!
//! All nodes must share these values: a change of any is a change of the
//! state machine, and belongs into a new version of it.

use crate::ids::Millis;

/// Shortest lease.
pub const LEASE_MIN: Millis = Millis(100);
/// Longest lease: 12 hours.
pub const LEASE_MAX: Millis = Millis(12 * 60 * 60 * 1_000);
/// Longest delay, life or backoff: ten years.
pub const SPAN_MAX: Millis = Millis(3_653 * 24 * 60 * 60 * 1_000);
/// Longest wait of a lease that finds nothing.
pub const WAIT_MAX: Millis = Millis(60_000);

/// Most failed leases that a queue's settings can ask for.
pub const DELIVERIES_MAX: u32 = 1_000;
/// Highest priority of a message.
pub const PRIORITY_MAX: u8 = 9;
/// Most messages of one group that are leased at one time.
pub const GROUP_CONCURRENCY_MAX: u32 = 1_000;
/// Highest weight of a group.
pub const GROUP_WEIGHT_MAX: u32 = 1_000;
/// Most groups of a queue that have a weight of their own.
pub const GROUP_WEIGHTS_MAX: usize = 1_000;
/// Most bytes of the name of a group, or of a dedup id.
pub const LABEL_BYTES_MAX: usize = 255;
/// Most messages in one publish.
pub const PUBLISH_MESSAGES_MAX: usize = 4_096;
/// Most bytes of one content: a body of 16 MiB, headers of 64 KiB, and 4 KiB
/// for how the two are framed.
pub const CONTENT_BYTES_MAX: u32 = 16 * 1024 * 1024 + 64 * 1024 + 4 * 1024;
/// Most dedup ids that a queue or an exchange can be told to remember.
pub const DEDUP_COUNT_MAX: u32 = 1_000_000;
/// Dedup ids of which none is known any more are forgotten when cluster time is a
/// multiple of this.
pub const DEDUP_SWEEP: Millis = Millis(10_000);
/// How many of them are forgotten as one thing that falls due, so that an entry
/// forgets at most [`DUE_PER_ENTRY_MAX`] times as many.
pub const DEDUP_FORGOTTEN_AT_ONCE: usize = 4;
/// Most messages in one lease command.
pub const LEASE_COUNT_MAX: u32 = 1_000;
/// Most messages that one command operates on.
pub const OPERATE_MESSAGES_MAX: usize = 4_096;
/// Most settlements in one command.
pub const SETTLEMENTS_MAX: usize = 4_096;
/// Most bytes of the reason of a nack or a dead-lettering.
pub const REASON_BYTES_MAX: usize = 1_024;
/// Highest credit of a consumer.
pub const CREDIT_MAX: u32 = 65_535;
/// Most bytes of a consumer's name.
pub const CONSUMER_NAME_BYTES_MAX: usize = 255;

/// Most queues.
pub const QUEUES_MAX: usize = 100_000;
/// Most exchanges.
pub const EXCHANGES_MAX: usize = 10_000;
/// Most bindings of all exchanges together.
pub const BINDINGS_MAX: usize = 100_000;
/// Most messages that one publish may bring into queues: each counts once for
/// each queue that gets it.
pub const ROUTES_PER_PUBLISH_MAX: usize = 65_536;
/// Most bytes of a routing key or a topic pattern.
pub const ROUTING_KEY_BYTES_MAX: usize = 255;
/// Most headers that a binding may ask for.
pub const BINDING_HEADERS_MAX: usize = 64;
/// Most bytes of the headers of one message or one binding, names and values
/// together: 64 KiB.
pub const HEADER_BYTES_MAX: usize = 64 * 1024;
/// Most sessions.
pub const SESSIONS_MAX: usize = 100_000;
/// Most consumers in one session.
pub const CONSUMERS_PER_SESSION_MAX: usize = 4_096;
/// Most consumers on one queue.
pub const CONSUMERS_PER_QUEUE_MAX: usize = 10_000;
/// Most lease commands that wait at one time.
pub const WAITERS_MAX: usize = 100_000;
/// Most nodes that were ever seen.
pub const NODES_MAX: usize = 10_000;

/// Most clients whose outcomes are remembered. One more evicts the client that
/// was silent for the longest time.
pub const CLIENTS_MAX: usize = 100_000;
/// Most outcomes remembered for one client.
pub const OUTCOMES_PER_CLIENT_MAX: usize = 4_096;
/// A client that is silent for this long is forgotten, at the next
/// [`CLIENT_SWEEP`]: 10 minutes.
pub const CLIENT_TTL: Millis = Millis(10 * 60 * 1_000);

/// Silent clients are forgotten when cluster time is a multiple of this.
pub const CLIENT_SWEEP: Millis = Millis(10_000);

/// A session whose node was restarted ends after this, unless it is attached
/// again.
pub const SESSION_GRACE: Millis = Millis(10_000);
/// Most things that fall due are done in one entry. The others stay due, so
/// that [`next_deadline`](crate::Broker::next_deadline) asks for one more. As many
/// lives that are over end where a lease comes across them.
pub const DUE_PER_ENTRY_MAX: usize = 4_096;
/// A queue whose limits were lowered drops at most so many messages more than
/// enter it at a time, until it is within them.
pub const EXCESS_DROPPED_MAX: u64 = 16_384;
/// Most contents of purged messages and deleted queues that are dropped in one
/// entry. As long as there are more,
/// [`next_deadline`](crate::Broker::next_deadline) asks for one more.
pub const BURIED_PER_ENTRY_MAX: usize = 16_384;
/// Most queues that may be making room for one another in one command. The
/// message displaced from the last of them stays there, in its dead set.
pub const DISPLACEMENTS_MAX: usize = 16;
/// Most queues that a message can leave as a dead letter. After that it stays in
/// the dead set of the one it is in.
pub const DEATHS_MAX: usize = 64;
/// Dead letters that wait for their target are tried again after this: 1 second.
pub const BACKLOG_RETRY: Millis = Millis(1_000);
/// Most letters of one queue's backlog that are passed over in one round, because
/// they wait alone. The next round goes on behind them.
pub const PASSED_OVER_MAX: u32 = 64;
/// When dead-letter exchanges have copied so many letters to several queues in one
/// entry, the others wait as backlog.
pub const COPIES_PER_ENTRY: usize = 65_536;
/// Most requests in one entry.
pub const REQUESTS_PER_ENTRY_MAX: usize = 1 << 16;
