//! I4: what was acked never comes again.

use std::collections::HashMap;

use super::Looked;
use crate::history::History;
use crate::ids::MessageId;
use crate::model::{Exit, Place, Replay};

/// What is known of a message in all queues.
#[derive(Default)]
struct Known {
    acked: bool,
    /// The entry in which it last left a queue for another.
    left: u64,
}

/// Nothing happens to a message in the queue where it was acked, and it comes to no other, unless a copy of it
/// moves there from a third. Copies of a message in several queues are acked each by itself.
#[must_use]
pub fn acked_is_final(replay: &Replay<'_>, _: &History) -> Looked {
    let mut looked = Looked::default();
    let mut messages: HashMap<MessageId, Known> = HashMap::new();
    for step in &replay.steps {
        let (index, change) = (step.index, step.change);
        let known = messages.entry(change.message).or_default();
        let comes_back = match change.change.as_str() {
            "duplicate" => false,
            "published" => known.acked,
            "arrived" => known.acked && known.left != index,
            _ => step.before.place == Place::Gone(Exit::Acked),
        };
        looked.undecided += u64::from(step.is_double);
        if comes_back && !step.is_double {
            looked.add(Some(change.message), || {
                format!(
                    "{} was acked, and then {} in {} in entry {index}",
                    change.message, change.change, change.queue
                )
            });
        }
        match step.after.place {
            Place::Gone(Exit::Acked) => {
                looked.checked += 1;
                known.acked = true;
            }
            Place::Gone(Exit::Moved | Exit::DeadLettered) => known.left = index,
            _ => {}
        }
    }
    looked
}

#[cfg(test)]
mod tests {
    use super::acked_is_final;
    use crate::check::replay::testing::{leaves_open, refuses};

    const GOOD: &str = r#"
        1000 declare-queue queue=q created=true settings={"lease_ms":500}
        1000 declare-queue queue=other created=true settings={"lease_ms":500}
        1000 publish exchange=x count=2 first=3-0 / 3-0 published / 3-0 published queue=other queue_id=8 / 3-1 published
        1000 lease queue=q / 3-0 leased fence=1 attempt=1 until_ms=1500
        1000 lease queue=q / 3-1 leased fence=2 attempt=1 until_ms=1500
        1100 settle settlements=[{"token":"9.0.1.1","verdict":"ack"}] / 3-0 acked
        1100 settle settlements=[{"token":"9.1.1.2","verdict":"nack"}] / 3-1 nacked
        1200 operate queue=other operation=move messages=[{"message":"3-0"}] / 3-0 moved queue=other queue_id=8 to=["q"] / 3-0 arrived from=other exit=moved
        1200 lease queue=q / 3-1 leased fence=3 attempt=2 until_ms=1700
        1200 lease queue=q / 3-0 leased fence=4 attempt=1 until_ms=1700
        1300 settle settlements=[{"token":"9.2.1.4","verdict":"ack"}] / 3-0 acked
        1300 settle settlements=[{"token":"9.1.2.3","verdict":"ack"}] / 3-1 acked
    "#;

    #[test]
    fn what_comes_after_the_ack_is_found() {
        refuses(
            acked_is_final,
            GOOD,
            &[
                // It was the ack of the wrong one.
                ("\"nack\"}] / 3-1 nacked", "\"ack\"}] / 3-1 acked"),
                // It comes from nowhere.
                (" / 3-0 moved queue=other queue_id=8 to=[\"q\"]", ""),
                ("3-0 acked\n", "3-0 acked / 3-0 released\n"),
                (
                    "/ 3-1 acked",
                    "/ 3-1 acked / 3-1 leased fence=9 attempt=3 until_ms=1800",
                ),
                ("/ 3-1 acked", "/ 3-1 acked / 3-1 published queue=new queue_id=7"),
            ],
        );
    }

    #[test]
    fn copies_that_come_together_are_not_told_apart() {
        let first = "1100 settle settlements=[{\"token\":\"9.0.1.1\",\"verdict\":\"ack\"}] / 3-0 acked";
        leaves_open(acked_is_final, GOOD, &[(first, "1100 tick")]);
    }
}
