//! The workload `mutex`: one message is a lock, and its fence guards a register.
//!
//! Whoever has the message in hand holds the lock: it reads the register, works, and writes one more than it
//! read. Leases are no mutual exclusion by themselves: a holder may stand still until its lease is over, and go on
//! working while another one holds the lock. So it shows the fence of its lease with each access, and the register,
//! which is outside of the broker, refuses whoever comes with a lower one than it has seen. Then no write is ever
//! lost, if the broker gives each lease a higher fence than all before.
//!
//! Holders give the lock back, nack it, or forget that they have it; some work for longer than their lease.
//! Parameters are `holders`, `lease_ms`, and `timeout_ms`.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::future::BoxFuture;
use jepsen_lite_core::history::{Wish, Write};
use jepsen_lite_core::view::Settings;
use rand::RngExt as _;
use tokio::time::sleep;

use crate::crew::{Post, Side};
use crate::letter::Letter;
use crate::mix::Mix;
use crate::native::Native;
use crate::parameters::Parameters;
use crate::participant::Participant;
use crate::protocol::{Leased as _, Settlement};
use crate::workload::Workload;

/// The queue with the one message.
pub const QUEUE: &str = "mutex";

const HOLDER: &str = "holder";
/// How long one waits for the lock.
const WAIT: Duration = Duration::from_secs(1);
/// Before it is tried again.
const PAUSE: Duration = Duration::from_millis(10);

/// A lock, and the register that it guards.
#[derive(Clone, Debug)]
pub struct Mutex {
    mix: Mix,
    holders: u32,
    register: Arc<std::sync::Mutex<Register>>,
}

/// A store that knows the highest fence it was shown.
#[derive(Debug, Default)]
struct Register {
    fence: u64,
    value: u64,
}

impl Register {
    /// What is in it, if nobody has come with a higher fence.
    fn read(&mut self, fence: u64) -> Option<u64> {
        if fence < self.fence {
            return None;
        }
        self.fence = fence;
        Some(self.value)
    }

    /// Whether it took this.
    fn write(&mut self, fence: u64, value: u64) -> bool {
        let taken = self.read(fence).is_some();
        if taken {
            self.value = value;
        }
        taken
    }
}

impl Mutex {
    /// As the parameters of a schedule want it.
    ///
    /// # Errors
    ///
    /// When one is unknown.
    pub fn with_parameters(given: &BTreeMap<String, u64>) -> Result<Self> {
        let mut parameters = Parameters::new("mutex", given);
        let mix = Mix::default();
        let mix = Mix {
            lease: parameters.time("lease_ms", Duration::from_millis(500)),
            timeout: parameters.time("timeout_ms", mix.timeout),
            ..mix
        };
        let holders = parameters.number("holders", 5);
        parameters.finish()?;
        Ok(Self {
            mix,
            holders,
            register: Arc::default(),
        })
    }

    async fn hold(self, me: Participant) {
        let native: Native = me.connect();
        let (mut rng, mut forgotten) = (me.rng(), Vec::new());
        let lease = self.mix.lease;
        while me.is_running() {
            me.go_on().await;
            let Some(mut held) = me.pull(&native, QUEUE, 1, lease, WAIT).await.pop() else {
                me.rest(PAUSE).await;
                continue;
            };
            let fence = held.lease.delivery().fence;
            let Some(read) = self.access(|register| register.read(fence)) else {
                continue; // it had come too late by the time it was here
            };
            // Now and then, longer than the lease.
            let work = if rng.random_bool(0.15) {
                1.5
            } else {
                rng.random_range(0.0..0.3)
            };
            sleep(lease.mul_f64(work)).await;
            me.go_on().await;
            self.access(|register| {
                let taken = register.write(fence, read + 1);
                // In the order in which the register saw them.
                me.recorder().write(Write {
                    process: me.process(),
                    fence,
                    read,
                    taken,
                    ..Write::default()
                });
            });
            let wish = match rng.random_range(0..20) {
                0 => {
                    forgotten.push(held);
                    continue;
                }
                1 => Wish::Nack,
                _ if me.nacks() => Wish::Nack,
                _ => Wish::Release,
            };
            me.settle(&mut held, Settlement::of(wish)).await;
            me.rest(PAUSE).await;
        }
    }

    fn access<T>(&self, access: impl FnOnce(&mut Register) -> T) -> T {
        access(&mut self.register.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Workload for Mutex {
    fn queues(&self) -> Vec<(String, Settings)> {
        let settings = Settings {
            deliveries_max: Some(0),
            ..Settings::default()
        };
        vec![(QUEUE.to_owned(), settings)]
    }

    fn prepare<'a>(&'a self, caretaker: &'a Participant) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let native: Native = caretaker.connect();
            let lock = [Letter::new(caretaker.key(u32::MAX))];
            let answer = caretaker.publish(&native, QUEUE, &lock).await;
            ensure!(answer.outcome.is_done(), "{:?}", answer.outcome);
            Ok(())
        })
    }

    fn posts(&self) -> Vec<Post> {
        self.mix.posts(HOLDER, Side::Worker, self.holders)
    }

    fn work(&self, me: Participant) -> BoxFuture<'static, ()> {
        Box::pin(self.clone().hold(me))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_takes_no_fence_that_is_lower_than_one_before() {
        let mut register = Register::default();
        assert_eq!(register.read(5), Some(0));
        assert!(register.write(5, 1));
        assert_eq!(register.read(7), Some(1));
        assert!(!register.write(5, 2), "the lock has passed on");
        assert!(register.write(7, 2));
        assert_eq!(register.read(7), Some(2));
    }
}
