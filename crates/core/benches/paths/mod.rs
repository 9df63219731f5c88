//! The paths of the core that messages take, each as something that can be run over and over on a state that
//! stays as it is: a queue with a backlog, an exchange with many bindings. The input is the same in every run.
//!
//! Two programs use them. The bench `hot_paths` takes the time; the example `instructions` counts instructions,
//! which `.ci/instructions` compares with what was counted before. `tests/paths.rs` sees to it that each path
//! does what it is called after.
//!
//! | path | a round | one operation |
//! | --- | --- | --- |
//! | `publish` | an entry with publishes of 16 clients, to a queue with a backlog | a message |
//! | `deliver` | the same, to a queue whose consumers wait for it | a message |
//! | `lease_ack` | an entry that leases from a backlog, and one that acks what was leased | a message |
//! | `ack_range` | an entry that acks many messages in a row, as one settle | a message |
//! | `topic_match` | an entry with publishes to a topic exchange with 10,000 bindings | a message |
//! | `timer_expiry` | an entry with no request: leases run out, and delays pass | a message |
//! | `entry_encode` | the entry of `publish`, with bodies of 1 KiB, into bytes | a message |
//! | `entry_decode` | the reverse, with all checks | a message |

use std::hint::black_box;

use bytes::Bytes;
use quorate_core::batch::{self, Batch};
use quorate_core::command::{
    Binding, Command, Destination, ExchangeKind, ExchangeSettingsPatch, Labels, NewMessage, Publish,
    PurgeStates, Request, SettingsPatch, Settlement, Target, Verdict,
};
use quorate_core::effect::{Effect, Leased};
use quorate_core::event::{Change, Returned};
use quorate_core::ids::{
    ClientId, ConsumerId, ExchangeName, Incarnation, Millis, NodeId, QueueName, RequestId, SessionId,
    Timestamp,
};
use quorate_core::outcome::Reply;
use quorate_core::{Applied, Broker, Meta};

/// Publishes in one entry.
const ENTRY: usize = 64;
/// Clients that they come from.
const CLIENTS: u64 = 16;
/// Bytes of a body.
const BODY_BYTES: usize = 1024;
/// Messages that are acked in a row, or fall due together.
const RANGE: usize = 256;
/// Tenants with bindings of their own, ten each.
const TENANTS: usize = 1_000;
/// The node that holds sessions and callers.
const NODE: NodeId = NodeId(1);

/// A way through the core.
pub(crate) struct Path {
    /// Its name.
    pub(crate) name: &'static str,
    /// Operations in one round.
    pub(crate) operations: usize,
    begin: fn(usize) -> Box<dyn Round>,
}

/// A path on a state of its own.
pub(crate) trait Round {
    /// Brings the state to where a round begins. Not measured.
    fn ready(&mut self);
    /// Is measured.
    fn run(&mut self);
    /// Panics unless the round did what it is there for. Not measured.
    fn check(&self);
}

/// All of them.
pub(crate) const PATHS: [Path; 8] = [
    Path::new("publish", ENTRY, |backlog| Box::new(Publishing::new(backlog))),
    Path::new("deliver", ENTRY, |_| Box::new(Delivering::new())),
    Path::new("lease_ack", ENTRY, |backlog| Box::new(LeaseAndAck::new(backlog))),
    Path::new("ack_range", RANGE, |backlog| Box::new(AckRange::new(backlog))),
    Path::new("topic_match", ENTRY, |_| Box::new(Topics::new())),
    Path::new("timer_expiry", RANGE, |backlog| Box::new(Timers::new(backlog))),
    Path::new("entry_encode", ENTRY, |_| Box::new(Encoding::new())),
    Path::new("entry_decode", ENTRY, |_| Box::new(Decoding::new())),
];

impl Path {
    const fn new(name: &'static str, operations: usize, begin: fn(usize) -> Box<dyn Round>) -> Self {
        Self {
            name,
            operations,
            begin,
        }
    }

    /// The path, where queues that have a backlog have one of that many messages.
    pub(crate) fn begin(&self, backlog: usize) -> Box<dyn Round> {
        (self.begin)(backlog)
    }
}

// ------------------------------------------------------------------- the paths

/// Clients publish to a queue with a backlog.
struct Publishing {
    bed: Bed,
    requests: Vec<Request>,
    applied: Applied,
}

impl Publishing {
    fn new(backlog: usize) -> Self {
        Self {
            bed: Bed::with_backlog(backlog),
            requests: Vec::new(),
            applied: Applied::default(),
        }
    }
}

impl Round for Publishing {
    fn ready(&mut self) {
        if !self.requests.is_empty() {
            let leased = self.bed.lease(ENTRY, None);
            self.bed.ack(&leased);
        }
        self.requests = self.bed.publishes(|_| plain());
    }

    fn run(&mut self) {
        self.applied = self.bed.apply(&self.requests);
    }

    fn check(&self) {
        assert_published(&self.applied);
        assert_eq!(self.applied.effects, []);
    }
}

/// Clients publish to a queue whose consumers have credit left.
struct Delivering {
    bed: Bed,
    requests: Vec<Request>,
    applied: Applied,
}

impl Delivering {
    fn new() -> Self {
        let mut bed = Bed::with_backlog(0);
        for number in 1..=4 {
            let session = SessionId(number);
            bed.done(Command::NodeUp {
                node: NODE,
                incarnation: Incarnation(1),
            });
            bed.done(Command::AttachSession {
                session,
                node: NODE,
                incarnation: Incarnation(1),
            });
            bed.done(Command::Consume {
                session,
                consumer: ConsumerId(1),
                queue: jobs(),
                credit: 64,
                lease: None,
                name: format!("worker-{number}"),
                priority: 0,
            });
        }
        Self {
            bed,
            requests: Vec::new(),
            applied: Applied::default(),
        }
    }
}

impl Round for Delivering {
    fn ready(&mut self) {
        let delivered: Vec<Leased> = self.applied.effects.iter().filter_map(delivered).collect();
        if !delivered.is_empty() {
            self.bed.ack(&delivered);
        }
        self.requests = self.bed.publishes(|_| plain());
    }

    fn run(&mut self) {
        self.applied = self.bed.apply(&self.requests);
    }

    fn check(&self) {
        assert_published(&self.applied);
        let delivered = self.applied.effects.iter().filter_map(delivered);
        assert_eq!(delivered.count(), ENTRY);
    }
}

/// A worker leases from a backlog, and acks what it got.
struct LeaseAndAck {
    bed: Bed,
    acked: usize,
}

impl LeaseAndAck {
    fn new(backlog: usize) -> Self {
        Self {
            bed: Bed::with_backlog(backlog),
            acked: 0,
        }
    }
}

impl Round for LeaseAndAck {
    fn ready(&mut self) {
        self.bed.publish(ENTRY, &plain());
    }

    fn run(&mut self) {
        let leased = self.bed.lease(ENTRY, None);
        self.acked = self.bed.ack(&leased);
    }

    fn check(&self) {
        assert_eq!(self.acked, ENTRY);
    }
}

/// A worker acks all up to one, as AMQP can say it.
struct AckRange {
    bed: Bed,
    request: Vec<Request>,
    applied: Applied,
}

impl AckRange {
    fn new(backlog: usize) -> Self {
        Self {
            bed: Bed::with_backlog(backlog),
            request: Vec::new(),
            applied: Applied::default(),
        }
    }
}

impl Round for AckRange {
    fn ready(&mut self) {
        self.bed.publish(RANGE, &plain());
        let leased = self.bed.lease(RANGE, None);
        self.request = vec![unnamed(acks(&leased))];
    }

    fn run(&mut self) {
        self.applied = self.bed.apply(&self.request);
    }

    fn check(&self) {
        assert_eq!(settled(&self.applied), RANGE);
    }
}

/// Clients publish to a topic exchange. A tenth of a per cent of its bindings is for the tenant of a message;
/// six fit it, of them three with `*` or `#` in front, and lead to two queues.
struct Topics {
    bed: Bed,
    requests: Vec<Request>,
    applied: Applied,
}

impl Topics {
    const QUEUES: [&str; 2] = ["orders", "audit"];

    fn new() -> Self {
        let mut bed = Bed::default();
        for queue in Self::QUEUES {
            bed.declare(queue);
        }
        bed.done(Command::DeclareExchange {
            name: exchange(),
            kind: ExchangeKind::Topic,
            settings: ExchangeSettingsPatch::default(),
        });
        for tenant in 0..TENANTS {
            for region in ["eu", "us", "ap", "sa"] {
                bed.bind(&format!("tenant-{tenant}.order.*.{region}"), "orders");
            }
            for area in ["payment", "invoice", "stock", "user"] {
                bed.bind(&format!("tenant-{tenant}.{area}.*.*"), "orders");
            }
            bed.bind(&format!("tenant-{tenant}.*.created.#"), "orders");
            bed.bind(&format!("tenant-{tenant}.#"), "audit");
        }
        bed.bind("#", "audit");
        bed.bind("*.order.#", "orders");
        bed.bind("#.eu", "audit");
        bed.bind("*.*.failed.*", "audit");
        Self {
            bed,
            requests: Vec::new(),
            applied: Applied::default(),
        }
    }
}

impl Round for Topics {
    fn ready(&mut self) {
        for queue in Self::QUEUES {
            self.bed.done(Command::PurgeQueue {
                name: name(queue),
                states: PurgeStates::WAITING,
            });
        }
        self.requests = self.bed.publishes(|number| {
            let tenant = number * 997 % TENANTS;
            let labels = Labels {
                routing_key: format!("tenant-{tenant}.order.created.eu"),
                ..Labels::default()
            };
            NewMessage {
                labels: Some(Box::new(labels)),
                ..plain()
            }
        });
        for request in &mut self.requests {
            if let Command::Publish(publish) = &mut request.command {
                publish.target = Target::Exchange {
                    name: exchange(),
                    mandatory: true,
                };
            }
        }
    }

    fn run(&mut self) {
        self.applied = self.bed.apply(&self.requests);
    }

    fn check(&self) {
        assert_published(&self.applied);
        for queue in Self::QUEUES {
            let view = self.bed.broker.queue(&name(queue)).expect("it was declared");
            assert_eq!(view.counts.ready, ENTRY as u64, "in {queue}");
        }
    }
}

/// Time passes, and with it the leases of one half of the messages and the delays of the other.
struct Timers {
    bed: Bed,
    applied: Applied,
}

impl Timers {
    const HALF: usize = RANGE / 2;
    /// Of leases and of delays.
    const SPAN: Millis = Millis(10_000);

    fn new(backlog: usize) -> Self {
        Self {
            bed: Bed::with_backlog(backlog),
            applied: Applied::default(),
        }
    }
}

impl Round for Timers {
    fn ready(&mut self) {
        // What failed in the round before is in front again, and leaves; and as many of the backlog.
        self.bed.pass(Millis(60_000));
        self.bed.done(Command::Tick);
        let leased = self.bed.lease(RANGE, None);
        self.bed.ack(&leased);

        self.bed.publish(Self::HALF, &plain());
        let delayed = NewMessage {
            delay: Self::SPAN,
            ..plain()
        };
        self.bed.publish(Self::HALF, &delayed);
        self.bed.lease(Self::HALF, Some(Self::SPAN));
        self.bed.pass(Self::SPAN);
    }

    fn run(&mut self) {
        self.applied = self.bed.apply(&[]);
    }

    fn check(&self) {
        let count = |is: fn(&Change) -> bool| self.applied.events.iter().filter(|e| is(&e.change)).count();
        let ran_out = count(|change| {
            matches!(
                change,
                Change::Returned {
                    reason: Returned::LeaseExpired,
                    ..
                }
            )
        });
        let due = count(|change| matches!(change, Change::Due));
        assert_eq!((ran_out, due), (Self::HALF, Self::HALF));
    }
}

/// The leader makes an entry of what clients ask.
struct Encoding {
    requests: Vec<Request>,
    contents: Vec<Bytes>,
    encoded: Bytes,
}

impl Encoding {
    fn new() -> Self {
        Self {
            requests: Bed::default().publishes(|_| plain()),
            contents: vec![Bytes::from(vec![0x5a; BODY_BYTES]); ENTRY],
            encoded: Bytes::new(),
        }
    }
}

impl Round for Encoding {
    fn ready(&mut self) {}

    fn run(&mut self) {
        self.encoded = batch::encode(Timestamp(BEGIN), black_box(&self.requests), &self.contents);
    }

    fn check(&self) {
        let decoded = Batch::decode(self.encoded.clone()).expect("it was encoded");
        assert_eq!(
            (&decoded.requests, &decoded.contents),
            (&self.requests, &self.contents)
        );
    }
}

/// Every node reads an entry before it applies it.
struct Decoding {
    encoded: Bytes,
    decoded: Option<Batch>,
}

impl Decoding {
    fn new() -> Self {
        let mut encoding = Encoding::new();
        encoding.run();
        Self {
            encoded: encoding.encoded,
            decoded: None,
        }
    }
}

impl Round for Decoding {
    fn ready(&mut self) {}

    fn run(&mut self) {
        self.decoded = Some(Batch::decode(black_box(self.encoded.clone())).expect("it was encoded"));
    }

    fn check(&self) {
        let decoded = self.decoded.as_ref().expect("a round was run");
        assert_eq!((decoded.requests.len(), decoded.contents.len()), (ENTRY, ENTRY));
    }
}

// ------------------------------------------------------------ what they stand on

/// Cluster time at the start.
const BEGIN: u64 = 1_700_000_000_000;

/// A broker, and the log that it is given.
#[derive(Default)]
struct Bed {
    broker: Broker,
    index: u64,
    passed: u64,
    /// Requests of each client so far.
    sequence: u64,
}

impl Bed {
    /// With a queue that holds messages.
    fn with_backlog(backlog: usize) -> Self {
        const AT_ONCE: usize = 1_000;
        let mut bed = Self::default();
        bed.declare("jobs");
        for first in (0..backlog).step_by(AT_ONCE) {
            bed.publish(AT_ONCE.min(backlog - first), &plain());
        }
        bed
    }

    fn apply(&mut self, requests: &[Request]) -> Applied {
        const LENGTHS: [u32; 1_000] = [BODY_BYTES as u32; 1_000];
        self.index += 1;
        self.passed += 1;
        let meta = Meta {
            index: self.index,
            at: Timestamp(BEGIN + self.passed),
            digest: self.index,
        };
        self.broker.apply(meta, requests, &LENGTHS)
    }

    fn done(&mut self, command: Command) -> Applied {
        let applied = self.apply(&[unnamed(command)]);
        assert!(applied.outcomes[0].is_ok(), "{:?}", applied.outcomes);
        applied
    }

    fn pass(&mut self, span: Millis) {
        self.passed += span.0;
    }

    fn declare(&mut self, queue: &str) {
        self.done(Command::DeclareQueue {
            name: name(queue),
            settings: SettingsPatch::default(),
        });
    }

    fn bind(&mut self, pattern: &str, queue: &str) {
        self.done(Command::Bind(Binding {
            source: exchange(),
            destination: Destination::Queue(name(queue)),
            routing_key: pattern.to_owned(),
            headers: None,
        }));
    }

    fn publish(&mut self, count: usize, message: &NewMessage) {
        self.done(Command::Publish(Publish::to_queue(
            jobs(),
            vec![message.clone(); count],
        )));
    }

    /// An entry's worth of publishes of all clients in turn, one message each, as requests that may be
    /// repeated. Clients know the answers to all but what they asked in the entry before.
    fn publishes(&mut self, message: impl Fn(usize) -> NewMessage) -> Vec<Request> {
        let of_each = ENTRY as u64 / CLIENTS;
        let oldest = self.sequence.saturating_sub(of_each) + 1;
        let requests = (0..ENTRY).map(|number| {
            let id = RequestId {
                client: ClientId(number as u64 % CLIENTS + 1),
                sequence: self.sequence + number as u64 / CLIENTS + 1,
                oldest_unanswered: oldest,
            };
            Request {
                id: Some(id),
                command: Command::Publish(Publish::to_queue(jobs(), vec![message(number)])),
            }
        });
        let requests = requests.collect();
        self.sequence += of_each;
        requests
    }

    fn lease(&mut self, count: usize, lease: Option<Millis>) -> Vec<Leased> {
        let mut applied = self.done(Command::Lease {
            queue: jobs(),
            count_max: count as u32,
            lease,
            wait: Millis(0),
            node: NODE,
        });
        match applied.outcomes.pop() {
            Some(Ok(Reply::Leased(leased))) if leased.len() == count => leased,
            other => panic!("{count} were to be leased: {other:?}"),
        }
    }

    /// Says how many it acked.
    fn ack(&mut self, leased: &[Leased]) -> usize {
        settled(&self.done(acks(leased)))
    }
}

fn plain() -> NewMessage {
    NewMessage::default()
}

fn name(queue: &str) -> QueueName {
    QueueName::new(queue).expect("a name")
}

fn jobs() -> QueueName {
    name("jobs")
}

fn exchange() -> ExchangeName {
    ExchangeName::new("shop").expect("a name")
}

fn unnamed(command: Command) -> Request {
    Request { id: None, command }
}

fn acks(leased: &[Leased]) -> Command {
    let settlements = leased.iter().map(|leased| Settlement {
        token: leased.token,
        verdict: Verdict::Ack,
    });
    Command::Settle {
        settlements: settlements.collect(),
    }
}

fn settled(applied: &Applied) -> usize {
    match &applied.outcomes[..] {
        [Ok(Reply::Settled(settled))] => settled.iter().filter(|settled| settled.is_ok()).count(),
        other => panic!("it is not a settle: {other:?}"),
    }
}

fn delivered(effect: &Effect) -> Option<Leased> {
    match effect {
        Effect::Deliver { leased, .. } => Some(leased.clone()),
        _ => None,
    }
}

fn assert_published(applied: &Applied) {
    assert_eq!(applied.outcomes.len(), ENTRY);
    assert_eq!(applied.repeated, []);
    for outcome in &applied.outcomes {
        assert!(matches!(outcome, Ok(Reply::Published(_))), "{outcome:?}");
    }
}
