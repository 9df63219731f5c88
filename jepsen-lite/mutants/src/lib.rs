//! Proof that the suite can fail.
//!
//! The product holds deliberate faults, *mutants*, behind a switch that no normal
//! build has ([`quorate-mutants`](../quorate_mutants/index.html)). Each stands in a
//! [table] with the invariants that it must break, the layers on which that must be
//! seen, and a budget. A [hunt](hunt::Hunter) runs seed after seed with the mutant
//! until one of these invariants is found broken, and then the same seeds without
//! it, which must find nothing. A mutant that survives its budget fails the suite,
//! and so does one that is noticed only because a node crashed.
//!
//! What it leaves out: how a run is done. A run is another process: a test
//! program of a crate (layer 0), a simulated world (a) or `jepsen-lite run` (b).

#![forbid(unsafe_code)]

pub mod build;
pub mod hunt;
pub mod table;
pub mod trial;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use crate::hunt::{Catch, Hunter};
use crate::table::{Layer, MUTANTS, Mutant, NOT_HERE};

/// `jepsen-lite mutants`: proves that the suite finds faults that are known to be there.
#[derive(Args, Clone, Debug, Default)]
pub struct Options {
    /// Only these; all if none is named.
    pub names: Vec<String>,
    /// Only where these layers look: 0 tests of single crates, a simulation, b processes. All of
    /// them unless given.
    #[arg(long, value_delimiter = ',', value_parser = layer)]
    pub layers: Vec<Layer>,
    /// Says what each does, and what must find it; runs nothing.
    #[arg(long)]
    pub list: bool,
    /// Where the sources are, to be built with the faults in them.
    #[arg(long, default_value = ".")]
    pub repository: PathBuf,
}

fn layer(letter: &str) -> Result<Layer, String> {
    let layers = [Layer::Tests, Layer::Simulation, Layer::Processes];
    let found = layers.into_iter().find(|layer| layer.letter() == letter);
    found.ok_or_else(|| "0, a or b".to_owned())
}

/// Runs the command, and prints a table as it goes. True: all were caught.
///
/// # Errors
///
/// If a name is unknown, or a program cannot be built or started.
#[allow(clippy::print_stdout)] // it is a command for people
pub fn run(options: &Options) -> Result<bool> {
    let mutants = chosen(&options.names)?;
    if options.list {
        print!("{}", list(&mutants));
        return Ok(true);
    }
    let looks = |layer: Layer| options.layers.is_empty() || options.layers.contains(&layer);
    let hunts = mutants
        .iter()
        .flat_map(|&mutant| mutant.hunts.iter().map(move |hunt| (mutant, hunt)));
    let hunts: Vec<_> = hunts.filter(|(_, hunt)| looks(hunt.layer)).collect();
    if hunts.is_empty() {
        bail!("none of these is looked for on these layers");
    }
    let layers: Vec<Layer> = hunts.iter().map(|(_, hunt)| hunt.layer).collect();
    let mut hunter = Hunter::of_programs(build::programs(&options.repository, &layers)?);
    println!(
        "{:<26} layer, scenario, seeds, time, what was found broken",
        "mutant"
    );
    let mut catches = Vec::new();
    for (mutant, hunt) in hunts {
        let caught = hunter.hunt(mutant, hunt)?;
        println!("{caught}");
        catches.push(caught);
    }
    let caught = catches.iter().filter(|caught| caught.is_caught()).count();
    println!("{caught} of {} caught", catches.len());
    Ok(catches.iter().all(Catch::is_caught))
}

fn chosen(names: &[String]) -> Result<Vec<&'static Mutant>> {
    if names.is_empty() {
        return Ok(MUTANTS.iter().collect());
    }
    let find = |name: &String| match MUTANTS.iter().find(|mutant| mutant.name == name) {
        Some(mutant) => Ok(mutant),
        None => bail!("there is no mutant {name}: `--list` names them"),
    };
    names.iter().map(find).collect()
}

/// What each does and what must find it, for people.
fn list(mutants: &[&Mutant]) -> String {
    let mut text = String::new();
    for mutant in mutants {
        let layers: Vec<&str> = mutant.hunts.iter().map(|hunt| hunt.layer.letter()).collect();
        let line = format!(
            "{:<26} {:<16} {:<4} {}\n",
            mutant.name,
            mutant.breaks.join(" "),
            layers.join(" "),
            mutant.does
        );
        text.push_str(&line);
    }
    text.push_str("\nOf the plan, and not here:\n");
    for (name, reason) in NOT_HERE {
        text.push_str(&format!("{name}: {reason}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// The names of mutants in the sources below a folder.
    fn names_in_sources(folder: &Path, names: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                names_in_sources(&path, names);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let uses = text.split("mutant!(\"").skip(1);
                names.extend(uses.filter_map(|rest| rest.split_once('"').map(|(name, _)| name.to_owned())));
            }
        }
    }

    #[test]
    fn the_table_names_what_is_in_the_sources() {
        let mut in_sources = BTreeSet::new();
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
        for entry in std::fs::read_dir(crates).unwrap() {
            let folder = entry.unwrap().path();
            if !folder.ends_with("mutants") {
                names_in_sources(&folder.join("src"), &mut in_sources);
            }
        }
        let in_table: BTreeSet<String> = MUTANTS.iter().map(|mutant| mutant.name.to_owned()).collect();
        assert_eq!(in_table, in_sources);
        assert_eq!(in_table.len(), MUTANTS.len(), "a name stands twice");
    }

    #[test]
    fn each_is_looked_for_and_breaks_more_than_that_nothing_crashes() {
        for mutant in MUTANTS {
            assert!(!mutant.hunts.is_empty(), "{}", mutant.name);
            assert!(
                !mutant.breaks.is_empty() && !mutant.breaks.contains(&"I25"),
                "{}",
                mutant.name
            );
            for hunt in mutant.hunts {
                assert!(hunt.seeds > 0 && hunt.seconds > 0, "{}", mutant.name);
                if hunt.layer != Layer::Tests && !hunt.scenario.is_empty() {
                    jepsen_lite_workload::scenarios::by_name(hunt.scenario).unwrap();
                }
            }
        }
    }

    #[test]
    fn a_name_that_nobody_has_is_refused() {
        assert!(chosen(&["no-such".to_owned()]).is_err());
        assert_eq!(chosen(&["skip-fsync".to_owned()]).unwrap()[0].name, "skip-fsync");
    }
}
