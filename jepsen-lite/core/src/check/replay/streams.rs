//! I26: nobody is given the same thing twice.

use std::collections::{HashMap, HashSet};

use super::Looked;
use crate::history::History;
use crate::model::{Lease, Place, Replay};

/// A consumer gets an attempt at a message once, unless it was given back, ended with the session or was redriven:
/// these do not count as failures, and the next attempt has the same number. And a connection gets each lease once.
#[must_use]
pub fn streams_get_each_once(replay: &Replay<'_>, history: &History) -> Looked {
    let mut looked = Looked::default();
    // The last lease of each stay by a consumer, as long as the next attempt must have another number.
    let mut last: HashMap<usize, Lease> = HashMap::new();
    for step in &replay.steps {
        if step.is_double {
            looked.undecided += 1;
            continue;
        }
        match (step.change.change.as_str(), step.after.place) {
            ("leased", Place::Leased(lease)) => {
                let Some((session, consumer)) = lease.holder else {
                    last.remove(&step.stay);
                    continue;
                };
                looked.checked += 1;
                let before = last.insert(step.stay, lease);
                let twice = |before: &Lease| before.attempt == lease.attempt && before.holder == lease.holder;
                if let Some(before) = before.filter(twice) {
                    let message = step.change.message;
                    looked.add(Some(message), || {
                        format!(
                            "consumer {consumer} of session {session} got attempt {} of {message} as {} and again as {} in entry {}",
                            lease.attempt, before.fence, lease.fence, step.index
                        )
                    });
                }
            }
            ("released" | "session-ended" | "redriven", _) => {
                last.remove(&step.stay);
            }
            _ => {}
        }
    }
    let mut seen: HashSet<(u32, &str)> = HashSet::new();
    for delivery in history.deliveries.iter().filter(|delivery| delivery.stream != 0) {
        looked.checked += 1;
        if !seen.insert((delivery.stream, &delivery.token)) {
            looked.add(Some(delivery.message), || {
                format!("connection {} got {} twice", delivery.stream, delivery.token)
            });
        }
    }
    looked
}
