//! What groups promise, whatever happens: order, and a share for everybody.
//!
//! `PROPTEST_CASES` sets how many runs are tried (256). A failure prints the
//! run that shows it, shrunk, and keeps its seed beside this file.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::sample::Index;
use quorate_core::command::{
    Command, Labels, NewMessage, Publish, Request, SettingsPatch, Settlement, Verdict,
};
use quorate_core::effect::Leased;
use quorate_core::ids::{MessageId, Millis, NodeId, QueueName, Timestamp, Token};
use quorate_core::outcome::{Rejection, Reply};
use quorate_core::{Broker, Meta, QueueCounts};

/// What some worker does next.
#[derive(Clone, Debug)]
enum Step {
    Lease { count: u32 },
    Settle { which: Index, verdict: Verdict },
    Pass { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let nack = |delay: Option<u64>| Verdict::Nack {
        delay: delay.map(Millis),
        reason: String::new(),
    };
    let verdict = prop_oneof![
        4 => Just(Verdict::Ack),
        1 => Just(nack(None)),
        1 => Just(nack(Some(50))),
        1 => Just(Verdict::Release),
        1 => Just(Verdict::Extend { lease: None }),
    ];
    prop_oneof![
        4 => (1..8_u32).prop_map(|count| Step::Lease { count }),
        8 => (any::<Index>(), verdict).prop_map(|(which, verdict)| Step::Settle { which, verdict }),
        1 => (1..400_u64).prop_map(|ms| Step::Pass { ms }),
    ]
}

proptest! {
    /// Workers fail, are late and settle what they hold no more; each group is
    /// done in order all the same, one message at a time, and none is lost.
    #[test]
    fn each_group_is_done_in_order_one_at_a_time(steps in prop::collection::vec(step(), 1..400)) {
        const GROUPS: usize = 20;
        let mut run = Run::new(SettingsPatch {
            lease: Some(Millis(300)),
            deliveries_max: Some(0),
            ..SettingsPatch::default()
        });
        for n in 0..100 {
            run.publish(&format!("group-{}", n % GROUPS), 1);
        }
        let mut held: Vec<Token> = Vec::new();
        let mut done: BTreeMap<String, Vec<MessageId>> = BTreeMap::new();
        for step in &steps {
            match step {
                Step::Lease { count } => held.extend(run.lease(*count).iter().map(|leased| leased.token)),
                Step::Settle { which, verdict } => {
                    if held.is_empty() {
                        continue;
                    }
                    // Often a lease that is over: it is refused then.
                    let token = held[which.index(held.len())];
                    if let Some((group, message)) = run.settle(token, verdict) {
                        done.entry(group).or_default().push(message);
                    }
                }
                Step::Pass { ms } => run.pass(*ms),
            }
            run.check_live(1)?;
        }
        while run.counts().acked < 100 {
            for leased in run.lease(100) {
                let (group, message) = run.settle(leased.token, &Verdict::Ack).unwrap();
                done.entry(group).or_default().push(message);
            }
            run.pass(1_000);
        }
        prop_assert_eq!(done.len(), GROUPS);
        for (group, messages) in done {
            prop_assert_eq!(messages.len(), 100 / GROUPS, "{}", group);
            prop_assert!(messages.is_sorted(), "{} was done in the order {:?}", group, messages);
        }
    }

    /// As long as two groups have messages that can be given out, what they were
    /// given per weight differs by less than one turn of each.
    #[test]
    fn shares_are_those_of_the_weights(
        weights in prop::collection::vec(1..20_u32, 2..6),
        counts in prop::collection::vec(1..5_u32, 1..60),
    ) {
        let names: Vec<String> = (0..weights.len()).map(|n| format!("group-{n}")).collect();
        let mut run = Run::new(SettingsPatch {
            group_concurrency: Some(1_000),
            group_weights: Some(names.iter().cloned().zip(weights.iter().copied()).collect()),
            ..SettingsPatch::default()
        });
        for name in &names {
            run.publish(name, 300);
        }
        let mut given = vec![0_u32; weights.len()];
        for count in counts {
            for leased in run.lease(count) {
                let group = &run.groups[&leased.message];
                given[names.iter().position(|name| name == group).unwrap()] += 1;
                let shares = given.iter().zip(&weights).map(|(n, w)| (f64::from(*n) / f64::from(*w), f64::from(*w)));
                for (one, weight) in shares.clone() {
                    for (other, other_weight) in shares.clone() {
                        let bound = 1.0 / weight + 1.0 / other_weight + 0.01;
                        prop_assert!((one - other).abs() <= bound, "{:?} by {:?}", given, weights);
                    }
                }
            }
        }
    }

    /// However others come and go, a group that has a message waits for no more
    /// than two turns of each of them.
    #[test]
    fn nobody_is_kept_out(steps in prop::collection::vec((0..6_u32, prop::bool::weighted(0.9)), 1..200)) {
        const OTHERS: usize = 6;
        let mut run = Run::new(SettingsPatch {
            group_concurrency: Some(1_000),
            ..SettingsPatch::default()
        });
        run.publish("patient", 1_000);
        let mut waited = 0;
        for (other, at_once) in steps {
            run.publish(&format!("other-{other}"), 1);
            for leased in run.lease(1) {
                let is_patient = run.groups[&leased.message] == "patient";
                waited = if is_patient { 0 } else { waited + 1 };
                prop_assert!(waited <= 2 * OTHERS, "it waited for {} turns", waited);
                if at_once {
                    run.settle(leased.token, &Verdict::Ack);
                }
            }
        }
    }
}

/// One with many messages before, and one with one.
#[test]
fn a_group_of_100_000_does_not_keep_out_one_of_1() {
    let mut run = Run::new(SettingsPatch {
        group_concurrency: Some(1_000),
        ..SettingsPatch::default()
    });
    run.publish("many", 100_000);
    run.lease(10);
    run.publish("one", 1);
    let next = run.lease(2);
    let groups: BTreeSet<&str> = next
        .iter()
        .map(|leased| run.groups[&leased.message].as_str())
        .collect();
    assert_eq!(groups, BTreeSet::from(["many", "one"]));
}

/// A queue, and what is known of it from outside.
struct Run {
    broker: Broker,
    queue: QueueName,
    index: u64,
    now: u64,
    groups: BTreeMap<MessageId, String>,
    /// The last lease of each message that was not settled: its end.
    live: BTreeMap<MessageId, (Token, Timestamp)>,
}

impl Run {
    fn new(settings: SettingsPatch) -> Self {
        let mut run = Self {
            broker: Broker::new(),
            queue: QueueName::new("jobs").unwrap(),
            index: 0,
            now: 1_000,
            groups: BTreeMap::new(),
            live: BTreeMap::new(),
        };
        let name = run.queue.clone();
        run.command(Command::DeclareQueue { name, settings }, 0).unwrap();
        run
    }

    fn command(&mut self, command: Command, contents: usize) -> Result<Reply, Rejection> {
        self.index += 1;
        let meta = Meta {
            index: self.index,
            at: Timestamp(self.now),
            digest: self.index,
        };
        let request = Request { id: None, command };
        let applied = self.broker.apply(meta, &[request], &vec![1; contents]);
        applied.outcomes.into_iter().next().unwrap()
    }

    fn publish(&mut self, group: &str, count: usize) {
        let labels = Labels {
            group: group.to_owned(),
            ..Labels::default()
        };
        let message = NewMessage {
            labels: Some(labels.into()),
            ..NewMessage::default()
        };
        let mut left = count;
        while left > 0 {
            let count = left.min(4_096);
            left -= count;
            let messages = vec![message.clone(); count];
            let publish = Publish::to_queue(self.queue.clone(), messages);
            self.command(Command::Publish(publish), count).unwrap();
            let ids = (0..).take(count).map(|number| MessageId {
                index: self.index,
                number,
            });
            self.groups.extend(ids.map(|id| (id, group.to_owned())));
        }
    }

    fn lease(&mut self, count_max: u32) -> Vec<Leased> {
        let lease = Command::Lease {
            queue: self.queue.clone(),
            count_max,
            lease: None,
            wait: Millis(0),
            node: NodeId(1),
        };
        let Ok(Reply::Leased(leased)) = self.command(lease, 0) else {
            panic!("a lease is answered with leases")
        };
        for leased in &leased {
            self.live
                .insert(leased.message, (leased.token, leased.leased_until));
        }
        leased
    }

    /// The group and the message, if it is done.
    fn settle(&mut self, token: Token, verdict: &Verdict) -> Option<(String, MessageId)> {
        let settlement = Settlement {
            token,
            verdict: verdict.clone(),
        };
        let settlements = vec![settlement];
        let Ok(Reply::Settled(settled)) = self.command(Command::Settle { settlements }, 0) else {
            panic!("each settlement is answered by itself")
        };
        let settled = settled[0].as_ref().ok()?;
        let mut live = self.live.iter_mut();
        let (message, its) = live.find(|(_, (live, _))| *live == token)?;
        let message = *message;
        match settled.leased_until {
            Some(until) => its.1 = until,
            None => drop(self.live.remove(&message)),
        }
        (*verdict == Verdict::Ack).then(|| (self.groups[&message].clone(), message))
    }

    fn pass(&mut self, ms: u64) {
        self.now += ms;
        self.command(Command::Tick, 0).unwrap();
    }

    fn counts(&self) -> QueueCounts {
        self.broker.queue(&self.queue).unwrap().counts
    }

    /// No group has more live leases than it may.
    fn check_live(&self, concurrency: usize) -> Result<(), TestCaseError> {
        let mut live: BTreeMap<&str, usize> = BTreeMap::new();
        for (message, (_, until)) in &self.live {
            if until.0 > self.now {
                *live.entry(&self.groups[message]).or_default() += 1;
            }
        }
        for (group, count) in live {
            prop_assert!(count <= concurrency, "{} live leases in {}", count, group);
        }
        Ok(())
    }
}
