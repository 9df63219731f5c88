//! A listener in front of another: connections to it go on to a target, over two [`Link`]s.
//!
//! It can hang up on all its connections, in the way that a host does that has forgotten them (RST), and it
//! can refuse new ones as a host does on which nobody listens. A connection whose target does not answer is
//! kept until its links are passable, so that behind a cut a dead target looks like a silent one.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::tcp::WriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::link::{Conduct, Ending, Link, Piece, keep};

/// Between two attempts to listen again on a port of ours.
const LISTEN_AGAIN: Duration = Duration::from_millis(20);

/// A running proxy; dropped, it hangs up.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    requests: Arc<Link>,
    answers: Arc<Link>,
    gate: Arc<watch::Sender<Gate>>,
    counters: Arc<Counters>,
    _task: JoinSet<()>,
}

/// What all connections of a proxy obey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gate {
    /// Somebody listens.
    open: bool,
    /// How often all connections were broken.
    resets: u64,
}

#[derive(Debug, Default)]
struct Counters {
    accepted: AtomicU64,
    live: AtomicU64,
    broken: AtomicU64,
}

/// What became of a proxy's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Those that were ever made.
    pub accepted: u64,
    /// Those that there are now.
    pub live: u64,
    /// Those that were broken by [`Proxy::reset`] or [`Proxy::refuse`].
    pub broken: u64,
}

impl Proxy {
    /// Starts one in front of `host:port`, on links of its own and a port that the kernel picks.
    ///
    /// # Errors
    ///
    /// When it cannot listen.
    pub async fn to(target: &str) -> Result<Self> {
        let target = target.parse().with_context(|| format!("understand {target}"))?;
        Self::between(0, target, Arc::default(), Arc::default()).await
    }

    /// Starts one on a local port (0 = the kernel picks one) in front of `target`.
    ///
    /// # Errors
    ///
    /// When it cannot listen.
    pub async fn between(
        port: u16,
        target: SocketAddr,
        requests: Arc<Link>,
        answers: Arc<Link>,
    ) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
        let listener = listener.with_context(|| format!("listen on port {port}"))?;
        let address = listener.local_addr().context("listen")?;
        let gate = Arc::new(watch::Sender::new(Gate {
            open: true,
            resets: 0,
        }));
        let counters = Arc::new(Counters::default());
        let door = Door {
            address,
            target,
            requests: Arc::clone(&requests),
            answers: Arc::clone(&answers),
            counters: Arc::clone(&counters),
            gate: gate.subscribe(),
        };
        let mut task = JoinSet::new();
        task.spawn(door.run(listener));
        Ok(Self {
            address,
            requests,
            answers,
            gate,
            counters,
            _task: task,
        })
    }

    /// Where to connect, `host:port`.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// From now on the client hears nothing, while the server hears everything.
    pub fn hold_answers(&self) {
        self.answers.set(Conduct {
            stalled: true,
            ..self.answers.conduct()
        });
    }

    /// Hangs up, on both sides, when so many more bytes have come from clients.
    pub fn hang_up_after(&self, bytes: u64) {
        self.requests.break_after(bytes);
    }

    /// Breaks all connections. New ones can be made.
    pub fn reset(&self) {
        self.gate.send_modify(|gate| gate.resets += 1);
    }

    /// Lets nobody connect any more. What is connected breaks, unless it is `kept`.
    pub fn refuse(&self, kept: bool) {
        self.gate.send_if_modified(|gate| {
            let resets = gate.resets + u64::from(gate.open && !kept);
            let changed = gate.open || resets != gate.resets;
            *gate = Gate { open: false, resets };
            changed
        });
    }

    /// Lets others connect again.
    pub fn accept(&self) {
        self.gate
            .send_if_modified(|gate| !std::mem::replace(&mut gate.open, true));
    }

    /// What became of its connections.
    #[must_use]
    pub fn connections(&self) -> Connections {
        Connections {
            accepted: self.counters.accepted.load(Ordering::Relaxed),
            live: self.counters.live.load(Ordering::Relaxed),
            broken: self.counters.broken.load(Ordering::Relaxed),
        }
    }
}

/// The side of a proxy that listens.
#[derive(Clone)]
struct Door {
    address: SocketAddr,
    target: SocketAddr,
    requests: Arc<Link>,
    answers: Arc<Link>,
    counters: Arc<Counters>,
    gate: watch::Receiver<Gate>,
}

impl Door {
    async fn run(self, listener: TcpListener) {
        let mut listener = Some(listener);
        let mut gate = self.gate.clone();
        let mut connections = JoinSet::new();
        loop {
            let open = gate.borrow_and_update().open;
            if !open {
                listener = None;
            } else if listener.is_none() {
                listener = TcpListener::bind(self.address).await.ok();
            }
            tokio::select! {
                changed = gate.changed() => if changed.is_err() { return },
                accepted = accept(listener.as_ref()), if open => {
                    if let Some(dialler) = accepted {
                        connections.spawn(self.clone().connection(dialler));
                    }
                }
                Some(_) = connections.join_next() => {}
            }
        }
    }

    async fn connection(self, dialler: TcpStream) {
        let mut gate = self.gate.clone();
        let began = gate.borrow().resets;
        self.counters.accepted.fetch_add(1, Ordering::Relaxed);
        self.counters.live.fetch_add(1, Ordering::Relaxed);
        tokio::select! {
            () = self.converse(Abrupt::new(dialler)) => {}
            _ = gate.wait_for(|gate| gate.resets != began) => {
                self.counters.broken.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.counters.live.fetch_sub(1, Ordering::Relaxed);
    }

    /// The life of a connection.
    async fn converse(&self, mut dialler: Abrupt) {
        // What the dialler says is taken from the start: to it there is a connection.
        let (from_dialler, to_dialler) = dialler.stream.split();
        let (requests_in, requests) = keep();
        let life = self.with_target(requests, to_dialler);
        let whole = beside(self.requests.take(from_dialler, requests_in), life).await;
        dialler.gentle = whole;
    }

    /// Connects to the target and passes on what there is; says whether all was said, both ways.
    async fn with_target(&self, requests: mpsc::Receiver<Piece>, to_dialler: WriteHalf<'_>) -> bool {
        // A handshake goes to and fro.
        self.requests.passable().await;
        self.answers.passable().await;
        let connected = TcpStream::connect(self.target).await;
        let Ok(mut target) = connected.map(Abrupt::new) else {
            self.answers.passable().await;
            return false;
        };
        let (from_target, to_target) = target.stream.split();
        let (answers_in, answers) = keep();
        let there = pass(&self.requests, requests, to_target, &self.answers);
        let back = pass(&self.answers, answers, to_dialler, &self.requests);
        let both = async { tokio::try_join!(there, back).is_ok() };
        let whole = beside(self.answers.take(from_target, answers_in), both).await;
        target.gentle = whole;
        whole
    }
}

/// Passes on all of one direction. It fails when the other side is to see the connection break, which news
/// takes the way `home`.
async fn pass(link: &Link, kept: mpsc::Receiver<Piece>, to: WriteHalf<'_>, home: &Link) -> Result<(), ()> {
    match link.give(kept, to).await {
        Ending::Whole => Ok(()),
        Ending::Broken => Err(()),
        Ending::Refused => {
            home.passable().await;
            Err(())
        }
    }
}

/// Does `work`, and something beside it that may end earlier.
async fn beside<T>(aside: impl Future<Output = ()>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    tokio::select! {
        result = &mut work => result,
        () = aside => work.await,
    }
}

/// A connection that ends as one that is forgotten (RST), unless it is told to end gently.
struct Abrupt {
    stream: TcpStream,
    gentle: bool,
}

impl Abrupt {
    fn new(stream: TcpStream) -> Self {
        // A stream on which it cannot be set is gone already.
        let _ = stream.set_nodelay(true);
        Self {
            stream,
            gentle: false,
        }
    }
}

impl Drop for Abrupt {
    fn drop(&mut self) {
        if !self.gentle {
            let _ = self.stream.set_zero_linger();
        }
    }
}

/// The next connection, or a pause if there is none to be had.
async fn accept(listener: Option<&TcpListener>) -> Option<TcpStream> {
    if let Some(listener) = listener
        && let Ok((stream, _)) = listener.accept().await
    {
        return Some(stream);
    }
    tokio::time::sleep(LISTEN_AGAIN).await;
    None
}

#[cfg(test)]
mod tests;
