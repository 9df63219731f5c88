//! `quorate lease`

use std::time::Duration;

use clap::Args;
use quorate_client::Delivery;

use crate::body::{escaped, escaped_line};
use crate::exit::Failure;
use crate::json;
use crate::options::{Context, Options};
use crate::values::{duration, positive_duration};

/// Arguments of `lease`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  quorate lease jobs --max 10 --wait 5s --json")]
pub struct LeaseArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Queue to lease from
    queue: String,
    /// Most messages: 1 to 1,000
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    max: u32,
    /// Wait that long for a first message: up to 60s
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,
    /// Lease them for that long: 100ms to 12h [default: the queue's]
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    lease: Option<Duration>,
}

pub(crate) async fn run(args: LeaseArgs, context: &Context) -> Result<(), Failure> {
    let mut call = context.client.lease(&args.queue).max(args.max);
    if let Some(wait) = args.wait {
        call = call.wait(wait);
    }
    if let Some(lease) = args.lease {
        call = call.lease(lease);
    }
    let deliveries = call.send().await.map_err(Failure::of_queue(&args.queue))?;
    if deliveries.is_empty() && !context.output.is_json() {
        eprintln!("no message in queue {}", args.queue);
    }
    for delivery in &deliveries {
        context
            .output
            .show(|| json::delivery(delivery), || text(delivery))?;
    }
    Ok(())
}

/// A line about the message, then its body.
fn text(delivery: &Delivery) -> String {
    let mut text = format!(
        "{}  token {}  attempt {}",
        delivery.message_id(),
        delivery.token(),
        delivery.attempt()
    );
    for (name, value) in delivery.headers() {
        text.push_str(&format!("  {}={}", escaped_line(name), escaped_line(value)));
    }
    for (name, value) in [
        ("exchange", delivery.exchange()),
        ("routing key", delivery.routing_key()),
        ("group", delivery.group()),
        ("dedup id", delivery.dedup_id()),
    ] {
        if let Some(value) = value {
            text.push_str(&format!("\n  {name}: {}", escaped_line(value)));
        }
    }
    if let Some(error) = delivery.last_error() {
        text.push_str(&format!("\n  last error: {}", escaped_line(error)));
    }
    if let Some(info) = delivery.dead_letter_info() {
        text.push_str(&format!(
            "\n  dead letter of queue {}: {} after {} attempts",
            info.origin_queue, info.reason, info.attempts
        ));
    }
    for line in escaped(delivery.body()).lines() {
        text.push_str(&format!("\n  {line}"));
    }
    text.push('\n');
    text
}
