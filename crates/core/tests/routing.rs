//! Routing at its bounds: many bindings, many queues, one entry.

use quorate_core::command::{
    Binding, Command, Destination, ExchangeKind, ExchangeSettingsPatch, Labels, NewMessage, Publish, Request,
    SettingsPatch, Settlement, Target, Verdict,
};
use quorate_core::effect::Effect;
use quorate_core::ids::{ExchangeName, Millis, NodeId, QueueName, Timestamp};
use quorate_core::outcome::{Outcome, Rejection, Reply};
use quorate_core::{Applied, Broker, Meta, invariants, limits};

const START: Timestamp = Timestamp(1_000);

fn queue(n: usize) -> QueueName {
    QueueName::new(&format!("q{n}")).unwrap()
}

fn exchange(name: &str) -> ExchangeName {
    ExchangeName::new(name).unwrap()
}

fn declare(name: QueueName, settings: SettingsPatch) -> Command {
    Command::DeclareQueue { name, settings }
}

fn declare_exchange(name: &str, kind: ExchangeKind) -> Command {
    Command::DeclareExchange {
        name: exchange(name),
        kind,
        settings: ExchangeSettingsPatch::default(),
    }
}

fn bind(source: &str, queue: QueueName, routing_key: String) -> Command {
    Command::Bind(Binding {
        source: exchange(source),
        destination: Destination::Queue(queue),
        routing_key,
        headers: None,
    })
}

fn publish(target: Target, routing_key: &str, count: usize) -> Command {
    let labels = Labels {
        routing_key: routing_key.to_owned(),
        ..Labels::default()
    };
    let message = NewMessage {
        labels: Some(labels.into()),
        ..NewMessage::default()
    };
    Command::Publish(Publish {
        target,
        messages: vec![message; count],
    })
}

fn to_exchange(name: &str) -> Target {
    Target::Exchange {
        name: exchange(name),
        mandatory: true,
    }
}

/// One entry.
fn apply(broker: &mut Broker, at: Timestamp, commands: Vec<Command>) -> Applied {
    let contents = vec![1; commands.iter().map(Command::contents).sum()];
    let requests: Vec<Request> = commands
        .into_iter()
        .map(|command| Request { id: None, command })
        .collect();
    let index = broker.index() + 1;
    let meta = Meta {
        index,
        at,
        digest: index,
    };
    broker.apply(meta, &requests, &contents)
}

fn is_done(outcome: &Outcome) -> bool {
    outcome.is_ok()
}

/// Declares that many queues, and a fanout exchange `all` to them.
fn fan_out_to(broker: &mut Broker, queues: usize) {
    let declares = (0..queues).map(|n| declare(queue(n), SettingsPatch::default()));
    let bindings = (0..queues).map(|n| bind("all", queue(n), String::new()));
    let commands: Vec<Command> = declares
        .chain([declare_exchange("all", ExchangeKind::Fanout)])
        .chain(bindings)
        .collect();
    assert!(apply(broker, START, commands).outcomes.iter().all(is_done));
}

fn dropped(applied: &Applied) -> usize {
    let is_drop = |effect: &&Effect| matches!(effect, Effect::ContentDropped { .. });
    applied.effects.iter().filter(is_drop).count()
}

#[test]
fn a_fan_out_to_a_thousand_queues_is_one_entry_with_one_content() {
    const QUEUES: usize = 1_000;
    let mut broker = Broker::new();
    fan_out_to(&mut broker, QUEUES);
    let applied = apply(&mut broker, START, vec![publish(to_exchange("all"), "", 1)]);
    assert!(matches!(applied.outcomes[..], [Ok(Reply::Published(_))]));
    assert_eq!(broker.totals().counts.ready, QUEUES as u64);
    assert_eq!(broker.snapshot().contents().count(), 1);

    let leases = (0..QUEUES).map(|n| Command::Lease {
        queue: queue(n),
        count_max: 1,
        lease: None,
        wait: Millis(0),
        node: NodeId(1),
    });
    let leased = apply(&mut broker, START, leases.collect());
    let acks = leased.outcomes.iter().map(|outcome| match outcome {
        Ok(Reply::Leased(leased)) => Settlement {
            token: leased[0].token,
            verdict: Verdict::Ack,
        },
        other => panic!("{other:?}"),
    });
    let mut acks: Vec<Settlement> = acks.collect();
    let last = acks.split_off(QUEUES - 1);
    let settle = |settlements| vec![Command::Settle { settlements }];
    assert_eq!(dropped(&apply(&mut broker, START, settle(acks))), 0);
    assert_eq!(dropped(&apply(&mut broker, START, settle(last))), 1);
    assert_eq!(invariants::check(&broker), []);
}

#[test]
fn a_publish_that_would_bring_too_many_messages_is_refused_whole() {
    const QUEUES: usize = 1_000;
    let mut broker = Broker::new();
    fan_out_to(&mut broker, QUEUES);
    let most = limits::ROUTES_PER_PUBLISH_MAX / QUEUES;
    let publishes = vec![
        publish(to_exchange("all"), "", most + 1),
        publish(to_exchange("all"), "", most),
    ];
    let applied = apply(&mut broker, START, publishes);
    assert!(matches!(
        applied.outcomes[..],
        [Err(Rejection::LimitExceeded(_)), Ok(Reply::Published(_))]
    ));
    let all = broker.exchange(&exchange("all")).unwrap();
    assert_eq!(all.received, most as u64);
    assert_eq!(broker.totals().counts.published, (most * QUEUES) as u64);
    assert_eq!(invariants::check(&broker), []);
}

#[test]
fn as_many_exchanges_and_bindings_fit_as_the_limits_say() {
    let mut broker = Broker::new();
    let names: Vec<String> = (0..limits::EXCHANGES_MAX).map(|n| format!("e{n}")).collect();
    let mut declares: Vec<Command> = names
        .iter()
        .map(|name| declare_exchange(name, ExchangeKind::Topic))
        .collect();
    declares.push(declare_exchange("more", ExchangeKind::Topic));
    let outcomes = apply(&mut broker, START, declares).outcomes;
    assert!(outcomes[..limits::EXCHANGES_MAX].iter().all(is_done));
    assert!(matches!(outcomes.last(), Some(Err(Rejection::LimitExceeded(_)))));

    apply(
        &mut broker,
        START,
        vec![
            declare(queue(0), SettingsPatch::default()),
            declare(queue(1), SettingsPatch::default()),
        ],
    );
    let per_entry = limits::BINDINGS_MAX / 2;
    for half in 0..2 {
        let bindings = (0..per_entry).map(|n| bind("e0", queue(0), format!("{half}.{n}.#")));
        let outcomes = apply(&mut broker, START, bindings.collect()).outcomes;
        assert!(outcomes.iter().all(is_done));
    }
    let more = vec![
        bind("e1", queue(0), String::new()),
        bind("e0", queue(0), "1.7.#".to_owned()),
        publish(to_exchange("e0"), "1.7.x", 1),
    ];
    let outcomes = apply(&mut broker, START, more).outcomes;
    assert!(matches!(outcomes[0], Err(Rejection::LimitExceeded(_))));
    assert_eq!(outcomes[1], Ok(Reply::Created(false)));
    assert_eq!(broker.queue(&queue(0)).unwrap().counts.ready, 1);

    // All go with the queue.
    let delete = Command::DeleteQueue {
        name: queue(0),
        if_empty: false,
        if_unused: false,
    };
    apply(
        &mut broker,
        START,
        vec![delete, bind("e1", queue(1), String::new())],
    );
    assert_eq!(broker.totals().bindings, 1);
    assert_eq!(invariants::check(&broker), []);
}

/// Dead letters that are copied to many queues do not make an entry as large as
/// they like: the rest waits.
#[test]
fn an_entry_copies_a_bounded_number_of_dead_letters() {
    const QUEUES: usize = 1_000;
    const LETTERS: usize = 100;
    let mut broker = Broker::new();
    fan_out_to(&mut broker, QUEUES);
    let jobs = QueueName::new("jobs").unwrap();
    let settings = SettingsPatch {
        dead_letter_exchange: Some(Some(exchange("all"))),
        ..SettingsPatch::default()
    };
    let lease = Command::Lease {
        queue: jobs.clone(),
        count_max: u32::try_from(LETTERS).unwrap(),
        lease: None,
        wait: Millis(0),
        node: NodeId(1),
    };
    let commands = vec![
        declare(jobs.clone(), settings),
        publish(Target::Queue(jobs.clone()), "", LETTERS),
        lease,
    ];
    let applied = apply(&mut broker, START, commands);
    let Some(Ok(Reply::Leased(leased))) = applied.outcomes.last() else {
        panic!("{:?}", applied.outcomes)
    };
    let reject = |leased: &quorate_core::effect::Leased| Settlement {
        token: leased.token,
        verdict: Verdict::DeadLetter {
            reason: String::new(),
        },
    };
    let settlements = leased.iter().map(reject).collect();
    apply(&mut broker, START, vec![Command::Settle { settlements }]);
    let gone = limits::COPIES_PER_ENTRY.div_ceil(QUEUES);
    let counts = broker.queue(&jobs).unwrap().counts;
    assert_eq!(counts.dead_lettered, gone as u64);
    assert_eq!(counts.dead_letter_backlog, (LETTERS - gone) as u64);

    let next = broker.next_deadline().unwrap();
    assert_eq!(next, START.after(limits::BACKLOG_RETRY));
    apply(&mut broker, next, Vec::new());
    let counts = broker.queue(&jobs).unwrap().counts;
    assert_eq!((counts.dead_lettered, counts.dead), (LETTERS as u64, 0));
    assert_eq!(broker.queue(&queue(7)).unwrap().counts.ready, LETTERS as u64);
    assert_eq!(broker.snapshot().contents().count(), LETTERS);
    assert_eq!(invariants::check(&broker), []);
}
