//! The log over the engine in memory: against a model, through crashes at any write.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use proptest::prelude::*;

use super::{Log, Pace, Recovered};
use crate::engine::memory::Memory;
use crate::error::StorageError;
use crate::failure::Failure;
use crate::{Options, Record};

fn start(engine: Memory) -> (Log, Arc<Memory>) {
    let engine = Arc::new(engine);
    // A small tail, so that reads cross from disk to memory; small groups, so that there are many.
    let options = Options {
        tail_bytes: 4000,
        group_bytes_max: 20_000,
        group_commands_max: 4,
        ..Options::default()
    };
    let recovered = Recovered::read(&*engine, options.tail_bytes).expect("recovery");
    recovered.repair(&*engine).expect("repair");
    let log = Log::start(
        engine.clone(),
        recovered,
        None,
        Arc::new(Failure::default()),
        options,
        None,
        Pace::Thread,
    );
    (log.expect("a thread"), engine)
}

#[derive(Clone, Debug)]
enum Order {
    Append(Vec<usize>),
    Truncate(u64),
    Purge(u64),
    Vote(u8),
    Committed,
    Wait,
    /// The disk stops after so many more writes.
    Fuse(u64),
    /// Keeps so many per mille of the unflushed writes.
    Crash(usize),
}

fn order() -> impl Strategy<Value = Order> {
    let len = prop_oneof![5 => 0_usize..300, 2 => 1000_usize..9000, 1 => 16_000_usize..70_000];
    prop_oneof![
        8 => prop::collection::vec(len, 1..8).prop_map(Order::Append),
        3 => (0_u64..60).prop_map(Order::Truncate),
        2 => (0_u64..30).prop_map(Order::Purge),
        1 => any::<u8>().prop_map(Order::Vote),
        2 => Just(Order::Committed),
        1 => Just(Order::Wait),
        2 => (0_u64..40).prop_map(Order::Fuse),
        2 => (0_usize..=1000).prop_map(Order::Crash),
    ]
}

/// What the log should hold.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    entries: Vec<Record>,
    purged: Option<(u64, Bytes)>,
    vote: Option<Bytes>,
    committed: Option<Bytes>,
}

impl Model {
    fn next(&self) -> u64 {
        let purged = self.purged.as_ref().map_or(1, |(index, _)| index + 1);
        self.entries.last().map_or(purged, |record| record.index + 1)
    }

    fn of(log: &Log) -> Model {
        Model {
            entries: log.read(0, u64::MAX, usize::MAX).expect("readable"),
            purged: log.purged(),
            vote: log.vote(),
            committed: log.committed(),
        }
    }

    /// The states between this one and the one after `order`, if its writes are cut short.
    fn steps(&self, order: &Step) -> Vec<Model> {
        let mut now = self.clone();
        let mut steps = Vec::new();
        match order {
            Step::Append(records) => {
                for record in records {
                    now.entries.push(record.clone());
                    steps.push(now.clone());
                }
            }
            Step::Truncate(index) => {
                while now.entries.last().is_some_and(|record| record.index >= *index) {
                    now.entries.pop();
                    steps.push(now.clone());
                }
            }
            Step::Purge(index, marker) => {
                now.entries.retain(|record| record.index > *index);
                now.purged = Some((*index, marker.clone()));
                steps.push(now);
            }
            Step::Vote(vote) => steps.push(Model {
                vote: Some(vote.clone()),
                ..now
            }),
            Step::Committed(committed) => steps.push(Model {
                committed: Some(committed.clone()),
                ..now
            }),
        }
        steps
    }

    fn apply(&mut self, order: &Step) {
        if let Some(last) = self.steps(order).pop() {
            *self = last;
        }
    }
}

/// An order with its numbers filled in.
#[derive(Clone, Debug)]
enum Step {
    Append(Vec<Record>),
    Truncate(u64),
    Purge(u64, Bytes),
    Vote(Bytes),
    Committed(Bytes),
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn the_log_is_what_was_ordered_and_after_a_crash_a_prefix_of_it(orders in prop::collection::vec(order(), 1..80)) {
        let (mut log, mut engine) = start(Memory::default());
        let mut confirmed = Model::default();
        // Orders since `confirmed`, and how many of those that want an answer have one.
        let mut given: Vec<Step> = Vec::new();
        let answered = Arc::new(AtomicUsize::new(0));
        let mut now = Model::default();
        let mut burning = false;
        for (number, order) in orders.into_iter().enumerate() {
            let seen = Arc::clone(&answered);
            let done: super::Done = Box::new(move |result| {
                assert!(result.is_ok() || burning, "an order failed on a good disk");
                seen.fetch_add(usize::from(result.is_ok()), Ordering::SeqCst);
            });
            let marker = Bytes::from(format!("order {number}"));
            let step = match order {
                Order::Append(lens) => {
                    let records: Vec<_> = (now.next()..)
                        .zip(lens)
                        .map(|(index, len)| Record { index, bytes: vec![number as u8; len].into() })
                        .collect();
                    log.append(records.clone(), done);
                    Step::Append(records)
                }
                Order::Truncate(back) => {
                    let index = now.next().saturating_sub(back);
                    log.truncate_from(index, done);
                    Step::Truncate(index)
                }
                Order::Purge(keep) => {
                    let index = (now.next() + 3).saturating_sub(keep).max(now.purged.as_ref().map_or(0, |p| p.0));
                    log.purge_to(index, marker.clone(), done);
                    Step::Purge(index, marker)
                }
                Order::Vote(vote) => {
                    log.put_vote(vec![vote].into(), done);
                    Step::Vote(vec![vote].into())
                }
                Order::Committed => {
                    log.put_committed(marker.clone());
                    Step::Committed(marker)
                }
                Order::Wait => {
                    assert!(log.flush().is_ok() || burning);
                    continue;
                }
                Order::Fuse(writes) => {
                    if !burning {
                        engine.die_after(writes);
                        burning = true;
                    }
                    continue;
                }
                Order::Crash(kept) => {
                    // The disk stops first: what is answered by now was there before it did.
                    let (at_least, crashed) = {
                        let at_least = answered.load(Ordering::SeqCst);
                        (at_least, engine.crash(engine.unflushed() * kept / 1000))
                    };
                    drop(log);
                    burning = false;
                    (log, engine) = start(crashed);
                    let found = Model::of(&log);
                    // Walk through every state that the crash may leave. Of several committed points in one
                    // group only the last is written, so an older one will do, but none from the future.
                    let mut candidate = confirmed.clone();
                    let mut committed = vec![confirmed.committed.clone()];
                    let mut waiting = at_least;
                    let agrees = |candidate: &Model, committed: &[Option<Bytes>]| {
                        let same = Model { committed: found.committed.clone(), ..candidate.clone() } == found;
                        same && committed.contains(&found.committed)
                    };
                    let mut fits = waiting == 0 && agrees(&candidate, &committed);
                    for step in &given {
                        for between in candidate.steps(step) {
                            candidate = between;
                            fits |= waiting == 0 && agrees(&candidate, &committed);
                        }
                        match step {
                            Step::Committed(point) => committed.push(Some(point.clone())),
                            _ => waiting = waiting.saturating_sub(1),
                        }
                        fits |= waiting == 0 && agrees(&candidate, &committed);
                    }
                    prop_assert!(fits, "found {found:?} after {at_least} answers");
                    (confirmed, now) = (found.clone(), found);
                    given.clear();
                    answered.store(0, Ordering::SeqCst);
                    continue;
                }
            };
            now.apply(&step);
            given.push(step);
            prop_assert_eq!(Model::of(&log), now.clone());
        }
    }
}

#[test]
fn committed_never_overtakes_and_never_flushes() {
    let (log, engine) = start(Memory::default());
    log.flush().unwrap();
    let flushes = log.stats().flushes;
    for number in 0..100_u8 {
        log.put_committed(vec![number].into());
    }
    assert_eq!(log.committed().unwrap(), &[99][..]);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(log.stats().flushes, flushes);
    assert_eq!(
        start(engine.crash(usize::MAX)).0.committed(),
        None,
        "it waits for company"
    );
    log.put_vote("vote".into(), Box::new(|result| result.unwrap()));
    log.flush().unwrap();
    assert_eq!(start(engine.crash(0)).0.committed().unwrap(), &[99][..]);
}

#[test]
fn what_waits_is_flushed_together() {
    let (log, _engine) = start(Memory::default());
    log.flush().unwrap();
    let before = log.stats();
    for index in 1..=200 {
        log.append(
            vec![Record {
                index,
                bytes: Bytes::new(),
            }],
            Box::new(|result| result.unwrap()),
        );
    }
    log.flush().unwrap();
    let after = log.stats();
    assert_eq!(after.entries - before.entries, 200);
    assert!(after.flushes - before.flushes <= 201);
    assert_eq!(after.unflushed_bytes, 0);
}

#[test]
fn a_full_disk_ends_it_and_loses_nothing_confirmed() {
    let (log, engine) = start(Memory::default());
    engine.fail_after(3);
    let (sender, receiver) = std::sync::mpsc::channel();
    for index in 1..=20 {
        let sender = sender.clone();
        let record = Record {
            index,
            bytes: vec![1; 30_000].into(),
        };
        log.append(
            vec![record],
            Box::new(move |result| sender.send((index, result.is_ok())).unwrap()),
        );
    }
    let answers: Vec<(u64, bool)> = receiver.iter().take(20).collect();
    assert!(
        answers.iter().map(|(index, _)| *index).eq(1..=20),
        "every order is answered, in order"
    );
    let confirmed = answers.iter().filter(|(_, ok)| *ok).count() as u64;
    assert!(
        answers.is_sorted_by_key(|(_, ok)| !ok) && (1..20).contains(&confirmed),
        "{answers:?}"
    );
    assert!(matches!(log.failed(), Some(StorageError::Engine { .. })));
    let (log, _engine) = start(engine.crash(0));
    assert_eq!(log.last_index(), Some(confirmed));
}

#[test]
fn appends_that_do_not_continue_the_log_are_refused() {
    let (log, _engine) = start(Memory::default());
    let record = |index| Record {
        index,
        bytes: Bytes::new(),
    };
    let refused = |records| {
        let (sender, receiver) = std::sync::mpsc::channel();
        log.append(records, Box::new(move |result| sender.send(result).unwrap()));
        receiver.recv().unwrap().err()
    };
    assert!(refused(vec![record(5), record(7)]).is_some());
    assert_eq!(log.last_index(), None);
    assert!(refused(vec![record(5), record(6)]).is_none());
    for wrong in [5, 6, 8] {
        let error = refused(vec![record(wrong)]);
        assert!(
            matches!(error, Some(StorageError::NotContiguous { expected: 7, .. })),
            "{error:?}"
        );
    }
    assert!(log.failed().is_none());
    assert!(refused(vec![record(7)]).is_none());
}

#[test]
fn reads_from_memory_alone() {
    let (log, _engine) = start(Memory::default());
    let records: Vec<_> = (1..=10)
        .map(|index| Record {
            index,
            bytes: vec![0; 1000].into(),
        })
        .collect();
    log.append(records, Box::new(|result| result.unwrap()));
    log.flush().unwrap();
    assert_eq!(log.cached_bytes(), 4000);
    assert!(log.read_cached(6, 11, usize::MAX).is_none());
    assert_eq!(log.read_cached(7, 99, usize::MAX).unwrap().len(), 4);
    assert_eq!(log.read_cached(8, 10, 1500).unwrap().len(), 1);
    assert!(log.read_cached(11, 12, usize::MAX).is_none());
    assert!(log.read_cached(8, 8, usize::MAX).is_none());
    assert_eq!(log.log_bytes(0), 10_000);
}
