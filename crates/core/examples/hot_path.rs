//! Times the hot path: messages of a plain queue, published, leased and acked in
//! batches while a million others are ready. What counts is how two versions
//! compare, run in turns.
//!
//! `cargo run --release -p quorate-core --example hot_path [ROUNDS]`

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::print_stdout)] // measures time, and says it

use std::time::Instant;

use quorate_core::command::{Command, NewMessage, Publish, Request, SettingsPatch, Settlement, Verdict};
use quorate_core::ids::{Millis, NodeId, QueueName, Timestamp};
use quorate_core::outcome::Reply;
use quorate_core::{Applied, Broker, Meta};

const READY: usize = 1_000_000;
const BATCH: usize = 256;

struct Bench {
    broker: Broker,
    queue: QueueName,
    index: u64,
    lengths: Vec<u32>,
}

impl Bench {
    fn apply(&mut self, command: Command) -> Applied {
        self.index += 1;
        let meta = Meta {
            index: self.index,
            at: Timestamp(1_700_000_000_000 + self.index),
            digest: self.index,
        };
        self.broker
            .apply(meta, &[Request { id: None, command }], &self.lengths)
    }

    fn publish(&mut self, count: usize) {
        let publish = Publish::to_queue(self.queue.clone(), vec![NewMessage::default(); count]);
        self.apply(Command::Publish(publish));
    }

    fn lease(&mut self) -> Vec<Settlement> {
        let applied = self.apply(Command::Lease {
            queue: self.queue.clone(),
            count_max: BATCH as u32,
            lease: None,
            wait: Millis(0),
            node: NodeId(1),
        });
        let [Ok(Reply::Leased(leased))] = &applied.outcomes[..] else {
            panic!("{:?}", applied.outcomes);
        };
        let acks = leased.iter().map(|leased| Settlement {
            token: leased.token,
            verdict: Verdict::Ack,
        });
        acks.collect()
    }
}

fn main() {
    let rounds = std::env::args()
        .nth(1)
        .map_or(4_000, |rounds| rounds.parse().expect("a number of rounds"));
    let mut bench = Bench {
        broker: Broker::new(),
        queue: QueueName::new("jobs").expect("a name"),
        index: 0,
        lengths: vec![100; 4_096],
    };
    let (name, settings) = (bench.queue.clone(), SettingsPatch::default());
    bench.apply(Command::DeclareQueue { name, settings });
    for _ in 0..READY / BATCH {
        bench.publish(BATCH);
    }
    let mut spent: [Vec<u128>; 3] = Default::default();
    for _ in 0..rounds {
        let begin = Instant::now();
        bench.publish(BATCH);
        let published = Instant::now();
        let settlements = bench.lease();
        let leased = Instant::now();
        assert_eq!(settlements.len(), BATCH);
        bench.apply(Command::Settle { settlements });
        let acked = Instant::now();
        spent[0].push((published - begin).as_nanos());
        spent[1].push((leased - published).as_nanos());
        spent[2].push((acked - leased).as_nanos());
    }
    let quartiles = spent.map(|mut spent| {
        spent.sort_unstable();
        [0, 1, 2].map(|quarter| spent[spent.len() * quarter / 4] / BATCH as u128)
    });
    for (phase, [least, quarter, half]) in ["publish", "lease", "ack"].iter().zip(quartiles) {
        println!(
            "{phase:8} least {least:5}, a quarter below {quarter:5}, half below {half:5} ns per message"
        );
    }
}
