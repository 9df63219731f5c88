//! A simulated machine: a tokio runtime of its own, whose time and processor are given.
//!
//! Each node lives in its own runtime on paused time, and so do the clients. All of them are run by one thread,
//! one after the other, a millisecond of virtual time each: see [`Machine::run`]. That makes the faults of a
//! process what they are in reality, for every task in it, also for those that libraries spawn:
//!
//! * **killed**: the runtime is dropped, and with it all tasks, timers and connections;
//! * **paused**: the runtime is not run. Its clocks go on, and what it had set timers for happens late;
//! * **slow**: it is run in some of the milliseconds only;
//! * **drifting clocks**: a millisecond of the world is more or less than one of the machine, for its timers,
//!   its `Instant::now` and its wall clock alike.
//!
//! Within a tick a machine runs until nothing is left to do at that moment; then its time goes on to the next.

use std::time::Duration;

use quorate_disk_shim::simulation::{self, MONOTONIC_START, WALL_START};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

/// The length of a tick, in microseconds. It is also the resolution of tokio's timers.
pub const TICK_US: u64 = 1_000;

/// A program on a machine, from its start to its end. Dropping it kills the program.
#[derive(Debug)]
pub struct Machine {
    runtime: Option<Runtime>,
    /// When the program started, on its own clocks: as tokio sees it, and as the clock showed it.
    started: Instant,
    began: Duration,
    /// Milliseconds of its own time since then.
    ran_ms: u64,
    clock: Clock,
}

/// The clocks of a machine; they outlive its programs.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// What its monotonic clock has gone since the world began, in nanoseconds.
    monotonic_ns: u64,
    /// How much faster it goes, in parts in a thousand.
    pub drift_per_mille: i32,
    /// How far its wall clock is from where it would be without jumps, in milliseconds.
    pub wall_offset_ms: i64,
}

impl Clock {
    /// A clock that is right, `offset_ms` later than others.
    #[must_use]
    pub fn new(offset_ms: i64) -> Self {
        Self {
            monotonic_ns: 0,
            drift_per_mille: 0,
            wall_offset_ms: offset_ms,
        }
    }

    /// A tick of the world passes.
    pub fn tick(&mut self) {
        let passed = TICK_US.cast_signed() * i64::from(1000 + self.drift_per_mille.max(-999));
        self.monotonic_ns += passed.cast_unsigned();
    }

    /// What it shows.
    #[must_use]
    pub fn monotonic(&self) -> Duration {
        MONOTONIC_START + Duration::from_nanos(self.monotonic_ns)
    }

    /// What its wall clock shows, since 1970.
    #[must_use]
    pub fn wall(&self) -> Duration {
        let right = WALL_START + Duration::from_nanos(self.monotonic_ns);
        let offset = Duration::from_millis(self.wall_offset_ms.unsigned_abs());
        if self.wall_offset_ms < 0 {
            right.saturating_sub(offset)
        } else {
            right + offset
        }
    }

    fn show(&self) {
        simulation::set_clocks(self.monotonic(), self.wall());
    }
}

impl Machine {
    /// Starts a program that does nothing yet: spawn its tasks on its [`runtime`](Self::runtime).
    ///
    /// # Panics
    ///
    /// If the runtime cannot be built, which takes no resources that could be missing.
    #[must_use]
    pub fn start(clock: Clock) -> Self {
        clock.show();
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without threads and input");
        let started = {
            let _entered = runtime.enter();
            Instant::now()
        };
        Self {
            runtime: Some(runtime),
            started,
            began: clock.monotonic(),
            ran_ms: 0,
            clock,
        }
    }

    /// Its runtime, to spawn tasks on.
    ///
    /// # Panics
    ///
    /// Never: it is there until the machine is dropped.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("there until it is dropped")
    }

    /// Its clocks.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Sets its clocks. The monotonic one must not go back.
    pub fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
    }

    /// Does everything that there is to do at the time of its clocks, and everything that falls due until
    /// `clock`, and leaves the clocks there.
    pub fn run(&mut self, clock: Clock) {
        self.clock.show();
        self.clock = clock;
        let since_start = clock.monotonic().saturating_sub(self.began);
        let target_ms = u64::try_from(since_start.as_millis()).unwrap_or(u64::MAX);
        if target_ms > self.ran_ms {
            self.ran_ms = target_ms;
            let until = self.started + Duration::from_millis(target_ms);
            self.runtime()
                .block_on(async { tokio::time::sleep_until(until).await });
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.clock.show();
        if let Some(runtime) = self.runtime.take() {
            // There is no blocking thread to wait for, and this may be called from another machine's task.
            runtime.shutdown_background();
        }
    }
}
