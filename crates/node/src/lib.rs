//! One node of a cluster: the [`Broker`] handle that every gateway uses.
//!
//! A gateway turns a protocol into calls on [`Broker`]; the broker turns calls
//! into commands, commands into log entries, and what the state machine answers
//! into results and deliveries. In between stand the few things that are
//! neither protocol, nor consensus, nor state:
//!
//! | file | what it is |
//! | --- | --- |
//! | [`broker`] | the handle: one method per intent of a client |
//! | `batcher` | merges the requests of all clients into entries, several in flight |
//! | `clock` | cluster time of a leadership: quorum median, then monotonic |
//! | `dispatch` | performs the effects that are addressed to this node |
//! | [`session`] | connections that hold leases, and their outboxes |
//! | `observers` | who is told what the state machine does |
//! | `ticker` | lets time pass when something is due |
//! | `forward` | requests of a node that does not lead |
//! | `nodes` | tells the state machine which nodes live |
//! | [`content`] | properties and body of a message, as stored |
//! | [`error`] | what can go wrong, and what the caller may conclude |
//! | [`audit`] | what was applied, for checkers; off unless asked for |
//! | [`journal`] | what happened to messages, kept for a while |
//! | [`metrics`] | names, help and values |
//!
//! What it promises:
//! - a result is done, refused or unknown; [`BrokerError::may_have_applied`]
//!   tells the last two apart, and nothing that was handed to consensus is ever
//!   reported as refused unless consensus says so;
//! - requests of one caller are proposed in the order of the calls;
//! - a delivery goes to the session it is addressed to, under the epoch it is
//!   addressed to, and not after its lease has run out;
//! - every queue is bounded: see [`Limits`](config::Limits).
//!
//! What it leaves out: protocols, sockets of clients, the rules of queues.

pub mod audit;
pub mod broker;
pub mod config;
pub mod content;
pub mod error;
pub mod journal;
pub mod metrics;
pub mod session;

mod batcher;
mod clock;
mod dispatch;
mod forward;
mod guess;
mod node;
mod nodes;
mod observers;
mod ticker;

pub use batcher::Order;
pub use broker::Broker;
pub use config::Config;
pub use error::BrokerError;
pub use node::{Failure, Node, StartError};
pub use quorate_raft::panic_is_caught;

/// Where a node's connections and time come from: see [`Config::transport`] and
/// [`Config::clock`].
pub mod environment {
    pub use quorate_raft::Clock;
    #[cfg(feature = "simulation")]
    pub use quorate_raft::simulation::{Disk, DiskStats, DurableLog, Region, Step, Unflushed, run_disk};
    pub use quorate_raft::transport::{Connection, Listener, Tcp, Transport};
}

/// The value types of the state machine, for gateways.
pub mod types {
    pub use quorate_core::browse::{ExchangeView, Filter, LeaseView, MessageView, Obstacle};
    pub use quorate_core::command::{
        Binding, Destination, ExchangeKind, ExchangeSettings, ExchangeSettingsPatch, HeaderMatch, Operation,
        Overflow, PurgeStates, Selector, Settings, SettingsPatch, Settlement, Target, Verdict,
    };
    pub use quorate_core::effect::{DeadLetter, DeadReason, Leased};
    pub use quorate_core::event::{Change, Event, LeasedBy, Returned};
    pub use quorate_core::ids::{
        ClientId, ConsumerId, ExchangeName, MessageId, Millis, NodeId, ParseError, QueueName, RequestId,
        SessionId, Timestamp, Token,
    };
    pub use quorate_core::limits::PRIORITY_MAX;
    pub use quorate_core::outcome::{Duplicate, Exit, MessageState, Rejection, Reply, Settled};
    pub use quorate_core::{QueueCounts, QueueView};
    pub use quorate_raft::{LeaderInfo, MembershipError, Status};
}
