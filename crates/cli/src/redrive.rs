//! `quorate redrive` and `quorate redrive undo`

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use futures_util::{Stream, StreamExt as _};
use quorate_client::{Error, MessageFilter, MessageState, OperateResult, RedriveBatch};
use serde_json::{Value, json};

use crate::exit::{Class, Failure, quoted};
use crate::filter::FilterArgs;
use crate::interrupts::Interrupts;
use crate::json;
use crate::options::{Context, Options};
use crate::values::{messages, rate};

/// Arguments of `redrive`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  quorate redrive jobs --reason max-deliveries --older-than 5m --max 1000 --rate 50/s\n  \
        quorate redrive failed --header tenant=acme --to jobs\n  quorate redrive undo jobs 1234"
)]
pub struct RedriveArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    #[command(subcommand)]
    command: Option<RedriveCommand>,
    /// Queue with dead letters: those of its dead set become ready again in their place, those that
    /// came from other queues go back there
    #[arg(required = true)]
    queue: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max: Option<u64>,
    /// No faster than this, like 50/s
    #[arg(long, value_name = "N/s", value_parser = rate)]
    rate: Option<u32>,
    /// Queue to send them all to, instead
    #[arg(long, value_name = "QUEUE")]
    to: Option<String>,
    #[command(flatten)]
    filter: FilterArgs,
}

#[derive(Debug, Subcommand)]
enum RedriveCommand {
    /// Take back what still waits of a redrive
    #[command(after_help = "Example:\n  quorate redrive undo jobs 1234")]
    Undo {
        /// Queue where the messages are now
        queue: String,
        /// Numbers of the redrive, as it printed them
        #[arg(required = true)]
        redrive: Vec<u64>,
    },
}

/// How often progress is shown.
const PROGRESS_PAUSE: Duration = Duration::from_secs(1);
/// Refusals that are kept to be shown.
const REFUSALS_MAX: usize = 1_000;
/// Refusals that a person is shown.
const REFUSALS_SHOWN: usize = 10;
/// Messages that are looked at to find out where they came from.
const PEEK_SIZE: u32 = 1_000;

/// A redrive as it goes on.
trait Batches: Stream<Item = Result<RedriveBatch, Error>> + Unpin {}

impl<S: Stream<Item = Result<RedriveBatch, Error>> + Unpin> Batches for S {}

/// What a redrive came to.
#[derive(Debug, Default)]
struct Tally {
    redriven: u64,
    refused: u64,
    /// The first of them.
    refusals: Vec<OperateResult>,
    /// A number for each batch, to undo it.
    redrives: Vec<u64>,
    /// What ended it before its time.
    stopped: Option<Error>,
    interrupted: bool,
}

pub(crate) async fn run(args: RedriveArgs, context: &Context) -> Result<(), Failure> {
    if let Some(RedriveCommand::Undo { queue, redrive }) = args.command {
        return undo(&queue, &redrive, context).await;
    }
    let queue = args.queue.unwrap_or_default();
    let filter = args.filter.filter();
    let targets = match &args.to {
        Some(to) => BTreeSet::from([to.clone()]),
        None => targets(&queue, &filter, context).await?,
    };
    let mut redrive = context.client.redrive(&queue).filter(filter);
    if let Some(to) = args.to {
        redrive = redrive.to(to);
    }
    if let Some(max) = args.max {
        redrive = redrive.max(max);
    }
    if let Some(rate) = args.rate {
        redrive = redrive.rate(rate);
    }
    let tally = follow(redrive.batches(), context).await?;
    match tally {
        // Nothing was done, so the error tells it all.
        Tally {
            stopped: Some(error),
            redriven: 0,
            refused: 0,
            ..
        } => Err(Failure::of_queue(&queue)(error)),
        tally => tell(tally, &queue, &targets, context),
    }
}

/// Where the messages will be, as far as a look at them tells: in `queue`, or
/// where they came from. An undo names that queue, and the answer to a redrive
/// does not.
async fn targets(
    queue: &str,
    filter: &MessageFilter,
    context: &Context,
) -> Result<BTreeSet<String>, Failure> {
    let look = |state| {
        let browse = context.client.browse(queue).filter(filter.clone().state(state));
        browse.page_size(PEEK_SIZE).page()
    };
    let waiting = look(MessageState::Ready)
        .await
        .map_err(Failure::of_queue(queue))?;
    let origins = waiting
        .messages
        .into_iter()
        .filter_map(|message| message.dead_letter);
    let mut targets: BTreeSet<_> = origins.map(|origin| origin.origin_queue).collect();
    let dead = look(MessageState::Dead).await.map_err(Failure::of_queue(queue))?;
    if targets.is_empty() || !dead.messages.is_empty() {
        targets.insert(queue.to_owned());
    }
    Ok(targets)
}

/// Reads batch after batch, and shows how it goes, until the end or an
/// interrupt.
async fn follow(mut batches: impl Batches, context: &Context) -> Result<Tally, Failure> {
    let mut interrupts = Interrupts::listen()?;
    let mut tally = Tally::default();
    let mut shown = Instant::now();
    while !tally.interrupted {
        match next(&mut batches, &mut interrupts, &mut tally.interrupted).await {
            None => break,
            Some(Ok(batch)) => tally.add(batch),
            Some(Err(error)) => tally.stopped = Some(error),
        }
        if !context.output.is_json() && shown.elapsed() >= PROGRESS_PAUSE {
            eprintln!("{} redriven, {} refused", tally.redriven, tally.refused);
            shown = Instant::now();
        }
    }
    Ok(tally)
}

/// The next batch. The first interrupt lets it end, the second does not.
async fn next(
    batches: &mut impl Batches,
    interrupts: &mut Interrupts,
    interrupted: &mut bool,
) -> Option<Result<RedriveBatch, Error>> {
    let batch = batches.next();
    tokio::pin!(batch);
    loop {
        tokio::select! {
            batch = &mut batch => return batch,
            () = interrupts.next() => {
                if *interrupted {
                    eprintln!("quorate: one more batch than is told here may have been redriven");
                    return None;
                }
                eprintln!("quorate: waiting for the batch to end; interrupt again to leave at once");
                *interrupted = true;
            }
        }
    }
}

impl Tally {
    fn add(&mut self, batch: RedriveBatch) {
        self.redriven += batch.redriven;
        self.refused += batch.refused.len() as u64;
        let room = REFUSALS_MAX.saturating_sub(self.refusals.len());
        self.refusals.extend(batch.refused.into_iter().take(room));
        if batch.redriven > 0 {
            self.redrives.extend(batch.commit.map(|commit| commit.log_index));
        }
    }
}

/// Shows what it came to, and how to undo it.
fn tell(tally: Tally, queue: &str, targets: &BTreeSet<String>, context: &Context) -> Result<(), Failure> {
    let undo = undo_commands(&tally.redrives, targets);
    context.output.show(
        || tally_json(&tally, queue, &undo),
        || tally_text(&tally, queue, &undo),
    )?;
    if let Some(error) = tally.stopped {
        return Err(Failure::of_queue(queue)(error));
    }
    if tally.interrupted {
        return Err(Failure::Interrupted);
    }
    if tally.refused == 0 {
        return Ok(());
    }
    Err(Failure::Partly {
        class: Class::Refused,
        message: match tally.refused {
            1 => "1 message was refused, and is where it was".to_owned(),
            count => format!("{count} messages were refused, and are where they were"),
        },
    })
}

/// The commands that take it back: one for each queue where messages are now.
fn undo_commands(redrives: &[u64], targets: &BTreeSet<String>) -> Vec<String> {
    if redrives.is_empty() {
        return Vec::new();
    }
    let numbers: Vec<_> = redrives.iter().map(u64::to_string).collect();
    let numbers = numbers.join(" ");
    let commands = targets
        .iter()
        .map(|queue| format!("quorate redrive undo {} {numbers}", quoted(queue)));
    commands.collect()
}

fn tally_json(tally: &Tally, queue: &str, undo: &[String]) -> Value {
    let refusals = tally.refusals.iter().filter_map(|refusal| {
        let error = refusal.result.as_ref().err()?;
        Some(json::with_error(
            json!({ "message_id": refusal.message_id }),
            error,
        ))
    });
    json!({
        "queue": queue,
        "redriven": tally.redriven,
        "refused": tally.refused,
        "refusals": refusals.collect::<Vec<_>>(),
        "redrives": tally.redrives,
        "undo": undo,
    })
}

fn tally_text(tally: &Tally, queue: &str, undo: &[String]) -> String {
    let mut text = format!("{} redriven from queue {queue}\n", messages(tally.redriven));
    if tally.refused > 0 {
        text.push_str(&format!("{} refused:\n", messages(tally.refused)));
    }
    for refusal in tally.refusals.iter().take(REFUSALS_SHOWN) {
        if let Err(error) = &refusal.result {
            text.push_str(&format!("  {}: {error}\n", refusal.message_id));
        }
    }
    let unseen = tally.refused.saturating_sub(REFUSALS_SHOWN as u64);
    if unseen > 0 {
        text.push_str(&format!("  and {unseen} more\n"));
    }
    for command in undo {
        text.push_str(&format!("to undo it: {command}\n"));
    }
    text
}

async fn undo(queue: &str, redrives: &[u64], context: &Context) -> Result<(), Failure> {
    let mut undone = Vec::new();
    for redrive in redrives {
        let call = context.client.undo_redrive(queue, *redrive);
        undone.push((*redrive, call.await.map_err(Failure::of_queue(queue))?));
    }
    let count: u64 = undone.iter().map(|(_, undone)| undone.count).sum();
    context.output.show(
        || {
            let each = undone.iter().map(|(redrive, undone)| {
                json::with_commit(
                    json!({ "redrive": redrive, "undone": undone.count }),
                    &undone.commit,
                )
            });
            json!({ "queue": queue, "undone": count, "redrives": each.collect::<Vec<_>>() })
        },
        || format!("{} taken back from queue {queue}\n", messages(count)),
    )
}

#[cfg(test)]
mod tests {
    use quorate_client::Commit;

    use super::*;

    fn refused(message_id: &str) -> OperateResult {
        OperateResult {
            message_id: message_id.to_owned(),
            result: Err(Error::Invalid("queue later is full".to_owned())),
        }
    }

    fn batch(log_index: u64, redriven: u64, refused: Vec<OperateResult>) -> RedriveBatch {
        let commit = Commit {
            log_index,
            ..Default::default()
        };
        RedriveBatch {
            commit: Some(commit),
            redriven,
            refused,
        }
    }

    #[test]
    fn a_redrive_tells_what_was_done_and_how_to_undo_it() {
        let mut tally = Tally::default();
        tally.add(batch(1_234, 1_000, Vec::new()));
        tally.add(batch(1_250, 0, vec![refused("17-0")]));
        tally.add(batch(1_251, 1, (0..10).map(|_| refused("18-0")).collect()));
        let undo = undo_commands(&tally.redrives, &["jobs".to_owned(), "my jobs".to_owned()].into());
        let text = tally_text(&tally, "failed", &undo);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "1001 messages redriven from queue failed");
        assert_eq!(lines[1], "11 messages refused:");
        assert!(
            lines[2].starts_with("  17-0: ") && lines[2].ends_with("queue later is full"),
            "{text}"
        );
        assert_eq!(
            lines[12..],
            [
                "  and 1 more",
                "to undo it: quorate redrive undo jobs 1234 1251",
                "to undo it: quorate redrive undo 'my jobs' 1234 1251",
            ]
        );

        let value = tally_json(&tally, "failed", &undo);
        assert_eq!(
            (&value["redriven"], &value["refused"]),
            (&1_001.into(), &11.into())
        );
        assert_eq!(value["redrives"], json!([1_234, 1_251]));
        assert_eq!(value["refusals"][0]["message_id"], "17-0");
    }

    #[test]
    fn what_did_nothing_needs_no_undo() {
        let undo = undo_commands(&[], &["jobs".to_owned()].into());
        assert_eq!(
            tally_text(&Tally::default(), "jobs", &undo),
            "0 messages redriven from queue jobs\n"
        );
    }
}
