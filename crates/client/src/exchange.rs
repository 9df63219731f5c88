//! Exchanges: what routes messages to queues.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use futures_util::Stream;
use quorate_proto::v1;

use crate::binding::Binding;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::message::{Commit, commit, given, millis};
use crate::pages::pages;
use crate::queue::Declared;

/// How an exchange chooses among its bindings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExchangeKind {
    /// Those whose key is the routing key.
    Direct,
    /// All of them.
    Fanout,
    /// Those whose pattern fits the routing key word for word: `*` is one word,
    /// `#` any number.
    Topic,
    /// Those whose [`HeaderMatch`](crate::HeaderMatch) fits the headers.
    Headers,
}

/// Settings of an exchange.
///
/// In a declare, an unset field means the default for a new exchange and
/// "whatever it is" for an existing one. In an update, an unset field is left as
/// it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExchangeSettings {
    /// The exchange that takes what this one has no route for. Empty (default) =
    /// none.
    pub alternate_exchange: Option<String>,
    /// A dedup id is remembered for this long; zero (default) = not at all.
    pub dedup_window: Option<Duration>,
    /// At most so many dedup ids are remembered: 1 to 1,000,000; default
    /// 100,000.
    pub dedup_max_ids: Option<u32>,
}

/// Settings, counts and bindings of an exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExchangeInfo {
    /// Its name.
    pub name: String,
    /// None: one that this version of the library does not know.
    pub kind: Option<ExchangeKind>,
    /// All set.
    pub settings: ExchangeSettings,
    /// Messages published to it or routed through it.
    pub received: u64,
    /// Messages that it had no route for.
    pub unroutable: u64,
    /// Messages that were not taken because their dedup id was known.
    pub duplicates: u64,
    /// What leads from it.
    pub bindings: Vec<Binding>,
}

/// A declare in the making; see [`Client::declare_exchange`].
#[derive(Debug)]
#[must_use = "nothing happens until `send` is called"]
pub struct DeclareExchange {
    client: Client,
    name: String,
    kind: ExchangeKind,
    settings: ExchangeSettings,
}

/// An update in the making; see [`Client::update_exchange`].
#[derive(Debug)]
#[must_use = "nothing happens until `send` is called"]
pub struct UpdateExchange {
    client: Client,
    name: String,
    settings: ExchangeSettings,
}

/// A delete in the making; see [`Client::delete_exchange`].
#[derive(Debug)]
#[must_use = "nothing happens until `send` is called"]
pub struct DeleteExchange {
    client: Client,
    request: v1::DeleteExchangeRequest,
}

/// Exchanges per page of a listing.
const PAGE_SIZE: u32 = 100;

impl Client {
    /// Ensures that an exchange exists.
    ///
    /// ```no_run
    /// use quorate_client::{Binding, ExchangeKind};
    ///
    /// # async fn example(client: quorate_client::Client) -> quorate_client::Result<()> {
    /// client.declare_exchange("orders", ExchangeKind::Topic).send().await?;
    /// client.declare_queue("billing").send().await?;
    /// client.bind(Binding::new("orders", "billing").routing_key("*.paid")).await?;
    /// # Ok(()) }
    /// ```
    pub fn declare_exchange(&self, name: impl Into<String>, kind: ExchangeKind) -> DeclareExchange {
        DeclareExchange {
            client: self.clone(),
            name: name.into(),
            kind,
            settings: ExchangeSettings::default(),
        }
    }

    /// Changes settings of an exchange.
    pub fn update_exchange(&self, name: impl Into<String>) -> UpdateExchange {
        UpdateExchange {
            client: self.clone(),
            name: name.into(),
            settings: ExchangeSettings::default(),
        }
    }

    /// Deletes an exchange, and the bindings from and to it.
    pub fn delete_exchange(&self, name: impl Into<String>) -> DeleteExchange {
        let request = v1::DeleteExchangeRequest {
            name: name.into(),
            ..Default::default()
        };
        DeleteExchange {
            client: self.clone(),
            request,
        }
    }

    /// Settings, counts and bindings of an exchange. Linearizable.
    ///
    /// # Errors
    ///
    /// Refused with `EXCHANGE_NOT_FOUND`; invalid if the name is empty;
    /// unreachable.
    pub async fn describe_exchange(&self, name: impl Into<String>) -> Result<ExchangeInfo> {
        let name = name.into();
        if name.is_empty() {
            // On the wire, this asks for all of them.
            return Err(Error::Invalid("the name of an exchange is not empty".to_owned()));
        }
        let request = v1::ListExchangesRequest {
            name,
            ..Default::default()
        };
        let exchange = self.call(request).await?.exchanges.pop();
        Ok(exchange.unwrap_or_default().into())
    }

    /// All exchanges by name, fetched in pages as they are read. Linearizable per
    /// page. Ends after the first error.
    pub fn list_exchanges(&self) -> impl Stream<Item = Result<ExchangeInfo>> + Send + Unpin + 'static {
        let client = self.clone();
        pages(String::new(), move |after| {
            let client = client.clone();
            async move {
                let request = v1::ListExchangesRequest {
                    page_size: PAGE_SIZE,
                    after,
                    name: String::new(),
                };
                let page = client.call(request).await?;
                let exchanges = page.exchanges.into_iter().map(ExchangeInfo::from).collect();
                Ok((exchanges, given(page.next)))
            }
        })
    }
}

macro_rules! settings_setters {
    ($builder:ident) => {
        impl $builder {
            /// Replaces all settings given so far.
            pub fn settings(mut self, settings: ExchangeSettings) -> Self {
                self.settings = settings;
                self
            }

            /// The exchange that takes what this one has no route for; empty =
            /// none.
            pub fn alternate_exchange(mut self, name: impl Into<String>) -> Self {
                self.settings.alternate_exchange = Some(name.into());
                self
            }

            /// A dedup id is remembered for this long; zero = not at all.
            pub fn dedup_window(mut self, window: Duration) -> Self {
                self.settings.dedup_window = Some(window);
                self
            }

            /// At most so many dedup ids are remembered: 1 to 1,000,000.
            pub fn dedup_max_ids(mut self, ids: u32) -> Self {
                self.settings.dedup_max_ids = Some(ids);
                self
            }
        }
    };
}

settings_setters!(DeclareExchange);
settings_setters!(UpdateExchange);

impl DeclareExchange {
    /// Sends it.
    ///
    /// # Errors
    ///
    /// Refused with `EXCHANGE_CONFLICT` if the exchange exists with another kind
    /// or other settings (the context lists them), `INVALID_ARGUMENT` or
    /// `LIMIT_EXCEEDED`; unknown; unreachable.
    pub async fn send(self) -> Result<Declared> {
        let request = v1::DeclareExchangeRequest {
            request_id: None,
            name: self.name,
            kind: self.kind.to_wire().into(),
            settings: Some(self.settings.into()),
        };
        let answer = self.client.call(request).await?;
        Ok(Declared {
            commit: commit(answer.commit),
            created: answer.created,
        })
    }
}

impl UpdateExchange {
    /// Sends it.
    ///
    /// # Errors
    ///
    /// Refused with `EXCHANGE_NOT_FOUND` or `INVALID_ARGUMENT`; unknown;
    /// unreachable.
    pub async fn send(self) -> Result<Commit> {
        let request = v1::UpdateExchangeRequest {
            request_id: None,
            name: self.name,
            settings: Some(self.settings.into()),
        };
        Ok(commit(self.client.call(request).await?.commit))
    }
}

impl DeleteExchange {
    /// Refuse if a binding leads from or to it.
    pub fn if_unused(mut self) -> Self {
        self.request.if_unused = true;
        self
    }

    /// Sends it.
    ///
    /// # Errors
    ///
    /// Refused with `EXCHANGE_NOT_FOUND` or `EXCHANGE_IN_USE`; unknown;
    /// unreachable.
    pub async fn send(self) -> Result<Commit> {
        Ok(commit(self.client.call(self.request).await?.commit))
    }
}

impl ExchangeKind {
    const ALL: [Self; 4] = [Self::Direct, Self::Fanout, Self::Topic, Self::Headers];

    /// The kind as the command line spells it: `direct`, `fanout`, `topic` or
    /// `headers`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Fanout => "fanout",
            Self::Topic => "topic",
            Self::Headers => "headers",
        }
    }

    fn to_wire(self) -> v1::ExchangeKind {
        match self {
            Self::Direct => v1::ExchangeKind::Direct,
            Self::Fanout => v1::ExchangeKind::Fanout,
            Self::Topic => v1::ExchangeKind::Topic,
            Self::Headers => v1::ExchangeKind::Headers,
        }
    }
}

impl fmt::Display for ExchangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for ExchangeKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let mut kinds = Self::ALL.into_iter();
        kinds.find(|kind| kind.as_str() == name).ok_or_else(|| {
            Error::Invalid(format!(
                "{name:?} is not a kind of exchange: direct, fanout, topic, headers"
            ))
        })
    }
}

impl From<ExchangeSettings> for v1::ExchangeSettings {
    fn from(settings: ExchangeSettings) -> Self {
        Self {
            alternate_exchange: settings.alternate_exchange,
            dedup_window_ms: settings.dedup_window.map(millis),
            dedup_max_ids: settings.dedup_max_ids,
        }
    }
}

impl From<v1::ExchangeSettings> for ExchangeSettings {
    fn from(wire: v1::ExchangeSettings) -> Self {
        Self {
            alternate_exchange: wire.alternate_exchange,
            dedup_window: wire.dedup_window_ms.map(Duration::from_millis),
            dedup_max_ids: wire.dedup_max_ids,
        }
    }
}

impl From<v1::ExchangeInfo> for ExchangeInfo {
    fn from(wire: v1::ExchangeInfo) -> Self {
        let mut kinds = ExchangeKind::ALL.into_iter();
        Self {
            kind: kinds.find(|kind| kind.to_wire() == wire.kind()),
            settings: wire.settings.unwrap_or_default().into(),
            name: wire.name,
            received: wire.received,
            unroutable: wire.unroutable,
            duplicates: wire.duplicates,
            bindings: wire.bindings.into_iter().map(Binding::from).collect(),
        }
    }
}
