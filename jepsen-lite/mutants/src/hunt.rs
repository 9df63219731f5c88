//! Looks for each mutant until what it breaks is found broken, and sees to it that
//! the same seeds find nothing without it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::table::{Hunt, Layer, Mutant};
use crate::trial::{Found, Programs};

/// How a hunt ended.
#[derive(Clone, Debug)]
pub struct Catch {
    /// The mutant.
    pub mutant: &'static Mutant,
    /// How it was looked for.
    pub hunt: &'static Hunt,
    /// What came of it.
    pub end: End,
    /// Seeds that were run.
    pub seeds: u64,
    /// How long that took.
    pub took: Duration,
}

/// What came of a hunt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// By these of the invariants that it must break.
    Caught(BTreeSet<String>),
    /// Something was broken, but nothing of what it must break; or only that
    /// nothing crashes (I25), which any fault can be blind luck away from.
    CaughtAs(BTreeSet<String>),
    /// Nothing was found within the budget.
    Survived(Option<String>),
    /// The same seed found something without the mutant too.
    NotClean(u64, BTreeSet<String>),
}

impl Catch {
    /// Whether the suite can be said to find it.
    #[must_use]
    pub fn is_caught(&self) -> bool {
        matches!(self.end, End::Caught(_))
    }
}

/// `power-loss-all, I1 I10 after 2 seeds, 3.1 s`.
impl fmt::Display for Catch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |broken: &BTreeSet<String>| broken.iter().cloned().collect::<Vec<_>>().join(" ");
        let end = match &self.end {
            End::Caught(broken) => list(broken),
            End::CaughtAs(broken) => format!("NOT CAUGHT: only {} is broken", list(broken)),
            End::Survived(None) => "SURVIVED".to_owned(),
            End::Survived(Some(trouble)) => format!("SURVIVED: {trouble}"),
            End::NotClean(seed, broken) => {
                format!("NOT CLEAN: seed {seed} breaks {} without it", list(broken))
            }
        };
        let scenario = match self.hunt.scenario {
            "" => "random",
            scenario => scenario,
        };
        write!(
            f,
            "{:<26} {} {:<32} {:>4} {:>7.1} s  {end}",
            self.mutant.name,
            self.hunt.layer.letter(),
            scenario,
            self.seeds,
            self.took.as_secs_f64(),
        )
    }
}

/// Whoever runs hunts. Remembers which seeds are clean.
pub struct Hunter<R> {
    run: R,
    clean: BTreeMap<(Layer, &'static str, u64), Found>,
}

impl Hunter<Box<dyn FnMut(&Hunt, u64, Option<&str>) -> Result<Found>>> {
    /// Runs programs.
    #[must_use]
    pub fn of_programs(programs: Programs) -> Self {
        Self::new(Box::new(move |hunt, seed, mutant| {
            programs.run(hunt, seed, mutant)
        }))
    }
}

impl<R: FnMut(&Hunt, u64, Option<&str>) -> Result<Found>> Hunter<R> {
    /// Runs seeds by a function: the hunt, the seed, the mutant.
    pub fn new(run: R) -> Self {
        let clean = BTreeMap::new();
        Self { run, clean }
    }

    /// Looks for a mutant in one way: seed after seed, until it is found or the
    /// budget is used up. Then the seeds that found something are run without it.
    ///
    /// # Errors
    ///
    /// If a run cannot be started.
    pub fn hunt(&mut self, mutant: &'static Mutant, hunt: &'static Hunt) -> Result<Catch> {
        let began = Instant::now();
        let budget = Duration::from_secs(hunt.seconds);
        let (mut seeds, mut others, mut trouble) = (0, BTreeSet::new(), None);
        let mut end = None;
        let mut telling = Vec::new();
        while end.is_none() && seeds < hunt.seeds && began.elapsed() < budget {
            let seed = seeds;
            seeds += 1;
            let found = (self.run)(hunt, seed, Some(mutant.name))?;
            let is_expected = |number: &&String| mutant.breaks.contains(&number.as_str());
            let expected: BTreeSet<String> = found.broken.iter().filter(is_expected).cloned().collect();
            if !found.broken.is_empty() {
                telling.push(seed);
            }
            others.extend(found.broken);
            trouble = found.trouble.or(trouble);
            if !expected.is_empty() {
                end = Some(End::Caught(expected));
            }
        }
        let took = began.elapsed();
        let end = end.unwrap_or(if others.is_empty() {
            End::Survived(trouble)
        } else {
            End::CaughtAs(others)
        });
        let end = match self.first_unclean(hunt, &telling)? {
            Some((seed, broken)) => End::NotClean(seed, broken),
            None => end,
        };
        Ok(Catch {
            mutant,
            hunt,
            end,
            seeds,
            took,
        })
    }

    fn first_unclean(
        &mut self,
        hunt: &'static Hunt,
        seeds: &[u64],
    ) -> Result<Option<(u64, BTreeSet<String>)>> {
        for seed in seeds {
            let key = (hunt.layer, hunt.scenario, *seed);
            if !self.clean.contains_key(&key) {
                let found = (self.run)(hunt, *seed, None)?;
                self.clean.insert(key, found);
            }
            let mut broken = self.clean[&key].broken.clone();
            broken.extend(self.clean[&key].trouble.clone());
            if !broken.is_empty() {
                return Ok(Some((*seed, broken)));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static HUNT: Hunt = Hunt {
        layer: Layer::Simulation,
        scenario: "none",
        seeds: 5,
        seconds: 60,
    };
    static MUTANT: Mutant = Mutant {
        name: "some",
        does: "something",
        breaks: &["I1", "I10"],
        hunts: &[HUNT],
    };

    /// Hunts where seeds with the mutant, and without, break these.
    fn hunt(with: &'static [&'static [&'static str]], without: &'static [&'static str]) -> Catch {
        let run = |_: &Hunt, seed: u64, mutant: Option<&str>| {
            let broken = match mutant {
                Some(_) => with.get(usize::try_from(seed)?).copied().unwrap_or_default(),
                None => without,
            };
            let broken = broken.iter().map(|&number| number.to_owned()).collect();
            Ok(Found {
                broken,
                trouble: None,
            })
        };
        Hunter::new(run).hunt(&MUTANT, &HUNT).unwrap()
    }

    fn numbers(numbers: &[&str]) -> BTreeSet<String> {
        numbers.iter().map(|&number| number.to_owned()).collect()
    }

    #[test]
    fn it_ends_with_the_first_seed_that_breaks_what_it_must() {
        let caught = hunt(&[&[], &["I25"], &["I10", "I25"], &["I1"]], &[]);
        assert_eq!(
            (caught.end.clone(), caught.seeds),
            (End::Caught(numbers(&["I10"])), 3)
        );
        assert!(caught.is_caught());
    }

    #[test]
    fn what_is_not_found_within_its_seeds_has_survived() {
        let survived = hunt(&[], &[]);
        assert_eq!((survived.end.clone(), survived.seeds), (End::Survived(None), 5));
        assert!(!survived.is_caught());
    }

    #[test]
    fn a_crash_alone_is_no_catch() {
        assert_eq!(hunt(&[&["I25"]], &[]).end, End::CaughtAs(numbers(&["I25"])));
    }

    #[test]
    fn what_is_found_without_it_too_is_no_catch() {
        let caught = hunt(&[&["I1"]], &["I1"]);
        assert_eq!(caught.end, End::NotClean(0, numbers(&["I1"])));
    }
}
