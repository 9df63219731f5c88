use std::path::Path;

use proptest::prelude::*;
use quorate_core::effect::DeadReason;
use quorate_core::event::{Change, LeasedBy, Returned};
use quorate_core::ids::{
    ClientId, ConsumerId, ExchangeName, MessageId, Millis, NodeId, QueueId, QueueName, SessionId,
};
use quorate_core::outcome::Exit;

use super::codec::{Malformed, Reader, Recorded, Writer};
use super::*;

// -------------------------------------------------------------------------- codec

type Entry = (u64, Timestamp, Vec<Event>);

fn written(entries: &[Entry]) -> Vec<u8> {
    let mut writer = Writer::new();
    for (index, at, events) in entries {
        writer.entry(*index, *at, events, name_of);
    }
    writer.into_bytes()
}

/// All that a chunk tells.
fn read(bytes: &[u8]) -> Result<Vec<Recorded>, Malformed> {
    let mut reader = Reader::new(bytes)?;
    let mut all = Vec::new();
    while let Some(recorded) = reader.next_wanted(|_, _| true)? {
        all.push(recorded);
    }
    Ok(all)
}

fn name_of(session: SessionId, consumer: ConsumerId) -> String {
    format!("worker {}.{}", session.0, consumer.0)
}

fn expected(entries: &[Entry]) -> Vec<Recorded> {
    let name = |event: &Event| match event.change {
        Change::Leased {
            holder: LeasedBy::Consumer {
                session, consumer, ..
            },
            ..
        } => name_of(session, consumer),
        _ => String::new(),
    };
    let recorded = |(index, at, events): &Entry| {
        let of_entry = events.iter().zip(0..).map(|(event, ordinal)| Recorded {
            index: *index,
            ordinal,
            at: *at,
            event: event.clone(),
            consumer_name: name(event).into(),
        });
        of_entry.collect::<Vec<_>>()
    };
    entries.iter().flat_map(recorded).collect()
}

fn queue(number: u64) -> (QueueId, QueueName) {
    (
        QueueId(number << 16),
        QueueName::new(&format!("queue-{number}")).unwrap(),
    )
}

fn id(index: u64, number: u32) -> MessageId {
    MessageId { index, number }
}

fn event(message: MessageId, at: u64, change: Change) -> Event {
    let (queue, queue_name) = queue(at);
    Event {
        message,
        queue,
        queue_name,
        change,
    }
}

fn published() -> Change {
    Change::Published {
        exchange: None,
        delayed_until: None,
        dedup_id: String::new(),
    }
}

fn leased(grant: u64, until: u64) -> Change {
    Change::Leased {
        grant,
        attempt: 1,
        holder: LeasedBy::Consumer {
            session: SessionId(0x1122_3344_5566_7788),
            consumer: ConsumerId(1),
            node: NodeId(0x99aa_bbcc_ddee_ff00),
        },
        until: Timestamp(until),
        waited: Some(Millis(5)),
    }
}

fn acked(held: u64) -> Change {
    Change::Left {
        exit: Exit::Acked,
        reason: None,
        error: String::new(),
        to: Vec::new(),
        held: Some(Millis(held)),
    }
}

/// Every kind, with every part that it can have.
fn one_of_each() -> Vec<Entry> {
    let name = |name| QueueName::new(name).unwrap();
    let at = Timestamp;
    let first = vec![
        event(id(10, 0), 1, published()),
        event(
            id(10, 1),
            1,
            Change::Published {
                exchange: Some(ExchangeName::new("orders").unwrap()),
                delayed_until: Some(at(1_500)),
                dedup_id: "order 7".to_owned(),
            },
        ),
        event(
            id(10, 1),
            2,
            Change::Arrived {
                from: name("queue-1"),
                exit: Exit::Moved,
            },
        ),
        event(id(9, 3), 2, Change::Duplicate { refused: id(10, 2) }),
        event(id(10, 1), 1, Change::Due),
    ];
    let second = vec![
        event(id(10, 0), 1, leased(41, 31_000)),
        event(
            id(10, 1),
            1,
            Change::Leased {
                grant: 42,
                attempt: 3,
                holder: LeasedBy::Puller(Some(ClientId(6))),
                until: at(1_100),
                waited: None,
            },
        ),
        event(
            id(10, 2),
            1,
            Change::Leased {
                grant: 43,
                attempt: 1,
                holder: LeasedBy::Puller(None),
                until: at(900),
                waited: Some(Millis(0)),
            },
        ),
        event(id(10, 0), 1, Change::Extended { until: at(60_000) }),
        event(
            id(10, 0),
            1,
            Change::Returned {
                reason: Returned::Nacked,
                error: "no space".to_owned(),
                until: Some(at(2_000)),
            },
        ),
        event(
            id(10, 0),
            1,
            Change::Returned {
                reason: Returned::SessionEnded,
                error: String::new(),
                until: None,
            },
        ),
    ];
    let third = vec![
        event(id(10, 0), 1, Change::Rescheduled { until: None }),
        event(id(10, 0), 1, Change::Rescheduled { until: Some(at(9)) }),
        event(
            id(10, 0),
            1,
            Change::Died {
                reason: DeadReason::DeliveriesMax,
                error: "no".to_owned(),
            },
        ),
        event(id(10, 0), 1, Change::Redriven),
        event(id(10, 0), 1, Change::RedriveUndone),
        event(
            id(10, 0),
            1,
            Change::Left {
                exit: Exit::DeadLettered,
                reason: Some(DeadReason::Rejected),
                error: "no disk".to_owned(),
                to: vec![name("queue-1"), name("dead")],
                held: None,
            },
        ),
        event(id(10, 1), 1, acked(7)),
    ];
    vec![
        (10, at(1_000), first),
        (11, at(1_001), second),
        (14, at(900), third),
    ]
}

#[test]
fn every_kind_of_event_comes_back() {
    let entries = one_of_each();
    assert_eq!(read(&written(&entries)).unwrap(), expected(&entries));
}

/// What a release has written, every later one reads. A new version of the
/// format adds a sample of its own.
#[test]
fn the_sample_of_version_1_is_read_and_written() {
    let sample = include_str!("samples/chunk_v1.hex");
    let sample: Vec<u8> = sample
        .split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    let bytes = written(&one_of_each());
    assert_eq!(bytes, sample, "{bytes:02x?}");
    assert_eq!(read(&sample).unwrap(), expected(&one_of_each()));
}

#[test]
fn the_life_of_a_message_takes_about_twenty_bytes() {
    let mut entries = Vec::new();
    for n in 0..300_u64 {
        // Published in one entry, leased in the next and acked in the one after.
        let (first, at) = (1_000 + 3 * n, 1_000_000 + 20 * n);
        let of_entry = |change: &dyn Fn(u64) -> Change| {
            (0..10)
                .map(|k| event(id(first, k), 1, change(u64::from(k))))
                .collect::<Vec<_>>()
        };
        entries.push((first, Timestamp(at), of_entry(&|_| published())));
        let grant = |k| leased(10 * n + k, at + 30_005);
        entries.push((first + 1, Timestamp(at + 5), of_entry(&grant)));
        entries.push((first + 2, Timestamp(at + 9), of_entry(&|_| acked(4))));
    }
    let bytes = written(&entries);
    let each = bytes.len() as f64 / 3_000.0;
    assert!(each < 20.0, "{each} bytes for each message");
}

#[test]
fn damaged_bytes_are_an_error_or_other_events_and_never_a_panic() {
    let sound = written(&one_of_each());
    for at in 0..sound.len() {
        for value in 0..=u8::MAX {
            let mut damaged = sound.clone();
            damaged[at] = value;
            let _ = read(&damaged);
        }
        let whole_entries = |events: Vec<Recorded>| events.last().is_none_or(|last| last.index < 14);
        assert!(read(&sound[..at]).map_or(true, whole_entries), "cut at {at}");
    }
    assert!(Reader::new(&[2]).is_err());
}

fn times() -> impl Strategy<Value = Timestamp> {
    prop_oneof![0_u64..100_000, any::<u64>()].prop_map(Timestamp)
}

fn messages() -> impl Strategy<Value = MessageId> {
    prop_oneof![
        (0_u64..50, 0_u32..4).prop_map(|(index, number)| id(index, number)),
        (any::<u64>(), any::<u32>()).prop_map(|(index, number)| id(index, number)),
    ]
}

fn queue_names() -> impl Strategy<Value = QueueName> {
    (0_u64..6).prop_map(|number| queue(number).1)
}

fn exits() -> impl Strategy<Value = Exit> {
    prop_oneof![
        Just(Exit::Acked),
        Just(Exit::Expired),
        Just(Exit::DeadLettered),
        Just(Exit::Dropped),
        Just(Exit::Deleted),
        Just(Exit::Moved),
    ]
}

fn reasons() -> impl Strategy<Value = DeadReason> {
    prop_oneof![
        Just(DeadReason::Rejected),
        Just(DeadReason::DeliveriesMax),
        Just(DeadReason::Expired),
        Just(DeadReason::DroppedByLimit),
    ]
}

fn returns() -> impl Strategy<Value = Returned> {
    prop_oneof![
        Just(Returned::Nacked),
        Just(Returned::LeaseExpired),
        Just(Returned::Released),
        Just(Returned::SessionEnded),
    ]
}

fn holders() -> impl Strategy<Value = LeasedBy> {
    prop_oneof![
        prop::option::of(any::<u64>()).prop_map(|client| LeasedBy::Puller(client.map(ClientId))),
        (0_u64..3, 0_u32..3, any::<u64>()).prop_map(|(session, consumer, node)| LeasedBy::Consumer {
            session: SessionId(session),
            consumer: ConsumerId(consumer),
            node: NodeId(node),
        }),
    ]
}

fn changes() -> impl Strategy<Value = Change> {
    let spans = || prop::option::of(any::<u64>().prop_map(Millis));
    prop_oneof![
        (
            prop::option::of(0_u8..3),
            prop::option::of(times()),
            "[a-zé]{0,9}"
        )
            .prop_map(|(exchange, delayed_until, dedup_id)| Change::Published {
                exchange: exchange.map(|number| ExchangeName::new(&format!("x{number}")).unwrap()),
                delayed_until,
                dedup_id,
            }),
        (queue_names(), exits()).prop_map(|(from, exit)| Change::Arrived { from, exit }),
        messages().prop_map(|refused| Change::Duplicate { refused }),
        Just(Change::Due),
        (any::<u64>(), any::<u32>(), holders(), times(), spans()).prop_map(
            |(grant, attempt, holder, until, waited)| Change::Leased {
                grant,
                attempt,
                holder,
                until,
                waited,
            }
        ),
        times().prop_map(|until| Change::Extended { until }),
        (returns(), ".{0,9}", prop::option::of(times()))
            .prop_map(|(reason, error, until)| Change::Returned { reason, error, until }),
        prop::option::of(times()).prop_map(|until| Change::Rescheduled { until }),
        (reasons(), ".{0,9}").prop_map(|(reason, error)| Change::Died { reason, error }),
        Just(Change::Redriven),
        Just(Change::RedriveUndone),
        (
            exits(),
            prop::option::of(reasons()),
            ".{0,9}",
            prop::collection::vec(queue_names(), 0..4),
            spans()
        )
            .prop_map(|(exit, reason, error, to, held)| Change::Left {
                exit,
                reason,
                error,
                to,
                held,
            }),
    ]
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let events =
        (messages(), 0_u64..6, changes()).prop_map(|(message, queue, change)| event(message, queue, change));
    let entry = (1_u64..100, times(), prop::collection::vec(events, 0..12));
    prop::collection::vec(entry, 0..20).prop_map(|entries| {
        let mut last = 0;
        let place = |(step, at, events)| {
            last += step;
            (last, at, events)
        };
        entries.into_iter().map(place).collect()
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(entries in entries()) {
        let bytes = written(&entries);
        prop_assert_eq!(read(&bytes).unwrap(), expected(&entries));
    }
}

// ----------------------------------------------------------------------- coverage

/// A journal that was opened in a directory, as after a start.
fn opened(dir: &Path) -> Journal {
    let options = quorate_raft::Config::default().storage;
    let journal = Journal::default();
    journal.opened(Chunks::open(dir, 1, &options));
    journal
}

/// Entries that each publish one message.
fn apply(journal: &Journal, indexes: RangeInclusive<u64>) {
    let state = State::new();
    for index in indexes {
        journal.applied(index, &[event(id(index, 0), 1, published())], &state);
    }
}

/// Which entries the journal tells of, and which it knows that it does not.
fn known(journal: &Journal) -> (Vec<u64>, Vec<RangeInclusive<u64>>) {
    let trace = journal.trace_dedup("");
    let told = trace.events.iter().map(|traced| traced.index).collect();
    (told, trace.gaps)
}

#[test]
fn a_restart_that_applies_entries_again_tells_each_once() {
    let dir = tempfile::tempdir().unwrap();
    let journal = opened(dir.path());
    apply(&journal, 1..=20);
    journal.keep(12);
    apply(&journal, 21..=25);
    drop(journal);

    // A snapshot of entry 12 is the base; the log after it is applied again.
    let journal = opened(dir.path());
    journal.restored(12);
    assert_eq!(
        known(&journal),
        ((1..=20).collect(), vec![]),
        "all that was applied was kept"
    );
    apply(&journal, 13..=30);
    assert_eq!(known(&journal), ((1..=30).collect(), vec![]));
}

#[test]
fn entries_that_change_no_message_leave_no_gap() {
    let dir = tempfile::tempdir().unwrap();
    let journal = opened(dir.path());
    apply(&journal, 2..=3);
    // Entries 4 to 6 are a leader's first and changes of membership.
    journal.keep(6);
    drop(journal);
    let journal = opened(dir.path());
    journal.restored(6);
    apply(&journal, 8..=9);
    assert_eq!(known(&journal), (vec![2, 3, 8, 9], vec![]));
    assert_eq!(journal.trace_dedup("").begins, Some((1, Timestamp(0))));
}

#[test]
fn a_snapshot_of_another_node_leaves_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let journal = opened(dir.path());
    apply(&journal, 1..=5);
    journal.keep(5);
    journal.restored(90);
    assert_eq!(
        known(&journal),
        ((1..=5).collect(), vec![6..=90]),
        "known before anything follows"
    );
    apply(&journal, 91..=92);
    assert_eq!(known(&journal), (vec![1, 2, 3, 4, 5, 91, 92], vec![6..=90]));
    drop(journal);

    let journal = opened(dir.path());
    journal.restored(90);
    apply(&journal, 91..=93);
    assert_eq!(known(&journal), (vec![1, 2, 3, 4, 5, 91, 92, 93], vec![6..=90]));
}

#[test]
fn a_new_journal_of_an_old_node_begins_and_has_no_gap() {
    let dir = tempfile::tempdir().unwrap();
    let journal = opened(dir.path());
    journal.restored(1_000);
    apply(&journal, 1_001..=1_002);
    assert_eq!(known(&journal), (vec![1_001, 1_002], vec![]));
    assert_eq!(journal.trace_dedup("").begins.unwrap().0, 1_001);
}

#[test]
fn what_could_not_be_written_is_a_gap_and_the_journal_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (path, away) = (dir.path().join("journal"), dir.path().join("away"));
    let journal = opened(&path);
    apply(&journal, 1..=5);
    journal.keep(5);
    std::fs::rename(&path, &away).unwrap();
    apply(&journal, 6..=7);
    journal.keep(7);
    std::fs::rename(&away, &path).unwrap();
    apply(&journal, 8..=9);
    assert_eq!(known(&journal), (vec![1, 2, 3, 4, 5, 8, 9], vec![6..=7]));
}

#[test]
fn a_damaged_chunk_is_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let journal = opened(dir.path());
    for first in [1, 11, 21] {
        apply(&journal, first..=first + 9);
        journal.keep(first + 9);
    }
    drop(journal);
    let mut files: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    let mut bytes = std::fs::read(&files[1]).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&files[1], bytes).unwrap();

    let journal = opened(dir.path());
    let (told, gaps) = known(&journal);
    assert_eq!(told, (1..=10).chain(21..=30).collect::<Vec<_>>());
    assert_eq!(gaps, [11..=20]);
}

#[test]
fn full_tails_become_chunks_and_are_searched_like_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let journal = opened(dir.path());
    let state = State::new();
    let chunk_bytes = journal.chunks.get().unwrap().chunk_bytes();
    // The text alone fills a chunk with each twenty entries.
    let error = "x".repeat(chunk_bytes / 20);
    let died = |index| {
        let reason = DeadReason::Rejected;
        let error = error.clone();
        event(id(index % 3, 0), 1, Change::Died { reason, error })
    };
    for index in 1..=100 {
        journal.applied(index, &[died(index)], &state);
    }
    assert!(journal.view(journal.chunks.get().unwrap()).chunks.len() >= 4);
    let trace = journal.trace_of(id(2, 0));
    let told: Vec<_> = trace.events.iter().map(|traced| traced.index).collect();
    assert_eq!(told, (1..=100).filter(|index| index % 3 == 2).collect::<Vec<_>>());
    assert_eq!((trace.read_index, trace.truncated), (100, false));
    assert!(trace.gaps.is_empty());
}

#[test]
fn messages_are_found_by_their_dedup_id_with_all_that_follows() {
    let journal_dir = tempfile::tempdir().unwrap();
    let journal = opened(journal_dir.path());
    let state = State::new();
    let with = |dedup_id: &str| Change::Published {
        exchange: None,
        delayed_until: None,
        dedup_id: dedup_id.to_owned(),
    };
    journal.applied(
        1,
        &[event(id(1, 0), 1, with("a")), event(id(1, 1), 1, with("b"))],
        &state,
    );
    journal.keep(1);
    journal.applied(
        2,
        &[event(id(1, 0), 1, acked(1)), event(id(1, 1), 1, acked(1))],
        &state,
    );
    journal.applied(
        3,
        &[event(id(3, 0), 2, with("a")), event(id(1, 1), 1, Change::Due)],
        &state,
    );
    let trace = journal.trace_dedup("a");
    let told: Vec<_> = trace
        .events
        .iter()
        .map(|traced| (traced.event.message, traced.index))
        .collect();
    assert_eq!(told, [(id(1, 0), 1), (id(1, 0), 2), (id(3, 0), 3)]);
}

#[test]
fn without_a_journal_nothing_is_known_and_nothing_breaks() {
    let journal = Journal::default();
    apply(&journal, 1..=3);
    journal.restored(9);
    journal.keep(9);
    assert_eq!(journal.trace_dedup(""), Trace::default());
}

/// What the journal costs on the way of a message, and what a search costs. Run
/// with `--release --ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn measure() {
    const ENTRIES: u64 = 20_000;
    const MESSAGES: u32 = 50;
    let dir = tempfile::tempdir().unwrap();
    let journal = opened(dir.path());
    let state = State::new();
    let entries: Vec<_> = (1..=ENTRIES)
        .map(|index| {
            let of_entry = |number| match index % 3 {
                0 => event(id(index - 2, number), 1, acked(4)),
                1 => event(id(index, number), 1, published()),
                _ => event(
                    id(index - 1, number),
                    1,
                    leased(index * 50 + u64::from(number), 30_005),
                ),
            };
            (0..MESSAGES).map(of_entry).collect::<Vec<_>>()
        })
        .collect();
    let started = std::time::Instant::now();
    for (index, events) in (1..).zip(&entries) {
        journal.applied(index, events, &state);
    }
    let took = started.elapsed();
    journal.keep(ENTRIES);
    let events = ENTRIES * u64::from(MESSAGES);
    let stats = journal.chunks.get().unwrap().stats();
    eprintln!(
        "{:.0} ns and {:.1} bytes for each event; {stats:?}",
        took.as_nanos() as f64 / events as f64,
        stats.bytes as f64 / events as f64,
    );
    let started = std::time::Instant::now();
    let found = journal.trace_dedup("none");
    let took = started.elapsed();
    assert!(found.events.is_empty());
    eprintln!(
        "a search through all: {:.0} MiB/s, {:.0} ns for each event",
        stats.bytes as f64 / took.as_secs_f64() / f64::from(1 << 20),
        took.as_nanos() as f64 / events as f64,
    );
}
