//! The workload `fifo`: a queue whose order is watched.
//!
//! Several publishers with windows of unconfirmed messages, and workers who mostly do well: what comes back
//! must not overtake or be overtaken in its first delivery. Messages are tried as often as it takes. Parameters
//! are those of [`Mix`].

use std::collections::BTreeMap;

use anyhow::Result;

use crate::mix::{Habits, Mix};
use crate::native::Native;
use crate::queue::Queue;

/// As the parameters of a schedule want it.
///
/// # Errors
///
/// When one is unknown.
pub fn with_parameters(given: &BTreeMap<String, u64>) -> Result<Queue<Native>> {
    let mix = Mix {
        window: 64,
        prefetch: 4,
        pull_max: 4,
        deliveries_max: 0,
        habits: Habits {
            ack: 88,
            nack: 4,
            release: 4,
            ack_twice: 2,
            forget: 2,
            ..Habits::GOOD
        },
        ..Mix::default()
    };
    Ok(Queue::alone("line", mix.given("fifo", given)?))
}
