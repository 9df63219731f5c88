//! Linearizability by search: is there any order of what was done that explains what clients were told?
//!
//! The other checkers believe the broker's word on order, its fences and log indexes. This one believes none of
//! it. An operation takes effect at one moment between its question and its answer; one of unknown outcome at any
//! moment after its question, or never. The search is that of Wing and Gong (*Testing and Verifying Concurrent
//! Objects*, 1993) with Lowe's memory of what was tried (*Testing for Linearizability*, 2017): a set of operations
//! that are done and the state that they lead to are looked at once.
//!
//! Of the broker's word one thing is believed: cluster time never goes back, which is [decided
//! elsewhere](super::time_goes_forward). Operations that bear it are put into its order, which leaves little to
//! search, and a lease runs out by it and by nothing else.
//!
//! The search is hopeless for a whole queue of any length, and cheap for what is done to one
//! [message](a_message_is_linearizable), and for a queue of few operations.

use std::collections::BTreeSet;
use std::time::Duration;

mod message;
mod queue;

pub use message::a_message_is_linearizable;
pub use queue::a_small_queue_is_linearizable;

/// States that are looked at for one history; beyond that it is undecided.
const EFFORT: usize = 20_000;

/// What came of searches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Searched {
    /// Histories that were decided.
    pub checked: u64,
    /// Histories for which the search was given up: too much of them is of unknown outcome.
    pub undecided: u64,
    /// Those that no order explains.
    pub violations: Vec<super::Violation>,
}

/// An operation of a history.
#[derive(Clone, Debug)]
struct Call<O> {
    /// It takes effect after this,
    invoked: Duration,
    /// and before this; `None` = at any time.
    answered: Option<Duration>,
    /// Cluster time of its effect, if that was told.
    at_ms: Option<u64>,
    /// It took effect; else it may have.
    sure: bool,
    /// What it is.
    op: O,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    /// There is an order that explains it.
    Explained,
    /// There is none.
    Contradiction,
    /// The search was given up.
    Undecided,
}

/// Decides whether an order of the calls is one that a thing can have which begins in `start` and does what `step`
/// says: the state after an operation, and what cluster time must have been by then; `None` if it cannot be in
/// this state.
fn search<O, S: Clone + Ord>(
    calls: &[Call<O>],
    start: S,
    step: impl Fn(&S, &O) -> Option<(S, u64)>,
) -> Decision {
    let mut tried: BTreeSet<(Done, Moment<S>)> = BTreeSet::new();
    let mut done = Done::of(calls.len());
    let mut now = Moment {
        clock_ms: 0,
        state: start,
    };
    // What was done so far, each with the state before it.
    let mut path: Vec<(usize, Moment<S>)> = Vec::new();
    let mut from = 0;
    loop {
        let Some(bounds) = Bounds::of(calls, &done) else {
            return Decision::Explained;
        };
        let next = (from..calls.len()).find_map(|place| {
            if done.has(place) || !bounds.allow(&calls[place]) {
                return None;
            }
            let next = now.after(&calls[place], &step)?;
            tried
                .insert((done.with(place), next.clone()))
                .then_some((place, next))
        });
        if let Some((place, next)) = next {
            if tried.len() > EFFORT.max(2 * calls.len()) {
                return Decision::Undecided;
            }
            path.push((place, std::mem::replace(&mut now, next)));
            done = done.with(place);
            from = 0;
        } else {
            let Some((place, before)) = path.pop() else {
                return Decision::Contradiction;
            };
            done = done.without(place);
            now = before;
            from = place + 1;
        }
    }
}

/// A state, and the cluster time that it was reached at or after.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Moment<S> {
    clock_ms: u64,
    state: S,
}

impl<S> Moment<S> {
    fn after<O>(&self, call: &Call<O>, step: impl Fn(&S, &O) -> Option<(S, u64)>) -> Option<Self> {
        let at_ms = call.at_ms.unwrap_or(self.clock_ms);
        if at_ms < self.clock_ms {
            return None;
        }
        let (state, proven_ms) = step(&self.state, &call.op)?;
        (call.at_ms.is_none() || proven_ms <= at_ms).then(|| Self {
            clock_ms: at_ms.max(proven_ms),
            state,
        })
    }
}

/// What may come next: nothing that was asked for after something left was answered, and nothing of a later
/// cluster time than something left.
struct Bounds {
    answered: Option<Duration>,
    at_ms: Option<u64>,
}

impl Bounds {
    /// `None` = nothing that took effect is left.
    fn of<O>(calls: &[Call<O>], done: &Done) -> Option<Self> {
        let left = || {
            let calls = calls.iter().enumerate();
            calls.filter(|(place, call)| call.sure && !done.has(*place))
        };
        left().next()?;
        Some(Self {
            answered: left().filter_map(|(_, call)| call.answered).min(),
            at_ms: left().filter_map(|(_, call)| call.at_ms).min(),
        })
    }

    fn allow<O>(&self, call: &Call<O>) -> bool {
        let in_time = self.answered.is_none_or(|answered| call.invoked <= answered);
        let in_order = call.at_ms.zip(self.at_ms).is_none_or(|(at, least)| at <= least);
        in_time && in_order
    }
}

/// Which calls are done.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Done(Vec<u64>);

impl Done {
    fn of(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    fn has(&self, place: usize) -> bool {
        self.0[place / 64] & (1 << (place % 64)) != 0
    }

    fn with(&self, place: usize) -> Self {
        let mut with = self.clone();
        with.0[place / 64] |= 1 << (place % 64);
        with
    }

    fn without(&self, place: usize) -> Self {
        let mut without = self.clone();
        without.0[place / 64] &= !(1 << (place % 64));
        without
    }
}

#[cfg(test)]
mod tests;
