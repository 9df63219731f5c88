//! I7: a dedup id is one message for as long as it is known.

use std::collections::HashMap;

use super::Looked;
use crate::history::History;
use crate::ids::MessageId;
use crate::model::{Replay, Step};

/// What a queue remembers of an id.
#[derive(Clone, Copy)]
struct Known {
    first: MessageId,
    index: u64,
    at_ms: u64,
    /// Its number among all ids that the queue came to know.
    number: u64,
}

/// The ids of a queue.
#[derive(Default)]
struct Memory<'a> {
    ids: HashMap<&'a str, Known>,
    count: u64,
}

/// A queue takes one message of a dedup id for as long as the id is known: for `dedup_window_ms` of cluster time after
/// the first, and among the last `dedup_max_ids`. Whatever else is published under it meanwhile is a duplicate of that
/// first; and when it is known no more, it is not. What an exchange knows is not in the log: a duplicate of what was
/// published to an exchange is undecided, if its queue does not know the id.
#[must_use]
pub fn an_id_is_one_message(replay: &Replay<'_>, _: &History) -> Looked {
    let mut looked = Looked::default();
    let mut memories: HashMap<usize, Memory<'_>> = HashMap::new();
    for (_, steps) in replay.entries() {
        // The messages of a publish are looked at in their order, and told of as they are taken.
        let mut published: Vec<(u32, &Step<'_>)> = steps.iter().filter_map(numbered).collect();
        published.sort_by_key(|(number, _)| *number);
        for (_, step) in published {
            let memory = memories.entry(step.queue).or_default();
            if step.change.change == "published" {
                taken(replay, step, memory, &mut looked);
                memory.learn(step);
            } else {
                not_taken(replay, step, memory, &mut looked);
            }
        }
    }
    looked
}

/// The number in its entry of a message that was published, or would have been.
fn numbered<'r, 'a>(step: &'r Step<'a>) -> Option<(u32, &'r Step<'a>)> {
    let change = step.change;
    match change.change.as_str() {
        "published" => (!change.dedup_id.is_empty()).then_some((change.message.number, step)),
        "duplicate" => Some((change.refused?.number, step)),
        _ => None,
    }
}

fn taken(replay: &Replay<'_>, step: &Step<'_>, memory: &Memory<'_>, looked: &mut Looked) {
    let (id, message) = (&step.change.dedup_id, step.change.message);
    match memory.knows(replay, step, id) {
        Ok(Some(known)) => {
            looked.checked += 1;
            looked.add(Some(message), || {
                format!(
                    "{message} was taken in entry {} at {} as {id}, which is known from {} at {}",
                    step.index, step.at_ms, known.first, known.at_ms
                )
            });
        }
        Ok(None) => looked.checked += 1,
        Err(Undecided) => looked.undecided += 1,
    }
}

fn not_taken(replay: &Replay<'_>, step: &Step<'_>, memory: &Memory<'_>, looked: &mut Looked) {
    let refused = step.change.refused.unwrap_or_default();
    let Some(origin) = replay.origin(refused) else {
        looked.undecided += 1;
        return;
    };
    let (id, first) = (&origin.asked.dedup_id, step.change.message);
    match memory.knows(replay, step, id) {
        Ok(Some(known)) if known.first == first => looked.checked += 1,
        Ok(_) if !origin.by_exchange => {
            looked.checked += 1;
            looked.add(Some(refused), || {
                format!(
                    "{refused} was not taken in entry {} at {} as a duplicate of {first}, and {id:?} is not known from it",
                    step.index, step.at_ms
                )
            });
        }
        Ok(_) | Err(Undecided) => looked.undecided += 1,
    }
}

/// The settings changed meanwhile.
struct Undecided;

impl<'a> Memory<'a> {
    fn knows(&self, replay: &Replay<'_>, step: &Step<'_>, id: &str) -> Result<Option<Known>, Undecided> {
        let settings = replay.settings(step).ok_or(Undecided)?;
        let Some(&known) = self.ids.get(id) else {
            return Ok(None);
        };
        if !replay.queues[step.queue].is_steady(known.index, step.index) {
            return Err(Undecided);
        }
        let passed = step.at_ms.saturating_sub(known.at_ms);
        let later = self.count - known.number;
        Ok((passed < settings.dedup_window_ms && later < settings.dedup_max_ids).then_some(known))
    }

    fn learn(&mut self, step: &Step<'a>) {
        self.count += 1;
        let known = Known {
            first: step.change.message,
            index: step.index,
            at_ms: step.at_ms,
            number: self.count,
        };
        self.ids.insert(&step.change.dedup_id, known);
    }
}

#[cfg(test)]
mod tests {
    use super::an_id_is_one_message;
    use crate::check::replay::testing::{leaves_open, refuses};

    const GOOD: &str = r#"
        1000 declare-queue queue=q created=true settings={"dedup_window_ms":500,"dedup_max_ids":3,"lease_ms":100}
        1000 publish queue=q count=2 messages=[{"dedup_id":"a"},{"dedup_id":"a"}] first=2-0 duplicates=[{"place":1,"first":"2-0"}] / 2-0 published dedup_id=a / 2-0 duplicate refused=2-1
        1000 lease queue=q / 2-0 leased fence=1 attempt=1 until_ms=1100
        1010 settle settlements=[{"token":"9.0.1.1","verdict":"ack"}] / 2-0 acked
        1499 publish queue=q count=1 messages=[{"dedup_id":"a"}] first=5-0 duplicates=[{"place":0,"first":"2-0"}] / 2-0 duplicate refused=5-0
        1500 publish queue=q count=1 messages=[{"dedup_id":"a"}] first=6-0 / 6-0 published dedup_id=a
        1500 publish queue=q count=3 messages=[{"dedup_id":"b"},{"dedup_id":"c"},{"dedup_id":"d"}] first=7-0 / 7-0 published dedup_id=b / 7-1 published dedup_id=c / 7-2 published dedup_id=d
        1500 publish queue=q count=1 messages=[{"dedup_id":"a"}] first=8-0 / 8-0 published dedup_id=a
        1600 publish queue=q count=1 messages=[{"dedup_id":"d"}] first=9-0 duplicates=[{"place":0,"first":"7-2"}] / 7-2 duplicate refused=9-0
        1600 publish exchange=x count=1 messages=[{"dedup_id":"e"}] first=10-0 duplicates=[{"place":0,"first":"2-0"}] / 2-0 duplicate refused=10-0
    "#;

    #[test]
    fn two_of_one_id_and_duplicates_of_none_are_found() {
        refuses(
            an_id_is_one_message,
            GOOD,
            &[
                // Taken again: at once, after a while, after the ack.
                ("2-0 duplicate refused=2-1", "2-1 published dedup_id=a"),
                ("2-0 duplicate refused=5-0", "5-0 published dedup_id=a"),
                ("7-2 duplicate refused=9-0", "9-0 published dedup_id=d"),
                // Within the window, by a blink.
                ("1500 publish", "1499 publish"),
                // Not taken after the window, or when enough others came.
                ("6-0 published dedup_id=a", "2-0 duplicate refused=6-0"),
                ("8-0 published dedup_id=a", "6-0 duplicate refused=8-0"),
                // The first is another.
                ("2-0 duplicate refused=5-0", "2-1 duplicate refused=5-0"),
                // There was none.
                ("7-0 published dedup_id=b", "6-0 duplicate refused=7-0"),
            ],
        );
    }

    #[test]
    fn a_window_that_changed_meanwhile_decides_nothing() {
        let change = "1499 update-queue queue=q settings={\"dedup_window_ms\":400,\"dedup_max_ids\":3}\n        1499 publish";
        leaves_open(an_id_is_one_message, GOOD, &[("1499 publish", change)]);
    }
}
