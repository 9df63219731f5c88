//! How much many runs must have seen together, to prove something.
//!
//! One run shows one thing, and says by itself whether it was enough. Runs over minutes are to show all of them:
//! for each kind of evidence there is a least rate, far below what a machine with two processors gets.

use jepsen_lite_core::verdict::Verdict;

use crate::table::Sum;

/// By name, and so many in ten minutes.
const IN_TEN_MINUTES: [(&str, u64); 7] = [
    ("confirmed", 20_000),
    ("redelivered", 5_000),
    ("leader_changes", 100),
    ("snapshots_installed", 20),
    ("duplicates", 50),
    ("dead_lettered", 50),
    ("stale_tokens", 200),
];
/// Most operations of unknown outcome, in per cent.
const UNKNOWN_PERCENT_MAX: u64 = 30;
/// Fewest runs that must be valid, in per cent: chance is against some.
const VALID_PERCENT_MIN: u64 = 80;

impl Sum {
    /// What runs came to of which some may have seen too little: violated or harness if one was, valid if nearly
    /// all are.
    pub(crate) fn of_many(&self) -> Verdict {
        match self.gravest() {
            Verdict::Unknown if self.mostly_valid() => Verdict::Valid,
            gravest => gravest,
        }
    }

    fn mostly_valid(&self) -> bool {
        self.runs() > 0 && self.of(Verdict::Valid) * 100 >= self.runs() * VALID_PERCENT_MIN
    }

    /// In what the evidence of so many seconds is too thin; nothing if it is not.
    pub(crate) fn thin(&self, seconds: u64) -> Vec<String> {
        let seen = |name: &str| self.seen.get(name).copied().unwrap_or(0);
        let mut reasons = Vec::new();
        for (name, rate) in IN_TEN_MINUTES {
            let (count, least) = (seen(name), rate * seconds / 600);
            if count < least {
                let name = name.replace('_', " ");
                reasons.push(format!("{name}: {count} in {seconds} s, {least} are wanted"));
            }
        }
        let (unknown, all) = (seen("unknown"), seen("operations"));
        if unknown * 100 > all * UNKNOWN_PERCENT_MAX {
            reasons.push(format!(
                "{unknown} of {all} operations are of unknown outcome, {UNKNOWN_PERCENT_MAX} % may be"
            ));
        }
        if !self.mostly_valid() {
            reasons.push(format!(
                "{} of {} runs are valid, {VALID_PERCENT_MIN} % must be",
                self.of(Verdict::Valid),
                self.runs()
            ));
        }
        reasons
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use jepsen_lite_core::verdict::Results;

    fn sum(valid: u64, unknown: u64) -> Sum {
        let mut seen: BTreeMap<String, u64> = IN_TEN_MINUTES
            .iter()
            .map(|(name, rate)| ((*name).to_owned(), *rate))
            .collect();
        seen.insert("operations".to_owned(), 200_000);
        let mut sum = Sum::default();
        sum.add(&Results {
            verdict: Verdict::Valid,
            findings: Vec::new(),
            seen,
            notes: Vec::new(),
            repeat: String::new(),
        });
        for _ in 1..valid {
            sum.add_verdict(Verdict::Valid);
        }
        for _ in 0..unknown {
            sum.add_verdict(Verdict::Unknown);
        }
        sum
    }

    #[test]
    fn enough_is_enough() {
        let sum = sum(8, 2);
        assert_eq!(sum.thin(600), [""; 0]);
        assert_eq!(sum.of_many(), Verdict::Valid);
    }

    #[test]
    fn each_shortcoming_is_named() {
        assert_eq!(sum(8, 2).thin(660).len(), IN_TEN_MINUTES.len());
        let some_unknown = sum(7, 3);
        assert_eq!(some_unknown.thin(600), ["7 of 10 runs are valid, 80 % must be"]);
        assert_eq!(some_unknown.of_many(), Verdict::Unknown);
        let mut lost = sum(10, 0);
        lost.seen.insert("unknown".to_owned(), 60_001);
        assert_eq!(lost.thin(600).len(), 1, "{:?}", lost.thin(600));
        assert_eq!(Sum::default().of_many(), Verdict::Unknown);
    }

    #[test]
    fn one_violation_is_not_outweighed() {
        let mut sum = sum(99, 0);
        sum.add_verdict(Verdict::Violated);
        assert_eq!(sum.of_many(), Verdict::Violated);
    }
}
