//! What a run came to.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// What can be said of a run, or of one invariant in it. The order is that of gravity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// There was enough to see, and nothing was wrong.
    Valid,
    /// Too little was seen, or faults had no effect, or a checker did not finish.
    Unknown,
    /// A promise was broken.
    Violated,
    /// The harness failed, which says nothing about the system.
    Harness,
}

impl Verdict {
    /// The exit code of the program: 0 valid, 1 violated, 2 unknown, 3 harness.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Valid => 0,
            Self::Violated => 1,
            Self::Unknown => 2,
            Self::Harness => 3,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Valid => "valid",
            Self::Unknown => "unknown",
            Self::Violated => "VIOLATED",
            Self::Harness => "harness failed",
        })
    }
}

/// Witnesses that are kept of each promise.
pub const WITNESSES_MAX: usize = 10;

/// One piece of evidence against an invariant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Witness {
    /// In words, with the values.
    pub evidence: String,
    /// The message it is about, `index-number`, if it is about one.
    pub message: Option<String>,
    /// When, in milliseconds since the load began, if that is known.
    pub at_ms: Option<u64>,
}

/// What a checker found about one invariant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// `I1` to `I26`.
    pub invariant: String,
    /// Its name, as in `INVARIANTS.md`.
    pub name: String,
    /// What came of it.
    pub verdict: Verdict,
    /// How many things were looked at: 0 = nothing of the kind happened.
    pub checked: u64,
    /// How many were wrong.
    pub violations: u64,
    /// The first of them, at most [`WITNESSES_MAX`].
    pub witnesses: Vec<Witness>,
    /// Why unknown, or what else is worth knowing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Finding {
    /// Of so many things looked at and so many wrong: violated, valid, or unknown if nothing was looked at.
    #[must_use]
    pub fn new(invariant: &str, name: &str, checked: u64, violations: u64, witnesses: Vec<Witness>) -> Self {
        let verdict = match (violations, checked) {
            (0, 0) => Verdict::Unknown,
            (0, _) => Verdict::Valid,
            _ => Verdict::Violated,
        };
        Self {
            invariant: invariant.to_owned(),
            name: name.to_owned(),
            verdict,
            checked,
            violations,
            witnesses,
            note: String::new(),
        }
    }
}

/// What a run came to: `results.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Results {
    /// The gravest of the findings; at least unknown if the evidence was too thin.
    pub verdict: Verdict,
    /// One for each invariant that was checked.
    pub findings: Vec<Finding>,
    /// How much was seen, by name: `confirmed`, `redelivered`, `leader_changes`, …
    pub seen: BTreeMap<String, u64>,
    /// Why the evidence was too thin, or what failed in the harness.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The command that does this run again.
    pub repeat: String,
}
