//! What keeps messages from being delivered, in words.

use quorate_node::broker::Explanation;
use quorate_node::types::{Obstacle, Timestamp};
use quorate_proto::v1;

use super::queue_info;

pub(crate) fn explanation(read_index: u64, explanation: &Explanation) -> v1::ExplainQueueResponse {
    let no_leader = explanation.no_leader.then(no_leader);
    let obstacles = explanation.obstacles.iter();
    let dead = explanation.queue.counts.dead;
    let obstacles = obstacles.map(|obstacle| in_words(obstacle, dead, explanation.now));
    v1::ExplainQueueResponse {
        queue: Some(queue_info(&explanation.queue)),
        obstacles: no_leader.into_iter().chain(obstacles).collect(),
        read_index,
    }
}

fn no_leader() -> v1::Obstacle {
    let message = "there is no leader at the moment, so nothing is delivered, and what follows may be old: \
                   see that a majority of the nodes is up and that they reach one another";
    v1::Obstacle {
        kind: "no-leader".to_owned(),
        message: message.to_owned(),
        ..v1::Obstacle::default()
    }
}

fn in_words(obstacle: &Obstacle, dead: u64, now: Timestamp) -> v1::Obstacle {
    let (messages, until) = extent(obstacle);
    v1::Obstacle {
        kind: kind(obstacle).to_owned(),
        message: message(obstacle, dead, now),
        messages,
        until_ms: until.map_or(0, |until| until.0),
    }
}

fn kind(obstacle: &Obstacle) -> &'static str {
    match obstacle {
        Obstacle::Paused => "paused",
        Obstacle::Empty => "empty",
        Obstacle::NoConsumer { .. } => "no-consumer",
        Obstacle::NoCredit { .. } => "no-credit",
        Obstacle::GroupsBusy { .. } => "groups-busy",
        Obstacle::SingleActiveBusy { .. } => "single-active-busy",
        Obstacle::Delayed { .. } => "delayed",
        Obstacle::AllLeased { .. } => "all-leased",
        Obstacle::DeadLetterBacklog { .. } => "dead-letter-backlog",
        Obstacle::Full => "full",
    }
}

/// Messages concerned, and when it ends by itself.
fn extent(obstacle: &Obstacle) -> (u64, Option<Timestamp>) {
    match *obstacle {
        Obstacle::Paused | Obstacle::Empty | Obstacle::NoCredit { .. } | Obstacle::Full => (0, None),
        Obstacle::NoConsumer { ready } => (ready, None),
        Obstacle::GroupsBusy { messages, .. } | Obstacle::DeadLetterBacklog { messages } => (messages, None),
        Obstacle::SingleActiveBusy { leases, until } => (leases, Some(until)),
        Obstacle::Delayed { messages, until } | Obstacle::AllLeased { messages, until } => {
            (messages, Some(until))
        }
    }
}

/// What it is and what to do, for a queue with so many dead messages.
fn message(obstacle: &Obstacle, dead: u64, now: Timestamp) -> String {
    let messages_of = |number| count(number, "message");
    match *obstacle {
        Obstacle::Paused => "the queue is paused: resume it".to_owned(),
        Obstacle::Empty if dead > 0 => format!(
            "the queue holds nothing but dead letters, {dead} of them, which are not delivered: redrive them"
        ),
        Obstacle::Empty => "the queue holds nothing that could be delivered, now or later".to_owned(),
        Obstacle::NoConsumer { ready } => {
            format!(
                "nobody asks for the {} that could be delivered: start a consumer",
                messages_of(ready)
            )
        }
        Obstacle::NoCredit { consumers, in_flight } => format!(
            "as much as the credit allows, {}, is with {}: settle some, raise the credit, or add consumers",
            messages_of(in_flight),
            count(consumers, "consumer")
        ),
        Obstacle::GroupsBusy { groups, messages } => format!(
            "in {}, {} must wait for others of the same group that are leased or wait for a retry: settle \
             those, or raise group_concurrency where order does not matter",
            count(groups, "group"),
            messages_of(messages)
        ),
        Obstacle::SingleActiveBusy { leases, until } => format!(
            "the next consumer waits for {} of the one before it: over {}",
            count(leases, "lease"),
            time_left(now, until)
        ),
        Obstacle::Delayed { messages, until } => format!(
            "not due yet: {}, the first of them {}",
            messages_of(messages),
            time_left(now, until)
        ),
        Obstacle::AllLeased { messages, until } => format!(
            "leased: all that could be delivered, {}; the first of these leases ends {}",
            messages_of(messages),
            time_left(now, until)
        ),
        Obstacle::DeadLetterBacklog { messages } => format!(
            "{} cannot go to its target, which is full, missing, or routes it nowhere: drain the target or raise \
             its limit, declare or bind it, or set another",
            count(messages, "dead letter")
        ),
        Obstacle::Full => {
            "a limit of the queue is reached, so publishes are refused: drain it, or raise the limit"
                .to_owned()
        }
    }
}

/// `1 message`, `2 messages`.
fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// How long until then, in the largest unit of which there are two.
fn time_left(now: Timestamp, until: Timestamp) -> String {
    const UNITS: [(u64, &str); 4] = [
        (24 * 60 * 60 * 1_000, "d"),
        (60 * 60 * 1_000, "h"),
        (60 * 1_000, "min"),
        (1_000, "s"),
    ];
    match until.0.saturating_sub(now.0) {
        0 => "now".to_owned(),
        left => {
            let unit = UNITS.into_iter().find(|(ms, _)| left >= 2 * ms);
            let (ms, unit) = unit.unwrap_or((1, "ms"));
            format!("in {} {unit}", left.div_ceil(ms))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_obstacle_is_told_with_its_numbers_and_when_it_ends() {
        let obstacle = Obstacle::Delayed {
            messages: 3,
            until: Timestamp(95_000),
        };
        let told = in_words(&obstacle, 0, Timestamp(5_000));
        assert_eq!(
            (told.kind.as_str(), told.messages, told.until_ms),
            ("delayed", 3, 95_000)
        );
        assert_eq!(told.message, "not due yet: 3 messages, the first of them in 90 s");
    }

    #[test]
    fn one_is_not_told_as_many() {
        let told = |obstacle: Obstacle| in_words(&obstacle, 0, Timestamp(0)).message;
        assert_eq!(
            told(Obstacle::NoConsumer { ready: 1 }),
            "nobody asks for the 1 message that could be delivered: start a consumer"
        );
        let backlog = told(Obstacle::DeadLetterBacklog { messages: 1 });
        assert!(backlog.starts_with("1 dead letter cannot go"), "{backlog}");
        assert!(backlog.contains("missing"), "{backlog}");
    }

    #[test]
    fn a_queue_of_dead_letters_only_is_not_told_to_be_empty() {
        let told = |dead| in_words(&Obstacle::Empty, dead, Timestamp(0)).message;
        assert!(told(2).contains("dead letters, 2 of them"), "{}", told(2));
        assert!(!told(0).contains("dead"), "{}", told(0));
    }

    #[test]
    fn time_left_has_a_unit_that_fits() {
        let left = |ms: u64| time_left(Timestamp(1_000), Timestamp(1_000 + ms));
        assert_eq!(time_left(Timestamp(7), Timestamp(3)), "now");
        let told: Vec<_> = [0, 1, 1_999, 2_000, 119_999, 120_000, 7_200_000, 172_800_000]
            .into_iter()
            .map(left)
            .collect();
        let expected = [
            "now",
            "in 1 ms",
            "in 1999 ms",
            "in 2 s",
            "in 120 s",
            "in 2 min",
            "in 2 h",
            "in 2 d",
        ];
        assert_eq!(told, expected);
    }
}
