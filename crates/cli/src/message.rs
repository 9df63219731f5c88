//! `quorate message …`: looking at messages and operating on them, one by one.

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use quorate_client::{Error, OPERATE_MAX, OperateResult, Schedule, Selector};
use serde_json::json;

use crate::browse::ViewArgs;
use crate::exit::Failure;
use crate::json;
use crate::message_text::message_text;
use crate::moment::{delivery_moment, now_ms};
use crate::options::{Context, Options};
use crate::values::duration;

/// Arguments of `message`.
#[derive(Debug, Args)]
pub struct MessageArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    #[command(subcommand)]
    command: MessageCommand,
}

#[derive(Debug, Subcommand)]
enum MessageCommand {
    /// Show all that is known of a message, with headers and body
    #[command(
        override_usage = "quorate message get [OPTIONS] <QUEUE> <MESSAGE_ID|--dedup-id <DEDUP_ID>>",
        group = ArgGroup::new("which").required(true).args(["message_id", "dedup_id"]),
        after_help = "Examples:\n  quorate message get jobs 17-0\n  quorate message get jobs --dedup-id order-9",
    )]
    Get {
        /// Queue that it is in
        queue: String,
        /// Its id
        message_id: Option<String>,
        /// The dedup id that it was published with
        #[arg(long)]
        dedup_id: Option<String>,
        #[command(flatten)]
        view: ViewArgs,
    },
    /// Delete messages that nobody holds; this cancels the schedule of a delayed one
    #[command(
        override_usage = "quorate message delete [OPTIONS] <QUEUE> <MESSAGE_ID...|--dedup-id <DEDUP_ID>>",
        visible_alias = "cancel",
        after_help = "Examples:\n  quorate message delete jobs 17-0 17-1\n  \
            quorate message cancel reminders --dedup-id order-9"
    )]
    Delete {
        #[command(flatten)]
        chosen: ChosenArgs,
    },
    /// Move messages that nobody holds to the end of another queue
    #[command(
        override_usage = "quorate message move [OPTIONS] <QUEUE> <MESSAGE_ID...|--dedup-id <DEDUP_ID>> --to <QUEUE>",
        after_help = "Example:\n  quorate message move jobs 17-0 --to parked"
    )]
    Move {
        #[command(flatten)]
        chosen: ChosenArgs,
        /// Queue to move them to
        #[arg(long, value_name = "QUEUE")]
        to: String,
    },
    /// Let ready or delayed messages be ready at another time
    #[command(
        override_usage = "quorate message reschedule [OPTIONS] <QUEUE> <MESSAGE_ID...|--dedup-id <DEDUP_ID>> <--delay <DURATION>|--deliver-at <MOMENT>>",
        group = ArgGroup::new("when").required(true).args(["delay", "deliver_at"]),
        after_help = "Examples:\n  quorate message reschedule reminders 17-0 --delay 2h\n  \
            quorate message reschedule reminders --dedup-id order-9 --deliver-at 2030-12-24T18:00:00Z",
    )]
    Reschedule {
        #[command(flatten)]
        chosen: ChosenArgs,
        /// This long from now
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        delay: Option<Duration>,
        /// At this moment: RFC 3339, or milliseconds since 1970
        #[arg(long, value_name = "MOMENT", value_parser = delivery_moment)]
        deliver_at: Option<u64>,
    },
    /// Let delayed messages be ready at once
    #[command(
        override_usage = "quorate message run-now [OPTIONS] <QUEUE> <MESSAGE_ID...|--dedup-id <DEDUP_ID>>",
        after_help = "Example:\n  quorate message run-now reminders --dedup-id order-9"
    )]
    RunNow {
        #[command(flatten)]
        chosen: ChosenArgs,
    },
}

/// Messages of a queue that are named.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["message_id", "dedup_id"]))]
struct ChosenArgs {
    /// Queue that they are in
    queue: String,
    /// Their ids
    message_id: Vec<String>,
    /// The dedup id that one was published with; may be repeated
    #[arg(long)]
    dedup_id: Vec<String>,
}

pub(crate) async fn run(args: MessageArgs, context: &Context) -> Result<(), Failure> {
    let client = &context.client;
    match args.command {
        MessageCommand::Get {
            queue,
            message_id,
            dedup_id,
            view,
        } => {
            let by_dedup_id = dedup_id.map(Selector::DedupId);
            let selector = by_dedup_id.unwrap_or_else(|| Selector::MessageId(message_id.unwrap_or_default()));
            get(&queue, selector, &view, context).await
        }
        MessageCommand::Delete { chosen } => {
            let delete = async |part| client.delete_messages(&chosen.queue, part).await;
            operate(&chosen, "deleted", delete, context).await
        }
        MessageCommand::Move { chosen, to } => {
            let moving = async |part| client.move_messages(&chosen.queue, part, &to).await;
            operate(&chosen, "moved", moving, context).await
        }
        MessageCommand::Reschedule {
            chosen,
            delay,
            deliver_at,
        } => {
            let at = deliver_at.map(Schedule::AtMs);
            let schedule = at.unwrap_or_else(|| Schedule::After(delay.unwrap_or_default()));
            reschedule(&chosen, schedule, context).await
        }
        MessageCommand::RunNow { chosen } => reschedule(&chosen, Schedule::Now, context).await,
    }
}

async fn get(queue: &str, selector: Selector, view: &ViewArgs, context: &Context) -> Result<(), Failure> {
    let call = view.get(context.client.get_message(queue, selector).with_content());
    let message = call.send().await.map_err(Failure::of_queue(queue))?;
    context
        .output
        .show(|| json::message(&message), || message_text(&message, now_ms()))
}

async fn reschedule(chosen: &ChosenArgs, schedule: Schedule, context: &Context) -> Result<(), Failure> {
    let client = &context.client;
    let call = async |part| client.reschedule_messages(&chosen.queue, part, schedule).await;
    operate(chosen, "rescheduled", call, context).await
}

/// Carries an operation out on all that are chosen, and tells what came of each.
async fn operate(
    chosen: &ChosenArgs,
    done: &'static str,
    operation: impl AsyncFn(Vec<Selector>) -> Result<quorate_client::Operated, Error>,
    context: &Context,
) -> Result<(), Failure> {
    let selectors = chosen.selectors();
    let mut errors = Vec::new();
    for part in selectors.chunks(OPERATE_MAX) {
        let call = operation(part.to_vec());
        let operated = call.await.map_err(Failure::of_queue(&chosen.queue))?;
        for (selector, result) in part.iter().zip(operated.results) {
            tell(selector, done, &result, selectors.len(), context)?;
            errors.extend(result.result.err());
        }
    }
    if errors.len() == 1 && selectors.len() == 1 {
        // With one message there is nothing to sum up.
        return Err(Failure::of_queue(&chosen.queue)(errors.remove(0)));
    }
    Failure::of_parts(&errors, || {
        format!("{} of {} messages were not {done}", errors.len(), selectors.len())
    })
}

/// One line for one message; of a single one that was refused, the end of the
/// command tells.
fn tell(
    selector: &Selector,
    done: &'static str,
    result: &OperateResult,
    count: usize,
    context: &Context,
) -> Result<(), Failure> {
    let name = named(selector, &result.message_id);
    match &result.result {
        outcome if context.output.is_json() => {
            let value = json!({ "message_id": result.message_id, "result": done });
            context.output.line(&match outcome {
                Ok(()) => value,
                Err(error) => json::with_error(value, error),
            })
        }
        Ok(()) => context.output.bytes(format!("{done} {name}\n").as_bytes()),
        Err(_) if count == 1 => Ok(()),
        Err(error) => {
            eprintln!("{name}: {error}");
            Ok(())
        }
    }
}

/// The id of a message, or how it was named if it has none.
fn named(selector: &Selector, message_id: &str) -> String {
    match selector {
        Selector::DedupId(dedup_id) if message_id.is_empty() => format!("dedup id {dedup_id}"),
        Selector::MessageId(message_id) if !message_id.is_empty() => message_id.clone(),
        _ => message_id.to_owned(),
    }
}

impl ChosenArgs {
    fn selectors(&self) -> Vec<Selector> {
        let ids = self.message_id.iter().map(Selector::message_id);
        let dedup_ids = self.dedup_id.iter().map(Selector::dedup_id);
        ids.chain(dedup_ids).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_chosen_by_both_kinds_of_ids() {
        let chosen = ChosenArgs {
            queue: "jobs".to_owned(),
            message_id: vec!["17-0".to_owned(), "17-1".to_owned()],
            dedup_id: vec!["order-9".to_owned()],
        };
        let expected = [
            Selector::message_id("17-0"),
            Selector::message_id("17-1"),
            Selector::dedup_id("order-9"),
        ];
        assert_eq!(chosen.selectors(), expected);
    }

    #[test]
    fn a_message_that_is_not_there_has_the_name_it_was_given() {
        assert_eq!(named(&Selector::dedup_id("order-9"), ""), "dedup id order-9");
        assert_eq!(named(&Selector::dedup_id("order-9"), "17-0"), "17-0");
        assert_eq!(named(&Selector::message_id("17-0"), ""), "17-0");
    }
}
