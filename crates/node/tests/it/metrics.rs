//! A node says what the page of metrics promises.

use std::collections::BTreeSet;

use quorate_node::Broker;
use quorate_node::broker::{ConsumerOptions, LeaseOptions};
use quorate_node::metrics::{Kind, METRICS, QUEUES_MAX, Value};
use quorate_node::types::{
    ConsumerId, ExchangeKind, ExchangeName, Millis, SessionId, Settlement, Target, Verdict,
};

use crate::nodes::{Nodes, declare, message, publish, queue, wait_for};

/// The value of the one sample that has all of these labels.
fn value(broker: &Broker, name: &str, labels: &[(&str, &str)]) -> Option<Value> {
    let families = broker.metrics();
    let family = families.iter().find(|family| family.metric.name == name)?;
    let fits = |known: &[(&str, String)]| {
        labels
            .iter()
            .all(|(name, value)| known.iter().any(|(label, is)| label == name && is == value))
    };
    let mut samples = family.samples.iter().filter(|sample| fits(&sample.labels));
    let value = samples.next()?.value.clone();
    assert!(samples.next().is_none(), "{name} {labels:?} is said once");
    Some(value)
}

fn number(broker: &Broker, name: &str, labels: &[(&str, &str)]) -> f64 {
    match value(broker, name, labels) {
        Some(Value::Number(number)) => number,
        other => panic!("{name} {labels:?} is {other:?}"),
    }
}

fn histogram_count(broker: &Broker, name: &str, queue: &str) -> u64 {
    match value(broker, name, &[("queue", queue)]) {
        Some(Value::Histogram(histogram)) => histogram.counts.iter().sum(),
        other => panic!("{name} of {queue} is {other:?}"),
    }
}

async fn lease(broker: &Broker, name: &str, count_max: u32) -> Vec<quorate_node::types::Leased> {
    let options = LeaseOptions {
        queue: queue(name),
        count_max,
        lease: None,
        wait: Millis(0),
    };
    broker.lease(None, options).await.unwrap().1.leased
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_metric_is_there_and_says_what_happened() {
    let nodes = Nodes::start(3).await;
    let broker = nodes.leader().await;
    declare(&broker, "jobs").await;
    declare(&broker, "idle").await;
    let (exchange, settings) = (ExchangeName::new("orders").unwrap(), Default::default());
    broker
        .declare_exchange(None, exchange.clone(), ExchangeKind::Fanout, settings)
        .await
        .unwrap();
    let nowhere = Target::Exchange {
        name: exchange,
        mandatory: false,
    };
    publish(&broker, nowhere, vec![message("x", &[])]).await.unwrap();
    let messages = (0..5).map(|_| message("x", &[])).collect();
    publish(&broker, Target::Queue(queue("jobs")), messages)
        .await
        .unwrap();
    let leased = lease(&broker, "jobs", 3).await;
    let settle = |place: usize, verdict| Settlement {
        token: leased[place].token,
        verdict,
    };
    broker
        .settle(None, vec![settle(0, Verdict::Ack), settle(1, Verdict::Release)])
        .await
        .unwrap();
    let (_, session) = broker.attach(SessionId(5)).await.unwrap();
    let idle = ConsumerOptions {
        queue: queue("idle"),
        credit: 1,
        lease: None,
        name: String::new(),
        priority: 0,
    };
    broker.consume(&session, ConsumerId(1), idle).await.unwrap();
    broker.snapshot().await.unwrap();

    let jobs = |state| {
        number(
            &broker,
            "quorate_queue_messages",
            &[("queue", "jobs"), ("state", state)],
        )
    };
    assert_eq!((jobs("ready"), jobs("leased"), jobs("dead")), (3.0, 1.0, 0.0));
    assert_eq!(number(&broker, "quorate_messages", &[("state", "ready")]), 3.0);
    let of_jobs = |name, reason| number(&broker, name, &[("queue", "jobs"), ("reason", reason)]);
    assert_eq!(of_jobs("quorate_queue_left_total", "acked"), 1.0);
    assert_eq!(of_jobs("quorate_queue_entered_total", "published"), 5.0);
    assert_eq!(of_jobs("quorate_queue_returned_total", "released"), 1.0);
    assert_eq!(
        histogram_count(&broker, "quorate_queue_time_to_lease_seconds", "jobs"),
        3
    );
    assert_eq!(
        histogram_count(&broker, "quorate_queue_time_to_ack_seconds", "jobs"),
        1
    );
    let orders = |name| number(&broker, name, &[("exchange", "orders")]);
    assert_eq!(orders("quorate_exchange_received_total"), 1.0);
    assert_eq!(orders("quorate_exchange_unroutable_total"), 1.0);
    let idle = |name| number(&broker, name, &[("queue", "idle")]);
    assert_eq!(idle("quorate_queue_consumers"), 1.0);
    assert_eq!(idle("quorate_queue_consumers_with_credit"), 1.0);
    assert!(
        value(
            &broker,
            "quorate_queue_oldest_ready_age_seconds",
            &[("queue", "idle")]
        )
        .is_none()
    );

    let said: BTreeSet<_> = broker.metrics().iter().map(|family| family.metric.name).collect();
    let missing: Vec<_> = METRICS
        .iter()
        .map(|metric| metric.name)
        .filter(|name| !said.contains(name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    for family in broker.metrics() {
        for sample in family.samples {
            let is_histogram = matches!(sample.value, Value::Histogram(_));
            assert_eq!(
                is_histogram,
                family.metric.kind == Kind::Histogram,
                "{}",
                family.metric.name
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_beyond_the_bound_are_counted_together() {
    let nodes = Nodes::start(1).await;
    let broker = nodes.leader().await;
    // In one entry each a few hundred: declares of many callers are merged.
    let names: Vec<_> = (0..QUEUES_MAX + 2).map(|n| format!("q{n:05}")).collect();
    let declares = names.iter().map(|name| declare(&broker, name));
    futures_util::future::join_all(declares).await;
    for name in &names[QUEUES_MAX..] {
        publish(&broker, Target::Queue(queue(name)), vec![message("x", &[])])
            .await
            .unwrap();
    }
    let entered = |queue| {
        number(
            &broker,
            "quorate_queue_entered_total",
            &[("queue", queue), ("reason", "published")],
        )
    };
    assert_eq!(number(&broker, "quorate_queues_without_series", &[]), 2.0);
    // An answer may come a moment before its entry is counted.
    wait_for("the last publish to be counted", || async {
        let others = value(
            &broker,
            "quorate_queue_entered_total",
            &[("queue", ""), ("reason", "published")],
        );
        matches!(others, Some(Value::Number(2.0))).then_some(())
    })
    .await;
    assert_eq!(entered(&names[0]), 0.0);
    let last = names.last().unwrap().as_str();
    assert!(value(&broker, "quorate_queue_bytes", &[("queue", last)]).is_none());

    // A queue that is gone takes its counts along, and makes room for another.
    broker
        .delete_queue(None, queue(last), false, false)
        .await
        .unwrap();
    broker
        .delete_queue(None, queue(&names[0]), false, false)
        .await
        .unwrap();
    assert_eq!(number(&broker, "quorate_queues_without_series", &[]), 0.0);
    assert_eq!(entered(&names[QUEUES_MAX]), 1.0);
    let others = value(
        &broker,
        "quorate_queue_entered_total",
        &[("queue", ""), ("reason", "moved")],
    );
    assert!(others.is_none(), "{others:?}");
}

/// What a scrape costs with many queues. Run with `--release --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn measure() {
    const QUEUES: usize = 10_000;
    let nodes = Nodes::start(1).await;
    let broker = nodes.leader().await;
    let names: Vec<_> = (0..QUEUES).map(|n| format!("q{n:05}")).collect();
    for some in names.chunks(1_000) {
        futures_util::future::join_all(some.iter().map(|name| declare(&broker, name))).await;
    }
    for some in names.chunks(1_000) {
        let target = |name: &String| Target::Queue(queue(name));
        let publishes = some
            .iter()
            .map(|name| publish(&broker, target(name), vec![message("x", &[])]));
        futures_util::future::join_all(publishes).await;
    }
    for _ in 0..5 {
        let started = std::time::Instant::now();
        let families = broker.metrics();
        let samples: usize = families.iter().map(|family| family.samples.len()).sum();
        eprintln!("{samples} samples of {QUEUES} queues in {:?}", started.elapsed());
    }
}
