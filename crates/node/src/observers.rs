//! Who is told what the state machine does, in log order.

use std::sync::Arc;

use quorate_core::Broker as State;
use quorate_raft::{Observed, Observer};

use crate::dispatch::Dispatch;

/// Everything in a node that follows the log.
pub(crate) struct Observers {
    pub(crate) dispatch: Arc<Dispatch>,
}

impl Observer for Observers {
    fn opened(&self, _journal: quorate_raft::Journal) {}

    fn applied(&self, entry: Observed<'_>, state: &State) {
        self.dispatch.applied(state.now(), entry.effects);
    }

    fn restored(&self, _index: u64) {
        self.dispatch.restored();
    }

    fn keep(&self, _index: u64) {}
}
