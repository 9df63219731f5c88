//! The numbers that a schedule gives to its workload.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};

/// Takes parameters by name, each with a default. What is left over was misspelt.
#[derive(Debug)]
pub(crate) struct Parameters<'a> {
    workload: &'a str,
    given: &'a BTreeMap<String, u64>,
    known: Vec<&'static str>,
    faults: Vec<String>,
}

impl<'a> Parameters<'a> {
    pub(crate) fn new(workload: &'a str, given: &'a BTreeMap<String, u64>) -> Self {
        Self {
            workload,
            given,
            known: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// A number.
    pub(crate) fn number<N: TryFrom<u64> + Copy>(&mut self, name: &'static str, default: N) -> N {
        self.known.push(name);
        let Some(&given) = self.given.get(name) else {
            return default;
        };
        N::try_from(given).unwrap_or_else(|_| {
            self.faults.push(format!("{name} = {given} is too large"));
            default
        })
    }

    /// A time, in milliseconds.
    pub(crate) fn time(&mut self, name: &'static str, default: Duration) -> Duration {
        let default = u64::try_from(default.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.number(name, default))
    }

    /// Insists that every one that was given is known and fits.
    pub(crate) fn finish(self) -> Result<()> {
        let Self { workload, known, .. } = &self;
        let unknown = self.given.keys().find(|name| !known.contains(&name.as_str()));
        ensure!(
            unknown.is_none(),
            "workload {workload} has no parameter {}; it has {}",
            unknown.map_or("", String::as_str),
            known.join(", ")
        );
        ensure!(
            self.faults.is_empty(),
            "workload {workload}: {}",
            self.faults.join(", ")
        );
        Ok(())
    }
}
