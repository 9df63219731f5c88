//! From what was asked for to the schedules that are carried out.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use jepsen_lite_core::run::SCHEDULE;
use jepsen_lite_core::schedule::Schedule;
use jepsen_lite_workload::generate::Layer;
use jepsen_lite_workload::scenarios;

/// The schedule of a file, or of the folder of a run.
///
/// # Errors
///
/// When it cannot be read, or is no schedule.
pub(crate) fn read(path: &Path) -> Result<Schedule> {
    let file = if path.is_dir() {
        path.join(SCHEDULE)
    } else {
        path.to_owned()
    };
    let text = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is no schedule", file.display()))
}

/// The schedule of a scenario by its name, or of a file.
///
/// # Errors
///
/// When there is no such scenario or file.
pub(crate) fn one(name: &str) -> Result<Schedule> {
    match scenarios::by_name(name) {
        Ok(schedule) => Ok(schedule),
        Err(_) if name.ends_with(".json") || Path::new(name).exists() => read(Path::new(name)),
        Err(_) => bail!("there is no scenario {name:?}, and no such file: `jepsen-lite list` names them"),
    }
}

/// What `NAME,NAME`, `all` or a file means on a layer. Of `all`, those that the layer cannot do are left out.
///
/// # Errors
///
/// When there is no such scenario or file, or the layer cannot carry it out.
pub(crate) fn several(names: &[String], layer: Layer) -> Result<Vec<Schedule>> {
    let mut schedules = Vec::new();
    for name in names {
        if name == "all" {
            let all: Result<Vec<Schedule>> = scenarios::names().map(scenarios::by_name).collect();
            schedules.extend(all?.into_iter().filter(|one| unknown(one, layer).is_empty()));
        } else {
            let schedule = one(name)?;
            fits(&schedule, layer)?;
            schedules.push(schedule);
        }
    }
    Ok(schedules)
}

/// Whether a layer can carry out a schedule.
///
/// # Errors
///
/// When it cannot: which faults it does not know, or what makes no sense.
pub(crate) fn fits(schedule: &Schedule, layer: Layer) -> Result<()> {
    let name = &schedule.name;
    let unknown = unknown(schedule, layer);
    ensure!(
        unknown.is_empty(),
        "{name} cannot be carried out on the layer {}, which knows no {}",
        layer.name(),
        unknown.join(", ")
    );
    ensure!(schedule.load_ms > 0, "{name}: a load of no length");
    ensure!((1..=9).contains(&schedule.nodes), "{name}: 1 to 9 nodes can be");
    let workload = &schedule.workload;
    jepsen_lite_workload::by_name(&workload.name, &workload.parameters).with_context(|| name.clone())?;
    Ok(())
}

/// Names of the faults in a schedule that a layer does not know.
fn unknown(schedule: &Schedule, layer: Layer) -> Vec<String> {
    let faults = schedule.steps.iter().map(|step| &step.fault);
    let mut names: Vec<String> = faults
        .filter(|fault| !layer.knows(fault))
        .map(jepsen_lite_core::schedule::Fault::name)
        .collect();
    names.sort();
    names.dedup();
    names
}

/// With a load of another length.
///
/// # Errors
///
/// When a fault would never be begun.
pub(crate) fn with_load(mut schedule: Schedule, load_ms: u64) -> Result<Schedule> {
    if let Some(late) = schedule.steps.iter().find(|step| step.at_ms >= load_ms) {
        bail!(
            "{}: {} begins at {} ms, which a load of {load_ms} ms does not reach",
            schedule.name,
            late.fault.name(),
            late.at_ms
        );
    }
    schedule.load_ms = load_ms;
    Ok(schedule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_layer_does_not_know_is_named() {
        let upgrade = one("upgrade-mixed").expect("it is there");
        let refused = format!("{:#}", fits(&upgrade, Layer::Simulation).unwrap_err());
        assert!(
            refused.contains("upgrade-mixed") && refused.contains("knows no upgrade"),
            "{refused}"
        );
        assert!(fits(&upgrade, Layer::Processes).is_ok());
        assert!(fits(&one("disk-full-leader").expect("it is there"), Layer::Containers).is_err());
    }

    #[test]
    fn all_are_those_that_the_layer_can_do() {
        let count = |layer| several(&["all".to_owned()], layer).expect("they are there").len();
        assert_eq!(count(Layer::Processes), scenarios::names().count());
        assert!((5..count(Layer::Processes)).contains(&count(Layer::Containers)));
        assert!(several(&["peace".to_owned()], Layer::Processes).is_err());
    }

    #[test]
    fn a_load_reaches_its_faults() {
        let kills = one("kill-leader-loop").expect("it is there");
        assert!(with_load(kills.clone(), 1_000).is_err());
        assert_eq!(with_load(kills, 99_000).expect("long enough").load_ms, 99_000);
    }
}
