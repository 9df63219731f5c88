//! I16: a publish is taken whole, in its order, or not at all.

use std::collections::BTreeMap;

use super::Looked;
use crate::audit::{Entry, Publish};
use crate::history::{History, Outcome};
use crate::model::{Replay, Step};

/// What became of one message of a publish.
#[derive(Default)]
struct Fate<'a> {
    /// Queues that took it.
    taken: Vec<&'a str>,
    /// Queues that did not, because they knew its dedup id.
    known: u32,
}

/// Each message of a publish that was done is taken by its queue in the same entry, or is a duplicate, and the answer
/// says which; of a publish to an exchange each is taken by a queue, a duplicate, or named as unroutable. Nothing is
/// published in an entry but by a publish in it. And publishers were told one outcome for all messages of a publish,
/// which bear following numbers.
#[must_use]
pub fn publishes_are_whole(replay: &Replay<'_>, history: &History) -> Looked {
    let mut looked = Looked::default();
    for (entry, steps) in replay.entries() {
        entry_is_whole(entry, steps, &mut looked);
    }
    answers(history, &mut looked);
    looked
}

fn entry_is_whole(entry: &Entry, steps: &[Step<'_>], looked: &mut Looked) {
    let mut fates: BTreeMap<u32, Fate<'_>> = BTreeMap::new();
    for step in steps {
        let change = step.change;
        let message = match change.change.as_str() {
            "published" => change.message,
            "duplicate" => change.refused.unwrap_or_default(),
            _ => continue,
        };
        if message.index != entry.index {
            looked.add(Some(message), || {
                format!("{message} was published in entry {}", entry.index)
            });
            continue;
        }
        let fate = fates.entry(message.number).or_default();
        if change.change == "published" {
            fate.taken.push(&change.queue);
        } else {
            fate.known += 1;
        }
    }
    let done = entry.requests.iter().filter(|request| request.is_done());
    for publish in done.flat_map(|request| &request.publishes) {
        let Some(first) = publish.first else {
            looked.add(None, || {
                format!(
                    "a publish in entry {} was done, and names no message",
                    entry.index
                )
            });
            continue;
        };
        looked.checked += 1;
        for place in 0..publish.count {
            let number = first.number.saturating_add(place);
            let fate = fates.remove(&number).unwrap_or_default();
            if let Some(why) = wrong(publish, place, &fate) {
                looked.add(Some(crate::ids::MessageId { number, ..first }), || {
                    format!(
                        "message {place} of {} in the publish of {first}: {why}",
                        publish.count
                    )
                });
            }
        }
    }
    if let Some((&number, _)) = fates.first_key_value() {
        looked.add(
            Some(crate::ids::MessageId {
                index: entry.index,
                number,
            }),
            || {
                format!(
                    "message {number} of entry {} was published, and nobody asked for it",
                    entry.index
                )
            },
        );
    }
}

fn wrong(publish: &Publish, place: u32, fate: &Fate<'_>) -> Option<String> {
    let told = publish
        .duplicates
        .iter()
        .any(|duplicate| duplicate.place == place);
    let unroutable = publish.unroutable.contains(&place);
    match &publish.queue {
        Some(queue) => match (fate.taken.as_slice(), fate.known, told) {
            ([taken], 0, false) if taken == queue => None,
            ([], 1, true) => None,
            _ => Some(format!(
                "taken by {:?}, duplicate {}, as told {told}",
                fate.taken, fate.known
            )),
        },
        None if told || unroutable => (!fate.taken.is_empty()).then(|| {
            format!(
                "taken by {:?}, duplicate {told}, unroutable {unroutable}",
                fate.taken
            )
        }),
        None => fate.taken.is_empty().then(|| "no queue took it".to_owned()),
    }
}

fn answers(history: &History, looked: &mut Looked) {
    let mut batches: BTreeMap<(u32, u64), Vec<&crate::history::Publish>> = BTreeMap::new();
    for publish in &history.publishes {
        if let Some(batch) = publish.batch {
            batches.entry((publish.process, batch)).or_default().push(publish);
        }
    }
    for ((process, batch), parts) in batches {
        looked.checked += 1;
        let kinds = [Outcome::is_done, Outcome::is_refused, Outcome::is_unknown];
        let together = kinds.iter().any(|is| parts.iter().all(|part| is(&part.outcome)));
        let taken = parts
            .iter()
            .filter(|part| !part.duplicate)
            .filter_map(|part| part.outcome.done());
        let taken: Vec<_> = taken.collect();
        let following = taken
            .windows(2)
            .all(|pair| pair[0].index == pair[1].index && pair[0] < pair[1]);
        if !together || !following {
            looked.add(taken.first().copied().copied(), || {
                let outcomes: Vec<_> = parts.iter().map(|part| &part.outcome).collect();
                format!("publish {batch} of process {process} came to {outcomes:?}")
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::replay::testing::{accepts, looked, refuses};
    use crate::ids::MessageId;

    const GOOD: &str = r#"
        1000 declare-queue queue=q created=true settings={"dedup_window_ms":500,"dedup_max_ids":9}
        1000 publish queue=q count=3 messages=[{"dedup_id":"a"},{"dedup_id":"a"},{}] first=2-0 duplicates=[{"place":1,"first":"2-0"}] / publish queue=q count=1 first=2-3 / 2-0 published dedup_id=a / 2-2 published / 2-0 duplicate refused=2-1 / 2-3 published
        1000 publish queue=q count=2 refused=QUEUE_NOT_FOUND
        1000 publish exchange=x count=3 first=4-0 unroutable=[1] / 4-0 published / 4-0 published queue=p queue_id=8 / 4-2 published
        1000 publish queue=q count=3 first=2-0 repeats=2
        1000 transact publishes=[{"queue":"q","count":1,"first":"6-0"},{"queue":"p","count":1,"first":"6-1"}] / 6-0 published / 6-1 published queue=p queue_id=8
    "#;

    #[test]
    fn publishes_that_are_torn_are_found() {
        refuses(
            publishes_are_whole,
            GOOD,
            &[
                // One is missing, of a queue, of an exchange, of a transaction.
                (" / 2-2 published", ""),
                (" / 2-3 published", ""),
                (" / 4-2 published", ""),
                (" / 6-1 published queue=p queue_id=8", ""),
                // It was taken and called a duplicate, or neither.
                ("duplicates=[{\"place\":1,\"first\":\"2-0\"}] ", ""),
                (" / 2-0 duplicate refused=2-1", ""),
                ("2-0 duplicate refused=2-1", "2-1 published"),
                // Routed nowhere, and told otherwise.
                ("unroutable=[1] ", ""),
                ("unroutable=[1]", "unroutable=[1,2]"),
                // Into another queue, twice, in the wrong entry.
                ("2-3 published", "2-3 published queue=p queue_id=8"),
                ("2-3 published", "2-3 published / 2-3 published"),
                ("6-0 published", "5-0 published"),
                // Of one that was refused, and of one that had been executed before.
                (
                    "refused=QUEUE_NOT_FOUND",
                    "refused=QUEUE_NOT_FOUND / 3-0 published",
                ),
                ("repeats=2", "repeats=2 / 5-0 published"),
            ],
        );
    }

    #[test]
    fn publishers_who_were_told_of_a_part_are_found() {
        accepts(publishes_are_whole, GOOD);
        let part = |index, number| crate::history::Publish {
            batch: Some(1),
            outcome: Outcome::Done(MessageId { index, number }),
            ..crate::history::Publish::default()
        };
        let count = |publishes: Vec<_>| {
            let history = History {
                publishes,
                ..History::default()
            };
            looked(publishes_are_whole, GOOD, &history).violations
        };
        let duplicate = crate::history::Publish {
            duplicate: true,
            ..part(1, 5)
        };
        let refused = crate::history::Publish {
            outcome: Outcome::Refused(None),
            ..part(2, 1)
        };
        let unknown = crate::history::Publish {
            outcome: Outcome::Unknown,
            ..part(2, 1)
        };
        assert_eq!(count(vec![part(2, 0), duplicate, part(2, 2)]), 0);
        assert_eq!(count(vec![refused.clone(), refused.clone()]), 0);
        for second in [refused, unknown, part(3, 1), part(2, 0)] {
            assert_eq!(count(vec![part(2, 0), second.clone()]), 1, "{second:?}");
        }
    }
}
