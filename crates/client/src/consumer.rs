//! Messages pushed over one stream, and settled over it.
//!
//! A consumer is a *session*, a random number under which the broker keeps its
//! credit and its leases. When the stream breaks, the session is resumed over a
//! new one, on whichever node leads then: the broker sends all its leases
//! again, and those that were already passed on are left out here. Settlements
//! that were not answered are sent again under the same request ids. If the
//! session is lost, its leases are gone, and a new one takes its place.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::Stream;
use quorate_proto::v1;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::client::Client;
use crate::delivery::{ConsumerOrigin, Delivery};
use crate::error::{Error, Result};
use crate::message::millis;
use crate::session::{Command, Session};

/// The largest credit of a consumer.
pub const CREDIT_MAX: u32 = 65_535;

/// A consumer in the making; see [`Client::consume`].
#[derive(Debug)]
#[must_use = "nothing happens until `open` is called"]
pub struct Consume {
    client: Client,
    open: v1::ConsumeOpen,
}

/// A stream of deliveries from one queue.
///
/// It ends after an error: the queue was deleted (`CONSUMER_CANCELLED`), or no
/// leader was found within the client's timeout. Everything else (a failover, a
/// lost connection, a lost session) it lives through.
///
/// Dropped, it ends like with [`close`](Self::close), in the background.
#[derive(Debug)]
pub struct Consumer {
    /// Unbounded, and bounded by the credit.
    deliveries: mpsc::UnboundedReceiver<Result<Passed>>,
    commands: mpsc::Sender<Command>,
    epoch: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

/// A delivery on its way to the consumer's user.
#[derive(Debug)]
pub(crate) struct Passed {
    /// Of the session that holds the lease.
    pub(crate) epoch: u64,
    pub(crate) delivery: Delivery,
}

impl Client {
    /// Consumes a queue.
    ///
    /// ```no_run
    /// # async fn example(client: quorate_client::Client) -> quorate_client::Result<()> {
    /// let mut consumer = client.consume("jobs").prefetch(64).open().await?;
    /// while let Some(delivery) = consumer.next().await {
    ///     let delivery = delivery?;
    ///     println!("{:?}", delivery.body());
    ///     // On its way when `ack` returns; awaiting it is for those who want to
    ///     // know.
    ///     let _ = delivery.ack();
    /// }
    /// # Ok(()) }
    /// ```
    pub fn consume(&self, queue: impl Into<String>) -> Consume {
        let open = v1::ConsumeOpen {
            queue: queue.into(),
            credit: 64,
            ..Default::default()
        };
        Consume {
            client: self.clone(),
            open,
        }
    }
}

impl Consume {
    /// The most deliveries without a settlement: 1 to 65,535; default 64.
    pub fn prefetch(mut self, deliveries: u32) -> Self {
        self.open.credit = deliveries.into();
        self
    }

    /// How long each is leased: 100 ms to 12 h; default is the queue's. It
    /// begins when the broker assigns the message, so it covers the time that
    /// the message waits here for its turn.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.open.lease_ms = millis(lease);
        self
    }

    /// Shown by listings of the cluster; up to 255 bytes.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.open.name = name.into();
        self
    }

    /// While a consumer of a higher priority has credit, those of a lower one are
    /// given nothing: default 0; a lease call counts as 0.
    pub fn priority(mut self, priority: i32) -> Self {
        self.open.priority = priority;
        self
    }

    /// Opens it.
    ///
    /// # Errors
    ///
    /// Invalid if the prefetch is out of bounds; refused with
    /// `QUEUE_NOT_FOUND`, `LIMIT_EXCEEDED` or `INVALID_ARGUMENT`; unreachable.
    pub async fn open(mut self) -> Result<Consumer> {
        check_credit(self.open.credit, 1)?;
        self.open.session = self.client.random().id();
        let (notices, notices_receiver) = mpsc::unbounded_channel();
        let (sender, deliveries) = mpsc::unbounded_channel();
        let (commands, commands_receiver) = mpsc::channel(8);
        let epoch = Arc::new(AtomicU64::new(0));
        let deadline = Instant::now() + self.client.timeout();
        let origin = Arc::new(ConsumerOrigin {
            client: self.client.clone(),
            notices,
        });
        let mut session = Session::new(self.client, self.open, origin, Arc::clone(&epoch), sender);
        let stream = session.connect(deadline).await?;
        let task = tokio::spawn(session.run(stream, notices_receiver, commands_receiver));
        Ok(Consumer {
            deliveries,
            commands,
            epoch,
            task,
        })
    }
}

impl Consumer {
    /// The next delivery; None after the consumer has ended.
    ///
    /// # Errors
    ///
    /// Refused with `CONSUMER_CANCELLED` or another reason that ends a
    /// consumer; unreachable. Nothing comes after an error.
    pub async fn next(&mut self) -> Option<Result<Delivery>> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// Sets the most deliveries without a settlement: 0 (pause) to 65,535.
    /// What is already on its way still comes.
    ///
    /// # Errors
    ///
    /// Invalid if it is out of bounds.
    pub async fn set_credit(&self, credit: u32) -> Result<()> {
        check_credit(credit.into(), 0)?;
        // An error means that the consumer has ended, which the stream tells.
        let _ = self.commands.send(Command::Credit(credit.into())).await;
        Ok(())
    }

    /// Waits until the settlements under way are answered, and ends the
    /// session. Deliveries that are still held go back to the queue without
    /// counting an attempt; settling them later is refused with `STALE_LEASE`.
    pub async fn close(self) {
        let Self {
            deliveries,
            commands,
            task,
            ..
        } = self;
        drop(deliveries);
        drop(commands);
        // An error means that the runtime is going down.
        let _ = task.await;
    }
}

impl Stream for Consumer {
    type Item = Result<Delivery>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match ready!(self.deliveries.poll_recv(context)) {
                Some(Ok(passed)) if passed.epoch == self.epoch.load(Ordering::Acquire) => {
                    return Poll::Ready(Some(Ok(passed.delivery)));
                }
                // Its lease went with the session, and it comes again.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}

fn check_credit(credit: u64, min: u64) -> Result<()> {
    if (min..=u64::from(CREDIT_MAX)).contains(&credit) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "a credit is {min} to {CREDIT_MAX}, not {credit}"
    )))
}
