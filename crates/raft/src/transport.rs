//! How bytes get from node to node: TCP, or whatever a test puts in its place.
//!
//! gRPC over HTTP/2 is spoken over any [`Connection`], so everything above this (the peer service, forwarding, deadlines,
//! keep-alive) stays what it is when the network is one of memory.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt as _};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::server::Connected;

/// Makes the connections between nodes.
pub trait Transport: fmt::Debug + Send + Sync + 'static {
    /// Connects to a `host:port`. An error of the kind [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) says that
    /// somebody is there who answers that nobody listens; a node then thinks of the process there as dead.
    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Connection>>;
    /// Listens. Port 0 picks one.
    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Listener>>;
}

/// What [`Transport::listen`] answers. Dropped, it listens no more.
pub struct Listener {
    /// Where it is bound.
    pub address: SocketAddr,
    /// Accepted connections. An error is of one of them, not of the listener.
    pub incoming: BoxStream<'static, io::Result<Connection>>,
}

/// A reliable stream of bytes in both directions.
pub struct Connection(Box<dyn Stream>);

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Connection {
    /// Over any stream.
    pub fn new(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        Self(Box::new(stream))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

/// The transport of every real node: TCP, without Nagle's delay.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Transport for Tcp {
    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Connection>> {
        let address = address.to_owned();
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(Connection::new(stream))
        })
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Listener>> {
        Box::pin(async move {
            let listener = TcpListener::bind(address).await?;
            let address = listener.local_addr()?;
            let incoming = TcpListenerStream::new(listener).map(|accepted| {
                let stream = accepted?;
                stream.set_nodelay(true)?;
                Ok(Connection::new(stream))
            });
            Ok(Listener {
                address,
                incoming: incoming.boxed(),
            })
        })
    }
}

/// A transport as what tonic dials with.
#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) transport: Arc<dyn Transport>,
    /// The `host:port`, as it was given: that of the URI may be written otherwise.
    pub(crate) address: String,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Connection>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<TokioIo<Connection>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connected = self.transport.connect(&self.address);
        Box::pin(async move { connected.await.map(TokioIo::new) })
    }
}
