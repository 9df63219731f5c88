//! Audit logs in short, for the tests of the checks.
//!
//! A line is an entry: cluster time, and then requests and events with ` / ` between them. What begins with a digit is an
//! event: a message, what happened to it, and fields; anything else is a request: its kind, and fields. Values are
//! JSON, or else texts. Indexes count from 1, and events are those of queue `q` with id 9 unless they say otherwise.

use serde_json::{Map, Value, json};

use super::{CHECKS, Looked};
use crate::audit::Audit;
use crate::history::History;
use crate::model::Replay;

type Decide = fn(&Replay<'_>, &History) -> Looked;

/// The log of a replica.
pub(crate) fn audit(log: &str) -> Audit {
    let lines = log.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut audit = Audit::default();
    for (index, line) in (1..).zip(lines) {
        let told = entry(index, line).to_string();
        audit.add("n", told.as_bytes()).expect("memory can be read");
        assert!(audit.entry(index).is_some(), "{told} is no entry");
    }
    audit
}

fn entry(index: u64, line: &str) -> Value {
    let (at_ms, parts) = line.split_once(' ').unwrap_or((line, ""));
    let at_ms: u64 = at_ms.parse().expect("a line begins with a time");
    let (mut requests, mut events) = (Vec::new(), Vec::new());
    for part in parts.split(" / ").filter(|part| !part.is_empty()) {
        let mut words = part.split(' ');
        let first = words.next().expect("a part has words");
        if first.starts_with(|first: char| first.is_ascii_digit()) {
            let change = words.next().expect("something happened to the message");
            let event = json!({"message": first, "change": change, "queue": "q", "queue_id": 9});
            events.push(with(event, words));
        } else {
            requests.push(with(json!({"kind": first}), words));
        }
    }
    json!({"entry": {"index": index, "term": 1, "at_ms": at_ms, "hash": "", "requests": requests, "events": events}})
}

fn with<'a>(object: Value, fields: impl Iterator<Item = &'a str>) -> Value {
    let Value::Object(mut object): Value = object else {
        return Value::Object(Map::new());
    };
    for field in fields {
        let (name, value) = field.split_once('=').expect("fields are NAME=VALUE");
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        object.insert(name.to_owned(), value);
    }
    Value::Object(object)
}

/// What a check comes to.
pub(super) fn looked(decide: Decide, log: &str, history: &History) -> Looked {
    decide(&Replay::of(&audit(log)), history)
}

/// No check finds anything in the log, and this one finds something to look at.
pub(super) fn accepts(decide: Decide, log: &str) {
    let history = History::default();
    for check in &CHECKS {
        let looked = looked(check.decide, log, &history);
        assert_eq!(looked.witnesses, [], "{}", check.name);
    }
    assert!(looked(decide, log, &history).checked > 0);
}

/// The check finds something in each log that comes out when a text of the good one is replaced.
pub(super) fn refuses(decide: Decide, good: &str, replacements: &[(&str, &str)]) {
    accepts(decide, good);
    for (from, to) in replacements {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from} is not in the log");
        let looked = looked(decide, &bad, &History::default());
        assert!(looked.violations > 0, "{from} => {to}");
        assert!(!looked.witnesses.is_empty(), "{from} => {to}");
    }
}

/// The check finds nothing in each log that comes out when a text is replaced.
pub(super) fn leaves_open(decide: Decide, good: &str, replacements: &[(&str, &str)]) {
    for (from, to) in replacements {
        let other = good.replacen(from, to, 1);
        assert_ne!(other, good, "{from} is not in the log");
        let looked = looked(decide, &other, &History::default());
        assert_eq!(looked.witnesses, [], "{from} => {to}");
    }
}
