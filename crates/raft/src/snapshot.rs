//! Snapshots: the state at one index on disk, and the contents it refers to.
//!
//! A snapshot is an image of the broker, in a place of its own, named by a
//! pointer in the log's database; and the contents of its messages, which are
//! copied out of the log so that the log can be purged. The order of steps
//! makes a crash at any point harmless:
//!
//! - *build*: flush the log past the index; copy and flush the contents that
//!   are alive and that no earlier snapshot has copied; write the image; let the
//!   observer keep what follows from the entries so far; set the pointer. Only
//!   then give back the space of contents that the image no longer needs.
//! - *receive*: begin a new volume of contents; write image and contents,
//!   checking lengths and hashes; let the observer keep what it knows; set the
//!   pointer; replace the state; drop all older volumes, because everything that
//!   the image refers to has arrived since.
//!
//! A crash leaves contents that nobody refers to, never a reference without its
//! content. They go with their volume, as do those whose messages are gone.
//!
//! Contents dropped between two snapshots stay until the later one is durable:
//! a restart begins at the image before, which still refers to them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::RaftSnapshotBuilder;
use openraft::Snapshot;
use quorate_core::ids::Timestamp;
use quorate_core::{Broker, batch};
use quorate_proto::internal as wire;
use quorate_storage::{SnapshotInfo, SnapshotWriter, StorageError, Store};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use xxhash_rust::xxh3::Xxh3;

use crate::blocking;
use crate::codec;
use crate::identity::Identity;
use crate::log_store::entry_of;
use crate::network::convert;
use crate::state_machine::Shared;
use crate::types::{Batch, LeaderId, Member, Raft, SnapshotMeta, TypeConfig, Vote};

type RaftSnapshot = Snapshot<LeaderId, u64, Member, SnapshotData>;

/// What openraft passes around as a snapshot: a handle.
pub enum SnapshotData {
    /// An image that a store's pointer names, or did until just now.
    Stored(Arc<Store>, SnapshotInfo),
    /// One that arrived whole, is written and read back into a state, and waits
    /// for its pointer.
    Received(Box<Received>),
}

/// See [`SnapshotData::Received`].
pub struct Received {
    broker: Broker,
    writer: SnapshotWriter,
    /// No older volume has contents of it that this one and newer ones have not.
    volume: u64,
}

// ------------------------------------------------------------------ contents

/// Names of the contents that a state refers to, in order.
fn live(view: &quorate_core::Snapshot) -> Vec<(u64, u32)> {
    let mut live: Vec<_> = view.contents().map(|(id, _)| (id.index, id.number)).collect();
    live.sort_unstable();
    live.dedup();
    live.shrink_to_fit();
    live
}

/// Copies contents of log entries after `covered` out of the log. `live` is in
/// ascending order.
fn copy_contents(store: &Store, live: &[(u64, u32)], covered: u64) -> io::Result<()> {
    const READ_BYTES: usize = 4 << 20;
    let ids = &live[live.partition_point(|(index, _)| *index <= covered)..];
    let mut records = Vec::new().into_iter();
    let mut entry: Option<(u64, Bytes)> = None;
    let mut failed = None;
    let mut found = ids.iter().map_while(|&(index, number)| {
        let content = (|| {
            while entry.as_ref().is_none_or(|(at, _)| *at < index) {
                let record = match records.next() {
                    Some(record) => record,
                    None => {
                        records = store
                            .log
                            .read(index, u64::MAX, READ_BYTES)
                            .map_err(io::Error::other)?
                            .into_iter();
                        records.next().ok_or_else(|| missing(index))?
                    }
                };
                if record.index >= index {
                    let EntryPayload::Normal(Batch(bytes)) = entry_of(&record)?.payload else {
                        return Err(missing(index));
                    };
                    entry = Some((record.index, bytes));
                }
            }
            match &entry {
                Some((at, bytes)) if *at == index => batch::content(bytes, number).map_err(io::Error::other),
                _ => Err(missing(index)),
            }
        })();
        match content {
            Ok(content) => Some((index, number, content)),
            Err(error) => {
                failed = Some(error);
                None
            }
        }
    });
    store.contents.put_all(&mut found).map_err(io::Error::other)?;
    drop(found);
    match failed {
        Some(error) => Err(error),
        None => store.contents.flush().map_err(io::Error::other),
    }
}

fn missing(index: u64) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("entry {index} holds contents and is not in the log"),
    )
}

// -------------------------------------------------------------------- building

/// Writes one snapshot in the background.
pub struct Builder {
    shared: Arc<Shared>,
    work: Option<View>,
}

/// The state at one index, and where and when that is.
pub(crate) struct View {
    pub(crate) state: quorate_core::Snapshot,
    pub(crate) at: Timestamp,
    pub(crate) meta: SnapshotMeta,
}

impl Builder {
    pub(crate) fn new(shared: Arc<Shared>, view: View) -> Self {
        Self {
            shared,
            work: Some(view),
        }
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> io::Result<RaftSnapshot> {
        let shared = Arc::clone(&self.shared);
        let view = self
            .work
            .take()
            .ok_or_else(|| io::Error::other("a builder builds once"))?;
        blocking::run(&self.shared.store.log, move || build(&shared, view)).await?
    }
}

fn build(shared: &Shared, view: View) -> io::Result<RaftSnapshot> {
    let View { state, at, meta } = view;
    let _maintenance = shared.maintenance.lock();
    let store = &shared.store;
    let index = meta.last_log_id.map_or(0, |id| id.index);
    let covered = shared.snapshot_index.load(Ordering::Acquire);
    if let Some(newer) = current(shared)?.filter(|newer| newer.meta.last_log_id >= meta.last_log_id) {
        return Ok(newer);
    }

    let started = std::time::Instant::now();
    store.log.flush().map_err(io::Error::other)?;
    let live = live(&state);
    copy_contents(store, &live, covered)?;
    let mut writer = store.snapshots.create().map_err(io::Error::other)?;
    state
        .write(&mut |piece: &[u8]| writer.write(piece))
        .map_err(io::Error::other)?;
    shared.let_keep(index);
    let info = writer
        .finish(codec::encode_snapshot_meta(&meta).into())
        .map_err(io::Error::other)?;
    shared.snapshot_index.store(index, Ordering::Release);
    shared.snapshot_at.store(at.0, Ordering::Release);
    tracing::info!(index, bytes = info.bytes, took = ?started.elapsed(), "snapshot written");

    let dropped = store.contents.retain(&live, index).map_err(io::Error::other)?;
    if dropped > 0 {
        tracing::info!(index, volumes = dropped, "contents dropped");
    }
    Ok(Snapshot {
        meta,
        snapshot: SnapshotData::Stored(Arc::clone(store), info),
    })
}

/// The snapshot on disk.
pub(crate) fn current(shared: &Shared) -> io::Result<Option<RaftSnapshot>> {
    let Some(current) = shared.store.snapshots.current() else {
        return Ok(None);
    };
    let meta = codec::decode_snapshot_meta(&current.meta)?;
    Ok(Some(Snapshot {
        meta,
        snapshot: SnapshotData::Stored(Arc::clone(&shared.store), current),
    }))
}

// ------------------------------------------------------------------ installing

/// Makes a snapshot the state: the stored one after a start, or a received one.
pub(crate) fn install(shared: &Arc<Shared>, meta: &SnapshotMeta, data: SnapshotData) -> io::Result<()> {
    let _maintenance = shared.maintenance.lock();
    let index = meta.last_log_id.map_or(0, |id| id.index);
    // A start after this one does not tell again what was told here.
    let let_keep = || shared.let_keep(shared.applied().map_or(0, |id| id.index));
    let (broker, received, volume) = match data {
        SnapshotData::Stored(store, info) if Arc::ptr_eq(&store, &shared.store) => {
            (restore(&store, &info, None)?, false, None)
        }
        SnapshotData::Stored(elsewhere, info) => {
            let mut writer = shared.store.snapshots.create().map_err(io::Error::other)?;
            let broker = restore(&elsewhere, &info, Some(&mut writer))?;
            let_keep();
            writer
                .finish(codec::encode_snapshot_meta(meta).into())
                .map_err(io::Error::other)?;
            (broker, true, None)
        }
        SnapshotData::Received(received) => {
            let Received {
                broker,
                writer,
                volume,
            } = *received;
            let_keep();
            writer
                .finish(codec::encode_snapshot_meta(meta).into())
                .map_err(io::Error::other)?;
            (broker, true, Some(volume))
        }
    };
    shared.replace(broker, meta);
    tracing::info!(index, received, "state restored from a snapshot");

    if let Some(volume) = volume {
        let dropped = shared
            .store
            .contents
            .drop_before(volume)
            .map_err(io::Error::other)?;
        tracing::info!(index, volumes = dropped, "older contents dropped");
    }
    Ok(())
}

fn restore(store: &Store, info: &SnapshotInfo, mut copy: Option<&mut SnapshotWriter>) -> io::Result<Broker> {
    let pieces = store
        .snapshots
        .read(info)
        .map_err(io::Error::other)?
        .map(|piece| {
            let piece = piece?;
            if let Some(writer) = copy.as_deref_mut() {
                writer.write(&piece)?;
            }
            Ok::<Bytes, StorageError>(piece)
        });
    Broker::restore(pieces).map_err(io::Error::other)
}

// --------------------------------------------------------------------- sending

/// Bytes of image or contents in one frame, unless one content is larger.
const FRAME_BYTES: usize = 1 << 20;
/// Frames read ahead of the network.
const FRAMES_AHEAD: usize = 4;

/// The frames of a snapshot, read as fast as they are taken; and a counter that
/// moves with each, and closes when all are out.
pub(crate) fn send(
    begin: wire::SnapshotBegin,
    data: SnapshotData,
) -> (ReceiverStream<wire::SnapshotFrame>, watch::Receiver<u64>) {
    let (frames, stream) = mpsc::channel(FRAMES_AHEAD);
    let (moved, progress) = watch::channel(0);
    let SnapshotData::Stored(store, info) = data else {
        return (ReceiverStream::new(stream), progress);
    };
    if store.log.blocks() {
        tokio::task::spawn_blocking(move || {
            send_all(begin, &store, &info, &mut |frame| {
                moved.send_modify(|count| *count += 1);
                frames.blocking_send(frame).is_ok()
            });
        });
    } else {
        // Nobody could wait for room: all is read at once.
        let mut all = Vec::new();
        send_all(begin, &store, &info, &mut |frame| {
            all.push(frame);
            true
        });
        tokio::spawn(async move {
            for frame in all {
                moved.send_modify(|count| *count += 1);
                if frames.send(frame).await.is_err() {
                    return;
                }
            }
        });
    }
    (ReceiverStream::new(stream), progress)
}

/// Takes a frame; false when nobody reads any more.
type Put<'a> = &'a mut dyn FnMut(wire::SnapshotFrame) -> bool;

fn send_all(begin: wire::SnapshotBegin, store: &Store, info: &SnapshotInfo, put: Put<'_>) {
    if let Err(error) = read_all(begin, store, info, put) {
        // The stream ends early, and the receiver refuses what it has.
        tracing::warn!(%error, "read a snapshot to send it");
    }
}

fn read_all(begin: wire::SnapshotBegin, store: &Store, info: &SnapshotInfo, put: Put<'_>) -> io::Result<()> {
    use wire::snapshot_frame::Frame;
    let meta = codec::decode_snapshot_meta(&begin.meta)?;
    let index = meta.last_log_id.map_or(0, |id| id.index);
    let mut put = |frame| put(wire::SnapshotFrame { frame: Some(frame) });
    if !put(Frame::Begin(begin)) {
        return Ok(());
    }

    // Before the image is opened: if it is the current one then, nothing that it
    // refers to was dropped yet, and what this walks stays until it is done.
    let stored = store.contents.range((0, 0));
    let mut sums = Sums::default();
    let mut image = Vec::with_capacity(FRAME_BYTES);
    for piece in store.snapshots.read(info).map_err(io::Error::other)? {
        image.extend_from_slice(&piece.map_err(io::Error::other)?);
        if image.len() >= FRAME_BYTES {
            let image = Bytes::from(std::mem::replace(&mut image, Vec::with_capacity(FRAME_BYTES)));
            sums.image(&image);
            if !put(Frame::Image(image)) {
                return Ok(());
            }
        }
    }
    let image = Bytes::from(image);
    sums.image(&image);
    if !put(Frame::Image(image)) {
        return Ok(());
    }

    // All that is stored up to the index: what the image refers to, and perhaps
    // some that it does not any more, which go with their volume there as here.
    let mut contents = Vec::new();
    let mut bytes = 0;
    for content in stored {
        let content = content.map_err(io::Error::other)?;
        if content.index > index {
            break;
        }
        let content = wire::Content {
            index: content.index,
            number: content.number,
            bytes: content.bytes,
        };
        sums.content(&content);
        bytes += content.bytes.len();
        contents.push(content);
        if bytes >= FRAME_BYTES {
            bytes = 0;
            let contents = std::mem::take(&mut contents);
            if !put(Frame::Contents(wire::SnapshotContents { contents })) {
                return Ok(());
            }
        }
    }
    if !contents.is_empty() && !put(Frame::Contents(wire::SnapshotContents { contents })) {
        return Ok(());
    }
    put(Frame::End(sums.end()));
    Ok(())
}

/// Lengths and hashes of what went over the wire.
#[derive(Default)]
struct Sums {
    image_bytes: u64,
    image: Xxh3,
    content_count: u64,
    contents: Xxh3,
}

impl Sums {
    fn image(&mut self, piece: &[u8]) {
        self.image_bytes += piece.len() as u64;
        self.image.update(piece);
    }

    fn content(&mut self, content: &wire::Content) {
        self.content_count += 1;
        self.contents.update(&content.index.to_le_bytes());
        self.contents.update(&content.number.to_le_bytes());
        self.contents.update(&(content.bytes.len() as u64).to_le_bytes());
        self.contents.update(&content.bytes);
    }

    fn end(&self) -> wire::SnapshotEnd {
        wire::SnapshotEnd {
            image_bytes: self.image_bytes,
            image_hash: self.image.digest(),
            content_count: self.content_count,
            content_hash: self.contents.digest(),
        }
    }
}

// ------------------------------------------------------------------- receiving

/// Takes snapshots from a leader, one at a time.
#[derive(Clone)]
pub(crate) struct Receiver {
    shared: Arc<Shared>,
    busy: Arc<tokio::sync::Mutex<()>>,
    stall: std::time::Duration,
}

impl Receiver {
    pub(crate) fn new(shared: Arc<Shared>, stall: std::time::Duration) -> Self {
        Self {
            shared,
            busy: Arc::default(),
            stall,
        }
    }

    /// Receives, checks and installs one snapshot. Answers this node's vote.
    pub(crate) async fn receive(
        &self,
        identity: &Identity,
        raft: &Raft,
        mut frames: tonic::Streaming<wire::SnapshotFrame>,
    ) -> Result<Vote, Status> {
        use wire::snapshot_frame::Frame;
        let Some(Frame::Begin(begin)) = self.next(&mut frames).await? else {
            return Err(Status::invalid_argument("a snapshot begins with its meta"));
        };
        identity.admit(begin.envelope.as_ref()).await?;
        let vote = convert::vote_back(begin.vote.as_ref())?;
        let meta = codec::decode_snapshot_meta(&begin.meta)?;
        let Some(last) = meta.last_log_id else {
            return Err(Status::invalid_argument("a snapshot of nothing"));
        };
        if last.leader_id > vote.leader_id {
            return Err(Status::invalid_argument("a snapshot that is ahead of its leader"));
        }
        let Ok(_one_at_a_time) = self.busy.try_lock() else {
            return Err(Status::unavailable("another snapshot is being received"));
        };

        let received = if self.shared.store.log.blocks() {
            self.store_as_they_come(&mut frames).await?
        } else {
            self.store_at_once(&mut frames).await?
        };
        let received = received.map_err(|error| {
            tracing::warn!(%error, index = last.index, "a snapshot was received and not accepted");
            Status::data_loss(error.to_string())
        })?;
        let data = SnapshotData::Received(Box::new(received));
        let response = raft
            .install_full_snapshot(vote, Snapshot { meta, snapshot: data })
            .await
            .map_err(|error| Status::unavailable(format!("this node has stopped: {error}")))?;
        Ok(response.vote)
    }

    /// Hands frames to a thread that writes them.
    async fn store_as_they_come(
        &self,
        frames: &mut tonic::Streaming<wire::SnapshotFrame>,
    ) -> Result<io::Result<Received>, Status> {
        let (pieces, mut work) = mpsc::channel(FRAMES_AHEAD);
        let shared = Arc::clone(&self.shared);
        let stored = tokio::task::spawn_blocking(move || store_all(&shared, || work.blocking_recv()));
        loop {
            let frame = self.next_before_end(frames).await?;
            let ended = matches!(frame, wire::snapshot_frame::Frame::End(_));
            if pieces.send(frame).await.is_err() || ended {
                break;
            }
        }
        drop(pieces);
        stored.await.map_err(|error| Status::internal(error.to_string()))
    }

    /// Gathers frames, and writes them without blocking.
    async fn store_at_once(
        &self,
        frames: &mut tonic::Streaming<wire::SnapshotFrame>,
    ) -> Result<io::Result<Received>, Status> {
        let mut all = Vec::new();
        while !matches!(all.last(), Some(wire::snapshot_frame::Frame::End(_))) {
            all.push(self.next_before_end(frames).await?);
        }
        let mut all = all.into_iter();
        Ok(store_all(&self.shared, || all.next()))
    }

    async fn next_before_end(
        &self,
        frames: &mut tonic::Streaming<wire::SnapshotFrame>,
    ) -> Result<wire::snapshot_frame::Frame, Status> {
        let frame = self.next(frames).await?;
        frame.ok_or_else(|| Status::invalid_argument("the snapshot ends before its end"))
    }

    async fn next(
        &self,
        frames: &mut tonic::Streaming<wire::SnapshotFrame>,
    ) -> Result<Option<wire::snapshot_frame::Frame>, Status> {
        let frame = tokio::time::timeout(self.stall, frames.message())
            .await
            .map_err(|_| Status::deadline_exceeded("the snapshot's sender fell silent"))??;
        Ok(frame.and_then(|frame| frame.frame))
    }
}

/// Writes frames as they come, and builds the state that they describe.
fn store_all(
    shared: &Shared,
    mut next: impl FnMut() -> Option<wire::snapshot_frame::Frame>,
) -> io::Result<Received> {
    use wire::snapshot_frame::Frame;
    let store = &shared.store;
    let volume = store.contents.begin_volume().map_err(io::Error::other)?;
    // The log of a node that needs a snapshot waits for it: there is no latency to keep.
    let mut writer = store.snapshots.create().map_err(io::Error::other)?.unthrottled();

    let mut sums = Sums::default();
    let mut end = None;
    let mut take_contents = |frame, sums: &mut Sums| -> io::Result<()> {
        match frame {
            Frame::Contents(contents) => {
                contents.contents.iter().for_each(|content| sums.content(content));
                let mut items = contents
                    .contents
                    .into_iter()
                    .map(|c| (c.index, c.number, c.bytes));
                store
                    .contents
                    .put_all_unthrottled(&mut items)
                    .map(drop)
                    .map_err(io::Error::other)
            }
            Frame::End(sent) => {
                end = Some(sent);
                Ok(())
            }
            Frame::Begin(_) | Frame::Image(_) => Err(io::Error::other("a frame out of place")),
        }
    };

    // The image comes first; the broker is built out of it while it is written.
    let mut after = None;
    let pieces = std::iter::from_fn(|| match next() {
        Some(Frame::Image(piece)) => {
            sums.image(&piece);
            Some(writer.write(&piece).map(|()| piece))
        }
        other => {
            after = other;
            None
        }
    });
    let broker = Broker::restore(pieces).map_err(io::Error::other)?;
    if let Some(frame) = after {
        take_contents(frame, &mut sums)?;
    }
    while let Some(frame) = next() {
        take_contents(frame, &mut sums)?;
    }
    if end.as_ref() != Some(&sums.end()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "what arrived is not what was sent",
        ));
    }
    store.contents.flush().map_err(io::Error::other)?;
    Ok(Received {
        broker,
        writer,
        volume,
    })
}
