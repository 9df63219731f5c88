//! I3: at one moment of cluster time a message has at most one lease.

use std::collections::HashMap;

use super::Looked;
use crate::history::History;
use crate::model::{Lease, Place, Replay};

/// Before a message is leased again, its lease was settled, ended with the session of its holder, or ran out: in an
/// entry whose time is the end of the lease or later, extensions included. Leases that were pulled end with no
/// session.
#[must_use]
pub fn leases_are_exclusive(replay: &Replay<'_>, _: &History) -> Looked {
    let mut looked = Looked::default();
    // Leases that are said to have run out, while they had time left.
    let mut early: HashMap<usize, Lease> = HashMap::new();
    for step in &replay.steps {
        if step.is_double {
            looked.undecided += 1;
            continue;
        }
        let (index, at, message) = (step.index, step.at_ms, step.change.message);
        match (step.change.change.as_str(), step.before.place) {
            ("leased", place) => {
                looked.checked += 1;
                let before = match place {
                    Place::Leased(lease) => Some(lease),
                    _ => early.remove(&step.stay).filter(|lease| at < lease.until_ms),
                };
                if let Some(lease) = before {
                    looked.add(Some(message), || {
                        format!(
                            "{message} was leased in entry {index} at {at} as {:?}, while lease {} lasted until {}",
                            step.change.fence, lease.fence, lease.until_ms
                        )
                    });
                }
            }
            ("lease-expired", Place::Leased(lease)) if at < lease.until_ms => {
                early.insert(step.stay, lease);
            }
            ("session-ended", Place::Leased(lease)) if lease.holder.is_none() => {
                looked.add(Some(message), || {
                    format!(
                        "lease {} of {message} was pulled, and ended with a session in entry {index}",
                        lease.fence
                    )
                });
            }
            _ => {}
        }
    }
    looked
}

#[cfg(test)]
mod tests {
    use super::leases_are_exclusive;
    use crate::check::replay::testing::refuses;

    const GOOD: &str = r#"
        1000 declare-queue queue=q created=true settings={"lease_ms":500,"max_deliveries":5}
        1000 publish queue=q count=2 first=2-0 / 2-0 published / 2-1 published
        1000 lease queue=q / 2-0 leased fence=1 attempt=1 until_ms=1500
        1000 consume session="7" consumer=1 queue=q credit=5 / 2-1 leased fence=2 attempt=1 until_ms=1500 session="7" consumer=1
        1200 settle settlements=[{"token":"9.0.1.1","verdict":"extend","delay_ms":800,"until_ms":2000}] / 2-0 extended until_ms=2000
        1300 close-session session="7" epoch=1 / 2-1 session-ended
        1300 lease queue=q / 2-1 leased fence=3 attempt=1 until_ms=1800
        1400 settle settlements=[{"token":"9.1.1.3","verdict":"nack"}] / 2-1 nacked
        1400 lease queue=q / 2-1 leased fence=4 attempt=2 until_ms=1900
        1900 tick / 2-1 lease-expired
        2000 tick / 2-0 lease-expired
        2000 lease queue=q / 2-0 leased fence=5 attempt=2 until_ms=2500 / 2-1 leased fence=6 attempt=3 until_ms=2500
    "#;

    #[test]
    fn a_lease_that_begins_while_another_lasts_is_found() {
        refuses(
            leases_are_exclusive,
            GOOD,
            &[
                // Nobody ended it.
                ("close-session session=\"7\" epoch=1 / 2-1 session-ended", "tick"),
                (" / 2-1 nacked", ""),
                ("2000 tick / 2-0 lease-expired", "2000 tick"),
                // Its time was not over: of the extension, and of cluster time that stood still.
                (
                    "2000 tick / 2-0 lease-expired\n        2000",
                    "1950 tick / 2-0 lease-expired\n        1950",
                ),
                (
                    "until_ms=1900\n        1900 tick",
                    "until_ms=1900\n        1400 tick / 2-1 lease-expired / 2-1 leased fence=9 attempt=3 until_ms=2400\n        1900 tick",
                ),
                // It was pulled, and hangs on no session.
                ("until_ms=1500 session=\"7\" consumer=1", "until_ms=1500"),
            ],
        );
    }
}
