//! Who takes part in a workload of publishers and workers, and how they behave.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use jepsen_lite_core::history::Wish;
use rand::RngExt as _;
use rand::rngs::StdRng;

use crate::crew::{Post, Side};
use crate::parameters::Parameters;

/// Who takes part, and how hard they work. As parameters of a schedule the fields have these names, times with
/// `_ms`.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Publishers; every second one uses streams, the others single calls.
    pub publishers: u32,
    /// Unconfirmed messages of a streaming publisher.
    pub window: usize,
    /// Messages that all publishers together offer in a second; 0 = as many as they can.
    pub per_second: u64,
    /// Push consumers.
    pub consumers: u32,
    /// Unsettled deliveries of each.
    pub prefetch: u32,
    /// Pull workers.
    pub pullers: u32,
    /// Messages in one pull.
    pub pull_max: u32,
    /// Leases of all workers: short, so that those of forgotten deliveries end.
    pub lease: Duration,
    /// Most attempts in each queue; 0 = as many as it takes.
    pub deliveries_max: u32,
    /// The messages of each publisher go to so many groups in turn; 0 = they have
    /// no group.
    pub groups: u64,
    /// The messages of each publisher have so many priorities in turn, up to 10; 1 or 0 = all the same.
    pub priorities: u32,
    /// Publishers pause while this many messages are confirmed and not acked.
    pub backlog_max: u64,
    /// A call may take this long before its outcome is unknown.
    pub timeout: Duration,
    /// And this long with the last participant of each kind, who gives up while
    /// the others still wait for a new leader.
    pub timeout_impatient: Duration,
    /// An attempt may take this long before the request is sent again; 0 = as long as the client library waits.
    pub attempt: Duration,
    /// What workers do with what they get. No parameters of a schedule.
    pub habits: Habits,
}

/// How often workers do what with a delivery, in parts of the sum of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // those of `Act`
pub struct Habits {
    pub ack: u32,
    pub work_then_ack: u32,
    pub nack: u32,
    pub put_off: u32,
    pub release: u32,
    pub dead_letter: u32,
    pub extend_then_ack: u32,
    pub ack_twice: u32,
    pub ack_late: u32,
    pub forget: u32,
}

/// What a worker does with a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Settle(Wish),
    /// Nacked with a delay.
    PutOff,
    /// Acked when half of its lease is over.
    WorkThenAck,
    ExtendThenAck,
    AckTwice,
    AckLate,
    /// Kept until the end, and never settled. Not dropped: a consumer takes that
    /// for a sign that its lease may be given to it again.
    Forget,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            publishers: 4,
            window: 16,
            per_second: 0,
            consumers: 3,
            prefetch: 16,
            pullers: 2,
            pull_max: 8,
            lease: Duration::from_secs(2),
            deliveries_max: 5,
            groups: 0,
            priorities: 1,
            backlog_max: 400,
            timeout: Duration::from_secs(20),
            timeout_impatient: Duration::from_millis(500),
            attempt: Duration::ZERO,
            habits: Habits::default(),
        }
    }
}

impl Default for Habits {
    /// Mostly well, and a little of everything that goes wrong with users.
    fn default() -> Self {
        Self {
            ack: 74,
            work_then_ack: 2,
            nack: 4,
            put_off: 2,
            release: 5,
            dead_letter: 2,
            extend_then_ack: 3,
            ack_twice: 3,
            ack_late: 2,
            forget: 3,
        }
    }
}

impl Mix {
    /// Messages that a run offers in a second unless its schedule says otherwise: what a simulator can carry
    /// out faster than it would really take.
    pub(crate) const PER_SECOND: u64 = 100;

    /// These, changed by the parameters of a schedule.
    pub(crate) fn with(self, parameters: &mut Parameters<'_>) -> Self {
        Self {
            publishers: parameters.number("publishers", self.publishers),
            window: parameters.number("window", self.window).max(1),
            per_second: parameters.number(
                "per_second",
                if self.per_second > 0 {
                    self.per_second
                } else {
                    Self::PER_SECOND
                },
            ),
            consumers: parameters.number("consumers", self.consumers),
            prefetch: parameters.number("prefetch", self.prefetch).max(1),
            pullers: parameters.number("pullers", self.pullers),
            pull_max: parameters.number("pull_max", self.pull_max).max(1),
            lease: parameters.time("lease_ms", self.lease),
            deliveries_max: parameters.number("deliveries_max", self.deliveries_max),
            groups: parameters.number("groups", self.groups),
            priorities: parameters.number("priorities", self.priorities),
            backlog_max: parameters.number("backlog_max", self.backlog_max).max(1),
            timeout: parameters.time("timeout_ms", self.timeout),
            timeout_impatient: parameters.time("timeout_impatient_ms", self.timeout_impatient),
            attempt: parameters.time("attempt_ms", self.attempt),
            habits: self.habits,
        }
    }

    /// These, changed by the parameters of a schedule for a workload that has no others.
    pub(crate) fn given(self, workload: &str, given: &BTreeMap<String, u64>) -> Result<Self> {
        let mut parameters = Parameters::new(workload, given);
        let mix = self.with(&mut parameters);
        parameters.finish()?;
        Ok(mix)
    }

    /// So many posts of a role. The last of several is impatient.
    pub(crate) fn posts(&self, role: &'static str, side: Side, count: u32) -> Vec<Post> {
        let impatient = |place| count > 1 && place + 1 == count;
        (0..count)
            .map(|place| Post {
                role,
                side,
                place,
                part: 0,
                timeout: if impatient(place) {
                    self.timeout_impatient
                } else {
                    self.timeout
                },
                attempt: (!self.attempt.is_zero()).then_some(self.attempt),
            })
            .collect()
    }

    /// Between two messages of one publisher; `None` = nothing.
    pub(crate) fn pace(&self) -> Option<Duration> {
        let all = f64::from(self.publishers.max(1));
        (self.per_second > 0).then(|| Duration::from_secs_f64(all / self.per_second as f64))
    }
}

impl Habits {
    /// Does it well, always.
    pub(crate) const GOOD: Self = Self {
        ack: 1,
        work_then_ack: 0,
        nack: 0,
        put_off: 0,
        release: 0,
        dead_letter: 0,
        extend_then_ack: 0,
        ack_twice: 0,
        ack_late: 0,
        forget: 0,
    };

    /// One act of these.
    pub(crate) fn draw(&self, rng: &mut StdRng) -> Act {
        let acts = [
            (self.ack, Act::Settle(Wish::Ack)),
            (self.work_then_ack, Act::WorkThenAck),
            (self.nack, Act::Settle(Wish::Nack)),
            (self.put_off, Act::PutOff),
            (self.release, Act::Settle(Wish::Release)),
            (self.dead_letter, Act::Settle(Wish::DeadLetter)),
            (self.extend_then_ack, Act::ExtendThenAck),
            (self.ack_twice, Act::AckTwice),
            (self.ack_late, Act::AckLate),
            (self.forget, Act::Forget),
        ];
        let all: u32 = acts.iter().map(|(parts, _)| parts).sum();
        let mut drawn = rng.random_range(0..all.max(1));
        for (parts, act) in acts {
            if drawn < parts {
                return act;
            }
            drawn -= parts;
        }
        Act::Settle(Wish::Ack)
    }
}
