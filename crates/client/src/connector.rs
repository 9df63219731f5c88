//! How a connection to a node is made.
//!
//! Over TCP, unless the builder is given another way ([`Builder::connector`]). HTTP/2 runs over whatever
//! comes, as long as it carries bytes in both directions, in order.
//!
//! [`Builder::connector`]: crate::Builder::connector

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint, Error};

/// Bytes to a node and back.
trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn Duplex>>> + Send>>;

/// Makes connections.
#[derive(Clone, Default)]
pub(crate) struct Connector(Option<Arc<dyn Fn(String) -> Connecting + Send + Sync>>);

impl Connector {
    pub(crate) fn new<F, C, IO>(connect: F) -> Self
    where
        F: Fn(String) -> C + Send + Sync + 'static,
        C: Future<Output = io::Result<IO>> + Send + 'static,
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Self(Some(Arc::new(move |address| {
            let connecting = connect(address);
            Box::pin(async move { Ok(Box::new(connecting.await?) as Box<dyn Duplex>) })
        })))
    }

    /// A connection to a node, `host:port`.
    pub(crate) async fn connect(&self, address: &str, endpoint: Endpoint) -> Result<Channel, Error> {
        match &self.0 {
            None => endpoint.connect().await,
            Some(connect) => {
                let (connect, address) = (Arc::clone(connect), address.to_owned());
                endpoint
                    .connect_with_connector(Dial(Box::new(move || connect(address.clone()))))
                    .await
            }
        }
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "given" } else { "TCP" })
    }
}

/// Connects to one node; the URI names the same.
struct Dial(Box<dyn Fn() -> Connecting + Send>);

impl Service<Uri> for Dial {
    type Response = TokioIo<Box<dyn Duplex>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connecting = (self.0)();
        Box::pin(async move { connecting.await.map(TokioIo::new) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use crate::Client;
    use crate::error::Error;

    #[tokio::test]
    async fn every_node_is_dialled_by_the_given_way() {
        let dialled = std::sync::Arc::new(Mutex::new(Vec::new()));
        let told = dialled.clone();
        let connected = Client::builder()
            .endpoints(["a:1", "http://b:2"])
            .timeout(Duration::from_millis(1))
            .connector(move |node| {
                told.lock().unwrap().push(node);
                async { Err::<tokio::io::DuplexStream, _>(std::io::Error::other("the cable is cut")) }
            })
            .connect()
            .await;
        let Err(Error::Unreachable { cause, .. }) = connected else {
            panic!("{connected:?}");
        };
        assert!(cause.contains("the cable is cut"), "{cause}");
        let mut dialled = dialled.lock().unwrap().clone();
        dialled.sort_unstable();
        assert_eq!(dialled, ["a:1", "b:2"]);
    }
}
