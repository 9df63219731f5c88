//! `quorate redrive` and `quorate redrive undo`

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use futures_util::{Stream, StreamExt as _};
use quorate_client::{Error, OperateResult, RedriveBatch};
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
        /// Number of the redrive, as it printed it
        redrive: u64,
    },
}

/// How often progress is shown.
const PROGRESS_PAUSE: Duration = Duration::from_secs(1);
/// Refusals that are kept to be shown.
const REFUSALS_MAX: usize = 1_000;
/// Refusals that a person is shown.
const REFUSALS_SHOWN: usize = 10;

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
    /// Its number, to undo it.
    redrive: Option<u64>,
    /// Where messages were set free.
    queues: BTreeSet<String>,
    /// What ended it before its time.
    stopped: Option<Error>,
    interrupted: bool,
}

pub(crate) async fn run(args: RedriveArgs, context: &Context) -> Result<(), Failure> {
    if let Some(RedriveCommand::Undo { queue, redrive }) = args.command {
        return undo(&queue, redrive, context).await;
    }
    let queue = args.queue.unwrap_or_default();
    let mut redrive = context.client.redrive(&queue).filter(args.filter.filter());
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
        tally => tell(tally, &queue, context),
    }
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
        self.redrive = batch.redrive;
        self.queues.extend(batch.queues);
    }

    /// The commands that take it back: one for each queue where messages are now.
    fn undo(&self) -> Vec<String> {
        let Some(redrive) = self.redrive else {
            return Vec::new();
        };
        let queues = self.queues.iter();
        queues
            .map(|queue| format!("quorate redrive undo {} {redrive}", quoted(queue)))
            .collect()
    }
}

/// Shows what it came to, and how to undo it.
fn tell(tally: Tally, queue: &str, context: &Context) -> Result<(), Failure> {
    context
        .output
        .show(|| tally_json(&tally, queue), || tally_text(&tally, queue))?;
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

fn tally_json(tally: &Tally, queue: &str) -> Value {
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
        "redrive": tally.redrive,
        "queues": tally.queues,
        "undo": tally.undo(),
    })
}

fn tally_text(tally: &Tally, queue: &str) -> String {
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
    for command in tally.undo() {
        text.push_str(&format!("to undo it: {command}\n"));
    }
    text
}

async fn undo(queue: &str, redrive: u64, context: &Context) -> Result<(), Failure> {
    let undone = context.client.undo_redrive(queue, redrive).await;
    let undone = undone.map_err(Failure::of_queue(queue))?;
    context.output.show(
        || {
            let undone_json = json!({ "queue": queue, "redrive": redrive, "undone": undone.count });
            json::with_commit(undone_json, &undone.commit)
        },
        || format!("{} taken back from queue {queue}\n", messages(undone.count)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(message_id: &str) -> OperateResult {
        OperateResult {
            message_id: message_id.to_owned(),
            result: Err(Error::Invalid("queue later is full".to_owned())),
        }
    }

    fn batch(redriven: u64, queues: &[&str], refused: Vec<OperateResult>) -> RedriveBatch {
        RedriveBatch {
            redrive: Some(1_234),
            redriven,
            queues: queues.iter().map(|queue| (*queue).to_owned()).collect(),
            refused,
            ..Default::default()
        }
    }

    #[test]
    fn a_redrive_tells_what_was_done_and_how_to_undo_it() {
        let mut tally = Tally::default();
        tally.add(batch(1_000, &["my jobs", "jobs"], Vec::new()));
        tally.add(batch(0, &[], vec![refused("17-0")]));
        tally.add(batch(1, &["jobs"], (0..10).map(|_| refused("18-0")).collect()));
        let text = tally_text(&tally, "failed");
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
                "to undo it: quorate redrive undo jobs 1234",
                "to undo it: quorate redrive undo 'my jobs' 1234",
            ]
        );

        let value = tally_json(&tally, "failed");
        assert_eq!(
            (&value["redriven"], &value["refused"]),
            (&1_001.into(), &11.into())
        );
        assert_eq!(value["redrive"], 1_234);
        assert_eq!(value["queues"], json!(["jobs", "my jobs"]));
        assert_eq!(value["refusals"][0]["message_id"], "17-0");
    }

    #[test]
    fn what_did_nothing_needs_no_undo() {
        let mut tally = Tally::default();
        assert_eq!(
            tally_text(&tally, "jobs"),
            "0 messages redriven from queue jobs\n"
        );
        tally.add(batch(0, &[], vec![refused("17-0")]));
        assert_eq!(tally.undo(), [""; 0]);
    }
}
