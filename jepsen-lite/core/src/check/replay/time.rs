//! I14: a lease lasts as long as was granted, and not longer.

use std::collections::{BTreeSet, HashMap};

use super::{DUE_MAX, Looked};
use crate::audit::Request;
use crate::history::History;
use crate::ids::MessageId;
use crate::model::{Place, Replay, Step};

/// Cluster time does not go back. A lease runs out in an entry whose time is its end or later. The first entry of such
/// a time ends it, if no more than 4,096 fall due at once. And its end is as far away as was asked for, or as the queue
/// says: of leases of consumers, and of those that were extended.
#[must_use]
pub fn leases_last(replay: &Replay<'_>, _: &History) -> Looked {
    let mut looked = Looked::default();
    let mut leases: BTreeSet<(u64, u64, MessageId, usize)> = BTreeSet::new();
    let mut asked: HashMap<(u64, u32), Wanted> = HashMap::new();
    let (mut before, mut before_ms) = (0, 0);
    for (entry, steps) in replay.entries() {
        if entry.at_ms < before_ms {
            looked.add(None, || {
                format!(
                    "entry {before} has time {before_ms}, and {} after it {}",
                    entry.index, entry.at_ms
                )
            });
        }
        (before, before_ms) = (entry.index, entry.at_ms);
        for request in entry.requests.iter().filter(|request| request.is_done()) {
            consumes(request, &mut asked);
        }
        let mut due = 0;
        for step in steps {
            if step.is_double {
                looked.undecided += 1;
                continue;
            }
            due += usize::from(
                step.settlement.is_none() && !matches!(step.change.change.as_str(), "leased" | "published"),
            );
            if let Some(why) = length(replay, step, &asked, &mut looked.checked) {
                let message = step.change.message;
                looked.add(Some(message), || {
                    format!(
                        "{message}: {} in entry {} at {}, {why}",
                        step.change.change, step.index, step.at_ms
                    )
                });
            }
            let message = step.change.message;
            if let Place::Leased(lease) = step.before.place {
                leases.remove(&(lease.until_ms, lease.fence, message, step.queue));
            }
            if let Place::Leased(lease) = step.after.place {
                leases.insert((lease.until_ms, lease.fence, message, step.queue));
            }
        }
        // An entry without requests does nothing at all.
        if due >= DUE_MAX || entry.requests.is_empty() {
            continue;
        }
        while let Some(&over) = leases.first().filter(|(until_ms, ..)| *until_ms <= entry.at_ms) {
            leases.remove(&over);
            let (until_ms, fence, message, queue) = over;
            if replay.queues[queue].is_sure_in(entry.index) {
                looked.add(Some(message), || {
                    format!(
                        "lease {fence} of {message} lasted until {until_ms}, and is there after entry {} at {}",
                        entry.index, entry.at_ms
                    )
                });
            }
        }
    }
    looked
}

/// The lease that a consumer asked for; None = that of the queue.
struct Wanted {
    lease_ms: Option<u64>,
    /// It asked again, for another one. Which of them counts from when on, is not decided.
    is_unsure: bool,
}

fn consumes(request: &Request, asked: &mut HashMap<(u64, u32), Wanted>) {
    if let ("consume", Some(session), Some(consumer)) =
        (request.kind.as_str(), request.session, request.consumer)
    {
        let lease_ms = request.lease_ms;
        let wanted = asked.entry((session, consumer)).or_insert(Wanted {
            lease_ms,
            is_unsure: false,
        });
        wanted.is_unsure |= wanted.lease_ms != lease_ms;
    }
}

/// What is wrong with the end of a lease.
fn length(
    replay: &Replay<'_>,
    step: &Step<'_>,
    asked: &HashMap<(u64, u32), Wanted>,
    checked: &mut u64,
) -> Option<String> {
    let of_queue = || replay.settings(step).map(|settings| settings.lease_ms);
    match (step.change.change.as_str(), step.before.place, step.after.place) {
        ("lease-expired", Place::Leased(lease), _) => {
            *checked += 1;
            (step.at_ms < lease.until_ms).then(|| format!("and it lasted until {}", lease.until_ms))
        }
        ("leased", _, Place::Leased(lease)) => {
            let wanted = asked.get(&lease.holder?).filter(|wanted| !wanted.is_unsure)?;
            let asked = wanted.lease_ms.or_else(of_queue)?;
            *checked += 1;
            let until_ms = step.at_ms + asked;
            (lease.until_ms != until_ms).then(|| format!("until {}, not {until_ms}", lease.until_ms))
        }
        ("extended", _, Place::Leased(lease)) => {
            let settlement = step.settlement?;
            let until_ms = step.at_ms + settlement.delay_ms.or_else(of_queue)?;
            *checked += 1;
            let told = settlement.until_ms.unwrap_or(lease.until_ms);
            (lease.until_ms != until_ms || told != until_ms)
                .then(|| format!("until {}, as told {told}, not {until_ms}", lease.until_ms))
        }
        _ => None,
    }
}
