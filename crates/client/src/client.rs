//! The handle that everything starts from.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::backoff::Backoff;
use crate::call::{Call, Caller};
use crate::config::{Builder, Config};
use crate::error::{Error, Result};
use crate::message::{Message, Published};
use crate::random::Random;
use crate::request_id::RequestId;
use crate::settle::{Order, SettleDesk};
use crate::target::Target;

/// A connection to a cluster. Cheap to clone; clones share connections and
/// request ids, and may be used from many tasks at once.
#[derive(Clone)]
pub struct Client {
    pub(crate) caller: Arc<Caller>,
    desk: Arc<SettleDesk>,
    timeout: Duration,
}

impl Client {
    /// Finds the leader through any of the nodes given as `host:port`, with
    /// default time limits.
    ///
    /// ```no_run
    /// # async fn example() -> quorate_client::Result<()> {
    /// let client = quorate_client::Client::connect(["127.0.0.1:7400", "127.0.0.1:7410"]).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if an endpoint is malformed or none is given;
    /// [`Error::Unreachable`] if no leader was found within 30 s.
    pub async fn connect<I>(endpoints: I) -> Result<Self>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        Self::builder().endpoints(endpoints).connect().await
    }

    /// Chooses endpoints and time limits.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::new()
    }

    pub(crate) fn new(config: Config) -> Self {
        let timeout = config.timeout;
        Self {
            caller: Arc::new(Caller::new(config)),
            desk: Arc::default(),
            timeout,
        }
    }

    /// This client with another limit for a whole call; see
    /// [`Builder::timeout`].
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self {
            timeout,
            ..self.clone()
        }
    }

    /// Publishes a message to a queue or an exchange. The answer is the confirm: it is on disk on a
    /// majority of the nodes.
    ///
    /// ```no_run
    /// # async fn example(client: quorate_client::Client) -> quorate_client::Result<()> {
    /// let published = client.publish("jobs", "resize 17.png").await?;
    /// println!("{}", published.message_id());
    /// # Ok(()) }
    /// ```
    ///
    /// For many messages, a [`Publisher`](crate::Publisher) keeps many under
    /// way at a time.
    ///
    /// # Errors
    ///
    /// Refused with `QUEUE_NOT_FOUND`, `EXCHANGE_NOT_FOUND`, `QUEUE_FULL` (of
    /// any queue that the message goes to), `UNROUTABLE`, `MESSAGE_TOO_LARGE`,
    /// `HEADERS_TOO_LARGE` or `INVALID_ARGUMENT`; unknown; unreachable.
    pub async fn publish(&self, target: impl Into<Target>, message: impl Into<Message>) -> Result<Published> {
        self.publish_all(target, [message.into()]).await
    }

    /// Publishes 1 to 4,096 messages, together up to 16 MiB, as one: all of
    /// them go to all queues that their target leads to, or none to any.
    ///
    /// # Errors
    ///
    /// Those of [`publish`](Self::publish); invalid if their number or size is
    /// out of bounds.
    pub async fn publish_all<I>(&self, target: impl Into<Target>, messages: I) -> Result<Published>
    where
        I: IntoIterator<Item = Message>,
    {
        let messages = Message::into_wire(messages.into_iter().collect())?;
        let (answer, request_id) = self.call_named(target.into().request(messages)).await?;
        Ok(Published {
            request_id,
            ..answer.into()
        })
    }

    pub(crate) fn random(&self) -> &Random {
        &self.caller.config.random
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) async fn call<C: Call>(&self, call: C) -> Result<C::Answer> {
        self.caller.call(call, self.caller.limits(self.timeout)).await
    }

    /// A call, and the id of its request if it has one.
    pub(crate) async fn call_named<C: Call>(&self, call: C) -> Result<(C::Answer, Option<RequestId>)> {
        self.caller
            .call_named(call, self.caller.limits(self.timeout))
            .await
    }

    /// A call that the broker may answer only after `wait`.
    pub(crate) async fn call_waiting<C: Call>(&self, call: C, wait: Duration) -> Result<C::Answer> {
        let mut limits = self.caller.limits(self.timeout + wait);
        limits.attempt += wait;
        limits.waits = !wait.is_zero();
        self.caller.call(call, limits).await
    }

    /// A call whose one attempt may take all of the time.
    pub(crate) async fn call_slow<C: Call>(&self, call: C) -> Result<C::Answer> {
        let mut limits = self.caller.limits(self.timeout);
        limits.attempt = self.timeout;
        self.caller.call(call, limits).await
    }

    pub(crate) async fn find_leader(&self) -> Result<()> {
        let deadline = Instant::now() + self.timeout;
        let mut backoff = Backoff::new(&self.caller.config);
        loop {
            let cause = match self.caller.links.leader().await {
                Ok(_) => return Ok(()),
                Err(cause) => cause,
            };
            let pause = backoff.pause();
            if Instant::now() + pause >= deadline {
                return Err(Error::no_leader(cause));
            }
            sleep(pause).await;
        }
    }

    pub(crate) fn place(&self, order: Order) {
        self.desk.place(self, order);
    }

    /// This client for the task of its desk, which must not keep that alive.
    pub(crate) fn without_desk(&self) -> Self {
        Self {
            desk: Arc::default(),
            ..self.clone()
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("nodes", &self.caller.links.addresses())
            .finish_non_exhaustive()
    }
}
