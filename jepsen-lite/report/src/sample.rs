//! Runs made by hand, for tests: what a page must show, and what it must not be harmed by.

use jepsen_lite_core::cluster::{Done, Effect};
use jepsen_lite_core::schedule::{Evidence, Fault, Schedule, Workload};
use jepsen_lite_core::verdict::{Finding, Results, Verdict, Witness};

use crate::run::{Act, Answer, Call, Moment, Phase, Role, Run, Status};

/// Nothing happened.
pub(crate) fn empty() -> Run {
    Run {
        schedule: Schedule {
            name: "none".to_owned(),
            about: String::new(),
            seed: 0,
            nodes: 3,
            load_ms: 0,
            heal_ms: 0,
            workload: Workload {
                name: "queue".to_owned(),
                parameters: [].into(),
            },
            settings: [].into(),
            steps: Vec::new(),
            evidence: Evidence::default(),
        },
        effects: Vec::new(),
        results: Results {
            verdict: Verdict::Unknown,
            findings: Vec::new(),
            seen: [].into(),
            notes: vec!["nothing was published".to_owned()],
            repeat: "jepsen-lite sim --seed 0".to_owned(),
        },
        calls: Vec::new(),
        lives: [].into(),
        statuses: Vec::new(),
        phases: Vec::new(),
    }
}

/// 25 seconds of three publishers and four workers; the leader killed, its successor cut off, a full disk that
/// nobody had. Every 50th message needs two deliveries, every 200th dies.
pub(crate) fn valid() -> Run {
    busy(25_000, 3)
}

/// As [`valid`], with as many operations as a page must bear.
pub(crate) fn large() -> Run {
    busy(25_000, 34)
}

/// As [`valid`], with three losses of one publisher: its first message, one in the middle, its last.
pub(crate) fn violated() -> Run {
    let mut run = valid();
    let of_first: Vec<String> = run
        .calls
        .iter()
        .filter(|call| call.client == "publisher 0" && call.answer == Answer::Done)
        .filter_map(|call| call.message.clone())
        .collect();
    let (first, last) = (&of_first[0], &of_first[of_first.len() - 1]);
    let middle = &of_first[of_first.len() / 2];
    let lost = [first, middle, last];
    run.calls
        .retain(|call| call.act == Act::Publish || !call.message.as_ref().is_some_and(|m| lost.contains(&m)));
    for message in lost {
        run.lives.entry(message.clone()).or_default().truncate(1);
    }
    run.results.verdict = Verdict::Violated;
    let finding = &mut run.results.findings[0];
    finding.verdict = Verdict::Violated;
    finding.violations = 3;
    finding.witnesses = lost
        .iter()
        .map(|message| Witness {
            evidence: format!("{message} was confirmed to publisher 0 and never seen again"),
            message: Some((*message).clone()),
            at_ms: Some(12_000),
        })
        .collect();
    run
}

/// As [`valid`], but the leader never changed.
pub(crate) fn unknown() -> Run {
    let mut run = valid();
    run.results.verdict = Verdict::Unknown;
    run.results.notes = vec!["leader changes: 0 seen, at least 2 needed".to_owned()];
    run.results.seen.insert("leader_changes".to_owned(), 0);
    run.results.findings.push(Finding {
        invariant: "I8".to_owned(),
        name: "transactions are atomic".to_owned(),
        verdict: Verdict::Unknown,
        checked: 12,
        violations: 0,
        witnesses: Vec::new(),
        note: "the history of one message has 60 operations of unknown outcome: not decided in 10 s"
            .to_owned(),
    });
    run.statuses.retain(|status| status.at_ms < 6_000);
    run
}

/// As [`violated`], with markup wherever a text can stand.
pub(crate) fn hostile() -> Run {
    const TEXT: &str = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&";
    let mut run = violated();
    run.schedule.name = TEXT.to_owned();
    run.schedule.about = TEXT.to_owned();
    run.schedule.workload.name = TEXT.to_owned();
    run.schedule.settings.insert(TEXT.to_owned(), TEXT.to_owned());
    run.results.notes.push(TEXT.to_owned());
    run.results.repeat = TEXT.to_owned();
    run.results.seen.insert(TEXT.to_owned(), 1);
    let finding = &mut run.results.findings[0];
    (finding.name, finding.note) = (TEXT.to_owned(), TEXT.to_owned());
    finding.witnesses[0].evidence = TEXT.to_owned();
    finding.witnesses[0].message = Some(TEXT.to_owned());
    run.effects[0].counters.insert(TEXT.to_owned(), 1);
    run.effects[1].state = Done::Unknown(TEXT.to_owned());
    let hostile = Moment {
        what: TEXT.to_owned(),
        who: Some(TEXT.to_owned()),
        token: Some(TEXT.to_owned()),
        note: TEXT.to_owned(),
        ..Moment::default()
    };
    run.lives.insert(TEXT.to_owned(), vec![hostile]);
    run.phases[0].name = TEXT.to_owned();
    run.calls[0].client = TEXT.to_owned();
    run.calls[0].message = Some(TEXT.to_owned());
    run.calls[0].queue = TEXT.to_owned();
    run
}

fn busy(load_ms: u64, publishers: usize) -> Run {
    const START: u64 = 1_790_000_000_000;
    let mut run = empty();
    run.schedule.name = "kill-leader-loop".to_owned();
    run.schedule.about =
        "The leader is killed again and again, and started again. Nothing that was confirmed may be missing."
            .to_owned();
    run.schedule.seed = 42;
    run.schedule.load_ms = load_ms;
    run.schedule
        .settings
        .insert("snapshot-entries".to_owned(), "200".to_owned());
    run.schedule
        .workload
        .parameters
        .insert("publishers".to_owned(), publishers as u64);
    run.schedule.evidence = Evidence {
        confirmed: 500,
        redelivered: 5,
        leader_changes: 2,
        ..Evidence::default()
    };
    run.effects = effects();
    run.statuses = statuses(load_ms);
    run.phases = [
        ("load", 0.0),
        ("faults are undone", 22_000.0),
        ("queues are drained", 23_500.0),
    ]
    .map(|(name, from_ms)| Phase {
        name: name.to_owned(),
        from_ms,
    })
    .into();

    let mut draw = 42_u64;
    let mut chance = move || {
        draw = draw
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(draw >> 33).unwrap_or(0)) / f64::from(1_u32 << 31)
    };
    let mut index = 10;
    for publisher in 0..publishers {
        let mut at = publisher as f64 * 3.0;
        while at < load_ms as f64 {
            index += 1;
            let message = format!("{index}-0");
            // Without a leader a publish waits, and a few are given up.
            let leaderless = [(3_000.0, 4_100.0), (12_000.0, 13_300.0)]
                .into_iter()
                .find(|(from, until)| (*from..*until).contains(&at));
            let took = match leaderless {
                Some((_, until)) => until - at + 20.0 * chance(),
                None => 1.5 + 4.0 * chance() * chance() + if chance() < 0.01 { 40.0 } else { 0.0 },
            };
            let given_up = leaderless.is_some() && chance() < 0.3;
            let end = at + took;
            let call = |act, client, begin_ms, end_ms: f64, answer| Call {
                client,
                act,
                begin_ms,
                end_ms: Some(end_ms),
                answer,
                message: Some(message.clone()),
                queue: "work".to_owned(),
            };
            let mut publish = call(
                Act::Publish,
                format!("publisher {publisher}"),
                at,
                end,
                Answer::Done,
            );
            if given_up {
                publish.answer = Answer::Unknown;
                publish.message = None;
                run.calls.push(publish);
                at = end;
                continue;
            }
            run.calls.push(publish);
            let cluster = |ms: f64| Some(START + num(ms));
            let moment = |what: &str, at: f64, index| Moment {
                what: what.to_owned(),
                at_ms: Some(at),
                log_index: Some(index),
                cluster_ms: cluster(at),
                ..Moment::default()
            };
            let mut life = vec![Moment {
                until_ms: Some(end),
                who: Some(format!("publisher {publisher}")),
                node: Some(0),
                ..moment("published", at, index)
            }];
            let dies = index % 200 == 0;
            let attempts = match index {
                n if n % 200 == 0 => 3,
                n if n % 50 == 0 => 2,
                _ => 1,
            };
            let mut had = end + 2.0 + 30.0 * chance();
            for attempt in 1..=attempts {
                let worker = format!("worker {}", num(chance() * 4.0));
                let token = format!("{message}:{attempt}:{}", index + 1);
                let last = attempt == attempts;
                run.calls
                    .push(call(Act::Receive, worker.clone(), had, had, Answer::Done));
                life.push(Moment {
                    who: Some(worker.clone()),
                    attempt: Some(attempt),
                    token: Some(token.clone()),
                    leased_until_ms: cluster(had + 5000.0),
                    ..moment("leased", had, index + 1)
                });
                let settled = had + 5.0 + 10.0 * chance();
                let answer = if last && !dies {
                    Answer::Done
                } else {
                    Answer::Refused
                };
                run.calls
                    .push(call(Act::Settle, worker.clone(), settled, settled + 3.0, answer));
                let what = match (last, dies) {
                    (true, false) => "acked",
                    (true, true) => "dead-lettered",
                    (false, _) => "nacked",
                };
                life.push(Moment {
                    who: Some(worker),
                    attempt: Some(attempt),
                    token: Some(token),
                    until_ms: Some(settled + 3.0),
                    ..moment(what, settled, index + 2)
                });
                had = settled + 300.0;
            }
            run.lives.insert(message, life);
            at = end + 10.0 * chance();
        }
    }
    run.results = results(&run);
    run
}

/// A part of a run, which is not negative, without its fraction.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn num(ms: f64) -> u64 {
    ms as u64
}

fn effects() -> Vec<Effect> {
    let effect = |from_ms, until_ms, fault, nodes: &[usize], state, counter: &str, count| Effect {
        from_ms,
        until_ms,
        fault,
        nodes: nodes.to_vec(),
        state,
        counters: [(counter.to_owned(), count)].into(),
    };
    vec![
        effect(
            3_000,
            Some(7_000),
            Fault::Kill,
            &[0],
            Done::Yes,
            "processes_killed",
            1,
        ),
        effect(
            12_000,
            Some(16_500),
            Fault::Isolate,
            &[1],
            Done::Yes,
            "bytes_held_back",
            48_213,
        ),
        effect(
            14_000,
            Some(18_000),
            Fault::SlowSync { ms: 40 },
            &[2],
            Done::Yes,
            "syncs_slowed",
            312,
        ),
        effect(
            20_000,
            None,
            Fault::Snapshot,
            &[2],
            Done::Yes,
            "snapshots_written",
            0,
        ),
        effect(
            21_000,
            None,
            Fault::DiskFull,
            &[0],
            Done::Skipped("no disk shim here".to_owned()),
            "writes_failed",
            0,
        ),
    ]
}

fn statuses(load_ms: u64) -> Vec<Status> {
    let mut statuses = Vec::new();
    for at_ms in (0..load_ms).step_by(200) {
        let (leader, term) = match at_ms {
            0..3_000 => (Some(0), 1),
            3_000..4_200 => (None, 1),
            4_200..12_000 => (Some(1), 2),
            12_000..13_200 => (None, 2),
            _ => (Some(2), 5),
        };
        for node in 0..3 {
            let role = match at_ms {
                3_000..7_200 if node == 0 => Role::Silent,
                // Cut off, it does not know yet.
                12_000..13_000 if node == 1 => Role::Leader,
                13_000..16_600 if node == 1 => Role::Candidate,
                _ if leader == Some(node) => Role::Leader,
                _ => Role::Follower,
            };
            let term = if role == Role::Leader && node == 1 {
                2
            } else {
                term
            };
            statuses.push(Status {
                at_ms,
                node,
                role,
                term,
            });
        }
    }
    statuses
}

fn results(run: &Run) -> Results {
    let of = |act, answer| {
        let calls = run
            .calls
            .iter()
            .filter(|call| call.act == act && call.answer == answer);
        calls.count() as u64
    };
    let confirmed = of(Act::Publish, Answer::Done);
    let held = |invariant: &str, name: &str, checked| Finding {
        invariant: invariant.to_owned(),
        name: name.to_owned(),
        verdict: Verdict::Valid,
        checked,
        violations: 0,
        witnesses: Vec::new(),
        note: String::new(),
    };
    let findings = vec![
        held("I1", "no loss", confirmed),
        held("I2", "no phantom", of(Act::Receive, Answer::Done)),
        held("I3", "lease exclusivity", of(Act::Receive, Answer::Done)),
        held("I6", "first in, first out", confirmed),
        held("I10", "convergence", 73),
        held("I11", "linearizable reads", 0),
        held("I12", "strict order", confirmed),
    ];
    Results {
        verdict: Verdict::Valid,
        findings,
        seen: [
            ("confirmed".to_owned(), confirmed),
            ("redelivered".to_owned(), 40),
            ("leader_changes".to_owned(), 2),
            ("dead_lettered".to_owned(), 9),
            ("unknown".to_owned(), of(Act::Publish, Answer::Unknown)),
            ("operations".to_owned(), run.calls.len() as u64),
        ]
        .into(),
        notes: Vec::new(),
        repeat: "jepsen-lite sim --scenario kill-leader-loop --seed 42".to_owned(),
    }
}
