//! From what was recorded to what a page is made of.
//!
//! Clients and nodes tell of the same things by clocks that have nothing to do with each other. Where a client
//! was told a log index, its own clock gives that entry a time; what only the log tells of stands between its
//! neighbours, and is marked as estimated. So a node's clock may be wrong by a year and the page is not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jepsen_lite_core::history::{Delivery, History, Mark, MessageId, Outcome, Place, Publish, Settle, Wish};
use jepsen_lite_core::run::Sight;
use jepsen_lite_core::verdict::Results;
use jepsen_lite_core::view::Event;

use crate::run::{Act, Answer, Call, Moment, Phase, Role, Run, Status};

/// Lays a run out for its page, with what it came to.
#[must_use]
pub fn of(run: &jepsen_lite_core::run::Run, results: &Results) -> Run {
    let history = &run.history;
    let statuses: Vec<Status> = run.sights.iter().map(status).collect();
    let teller = Teller::new(history, &statuses);
    let mut lives = teller.as_clients_saw_it();
    teller.as_the_log_has_it(&with_plain_names(run.audit.events()), &mut lives);
    for life in lives.values_mut() {
        // At one time, the log comes before who was told.
        life.sort_by(|a, b| {
            let key = |moment: &Moment| {
                (
                    moment.at_ms.unwrap_or(f64::INFINITY),
                    moment.log_index.unwrap_or(u64::MAX),
                )
            };
            let ((at, index), (other_at, other_index)) = (key(a), key(b));
            at.total_cmp(&other_at).then(index.cmp(&other_index))
        });
    }
    Run {
        calls: teller.calls(),
        phases: phases(&history.marks),
        lives: lives
            .into_iter()
            .map(|(id, life)| (id.to_string(), life))
            .collect(),
        schedule: run.schedule.clone(),
        effects: run.effects.clone(),
        results: results.clone(),
        statuses,
    }
}

fn status(sight: &Sight) -> Status {
    Status {
        at_ms: sight.at_ms,
        node: sight.node,
        id: sight.id,
        role: Role::named(&sight.role),
        term: sight.term,
        applied_index: sight.applied_index,
    }
}

/// An event names its queue `name#id`; people call it by its name, unless two had the same.
fn with_plain_names(mut events: Vec<Event>) -> Vec<Event> {
    let mut ids: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for event in &events {
        if let Some((name, id)) = event.queue.rsplit_once('#') {
            ids.entry(name.to_owned()).or_default().insert(id.to_owned());
        }
    }
    for event in &mut events {
        if let Some((name, _)) = event.queue.rsplit_once('#')
            && ids.get(name).is_some_and(|ids| ids.len() == 1)
        {
            event.queue = name.to_owned();
        }
    }
    events
}

/// A history with what has to be looked up in it.
struct Teller<'a> {
    history: &'a History,
    publishers: BTreeSet<u32>,
    workers: BTreeSet<u32>,
    /// Which message bears a key, also where its publisher was never told.
    by_key: BTreeMap<u64, MessageId>,
    by_token: BTreeMap<&'a str, &'a Delivery>,
    by_fence: BTreeMap<u64, &'a Delivery>,
    /// Log indexes with times of the load, both rising.
    anchors: Vec<(u64, f64)>,
    /// The number of a node by its id.
    nodes: BTreeMap<u64, usize>,
}

impl<'a> Teller<'a> {
    fn new(history: &'a History, statuses: &[Status]) -> Self {
        let mut teller = Self {
            history,
            publishers: history.publishes.iter().map(|publish| publish.process).collect(),
            workers: BTreeSet::new(),
            by_key: BTreeMap::new(),
            by_token: BTreeMap::new(),
            by_fence: BTreeMap::new(),
            anchors: Vec::new(),
            nodes: statuses.iter().filter_map(|s| Some((s.id?, s.node))).collect(),
        };
        for delivery in &history.deliveries {
            teller.workers.insert(delivery.process);
            if let Some(key) = delivery.key {
                teller.by_key.entry(key).or_insert(delivery.message);
            }
            teller.by_token.entry(&delivery.token).or_insert(delivery);
            teller.by_fence.entry(delivery.fence).or_insert(delivery);
        }
        teller
            .workers
            .extend(history.receives.iter().map(|receive| receive.process));
        teller
            .workers
            .extend(history.settles.iter().map(|settle| settle.process));
        teller.anchors = teller.anchors();
        teller
    }

    /// Times of log entries, from the answers that named them.
    fn anchors(&self) -> Vec<(u64, f64)> {
        let publishes = self
            .history
            .publishes
            .iter()
            .map(|p| (p.place, p.invoked, p.answered));
        let settles = self
            .history
            .settles
            .iter()
            .map(|s| (s.place, s.invoked, s.answered));
        let mut anchors: Vec<(u64, f64)> = publishes
            .chain(settles)
            .filter_map(|(place, invoked, answered)| {
                let middle = (ms(invoked) + ms(answered)) / 2.0;
                Some((place?.index, middle))
            })
            .collect();
        anchors.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        anchors.dedup_by_key(|(index, _)| *index);
        // The middle of a call is not exactly the time of its entry: a later entry is not earlier.
        let mut latest = f64::NEG_INFINITY;
        for (_, at_ms) in &mut anchors {
            latest = latest.max(*at_ms);
            *at_ms = latest;
        }
        anchors
    }

    /// When an entry was written, about: between those around it of which it is known.
    fn time_of(&self, index: u64) -> Option<f64> {
        let after = self.anchors.partition_point(|(known, _)| *known < index);
        let above = self.anchors.get(after);
        let below = after.checked_sub(1).and_then(|before| self.anchors.get(before));
        match (below, above) {
            (_, Some((known, at_ms))) if *known == index => Some(*at_ms),
            (Some((low, from)), Some((high, until))) => {
                let part = (index - low) as f64 / (high - low) as f64;
                Some(from + (until - from) * part)
            }
            (Some((_, at_ms)), None) | (None, Some((_, at_ms))) => Some(*at_ms),
            (None, None) => None,
        }
    }

    fn name(&self, process: u32) -> String {
        let kind = match (
            self.publishers.contains(&process),
            self.workers.contains(&process),
        ) {
            (true, false) => "publisher",
            (false, true) => "worker",
            _ => "client",
        };
        format!("{kind} {process}")
    }

    /// The message that a publish became, if anybody knows.
    fn message_of(&self, publish: &Publish) -> Option<MessageId> {
        match &publish.outcome {
            Outcome::Done(message) => Some(*message),
            Outcome::Refused(_) => None,
            Outcome::Unknown => self.by_key.get(&publish.key).copied(),
        }
    }

    fn calls(&self) -> Vec<Call> {
        let history = self.history;
        let mut calls =
            Vec::with_capacity(history.publishes.len() + history.deliveries.len() + history.settles.len());
        let mut add =
            |process, act, times: (Duration, Duration), answer, message: Option<MessageId>, queue: &str| {
                calls.push(Call {
                    client: self.name(process),
                    act,
                    begin_ms: ms(times.0),
                    end_ms: Some(ms(times.1)),
                    answer,
                    message: message.map(|message| message.to_string()),
                    queue: queue.to_owned(),
                });
            };
        for p in &history.publishes {
            let message = self.message_of(p);
            add(
                p.process,
                Act::Publish,
                (p.invoked, p.answered),
                answer(&p.outcome),
                message,
                &p.queue,
            );
        }
        for d in &history.deliveries {
            let times = (d.received, d.received);
            add(
                d.process,
                Act::Receive,
                times,
                Answer::Done,
                Some(d.message),
                &d.queue,
            );
        }
        for s in &history.settles {
            let of = self.by_token.get(s.token.as_str());
            let (message, queue) = of.map_or((None, ""), |of| (Some(of.message), of.queue.as_str()));
            add(
                s.process,
                Act::Settle,
                (s.invoked, s.answered),
                answer(&s.outcome),
                message,
                queue,
            );
        }
        // What these brought is among the deliveries.
        for r in history
            .receives
            .iter()
            .filter(|receive| !receive.outcome.is_done())
        {
            add(
                r.process,
                Act::Receive,
                (r.invoked, r.answered),
                answer(&r.outcome),
                None,
                &r.queue,
            );
        }
        for r in &history.reads {
            add(
                r.process,
                Act::Other,
                (r.invoked, r.answered),
                Answer::Done,
                None,
                &r.queue,
            );
        }
        for o in &history.operations {
            add(
                o.process,
                Act::Other,
                (o.invoked, o.answered),
                answer(&o.outcome),
                None,
                &o.queue,
            );
        }
        calls
    }

    fn as_clients_saw_it(&self) -> BTreeMap<MessageId, Vec<Moment>> {
        let mut lives: BTreeMap<MessageId, Vec<Moment>> = BTreeMap::new();
        for publish in &self.history.publishes {
            if let Some(message) = self.message_of(publish) {
                lives.entry(message).or_default().push(self.publish(publish));
            }
        }
        for delivery in &self.history.deliveries {
            lives.entry(delivery.message).or_default().push(Moment {
                what: "received".to_owned(),
                at_ms: Some(ms(delivery.received)),
                who: Some(self.name(delivery.process)),
                attempt: Some(delivery.attempt),
                token: Some(delivery.token.clone()),
                leased_until_ms: Some(delivery.leased_until_ms),
                ..Moment::default()
            });
        }
        for settle in &self.history.settles {
            if let Some(delivery) = self.by_token.get(settle.token.as_str()) {
                let life = lives.entry(delivery.message).or_default();
                life.push(self.settle(settle, delivery));
            }
        }
        lives
    }

    fn publish(&self, publish: &Publish) -> Moment {
        let (mut note, odd) = told(&publish.outcome, "confirmed");
        if publish.duplicate {
            note.push_str(", known by its dedup id");
        }
        Moment {
            what: "publish".to_owned(),
            at_ms: Some(ms(publish.invoked)),
            until_ms: Some(ms(publish.answered)),
            who: Some(self.name(publish.process)),
            note,
            odd: odd || publish.duplicate,
            ..self.placed(publish.place)
        }
    }

    fn settle(&self, settle: &Settle, delivery: &Delivery) -> Moment {
        let what = match settle.wish {
            Wish::Ack => "ack",
            Wish::Nack => "nack",
            Wish::Release => "release",
            Wish::DeadLetter => "dead-letter",
            Wish::Extend => "extend",
        };
        let (note, odd) = told(&settle.outcome, "done");
        Moment {
            what: what.to_owned(),
            at_ms: Some(ms(settle.invoked)),
            until_ms: Some(ms(settle.answered)),
            who: Some(self.name(settle.process)),
            attempt: Some(delivery.attempt),
            token: Some(settle.token.clone()),
            leased_until_ms: settle.leased_until_ms,
            note,
            odd,
            ..self.placed(settle.place)
        }
    }

    /// A moment with nothing but its place.
    fn placed(&self, place: Option<Place>) -> Moment {
        Moment {
            log_index: place.map(|place| place.index),
            cluster_ms: place.map(|place| place.time_ms),
            node: place.and_then(|place| self.nodes.get(&place.node?).copied()),
            ..Moment::default()
        }
    }

    fn as_the_log_has_it(&self, events: &[Event], lives: &mut BTreeMap<MessageId, Vec<Moment>>) {
        for event in events {
            let delivery = event.fence.and_then(|fence| self.by_fence.get(&fence));
            let holder = match (delivery, event.session, event.client) {
                (Some(delivery), ..) => Some(self.name(delivery.process)),
                (None, Some(session), _) => Some(format!("session {session}")),
                (None, None, Some(client)) => Some(format!("client {client}")),
                (None, None, None) => None,
            };
            let mut notes: Vec<String> = Vec::new();
            notes.extend(event.reason.clone());
            if !event.queues.is_empty() {
                notes.push(format!("queue {}", event.queues.join(", ")));
            }
            if let Some(refused) = event.refused {
                notes.push(format!("not taken: {refused}"));
            }
            // A lease of the log that no client tells of may have been lost on its way.
            let unseen = event.change == "leased" && delivery.is_none();
            if unseen {
                notes.push("no client tells of it".to_owned());
            }
            // What a worker has had was leased before, however rough the estimate.
            let had = delivery.map_or(f64::INFINITY, |delivery| ms(delivery.received));
            let at_ms = self.time_of(event.index).map(|at_ms| at_ms.min(had));
            lives.entry(event.message).or_default().push(Moment {
                what: event.change.clone(),
                at_ms,
                estimated: true,
                who: holder,
                log_index: Some(event.index),
                cluster_ms: Some(event.at_ms),
                attempt: event.attempt,
                token: delivery.map(|delivery| delivery.token.clone()),
                leased_until_ms: event.until_ms,
                odd: unseen || !matches!(event.change.as_str(), "published" | "due" | "leased" | "acked"),
                note: notes.join(", "),
                ..Moment::default()
            });
        }
    }
}

/// A moment of the history, in milliseconds since it began.
fn ms(at: Duration) -> f64 {
    at.as_secs_f64() * 1000.0
}

/// What the harness was about, from each mark to the next.
fn phases(marks: &[Mark]) -> Vec<Phase> {
    marks
        .iter()
        .map(|mark| Phase {
            name: match mark.name.as_str() {
                "heal" => "faults are undone",
                Mark::WHOLE => "whole again",
                "drain" => "queues are drained",
                Mark::DRAINED => "states are compared",
                other => other,
            }
            .to_owned(),
            from_ms: ms(mark.at),
        })
        .collect()
}

fn answer<T>(outcome: &Outcome<T>) -> Answer {
    match outcome {
        Outcome::Done(_) => Answer::Done,
        Outcome::Refused(_) => Answer::Refused,
        Outcome::Unknown => Answer::Unknown,
    }
}

/// An outcome in words, and whether it is out of the ordinary.
fn told<T>(outcome: &Outcome<T>, done: &str) -> (String, bool) {
    match outcome {
        Outcome::Done(_) => (done.to_owned(), false),
        Outcome::Refused(Some(reason)) => (format!("refused: {reason}"), true),
        Outcome::Refused(None) => ("refused".to_owned(), true),
        Outcome::Unknown => ("unknown: no answer".to_owned(), true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use jepsen_lite_core::audit::Audit;
    use jepsen_lite_core::run::Facts;

    fn secs(s: f64) -> Duration {
        Duration::from_secs_f64(s)
    }

    fn message(index: u64) -> MessageId {
        MessageId { index, number: 0 }
    }

    /// One message that is received twice; the publisher of another is never told.
    fn history() -> History {
        let place = |index| {
            Some(Place {
                index,
                term: 1,
                time_ms: 1000 + index,
                node: Some(71),
            })
        };
        let delivery = |process, at, attempt, index, key| Delivery {
            process,
            received: secs(at),
            queue: "work".to_owned(),
            message: message(index),
            key: Some(key),
            token: format!("token {attempt} of {index}"),
            fence: index * 10 + u64::from(attempt),
            attempt,
            ..Delivery::default()
        };
        History {
            publishes: vec![
                Publish {
                    invoked: secs(11.0),
                    answered: secs(11.2),
                    place: place(7),
                    key: 1,
                    queue: "work".to_owned(),
                    outcome: Outcome::Done(message(7)),
                    ..Publish::default()
                },
                Publish {
                    invoked: secs(12.0),
                    answered: secs(14.0),
                    key: 2,
                    queue: "work".to_owned(),
                    ..Publish::default()
                },
            ],
            deliveries: vec![
                delivery(1, 11.3, 1, 7, 1),
                delivery(2, 16.0, 2, 7, 1),
                delivery(1, 13.0, 1, 9, 2),
            ],
            settles: vec![Settle {
                process: 1,
                invoked: secs(16.5),
                answered: secs(16.7),
                place: place(27),
                token: "token 1 of 7".to_owned(),
                outcome: Outcome::Refused(Some("STALE_LEASE".to_owned())),
                ..Settle::default()
            }],
            marks: vec![Mark {
                at: secs(15.0),
                name: "heal".to_owned(),
                ..Mark::default()
            }],
            ..History::default()
        }
    }

    /// The run of [`history`], with these changes in the log: index, what, fence.
    fn told_with(changes: &[(u64, &str, Option<u64>)]) -> Run {
        let told = sample::empty();
        let mut audit = Audit::default();
        for (index, change, fence) in changes {
            let event = serde_json::json!({
                "message": "7-0", "queue": "work", "queue_id": 1, "change": change, "fence": fence
            });
            let entry =
                serde_json::json!({ "entry": { "index": index, "at_ms": 1_000_000_000, "events": [event] } });
            audit
                .add("n1", entry.to_string().as_bytes())
                .expect("memory can be read");
        }
        let run = jepsen_lite_core::run::Run {
            schedule: told.schedule,
            history: history(),
            audit,
            effects: Vec::new(),
            facts: Facts::default(),
            sights: vec![Sight {
                node: 2,
                id: Some(71),
                role: "leader".to_owned(),
                term: 1,
                ..Sight::default()
            }],
        };
        of(&run, &told.results)
    }

    #[test]
    fn times_nodes_and_phases_are_those_of_the_run() {
        let run = told_with(&[]);
        assert!((run.calls[0].begin_ms - 11_000.0).abs() < 1e-6);
        assert_eq!(run.calls[0].client, "publisher 0");
        assert_eq!(run.calls[2].client, "worker 1");
        assert_eq!(run.lives["7-0"][0].node, Some(2));
        let phase = Phase {
            name: "faults are undone".to_owned(),
            from_ms: 15_000.0,
        };
        assert_eq!(run.phases, [phase]);
    }

    #[test]
    fn a_publish_without_an_answer_is_found_by_its_key() {
        let run = told_with(&[]);
        assert_eq!(run.calls[1].answer, Answer::Unknown);
        assert_eq!(run.calls[1].message.as_deref(), Some("9-0"));
        let what: Vec<&str> = run.lives["9-0"]
            .iter()
            .map(|moment| moment.what.as_str())
            .collect();
        assert_eq!(what, ["publish", "received"]);
    }

    #[test]
    fn what_only_the_log_tells_of_stands_between_its_neighbours() {
        let run = told_with(&[
            (7, "published", None),
            (8, "leased", Some(71)),
            (17, "lease-expired", None),
            (18, "leased", Some(99)),
        ]);
        let life: Vec<(&str, bool)> = run.lives["7-0"]
            .iter()
            .map(|moment| (moment.what.as_str(), moment.odd))
            .collect();
        assert_eq!(
            life,
            [
                ("publish", false),
                ("published", false),
                ("leased", false),
                ("received", false),
                ("lease-expired", true),
                ("leased", true),
                ("received", false),
                ("ack", true),
            ]
        );
        // Halfway between entry 7 (11.1 s) and entry 27 (16.6 s), whatever the cluster's clock says.
        let expired = &run.lives["7-0"][4];
        assert!((expired.at_ms.unwrap() - 13_850.0).abs() < 1e-6, "{expired:?}");
        assert_eq!(run.lives["7-0"][2].who.as_deref(), Some("worker 1"));
        assert_eq!(run.lives["7-0"][5].note, "no client tells of it");
    }
    #[test]
    fn a_queue_has_its_id_beside_its_name_only_where_another_had_that_name() {
        let in_queue = |queue: &str| Event {
            queue: queue.to_owned(),
            ..Event::default()
        };
        let events = with_plain_names(["work#1", "work#1", "again#2", "again#3"].map(in_queue).into());
        let names: Vec<&str> = events.iter().map(|event| event.queue.as_str()).collect();
        assert_eq!(names, ["work", "work", "again#2", "again#3"]);
    }
}
