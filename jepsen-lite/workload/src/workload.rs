//! What a workload is.

use std::fmt;

use anyhow::Result;
use futures_util::future::BoxFuture;
use jepsen_lite_core::view::Settings;

use crate::crew::Post;
use crate::participant::Participant;

/// What clients do to a cluster during a run. [`Load`](crate::load::Load) brings it to life.
pub trait Workload: fmt::Debug + Send + Sync + 'static {
    /// Its queues, each after those that it sends its dead letters to. All are declared before the load begins,
    /// and emptied at the end.
    fn queues(&self) -> Vec<(String, Settings)>;

    /// Who takes part.
    fn posts(&self) -> Vec<Post>;

    /// What one of them does, until it is told to end.
    fn work(&self, participant: Participant) -> BoxFuture<'static, ()>;

    /// What has to be there besides the queues.
    fn prepare<'a>(&'a self, caretaker: &'a Participant) -> BoxFuture<'a, Result<()>> {
        let _ = caretaker;
        Box::pin(async { Ok(()) })
    }

    /// Where that goes in the end what is left in a queue; `None` = it is acked and gone.
    fn onward(&self, queue: &str) -> Option<&str> {
        let _ = queue;
        None
    }
}
