//! Faults of a broker, made up: does the judge see them?
//!
//! A checker that accepts everything accepts every good run. So each promise is broken on purpose, in a run that kept
//! it: an [`Anomaly`] changes what is stored of the run to what would be stored if the broker had done one wrong
//! thing, and says which promises are then broken. [`Anomaly::inject`] draws where by a seed; [`Anomaly::verify`]
//! holds the judgement against what was expected, in both directions: what must be seen, and what must not.
//!
//! Some anomalies are no fault of the broker but of the run: too little was seen, or the harness failed. They must not
//! be taken for more than that.

use anyhow::{Result, bail, ensure};

use crate::run::Run;
use crate::verdict::{Finding, Results, Verdict};

mod inject;

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug)]
pub struct Anomaly {
    /// What it is called.
    pub name: &'static str,
    /// What must come of it.
    pub expected: Expected,
    inject: fn(&mut Run, &mut Dice) -> Option<()>,
}

/// What a judge must say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The promises `all` are broken; others are not, unless they are among those that `may` be.
    Violated {
        /// Each of them has a finding that is violated.
        all: &'static [&'static str],
        /// So may these: where the anomaly happens to be decides.
        may: &'static [&'static str],
    },
    /// No promise is broken, and this is what the run came to.
    Not(Verdict),
}

/// A log that contradicts itself breaks what is decided by replaying it, each promise that looks at that message.
const LOG: &[&str] = &[
    "I3", "I5", "I7", "I9", "I11", "I13", "I14", "I15", "I16", "I17", "I26",
];

/// All of them.
pub const ANOMALIES: [Anomaly; 37] = [
    violated("lost-publish", inject::lost_publish, &["I1"], &["I13"]),
    violated("phantom", inject::phantom, &["I2"], &[]),
    violated("corrupted-body", inject::corrupted_body, &["I2"], &[]),
    violated("wrong-queue", inject::wrong_queue, &["I2"], &["I5", "I6", "I13"]),
    violated(
        "second-lease",
        inject::second_lease,
        &["I2", "I3", "I4", "I9"],
        &["I5"],
    ),
    violated("one-fence-twice", inject::one_fence_twice, &["I3"], &[]),
    violated("ack-not-final", inject::ack_not_final, &["I2", "I3", "I4"], &[]),
    violated("attempt-skipped", inject::attempt_skipped, &["I2", "I5"], &[]),
    violated(
        "attempt-over-limit",
        inject::attempt_over_limit,
        &["I2", "I5"],
        &[],
    ),
    violated(
        "first-deliveries-swapped",
        inject::first_deliveries_swapped,
        &["I2", "I6"],
        &[],
    ),
    violated(
        "publisher-overtakes-itself",
        inject::publisher_overtakes_itself,
        &["I6"],
        &["I1", "I7"],
    ),
    violated(
        "duplicate-applied",
        inject::duplicate_applied,
        &["I2", "I7"],
        &["I1", "I13"],
    ),
    violated(
        "torn-transaction",
        inject::torn_transaction,
        &["I8"],
        &["I1", "I9", "I12"],
    ),
    violated(
        "stale-token-accepted",
        inject::stale_token_accepted,
        &["I9"],
        &["I1", "I3", "I4", "I5", "I13"],
    ),
    violated("replica-diverges", inject::replica_diverges, &["I10"], &[]),
    violated("stale-read", inject::stale_read, &["I11"], &[]),
    violated(
        "index-against-real-time",
        inject::index_against_real_time,
        &["I12"],
        &["I11"],
    ),
    violated("counts-wrong", inject::counts_wrong, &["I13"], &[]),
    violated("time-goes-back", inject::time_goes_back, &["I14"], &["I5", "I15"]),
    violated("early-expiry", inject::early_expiry, &["I3"], &["I2", "I5"]),
    violated(
        "early-delivery",
        inject::early_delivery,
        &["I15"],
        &["I2", "I3", "I14"],
    ),
    violated(
        "late-delivery",
        inject::late_delivery,
        &["I15"],
        &["I2", "I3", "I14"],
    ),
    violated(
        "refused-is-applied",
        inject::refused_is_applied,
        &["I18"],
        &["I1", "I13", "I16"],
    ),
    violated("late-effect", inject::late_effect, &["I18"], &[]),
    violated("confirmed-not-in-log", inject::confirmed_not_in_log, &["I1"], LOG),
    violated("ack-not-in-log", inject::ack_not_in_log, &["I1"], LOG),
    violated(
        "leased-while-leased",
        inject::leased_while_leased,
        &["I3", "I5"],
        LOG,
    ),
    violated("leased-after-ack", inject::leased_after_ack, &["I4", "I5"], LOG),
    violated("stuck-after-heal", inject::stuck_after_heal, &["I24"], &[]),
    violated(
        "given-to-the-dead",
        inject::given_to_the_dead,
        &["I24"],
        &["I11", "I12"],
    ),
    violated("crash", inject::crash, &["I25"], &[]),
    not("idle-fault", inject::idle_fault, Verdict::Unknown),
    not("thin-evidence", inject::thin_evidence, Verdict::Unknown),
    not("nothing-is-known", inject::nothing_is_known, Verdict::Unknown),
    not("harness-failure", inject::harness_failure, Verdict::Harness),
    not("answer-lost", inject::answer_lost, Verdict::Valid),
    not("log-lost", inject::log_lost, Verdict::Valid),
];

const fn violated(
    name: &'static str,
    inject: fn(&mut Run, &mut Dice) -> Option<()>,
    all: &'static [&'static str],
    may: &'static [&'static str],
) -> Anomaly {
    Anomaly {
        name,
        expected: Expected::Violated { all, may },
        inject,
    }
}

const fn not(name: &'static str, inject: fn(&mut Run, &mut Dice) -> Option<()>, verdict: Verdict) -> Anomaly {
    Anomaly {
        name,
        expected: Expected::Not(verdict),
        inject,
    }
}

impl Anomaly {
    /// Puts it into a run that is valid, at a place that the seed draws. False = the run has no place for it, and is as
    /// it was.
    pub fn inject(&self, run: &mut Run, seed: u64) -> bool {
        let before = run.clone();
        let done = (self.inject)(run, &mut Dice(seed)).is_some();
        if !done {
            *run = before;
        }
        done
    }

    /// Insists that a judgement of a run with this anomaly is what it must be.
    ///
    /// # Errors
    ///
    /// When it is another one; with what is missing or too much.
    pub fn verify(&self, results: &Results) -> Result<()> {
        let violated = results
            .findings
            .iter()
            .filter(|one| one.verdict == Verdict::Violated);
        let found: Vec<&str> = violated.map(|one| one.invariant.as_str()).collect();
        let (verdict, all, may) = match self.expected {
            Expected::Violated { all, may } => (Verdict::Violated, all, may),
            Expected::Not(verdict) => (verdict, &[][..], &[][..]),
        };
        let name = self.name;
        for promise in all {
            ensure!(
                found.contains(promise),
                "{name} breaks {promise}, which was not seen: {found:?}"
            );
        }
        let unexpected = |one: &&Finding| {
            let promise = one.invariant.as_str();
            one.verdict == Verdict::Violated && !all.contains(&promise) && !may.contains(&promise)
        };
        if let Some(finding) = results.findings.iter().find(unexpected) {
            let Finding {
                invariant, witnesses, ..
            } = finding;
            bail!("{name} does not break {invariant} (of {found:?}): {witnesses:?}");
        }
        let (is, notes) = (results.verdict, &results.notes);
        ensure!(is == verdict, "{name} makes a run {verdict}, not {is}: {notes:?}");
        Ok(())
    }
}

/// Numbers that follow from a seed: splitmix64.
#[derive(Clone, Copy, Debug)]
struct Dice(u64);

impl Dice {
    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of these; `None` of none.
    fn pick<T>(&mut self, from: impl IntoIterator<Item = T>) -> Option<T> {
        let mut from: Vec<T> = from.into_iter().collect();
        let count = u64::try_from(from.len()).ok().filter(|&count| count > 0)?;
        let place = usize::try_from(self.number() % count).ok()?;
        Some(from.swap_remove(place))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::judge::judge;

    const SEEDS: u64 = 20;

    const SAMPLES: [&str; 5] = ["queue", "chain", "dedup-retry", "delay", "stats"];

    /// A run of the simulator with this workload and a leader that was killed.
    fn sample(workload: &str) -> Run {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples");
        Run::read(&folder.join(format!("run-{workload}"))).expect("a sample can be read")
    }

    /// All anomalies are seen in the run of this workload, wherever they are.
    fn all_are_seen(workload: &str) {
        let sample = sample(workload);
        let results = judge(&sample);
        assert_eq!(results.verdict, Verdict::Valid, "as it is: {:?}", results.notes);
        let mut broken = Vec::new();
        for anomaly in ANOMALIES {
            for seed in 0..SEEDS {
                let mut run = sample.clone();
                if anomaly.inject(&mut run, seed)
                    && let Err(error) = anomaly.verify(&judge(&run))
                {
                    broken.push(format!("seed {seed}: {error}"));
                }
            }
        }
        assert!(
            broken.is_empty(),
            "{} are wrong:\n{}",
            broken.len(),
            broken.join("\n")
        );
    }

    #[test]
    fn all_are_seen_in_a_queue() {
        all_are_seen("queue");
    }

    #[test]
    fn all_are_seen_in_a_chain() {
        all_are_seen("chain");
    }

    #[test]
    fn all_are_seen_where_publishes_are_repeated() {
        all_are_seen("dedup-retry");
    }

    #[test]
    fn all_are_seen_where_messages_have_their_time() {
        all_are_seen("delay");
    }

    #[test]
    fn all_are_seen_where_queues_are_read() {
        all_are_seen("stats");
    }

    #[test]
    fn there_is_a_place_for_every_anomaly() {
        let samples = SAMPLES.map(sample);
        for anomaly in ANOMALIES {
            let has_place = |run: &Run| (0..SEEDS).any(|seed| anomaly.inject(&mut run.clone(), seed));
            assert!(samples.iter().any(has_place), "{}", anomaly.name);
        }
    }

    #[test]
    fn a_run_without_a_place_stays_as_it_was() {
        let mut run = sample("queue");
        let history = run.history.clone();
        let torn = ANOMALIES
            .iter()
            .find(|anomaly| anomaly.name == "torn-transaction");
        assert!(!torn.expect("it is one of them").inject(&mut run, 1));
        assert_eq!(run.history, history);
    }

    #[test]
    fn a_judge_that_sees_nothing_or_too_much_is_refused() {
        let run = sample("queue");
        let valid = judge(&run);
        let mut crashed = run;
        crashed.facts.crashes.push("a panic".to_owned());
        let crashed = judge(&crashed);
        for anomaly in ANOMALIES {
            let must = anomaly.expected == Expected::Not(Verdict::Valid);
            assert_eq!(anomaly.verify(&valid).is_ok(), must, "{}", anomaly.name);
            assert_eq!(
                anomaly.verify(&crashed).is_ok(),
                anomaly.name == "crash",
                "{}",
                anomaly.name
            );
        }
    }
}
