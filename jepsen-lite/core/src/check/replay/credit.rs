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

#[cfg(test)]
mod tests {
    use super::credit_is_kept;
    use crate::check::replay::testing::refuses;

    const GOOD: &str = r#"
        1000 declare-queue queue=q created=true settings={"lease_ms":500}
        1000 publish queue=q count=5 first=2-0 / 2-0 published / 2-1 published / 2-2 published / 2-3 published / 2-4 published
        1000 consume session="7" consumer=1 queue=q credit=2 / 2-0 leased fence=1 attempt=1 until_ms=1500 session="7" consumer=1 / 2-1 leased fence=2 attempt=1 until_ms=1500 session="7" consumer=1
        1000 settle settlements=[{"token":"9.0.1.1","verdict":"ack"}] / 2-0 acked / 2-2 leased fence=3 attempt=1 until_ms=1500 session="7" consumer=1
        1100 set-credit session="7" consumer=1 credit=1
        1100 settle settlements=[{"token":"9.1.1.2","verdict":"ack"}] / 2-1 acked
        1200 settle settlements=[{"token":"9.2.1.3","verdict":"extend","until_ms":1700}] / 2-2 extended until_ms=1700
        1300 settle settlements=[{"token":"9.2.1.3","verdict":"ack"}] / 2-2 acked / 2-3 leased fence=4 attempt=1 until_ms=1800 session="7" consumer=1
        1400 cancel-consumer session="7" consumer=1
        1800 tick / 2-3 lease-expired
        1800 lease queue=q / 2-3 leased fence=5 attempt=2 until_ms=2300 / 2-4 leased fence=6 attempt=1 until_ms=2300
    "#;

    #[test]
    fn a_consumer_that_holds_too_much_is_found() {
        refuses(
            credit_is_kept,
            GOOD,
            &[
                ("queue=q credit=2", "queue=q credit=1"),
                // After a settlement that is none, and after one that extends.
                ("/ 2-0 acked /", "/"),
                ("2-2 acked", "2-2 extended until_ms=1800"),
                // After it was lowered, and after the consumer was cancelled.
                (
                    "2-1 acked\n",
                    "2-1 acked / 2-3 leased fence=9 attempt=1 until_ms=1600 session=\"7\" consumer=1\n",
                ),
                (
                    "2-3 lease-expired",
                    "2-3 lease-expired / 2-3 leased fence=9 attempt=2 until_ms=2300 session=\"7\" consumer=1",
                ),
                // To one that nobody knows.
                (
                    "fence=5 attempt=2 until_ms=2300",
                    "fence=5 attempt=2 until_ms=2300 session=\"8\" consumer=1",
                ),
            ],
        );
    }
}
