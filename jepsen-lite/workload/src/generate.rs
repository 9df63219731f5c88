//! A schedule out of a seed.
//!
//! Everything about a run follows from its seed: how many nodes there are and how they are set, what the
//! clients do, and which faults come when. A quarter of the time nothing is wrong, because losses appear
//! without faults too. Otherwise a window of five to ten seconds has faults of one to three families, which
//! overlap. What comes out is explicit, and valid as a file: it can be kept, edited, and shortened.
//!
//! A schedule is generated for a [`Layer`] and has only faults that this layer knows. Seeds are a way to
//! find something. What was found is kept as a schedule, because the next change here gives a seed another
//! meaning.

use std::collections::BTreeMap;

use jepsen_lite_core::schedule::{Evidence, Fault, Schedule, Step, Target, Workload};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{RngExt as _, SeedableRng as _};

/// Nothing is wrong before, so that there is something to lose.
const QUIET_MS: u64 = 1_000;
/// Length of a window.
const WINDOW_MS: std::ops::RangeInclusive<u64> = 5_000..=10_000;
/// A fault that lasts does so for at least this.
const LASTS_MS_MIN: u64 = 300;
/// The time that the cluster gets to be whole again.
const HEAL_MS: u64 = 30_000;
/// A run with fewer confirmed publishes says nothing; of a workload that has few, see [`confirmed_min`].
const CONFIRMED_MIN: u64 = 50;
/// Faults may cut off many calls, but not nearly all.
const UNKNOWN_PERCENT_MAX: u64 = 60;
const YEAR_MS: i64 = 365 * 24 * 3_600 * 1_000;

/// Where a schedule is to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// The whole cluster in one thread, on simulated time.
    Simulation,
    /// Real processes on this machine.
    Processes,
    /// Containers.
    Containers,
}

/// Faults that are drawn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Crash,
    Power,
    Pause,
    Partition,
    Link,
    Clock,
    Disk,
    Damage,
    Membership,
    Log,
    Workers,
}

impl Layer {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Simulation => "sim",
            Self::Processes => "processes",
            Self::Containers => "containers",
        }
    }

    /// Whether a fault can be done there at all.
    #[must_use]
    pub fn knows(self, fault: &Fault) -> bool {
        match self {
            Self::Simulation => *fault != Fault::Upgrade,
            Self::Processes => true,
            Self::Containers => matches!(
                fault,
                Fault::Kill
                    | Fault::Stop
                    | Fault::Restart
                    | Fault::Pause
                    | Fault::SlowCpu { .. }
                    | Fault::Isolate
                    | Fault::Deaf
                    | Fault::Mute
                    | Fault::Shatter
                    | Fault::Ring
                    | Fault::CutClients
                    | Fault::Lossy { .. }
                    | Fault::Wipe
                    | Fault::Grow
                    | Fault::Shrink
                    | Fault::Transfer
                    | Fault::Upgrade
                    | Fault::KillWorkers
                    | Fault::PauseWorkers
                    | Fault::NackStorm
            ),
        }
    }

    fn families(self) -> &'static [Family] {
        use Family::{Clock, Crash, Damage, Disk, Link, Log, Membership, Partition, Pause, Power, Workers};
        match self {
            Self::Simulation | Self::Processes => &[
                Crash, Power, Pause, Partition, Link, Clock, Disk, Damage, Membership, Log, Workers,
            ],
            Self::Containers => &[Crash, Pause, Partition, Log, Workers],
        }
    }
}

/// The schedule of this seed.
#[must_use]
pub fn schedule(seed: u64, layer: Layer, load_ms: u64) -> Schedule {
    let mut rng = StdRng::seed_from_u64(seed);
    let nodes = nodes(&mut rng, layer);
    let workload = workload(&mut rng);
    Schedule {
        name: format!("seed-{seed}"),
        about: String::new(),
        seed,
        nodes,
        load_ms,
        heal_ms: HEAL_MS,
        settings: settings(&mut rng),
        steps: steps(&mut rng, layer, load_ms),
        evidence: Evidence {
            confirmed: confirmed_min(&workload.name),
            unknown_percent_max: UNKNOWN_PERCENT_MAX,
            ..Evidence::default()
        },
        workload,
    }
}

/// Least confirmed publishes: the mutex has one message at all, and large ones are few.
fn confirmed_min(workload: &str) -> u64 {
    match workload {
        "mutex" => 1,
        "bulk" => 10,
        _ => CONFIRMED_MIN,
    }
}

fn nodes(rng: &mut StdRng, layer: Layer) -> usize {
    match (layer, rng.random_range(0..10)) {
        (Layer::Simulation, 9) => 7,
        (Layer::Simulation, 6..9) | (Layer::Processes, 8..) => 5,
        _ => 3,
    }
}

fn workload(rng: &mut StdRng) -> Workload {
    let name = match rng.random_range(0..20) {
        0..7 => "queue",
        7 | 8 => "fifo",
        9 | 10 => "groups",
        11 | 12 => "dedup-retry",
        13 | 14 => "chain",
        15 => "dead-letter",
        16 => "delay",
        17 => "stats",
        18 => "mutex",
        _ => *["bulk", "fan-out"].choose(rng).expect("there are two"),
    };
    // Half of the leases are short against a failover, the others long.
    let lease_ms = rng.random_range(200..5_000);
    let parameters = BTreeMap::from([("lease_ms".to_owned(), lease_ms)]);
    Workload {
        name: name.to_owned(),
        parameters,
    }
}

fn settings(rng: &mut StdRng) -> BTreeMap<String, String> {
    let kib = [32_u64, 64, 128, 512].choose(rng).expect("there are some");
    let mut settings = BTreeMap::from([
        ("snapshot-log-bytes".to_owned(), format!("{kib}KiB")),
        ("log-keep-bytes".to_owned(), format!("{}KiB", kib / 2)),
    ]);
    if rng.random_bool(0.3) {
        let (heartbeat, min, max) = [(50, 120, 250), (200, 500, 900)].choose(rng).expect("two");
        settings.insert("heartbeat".to_owned(), format!("{heartbeat}ms"));
        settings.insert("election-timeout-min".to_owned(), format!("{min}ms"));
        settings.insert("election-timeout-max".to_owned(), format!("{max}ms"));
    }
    settings
}

fn steps(rng: &mut StdRng, layer: Layer, load_ms: u64) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut begin = QUIET_MS;
    while begin + LASTS_MS_MIN < load_ms {
        let end = (begin + rng.random_range(WINDOW_MS)).min(load_ms);
        if !rng.random_bool(0.25) {
            for family in families(rng, layer) {
                steps.push(step(rng, family, begin, end));
            }
        }
        begin = end;
    }
    steps.sort_by_key(|step| step.at_ms);
    steps
}

/// One to three of them.
fn families(rng: &mut StdRng, layer: Layer) -> Vec<Family> {
    let mut families = layer.families().to_vec();
    families.shuffle(rng);
    families.truncate(rng.random_range(1..=3));
    families
}

/// One fault of a family within a window.
fn step(rng: &mut StdRng, family: Family, begin: u64, end: u64) -> Step {
    let (fault, target) = fault(rng, family);
    let last = end.saturating_sub(LASTS_MS_MIN).max(begin);
    let at_ms = rng.random_range(begin..=last);
    let undo_at_ms = fault.lasts().then(|| {
        // A restart within an election timeout is a case of its own.
        if family_is_restart(&fault) && rng.random_bool(0.3) {
            at_ms + rng.random_range(1..100)
        } else {
            rng.random_range((at_ms + LASTS_MS_MIN).min(end)..=end)
        }
    });
    Step {
        at_ms,
        fault,
        target,
        undo_at_ms,
    }
}

fn family_is_restart(fault: &Fault) -> bool {
    matches!(fault, Fault::Kill | Fault::Stop | Fault::PowerLoss)
}

fn fault(rng: &mut StdRng, family: Family) -> (Fault, Target) {
    use Target::{All, Follower, Leader, Majority, Minority, MinorityWithLeader, Newest};
    let (faults, targets): (Vec<Fault>, &[Target]) = match family {
        Family::Crash => (
            vec![Fault::Kill, Fault::Kill, Fault::Stop, Fault::Restart],
            &[Leader, Leader, Follower, Newest, Minority, Majority, All],
        ),
        Family::Power => (
            vec![Fault::PowerLoss],
            &[Leader, Newest, Minority, MinorityWithLeader, Majority, All],
        ),
        Family::Pause => (
            vec![
                Fault::Pause,
                Fault::Pause,
                Fault::SlowCpu {
                    percent: rng.random_range(1..20),
                },
            ],
            &[Leader, Leader, Newest, MinorityWithLeader, Majority],
        ),
        Family::Partition => return partition(rng),
        Family::Link => (
            vec![
                Fault::Reset,
                Fault::Delay {
                    ms: rng.random_range(1..200),
                },
                Fault::Throttle {
                    bytes_per_second: rng.random_range(4_096..32_768),
                },
                Fault::Lossy {
                    percent: rng.random_range(5..40),
                },
            ],
            &[Leader, Follower, Minority, All],
        ),
        Family::Clock => return clock(rng),
        Family::Disk => (
            vec![
                Fault::DiskFull,
                Fault::WriteError,
                Fault::SyncError { count: 1 },
                Fault::SlowSync {
                    ms: rng.random_range(5..300),
                },
            ],
            &[Leader, Follower, Newest, Minority],
        ),
        Family::Damage => (
            vec![
                Fault::BitFlip {
                    bits: rng.random_range(1..8),
                },
                Fault::Truncate {
                    bytes: rng.random_range(1..8_192),
                },
                Fault::Wipe,
            ],
            &[Leader, Follower, Minority],
        ),
        Family::Membership => (
            vec![Fault::Grow, Fault::Shrink, Fault::Transfer, Fault::Transfer],
            &[Follower, Newest],
        ),
        Family::Log => (vec![Fault::Snapshot], &[Leader, Follower, All]),
        Family::Workers => (
            vec![Fault::KillWorkers, Fault::PauseWorkers, Fault::NackStorm],
            &[All],
        ),
    };
    let fault = faults.choose(rng).expect("a family has faults").clone();
    (fault, targets.choose(rng).expect("and targets").clone())
}

fn partition(rng: &mut StdRng) -> (Fault, Target) {
    use Target::{All, Follower, Leader, Minority, MinorityWithLeader};
    match rng.random_range(0..12) {
        0..2 => (Fault::Isolate, Leader),
        2..5 => (Fault::Isolate, MinorityWithLeader),
        5 => (Fault::Isolate, Minority),
        6 => (Fault::Deaf, Leader),
        7 => (Fault::Mute, Leader),
        8 => (Fault::Mute, Follower),
        9 => (Fault::Shatter, All),
        10 => (Fault::Ring, All),
        _ => (Fault::CutClients, Leader),
    }
}

fn clock(rng: &mut StdRng) -> (Fault, Target) {
    use Target::{All, Follower, Leader, Majority, Minority, Newest};
    let fault = match rng.random_range(0..10) {
        0..6 => Fault::ClockJump {
            // From a blink to an hour, each size as likely, to either side.
            ms: 10_i64.pow(rng.random_range(2..7)) * if rng.random_bool(0.5) { 1 } else { -1 },
        },
        6 => Fault::ClockJump { ms: YEAR_MS },
        7 | 8 => Fault::ClockDrift {
            per_mille: rng.random_range(-100..=100),
        },
        _ => Fault::ClockStrobe {
            ms: rng.random_range(10..5_000),
        },
    };
    let targets = [Leader, Follower, Newest, Minority, Majority, All];
    (fault, targets.choose(rng).expect("there are some").clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: [Layer; 3] = [Layer::Simulation, Layer::Processes, Layer::Containers];

    #[test]
    fn a_seed_is_one_schedule_and_two_are_two() {
        for layer in LAYERS {
            assert_eq!(schedule(7, layer, 20_000), schedule(7, layer, 20_000));
            assert_ne!(schedule(7, layer, 20_000), schedule(8, layer, 20_000));
        }
    }

    #[test]
    fn steps_stand_in_order_within_the_load_and_end_after_they_begin() {
        for seed in 0..500 {
            for layer in LAYERS {
                let schedule = schedule(seed, layer, 15_000);
                assert!(schedule.steps.is_sorted_by_key(|step| step.at_ms), "{schedule:?}");
                for step in &schedule.steps {
                    assert!((QUIET_MS..schedule.load_ms).contains(&step.at_ms), "{step:?}");
                    assert_eq!(step.undo_at_ms.is_some(), step.fault.lasts(), "{step:?}");
                    assert!(step.undo_at_ms.is_none_or(|undo| undo > step.at_ms), "{step:?}");
                }
            }
        }
    }

    #[test]
    fn every_workload_and_every_fault_but_those_of_builds_and_copies_is_drawn() {
        let (mut workloads, mut faults) = (BTreeMap::new(), BTreeMap::new());
        let mut quiet = 0;
        for seed in 0..2_000 {
            let schedule = schedule(seed, Layer::Simulation, 15_000);
            *workloads.entry(schedule.workload.name).or_insert(0) += 1;
            quiet += u32::from(schedule.steps.is_empty());
            for step in schedule.steps {
                *faults.entry(step.fault.name()).or_insert(0) += 1;
            }
        }
        assert_eq!(workloads.len(), 11, "{workloads:?}");
        let drawn = [
            "kill",
            "stop",
            "restart",
            "power-loss",
            "pause",
            "slow-cpu",
            "isolate",
            "deaf",
            "mute",
            "shatter",
            "ring",
            "cut-clients",
            "reset",
            "delay",
            "throttle",
            "lossy",
            "clock-jump",
            "clock-drift",
            "clock-strobe",
            "disk-full",
            "write-error",
            "sync-error",
            "slow-sync",
            "bit-flip",
            "truncate",
            "wipe",
            "grow",
            "shrink",
            "transfer",
            "snapshot",
            "kill-workers",
            "pause-workers",
            "nack-storm",
        ];
        for name in drawn {
            assert!(faults.contains_key(name), "{name} is never drawn: {faults:?}");
        }
        assert!(quiet > 0, "no run is without faults");
    }
}
