//! Decides what a run came to, from what is stored of it.
//!
//! Each promise that something in the run bears on is one [`Finding`]. Nothing that was not looked at counts as
//! held: a promise without anything to check is unknown by itself, and the run is, if its evidence is thinner
//! than its schedule asks for, or if none of the faults of one kind had an effect.
//!
//! Which promises apply follows from what is in the history, not from the name of the workload.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::{self, Ends, Violation};
use crate::cluster::Done;
use crate::history::{Act, History, Outcome, STALE_LEASE};
use crate::resolve::resolve;
use crate::run::Run;
use crate::schedule::Fault;
use crate::verdict::{Finding, Results, Verdict, WITNESSES_MAX, Witness};

/// Most operations of unknown outcome, in per cent, where the schedule does not say.
const UNKNOWN_PERCENT_MAX: u64 = 30;

/// In this time another node leads, if there is one.
const FAILOVER_MS: u64 = 1_000;

/// What a run came to.
#[must_use]
pub fn judge(run: &Run) -> Results {
    let resolved = resolve(&run.history, &run.audit, run.facts.barrier);
    let mut findings = of_the_layer(run);
    findings.extend(of_the_log(run));
    findings.extend(of_the_clients(run, &resolved.history));
    let mut seen = seen(run);
    seen.insert("resolved".to_owned(), resolved.applied + resolved.absent);
    let mut notes = thin(run, &seen);
    notes.extend(idle(run));
    notes.extend(run.facts.failures.iter().cloned());
    let violated = findings
        .iter()
        .any(|finding| finding.verdict == Verdict::Violated);
    let verdict = if violated {
        Verdict::Violated
    } else if !run.facts.failures.is_empty() {
        Verdict::Harness
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
        repeat: run.facts.repeat.clone(),
    }
}

/// What the layer has seen by itself: what it checked as it ran, whether the cluster came back, and what crashed.
fn of_the_layer(run: &Run) -> Vec<Finding> {
    let told = |promise, evidence: &[String]| {
        let violation = |evidence: &String| Violation {
            promise,
            evidence: evidence.clone(),
        };
        evidence.iter().map(violation).collect()
    };
    let (overdue, crashes) = (&run.facts.overdue, &run.facts.crashes);
    let mut findings = run.facts.observed.clone();
    findings.extend([
        finding("I24", "progress after healing", 1, told("progress", overdue)),
        finding("I25", "no crash", 1, told("no crash", crashes)),
    ]);
    let times = check::times_without_a_minority(&run.effects, run.schedule.nodes);
    if !times.is_empty() && !restarts_at_once(run) {
        let stopped = check::a_minority_stops_nobody(&run.history, &times);
        findings.push(finding(
            "I24",
            "progress without a minority",
            times.len() as u64,
            stopped,
        ));
    }
    findings
}

/// Whether nodes are to be back before others can have taken over. How long they are away is then a matter of when
/// somebody leads, and says nothing about it.
fn restarts_at_once(run: &Run) -> bool {
    let mut steps = run.schedule.steps.iter();
    steps.any(|step| {
        let lasts_ms = step.undo_at_ms.map(|undo| undo.saturating_sub(step.at_ms));
        matches!(step.fault, Fault::Kill | Fault::PowerLoss) && lasts_ms.is_some_and(|ms| ms < FAILOVER_MS)
    })
}

/// What the replicas wrote down, by itself and against what clients were told.
fn of_the_log(run: &Run) -> Vec<Finding> {
    let Run { history, audit, .. } = run;
    let entries = audit.entries().count() as u64;
    if entries == 0 {
        return Vec::new();
    }
    let (publishes, settles) = (history.publishes.len() as u64, history.settles.len() as u64);
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
    if !audit.differences().is_empty() {
        return findings;
    }
    findings.extend([
        finding(
            "I1",
            "what was done is in the log",
            publishes + settles,
            check::what_is_done_is_in_the_log(history, audit),
        ),
        finding(
            "I18",
            "definite fail is true",
            publishes,
            check::refused_is_not_executed(history, audit),
        ),
    ]);
    if let Some(barrier) = run.facts.barrier {
        let later = audit.entries().filter(|entry| entry.index > barrier).count() as u64;
        let late = check::nothing_is_late(history, audit, barrier);
        // That nothing came after the barrier was looked at too.
        findings.push(finding("I18", "late effects", later.max(1), late));
    }
    let bereft = check::sessions_of_the_dead(history, audit, &run.effects);
    if !bereft.is_empty() {
        let given = check::nothing_goes_to_the_dead(audit, &bereft);
        findings.push(finding(
            "I24",
            "nothing goes to the dead",
            bereft.len() as u64,
            given,
        ));
    }
    findings.extend(check::replay::findings(audit, history));
    if audit.is_whole() {
        findings.push(finding(
            "I2",
            "what was delivered is in the log",
            history.deliveries.len() as u64,
            check::what_is_delivered_is_in_the_log(history, audit),
        ));
        let events = audit.events();
        let count = events.len() as u64;
        findings.push(finding(
            "I5",
            "lives of messages",
            count,
            check::traces_are_lives(&events),
        ));
    }
    findings
}

/// What is in a history that clients alone cannot follow.
struct Traits {
    /// Messages leave otherwise than by an ack: their life ends, an operator removes them, others need room.
    vanish: bool,
    /// Messages come later than they were published.
    delayed: bool,
    /// One message is in several queues.
    copied: bool,
    /// An operator moves messages, or gives dead ones another chance.
    moved: bool,
    /// One publish is confirmed several times.
    repeated: bool,
    /// Somebody reads the order of a group, or the one consumer of a queue.
    writes: bool,
}

impl Traits {
    fn of(run: &Run) -> Self {
        let history = &run.history;
        let acts: Vec<&Act> = history.operations.iter().map(|one| &one.act).collect();
        let queues = run.facts.queues.values();
        let has = |wanted: fn(&Act) -> bool| acts.iter().any(|act| wanted(act));
        Self {
            vanish: history.publishes.iter().any(|one| one.ttl_ms.is_some())
                || queues
                    .clone()
                    .any(|queue| queue.ttl_ms.is_some() || queue.drop_head == Some(true))
                || has(|act| matches!(act, Act::Purge | Act::Delete | Act::Operate(_))),
            delayed: history.publishes.iter().any(|one| one.delay_ms.is_some()),
            copied: history.publishes.iter().any(|one| one.exchange),
            moved: has(|act| matches!(act, Act::Redrive | Act::Operate(_))),
            repeated: history.publishes.iter().any(|one| one.dedup_id.is_some()),
            writes: !history.writes.is_empty(),
        }
    }
}

/// What clients can tell by themselves, without the word of a replica but for the order that it vouches for, and for
/// what became of requests that they were not told of.
fn of_the_clients(run: &Run, history: &History) -> Vec<Finding> {
    let traits = Traits::of(run);
    let ends = Ends {
        counts: run.facts.counts.clone(),
        deliveries_max: deliveries_max(run),
    };
    let publishes = history.publishes.len() as u64;
    let deliveries = history.deliveries.len() as u64;
    let settles = history.settles.len() as u64;
    let transactions = history
        .publishes
        .iter()
        .filter(|publish| publish.transaction.is_some());
    let mut findings = vec![
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
        finding(
            "I6",
            "order of a publisher",
            publishes,
            check::publishers_are_in_order(history),
        ),
    ];
    if !traits.vanish && drained(history) {
        let lost = check::nothing_is_lost(history);
        findings.push(finding("I1", "no loss", publishes, lost));
    }
    if !traits.copied {
        findings.extend([
            finding("I4", "ack is final", settles, check::an_ack_is_final(history)),
            finding("I9", "fencing", settles, check::a_stale_token_is_refused(history)),
            finding(
                "I3",
                "lease exclusivity",
                deliveries,
                check::a_lease_is_exclusive(history),
            ),
        ]);
    }
    if !traits.moved {
        findings.push(finding(
            "I5",
            "attempts",
            deliveries,
            check::attempts_count_failures(history, ends.deliveries_max),
        ));
    }
    if traits.delayed || history.publishes.iter().any(|one| one.ttl_ms.is_some()) {
        let early = check::messages_come_in_their_time(history);
        findings.push(finding("I15", "delay and life", deliveries, early));
    }
    if !traits.moved {
        findings.push(by_search(history, !traits.vanish));
    }
    if !traits.moved && !traits.delayed {
        findings.push(finding(
            "I6",
            "order of first deliveries",
            deliveries,
            check::first_deliveries_are_in_order(history),
        ));
    }
    if !traits.moved && !traits.repeated && drained(history) {
        let counted = ends.counts.len() as u64;
        let counts = check::counts_add_up(history, &ends);
        findings.push(finding("I13", "counts at the end", counted, counts));
    }
    if history.deliveries.iter().any(|delivery| delivery.group.is_some()) {
        let mut broken = check::groups_are_in_order(history);
        broken.extend(check::a_group_has_one_lease(history));
        findings.push(finding("I6", "order of groups", deliveries, broken));
    }
    if traits.writes {
        let writes = history.writes.len() as u64;
        let lost = check::a_fence_guards_a_register(history);
        findings.push(finding("I9", "fenced register", writes, lost));
    }
    findings
}

/// What is decided without the broker's word on order; of whole queues only if messages leave them by settlements.
fn by_search(history: &History, queues: bool) -> Finding {
    let mut searched = check::a_message_is_linearizable(history);
    if queues {
        let queues = check::a_small_queue_is_linearizable(history);
        searched.checked += queues.checked;
        searched.undecided += queues.undecided;
        searched.violations.extend(queues.violations);
    }
    let name = "lives of messages, black box";
    let mut finding = finding("I3", name, searched.checked, searched.violations);
    if searched.undecided > 0 {
        finding.note = format!(
            "{} messages are undecided: too much of them is unknown",
            searched.undecided
        );
    }
    finding
}

/// Whether what is not in the history by now is not there.
fn drained(history: &History) -> bool {
    let mut marks = history.marks.iter();
    marks.any(|mark| mark.name == crate::history::Mark::DRAINED)
}

/// Most attempts in any queue; 0 = one has no limit.
fn deliveries_max(run: &Run) -> u32 {
    let limits = run.facts.queues.values().map(|queue| queue.deliveries_max);
    let limits: Option<Vec<u32>> = limits.map(|limit| limit.filter(|&limit| limit > 0)).collect();
    limits.unwrap_or_default().into_iter().max().unwrap_or(0)
}

fn finding(invariant: &str, name: &str, checked: u64, violations: Vec<Violation>) -> Finding {
    let witness = |violation: Violation| Witness {
        evidence: violation.evidence,
        message: None,
        at_ms: None,
    };
    let count = violations.len() as u64;
    let witnesses = violations.into_iter().take(WITNESSES_MAX).map(witness);
    Finding::new(invariant, name, checked, count, witnesses.collect())
}

/// How much was seen of what a run can prove something with.
fn seen(run: &Run) -> BTreeMap<String, u64> {
    let Run { history, audit, .. } = run;
    let progress = history.progress();
    let stale = history
        .settles
        .iter()
        .filter(|settle| matches!(&settle.outcome, Outcome::Refused(Some(reason)) if reason == STALE_LEASE));
    let duplicates = history.publishes.iter().filter(|publish| publish.duplicate);
    let events = audit.entries().flat_map(|entry| &entry.events);
    let dead = events.filter(|event| ["died", "dead-lettered"].contains(&event.change.as_str()));
    let terms: BTreeSet<u64> = audit.entries().map(|entry| entry.term).collect();
    let leader_changes = (terms.len() as u64)
        .saturating_sub(1)
        .max(run.facts.leader_changes);
    let done = run.effects.iter().filter(|effect| effect.state == Done::Yes);
    let counts = [
        ("confirmed", progress.confirmed as u64),
        ("delivered", progress.delivered as u64),
        ("redelivered", progress.redelivered as u64),
        ("unknown", progress.unknown as u64),
        (
            "operations",
            (history.publishes.len() + history.settles.len()) as u64,
        ),
        ("stale_tokens", stale.count() as u64),
        ("duplicates", duplicates.count() as u64),
        ("dead_lettered", dead.count() as u64),
        ("leader_changes", leader_changes),
        ("snapshots_installed", run.facts.snapshots_installed),
        ("entries", audit.entries().count() as u64),
        ("faults", done.count() as u64),
    ];
    counts.map(|(name, count)| (name.to_owned(), count)).into()
}

/// Where the evidence is thinner than the schedule asks for.
fn thin(run: &Run, seen: &BTreeMap<String, u64>) -> Vec<String> {
    let evidence = &run.schedule.evidence;
    let wanted = [
        ("confirmed", evidence.confirmed.max(1)),
        ("redelivered", evidence.redelivered),
        ("stale_tokens", evidence.stale_tokens),
        ("duplicates", evidence.duplicates),
        ("dead_lettered", evidence.dead_lettered),
        ("leader_changes", evidence.leader_changes),
        ("snapshots_installed", evidence.snapshots_installed),
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
    let count = |name: &str| seen.get(name).copied().unwrap_or(0);
    let unknown = count("unknown").saturating_sub(count("resolved"));
    if unknown * 100 > all * most {
        notes.push(format!(
            "{unknown} of {all} operations are of unknown outcome, {most} % may be"
        ));
    }
    notes
}

/// Kinds of faults none of which had an effect. One that was skipped or that nobody knows of has none; but where
/// something else was done, what was skipped is no shortcoming.
fn idle(run: &Run) -> Vec<String> {
    let mut kinds: BTreeMap<String, (bool, String)> = BTreeMap::new();
    let any = run.effects.iter().any(|effect| effect.state == Done::Yes);
    for effect in &run.effects {
        let (bites, why) = match &effect.state {
            Done::Yes => (
                effect.counters.values().any(|&count| count > 0),
                "it changed nothing".to_owned(),
            ),
            Done::Skipped(why) => (any, format!("skipped: {why}")),
            Done::Unknown(why) => (false, why.clone()),
        };
        let kind = kinds.entry(effect.fault.name()).or_default();
        kind.0 |= bites;
        kind.1 = format!("at {} ms, {why}", effect.from_ms);
    }
    let idle = kinds.into_iter().filter(|(_, (bites, _))| !bites);
    idle.map(|(name, (_, why))| format!("{name} had no effect: {why}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::Audit;
    use crate::cluster::Effect;
    use crate::history::{Mark, MessageId, Publish};
    use crate::run::Facts;
    use crate::schedule::{Evidence, Fault, Schedule, Step, Target, Workload};

    /// One publish, which all replicas have; what came before it a snapshot has taken the place of.
    fn run() -> Run {
        let mut audit = Audit::default();
        for _ in 0..2 {
            let log = r#"{"entry":{"index":2,"term":1,"at_ms":1,"hash":"a","events":[{"message":"2-0","queue":"q","queue_id":1,"change":"published"}]}}"#;
            audit.add("n", log.as_bytes()).expect("memory can be read");
        }
        let mut history = History::default();
        history.publishes.push(Publish {
            outcome: Outcome::Done(MessageId { index: 2, number: 0 }),
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
            facts: Facts::default(),
            sights: Vec::new(),
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
        lost.history.publishes[0].outcome = Outcome::Done(MessageId { index: 2, number: 9 });
        lost.effects.push(effect(0));
        assert_eq!(judge(&lost).verdict, Verdict::Violated);
        // A message that was confirmed and never came, although the queues were emptied.
        let mut gone = run();
        gone.history.marks.push(Mark {
            name: Mark::DRAINED.to_owned(),
            ..Mark::default()
        });
        gone.facts
            .failures
            .push("the disk of the harness is full".to_owned());
        assert_eq!(judge(&gone).verdict, Verdict::Violated);
    }

    #[test]
    fn a_fault_that_bit_once_makes_up_for_those_of_its_kind_that_did_not() {
        let mut run = run();
        run.effects.extend([effect(0), effect(2), effect(0)]);
        assert_eq!(judge(&run).verdict, Verdict::Valid);
        run.effects.push(Effect {
            state: Done::Skipped("unknown here".to_owned()),
            fault: Fault::Upgrade,
            ..effect(0)
        });
        assert_eq!(judge(&run).verdict, Verdict::Valid);
        run.effects.drain(..3);
        assert_eq!(judge(&run).verdict, Verdict::Unknown);
    }

    #[test]
    fn what_the_harness_failed_at_is_no_fault_of_the_cluster() {
        let mut run = run();
        run.facts.failures.push("heal: no such process".to_owned());
        assert_eq!(judge(&run).verdict, Verdict::Harness);
        run.facts.overdue.push("not whole after 30s".to_owned());
        assert_eq!(judge(&run).verdict, Verdict::Violated);
    }

    #[test]
    fn a_node_that_is_to_be_back_at_once_tells_nothing_of_a_minority() {
        let mut run = run();
        let down = |at_ms| Effect {
            from_ms: at_ms,
            until_ms: Some(at_ms + 1_800),
            ..effect(1)
        };
        run.effects.extend([2_000, 4_000, 6_000, 8_000].map(down));
        assert_eq!(judge(&run).verdict, Verdict::Violated);
        run.schedule.steps.push(Step {
            at_ms: 2_000,
            fault: Fault::PowerLoss,
            target: Target::Leader,
            undo_at_ms: Some(2_020),
        });
        assert_eq!(judge(&run).verdict, Verdict::Valid);
    }
}
