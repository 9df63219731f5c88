//! `quorate publish`

use std::collections::VecDeque;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args};
use quorate_client::{Confirm, Message, Published, Target};
use serde_json::{Value, json};

use crate::exit::{Class, Failure, Subject, quoted};
use crate::json;
use crate::moment::delivery_moment;
use crate::options::{Context, Options};
use crate::values::{duration, header, messages, positive_duration, size};

/// Arguments of `publish`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("where").required(true).args(["queue", "exchange"]),
    group = ArgGroup::new("what").required(true).multiple(true).args(["body", "file", "count"]),
    after_help = "Examples:\n  quorate publish jobs --body 'resize 17.png' --header trace=a1b2\n  \
        quorate publish jobs --body 'invoice 9' --dedup-id invoice-9 --group tenant-a --delay 10s\n  \
        quorate publish --exchange orders --routing-key eu.paid --mandatory --body 'order 9'"
)]
pub struct PublishArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Queue to publish to
    queue: Option<String>,
    /// Exchange to publish to, instead of a queue
    #[arg(long)]
    exchange: Option<String>,
    /// By which a direct or topic exchange routes
    #[arg(long, value_name = "KEY", conflicts_with = "queue")]
    routing_key: Option<String>,
    /// Refuse it if it has no route [default: it is dropped]
    #[arg(long, conflicts_with = "queue")]
    mandatory: bool,
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
    /// Deliver them no earlier than this moment: RFC 3339, or milliseconds since 1970
    #[arg(long, value_name = "MOMENT", value_parser = delivery_moment)]
    deliver_at: Option<u64>,
    /// Let them expire if they were not leased within this
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    ttl: Option<Duration>,
    /// 0 to 9; higher ones are leased first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=9))]
    priority: Option<u32>,
    /// Deliver them in order with others of this group
    // Empty would stand for none, which is not what a script means whose variable is empty.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    group: Option<String>,
    /// Take it only once, as long as the queue or exchange remembers this id
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    dedup_id: Option<String>,
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
    let call = context.client.publish(args.target(), message(args, body));
    let published = call.await.map_err(Failure::of(args.subject()))?;
    context.output.show(
        || {
            let mut value = json::published(&published);
            let subject = args.subject();
            value[subject.kind()] = subject.name().into();
            json::with_commit(value, &published.commit)
        },
        || format!("{}\n", published.message_id()),
    )?;
    if !context.output.is_json() {
        eprint!("{}", note(&args.subject(), &published));
    }
    Ok(())
}

/// What came of a message that did not become a new one.
fn note(subject: &Subject, published: &Published) -> String {
    if let Some(state) = published.duplicate() {
        return format!(
            "a duplicate: {subject} had taken this dedup id; the first message is the one above, and is {state}\n"
        );
    }
    if !published.unroutable.is_empty() {
        return format!(
            "no route: no binding of {subject} fits, and the message was dropped; see `quorate exchange show {}`\n",
            quoted(subject.name())
        );
    }
    String::new()
}

async fn publish_many(
    args: &PublishArgs,
    body: Option<&Bytes>,
    count: u64,
    context: &Context,
) -> Result<(), Failure> {
    let publisher = context.client.publisher(args.target()).start();
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
        Some(error) if tally.published == 0 => return Err(Failure::of(args.subject())(error)),
        _ => {}
    }
    context.output.show(
        || tally.to_json(&args.subject(), elapsed),
        || tally.to_text(&args.subject(), elapsed),
    )?;
    match &tally.first_error {
        None => Ok(()),
        Some(error) => Err(Failure::Partly {
            class: tally.worst,
            message: tally.failure_text(error),
        }),
    }
}

/// What came of many messages.
struct Tally {
    /// Confirmed, those of the two below included.
    published: u64,
    duplicates: u64,
    unroutable: u64,
    failed: u64,
    unknown: u64,
    worst: Class,
    first_error: Option<quorate_client::Error>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            published: 0,
            duplicates: 0,
            unroutable: 0,
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
            Ok(published) => {
                self.published += 1;
                self.duplicates += published.duplicates.len() as u64;
                self.unroutable += published.unroutable.len() as u64;
            }
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

    fn failure_text(&self, first: &quorate_client::Error) -> String {
        let failed = (self.failed, "certainly not published");
        let unknown = (self.unknown, "perhaps published, perhaps not");
        let parts: Vec<_> = [failed, unknown]
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{} {what}", messages(count)))
            .collect();
        format!("{}; the first error: {first}", parts.join(", "))
    }

    fn to_json(&self, subject: &Subject, elapsed: Duration) -> Value {
        json!({
            subject.kind(): subject.name(),
            "published": self.published,
            "duplicates": self.duplicates,
            "unroutable": self.unroutable,
            "failed": self.failed,
            "unknown": self.unknown,
            "elapsed_ms": json::millis(elapsed),
        })
    }

    fn to_text(&self, subject: &Subject, elapsed: Duration) -> String {
        let seconds = elapsed.as_secs_f64();
        let rate = self.published as f64 / seconds.max(0.001);
        let mut text = format!(
            "{} published to {subject} in {seconds:.1} s ({rate:.0}/s)\n",
            messages(self.published)
        );
        for (count, what) in [
            (self.duplicates, "not taken again, for their dedup id was known"),
            (self.unroutable, "dropped, for no binding fits"),
        ] {
            if count > 0 {
                text.push_str(&format!("of them {count} {what}\n"));
            }
        }
        text
    }
}

impl PublishArgs {
    fn subject(&self) -> Subject {
        match (&self.exchange, &self.queue) {
            (Some(exchange), _) => Subject::Exchange(exchange.clone()),
            (None, queue) => Subject::Queue(queue.clone().unwrap_or_default()),
        }
    }

    fn target(&self) -> Target {
        let target = match self.subject() {
            Subject::Queue(name) => Target::queue(name),
            Subject::Exchange(name) => Target::exchange(name),
        };
        if self.mandatory {
            target.mandatory()
        } else {
            target
        }
    }
}

fn message(args: &PublishArgs, body: Bytes) -> Message {
    let mut message = Message::new(body).headers(args.header.iter().cloned().collect());
    if let Some(delay) = args.delay {
        message = message.delay(delay);
    }
    if let Some(at_ms) = args.deliver_at {
        message = message.deliver_at_ms(at_ms);
    }
    if let Some(ttl) = args.ttl {
        message = message.ttl(ttl);
    }
    if let Some(priority) = args.priority {
        message = message.priority(priority);
    }
    if let Some(group) = &args.group {
        message = message.group(group);
    }
    if let Some(dedup_id) = &args.dedup_id {
        message = message.dedup_id(dedup_id);
    }
    if let Some(key) = &args.routing_key {
        message = message.routing_key(key);
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

    #[test]
    fn an_empty_id_is_not_taken_for_none() {
        for option in ["--dedup-id=", "--group="] {
            let line = ["publish", "jobs", "--body", "a", option];
            let parsed = PublishArgs::augment_args(clap::Command::new("publish")).try_get_matches_from(line);
            assert_eq!(parsed.unwrap_err().exit_code(), 2, "{option}");
        }
    }

    #[test]
    fn a_failure_tells_only_of_what_there_was() {
        let error = quorate_client::Error::Invalid("x".to_owned());
        let tally = |failed, unknown| Tally {
            failed,
            unknown,
            ..Tally::default()
        };
        assert_eq!(
            tally(3, 0).failure_text(&error),
            "3 messages certainly not published; the first error: invalid: x"
        );
        assert_eq!(
            tally(1, 2).failure_text(&error),
            "1 message certainly not published, 2 messages perhaps published, perhaps not; the first error: \
             invalid: x"
        );
    }

    #[test]
    fn what_did_not_become_a_message_is_counted_apart() {
        let tally = Tally {
            published: 1_000,
            duplicates: 999,
            unroutable: 1,
            ..Tally::default()
        };
        let (orders, elapsed) = (Subject::Exchange("orders".to_owned()), Duration::from_secs(2));
        let expected = "\
1000 messages published to exchange orders in 2.0 s (500/s)
of them 999 not taken again, for their dedup id was known
of them 1 dropped, for no binding fits
";
        assert_eq!(tally.to_text(&orders, elapsed), expected);
        let value = tally.to_json(&orders, elapsed);
        assert_eq!(
            (&value["exchange"], &value["duplicates"]),
            (&"orders".into(), &999.into())
        );
    }
}
