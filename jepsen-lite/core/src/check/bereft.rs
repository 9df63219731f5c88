//! Nothing is given to the dead.
//!
//! A worker that is killed says no goodbye: the broker must find out by itself that its connections are gone, end its
//! sessions, and give what they held to others. A session that it keeps is a taker without hands, to which message after
//! message is leased until its attempts are used up.
//!
//! Which sessions a process had follows from the leases that it got: clients know their fences, and the log says to which
//! session each was granted. When a session must have ended is a matter of real time, since it is the nodes that notice.
//! So nothing is held against the broker but what stands in the log behind something that was asked for long after.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Finding, Violation};
use crate::audit::{Audit, Change};
use crate::cluster::{Done, Effect};
use crate::history::{Delivery, History, Mark, NEVER};

/// How long the broker keeps a session without a connection, for a client that may come back.
const SESSION_GRACE: Duration = Duration::from_secs(10);
/// A node looks every now and then for sessions that nobody has told the leader of, and must then reach it.
const ALLOWANCE: Duration = Duration::from_secs(5);

/// A session whose process was killed, long before the end of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bereft {
    /// Which session.
    pub session: u64,
    /// Whose it was.
    pub process: u32,
    /// When that was killed.
    pub killed: Duration,
    /// From this entry on, nothing may be given to it.
    pub from: u64,
}

/// The sessions of killed processes that must be over before the end of the run: when nothing else was wrong for as long
/// as sessions are kept and their last lease ran, and a bit more.
#[must_use]
pub fn sessions_of_the_dead(history: &History, audit: &Audit, effects: &[Effect]) -> Vec<Bereft> {
    let killed: BTreeMap<u32, Duration> = history.kills.iter().map(|kill| (kill.process, kill.at)).collect();
    if killed.is_empty() {
        return Vec::new();
    }
    let disturbed = disturbed(history, effects);
    let placed = placed(history);
    let mut bereft = Vec::new();
    for (session, deliveries) in by_session(history, audit) {
        let processes: BTreeSet<u32> = deliveries.iter().map(|delivery| delivery.process).collect();
        let mut processes = processes.into_iter();
        // More than one would be a broker's mix-up, or ours.
        let (Some(process), None) = (processes.next(), processes.next()) else {
            continue;
        };
        let lease_ms = deliveries.iter().map(|delivery| delivery.lease_ms).max();
        let span = SESSION_GRACE + ALLOWANCE + Duration::from_millis(lease_ms.unwrap_or(0));
        if let Some(&killed) = killed.get(&process)
            && let Some(over) = quiet_for(span, killed, &disturbed)
            && let Some(from) = first_after(over, &placed)
        {
            bereft.push(Bereft {
                session,
                process,
                killed,
                from,
            });
        }
    }
    bereft
}

/// None of these sessions is given anything after it must be over.
#[must_use]
pub fn nothing_goes_to_the_dead(audit: &Audit, bereft: &[Bereft]) -> Vec<Violation> {
    let mut finding = Finding::new("nothing is given to the dead");
    let bereft: BTreeMap<u64, &Bereft> = bereft.iter().map(|one| (one.session, one)).collect();
    let mut grants: BTreeMap<u64, Vec<(u64, &Change)>> = BTreeMap::new();
    for (index, change) in leased(audit) {
        let one = change.session.and_then(|session| bereft.get(&session));
        if let Some(one) = one.filter(|one| index >= one.from) {
            grants.entry(one.session).or_default().push((index, change));
        }
    }
    for (session, grants) in grants {
        let Bereft { process, killed, .. } = bereft[&session];
        let (index, first) = grants[0];
        finding.add(format!(
            "process {process} was killed at {killed:?}, and its session {session} is still given messages: {} of them from \
             entry {index} on, the first is {}",
            grants.len(),
            first.message
        ));
    }
    finding.0
}

/// What was received of each session.
fn by_session<'a>(history: &'a History, audit: &Audit) -> BTreeMap<u64, Vec<&'a Delivery>> {
    let sessions: BTreeMap<u64, u64> = leased(audit)
        .filter_map(|(_, change)| Some((change.fence?, change.session?)))
        .collect();
    let mut deliveries: BTreeMap<u64, Vec<&Delivery>> = BTreeMap::new();
    for delivery in &history.deliveries {
        if let Some(&session) = sessions.get(&delivery.fence) {
            deliveries.entry(session).or_default().push(delivery);
        }
    }
    deliveries
}

fn leased(audit: &Audit) -> impl Iterator<Item = (u64, &Change)> {
    let of_entry = audit.entries().flat_map(|entry| {
        let events = entry.events.iter();
        events.map(move |event| (entry.index, event))
    });
    of_entry.filter(|(_, event)| event.change == "leased")
}

/// Times in which something may keep nodes from noticing, or from telling the leader: faults, and from the end of the
/// faults until the cluster is whole.
fn disturbed(history: &History, effects: &[Effect]) -> Vec<(Duration, Duration)> {
    let of_nodes = effects
        .iter()
        .filter(|effect| !effect.fault.is_of_workers() && !matches!(effect.state, Done::Skipped(_)));
    let mut times: Vec<(Duration, Duration)> = of_nodes
        .map(|effect| {
            let until = effect.until_ms.map_or(NEVER, Duration::from_millis);
            (Duration::from_millis(effect.from_ms), until)
        })
        .collect();
    for heal in history.marks.iter().filter(|mark| mark.name == "heal") {
        let mut marks = history.marks.iter();
        let whole = marks.find(|mark| mark.name == Mark::WHOLE && mark.at >= heal.at);
        times.push((heal.at, whole.map_or(NEVER, |whole| whole.at)));
    }
    times.sort_unstable();
    times
}

/// The end of the first span after this that nothing disturbs.
fn quiet_for(span: Duration, after: Duration, disturbed: &[(Duration, Duration)]) -> Option<Duration> {
    let mut begin = after;
    for &(from, until) in disturbed {
        if from < begin.saturating_add(span) {
            begin = begin.max(until);
        }
    }
    begin.checked_add(span)
}

/// When something was asked for, and the entry in which it was done.
fn placed(history: &History) -> Vec<(Duration, u64)> {
    let publishes = history.publishes.iter().filter(|one| one.outcome.is_done());
    let settles = history.settles.iter().filter(|one| one.outcome.is_done());
    let operations = history.operations.iter().filter(|one| one.outcome.is_done());
    publishes
        .map(|one| (one.invoked, one.place))
        .chain(settles.map(|one| (one.invoked, one.place)))
        .chain(operations.map(|one| (one.invoked, one.place)))
        .filter_map(|(invoked, place)| Some((invoked, place?.index)))
        .collect()
}

/// The first entry of which it is known that it was written after this.
fn first_after(time: Duration, placed: &[(Duration, u64)]) -> Option<u64> {
    let after = placed.iter().filter(|(invoked, _)| *invoked >= time);
    after.map(|(_, index)| *index).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::replay::testing::audit;
    use crate::history::{Kill, MessageId, Outcome, Place, Publish};
    use crate::schedule::Fault;

    /// Session 7 is that of a worker that is killed after its first lease; session 8 is that of another one.
    const LOG: &str = r#"
        1000 declare-queue queue=q created=true
        1000 publish queue=q count=4 first=2-0 / 2-0 published / 2-1 published / 2-2 published / 2-3 published
        1000 consume session="7" consumer=1 queue=q credit=1 / 2-0 leased fence=1 attempt=1 until_ms=3000 session="7" consumer=1
        1000 consume session="8" consumer=1 queue=q credit=1 / 2-1 leased fence=2 attempt=1 until_ms=3000 session="8" consumer=1
        4000 tick / 2-0 lease-expired / 2-0 leased fence=3 attempt=2 until_ms=6000 session="7" consumer=1
        30000 publish queue=q count=1 first=6-0 / 6-0 published
        31000 tick / 2-2 leased fence=4 attempt=1 until_ms=33000 session="8" consumer=1
    "#;
    /// The same, and the dead is given one message more.
    const GIVEN: &str = r#"32000 tick / 2-3 leased fence=5 attempt=1 until_ms=34000 session="7" consumer=1"#;

    fn second(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn delivery(process: u32, fence: u64) -> Delivery {
        Delivery {
            process,
            fence,
            lease_ms: 2_000,
            ..Delivery::default()
        }
    }

    /// Worker 1 is killed after two seconds; after thirty, somebody else publishes.
    fn history() -> History {
        History {
            publishes: vec![Publish {
                invoked: second(30),
                answered: second(31),
                place: Some(Place {
                    index: 6,
                    ..Place::default()
                }),
                outcome: Outcome::Done(MessageId { index: 6, number: 0 }),
                ..Publish::default()
            }],
            deliveries: vec![delivery(1, 1), delivery(2, 2)],
            kills: vec![Kill {
                process: 1,
                at: second(2),
            }],
            ..History::default()
        }
    }

    fn isolated(from_ms: u64, until_ms: Option<u64>) -> Effect {
        Effect {
            from_ms,
            until_ms,
            fault: Fault::Isolate,
            nodes: vec![0],
            state: Done::Yes,
            counters: BTreeMap::new(),
        }
    }

    /// How many sessions are looked at, and how many of them are given something.
    fn look(history: &History, log: &str, effects: &[Effect]) -> (usize, usize) {
        let audit = audit(log);
        let bereft = sessions_of_the_dead(history, &audit, effects);
        (bereft.len(), nothing_goes_to_the_dead(&audit, &bereft).len())
    }

    fn bad() -> String {
        format!("{LOG}{GIVEN}")
    }

    #[test]
    fn what_is_given_within_the_grace_is_no_fault() {
        assert_eq!(look(&history(), LOG, &[]), (1, 0));
    }

    #[test]
    fn what_is_given_to_the_dead_is_found() {
        assert_eq!(look(&history(), &bad(), &[]), (1, 1));
    }

    #[test]
    fn the_living_are_given_what_they_want() {
        let mut nobody = history();
        nobody.kills.clear();
        assert_eq!(look(&nobody, &bad(), &[]), (0, 0));
        let mut other = history();
        other.kills[0].process = 2;
        assert_eq!(
            look(&other, &bad(), &[]),
            (1, 1),
            "that of the other one is given 2-2"
        );
        // A session that two have leases of says nothing of one of them.
        let mut two = history();
        two.deliveries.push(delivery(2, 3));
        assert_eq!(look(&two, &bad(), &[]), (0, 0));
    }

    #[test]
    fn nothing_is_decided_before_the_time_is_over() {
        // Ten seconds for the session, two for its lease, five for whoever must notice: after a kill at 13, until 30.
        for (killed, looked_at) in [(13, 1), (14, 0)] {
            let mut late = history();
            late.kills[0].at = second(killed);
            assert_eq!(look(&late, &bad(), &[]), (looked_at, looked_at), "{killed}");
        }
        let mut unplaced = history();
        unplaced.publishes[0].place = None;
        assert_eq!(look(&unplaced, &bad(), &[]), (0, 0));
    }

    #[test]
    fn faults_put_it_off_until_they_have_been_over_for_as_long() {
        for (effects, looked_at) in [
            (vec![isolated(1_000, Some(13_000))], 1),
            (vec![isolated(1_000, Some(14_000))], 0),
            (vec![isolated(18_000, Some(19_000))], 0),
            (vec![isolated(19_000, Some(29_000))], 1),
            (vec![isolated(1_000, None)], 0),
            (
                vec![isolated(18_000, Some(20_000)), isolated(1_000, Some(3_000))],
                0,
            ),
        ] {
            assert_eq!(
                look(&history(), &bad(), &effects),
                (looked_at, looked_at),
                "{effects:?}"
            );
        }
        let harmless = [
            Effect {
                fault: Fault::PauseWorkers,
                ..isolated(1_000, None)
            },
            Effect {
                state: Done::Skipped("not here".to_owned()),
                ..isolated(1_000, None)
            },
        ];
        assert_eq!(look(&history(), &bad(), &harmless), (1, 1));
    }

    #[test]
    fn so_does_the_time_until_the_cluster_is_whole() {
        let mark = |at, name: &str| Mark {
            at: second(at),
            name: name.to_owned(),
            ..Mark::default()
        };
        let mut healed = history();
        healed.marks = vec![mark(3, "heal"), mark(12, Mark::WHOLE)];
        assert_eq!(look(&healed, &bad(), &[]), (1, 1));
        healed.marks[1].at = second(14);
        assert_eq!(look(&healed, &bad(), &[]), (0, 0));
        healed.marks.pop();
        assert_eq!(look(&healed, &bad(), &[]), (0, 0));
    }
}
