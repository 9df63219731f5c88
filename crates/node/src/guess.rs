//! What an answer would be if nothing were in its way. Only for mutants that answer
//! before they know.

use quorate_core::command::{Command, Request};
use quorate_core::ids::MessageId;
use quorate_core::outcome::{Outcome, Published, Reply, Settled};
use quorate_raft::Proposed;

/// Of requests in the entry at `index`; None if one of them is neither a publish nor
/// a settlement.
pub(crate) fn outcomes(requests: &[Request], index: u64) -> Option<Vec<Outcome>> {
    let mut number = 0;
    let outcome = |request: &Request| match &request.command {
        Command::Publish(publish) => {
            let first = MessageId { index, number };
            let count = u32::try_from(publish.messages.len()).ok()?;
            number += count;
            let (unroutable, duplicates) = (Vec::new(), Vec::new());
            Some(Ok(Reply::Published(Published {
                first,
                count,
                unroutable,
                duplicates,
            })))
        }
        Command::Settle { settlements } => {
            let settled = Settled { leased_until: None };
            Some(Ok(Reply::Settled(vec![Ok(settled); settlements.len()])))
        }
        _ => None,
    };
    requests.iter().map(outcome).collect()
}

/// Of an entry that was committed: in place of what came of it.
pub(crate) fn replace(proposed: &mut Proposed, requests: &[Request]) {
    if let Some(outcomes) = outcomes(requests, proposed.index) {
        proposed.outcomes = outcomes;
        proposed.repeated.clear();
    }
}
