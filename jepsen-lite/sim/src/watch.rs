//! What is checked while a run is under way: that replicas do not differ, and that the protocol is obeyed.
//!
//! | invariant | here |
//! | --- | --- |
//! | I10 convergence | whatever a node applies at an index is what every other node applied there: one term, one state hash; a snapshot holds the state of its index |
//! | I14 cluster time | the time of an entry is not before that of the entry before it |
//! | I20 membership | a node that was removed ends by itself when nothing keeps it from learning that; of a node whose disk was emptied no leader knows more to be stored than it had |
//! | I19 raft | a node's term, commit and applied index never go back within a life; a term and a node make one leadership; what is committed is, byte for byte, on the disks of a majority |
//!
//! A violation is written down with its time; the first ones are kept. The clients' side of the story is told by
//! the checkers of `jepsen-lite-core`, when the run is over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jepsen_lite_core::verdict::Witness;
use parking_lot::Mutex;
use quorate_node::audit::{Audit, AuditSink, Record};
use quorate_raft::{Role, Status};

use crate::trace::Trace;
use crate::world::Place;

/// Violations that are kept, of each invariant.
const KEPT: usize = 10;
/// Between two looks at the nodes, in ticks.
const LOOK_TICKS: u64 = 20;
/// Between two looks at the disks, in ticks: they cost a walk over the logs.
const DISKS_TICKS: u64 = 2_000;

/// Watches a run.
pub struct Watch {
    shared: Arc<Mutex<Shared>>,
    /// What each place said last, and in which life.
    said: BTreeMap<usize, (u64, Status)>,
    /// Ids that a leader counted among the members.
    members: BTreeSet<u64>,
    /// Nodes whose disks were emptied, by id.
    emptied: BTreeMap<u64, Emptied>,
    /// Which node led in which term.
    leaders: BTreeMap<(u64, u64), u64>,
    /// Programs that ended by themselves, in words, and those of them that nothing explains.
    ends: Vec<String>,
    crashes: Vec<String>,
    leading: Option<(u64, usize)>,
    leader_changes: u64,
}

struct Shared {
    trace: Trace,
    tick: u64,
    /// For each index: the term, the hash, and who applied it first.
    applied: BTreeMap<u64, (u64, String, usize)>,
    /// The audit log of each place, in lines of JSON.
    audit: BTreeMap<usize, Vec<String>>,
    entries: u64,
    installs: u64,
    disks_checked: u64,
    removals: u64,
    violations: BTreeMap<&'static str, (u64, Vec<Witness>)>,
}

/// A node that is no more, since a node is its data.
struct Emptied {
    place: usize,
    tick: u64,
    /// How far its log reached.
    had: u64,
    /// A leader that counts it among the members was looked at.
    seen: bool,
    /// It has answered, which was told.
    told: bool,
}

/// Takes the audit records of one place.
struct Sink {
    place: usize,
    shared: Arc<Mutex<Shared>>,
    last: Mutex<Option<(u64, u64)>>,
}

impl Watch {
    /// Of a run that is about to begin.
    #[must_use]
    pub fn new(trace: Trace) -> Self {
        Self {
            shared: Arc::new(Mutex::new(Shared {
                trace,
                tick: 0,
                applied: BTreeMap::new(),
                audit: BTreeMap::new(),
                entries: 0,
                installs: 0,
                disks_checked: 0,
                removals: 0,
                violations: BTreeMap::new(),
            })),
            said: BTreeMap::new(),
            members: BTreeSet::new(),
            emptied: BTreeMap::new(),
            leaders: BTreeMap::new(),
            ends: Vec::new(),
            crashes: Vec::new(),
            leading: None,
            leader_changes: 0,
        }
    }

    /// Where a program of this place has its audit log.
    #[must_use]
    pub fn audit(&self, place: usize) -> Audit {
        Audit::to(Arc::new(Sink {
            place,
            shared: Arc::clone(&self.shared),
            last: Mutex::default(),
        }))
    }

    /// The audit logs, by place, in lines of JSON.
    #[must_use]
    pub fn audit_lines(&self) -> BTreeMap<usize, Vec<String>> {
        self.shared.lock().audit.clone()
    }

    /// Programs that ended by themselves: when, which, and why.
    #[must_use]
    pub fn ends(&self) -> &[String] {
        &self.ends
    }

    /// Those of them that nothing explains that was done to them.
    #[must_use]
    pub fn crashes(&self) -> &[String] {
        &self.crashes
    }

    /// Entries applied, snapshots installed, changes of the leader, disks compared, nodes that were removed or emptied
    /// looked at.
    #[must_use]
    pub fn seen(&self) -> [u64; 5] {
        let shared = self.shared.lock();
        [
            shared.entries,
            shared.installs,
            self.leader_changes,
            shared.disks_checked,
            shared.removals + self.emptied.values().filter(|one| one.seen).count() as u64,
        ]
    }

    /// What was violated: invariant, how often, and the first witnesses.
    #[must_use]
    pub fn violations(&self) -> Vec<(&'static str, u64, Vec<Witness>)> {
        let shared = self.shared.lock();
        let violations = shared.violations.iter();
        violations
            .map(|(invariant, (count, witnesses))| (*invariant, *count, witnesses.clone()))
            .collect()
    }

    /// What was at the address of a node that nothing keeps from the others was removed some time ago; the node goes on
    /// or has ended. One that was emptied and could not join yet is another than was removed.
    pub(crate) fn removed(&mut self, place: usize, id: Option<u64>, goes_on: bool) {
        if id.is_none_or(|id| !self.members.contains(&id)) {
            return;
        }
        let mut shared = self.shared.lock();
        shared.removals += 1;
        if goes_on {
            let evidence = format!("n{} goes on though the cluster has removed it", place + 1);
            shared.violated("I20", evidence);
        }
    }

    /// The disk of this node is empty now. Its log reached up to there.
    pub(crate) fn emptied(&mut self, place: usize, id: u64, had: u64) {
        let tick = self.shared.lock().tick;
        let emptied = Emptied {
            place,
            tick,
            had,
            seen: false,
            told: false,
        };
        self.emptied.insert(id, emptied);
    }

    pub(crate) fn ended(&mut self, place: usize, tick: u64, why: &str, explained: bool) {
        let end = format!("{tick} ms: n{} ended: {why}", place + 1);
        if !explained {
            self.crashes.push(end.clone());
        }
        self.ends.push(end);
    }

    /// Looks at the nodes, every now and then.
    pub(crate) fn look(&mut self, tick: u64, places: &[Place]) {
        self.shared.lock().tick = tick;
        if !tick.is_multiple_of(LOOK_TICKS) {
            return;
        }
        for (number, place) in places.iter().enumerate() {
            let broker = place.program().and_then(crate::program::Program::broker);
            let Some(broker) = broker else { continue };
            if place.paused {
                continue;
            }
            self.look_at(number, place.lives, broker.status());
        }
        if tick.is_multiple_of(DISKS_TICKS) {
            self.look_at_disks(places);
        }
    }

    fn look_at(&mut self, number: usize, life: u64, now: Status) {
        let mut shared = self.shared.lock();
        if let Some((before_life, before)) = self.said.get(&number)
            && *before_life == life
            && before.node_id == now.node_id
        {
            for (what, before, now) in [
                ("term", before.term, now.term),
                ("commit", before.committed_index, now.committed_index),
                ("apply", before.applied_index, now.applied_index),
            ] {
                if now < before {
                    shared.violated(
                        "I19",
                        format!("n{}: {what} went back from {before} to {now}", number + 1),
                    );
                }
            }
        }
        if now.role == Role::Leader {
            for member in &now.members {
                self.members.insert(member.node_id.0);
                let Some(emptied) = self.emptied.get_mut(&member.node_id.0) else {
                    continue;
                };
                emptied.seen = true;
                let stored = member.matched_index.unwrap_or(0);
                if stored > emptied.had && !emptied.told {
                    emptied.told = true;
                    let Emptied { place, tick, had, .. } = *emptied;
                    let evidence = format!(
                        "the disk of n{} was emptied at {tick} ms, when its log reached {had}; yet in the name of that node, {}, \
                         n{} was told that entry {stored} is stored",
                        place + 1,
                        member.node_id.0,
                        number + 1
                    );
                    shared.violated("I20", evidence);
                }
            }
            let leader = (now.term, now.node_id.0);
            if self
                .leaders
                .insert(leader, life)
                .is_some_and(|led_in| led_in != life)
            {
                shared.violated(
                    "I19",
                    format!("n{}: leads in term {} in two lives", number + 1, now.term),
                );
            }
            if self.leading.is_none_or(|(term, _)| now.term > term) {
                let changed = self.leading.is_some_and(|(_, place)| place != number);
                self.leader_changes += u64::from(changed);
                self.leading = Some((now.term, number));
                let at_us = shared.tick * crate::machine::TICK_US;
                shared
                    .trace
                    .note(at_us, "leader", &[number as u64, now.term], &[]);
            }
        }
        self.said.insert(number, (life, now));
    }

    /// What the leader knows to be committed is on the disks of a majority of its voters, the same on all of
    /// them that have it.
    fn look_at_disks(&mut self, places: &[Place]) {
        let Some((_, leader)) = self.leading else { return };
        let Some((life, status)) = self.said.get(&leader) else {
            return;
        };
        if places[leader].lives != *life || status.role != Role::Leader {
            return;
        }
        let committed = status.committed_index;
        let voters: Vec<u64> = status
            .members
            .iter()
            .filter(|member| member.voter)
            .map(|member| member.node_id.0)
            .collect();
        let mut holders = 0;
        let mut bytes = None;
        let mut shared = self.shared.lock();
        // What a fault took from a disk had been there: it is held against nobody.
        let mut excused = voters.len();
        for place in places {
            let Some(id) = place.disk.node_id().filter(|id| voters.contains(id)) else {
                continue;
            };
            if place.damaged {
                continue;
            }
            excused -= 1;
            let Ok(log) = place.disk.durable_log() else {
                continue;
            };
            let purged = log.purged.as_ref().map_or(0, |(index, _)| *index);
            let found = log
                .entries
                .binary_search_by_key(&committed, |record| record.index);
            if let Ok(position) = found {
                let found = &log.entries[position].bytes;
                // A follower's old tail may still be there, so only the leader's entry counts.
                let of_leader = id == status.node_id.0;
                if of_leader {
                    bytes = Some(found.clone());
                }
                holders += usize::from(bytes.as_ref().is_none_or(|bytes| bytes == found));
            } else {
                holders += usize::from(purged >= committed);
            }
        }
        shared.disks_checked += 1;
        if (holders + excused) * 2 <= voters.len() && committed > 0 {
            shared.violated(
                "I19",
                format!(
                    "entry {committed} is committed, and on {holders} of {} disks",
                    voters.len()
                ),
            );
        }
    }
}

impl Shared {
    fn violated(&mut self, invariant: &'static str, evidence: String) {
        let (count, witnesses) = self.violations.entry(invariant).or_default();
        *count += 1;
        if witnesses.len() < KEPT {
            witnesses.push(Witness {
                evidence,
                message: None,
                at_ms: Some(self.tick),
            });
        }
    }

    /// A state at an index, by whoever has it.
    fn state(&mut self, place: usize, index: u64, term: u64, hash: &str) {
        let (first_term, first_hash, who) = self
            .applied
            .entry(index)
            .or_insert_with(|| (term, hash.to_owned(), place))
            .clone();
        if (first_term, first_hash.as_str()) != (term, hash) {
            self.violated(
                "I10",
                format!(
                    "at index {index}, n{} has term {first_term} and state {first_hash}, n{} has term {term} and state {hash}",
                    who + 1,
                    place + 1
                ),
            );
        }
    }
}

impl AuditSink for Sink {
    fn record(&self, record: &Record) {
        let mut shared = self.shared.lock();
        let mut last = self.last.lock();
        match record {
            Record::Opened(_) => *last = None,
            Record::Restored(restored) => {
                shared.installs += u64::from(last.is_some());
                shared.state(self.place, restored.index, restored.term, &restored.hash);
                *last = Some((restored.index, restored.at_ms));
            }
            Record::Entry(entry) => {
                if let Some((index, at_ms)) = *last {
                    if entry.index != index + 1 {
                        let evidence = format!("n{}: applied {} after {index}", self.place + 1, entry.index);
                        shared.violated("I10", evidence);
                    }
                    if entry.at_ms < at_ms {
                        let evidence = format!(
                            "n{}: cluster time went back from {at_ms} to {} at index {}",
                            self.place + 1,
                            entry.at_ms,
                            entry.index
                        );
                        shared.violated("I14", evidence);
                    }
                }
                *last = Some((entry.index, entry.at_ms));
                shared.entries += 1;
                shared.state(self.place, entry.index, entry.term, &entry.hash);
                let at_us = shared.tick * crate::machine::TICK_US;
                let numbers = [self.place as u64, entry.index, entry.term, entry.at_ms];
                shared.trace.note(at_us, "apply", &numbers, entry.hash.as_bytes());
            }
        }
        let line = serde_json::to_string(record).expect("a record is plain data");
        shared.audit.entry(self.place).or_default().push(line);
    }
}
