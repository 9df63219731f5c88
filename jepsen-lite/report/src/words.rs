//! A run in words that someone understands who sees a report for the first time.

use jepsen_lite_core::cluster::{Done, Effect};
use jepsen_lite_core::schedule::{Evidence, Fault};
use jepsen_lite_core::verdict::Verdict;

/// What an invariant promises; `None` for one that is not known here, which is then shown by its name alone.
pub(crate) fn promise(invariant: &str) -> Option<&'static str> {
    Some(match invariant {
        "I1" => "No confirmed message is lost.",
        "I2" => "What is delivered is what was published, unchanged.",
        "I3" => "Never do two workers hold the same message at once.",
        "I4" => "What was acknowledged never comes back.",
        "I5" => "Attempts are counted right, and the last one ends in the dead set.",
        "I6" => "Messages are first delivered in the order in which they were published.",
        "I7" => "A publish that is repeated is taken once.",
        "I8" => "What is done in one transaction happens as a whole or not at all.",
        "I9" => "A worker whose lease has ended can no longer settle with it.",
        "I10" => "All nodes have the same state.",
        "I11" => "Statistics show what had happened by then, never an older state.",
        "I12" => "The order of the log agrees with the order in which clients saw things happen.",
        "I13" => "The counters add up: each message is in exactly one state.",
        "I14" => "Cluster time never goes back, and leases last as long as was promised.",
        "I15" => "Nothing is delivered before it is due, or after it expired.",
        "I16" => "A batch is taken as a whole or not at all.",
        "I17" => "No consumer holds more than its credit, no queue more than its limit.",
        "I18" => "What was refused has not happened, and does not happen later.",
        "I19" => "One leader a term, and what is committed stays committed.",
        "I20" => "Membership changes lose no majority; a removed or emptied node does not serve.",
        "I21" => "A damaged disk is noticed, and harms no other node.",
        "I22" => "A snapshot holds all that the log held.",
        "I23" => "Two versions make the same state of the same log.",
        "I24" => "When the faults are over, the cluster works again, soon and wholly.",
        "I25" => "No node crashed of itself.",
        "I26" => "No connection is given the same delivery twice.",
        _ => return None,
    })
}

/// A verdict, in one or two words.
pub(crate) fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Valid => "valid",
        Verdict::Unknown => "unknown",
        Verdict::Violated => "violated",
        Verdict::Harness => "harness failed",
    }
}

/// What was done to nodes, as the end of a sentence that begins with a time: `the leader's process was …`.
pub(crate) fn fault(fault: &Fault, nodes: &[usize]) -> String {
    let who = these(nodes);
    let (was, its) = if nodes.len() < 2 {
        ("was", "its")
    } else {
        ("were", "their")
    };
    match fault {
        Fault::Kill => format!("{who} {was} killed (SIGKILL)"),
        Fault::Stop => format!("{who} {was} asked to stop"),
        Fault::PowerLoss => format!("{who} lost power: part of what was not synced is gone"),
        Fault::Restart => format!("{who} {was} restarted, one after the other"),
        Fault::Pause => format!("{who} {was} frozen, without knowing it"),
        Fault::SlowCpu { percent } => format!("{who} got {percent} % of a processor"),
        Fault::Isolate => {
            format!("{who} {was} cut off from the other nodes (clients still reached all)")
        }
        Fault::Deaf => format!("{who} could send to the other nodes but hear nothing"),
        Fault::Mute => format!("{who} could hear the other nodes but not be heard"),
        Fault::Shatter => format!("no two of {who} could reach each other"),
        Fault::Ring => format!("{who} could reach their neighbours only"),
        Fault::CutClients => format!("clients could not reach {who}"),
        Fault::Reset => format!("all connections of {who} broke"),
        Fault::Delay { ms } => format!(
            "all traffic of {who} took {ms} to {} ms longer",
            ms.saturating_mul(2)
        ),
        Fault::Throttle { bytes_per_second } => {
            format!("{who} had a line of {} bytes a second", count(*bytes_per_second))
        }
        Fault::Lossy { percent } => format!("{percent} % of the traffic of {who} was lost"),
        Fault::ClockJump { ms } => {
            let way = if *ms < 0 { "back" } else { "ahead" };
            format!(
                "the wall clock of {who} jumped {way} by {}",
                duration(ms.unsigned_abs() as f64)
            )
        }
        Fault::ClockDrift { per_mille } => {
            let way = if *per_mille < 0 { "slow" } else { "fast" };
            format!(
                "the clocks of {who} ran {way} by {} in 1,000",
                per_mille.unsigned_abs()
            )
        }
        Fault::ClockStrobe { ms } => {
            format!(
                "the wall clock of {who} jumped to and fro by {}",
                duration(ms.unsigned_abs() as f64)
            )
        }
        Fault::DiskFull => format!("the disk of {who} was full"),
        Fault::WriteError => format!("writes to the disk of {who} failed"),
        Fault::SyncError { count: 1 } => format!("the next sync of the disk of {who} failed"),
        Fault::SyncError { count } => format!("the next {count} syncs of the disk of {who} failed"),
        Fault::SlowSync { ms } => format!("every sync of the disk of {who} took {ms} ms longer"),
        Fault::BitFlip { bits } => format!("{who} {was} killed, and {bits} bits of {its} data flipped"),
        Fault::Truncate { bytes } => {
            format!(
                "{who} {was} killed, and {} bytes cut off {its} log",
                count(*bytes)
            )
        }
        Fault::Rollback => format!("{who} {was} killed, and {its} data replaced by an older copy"),
        Fault::Wipe => format!("{who} {was} killed, and {its} data deleted"),
        Fault::Grow => format!("the cluster was asked to grow (at {who})"),
        Fault::Shrink => format!("{who} {was} removed from the cluster"),
        Fault::Transfer => format!("leadership was handed to {who}"),
        Fault::Snapshot => format!("{who} wrote a snapshot and shortened {its} log"),
        Fault::Upgrade => format!("{who} {was} replaced by the other build, one after the other"),
        Fault::KillWorkers => "workers were killed with all that they had in hand".to_owned(),
        Fault::PauseWorkers => "workers stood still for longer than their leases".to_owned(),
        Fault::NackStorm => "workers refused every message".to_owned(),
        // A fault that is newer than this page: its name says more than nothing.
        #[allow(unreachable_patterns)]
        other => format!("{}: {who}", other.name()),
    }
}

/// A fault's name for a count: `3 kills`.
pub(crate) fn kind(fault: &Fault) -> String {
    match fault {
        Fault::Kill => "kill of a process",
        Fault::Stop => "orderly stop",
        Fault::PowerLoss => "power loss",
        Fault::Restart => "rolling restart",
        Fault::Pause => "frozen process",
        Fault::SlowCpu { .. } => "starved processor",
        Fault::Isolate | Fault::Shatter | Fault::Ring => "network partition",
        Fault::Deaf | Fault::Mute => "one-way network cut",
        Fault::CutClients => "cut between clients and nodes",
        Fault::Reset => "burst of broken connections",
        Fault::Delay { .. } => "slow network",
        Fault::Throttle { .. } => "narrow network",
        Fault::Lossy { .. } => "lossy network",
        Fault::ClockJump { .. } => "jump of a clock",
        Fault::ClockDrift { .. } => "drifting clock",
        Fault::ClockStrobe { .. } => "jumping clock",
        Fault::DiskFull => "full disk",
        Fault::WriteError => "failing disk",
        Fault::SyncError { .. } => "failing sync",
        Fault::SlowSync { .. } => "slow disk",
        Fault::BitFlip { .. } => "flip of bits on disk",
        Fault::Truncate { .. } => "truncated log",
        Fault::Rollback => "disk set back to an older copy",
        Fault::Wipe => "emptied node",
        Fault::Grow => "added node",
        Fault::Shrink => "removed node",
        Fault::Transfer => "hand-over of leadership",
        Fault::Snapshot => "forced snapshot",
        Fault::Upgrade => "upgrade to another build",
        Fault::KillWorkers => "killing of workers",
        Fault::PauseWorkers => "freezing of workers",
        Fault::NackStorm => "storm of refusals by workers",
        #[allow(unreachable_patterns)]
        other => return other.name().replace('-', " "),
    }
    .to_owned()
}

/// How an effect's step went, if it did not simply go as planned.
pub(crate) fn trouble(effect: &Effect) -> Option<String> {
    match &effect.state {
        Done::Yes if effect.counters.values().all(|n| *n == 0) => Some("had no effect".to_owned()),
        Done::Yes => None,
        Done::Skipped(why) => Some(format!("not done: {why}")),
        Done::Unknown(why) => Some(format!("may not have been done: {why}")),
    }
}

/// What a fault did, as the name of a count.
pub(crate) fn counter(name: &str) -> String {
    match name {
        "ended" => "processes ended",
        "started" => "processes started",
        "restarted" => "processes restarted",
        "clocks" => "clocks changed",
        "transferred" => "leaders changed",
        "snapshots" => "snapshots written",
        "held" => "frames held back",
        "held_bytes" | "bytes_held" => "bytes held back",
        "joined" => "nodes joined",
        "removed" => "nodes removed",
        "ready" => "nodes ready again",
        "delayed" => "frames delayed",
        "nacks" => "deliveries nacked",
        other => return other.replace(['_', '-'], " "),
    }
    .to_owned()
}

/// What a run saw and no threshold is for, as the name of a count.
pub(crate) fn seen(name: &str) -> String {
    match name {
        "delivered" => "deliveries received",
        "entries" => "entries of the log",
        "faults" => "faults carried out",
        other => return other.replace(['_', '-'], " "),
    }
    .to_owned()
}

/// The thresholds of a schedule: name in `Results::seen`, in words, and the least that is needed.
pub(crate) fn thresholds(evidence: &Evidence) -> [(&'static str, &'static str, u64); 7] {
    [
        ("confirmed", "publishes confirmed", evidence.confirmed),
        (
            "redelivered",
            "deliveries that were repeated",
            evidence.redelivered,
        ),
        ("leader_changes", "changes of the leader", evidence.leader_changes),
        (
            "snapshots_installed",
            "snapshots taken by a node behind",
            evidence.snapshots_installed,
        ),
        ("duplicates", "repeated publishes recognised", evidence.duplicates),
        ("dead_lettered", "messages dead-lettered", evidence.dead_lettered),
        (
            "stale_tokens",
            "settlements refused: stale token",
            evidence.stale_tokens,
        ),
    ]
}

/// Nodes by number: `node 1`, `nodes 0 and 2`.
pub(crate) fn these(nodes: &[usize]) -> String {
    match nodes {
        [] => "no node".to_owned(),
        [one] => format!("node {one}"),
        [most @ .., last] => {
            let most: Vec<String> = most.iter().map(ToString::to_string).collect();
            format!("nodes {} and {last}", most.join(", "))
        }
    }
}

/// A count with its thousands apart: `12,345`.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count of things; the plural has an s.
pub(crate) fn counted(n: u64, thing: &str) -> String {
    format!("{} {thing}{}", count(n), if n == 1 { "" } else { "s" })
}

/// A duration in its best unit: `0.4 ms`, `350 ms`, `2.5 s`, `3 min`, `8,766 h`.
pub(crate) fn duration(ms: f64) -> String {
    let plain = crate::axis::plain;
    // Durations are not negative, and far below the range of u64.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    match ms {
        ms if ms < 10.0 => format!("{} ms", plain(ms)),
        ms if ms < 1000.0 => format!("{ms:.0} ms"),
        ms if ms < 120_000.0 => format!("{} s", plain(ms / 1000.0)),
        ms if ms < 7_200_000.0 => format!("{} min", plain(ms / 60_000.0)),
        ms => format!("{} h", count((ms / 3_600_000.0).round() as u64)),
    }
}

/// A moment of the run: `3.25 s`.
pub(crate) fn moment(ms: f64) -> String {
    format!("{:.2} s", ms / 1000.0)
}

/// `a`, `a and b`, `a, b and c`.
pub(crate) fn and(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_invariant_of_the_plan_has_a_sentence() {
        for number in 1..=26 {
            assert!(promise(&format!("I{number}")).is_some(), "I{number}");
        }
        assert_eq!(promise("I27"), None);
    }

    #[test]
    fn numbers_and_nodes_read_as_people_write_them() {
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(100), "100");
        assert_eq!(counted(1, "kill"), "1 kill");
        assert_eq!(these(&[0, 2, 4]), "nodes 0, 2 and 4");
        assert_eq!(duration(0.4), "0.4 ms");
        assert_eq!(duration(2500.0), "2.5 s");
        assert_eq!(duration(31_557_600_000.0), "8,766 h");
    }

    #[test]
    fn a_fault_without_effect_is_told_as_such() {
        let effect = |state, n| Effect {
            from_ms: 0,
            until_ms: None,
            fault: Fault::Pause,
            nodes: vec![0],
            state,
            counters: [("leases_expired".to_owned(), n)].into(),
        };
        assert_eq!(trouble(&effect(Done::Yes, 1)), None);
        assert_eq!(trouble(&effect(Done::Yes, 0)).as_deref(), Some("had no effect"));
        let uncounted = Effect {
            counters: [].into(),
            ..effect(Done::Yes, 0)
        };
        assert_eq!(trouble(&uncounted).as_deref(), Some("had no effect"));
        let skipped = trouble(&effect(Done::Skipped("unsafe".to_owned()), 0));
        assert_eq!(skipped.as_deref(), Some("not done: unsafe"));
    }
}
