//! Deliberate faults of the broker, which jepsen-lite must find.
//!
//! A suite that finds nothing may be blind. So the places where a broker could well
//! be wrong hold a branch in which it is: an fsync is left out, a vote is answered
//! too early, a snapshot forgets something. Such a fault is a *mutant*.
//!
//! ```
//! # use quorate_mutants::mutant;
//! # let (failures, max) = (4, 5);
//! let used_up = if mutant!("max-attempts-off-by-one") { failures > max } else { failures >= max };
//! ```
//!
//! Without the feature `mutants`, which is off wherever a broker is built to be
//! used, [`mutant!`] is the constant `false`, the branch is not compiled into
//! anything, and this crate reads and does nothing: that is why also the core may
//! see it. With the feature, one fault is chosen for a whole process by the
//! environment variable `QUORATE_MUTANT`, read once.
//!
//! What each mutant does, which invariant must find it, and on which layer, is in the
//! table of `jepsen-lite/mutants` (`jepsen-lite mutants --list`); a test
//! there holds the table against the sources.

/// Whether that mutant was chosen for this process; `false`, as a constant, unless
/// mutants are compiled in.
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        $crate::is_chosen($name)
    };
}

pub use switch::{elsewhere_ms, is_chosen, shuffle};

#[cfg(not(feature = "mutants"))]
mod switch {
    /// Never: see [`mutant!`](crate::mutant).
    #[must_use]
    #[inline(always)]
    pub const fn is_chosen(_name: &str) -> bool {
        false
    }

    /// Zero.
    #[must_use]
    #[inline(always)]
    pub const fn elsewhere_ms() -> u64 {
        0
    }

    /// Leaves it as it is.
    #[inline(always)]
    pub const fn shuffle<T>(_items: &mut [T]) {}
}

#[cfg(feature = "mutants")]
mod switch {
    use std::env;
    use std::hash::{BuildHasher as _, RandomState};
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Whether it is the one of `QUORATE_MUTANT`: see [`mutant!`](crate::mutant).
    #[must_use]
    pub fn is_chosen(name: &str) -> bool {
        static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
        let chosen = CHOSEN.get_or_init(|| env::var("QUORATE_MUTANT").ok());
        chosen.as_deref() == Some(name)
    }

    /// By how many milliseconds a local clock is ahead of what the log says: up to two
    /// seconds, another at each call. A sequence of its own rather than a clock, so
    /// that a simulation stays the same from run to run.
    #[must_use]
    pub fn elsewhere_ms() -> u64 {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        call.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53
    }

    /// Into the order of a map whose hasher has another seed in each process, and in
    /// each map.
    pub fn shuffle<T>(items: &mut [T]) {
        let hasher = RandomState::new();
        for end in (1..items.len()).rev() {
            let other = hasher.hash_one(end) % (end as u64 + 1);
            items.swap(end, usize::try_from(other).expect("it is below a length"));
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_mutant_is_there_unless_it_is_asked_for() {
        assert!(!mutant!("skip-fsync"));
    }
}
