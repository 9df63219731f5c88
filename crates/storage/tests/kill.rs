//! A process that is killed at any moment keeps everything it answered for.
//!
//! The test starts itself again as a child, which opens the store, does random things and prints each order
//! before it is given and each answer when it comes. The parent kills it, reads what it printed, and checks
//! the directory: the log must be what the answered orders made of it, or that with some of the unanswered
//! ones carried out too, in order and without a gap.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use common::record;
use quorate_storage::{Options, Store};
use tempfile::tempdir;

const DIR: &str = "QUORATE_STORAGE_KILL_DIR";
const SEED: &str = "QUORATE_STORAGE_KILL_SEED";
const ROUNDS: u64 = 8;

/// Everything an order can do, in a form that fits on a line.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Append { count: u64, len: usize },
    Truncate { keep: u64 },
    Purge { keep: u64 },
    Vote(u64),
}

/// What the log should look like: `first..end` with a length for each entry, and the last vote.
#[derive(Clone, Debug, PartialEq, Default)]
struct Model {
    first: u64,
    lens: Vec<usize>,
    vote: u64,
}

impl Model {
    fn apply(&mut self, order: Order) {
        match order {
            Order::Append { count, len } => self.lens.extend((0..count).map(|_| len)),
            Order::Truncate { keep } => self.lens.truncate(keep as usize),
            Order::Purge { keep } => {
                let gone = self.lens.len().saturating_sub(keep as usize);
                self.lens.drain(..gone);
                self.first += gone as u64;
            }
            Order::Vote(vote) => self.vote = vote,
        }
    }

    fn end(&self) -> u64 {
        self.first + self.lens.len() as u64
    }

    fn of(store: &Store) -> Model {
        let records = store.log.read(0, u64::MAX, usize::MAX).unwrap();
        for found in &records {
            assert_eq!(
                *found,
                record(found.index, found.bytes.len()),
                "an entry with foreign bytes"
            );
        }
        let purged = store.log.purged().map_or(0, |(index, _)| index);
        Model {
            first: records.first().map_or(purged + 1, |record| record.index),
            lens: records.iter().map(|record| record.bytes.len()).collect(),
            vote: store
                .log
                .vote()
                .map_or(0, |vote| u64::from_le_bytes(vote[..].try_into().unwrap())),
        }
    }

    fn encode(&self) -> String {
        let lens: Vec<_> = self.lens.iter().map(ToString::to_string).collect();
        format!("state {} {} {}", self.first, self.vote, lens.join(","))
    }

    fn decode(line: &str) -> Option<Model> {
        let mut words = line.strip_prefix("state ")?.split(' ');
        let (first, vote) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let lens = words
            .next()?
            .split(',')
            .filter(|len| !len.is_empty())
            .map(|len| len.parse().unwrap());
        Some(Model {
            first,
            lens: lens.collect(),
            vote,
        })
    }
}

/// The child: runs until it is killed.
#[test]
fn child() {
    let (Some(dir), Ok(seed)) = (std::env::var_os(DIR), std::env::var(SEED)) else {
        return;
    };
    let mut random: u64 = seed.parse().unwrap();
    let mut draw = move |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let say = |line: String| {
        // One write, so that a kill cannot mix lines.
        let _ = std::io::stdout().write_all(format!("\n@{line}\n").as_bytes());
        let _ = std::io::stdout().flush();
    };
    let store = Store::open(
        Path::new(&dir),
        Options {
            tail_bytes: 100_000,
            ..Options::default()
        },
    )
    .unwrap();
    let mut model = Model::of(&store);
    say(model.encode());
    for number in 0_u64.. {
        let order = match draw(20) {
            0 => Order::Truncate {
                keep: (model.lens.len() as u64).saturating_sub(draw(30)),
            },
            1 => Order::Purge { keep: draw(300) },
            2 => Order::Vote(draw(1 << 30)),
            3 => Order::Append {
                count: 1 + draw(3),
                len: 10_000 + draw(60_000) as usize,
            },
            4 => Order::Append {
                count: 50 + draw(100),
                len: draw(300) as usize,
            },
            _ => Order::Append {
                count: 1 + draw(5),
                len: draw(2000) as usize,
            },
        };
        let end = model.end();
        let before = model.clone();
        model.apply(order);
        say(format!("order {number} {}", words(order)));
        let done: quorate_storage::Done = Box::new(move |result| {
            result.unwrap();
            // The standard streams lock by themselves, so this thread may print too.
            let _ = std::io::stdout().write_all(format!("\n@done {number}\n").as_bytes());
        });
        match order {
            Order::Append { count, len } => {
                store
                    .log
                    .append((end..end + count).map(|index| record(index, len)).collect(), done);
            }
            Order::Truncate { .. } => store.log.truncate_from(model.end(), done),
            Order::Purge { .. } if model.first == 0 => done(Ok(())),
            Order::Purge { .. } => store.log.purge_to(model.first - 1, "marker".into(), done),
            Order::Vote(vote) => store.log.put_vote(vote.to_le_bytes().to_vec().into(), done),
        }
        assert_eq!(
            Model::of(&store).lens.len(),
            model.lens.len(),
            "{before:?} {order:?}"
        );
        while store.log.stats().unflushed_bytes > 4 << 20 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn words(order: Order) -> String {
    match order {
        Order::Append { count, len } => format!("append {count} {len}"),
        Order::Truncate { keep } => format!("truncate {keep} 0"),
        Order::Purge { keep } => format!("purge {keep} 0"),
        Order::Vote(vote) => format!("vote {vote} 0"),
    }
}

fn parse(words: &[&str]) -> Order {
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    match words[0] {
        "append" => Order::Append {
            count: number(1),
            len: number(2) as usize,
        },
        "truncate" => Order::Truncate { keep: number(1) },
        "purge" => Order::Purge { keep: number(1) },
        "vote" => Order::Vote(number(1)),
        other => panic!("order {other}"),
    }
}

#[test]
fn kill_nine_loses_nothing_that_was_answered() {
    let dir = tempdir().unwrap();
    let mut model = Model {
        first: 1,
        ..Model::default()
    };
    let mut answered_total = 0;
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture", "--test-threads=1"])
            .env(DIR, dir.path())
            .env(SEED, (round * 7919 + 1).to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.stdout.take().unwrap();
        let (sender, said) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = String::new();
            // A kill may cut the last line.
            while output.read_line(&mut line).is_ok() && line.ends_with('\n') {
                let _ = sender.send(line.trim_end_matches('\n').to_owned());
                line.clear();
            }
        });
        let mut lines = Vec::new();
        if round % 4 == 3 {
            // Somewhere in its opening.
            std::thread::sleep(Duration::from_millis(5 * round));
        } else {
            while !lines.iter().any(|line: &String| line.starts_with("@state")) {
                lines.push(said.recv().expect("the child says what it found"));
            }
            std::thread::sleep(Duration::from_millis(150 + 97 * (round % 5)));
        }
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "round {round}: the child ended by itself");
        child.kill().unwrap();
        child.wait().unwrap();
        reader.join().unwrap();
        lines.extend(said);
        answered_total += check(dir.path(), &lines, &mut model, round);
    }
    assert!(
        answered_total > 100,
        "only {answered_total} orders were answered: the test tested nothing"
    );
}

/// Compares the directory with what the child said, and returns how many orders it had answered. `model` is
/// what the child must have found, and then what is there now.
fn check(dir: &Path, lines: &[String], model: &mut Model, round: u64) -> usize {
    let lines: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix('@')).collect();
    let before = model.clone();
    let mut orders = Vec::new();
    let mut answered = 0;
    for line in &lines {
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "state" => assert_eq!(
                Model::decode(line).unwrap(),
                before,
                "round {round}: what the child found"
            ),
            "order" if words.len() == 5 => orders.push(parse(&words[2..])),
            "done" => {
                assert_eq!(words[1], answered.to_string(), "answers come in order");
                answered += 1;
            }
            _ => {}
        }
    }
    let store = Store::open(dir, Options::default()).unwrap_or_else(|error| panic!("round {round}: {error}"));
    let found = Model::of(&store);
    for order in &orders[..answered] {
        model.apply(*order);
    }
    // Part of a group may have reached the disk before the kill, so entries of one append may be there alone,
    // and a truncation may be half done.
    let mut candidates = vec![model.clone()];
    for order in &orders[answered..] {
        let mut step = model.clone();
        match order {
            Order::Append { count, len } => {
                for _ in 0..*count {
                    step.lens.push(*len);
                    candidates.push(step.clone());
                }
            }
            Order::Truncate { keep } => {
                while step.lens.len() as u64 > *keep {
                    step.lens.pop();
                    candidates.push(step.clone());
                }
            }
            _ => {}
        }
        model.apply(*order);
        candidates.push(model.clone());
    }
    assert!(
        candidates.contains(&found),
        "round {round}: {answered} of {} orders were answered; found {}..{} vote {}, which none of the {} possible states is; last answered {}..{}",
        orders.len(),
        found.first,
        found.end(),
        found.vote,
        candidates.len(),
        candidates[0].first,
        candidates[0].end(),
    );
    *model = found;
    answered
}
