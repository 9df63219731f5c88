//! Times the hot path: messages of a plain queue, published, leased and acked in
//! batches while a million others are ready. Prints nanoseconds per message of
//! each round; what counts is how two versions compare, run in turns.
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
const BATCHES_PER_ROUND: usize = 400;

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
        .map_or(10, |rounds| rounds.parse().expect("a number of rounds"));
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
    for _ in 0..rounds {
        let mut spent = [0; 3];
        for _ in 0..BATCHES_PER_ROUND {
            let begin = Instant::now();
            bench.publish(BATCH);
            let published = Instant::now();
            let settlements = bench.lease();
            let leased = Instant::now();
            assert_eq!(settlements.len(), BATCH);
            bench.apply(Command::Settle { settlements });
            let acked = Instant::now();
            spent[0] += (published - begin).as_nanos();
            spent[1] += (leased - published).as_nanos();
            spent[2] += (acked - leased).as_nanos();
        }
        let per_message = spent.map(|nanos| nanos / (BATCH * BATCHES_PER_ROUND) as u128);
        let [publish, lease, ack] = per_message;
        println!(
            "publish {publish} lease {lease} ack {ack} sum {}",
            publish + lease + ack
        );
    }
}
