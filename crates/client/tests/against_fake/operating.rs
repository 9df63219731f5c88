use std::time::Duration;

use futures_util::StreamExt as _;
use quorate_client::{Error, MessageFilter, MessageState, OPERATE_MAX, Reason, Schedule, Selector};
use quorate_proto::v1;
use quorate_proto::v1::message_selector::Selector as WireSelector;
use quorate_proto::v1::operate_messages_request::Operation;

use crate::fake::{Node, Replicated, client, detail, nobody};

fn page(positions: &[u64], next: u64) -> v1::BrowseResponse {
    let messages = positions.iter().map(|&position| v1::MessageInfo {
        message_id: format!("{position}-0"),
        position,
        state: v1::MessageState::Dead.into(),
        dead_reason: "rejected".to_owned(),
        body: "body".into(),
        ..Default::default()
    });
    v1::BrowseResponse {
        messages: messages.collect(),
        next,
        read_index: 7,
    }
}

fn refused(message_id: &str, reason: v1::Reason) -> v1::OperateResult {
    v1::OperateResult {
        message_id: message_id.to_owned(),
        error: Some(detail(reason)),
    }
}

fn done(message_id: &str) -> v1::OperateResult {
    v1::OperateResult {
        message_id: message_id.to_owned(),
        error: None,
    }
}

#[tokio::test]
async fn a_browse_goes_over_pages_also_over_empty_ones() {
    let node = Node::start(&Replicated::default()).await.node;
    node.will_answer(page(&[1, 2], 3));
    node.will_answer(page(&[], 5));
    node.will_answer(page(&[6], 0));
    let filter = MessageFilter::new()
        .state(MessageState::Dead)
        .header("tenant", "acme")
        .published_before_ms(9)
        .message_ids(["1-0", "2-0", "6-0"]);
    let browse = client(&[&node.address])
        .browse("jobs")
        .filter(filter)
        .page_size(2);
    let messages: Vec<_> = browse.messages().map(Result::unwrap).collect().await;
    let places: Vec<_> = messages.iter().map(|message| message.position).collect();
    assert_eq!(places, [1, 2, 6]);
    let dead = messages[0].dead.as_ref().unwrap();
    assert_eq!(
        (messages[0].state, dead.reason.as_str()),
        (MessageState::Dead, "rejected")
    );
    assert_eq!(messages[0].body, None, "it was not asked for");

    let requests = node.heard::<v1::BrowseRequest>();
    let from: Vec<_> = requests.iter().map(|request| request.from).collect();
    assert_eq!(from, [0, 3, 5]);
    let filter = requests[2].filter.as_ref().unwrap();
    assert_eq!(filter.states, [v1::MessageState::Dead as i32]);
    assert_eq!(
        (filter.headers["tenant"].as_str(), filter.published_before_ms),
        ("acme", 9)
    );
    assert_eq!(filter.message_ids.len(), 3);
}

#[tokio::test]
async fn a_browse_ends_with_its_first_error() {
    let node = Node::start(&Replicated::default()).await.node;
    node.will_answer(page(&[1], 2));
    node.will_refuse::<v1::BrowseResponse>(detail(v1::Reason::QueueNotFound));
    let seen: Vec<_> = client(&[&node.address]).browse("jobs").messages().collect().await;
    assert_eq!(seen.len(), 2);
    assert_eq!(
        seen[1].as_ref().unwrap_err().reason(),
        Some(Reason::QueueNotFound)
    );
}

#[tokio::test]
async fn a_local_look_needs_no_leader() {
    let shared = Replicated::default();
    let (a, b) = (Node::start(&shared).await.node, Node::start(&shared).await.node);
    a.follow(None);
    b.follow(None);
    let client = client(&[&nobody().await, &a.address, &b.address]);
    a.will_answer(page(&[1], 0));
    b.will_answer(page(&[1, 2], 0));
    let any = client.browse("jobs").local().with_content().page().await.unwrap();
    assert_eq!((any.messages.len(), any.read_index), (1, 7));
    assert_eq!(any.messages[0].body.as_deref(), Some(b"body".as_slice()));
    let that = client.browse("jobs").at(&b.address).page().await.unwrap();
    assert_eq!(that.messages.len(), 2);
    assert!(b.heard::<v1::BrowseRequest>()[0].local);
    let message = client.get_message("jobs", "1-0").at(&b.address).send().await;
    message.unwrap();
    assert!(b.heard::<v1::GetMessageRequest>()[0].local);
}

#[tokio::test]
async fn who_could_not_be_reached_is_named() {
    let silent = nobody().await;
    let client = client(&[&silent]);
    let that = client.browse("jobs").at(&silent).page().await.unwrap_err();
    let text = that.to_string();
    assert!(
        text.starts_with(&format!("could not reach node {silent}: ")),
        "{text}"
    );
    assert_eq!(text.matches(&silent).count(), 1, "{text}");
    let any = client.browse("jobs").local().page().await.unwrap_err();
    let text = any.to_string();
    assert!(
        text.starts_with(&format!("could not reach any node: {silent}: ")),
        "{text}"
    );
}

#[tokio::test]
async fn a_message_tells_where_it_stands() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    let held = |session, consumer, node_id| v1::GetMessageResponse {
        message: Some(v1::MessageInfo {
            message_id: "1-0".to_owned(),
            state: v1::MessageState::Leased.into(),
            lease: Some(v1::LeaseInfo {
                session,
                consumer,
                node_id,
                since_ms: 1_000,
                until_ms: 9_000,
                fence: 3,
            }),
            ..Default::default()
        }),
        read_index: 7,
    };
    node.will_answer(held(8, 0, 2));
    node.will_answer(held(0, 0, 0));
    let pushed = client.get_message("jobs", "1-0").send().await.unwrap();
    assert_eq!(pushed.state, MessageState::Leased);
    let lease = pushed.lease.unwrap();
    assert_eq!(
        (lease.session, lease.consumer, lease.node_id),
        (Some(8), Some(0), Some(2))
    );
    assert_eq!((lease.until_ms, lease.fence), (9_000, 3));
    let pulled = client.get_message("jobs", "1-0").send().await.unwrap();
    let lease = pulled.lease.unwrap();
    assert_eq!((lease.session, lease.consumer, lease.node_id), (None, None, None));
    assert_eq!(
        (pulled.group, pulled.dead, pulled.redrive, pulled.expires_at_ms),
        (None, None, None, None)
    );
}

#[tokio::test]
async fn a_refusal_of_a_local_look_is_told() {
    let node = Node::start(&Replicated::default()).await.node;
    node.follow(None);
    node.will_refuse::<v1::GetMessageResponse>(detail(v1::Reason::MessageNotFound));
    let selector = Selector::dedup_id("order-9");
    let look = client(&[&node.address]).get_message("jobs", selector).local();
    let error = look.send().await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::MessageNotFound));
    let asked = node.heard::<v1::GetMessageRequest>().remove(0).message;
    let by_dedup_id = WireSelector::DedupId("order-9".to_owned());
    assert_eq!(asked.unwrap().selector, Some(by_dedup_id));
}

#[tokio::test]
async fn each_message_of_an_operation_has_its_own_result() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    node.will_answer(v1::OperateMessagesResponse {
        commit: None,
        results: vec![done("1-0"), refused("2-0", v1::Reason::WrongState)],
    });
    let operated = client.delete_messages("jobs", ["1-0", "2-0"]).await.unwrap();
    assert!(operated.results[0].result.is_ok());
    assert_eq!(operated.results[1].message_id, "2-0");
    let refusal = operated.results[1].result.as_ref().unwrap_err();
    assert_eq!(refusal.reason(), Some(Reason::WrongState));
}

#[tokio::test]
async fn operations_say_what_they_are() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    let one = || [Selector::dedup_id("k")];
    let minute = Duration::from_secs(60);
    client.delete_messages("jobs", one()).await.unwrap();
    client.move_messages("jobs", one(), "other").await.unwrap();
    for schedule in [Schedule::Now, Schedule::After(minute), Schedule::AtMs(9_000)] {
        client.reschedule_messages("jobs", one(), schedule).await.unwrap();
    }
    client.redrive_messages("jobs", one(), None).await.unwrap();
    let reschedule = |delay_ms, deliver_at_ms| {
        Operation::Reschedule(v1::Reschedule {
            delay_ms,
            deliver_at_ms,
        })
    };
    let expected = [
        Operation::Delete(v1::Delete {}),
        Operation::Move(v1::Move {
            to: "other".to_owned(),
        }),
        reschedule(0, 0),
        reschedule(60_000, 0),
        reschedule(0, 9_000),
        Operation::Redrive(v1::RedriveTo::default()),
    ];
    let requests = node.heard::<v1::OperateMessagesRequest>();
    let operations: Vec<_> = requests
        .into_iter()
        .map(|request| request.operation.unwrap())
        .collect();
    assert_eq!(operations, expected);
}

#[tokio::test]
async fn an_operation_on_none_or_too_many_is_not_sent() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    for count in [0, OPERATE_MAX + 1] {
        let ids = (0..count).map(|n| format!("{n}-0"));
        let operated = client.delete_messages("jobs", ids).await;
        assert!(matches!(operated, Err(Error::Invalid(_))), "{count}");
    }
    assert!(node.heard::<v1::OperateMessagesRequest>().is_empty());
}

/// A batch of the redrive that began at log index 40.
fn batch(log_index: u64, redriven: u64, refused: Vec<v1::OperateResult>, next: u64) -> v1::RedriveResponse {
    v1::RedriveResponse {
        commit: (log_index > 0).then(|| v1::Commit {
            log_index,
            ..Default::default()
        }),
        redriven,
        refused,
        next,
        redrive: 40,
        queues: Vec::new(),
    }
}

#[tokio::test]
async fn a_redrive_goes_on_until_there_are_no_more() {
    let node = Node::start(&Replicated::default()).await.node;
    // The first looks at a thousand messages, and chooses none.
    node.will_answer(v1::RedriveResponse {
        next: 5,
        ..Default::default()
    });
    node.will_answer(v1::RedriveResponse {
        queues: vec!["jobs".to_owned(), "all jobs".to_owned()],
        ..batch(40, 3, Vec::new(), 10)
    });
    node.will_answer(batch(0, 0, Vec::new(), 20));
    let full = vec![refused("9-0", v1::Reason::QueueFull)];
    node.will_answer(v1::RedriveResponse {
        queues: vec!["jobs".to_owned()],
        ..batch(44, 1, full, 0)
    });
    let filter = MessageFilter::new().reason("rejected");
    let client = client(&[&node.address]);
    let redriven = client
        .redrive("failed")
        .filter(filter)
        .to("jobs")
        .send()
        .await
        .unwrap();
    assert_eq!((redriven.redriven, redriven.refused), (4, 1));
    assert_eq!(redriven.redrive, Some(40));
    assert_eq!(Vec::from_iter(redriven.queues), ["all jobs", "jobs"]);
    assert_eq!(redriven.refusals[0].message_id, "9-0");
    assert!(redriven.stopped.is_none());
    let requests = node.heard::<v1::RedriveRequest>();
    let parts: Vec<_> = requests
        .iter()
        .map(|request| (request.from, request.continues))
        .collect();
    assert_eq!(parts, [(0, 0), (5, 0), (10, 40), (20, 40)]);
    assert!(
        requests
            .iter()
            .all(|request| request.to == "jobs" && request.filter.is_some())
    );
}

#[tokio::test]
async fn an_undo_goes_on_until_there_are_no_more() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    let undone = |log_index, undone, next| v1::UndoRedriveResponse {
        commit: (log_index > 0).then(|| v1::Commit {
            log_index,
            ..Default::default()
        }),
        undone,
        next,
    };
    node.will_answer(undone(50, 4_096, 5_000));
    node.will_answer(undone(51, 7, 9_000));
    node.will_answer(undone(0, 0, 0));
    let all = client.undo_redrive("jobs", 40).await.unwrap();
    assert_eq!((all.count, all.commit.log_index), (4_103, 51));
    let requests = node.heard::<v1::UndoRedriveRequest>();
    let parts: Vec<_> = requests
        .iter()
        .map(|request| (request.redrive, request.from))
        .collect();
    assert_eq!(parts, [(40, 0), (40, 5_000), (40, 9_000)]);
}

#[tokio::test]
async fn a_redrive_takes_no_more_than_it_may() {
    let node = Node::start(&Replicated::default()).await.node;
    let full = vec![refused("9-0", v1::Reason::QueueFull)];
    node.will_answer(batch(40, 999, full, 10));
    node.will_answer(batch(41, 500, Vec::new(), 20));
    let redrive = client(&[&node.address]).redrive("jobs").max(1_500);
    assert_eq!(redrive.send().await.unwrap().redriven, 1_499);
    let requests = node.heard::<v1::RedriveRequest>();
    let sizes: Vec<_> = requests.iter().map(|request| request.max_messages).collect();
    assert_eq!(sizes, [1_000, 500]);
}

#[tokio::test]
async fn a_redrive_that_stops_half_way_says_how_far_it_came() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    node.will_answer(batch(40, 3, Vec::new(), 10));
    node.will_refuse::<v1::RedriveResponse>(detail(v1::Reason::QueueNotFound));
    let redriven = client.redrive("jobs").send().await.unwrap();
    assert_eq!((redriven.redriven, redriven.redrive), (3, Some(40)));
    let stopped = redriven.stopped.unwrap();
    assert_eq!(stopped.reason(), Some(Reason::QueueNotFound));
    // Of the first batch it is the error of the call.
    node.will_refuse::<v1::RedriveResponse>(detail(v1::Reason::QueueNotFound));
    let error = client.redrive("jobs").send().await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::QueueNotFound));
}

#[tokio::test]
async fn a_purge_chooses_states() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    node.will_answer(v1::PurgeQueueResponse {
        commit: None,
        purged: 3,
    });
    let purge = client
        .purge_queue("jobs")
        .states([MessageState::Dead, MessageState::Ready]);
    assert_eq!(purge.send().await.unwrap().count, 3);
    client.purge_queue("jobs").send().await.unwrap();
    let requests = node.heard::<v1::PurgeQueueRequest>();
    let dead_and_ready = [v1::MessageState::Dead as i32, v1::MessageState::Ready as i32];
    assert_eq!(requests[0].states, dead_and_ready);
    assert!(requests[1].states.is_empty());
}

#[tokio::test]
async fn a_queue_is_paused_and_resumed() {
    let node = Node::start(&Replicated::default()).await.node;
    let client = client(&[&node.address]);
    client.pause_queue("jobs").await.unwrap();
    client.resume_queue("jobs").await.unwrap();
    let paused: Vec<_> = node
        .heard::<v1::PauseQueueRequest>()
        .iter()
        .map(|request| request.paused)
        .collect();
    assert_eq!(paused, [true, false]);
}

#[tokio::test]
async fn a_queue_is_explained() {
    let node = Node::start(&Replicated::default()).await.node;
    let obstacle = |kind: &str, until_ms| v1::Obstacle {
        kind: kind.to_owned(),
        message: "why".to_owned(),
        messages: 3,
        until_ms,
    };
    node.will_answer(v1::ExplainQueueResponse {
        queue: Some(v1::QueueInfo {
            name: "jobs".to_owned(),
            paused: true,
            ..Default::default()
        }),
        obstacles: vec![obstacle("paused", 0), obstacle("delayed", 9_000)],
        read_index: 5,
    });
    let explained = client(&[&node.address]).explain_queue("jobs").await.unwrap();
    assert!(explained.queue.paused && explained.read_index == 5);
    assert_eq!(explained.obstacles[0].kind, "paused");
    let until: Vec<_> = explained
        .obstacles
        .iter()
        .map(|obstacle| obstacle.until_ms)
        .collect();
    assert_eq!(until, [None, Some(9_000)]);
}

#[tokio::test]
async fn without_a_leader_any_node_explains() {
    let node = Node::start(&Replicated::default()).await.node;
    node.follow(None);
    let no_leader = v1::Obstacle {
        kind: "no-leader".to_owned(),
        ..Default::default()
    };
    node.will_answer(v1::ExplainQueueResponse {
        obstacles: vec![no_leader],
        ..Default::default()
    });
    let client = client(&[&nobody().await, &node.address]).with_timeout(Duration::from_millis(300));
    let explained = client.explain_queue("jobs").await.unwrap();
    assert_eq!(explained.obstacles[0].kind, "no-leader");
}
