//! Rust client of a Quorate cluster.
//!
//! A [`Client`] is made from the addresses of some nodes. It finds the one that
//! leads, follows it when leadership moves, and may be cloned freely.
//!
//! ```no_run
//! use quorate_client::Client;
//!
//! # async fn example() -> quorate_client::Result<()> {
//! let client = Client::connect(["127.0.0.1:7400", "127.0.0.1:7410", "127.0.0.1:7420"]).await?;
//! client.declare_queue("jobs").send().await?;
//! client.publish("jobs", "hello").await?;
//!
//! let mut consumer = client.consume("jobs").open().await?;
//! if let Some(delivery) = consumer.next().await {
//!     let delivery = delivery?;
//!     println!("{:?}", delivery.body());
//!     delivery.ack().await?;
//! }
//! consumer.close().await;
//! # Ok(()) }
//! ```
//!
//! # Done, refused, unknown
//!
//! Every call ends in one of three ways.
//!
//! * **Done** (`Ok`): the change is on disk on a majority of the nodes.
//! * **Refused** ([`Error::Refused`], and likewise [`Error::Unreachable`] and
//!   [`Error::Invalid`]): it certainly changed nothing.
//! * **Unknown** ([`Error::Unknown`]): it was sent, and no answer came before
//!   the deadline. It may have been applied.
//!
//! A timeout is never taken for a failure. Before the library reports an
//! unknown outcome it has repeated the request, under the same request id, on
//! whichever node led, until its deadline (30 s unless
//! [chosen otherwise](Builder::timeout)). The broker applies a request id once
//! and answers a repeat with the first answer, so a failover in the middle of a
//! publish costs time and makes no duplicate.
//! [`Error::is_retryable`] and [`Error::may_have_applied`] tell what a caller
//! can do.
//!
//! # Publishing and consuming
//!
//! [`Client::publish`] is one message and its confirm. [`Client::publish_all`]
//! is several as one. A [`Publisher`] keeps up to 1,000 publishes under way over
//! a connection of its own.
//!
//! [`Client::lease`] fetches messages; a [`Consumer`] has them pushed. Either
//! way a [`Delivery`] is a lease: it is settled by its holder, or runs out and
//! the message comes again. A delivery's [token](Delivery::token) is enough to
//! settle it from anywhere ([`Client::ack`] and its siblings), and its
//! [fence](Delivery::fence) lets a store of your own turn away a worker whose
//! lease has passed to another.
//!
//! Wherever a publish goes to, text names a queue; [`Target::exchange`] an
//! exchange, which puts a message into all queues that its [bindings](Binding)
//! lead to, or into none. What a [`Message`] says of its priority, group, schedule
//! and dedup id decides when it is delivered, and whether at all.
//!
//! # Once
//!
//! A [`Transaction`] settles leases and publishes messages as one:
//! [`Delivery::ack_and`] hands a message's result on and acks it, or neither. For
//! work that takes effect in a database of your own, [`idempotent`] does the same.
//!
//! # Looking and operating
//!
//! [`Client::browse`] and [`Client::get_message`] look without touching;
//! [`Client::trace`] tells what happened to a message, also after it left.
//! [`Client::explain_queue`] says why nothing is delivered. Messages are deleted,
//! moved and rescheduled one by one ([`Client::delete_messages`] and its siblings),
//! and dead letters get another chance with [`Client::redrive`], which
//! [`Client::undo_redrive`] takes back.
//!
//! # When a node dies or freezes
//!
//! A connection that breaks is noticed at once; one that goes silent, after
//! about a second, by [attempt timeout](Builder::attempt_timeout) or
//! [keepalive](Builder::keepalive). Then all known nodes are asked at the same
//! time who leads. Publishers send what is not confirmed again, in order;
//! consumers resume their session with its leases.

mod backoff;
mod binding;
mod browse;
mod call;
mod client;
mod cluster;
mod config;
mod connector;
mod consumer;
mod delivery;
mod error;
mod exchange;
mod explain;
mod failure;
mod filter;
pub mod idempotent;
mod lease;
mod links;
mod message;
mod operate;
mod pages;
mod pipeline;
mod publisher;
mod queue;
mod queue_settings;
mod random;
mod redrive;
mod request_id;
mod session;
mod settle;
mod state;
mod steering;
mod target;
mod trace;
mod transaction;

pub use binding::{Binding, Destination, HeaderMatch};
pub use browse::{Browse, DeadInfo, GetMessage, LeaseInfo, MessageInfo, Page, Selector};
pub use client::Client;
pub use cluster::{Cluster, DiskUse, Member, NodeAddress, NodeStatus};
pub use config::Builder;
pub use consumer::{CREDIT_MAX, Consume, Consumer};
pub use delivery::{DeadLetterInfo, Delivery, Settling};
pub use error::{Error, Reason, Refusal, RefusedPart, Result, Sought, TransactionPart};
pub use exchange::{
    DeclareExchange, DeleteExchange, ExchangeInfo, ExchangeKind, ExchangeSettings, UpdateExchange,
};
pub use explain::{Explanation, Obstacle};
pub use filter::MessageFilter;
pub use lease::Lease;
pub use message::{Commit, Duplicate, Message, PUBLISH_BYTES_MAX, PUBLISH_MESSAGES_MAX, Published};
pub use operate::{OPERATE_MAX, OperateResult, Operated, Schedule};
pub use publisher::{Confirm, Publisher, PublisherBuilder};
pub use queue::{
    DeclareQueue, Declared, DeleteQueue, PurgeQueue, QueueCounts, QueueInfo, Removed, UpdateQueue,
};
pub use queue_settings::{Overflow, QueueSettings};
pub use redrive::{Redrive, RedriveBatch, Redriven, Undone};
pub use request_id::RequestId;
pub use settle::{SETTLE_MAX, SettleResults, Settled, Verdict};
pub use state::MessageState;
pub use target::Target;
pub use trace::{JournalGap, Trace, TraceEvent, Traced, TracedNode};
pub use transaction::{Held, Transacted, Transaction};

/// The README's example compiles as it stands there.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
