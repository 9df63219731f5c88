//! Makes a schedule that fails smaller, so that what is left of it says why.
//!
//! Whoever calls says what failing means: a trial carries a candidate out, as often as its layer needs, and tells
//! whether the same promise was broken. The passes are, each on what the one before left:
//!
//! 1. the load ends earlier, by bisection, and steps that would come after its end are gone;
//! 2. steps are taken out, by delta debugging (Zeller and Hildebrandt, *Simplifying and Isolating
//!    Failure-Inducing Input*, 2002), no steps at all first;
//! 3. there are fewer nodes;
//! 4. parameters and settings are their defaults, and there are fewer clients;
//! 5. single faults are undone earlier.
//!
//! They begin again until a round changes nothing, so the result is *1-minimal*: no single step, parameter or
//! setting of it can go. A candidate is tried once. Because trials are what costs, their number is bounded.
//!
//! A step that means [the nodes of the step before](Target::Same) keeps its meaning when that step goes: it
//! takes its target over, or, where that cannot be said ([the nodes after those](Target::Next)), it goes too.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use crate::schedule::{Schedule, Step, Target};

/// The load is bisected until what is left to gain is at most this part of the whole.
const LOAD_PART_MIN: u64 = 16;
/// No load and no fault is made shorter than this.
const LASTS_MS_MIN: u64 = 50;
/// Parameters of workloads that say how many clients there are, and the fewest that make sense.
const CLIENTS: [(&str, u64); 5] = [
    ("publishers", 1),
    ("consumers", 1),
    ("pullers", 1),
    ("readers", 1),
    ("holders", 2),
];

/// What became of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shrunk {
    /// The smallest that was found to fail. Its [`evidence`](Schedule::evidence) is that of the whole one.
    pub schedule: Schedule,
    /// How many candidates were tried.
    pub trials: u32,
    /// What is gone or smaller, in words, in the order in which that was found.
    pub removed: Vec<String>,
    /// Nothing more can go; else the trials were used up before that was known.
    pub minimal: bool,
}

/// The smallest schedule that fails and that so many trials find.
///
/// A candidate that the layer cannot carry out at all, because the workload has no such parameter, does not
/// fail: `Ok(false)`.
///
/// # Errors
///
/// When a trial cannot be made, or the schedule does not fail as it is.
pub fn shrink(
    schedule: &Schedule,
    trials_max: u32,
    fails: impl FnMut(&Schedule) -> Result<bool>,
) -> Result<Shrunk> {
    let mut search = Search {
        fails,
        trials: 0,
        trials_max,
        tried: BTreeSet::new(),
        too_short_ms: 0,
        load_gap_ms: (schedule.load_ms / LOAD_PART_MIN).max(LASTS_MS_MIN),
        best: schedule.clone(),
        removed: Vec::new(),
    };
    ensure!(
        search.try_out(schedule.clone())?,
        "{} does not fail as it is",
        schedule.name
    );
    loop {
        let before = search.best.clone();
        search.shorten_load()?;
        search.drop_steps()?;
        search.drop_nodes()?;
        search.simplify()?;
        search.shorten_faults()?;
        if search.best == before || search.is_over() {
            break;
        }
    }
    Ok(Shrunk {
        minimal: !search.is_over(),
        schedule: search.best,
        trials: search.trials,
        removed: search.removed,
    })
}

struct Search<F> {
    fails: F,
    trials: u32,
    trials_max: u32,
    /// Candidates that were tried, as JSON.
    tried: BTreeSet<String>,
    /// A load that was too short, if only because the trials were unlucky: it is not tried again.
    too_short_ms: u64,
    /// The bisection of the load ends here.
    load_gap_ms: u64,
    best: Schedule,
    removed: Vec<String>,
}

impl<F: FnMut(&Schedule) -> Result<bool>> Search<F> {
    fn is_over(&self) -> bool {
        self.trials >= self.trials_max
    }

    /// Whether the candidate fails; if so, it is the best from here on. What was tried before did not.
    fn try_out(&mut self, candidate: Schedule) -> Result<bool> {
        if self.is_over() || !self.tried.insert(serde_json::to_string(&candidate)?) {
            return Ok(false);
        }
        self.trials += 1;
        let fails = (self.fails)(&candidate)?;
        if fails {
            self.best = candidate;
        }
        Ok(fails)
    }

    /// The same, and says what was gained.
    fn gain(&mut self, candidate: Schedule, gained: impl FnOnce() -> String) -> Result<bool> {
        let fails = self.try_out(candidate)?;
        if fails {
            self.removed.push(gained());
        }
        Ok(fails)
    }

    fn shorten_load(&mut self) -> Result<()> {
        while self.best.load_ms - self.too_short_ms > self.load_gap_ms && !self.is_over() {
            let load_ms = self.too_short_ms + (self.best.load_ms - self.too_short_ms) / 2;
            let mut shorter = self.best.clone();
            shorter.load_ms = load_ms;
            shorter.steps.retain(|step| step.at_ms < load_ms);
            let fewer = self.best.steps.len() - shorter.steps.len();
            let gained = || format!("the load after {load_ms} ms, with {fewer} steps");
            if !self.gain(shorter, gained)? {
                self.too_short_ms = load_ms;
            }
        }
        Ok(())
    }

    /// `ddmin`: takes out as many steps at once as goes, and single ones in the end.
    fn drop_steps(&mut self) -> Result<()> {
        self.try_steps(|_| false)?;
        let mut parts = 2;
        while self.best.steps.len() > 1 && !self.is_over() {
            let count = self.best.steps.len();
            parts = parts.min(count);
            if self.keep_or_drop_a_part(parts)? {
                parts = if self.best.steps.len() * 2 < count {
                    2
                } else {
                    (parts - 1).max(2)
                };
            } else if parts == count {
                break;
            } else {
                parts *= 2;
            }
        }
        Ok(())
    }

    /// Keeps one of so many parts of the steps, or all but one.
    fn keep_or_drop_a_part(&mut self, parts: usize) -> Result<bool> {
        let count = self.best.steps.len();
        let bounds = |part: usize| part * count / parts..(part + 1) * count / parts;
        for part in 0..parts {
            if self.try_steps(|place| bounds(part).contains(&place))? {
                return Ok(true);
            }
        }
        for part in 0..parts {
            if self.try_steps(|place| !bounds(part).contains(&place))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn try_steps(&mut self, keep: impl Fn(usize) -> bool) -> Result<bool> {
        let steps = some_of(&self.best.steps, keep);
        let fewer = self.best.steps.len() - steps.len();
        let candidate = Schedule {
            steps,
            ..self.best.clone()
        };
        if fewer == 0 {
            return Ok(false);
        }
        let left = candidate.steps.len();
        self.gain(candidate, || format!("{fewer} steps, {left} are left"))
    }

    fn drop_nodes(&mut self) -> Result<()> {
        for nodes in (3..self.best.nodes).step_by(2) {
            let named = self.best.steps.iter().any(|step| match &step.target {
                Target::Node(node) => *node >= nodes,
                Target::Nodes(named) => named.iter().any(|&node| node >= nodes),
                _ => false,
            });
            let smaller = Schedule {
                nodes,
                ..self.best.clone()
            };
            if !named && self.gain(smaller, || format!("all but {nodes} nodes"))? {
                break;
            }
        }
        Ok(())
    }

    fn simplify(&mut self) -> Result<()> {
        for (name, value) in self.best.workload.parameters.clone() {
            if CLIENTS.contains(&(name.as_str(), value)) {
                continue; // fewer than by default
            }
            let mut simpler = self.best.clone();
            simpler.workload.parameters.remove(&name);
            self.gain(simpler, || format!("parameter {name} = {value}"))?;
        }
        for (name, value) in self.best.settings.clone() {
            let mut simpler = self.best.clone();
            simpler.settings.remove(&name);
            self.gain(simpler, || format!("setting {name} = {value}"))?;
        }
        for (name, count) in CLIENTS {
            let mut fewer = self.best.clone();
            let before = fewer.workload.parameters.insert(name.to_owned(), count);
            if before.is_none_or(|before| before > count) {
                self.gain(fewer, || format!("all but {count} of {name}"))?;
            }
        }
        Ok(())
    }

    fn shorten_faults(&mut self) -> Result<()> {
        for place in 0..self.best.steps.len() {
            while let Some(shorter) = undone_earlier(&self.best, place) {
                let Step { at_ms, fault, .. } = &shorter.steps[place];
                let name = format!("the second half of {} at {at_ms} ms", fault.name());
                if !self.gain(shorter, || name)? {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// The schedule with one fault that lasts half as long; `None` if it is short, or over at once.
fn undone_earlier(schedule: &Schedule, place: usize) -> Option<Schedule> {
    let mut shorter = schedule.clone();
    let load_ms = shorter.load_ms;
    let step = shorter.steps.get_mut(place)?;
    if !step.fault.lasts() {
        return None;
    }
    let lasts_ms = step.undo_at_ms.unwrap_or(load_ms).saturating_sub(step.at_ms);
    if lasts_ms < 2 * LASTS_MS_MIN {
        return None;
    }
    step.undo_at_ms = Some(step.at_ms + lasts_ms / 2);
    Some(shorter)
}

/// Whom a step means: the nodes of the step at `anchor`, each moved on so many times.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Meaning {
    anchor: usize,
    moved: usize,
}

/// Those of the steps that are to be kept and whose target can still be said. Each means whom it meant before.
#[must_use]
pub fn some_of(steps: &[Step], keep: impl Fn(usize) -> bool) -> Vec<Step> {
    let mut kept = Vec::new();
    // Of the step before, in the whole schedule and in what is kept of it.
    let (mut before, mut kept_before): (Option<Meaning>, Option<Meaning>) = (None, None);
    for (place, step) in steps.iter().enumerate() {
        if step.fault.is_of_workers() {
            if keep(place) {
                kept.push(step.clone());
            }
            continue;
        }
        let meaning = match (&step.target, before) {
            (Target::Same, Some(meaning)) => meaning,
            (Target::Next, Some(meaning)) => Meaning {
                moved: meaning.moved + 1,
                ..meaning
            },
            _ => Meaning {
                anchor: place,
                moved: 0,
            },
        };
        before = Some(meaning);
        if keep(place)
            && let Some(target) = target(steps, meaning, kept_before)
        {
            kept.push(Step {
                target,
                ..step.clone()
            });
            kept_before = Some(meaning);
        }
    }
    kept
}

/// How to say this after a step that means that, if it can be said.
fn target(steps: &[Step], meaning: Meaning, before: Option<Meaning>) -> Option<Target> {
    match before.filter(|before| before.anchor == meaning.anchor) {
        Some(before) if before.moved == meaning.moved => Some(Target::Same),
        Some(before) if before.moved + 1 == meaning.moved => Some(Target::Next),
        Some(_) => None,
        None => (meaning.moved == 0).then(|| steps[meaning.anchor].target.clone()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::schedule::{Evidence, Fault, Workload};

    fn step(at_ms: u64, fault: Fault, target: Target) -> Step {
        let undo_at_ms = fault.lasts().then_some(at_ms + 1_000);
        Step {
            at_ms,
            fault,
            target,
            undo_at_ms,
        }
    }

    fn schedule(steps: Vec<Step>) -> Schedule {
        Schedule {
            name: "long".to_owned(),
            about: String::new(),
            seed: 7,
            nodes: 7,
            load_ms: 20_000,
            heal_ms: 30_000,
            workload: Workload {
                name: "queue".to_owned(),
                parameters: BTreeMap::from([("lease_ms".to_owned(), 700), ("window".to_owned(), 3)]),
            },
            settings: BTreeMap::from([("heartbeat".to_owned(), "50ms".to_owned())]),
            steps,
            evidence: Evidence::default(),
        }
    }

    /// Steps that are told apart by the number in their fault.
    fn numbered(count: u64) -> Vec<Step> {
        let one = |number| {
            step(
                1_000 + 100 * number,
                Fault::SlowSync { ms: number },
                Target::Leader,
            )
        };
        (0..count).map(one).collect()
    }

    fn numbers(schedule: &Schedule) -> BTreeSet<u64> {
        let number = |step: &Step| match step.fault {
            Fault::SlowSync { ms } => Some(ms),
            _ => None,
        };
        schedule.steps.iter().filter_map(number).collect()
    }

    #[test]
    fn what_does_not_matter_goes_and_what_does_stays() -> Result<()> {
        let whole = schedule(numbered(100));
        let shrunk = shrink(&whole, 1_000, |candidate| {
            let parameters = &candidate.workload.parameters;
            Ok(numbers(candidate).is_superset(&BTreeSet::from([17, 61]))
                && candidate.load_ms >= 9_000
                && candidate.nodes >= 5
                && parameters.contains_key("lease_ms")
                && parameters.get("pullers") != Some(&1)
                && !parameters.contains_key("holders")
                && !parameters.contains_key("readers")
                && candidate
                    .steps
                    .iter()
                    .all(|step| step.undo_at_ms >= Some(step.at_ms + 200)))
        })?;
        let least = &shrunk.schedule;
        assert_eq!(numbers(least), BTreeSet::from([17, 61]));
        assert!((9_000..10_300).contains(&least.load_ms), "{}", least.load_ms);
        assert_eq!(least.nodes, 5);
        let names: Vec<&str> = least.workload.parameters.keys().map(String::as_str).collect();
        assert_eq!(names, ["consumers", "lease_ms", "publishers"]);
        assert!(least.settings.is_empty());
        for step in &least.steps {
            assert_eq!(step.undo_at_ms, Some(step.at_ms + 250));
        }
        assert!(shrunk.minimal && shrunk.trials < 120, "{} trials", shrunk.trials);
        assert!(!shrunk.removed.is_empty());
        Ok(())
    }

    #[test]
    fn a_failure_without_any_fault_needs_no_search_for_steps() -> Result<()> {
        let shrunk = shrink(&schedule(numbered(100)), 1_000, |candidate| {
            Ok(candidate.load_ms >= 15_000)
        })?;
        assert!(shrunk.schedule.steps.is_empty());
        assert!(shrunk.trials < 40, "{} trials", shrunk.trials);
        Ok(())
    }

    #[test]
    fn trials_are_bounded_and_what_was_found_by_then_is_kept() -> Result<()> {
        let mut trials = 0;
        let shrunk = shrink(&schedule(numbered(100)), 20, |candidate| {
            trials += 1;
            Ok(numbers(candidate).is_superset(&BTreeSet::from([3, 99])))
        })?;
        assert_eq!((trials, shrunk.trials, shrunk.minimal), (20, 20, false));
        assert!(numbers(&shrunk.schedule).is_superset(&BTreeSet::from([3, 99])));
        assert!(shrunk.schedule.steps.len() < 100);
        Ok(())
    }

    #[test]
    fn what_does_not_fail_and_what_cannot_be_tried_is_an_error() {
        let whole = schedule(numbered(2));
        assert!(shrink(&whole, 10, |_| Ok(false)).is_err());
        assert!(shrink(&whole, 10, |_| anyhow::bail!("the disk is full")).is_err());
    }

    #[test]
    fn a_named_node_is_not_taken_away() -> Result<()> {
        let whole = schedule(vec![step(1_000, Fault::Pause, Target::Nodes(vec![0, 4]))]);
        let shrunk = shrink(&whole, 100, |candidate| Ok(!candidate.steps.is_empty()))?;
        assert_eq!(shrunk.schedule.nodes, 5);
        Ok(())
    }

    #[test]
    fn a_step_that_refers_to_another_keeps_its_meaning_or_goes() {
        use Target::{Follower, Leader, Next, Same};
        let targets =
            |steps: &[Step]| -> Vec<Target> { steps.iter().map(|one| one.target.clone()).collect() };
        let of = |all: &[Target]| -> Vec<Step> {
            (1..)
                .zip(all)
                .map(|(at_ms, target)| step(at_ms, Fault::Pause, target.clone()))
                .collect()
        };
        let steps = of(&[Leader, Same, Next, Next, Follower, Same]);
        for (without, left) in [
            (vec![], vec![Leader, Same, Next, Next, Follower, Same]),
            (vec![0], vec![Leader, Next, Next, Follower, Same]),
            (vec![1], vec![Leader, Next, Next, Follower, Same]),
            (vec![0, 1], vec![Follower, Same]),
            (vec![2], vec![Leader, Same, Follower, Same]),
            (vec![3], vec![Leader, Same, Next, Follower, Same]),
            (vec![4], vec![Leader, Same, Next, Next, Follower]),
            (vec![0, 1, 2, 3, 4], vec![Follower]),
        ] {
            let kept = some_of(&steps, |place| !without.contains(&place));
            assert_eq!(targets(&kept), left, "without {without:?}");
        }
        // Workers are no nodes: what comes after them refers to the step before.
        let mut steps = of(&[Leader, Leader, Same]);
        steps[1].fault = Fault::NackStorm;
        assert_eq!(targets(&some_of(&steps, |place| place != 0)), [Leader, Leader]);
        assert_eq!(targets(&some_of(&steps, |place| place != 1)), [Leader, Same]);
        // One that refers to nothing goes on doing so.
        assert_eq!(targets(&some_of(&of(&[Same, Leader]), |_| true)), [Same, Leader]);
    }

    prop_compose! {
        /// Some steps, and a few of them on which it depends.
        fn a_case()(count in 1_u64..80)(
            count in Just(count),
            culprits in prop::collection::btree_set(0..count, 0..=4_usize.min(count as usize)),
            targets in prop::collection::vec(0..4_u8, count as usize),
        ) -> (Vec<Step>, BTreeSet<u64>) {
            let mut steps = numbered(count);
            for (step, target) in steps.iter_mut().zip(targets) {
                step.target = match target {
                    0 => Target::Same,
                    1 => Target::Next,
                    2 => Target::Follower,
                    _ => Target::Leader,
                };
            }
            (steps, culprits)
        }
    }

    proptest! {
        #[test]
        fn the_culprits_are_left_and_no_step_can_go((steps, culprits) in a_case()) {
            let whole = schedule(steps);
            let fails = |candidate: &Schedule| numbers(candidate).is_superset(&culprits);
            let shrunk = shrink(&whole, 10_000, |candidate| Ok(fails(candidate))).expect("trials can be made");
            let least = &shrunk.schedule;
            prop_assert!(shrunk.minimal && fails(least));
            for place in 0..least.steps.len() {
                let mut without = least.clone();
                without.steps = some_of(&least.steps, |other| other != place);
                prop_assert!(!fails(&without), "step {place} of {least:?} is not needed");
            }
            // Without references nothing but the culprits is left.
            if !whole.steps.iter().any(|step| step.target == Target::Next) {
                prop_assert_eq!(numbers(least), culprits);
            }
        }

        #[test]
        fn order_matters_to_a_failure_and_is_kept((steps, culprits) in a_case()) {
            // It fails if an even number of culprits is there too: what fails is not monotone.
            let fails = |candidate: &Schedule| {
                let there = numbers(candidate).intersection(&culprits).count();
                there > 0 && there % 2 == culprits.len() % 2
            };
            prop_assume!(!culprits.is_empty());
            let shrunk = shrink(&schedule(steps), 10_000, |candidate| Ok(fails(candidate)));
            let least = shrunk.expect("trials can be made").schedule;
            prop_assert!(fails(&least));
            prop_assert!(least.steps.is_sorted_by_key(|step| step.at_ms));
        }
    }
}
