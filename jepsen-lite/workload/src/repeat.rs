//! The command that does a run again.

use std::path::Path;

use jepsen_lite_core::run::SCHEDULE;
use jepsen_lite_core::schedule::Schedule;

use crate::generate::{self, Layer};
use crate::scenarios;

/// How the program is called from the sources.
pub const PROGRAM: &str = "cargo run --release -p jepsen-lite --";

/// What to type to carry out this schedule again, on this layer. One that is neither a scenario nor drawn by its
/// seed is read from the folder of its run.
#[must_use]
pub fn command(schedule: &Schedule, layer: Layer, folder: Option<&Path>) -> String {
    let how = match layer {
        Layer::Simulation => "sim".to_owned(),
        _ => format!("run --layer {}", layer.name()),
    };
    let seed = schedule.seed;
    let named = scenarios::by_name(&schedule.name).map(|scenario| Schedule { seed, ..scenario });
    if named.is_ok_and(|named| named == *schedule) {
        return format!("{PROGRAM} {how} --scenario {} --seed {seed}", schedule.name);
    }
    if generate::schedule(seed, layer, schedule.load_ms) == *schedule {
        let length = match layer {
            Layer::Simulation => "--load",
            _ => "--time",
        };
        return format!("{PROGRAM} {how} --seed {seed} {length} {}ms", schedule.load_ms);
    }
    let file = folder.map_or_else(|| SCHEDULE.into(), |folder| folder.join(SCHEDULE));
    format!("{PROGRAM} {how} --scenario {}", file.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_command_that_is_exact_is_told() {
        let mut chaos = scenarios::by_name("chaos").expect("it is there");
        chaos.seed = 7;
        assert_eq!(
            command(&chaos, Layer::Processes, None),
            format!("{PROGRAM} run --layer processes --scenario chaos --seed 7")
        );
        let drawn = generate::schedule(9, Layer::Simulation, 12_000);
        assert_eq!(
            command(&drawn, Layer::Simulation, None),
            format!("{PROGRAM} sim --seed 9 --load 12000ms")
        );
        chaos.steps.pop();
        assert_eq!(
            command(&chaos, Layer::Simulation, Some(Path::new("runs/one"))),
            format!("{PROGRAM} sim --scenario runs/one/schedule.json")
        );
    }
}
