//! `quorate queue …`

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use futures_util::StreamExt as _;
use quorate_client::{Overflow, QueueInfo, QueueSettings};
use serde_json::json;

use crate::exit::Failure;
use crate::json;
use crate::options::{Context, Options};
use crate::table::{Align, pairs, table};
use crate::values::{bytes, duration, messages, size, span};

/// Arguments of `queue`.
#[derive(Debug, Args)]
pub struct QueueArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    #[command(subcommand)]
    command: QueueCommand,
}

#[derive(Debug, Subcommand)]
enum QueueCommand {
    /// Make a queue, or check that it has these settings
    Declare {
        /// Name of the queue: 1 to 255 bytes
        queue: String,
        #[command(flatten)]
        settings: SettingsArgs,
    },
    /// List all queues with what they hold
    List,
    /// Show settings and counts of a queue
    Show {
        /// Name of the queue
        queue: String,
    },
    /// Change settings of a queue
    #[command(group = ArgGroup::new("setting").required(true).multiple(true).args([
        "lease", "max_deliveries", "dead_letter", "max_length", "max_bytes", "overflow", "message_ttl",
        "backoff_initial", "backoff_max",
    ]))]
    Update {
        /// Name of the queue
        queue: String,
        #[command(flatten)]
        settings: SettingsArgs,
    },
    /// Remove the ready and delayed messages of a queue
    Purge {
        /// Name of the queue
        queue: String,
    },
    /// Delete a queue with all its messages
    Delete {
        /// Name of the queue
        queue: String,
        /// Refuse if it holds messages in any state
        #[arg(long)]
        if_empty: bool,
        /// Refuse if it has consumers
        #[arg(long)]
        if_unused: bool,
    },
}

#[derive(Debug, Args)]
struct SettingsArgs {
    /// Lease of a delivery: 100ms to 12h [new queue: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lease: Option<Duration>,
    /// Failed leases before a message is dead-lettered: 1 to 1,000, 0 = unlimited [new queue: 5]
    #[arg(long, value_name = "N")]
    max_deliveries: Option<u32>,
    /// Queue that receives dead letters; '' = keep them in this queue's dead set [new queue: '']
    #[arg(long, value_name = "QUEUE")]
    dead_letter: Option<String>,
    /// Most messages ready, delayed or leased, 0 = unlimited [new queue: 0]
    #[arg(long, value_name = "N")]
    max_length: Option<u64>,
    /// Most bytes of those messages, like 1GiB, 0 = unlimited [new queue: 0]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_bytes: Option<u64>,
    /// What happens to a publish beyond a limit [new queue: reject]
    #[arg(long)]
    overflow: Option<OverflowArg>,
    /// Life of a message that is not leased, 0s = for ever [new queue: 0s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    message_ttl: Option<Duration>,
    /// Pause before a failed message is ready again [new queue: 0s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    backoff_initial: Option<Duration>,
    /// The pause doubles per attempt up to this [new queue: 60s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    backoff_max: Option<Duration>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OverflowArg {
    /// The publish is refused
    Reject,
    /// Messages at the head make room
    DropHead,
}

pub(crate) async fn run(args: QueueArgs, context: &Context) -> Result<(), Failure> {
    match args.command {
        QueueCommand::Declare { queue, settings } => declare(&queue, settings.into(), context).await,
        QueueCommand::List => list(context).await,
        QueueCommand::Show { queue } => show(&queue, context).await,
        QueueCommand::Update { queue, settings } => update(&queue, settings.into(), context).await,
        QueueCommand::Purge { queue } => purge(&queue, context).await,
        QueueCommand::Delete {
            queue,
            if_empty,
            if_unused,
        } => delete(&queue, if_empty, if_unused, context).await,
    }
}

async fn declare(queue: &str, settings: QueueSettings, context: &Context) -> Result<(), Failure> {
    let call = context.client.declare_queue(queue).settings(settings);
    let declared = call.send().await.map_err(Failure::of_queue(queue))?;
    context.output.show(
        || {
            json::with_commit(
                json!({ "queue": queue, "created": declared.created }),
                &declared.commit,
            )
        },
        || match declared.created {
            true => format!("queue {queue} created\n"),
            false => format!("queue {queue} exists, with these settings\n"),
        },
    )
}

async fn list(context: &Context) -> Result<(), Failure> {
    let mut queues = context.client.list_queues();
    let mut rows = Vec::new();
    while let Some(queue) = queues.next().await {
        let queue = queue?;
        if context.output.is_json() {
            context.output.line(&json::queue(&queue))?;
        } else {
            rows.push(row(&queue));
        }
    }
    if context.output.is_json() {
        return Ok(());
    }
    if rows.is_empty() {
        eprintln!("no queues; make one with `quorate queue declare NAME`");
        return Ok(());
    }
    context.output.bytes(list_text(&rows).as_bytes())
}

fn row(queue: &QueueInfo) -> [String; 7] {
    let counts = &queue.counts;
    [
        queue.name.clone(),
        counts.ready.to_string(),
        counts.delayed.to_string(),
        counts.leased.to_string(),
        counts.dead.to_string(),
        bytes(counts.bytes),
        counts.consumers.to_string(),
    ]
}

fn list_text(rows: &[[String; 7]]) -> String {
    let columns = [
        ("QUEUE", Align::Left),
        ("READY", Align::Right),
        ("DELAYED", Align::Right),
        ("LEASED", Align::Right),
        ("DEAD", Align::Right),
        ("SIZE", Align::Right),
        ("CONSUMERS", Align::Right),
    ];
    table(columns, rows)
}

async fn show(queue: &str, context: &Context) -> Result<(), Failure> {
    let info = context
        .client
        .describe_queue(queue)
        .await
        .map_err(Failure::of_queue(queue))?;
    context.output.show(|| json::queue(&info), || show_text(&info))
}

fn show_text(queue: &QueueInfo) -> String {
    let (settings, counts) = (&queue.settings, &queue.counts);
    let unset = || "-".to_owned();
    let limit = |value: Option<String>| match value.as_deref() {
        Some("0" | "0 B" | "0s") => "unlimited".to_owned(),
        Some(value) => value.to_owned(),
        None => unset(),
    };
    let dead_letter = match settings.dead_letter_queue.as_deref() {
        None | Some("") => "this queue's dead set".to_owned(),
        Some(name) => format!("queue {name}"),
    };
    let overflow = settings
        .overflow
        .map_or_else(unset, |overflow| overflow.as_str().to_owned());
    let about = pairs(&[
        ("queue", queue.name.clone()),
        ("lease", settings.lease.map_or_else(unset, span)),
        (
            "max deliveries",
            limit(settings.max_deliveries.map(|count| count.to_string())),
        ),
        ("dead letters to", dead_letter),
        (
            "max length",
            limit(settings.max_length.map(|count| count.to_string())),
        ),
        ("max bytes", limit(settings.max_bytes.map(bytes))),
        ("overflow", overflow),
        ("message ttl", limit(settings.message_ttl.map(span))),
        (
            "backoff",
            match (settings.backoff_initial, settings.backoff_max) {
                (Some(Duration::ZERO), _) => "none".to_owned(),
                (Some(initial), Some(max)) => format!("{} doubling to {}", span(initial), span(max)),
                _ => unset(),
            },
        ),
    ]);
    let holds = pairs(&[
        ("ready", counts.ready.to_string()),
        ("delayed", counts.delayed.to_string()),
        ("leased", counts.leased.to_string()),
        ("dead", counts.dead.to_string()),
        ("size", bytes(counts.bytes)),
        ("consumers", counts.consumers.to_string()),
    ]);
    let totals = pairs(&[
        ("published", counts.published.to_string()),
        ("acked", counts.acked.to_string()),
        ("expired", counts.expired.to_string()),
        ("dead-lettered", counts.dead_lettered.to_string()),
        ("dropped", counts.dropped.to_string()),
        ("deleted", counts.deleted.to_string()),
        ("redelivered", counts.redelivered.to_string()),
    ]);
    format!(
        "{about}\nnow\n{}\nsince it was declared\n{}",
        indented(&holds),
        indented(&totals)
    )
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

async fn update(queue: &str, settings: QueueSettings, context: &Context) -> Result<(), Failure> {
    let call = context.client.update_queue(queue).settings(settings);
    let commit = call.send().await.map_err(Failure::of_queue(queue))?;
    context.output.show(
        || json::with_commit(json!({ "queue": queue }), &commit),
        || format!("queue {queue} updated\n"),
    )
}

async fn purge(queue: &str, context: &Context) -> Result<(), Failure> {
    let purged = context
        .client
        .purge_queue(queue)
        .await
        .map_err(Failure::of_queue(queue))?;
    context.output.show(
        || json::with_commit(json!({ "queue": queue, "purged": purged.count }), &purged.commit),
        || format!("{} removed from queue {queue}\n", messages(purged.count)),
    )
}

async fn delete(queue: &str, if_empty: bool, if_unused: bool, context: &Context) -> Result<(), Failure> {
    let mut call = context.client.delete_queue(queue);
    if if_empty {
        call = call.if_empty();
    }
    if if_unused {
        call = call.if_unused();
    }
    let deleted = call.send().await.map_err(Failure::of_queue(queue))?;
    context.output.show(
        || {
            json::with_commit(
                json!({ "queue": queue, "deleted": deleted.count }),
                &deleted.commit,
            )
        },
        || format!("queue {queue} deleted, with {}\n", messages(deleted.count)),
    )
}

impl From<SettingsArgs> for QueueSettings {
    fn from(args: SettingsArgs) -> Self {
        Self {
            lease: args.lease,
            max_deliveries: args.max_deliveries,
            dead_letter_queue: args.dead_letter,
            max_length: args.max_length,
            max_bytes: args.max_bytes,
            overflow: args.overflow.map(|overflow| match overflow {
                OverflowArg::Reject => Overflow::Reject,
                OverflowArg::DropHead => Overflow::DropHead,
            }),
            message_ttl: args.message_ttl,
            backoff_initial: args.backoff_initial,
            backoff_max: args.backoff_max,
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_client::QueueCounts;

    use super::*;

    fn jobs() -> QueueInfo {
        QueueInfo {
            name: "jobs".to_owned(),
            id: 3,
            settings: QueueSettings {
                lease: Some(Duration::from_secs(30)),
                max_deliveries: Some(0),
                dead_letter_queue: Some(String::new()),
                max_length: Some(0),
                max_bytes: Some(1 << 30),
                overflow: Some(Overflow::DropHead),
                message_ttl: Some(Duration::ZERO),
                backoff_initial: Some(Duration::from_secs(1)),
                backoff_max: Some(Duration::from_secs(60)),
            },
            counts: QueueCounts {
                ready: 7,
                bytes: 2048,
                ..Default::default()
            },
        }
    }

    #[test]
    fn a_queue_is_listed_on_a_line() {
        let expected = "\
QUEUE  READY  DELAYED  LEASED  DEAD     SIZE  CONSUMERS
jobs       7        0       0     0  2.0 KiB          0
";
        assert_eq!(list_text(&[row(&jobs())]), expected);
    }

    #[test]
    fn a_queue_is_shown_with_its_limits_in_words() {
        let text = show_text(&jobs());
        for line in [
            "lease            30s",
            "max deliveries   unlimited",
            "dead letters to  this queue's dead set",
            "max bytes        1.0 GiB",
            "message ttl      unlimited",
            "backoff          1s doubling to 1m",
            "  ready      7",
        ] {
            assert!(text.lines().any(|found| found == line), "{line:?} in\n{text}");
        }
    }

    #[test]
    fn a_queue_in_json() {
        let value = json::queue(&jobs());
        assert_eq!(value["settings"]["lease_ms"], 30_000);
        assert_eq!(value["settings"]["overflow"], "drop-head");
        assert_eq!(value["counts"]["ready"], 7);
    }
}
