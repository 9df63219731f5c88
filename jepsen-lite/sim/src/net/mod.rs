//! The network of a simulated cluster: streams of bytes between hosts, that arrive late, or not at all.
//!
//! It is TCP as a program sees it. What is written arrives in order, after a latency that the seed decides, or
//! the connection breaks; while a direction is cut, bytes are kept, and delivered late when it heals, as
//! retransmission does. A process that dies closes its connections; a machine that loses power says nothing,
//! and its peers are told only when they talk to it after it is back. A process that stands still is connected
//! to, and written to, until its buffers are full.
//!
//! Nothing here runs by itself. [`Network::deliver`] lets everything arrive that is due by then; the simulator
//! calls it once per tick. So an answer is never in the same tick as its question.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`connection`] | the two ends that programs hold: `AsyncRead`, `AsyncWrite`, a listener, a connecting future |
//! | [`rule`] | what faults do to directions |

pub mod connection;
pub mod rule;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::rng::Rng;
use crate::trace::Trace;
use connection::Connection;
use rule::{Counters, Rule, What};

/// A machine on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(pub u32);

impl Host {
    /// Its address, `host:port`, on a plane.
    #[must_use]
    pub fn address(self, plane: Plane) -> SocketAddr {
        let [.., high, low] = self.0.to_be_bytes();
        let port = match plane {
            Plane::Clients => 7400,
            Plane::Peers => 7401,
        };
        SocketAddr::from(([10, 0, high, low], port))
    }

    /// Who has an address, and for what it is.
    #[must_use]
    pub fn at(address: &str) -> Option<(Self, Plane)> {
        let address: SocketAddr = address.parse().ok()?;
        let IpAddr::V4(ip) = address.ip() else { return None };
        let [10, 0, high, low] = ip.octets() else {
            return None;
        };
        let host = Self(u32::from_be_bytes([0, 0, high, low]));
        let plane = [Plane::Clients, Plane::Peers].into_iter();
        plane
            .map(|plane| (host, plane))
            .find(|(host, plane)| host.address(*plane) == address)
    }
}

/// What a connection is for, by the port that was dialled. Faults may hit one and not the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Plane {
    /// Between nodes.
    Peers,
    /// From clients to nodes.
    Clients,
}

/// Most bytes of one direction that were written and not read. A writer waits beyond.
const WINDOW_BYTES: usize = 256 << 10;
/// Most bytes of one chunk, which arrives as one.
const CHUNK_BYTES: usize = 64 << 10;

/// A handle to the network. Cheap to clone.
#[derive(Clone)]
pub struct Network(Arc<Mutex<Inner>>);

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Network")
    }
}

struct Inner {
    now_us: u64,
    rng: Rng,
    trace: Trace,
    listeners: BTreeMap<(Host, Plane), Listening>,
    lines: BTreeMap<Line, Stream>,
    connections: u64,
    /// When the front of a stream is due. Those that wait for their direction to heal are not here.
    due: BTreeSet<(u64, Line)>,
    /// They are here.
    cut: BTreeSet<Line>,
    /// Machines without power.
    off: BTreeSet<Host>,
    rules: BTreeMap<u64, (Rule, Counters)>,
    rules_made: u64,
    /// When a throttled direction is free again.
    free_at: BTreeMap<(Host, Host, Plane), u64>,
}

#[derive(Default)]
struct Listening {
    arrived: VecDeque<Connection>,
    acceptor: Option<Waker>,
}

/// One direction of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    connection: u64,
    /// From the end that dialled to the one that listened.
    forth: bool,
}

impl Line {
    fn back(self) -> Self {
        Self {
            forth: !self.forth,
            ..self
        }
    }
}

struct Stream {
    from: Host,
    to: Host,
    plane: Plane,
    /// On the way, by time.
    sent: VecDeque<(u64, Piece)>,
    /// There, and not read.
    arrived: VecDeque<Bytes>,
    /// Of both.
    bytes: usize,
    end: Option<End>,
    /// The handshake is over in this direction.
    established: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    reader_gone: bool,
    writer_gone: bool,
}

/// What travels.
#[derive(Debug)]
enum Piece {
    /// Wants a connection to whoever listens.
    Dial,
    /// There is one.
    Accept,
    Bytes(Bytes),
    /// No more bytes will follow.
    Finish,
    /// The connection is broken: nobody is there.
    Reset,
}

/// How the stream ended for its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Finished,
    Reset,
}

impl Network {
    /// A network without hosts, at time 0.
    #[must_use]
    pub fn new(rng: Rng, trace: Trace) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            now_us: 0,
            rng,
            trace,
            listeners: BTreeMap::new(),
            lines: BTreeMap::new(),
            connections: 0,
            due: BTreeSet::new(),
            cut: BTreeSet::new(),
            off: BTreeSet::new(),
            rules: BTreeMap::new(),
            rules_made: 0,
            free_at: BTreeMap::new(),
        })))
    }

    /// Lets everything arrive that is due at this time, in microseconds since the start.
    pub fn deliver(&self, now_us: u64) {
        let mut wakers = Vec::new();
        {
            let mut inner = self.0.lock();
            inner.now_us = now_us;
            while let Some(&(due, line)) = inner.due.first()
                && due <= now_us
            {
                inner.due.remove(&(due, line));
                inner.arrive(self, line, &mut wakers);
            }
        }
        // Unlocked: what wakes may drop a connection.
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Makes a rule, from now on. It has effect until it is [lifted](Self::lift).
    #[must_use]
    pub fn impose(&self, rule: Rule) -> u64 {
        let mut inner = self.0.lock();
        inner.rules_made += 1;
        let id = inner.rules_made;
        inner.rules.insert(id, (rule, Counters::default()));
        id
    }

    /// Ends a rule, and tells what it did. What it held back is delivered a little later.
    pub fn lift(&self, id: u64) -> Counters {
        let mut inner = self.0.lock();
        let Some((_, counters)) = inner.rules.remove(&id) else {
            return Counters::default();
        };
        inner.send_all_again();
        counters
    }

    /// Breaks all connections of these hosts, and tells how many.
    pub fn reset(&self, hosts: &[Host]) -> u64 {
        let mut wakers = Vec::new();
        let mut broken = BTreeSet::new();
        let mut inner = self.0.lock();
        let hit: Vec<Line> = inner
            .lines
            .iter()
            .filter(|(_, stream)| hosts.contains(&stream.from) || hosts.contains(&stream.to))
            .map(|(line, _)| *line)
            .collect();
        for line in hit {
            if inner.break_off(line, &mut wakers) {
                broken.insert(line.connection);
            }
        }
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
        broken.len() as u64
    }

    /// A machine loses power: from now on nothing leaves it, and nothing arrives. To be called before its program
    /// is dropped, which would close its connections.
    pub fn power_off(&self, host: Host) {
        let mut inner = self.0.lock();
        inner.off.insert(host);
        let inner = &mut *inner;
        for (line, stream) in inner.lines.iter_mut().filter(|(_, stream)| stream.from == host) {
            stream.sent.clear();
            inner.due.retain(|(_, other)| other != line);
            inner.cut.remove(line);
        }
    }

    /// It has power again: what was sent to it meanwhile is sent again, and refused if it belongs to a connection
    /// of the time before.
    pub fn power_on(&self, host: Host) {
        let mut inner = self.0.lock();
        if inner.off.remove(&host) {
            inner.send_all_again();
        }
    }

    /// How many connections there are.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.0.lock().lines.len().div_ceil(2)
    }
}

impl Inner {
    fn send(&mut self, line: Line, piece: Piece) {
        let Some(stream) = self.lines.get(&line) else {
            return;
        };
        let (from, to, plane) = (stream.from, stream.to, stream.plane);
        if self.off.contains(&from) {
            return;
        }
        let length = match &piece {
            Piece::Bytes(bytes) => bytes.len() as u64,
            _ => 0,
        };
        let mut due = self.now_us + latency_us(&mut self.rng);
        let mut lost = false;
        for (rule, counters) in self.rules.values_mut() {
            if !rule.applies(from, to, plane) {
                continue;
            }
            match rule.what {
                What::Cut => {}
                What::Delay { us } => {
                    due += us + self.rng.below(us);
                    counters.delayed += 1;
                }
                What::Throttle { bytes_per_second } => {
                    let free = self.free_at.entry((from, to, plane)).or_insert(self.now_us);
                    *free = (*free).max(self.now_us) + length * 1_000_000 / bytes_per_second.max(1);
                    counters.delayed += u64::from(*free > due);
                    due = due.max(*free);
                }
                What::Lossy { percent } => {
                    lost |= length > 0 && self.rng.chance(u64::from(percent) * 10);
                    counters.broken += u64::from(lost);
                }
            }
        }
        let piece = if lost { Piece::Reset } else { piece };
        let stream = self.lines.get_mut(&line).expect("looked up above");
        if let Some((last, _)) = stream.sent.back() {
            due = due.max(*last);
        }
        let first = stream.sent.is_empty();
        if let Piece::Bytes(bytes) = &piece {
            stream.bytes += bytes.len();
        }
        stream.sent.push_back((due, piece));
        if first {
            self.due.insert((due, line));
        }
    }

    /// Whatever of this stream is due arrives, unless its direction is cut.
    fn arrive(&mut self, network: &Network, line: Line, wakers: &mut Vec<Waker>) {
        let Some(stream) = self.lines.get(&line) else {
            return;
        };
        let (from, to, plane) = (stream.from, stream.to, stream.plane);
        let mut is_cut = false;
        for (rule, counters) in self.rules.values_mut() {
            if rule.what == What::Cut && rule.applies(from, to, plane) {
                is_cut = true;
                counters.held_bytes += stream.bytes as u64;
                counters.held += 1;
            }
        }
        if is_cut || self.off.contains(&to) {
            self.cut.insert(line);
            return;
        }
        while let Some(stream) = self.lines.get_mut(&line)
            && let Some((due, _)) = stream.sent.front()
        {
            if *due > self.now_us {
                let due = *due;
                self.due.insert((due, line));
                return;
            }
            let (_, piece) = stream.sent.pop_front().expect("looked at above");
            self.take(network, line, piece, wakers);
        }
        self.forget_if_over(line);
    }

    fn take(&mut self, network: &Network, line: Line, piece: Piece, wakers: &mut Vec<Waker>) {
        let stream = self.lines.get_mut(&line).expect("the caller's stream");
        let ends = [line.connection, u64::from(stream.from.0), u64::from(stream.to.0)];
        match piece {
            Piece::Dial => {
                self.trace.note(self.now_us, "dial", &ends, &[]);
                let Some(listening) = self.listeners.get_mut(&(stream.to, stream.plane)) else {
                    stream.reader_gone = true;
                    self.send(line.back(), Piece::Reset);
                    if let Some(back) = self.lines.get_mut(&line.back()) {
                        back.writer_gone = true;
                    }
                    return;
                };
                stream.established = true;
                listening
                    .arrived
                    .push_back(Connection::new(network.clone(), line));
                wakers.extend(listening.acceptor.take());
                self.send(line.back(), Piece::Accept);
            }
            Piece::Accept => {
                stream.established = true;
                wakers.extend(stream.reader.take());
            }
            Piece::Bytes(bytes) => {
                self.trace.note(self.now_us, "bytes", &ends, &bytes);
                if stream.reader_gone {
                    stream.bytes -= bytes.len();
                    self.send(line.back(), Piece::Reset);
                } else {
                    stream.arrived.push_back(bytes);
                    wakers.extend(stream.reader.take());
                }
            }
            Piece::Finish => {
                self.trace.note(self.now_us, "finish", &ends, &[]);
                stream.end.get_or_insert(End::Finished);
                wakers.extend(stream.reader.take());
            }
            Piece::Reset => {
                self.trace.note(self.now_us, "reset", &ends, &[]);
                self.break_off(line, wakers);
            }
        }
    }

    /// The connection is broken for the reader of this stream, who is also the writer of the other direction.
    fn break_off(&mut self, line: Line, wakers: &mut Vec<Waker>) -> bool {
        let Some(stream) = self.lines.get_mut(&line) else {
            return false;
        };
        let news = stream.end != Some(End::Reset) && !stream.reader_gone;
        stream.end = Some(End::Reset);
        stream.arrived.clear();
        stream.bytes = 0;
        stream.sent.clear();
        wakers.extend(stream.reader.take());
        wakers.extend(stream.writer.take());
        if let Some(other) = self.lines.get_mut(&line.back()) {
            wakers.extend(other.writer.take());
        }
        news
    }

    fn send_all_again(&mut self) {
        for line in std::mem::take(&mut self.cut) {
            self.send_again(line);
        }
    }

    /// What was kept back is sent again: soon, but not at once.
    fn send_again(&mut self, line: Line) {
        let wait = self.rng.between(1_000, 200_000);
        let now = self.now_us;
        let Some(stream) = self.lines.get_mut(&line) else {
            return;
        };
        for (due, _) in &mut stream.sent {
            *due = (*due).max(now + wait);
        }
        if let Some((due, _)) = stream.sent.front() {
            self.due.insert((*due, line));
        }
    }

    /// Both ends are gone and nothing is on its way: nobody will ask again.
    fn forget_if_over(&mut self, line: Line) {
        let over = [line, line.back()].iter().all(|line| {
            self.lines.get(line).is_none_or(|stream| {
                let unheard = stream.sent.is_empty() || self.off.contains(&stream.to);
                stream.reader_gone && stream.writer_gone && unheard
            })
        });
        if over {
            for line in [line, line.back()] {
                self.lines.remove(&line);
                self.cut.remove(&line);
            }
        }
    }
}

/// A local network: mostly below two milliseconds, now and then ten times as much.
fn latency_us(rng: &mut Rng) -> u64 {
    match rng.below(100) {
        0 => rng.between(5_000, 25_000),
        1..=9 => rng.between(1_500, 5_000),
        _ => rng.between(150, 1_500),
    }
}
