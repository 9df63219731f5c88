//! What can be chosen about a client, with its defaults.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::client::Client;
use crate::connector::Connector;
use crate::error::{Error, Result};
use crate::random::Random;

/// Collects endpoints and time limits, and makes a [`Client`].
#[derive(Clone, Debug)]
pub struct Builder {
    config: Config,
}

#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// `host:port`, without a scheme, in the order given.
    pub(crate) endpoints: Vec<String>,
    pub(crate) timeout: Duration,
    pub(crate) attempt_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) probe_timeout: Duration,
    pub(crate) keepalive_interval: Duration,
    pub(crate) keepalive_timeout: Duration,
    pub(crate) backoff_initial: Duration,
    pub(crate) backoff_max: Duration,
    pub(crate) connector: Connector,
    pub(crate) random: Random,
}

/// The largest answer that is accepted. The broker keeps its answers far below.
pub(crate) const ANSWER_BYTES_MAX: usize = 512 << 20;

impl Default for Config {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            timeout: Duration::from_secs(30),
            attempt_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_millis(500),
            probe_timeout: Duration::from_millis(500),
            keepalive_interval: Duration::from_millis(400),
            keepalive_timeout: Duration::from_millis(800),
            backoff_initial: Duration::from_millis(20),
            backoff_max: Duration::from_millis(500),
            connector: Connector::default(),
            random: Random::default(),
        }
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// No endpoints yet, and the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self {
            config: Config::default(),
        }
    }

    /// Adds a node, as `host:port` or `http://host:port`. One that answers is
    /// enough: the others are learned from it. Several make the first contact
    /// independent of any one of them.
    #[must_use]
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        let endpoint = endpoint.into();
        self.config.endpoints.push(bare(&endpoint).to_owned());
        self
    }

    /// Adds several nodes.
    #[must_use]
    pub fn endpoints<I>(self, endpoints: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        endpoints.into_iter().fold(self, Self::endpoint)
    }

    /// The whole of a call with all its attempts: default 30 s. What has no
    /// answer by then is [`Unknown`](Error::Unknown) if it was sent, and
    /// [`Unreachable`](Error::Unreachable) if not.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.config.timeout = timeout;
        self
    }

    /// One attempt: default 1 s. When it passes, all known nodes are asked who
    /// leads, and the call is repeated there with the same request id. It
    /// doubles as long as the answer is the same node.
    #[must_use]
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.config.attempt_timeout = timeout;
        self
    }

    /// Opening a connection: default 500 ms.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout;
        self
    }

    /// Waiting for a node to say whether it leads: default 500 ms.
    #[must_use]
    pub fn probe_timeout(mut self, timeout: Duration) -> Self {
        self.config.probe_timeout = timeout;
        self
    }

    /// A connection with calls under way on which nothing was heard for
    /// `interval` (default 400 ms) is pinged, and given up if the answer takes
    /// longer than `timeout` (default 800 ms). This is what notices a frozen
    /// node under a long call or a stream.
    #[must_use]
    pub fn keepalive(mut self, interval: Duration, timeout: Duration) -> Self {
        self.config.keepalive_interval = interval;
        self.config.keepalive_timeout = timeout;
        self
    }

    /// The pause between attempts: about `initial` (default 20 ms), doubling up
    /// to `max` (default 500 ms), each drawn at random between half and all.
    #[must_use]
    pub fn backoff(mut self, initial: Duration, max: Duration) -> Self {
        self.config.backoff_initial = initial;
        self.config.backoff_max = max.max(initial);
        self
    }

    /// Makes connections another way than by TCP: through a proxy, over a Unix
    /// socket, or within a process. `connect` is given the `host:port` of a node,
    /// as an endpoint or the cluster names it, each time that one is dialled.
    ///
    /// ```no_run
    /// # async fn example() -> quorate_client::Result<()> {
    /// use tokio::net::UnixStream;
    ///
    /// let client = quorate_client::Client::builder()
    ///     .endpoint("broker-0:7400")
    ///     .connector(|node| async move { UnixStream::connect(format!("/run/quorate/{node}")).await })
    ///     .connect()
    ///     .await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn connector<F, C, IO>(mut self, connect: F) -> Self
    where
        F: Fn(String) -> C + Send + Sync + 'static,
        C: Future<Output = io::Result<IO>> + Send + 'static,
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        self.config.connector = Connector::new(connect);
        self
    }

    /// Draws ids and the jitter of pauses from a generator that begins at `seed`,
    /// instead of from the operating system: for a simulation that is to go the
    /// same way again. No two clients of a cluster, ever, may have the same seed:
    /// the broker would take one's request for a repetition of the other's.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.config.random = Random::seeded(seed);
        self
    }

    /// Finds the leader, within [`timeout`](Self::timeout).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if an endpoint is malformed or none is given;
    /// [`Error::Unreachable`] if no leader was found in time.
    pub async fn connect(self) -> Result<Client> {
        let client = self.connect_lazy()?;
        client.find_leader().await?;
        Ok(client)
    }

    /// A client that looks for the leader at its first call. Must be called
    /// within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if an endpoint is malformed or none is given.
    pub fn connect_lazy(self) -> Result<Client> {
        if self.config.endpoints.is_empty() {
            return Err(Error::Invalid("no endpoint is given".to_owned()));
        }
        for endpoint in &self.config.endpoints {
            check(endpoint)?;
        }
        Ok(Client::new(self.config))
    }
}

/// An endpoint without its scheme.
pub(crate) fn bare(endpoint: &str) -> &str {
    let endpoint = endpoint.trim();
    endpoint
        .strip_prefix("http://")
        .unwrap_or(endpoint)
        .trim_end_matches('/')
}

fn check(endpoint: &str) -> Result<()> {
    let malformed = || Error::Invalid(format!("endpoint {endpoint:?} is not of the form host:port"));
    let (host, port) = endpoint.rsplit_once(':').ok_or_else(malformed)?;
    let port: u16 = port.parse().map_err(|_| malformed())?;
    let uri: Result<tonic::codegen::http::Uri, _> = format!("http://{endpoint}").parse();
    if host.is_empty() || host.contains('/') || port == 0 || uri.is_err() {
        return Err(malformed());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_host_and_port_with_or_without_a_scheme() {
        assert_eq!(bare("http://a:1/"), "a:1");
        for good in ["localhost:7400", "10.0.0.1:1", "[::1]:7400", "broker-0.svc:7400"] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in ["localhost", "a:0", "a:99999", ":7400", "https://a:1", "a b:1", ""] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
