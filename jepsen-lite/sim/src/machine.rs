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

use std::pin::{Pin, pin};
use std::task::Poll;
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
    began_ms: u64,
    /// What its clocks have shown last.
    clock: Clock,
}

/// The clocks of a machine; they outlive its programs. They show whole milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// How far its monotonic clock has gone since the world began, in nanoseconds.
    gone_ns: u64,
    /// How much faster it goes, in parts in a thousand.
    pub drift_per_mille: i32,
    /// How far its wall clock is from where it would be without jumps, in milliseconds.
    pub wall_offset_ms: i64,
}

impl Clock {
    /// A clock at the beginning of the world, whose wall clock is so many milliseconds ahead of others.
    #[must_use]
    pub fn new(wall_offset_ms: i64) -> Self {
        Self {
            gone_ns: 0,
            drift_per_mille: 0,
            wall_offset_ms,
        }
    }

    /// A tick of the world passes.
    pub fn tick(&mut self) {
        let passed = TICK_US.cast_signed() * i64::from(1_000 + self.drift_per_mille.max(-999));
        self.gone_ns += passed.cast_unsigned();
    }

    /// Milliseconds of its own that have passed since the world began.
    #[must_use]
    pub fn gone_ms(&self) -> u64 {
        self.gone_ns / 1_000_000
    }

    /// What its wall clock shows, in milliseconds since 1970.
    #[must_use]
    pub fn wall_ms(&self) -> u64 {
        self.wall_at(self.gone_ms())
    }

    fn wall_at(&self, gone_ms: u64) -> u64 {
        let start = u64::try_from(WALL_START.as_millis()).unwrap_or(u64::MAX);
        (start + gone_ms).saturating_add_signed(self.wall_offset_ms)
    }

    /// Has the process's clocks show the time of this machine at `gone_ms`.
    fn show(&self, gone_ms: u64) {
        let wall = Duration::from_millis(self.wall_at(gone_ms));
        simulation::set_clocks(MONOTONIC_START + Duration::from_millis(gone_ms), wall);
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
        clock.show(clock.gone_ms());
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
            began_ms: clock.gone_ms(),
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

    /// Does everything that there is to do, and whatever falls due, until its clocks show `clock`. If it stood
    /// still for longer than a tick, its clocks go on before anything is done, as after a pause.
    pub fn run(&mut self, clock: Clock) {
        self.run_with(clock, pin!(std::future::pending::<()>()));
    }

    /// The same, beside the main task of the program: Some = that is done, with what came of it.
    pub fn run_with<T>(&mut self, clock: Clock, mut main: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let (before_ms, until_ms) = (self.clock.gone_ms(), clock.gone_ms());
        let tick_ms = TICK_US / 1_000;
        let from_ms = before_ms.max(until_ms.saturating_sub(2 * tick_ms));
        clock.show(from_ms);
        self.clock = clock;
        if until_ms <= before_ms {
            return None;
        }
        let until = self.started + Duration::from_millis(until_ms - self.began_ms);
        let missed = Duration::from_millis(from_ms - before_ms);
        self.runtime().block_on(async {
            if !missed.is_zero() {
                tokio::time::advance(missed).await;
            }
            let mut over = pin!(tokio::time::sleep_until(until));
            std::future::poll_fn(|context| match main.as_mut().poll(context) {
                Poll::Ready(done) => Poll::Ready(Some(done)),
                Poll::Pending => over.as_mut().poll(context).map(|()| None),
            })
            .await
        })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.clock.show(self.clock.gone_ms());
        if let Some(runtime) = self.runtime.take() {
            // There is no blocking thread to wait for, and this may be called from another machine's task.
            runtime.shutdown_background();
        }
    }
}
