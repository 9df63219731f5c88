//! I17: a consumer holds no more than its credit.

use std::collections::HashMap;

use super::Looked;
use crate::audit::Request;
use crate::history::History;
use crate::model::{Place, Replay, Step};

/// What a consumer may hold, and holds.
#[derive(Default)]
struct Credit {
    /// From the next entry on.
    given: u32,
    /// The most that was given in this entry, or before it.
    most: u32,
    /// The entry that it was last given in.
    index: u64,
    held: u32,
}

/// When a consumer is given a message, it holds no more than its credit with it. Credit that is lowered takes nothing
/// back. Within an entry in which credit changes, the higher one counts.
#[must_use]
pub fn credit_is_kept(replay: &Replay<'_>, _: &History) -> Looked {
    let mut looked = Looked::default();
    let mut consumers: HashMap<(u64, u32), Credit> = HashMap::new();
    for (entry, steps) in replay.entries() {
        for request in entry.requests.iter().filter(|request| request.is_done()) {
            gives(entry.index, request, &mut consumers);
        }
        for step in steps {
            if let Some(holder) = holder(step.before.place).filter(|_| step.change.change != "extended") {
                let credit = consumers.entry(holder).or_default();
                credit.held = credit.held.saturating_sub(1);
            }
            if step.change.change == "leased"
                && let Some(holder) = holder(step.after.place)
            {
                let credit = consumers.entry(holder).or_default();
                credit.held += 1;
                if replay.is_sure(step) {
                    looked.checked += 1;
                    given(step, holder, credit, &mut looked);
                } else {
                    looked.undecided += 1;
                }
            }
        }
    }
    looked
}

fn given(step: &Step<'_>, holder: (u64, u32), credit: &Credit, looked: &mut Looked) {
    let most = if credit.index == step.index {
        credit.most
    } else {
        credit.given
    };
    if credit.held > most {
        let (message, held) = (step.change.message, credit.held);
        let (session, consumer) = holder;
        looked.add(Some(message), || {
            format!(
                "{message} is the {held}th that consumer {consumer} of session {session} holds in entry {}, of at most {most}",
                step.index
            )
        });
    }
}

fn gives(index: u64, request: &Request, consumers: &mut HashMap<(u64, u32), Credit>) {
    let (Some(session), Some(consumer)) = (request.session, request.consumer) else {
        return;
    };
    let given = match request.kind.as_str() {
        "consume" | "set-credit" => request.credit,
        "cancel-consumer" => 0,
        _ => return,
    };
    let credit = consumers.entry((session, consumer)).or_default();
    let most = if credit.index == index {
        credit.most
    } else {
        credit.given
    };
    credit.most = most.max(given);
    (credit.given, credit.index) = (given, index);
}

fn holder(place: Place) -> Option<(u64, u32)> {
    match place {
        Place::Leased(lease) => lease.holder,
        _ => None,
    }
}
