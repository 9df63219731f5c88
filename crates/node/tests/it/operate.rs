//! Dead letters are set free, put back, and no request is done twice.

use std::collections::BTreeMap;

use quorate_node::broker::{LeaseOptions, Publication, Publish, Redrive, Redriven};
use quorate_node::types::{
    ClientId, Filter, MessageState, Millis, Operation, QueueName, Rejection, RequestId, Selector,
    SettingsPatch, Settlement, Target, Verdict,
};
use quorate_node::{Broker, BrokerError};

use crate::nodes::{Nodes, bodies, browse, declare, message, publish, queue};

fn id(sequence: u64) -> Option<RequestId> {
    Some(RequestId {
        client: ClientId(7),
        sequence,
        oldest_unanswered: 1,
    })
}

/// All dead letters of `jobs`, back to where they came from.
fn redrive() -> Redrive {
    Redrive {
        queue: queue("jobs"),
        filter: Filter::default(),
        headers: BTreeMap::new(),
        count_max: 1_000,
        to: None,
        from: 0,
        continues: None,
    }
}

/// Publishes messages to a queue, and rejects each.
async fn let_die(broker: &Broker, name: &str, messages: Vec<Publication>) {
    publish(broker, Target::Queue(queue(name)), messages)
        .await
        .unwrap();
    let options = LeaseOptions {
        queue: queue(name),
        count_max: 1_000,
        lease: None,
        wait: Millis(0),
    };
    let leased = broker.lease(None, options).await.unwrap().1.leased;
    let reject = |token| Settlement {
        token,
        verdict: Verdict::DeadLetter {
            reason: "no".to_owned(),
        },
    };
    let rejected = leased.into_iter().map(|leased| reject(leased.token)).collect();
    let (_, results) = broker.settle(None, rejected).await.unwrap();
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

/// The bodies of the messages of `jobs` in a state.
async fn in_state(broker: &Broker, state: MessageState) -> Vec<String> {
    let mut look = browse("jobs");
    look.filter.states = vec![state];
    look.with_content = true;
    let (_, page) = broker.browse(&look).await.unwrap();
    let contents = page.messages.into_iter().map(|seen| seen.content.unwrap().body);
    contents
        .map(|body| String::from_utf8(body.to_vec()).unwrap())
        .collect()
}

async fn three_dead(broker: &Broker) {
    declare(broker, "jobs").await;
    let messages = vec![
        message("a", &[("kind", "mail")]),
        message("b", &[("kind", "report")]),
        message("c", &[("kind", "mail")]),
    ];
    let_die(broker, "jobs", messages).await;
    assert_eq!(in_state(broker, MessageState::Dead).await, ["a", "b", "c"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_choose_what_is_set_free_and_it_can_be_put_back() {
    let nodes = Nodes::start(1).await;
    let broker = nodes.leader().await;
    three_dead(&broker).await;
    let mails = Redrive {
        headers: BTreeMap::from([("kind".to_owned(), "mail".to_owned())]),
        ..redrive()
    };
    let redriven = broker.redrive(None, mails).await.unwrap();
    assert_eq!((redriven.count, redriven.next), (2, None));
    assert!(redriven.refused.is_empty(), "{:?}", redriven.refused);
    assert_eq!(redriven.queues, [queue("jobs")]);
    assert_eq!(redriven.redrive, redriven.position.map(|position| position.index));
    assert_eq!(in_state(&broker, MessageState::Ready).await, ["a", "c"]);

    let undo = async || {
        let redrive = redriven.redrive.unwrap();
        broker
            .undo_redrive(None, queue("jobs"), redrive, 0)
            .await
            .unwrap()
    };
    let undone = undo().await;
    assert_eq!((undone.count, undone.next), (2, None));
    assert_eq!(in_state(&broker, MessageState::Dead).await, ["a", "b", "c"]);
    let again = undo().await;
    assert!(again.count == 0 && again.position.is_none(), "{again:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redrive_to_a_queue_that_is_not_there_is_refused_even_if_it_chose_nothing() {
    let nodes = Nodes::start(1).await;
    let broker = nodes.leader().await;
    declare(&broker, "jobs").await;
    let to = |to: &str| Redrive {
        to: Some(queue(to)),
        ..redrive()
    };
    let error = broker.redrive(None, to("typo")).await.unwrap_err();
    assert!(
        matches!(&error, BrokerError::Rejected(Rejection::QueueNotFound(name)) if *name == queue("typo")),
        "{error}"
    );
    let nothing = broker.redrive(None, to("jobs")).await.unwrap();
    assert!(nothing.count == 0 && nothing.position.is_none(), "{nothing:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redrive_of_several_parts_is_put_back_as_one() {
    let nodes = Nodes::start(1).await;
    let broker = nodes.leader().await;
    three_dead(&broker).await;
    declare(&broker, "other").await;
    let one = |earlier: &Redriven, to: Option<&str>| Redrive {
        count_max: 1,
        to: to.map(queue),
        from: earlier.next.unwrap_or(0),
        continues: earlier.redrive,
        ..redrive()
    };
    let first = broker
        .redrive(None, one(&Redriven::default(), None))
        .await
        .unwrap();
    let second = broker.redrive(id(1), one(&first, None)).await.unwrap();
    assert_ne!(
        first.position.unwrap().index,
        second.position.unwrap().index,
        "two entries"
    );
    assert_eq!(second.redrive, first.redrive);
    let third = broker.redrive(None, one(&second, Some("other"))).await.unwrap();
    assert_eq!(
        (third.redrive, &*third.queues),
        (first.redrive, &[queue("other")][..])
    );
    // A repeated part, and one that chooses nothing, are of it too.
    let again = broker.redrive(id(1), one(&first, None)).await.unwrap();
    assert_eq!(
        (again.count, again.redrive, &again.queues),
        (1, first.redrive, &second.queues)
    );
    let nothing = broker.redrive(None, one(&third, None)).await.unwrap();
    assert!(
        nothing.count == 0 && nothing.redrive == first.redrive,
        "{nothing:?}"
    );

    for (name, count) in [("jobs", 2), ("other", 1)] {
        let redrive = first.redrive.unwrap();
        let undone = broker.undo_redrive(None, queue(name), redrive, 0).await.unwrap();
        assert_eq!(undone.count, count, "in {name}");
    }
    assert_eq!(in_state(&broker, MessageState::Dead).await, ["a", "b", "c"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redrive_that_has_not_begun_is_not_continued() {
    let nodes = Nodes::start(1).await;
    let broker = nodes.leader().await;
    three_dead(&broker).await;
    let later = Redrive {
        continues: Some(u64::MAX),
        ..redrive()
    };
    let refused = broker.redrive(None, later).await.unwrap_err();
    assert!(
        matches!(
            &refused,
            BrokerError::Rejected(Rejection::InvalidArgument { field, .. }) if field == "continues"
        ),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_redrive_chooses_nothing_new() {
    let nodes = Nodes::start(1).await;
    let broker = nodes.leader().await;
    three_dead(&broker).await;
    let one = || Redrive {
        count_max: 1,
        ..redrive()
    };
    let first = broker.redrive(id(1), one()).await.unwrap();
    let again = broker.redrive(id(1), one()).await.unwrap();
    let index = |redriven: &Redriven| redriven.position.unwrap().index;
    assert_eq!(index(&first), index(&again));
    assert_eq!((first.count, again.count), (1, 1));
    assert_eq!(in_state(&broker, MessageState::Ready).await, ["a"]);

    // With nothing left to choose it still answers for what it did.
    broker.redrive(None, redrive()).await.unwrap();
    let again = broker.redrive(id(1), redrive()).await.unwrap();
    assert_eq!((index(&again), again.count), (index(&first), 1));

    // And what chose nothing at first never does.
    let none = broker.redrive(id(2), redrive()).await.unwrap();
    assert!(none.position.is_none() && none.count == 0, "{none:?}");
    let_die(&broker, "jobs", vec![message("d", &[])]).await;
    let dead = in_state(&broker, MessageState::Dead).await;
    let none = broker.redrive(id(2), redrive()).await.unwrap();
    assert!(none.position.is_none() && none.count == 0, "{none:?}");
    assert_eq!(in_state(&broker, MessageState::Dead).await, dead);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_without_room_keeps_a_letter_where_it_is() {
    let nodes = Nodes::start(1).await;
    let broker = nodes.leader().await;
    three_dead(&broker).await;
    let one_only = SettingsPatch {
        length_max: Some(1),
        ..SettingsPatch::default()
    };
    broker
        .declare_queue(None, queue("small"), one_only)
        .await
        .unwrap();
    let to_small = Redrive {
        to: Some(queue("small")),
        ..redrive()
    };
    let redriven = broker.redrive(None, to_small).await.unwrap();
    assert_eq!(redriven.count, 1);
    let [
        (Some(refused), Rejection::QueueFull { queue: full, .. }),
        (Some(_), _),
    ] = &*redriven.refused
    else {
        panic!("{:?}", redriven.refused)
    };
    assert_eq!(*full, queue("small"));
    let (_, seen) = broker
        .message(&queue("jobs"), &Selector::Message(*refused), false, false)
        .await
        .unwrap();
    assert_eq!(seen.view.state, MessageState::Dead);
    assert_eq!(bodies(&broker, "small").await, ["a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_message_is_operated_on_by_itself() {
    let nodes = Nodes::start(1).await;
    let broker = nodes.leader().await;
    declare(&broker, "jobs").await;
    declare(&broker, "other").await;
    let mut named = message("b", &[]);
    named.content.dedup_id = "order-7".to_owned();
    let messages = vec![message("a", &[]), named, message("c", &[])];
    let ids = publish(&broker, Target::Queue(queue("jobs")), messages)
        .await
        .unwrap()
        .ids;
    let named = vec![
        Selector::Message(ids[0]),
        Selector::DedupId("order-7".to_owned()),
        Selector::DedupId("order-8".to_owned()),
    ];
    let to_other = Operation::Move { to: queue("other") };
    let (_, results) = broker
        .operate(None, queue("jobs"), named, to_other)
        .await
        .unwrap();
    assert_eq!(results[..2], [Ok(ids[0]), Ok(ids[1])]);
    assert!(
        matches!(&results[2], Err(missing) if missing.to_string() == "queue jobs holds no message with dedup id order-8"),
        "{results:?}"
    );
    assert_eq!(bodies(&broker, "other").await, ["a", "b"]);
    assert_eq!(bodies(&broker, "jobs").await, ["c"]);
}

fn to_queue(name: &str, body: &'static str) -> Publish {
    Publish {
        id: None,
        target: Target::Queue(QueueName::new(name).unwrap()),
        messages: vec![message(body, &[])],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_settles_and_publishes_or_does_nothing() {
    let nodes = Nodes::start(1).await;
    let broker = nodes.leader().await;
    declare(&broker, "jobs").await;
    declare(&broker, "next").await;
    publish(&broker, Target::Queue(queue("jobs")), vec![message("a", &[])])
        .await
        .unwrap();
    let options = LeaseOptions {
        queue: queue("jobs"),
        count_max: 1,
        lease: None,
        wait: Millis(0),
    };
    let leased = broker.lease(None, options).await.unwrap().1.leased;
    let ack = || {
        vec![Settlement {
            token: leased[0].token,
            verdict: Verdict::Ack,
        }]
    };

    let nowhere = vec![to_queue("next", "b"), to_queue("nowhere", "c")];
    let error = broker.transact(None, ack(), nowhere).await.unwrap_err();
    let BrokerError::Rejected(Rejection::TransactionRefused { part, cause }) = &error else {
        panic!("{error}")
    };
    assert_eq!(part, "publish 1");
    assert!(matches!(**cause, Rejection::QueueNotFound(_)), "{cause}");
    assert_eq!(bodies(&broker, "next").await, Vec::<String>::new());

    let both = || vec![to_queue("next", "b"), to_queue("next", "c")];
    let (position, done) = broker.transact(id(1), ack(), both()).await.unwrap();
    assert_eq!((done.settled.len(), done.published.len()), (1, 2));
    let first = done.published[0].ids[0];
    let second = done.published[1].ids[0];
    assert_eq!((first.index, second.number), (position.index, first.number + 1));
    let (again, repeated) = broker.transact(id(1), ack(), both()).await.unwrap();
    assert_eq!((again.index, repeated), (position.index, done));
    assert_eq!(bodies(&broker, "next").await, ["b", "c"]);
    assert_eq!(bodies(&broker, "jobs").await, Vec::<String>::new());
}
