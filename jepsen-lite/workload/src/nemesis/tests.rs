//! On a cluster that only takes notes.

use jepsen_lite_core::schedule::{Evidence, Workload};

use super::*;

/// Five nodes; node 0 leads while it runs, then the next; none of them does before there is a leader.
#[derive(Debug)]
struct Notes {
    running: Vec<bool>,
    leaderless: Duration,
    /// What is undone is put off until all is healed.
    puts_off: bool,
    lines: Vec<String>,
    started: Instant,
}

impl Notes {
    fn of(nodes: usize) -> Self {
        Self {
            running: vec![true; nodes],
            leaderless: Duration::ZERO,
            puts_off: false,
            lines: Vec::new(),
            started: Instant::now(),
        }
    }

    fn note(&mut self, what: &str, fault: &Fault, nodes: &[usize]) {
        let at = self.started.elapsed().as_millis();
        self.lines.push(format!("{at} {what} {} {nodes:?}", fault.name()));
    }
}

impl Cluster for Notes {
    fn node_count(&self) -> usize {
        self.running.len()
    }

    fn running(&self) -> Vec<usize> {
        (0..self.running.len())
            .filter(|&node| self.running[node])
            .collect()
    }

    async fn leader(&mut self) -> Option<usize> {
        let leads = self.started.elapsed() >= self.leaderless;
        self.running().first().copied().filter(|_| leads)
    }

    async fn newest(&mut self, of: &[usize]) -> Option<usize> {
        of.last().copied()
    }

    async fn inflict(
        &mut self,
        fault: &Fault,
        nodes: &[usize],
        _seed: u64,
    ) -> Result<(Done, BTreeMap<String, u64>)> {
        self.note("do", fault, nodes);
        match fault {
            Fault::Kill => nodes.iter().for_each(|&node| self.running[node] = false),
            Fault::Grow => self.running.extend(nodes.iter().map(|_| true)),
            Fault::DiskFull => {
                // It ends by itself, and that takes long.
                nodes.iter().for_each(|&node| self.running[node] = false);
                sleep(Duration::from_millis(500)).await;
            }
            Fault::SlowCpu { .. } => {
                return Ok((Done::Skipped("not here".to_owned()), BTreeMap::new()));
            }
            _ => {}
        }
        Ok((Done::Yes, BTreeMap::new()))
    }

    async fn undo(&mut self, fault: &Fault, nodes: &[usize]) -> Result<BTreeMap<String, u64>> {
        self.note("undo", fault, nodes);
        match fault {
            Fault::Kill => nodes.iter().for_each(|&node| self.running[node] = true),
            Fault::Grow => nodes.iter().for_each(|&node| self.running[node] = false),
            _ => {}
        }
        let counter = if self.puts_off { "put_off" } else { "undone" };
        Ok(BTreeMap::from([(counter.to_owned(), 1)]))
    }

    async fn heal(&mut self) -> Result<()> {
        self.lines.push("heal".to_owned());
        Ok(())
    }
}

fn schedule(steps: Vec<Step>) -> Schedule {
    Schedule {
        name: "test".to_owned(),
        about: String::new(),
        seed: 7,
        nodes: 5,
        load_ms: 1_000,
        heal_ms: 1_000,
        workload: Workload {
            name: "queue".to_owned(),
            parameters: BTreeMap::new(),
        },
        settings: BTreeMap::new(),
        steps,
        evidence: Evidence::default(),
    }
}

fn step(at_ms: u64, fault: Fault, target: Target, undo_at_ms: Option<u64>) -> Step {
    Step {
        at_ms,
        fault,
        target,
        undo_at_ms,
    }
}

/// Carries it out and heals; says what the cluster noted and what the effects were.
async fn run(nodes: usize, steps: Vec<Step>) -> (Vec<String>, Vec<Effect>) {
    run_on(Notes::of(nodes), steps).await
}

async fn run_on(mut notes: Notes, steps: Vec<Step>) -> (Vec<String>, Vec<Effect>) {
    let start = Instant::now();
    let mut nemesis = Nemesis::new(&mut notes, Crew::nobody(), 7, start);
    nemesis
        .carry_out(&schedule(steps))
        .await
        .expect("it can be carried out");
    nemesis.heal().await.expect("it heals");
    let effects = nemesis.effects().to_vec();
    (notes.lines, effects)
}

fn skipped(effect: &Effect) -> &str {
    match &effect.state {
        Done::Skipped(why) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn steps_begin_and_end_at_their_times_and_the_rest_is_healed_in_order() {
    let (lines, effects) = run(
        5,
        vec![
            step(100, Fault::Kill, Target::Leader, Some(300)),
            step(200, Fault::Isolate, Target::Leader, None),
            step(300, Fault::Pause, Target::Node(4), Some(5_000)),
            step(300, Fault::Reset, Target::Node(3), None),
            step(5_000, Fault::Kill, Target::All, None),
        ],
    )
    .await;
    assert_eq!(
        lines,
        [
            "100 do kill [0]",
            "200 do isolate [1]",
            "300 undo kill [0]",
            "300 do pause [4]",
            "300 do reset [3]",
            "1000 undo pause [4]",
            "1000 undo isolate [1]",
            "heal",
        ]
    );
    let ends: Vec<_> = effects
        .iter()
        .map(|effect| (effect.from_ms, effect.until_ms))
        .collect();
    let expected = [
        (100, Some(300)),
        (200, Some(1_000)),
        (300, Some(1_000)),
        (300, Some(300)),
    ];
    assert_eq!(ends, expected);
    assert_eq!(effects[0].counters["undone"], 1);
}

#[tokio::test(start_paused = true)]
async fn targets_are_as_many_as_they_say() {
    for (target, count) in [
        (Target::Minority, 2),
        (Target::MinorityWithLeader, 2),
        (Target::Majority, 3),
        (Target::All, 5),
        (Target::Follower, 1),
        (Target::Followers, 4),
        (Target::Newest, 1),
    ] {
        let (_, effects) = run(5, vec![step(0, Fault::Isolate, target.clone(), None)]).await;
        let nodes = &effects[0].nodes;
        assert_eq!(nodes.len(), count, "{target:?}: {nodes:?}");
        match target {
            Target::MinorityWithLeader => assert!(nodes.contains(&0), "{nodes:?}"),
            Target::Follower | Target::Followers | Target::Newest => {
                assert!(!nodes.contains(&0), "{nodes:?}");
            }
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn same_and_next_go_by_the_step_before() {
    let (lines, _) = run(
        3,
        vec![
            step(0, Fault::Reset, Target::Node(1), None),
            step(1, Fault::Reset, Target::Next, None),
            step(2, Fault::Reset, Target::Next, None),
            step(3, Fault::Reset, Target::Same, None),
        ],
    )
    .await;
    let expected = [
        "0 do reset [1]",
        "1 do reset [2]",
        "2 do reset [0]",
        "3 do reset [0]",
        "heal",
    ];
    assert_eq!(lines, expected);
}

#[tokio::test(start_paused = true)]
async fn damage_that_is_made_good_only_when_all_is_healed_lasts_until_then() {
    for (puts_off, done) in [
        (false, Done::Yes),
        (
            true,
            Done::Skipped("the data of 2 nodes would be damaged, 1 may be".to_owned()),
        ),
    ] {
        let notes = Notes {
            puts_off,
            ..Notes::of(3)
        };
        let steps = vec![
            step(0, Fault::Truncate { bytes: 1 }, Target::Node(0), Some(100)),
            step(200, Fault::Wipe, Target::Node(1), Some(300)),
        ];
        let (_, effects) = run_on(notes, steps).await;
        assert_eq!(effects[1].state, done);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_unsafe_or_void_is_written_down_and_not_done() {
    let (lines, effects) = run(
        3,
        vec![
            step(0, Fault::BitFlip { bits: 1 }, Target::Node(0), None),
            step(1, Fault::Wipe, Target::Node(1), None),
            step(2, Fault::Wipe, Target::Node(0), None),
            step(3, Fault::Shrink, Target::All, None),
            step(4, Fault::Kill, Target::Node(2), None),
            step(5, Fault::Pause, Target::Node(2), None),
            step(6, Fault::Kill, Target::Node(9), None),
            step(7, Fault::SlowCpu { percent: 5 }, Target::Node(1), None),
        ],
    )
    .await;
    assert_eq!(
        skipped(&effects[1]),
        "the data of 2 nodes would be damaged, 1 may be"
    );
    assert_eq!(effects[2].state, Done::Yes, "the same node again is still one");
    assert_eq!(skipped(&effects[3]), "nobody would be left");
    assert_eq!(skipped(&effects[5]), "no target runs");
    assert_eq!(skipped(&effects[6]), "there is no node 9");
    assert_eq!(skipped(&effects[7]), "not here");
    assert!(
        !lines.iter().any(|line| line.contains("undo slow-cpu")),
        "{lines:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn nodes_that_come_are_members_until_they_go() {
    let (lines, effects) = run(
        3,
        vec![
            step(0, Fault::Grow, Target::Nodes(vec![0, 1]), Some(200)),
            step(100, Fault::Reset, Target::All, None),
            step(300, Fault::Reset, Target::All, None),
        ],
    )
    .await;
    assert_eq!(effects[0].nodes, [3, 4]);
    let expected = [
        "0 do grow [0, 1]",
        "100 do reset [0, 1, 2, 3, 4]",
        "200 undo grow [3, 4]",
        "300 do reset [0, 1, 2]",
        "heal",
    ];
    assert_eq!(lines, expected);
}

#[tokio::test(start_paused = true)]
async fn what_begins_late_lasts_as_long_as_it_would_have() {
    let (lines, _) = run(
        3,
        vec![
            step(100, Fault::DiskFull, Target::Node(0), Some(900)),
            step(150, Fault::Isolate, Target::Node(1), Some(300)),
            step(160, Fault::Isolate, Target::Node(2), Some(800)),
            step(700, Fault::Reset, Target::Node(1), None),
        ],
    )
    .await;
    let expected = [
        "100 do disk-full [0]",
        "600 do isolate [1]",
        "600 do isolate [2]",
        "700 do reset [1]",
        "750 undo isolate [1]",
        "900 undo disk-full [0]",
        "1000 undo isolate [2]",
        "heal",
    ];
    assert_eq!(lines, expected);
}

#[tokio::test(start_paused = true)]
async fn a_step_begins_when_it_is_known_whom_it_means() {
    let leaderless = Duration::from_millis(600);
    let notes = Notes {
        leaderless,
        ..Notes::of(3)
    };
    let steps = vec![step(100, Fault::Isolate, Target::Leader, Some(300))];
    let (lines, effects) = run_on(notes, steps).await;
    assert_eq!(lines, ["600 do isolate [0]", "800 undo isolate [0]", "heal"]);
    assert_eq!((effects[0].from_ms, effects[0].until_ms), (600, Some(800)));
}

#[tokio::test(start_paused = true)]
async fn power_is_lost_by_what_ended_by_itself_but_not_by_what_was_ended() {
    let (lines, effects) = run(
        3,
        vec![
            step(0, Fault::DiskFull, Target::Node(0), Some(900)),
            step(500, Fault::PowerLoss, Target::Node(0), Some(600)),
            step(700, Fault::Kill, Target::Node(1), Some(800)),
            step(750, Fault::PowerLoss, Target::Node(1), Some(790)),
        ],
    )
    .await;
    assert!(lines.contains(&"500 do power-loss [0]".to_owned()), "{lines:?}");
    assert_eq!(skipped(&effects[3]), "no target runs");
}
