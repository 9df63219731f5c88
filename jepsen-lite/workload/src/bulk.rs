//! The workload `bulk`: bodies of 100 to 1,200 KiB.
//!
//! They pass the sizes from which storage engines, frames and windows treat a value otherwise. Few messages at
//! a time, and longer leases. Parameters are those of [`Mix`].

use std::collections::BTreeMap;
use std::time::Duration;

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
        publishers: 2,
        window: 4,
        per_second: 8,
        consumers: 2,
        prefetch: 4,
        pullers: 1,
        pull_max: 2,
        lease: Duration::from_secs(5),
        backlog_max: 16,
        habits: Habits {
            dead_letter: 0,
            ..Habits::default()
        },
        ..Mix::default()
    };
    Ok(Queue::alone("bulk", mix.given("bulk", given)?).large())
}
