//! Where ids and the jitter of pauses come from.

use std::sync::{Arc, Mutex, PoisonError};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// The operating system's randomness, or a sequence that can be had again. Clones of that share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Random(Option<Arc<Mutex<StdRng>>>);

impl Random {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(Some(Arc::new(Mutex::new(StdRng::seed_from_u64(seed)))))
    }

    /// A number that is not zero.
    pub(crate) fn id(&self) -> u64 {
        match &self.0 {
            None => rand::random_range(1..=u64::MAX),
            Some(seeded) => lock(seeded).random_range(1..=u64::MAX),
        }
    }

    /// Between half and all of one.
    pub(crate) fn jitter(&self) -> f64 {
        match &self.0 {
            None => rand::random_range(0.5..=1.0),
            Some(seeded) => lock(seeded).random_range(0.5..=1.0),
        }
    }
}

fn lock(seeded: &Mutex<StdRng>) -> std::sync::MutexGuard<'_, StdRng> {
    seeded.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_again_and_clones_draw_on() {
        let drawn = |random: Random| [random.id(), random.clone().id(), random.id()];
        assert_eq!(drawn(Random::seeded(7)), drawn(Random::seeded(7)));
        assert_ne!(drawn(Random::seeded(7)), drawn(Random::seeded(8)));
        let [first, second, third] = drawn(Random::seeded(7));
        assert!(first != second && second != third);
    }
}
