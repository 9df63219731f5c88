//! Who is told what the state machine does, in log order.

use std::sync::Arc;

use quorate_core::Broker as State;
use quorate_core::ids::NodeId;
use quorate_raft::{Answering, Journal as Chunks, Observed, Observer};

use crate::audit::Audit;
use crate::broker::Position;
use crate::dispatch::Dispatch;
use crate::journal::Journal;
use crate::metrics::Flow;

/// Everything in a node that follows the log.
pub(crate) struct Observers {
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) flow: Flow,
    audit: Audit,
}

impl Observers {
    pub(crate) fn new(dispatch: Arc<Dispatch>, audit: Audit) -> Self {
        Self {
            dispatch,
            journal: Arc::default(),
            flow: Flow::default(),
            audit,
        }
    }

    /// What is told from now on happens in this life of the node. Before, it was
    /// a repetition.
    pub(crate) fn start(&self, node: NodeId) {
        self.dispatch.set_node(node);
        self.flow.start();
    }
}

impl Observer for Observers {
    fn opened(&self, node: NodeId, journal: Chunks) {
        self.audit.opened(node);
        self.journal.opened(journal);
    }

    fn answering(&self, entry: Answering<'_>, state: &State) {
        self.audit.answering(entry, state);
    }

    fn applied(&self, entry: Observed<'_>, state: &State) {
        // Somebody waits for a delivery, and nobody for the rest.
        let position = Position {
            index: entry.index,
            term: entry.term,
            at: state.now(),
        };
        self.dispatch.applied(position, entry.effects);
        self.flow.applied(entry.events);
        self.journal.applied(entry.index, entry.events, state);
    }

    fn restored(&self, index: u64, term: u64, state: &State) {
        self.audit.restored(index, term, state);
        self.dispatch.restored();
        self.journal.restored(index);
    }

    fn keep(&self, index: u64) {
        self.journal.keep(index);
    }
}
