//! What participants are told: go on, stand still, nack everything, end.
//!
//! Those who wait are woken in the order in which they began to wait, which keeps a simulated run the same
//! each time. (`tokio::sync::watch` would wake them in an order of chance.)

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// A switch that many look at, and can wait for.
#[derive(Debug, Default)]
pub(crate) struct Switch {
    on: AtomicBool,
    changed: Notify,
}

impl Switch {
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::SeqCst)
    }

    pub(crate) fn set(&self, on: bool) {
        self.on.store(on, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// Resolves when it is on, or off. At once, if it is.
    pub(crate) async fn wait(&self, on: bool) {
        loop {
            let changed = self.changed.notified();
            if self.is_on() == on {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_woken_in_order() {
        let (switch, woken) = (Arc::new(Switch::default()), Arc::new(Mutex::new(Vec::new())));
        let mut waiting = tokio::task::JoinSet::new();
        for number in 0..10 {
            let (switch, woken) = (Arc::clone(&switch), Arc::clone(&woken));
            waiting.spawn(async move {
                switch.wait(true).await;
                woken.lock().expect("no panic").push(number);
            });
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        switch.set(true);
        waiting.join_all().await;
        assert_eq!(*woken.lock().expect("no panic"), (0..10).collect::<Vec<_>>());
        switch.wait(true).await;
    }
}
