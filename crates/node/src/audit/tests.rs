use std::collections::BTreeSet;
use std::path::PathBuf;

use quorate_core::command::{
    Command, Labels, NewMessage, Operation, Publish, Request, Selector, SettingsPatch, Settlement, Target,
    Verdict,
};
use quorate_core::ids::{
    ClientId, ConsumerId, Incarnation, Millis, NodeId, QueueId, QueueName, RequestId, SessionId, Timestamp,
    Token,
};
use quorate_core::{Broker as State, Meta};
use quorate_raft::{Answering, Payload};

use super::record::{Change, FORMAT};
use super::*;

/// Keeps what it is told.
#[derive(Default)]
struct Kept(parking_lot::Mutex<Vec<Record>>);

impl AuditSink for Kept {
    fn record(&self, record: &Record) {
        self.0.lock().push(record.clone());
    }
}

/// A state machine that is told of as raft does.
struct Life {
    audit: Audit,
    state: State,
    index: u64,
    sequence: u64,
}

impl Life {
    fn begin(audit: Audit) -> Self {
        audit.opened(NodeId(11));
        Self {
            audit,
            state: State::new(),
            index: 0,
            sequence: 0,
        }
    }

    fn tell(&mut self, payload: Payload<'_>) {
        let entry = Answering {
            index: self.index,
            term: 2,
            payload,
        };
        self.audit.answering(entry, &self.state);
    }

    fn members(&mut self, voters: &[BTreeSet<u64>], learners: &[u64]) {
        self.index += 1;
        self.tell(Payload::Members { voters, learners });
    }

    fn apply(&mut self, at: u64, requests: &[Request]) -> quorate_core::Applied {
        self.index += 1;
        let meta = Meta {
            index: self.index,
            at: Timestamp(at),
            digest: 0,
        };
        let contents = requests.iter().map(|request| request.command.contents()).sum();
        let applied = self.state.apply(meta, requests, &vec![9; contents]);
        self.tell(Payload::Batch {
            requests,
            applied: &applied,
        });
        applied
    }

    /// A request of a client.
    fn ask(&mut self, command: Command) -> Request {
        self.sequence += 1;
        let id = RequestId {
            client: ClientId(5),
            sequence: self.sequence,
            oldest_unanswered: 1,
        };
        Request {
            id: Some(id),
            command,
        }
    }
}

fn own(command: Command) -> Request {
    Request { id: None, command }
}

fn jobs() -> QueueName {
    QueueName::new("jobs").unwrap()
}

fn dedup(id: &str) -> NewMessage {
    let labels = Labels {
        group: "tenant".to_owned(),
        dedup_id: id.to_owned(),
        ..Labels::default()
    };
    NewMessage {
        priority: 3,
        labels: Some(Box::new(labels)),
        ..NewMessage::default()
    }
}

/// A bit of everything that a checker meets: what a queue lives through, refusals, repetitions, members, a
/// restart from a snapshot.
fn life_of_a_queue(audit: Audit) {
    let mut life = Life::begin(audit.clone());
    life.index += 1;
    life.tell(Payload::Blank);
    life.members(&[BTreeSet::from([11, 12])], &[13]);
    life.members(&[BTreeSet::from([11, 12]), BTreeSet::from([11, 12, 13])], &[]);

    let settings = SettingsPatch {
        deliveries_max: Some(2),
        ..SettingsPatch::default()
    };
    let declare = life.ask(Command::DeclareQueue {
        name: jobs(),
        settings,
    });
    life.apply(1_000, std::slice::from_ref(&declare));
    let to_jobs = |messages| Command::Publish(Publish::to_queue(jobs(), messages));
    let publish = life.ask(to_jobs(vec![NewMessage::default(), NewMessage::default()]));
    let again = life.ask(to_jobs(vec![dedup("a"), dedup("a")]));
    let nowhere = life.ask(Command::Publish(Publish {
        target: Target::Queue(QueueName::new("nowhere").unwrap()),
        messages: vec![NewMessage::default()],
    }));
    life.apply(1_010, &[publish.clone(), again, nowhere]);
    // The client did not hear of it, and asks again.
    life.apply(1_020, &[publish]);

    let (session, consumer) = (SessionId(21), ConsumerId(1));
    let attach = Command::AttachSession {
        session,
        node: NodeId(11),
        incarnation: Incarnation(1),
    };
    let consume = Command::Consume {
        session,
        consumer,
        queue: jobs(),
        credit: 1,
        lease: Some(Millis(500)),
        name: "worker".to_owned(),
        priority: 0,
    };
    let up = Command::NodeUp {
        node: NodeId(11),
        incarnation: Incarnation(1),
    };
    life.apply(1_030, &[own(up), own(attach), own(consume)]);
    let lease = life.ask(Command::Lease {
        queue: jobs(),
        count_max: 1,
        lease: None,
        wait: Millis(0),
        node: NodeId(11),
    });
    let applied = life.apply(1_040, &[lease]);
    let Ok(quorate_core::outcome::Reply::Leased(leased)) = &applied.outcomes[0] else {
        panic!("{:?}", applied.outcomes);
    };
    let stale = Token {
        grant: 0,
        ..leased[0].token
    };
    let settle = |token, verdict| Settlement { token, verdict };
    let nack = Verdict::Nack {
        delay: Some(Millis(50)),
        reason: "no disk".to_owned(),
    };
    let settlements = vec![settle(stale, Verdict::Ack), settle(leased[0].token, nack)];
    let settle_both = life.ask(Command::Settle { settlements });
    life.apply(1_050, &[settle_both]);
    // The consumer's lease runs out, the delay passes, and the consumer gets the other.
    life.apply(1_600, &[own(Command::Tick)]);
    let missing = Selector::DedupId("b".to_owned());
    let operate = life.ask(Command::Operate {
        queue: jobs(),
        messages: vec![Selector::DedupId("a".to_owned()), missing],
        operation: Operation::Delete,
    });
    let gone = Token {
        queue: QueueId(0),
        ..stale
    };
    let transact = life.ask(Command::Transact {
        settlements: vec![settle(gone, Verdict::Ack)],
        publishes: vec![Publish::to_queue(jobs(), vec![NewMessage::default()])],
    });
    life.apply(1_610, &[operate, transact]);

    let mut second = Life::begin(audit.clone());
    audit.restored(life.index, 2, &life.state);
    second.state = life.state;
    second.index = life.index;
    second.apply(1_700, &[own(Command::CloseSession { session, epoch: 1 })]);
}

fn sample() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../jepsen-lite/core/samples/audit.jsonl")
}

/// The checkers read the same file. `UPDATE_GOLDENFILES=1` writes it anew: read what changed.
#[test]
fn the_file_is_the_kept_sample() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    life_of_a_queue(Audit::to(Arc::new(AuditFile::open(&path).unwrap())));
    let written = std::fs::read_to_string(&path).unwrap();
    if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
        std::fs::create_dir_all(sample().parent().unwrap()).unwrap();
        std::fs::write(sample(), &written).unwrap();
    }
    assert_eq!(written, std::fs::read_to_string(sample()).unwrap());
}

#[test]
fn what_is_read_back_is_what_was_told() {
    let kept = Arc::new(Kept::default());
    life_of_a_queue(Audit::to(kept.clone()));
    let told = kept.0.lock().clone();
    let file = std::fs::read_to_string(sample()).unwrap();
    let read: Vec<Record> = file
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(read, told);
}

#[test]
fn a_line_that_was_torn_stays_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    std::fs::write(&path, "{\"entry\":{\"ind").unwrap();
    Audit::to(Arc::new(AuditFile::open(&path).unwrap())).opened(NodeId(11));
    let file = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = file.lines().collect();
    assert_eq!(
        lines,
        [
            "{\"entry\":{\"ind",
            &format!("{{\"opened\":{{\"format\":{FORMAT},\"node\":\"11\"}}}}")
        ]
    );
}

#[test]
fn every_exit_from_a_lease_has_its_word() {
    let kept = Arc::new(Kept::default());
    life_of_a_queue(Audit::to(kept.clone()));
    let told = kept.0.lock();
    let mut changes = told.iter().flat_map(|record| match record {
        Record::Entry(entry) => &entry.events[..],
        _ => &[],
    });
    assert!(changes.any(|event| matches!(event.change, Change::Nacked(_))));
    assert!(changes.any(|event| matches!(event.change, Change::LeaseExpired(_))));
    assert!(changes.any(|event| matches!(event.change, Change::SessionEnded(_))));
}

#[test]
fn nothing_is_told_by_default() {
    let untold = Audit::default();
    untold.record(|| panic!("encoded for nobody"));
    assert_eq!(format!("{untold:?}"), "Audit(off)");
}
