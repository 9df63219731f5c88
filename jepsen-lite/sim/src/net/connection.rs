//! The ends of connections: what a program reads, writes, dials and accepts.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

use super::{CHUNK_BYTES, End, Host, Line, Listening, Network, Piece, Plane, Stream, WINDOW_BYTES};

/// One end of a connection. Dropping it closes both directions; what was written before still arrives.
#[derive(Debug)]
pub struct Connection {
    network: Network,
    /// Read from here, write to its back.
    line: Line,
}

/// Accepts connections to one address. Dropping it refuses them, from then on.
#[derive(Debug)]
pub struct Listener {
    network: Network,
    address: (Host, Plane),
}

impl Network {
    /// Listens on the port of a host.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if somebody does.
    pub fn listen(&self, host: Host, plane: Plane) -> io::Result<Listener> {
        let mut inner = self.0.lock();
        let address = (host, plane);
        if inner.listeners.contains_key(&address) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        inner.listeners.insert(address, Listening::default());
        drop(inner);
        Ok(Listener {
            network: self.clone(),
            address,
        })
    }

    /// Connects a host to an [address](Host::address). Takes a round trip, or for ever, if the other machine has no
    /// power or cannot be reached: the caller has to bound it.
    ///
    /// # Errors
    ///
    /// `ConnectionRefused` if nobody listens there, `InvalidInput` if it is no address.
    pub async fn dial(&self, from: Host, address: &str) -> io::Result<Connection> {
        let (to, plane) = Host::at(address).ok_or(io::ErrorKind::InvalidInput)?;
        let connection = {
            let mut inner = self.0.lock();
            let line = Line {
                connection: inner.connections,
                forth: true,
            };
            inner.connections += 1;
            inner.lines.insert(line, Stream::new(from, to, plane));
            inner.lines.insert(line.back(), Stream::new(to, from, plane));
            inner.send(line, Piece::Dial);
            Connection::new(self.clone(), line.back())
        };
        std::future::poll_fn(|context| connection.poll_established(context)).await?;
        Ok(connection)
    }
}

impl Stream {
    fn new(from: Host, to: Host, plane: Plane) -> Self {
        Self {
            from,
            to,
            plane,
            sent: std::collections::VecDeque::new(),
            arrived: std::collections::VecDeque::new(),
            bytes: 0,
            end: None,
            established: false,
            reader: None,
            writer: None,
            reader_gone: false,
            writer_gone: false,
        }
    }
}

impl Connection {
    /// The end that reads from `line`.
    pub(super) fn new(network: Network, line: Line) -> Self {
        Self { network, line }
    }

    fn poll_established(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.network.0.lock();
        let stream = inner.lines.get_mut(&self.line).expect("kept while this end is");
        if stream.established {
            Poll::Ready(Ok(()))
        } else if stream.end.is_some() {
            Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into()))
        } else {
            stream.reader = Some(context.waker().clone());
            Poll::Pending
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut inner = self.network.0.lock();
        let stream = inner.lines.get_mut(&self.line).expect("kept while this end is");
        if stream.end == Some(End::Reset) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let mut read = 0;
        while buffer.remaining() > 0
            && let Some(front) = stream.arrived.front_mut()
        {
            let length = front.len().min(buffer.remaining());
            buffer.put_slice(&front[..length]);
            front.advance(length);
            if front.is_empty() {
                stream.arrived.pop_front();
            }
            read += length;
        }
        if read > 0 {
            stream.bytes -= read;
            let writer = stream.writer.take();
            drop(inner);
            if let Some(writer) = writer {
                writer.wake();
            }
            return Poll::Ready(Ok(()));
        }
        if buffer.remaining() == 0 || stream.end.is_some() {
            return Poll::Ready(Ok(()));
        }
        stream.reader = Some(context.waker().clone());
        Poll::Pending
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut inner = self.network.0.lock();
        let back = self.line.back();
        if inner.lines[&self.line].end == Some(End::Reset) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let stream = inner.lines.get_mut(&back).expect("kept while this end is");
        if stream.writer_gone {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = WINDOW_BYTES.saturating_sub(stream.bytes);
        if room == 0 {
            stream.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let length = bytes.len().min(room).min(CHUNK_BYTES);
        inner.send(back, Piece::Bytes(Bytes::copy_from_slice(&bytes[..length])));
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.network.0.lock();
        let back = self.line.back();
        let stream = inner.lines.get_mut(&back).expect("kept while this end is");
        if !stream.writer_gone {
            stream.writer_gone = true;
            inner.send(back, Piece::Finish);
        }
        Poll::Ready(Ok(()))
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut inner = self.network.0.lock();
        let back = self.line.back();
        let Some(stream) = inner.lines.get_mut(&self.line) else {
            return;
        };
        let unread = !stream.arrived.is_empty();
        stream.reader_gone = true;
        stream.arrived.clear();
        stream.bytes = stream.sent.iter().map(|(_, piece)| piece.bytes()).sum();
        let mut wakers = (stream.reader.take(), None);
        if let Some(stream) = inner.lines.get_mut(&back) {
            wakers.1 = stream.writer.take();
            let finished = std::mem::replace(&mut stream.writer_gone, true);
            if unread {
                inner.send(back, Piece::Reset);
            } else if !finished {
                inner.send(back, Piece::Finish);
            }
        }
        inner.forget_if_over(self.line);
        // The wakers are of this end; nobody waits here any more, and dropping them may drop a task, which may
        // hold connections: not under the lock.
        drop(inner);
        drop(wakers);
    }
}

impl Piece {
    fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            _ => 0,
        }
    }
}

impl Listener {
    /// The next connection.
    pub fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<Connection> {
        let mut inner = self.network.0.lock();
        let listening = inner
            .listeners
            .get_mut(&self.address)
            .expect("listed while it listens");
        if let Some(connection) = listening.arrived.pop_front() {
            return Poll::Ready(connection);
        }
        listening.acceptor = Some(context.waker().clone());
        Poll::Pending
    }

    /// The next connection.
    pub async fn accept(&mut self) -> Connection {
        std::future::poll_fn(|context| self.poll_accept(context)).await
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let gone = self.network.0.lock().listeners.remove(&self.address);
        // Connections that nobody accepted are closed: not under the lock.
        drop(gone);
    }
}
