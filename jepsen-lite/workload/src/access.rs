//! How participants get to the cluster, and how they are cut off from it.
//!
//! Each participant has clients of its own, whose connections are made by whoever runs the load: over TCP to
//! real processes, in memory in the simulator. All connections of one process hang on a lifeline. When that is
//! cut they break, and none can be made any more: what a process leaves behind when it dies.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use quorate_client::{Builder, Client};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::signal::Switch;

/// Bytes to a node and back.
trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

type Connection = Box<dyn Duplex>;
type Dial = Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Connection>> + Send + Sync>;

/// The way to a cluster; clones are the same way.
#[derive(Clone)]
pub struct Access {
    endpoints: Vec<String>,
    dial: Dial,
    /// Where the random numbers of clients begin; `None` = with the operating system.
    seed: Option<u64>,
    /// How long clients wait for an answer before they ask again; `None` = as long as they do by themselves.
    attempt: Option<Duration>,
    /// Clients that were made so far, since no two may have one seed.
    clients: Arc<AtomicU64>,
    lifeline: Arc<Switch>,
}

/// What all connections of a process hang on.
#[derive(Debug)]
pub(crate) struct Lifeline(Arc<Switch>);

/// A connection that breaks when its lifeline is cut.
struct Hanging {
    /// `None` = it is broken.
    connection: Option<Connection>,
    cut: BoxFuture<'static, ()>,
}

impl Access {
    /// Over TCP, to nodes given as `host:port`.
    pub fn tcp<I>(endpoints: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        Self::by(endpoints, |node| async move {
            let stream = TcpStream::connect(node).await?;
            stream.set_nodelay(true)?;
            Ok(stream)
        })
    }

    /// Another way: `connect` is given the `host:port` of a node, as the endpoints or the cluster name it, each
    /// time that one is dialled.
    pub fn by<I, F, C, IO>(endpoints: I, connect: F) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
        F: Fn(String) -> C + Send + Sync + 'static,
        C: Future<Output = io::Result<IO>> + Send + 'static,
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            dial: Arc::new(move |node| {
                let connecting = connect(node);
                Box::pin(async move { Ok(Box::new(connecting.await?) as Connection) })
            }),
            seed: None,
            attempt: None,
            clients: Arc::default(),
            lifeline: Arc::default(),
        }
    }

    /// Whose clients draw from generators that begin at this seed, so that a simulated run goes the same way
    /// again. A cluster that outlives the run must not see the seed a second time: it would take requests for
    /// repetitions.
    #[must_use]
    pub fn seeded(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Whose clients wait so long for an answer before they ask again.
    pub(crate) fn with_attempts_of(mut self, attempt: Option<Duration>) -> Self {
        self.attempt = attempt;
        self
    }

    /// A client on connections of its own, whose calls may take this long.
    ///
    /// # Panics
    ///
    /// When an endpoint is malformed, or there is none.
    #[must_use]
    pub fn client(&self, timeout: Duration) -> Client {
        lazy(self.builder(timeout))
    }

    /// The same, but each attempt may take no longer than this before the request is sent again.
    pub(crate) fn hasty_client(&self, timeout: Duration, attempt: Duration) -> Client {
        lazy(self.builder(timeout).attempt_timeout(attempt))
    }

    fn builder(&self, timeout: Duration) -> Builder {
        let (dial, lifeline) = (Arc::clone(&self.dial), Arc::clone(&self.lifeline));
        let builder = Client::builder()
            .endpoints(self.endpoints.clone())
            .timeout(timeout)
            .connector(move |node| hang(dial(node), Arc::clone(&lifeline)));
        let builder = match self.attempt {
            Some(attempt) => builder.attempt_timeout(attempt),
            None => builder,
        };
        let number = self.clients.fetch_add(1, Ordering::Relaxed);
        match self.seed {
            // Far from the seeds of other clients and of other runs.
            Some(seed) => builder.seed(seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))),
            None => builder,
        }
    }

    /// The nodes, as `host:port`.
    #[must_use]
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// The same way for one process alone, which can be cut.
    pub(crate) fn of_one_process(&self) -> (Self, Lifeline) {
        let lifeline = Arc::default();
        let access = Self {
            lifeline: Arc::clone(&lifeline),
            ..self.clone()
        };
        (access, Lifeline(lifeline))
    }
}

fn lazy(builder: Builder) -> Client {
    builder
        .connect_lazy()
        .expect("the endpoints of a cluster are well-formed")
}

/// A connection in the making, on a lifeline.
async fn hang(
    connecting: BoxFuture<'static, io::Result<Connection>>,
    lifeline: Arc<Switch>,
) -> io::Result<Hanging> {
    tokio::select! {
        biased;
        () = lifeline.wait(true) => Err(broken()),
        connection = connecting => {
            let connection = Some(connection?);
            let cut = Box::pin(async move { lifeline.wait(true).await });
            Ok(Hanging { connection, cut })
        }
    }
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the process is gone")
}

impl Lifeline {
    /// Breaks all connections, and keeps others from being made.
    pub(crate) fn cut(&self) {
        self.0.set(true);
    }
}

impl Hanging {
    /// The connection, or that there is none any more.
    fn connection(&mut self, context: &mut Context<'_>) -> io::Result<Pin<&mut Connection>> {
        if self.connection.is_some() && self.cut.as_mut().poll(context).is_ready() {
            self.connection = None;
        }
        self.connection.as_mut().map(Pin::new).ok_or_else(broken)
    }
}

impl AsyncRead for Hanging {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.connection(context)?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Hanging {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.connection(context)?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection(context)?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection(context)?.poll_shutdown(context)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("endpoints", &self.endpoints)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_process_that_is_cut_leaves_broken_connections_and_makes_no_others() {
        let ends: Arc<Mutex<Vec<DuplexStream>>> = Arc::default();
        let kept = Arc::clone(&ends);
        let access = Access::by(["node:1"], move |_| {
            let (here, there) = duplex(64);
            kept.lock().expect("no panic").push(there);
            async { Ok(here) }
        });
        let (one, lifeline) = access.of_one_process();
        let (other, _kept) = access.of_one_process();
        let dial = |access: &Access| hang((access.dial)("node:1".to_owned()), Arc::clone(&access.lifeline));
        let mut held = dial(&one).await.expect("it connects");
        let reading = tokio::spawn(async move { held.read_u8().await.map_err(|error| error.kind()) });
        tokio::task::yield_now().await;
        lifeline.cut();
        assert_eq!(
            reading.await.expect("no panic"),
            Err(io::ErrorKind::ConnectionAborted)
        );
        let mut end = ends.lock().expect("no panic").remove(0);
        assert_eq!(
            end.read(&mut [0]).await.expect("it reads"),
            0,
            "the other end sees it"
        );
        assert!(dial(&one).await.is_err(), "it connects again");
        assert!(dial(&other).await.is_ok(), "another process is cut too");
    }
}
