//! I14: a lease lasts as long as was granted, and not longer.

use std::collections::{BTreeSet, HashMap};

use super::{DUE_MAX, Looked};
use crate::audit::Request;
use crate::history::History;
use crate::ids::{MessageId, Token};
use crate::model::{Lease, Place, Replay, Step};

/// Cluster time does not go back. A lease runs out in an entry whose time is its end or later. The first entry of such
/// a time ends it, if no more than 4,096 fall due at once. And its end is as far away as was asked for, or as the queue
/// says: of leases of consumers, of those that were pulled and did not have to be waited for, and of those that were
/// extended.
#[must_use]
pub fn leases_last(replay: &Replay<'_>, _: &History) -> Looked {
    let mut looked = Looked::default();
    let mut leases: BTreeSet<(u64, u64, MessageId, usize)> = BTreeSet::new();
    let mut asked = Asked::default();
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
        asked.pulled.clear();
        for request in entry.requests.iter().filter(|request| request.is_done()) {
            asked.follow(request);
        }
        let mut due = 0;
        for step in steps {
            if step.is_double {
                looked.undecided += 1;
                continue;
            }
            due += usize::from(step.is_due());
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

/// The leases that were asked for, in milliseconds; None = that of the queue.
#[derive(Default)]
struct Asked {
    /// By session and consumer. None: it asked again, for another one, and which of them counts from when on is not
    /// decided.
    consumers: HashMap<(u64, u32), Option<Option<u64>>>,
    /// By fence, of those that were pulled in this entry.
    pulled: HashMap<u64, Option<u64>>,
}

impl Asked {
    fn follow(&mut self, request: &Request) {
        let lease_ms = request.lease_ms;
        if let ("consume", Some(session), Some(consumer)) =
            (request.kind.as_str(), request.session, request.consumer)
        {
            let wanted = self
                .consumers
                .entry((session, consumer))
                .or_insert(Some(lease_ms));
            *wanted = wanted.filter(|before| *before == lease_ms);
        }
        for token in &request.leased {
            if let Ok(token) = token.parse::<Token>() {
                self.pulled.insert(token.fence, lease_ms);
            }
        }
    }

    /// None: it is not known. Some(None): as the queue says.
    fn of(&self, lease: &Lease) -> Option<Option<u64>> {
        match lease.holder {
            Some(holder) => *self.consumers.get(&holder)?,
            None => self.pulled.get(&lease.fence).copied(),
        }
    }
}

/// What is wrong with the end of a lease.
fn length(replay: &Replay<'_>, step: &Step<'_>, asked: &Asked, checked: &mut u64) -> Option<String> {
    let of_queue = || replay.settings(step).map(|settings| settings.lease_ms);
    match (step.change.change.as_str(), step.before.place, step.after.place) {
        ("lease-expired", Place::Leased(lease), _) => {
            *checked += 1;
            (step.at_ms < lease.until_ms).then(|| format!("and it lasted until {}", lease.until_ms))
        }
        ("leased", _, Place::Leased(lease)) => {
            let asked = asked.of(&lease)?.or_else(of_queue)?;
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

#[cfg(test)]
mod tests {
    use super::leases_last;
    use crate::check::replay::testing::{leaves_open, refuses};

    const GOOD: &str = r#"
        1000 declare-queue queue=q created=true settings={"lease_ms":500}
        1000 publish queue=q count=3 first=2-0 / 2-0 published / 2-1 published / 2-2 published
        1000 lease queue=q lease_ms=400 leased=["9.0.1.1"] / 2-0 leased fence=1 attempt=1 until_ms=1400
        1000 consume session="7" consumer=1 queue=q credit=1 lease_ms=300 / 2-1 leased fence=2 attempt=1 until_ms=1300 session="7" consumer=1
        1000 consume session="7" consumer=2 queue=q credit=1 / 2-2 leased fence=3 attempt=1 until_ms=1500 session="7" consumer=2
        1100 settle settlements=[{"token":"9.0.1.1","verdict":"extend","until_ms":1600}] / 2-0 extended until_ms=1600
        1300 tick / 2-1 lease-expired / 2-1 leased fence=4 attempt=2 until_ms=1600 session="7" consumer=1
        1400 settle settlements=[{"token":"9.1.2.4","verdict":"ack"}] / 2-1 acked
        1510 tick / 2-2 lease-expired
        1600 tick / 2-0 lease-expired
        1600 tick
        1600
    "#;

    #[test]
    fn leases_of_another_length_and_time_that_goes_back_are_found() {
        refuses(
            leases_last,
            GOOD,
            &[
                // Too early, by a blink.
                ("1600 tick / 2-0", "1599 tick / 2-0"),
                ("1300 tick / 2-1", "1299 tick / 2-1"),
                // Too late, and never.
                (
                    "1510 tick / 2-2 lease-expired\n        1600 tick /",
                    "1510 tick\n        1600 tick / 2-2 lease-expired /",
                ),
                ("1600 tick / 2-0 lease-expired", "1600 tick"),
                // Not as long as it was asked for.
                ("until_ms=1400", "until_ms=1300"),
                ("until_ms=1300", "until_ms=1200"),
                ("until_ms=1500", "until_ms=1501"),
                ("\"until_ms\":1600", "\"until_ms\":1700"),
                ("2-0 extended until_ms=1600", "2-0 extended until_ms=1500"),
                (
                    "\"verdict\":\"extend\"",
                    "\"verdict\":\"extend\",\"delay_ms\":600",
                ),
                // Time goes back.
                ("1400 settle", "1299 settle"),
                ("1600\n", "1500\n"),
            ],
        );
    }

    #[test]
    fn a_consumer_that_asks_again_for_another_lease_decides_nothing() {
        let again = "1200 consume session=\"7\" consumer=1 queue=q credit=1 lease_ms=200\n        1300 tick";
        let other = GOOD.replacen("1300 tick", again, 1);
        leaves_open(
            leases_last,
            &other,
            &[(
                "fence=4 attempt=2 until_ms=1600",
                "fence=4 attempt=2 until_ms=1500",
            )],
        );
    }

    #[test]
    fn what_falls_due_with_thousands_of_others_may_be_left_to_the_next_entry() {
        let published: String = (0..4_100)
            .map(|number| format!(" / 2-{number} published until_ms=1100"))
            .collect();
        let due: String = (0..4_096).map(|number| format!(" / 2-{number} due")).collect();
        let rest: String = (4_096..4_100)
            .map(|number| format!(" / 2-{number} due"))
            .collect();
        let log = format!(
            "1000 declare-queue queue=q created=true settings={{\"lease_ms\":500}}\n\
             1000 publish queue=q count=4100 first=2-0{published}\n\
             1000 publish queue=q count=1 first=3-0 / 3-0 published\n\
             1000 lease queue=q lease_ms=100 / 3-0 leased fence=1 attempt=1 until_ms=1100\n\
             1100 tick{due}\n\
             1100 tick{rest} / 3-0 lease-expired\n\
             1100 tick\n"
        );
        refuses(
            leases_last,
            &log,
            &[(" / 3-0 lease-expired", ""), (" / 2-0 due", "")],
        );
    }
}
