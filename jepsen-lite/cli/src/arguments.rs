//! Values of arguments that several commands have.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use jepsen_lite_workload::generate;

/// Where a schedule is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layer {
    /// The whole cluster in one thread, in simulated time.
    Sim,
    /// Real processes on this machine.
    #[value(alias = "proc")]
    Processes,
    /// The shipped image under a container engine.
    #[value(alias = "docker")]
    Containers,
}

/// Seeds from the first on; without an end, as many as there is time for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seeds {
    pub(crate) from: u64,
    pub(crate) to: Option<u64>,
}

impl From<Layer> for generate::Layer {
    fn from(layer: Layer) -> Self {
        match layer {
            Layer::Sim => Self::Simulation,
            Layer::Processes => Self::Processes,
            Layer::Containers => Self::Containers,
        }
    }
}

impl Seeds {
    /// Those of `A..B`, or of `A..`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let (from, to) = text.split_once("..").context("seeds are A..B, or A..")?;
        let number = |text: &str| {
            let parsed = text.parse::<u64>();
            parsed.with_context(|| format!("{text:?} is no seed"))
        };
        let from = number(from)?;
        let to = (!to.is_empty()).then(|| number(to)).transpose()?;
        ensure!(to.is_none_or(|to| from < to), "there is no seed in {text}");
        Ok(Self { from, to })
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = u64> {
        self.from..self.to.unwrap_or(u64::MAX)
    }
}

/// `20s`, `500ms`, `20m`: more than nothing.
pub(crate) fn duration(text: &str) -> Result<Duration> {
    let duration = humantime::parse_duration(text)?;
    ensure!(!duration.is_zero(), "no time at all");
    Ok(duration)
}

/// In whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_read() {
        let seeds = |text| Seeds::parse(text).map(|seeds| (seeds.from, seeds.to)).ok();
        assert_eq!(seeds("3..5"), Some((3, Some(5))));
        assert_eq!(seeds("3.."), Some((3, None)));
        for wrong in ["3", "5..5", "..5", "a..b", ""] {
            assert_eq!(seeds(wrong), None, "{wrong}");
        }
    }
}
