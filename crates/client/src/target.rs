//! Where a publish goes.

use quorate_proto::v1;

/// A queue or an exchange to publish to. Text is the name of a queue.
///
/// ```no_run
/// use quorate_client::{Message, Target};
///
/// # async fn example(client: quorate_client::Client) -> quorate_client::Result<()> {
/// client.publish("jobs", "resize 17.png").await?;
///
/// let order = Message::new("order 9").routing_key("eu.paid");
/// client.publish(Target::exchange("orders").mandatory(), order).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    place: Place,
    mandatory: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Place {
    Queue(String),
    Exchange(String),
}

impl Target {
    /// The queue of this name.
    pub fn queue(name: impl Into<String>) -> Self {
        Self {
            place: Place::Queue(name.into()),
            mandatory: false,
        }
    }

    /// The exchange of this name, which routes each message by its
    /// [routing key](crate::Message::routing_key) or headers.
    pub fn exchange(name: impl Into<String>) -> Self {
        Self {
            place: Place::Exchange(name.into()),
            mandatory: false,
        }
    }

    /// Refuse the publish, with [`Reason::Unroutable`](crate::Reason::Unroutable),
    /// if a message of it has no route. Without this such messages are dropped,
    /// and [named](crate::Published::unroutable) in the answer.
    #[must_use]
    pub fn mandatory(mut self) -> Self {
        self.mandatory = true;
        self
    }

    /// A publish to here, without an id.
    pub(crate) fn request(&self, messages: Vec<v1::OutgoingMessage>) -> v1::PublishRequest {
        let (queue, exchange) = match &self.place {
            Place::Queue(name) => (name.clone(), String::new()),
            Place::Exchange(name) => (String::new(), name.clone()),
        };
        v1::PublishRequest {
            request_id: None,
            queue,
            messages,
            exchange,
            mandatory: self.mandatory,
        }
    }
}

impl From<String> for Target {
    fn from(queue: String) -> Self {
        Self::queue(queue)
    }
}

impl From<&str> for Target {
    fn from(queue: &str) -> Self {
        Self::queue(queue)
    }
}

impl From<&String> for Target {
    fn from(queue: &String) -> Self {
        Self::queue(queue)
    }
}
