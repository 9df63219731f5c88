//! Fetching messages one batch at a time.

use std::time::Duration;

use quorate_proto::v1;

use crate::client::Client;
use crate::delivery::{Delivery, Origin};
use crate::error::Result;
use crate::message::millis;

/// A lease call in the making; see [`Client::lease`].
#[derive(Debug)]
#[must_use = "nothing happens until `send` is called"]
pub struct Lease {
    client: Client,
    request: v1::LeaseRequest,
}

impl Client {
    /// Leases messages of a queue: one, and only if it is there already, unless
    /// asked otherwise.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(client: quorate_client::Client) -> quorate_client::Result<()> {
    /// let deliveries = client.lease("jobs").max(10).wait(Duration::from_secs(5)).send().await?;
    /// for delivery in deliveries {
    ///     println!("{:?}", delivery.body());
    ///     delivery.ack().await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn lease(&self, queue: impl Into<String>) -> Lease {
        let request = v1::LeaseRequest {
            queue: queue.into(),
            max_messages: 1,
            ..Default::default()
        };
        Lease {
            client: self.clone(),
            request,
        }
    }
}

impl Lease {
    /// The most messages: 1 to 1,000; default 1.
    pub fn max(mut self, messages: u32) -> Self {
        self.request.max_messages = messages;
        self
    }

    /// How long they are leased: 100 ms to 12 h; default is the queue's.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.request.lease_ms = millis(lease);
        self
    }

    /// How long to wait for a first message: up to 60 s; default not at all.
    /// The client's time limits are extended by it.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.request.wait_ms = millis(wait);
        self
    }

    /// Sends it. The answer is empty if no message came in time.
    ///
    /// A future that is dropped on the way may leave messages leased that
    /// nobody holds; they come again when the lease has run out.
    ///
    /// # Errors
    ///
    /// Refused with `QUEUE_NOT_FOUND` or `INVALID_ARGUMENT`; unknown;
    /// unreachable.
    pub async fn send(self) -> Result<Vec<Delivery>> {
        let wait = Duration::from_millis(self.request.wait_ms);
        let answer = self.client.call_waiting(self.request, wait).await?;
        let origin = Origin::Leased(self.client);
        Ok(answer
            .deliveries
            .into_iter()
            .map(|wire| Delivery::new(wire, origin.clone()))
            .collect())
    }
}
