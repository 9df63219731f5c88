//! News of commits, that travels with entries.
//!
//! When a commit advances and no entry waits to be sent, openraft sends a request without entries, so that the other
//! node can apply. Under load the next entries come a moment later and would have told it as well: each round of
//! consensus then costs twice the requests, and twice the tasks that wake for them on three nodes.
//!
//! So while entries come in quick succession, a request without any is held back until the next one comes,
//! which takes its place. openraft does not count answers: it goes by how far the other node's log matches, and the
//! answer to a later request says as much. While entries are rare nothing is held back, and nobody waits.
//!
//! The commit of a change of the members is never held back: a node that it removes is told nothing after it.

use std::time::Duration;

use futures_util::stream::Fuse;
use futures_util::{Stream, StreamExt as _};
use openraft::EntryPayload;
use openraft::raft::AppendEntriesRequest;
use tokio::time::{Instant, timeout_at};

use crate::types::TypeConfig;

type Request = AppendEntriesRequest<TypeConfig>;

/// Entries come in quick succession if two requests with entries are no further apart than this; and so long
/// is news of a commit held back.
pub(super) const PATIENCE: Duration = Duration::from_millis(2);

struct Sending<S> {
    /// Asked once more after its end, when a request is still held.
    input: Fuse<S>,
    /// A request without entries, and until when it may wait.
    held: Option<(Request, Instant)>,
    /// When the last request with entries was seen, and whether it came soon after the one before.
    last: Option<Instant>,
    quick: bool,
    /// Index of the last change of the members that was sent, until its commit is told.
    members: Option<u64>,
}

/// The requests of `input`, less those without entries that the next one makes needless.
pub(super) fn with_entries<S>(input: S) -> impl Stream<Item = Request> + Send
where
    S: Stream<Item = Request> + Send + Unpin,
{
    let start = Sending {
        input: input.fuse(),
        held: None,
        last: None,
        quick: false,
        members: None,
    };
    futures_util::stream::unfold(start, |mut sending| async move {
        let request = sending.next().await?;
        Some((request, sending))
    })
}

impl<S> Sending<S>
where
    S: Stream<Item = Request> + Send + Unpin,
{
    async fn next(&mut self) -> Option<Request> {
        loop {
            let next = match &self.held {
                None => self.input.next().await,
                Some((_, until)) => match timeout_at(*until, self.input.next()).await {
                    Ok(next) => next,
                    Err(_late) => return self.release(),
                },
            };
            let tells_members = next.as_ref().is_some_and(|request| self.tells_members(request));
            match next {
                None => return self.release(),
                Some(request) if !request.entries.is_empty() => {
                    self.held = None;
                    self.note_entries(&request);
                    return Some(request);
                }
                Some(request) if self.quick && !tells_members => {
                    let until = match self.held {
                        Some((_, until)) => until,
                        None => Instant::now() + PATIENCE,
                    };
                    self.held = Some((request, until));
                }
                Some(request) => {
                    self.held = None;
                    return Some(request);
                }
            }
        }
    }

    fn release(&mut self) -> Option<Request> {
        self.held.take().map(|(request, _)| request)
    }

    /// Whether it tells that a change of the members is committed.
    fn tells_members(&mut self, request: &Request) -> bool {
        let committed = request.leader_commit.as_ref().map(|commit| commit.index);
        self.members.take_if(|at| committed >= Some(*at)).is_some()
    }

    fn note_entries(&mut self, request: &Request) {
        let changes = request.entries.iter().rev();
        let change = changes.filter(|entry| matches!(entry.payload, EntryPayload::Membership(_)));
        self.members = change.map(|entry| entry.log_id.index).next().or(self.members);
        let now = Instant::now();
        self.quick = self.last.is_some_and(|last| now - last <= PATIENCE);
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use bytes::Bytes;
    use openraft::entry::RaftEntry as _;
    use openraft::vote::RaftLeaderId as _;
    use tokio::time::sleep_until;

    use super::*;
    use crate::types::{Batch, Entry, LeaderId, LogId, Vote};

    fn id(index: u64) -> LogId {
        LogId::new(LeaderId::new(3, 4), index)
    }

    /// What is sent, and when, of requests that come at these milliseconds: an entry, or else news of a commit.
    async fn sent(requests: &[(u64, bool)]) -> Vec<(u64, Option<u64>)> {
        let start = Instant::now();
        let requests: Vec<_> = requests.iter().copied().zip(1..).collect();
        // As openraft's stream, it panics if it is asked again after its end.
        let input = futures_util::stream::unfold(requests.into_iter(), |mut requests| async move {
            let ((at, entry), number) = requests.next()?;
            sleep_until(start + Duration::from_millis(at)).await;
            let entry =
                entry.then(|| Entry::new(id(number), EntryPayload::Normal(Batch(Bytes::from_static(b"x")))));
            let request = Request {
                vote: Vote::new_committed(3, 4),
                prev_log_id: None,
                leader_commit: Some(id(number)),
                entries: entry.into_iter().collect(),
            };
            Some((request, requests))
        });
        let output = pin!(with_entries(Box::pin(input)));
        output
            .map(|request| {
                let at = start.elapsed().as_millis() as u64;
                (at, request.leader_commit.map(|commit| commit.index))
            })
            .collect()
            .await
    }

    #[tokio::test(start_paused = true)]
    async fn a_lone_commit_is_told_at_once() {
        let requests = [(0, true), (1, false), (100, true), (101, false), (200, false)];
        let told = [
            (0, Some(1)),
            (1, Some(2)),
            (100, Some(3)),
            (101, Some(4)),
            (200, Some(5)),
        ];
        assert_eq!(sent(&requests).await, told);
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_entries_tell_of_a_commit() {
        let requests = [(0, true), (1, true), (2, false), (2, false), (3, true), (3, true)];
        assert_eq!(
            sent(&requests).await,
            [(0, Some(1)), (1, Some(2)), (3, Some(5)), (3, Some(6))]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_commit_waits_no_longer_than_patience() {
        // The newest is sent, when the oldest has waited long enough.
        let requests = [(0, true), (1, true), (2, false), (3, false), (50, true)];
        assert_eq!(
            sent(&requests).await,
            [(0, Some(1)), (1, Some(2)), (4, Some(4)), (50, Some(5))]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_request_of_a_stream_is_sent() {
        let requests = [(0, true), (1, true), (2, false)];
        assert_eq!(sent(&requests).await, [(0, Some(1)), (1, Some(2)), (2, Some(3))]);
    }
}
