//! Performs the effects that are addressed to this node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use quorate_core::effect::{Effect, Leased};
use quorate_core::ids::{ClientId, NodeId, RequestId, SessionId, Timestamp, Token};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::broker::Position;
use crate::session::{Event, Outbox};

/// A request that waits for leases.
pub(crate) type Waiter = (ClientId, u64);

/// Knows the connections of this node. Called by the apply task, in log order,
/// so nothing here waits.
#[derive(Debug)]
pub(crate) struct Dispatch {
    node: OnceLock<NodeId>,
    sessions: Mutex<BTreeMap<SessionId, Arc<Outbox>>>,
    waiters: Mutex<Waiters>,
    /// Leases that came for a caller who had gone. Bounded by what such callers
    /// asked for, each at most 1,000.
    unclaimed: mpsc::UnboundedSender<Vec<Token>>,
    /// Woken with every entry: a new deadline may have come up.
    pub(crate) applied: Notify,
}

#[derive(Debug, Default)]
struct Waiters {
    calls: BTreeMap<Waiter, oneshot::Sender<(Position, Vec<Leased>)>>,
    gone: BTreeSet<Waiter>,
}

impl Dispatch {
    pub(crate) fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<Vec<Token>>) {
        let (unclaimed, receiver) = mpsc::unbounded_channel();
        let dispatch = Self {
            node: OnceLock::new(),
            sessions: Mutex::default(),
            waiters: Mutex::default(),
            unclaimed,
            applied: Notify::new(),
        };
        (Arc::new(dispatch), receiver)
    }

    /// From now on effects for this node are performed. Before, they are replayed
    /// ones of an earlier life.
    pub(crate) fn set_node(&self, node: NodeId) {
        let _ = self.node.set(node);
    }

    /// Makes a session's connection known; an earlier one on this node is lost.
    pub(crate) fn register(&self, session: SessionId) -> Arc<Outbox> {
        let outbox = Arc::new(Outbox::default());
        if let Some(earlier) = self.sessions.lock().insert(session, outbox.clone()) {
            earlier.lose();
        }
        outbox
    }

    /// Forgets a connection, unless another has taken its place.
    pub(crate) fn unregister(&self, session: SessionId, outbox: &Arc<Outbox>) {
        let mut sessions = self.sessions.lock();
        if sessions
            .get(&session)
            .is_some_and(|current| Arc::ptr_eq(current, outbox))
        {
            sessions.remove(&session);
        }
    }

    /// A connection of that session is here.
    pub(crate) fn holds(&self, session: SessionId) -> bool {
        self.sessions.lock().contains_key(&session)
    }

    /// Sessions attached here.
    pub(crate) fn session_count(&self) -> usize {
        self.sessions.lock().len()
    }

    /// Registers a caller that waits for leases. An earlier call with the same
    /// request id gets nothing any more.
    pub(crate) fn wait_for_lease(self: &Arc<Self>, request: RequestId) -> LeaseWait {
        let waiter = (request.client, request.sequence);
        let (sender, receiver) = oneshot::channel();
        let mut waiters = self.waiters.lock();
        waiters.gone.remove(&waiter);
        waiters.calls.insert(waiter, sender);
        LeaseWait {
            dispatch: self.clone(),
            waiter,
            receiver,
            answered: false,
        }
    }

    fn answer(&self, request: RequestId, leased: Vec<Leased>, position: Position) {
        let waiter = (request.client, request.sequence);
        let mut waiters = self.waiters.lock();
        let unclaimed = match waiters.calls.remove(&waiter) {
            Some(call) => call.send((position, leased)).err().map(|(_, leased)| leased),
            None => waiters.gone.remove(&waiter).then_some(leased),
        };
        drop(waiters);
        if let Some(leased) = unclaimed.filter(|leased| !leased.is_empty()) {
            let _ = self
                .unclaimed
                .send(leased.into_iter().map(|leased| leased.token).collect());
        }
    }

    fn push(&self, session: SessionId, epoch: u64, event: Event, now: Timestamp) {
        if let Some(outbox) = self.sessions.lock().get(&session) {
            outbox.push(epoch, event, now);
        }
    }
}

impl Dispatch {
    /// Performs the effects of an entry.
    pub(crate) fn applied(&self, position: Position, effects: Vec<Effect>) {
        let here = self.node.get();
        for effect in effects {
            match effect {
                Effect::Deliver {
                    node,
                    session,
                    epoch,
                    consumer,
                    leased,
                } if here == Some(&node) => {
                    let deliver = Event::Deliver {
                        consumer,
                        leased,
                        position,
                    };
                    self.push(session, epoch, deliver, position.at);
                }
                Effect::ConsumerCancelled {
                    node,
                    session,
                    epoch,
                    consumer,
                    queue,
                } if here == Some(&node) => {
                    self.push(session, epoch, Event::Cancelled { consumer, queue }, position.at);
                }
                Effect::LeaseAnswered {
                    node,
                    request,
                    leased,
                } if here == Some(&node) => {
                    self.answer(request, leased, position);
                }
                Effect::SessionLost { node, session, epoch } if here == Some(&node) => {
                    if let Some(outbox) = self.sessions.lock().get(&session) {
                        outbox.lose_epoch(epoch);
                    }
                }
                _ => {}
            }
        }
        self.applied.notify_one();
    }

    /// The state was replaced by a snapshot.
    pub(crate) fn restored(&self) {
        // Deliveries that the image skips over cannot be told apart from those
        // that were passed on: sessions resume, and get theirs again.
        for outbox in self.sessions.lock().values() {
            outbox.lose();
        }
        self.applied.notify_one();
    }
}

/// A registered wait; dropped without an answer, it gives back what still comes.
pub(crate) struct LeaseWait {
    dispatch: Arc<Dispatch>,
    waiter: Waiter,
    receiver: oneshot::Receiver<(Position, Vec<Leased>)>,
    answered: bool,
}

impl LeaseWait {
    /// The leases, empty if none came in time, and where in the log they were
    /// granted. None: another call with the same
    /// request id has taken this one's place.
    pub(crate) async fn answer(&mut self) -> Option<(Position, Vec<Leased>)> {
        let answer = (&mut self.receiver).await.ok();
        self.answered = true;
        answer
    }

    /// Nothing is going to come: the command was answered at once, or refused.
    pub(crate) fn settled(mut self) {
        self.answered = true;
        self.dispatch.waiters.lock().calls.remove(&self.waiter);
    }
}

impl Drop for LeaseWait {
    fn drop(&mut self) {
        if !self.answered {
            let mut waiters = self.dispatch.waiters.lock();
            if waiters.calls.remove(&self.waiter).is_some() {
                waiters.gone.insert(self.waiter);
            }
        }
    }
}
