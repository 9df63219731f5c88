//! The mutants: what each does wrong, what must find it, and how hard that may be.
//!
//! This is the only list. The branches stand in the product, at the place where a
//! broker could well be wrong; a test holds the names in the sources against those
//! here. What of the plan has no place in this broker stands at the end, with the
//! reason.

/// A deliberate fault.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// The value of `QUORATE_MUTANT`.
    pub name: &'static str,
    /// What the broker does wrong, after "the broker".
    pub does: &'static str,
    /// Any of these must be found broken: numbers as in `INVARIANTS.md`.
    pub breaks: &'static [&'static str],
    /// Where it is looked for. It must be found by each.
    pub hunts: &'static [Hunt],
}

/// One way to look for a mutant.
#[derive(Clone, Copy, Debug)]
pub struct Hunt {
    /// Where.
    pub layer: Layer,
    /// The schedule by name; empty = whatever the seed draws. In layer 0, the program.
    pub scenario: &'static str,
    /// It must be found within so many seeds …
    pub seeds: u64,
    /// … and so many seconds.
    pub seconds: u64,
}

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// One crate by itself, in its own test program: random logs through the state
    /// machine, power cuts of a store.
    Tests,
    /// A cluster in one thread: `jepsen-lite sim`.
    Simulation,
    /// Real processes: `jepsen-lite run`.
    Processes,
}

impl Layer {
    /// As in the plan: `0`, `a`, `b`.
    #[must_use]
    pub fn letter(self) -> &'static str {
        match self {
            Self::Tests => "0",
            Self::Simulation => "a",
            Self::Processes => "b",
        }
    }
}

/// Random logs through the state machine; a minute at most.
pub const LOGS: &str = "random-logs";
/// A store that loses power, and whose disk fails; half a minute at most.
pub const POWER_CUTS: &str = "power-cuts";

const PROPERTIES: Hunt = tests(LOGS);
const STORE: Hunt = tests(POWER_CUTS);

const fn tests(scenario: &'static str) -> Hunt {
    Hunt {
        layer: Layer::Tests,
        scenario,
        seeds: 3,
        seconds: 240,
    }
}

const fn simulation(scenario: &'static str, seeds: u64, seconds: u64) -> Hunt {
    Hunt {
        layer: Layer::Simulation,
        scenario,
        seeds,
        seconds,
    }
}

const fn processes(scenario: &'static str, seeds: u64, seconds: u64) -> Hunt {
    Hunt {
        layer: Layer::Processes,
        scenario,
        seeds,
        seconds,
    }
}

/// All of them, from the disk up.
pub const MUTANTS: &[Mutant] = &[
    // ------------------------------------------------------------------ disk
    // Two of these are not looked for in the simulated world, where a hundred seeds of a
    // scenario that is aimed at them found nothing: what they lose is lost only if power
    // goes within a millisecond. Power cuts of a store find them at once.
    Mutant {
        name: "skip-fsync",
        does: "says of a write that it is durable without a flush",
        breaks: &["I1", "I10", "I19"],
        hunts: &[
            STORE,
            simulation("power-loss-all", 30, 60),
            processes("power-loss-all", 3, 180),
        ],
    },
    Mutant {
        name: "flush-without-fsync",
        does: "flushes as sled does by itself, to the page cache",
        breaks: &["I1", "I10"],
        hunts: &[STORE, processes("power-loss-all", 3, 180)],
    },
    Mutant {
        name: "ignore-sync-errors",
        does: "goes on after a sync that failed, and calls it durable",
        breaks: &["I1", "I10", "I19", "I21"],
        hunts: &[
            STORE,
            simulation("eio-fsync", 60, 120),
            processes("eio-fsync-everywhere", 3, 180),
        ],
    },
    Mutant {
        name: "callbacks-out-of-order",
        does: "tells of the newest append of a group before it is flushed",
        breaks: &["I1", "I10", "I19"],
        hunts: &[STORE],
    },
    Mutant {
        name: "vote-not-durable",
        does: "answers a vote before it is on disk",
        breaks: &["I1", "I10", "I19"],
        hunts: &[STORE],
    },
    Mutant {
        name: "checksum-not-verified",
        does: "takes damaged bytes of entries, contents and snapshots for whole",
        breaks: &["I21"],
        hunts: &[PROPERTIES],
    },
    // ------------------------------------------------------------- consensus
    Mutant {
        name: "leader-restore",
        does: "lets a leader that restarts lead on without an election",
        breaks: &["I1", "I10", "I19"],
        hunts: &[simulation("restart-inside-election-timeout", 200, 120)],
    },
    Mutant {
        name: "double-apply",
        does: "applies the entry after a snapshot twice",
        breaks: &["I10", "I7", "I13"],
        hunts: &[simulation("snapshot-catchup", 60, 120)],
    },
    Mutant {
        name: "stale-reads",
        does: "answers reads from its own state, whoever leads",
        breaks: &["I11"],
        hunts: &[
            simulation("leader-in-minority-peer-only", 30, 60),
            processes("leader-in-minority-peer-only", 3, 180),
        ],
    },
    Mutant {
        name: "lease-reads",
        does: "answers reads for five seconds after a quorum was last heard",
        breaks: &["I11"],
        hunts: &[simulation("leader-in-minority-peer-only", 30, 60)],
    },
    Mutant {
        name: "removed-node-serves",
        does: "goes on as a node of a cluster that removed it",
        breaks: &["I20"],
        hunts: &[simulation("grow-shrink-partition", 60, 120)],
    },
    Mutant {
        name: "wiped-node-rejoins",
        does: "answers for the node whose data was wiped, with an empty disk",
        breaks: &["I20", "I1", "I19"],
        hunts: &[simulation("wipe-and-rejoin", 60, 120)],
    },
    // --------------------------------------------------------------- answers
    Mutant {
        name: "ack-before-commit",
        does: "confirms publishes and settlements when they are handed to consensus",
        breaks: &["I1", "I18", "I4"],
        hunts: &[
            simulation("kill-leader-loop", 30, 60),
            processes("kill-leader-loop", 3, 180),
        ],
    },
    Mutant {
        name: "ack-before-apply",
        does: "answers what it expects a committed entry to do",
        breaks: &["I1", "I7", "I9", "I12"],
        hunts: &[simulation("retry-storm-dedup", 60, 120)],
    },
    Mutant {
        name: "time-out-is-refused",
        does: "says that a request whose deadline passed was not done",
        breaks: &["I18", "I1", "I2"],
        hunts: &[simulation("cut-off-leader-answers-late", 30, 120)],
    },
    Mutant {
        name: "transact-in-two-commands",
        does: "acks and publishes one after the other",
        breaks: &["I8", "I1"],
        hunts: &[simulation("chain-failover", 100, 180)],
    },
    Mutant {
        name: "lease-leaked",
        does: "keeps the session of a stream that broke",
        breaks: &["I24", "I26", "I5"],
        hunts: &[simulation("pause-consumer-past-lease", 60, 120)],
    },
    Mutant {
        name: "redirect-loop",
        does: "has a client that never asks another node than the one it was sent to",
        breaks: &["I24"],
        hunts: &[simulation("kill-leader-loop", 30, 120)],
    },
    // ------------------------------------------------------------------ time
    Mutant {
        name: "local-clock",
        does: "ends leases and lives by the clock of the node that applies",
        breaks: &["I10", "I3", "I14"],
        hunts: &[PROPERTIES, simulation("", 30, 60)],
    },
    Mutant {
        name: "time-goes-back",
        does: "takes the stamp of a leader whose clock is behind",
        breaks: &["I14", "I3"],
        hunts: &[PROPERTIES],
    },
    Mutant {
        name: "extension-not-kept",
        does: "ends a lease by the timer that was set before it was extended",
        breaks: &["I3", "I14"],
        hunts: &[PROPERTIES],
    },
    Mutant {
        name: "dedup-by-local-clock",
        does: "measures dedup windows with the clock of the node that applies",
        breaks: &["I7", "I10", "I22"],
        hunts: &[PROPERTIES],
    },
    // -------------------------------------------------------------- snapshots
    Mutant {
        name: "snapshot-without-dedup",
        does: "leaves the dedup windows out of snapshots",
        breaks: &["I22", "I7"],
        hunts: &[PROPERTIES, simulation("snapshot-catchup", 60, 120)],
    },
    Mutant {
        name: "snapshot-without-leases",
        does: "leaves leases out of snapshots",
        breaks: &["I22", "I1", "I3", "I9", "I10"],
        hunts: &[PROPERTIES, simulation("snapshot-catchup", 60, 120)],
    },
    Mutant {
        name: "snapshot-without-delayed",
        does: "forgets with a snapshot when delayed messages are due",
        breaks: &["I22", "I1", "I10", "I15"],
        hunts: &[PROPERTIES],
    },
    Mutant {
        name: "snapshot-without-attempts",
        does: "begins to count attempts anew with a snapshot",
        breaks: &["I22", "I5"],
        hunts: &[PROPERTIES],
    },
    Mutant {
        name: "snapshot-without-backlog",
        does: "drains dead letters by a list of the leader's, which goes with it",
        breaks: &["I22", "I24"],
        hunts: &[PROPERTIES],
    },
    Mutant {
        name: "token-reused",
        does: "numbers grants anew after a failover",
        breaks: &["I9", "I22"],
        hunts: &[PROPERTIES],
    },
    // ---------------------------------------------------------------- messages
    Mutant {
        name: "no-fencing",
        does: "settles by the message, whoever holds it",
        breaks: &["I9", "I4"],
        hunts: &[PROPERTIES, simulation("pause-consumer-past-lease", 30, 60)],
    },
    Mutant {
        name: "max-attempts-off-by-one",
        does: "gives a message one attempt more than it has",
        breaks: &["I5"],
        hunts: &[PROPERTIES],
    },
    Mutant {
        name: "requeue-at-tail",
        does: "puts a message that comes back behind the others",
        breaks: &["I6"],
        hunts: &[PROPERTIES],
    },
    Mutant {
        name: "dead-letter-in-two-steps",
        does: "takes a dead letter out before it is known to get in",
        breaks: &["I5", "I1"],
        hunts: &[PROPERTIES],
    },
    Mutant {
        name: "map-order",
        does: "walks through queues in the order of a map with a random hash",
        breaks: &["I10"],
        hunts: &[PROPERTIES],
    },
];

/// Of the plan's mutants, those that this broker has no place for, and why.
pub const NOT_HERE: &[(&str, &str)] = &[
    (
        "expiry proposed without a guard",
        "nobody proposes expiry: it follows from the time of any entry; extension-not-kept is its kind here",
    ),
    (
        "learner votes",
        "openraft counts votes, and its code is not ours to change; removed-node-serves is its kind here",
    ),
    (
        "last applied apart from the effects",
        "the state is in memory and goes with its index; double-apply is its kind here",
    ),
];
