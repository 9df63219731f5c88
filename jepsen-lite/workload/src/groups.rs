//! The workload `groups`: messages that are done group by group, each group in its order.
//!
//! Twenty groups in turn, and workers who nack, put off, give back and forget, with short leases. A message is
//! tried as often as it takes, because one that is given up lets its group go on. Parameters are those of
//! [`Mix`].

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;

use crate::mix::Mix;
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
        consumers: 4,
        pullers: 4,
        lease: Duration::from_millis(750),
        deliveries_max: 0,
        groups: 20,
        ..Mix::default()
    };
    Ok(Queue::new(mix.given("groups", given)?))
}
