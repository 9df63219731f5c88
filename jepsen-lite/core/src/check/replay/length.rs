//! I17: a queue is never longer than its limit.

use std::collections::{BTreeSet, HashMap};

use super::Looked;
use crate::audit::{Entry, Publish};
use crate::history::{History, QUEUE_FULL};
use crate::model::{Place, Replay, State};

/// Length of a queue.
#[derive(Clone, Copy, Default)]
struct Length {
    now: u64,
    /// After the entry before.
    before: u64,
    /// The most that it was in this entry.
    most: u64,
}

/// Messages that are ready, delayed or leased are never more than `max_length`, after any entry; where the limit was
/// lowered below what was there, they do not become more. And a publish to a queue that rejects is refused as
/// `QUEUE_FULL` only if it does not fit. Limits by bytes are not decided, because the log does not tell the size of
/// messages.
#[must_use]
pub fn length_is_bounded(replay: &Replay<'_>, _: &History) -> Looked {
    let mut looked = Looked::default();
    let mut lengths: HashMap<usize, Length> = HashMap::new();
    let mut names: HashMap<&str, usize> = HashMap::new();
    for (entry, steps) in replay.entries() {
        let mut touched: BTreeSet<usize> = BTreeSet::new();
        for step in steps {
            let length = lengths.entry(step.queue).or_default();
            if touched.insert(step.queue) {
                (length.before, length.most) = (length.now, length.now);
            }
            let enters = matches!(step.change.change.as_str(), "published" | "arrived");
            let from = u64::from(!enters && counts(step.before));
            length.now = (length.now + u64::from(counts(step.after))).saturating_sub(from);
            length.most = length.most.max(length.now);
            names.insert(&step.change.queue, step.queue);
        }
        for &number in &touched {
            let queue = &replay.queues[number];
            let limit = queue.settings_in(entry.index).map(|settings| settings.max_length);
            let Some(limit) = limit.filter(|&limit| limit > 0 && queue.is_sure_in(entry.index)) else {
                looked.undecided += u64::from(limit != Some(0));
                continue;
            };
            looked.checked += 1;
            let length = lengths[&number];
            if length.now > limit.max(length.before) {
                looked.add(steps.last().map(|step| step.change.message), || {
                    format!(
                        "{} has {} messages after entry {}, and at most {limit} are allowed",
                        queue.name, length.now, entry.index
                    )
                });
            }
        }
        let refused = entry
            .requests
            .iter()
            .filter(|request| request.refused.as_deref() == Some(QUEUE_FULL));
        for publish in refused
            .filter(|request| request.kind == "publish" && request.repeats.is_none())
            .flat_map(|request| &request.publishes)
        {
            let Some(&number) = publish.queue.as_deref().and_then(|queue| names.get(queue)) else {
                looked.undecided += 1;
                continue;
            };
            let length = lengths[&number];
            // Whether it was longest before or after the publish, the log does not tell.
            let most = if touched.contains(&number) {
                length.most
            } else {
                length.now
            };
            refusal(replay, entry, publish, number, most, &mut looked);
        }
    }
    looked
}

fn refusal(
    replay: &Replay<'_>,
    entry: &Entry,
    publish: &Publish,
    number: usize,
    most: u64,
    looked: &mut Looked,
) {
    let queue = &replay.queues[number];
    let settings = queue
        .settings_in(entry.index)
        .filter(|settings| settings.max_bytes == 0);
    let decides =
        |settings: &&crate::audit::Settings| settings.max_length == 0 || settings.overflow == "reject";
    let Some(settings) = settings.filter(decides).filter(|_| queue.is_sure_in(entry.index)) else {
        looked.undecided += 1;
        return;
    };
    looked.checked += 1;
    if settings.max_length == 0 || most + u64::from(publish.count) <= settings.max_length {
        looked.add(None, || {
            format!(
                "{} refused {} messages in entry {}, when it had {most} of at most {}",
                queue.name, publish.count, entry.index, settings.max_length
            )
        });
    }
}

fn counts(state: State) -> bool {
    matches!(
        state.place,
        Place::Ready | Place::Delayed { .. } | Place::Leased(_)
    )
}

#[cfg(test)]
mod tests {
    use super::length_is_bounded;
    use crate::check::replay::testing::{leaves_open, refuses};

    const GOOD: &str = r#"
        1000 declare-queue queue=q created=true settings={"max_length":3,"overflow":"reject","lease_ms":100,"max_deliveries":1}
        1000 declare-queue queue=drops created=true settings={"max_length":1,"overflow":"drop-head","lease_ms":100}
        1000 publish queue=q count=2 first=3-0 / 3-0 published / 3-1 published until_ms=1100
        1000 publish queue=q count=2 refused=QUEUE_FULL
        1000 lease queue=q / 3-0 leased fence=1 attempt=1 until_ms=1100
        1000 publish queue=q count=1 first=6-0 / 6-0 published
        1000 publish queue=q count=1 refused=QUEUE_FULL
        1100 publish queue=q count=1 first=8-0 / 3-0 died reason=max-deliveries / 3-1 due / 8-0 published
        1100 publish queue=drops count=1 first=9-0 / 9-0 published queue=drops queue_id=8
        1100 publish queue=drops count=1 first=10-0 / 9-0 dropped queue=drops queue_id=8 / 10-0 published queue=drops queue_id=8
        1200 update-queue queue=q settings={"max_length":1,"overflow":"drop-head","lease_ms":100}
        1200 publish queue=q count=1 first=12-0 / 3-1 dropped / 6-0 dropped / 8-0 dropped / 12-0 published
    "#;

    #[test]
    fn queues_that_are_too_long_and_refusals_without_need_are_found() {
        refuses(
            length_is_bounded,
            GOOD,
            &[
                // One too many: delayed, leased, or ready.
                (
                    "count=2 refused=QUEUE_FULL",
                    "count=2 first=4-0 / 4-0 published / 4-1 published",
                ),
                ("count=1 refused=QUEUE_FULL", "count=1 first=7-0 / 7-0 published"),
                (
                    "3-0 died reason=max-deliveries / 3-1 due",
                    "3-0 lease-expired / 3-1 due",
                ),
                // The head stays, of a queue that makes room.
                (" / 9-0 dropped queue=drops queue_id=8", ""),
                // It grows although the limit was lowered below what is there.
                ("3-1 dropped / 6-0 dropped / 8-0 dropped / 12-0", "12-0"),
                // Refused, though there is room: for one more, for two.
                ("count=1 first=6-0 / 6-0 published", "count=1 refused=QUEUE_FULL"),
                ("count=2 refused", "count=1 refused"),
                ("\"max_length\":3", "\"max_length\":4"),
            ],
        );
    }

    #[test]
    fn a_limit_of_bytes_decides_nothing() {
        let bytes = ("\"max_length\":3", "\"max_bytes\":7,\"max_length\":4");
        leaves_open(length_is_bounded, GOOD, &[bytes]);
    }
}
