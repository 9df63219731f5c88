//! One direction between two ends: what happens to the bytes that go there.
//!
//! All connections between the ends share it, those dialled by the one as well as those dialled by the other,
//! since a cut cable knows nothing of connections. Bytes are never reordered or lost within a connection: the
//! transport promises that. What a network does to it shows as waiting, as slowness, or as its end.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::RngExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Most bytes that are read at once, which is what a loss takes.
const PIECE_BYTES: usize = 16 * 1024;
/// Most pieces that one connection keeps in one direction, as a kernel's buffers would. When they are there,
/// nothing more is read, and the sender has to wait.
const PIECES_KEPT: usize = 256;

/// How a link behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conduct {
    /// Nothing arrives. What was sent is kept, and arrives when this ends.
    pub stalled: bool,
    /// Everything takes this much longer, up to twice, in the order it was sent.
    pub delay: Duration,
    /// No more than this passes, all connections together.
    pub bytes_per_second: Option<u64>,
    /// Of a hundred pieces so many are lost, and with each the connection.
    pub lost_percent: u8,
}

impl Conduct {
    /// This on top of another.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            stalled: self.stalled || other.stalled,
            delay: self.delay + other.delay,
            bytes_per_second: match (self.bytes_per_second, other.bytes_per_second) {
                (Some(one), Some(two)) => Some(one.min(two)),
                (one, two) => one.or(two),
            },
            lost_percent: self.lost_percent.max(other.lost_percent),
        }
    }
}

/// What a link has done, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bytes that passed.
    pub bytes_passed: u64,
    /// Bytes that were sent while nothing arrived.
    pub bytes_held: u64,
    /// Bytes that were made to wait by a delay or a limit.
    pub bytes_slowed: u64,
    /// Pieces that were lost.
    pub pieces_lost: u64,
}

impl Tally {
    /// Field by field.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            bytes_passed: self.bytes_passed + other.bytes_passed,
            bytes_held: self.bytes_held + other.bytes_held,
            bytes_slowed: self.bytes_slowed + other.bytes_slowed,
            pieces_lost: self.pieces_lost + other.pieces_lost,
        }
    }
}

/// One direction between two ends. All switches start off.
#[derive(Debug)]
pub struct Link {
    conduct: watch::Sender<Conduct>,
    /// When what is passing now will have passed, if there is a limit.
    busy_until: Mutex<Instant>,
    /// Bytes that may still pass before the connection breaks.
    budget: AtomicU64,
    bytes_passed: AtomicU64,
    bytes_held: AtomicU64,
    bytes_slowed: AtomicU64,
    pieces_lost: AtomicU64,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            conduct: watch::Sender::default(),
            busy_until: Mutex::new(Instant::now()),
            budget: AtomicU64::new(u64::MAX),
            bytes_passed: AtomicU64::default(),
            bytes_held: AtomicU64::default(),
            bytes_slowed: AtomicU64::default(),
            pieces_lost: AtomicU64::default(),
        }
    }
}

/// What a connection keeps of what it was sent.
#[derive(Debug)]
pub(crate) struct Piece {
    what: What,
    due: Instant,
}

#[derive(Debug)]
enum What {
    Bytes(Vec<u8>),
    /// The sender has no more to say.
    End,
    /// The sender broke off, or a piece was lost.
    Broken,
}

/// How one direction of a connection came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Everything was said and has arrived.
    Whole,
    /// By the sender or by the link: the receiver is to see it break.
    Broken,
    /// By the receiver, which takes no more: the sender is to see it break.
    Refused,
}

/// The place where a connection keeps what goes one way.
pub(crate) fn keep() -> (mpsc::Sender<Piece>, mpsc::Receiver<Piece>) {
    mpsc::channel(PIECES_KEPT)
}

impl Link {
    /// Behaves like this from now on, also towards what was sent before.
    pub fn set(&self, conduct: Conduct) {
        self.conduct.send_replace(conduct);
    }

    /// How it behaves.
    #[must_use]
    pub fn conduct(&self) -> Conduct {
        *self.conduct.borrow()
    }

    /// A connection breaks when so many more bytes have been sent.
    pub fn break_after(&self, bytes: u64) {
        self.budget.store(bytes, Ordering::SeqCst);
    }

    /// What it has done.
    #[must_use]
    pub fn tally(&self) -> Tally {
        Tally {
            bytes_passed: self.bytes_passed.load(Ordering::Relaxed),
            bytes_held: self.bytes_held.load(Ordering::Relaxed),
            bytes_slowed: self.bytes_slowed.load(Ordering::Relaxed),
            pieces_lost: self.pieces_lost.load(Ordering::Relaxed),
        }
    }

    /// Waits until something can arrive.
    pub(crate) async fn passable(&self) {
        let mut conduct = self.conduct.subscribe();
        // Fails only when the link is gone, which we hold.
        let _ = conduct.wait_for(|conduct| !conduct.stalled).await;
    }

    /// Takes from the sender what it says, and keeps it.
    pub(crate) async fn take(&self, mut from: ReadHalf<'_>, kept: mpsc::Sender<Piece>) {
        let mut buffer = vec![0; PIECE_BYTES];
        let mut last_due = Instant::now();
        loop {
            let mut what = match from.read(&mut buffer).await {
                Ok(0) => What::End,
                Ok(count) => What::Bytes(buffer[..count].to_vec()),
                Err(_) => What::Broken,
            };
            let conduct = self.conduct();
            if let What::Bytes(bytes) = &what {
                let count = bytes.len() as u64;
                if conduct.stalled {
                    self.bytes_held.fetch_add(count, Ordering::Relaxed);
                }
                if !conduct.delay.is_zero() || conduct.bytes_per_second.is_some() {
                    self.bytes_slowed.fetch_add(count, Ordering::Relaxed);
                }
                if rand::rng().random_range(0..100) < conduct.lost_percent {
                    self.pieces_lost.fetch_add(1, Ordering::Relaxed);
                    what = What::Broken;
                }
            }
            last_due = last_due.max(Instant::now() + drawn(conduct.delay));
            let goes_on = matches!(what, What::Bytes(_));
            let piece = Piece { what, due: last_due };
            if kept.send(piece).await.is_err() || !goes_on {
                return;
            }
        }
    }

    /// Gives to the receiver what was kept, when it is time.
    pub(crate) async fn give(&self, mut kept: mpsc::Receiver<Piece>, mut to: WriteHalf<'_>) -> Ending {
        while let Some(piece) = kept.recv().await {
            tokio::time::sleep_until(piece.due).await;
            self.passable().await;
            let bytes = match piece.what {
                What::Bytes(bytes) => bytes,
                // An error means that the receiver is gone too.
                What::End => {
                    let _ = to.shutdown().await;
                    return Ending::Whole;
                }
                What::Broken => return Ending::Broken,
            };
            let allowed = self.spend(bytes.len());
            self.wait_for_room(allowed).await;
            if to.write_all(&bytes[..allowed]).await.is_err() {
                return Ending::Refused;
            }
            self.bytes_passed.fetch_add(allowed as u64, Ordering::Relaxed);
            if allowed < bytes.len() {
                return Ending::Broken;
            }
        }
        Ending::Broken
    }

    /// How many of so many bytes may pass before the connection breaks.
    fn spend(&self, count: usize) -> usize {
        let budget = self.budget.load(Ordering::SeqCst);
        if budget == u64::MAX {
            return count;
        }
        let allowed = count.min(usize::try_from(budget).unwrap_or(usize::MAX));
        self.budget.fetch_sub(allowed as u64, Ordering::SeqCst);
        allowed
    }

    async fn wait_for_room(&self, count: usize) {
        let Some(limit) = self.conduct().bytes_per_second else {
            return;
        };
        let takes = Duration::from_secs_f64(count as f64 / limit.max(1) as f64);
        let until = {
            let mut busy = self.busy_until.lock().unwrap_or_else(PoisonError::into_inner);
            *busy = (*busy).max(Instant::now()) + takes;
            *busy
        };
        // A limit that is lifted meanwhile lets it pass at once.
        let mut conduct = self.conduct.subscribe();
        let lifted = conduct.wait_for(|conduct| conduct.bytes_per_second.is_none());
        let _ = tokio::time::timeout_at(until, lifted).await;
    }
}

fn drawn(delay: Duration) -> Duration {
    if delay.is_zero() {
        return delay;
    }
    delay.mul_f64(rand::rng().random_range(1.0..=2.0))
}
