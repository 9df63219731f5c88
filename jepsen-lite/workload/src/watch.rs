//! What nodes say of themselves during a run.
//!
//! A look asks all nodes that are known at the same time, the endpoints of the cluster first, in their order.
//! From the looks of a run follows what it saw: who led when, whose state was what at which index, who fell so
//! far behind that it needed a snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jepsen_lite_core::run as core;
use jepsen_lite_core::verdict::{Finding, WITNESSES_MAX, Witness};
use quorate_client::{Client, NodeStatus};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::access::Access;
use crate::signal::Switch;

/// Between two looks.
const BETWEEN: Duration = Duration::from_millis(250);
/// How long a look may take.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// What one node said at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Sight {
    /// Since the start of the history.
    pub at: Duration,
    /// Where it was asked: `host:port`.
    pub endpoint: String,
    /// What it said; `None` = it was silent.
    pub status: Option<NodeStatus>,
}

/// Looks at a cluster again and again.
#[derive(Debug)]
pub struct Watch {
    sights: Arc<Mutex<Vec<Sight>>>,
    end: Arc<Switch>,
    task: JoinHandle<()>,
}

/// What the looks of a run showed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// How often another node led than before, or the same one in a later term.
    pub leader_changes: u64,
    /// How often a node caught up that had been behind all that the leader's log still held.
    pub snapshots_installed: u64,
    /// States that nodes told of.
    pub compared: u64,
    /// Two nodes, or one at two times, with different states at one index: the index and the states.
    pub forks: Vec<(u64, BTreeSet<String>)>,
}

impl Watch {
    /// Begins to look. Times are counted from `start`.
    #[must_use]
    pub fn start(access: &Access, start: Instant) -> Self {
        let (sights, end) = (Arc::<Mutex<Vec<Sight>>>::default(), Arc::<Switch>::default());
        let client = access.client(LOOK_LIMIT);
        let (told, ended) = (Arc::clone(&sights), Arc::clone(&end));
        let task = tokio::spawn(async move {
            let mut ticks = interval(BETWEEN);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while !ended.is_on() {
                let seen = look(&client, start).await;
                told.lock().unwrap_or_else(PoisonError::into_inner).extend(seen);
                tokio::select! {
                    biased;
                    () = ended.wait(true) => {}
                    _ = ticks.tick() => {}
                }
            }
        });
        Self { sights, end, task }
    }

    /// Ends, and gives what was seen, by time.
    pub async fn stop(self) -> Vec<Sight> {
        self.end.set(true);
        // A panic of it would have been one of the client library; what it saw before stays seen.
        let _ = self.task.await;
        std::mem::take(&mut *self.sights.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Asks all nodes.
pub(crate) async fn look(client: &Client, start: Instant) -> Vec<Sight> {
    let told = client.cluster().status_all().await;
    let at = start.elapsed();
    let sights = told.into_iter().map(|(endpoint, status)| Sight {
        at,
        endpoint,
        status: status.ok(),
    });
    sights.collect()
}

/// Of each sight what a stored run keeps. Nodes are counted in the order in which they were first asked.
pub(crate) fn in_short(sights: &[Sight]) -> Vec<core::Sight> {
    let mut nodes: Vec<&str> = Vec::new();
    let short = sights.iter().map(|sight| {
        let known = nodes.iter().position(|&node| node == sight.endpoint);
        let node = known.unwrap_or_else(|| {
            nodes.push(&sight.endpoint);
            nodes.len() - 1
        });
        let at_ms = u64::try_from(sight.at.as_millis()).unwrap_or(u64::MAX);
        sight.status.as_ref().map_or_else(
            || core::Sight {
                at_ms,
                node,
                ..core::Sight::default()
            },
            |status| core::Sight {
                at_ms,
                node,
                id: (status.node_id != 0).then_some(status.node_id),
                role: status.role.clone(),
                term: status.term,
                applied_index: status.applied_index,
            },
        )
    });
    short.collect()
}

impl Seen {
    /// Whether nodes had equal states at equal places of the log, as far as they were asked.
    #[must_use]
    pub fn finding(&self) -> Finding {
        let witness = |(index, states): &(u64, BTreeSet<String>)| Witness {
            evidence: format!("there were several states at index {index}: {states:?}"),
            message: None,
            at_ms: None,
        };
        let (forks, compared) = (self.forks.len() as u64, self.compared);
        let witnesses = self.forks.iter().take(WITNESSES_MAX).map(witness).collect();
        Finding::new("I10", "states that nodes tell", compared, forks, witnesses)
    }

    /// What these looks showed; by time.
    #[must_use]
    pub fn of(sights: &[Sight]) -> Self {
        let mut seen = Self::default();
        let mut states: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
        let mut leader = (0, 0);
        // How far each log was known to reach, and what a node lacks that is in no log any more.
        let (mut reach, mut lacks) = (BTreeMap::new(), BTreeMap::<u64, u64>::new());
        for of_look in sights.chunk_by(|one, next| one.at == next.at) {
            let mut purged = 0;
            for status in of_look.iter().filter_map(|sight| sight.status.as_ref()) {
                if !status.state_hash.is_empty() {
                    let known = states.entry(status.state_index).or_default();
                    known.insert(status.state_hash.clone());
                    seen.compared += 1;
                }
                if status.role == "leader" && status.term >= leader.0 {
                    if leader.1 != 0 && leader != (status.term, status.node_id) {
                        seen.leader_changes += 1;
                    }
                    leader = (status.term, status.node_id);
                    purged = status.purged_index;
                }
                reach.insert(status.node_id, status.last_log_index);
                if lacks
                    .get(&status.node_id)
                    .is_some_and(|&lacked| status.applied_index >= lacked)
                {
                    lacks.remove(&status.node_id);
                    seen.snapshots_installed += 1;
                }
            }
            for (&node, &last) in &reach {
                if last < purged {
                    lacks.entry(node).or_insert(purged);
                }
            }
        }
        seen.forks = states
            .into_iter()
            .filter(|(_, states)| states.len() > 1)
            .collect();
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(at: u64, node_id: u64, role: &str, term: u64, last: u64, purged: u64) -> Sight {
        Sight {
            at: Duration::from_secs(at),
            endpoint: format!("node-{node_id}:1"),
            status: Some(NodeStatus {
                node_id,
                role: role.to_owned(),
                term,
                last_log_index: last,
                applied_index: last,
                purged_index: purged,
                state_index: last,
                state_hash: format!("state {last}"),
                ..NodeStatus::default()
            }),
        }
    }

    #[test]
    fn leaders_and_snapshots_are_counted() {
        let sights = [
            says(1, 1, "leader", 1, 10, 0),
            says(1, 2, "follower", 1, 10, 0),
            // In one look, what has just gone is not lacked by one that is asked a little later.
            says(2, 1, "leader", 1, 90, 50),
            says(2, 2, "follower", 1, 95, 50),
            says(3, 3, "leader", 2, 160, 100),
            // The old one does not know yet.
            says(3, 1, "leader", 1, 90, 50),
            says(4, 2, "follower", 2, 170, 150),
            says(5, 3, "leader", 4, 180, 100),
            says(5, 1, "follower", 4, 95, 50),
        ];
        let seen = Seen::of(&sights);
        assert_eq!((seen.leader_changes, seen.snapshots_installed), (2, 1));
        assert_eq!(seen.forks, []);
    }

    #[test]
    fn two_states_at_one_index_are_a_fork() {
        let mut other = says(1, 2, "follower", 1, 10, 0);
        if let Some(status) = &mut other.status {
            status.state_hash = "another".to_owned();
        }
        let seen = Seen::of(&[says(1, 1, "leader", 1, 10, 0), other]);
        let both = BTreeSet::from(["another".to_owned(), "state 10".to_owned()]);
        assert_eq!(seen.forks, [(10, both)]);
    }
}
