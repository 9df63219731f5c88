//! `quorate consume`

use std::collections::VecDeque;
use std::time::Duration;

use clap::Args;
use quorate_client::{CREDIT_MAX, Consumer, Delivery, Settling};
use tokio::time::timeout;

use crate::body::escaped;
use crate::exit::{Class, Failure, quoted};
use crate::interrupts::Interrupts;
use crate::json;
use crate::options::{Context, Options};
use crate::values::{messages, positive_duration};
use crate::worker::{self, Outcome};

/// Arguments of `consume`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  quorate consume jobs --until-empty\n  \
    quorate consume jobs --exec 'resize --from -' --lease 5m")]
pub struct ConsumeArgs {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Queue to consume
    queue: String,
    /// Run this in a shell for each message, one after the other: the body is on its standard
    /// input, the rest in QUORATE_* variables. Exit status 0 acks the message, any other nacks it
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,
    /// Most messages held at a time: 1 to 65,535 [default: 64; with --exec 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=CREDIT_MAX as i64))]
    prefetch: Option<u32>,
    /// Stop after that many messages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Give this consumer nothing while one of a higher priority can take it [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i32>,
    /// Lease them for that long: 100ms to 12h [default: the queue's]
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    lease: Option<Duration>,
    /// Stop when no message has come for that long
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    idle_exit: Option<Duration>,
    /// Stop when no message is ready
    #[arg(long)]
    until_empty: bool,
}

/// Acks under way. Beyond that, the oldest is waited for.
const ACKS_UNDER_WAY: usize = 1_000;
/// How long a queue is quiet before it is asked whether it is empty.
const QUIET: Duration = Duration::from_millis(200);
/// Lease of a queue that does not say.
const LEASE_DEFAULT: Duration = Duration::from_secs(30);

pub(crate) async fn run(args: ConsumeArgs, context: &Context) -> Result<(), Failure> {
    let lease = match (args.lease, &args.exec) {
        (Some(lease), _) => lease,
        (None, None) => LEASE_DEFAULT,
        (None, Some(_)) => {
            let queue = context.client.describe_queue(&args.queue).await;
            queue
                .map_err(Failure::of_queue(&args.queue))?
                .settings
                .lease
                .unwrap_or(LEASE_DEFAULT)
        }
    };
    let mut interrupts = Interrupts::listen()?;
    let consumer = open(&args, context).await?;
    let mut session = Session {
        args,
        context,
        lease,
        consumer,
        handled: 0,
        acks: VecDeque::new(),
        stale: 0,
        paused: false,
    };
    let ended = session.work(&mut interrupts).await;
    let Session {
        consumer,
        stale,
        acks,
        ..
    } = session;
    let mut not_settled = stale;
    consumer.close().await;
    for ack in acks {
        not_settled += tell(ack.await);
    }
    ended?;
    if not_settled == 0 {
        return Ok(());
    }
    Err(Failure::Partly {
        class: Class::Refused,
        message: format!("{} not settled in time, and come again", messages(not_settled)),
    })
}

async fn open(args: &ConsumeArgs, context: &Context) -> Result<Consumer, Failure> {
    let mut prefetch = args.prefetch.unwrap_or(if args.exec.is_some() { 1 } else { 64 });
    // No more than are wanted.
    if let Some(count) = args.count.and_then(|count| u32::try_from(count).ok()) {
        prefetch = prefetch.min(count);
    }
    let name = format!("quorate consume, process {}", std::process::id());
    let mut consume = context.client.consume(&args.queue).prefetch(prefetch).name(name);
    if let Some(lease) = args.lease {
        consume = consume.lease(lease);
    }
    if let Some(priority) = args.priority {
        consume = consume.priority(priority);
    }
    consume.open().await.map_err(Failure::of_queue(&args.queue))
}

struct Session<'a> {
    args: ConsumeArgs,
    context: &'a Context,
    lease: Duration,
    consumer: Consumer,
    handled: u64,
    acks: VecDeque<Settling>,
    /// Settlements that came too late.
    stale: u64,
    /// The queue was paused when it was last looked at.
    paused: bool,
}

impl Session<'_> {
    /// Handles messages until there is a reason to stop.
    async fn work(&mut self, interrupts: &mut Interrupts) -> Result<(), Failure> {
        while self.args.count.is_none_or(|count| self.handled < count) {
            let next = tokio::select! {
                next = self.next() => next?,
                () = interrupts.next() => return Ok(()),
            };
            let Some(delivery) = next else { return Ok(()) };
            self.handled += 1;
            if self.args.exec.is_none() {
                self.print(delivery).await?;
            } else if self.execute(delivery, interrupts).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The next message; None when it is time to stop.
    async fn next(&mut self) -> Result<Option<Delivery>, Failure> {
        let mut idle = Duration::ZERO;
        loop {
            let patience = match (self.args.until_empty, self.args.idle_exit) {
                (true, _) => QUIET,
                (false, Some(limit)) => limit,
                (false, None) => Duration::MAX,
            };
            match timeout(patience, self.consumer.next()).await {
                Ok(Some(Ok(delivery))) => return Ok(Some(delivery)),
                Ok(Some(Err(error))) => return Err(Failure::of_queue(&self.args.queue)(error)),
                Ok(None) => return Ok(None),
                Err(_) => idle += patience,
            }
            if self.args.idle_exit.is_some_and(|limit| idle >= limit) {
                return Ok(None);
            }
            if self.args.until_empty {
                let queue = self.context.client.describe_queue(&self.args.queue).await;
                let queue = queue.map_err(Failure::of_queue(&self.args.queue))?;
                if queue.counts.ready == 0 {
                    return Ok(None);
                }
                self.tell_paused(queue.paused);
            }
        }
    }

    /// Tells why nothing comes, once for each pause.
    fn tell_paused(&mut self, paused: bool) {
        if paused && !self.paused {
            eprintln!(
                "quorate: queue {0} is paused and not empty; waiting for `quorate queue resume {1}`",
                self.args.queue,
                quoted(&self.args.queue)
            );
        }
        self.paused = paused;
    }

    /// Prints a message, and then acks it: what nobody saw comes again.
    async fn print(&mut self, delivery: Delivery) -> Result<(), Failure> {
        let output = self.context.output;
        if output.is_json() {
            output.line(&json::delivery(&delivery))?;
        } else if output.is_terminal() {
            output.bytes(format!("{}\n", escaped(delivery.body())).as_bytes())?;
        } else {
            output.bytes(&[delivery.body(), b"\n".as_slice()].concat())?;
        }
        self.acks.push_back(delivery.ack());
        if self.acks.len() > ACKS_UNDER_WAY
            && let Some(ack) = self.acks.pop_front()
        {
            self.stale += tell(ack.await);
        }
        Ok(())
    }

    /// Runs the command for a message. True: it was the last one.
    async fn execute(
        &mut self,
        mut delivery: Delivery,
        interrupts: &mut Interrupts,
    ) -> Result<bool, Failure> {
        let command = self.args.exec.clone().unwrap_or_default();
        let mut last = false;
        let outcome = {
            let work = worker::run(&command, &mut delivery, self.lease);
            tokio::pin!(work);
            loop {
                tokio::select! {
                    outcome = &mut work => break Some(outcome),
                    () = interrupts.next() => {
                        if last {
                            break None;
                        }
                        eprintln!("quorate: waiting for the command to end; interrupt again to kill it");
                        last = true;
                    }
                }
            }
        };
        let settling = match outcome {
            Some(Outcome::Done) => delivery.ack(),
            Some(Outcome::Failed(why)) => {
                eprintln!(
                    "{}",
                    worker::failed_line(&delivery, &why, self.context.output.is_json())
                );
                delivery.nack(why)
            }
            None => {
                // The work was cut off by us, not a failure of its own.
                self.stale += tell(delivery.release().await);
                return Err(Failure::Interrupted);
            }
        };
        self.stale += tell(settling.await);
        Ok(last)
    }
}

/// Tells of a settlement that did not go well, and counts it.
fn tell(result: Result<quorate_client::Settled, quorate_client::Error>) -> u64 {
    match result {
        Ok(_) => 0,
        Err(error) => {
            eprintln!("quorate: a message was not settled: {error}");
            1
        }
    }
}
