//! `quorate queue …`

use clap::{Args, Subcommand};
use futures_util::StreamExt as _;
use quorate_client::{Commit, Explanation, MessageState, QueueInfo, QueueSettings};
use serde_json::json;

use crate::body::escaped;
use crate::exit::Failure;
use crate::json;
use crate::moment::{ago, now_ms};
use crate::options::{Context, Options};
use crate::queue_settings::{SettingsArgs, settings_pairs};
use crate::table::{Align, indented, pairs, table};
use crate::values::{bytes, messages, state};

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
    #[command(
        after_help = "Examples:\n  quorate queue declare jobs --max-deliveries 5 --lease 30s\n  \
        quorate queue declare tenants --group-weight tenant-a=5 --dead-letter failed"
    )]
    Declare {
        /// Name of the queue: 1 to 255 bytes
        queue: String,
        #[command(flatten)]
        settings: Box<SettingsArgs>,
    },
    /// List all queues with what they hold
    #[command(after_help = "Example:\n  quorate queue list")]
    List,
    /// Show settings and counts of a queue
    #[command(after_help = "Example:\n  quorate queue show jobs")]
    Show {
        /// Name of the queue
        queue: String,
    },
    /// Say why nothing is delivered from a queue
    #[command(after_help = "Example:\n  quorate queue explain jobs")]
    Explain {
        /// Name of the queue
        queue: String,
    },
    /// Change settings of a queue
    #[command(
        mut_group("SettingsArgs", |settings| settings.required(true)),
        override_usage = "quorate queue update [OPTIONS] <QUEUE> <--SETTING <VALUE>>...",
        after_help = "Example:\n  quorate queue update jobs --max-deliveries 10 --backoff-initial 1s",
    )]
    Update {
        /// Name of the queue
        queue: String,
        #[command(flatten)]
        settings: Box<SettingsArgs>,
    },
    /// Stop giving out messages of a queue; its consumers stay
    #[command(after_help = "Example:\n  quorate queue pause jobs")]
    Pause {
        /// Name of the queue
        queue: String,
    },
    /// Give out messages of a queue again
    #[command(after_help = "Example:\n  quorate queue resume jobs")]
    Resume {
        /// Name of the queue
        queue: String,
    },
    /// Remove messages of a queue that nobody holds
    #[command(after_help = "Example:\n  quorate queue purge jobs --state delayed,dead")]
    Purge {
        /// Name of the queue
        queue: String,
        /// Those in these states
        #[arg(long, value_name = "STATE,…", value_delimiter = ',', value_parser = state(&["ready", "delayed", "dead"]),
            default_value = "ready,delayed")]
        state: Vec<MessageState>,
    },
    /// Delete a queue with all its messages
    #[command(after_help = "Example:\n  quorate queue delete jobs --if-empty --if-unused")]
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

pub(crate) async fn run(args: QueueArgs, context: &Context) -> Result<(), Failure> {
    match args.command {
        QueueCommand::Declare { queue, settings } => {
            settings.check_new()?;
            declare(&queue, (*settings).into(), context).await
        }
        QueueCommand::List => list(context).await,
        QueueCommand::Show { queue } => show(&queue, context).await,
        QueueCommand::Explain { queue } => explain(&queue, context).await,
        QueueCommand::Update { queue, settings } => update(&queue, (*settings).into(), context).await,
        QueueCommand::Pause { queue } => pause(&queue, true, context).await,
        QueueCommand::Resume { queue } => pause(&queue, false, context).await,
        QueueCommand::Purge { queue, state } => purge(&queue, state, context).await,
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

fn row(queue: &QueueInfo) -> [String; 8] {
    let counts = &queue.counts;
    let about = if queue.paused { "paused" } else { "" };
    [
        queue.name.clone(),
        counts.ready.to_string(),
        counts.delayed.to_string(),
        counts.leased.to_string(),
        counts.dead.to_string(),
        bytes(counts.bytes),
        counts.consumers.to_string(),
        about.to_owned(),
    ]
}

fn list_text(rows: &[[String; 8]]) -> String {
    let columns = [
        ("QUEUE", Align::Left),
        ("READY", Align::Right),
        ("DELAYED", Align::Right),
        ("LEASED", Align::Right),
        ("DEAD", Align::Right),
        ("SIZE", Align::Right),
        ("CONSUMERS", Align::Right),
        ("ABOUT", Align::Left),
    ];
    table(columns, rows)
}

async fn show(queue: &str, context: &Context) -> Result<(), Failure> {
    let info = context
        .client
        .describe_queue(queue)
        .await
        .map_err(Failure::of_queue(queue))?;
    context
        .output
        .show(|| json::queue(&info), || show_text(&info, now_ms()))
}

fn show_text(queue: &QueueInfo, now_ms: u64) -> String {
    let counts = &queue.counts;
    let mut about = vec![("queue", queue.name.clone())];
    if queue.paused {
        about.push((
            "paused",
            "nothing is given out until `quorate queue resume`".to_owned(),
        ));
    }
    about.extend(settings_pairs(&queue.settings));
    let count = |count: u64| count.to_string();
    let published = |since: Option<u64>| match since {
        Some(since) => format!(", oldest published {}", ago(since, now_ms)),
        None => String::new(),
    };
    let dead = match counts.dead_letter_backlog {
        0 => count(counts.dead),
        waiting => format!(
            "{}, of which {waiting} wait for their dead-letter target",
            counts.dead
        ),
    };
    let consumers = match &queue.active_consumer {
        Some(name) => format!("{}, active: {}", counts.consumers, escaped(name.as_bytes())),
        None => count(counts.consumers),
    };
    let (ready, leased) = (
        queue.oldest_ready_published_at_ms,
        queue.oldest_leased_published_at_ms,
    );
    let holds = pairs(&[
        ("ready", count(counts.ready) + &published(ready)),
        ("delayed", count(counts.delayed)),
        ("leased", count(counts.leased) + &published(leased)),
        ("dead", dead),
        ("size", bytes(counts.bytes)),
        ("groups", count(counts.groups)),
        ("consumers", consumers),
    ]);
    let totals = pairs(&[
        ("published", count(counts.published)),
        ("acked", count(counts.acked)),
        ("expired", count(counts.expired)),
        ("dead-lettered", count(counts.dead_lettered)),
        ("dropped", count(counts.dropped)),
        ("deleted", count(counts.deleted)),
        ("moved", count(counts.moved)),
        ("redelivered", count(counts.redelivered)),
        ("duplicates", count(counts.duplicates)),
    ]);
    format!(
        "{}\nnow\n{}\nsince it was declared\n{}",
        pairs(&about),
        indented(&holds),
        indented(&totals)
    )
}

async fn explain(queue: &str, context: &Context) -> Result<(), Failure> {
    let call = context.client.explain_queue(queue);
    let explanation = call.await.map_err(Failure::of_queue(queue))?;
    context
        .output
        .show(|| json::explanation(&explanation), || explain_text(&explanation))
}

fn explain_text(explanation: &Explanation) -> String {
    let queue = &explanation.queue;
    let counts = &queue.counts;
    let mut text = format!(
        "queue {}: {} ready, {} delayed, {} leased, {} dead; consumers: {}; as of log index {}\n",
        queue.name,
        counts.ready,
        counts.delayed,
        counts.leased,
        counts.dead,
        counts.consumers,
        explanation.read_index
    );
    if explanation.obstacles.is_empty() {
        text.push_str("nothing is in the way\n");
    }
    for obstacle in &explanation.obstacles {
        let told = escaped(obstacle.message.as_bytes());
        text.push_str(&format!("- {}: {told}\n", obstacle.kind));
    }
    text
}

async fn update(queue: &str, settings: QueueSettings, context: &Context) -> Result<(), Failure> {
    let call = context.client.update_queue(queue).settings(settings);
    let commit = call.send().await.map_err(Failure::of_queue(queue))?;
    changed(queue, "updated", &commit, context)
}

async fn pause(queue: &str, paused: bool, context: &Context) -> Result<(), Failure> {
    let (commit, what) = match paused {
        true => (context.client.pause_queue(queue).await, "paused"),
        false => (context.client.resume_queue(queue).await, "resumed"),
    };
    changed(queue, what, &commit.map_err(Failure::of_queue(queue))?, context)
}

fn changed(queue: &str, what: &str, commit: &Commit, context: &Context) -> Result<(), Failure> {
    context.output.show(
        || json::with_commit(json!({ "queue": queue }), commit),
        || format!("queue {queue} {what}\n"),
    )
}

async fn purge(queue: &str, states: Vec<MessageState>, context: &Context) -> Result<(), Failure> {
    let call = context.client.purge_queue(queue).states(states);
    let purged = call.send().await.map_err(Failure::of_queue(queue))?;
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quorate_client::{Obstacle, Overflow, QueueCounts};

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
                ..Default::default()
            },
            counts: QueueCounts {
                ready: 7,
                dead: 3,
                dead_letter_backlog: 2,
                consumers: 2,
                bytes: 2048,
                ..Default::default()
            },
            paused: true,
            oldest_ready_published_at_ms: Some(1_000),
            active_consumer: Some("worker 1".to_owned()),
            ..Default::default()
        }
    }

    #[test]
    fn a_queue_is_listed_on_a_line() {
        let expected = "\
QUEUE  READY  DELAYED  LEASED  DEAD     SIZE  CONSUMERS  ABOUT
jobs       7        0       0     3  2.0 KiB          2  paused
";
        assert_eq!(list_text(&[row(&jobs())]), expected);
    }

    #[test]
    fn a_queue_is_shown_with_its_limits_in_words() {
        let text = show_text(&jobs(), 91_000);
        for line in [
            "paused            nothing is given out until `quorate queue resume`",
            "lease             30s",
            "max deliveries    unlimited",
            "dead letters to   this queue's dead set",
            "max bytes         1.0 GiB",
            "message ttl       unlimited",
            "backoff           1s doubling to 1m",
            "  ready      7, oldest published 1m 30s ago",
            "  leased     0",
            "  dead       3, of which 2 wait for their dead-letter target",
            "  consumers  2, active: worker 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line:?} in\n{text}");
        }
    }

    #[test]
    fn an_explanation_names_what_is_in_the_way() {
        let mut explanation = Explanation {
            queue: jobs(),
            obstacles: vec![
                Obstacle {
                    kind: "paused".to_owned(),
                    message: "the queue is paused".to_owned(),
                    ..Default::default()
                },
                Obstacle {
                    kind: "delayed".to_owned(),
                    message: "4 messages are not due yet; the first is in 30 s".to_owned(),
                    messages: 4,
                    until_ms: Some(31_000),
                },
            ],
            read_index: 9,
        };
        let expected = "\
queue jobs: 7 ready, 0 delayed, 0 leased, 3 dead; consumers: 2; as of log index 9
- paused: the queue is paused
- delayed: 4 messages are not due yet; the first is in 30 s
";
        assert_eq!(explain_text(&explanation), expected);
        let value = json::explanation(&explanation);
        assert_eq!(value["obstacles"][1]["until_ms"], 31_000);
        assert_eq!(
            (&value["read_index"], &value["queue"]["name"]),
            (&9.into(), &"jobs".into())
        );
        explanation.obstacles.clear();
        assert!(explain_text(&explanation).ends_with("nothing is in the way\n"));
    }

    #[test]
    fn a_queue_in_json() {
        let value = json::queue(&jobs());
        assert_eq!(value["settings"]["lease_ms"], 30_000);
        assert_eq!(value["settings"]["overflow"], "drop-head");
        assert_eq!(value["counts"]["ready"], 7);
        assert_eq!(value["paused"], true);
        assert_eq!(value["oldest_leased_published_at_ms"], serde_json::Value::Null);
    }
}
