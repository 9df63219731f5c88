//! How a message is shown: as a row of a list, or with all that is known of it.

use std::time::Duration;

use quorate_client::MessageInfo;

use crate::body::{escaped, escaped_line};
use crate::moment::{ago, ahead, moment_text, rough};
use crate::table::{Align, indented, pairs, table};
use crate::values::bytes;

/// One row for each message.
pub(crate) fn list_text(messages: &[MessageInfo], now_ms: u64) -> String {
    let columns = [
        ("MESSAGE", Align::Left),
        ("STATE", Align::Left),
        ("AGE", Align::Right),
        ("SIZE", Align::Right),
        ("PRIORITY", Align::Right),
        ("ATTEMPTS", Align::Right),
        ("ABOUT", Align::Left),
    ];
    let rows: Vec<_> = messages
        .iter()
        .map(|message| {
            let age = Duration::from_millis(now_ms.saturating_sub(message.published_at_ms));
            [
                message.message_id.clone(),
                message.state.to_string(),
                rough(age),
                bytes(message.content_bytes),
                message.priority.to_string(),
                message.attempts.to_string(),
                about_text(message, now_ms),
            ]
        })
        .collect();
    table(columns, &rows)
}

/// What its state means, and what sets it apart from others.
fn about_text(message: &MessageInfo, now_ms: u64) -> String {
    let mut parts = Vec::new();
    parts.extend(
        message
            .ready_at_ms
            .map(|at| format!("ready {}", ahead(at, now_ms))),
    );
    parts.extend(
        message
            .lease
            .map(|lease| format!("until {}", moment_text(lease.until_ms))),
    );
    if let Some(dead) = &message.dead {
        parts.push(dead.reason.clone());
        if dead.backlog {
            parts.push("waits for its dead-letter target".to_owned());
        }
    }
    if let Some(origin) = &message.dead_letter {
        parts.push(format!("{} in queue {}", origin.reason, origin.origin_queue));
    }
    parts.extend(
        message
            .last_error
            .as_ref()
            .map(|error| format!("\"{}\"", escaped_line(error))),
    );
    parts.extend(
        message
            .group
            .as_ref()
            .map(|group| format!("group={}", escaped_line(group))),
    );
    parts.extend(
        message
            .dedup_id
            .as_ref()
            .map(|id| format!("dedup-id={}", escaped_line(id))),
    );
    parts.join(", ")
}

/// All that is known of a message, one thing per line, then its body.
pub(crate) fn message_text(message: &MessageInfo, now_ms: u64) -> String {
    let mut lines = vec![
        ("message", message.message_id.clone()),
        ("queue", message.queue.clone()),
        ("state", state_text(message, now_ms)),
        ("published", at(message.published_at_ms, now_ms)),
    ];
    let mut add = |name, value: Option<String>| lines.extend(value.map(|value| (name, value)));
    let told = |text: &Option<String>| text.as_ref().map(|text| escaped_line(text));
    add("expires", message.expires_at_ms.map(moment_text));
    add("exchange", told(&message.exchange));
    add("routing key", told(&message.routing_key));
    add("priority", Some(message.priority.to_string()));
    add("group", told(&message.group));
    add("dedup id", told(&message.dedup_id));
    add("attempts", Some(message.attempts.to_string()));
    add("leases", Some(message.grants.to_string()));
    add("first error", told(&message.first_error));
    add("last error", told(&message.last_error));
    if let Some(origin) = &message.dead_letter {
        add(
            "came from",
            Some(format!(
                "queue {}, {}",
                origin.origin_queue,
                at(origin.at_ms, now_ms)
            )),
        );
        add(
            "as",
            Some(format!("{} after {} attempts", origin.reason, origin.attempts)),
        );
        add("first error there", told(&origin.first_error));
        add("last error there", told(&origin.last_error));
    }
    add(
        "set free by redrive",
        message.redrive.map(|redrive| redrive.to_string()),
    );
    add("size", Some(bytes(message.content_bytes)));
    for (name, value) in &message.headers {
        let header = format!("{name}={value}");
        add("header", Some(escaped_line(&header)));
    }
    let body = message.body.as_ref().map(|body| indented(&escaped(body)));
    pairs(&lines) + &body.unwrap_or_default()
}

fn state_text(message: &MessageInfo, now_ms: u64) -> String {
    let state = message.state;
    if let Some(ready_at) = message.ready_at_ms {
        return format!(
            "{state}, ready {} at {}",
            ahead(ready_at, now_ms),
            moment_text(ready_at)
        );
    }
    if let Some(lease) = &message.lease {
        let holder = match (lease.session, lease.consumer, lease.node_id) {
            (Some(session), Some(consumer), Some(node)) => {
                format!("by consumer {consumer} of session {session} at node {node}")
            }
            _ => "by a lease that was pulled".to_owned(),
        };
        return format!("{state} until {} {holder}", moment_text(lease.until_ms));
    }
    match &message.dead {
        Some(dead) if dead.backlog => format!(
            "{state} since {}: {}, waits for its dead-letter target",
            moment_text(dead.since_ms),
            dead.reason
        ),
        Some(dead) => format!("{state} since {}: {}", moment_text(dead.since_ms), dead.reason),
        None => state.to_string(),
    }
}

fn at(ms: u64, now_ms: u64) -> String {
    format!("{}, {}", moment_text(ms), ago(ms, now_ms))
}

#[cfg(test)]
pub(crate) mod tests {
    use quorate_client::{DeadInfo, DeadLetterInfo, LeaseInfo, MessageState};

    use crate::json;

    use super::*;

    pub(crate) fn message(state: MessageState) -> MessageInfo {
        MessageInfo {
            message_id: "17-0".to_owned(),
            queue: "jobs".to_owned(),
            position: 5,
            state,
            ready_at_ms: None,
            lease: None,
            priority: 0,
            group: None,
            dedup_id: None,
            attempts: 0,
            grants: 0,
            published_at_ms: 1_000,
            expires_at_ms: None,
            content_bytes: 12,
            first_error: None,
            last_error: None,
            dead: None,
            dead_letter: None,
            redrive: None,
            body: None,
            headers: Default::default(),
            exchange: None,
            routing_key: None,
        }
    }

    fn every_state() -> Vec<MessageInfo> {
        let delayed = MessageInfo {
            ready_at_ms: Some(121_000),
            dedup_id: Some("order-9".to_owned()),
            ..message(MessageState::Delayed)
        };
        let leased = MessageInfo {
            lease: Some(LeaseInfo {
                session: Some(7),
                consumer: Some(1),
                node_id: Some(3),
                since_ms: 60_000,
                until_ms: 90_000,
                fence: 4,
            }),
            group: Some("tenant-a".to_owned()),
            ..message(MessageState::Leased)
        };
        let dead = MessageInfo {
            attempts: 5,
            last_error: Some("no\nsuch picture".to_owned()),
            dead: Some(DeadInfo {
                reason: "max-deliveries".to_owned(),
                since_ms: 2_000,
                backlog: true,
            }),
            ..message(MessageState::Dead)
        };
        vec![message(MessageState::Ready), delayed, leased, dead]
    }

    #[test]
    fn messages_are_listed_with_what_matters_in_their_state() {
        let expected = "\
MESSAGE  STATE    AGE  SIZE  PRIORITY  ATTEMPTS  ABOUT
17-0     ready     1m  12 B         0         0
17-0     delayed   1m  12 B         0         0  ready in 1m, dedup-id=order-9
17-0     leased    1m  12 B         0         0  until 1970-01-01T00:01:30.000Z, group=tenant-a
17-0     dead      1m  12 B         0         5  max-deliveries, waits for its dead-letter target, \"no\\nsuch picture\"
";
        assert_eq!(list_text(&every_state(), 61_000), expected);
    }

    #[test]
    fn a_message_is_shown_with_its_past_and_its_body() {
        let message = MessageInfo {
            dead_letter: Some(DeadLetterInfo {
                origin_queue: "jobs".to_owned(),
                reason: "rejected".to_owned(),
                attempts: 2,
                first_error: None,
                last_error: Some("too \x1b[31mred\nheader x=y".to_owned()),
                at_ms: 1_500,
            }),
            body: Some("resize 17.png\nnow".into()),
            headers: [("trace".to_owned(), "a1b2".to_owned())].into(),
            exchange: Some("orders".to_owned()),
            routing_key: Some("eu.paid".to_owned()),
            ..message(MessageState::Ready)
        };
        let expected = "\
message           17-0
queue             jobs
state             ready
published         1970-01-01T00:00:01.000Z, 1s ago
exchange          orders
routing key       eu.paid
priority          0
attempts          0
leases            0
came from         queue jobs, 1970-01-01T00:00:01.500Z, 500ms ago
as                rejected after 2 attempts
last error there  too \\u{1b}[31mred\\nheader x=y
size              12 B
header            trace=a1b2
  resize 17.png
  now
";
        assert_eq!(message_text(&message, 2_000), expected);
    }

    #[test]
    fn a_state_says_who_and_until_when() {
        let states: Vec<_> = every_state()
            .iter()
            .map(|message| state_text(message, 61_000))
            .collect();
        let expected = [
            "ready",
            "delayed, ready in 1m at 1970-01-01T00:02:01.000Z",
            "leased until 1970-01-01T00:01:30.000Z by consumer 1 of session 7 at node 3",
            "dead since 1970-01-01T00:00:02.000Z: max-deliveries, waits for its dead-letter target",
        ];
        assert_eq!(states, expected);
    }

    #[test]
    fn a_message_in_json_has_content_if_it_was_asked_for() {
        let [ready, .., dead] = &every_state()[..] else {
            unreachable!("there are four")
        };
        let value = json::message(dead);
        assert_eq!(
            (&value["state"], &value["dead"]["backlog"]),
            (&"dead".into(), &true.into())
        );
        assert!(
            value.get("body").is_none() && value.get("headers").is_none(),
            "{value}"
        );
        let full = MessageInfo {
            body: Some(b"\xff".as_slice().into()),
            ..ready.clone()
        };
        assert_eq!(json::message(&full)["body_base64"], "/w==");
    }
}
