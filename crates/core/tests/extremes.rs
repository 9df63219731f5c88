//! Times and numbers that nobody should send, and the broker survives.

use std::convert::Infallible;

use quorate_core::command::{
    Command, Labels, NewMessage, Publish, PurgeStates, Request, SettingsPatch, Settlement, Verdict,
};
use quorate_core::effect::Effect;
use quorate_core::ids::{ClientId, Millis, NodeId, QueueName, RequestId, Timestamp};
use quorate_core::outcome::{Outcome, Rejection, Reply};
use quorate_core::{Applied, Broker, Meta, invariants, limits};

fn jobs() -> QueueName {
    QueueName::new("jobs").unwrap()
}

fn declare(settings: SettingsPatch) -> Command {
    Command::DeclareQueue {
        name: jobs(),
        settings,
    }
}

fn publish(message: NewMessage, count: usize) -> Command {
    Command::Publish(Publish::to_queue(jobs(), vec![message; count]))
}

fn lease(count_max: u32) -> Command {
    Command::Lease {
        queue: jobs(),
        count_max,
        lease: None,
        wait: Millis(0),
        node: NodeId(1),
    }
}

/// An entry of one command, after which the broker is in order and can be restored.
fn apply(broker: &mut Broker, at: Timestamp, command: Command) -> Applied {
    apply_as(broker, at, None, command)
}

fn apply_as(broker: &mut Broker, at: Timestamp, id: Option<RequestId>, command: Command) -> Applied {
    let index = broker.index() + 1;
    let digest = index;
    let contents = vec![1; command.contents()];
    let applied = broker.apply(Meta { index, at, digest }, &[Request { id, command }], &contents);
    assert_eq!(invariants::check(broker), []);
    let mut bytes = Vec::new();
    let snapshot = broker.snapshot();
    let written = snapshot.write(&mut |piece| {
        bytes.extend_from_slice(piece);
        Ok::<_, Infallible>(())
    });
    written.unwrap();
    *broker = Broker::restore([Ok::<_, Infallible>(bytes)].into_iter()).unwrap();
    applied
}

fn leased(applied: &Applied) -> Vec<Settlement> {
    let [Ok(Reply::Leased(leased))] = &applied.outcomes[..] else {
        panic!("{applied:?}");
    };
    let acks = leased.iter().map(|leased| Settlement {
        token: leased.token,
        verdict: Verdict::Ack,
    });
    acks.collect()
}

fn done(applied: &Applied) -> &Outcome {
    assert!(applied.outcomes[0].is_ok(), "{applied:?}");
    &applied.outcomes[0]
}

/// A leader whose clock shows the end of time stops the clock, not the broker.
#[test]
fn work_goes_on_at_the_end_of_time() {
    const END: Timestamp = Timestamp(u64::MAX);
    let mut broker = Broker::new();
    done(&apply(&mut broker, END, declare(SettingsPatch::default())));
    let id = |sequence| RequestId {
        client: ClientId(7),
        sequence,
        oldest_unanswered: sequence,
    };
    let labels = Labels {
        dedup_id: "once".to_owned(),
        ..Labels::default()
    };
    let message = NewMessage {
        ttl: limits::SPAN_MAX,
        labels: Some(labels.into()),
        ..NewMessage::default()
    };
    let published = apply_as(&mut broker, END, Some(id(1)), publish(message.clone(), 2));
    let Ok(Reply::Published(published)) = done(&published) else {
        panic!("{published:?}");
    };
    assert_eq!(published.duplicates.len(), 1);
    let settlements = leased(&apply_as(&mut broker, END, Some(id(2)), lease(9)));
    assert_eq!(settlements.len(), 1);
    let settled = apply(&mut broker, END, Command::Settle { settlements });
    assert!(matches!(done(&settled), Ok(Reply::Settled(settled)) if settled[0].is_ok()));
    assert!(broker.next_deadline().is_some_and(|at| at > broker.now()));

    let late = NewMessage {
        deliver_at: END,
        ..message
    };
    let refused = apply(&mut broker, END, publish(late, 1));
    assert!(matches!(
        refused.outcomes[0],
        Err(Rejection::InvalidArgument { .. })
    ));
}

/// What stays keeps its place, whether it is more or less than what goes.
#[test]
fn a_purge_takes_what_it_names_from_among_any_number_of_others() {
    let at = Timestamp(1_000);
    for (count, dead) in [(2_000_u32, 3), (2_000, 1_997), (10, 10), (10, 0), (10, 5)] {
        let mut broker = Broker::new();
        done(&apply(&mut broker, at, declare(SettingsPatch::default())));
        done(&apply(
            &mut broker,
            at,
            publish(NewMessage::default(), count as usize),
        ));
        // So many of them die, spread over the queue.
        let mut settlements = Vec::new();
        for _ in 0..2 {
            settlements.extend(leased(&apply(&mut broker, at, lease(1_000))));
        }
        for (number, settlement) in settlements.iter_mut().enumerate() {
            let place = (number * 7) % count as usize;
            settlement.verdict = if place < dead {
                Verdict::DeadLetter {
                    reason: String::new(),
                }
            } else {
                Verdict::Release
            };
        }
        let died = settlements
            .iter()
            .filter(|settlement| settlement.verdict != Verdict::Release);
        assert_eq!(died.count(), dead);
        done(&apply(&mut broker, at, Command::Settle { settlements }));
        let states = PurgeStates {
            ready: false,
            delayed: false,
            dead: true,
        };
        let purged = apply(&mut broker, at, Command::PurgeQueue { name: jobs(), states });
        assert_eq!(*done(&purged), Ok(Reply::Purged { count: dead as u64 }));
        let is_drop = |effect: &&Effect| matches!(effect, Effect::ContentDropped { .. });
        assert_eq!(purged.effects.iter().filter(is_drop).count(), dead);
        let counts = broker.queue(&jobs()).unwrap().counts;
        assert_eq!((counts.ready, counts.dead), (u64::from(count) - dead as u64, 0));
    }
}

/// As many entries as it takes, and nothing else waits for them.
#[test]
fn any_number_of_dedup_ids_is_forgotten_while_work_goes_on() {
    let per_entry = limits::DUE_PER_ENTRY_MAX * limits::DEDUP_FORGOTTEN_AT_ONCE;
    let begin = Timestamp(0);
    let mut broker = Broker::new();
    done(&apply(&mut broker, begin, declare(SettingsPatch::default())));
    let window = broker.queue(&jobs()).unwrap().settings.dedup_window;
    let ids: Vec<u32> = (0..=u32::try_from(per_entry).unwrap()).collect();
    for ids in ids.chunks(limits::PUBLISH_MESSAGES_MAX) {
        let messages = ids.iter().map(|id| NewMessage {
            labels: Some(Box::new(Labels {
                dedup_id: id.to_string(),
                ..Labels::default()
            })),
            ..NewMessage::default()
        });
        let publish = Command::Publish(Publish::to_queue(jobs(), messages.collect()));
        done(&apply(&mut broker, begin, publish));
    }
    let end = begin.after(window);
    assert_eq!(broker.next_deadline(), Some(end));
    let delayed = NewMessage {
        delay: Millis(window.0 + 1),
        ..NewMessage::default()
    };
    done(&apply(&mut broker, begin, publish(delayed, 1)));

    // What fell due later comes first, and all but a few ids go.
    let later = end.after(Millis(1));
    done(&apply(&mut broker, later, Command::Tick));
    assert_eq!(broker.queue(&jobs()).unwrap().counts.delayed, 0);
    assert_eq!(broker.next_deadline(), Some(end));
    done(&apply(&mut broker, later, Command::Tick));
    assert_eq!(broker.next_deadline(), None);
}
