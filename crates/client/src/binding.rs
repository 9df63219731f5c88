//! What leads from an exchange to queues and other exchanges.

use std::collections::BTreeMap;

use quorate_proto::v1;
use quorate_proto::v1::binding::Destination as WireDestination;

use crate::client::Client;
use crate::error::Result;
use crate::message::{Commit, commit};
use crate::queue::Declared;

/// A way from an exchange to a queue or another exchange.
///
/// ```no_run
/// use quorate_client::{Binding, Destination, HeaderMatch};
///
/// # async fn example(client: quorate_client::Client) -> quorate_client::Result<()> {
/// client.bind(Binding::new("orders", "billing").routing_key("*.paid")).await?;
/// client.bind(Binding::new("orders", Destination::exchange("audit")).routing_key("#")).await?;
///
/// let urgent = HeaderMatch::any().header("urgency", "high").present("escalated");
/// client.bind(Binding::new("by-header", "urgent").headers(urgent)).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The exchange it leads from.
    pub source: String,
    /// Where it leads.
    pub destination: Destination,
    /// Of a direct exchange the routing key, of a topic exchange a pattern: words
    /// between dots, where `*` is one word and `#` any number. Up to 255 bytes.
    pub routing_key: String,
    /// Of a headers exchange: which messages go this way.
    pub headers: Option<HeaderMatch>,
}

/// Where a binding leads. Text is the name of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// The queue of this name.
    Queue(String),
    /// The exchange of this name.
    Exchange(String),
}

/// Which headers a message must have, up to 64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderMatch {
    /// One of them is enough; else it needs all.
    pub any: bool,
    /// Headers with these values.
    pub headers: BTreeMap<String, String>,
    /// Headers with any value.
    pub present: Vec<String>,
}

impl Client {
    /// Ensures that a binding exists. Two that differ in anything are two
    /// bindings; a queue gets a message once, however many lead to it.
    ///
    /// # Errors
    ///
    /// Refused with `EXCHANGE_NOT_FOUND`, `QUEUE_NOT_FOUND`, `LIMIT_EXCEEDED` or
    /// `INVALID_ARGUMENT`; unknown; unreachable.
    pub async fn bind(&self, binding: Binding) -> Result<Declared> {
        let request = v1::BindRequest {
            request_id: None,
            binding: Some(binding.into()),
        };
        let answer = self.call(request).await?;
        Ok(Declared {
            commit: commit(answer.commit),
            created: answer.created,
        })
    }

    /// Removes a binding, if it is there.
    ///
    /// # Errors
    ///
    /// Refused with `EXCHANGE_NOT_FOUND` or `INVALID_ARGUMENT`; unknown;
    /// unreachable.
    pub async fn unbind(&self, binding: Binding) -> Result<Commit> {
        let request = v1::UnbindRequest {
            request_id: None,
            binding: Some(binding.into()),
        };
        Ok(commit(self.call(request).await?.commit))
    }
}

impl Binding {
    /// From the exchange `source`, without a key: what a fanout exchange needs.
    pub fn new(source: impl Into<String>, destination: impl Into<Destination>) -> Self {
        Self {
            source: source.into(),
            destination: destination.into(),
            routing_key: String::new(),
            headers: None,
        }
    }

    /// Routing key of a direct exchange, or pattern of a topic exchange.
    #[must_use]
    pub fn routing_key(mut self, key: impl Into<String>) -> Self {
        self.routing_key = key.into();
        self
    }

    /// Which messages of a headers exchange go this way.
    #[must_use]
    pub fn headers(mut self, headers: HeaderMatch) -> Self {
        self.headers = Some(headers);
        self
    }
}

impl Destination {
    /// The queue of this name.
    pub fn queue(name: impl Into<String>) -> Self {
        Self::Queue(name.into())
    }

    /// The exchange of this name.
    pub fn exchange(name: impl Into<String>) -> Self {
        Self::Exchange(name.into())
    }
}

impl HeaderMatch {
    /// A message needs all of the headers that are added.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// A message needs one of the headers that are added.
    #[must_use]
    pub fn any() -> Self {
        Self {
            any: true,
            ..Self::default()
        }
    }

    /// Adds a header with a value.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Adds a header with any value.
    #[must_use]
    pub fn present(mut self, name: impl Into<String>) -> Self {
        self.present.push(name.into());
        self
    }
}

impl From<String> for Destination {
    fn from(queue: String) -> Self {
        Self::Queue(queue)
    }
}

impl From<&str> for Destination {
    fn from(queue: &str) -> Self {
        Self::queue(queue)
    }
}

impl From<&String> for Destination {
    fn from(queue: &String) -> Self {
        Self::queue(queue)
    }
}

impl From<Binding> for v1::Binding {
    fn from(binding: Binding) -> Self {
        let destination = match binding.destination {
            Destination::Queue(name) => WireDestination::Queue(name),
            Destination::Exchange(name) => WireDestination::Exchange(name),
        };
        Self {
            source: binding.source,
            destination: Some(destination),
            routing_key: binding.routing_key,
            headers: binding.headers.map(|headers| v1::HeaderMatch {
                any: headers.any,
                headers: headers.headers,
                present: headers.present,
            }),
        }
    }
}

impl From<v1::Binding> for Binding {
    fn from(wire: v1::Binding) -> Self {
        let destination = match wire.destination {
            Some(WireDestination::Queue(name)) => Destination::Queue(name),
            Some(WireDestination::Exchange(name)) => Destination::Exchange(name),
            None => Destination::Queue(String::new()),
        };
        Self {
            source: wire.source,
            destination,
            routing_key: wire.routing_key,
            headers: wire.headers.map(|headers| HeaderMatch {
                any: headers.any,
                headers: headers.headers,
                present: headers.present,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binding_survives_the_wire() {
        let plain = Binding::new("orders", "billing").routing_key("*.paid");
        let headers = HeaderMatch::any().header("urgency", "high").present("escalated");
        let chained = Binding::new("orders", Destination::exchange("audit")).headers(headers);
        for binding in [plain, chained] {
            assert_eq!(Binding::from(v1::Binding::from(binding.clone())), binding);
        }
    }
}
