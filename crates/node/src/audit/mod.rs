//! The audit log: what this node applied, for whoever checks that all nodes applied the same, and that what
//! clients were told is what happened.
//!
//! Each entry is written down as it is applied, before its proposer is told: its place in the log, its term,
//! cluster time, the state hash after it, each request with its id and outcome, and what happened to messages.
//! Entries that are applied again after a restart are written down again, so that a checker can insist that
//! they are the same. `docs/audit-log.md` has the format.
//!
//! It is for fault injection. A node keeps none unless it is asked to
//! ([`Config::audit`](crate::Config::audit)), and then nothing is encoded. An audit log that cannot be written
//! ends, with a warning, and the node goes on: what it says up to there stays true.

mod file;
pub mod record;
#[cfg(test)]
mod tests;
mod told;

use std::fmt;
use std::sync::Arc;

use quorate_core::Broker as State;
use quorate_core::ids::NodeId;
use quorate_raft::Answering;

pub use file::AuditFile;
pub use record::Record;

/// Takes the records of a node's audit log, in order.
pub trait AuditSink: Send + Sync + 'static {
    /// Takes one. Called before the proposer of the entry is answered, by the task that applies, which waits
    /// for it: what is kept when this returns was kept before anybody heard of it.
    fn record(&self, record: &Record);
}

/// Where a node's audit log goes; nowhere by default.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<dyn AuditSink>>);

impl Audit {
    /// To a sink.
    #[must_use]
    pub fn to(sink: Arc<dyn AuditSink>) -> Self {
        Self(Some(sink))
    }

    pub(crate) fn opened(&self, node: NodeId) {
        self.record(|| {
            Record::Opened(record::Opened {
                format: record::FORMAT,
                node: node.0.to_string(),
            })
        });
    }

    pub(crate) fn answering(&self, entry: Answering<'_>, state: &State) {
        self.record(|| Record::Entry(told::entry(entry, state)));
    }

    pub(crate) fn restored(&self, index: u64, term: u64, state: &State) {
        self.record(|| {
            Record::Restored(record::Restored {
                index,
                term,
                at_ms: state.now().0,
                hash: told::hash(state),
            })
        });
    }

    fn record(&self, record: impl FnOnce() -> Record) {
        if let Some(sink) = &self.0 {
            sink.record(&record());
        }
    }
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "Audit(on)"
        } else {
            "Audit(off)"
        })
    }
}
