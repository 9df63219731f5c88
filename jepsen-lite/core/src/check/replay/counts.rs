//! I13 and I11: what came in is there or went out, and whoever looks sees that.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::Looked;
use crate::history::{History, Read};
use crate::ids::MessageId;
use crate::model::{Exit, Place, Replay, Step};
use crate::view::Counts;

/// Counts of a queue, by the replay. What a broken log takes from an empty place is below zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Tally {
    /// Ready, delayed, leased, dead.
    here: [i64; 4],
    /// Acked, expired, dead-lettered, dropped, deleted, moved.
    gone: [i64; 6],
    published: i64,
    redelivered: i64,
}

impl Tally {
    fn follow(&mut self, step: &Step<'_>) {
        let enters = matches!(step.change.change.as_str(), "published" | "arrived");
        self.published += i64::from(enters);
        self.redelivered += i64::from(step.change.change == "leased" && step.before.leases > 0);
        // One that enters leaves no earlier place.
        if let Some(place) = here(step.before.place).filter(|_| !enters) {
            self.here[place] -= 1;
        }
        if let Some(place) = here(step.after.place) {
            self.here[place] += 1;
        }
        if let Some(exit) = exit(step) {
            self.gone[exit as usize] += 1;
        }
    }

    fn is_whole(&self) -> bool {
        let sum: i64 = self.here.iter().chain(&self.gone).sum();
        sum == self.published && self.here.iter().all(|&count| count >= 0)
    }

    /// None if they do not fit.
    fn of(counts: &Counts) -> Option<Self> {
        let number = |count: u64| i64::try_from(count).ok();
        Some(Self {
            here: [
                number(counts.ready)?,
                number(counts.delayed)?,
                number(counts.leased)?,
                number(counts.dead)?,
            ],
            gone: [
                number(counts.acked)?,
                number(counts.expired)?,
                number(counts.dead_lettered)?,
                number(counts.dropped)?,
                number(counts.deleted)?,
                number(counts.moved)?,
            ],
            published: number(counts.published)?,
            redelivered: number(counts.redelivered)?,
        })
    }
}

fn here(place: Place) -> Option<usize> {
    match place {
        Place::Ready => Some(0),
        Place::Delayed { .. } => Some(1),
        Place::Leased(_) => Some(2),
        Place::Dead => Some(3),
        Place::Never | Place::Gone(_) => None,
    }
}

fn exit(step: &Step<'_>) -> Option<Exit> {
    match step.after.place {
        Place::Gone(exit) if step.change.change != "duplicate" => Some(exit),
        _ => None,
    }
}

/// In each queue, after each entry, what came in is the sum of what is ready, delayed, leased and dead and of what
/// left. No message enters a queue that it is in. What leaves for other queues arrives in each of them, in the same
/// entry, and nothing else arrives.
#[must_use]
pub fn counts_are_conserved(replay: &Replay<'_>, _: &History) -> Looked {
    let mut looked = Looked::default();
    let mut tallies: HashMap<usize, Tally> = HashMap::new();
    // Queues that do not add up are told of once.
    let mut broken: BTreeSet<usize> = BTreeSet::new();
    for (entry, steps) in replay.entries() {
        let mut touched: BTreeSet<usize> = BTreeSet::new();
        for step in steps {
            tallies.entry(step.queue).or_default().follow(step);
            touched.insert(step.queue);
            let enters = matches!(step.change.change.as_str(), "published" | "arrived");
            if enters && step.before.is_here() && !step.is_double {
                let message = step.change.message;
                looked.add(Some(message), || {
                    format!(
                        "{message} came into {} in entry {}, where it was",
                        step.change.queue, step.index
                    )
                });
            }
        }
        for queue in touched {
            if !replay.queues[queue].is_sure_in(entry.index) {
                looked.undecided += 1;
                continue;
            }
            looked.checked += 1;
            let tally = tallies.get(&queue).copied().unwrap_or_default();
            if !tally.is_whole() && broken.insert(queue) {
                let queue = replay.queues[queue].name;
                looked.add(steps.last().map(|step| step.change.message), || {
                    format!("{queue} does not add up from entry {} on: {tally:?}", entry.index)
                });
            }
        }
        moves(steps, &mut looked);
    }
    looked
}

/// Where the messages that leave for other queues in an entry arrive.
fn moves(steps: &[Step<'_>], looked: &mut Looked) {
    // Of each way from queue to queue: how many left on it, less those that arrived.
    let mut ways: BTreeMap<(MessageId, &str, &str), i64> = BTreeMap::new();
    for Step { change, .. } in steps {
        let (message, queue) = (change.message, change.queue.as_str());
        match change.change.as_str() {
            "moved" | "dead-lettered" => {
                for to in &change.to {
                    *ways.entry((message, queue, to)).or_default() += 1;
                }
            }
            "arrived" => *ways.entry((message, &change.from, queue)).or_default() -= 1,
            _ => {}
        }
    }
    let index = steps.first().map_or(0, |step| step.index);
    for ((message, from, to), left) in ways {
        looked.checked += 1;
        if left != 0 {
            let what = if left > 0 {
                "and did not arrive"
            } else {
                "and had not left"
            };
            looked.add(Some(message), || {
                format!("{message} went from {from} to {to} in entry {index}, {what}")
            });
        }
    }
}

/// A look at a queue, and the entries that its answer may contain at least and at most.
struct Look<'h> {
    read: &'h Read,
    least: u64,
    most: u64,
}

/// Counts that a read shows are those after one entry, which is not before the one up to which the read says to
/// contain everything, and before all that was asked for only after its answer.
#[must_use]
pub fn reads_show_a_state(replay: &Replay<'_>, history: &History) -> Looked {
    let mut looked = Looked::default();
    let looks = looks(history);
    // States that somebody saw, each with the entries from which and up to which it was that of the queue.
    let mut seen: HashMap<(&str, Tally), Vec<(u64, u64)>> = HashMap::new();
    for look in &looks {
        if let Some(tally) = look.read.view.counts().and_then(Tally::of) {
            seen.insert((&look.read.queue, tally), Vec::new());
        }
    }
    states(replay, |queue, since, until, tally| {
        if let Some(times) = seen.get_mut(&(replay.queues[queue].name, tally)) {
            times.push((since, until));
        }
    });
    for Look { read, least, most } in looks {
        let Some(counts) = read.view.counts() else {
            continue;
        };
        if !is_sure(replay, &read.queue, least, most) {
            looked.undecided += 1;
            continue;
        }
        looked.checked += 1;
        let tally = Tally::of(counts);
        let times = tally.and_then(|tally| seen.get(&(read.queue.as_str(), tally)));
        let shown = times.is_some_and(|times| {
            let passed = times.partition_point(|&(_, until)| until < least);
            times.get(passed).is_some_and(|&(since, _)| since <= most)
        });
        if !shown {
            looked.add(None, || {
                format!(
                    "{} was read at {:?} up to entry {least}, and from there to entry {most} never had {counts:?}",
                    read.queue, read.answered
                )
            });
        }
    }
    looked
}

/// Tells every state of every queue: from the entry that brings it to the one before the next.
fn states(replay: &Replay<'_>, mut tell: impl FnMut(usize, u64, u64, Tally)) {
    let mut now: Vec<(u64, Tally)> = vec![(0, Tally::default()); replay.queues.len()];
    for step in &replay.steps {
        let (since, tally) = &mut now[step.queue];
        if *since < step.index {
            tell(step.queue, *since, step.index - 1, *tally);
            *since = step.index;
        }
        tally.follow(step);
    }
    for (queue, (since, tally)) in now.into_iter().enumerate() {
        tell(queue, since, u64::MAX, tally);
    }
}

/// There is one queue of this name, and what is told of it is all, throughout.
fn is_sure(replay: &Replay<'_>, name: &str, least: u64, most: u64) -> bool {
    let mut of_name = replay.queues.iter().filter(|queue| queue.name == name);
    let (first, second) = (of_name.next(), of_name.next());
    first.is_some_and(|queue| queue.is_sure_between(least, most)) && second.is_none()
}

fn looks(history: &History) -> Vec<Look<'_>> {
    let mut asked: Vec<(Duration, u64)> = Vec::new();
    let publishes = history.publishes.iter().filter(|one| one.outcome.is_done());
    asked.extend(publishes.filter_map(|one| Some((one.invoked, one.place?.index))));
    let settles = history.settles.iter().filter(|one| one.outcome.is_done());
    asked.extend(settles.filter_map(|one| Some((one.invoked, one.place?.index))));
    let operations = history.operations.iter().filter(|one| one.outcome.is_done());
    asked.extend(operations.filter_map(|one| Some((one.invoked, one.place?.index))));
    asked.sort_unstable();
    // The first entry of all that was asked for from there on.
    let mut first = u64::MAX;
    let mut firsts: Vec<u64> = asked
        .iter()
        .rev()
        .map(|&(_, index)| {
            first = first.min(index);
            first
        })
        .collect();
    firsts.reverse();
    let look = |read: &'_ Read| {
        let later = asked.partition_point(|&(invoked, _)| invoked <= read.answered);
        firsts
            .get(later)
            .map_or(u64::MAX, |&first| first.saturating_sub(1))
    };
    history
        .reads
        .iter()
        .filter(|read| read.view.counts().is_some())
        .filter_map(|read| {
            Some(Look {
                read,
                least: read.read_index?,
                most: look(read),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::replay::testing::{accepts, leaves_open, looked, refuses};
    use crate::history::{Outcome, Place as At, Publish, View};

    const GOOD: &str = r#"
        1000 declare-queue queue=q created=true settings={"lease_ms":500,"max_deliveries":1}
        1000 declare-queue queue=dead created=true settings={"lease_ms":500}
        1000 publish queue=q count=3 first=3-0 / 3-0 published / 3-1 published / 3-2 published until_ms=1100
        1000 lease queue=q / 3-0 leased fence=1 attempt=1 until_ms=1500
        1000 settle settlements=[{"token":"9.0.1.1","verdict":"ack"}] / 3-0 acked
        1000 lease queue=q / 3-1 leased fence=2 attempt=1 until_ms=1500
        1100 settle settlements=[{"token":"9.1.1.2","verdict":"nack"}] / 3-2 due / 3-1 dead-lettered reason=max-deliveries to=["dead"] / 3-1 arrived queue=dead queue_id=8 from=q exit=dead-lettered
        1100 operate queue=dead operation=redrive messages=[{"message":"3-1"}] / 3-1 moved queue=dead queue_id=8 to=["q"] / 3-1 arrived from=dead exit=moved
        1200 purge-queue queue=q purged=2 / 3-2 deleted / 3-1 deleted
        1200 purge-queue queue=q
    "#;

    #[test]
    fn what_does_not_add_up_is_found() {
        refuses(
            counts_are_conserved,
            GOOD,
            &[
                // It leaves twice, or was never there.
                ("3-0 acked", "3-0 acked / 3-0 acked"),
                ("3-0 acked", "3-7 acked"),
                ("3-0 acked", "3-0 acked / 3-0 expired"),
                // It comes where it is.
                (
                    "3-2 published until_ms=1100",
                    "3-2 published until_ms=1100 / 3-1 published",
                ),
                // It arrives nowhere, comes from nowhere, or goes elsewhere.
                (
                    " / 3-1 arrived queue=dead queue_id=8 from=q exit=dead-lettered",
                    "",
                ),
                (
                    "3-1 dead-lettered reason=max-deliveries to=[\"dead\"]",
                    "3-1 acked",
                ),
                (" / 3-1 moved queue=dead queue_id=8 to=[\"q\"]", ""),
                ("to=[\"q\"]", "to=[\"p\"]"),
            ],
        );
    }

    #[test]
    fn what_is_purged_and_not_told_of_is_open() {
        let later = "purged=2 / 3-2 deleted\n        1200 tick / 3-1 deleted\n";
        leaves_open(
            counts_are_conserved,
            GOOD,
            &[("purged=2 / 3-2 deleted / 3-1 deleted\n", later)],
        );
    }

    /// A look that is answered after a second with what `q` holds after entry 6.
    fn look() -> Read {
        Read {
            answered: Duration::from_secs(1),
            queue: "q".to_owned(),
            read_index: Some(6),
            view: View::Counts(Counts {
                delayed: 1,
                leased: 1,
                published: 3,
                acked: 1,
                bytes: 77,
                ..Counts::default()
            }),
            ..Read::default()
        }
    }

    /// Looks, and a publish that is asked for when they are answered, and stands in entry 7.
    fn history(look: Read) -> History {
        let publish = Publish {
            invoked: Duration::from_secs(2),
            place: Some(At {
                index: 7,
                ..At::default()
            }),
            outcome: Outcome::Done(MessageId::default()),
            ..Publish::default()
        };
        History {
            publishes: vec![publish],
            reads: vec![look],
            ..History::default()
        }
    }

    fn counts(change: impl FnOnce(&mut Counts)) -> View {
        let mut counts = *look().view.counts().expect("it shows counts");
        change(&mut counts);
        View::Counts(counts)
    }

    #[test]
    fn reads_of_states_that_never_were_are_found() {
        accepts(counts_are_conserved, GOOD);
        let decide = |look| looked(reads_show_a_state, GOOD, &history(look));
        let good = decide(look());
        assert_eq!((good.checked, good.violations), (1, 0));
        // The read may contain more than it says.
        let early = decide(Read {
            read_index: Some(5),
            ..look()
        });
        assert_eq!(early.violations, 0);
        let one_more = counts(|counts| counts.acked += 1);
        let elsewhere = counts(|counts| (counts.leased, counts.ready) = (0, 1));
        let past = counts(|counts| {
            *counts = Counts {
                ready: 1,
                delayed: 1,
                published: 3,
                acked: 1,
                ..*counts
            }
        });
        let future = counts(|counts| {
            *counts = Counts {
                ready: 1,
                published: 3,
                acked: 1,
                dead_lettered: 1,
                ..Counts::default()
            };
        });
        for view in [one_more, elsewhere, past, future.clone()] {
            assert_eq!(
                decide(Read {
                    view: view.clone(),
                    ..look()
                })
                .violations,
                1,
                "{view:?}"
            );
        }
        // It was there before the answer came.
        let late = Read {
            view: future,
            answered: Duration::from_secs(3),
            ..look()
        };
        assert_eq!(decide(late).violations, 0);
        let other_queue = Read {
            queue: "dead".to_owned(),
            ..look()
        };
        assert_eq!(decide(other_queue).violations, 1);
    }

    #[test]
    fn an_empty_queue_and_one_that_nothing_came_to_have_states_too() {
        let empty = Read {
            read_index: Some(1),
            view: View::Counts(Counts::default()),
            ..look()
        };
        for (queue, violations) in [("q", 0), ("dead", 0)] {
            let read = Read {
                queue: queue.to_owned(),
                ..empty.clone()
            };
            assert_eq!(
                looked(reads_show_a_state, GOOD, &history(read)).violations,
                violations
            );
        }
        let unknown = Read {
            queue: "nowhere".to_owned(),
            ..empty
        };
        let unknown = looked(reads_show_a_state, GOOD, &history(unknown));
        assert_eq!((unknown.checked, unknown.undecided), (0, 1));
    }
}
