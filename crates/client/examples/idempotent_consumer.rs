//! A worker whose effects, in a database of its own, happen once per message: it
//! may be killed at any moment, and started again, also several times at once.
//!
//! It counts how often each body came, which is just what must not be done twice:
//!
//! ```text
//! cargo run -p quorate-client --features sqlite --example idempotent_consumer -- \
//!     --queue jobs --database counts.db --until-empty
//! sqlite3 counts.db 'SELECT body, times FROM counts'
//! ```

mod support;

use std::path::PathBuf;

use clap::Parser;
use quorate_client::Delivery;
use quorate_client::idempotent::{Applied, HandlerError, SqliteStore, process};
use rusqlite::Transaction;

use crate::support::{WorkerArgs, quietly, say};

#[derive(Debug, Parser)]
struct Args {
    /// Queue to work on; it is declared if it is not there
    #[arg(long)]
    queue: String,
    /// SQLite database with the counts
    #[arg(long)]
    database: PathBuf,
    #[command(flatten)]
    worker: WorkerArgs,
}

/// What the messages are for.
fn count(work: &Transaction<'_>, delivery: &Delivery) -> Result<(), HandlerError> {
    let body = std::str::from_utf8(delivery.body())?;
    work.execute(
        "INSERT INTO counts (body, times) VALUES (?1, 1)
         ON CONFLICT (body) DO UPDATE SET times = times + 1",
        [body],
    )?;
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    quietly(work(Args::parse()).await)
}

async fn work(args: Args) -> anyhow::Result<()> {
    let mut store = SqliteStore::open(&args.database, "count")?;
    store
        .connection()
        .execute_batch("CREATE TABLE IF NOT EXISTS counts (body TEXT PRIMARY KEY, times INTEGER NOT NULL)")?;
    let client = args.worker.connect().await?;
    client.declare_queue(&args.queue).send().await?;
    let (mut counted, mut skipped) = (0, 0);
    while let Some(deliveries) = args.worker.next(&client, &args.queue).await? {
        for delivery in deliveries {
            let id = delivery.message_id().to_owned();
            match process(&mut store, &mut count, delivery).await? {
                Applied::Now => {
                    counted += 1;
                    say(format_args!("counted {id}"))?;
                }
                Applied::Before => {
                    skipped += 1;
                    say(format_args!("skipped {id}"))?;
                }
                Applied::Failed(reason) => say(format_args!("failed {id}: {reason}"))?,
            }
        }
    }
    say(format_args!("empty: {counted} counted, {skipped} skipped"))?;
    Ok(())
}
