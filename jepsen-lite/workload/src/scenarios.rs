//! The schedules that have a name.
//!
//! They are the files of `jepsen-lite/scenarios`, and go with the program, so that a name means the same anywhere.

use anyhow::{Context as _, Result};
use jepsen_lite_core::schedule::Schedule;

macro_rules! scenarios {
    ($($name:literal),* $(,)?) => {
        /// The name and the text of each, in the order in which one would run them.
        const FILES: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../scenarios/", $name, ".json")))),*
        ];
    };
}

scenarios! {
    "none",
    "kill-leader-loop",
    "rolling-restart",
    "power-loss-all",
    "power-loss-majority",
    "power-loss-rotation",
    "rotate-majority",
    "restart-inside-election-timeout",
    "power-loss-while-voting",
    "leader-in-minority-peer-only",
    "cut-off-leader-answers-late",
    "one-way-leader-deaf",
    "one-way-leader-mute",
    "one-way-follower-mute",
    "pause-leader-past-lease",
    "pause-consumer-past-lease",
    "mutex-pause-holder",
    "clock-forward-leader",
    "clock-back-leader",
    "clock-year-ahead-next-leader",
    "clock-drift-and-strobe",
    "slow-fsync-leader",
    "disk-full-follower",
    "disk-full-leader",
    "eio-fsync",
    "eio-fsync-everywhere",
    "bitflip-minority",
    "truncate-log-tail",
    "snapshot-catchup",
    "wipe-and-rejoin",
    "replace-node-under-load",
    "grow-shrink-partition",
    "dlq-storm-failover",
    "retry-storm-dedup",
    "chain-failover",
    "groups-failover",
    "fan-out-failover",
    "bulk-power-loss",
    "upgrade-mixed",
    "chaos",
}

/// All names, in the order in which one would run them.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// The schedule of this name.
///
/// # Errors
///
/// When there is none.
pub fn by_name(name: &str) -> Result<Schedule> {
    let file = FILES.iter().find(|(known, _)| *known == name);
    let (_, text) = file.with_context(|| format!("there is no scenario {name}"))?;
    serde_json::from_str(text).with_context(|| format!("read the scenario {name}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_has_its_name_and_is_here() -> Result<()> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
        let mut files = BTreeSet::new();
        for file in fs::read_dir(folder)? {
            let name = file?.file_name().into_string().expect("a plain name");
            files.insert(name.trim_end_matches(".json").to_owned());
        }
        assert_eq!(files, names().map(str::to_owned).collect());
        for name in names() {
            assert_eq!(by_name(name)?.name, name);
        }
        assert!(by_name("peace").is_err());
        Ok(())
    }

    /// The schedules that have found something, by the names of their files.
    fn kept() -> Result<Vec<(String, Schedule)>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../regress");
        let mut kept = Vec::new();
        for file in fs::read_dir(folder)? {
            let path = file?.path();
            let name = path.file_stem().expect("a file has a name");
            let name = name.to_str().expect("a plain name").to_owned();
            kept.push((name, serde_json::from_str(&fs::read_to_string(path)?)?));
        }
        Ok(kept)
    }

    #[test]
    fn every_schedule_can_be_carried_out_and_proves_something() -> Result<()> {
        let named = names().map(|name| Ok((name.to_owned(), by_name(name)?)));
        let mut all = named.collect::<Result<Vec<_>>>()?;
        all.extend(kept()?);
        for (name, schedule) in all {
            let name = name.as_str();
            assert_eq!(schedule.name, name);
            let workload = &schedule.workload;
            crate::by_name(&workload.name, &workload.parameters).with_context(|| name.to_owned())?;
            assert!(!schedule.about.is_empty(), "{name} says nothing about itself");
            assert!(schedule.evidence.confirmed > 0, "{name} asks for no evidence");
            assert!(
                schedule.steps.is_sorted_by_key(|step| step.at_ms),
                "{name} is not by time"
            );
            for step in &schedule.steps {
                assert!(step.at_ms < schedule.load_ms, "{name}: {step:?} is never begun");
                assert!(
                    step.undo_at_ms.is_none_or(|undo| undo > step.at_ms),
                    "{name}: {step:?}"
                );
                assert_eq!(step.undo_at_ms.is_some(), step.fault.lasts(), "{name}: {step:?}");
            }
        }
        Ok(())
    }
}
