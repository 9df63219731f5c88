//! I6: who is next is who stands first.

use std::collections::{BTreeSet, HashMap};

use super::Looked;
use crate::history::History;
use crate::model::{Place, Replay, State, Step};

/// What is ready in one group of a queue, and how many of the group are under way. What has no group is a group of
/// its own, which is never busy.
#[derive(Default)]
struct Group {
    /// By priority, highest first, and then by position. Within a named group only positions count.
    ready: BTreeSet<(u8, usize)>,
    busy: u64,
}

/// Each message that is leased is the first of those that are ready: of its group by position, and among those that
/// have no group by priority, then by position. A message that comes back has its old position, so that order holds
/// through failures; one that was delayed has the position of its publish. And a group has no more under way than
/// `group_concurrency`.
///
/// Between groups turns decide, and they are not replayed. Where priorities grow with age, only messages of one
/// priority that were published to the queue are compared.
#[must_use]
pub fn queues_are_in_order(replay: &Replay<'_>, _: &History) -> Looked {
    let mut looked = Looked::default();
    let mut groups: HashMap<(usize, &str), Group> = HashMap::new();
    for step in &replay.steps {
        let Some(asked) = replay.stay(step).asked else {
            looked.undecided += u64::from(step.change.change == "leased");
            continue;
        };
        let rank = if asked.group.is_empty() {
            9_u8.saturating_sub(asked.priority)
        } else {
            0
        };
        let group = groups.entry((step.queue, &asked.group)).or_default();
        if step.change.change == "leased" && step.before.place == Place::Ready {
            match is_next(replay, step, group, rank, &asked.group) {
                Some(None) => looked.checked += 1,
                Some(Some(why)) => {
                    looked.checked += 1;
                    let (message, index) = (step.change.message, step.index);
                    looked.add(Some(message), || {
                        format!("{message} was leased in entry {index}, {why}")
                    });
                }
                None => looked.undecided += 1,
            }
        }
        group.follow((rank, step.stay), step.before, step.after);
    }
    looked
}

impl Group {
    fn follow(&mut self, key: (u8, usize), before: State, after: State) {
        if before.place == Place::Ready {
            self.ready.remove(&key);
        }
        if after.place == Place::Ready {
            self.ready.insert(key);
        }
        self.busy = (self.busy + u64::from(is_busy(after))).saturating_sub(u64::from(is_busy(before)));
    }
}

fn is_busy(state: State) -> bool {
    matches!(state.place, Place::Leased(_) | Place::Delayed { retry: true, .. })
}

/// None: it cannot be decided. Some(None): it is.
fn is_next(
    replay: &Replay<'_>,
    step: &Step<'_>,
    group: &Group,
    rank: u8,
    name: &str,
) -> Option<Option<String>> {
    if !replay.is_sure(step) {
        return None;
    }
    let settings = replay.settings(step)?;
    let first = if name.is_empty() && settings.priority_ageing_ms > 0 {
        group.ready.range((rank, 0)..).next()
    } else {
        group.ready.first()
    };
    let &(_, first) = first?;
    let aged = name.is_empty() && settings.priority_ageing_ms > 0;
    if aged && !(replay.stay(step).is_published && replay.stays[first].is_published) {
        return None;
    }
    if first != step.stay {
        let other = replay.stays[first].message;
        return Some(Some(format!("and {other} stood before it")));
    }
    let most = u64::from(settings.group_concurrency);
    if !name.is_empty() && most > 0 && group.busy >= most {
        return Some(Some(format!(
            "while group {name} had {} of at most {most} under way",
            group.busy
        )));
    }
    Some(None)
}

#[cfg(test)]
mod tests {
    use super::queues_are_in_order;
    use crate::check::replay::testing::{leaves_open, refuses};

    const GOOD: &str = r#"
        1000 declare-queue queue=q created=true settings={"lease_ms":500,"group_concurrency":1}
        1000 publish queue=q count=3 messages=[{},{"priority":5},{}] first=2-0 / 2-0 published / 2-1 published until_ms=1200 / 2-2 published
        1000 publish queue=q count=3 messages=[{"group":"g"},{"group":"g","priority":9},{"group":"h"}] first=3-0 / 3-0 published / 3-1 published / 3-2 published
        1000 lease queue=q / 2-0 leased fence=1 attempt=1 until_ms=1500
        1000 lease queue=q / 3-0 leased fence=2 attempt=1 until_ms=1500
        1000 lease queue=q / 3-2 leased fence=3 attempt=1 until_ms=1500
        1100 settle settlements=[{"token":"9.0.1.1","verdict":"nack"}] / 2-0 nacked
        1100 lease queue=q / 2-0 leased fence=4 attempt=2 until_ms=1600
        1200 tick / 2-1 due
        1200 lease queue=q / 2-1 leased fence=5 attempt=1 until_ms=1700
        1200 settle settlements=[{"token":"9.0.2.4","verdict":"nack","delay_ms":100}] / 2-0 nacked until_ms=1300
        1200 lease queue=q / 2-2 leased fence=6 attempt=1 until_ms=1700
        1200 settle settlements=[{"token":"9.3.1.2","verdict":"nack","delay_ms":100}] / 3-0 nacked until_ms=1300
        1300 tick / 2-0 due / 3-0 due
        1300 lease queue=q / 3-0 leased fence=7 attempt=2 until_ms=1800
        1400 settle settlements=[{"token":"9.3.2.7","verdict":"ack"}] / 3-0 acked
        1400 lease queue=q / 3-1 leased fence=8 attempt=1 until_ms=1900
    "#;

    #[test]
    fn who_is_served_out_of_turn_is_found() {
        refuses(
            queues_are_in_order,
            GOOD,
            &[
                // The second before the first, and one of a lower priority before a higher.
                ("2-0 leased fence=1", "2-2 leased fence=1"),
                ("2-1 leased fence=5", "2-2 leased fence=5"),
                // Behind the others after a nack.
                ("2-0 leased fence=4", "2-2 leased fence=4"),
                // The second of a group before the first, also if its priority is higher.
                ("3-0 leased fence=2", "3-1 leased fence=2"),
                // Two of a group at once: while one is leased, and while one waits for a retry.
                ("3-2 leased fence=3", "3-1 leased fence=3"),
                (
                    "1300 tick / 2-0 due / 3-0 due",
                    "1300 tick / 3-1 leased fence=9 attempt=1 until_ms=1800 / 2-0 due / 3-0 due",
                ),
            ],
        );
    }

    #[test]
    fn priorities_that_grow_with_age_are_compared_within_one() {
        let ageing = (
            "\"group_concurrency\":1}",
            "\"group_concurrency\":1,\"priority_ageing_ms\":100}",
        );
        let aged = GOOD.replacen(ageing.0, ageing.1, 1);
        refuses(
            queues_are_in_order,
            &aged,
            &[("2-0 leased fence=1", "2-2 leased fence=1")],
        );
        leaves_open(
            queues_are_in_order,
            &aged,
            &[("2-1 leased fence=5", "2-2 leased fence=5")],
        );
    }
}
