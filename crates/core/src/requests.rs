//! Which requests were done already, and what they were answered.
//!
//! A client numbers its requests and says with each which is the oldest it
//! still waits for. The broker keeps the outcomes from there on, so that a
//! request that comes again, after a time-out or through another node, is
//! answered with what it was answered first. With each it keeps the entry in
//! which the request was executed, since that is where the change stands; of a
//! lease that waits that is the entry of the Lease, whichever answers it later.
//!
//! A client that nobody remembers is taken for a new one only if it still
//! waits for its first request. Any other was forgotten, and with it what it
//! has done: it is refused, and has to go on under another id. What this does
//! not see is a client whose first requests are all unanswered after it was
//! silent for [`CLIENT_TTL`]: it must not repeat them any more.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{ClientId, RequestId, Timestamp};
use crate::limits::{CLIENT_SWEEP, CLIENT_TTL, CLIENTS_MAX, OUTCOMES_PER_CLIENT_MAX};
use crate::outcome::{Outcome, Rejection, Reply};
use crate::queue::invalid;

/// The windows of all clients.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    clients: BTreeMap<ClientId, Arc<Client>>,
    /// Index: clients by their last use, the longest silent first.
    by_use: BTreeMap<u64, ClientId>,
    uses: u64,
}

/// The window of one client; shared with snapshots, copied on write.
#[derive(Clone, Debug, Default)]
pub(crate) struct Client {
    pub(crate) head: ClientHead,
    /// By sequence, none below the floor.
    pub(crate) outcomes: BTreeMap<u64, Executed>,
}

/// A request that was executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Executed {
    pub(crate) outcome: Outcome,
    /// Of the entry in which it was; an answer that comes later changes
    /// neither this nor the time.
    pub(crate) index: u64,
    /// Cluster time of that entry.
    pub(crate) at: Timestamp,
}

/// What is persisted of a client besides its outcomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientHead {
    /// Sequences below are forgotten.
    floor: u64,
    /// Grows with each use of any client.
    last_use: u64,
    last_used_at: Timestamp,
}

/// What to do with a request.
pub(crate) enum Admission {
    /// Do it, and remember the outcome.
    New,
    /// It was done.
    Repeated(Executed),
    /// Neither do it nor remember anything.
    Refused(Rejection),
}

impl Requests {
    /// Looks a request up, and takes note that its client lives. Says which
    /// waiting requests nobody waits for any more.
    pub(crate) fn admit(&mut self, id: RequestId, now: Timestamp) -> (Admission, Vec<(ClientId, u64)>) {
        let mut given_up = Vec::new();
        (self.look_up(id, now, &mut given_up), given_up)
    }

    fn look_up(&mut self, id: RequestId, now: Timestamp, given_up: &mut Vec<(ClientId, u64)>) -> Admission {
        if let Err(rejection) = check(id) {
            return Admission::Refused(rejection);
        }
        match self.clients.get(&id.client) {
            Some(client) if id.sequence < client.head.floor => {
                return Admission::Refused(Rejection::RequestForgotten);
            }
            Some(_) => {}
            None if id.oldest_unanswered > 1 => return Admission::Refused(Rejection::RequestForgotten),
            None => {
                if self.clients.len() >= CLIENTS_MAX {
                    given_up.extend(self.forget_longest_silent());
                }
                self.clients.insert(id.client, Arc::default());
            }
        }
        let client = self.touch(id.client, now);
        client.raise_floor(id.oldest_unanswered, |sequence| {
            given_up.push((id.client, sequence));
        });
        if let Some(executed) = client.outcomes.get(&id.sequence) {
            return Admission::Repeated(executed.clone());
        }
        if client.outcomes.len() >= OUTCOMES_PER_CLIENT_MAX {
            return Admission::Refused(Rejection::LimitExceeded(format!(
                "the client has {OUTCOMES_PER_CLIENT_MAX} requests of which it does not say that it knows the answer"
            )));
        }
        Admission::New
    }

    /// Of a request that was admitted as new.
    pub(crate) fn remember(&mut self, id: RequestId, executed: Executed) {
        let client = self
            .clients
            .get_mut(&id.client)
            .expect("a request was admitted, so its client is known");
        Arc::make_mut(client).outcomes.insert(id.sequence, executed);
    }

    /// A waiting request has its answer.
    pub(crate) fn replace(&mut self, client: ClientId, sequence: u64, outcome: Outcome) {
        let Some(client) = self.clients.get_mut(&client) else {
            return;
        };
        if let Some(waiting) = Arc::make_mut(client).outcomes.get_mut(&sequence) {
            waiting.outcome = outcome;
        }
    }

    /// When the longest silent client is to be forgotten. Many at a time, so that
    /// a quiet cluster is not kept busy with it.
    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        let (_, id) = self.by_use.first_key_value()?;
        let silent = self.clients[id].head.last_used_at.after(CLIENT_TTL);
        Some(silent.rounded_up(CLIENT_SWEEP))
    }

    /// Forgets a client, and says which of its requests were waiting.
    pub(crate) fn forget_longest_silent(&mut self) -> Vec<(ClientId, u64)> {
        let Some((_, id)) = self.by_use.pop_first() else {
            return Vec::new();
        };
        let client = self
            .clients
            .remove(&id)
            .expect("every client in the order of use is known");
        client.waiting().map(|sequence| (id, sequence)).collect()
    }

    pub(crate) fn clients(&self) -> &BTreeMap<ClientId, Arc<Client>> {
        &self.clients
    }

    /// The counter of uses, for snapshots.
    pub(crate) fn uses(&self) -> u64 {
        self.uses
    }

    pub(crate) fn restore(uses: u64, clients: BTreeMap<ClientId, Arc<Client>>) -> Self {
        let by_use = clients
            .iter()
            .map(|(id, client)| (client.head.last_use, *id))
            .collect();
        Self {
            clients,
            by_use,
            uses,
        }
    }

    /// The order of use has each client once, as it says itself.
    pub(crate) fn is_consistent(&self) -> bool {
        self.by_use.len() == self.clients.len()
            && self.clients.iter().all(|(id, client)| {
                client.head.last_use <= self.uses && self.by_use.get(&client.head.last_use) == Some(id)
            })
    }

    fn touch(&mut self, id: ClientId, now: Timestamp) -> &mut Client {
        self.uses += 1;
        let client = Arc::make_mut(self.clients.get_mut(&id).expect("the caller saw or inserted it"));
        self.by_use.remove(&client.head.last_use);
        self.by_use.insert(self.uses, id);
        client.head.last_use = self.uses;
        client.head.last_used_at = now;
        client
    }
}

impl Client {
    fn raise_floor(&mut self, floor: u64, mut given_up: impl FnMut(u64)) {
        self.head.floor = self.head.floor.max(floor);
        while let Some(oldest) = self.outcomes.first_entry() {
            if *oldest.key() >= self.head.floor {
                break;
            }
            let (sequence, executed) = oldest.remove_entry();
            if executed.outcome == Ok(Reply::Waiting) {
                given_up(sequence);
            }
        }
    }

    /// Sequences of the requests that wait.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = u64> {
        let waiting = self
            .outcomes
            .iter()
            .filter(|(_, executed)| executed.outcome == Ok(Reply::Waiting));
        waiting.map(|(sequence, _)| *sequence)
    }

    /// No outcome is below the floor, none too many.
    pub(crate) fn is_bounded(&self) -> bool {
        self.outcomes.keys().all(|sequence| *sequence >= self.head.floor)
            && self.outcomes.len() <= OUTCOMES_PER_CLIENT_MAX
    }

    /// Nothing was executed after that entry.
    pub(crate) fn is_no_later_than(&self, index: u64, at: Timestamp) -> bool {
        let mut executed = self.outcomes.values();
        executed.all(|executed| executed.index <= index && executed.at <= at)
    }
}

fn check(id: RequestId) -> Result<(), Rejection> {
    let RequestId {
        client,
        sequence,
        oldest_unanswered,
    } = id;
    if client.0 == 0 {
        return Err(invalid(
            "request_id.client",
            "a random number, never zero".to_owned(),
        ));
    }
    if sequence == 0 {
        return Err(invalid("request_id.sequence", "counts from 1".to_owned()));
    }
    if oldest_unanswered == 0 || oldest_unanswered > sequence {
        let problem = format!("1 to the sequence of the request ({sequence}), not {oldest_unanswered}");
        return Err(invalid("request_id.oldest_unanswered", problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(client: u64, sequence: u64, oldest_unanswered: u64) -> RequestId {
        RequestId {
            client: ClientId(client),
            sequence,
            oldest_unanswered,
        }
    }

    fn executed(outcome: Outcome) -> Executed {
        Executed {
            outcome,
            index: 5,
            at: Timestamp(50),
        }
    }

    /// Admits a request, and remembers it as done if it is new.
    fn ask(requests: &mut Requests, id: RequestId) -> Result<&'static str, Rejection> {
        match requests.admit(id, Timestamp(0)).0 {
            Admission::New => {
                requests.remember(id, executed(Ok(Reply::Done)));
                Ok("new")
            }
            Admission::Repeated(_) => Ok("repeated"),
            Admission::Refused(rejection) => Err(rejection),
        }
    }

    #[test]
    fn a_client_that_never_says_what_it_knows_is_stopped() {
        let mut requests = Requests::default();
        let max = OUTCOMES_PER_CLIENT_MAX as u64;
        for sequence in 1..=max {
            assert_eq!(ask(&mut requests, id(7, sequence, 1)), Ok("new"));
        }
        assert!(matches!(
            ask(&mut requests, id(7, max + 1, 1)),
            Err(Rejection::LimitExceeded(_))
        ));
        // What it asked before is still known, and others are not concerned.
        assert_eq!(ask(&mut requests, id(7, 1, 1)), Ok("repeated"));
        assert_eq!(ask(&mut requests, id(8, 1, 1)), Ok("new"));
        // It goes on where it says what it knows.
        assert_eq!(ask(&mut requests, id(7, max + 1, 2)), Ok("new"));
        assert_eq!(ask(&mut requests, id(7, 1, 1)), Err(Rejection::RequestForgotten));
        assert!(requests.is_consistent());
    }

    #[test]
    fn one_client_too_many_evicts_the_longest_silent() {
        let mut requests = Requests::default();
        for client in 1..=CLIENTS_MAX as u64 {
            assert_eq!(ask(&mut requests, id(client, 1, 1)), Ok("new"));
        }
        assert_eq!(ask(&mut requests, id(1, 2, 2)), Ok("new"));
        assert_eq!(ask(&mut requests, id(u64::MAX, 1, 1)), Ok("new"));
        assert_eq!(requests.clients().len(), CLIENTS_MAX);
        assert_eq!(ask(&mut requests, id(2, 2, 2)), Err(Rejection::RequestForgotten));
        assert_eq!(ask(&mut requests, id(1, 3, 3)), Ok("new"));
        assert!(requests.is_consistent());
    }

    #[test]
    fn giving_up_a_wait_is_told() {
        let mut requests = Requests::default();
        requests.admit(id(7, 1, 1), Timestamp(0));
        requests.remember(id(7, 1, 1), executed(Ok(Reply::Waiting)));
        assert_eq!(requests.admit(id(7, 2, 1), Timestamp(0)).1, []);
        assert_eq!(requests.admit(id(7, 3, 2), Timestamp(0)).1, [(ClientId(7), 1)]);
    }

    #[test]
    fn an_answer_that_comes_later_does_not_move_its_request() {
        let mut requests = Requests::default();
        requests.admit(id(7, 1, 1), Timestamp(0));
        requests.remember(id(7, 1, 1), executed(Ok(Reply::Waiting)));
        requests.replace(ClientId(7), 1, Ok(Reply::Leased(Vec::new())));
        let Admission::Repeated(again) = requests.admit(id(7, 1, 1), Timestamp(90)).0 else {
            panic!("it is remembered");
        };
        assert_eq!(again, executed(Ok(Reply::Leased(Vec::new()))));
    }
}
