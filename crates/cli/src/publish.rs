//! `quorate publish`

use std::collections::VecDeque;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::{ArgGroup, Args};
use quorate_client::{Confirm, Message};
use serde_json::json;

use crate::exit::{Class, Failure};
use crate::json;
use crate::options::{Context, Options};
use crate::values::{duration, header, messages, positive_duration, size};

/// Arguments of `publish`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["body", "file", "count"]))]
pub struct PublishArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Queue to publish to
    queue: String,
    /// The body, as text
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    body: Option<String>,
    /// A file with the body; - is standard input
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Publish that many messages: of the given body, or numbered
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Fill numbered messages up to this size, like 1KiB
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "count", conflicts_with_all = ["body", "file"])]
    size: Option<u64>,
    /// Deliver them no earlier than this from now
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    delay: Option<Duration>,
    /// Let them expire if they were not leased within this
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    ttl: Option<Duration>,
    /// Add a header; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<(String, String)>,
}

/// The largest size of a message.
const BODY_BYTES_MAX: u64 = 16 << 20;

/// Confirms that are kept to be looked at. The publisher's own window is what
/// bounds the messages under way.
const CONFIRMS_KEPT: usize = 4_096;

pub(crate) async fn run(args: PublishArgs, context: &Context) -> Result<(), Failure> {
    if args.size.is_some_and(|size| size > BODY_BYTES_MAX) {
        return Err(Failure::Usage("a message has up to 16 MiB".to_owned()));
    }
    let body = given_body(&args)?;
    match args.count {
        Some(count) => publish_many(&args, body.as_ref(), count, context).await,
        None => publish_one(&args, body.unwrap_or_default(), context).await,
    }
}

fn given_body(args: &PublishArgs) -> Result<Option<Bytes>, Failure> {
    if let Some(body) = &args.body {
        return Ok(Some(body.clone().into()));
    }
    let Some(path) = &args.file else { return Ok(None) };
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        // One byte more shows that it is too large, without reading all of it.
        let mut input = std::io::stdin().lock().take(BODY_BYTES_MAX + 1);
        input
            .read_to_end(&mut bytes)
            .map_err(Failure::io("read standard input"))?;
    } else {
        bytes = std::fs::read(path).map_err(Failure::io(format!("read {}", path.display())))?;
    }
    if bytes.len() as u64 > BODY_BYTES_MAX {
        return Err(Failure::Usage("a message has up to 16 MiB".to_owned()));
    }
    Ok(Some(bytes.into()))
}

async fn publish_one(args: &PublishArgs, body: Bytes, context: &Context) -> Result<(), Failure> {
    let call = context.client.publish(&args.queue, message(args, body));
    let published = call.await.map_err(Failure::of_queue(&args.queue))?;
    context.output.show(
        || {
            let value = json!({ "queue": args.queue, "message_ids": published.message_ids });
            json::with_commit(value, &published.commit)
        },
        || format!("{}\n", published.message_id()),
    )
}

async fn publish_many(
    args: &PublishArgs,
    body: Option<&Bytes>,
    count: u64,
    context: &Context,
) -> Result<(), Failure> {
    let publisher = context.client.publisher(&args.queue).start();
    let mut tally = Tally::default();
    let mut confirms = VecDeque::new();
    let start = Instant::now();
    for n in 1..=count {
        let body = body.cloned().unwrap_or_else(|| numbered(n, args.size));
        confirms.push_back(publisher.send(message(args, body)).await);
        if confirms.len() > CONFIRMS_KEPT
            && let Some(confirm) = confirms.pop_front()
        {
            tally.add(confirm).await;
        }
        // A refusal of the first, such as a missing queue, is one of them all.
        if tally.published == 0 && tally.failed > 0 {
            break;
        }
    }
    for confirm in confirms {
        tally.add(confirm).await;
    }
    publisher.close().await;
    let elapsed = start.elapsed();
    match tally.first_error {
        // Nothing went in, so the error of the first tells it all.
        Some(error) if tally.published == 0 => return Err(Failure::of_queue(&args.queue)(error)),
        _ => {}
    }
    context.output.show(
        || {
            json!({
                "queue": args.queue,
                "published": tally.published,
                "failed": tally.failed,
                "unknown": tally.unknown,
                "elapsed_ms": json::millis(elapsed),
            })
        },
        || {
            let rate = tally.published as f64 / elapsed.as_secs_f64().max(0.001);
            format!(
                "{} published to queue {} in {:.1} s ({rate:.0}/s)\n",
                messages(tally.published),
                args.queue,
                elapsed.as_secs_f64(),
            )
        },
    )?;
    match tally.first_error {
        None => Ok(()),
        Some(error) => Err(Failure::Partly {
            class: tally.worst,
            message: format!(
                "{} not published, and of {} it is not known; the first error: {error}",
                messages(tally.failed),
                messages(tally.unknown),
            ),
        }),
    }
}

/// What came of many messages.
struct Tally {
    published: u64,
    failed: u64,
    unknown: u64,
    worst: Class,
    first_error: Option<quorate_client::Error>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            published: 0,
            failed: 0,
            unknown: 0,
            worst: Class::Ok,
            first_error: None,
        }
    }
}

impl Tally {
    async fn add(&mut self, confirm: Confirm) {
        match confirm.await {
            Ok(_) => self.published += 1,
            Err(error) => {
                if error.may_have_applied() {
                    self.unknown += 1;
                } else {
                    self.failed += 1;
                }
                self.worst = self.worst.max(Class::of(&error));
                self.first_error.get_or_insert(error);
            }
        }
    }
}

fn message(args: &PublishArgs, body: Bytes) -> Message {
    let mut message = Message::new(body).headers(args.header.iter().cloned().collect());
    if let Some(delay) = args.delay {
        message = message.delay(delay);
    }
    if let Some(ttl) = args.ttl {
        message = message.ttl(ttl);
    }
    message
}

/// `message 17`, filled up with dots.
fn numbered(n: u64, size: Option<u64>) -> Bytes {
    let mut body = format!("message {n}").into_bytes();
    if let Some(size) = size.and_then(|size| usize::try_from(size).ok()) {
        body.resize(size.max(body.len()), b'.');
    }
    body.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_messages_are_filled_but_never_cut() {
        assert_eq!(numbered(7, None), "message 7");
        assert_eq!(numbered(7, Some(12)), "message 7...");
        assert_eq!(numbered(7, Some(1)), "message 7");
    }
}
