//! What the example workers have in common: where the cluster is, when to stop,
//! and how to say what was done.

use std::fmt;
use std::io::{self, Write as _};
use std::time::Duration;

use quorate_client::{Client, Delivery, Error};

/// How long one lease call waits for a message.
const WAIT: Duration = Duration::from_secs(1);
/// The pause before something is tried again.
pub(crate) const PAUSE: Duration = Duration::from_millis(200);
/// Messages that are leased at a time.
const BATCH: u32 = 16;

/// Shows a line of progress.
pub(crate) fn say(line: fmt::Arguments<'_>) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}

/// How a worker ends: if nobody reads any more what it says, it was told enough,
/// and has not failed.
pub(crate) fn quietly(ended: anyhow::Result<()>) -> anyhow::Result<()> {
    let unheard = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    match ended {
        Err(error) if error.downcast_ref().is_some_and(unheard) => Ok(()),
        ended => ended,
    }
}

/// Options of a worker.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    /// Nodes of the cluster, as host:port
    #[arg(
        long = "endpoint",
        env = "QUORATE_ENDPOINT",
        value_delimiter = ',',
        default_value = "127.0.0.1:7400"
    )]
    endpoints: Vec<String>,
    /// Milliseconds that each message is leased
    #[arg(long, default_value_t = 5_000)]
    lease_ms: u64,
    /// End when nothing is left in the queue, neither waiting nor leased
    #[arg(long)]
    until_empty: bool,
}

impl WorkerArgs {
    pub(crate) async fn connect(&self) -> Result<Client, Error> {
        Client::connect(self.endpoints.iter().map(String::as_str)).await
    }

    /// The next messages to work on; None = the queue is empty, and that is what
    /// this worker waits for. A cluster that does not answer is asked again, for
    /// ever.
    pub(crate) async fn next(&self, client: &Client, queue: &str) -> Result<Option<Vec<Delivery>>, Error> {
        let lease = Duration::from_millis(self.lease_ms);
        loop {
            let leasing = client.lease(queue).max(BATCH).lease(lease).wait(WAIT);
            match leasing.send().await {
                Ok(deliveries) if !deliveries.is_empty() => return Ok(Some(deliveries)),
                Ok(_) if self.until_empty && is_empty(client, queue).await? => return Ok(None),
                Ok(_) => {}
                Err(error) if error.is_retryable() => {
                    eprintln!("asking again: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether nothing is left to wait for, as far as anybody answers.
async fn is_empty(client: &Client, queue: &str) -> Result<bool, Error> {
    match client.describe_queue(queue).await {
        Ok(info) => Ok(info.counts.ready + info.counts.delayed + info.counts.leased == 0),
        Err(error) if error.is_retryable() => Ok(false),
        Err(error) => Err(error),
    }
}
