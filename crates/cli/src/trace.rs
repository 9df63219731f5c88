//! `quorate trace`: where is my message?

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{ArgGroup, Args};
use quorate_client::{Trace, TraceEvent, Traced, TracedNode};

use crate::body::escaped_line;
use crate::cluster::silence_text;
use crate::exit::Failure;
use crate::json;
use crate::moment::{moment_text, rough};
use crate::options::{Context, Options};
use crate::table::{Align, indented, table};
use crate::values::header;

/// Arguments of `trace`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("which").required(true).args(["message_id", "dedup_id", "header"]),
    after_help = "Examples:\n  quorate trace 17-0\n  quorate trace --dedup-id order-9\n  quorate trace --header order=9"
)]
pub struct TraceArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    /// The message
    message_id: Option<String>,
    /// Every message that was published with this dedup id
    #[arg(long)]
    dedup_id: Option<String>,
    /// Every message that is in a queue now and has this header
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Option<(String, String)>,
}

pub(crate) async fn run(args: TraceArgs, context: &Context) -> Result<(), Failure> {
    let (traced, name) = args.traced();
    let trace = context.client.trace(traced).await?;
    if trace.events.is_empty() {
        return Err(nothing(&trace, &name));
    }
    context.output.show(|| json::trace(&trace), || trace_text(&trace))
}

impl TraceArgs {
    /// What to trace, and how a person calls it.
    fn traced(self) -> (Traced, String) {
        if let Some(dedup_id) = self.dedup_id {
            let name = format!("a message with dedup id {dedup_id}");
            return (Traced::DedupId(dedup_id), name);
        }
        if let Some((name, value)) = self.header {
            let told = format!("a message with header {name}={value} that is in a queue");
            return (Traced::Header { name, value }, told);
        }
        let message_id = self.message_id.unwrap_or_default();
        let name = format!("message {message_id}");
        (Traced::MessageId(message_id), name)
    }
}

/// No journal has anything of it.
fn nothing(trace: &Trace, name: &str) -> Failure {
    let reach = match earliest(trace) {
        Some(node) => format!("; the journals begin at {}", begin_text(node)),
        None => "; no node keeps one".to_owned(),
    };
    let silent = match trace.failed.is_empty() {
        true => "",
        false => " Nodes that did not answer may know more: see `quorate cluster status`.",
    };
    Failure::NotFound {
        message: format!("no journal knows of {name}{reach}"),
        advice: format!("What is in a queue is shown by `quorate browse QUEUE`.{silent}"),
    }
}

/// The node whose journal reaches back the furthest.
fn earliest(trace: &Trace) -> Option<&TracedNode> {
    let with_journal = trace.nodes.iter().filter(|node| node.begins_at_index > 0);
    with_journal.min_by_key(|node| node.begins_at_index)
}

/// Where a journal begins. The first entries of a cluster have no time yet.
fn begin_text(node: &TracedNode) -> String {
    match node.begins_at_ms {
        0 => format!("log index {}", node.begins_at_index),
        ms => format!("log index {} ({})", node.begins_at_index, moment_text(ms)),
    }
}

/// One timeline per message, the earliest first, and how far they can be
/// trusted to be whole.
fn trace_text(trace: &Trace) -> String {
    let mut timelines: BTreeMap<(u64, &str), Vec<&TraceEvent>> = BTreeMap::new();
    let mut begins: BTreeMap<&str, u64> = BTreeMap::new();
    for event in &trace.events {
        let begin = *begins.entry(&event.message_id).or_insert(event.log_index);
        timelines
            .entry((begin, &event.message_id))
            .or_default()
            .push(event);
    }
    let known = trace.nodes.iter();
    let addresses: Addresses<'_> = known.map(|node| (node.node_id, node.address.as_str())).collect();
    let mut text = String::new();
    for ((_, message_id), events) in &timelines {
        text.push_str(&format!("message {message_id}\n"));
        text.push_str(&indented(&timeline_text(events, &addresses)));
        text.push('\n');
    }
    text.push_str(&reach_text(trace));
    text
}

/// Client addresses of the nodes that answered, by node id.
type Addresses<'a> = BTreeMap<u64, &'a str>;

fn timeline_text(events: &[&TraceEvent], addresses: &Addresses<'_>) -> String {
    let columns = [
        ("TIME", Align::Left),
        ("AFTER", Align::Right),
        ("INDEX", Align::Right),
        ("WHAT", Align::Left),
        ("QUEUE", Align::Left),
        ("ATTEMPT", Align::Right),
        ("ABOUT", Align::Left),
    ];
    let mut before = None;
    let rows: Vec<_> = events
        .iter()
        .map(|event| {
            let after = before.map(|before| event.at_ms.saturating_sub(before));
            before = Some(event.at_ms);
            [
                moment_text(event.at_ms),
                after.map_or_else(String::new, |ms| format!("+{}", rough(Duration::from_millis(ms)))),
                event.log_index.to_string(),
                event.change.clone(),
                event.queue.clone(),
                event
                    .attempt
                    .map_or_else(String::new, |attempt| attempt.to_string()),
                about_text(event, addresses),
            ]
        })
        .collect();
    table(columns, &rows)
}

/// Who, why, where to and until when.
fn about_text(event: &TraceEvent, addresses: &Addresses<'_>) -> String {
    let mut parts = Vec::new();
    match (event.session, event.client) {
        (Some(session), _) => parts.push(format!(
            "by {} of session {session} at node {}",
            consumer_text(event),
            node_text(event.node_id.unwrap_or(0), addresses)
        )),
        (None, Some(client)) => parts.push(format!("pulled by client {client}")),
        (None, None) => {}
    }
    parts.extend(event.took_ms.map(|ms| match event.change.as_str() {
        "acked" => format!("{} after the lease began", rough(Duration::from_millis(ms))),
        _ => format!("{} after the publish", rough(Duration::from_millis(ms))),
    }));
    parts.extend(
        event
            .exchange
            .as_ref()
            .map(|exchange| format!("exchange {exchange}")),
    );
    parts.extend(
        event
            .dedup_id
            .as_ref()
            .map(|id| format!("dedup-id={}", escaped_line(id))),
    );
    parts.extend(event.reason.as_ref().map(|reason| escaped_line(reason)));
    parts.extend(
        event
            .error
            .as_ref()
            .map(|error| format!("\"{}\"", escaped_line(error))),
    );
    if !event.queues.is_empty() {
        let direction = if event.change == "arrived" { "from" } else { "to" };
        parts.push(format!("{direction} {}", event.queues.join(", ")));
    }
    parts.extend(event.until_ms.map(|until| match event.change.as_str() {
        "leased" | "extended" => format!("until {}", moment_text(until)),
        _ => format!("ready from {}", moment_text(until)),
    }));
    parts.join(", ")
}

/// A node by its address, or by its id if it did not answer.
fn node_text(node_id: u64, addresses: &Addresses<'_>) -> String {
    let address = addresses.get(&node_id).filter(|address| !address.is_empty());
    address.map_or_else(|| node_id.to_string(), ToString::to_string)
}

fn consumer_text(event: &TraceEvent) -> String {
    let number = event.consumer.unwrap_or(0);
    match &event.consumer_name {
        Some(name) => format!("consumer {number} ({})", escaped_line(name)),
        None => format!("consumer {number}"),
    }
}

/// How far the journals reach, and what is missing in them.
fn reach_text(trace: &Trace) -> String {
    let mut text = String::new();
    let from = earliest(trace);
    let to = trace.nodes.iter().map(|node| node.read_index).max();
    if let (Some(from), Some(to)) = (from, to) {
        text.push_str(&format!(
            "as far as journals reach: {} to {to}\n",
            begin_text(from)
        ));
    }
    for gap in &trace.gaps {
        text.push_str(&format!(
            "gap: no journal has log index {} to {}, and what happened there is not shown\n",
            gap.from, gap.to
        ));
    }
    if trace.truncated {
        text.push_str("there is more than is shown: trace one message by its id\n");
    }
    for (address, error) in &trace.failed {
        text.push_str(&format!("{}\n", silence_text(address, error)));
    }
    text
}

#[cfg(test)]
mod tests {
    use quorate_client::{Error, JournalGap, Sought};

    use super::*;

    fn event(message_id: &str, log_index: u64, at_ms: u64, change: &str) -> TraceEvent {
        TraceEvent {
            message_id: message_id.to_owned(),
            log_index,
            at_ms,
            queue: "jobs".to_owned(),
            change: change.to_owned(),
            ..Default::default()
        }
    }

    fn node(begins_at_index: u64) -> TracedNode {
        TracedNode {
            address: "h:1".to_owned(),
            node_id: 3,
            begins_at_index,
            begins_at_ms: 100,
            read_index: 120,
        }
    }

    fn trace() -> Trace {
        let events = vec![
            TraceEvent {
                exchange: Some("orders".to_owned()),
                dedup_id: Some("order-9".to_owned()),
                ..event("100-0", 100, 1_000, "published")
            },
            TraceEvent {
                attempt: Some(1),
                session: Some(7),
                consumer: Some(1),
                node_id: Some(3),
                consumer_name: Some("worker".to_owned()),
                took_ms: Some(250),
                until_ms: Some(31_000),
                ..event("100-0", 101, 1_250, "leased")
            },
            TraceEvent {
                error: Some("no\nsuch picture".to_owned()),
                until_ms: Some(4_000),
                ..event("100-0", 102, 4_000, "nacked")
            },
            TraceEvent {
                reason: Some("max-deliveries".to_owned()),
                error: Some("no\nsuch picture".to_owned()),
                queues: vec!["failed".to_owned()],
                ..event("100-0", 102, 4_000, "dead-lettered")
            },
            TraceEvent {
                queue: "failed".to_owned(),
                queues: vec!["jobs".to_owned()],
                ..event("100-0", 102, 4_000, "arrived")
            },
            TraceEvent {
                client: Some(5),
                attempt: Some(2),
                ..event("99-0", 99, 500, "leased")
            },
        ];
        Trace {
            events,
            gaps: vec![JournalGap { from: 40, to: 50 }],
            truncated: true,
            nodes: vec![node(0), node(17)],
            failed: vec![(
                "h:2".to_owned(),
                Error::Unreachable {
                    who: Sought::Node("h:2".to_owned()),
                    cause: "connection refused".to_owned(),
                    request_id: None,
                },
            )],
        }
    }

    #[test]
    fn a_trace_is_a_timeline_for_each_message() {
        let expected = "\
message 99-0
  TIME                      AFTER  INDEX  WHAT    QUEUE  ATTEMPT  ABOUT
  1970-01-01T00:00:00.500Z            99  leased  jobs         2  pulled by client 5

message 100-0
  TIME                          AFTER  INDEX  WHAT           QUEUE   ATTEMPT  ABOUT
  1970-01-01T00:00:01.000Z               100  published      jobs             exchange orders, dedup-id=order-9
  1970-01-01T00:00:01.250Z     +250ms    101  leased         jobs          1  by consumer 1 (worker) of session 7 at node h:1, 250ms after the publish, until 1970-01-01T00:00:31.000Z
  1970-01-01T00:00:04.000Z  +2s 750ms    102  nacked         jobs             \"no\\nsuch picture\", ready from 1970-01-01T00:00:04.000Z
  1970-01-01T00:00:04.000Z        +0s    102  dead-lettered  jobs             max-deliveries, \"no\\nsuch picture\", to failed
  1970-01-01T00:00:04.000Z        +0s    102  arrived        failed           from jobs

as far as journals reach: log index 17 (1970-01-01T00:00:00.100Z) to 120
gap: no journal has log index 40 to 50, and what happened there is not shown
there is more than is shown: trace one message by its id
h:2 does not answer: connection refused
";
        assert_eq!(trace_text(&trace()), expected);
    }

    #[test]
    fn a_node_that_did_not_answer_is_named_by_its_id() {
        let addresses = Addresses::from([(3, "h:1")]);
        assert_eq!(
            (node_text(3, &addresses), node_text(4, &addresses)),
            ("h:1".to_owned(), "4".to_owned())
        );
    }

    #[test]
    fn a_trace_in_json_has_every_fact() {
        let value = json::trace(&trace());
        assert_eq!(
            value["events"][1]["session"], "7",
            "it has more digits than JSON keeps"
        );
        assert_eq!(value["events"][3]["queues"][0], "failed");
        assert_eq!(value["gaps"][0]["from"], 40);
        assert_eq!(value["nodes"][1]["begins_at_index"], 17);
        assert_eq!(value["failed"][0]["address"], "h:2");
    }

    #[test]
    fn what_no_journal_knows_is_said_with_how_far_they_reach() {
        let failure = nothing(&trace(), "message 1-0");
        let Failure::NotFound { message, advice } = failure else {
            panic!("{failure:?}")
        };
        assert_eq!(
            message,
            "no journal knows of message 1-0; the journals begin at log index 17 (1970-01-01T00:00:00.100Z)"
        );
        assert!(advice.contains("did not answer"), "{advice}");

        let whole = TracedNode {
            begins_at_ms: 0,
            ..node(1)
        };
        assert_eq!(begin_text(&whole), "log index 1");

        let failure = nothing(&Trace::default(), "message 1-0");
        let Failure::NotFound { message, .. } = failure else {
            panic!("{failure:?}")
        };
        assert_eq!(message, "no journal knows of message 1-0; no node keeps one");
    }
}
