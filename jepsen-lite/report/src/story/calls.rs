//! What clients asked for, as the charts count it.

use std::time::Duration;

use jepsen_lite_core::history::Outcome;

use super::known::Known;
use super::ms;
use crate::run::{Act, Answer, Call};

/// Every call of every client. A receive that brought something is told by its deliveries.
pub(super) fn calls(known: &Known<'_>) -> Vec<Call> {
    let history = known.history;
    let call = |process, act, (invoked, answered): (Duration, Duration), answer, queue: &str| Call {
        client: known.name(process),
        act,
        begin_ms: ms(invoked),
        end_ms: Some(ms(answered)),
        answer,
        message: None,
        queue: queue.to_owned(),
    };
    let publishes = history.publishes.iter().map(|one| Call {
        message: known.message_of(one).map(|message| message.to_string()),
        ..call(
            one.process,
            Act::Publish,
            (one.invoked, one.answered),
            answer(&one.outcome),
            &one.queue,
        )
    });
    let deliveries = history.deliveries.iter().map(|one| Call {
        message: Some(one.message.to_string()),
        ..call(
            one.process,
            Act::Receive,
            (one.received, one.received),
            Answer::Done,
            &one.queue,
        )
    });
    let settles = history.settles.iter().map(|one| {
        let lease = known.lease(&one.token);
        Call {
            message: lease.map(|lease| lease.message.to_string()),
            ..call(
                one.process,
                Act::Settle,
                (one.invoked, one.answered),
                answer(&one.outcome),
                lease.map_or("", |lease| &lease.queue),
            )
        }
    });
    let in_vain = history.receives.iter().filter(|one| !one.outcome.is_done());
    let receives = in_vain.map(|one| {
        let times = (one.invoked, one.answered);
        call(one.process, Act::Receive, times, answer(&one.outcome), &one.queue)
    });
    let reads = history.reads.iter().map(|one| {
        let times = (one.invoked, one.answered);
        call(one.process, Act::Other, times, Answer::Done, &one.queue)
    });
    let operations = history.operations.iter().map(|one| {
        let times = (one.invoked, one.answered);
        call(one.process, Act::Other, times, answer(&one.outcome), &one.queue)
    });
    publishes
        .chain(deliveries)
        .chain(settles)
        .chain(receives)
        .chain(reads)
        .chain(operations)
        .collect()
}

fn answer<T>(outcome: &Outcome<T>) -> Answer {
    match outcome {
        Outcome::Done(_) => Answer::Done,
        Outcome::Refused(_) => Answer::Refused,
        Outcome::Unknown => Answer::Unknown,
    }
}
