//! Decides what a run came to, from what is stored of it.
//!
//! Each promise that something in the run bears on is one [`Finding`]. Nothing that was not looked at counts as
//! held: a promise without anything to check is unknown by itself, and the run is, if its evidence is thinner
//! than its schedule asks for or a fault that was done shows no effect.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, Read as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::de::DeserializeOwned;

use crate::audit::Audit;
use crate::check::{self, Ends, Violation};
use crate::cluster::{Done, Effect};
use crate::history::History;
use crate::schedule::Schedule;
use crate::verdict::{Finding, Results, Verdict, Witness};

/// Witnesses that are kept of each promise.
const WITNESSES_MAX: usize = 10;
/// Most operations of unknown outcome, in per cent, where the schedule does not say.
const UNKNOWN_PERCENT_MAX: u64 = 30;

/// What is stored of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// What was to be done.
    pub schedule: Schedule,
    /// What clients asked for and were told.
    pub history: History,
    /// What the replicas applied; empty if they were not asked to write it down.
    pub audit: Audit,
    /// What the faults did.
    pub effects: Vec<Effect>,
}

impl Run {
    /// Reads `schedule.json`, `history.jsonl`, `effects.json` and `audit/*.jsonl` of a folder. The last two may
    /// be missing.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or understood.
    pub fn read(folder: &Path) -> Result<Self> {
        let history = folder.join("history.jsonl");
        let file = File::open(&history).with_context(|| format!("open {}", history.display()))?;
        let effects = folder.join("effects.json");
        let mut run = Self {
            schedule: json(&folder.join("schedule.json"))?,
            history: History::read(BufReader::new(file))?,
            audit: Audit::default(),
            effects: if effects.exists() {
                json(&effects)?
            } else {
                Vec::new()
            },
        };
        let audit = folder.join("audit");
        if audit.is_dir() {
            let mut files = Vec::new();
            for entry in fs::read_dir(&audit).context("list the audit logs")? {
                files.push(entry.context("list the audit logs")?.path());
            }
            files.sort();
            for path in files {
                let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
                let node = path.file_stem().unwrap_or_default().to_string_lossy();
                run.audit.add(&node, BufReader::new(file))?;
            }
        }
        Ok(run)
    }
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let mut text = String::new();
    let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    file.read_to_string(&mut text)
        .with_context(|| format!("read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("understand {}", path.display()))
}

/// What a run came to.
#[must_use]
pub fn judge(run: &Run) -> Results {
    let findings = findings(run);
    let seen = seen(run);
    let mut notes = thin(run, &seen);
    for effect in &run.effects {
        let name = effect.fault.name();
        match &effect.state {
            Done::Yes if !effect.counters.is_empty() && effect.counters.values().all(|&count| count == 0) => {
                notes.push(format!("{name} at {} ms had no effect", effect.from_ms));
            }
            Done::Unknown(why) => notes.push(format!("{name} at {} ms: {why}", effect.from_ms)),
            Done::Yes | Done::Skipped(_) => {}
        }
    }
    let violated = findings
        .iter()
        .any(|finding| finding.verdict == Verdict::Violated);
    let verdict = if violated {
        Verdict::Violated
    } else if notes.is_empty() {
        Verdict::Valid
    } else {
        Verdict::Unknown
    };
    Results {
        verdict,
        findings,
        seen,
        notes,
        repeat: format!(
            "jepsen-lite replay, schedule {}, seed {}",
            run.schedule.name, run.schedule.seed
        ),
    }
}

fn findings(run: &Run) -> Vec<Finding> {
    let Run { history, audit, .. } = run;
    let ends = Ends::default();
    let entries = audit.entries().count() as u64;
    let (publishes, deliveries) = (history.publishes.len() as u64, history.deliveries.len() as u64);
    let settles = history.settles.len() as u64;
    let mut findings = vec![
        finding(
            "I10",
            "convergence",
            audit.compared(),
            check::replicas_agree(audit),
        ),
        finding("I14", "cluster time", entries, check::time_goes_forward(audit)),
    ];
    // Between replicas that differ, what is in the log is not decided.
    if audit.differences().is_empty() && entries > 0 {
        let in_log = check::what_is_done_is_in_the_log(history, audit);
        findings.push(finding(
            "I1",
            "what was done is in the log",
            publishes + settles,
            in_log,
        ));
        let executed = check::refused_is_not_executed(history, audit);
        findings.push(finding("I18", "definite fail is true", publishes, executed));
        if audit.is_whole() {
            let events = audit.events();
            let count = events.len() as u64;
            findings.push(finding(
                "I5",
                "lives of messages",
                count,
                check::traces_are_lives(&events),
            ));
        }
    }
    let transactions = history
        .publishes
        .iter()
        .filter(|publish| publish.transaction.is_some());
    findings.extend([
        finding(
            "I8",
            "atomic ack and publish",
            transactions.count() as u64,
            check::transactions_are_whole(history),
        ),
        finding(
            "I11",
            "linearizable reads",
            history.reads.len() as u64,
            check::reads_are_fresh(history),
        ),
        finding(
            "I12",
            "strict order",
            publishes + settles,
            check::index_order_is_real_time_order(history),
        ),
    ]);
    // In other workloads a message expires, is in several queues, or moves on, which clients cannot follow.
    if ["queue", "fifo", "groups"].contains(&run.schedule.workload.name.as_str()) {
        findings.extend([
            finding("I1", "no loss", publishes, check::nothing_is_lost(history)),
            finding(
                "I2",
                "no phantom",
                deliveries,
                check::nothing_comes_from_nowhere(history),
            ),
            finding(
                "I18",
                "refused is not delivered",
                publishes,
                check::refused_is_not_applied(history),
            ),
            finding(
                "I7",
                "published once",
                publishes,
                check::nothing_is_published_twice(history),
            ),
            finding("I4", "ack is final", settles, check::an_ack_is_final(history)),
            finding("I9", "fencing", settles, check::a_stale_token_is_refused(history)),
            finding(
                "I3",
                "lease exclusivity",
                deliveries,
                check::a_lease_is_exclusive(history),
            ),
            finding(
                "I5",
                "attempts",
                deliveries,
                check::attempts_count_failures(history, ends.deliveries_max),
            ),
            finding(
                "I6",
                "order of first deliveries",
                deliveries,
                check::first_deliveries_are_in_order(history),
            ),
            finding(
                "I6",
                "order of a publisher",
                publishes,
                check::publishers_are_in_order(history),
            ),
        ]);
    }
    findings
}

fn finding(invariant: &str, name: &str, checked: u64, violations: Vec<Violation>) -> Finding {
    let count = violations.len() as u64;
    Finding {
        invariant: invariant.to_owned(),
        name: name.to_owned(),
        verdict: match (count, checked) {
            (0, 0) => Verdict::Unknown,
            (0, _) => Verdict::Valid,
            _ => Verdict::Violated,
        },
        checked,
        violations: count,
        witnesses: violations
            .into_iter()
            .take(WITNESSES_MAX)
            .map(|violation| Witness {
                evidence: violation.evidence,
                message: None,
                at_ms: None,
            })
            .collect(),
        note: String::new(),
    }
}

/// How much was seen of what a run can prove something with.
fn seen(run: &Run) -> BTreeMap<String, u64> {
    let Run { history, audit, .. } = run;
    let progress = history.progress();
    let stale = history.settles.iter().filter(|settle| {
        matches!(&settle.outcome, crate::history::Outcome::Refused(Some(reason)) if reason == crate::history::STALE_LEASE)
    });
    let duplicates = history.publishes.iter().filter(|publish| publish.duplicate);
    let events = audit.entries().flat_map(|entry| &entry.events);
    let dead = events.filter(|event| ["died", "dead-lettered"].contains(&event.change.as_str()));
    let mut terms: Vec<u64> = audit.entries().map(|entry| entry.term).collect();
    terms.dedup();
    BTreeMap::from([
        ("confirmed".to_owned(), progress.confirmed as u64),
        ("redelivered".to_owned(), progress.redelivered as u64),
        ("unknown".to_owned(), progress.unknown as u64),
        ("stale_tokens".to_owned(), stale.count() as u64),
        ("duplicates".to_owned(), duplicates.count() as u64),
        ("dead_lettered".to_owned(), dead.count() as u64),
        ("leader_changes".to_owned(), terms.len().saturating_sub(1) as u64),
        ("entries".to_owned(), audit.entries().count() as u64),
    ])
}

/// Where the evidence is thinner than the schedule asks for. Snapshots that followers took are not told of here.
fn thin(run: &Run, seen: &BTreeMap<String, u64>) -> Vec<String> {
    let evidence = &run.schedule.evidence;
    let wanted = [
        ("confirmed", evidence.confirmed.max(1)),
        ("redelivered", evidence.redelivered),
        ("stale_tokens", evidence.stale_tokens),
        ("duplicates", evidence.duplicates),
        ("dead_lettered", evidence.dead_lettered),
        ("leader_changes", evidence.leader_changes),
    ];
    let mut notes = Vec::new();
    for (name, least) in wanted {
        let count = seen.get(name).copied().unwrap_or(0);
        if count < least {
            notes.push(format!("{name}: {count} were seen, {least} are wanted"));
        }
    }
    let most = match evidence.unknown_percent_max {
        0 => UNKNOWN_PERCENT_MAX,
        percent => percent,
    };
    let all = (run.history.publishes.len() + run.history.settles.len()) as u64;
    let unknown = seen.get("unknown").copied().unwrap_or(0);
    if unknown * 100 > all * most {
        notes.push(format!(
            "{unknown} of {all} operations are of unknown outcome, {most} % may be"
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{MessageId, Outcome, Publish};
    use crate::schedule::{Evidence, Fault, Workload};

    fn run() -> Run {
        let mut audit = Audit::default();
        for _ in 0..2 {
            let log = r#"{"entry":{"index":1,"term":1,"at_ms":1,"hash":"a","events":[{"message":"1-0","queue":"q","queue_id":1,"change":"published"}]}}"#;
            audit.add("n", log.as_bytes()).expect("memory can be read");
        }
        let mut history = History::default();
        history.publishes.push(Publish {
            outcome: Outcome::Done(MessageId { index: 1, number: 0 }),
            ..Publish::default()
        });
        Run {
            schedule: Schedule {
                name: "none".to_owned(),
                about: String::new(),
                seed: 1,
                nodes: 3,
                load_ms: 1,
                heal_ms: 1,
                workload: Workload {
                    name: "chain".to_owned(),
                    parameters: BTreeMap::new(),
                },
                settings: BTreeMap::new(),
                steps: Vec::new(),
                evidence: Evidence::default(),
            },
            history,
            audit,
            effects: Vec::new(),
        }
    }

    fn effect(count: u64) -> Effect {
        Effect {
            from_ms: 1,
            until_ms: None,
            fault: Fault::PowerLoss,
            nodes: vec![0],
            state: Done::Yes,
            counters: BTreeMap::from([("pages".to_owned(), count)]),
        }
    }

    #[test]
    fn a_run_with_enough_in_it_and_nothing_wrong_is_valid() {
        let mut run = run();
        run.effects.push(effect(3));
        let results = judge(&run);
        assert_eq!((results.verdict, results.notes), (Verdict::Valid, Vec::new()));
    }

    #[test]
    fn thin_evidence_and_faults_without_effect_are_unknown() {
        let mut idle = run();
        idle.effects.push(effect(0));
        let mut few = run();
        few.schedule.evidence.leader_changes = 1;
        let mut nothing = run();
        nothing.history = History::default();
        let mut unsure = run();
        unsure.history.publishes.push(Publish::default());
        for thin in [idle, few, nothing, unsure] {
            let results = judge(&thin);
            assert_eq!(results.verdict, Verdict::Unknown);
            assert_eq!(results.notes.len(), 1, "{:?}", results.notes);
        }
    }

    #[test]
    fn a_violation_outweighs_what_is_unknown() {
        let mut lost = run();
        lost.history.publishes[0].outcome = Outcome::Done(MessageId { index: 1, number: 9 });
        lost.effects.push(effect(0));
        assert_eq!(judge(&lost).verdict, Verdict::Violated);
        let mut phantom = run();
        phantom.schedule.workload.name = "queue".to_owned();
        assert_eq!(judge(&phantom).verdict, Verdict::Violated);
    }
}
