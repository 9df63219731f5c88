//! Requests under one client id that go over a stream in order, are answered
//! in any order, and are sent again in order over the next stream.

use std::collections::VecDeque;

use quorate_proto::v1;
use tokio::time::Instant;

use crate::error::{Error, Refusal};
use crate::failure::{Again, Failure};
use crate::random::Random;
use crate::request_id::{RequestId, SPREAD_MAX};

/// Requests that wait for their answers.
#[derive(Debug)]
pub(crate) struct Pipeline<T> {
    action: &'static str,
    client: u64,
    random: Random,
    /// Sequence of the first slot.
    first: u64,
    /// By sequence, without gaps. None = answered. The first is never None.
    slots: VecDeque<Option<Waiting<T>>>,
    /// The slots before this one were sent on the present stream.
    sent: usize,
    /// Waiting requests.
    count: usize,
    /// Those of them whose client id the broker has forgotten.
    forgotten: usize,
}

#[derive(Debug)]
struct Waiting<T> {
    item: T,
    deadline: Instant,
    /// On the present stream.
    sent: bool,
    /// An earlier stream may have carried it to where it was applied.
    maybe: bool,
    /// The broker has forgotten the client id, and did not apply it.
    forgotten: bool,
}

/// What to do about a failed request.
pub(crate) enum Fate<T> {
    /// It is over.
    Tell(T, Error),
    /// It goes out again on this stream, under a new client id.
    Keep,
    /// It goes out again on another stream.
    Reopen(Again),
    /// The session is gone, and with it the stream; the request goes out again.
    SessionLost(Refusal),
}

impl<T> Pipeline<T> {
    pub(crate) fn new(action: &'static str, client: u64, random: Random) -> Self {
        Self {
            action,
            client,
            random,
            first: 1,
            slots: VecDeque::new(),
            sent: 0,
            count: 0,
            forgotten: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a request at the end.
    pub(crate) fn push(&mut self, item: T, deadline: Instant) {
        let waiting = Waiting {
            item,
            deadline,
            sent: false,
            maybe: false,
            forgotten: false,
        };
        self.slots.push_back(Some(waiting));
        self.count += 1;
    }

    /// The id of a request that waits, as of now.
    pub(crate) fn id(&self, sequence: u64) -> RequestId {
        RequestId {
            client: self.client,
            sequence,
        }
    }

    /// Whether a request should go out now.
    pub(crate) fn has_unsent(&self) -> bool {
        self.unsent_slot().is_some()
    }

    /// The next request to go out, counted as sent.
    pub(crate) fn next_unsent(&mut self) -> Option<(v1::RequestId, &T)> {
        let slot = self.unsent_slot()?;
        self.sent = slot + 1;
        let id = v1::RequestId {
            client: self.client,
            sequence: self.first + slot as u64,
            oldest_unanswered: self.first,
        };
        let waiting = self.slots[slot].as_mut()?;
        waiting.sent = true;
        Some((id, &waiting.item))
    }

    fn unsent_slot(&self) -> Option<usize> {
        let mut unsent = self.slots.range(self.sent..).enumerate();
        let (offset, waiting) = unsent.find_map(|(offset, slot)| {
            let waiting = slot.as_ref().filter(|waiting| !waiting.forgotten)?;
            Some((offset, waiting))
        })?;
        let slot = self.sent + offset;
        // Nothing new goes out under a client id that the broker has forgotten,
        // nor so far ahead of the oldest that it would forget.
        let may_go = waiting.maybe || (self.forgotten == 0 && (slot as u64) < SPREAD_MAX);
        may_go.then_some(slot)
    }

    /// A new stream begins: everything goes out again, in order.
    pub(crate) fn rewind(&mut self) {
        for waiting in self.slots.iter_mut().flatten() {
            waiting.maybe |= waiting.sent && !waiting.forgotten;
            waiting.sent = false;
        }
        self.sent = 0;
        self.renumber_if_forgotten();
    }

    /// The request was answered.
    pub(crate) fn answer(&mut self, sequence: u64) -> Option<T> {
        let taken = self.take(self.slot(sequence)?);
        self.renumber_if_forgotten();
        taken
    }

    /// The request failed. None if it does not wait any more.
    pub(crate) fn fail(&mut self, sequence: u64, failure: Failure) -> Option<Fate<T>> {
        let id = self.id(sequence);
        let slot = self.slot(sequence)?;
        let waiting = self.slots.get_mut(slot)?.as_mut()?;
        Some(match failure {
            Failure::Final(refusal) => Fate::Tell(self.answer(sequence)?, Error::from(refusal).of(id)),
            Failure::Forgotten(refusal) if waiting.maybe => {
                let error = Error::Unknown {
                    action: self.action,
                    cause: refusal.to_string(),
                    request_id: None,
                };
                Fate::Tell(self.answer(sequence)?, error.of(id))
            }
            Failure::Forgotten(_) => {
                if !waiting.forgotten {
                    waiting.forgotten = true;
                    self.forgotten += 1;
                }
                self.renumber_if_forgotten();
                Fate::Keep
            }
            Failure::SessionLost(refusal) => {
                waiting.sent = false;
                Fate::SessionLost(refusal)
            }
            Failure::Again(again) => {
                waiting.sent = false;
                waiting.maybe |= again.maybe;
                Fate::Reopen(again)
            }
        })
    }

    /// Takes out the requests whose time has passed, each with its error.
    pub(crate) fn expire(&mut self, now: Instant, cause: &str) -> Vec<(T, Error)> {
        self.take_out(cause, |waiting| waiting.deadline <= now)
    }

    /// Takes out all requests, each with its error.
    pub(crate) fn give_up(&mut self, cause: &str) -> Vec<(T, Error)> {
        self.take_out(cause, |_| true)
    }

    fn take_out(&mut self, cause: &str, which: impl Fn(&Waiting<T>) -> bool) -> Vec<(T, Error)> {
        let mut taken = Vec::new();
        // Requests come with growing deadlines: the first that stays is the end.
        while let Some(Some(waiting)) = self.slots.front()
            && which(waiting)
        {
            let error = if waiting.maybe || (waiting.sent && !waiting.forgotten) {
                Error::Unknown {
                    action: self.action,
                    cause: cause.to_owned(),
                    request_id: None,
                }
            } else {
                Error::no_leader(cause.to_owned())
            };
            let id = self.id(self.first);
            taken.extend(self.take(0).map(|item| (item, error.of(id))));
        }
        self.renumber_if_forgotten();
        taken
    }

    fn slot(&self, sequence: u64) -> Option<usize> {
        usize::try_from(sequence.checked_sub(self.first)?).ok()
    }

    fn take(&mut self, slot: usize) -> Option<T> {
        let waiting = self.slots.get_mut(slot)?.take()?;
        self.count -= 1;
        self.forgotten -= usize::from(waiting.forgotten);
        while matches!(self.slots.front(), Some(None)) {
            self.slots.pop_front();
            self.first += 1;
            self.sent = self.sent.saturating_sub(1);
        }
        Some(waiting.item)
    }

    /// Goes on under another client id once no request under the forgotten one
    /// can be answered any more: answers name the sequence alone.
    fn renumber_if_forgotten(&mut self) {
        let under_way = self
            .slots
            .iter()
            .flatten()
            .any(|w| (w.sent || w.maybe) && !w.forgotten);
        if self.forgotten == 0 || under_way {
            return;
        }
        tracing::debug!("the broker has forgotten this client id; going on under another");
        self.client = self.random.id();
        self.first = 1;
        self.sent = 0;
        self.forgotten = 0;
        self.slots.retain(Option::is_some);
        for waiting in self.slots.iter_mut().flatten() {
            waiting.sent = false;
            waiting.forgotten = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::Reason;

    fn pipeline(items: &[u32]) -> Pipeline<u32> {
        let mut pipeline = Pipeline::new("test", 7, Random::default());
        for item in items {
            pipeline.push(*item, Instant::now() + Duration::from_secs(30));
        }
        pipeline
    }

    fn send_all(pipeline: &mut Pipeline<u32>) -> Vec<(u64, u64, u64, u32)> {
        let mut sent = Vec::new();
        while let Some((id, item)) = pipeline.next_unsent() {
            sent.push((id.client, id.sequence, id.oldest_unanswered, *item));
        }
        sent
    }

    fn refusal(reason: Reason) -> Refusal {
        Refusal {
            reason,
            message: String::new(),
            retryable: false,
            retry_after: None,
            context: Default::default(),
            request_id: None,
        }
    }

    #[test]
    fn a_new_stream_gets_the_unanswered_in_order_under_the_same_ids() {
        let mut pipeline = pipeline(&[10, 20, 30, 40]);
        assert_eq!(send_all(&mut pipeline).len(), 4);
        assert_eq!(pipeline.answer(1), Some(10));
        assert_eq!(pipeline.answer(3), Some(30));
        assert_eq!(pipeline.answer(3), None);
        pipeline.rewind();
        pipeline.push(50, Instant::now());
        assert_eq!(
            send_all(&mut pipeline),
            [(7, 2, 2, 20), (7, 4, 2, 40), (7, 5, 2, 50)]
        );
        assert!(!pipeline.has_unsent());
    }

    #[test]
    fn a_forgotten_client_id_is_left_when_nothing_under_it_can_be_answered() {
        let mut pipeline = pipeline(&[10, 20, 30]);
        send_all(&mut pipeline);
        let forgotten = || Failure::Forgotten(refusal(Reason::RequestForgotten));
        assert!(matches!(pipeline.fail(1, forgotten()), Some(Fate::Keep)));
        pipeline.push(40, Instant::now());
        assert!(!pipeline.has_unsent(), "nothing goes out under the forgotten id");
        assert_eq!(pipeline.answer(2), Some(20));
        assert!(matches!(pipeline.fail(3, forgotten()), Some(Fate::Keep)));
        let sent = send_all(&mut pipeline);
        assert!(sent.iter().all(|(client, ..)| *client != 7));
        let rest: Vec<_> = sent
            .iter()
            .map(|(_, sequence, oldest, item)| (*sequence, *oldest, *item))
            .collect();
        assert_eq!(rest, [(1, 1, 10), (2, 1, 30), (3, 1, 40)]);
    }

    #[test]
    fn forgotten_on_a_repeat_is_unknown() {
        let mut pipeline = pipeline(&[10]);
        send_all(&mut pipeline);
        pipeline.rewind();
        send_all(&mut pipeline);
        let verdict = pipeline.fail(1, Failure::Forgotten(refusal(Reason::RequestForgotten)));
        assert!(matches!(verdict, Some(Fate::Tell(10, Error::Unknown { .. }))));
        assert!(pipeline.is_empty());
    }

    #[test]
    fn what_was_never_sent_certainly_did_not_apply() {
        let mut pipeline = pipeline(&[10]);
        send_all(&mut pipeline);
        pipeline.push(20, Instant::now());
        let errors = pipeline.give_up("gone");
        assert!(matches!(
            errors.as_slice(),
            [(10, Error::Unknown { .. }), (20, Error::Unreachable { .. })]
        ));
    }
}
