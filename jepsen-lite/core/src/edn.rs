//! A run as Jepsen writes histories down: `history.edn`, for its checkers, Knossos and Elle.
//!
//! One operation map a line, `{:index :time :process :type :f :value}`, times in nanoseconds since the start. Each
//! operation is one `:invoke` and one completion: `:ok` if it was done, `:fail` if it was certainly not, `:info` if
//! nobody knows. What the faults and the harness did is of the process `:nemesis`.
//!
//! A process of theirs has one operation at a time, and none after one of unknown outcome. One of ours may have
//! several. So the numbers here are others: as many for one of our processes as it needs.
//!
//! A delivery that was pushed has been asked for by nobody; it is invoked and done in one moment, as `:deliver`.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value};

use crate::cluster::Done;
use crate::history::Record;
use crate::run::Run;

/// What is known when an operation is over, and not when it is asked for.
const ANSWERS: [&str; 6] = [
    "place",
    "outcome",
    "duplicate",
    "leased_until_ms",
    "read_index",
    "view",
];

/// Writes the history of a run, with what the faults did.
///
/// # Errors
///
/// When it cannot be written.
pub fn write(run: &Run, to: &mut impl Write) -> Result<()> {
    let mut events = of_the_nemesis(run);
    events.extend(of_clients(run)?);
    events.sort_by_key(|event| (event.at, event.rank));
    let lines = events.into_iter().flat_map(|event| event.lines);
    for (index, line) in lines.enumerate() {
        let Line {
            at,
            process,
            kind,
            f,
            value,
            error,
        } = line;
        let head = format!(
            "{{:index {index}, :time {}, :process {process}, :type :{kind}",
            at.as_nanos()
        );
        let error = error.map_or(String::new(), |error| format!(", :error {}", edn(&error)));
        writeln!(to, "{head}, :f :{f}, :value {}{error}}}", edn(&value)).context("write an operation")?;
    }
    Ok(())
}

/// Lines of one moment that belong together.
struct Event {
    at: Duration,
    rank: Rank,
    lines: Vec<Line>,
}

/// At one moment, what ends comes before what begins, so that a process has one operation at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Ends,
    BeginsAndEnds,
    Begins,
}

struct Line {
    at: Duration,
    process: String,
    kind: &'static str,
    f: String,
    value: Value,
    error: Option<Value>,
}

/// An operation of a client.
struct Operation {
    invoked: Duration,
    answered: Duration,
    process: u32,
    kind: &'static str,
    f: String,
    asked: Map<String, Value>,
    told: Map<String, Value>,
    error: Option<Value>,
}

/// Numbers for one of our processes: who is free since when, and never again after an unknown outcome.
#[derive(Default)]
struct Lanes(Vec<(u64, Option<Duration>)>);

fn of_clients(run: &Run) -> Result<Vec<Event>> {
    let records = run.history.records();
    let mut operations = Vec::new();
    for record in &records {
        operations.extend(operation(record)?);
    }
    operations.sort_by_key(|one| (one.invoked, one.invoked != one.answered));
    let mut lanes: BTreeMap<u32, Lanes> = BTreeMap::new();
    let mut count = 0;
    let mut events = Vec::new();
    for one in operations {
        let process = lanes.entry(one.process).or_default().take(&one, &mut count);
        events.extend(one.events(process));
    }
    Ok(events)
}

impl Lanes {
    /// A number for an operation. `count` are in use so far.
    fn take(&mut self, one: &Operation, count: &mut u64) -> u64 {
        let free_at = (one.kind != "info").then_some(one.answered);
        let is_free = |lane: &&mut (u64, Option<Duration>)| lane.1.is_some_and(|since| since <= one.invoked);
        if let Some(lane) = self.0.iter_mut().find(is_free) {
            lane.1 = free_at;
            return lane.0;
        }
        let number = *count;
        *count += 1;
        self.0.push((number, free_at));
        number
    }
}

impl Operation {
    fn events(self, process: u64) -> Vec<Event> {
        let process = process.to_string();
        let mut value = self.asked.clone();
        value.extend(self.told);
        let begin = Line {
            at: self.invoked,
            process: process.clone(),
            kind: "invoke",
            f: self.f.clone(),
            value: Value::Object(self.asked),
            error: None,
        };
        let end = Line {
            at: self.answered,
            process,
            kind: self.kind,
            f: self.f,
            value: Value::Object(value),
            error: self.error,
        };
        let event = |at, rank, lines| Event { at, rank, lines };
        if self.invoked == self.answered {
            return vec![event(self.invoked, Rank::BeginsAndEnds, vec![begin, end])];
        }
        vec![
            event(self.invoked, Rank::Begins, vec![begin]),
            event(self.answered, Rank::Ends, vec![end]),
        ]
    }
}

/// What a client did, if the record is of that.
fn operation(record: &Record) -> Result<Option<Operation>> {
    let (f, invoked, process) = match record {
        Record::Publish(one) => ("publish".to_owned(), one.invoked, one.process),
        Record::Delivery(one) => ("deliver".to_owned(), one.received, one.process),
        Record::Settle(one) => (name(&one.wish)?, one.invoked, one.process),
        Record::Receive(one) => ("receive".to_owned(), one.invoked, one.process),
        Record::Read(one) => ("read".to_owned(), one.invoked, one.process),
        Record::Operation(one) => (name(&one.act)?, one.invoked, one.process),
        Record::Write(one) => ("write".to_owned(), one.at, one.process),
        Record::Kill(_) | Record::Mark(_) => return Ok(None),
    };
    let Value::Object(mut asked) = serde_json::to_value(record).context("lay out a record")? else {
        return Ok(None);
    };
    for told_elsewhere in [
        "f", "process", "invoked", "answered", "received", "at", "wish", "act",
    ] {
        asked.remove(told_elsewhere);
    }
    let mut told = Map::new();
    for name in ANSWERS {
        if let Some(value) = asked.remove(name) {
            told.insert(name.to_owned(), value);
        }
    }
    let (mut kind, mut error) = ("ok", None);
    match told.remove("outcome") {
        Some(Value::Object(mut outcome)) => {
            if let Some(reason) = outcome.remove("refused") {
                (kind, error) = ("fail", Some(reason));
            } else if let Some(result) = outcome.remove("done") {
                told.insert("result".to_owned(), result);
            }
        }
        Some(_) => (kind, error) = ("info", Some(Value::from("unknown"))),
        None => {}
    }
    if matches!(record, Record::Write(write) if !write.taken) {
        kind = "fail";
    }
    if matches!(record, Record::Delivery(_)) {
        told.append(&mut asked);
        let queue = told.remove("queue").unwrap_or_default();
        asked.insert("queue".to_owned(), queue);
    }
    Ok(Some(Operation {
        invoked,
        answered: record.at(),
        process,
        kind,
        f,
        asked,
        told,
        error,
    }))
}

/// The name of a variant, as it is written in JSON.
fn name(of: &impl serde::Serialize) -> Result<String> {
    Ok(match serde_json::to_value(of).context("lay out a record")? {
        Value::String(name) => name,
        Value::Object(map) => map.keys().next().cloned().unwrap_or_default(),
        other => other.to_string(),
    })
}

/// Faults, what the harness did, and workers that were killed.
fn of_the_nemesis(run: &Run) -> Vec<Event> {
    let line = |at, f: String, value| Event {
        at,
        rank: Rank::BeginsAndEnds,
        lines: vec![Line {
            at,
            process: ":nemesis".to_owned(),
            kind: "info",
            f,
            value,
            error: None,
        }],
    };
    let mut events = Vec::new();
    for effect in run.effects.iter().filter(|effect| effect.state == Done::Yes) {
        let name = effect.fault.name();
        let begin = Duration::from_millis(effect.from_ms);
        events.push(line(
            begin,
            format!("start-{name}"),
            Value::from(effect.nodes.clone()),
        ));
        if let Some(until_ms) = effect.until_ms {
            let counters = effect
                .counters
                .iter()
                .map(|(name, count)| (name.clone(), Value::from(*count)));
            let end = Duration::from_millis(until_ms);
            events.push(line(
                end,
                format!("stop-{name}"),
                Value::Object(counters.collect()),
            ));
        }
    }
    let marks = run.history.marks.iter();
    events.extend(marks.map(|mark| line(mark.at, mark.name.clone(), Value::from(mark.detail.clone()))));
    let kills = run.history.kills.iter();
    events.extend(kills.map(|kill| line(kill.at, "kill-worker".to_owned(), Value::from(kill.process))));
    events
}

/// A value as EDN: keys become keywords.
fn edn(value: &Value) -> String {
    match value {
        Value::Null => "nil".to_owned(),
        // JSON and EDN write these alike.
        Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
        Value::Array(values) => format!("[{}]", values.iter().map(edn).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let entries = map
                .iter()
                .map(|(key, value)| format!("{} {}", keyword(key), edn(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
    }
}

/// A keyword, or a text where the name is not of its letters.
fn keyword(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(fits) {
        format!(":{}", name.replace('_', "-"))
    } else {
        Value::from(name).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::Audit;
    use crate::cluster::Effect;
    use crate::history::{Delivery, History, Mark, MessageId, Outcome, Publish, Settle, Wish};
    use crate::run::Facts;
    use crate::schedule::{Evidence, Fault, Schedule, Workload};

    fn run(history: History, effects: Vec<Effect>) -> Run {
        Run {
            schedule: Schedule {
                name: "none".to_owned(),
                about: String::new(),
                seed: 1,
                nodes: 3,
                load_ms: 1,
                heal_ms: 1,
                workload: Workload {
                    name: "queue".to_owned(),
                    parameters: BTreeMap::new(),
                },
                settings: BTreeMap::new(),
                steps: Vec::new(),
                evidence: Evidence::default(),
            },
            history,
            audit: Audit::default(),
            effects,
            facts: Facts::default(),
            sights: Vec::new(),
        }
    }

    fn publish(process: u32, invoked: u64, answered: u64, outcome: Outcome<MessageId>) -> Publish {
        Publish {
            process,
            invoked: Duration::from_nanos(invoked),
            answered: Duration::from_nanos(answered),
            key: invoked,
            queue: "q".to_owned(),
            outcome,
            ..Publish::default()
        }
    }

    fn text(run: &Run) -> String {
        let mut text = Vec::new();
        write(run, &mut text).expect("memory takes everything");
        String::from_utf8(text).expect("it is text")
    }

    #[test]
    fn every_operation_is_an_invocation_and_a_completion() {
        let mut history = History::default();
        let message = MessageId { index: 7, number: 0 };
        history.publishes.push(publish(1, 10, 20, Outcome::Done(message)));
        history.publishes.push(publish(
            1,
            30,
            40,
            Outcome::Refused(Some("QUEUE_FULL".to_owned())),
        ));
        history.deliveries.push(Delivery {
            process: 2,
            received: Duration::from_nanos(25),
            queue: "q".to_owned(),
            message,
            key: Some(10),
            token: "a\"b".to_owned(),
            ..Delivery::default()
        });
        history.settles.push(Settle {
            process: 2,
            invoked: Duration::from_nanos(25),
            answered: Duration::from_nanos(50),
            token: "t".to_owned(),
            wish: Wish::DeadLetter,
            ..Settle::default()
        });
        history.marks.push(Mark {
            at: Duration::from_nanos(60),
            name: "heal".to_owned(),
            ..Mark::default()
        });
        let effects = vec![Effect {
            from_ms: 0,
            until_ms: Some(1),
            fault: Fault::SlowCpu { percent: 5 },
            nodes: vec![0, 2],
            state: Done::Yes,
            counters: BTreeMap::from([("slowed_ms".to_owned(), 3)]),
        }];
        let lines = [
            r#"{:index 0, :time 0, :process :nemesis, :type :info, :f :start-slow-cpu, :value [0 2]}"#,
            r#"{:index 1, :time 10, :process 0, :type :invoke, :f :publish, :value {:key 10, :queue "q"}}"#,
            r#"{:index 2, :time 20, :process 0, :type :ok, :f :publish, :value {:key 10, :queue "q", :result "7-0"}}"#,
            r#"{:index 3, :time 25, :process 1, :type :invoke, :f :deliver, :value {:queue "q"}}"#,
            r#"{:index 4, :time 25, :process 1, :type :ok, :f :deliver, :value {:attempt 0, :ends-by-time false, :fence 0, :key 10, :lease-ms 0, :leased-until-ms 0, :message "7-0", :published-at-ms 0, :queue "q", :token "a\"b"}}"#,
            r#"{:index 5, :time 25, :process 1, :type :invoke, :f :dead-letter, :value {:token "t"}}"#,
            r#"{:index 6, :time 30, :process 0, :type :invoke, :f :publish, :value {:key 30, :queue "q"}}"#,
            r#"{:index 7, :time 40, :process 0, :type :fail, :f :publish, :value {:key 30, :queue "q"}, :error "QUEUE_FULL"}"#,
            r#"{:index 8, :time 50, :process 1, :type :info, :f :dead-letter, :value {:token "t"}, :error "unknown"}"#,
            r#"{:index 9, :time 60, :process :nemesis, :type :info, :f :heal, :value ""}"#,
            r#"{:index 10, :time 1000000, :process :nemesis, :type :info, :f :stop-slow-cpu, :value {:slowed-ms 3}}"#,
        ];
        let text = text(&run(history, effects));
        assert_eq!(text.lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn a_process_has_one_operation_at_a_time_and_none_after_an_unknown_one() {
        let done = |number| {
            Outcome::Done(MessageId {
                index: number,
                number: 0,
            })
        };
        let mut history = History::default();
        for one in [
            publish(5, 10, 30, done(1)),
            // Overlaps the first.
            publish(5, 20, 40, Outcome::Unknown),
            // Begins as the first ends, and so can have its number; the second's nobody has again.
            publish(5, 30, 35, done(2)),
            publish(5, 50, 60, done(3)),
            publish(6, 50, 60, done(4)),
        ] {
            history.publishes.push(one);
        }
        let text = text(&run(history, Vec::new()));
        let told: Vec<(&str, &str)> = text
            .lines()
            .filter_map(|line| {
                let (_, rest) = line.split_once(":time ")?;
                let (time, rest) = rest.split_once(", :process ")?;
                Some((time, rest.split_once(", :f")?.0))
            })
            .collect();
        assert_eq!(
            told,
            [
                ("10", "0, :type :invoke"),
                ("20", "1, :type :invoke"),
                ("30", "0, :type :ok"),
                ("30", "0, :type :invoke"),
                ("35", "0, :type :ok"),
                ("40", "1, :type :info"),
                ("50", "0, :type :invoke"),
                ("50", "2, :type :invoke"),
                ("60", "0, :type :ok"),
                ("60", "2, :type :ok"),
            ]
        );
    }

    #[test]
    fn names_that_are_no_keywords_are_texts() {
        let value = serde_json::json!({ "lease_ms": null, "a b": [true, -1], "7": {} });
        assert_eq!(edn(&value), r#"{"7" {}, "a b" [true -1], :lease-ms nil}"#);
    }
}
