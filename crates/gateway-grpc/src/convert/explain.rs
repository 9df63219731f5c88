//! What keeps messages from being delivered, in words.

use quorate_node::broker::Explanation;
use quorate_node::types::{Obstacle, Timestamp};
use quorate_proto::v1;

use super::queue_info;

pub(crate) fn explanation(read_index: u64, explanation: &Explanation) -> v1::ExplainQueueResponse {
    let no_leader = explanation.no_leader.then(no_leader);
    let obstacles = explanation.obstacles.iter().map(obstacle);
    v1::ExplainQueueResponse {
        queue: Some(queue_info(&explanation.queue)),
        obstacles: no_leader.into_iter().chain(obstacles).collect(),
        read_index,
    }
}

fn no_leader() -> v1::Obstacle {
    words(
        "no-leader",
        "there is no leader at the moment, so nothing is delivered and what follows may be old: look at the \
         status of each node; a majority must be up and reach one another"
            .to_owned(),
    )
}

fn obstacle(obstacle: &Obstacle) -> v1::Obstacle {
    match *obstacle {
        Obstacle::Paused => words("paused", "the queue is paused: resume it".to_owned()),
        Obstacle::Empty => words(
            "empty",
            "nothing is in the queue that could be delivered, now or later".to_owned(),
        ),
        Obstacle::NoConsumer { ready } => v1::Obstacle {
            messages: ready,
            ..words(
                "no-consumer",
                format!("{ready} message(s) are ready and nobody asks for any: start a consumer"),
            )
        },
        Obstacle::NoCredit { consumers, in_flight } => words(
            "no-credit",
            format!(
                "the {consumers} consumer(s) hold {in_flight} message(s), as many as their credit allows: \
                 settle some, raise the credit, or add consumers"
            ),
        ),
        Obstacle::GroupsBusy { groups, messages } => v1::Obstacle {
            messages,
            ..words(
                "groups-busy",
                format!(
                    "{messages} message(s) of {groups} group(s) wait for messages of their group that are \
                     leased, or wait for a retry: settle those, or raise group_concurrency if order in a \
                     group does not matter"
                ),
            )
        },
        Obstacle::SingleActiveBusy { leases, until } => v1::Obstacle {
            messages: leases,
            ..timed(
                "single-active-busy",
                format!(
                    "the next consumer waits until {leases} lease(s) of the one before it are settled or over"
                ),
                until,
            )
        },
        Obstacle::Delayed { messages, until } => v1::Obstacle {
            messages,
            ..timed(
                "delayed",
                format!(
                    "{messages} message(s) are not due yet; the first is at {} ms",
                    until.0
                ),
                until,
            )
        },
        Obstacle::AllLeased { messages, until } => v1::Obstacle {
            messages,
            ..timed(
                "all-leased",
                format!(
                    "all {messages} message(s) that are left are leased; the first of these leases ends at \
                     {} ms",
                    until.0
                ),
                until,
            )
        },
        Obstacle::DeadLetterBacklog { messages } => v1::Obstacle {
            messages,
            ..words(
                "dead-letter-backlog",
                format!(
                    "{messages} dead letter(s) wait for room in their target: drain it, raise its limit, or \
                     set another"
                ),
            )
        },
        Obstacle::Full => words(
            "full",
            "a limit of the queue is reached, so publishes are refused: drain it, or raise the limit"
                .to_owned(),
        ),
    }
}

fn words(kind: &str, message: String) -> v1::Obstacle {
    v1::Obstacle {
        kind: kind.to_owned(),
        message,
        messages: 0,
        until_ms: 0,
    }
}

fn timed(kind: &str, message: String, until: Timestamp) -> v1::Obstacle {
    v1::Obstacle {
        until_ms: until.0,
        ..words(kind, message)
    }
}
