//! Logs with all commands in them, in which most commands can be done.
//!
//! First a *plan* is drawn. Running it turns it into a log: only then is it known
//! which tokens there are to settle, and which messages to operate on.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::select;
use quorate_core::browse::{Filter, MessageView};
use quorate_core::command::{
    Binding, Command, Destination, ExchangeKind, ExchangeSettingsPatch, HeaderMatch, Labels, NewMessage,
    Operation, Overflow, Publish, PurgeStates, Request, Selector, SettingsPatch, Settlement, Target, Verdict,
};
use quorate_core::effect::Effect;
use quorate_core::ids::{
    ClientId, ConsumerId, ExchangeName, Incarnation, MessageId, Millis, NodeId, QueueName, RequestId,
    SessionId, Timestamp, Token,
};
use quorate_core::outcome::Reply;
use quorate_core::{Applied, Broker, Meta};

/// An entry of the log.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) meta: Meta,
    pub(crate) requests: Vec<Request>,
    pub(crate) contents: Vec<u32>,
}

impl Entry {
    pub(crate) fn apply(&self, broker: &mut Broker) -> Applied {
        broker.apply(self.meta, &self.requests, &self.contents)
    }
}

/// An entry to be: tokens and epochs are known only when it is its turn.
#[derive(Clone, Debug)]
pub(crate) struct PlannedEntry {
    passes: u64,
    /// The clock of its leader is behind cluster time by that.
    behind: u64,
    requests: Vec<(PlannedId, Planned)>,
}

/// A request id to be: which it is depends on what its client asked before.
#[derive(Clone, Copy, Debug)]
enum PlannedId {
    None,
    /// The client's next, while it waits for all but so many of its last ones.
    Next {
        client: u64,
        unanswered: u64,
    },
    /// One that it asked before, so many ago.
    Repeated {
        client: u64,
        ago: u64,
    },
    /// Anything.
    Any(RequestId),
}

#[derive(Clone, Debug)]
enum Planned {
    Command(Box<Command>),
    Publish {
        target: Target,
        messages: Vec<(NewMessage, u32)>,
    },
    /// Each of the n-th last lease.
    Settle(Vec<(prop::sample::Index, Verdict)>),
    /// The same, each at most once, and publishes.
    Transact(
        Vec<(prop::sample::Index, Verdict)>,
        Vec<(Target, Vec<(NewMessage, u32)>)>,
    ),
    /// On the n-th of the messages with which it can be done, or, if false, on
    /// those with a dedup id.
    Operate(QueueName, Vec<(prop::sample::Index, bool)>, Operation),
    /// With the epoch of the n-th last attach.
    Close(SessionId, prop::sample::Index),
}

pub(crate) fn plan() -> impl Strategy<Value = Vec<PlannedEntry>> {
    (setting_up(), prop::collection::vec(planned_entry(), 1..80))
        .prop_map(|(first, rest)| [vec![first], rest].concat())
}

/// Most logs begin with queues and consumers, so that the rest has a meaning.
fn setting_up() -> impl Strategy<Value = PlannedEntry> {
    let declare = |name: &'static str| {
        patch().prop_map(move |settings| Command::DeclareQueue {
            name: QueueName::new(name).unwrap(),
            settings,
        })
    };
    let attach = |n| Command::AttachSession {
        session: SessionId(n),
        node: NodeId(n),
        incarnation: Incarnation(1),
    };
    let commands = (
        declare("a"),
        declare("b"),
        declare("c"),
        prop::collection::vec(consume(), 0..4),
        routing(),
    )
        .prop_map(move |(a, b, c, consumes, routing)| {
            [vec![a, b, c, attach(1), attach(2)], routing, consumes].concat()
        });
    commands.prop_map(|commands| PlannedEntry {
        passes: 0,
        behind: 0,
        requests: commands
            .into_iter()
            .map(|c| (PlannedId::None, Planned::Command(c.into())))
            .collect(),
    })
}

fn planned_entry() -> impl Strategy<Value = PlannedEntry> {
    let passes = prop_oneof![
        12 => Just(0_u64),
        8 => 1..300_u64,
        4 => select(vec![499_u64, 500, 999, 1_000, 1_001]),
        2 => select(vec![5_000_u64, 10_000, 20_000]),
        1 => select(vec![60_000_u64, 599_999, 610_000]),
    ];
    let behind = prop_oneof![9 => Just(0_u64), 1 => 1..5_000_u64];
    let requests = prop::collection::vec((planned_id(), planned()), 0..4);
    (passes, behind, requests).prop_map(|(passes, behind, requests)| PlannedEntry {
        passes,
        behind,
        requests,
    })
}

/// The same plan with each command in an entry of its own, so that what comes of an
/// entry comes of one command, or of the time.
pub(crate) fn one_by_one(plan: &[PlannedEntry]) -> Vec<PlannedEntry> {
    let single = |entry: &PlannedEntry| {
        let time = PlannedEntry {
            requests: Vec::new(),
            ..entry.clone()
        };
        let behind = entry.behind;
        let commands = entry
            .requests
            .clone()
            .into_iter()
            .map(move |request| PlannedEntry {
                passes: 0,
                behind,
                requests: vec![request],
            });
        std::iter::once(time).chain(commands)
    };
    plan.iter().flat_map(single).collect()
}

fn planned_id() -> impl Strategy<Value = PlannedId> {
    let any = (0..7_u64, 0..10_u64, 0..4_u64).prop_map(|(client, sequence, oldest_unanswered)| {
        PlannedId::Any(RequestId {
            client: ClientId(client),
            sequence,
            oldest_unanswered,
        })
    });
    prop_oneof![
        8 => Just(PlannedId::None),
        10 => (1..4_u64, 0..4_u64).prop_map(|(client, unanswered)| PlannedId::Next { client, unanswered }),
        2 => (1..4_u64, 0..4_u64).prop_map(|(client, ago)| PlannedId::Repeated { client, ago }),
        1 => any,
    ]
}

fn planned() -> impl Strategy<Value = Planned> {
    prop_oneof![
        8 => command().prop_map(|command| Planned::Command(command.into())),
        8 => publish().prop_map(|(target, messages)| Planned::Publish { target, messages }),
        10 => settlements(1).prop_map(Planned::Settle),
        5 => (settlements(0), prop::collection::vec(publish(), 0..3))
            .prop_map(|(settlements, publishes)| Planned::Transact(settlements, publishes)),
        6 => (queue(), prop::collection::vec((any::<prop::sample::Index>(), prop::bool::weighted(0.8)), 1..4), operation())
            .prop_map(|(queue, messages, operation)| Planned::Operate(queue, messages, operation)),
        1 => (session(), any::<prop::sample::Index>()).prop_map(|(s, n)| Planned::Close(s, n)),
    ]
}

fn publish() -> impl Strategy<Value = (Target, Vec<(NewMessage, u32)>)> {
    (target(), prop::collection::vec((new_message(), 0..50_u32), 0..5))
}

fn settlements(min: usize) -> impl Strategy<Value = Vec<(prop::sample::Index, Verdict)>> {
    prop::collection::vec((any::<prop::sample::Index>(), verdict()), min..4)
}

/// The redrive to undo, or to go on with, is looked up when it is its turn.
fn operation() -> impl Strategy<Value = Operation> {
    let delay = select(vec![Millis(0), Millis(500), Millis(20_000)]);
    let deliver_at = prop_oneof![3 => Just(0), 1 => 1_000..3_000_u64].prop_map(Timestamp);
    let continues = prop_oneof![6 => Just(None), 3 => Just(Some(0)), 1 => Just(Some(u64::MAX))];
    prop_oneof![
        1 => Just(Operation::Delete),
        2 => queue().prop_map(|to| Operation::Move { to }),
        2 => (delay, deliver_at).prop_map(|(delay, deliver_at)| Operation::Reschedule { delay, deliver_at }),
        3 => (prop::option::weighted(0.3, queue()), continues)
            .prop_map(|(to, continues)| Operation::Redrive { to, continues }),
        3 => Just(Operation::UndoRedrive { redrive: 0 }),
    ]
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        3 => (queue(), patch()).prop_map(|(name, settings)| Command::DeclareQueue { name, settings }),
        2 => (queue(), patch()).prop_map(|(name, settings)| Command::UpdateQueue { name, settings }),
        1 => (queue(), any::<[bool; 3]>()).prop_map(|(name, [ready, delayed, dead])| Command::PurgeQueue {
            name,
            states: PurgeStates { ready, delayed, dead },
        }),
        1 => (queue(), any::<bool>(), any::<bool>())
            .prop_map(|(name, if_empty, if_unused)| Command::DeleteQueue { name, if_empty, if_unused }),
        12 => (queue(), 0..5_u32, lease(), select(vec![0, 1_000, 5_000]), node()).prop_map(
            |(queue, count_max, lease, wait, node)| Command::Lease { queue, count_max, lease, wait: Millis(wait), node }
        ),
        4 => (session(), node(), 1..4_u64).prop_map(|(session, node, life)| Command::AttachSession {
            session,
            node,
            incarnation: Incarnation(life),
        }),
        8 => consume(),
        1 => (session(), consumer())
            .prop_map(|(session, consumer)| Command::CancelConsumer { session, consumer }),
        3 => (session(), consumer(), 0..4_u32)
            .prop_map(|(session, consumer, credit)| Command::SetCredit { session, consumer, credit }),
        1 => (node(), 1..4_u64)
            .prop_map(|(node, life)| Command::NodeUp { node, incarnation: Incarnation(life) }),
        1 => (node(), 1..4_u64)
            .prop_map(|(node, life)| Command::NodeDown { node, incarnation: Incarnation(life) }),
        1 => (node(), 1..4_u64)
            .prop_map(|(node, life)| Command::NodeSilent { node, incarnation: Incarnation(life) }),
        1 => (session(), 1..6_u64).prop_map(|(session, epoch)| Command::DetachSession { session, epoch }),
        1 => Just(Command::Tick),
        1 => (queue(), any::<bool>()).prop_map(|(name, paused)| Command::PauseQueue { name, paused }),
        1 => (exchange(), kind(), exchange_patch())
            .prop_map(|(name, kind, settings)| Command::DeclareExchange { name, kind, settings }),
        1 => (exchange(), exchange_patch())
            .prop_map(|(name, settings)| Command::UpdateExchange { name, settings }),
        1 => (exchange(), any::<bool>())
            .prop_map(|(name, if_unused)| Command::DeleteExchange { name, if_unused }),
        4 => binding().prop_map(Command::Bind),
        1 => binding().prop_map(Command::Unbind),
    ]
}

fn consume() -> impl Strategy<Value = Command> {
    let priority = select(vec![0, 0, 0, 3, -1]);
    (session(), consumer(), queue(), 0..4_u32, lease(), priority).prop_map(
        |(session, consumer, queue, credit, lease, priority)| Command::Consume {
            session,
            consumer,
            queue,
            credit,
            lease,
            name: String::new(),
            priority,
        },
    )
}

fn queue() -> impl Strategy<Value = QueueName> {
    select(vec!["a", "b", "c"]).prop_map(|name| QueueName::new(name).unwrap())
}

fn exchange() -> impl Strategy<Value = ExchangeName> {
    select(vec!["x", "y", "z"]).prop_map(|name| ExchangeName::new(name).unwrap())
}

fn kind() -> impl Strategy<Value = ExchangeKind> {
    use ExchangeKind::{Direct, Fanout, Headers, Topic};
    select(vec![Direct, Fanout, Topic, Headers])
}

/// Exchanges, and bindings between them and the queues.
fn routing() -> impl Strategy<Value = Vec<Command>> {
    let declare = |name: &'static str| {
        (kind(), exchange_patch()).prop_map(move |(kind, settings)| Command::DeclareExchange {
            name: ExchangeName::new(name).unwrap(),
            kind,
            settings,
        })
    };
    let bindings = prop::collection::vec(binding().prop_map(Command::Bind), 0..6);
    (declare("x"), declare("y"), bindings).prop_map(|(x, y, bindings)| [vec![x, y], bindings].concat())
}

fn exchange_patch() -> impl Strategy<Value = ExchangeSettingsPatch> {
    let alternate = prop::option::weighted(0.3, prop::option::of(exchange()));
    (alternate, dedup_window(), dedup_count_max()).prop_map(|(alternate, dedup_window, dedup_count_max)| {
        ExchangeSettingsPatch {
            alternate,
            dedup_window,
            dedup_count_max,
        }
    })
}

fn binding() -> impl Strategy<Value = Binding> {
    let destination = prop_oneof![
        3 => queue().prop_map(Destination::Queue),
        1 => exchange().prop_map(Destination::Exchange),
    ];
    let key = select(vec!["", "a", "a.b", "a.*", "#", "a.#"]).prop_map(str::to_owned);
    let headers = prop_oneof![
        2 => Just(None),
        1 => (any::<bool>(), prop::option::of(Just("1".to_owned()))).prop_map(|(any, value)| {
            let headers = BTreeMap::from([("h".to_owned(), value), ("i".to_owned(), None)]);
            Some(HeaderMatch { any, headers })
        }),
    ];
    (exchange(), destination, key, headers).prop_map(|(source, destination, routing_key, headers)| Binding {
        source,
        destination,
        routing_key,
        headers,
    })
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        3 => queue().prop_map(Target::Queue),
        2 => (exchange(), prop::bool::weighted(0.2))
            .prop_map(|(name, mandatory)| Target::Exchange { name, mandatory }),
    ]
}

fn labels() -> impl Strategy<Value = Option<Box<Labels>>> {
    let key = select(vec!["", "a", "a.b", "a.c", "b"]).prop_map(str::to_owned);
    let header = |name: &'static str| {
        prop::option::of(select(vec!["1", "2"])).prop_map(move |value| value.map(|value| (name, value)))
    };
    let group = select(vec!["", "g", "h", "i"]).prop_map(str::to_owned);
    let dedup_id = prop_oneof![2 => Just(""), 1 => select(vec!["x", "y", "z"])].prop_map(str::to_owned);
    let all = (key, header("h"), header("i"), group, dedup_id);
    all.prop_map(|(routing_key, h, i, group, dedup_id)| {
        let headers = [h, i].into_iter().flatten();
        let labels = Labels {
            routing_key,
            group,
            headers: headers.map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
            dedup_id,
        };
        (labels != Labels::default()).then(|| labels.into())
    })
}

fn session() -> impl Strategy<Value = SessionId> {
    (1..3_u64).prop_map(SessionId)
}

fn consumer() -> impl Strategy<Value = ConsumerId> {
    (1..3_u32).prop_map(ConsumerId)
}

fn node() -> impl Strategy<Value = NodeId> {
    (1..3_u64).prop_map(NodeId)
}

fn lease() -> impl Strategy<Value = Option<Millis>> {
    prop::option::of(select(vec![Millis(100), Millis(1_000), Millis(20_000)]))
}

fn new_message() -> impl Strategy<Value = NewMessage> {
    let span = || prop_oneof![6 => Just(0), 1 => select(vec![1_u64, 1_000, 5_000])].prop_map(Millis);
    let priority = prop_oneof![3 => Just(0), 1 => 0..10_u8];
    let deliver_at = prop_oneof![6 => Just(0), 1 => 1_000..3_000_u64].prop_map(Timestamp);
    let all = (span(), deliver_at, span(), priority, labels());
    all.prop_map(|(delay, deliver_at, ttl, priority, labels)| NewMessage {
        delay,
        deliver_at,
        ttl,
        priority,
        labels,
    })
}

fn verdict() -> impl Strategy<Value = Verdict> {
    let reason = || select(vec!["", "disk full"]).prop_map(str::to_owned);
    prop_oneof![
        3 => Just(Verdict::Ack),
        3 => (prop::option::of(select(vec![Millis(0), Millis(700)])), reason())
            .prop_map(|(delay, reason)| Verdict::Nack { delay, reason }),
        1 => Just(Verdict::Release),
        2 => reason().prop_map(|reason| Verdict::DeadLetter { reason }),
        1 => lease().prop_map(|lease| Verdict::Extend { lease }),
    ]
}

fn dedup_window() -> impl Strategy<Value = Option<Millis>> {
    prop::option::weighted(0.3, select(vec![0, 500, 5_000]).prop_map(Millis))
}

fn dedup_count_max() -> impl Strategy<Value = Option<u32>> {
    prop::option::weighted(0.3, 1..4_u32)
}

/// Where dead letters go.
fn letters() -> impl Strategy<Value = SettingsPatch> {
    let key = prop::option::weighted(0.3, prop::option::of(Just("a".to_owned())));
    prop_oneof![
        3 => prop::option::of(prop::option::of(queue())).prop_map(|dead_letter_queue| SettingsPatch {
            dead_letter_queue,
            ..SettingsPatch::default()
        }),
        3 => (prop::option::of(exchange()), key).prop_map(|(exchange, dead_letter_routing_key)| SettingsPatch {
            dead_letter_queue: Some(None),
            dead_letter_exchange: Some(exchange),
            dead_letter_routing_key,
            ..SettingsPatch::default()
        }),
    ]
}

fn patch() -> impl Strategy<Value = SettingsPatch> {
    (patch_of_bounds(), patch_of_order()).prop_map(|(bounds, order)| SettingsPatch {
        priority_ageing: order.priority_ageing,
        group_concurrency: order.group_concurrency,
        group_weights: order.group_weights,
        single_active_consumer: order.single_active_consumer,
        ..bounds
    })
}

fn patch_of_order() -> impl Strategy<Value = SettingsPatch> {
    let weights = select(vec![vec![], vec![("g", 3)], vec![("g", 2), ("h", 5)]]);
    let weights = weights.prop_map(|weights| weights.into_iter().map(|(g, w)| (g.to_owned(), w)).collect());
    (
        prop::option::weighted(0.2, select(vec![0, 300, 1_000]).prop_map(Millis)),
        prop::option::weighted(0.3, 1..4_u32),
        prop::option::weighted(0.3, weights),
        prop::option::weighted(0.2, any::<bool>()),
    )
        .prop_map(
            |(priority_ageing, group_concurrency, group_weights, single_active_consumer)| SettingsPatch {
                priority_ageing,
                group_concurrency,
                group_weights,
                single_active_consumer,
                ..SettingsPatch::default()
            },
        )
}

fn patch_of_bounds() -> impl Strategy<Value = SettingsPatch> {
    (
        prop::option::of(select(vec![1_000, 30_000]).prop_map(Millis)),
        prop::option::of(0..3_u32),
        letters(),
        prop::option::weighted(0.3, select(vec![0_u64, 1, 3, 8])),
        prop::option::weighted(0.2, select(vec![0_u64, 60, 120])),
        prop::option::of(select(vec![Overflow::Reject, Overflow::DropHead])),
        prop::option::weighted(0.3, select(vec![0, 1_000, 5_000]).prop_map(Millis)),
        prop::option::of(select(vec![0, 500]).prop_map(Millis)),
        prop::option::of(select(vec![0, 800, 60_000]).prop_map(Millis)),
        (dedup_window(), dedup_count_max()),
    )
        .prop_map(
            |(
                lease,
                deliveries_max,
                letters,
                length_max,
                bytes_max,
                overflow,
                message_ttl,
                backoff_initial,
                backoff_max,
                (dedup_window, dedup_count_max),
            )| SettingsPatch {
                lease,
                deliveries_max,
                length_max,
                bytes_max,
                overflow,
                message_ttl,
                backoff_initial,
                backoff_max,
                dedup_window,
                dedup_count_max,
                ..letters
            },
        )
}

impl PlannedId {
    /// `asked` has the last sequence of each client.
    fn to_id(self, asked: &mut [u64; 4]) -> Option<RequestId> {
        let (client, sequence, unanswered) = match self {
            PlannedId::None => return None,
            PlannedId::Any(id) => return Some(id),
            PlannedId::Next { client, unanswered } => {
                let last = &mut asked[usize::try_from(client).unwrap()];
                *last += 1;
                (client, *last, unanswered)
            }
            PlannedId::Repeated { client, ago } => {
                let last = asked[usize::try_from(client).unwrap()];
                (client, last.saturating_sub(ago).max(1), 4)
            }
        };
        let oldest_unanswered = sequence.saturating_sub(unanswered).max(1);
        Some(RequestId {
            client: ClientId(client),
            sequence,
            oldest_unanswered,
        })
    }
}

fn settle(settlements: &[(prop::sample::Index, Verdict)], tokens: &[Token]) -> Vec<Settlement> {
    let settlements = settlements.iter().map(|(n, verdict)| Settlement {
        token: *n.get(tokens),
        verdict: verdict.clone(),
    });
    settlements.collect()
}

/// Names messages with which it can be done: of that queue if it has such, else
/// of another.
fn operate(
    broker: &Broker,
    queue: &QueueName,
    messages: &[(prop::sample::Index, bool)],
    operation: &Operation,
) -> Command {
    let mut operation = operation.clone();
    let all = |queue: &QueueName| -> Vec<MessageView> {
        let browsed = broker.browse(queue, 0, usize::MAX, usize::MAX, &Filter::default());
        browsed.map_or(Vec::new(), |browsed| browsed.messages)
    };
    let candidates = |queue: &QueueName| -> Vec<MessageView> {
        let mut messages = all(queue);
        messages.retain(|message| match &operation {
            Operation::Redrive { .. } => message.dead.is_some() || message.dead_letter.is_some(),
            Operation::UndoRedrive { .. } => message.redrive.is_some(),
            _ => true,
        });
        messages
    };
    let others = broker
        .queues(None, usize::MAX)
        .into_iter()
        .map(|queue| queue.name);
    let others: Vec<QueueName> = others.collect();
    let marked = others.iter().flat_map(all).find_map(|message| message.redrive);
    let mut queues = std::iter::once(queue.clone()).chain(others);
    let queue = queues.find(|queue| !candidates(queue).is_empty());
    let queue = queue.unwrap_or_else(|| QueueName::new("a").unwrap());
    let candidates = candidates(&queue);
    match &mut operation {
        Operation::UndoRedrive { redrive } => {
            *redrive = candidates.last().and_then(|message| message.redrive).unwrap_or(0);
        }
        Operation::Redrive {
            continues: Some(began @ 0),
            ..
        } => *began = marked.unwrap_or(1),
        _ => {}
    }
    let unknown = MessageId { index: 1, number: 77 };
    let select_one = |(n, by_id): &(prop::sample::Index, bool)| {
        let candidate = candidates.get(n.index(candidates.len().max(1)));
        match candidate {
            Some(message) if *by_id => Selector::Message(message.id),
            None if *by_id => Selector::Message(unknown),
            Some(message) if !message.dedup_id.is_empty() => Selector::DedupId(message.dedup_id.clone()),
            _ => Selector::DedupId("x".to_owned()),
        }
    };
    let messages = messages.iter().map(select_one).collect();
    Command::Operate {
        queue,
        messages,
        operation,
    }
}

/// Turns a plan into a log, by running it.
pub(crate) fn log_of(plan: &[PlannedEntry]) -> Vec<Entry> {
    let mut broker = Broker::new();
    let mut tokens: Vec<Token> = Vec::new();
    let mut epochs: Vec<u64> = vec![0];
    let mut asked = [0_u64; 4];
    let mut log = Vec::new();
    let mut at = 1_000;
    for (n, planned) in plan.iter().enumerate() {
        at += planned.passes;
        if planned.passes >= 610_000 {
            // All clients were forgotten, and come under new ids.
            asked = [0; 4];
        }
        let mut contents = Vec::new();
        let mut requests = Vec::new();
        for (id, planned) in &planned.requests {
            let command = match planned {
                Planned::Command(command) => (**command).clone(),
                Planned::Publish { target, messages } => {
                    contents.extend(messages.iter().map(|(_, bytes)| *bytes));
                    let messages = messages.iter().map(|(message, _)| message.clone()).collect();
                    let target = target.clone();
                    Command::Publish(Publish { target, messages })
                }
                Planned::Settle(settlements) => {
                    // Mostly of the last few leases, so that many are current.
                    let recent = &tokens[tokens.len().saturating_sub(6)..];
                    match recent {
                        [] => Command::Tick,
                        _ => Command::Settle {
                            settlements: settle(settlements, recent),
                        },
                    }
                }
                Planned::Transact(settlements, publishes) => {
                    let recent = &tokens[tokens.len().saturating_sub(3)..];
                    let mut settlements = match recent {
                        [] => Vec::new(),
                        _ => settle(settlements, recent),
                    };
                    if n % 8 > 0 {
                        // Else there may be some that name a lease twice.
                        settlements.sort_by_key(|settlement| settlement.token);
                        settlements.dedup_by_key(|settlement| settlement.token);
                    }
                    contents.extend(
                        publishes
                            .iter()
                            .flat_map(|(_, messages)| messages.iter().map(|(_, bytes)| *bytes)),
                    );
                    let publishes = publishes.iter().map(|(target, messages)| Publish {
                        target: target.clone(),
                        messages: messages.iter().map(|(message, _)| message.clone()).collect(),
                    });
                    Command::Transact {
                        settlements,
                        publishes: publishes.collect(),
                    }
                }
                Planned::Operate(queue, messages, operation) => operate(&broker, queue, messages, operation),
                Planned::Close(session, n) => {
                    let recent = &epochs[epochs.len().saturating_sub(2)..];
                    Command::CloseSession {
                        session: *session,
                        epoch: *n.get(recent),
                    }
                }
            };
            requests.push(Request {
                id: id.to_id(&mut asked),
                command,
            });
        }
        let index = 1 + 2 * n as u64;
        let entry = Entry {
            meta: Meta {
                index,
                at: Timestamp(at - at.min(planned.behind)),
                digest: index,
            },
            requests,
            contents,
        };
        let applied = entry.apply(&mut broker);
        for outcome in &applied.outcomes {
            match outcome {
                Ok(Reply::Leased(leased)) => tokens.extend(leased.iter().map(|leased| leased.token)),
                Ok(Reply::Attached { epoch, .. }) => epochs.push(*epoch),
                _ => {}
            }
        }
        for effect in &applied.effects {
            match effect {
                Effect::Deliver { leased, .. } => tokens.push(leased.token),
                Effect::LeaseAnswered { leased, .. } => {
                    tokens.extend(leased.iter().map(|leased| leased.token));
                }
                _ => {}
            }
        }
        log.push(entry);
    }
    log
}
