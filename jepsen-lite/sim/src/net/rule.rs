//! What faults do to the directions between hosts.

use std::collections::BTreeSet;

use super::{Host, Plane};

/// Something is wrong with some directions.
#[derive(Clone, Debug)]
pub struct Rule {
    /// From whom to whom.
    pub directions: BTreeSet<(Host, Host)>,
    /// For which connections; `None` = for all.
    pub plane: Option<Plane>,
    /// What is wrong.
    pub what: What,
}

impl Rule {
    pub(super) fn applies(&self, from: Host, to: Host, plane: Plane) -> bool {
        self.plane.is_none_or(|of| of == plane) && self.directions.contains(&(from, to))
    }
}

/// What is wrong with a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Nothing arrives. It is kept, and arrives when the rule is lifted.
    Cut,
    /// Everything takes longer: by `us` microseconds, up to twice.
    Delay {
        /// Microseconds.
        us: u64,
    },
    /// Not more than this passes.
    Throttle {
        /// Of payload.
        bytes_per_second: u64,
    },
    /// So many per cent of the chunks are lost, and each breaks its connection, since the transport promises
    /// delivery.
    Lossy {
        /// 0 to 100.
        percent: u8,
    },
}

/// What a rule did while it lasted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Streams that had something to deliver and could not.
    pub held: u64,
    /// Their bytes at that moment.
    pub held_bytes: u64,
    /// Chunks that arrived later than they would have.
    pub delayed: u64,
    /// Chunks that were lost, with their connection.
    pub broken: u64,
}
