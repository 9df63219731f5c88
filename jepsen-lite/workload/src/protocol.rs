//! How a workload talks to the broker, whatever the protocol.
//!
//! The [queue workload](crate::queue) knows the broker by this trait alone. [`Native`](crate::native::Native)
//! is the API `quorate.v1`, through the Rust client. **The place for AMQP is beside it**: a gateway's adapter
//! implements [`Protocol`] with a client of that protocol, and the same workload, faults and checkers apply.
//! What a protocol does not tell (a token, a place in the log) it leaves out of its answers; the checks that
//! need it then have nothing to look at and say so.
//!
//! An adapter decides one thing with care: whether an error means that nothing was done
//! ([`Outcome::Refused`]) or that nobody knows ([`Outcome::Unknown`]). A timeout, a broken connection and
//! whatever it does not understand are unknown.

use std::fmt;
use std::time::Duration;

use jepsen_lite_core::history::{Delivery, MessageId, Outcome, Place, RequestId, Wish};

use crate::access::Access;
use crate::letter::Letter;

/// What a request came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    /// What came of it.
    pub outcome: Outcome<T>,
    /// Where in the log, if that is told.
    pub place: Option<Place>,
    /// The name under which it can be repeated, if that is told.
    pub request: Option<RequestId>,
}

/// One message of a publish that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its id; of a duplicate, that of the first.
    pub message: MessageId,
    /// It was not taken because its dedup id was known.
    pub duplicate: bool,
}

/// What to do with a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// What.
    pub wish: Wish,
    /// Of a nack: ready again after this. Of an extend: how long from now.
    pub span: Option<Duration>,
}

/// A way to talk to the broker, on connections of its own.
pub trait Protocol: Clone + fmt::Debug + Send + Sync + 'static {
    /// A message in hand.
    type Lease: Leased;
    /// A stream of publishes.
    type Publisher: Publishing;
    /// A stream of deliveries.
    type Consumer: Consuming<Lease = Self::Lease>;

    /// One on connections of its own, whose calls may take this long.
    fn connect(access: &Access, timeout: Duration) -> Self;

    /// Publishes messages as one; an answer for each, in their order.
    fn publish(&self, queue: &str, letters: &[Letter]) -> impl Future<Output = Answer<Vec<Placed>>> + Send;

    /// Starts a stream of publishes that may have so many without an answer.
    fn publisher(&self, queue: &str, window: usize) -> Self::Publisher;

    /// Opens a stream of deliveries with so many unsettled at a time. `None` = not now.
    fn consume(
        &self,
        queue: &str,
        prefetch: u32,
        lease: Duration,
    ) -> impl Future<Output = Option<Self::Consumer>> + Send;

    /// Fetches messages, and waits for a first one.
    fn pull(
        &self,
        queue: &str,
        max: u32,
        lease: Duration,
        wait: Duration,
    ) -> impl Future<Output = Answer<Vec<Self::Lease>>> + Send;

    /// Settles a lease by its token alone. Done = when the lease now ends, after an extend.
    fn settle(&self, token: &str, settlement: Settlement)
    -> impl Future<Output = Answer<Option<u64>>> + Send;
}

/// A stream of publishes.
pub trait Publishing: Send + Sync + 'static {
    /// Hands over a message, waits while the window is full, and gives what will come of it.
    fn send(
        &self,
        letter: &Letter,
    ) -> impl Future<Output = impl Future<Output = Answer<Placed>> + Send + 'static> + Send;

    /// Waits for all answers, and ends it.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// A stream of deliveries.
pub trait Consuming: Send + 'static {
    /// A message in hand.
    type Lease: Leased;

    /// The next delivery. `None` = the stream is over.
    fn next(&mut self) -> impl Future<Output = Option<Self::Lease>> + Send;

    /// Gives back what it still holds, and ends it.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// A message in hand.
pub trait Leased: Send + 'static {
    /// What is recorded of it, but for who got it and when.
    fn delivery(&self) -> Delivery;

    /// Settles it. Done = when the lease now ends, after an extend.
    fn settle(&mut self, settlement: Settlement) -> impl Future<Output = Answer<Option<u64>>> + Send;
}

impl<T> Answer<T> {
    /// Nobody knows.
    #[must_use]
    pub fn unknown() -> Self {
        Self {
            outcome: Outcome::Unknown,
            place: None,
            request: None,
        }
    }

    /// The same of another value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Answer<U> {
        Answer {
            outcome: self.outcome.map(change),
            place: self.place,
            request: self.request,
        }
    }
}

impl Settlement {
    /// One without a time.
    #[must_use]
    pub fn of(wish: Wish) -> Self {
        Self { wish, span: None }
    }
}
