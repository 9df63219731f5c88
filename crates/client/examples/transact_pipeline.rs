//! A worker that takes each message from one queue and puts its result into the
//! next, as one transaction: whatever is killed, and whenever, each message of the
//! first queue is once in the last.
//!
//! A chain of two steps:
//!
//! ```text
//! cargo run -p quorate-client --example transact_pipeline -- --from a --to b --until-empty
//! cargo run -p quorate-client --example transact_pipeline -- --from b --to c --until-empty
//! ```

mod support;

use clap::Parser;
use quorate_client::{Delivery, Error, Message, Reason};

use crate::support::{PAUSE, WorkerArgs, quietly, say};

#[derive(Debug, Parser)]
struct Args {
    /// Queue to take from; it is declared if it is not there
    #[arg(long)]
    from: String,
    /// Queue to put into; it is declared if it is not there
    #[arg(long)]
    to: String,
    #[command(flatten)]
    worker: WorkerArgs,
}

/// What this step does: it adds its name to the message's way.
fn step(delivery: &Delivery) -> Message {
    let mut headers = delivery.headers().clone();
    let way = headers.entry("way".to_owned()).or_default();
    if !way.is_empty() {
        way.push_str(" > ");
    }
    way.push_str(delivery.queue());
    Message::new(delivery.body().clone()).headers(headers)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    quietly(work(Args::parse()).await)
}

async fn work(args: Args) -> anyhow::Result<()> {
    let client = args.worker.connect().await?;
    client.declare_queue(&args.from).send().await?;
    client.declare_queue(&args.to).send().await?;
    let mut moved = 0;
    while let Some(deliveries) = args.worker.next(&client, &args.from).await? {
        for delivery in deliveries {
            moved += u64::from(advance(&args.to, delivery).await?);
        }
    }
    say(format_args!("empty: {moved} moved"))?;
    Ok(())
}

/// Moves one message on; false if it comes again, or was moved without our knowing.
async fn advance(to: &str, mut delivery: Delivery) -> anyhow::Result<bool> {
    let id = delivery.message_id().to_owned();
    let result = step(&delivery);
    match delivery.ack_and().publish(to, result).commit().await {
        Ok(transacted) => {
            say(format_args!(
                "moved {id}: log index {}",
                transacted.commit.log_index
            ))?;
            Ok(true)
        }
        // Nothing was done: somebody else holds the message by now, or it waits for
        // room in the next queue, which is not its fault.
        Err(Error::Refused(refusal)) => match refusal.refused_part().map(|refused| refused.reason) {
            Some(Reason::StaleLease) => {
                say(format_args!("too late for {id}"))?;
                Ok(false)
            }
            Some(Reason::QueueFull) => {
                say(format_args!("no room for {id}"))?;
                // A release that gets lost costs the rest of the lease.
                let _ = delivery.release().await;
                tokio::time::sleep(PAUSE).await;
                Ok(false)
            }
            _ => Err(Error::Refused(refusal).into()),
        },
        // All of it was done, or nothing: if nothing, the message comes again.
        Err(error) if error.is_retryable() => {
            say(format_args!("lost sight of {id}: {error}"))?;
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}
