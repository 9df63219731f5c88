//! What runs came to, for people to read.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jepsen_lite_core::verdict::{Finding, Results, Verdict};

/// Witnesses of one promise that are shown; more are in the results.
const WITNESSES_SHOWN: usize = 3;

/// Counts over several runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sum {
    /// Runs that came to each verdict.
    pub(crate) verdicts: BTreeMap<Verdict, u64>,
    /// Things looked at and violations, by number and name of the promise.
    promises: BTreeMap<(u32, String), (u64, u64)>,
    /// How much was seen, by name.
    pub(crate) seen: BTreeMap<String, u64>,
}

impl Sum {
    /// Adds what one run came to.
    pub(crate) fn add(&mut self, results: &Results) {
        self.add_verdict(results.verdict);
        for finding in &results.findings {
            let promise = (number(finding), finding.name.clone());
            let promise = self.promises.entry(promise).or_default();
            promise.0 += finding.checked;
            promise.1 += finding.violations;
        }
        for (name, count) in &results.seen {
            *self.seen.entry(name.clone()).or_default() += count;
        }
    }

    /// Adds what one run came to, or that the harness failed.
    pub(crate) fn add_result(&mut self, results: &anyhow::Result<Results>) {
        match results {
            Ok(results) => self.add(results),
            Err(_) => self.add_verdict(Verdict::Harness),
        }
    }

    /// Adds other runs.
    pub(crate) fn add_all(&mut self, other: &Self) {
        for (verdict, count) in &other.verdicts {
            *self.verdicts.entry(*verdict).or_default() += count;
        }
        for (promise, (checked, violations)) in &other.promises {
            let sum = self.promises.entry(promise.clone()).or_default();
            sum.0 += checked;
            sum.1 += violations;
        }
        for (name, count) in &other.seen {
            *self.seen.entry(name.clone()).or_default() += count;
        }
    }

    /// Adds a run of which nothing else is known.
    pub(crate) fn add_verdict(&mut self, verdict: Verdict) {
        *self.verdicts.entry(verdict).or_default() += 1;
    }

    /// How many runs there were.
    pub(crate) fn runs(&self) -> u64 {
        self.verdicts.values().sum()
    }

    /// How many of them came to this.
    pub(crate) fn of(&self, verdict: Verdict) -> u64 {
        self.verdicts.get(&verdict).copied().unwrap_or(0)
    }

    /// The gravest of all; unknown if there was none.
    pub(crate) fn gravest(&self) -> Verdict {
        let gravest = self.verdicts.keys().next_back().copied();
        gravest.unwrap_or(Verdict::Unknown)
    }

    /// The promises as a table, and how much was seen.
    pub(crate) fn table(&self) -> String {
        let mut text = format!(
            "{:<5} {:<33} {:>12} {:>11}\n",
            "", "promise", "checked", "violations"
        );
        for ((number, name), (checked, violations)) in &self.promises {
            let _ = writeln!(text, "I{number:<4} {name:<33} {checked:>12} {violations:>11}");
        }
        let _ = write!(text, "seen: {}", counts(&self.seen));
        text
    }

    /// `3 valid, 1 unknown`.
    pub(crate) fn verdicts(&self) -> String {
        let told = self
            .verdicts
            .iter()
            .map(|(verdict, count)| format!("{count} {verdict}"));
        told.collect::<Vec<_>>().join(", ")
    }
}

/// 7 of `I7`.
fn number(finding: &Finding) -> u32 {
    finding.invariant.trim_start_matches('I').parse().unwrap_or(0)
}

/// `12 confirmed, 3 redelivered`; what was not seen at all is left out.
pub(crate) fn counts(seen: &BTreeMap<String, u64>) -> String {
    let seen = seen.iter().filter(|(_, count)| **count > 0);
    let told = seen.map(|(name, count)| format!("{count} {}", name.replace('_', " ")));
    told.collect::<Vec<_>>().join(", ")
}

/// What is wrong with a run, or was too little in it; a line for each.
pub(crate) fn problems(results: &Results) -> Vec<String> {
    let mut lines = Vec::new();
    for finding in results.findings.iter().filter(|finding| finding.violations > 0) {
        let witnesses = finding.witnesses.iter().take(WITNESSES_SHOWN);
        let head = format!("{} {}", finding.invariant, finding.name);
        lines.extend(witnesses.map(|witness| format!("{head}: {}", witness.evidence)));
        let shown = finding.witnesses.len().min(WITNESSES_SHOWN) as u64;
        if finding.violations > shown {
            lines.push(format!("{head}: and {} more", finding.violations - shown));
        }
    }
    lines.extend(results.notes.iter().cloned());
    lines
}

/// All promises of one run as a table, with what is wrong.
pub(crate) fn findings(results: &Results) -> String {
    let mut text = String::new();
    let mut findings: Vec<&Finding> = results.findings.iter().collect();
    findings.sort_by_key(|finding| number(finding));
    for finding in findings {
        let _ = writeln!(
            text,
            "  {:<4} {:<33} {:<9} {:>9} checked {:>6} violations",
            finding.invariant,
            finding.name,
            finding.verdict.to_string(),
            finding.checked,
            finding.violations
        );
    }
    for problem in problems(results) {
        let _ = writeln!(text, "  ! {problem}");
    }
    let _ = write!(text, "  seen: {}", counts(&results.seen));
    text
}

#[cfg(test)]
mod tests {
    use jepsen_lite_core::verdict::Witness;

    use super::*;

    #[test]
    fn runs_add_up() {
        let witness = Witness {
            evidence: "lost".to_owned(),
            message: None,
            at_ms: None,
        };
        let results = Results {
            verdict: Verdict::Violated,
            findings: vec![
                Finding::new("I10", "convergence", 5, 0, Vec::new()),
                Finding::new("I2", "no phantom", 7, 9, vec![witness; 5]),
            ],
            seen: BTreeMap::from([("confirmed".to_owned(), 4), ("duplicates".to_owned(), 0)]),
            notes: Vec::new(),
            repeat: String::new(),
        };
        let mut sum = Sum::default();
        assert_eq!(sum.gravest(), Verdict::Unknown);
        sum.add(&results);
        sum.add(&results);
        sum.add_verdict(Verdict::Valid);
        assert_eq!((sum.runs(), sum.gravest()), (3, Verdict::Violated));
        let table = sum.table();
        let lines: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[1], ["I2", "no", "phantom", "14", "18"]);
        assert_eq!(lines[2], ["I10", "convergence", "10", "0"]);
        assert_eq!(lines[3].join(" "), "seen: 8 confirmed");
        let problems = problems(&results);
        assert_eq!(problems.len(), 4);
        assert_eq!(problems[3], "I2 no phantom: and 6 more");
    }
}
