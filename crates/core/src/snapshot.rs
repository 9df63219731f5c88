//! The whole state at one index: taken in a moment, written and read in pieces.
//!
//! A [`Snapshot`] holds handles of the pages that the broker holds too; the
//! broker copies a page before it changes it. So the one who writes a snapshot
//! out can take their time, on another thread.
//!
//! Written out it is a version byte and then frames, each a length (`u32`,
//! little-endian) and a `Frame` in postcard. The last one has a checksum of
//! all bytes before it. Where the stream is cut into pieces has no meaning.
//! Indexes are not written; [`Broker::restore`] builds them from the records,
//! and then checks the [invariants].

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::Arc;

use quorate_mutants::mutant;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::assign::{Waiter, Waiters};
use crate::broker::Broker;
use crate::command::Binding;
use crate::dead_letter::Address;
use crate::deadlines::Due;
use crate::dedup::{Remembered, Window};
use crate::exchange::{Exchange, ExchangeId, Head as ExchangeHead};
use crate::graves::{Grave, GraveHead, Graves};
use crate::hash::{RollingHash, encode_into};
use crate::ids::{ClientId, ConsumerId, Incarnation, MessageId, NodeId, QueueId, SessionId, Timestamp};
use crate::invariants;
use crate::outcome::Rejection;
use crate::queue::{
    GroupHead, Head, Holder, Lease, Page, Pages, Place, Queue, Record, State, Taker, Tally, Turn,
};
use crate::requests::{Client, ClientHead, Executed, Requests};
use crate::session::{Consumer, Session, SessionHead};

/// Pieces of a snapshot have at most this many bytes.
pub const PIECE_BYTES_MAX: usize = 16 * 1024;

const VERSION: u8 = 1;
/// A frame that says it is longer is not one: nothing comes near.
const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The state of a broker at one index.
#[derive(Clone, Debug)]
pub struct Snapshot {
    root: Root,
    queues: Vec<SavedQueue>,
    exchanges: Vec<SavedExchange>,
    graves: Graves,
    sessions: Vec<SavedSession>,
    waiters: Vec<Waiter>,
    clients: BTreeMap<ClientId, Arc<Client>>,
    bytes: u64,
}

/// It is written on another thread than that of the broker.
const _: () = {
    const fn can_be_sent<T: Send + Sync + 'static>() {}
    can_be_sent::<Snapshot>();
};

/// A queue without its indexes.
#[derive(Clone, Debug)]
struct SavedQueue {
    head: Head,
    groups: Pages<GroupHead>,
    records: Pages<Record>,
    dedup: Pages<Remembered>,
}

/// An exchange without its indexes.
#[derive(Clone, Debug)]
struct SavedExchange {
    head: ExchangeHead,
    bindings: Arc<BTreeSet<Arc<Binding>>>,
    dedup: Pages<Remembered>,
}

/// A session without its index of leases.
#[derive(Clone, Debug)]
struct SavedSession {
    id: SessionId,
    head: SessionHead,
    consumers: Vec<(ConsumerId, Consumer)>,
}

/// Why a snapshot cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Its bytes could not be had.
    #[error("read the snapshot")]
    Source(#[source] Box<dyn Error + Send + Sync>),
    /// It was written by a version that this one does not know.
    #[error("the snapshot is of version {0}; this is version {VERSION}")]
    Version(u8),
    /// It ends before its end.
    #[error("the snapshot is cut short")]
    Truncated,
    /// Bytes are not what was written.
    #[error("the snapshot is corrupt: {0}")]
    Corrupt(String),
    /// It is as it was written, and makes no sense.
    #[error("the snapshot contradicts itself: {0}")]
    Inconsistent(String),
}

/// What a snapshot says, piece by piece, in this order. Persisted: a change
/// needs a new version.
#[derive(Serialize, Deserialize)]
enum Frame<'a> {
    Root(Cow<'a, Root>),
    Queue(Cow<'a, Head>),
    /// Of the queue before it.
    Groups {
        number: u64,
        page: Cow<'a, Page<GroupHead>>,
    },
    /// Records that belong to no queue any more.
    Grave(Cow<'a, GraveHead>),
    /// Of the queue or grave before it.
    Page {
        number: u64,
        page: Cow<'a, Page<Record>>,
    },
    /// A page of the dedup ids of the queue or exchange before it.
    Window {
        number: u64,
        page: Cow<'a, Page<Remembered>>,
    },
    Session {
        id: SessionId,
        head: SessionHead,
        consumers: Cow<'a, [(ConsumerId, Consumer)]>,
    },
    /// After all queues.
    Exchange(Cow<'a, ExchangeHead>),
    /// After all exchanges.
    Binding(Cow<'a, Binding>),
    Waiter(Cow<'a, Waiter>),
    Client {
        id: ClientId,
        head: ClientHead,
    },
    /// Of the client before it.
    Outcome {
        sequence: u64,
        executed: Cow<'a, Executed>,
    },
    End {
        checksum: u64,
    },
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Root {
    index: u64,
    now: Timestamp,
    hash: u128,
    grants: u64,
    epochs: u64,
    uses: u64,
    nodes: BTreeMap<NodeId, Incarnation>,
}

impl Broker {
    /// The state as it is now. Costs a handle for each page of messages and for
    /// each client, and a copy of the heads of queues and sessions.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let root = Root {
            index: self.index,
            now: self.now,
            hash: self.state_hash(),
            grants: self.grants,
            epochs: self.epochs,
            uses: self.requests.uses(),
            nodes: self.nodes.clone(),
        };
        let sessions = self.sessions.by_id.iter().map(|(id, session)| {
            let consumers = session
                .consumers
                .iter()
                .map(|(id, consumer)| (*id, consumer.clone()));
            SavedSession {
                id: *id,
                head: session.head,
                consumers: consumers.collect(),
            }
        });
        Snapshot {
            root,
            queues: self
                .queues
                .values()
                .map(|queue| SavedQueue {
                    head: queue.head.clone(),
                    groups: queue.groups.heads.clone(),
                    records: queue.records.clone(),
                    dedup: queue.dedup.remembered().clone(),
                })
                .collect(),
            exchanges: self
                .exchanges
                .by_id
                .values()
                .map(|exchange| SavedExchange {
                    head: exchange.head.clone(),
                    bindings: exchange.bindings.clone(),
                    dedup: exchange.dedup.remembered().clone(),
                })
                .collect(),
            graves: self.graves.clone(),
            sessions: sessions.collect(),
            waiters: self.waiters.by_request.values().cloned().collect(),
            clients: self.requests.clients().clone(),
            bytes: self.approximate_bytes(),
        }
    }

    /// From experience: what a thing of each kind takes when it is written.
    fn approximate_bytes(&self) -> u64 {
        let messages: u64 = self.queues.values().map(|queue| queue.tallies.all().count).sum();
        let rest = self.queues.len()
            + self.exchanges.by_id.len()
            + self.exchanges.bindings
            + self.sessions.by_id.len()
            + self.requests.clients().len();
        let queues = self.queues.values().map(|queue| &queue.dedup);
        let exchanges = self.exchanges.by_id.values().map(|exchange| &exchange.dedup);
        let dedup_ids: usize = queues.chain(exchanges).map(Window::ids).sum();
        256 + messages * 24 + dedup_ids as u64 * 40 + rest as u64 * 64
    }

    /// The broker that a snapshot was taken of: it goes on exactly as that one
    /// would have. Takes the bytes that [`Snapshot::write`] gave, cut anyhow.
    ///
    /// # Errors
    ///
    /// If the bytes cannot be had, are not what was written, or make no sense.
    pub fn restore<B, E>(pieces: impl Iterator<Item = Result<B, E>>) -> Result<Self, RestoreError>
    where
        B: AsRef<[u8]>,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let mut reader = Reader {
            pieces,
            buffer: Vec::new(),
            taken: 0,
            hash: Xxh3::new(),
        };
        match reader.take(1)? {
            [VERSION] => {}
            other => return Err(RestoreError::Version(other[0])),
        }
        let mut restoring = Restoring::default();
        loop {
            let checksum = reader.hash.digest();
            match reader.frame()? {
                Frame::End { checksum: written } if written == checksum => break,
                Frame::End { .. } if mutant!("checksum-not-verified") => break,
                Frame::End { .. } => return Err(RestoreError::Corrupt("its checksum is another".to_owned())),
                frame => restoring.take(frame)?,
            }
        }
        reader.expect_end()?;
        restoring.finish()
    }
}

impl Snapshot {
    /// Index of the last entry that it contains.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.root.index
    }

    /// The broker's state hash at that index.
    #[must_use]
    pub fn state_hash(&self) -> u128 {
        self.root.hash
    }

    /// Writes it out in pieces of at most [`PIECE_BYTES_MAX`]. Equal states give
    /// equal bytes.
    ///
    /// # Errors
    ///
    /// The first that the sink returns; nothing is written after it.
    pub fn write<E>(&self, sink: &mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut writer = Writer {
            sink,
            buffer: vec![VERSION],
            hash: Xxh3::new(),
            scratch: Vec::new(),
        };
        writer.frame(&Frame::Root(Cow::Borrowed(&self.root)))?;
        for SavedQueue {
            head,
            groups,
            records,
            dedup,
        } in &self.queues
        {
            writer.frame(&Frame::Queue(Cow::Borrowed(head)))?;
            for (number, page) in groups.pages() {
                let page = Cow::Borrowed(page);
                writer.frame(&Frame::Groups { number, page })?;
            }
            writer.pages(records)?;
            if !mutant!("snapshot-without-dedup") {
                writer.window(dedup)?;
            }
        }
        for Grave { head, records } in &self.graves.queue {
            writer.frame(&Frame::Grave(Cow::Borrowed(head)))?;
            writer.pages(records)?;
        }
        for SavedExchange { head, dedup, .. } in &self.exchanges {
            writer.frame(&Frame::Exchange(Cow::Borrowed(head)))?;
            writer.window(dedup)?;
        }
        for binding in self
            .exchanges
            .iter()
            .flat_map(|exchange| exchange.bindings.iter())
        {
            writer.frame(&Frame::Binding(Cow::Borrowed(binding)))?;
        }
        for SavedSession { id, head, consumers } in &self.sessions {
            let consumers = Cow::Borrowed(&consumers[..]);
            writer.frame(&Frame::Session {
                id: *id,
                head: *head,
                consumers,
            })?;
        }
        for waiter in &self.waiters {
            writer.frame(&Frame::Waiter(Cow::Borrowed(waiter)))?;
        }
        for (id, client) in &self.clients {
            writer.frame(&Frame::Client {
                id: *id,
                head: client.head,
            })?;
            for (sequence, executed) in &client.outcomes {
                let executed = Cow::Borrowed(executed);
                writer.frame(&Frame::Outcome {
                    sequence: *sequence,
                    executed,
                })?;
            }
        }
        writer.finish()
    }

    /// The contents that its messages refer to, each once, and their lengths. Not
    /// those of messages that are gone, even if their contents are still to be
    /// dropped.
    pub fn contents(&self) -> impl Iterator<Item = (MessageId, u32)> + '_ {
        let records = self.queues.iter().flat_map(|queue| queue.records.iter());
        let mut seen = BTreeSet::new();
        records
            .filter(move |(_, record)| !record.shared || seen.insert(record.id))
            .map(|(_, record)| (record.id, record.content_bytes))
    }

    /// About how many bytes [`write`](Self::write) gives.
    #[must_use]
    pub fn approximate_bytes(&self) -> u64 {
        self.bytes
    }
}

// --------------------------------------------------------------------- writing

struct Writer<'a, E> {
    sink: &'a mut dyn FnMut(&[u8]) -> Result<(), E>,
    /// Less than a piece, between two frames.
    buffer: Vec<u8>,
    /// Over what went to the sink.
    hash: Xxh3,
    scratch: Vec<u8>,
}

impl<E> Writer<'_, E> {
    fn frame(&mut self, frame: &Frame<'_>) -> Result<(), E> {
        self.scratch.clear();
        encode_into(frame, &mut self.scratch);
        let length = u32::try_from(self.scratch.len()).expect("a frame is far below 4 GiB");
        self.buffer.extend_from_slice(&length.to_le_bytes());
        self.buffer.extend_from_slice(&self.scratch);
        let whole = self.buffer.len() - self.buffer.len() % PIECE_BYTES_MAX;
        for piece in self.buffer[..whole].chunks(PIECE_BYTES_MAX) {
            self.hash.update(piece);
            (self.sink)(piece)?;
        }
        self.buffer.drain(..whole);
        Ok(())
    }

    fn pages(&mut self, records: &Pages<Record>) -> Result<(), E> {
        for (number, page) in records.pages() {
            self.frame(&Frame::Page {
                number,
                page: Cow::Borrowed(page),
            })?;
        }
        Ok(())
    }

    fn window(&mut self, remembered: &Pages<Remembered>) -> Result<(), E> {
        for (number, page) in remembered.pages() {
            let page = Cow::Borrowed(page);
            self.frame(&Frame::Window { number, page })?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), E> {
        let mut hash = self.hash.clone();
        hash.update(&self.buffer);
        self.frame(&Frame::End {
            checksum: hash.digest(),
        })?;
        if self.buffer.is_empty() {
            Ok(())
        } else {
            (self.sink)(&self.buffer)
        }
    }
}

// --------------------------------------------------------------------- reading

struct Reader<I> {
    pieces: I,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were taken.
    taken: usize,
    /// Over what was taken.
    hash: Xxh3,
}

impl<I, B, E> Reader<I>
where
    I: Iterator<Item = Result<B, E>>,
    B: AsRef<[u8]>,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    fn take(&mut self, count: usize) -> Result<&[u8], RestoreError> {
        while self.buffer.len() - self.taken < count {
            if !self.fill()? {
                return Err(RestoreError::Truncated);
            }
        }
        let taken = &self.buffer[self.taken..self.taken + count];
        self.hash.update(taken);
        self.taken += count;
        Ok(taken)
    }

    fn fill(&mut self) -> Result<bool, RestoreError> {
        let Some(piece) = self.pieces.next() else {
            return Ok(false);
        };
        let piece = piece.map_err(|error| RestoreError::Source(error.into()))?;
        self.buffer.drain(..self.taken);
        self.taken = 0;
        self.buffer.extend_from_slice(piece.as_ref());
        Ok(true)
    }

    fn frame(&mut self) -> Result<Frame<'static>, RestoreError> {
        let length = self.take(4)?;
        let length = u32::from_le_bytes(length.try_into().expect("four bytes")) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(RestoreError::Corrupt(format!("a frame of {length} bytes")));
        }
        match postcard::take_from_bytes(self.take(length)?) {
            Ok((frame, [])) => Ok(frame),
            Ok((_, rest)) => Err(RestoreError::Corrupt(format!(
                "{} bytes after a frame",
                rest.len()
            ))),
            Err(error) => Err(RestoreError::Corrupt(error.to_string())),
        }
    }

    fn expect_end(&mut self) -> Result<(), RestoreError> {
        while self.taken == self.buffer.len() {
            if !self.fill()? {
                return Ok(());
            }
        }
        Err(RestoreError::Corrupt("bytes after the end".to_owned()))
    }
}

/// To what the pages belong that come.
#[derive(Clone, Copy, Default)]
enum Owner {
    #[default]
    None,
    Queue(QueueId),
    /// The last one.
    Grave,
    Exchange(ExchangeId),
}

/// What was read so far.
#[derive(Default)]
struct Restoring {
    broker: Broker,
    root: Option<Root>,
    clients: BTreeMap<ClientId, Arc<Client>>,
    owner: Owner,
    last_client: Option<ClientId>,
    /// Of messages that several records stand for: these have one as before.
    addresses: BTreeMap<MessageId, Arc<Address>>,
}

impl Restoring {
    fn take(&mut self, frame: Frame<'_>) -> Result<(), RestoreError> {
        let fresh = match frame {
            Frame::Root(root) => self.root.replace(root.into_owned()).is_none(),
            Frame::Queue(head) => {
                let mut head = head.into_owned();
                if mutant!("snapshot-without-backlog") {
                    head.retry = None;
                }
                self.owner = Owner::Queue(head.id);
                let named = self.broker.names.insert(head.name.clone(), head.id).is_none();
                named & self.broker.queues.insert(head.id, Queue::new(head)).is_none()
            }
            Frame::Grave(head) => {
                self.owner = Owner::Grave;
                self.broker.graves.queue.push_back(Grave {
                    head: head.into_owned(),
                    records: Pages::default(),
                });
                true
            }
            Frame::Groups { number, page } => {
                let home = match self.owner {
                    Owner::Queue(id) => Some(&mut self.broker.held_mut(id).groups),
                    Owner::Grave | Owner::Exchange(_) | Owner::None => None,
                };
                home.is_some_and(|groups| groups.heads.restore(number, page.into_owned()))
            }
            Frame::Page { number, page } => {
                let mut page = page.into_owned();
                self.share_addresses(&mut page);
                page.items_mut().for_each(forget_part);
                let graves = &mut self.broker.graves.queue;
                let home = match self.owner {
                    Owner::Queue(id) => {
                        Some(&mut self.broker.queues.get_mut(&id).expect("it came before").records)
                    }
                    Owner::Grave => graves.back_mut().map(|grave| &mut grave.records),
                    Owner::Exchange(_) | Owner::None => None,
                };
                home.is_some_and(|records| records.restore(number, page))
            }
            Frame::Window { number, page } => {
                let home = match self.owner {
                    Owner::Queue(id) => Some(&mut self.broker.held_mut(id).dedup),
                    Owner::Exchange(id) => Some(&mut self.broker.exchanges.held_mut(id).dedup),
                    Owner::Grave | Owner::None => None,
                };
                home.is_some_and(|window| window.restore(number, page.into_owned()))
            }
            Frame::Session { id, head, consumers } => {
                let mut session = Session::new(head);
                session.consumers = consumers.into_owned().into_iter().collect();
                self.broker.sessions.by_node.insert((head.node, id));
                self.broker.sessions.by_id.insert(id, session).is_none()
            }
            Frame::Exchange(head) => {
                self.owner = Owner::Exchange(head.id);
                self.broker.exchanges.insert(Exchange::new(head.into_owned()))
            }
            Frame::Binding(binding) => self.bind(binding.into_owned())?,
            Frame::Waiter(waiter) => {
                let waiters: &mut Waiters = &mut self.broker.waiters;
                let before = waiters.by_request.len();
                waiters.insert(waiter.into_owned());
                waiters.by_request.len() > before
            }
            Frame::Client { id, head } => {
                self.last_client = Some(id);
                let client = Client {
                    head,
                    outcomes: BTreeMap::new(),
                };
                self.clients.insert(id, Arc::new(client)).is_none()
            }
            Frame::Outcome { sequence, executed } => {
                let client = self.last_client.and_then(|id| self.clients.get_mut(&id));
                client.is_some_and(|client| {
                    let client = Arc::get_mut(client).expect("nobody else has it yet");
                    client.outcomes.insert(sequence, executed.into_owned()).is_none()
                })
            }
            Frame::End { .. } => unreachable!("the caller takes the end"),
        };
        if fresh {
            return Ok(());
        }
        Err(RestoreError::Inconsistent(
            "something comes twice, or out of order".to_owned(),
        ))
    }

    /// Each copy of a message was written with an address of its own.
    fn share_addresses(&mut self, page: &mut Page<Record>) {
        for record in page.items_mut().filter(|record| record.shared) {
            let id = record.id;
            if let Some(address) = record.address_mut() {
                let first = self.addresses.entry(id).or_insert_with(|| address.clone());
                if first == address {
                    address.clone_from(first);
                }
            }
        }
    }

    fn bind(&mut self, binding: Binding) -> Result<bool, RestoreError> {
        let inconsistent = |missing: Rejection| RestoreError::Inconsistent(format!("a binding: {missing}"));
        let source = self.broker.exchanges.id(&binding.source).map_err(inconsistent)?;
        let node = self.broker.node(&binding.destination).map_err(inconsistent)?;
        Ok(self.broker.exchanges.bind(source, node, Arc::new(binding)))
    }

    /// Builds the indexes and checks the whole.
    fn finish(self) -> Result<Broker, RestoreError> {
        let Self {
            mut broker,
            root,
            clients,
            ..
        } = self;
        let root = root.ok_or_else(|| RestoreError::Inconsistent("it has no root".to_owned()))?;
        broker.index = root.index;
        broker.now = root.now;
        broker.hash = RollingHash::new(root.hash);
        broker.grants = match root.grants {
            _ if mutant!("token-reused") => highest_live_grant(&broker),
            grants => grants,
        };
        broker.epochs = root.epochs;
        broker.nodes = root.nodes;
        broker.requests = Requests::restore(root.uses, clients);
        check_references(&broker)?;
        build_indexes(&mut broker);
        match invariants::check(&broker).first() {
            None => Ok(broker),
            Some(violation) => Err(RestoreError::Inconsistent(violation.to_string())),
        }
    }
}

/// What mutants forget of a message. All others nothing.
fn forget_part(record: &mut Record) {
    let never = State::Delayed {
        until: Timestamp::NEVER,
    };
    match &mut record.state {
        State::Leased(lease) if mutant!("snapshot-without-leases") => {
            record.state = State::Delayed { until: lease.until };
        }
        State::Delayed { .. } if mutant!("snapshot-without-delayed") => record.state = never,
        State::Dead { backlog, .. } if mutant!("snapshot-without-backlog") => *backlog = false,
        _ => {}
    }
    if mutant!("snapshot-without-attempts") {
        record.failures = 0;
    }
}

/// As if the leases that go on were all that ever were.
fn highest_live_grant(broker: &Broker) -> u64 {
    let records = broker.queues.values().flat_map(|queue| queue.records.iter());
    let grants = records.filter_map(|(_, record)| match record.state {
        State::Leased(lease) => Some(lease.grant),
        _ => None,
    });
    grants.max().unwrap_or(0)
}

/// What is referred to by id is there, so that indexes can be built.
fn check_references(broker: &Broker) -> Result<(), RestoreError> {
    let dangling = |what: String| Err(RestoreError::Inconsistent(format!("{what} is not there")));
    for (id, session) in &broker.sessions.by_id {
        for consumer in session.consumers.values() {
            if !broker.queues.contains_key(&consumer.queue) {
                return dangling(format!("queue {} of session {}", consumer.queue.0, id.0));
            }
        }
    }
    for waiter in broker.waiters.by_request.values() {
        if !broker.queues.contains_key(&waiter.queue) {
            return dangling(format!("queue {} of a lease that waits", waiter.queue.0));
        }
    }
    for queue in broker.queues.values() {
        let active = queue.head.active.filter(|(session, consumer)| {
            let session = broker.sessions.by_id.get(session);
            !session.is_some_and(|session| session.consumers.contains_key(consumer))
        });
        if let Some((session, consumer)) = active {
            return dangling(format!("active consumer {}.{}", session.0, consumer.0));
        }
        for (position, record) in queue.records.iter() {
            if !queue.groups.knows(record.group) {
                return dangling(format!("group {} of message {position}", record.group));
            }
            let State::Leased(Lease { holder, .. }) = record.state else {
                continue;
            };
            let Holder::Consumer { session, .. } = holder else {
                continue;
            };
            if !broker.sessions.by_id.contains_key(&session) {
                return dangling(format!("session {} that holds message {position}", session.0));
            }
        }
    }
    Ok(())
}

fn build_indexes(broker: &mut Broker) {
    for (client, sequence) in broker.waiters.by_request.keys().copied().collect::<Vec<_>>() {
        let Waiter {
            queue, turn, until, ..
        } = broker.waiters.by_request[&(client, sequence)];
        broker
            .held_mut(queue)
            .takers
            .insert(Turn::unranked(turn), Taker::Waiter(client, sequence));
        broker.deadlines.insert(until, Due::Waiter { client, sequence });
    }
    for id in broker.sessions.by_id.keys().copied().collect::<Vec<_>>() {
        let session = &broker.sessions.by_id[&id];
        if let Some(at) = session.head.orphaned_until {
            broker.deadlines.insert(at, Due::Orphan { session: id });
        }
        let consumers = session
            .consumers
            .iter()
            .map(|(consumer, held)| (*consumer, held.queue));
        for (consumer, queue) in consumers.collect::<Vec<_>>() {
            broker.held_mut(queue).consumers.insert((id, consumer));
            broker.refresh_taker(id, consumer);
        }
    }
    for id in broker.queues.keys().copied().collect::<Vec<_>>() {
        if let Some(retry) = broker.held(id).head.retry {
            broker.deadlines.insert(retry.at, Due::Backlog { queue: id });
        }
        if let Some(at) = broker.held(id).window_end() {
            broker.deadlines.insert(at, Due::QueueWindow { queue: id });
        }
        // The handles are shared for a moment: indexing changes no record.
        let records = broker.held(id).records.clone();
        broker.held_mut(id).count_groups();
        let mut ready = Vec::new();
        for (position, record) in records.iter() {
            broker.held_mut(id).lookup.insert(position, record);
            broker.shared.count(record);
            // Most are of this kind; their index is built faster as a whole.
            if record.state == State::Ready && record.group == 0 && record.due().is_none() {
                let queue = broker.held_mut(id);
                queue.tallies.ready = queue.tallies.ready.plus(Tally::of(record));
                ready.push(Place::of(record, position, &queue.head.settings));
            } else {
                broker.index_record(id, position);
            }
        }
        let order = &mut broker.held_mut(id).order;
        order.ready.append(&mut ready.into_iter().collect());
    }
    for (id, exchange) in &broker.exchanges.by_id {
        if let Some(at) = exchange.window_end() {
            broker.deadlines.insert(at, Due::ExchangeWindow { exchange: *id });
        }
    }
    for grave in &broker.graves.queue {
        grave
            .records
            .iter()
            .for_each(|(_, record)| broker.shared.count(record));
    }
    // What could be assigned was assigned before the snapshot was taken.
    broker.touched.clear();
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::command::{
        Command, Destination, ExchangeKind, ExchangeSettingsPatch, Labels, NewMessage, Publish, Request,
        SettingsPatch, Target,
    };
    use crate::ids::{ExchangeName, QueueName};
    use crate::{Meta, limits};

    fn apply(broker: &mut Broker, command: Command) {
        let meta = Meta {
            index: broker.index() + 1,
            at: Timestamp(1),
            digest: 0,
        };
        let applied = broker.apply(meta, &[Request { id: None, command }], &[1]);
        assert!(applied.outcomes[0].is_ok(), "{applied:?}");
    }

    /// A message to a thousand queues would else have its headers a thousand times.
    #[test]
    fn the_copies_of_a_message_have_one_address_after_a_restore_too() {
        let mut broker = Broker::new();
        let exchange = ExchangeName::new("all").unwrap();
        let kind = ExchangeKind::Fanout;
        let settings = ExchangeSettingsPatch::default();
        let name = exchange.clone();
        apply(&mut broker, Command::DeclareExchange { name, kind, settings });
        for queue in ["a", "b", "c"] {
            let name = QueueName::new(queue).unwrap();
            let settings = SettingsPatch {
                dead_letter_exchange: Some(Some(exchange.clone())),
                ..SettingsPatch::default()
            };
            let destination = Destination::Queue(name.clone());
            apply(&mut broker, Command::DeclareQueue { name, settings });
            apply(
                &mut broker,
                Command::Bind(Binding {
                    source: exchange.clone(),
                    destination,
                    routing_key: String::new(),
                    headers: None,
                }),
            );
        }
        let value = "x".repeat(limits::HEADER_BYTES_MAX - 1);
        let labels = Labels {
            headers: BTreeMap::from([("h".to_owned(), value)]),
            ..Labels::default()
        };
        let messages = vec![NewMessage {
            labels: Some(labels.into()),
            ..NewMessage::default()
        }];
        let (name, mandatory) = (exchange, true);
        let target = Target::Exchange { name, mandatory };
        apply(&mut broker, Command::Publish(Publish { target, messages }));

        let mut bytes = Vec::new();
        let snapshot = broker.snapshot();
        let written = snapshot.write(&mut |piece| {
            bytes.extend_from_slice(piece);
            Ok::<_, Infallible>(())
        });
        written.unwrap();
        let restored = Broker::restore([Ok::<_, Infallible>(bytes)].into_iter()).unwrap();
        let addresses = restored.queues.values().map(|queue| {
            let record = queue.records.get(0).unwrap();
            record.address().unwrap()
        });
        let addresses: Vec<_> = addresses.collect();
        assert_eq!(addresses.len(), 3);
        assert!(addresses.iter().all(|address| Arc::ptr_eq(address, addresses[0])));
    }
}
