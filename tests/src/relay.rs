//! A connection that breaks where the test wants it to.
//!
//! It listens on a port of its own and passes bytes on to one address and back,
//! until it is told to keep the answers to itself, or to hang up after so many
//! more bytes.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A running relay; dropped, it hangs up.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    switches: Arc<Switches>,
    _connections: JoinSet<()>,
}

#[derive(Debug)]
struct Switches {
    swallow: AtomicBool,
    /// Bytes that may still pass from client to server.
    budget: AtomicU64,
}

impl Relay {
    /// Starts one in front of `host:port`.
    ///
    /// # Errors
    ///
    /// When it cannot listen.
    pub async fn to(target: &str) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("listen")?;
        let address = listener.local_addr().context("listen")?;
        let switches = Arc::new(Switches {
            swallow: AtomicBool::new(false),
            budget: AtomicU64::new(u64::MAX),
        });
        let mut connections = JoinSet::new();
        connections.spawn(accept(listener, target.to_owned(), Arc::clone(&switches)));
        Ok(Self {
            address,
            switches,
            _connections: connections,
        })
    }

    /// Where to connect, `host:port`.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// From now on the client hears nothing, while the server hears everything.
    pub fn swallow_answers(&self) {
        self.switches.swallow.store(true, Ordering::SeqCst);
    }

    /// Hangs up, on both sides, when so many more bytes have come from clients.
    pub fn hang_up_after(&self, bytes: u64) {
        self.switches.budget.store(bytes, Ordering::SeqCst);
    }
}

async fn accept(listener: TcpListener, target: String, switches: Arc<Switches>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let Ok(server) = TcpStream::connect(&target).await else {
            continue;
        };
        connections.spawn(relay(client, server, Arc::clone(&switches)));
    }
}

async fn relay(client: TcpStream, server: TcpStream, switches: Arc<Switches>) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // Whichever ends first takes the other along: both sockets are dropped.
    tokio::select! {
        () = requests(from_client, to_server, &switches) => {}
        () = answers(from_server, to_client, &switches) => {}
    }
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, switches: &Switches) {
    let mut buffer = vec![0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let budget = switches.budget.load(Ordering::SeqCst);
        let passed = count.min(usize::try_from(budget).unwrap_or(usize::MAX));
        if to.write_all(&buffer[..passed]).await.is_err() || passed < count {
            return;
        }
        if budget != u64::MAX {
            switches.budget.fetch_sub(passed as u64, Ordering::SeqCst);
        }
    }
}

async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, switches: &Switches) {
    let mut buffer = vec![0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let swallow = switches.swallow.load(Ordering::SeqCst);
        if !swallow && to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
