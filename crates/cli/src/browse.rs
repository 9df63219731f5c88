//! `quorate browse` and `quorate schedule`: looking at messages without touching
//! them.

use std::time::Duration;

use clap::{Args, Subcommand};
use quorate_client::{Browse, GetMessage, MessageFilter, MessageInfo, MessageState};

use crate::body::escaped;
use crate::exit::{Failure, quoted};
use crate::filter::FilterArgs;
use crate::json;
use crate::moment::{ago, ahead, moment_text, now_ms, rough};
use crate::options::{Context, Options};
use crate::table::{Align, indented, pairs, table};
use crate::values::{bytes, messages, state};

/// Arguments of `browse`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  quorate browse jobs --state dead --older-than 5m\n  \
    quorate browse jobs --header tenant=acme --body"
)]
pub struct BrowseArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Queue to look at
    queue: String,
    /// In these states: ready, delayed, leased, dead [default: all]
    #[arg(long, value_name = "STATE,…", value_delimiter = ',', value_parser = state(&["ready", "delayed", "leased", "dead"]),
        hide_possible_values = true, help_heading = "Which messages")]
    state: Vec<MessageState>,
    /// Show headers and body too
    #[arg(long)]
    body: bool,
    #[command(flatten)]
    view: ViewArgs,
    #[command(flatten)]
    part: PartArgs<100>,
    #[command(flatten)]
    filter: FilterArgs,
    /// Set free by the redrive of this number
    #[arg(long, value_name = "REDRIVE")]
    redrive: Option<u64>,
}

/// Arguments of `schedule`.
#[derive(Debug, Args)]
pub struct ScheduleArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    #[command(subcommand)]
    command: ScheduleCommand,
}

#[derive(Debug, Subcommand)]
enum ScheduleCommand {
    /// Show the delayed messages of a queue, the next one first
    #[command(after_help = "Example:\n  quorate schedule list reminders")]
    List {
        /// Queue to look at
        queue: String,
        #[command(flatten)]
        part: PartArgs<1_000>,
    },
}

/// Whose state is looked at.
#[derive(Debug, Args)]
pub(crate) struct ViewArgs {
    /// Ask any node for its own state, which may be behind: works without a leader
    #[arg(long, conflicts_with = "at")]
    local: bool,
    /// Ask the node at this client address for its own state
    #[arg(long, value_name = "HOST:PORT")]
    at: Option<String>,
}

/// How much is shown, and from where.
#[derive(Debug, Args)]
struct PartArgs<const DEFAULT: u64> {
    /// Most messages to show
    #[arg(long, value_name = "N", default_value_t = DEFAULT, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Go on from this position, where the part before ended
    #[arg(long, value_name = "POSITION", default_value_t = 0, hide_default_value = true)]
    from: u64,
}

/// The largest page that a node answers.
const PAGE_SIZE_MAX: u64 = 1_000;

/// Some messages of a queue.
struct Part {
    messages: Vec<MessageInfo>,
    /// Where there are more.
    next: Option<u64>,
    read_index: u64,
}

pub(crate) async fn run(args: BrowseArgs, context: &Context) -> Result<(), Failure> {
    let mut filter = args.filter.filter().states(args.state);
    if let Some(redrive) = args.redrive {
        filter = filter.redrive(redrive);
    }
    let mut browse = args
        .view
        .browse(context.client.browse(&args.queue).filter(filter));
    if args.body {
        browse = browse.with_content();
    }
    let part = args
        .part
        .read(browse)
        .await
        .map_err(Failure::of_queue(&args.queue))?;
    show(&part, &args.queue, context)
}

pub(crate) async fn schedule(args: ScheduleArgs, context: &Context) -> Result<(), Failure> {
    let ScheduleCommand::List { queue, part } = args.command;
    let filter = MessageFilter::new().state(MessageState::Delayed);
    let browse = context.client.browse(&queue).filter(filter);
    let mut part = part.read(browse).await.map_err(Failure::of_queue(&queue))?;
    part.messages.sort_by_key(|message| message.ready_at_ms);
    show(&part, &queue, context)
}

impl ViewArgs {
    pub(crate) fn get(&self, get: GetMessage) -> GetMessage {
        match &self.at {
            Some(endpoint) => get.at(endpoint),
            None if self.local => get.local(),
            None => get,
        }
    }

    fn browse(&self, browse: Browse) -> Browse {
        match &self.at {
            Some(endpoint) => browse.at(endpoint),
            None if self.local => browse.local(),
            None => browse,
        }
    }
}

impl<const DEFAULT: u64> PartArgs<DEFAULT> {
    /// Reads pages until there are enough messages, or no more.
    async fn read(&self, browse: Browse) -> Result<Part, quorate_client::Error> {
        let mut part = Part {
            messages: Vec::new(),
            next: Some(self.from),
            read_index: 0,
        };
        while let Some(from) = part.next {
            let left = self.limit.saturating_sub(part.messages.len() as u64);
            if left == 0 {
                break;
            }
            let size = u32::try_from(left.min(PAGE_SIZE_MAX)).unwrap_or(u32::MAX);
            let page = browse.clone().page_size(size).from(from).page().await?;
            part.messages.extend(page.messages);
            part.next = page.next;
            part.read_index = page.read_index;
        }
        Ok(part)
    }
}

fn show(part: &Part, queue: &str, context: &Context) -> Result<(), Failure> {
    if context.output.is_json() {
        for message in &part.messages {
            let mut value = json::message(message);
            value["read_index"] = part.read_index.into();
            context.output.line(&value)?;
        }
    } else {
        context.output.bytes(part_text(part, now_ms()).as_bytes())?;
    }
    if let Some(next) = part.next {
        let queue = quoted(queue);
        eprintln!("there may be more: the same command with --from {next} goes on in queue {queue}");
    }
    Ok(())
}

fn part_text(part: &Part, now_ms: u64) -> String {
    let with_content = part.messages.iter().any(|message| message.body.is_some());
    let mut text = match with_content {
        true => {
            let shown = part.messages.iter().map(|message| message_text(message, now_ms));
            shown.map(|text| text + "\n").collect()
        }
        false if part.messages.is_empty() => String::new(),
        false => list_text(&part.messages, now_ms),
    };
    let count = messages(part.messages.len() as u64);
    text.push_str(&format!("{count}, as of log index {}\n", part.read_index));
    text
}

fn list_text(messages: &[MessageInfo], now_ms: u64) -> String {
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
            parts.push("waits for room where dead letters go".to_owned());
        }
    }
    if let Some(origin) = &message.dead_letter {
        parts.push(format!("{} in queue {}", origin.reason, origin.origin_queue));
    }
    let quote = |text: &String| escaped(text.as_bytes()).replace('\n', " ");
    parts.extend(
        message
            .last_error
            .as_ref()
            .map(|error| format!("{:?}", quote(error))),
    );
    parts.extend(
        message
            .group
            .as_ref()
            .map(|group| format!("group={}", quote(group))),
    );
    parts.extend(
        message
            .dedup_id
            .as_ref()
            .map(|id| format!("dedup-id={}", quote(id))),
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
    let told = |text: &Option<String>| text.as_ref().map(|text| escaped(text.as_bytes()));
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
        add("header", Some(escaped(header.as_bytes())));
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
            "{state} since {}: {}, waits for room where dead letters go",
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
mod tests {
    use quorate_client::{DeadInfo, DeadLetterInfo, LeaseInfo};

    use super::*;

    fn message(state: MessageState) -> MessageInfo {
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
        let part = Part {
            messages: every_state(),
            next: None,
            read_index: 42,
        };
        let expected = "\
MESSAGE  STATE    AGE  SIZE  PRIORITY  ATTEMPTS  ABOUT
17-0     ready     1m  12 B         0         0
17-0     delayed   1m  12 B         0         0  ready in 1m, dedup-id=order-9
17-0     leased    1m  12 B         0         0  until 1970-01-01T00:01:30.000Z, group=tenant-a
17-0     dead      1m  12 B         0         5  max-deliveries, waits for room where dead letters go, \"no such picture\"
4 messages, as of log index 42
";
        assert_eq!(part_text(&part, 61_000), expected);
    }

    #[test]
    fn nothing_is_said_to_be_nothing() {
        let part = Part {
            messages: Vec::new(),
            next: None,
            read_index: 42,
        };
        assert_eq!(part_text(&part, 0), "0 messages, as of log index 42\n");
    }

    #[test]
    fn a_message_is_shown_with_its_past_and_its_body() {
        let message = MessageInfo {
            dead_letter: Some(DeadLetterInfo {
                origin_queue: "jobs".to_owned(),
                reason: "rejected".to_owned(),
                attempts: 2,
                first_error: None,
                last_error: Some("too \x1b[31mred".to_owned()),
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
last error there  too \\u{1b}[31mred
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
            "dead since 1970-01-01T00:00:02.000Z: max-deliveries, waits for room where dead letters go",
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
