//! The broker as a pure function.
//!
//! [`Broker::apply`] takes the entries of a replicated log, one after the other,
//! and gives back what each request is [answered](outcome) and what is [to be
//! done](effect) outside. It has no clock, no randomness, no IO and no threads,
//! and walks through ordered maps only: the same entries make the same broker on
//! every node, bit for bit. All that is known of time is what an entry was
//! stamped with; nothing expires but by an entry that says how late it is.
//!
//! # What it promises
//!
//! A published message stays until it is acked, its life is over, it was dropped
//! by a limit that the user set to do so, or a user deletes it, alone, in a purge
//! or with its queue. Each of these is counted, and told of as an
//! [event]. A message whose attempts are used up, or
//! that a holder rejects, moves to the queue's dead-letter queue or to where its
//! dead-letter exchange routes it, or stays in its dead set; it is never dropped
//! for that.
//!
//! A publish goes to a queue, or to all queues to which an exchange routes it,
//! or is refused whole. Each queue then has a message of its own; the content is
//! one.
//!
//! ```text
//!                         delay has passed
//!           ┌──▶ delayed ────────────┐
//!  publish ─┤                        ▼    lease             ack
//!           └─────────────────────▶ ready ──────▶ leased ──────────▶ gone
//!                                    ▲               │
//!                                    ├── at once ────┤ released, or its session ended
//!                                    └── a delay ────┤ nacked, or its time is up:
//!                                                    │ one attempt is used
//!                                                    ▼
//!                                        dead letter: rejected, or that was
//!                                        the last attempt
//!
//!  ready, delayed ── life is over, or dropped by a limit ──▶ dead letter if the
//!                                        queue has a dead-letter target, else gone
//!
//!  dead letter = ready in each queue of the target; if one of them cannot take
//!                it, in the dead set of the queue it is in until all can
//! ```
//!
//! A message whose dedup id is known to its queue, or its exchange, is not taken
//! again. Settlements and publishes can be done as one. Operators look at
//! messages, delete, move and reschedule them, and redrive dead letters; what is
//! leased they leave to its holder.
//!
//! A lease belongs to one holder, for a time, and is named by a
//! [token](ids::Token). Whoever settles with another token than the current one
//! is told so, and changes nothing. A message that comes back takes its old
//! place; first deliveries are in the order of priority and then of publishing.
//! Messages of one group are given out in order and a few at a time, and groups
//! take turns.
//!
//! Who consumes is part of the state: consumers with their credit, and leases
//! that wait. So the entry that makes a delivery possible also makes it, and any
//! node can say who holds what. Leases that were delivered hang on a session,
//! which can move to another node; leases that were pulled end by their time.
//!
//! A request with a [request id](ids::RequestId) is done once, however often it
//! comes, and answered alike each time: with the same outcome, of the same
//! [place in the log](Repeated).
//!
//! # What always holds
//!
//! [`invariants::check`] recounts these; tests do it after every entry.
//!
//! 1. A message is ready, delayed, leased or dead, and in the books of its queue
//!    as exactly that.
//! 2. What entered a queue is in it or left by a way that is counted:
//!    `published = ready + delayed + leased + dead + acked + expired +
//!    dead_lettered + dropped + deleted + moved`.
//! 3. Whatever ends or begins by time stands in the deadlines, once, and nothing
//!    else does.
//! 4. A lease hangs on nothing or on a session that exists. What a consumer has
//!    in flight is the number of leases that it holds of its queue. A grant
//!    never takes it above its credit.
//! 5. No ready message waits while somebody could take it, unless its group is
//!    busy, the queue is paused, or more lives of messages before it are over than
//!    one entry may end.
//! 6. A session that is not orphaned is on the current life of its node.
//! 7. The requests that are remembered as waiting are those that wait. None is
//!    remembered of an entry that is still to come.
//! 8. Every index says what the records say.
//! 9. A queue with a single active consumer has one active, if any of its
//!    consumers is in a session that is attached.
//! 10. Both ends of a binding are there.
//!
//! # How it is kept
//!
//! The state proper is small: the records of messages in pages that snapshots
//! share, the heads of queues, sessions, consumers, clients and waiting leases,
//! and exchanges with their bindings. Everything else is an index over these, rebuilt by
//! [`Broker::restore`]. No command walks through a queue except to purge or
//! delete it, and a queue in which nothing happens costs nothing.
//!
//! # What is left out
//!
//! Contents: a message knows the length of its content and the place of it in
//! the log; storage keeps the bytes, until
//! [`Effect::ContentDropped`](effect::Effect::ContentDropped). Waiting for room,
//! retrying, connections and their protocols, users: all that is the node's.

#![forbid(unsafe_code)]

mod assign;
pub mod batch;
mod broker;
pub mod browse;
pub mod command;
mod contents;
mod dead_letter;
mod deadlines;
mod dedup;
pub mod effect;
pub mod event;
mod exchange;
mod explain;
mod graves;
mod hash;
pub mod ids;
pub mod invariants;
mod lifecycle;
pub mod limits;
mod operate;
pub mod outcome;
mod publish;
mod queue;
mod queues;
mod requests;
mod room;
mod session;
mod settle;
mod single_active;
pub mod snapshot;
mod transact;
mod view;

pub use broker::{Applied, Broker, Meta, Repeated};
pub use snapshot::{RestoreError, Snapshot};
pub use view::{ConsumerView, Demand, ExchangeCounts, QueueCounts, QueueView, SessionView, Totals};
