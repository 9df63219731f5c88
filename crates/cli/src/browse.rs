//! `quorate browse` and `quorate schedule`: looking at messages without touching
//! them.

use clap::{Args, Subcommand};
use quorate_client::{Browse, GetMessage, MessageFilter, MessageInfo, MessageState};

use crate::exit::Failure;
use crate::filter::FilterArgs;
use crate::json;
use crate::message_text::{list_text, message_text};
use crate::moment::now_ms;
use crate::options::{Context, Options};
use crate::values::{messages, state};

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
    part: PartArgs,
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
        /// Most messages to show
        #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
        limit: u64,
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
struct PartArgs {
    /// Most messages to show
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Go on from this position, where the part before ended
    #[arg(long, value_name = "POSITION", default_value_t = 0, hide_default_value = true)]
    from: u64,
}

/// The largest page that a node answers.
const PAGE_SIZE_MAX: u32 = 1_000;

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
    let ScheduleCommand::List { queue, limit } = args.command;
    let filter = MessageFilter::new().state(MessageState::Delayed);
    let browse = context.client.browse(&queue).filter(filter);
    let (part, later) = soonest(browse, limit).await.map_err(Failure::of_queue(&queue))?;
    show(&part, &queue, context)?;
    if later > 0 && !context.output.is_json() {
        eprintln!("{} more due later: a higher --limit shows them", messages(later));
    }
    Ok(())
}

/// Those of all messages that are due first, `limit` at most, and how many are
/// left out. A browse goes by position, so it takes all of them to know.
async fn soonest(browse: Browse, limit: u64) -> Result<(Part, u64), quorate_client::Error> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut part = Part {
        messages: Vec::new(),
        next: Some(0),
        read_index: 0,
    };
    let mut later = 0;
    while let Some(from) = part.next {
        let page = browse.clone().page_size(PAGE_SIZE_MAX).from(from).page().await?;
        later += keep_soonest(&mut part.messages, page.messages, limit) as u64;
        part.next = page.next;
        part.read_index = page.read_index;
    }
    Ok((part, later))
}

/// Adds `more` to `kept`, in the order in which they are due, and drops what is
/// beyond `limit`: that many.
fn keep_soonest(kept: &mut Vec<MessageInfo>, more: Vec<MessageInfo>, limit: usize) -> usize {
    kept.extend(more);
    kept.sort_by_key(|message| message.ready_at_ms);
    let dropped = kept.len().saturating_sub(limit);
    kept.truncate(limit);
    dropped
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

impl PartArgs {
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
            let size = u32::try_from(left).map_or(PAGE_SIZE_MAX, |left| left.min(PAGE_SIZE_MAX));
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
            value["next"] = part.next.into();
            context.output.line(&value)?;
        }
        return Ok(());
    }
    context.output.bytes(part_text(part, now_ms()).as_bytes())?;
    if let Some(next) = part.next {
        eprintln!("there may be more in queue {queue}: the same command with --from {next} goes on");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message_text::tests::message;

    #[test]
    fn a_schedule_begins_with_what_is_due_first_wherever_it_stands() {
        let due = |at_ms| MessageInfo {
            ready_at_ms: Some(at_ms),
            ..message(MessageState::Delayed)
        };
        let mut kept = Vec::new();
        assert_eq!(keep_soonest(&mut kept, vec![due(9), due(4), due(7)], 2), 1);
        assert_eq!(keep_soonest(&mut kept, vec![due(8), due(1)], 2), 2);
        let times: Vec<_> = kept.iter().map(|message| message.ready_at_ms).collect();
        assert_eq!(times, [Some(1), Some(4)]);
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
}
