//! Whether a broker is in order: the numbered invariants of [the crate](crate),
//! each recounted from the records.
//!
//! Walks through everything; meant for tests, and for what comes out of a
//! restore.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::broker::Broker;
use crate::contents::SharedContents;
use crate::deadlines::Due;
use crate::exchange::{Exchange, Exchanges};
use crate::ids::{ConsumerId, QueueId, SessionId, Timestamp};
use crate::queue::{Head, Holder, Lease, Lookup, Queue, Record, State, Taker, Tallies, Tally, Turn};

/// One broken invariant, for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// All that is broken; empty if the broker is in order.
#[must_use]
pub fn check(broker: &Broker) -> Vec<Violation> {
    let mut checker = Checker {
        broker,
        violations: Vec::new(),
        deadlines: Vec::new(),
        wanting: BTreeMap::new(),
        held: BTreeMap::new(),
    };
    checker.check_names();
    checker.collect_wanting();
    for (id, queue) in &broker.queues {
        checker.check_queue(*id, queue);
    }
    checker.check_exchanges();
    checker.check_shared();
    checker.check_sessions();
    checker.check_waiters();
    checker.check_deadlines();
    checker.ensure(broker.requests.is_consistent(), || {
        "requests: order of use is not that of the clients".into()
    });
    checker.ensure(
        broker
            .graves
            .queue
            .iter()
            .all(|grave| grave.records.first_position().is_some()),
        || "a grave is empty".into(),
    );
    checker.ensure(broker.effects.is_empty(), || {
        "effects are left from an entry".into()
    });
    checker.ensure(broker.events.is_empty(), || {
        "events are left from an entry".into()
    });
    checker.ensure(broker.touched.is_empty(), || {
        "queues are left to be assigned".into()
    });
    checker.violations
}

struct Checker<'a> {
    broker: &'a Broker,
    violations: Vec<Violation>,
    /// Those that must be there.
    deadlines: Vec<(Timestamp, Due)>,
    /// Consumers and takers by queue.
    wanting: BTreeMap<QueueId, Wanting>,
    /// Leases by what they hang on.
    held: BTreeMap<SessionId, BTreeSet<(ConsumerId, QueueId, u64)>>,
}

/// Who wants the messages of a queue, as sessions and waiters say.
#[derive(Default)]
struct Wanting {
    consumers: BTreeSet<(SessionId, ConsumerId)>,
    takers: BTreeMap<Turn, Taker>,
    attached: BTreeSet<(Turn, (SessionId, ConsumerId))>,
}

impl Checker<'_> {
    fn ensure(&mut self, holds: bool, violation: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(Violation(violation()));
        }
    }

    /// Invariant 8.
    fn check_names(&mut self) {
        let names = self
            .broker
            .queues
            .iter()
            .map(|(id, queue)| (queue.head.name.clone(), *id));
        let names: BTreeMap<_, _> = names.collect();
        self.ensure(names == self.broker.names, || {
            "names do not lead to the queues".into()
        });
        self.ensure(names.len() == self.broker.queues.len(), || {
            "two queues have one name".into()
        });
    }

    /// Invariants 1, 2, 5 and 8.
    fn check_queue(&mut self, id: QueueId, queue: &Queue) {
        let name = &queue.head.name;
        let mut tallies = Tallies::default();
        let mut lookup = Lookup::default();
        let mut entered = 0;
        for (position, record) in queue.records.iter() {
            let tally = tallies.of_mut(&record.state);
            *tally = tally.plus(Tally::of(record));
            lookup.insert(position, record);
            self.ensure((entered..=self.broker.index).contains(&record.entered()), || {
                format!(
                    "queue {name}, {position}: it entered with entry {}, one before it with {entered}",
                    record.entered()
                )
            });
            entered = record.entered();
            self.check_record(queue, position, record);
        }
        self.ensure(lookup == queue.lookup, || {
            format!("queue {name}: messages are not found by their ids")
        });
        self.ensure(tallies == queue.tallies, || {
            format!(
                "queue {name}: tallies are {:?}, recounted {tallies:?}",
                queue.tallies
            )
        });
        let totals = queue.head.totals;
        self.ensure(totals.published == tallies.all().count + totals.left(), || {
            format!("queue {name}: {totals:?} do not explain {tallies:?}")
        });
        self.ensure(totals.published == queue.head.next_position, || {
            format!(
                "queue {name}: {} messages entered, by position {}",
                totals.published, queue.head.next_position
            )
        });
        self.check_books(queue);
        if let Some(at) = queue.window_end() {
            self.deadlines.push((at, Due::QueueWindow { queue: id }));
        }
        self.check_backlog(id, queue);
        self.check_takers(id, queue);
        self.check_assigned(id, queue);
    }

    /// Takes note of what must be known of a record elsewhere.
    fn check_record(&mut self, queue: &Queue, position: u64, record: &Record) {
        let Head { name, id, .. } = &queue.head;
        self.ensure(queue.groups.knows(record.group), || {
            format!("queue {name}, {position}: there is no group {}", record.group)
        });
        if let Some(at) = record.due() {
            let queue = *id;
            self.deadlines.push((at, Due::Message { queue, position }));
        }
        if let State::Leased(Lease { grant, holder, .. }) = record.state {
            self.ensure(grant <= self.broker.grants, || {
                format!("queue {name}, {position}: lease {grant} was never granted")
            });
            if let Holder::Consumer { session, consumer } = holder {
                let held = self.held.entry(session).or_default();
                held.insert((consumer, *id, position));
            }
        }
        self.ensure(position < queue.head.next_position, || {
            format!("queue {name}, {position}: no message has entered there yet")
        });
        let leased = matches!(record.state, State::Leased(_));
        let used = u32::from(record.failures) + u32::from(leased);
        self.ensure(record.grants >= used, || {
            format!(
                "queue {name}, {position}: {} leases, {} failed",
                record.grants, record.failures
            )
        });
    }

    /// Order, groups and dedup ids are those of the records.
    fn check_books(&mut self, queue: &Queue) {
        let name = &queue.head.name;
        self.ensure(queue.is_in_order(), || {
            format!(
                "queue {name}: its order is not that of the messages: {:?}",
                queue.order
            )
        });
        self.ensure(queue.dedup.is_consistent(), || {
            format!("queue {name}: dedup ids are not found where they are remembered")
        });
        let groups = queue.recounted_groups();
        self.ensure(groups == queue.groups, || {
            format!(
                "queue {name}: its groups are {:?}, recounted {groups:?}",
                queue.groups
            )
        });
        self.ensure(queue.groups.are_sound(), || {
            format!("queue {name}: its groups are not those of the messages")
        });
    }

    fn check_backlog(&mut self, id: QueueId, queue: &Queue) {
        let name = &queue.head.name;
        let waits = |record: &Record| matches!(record.state, State::Dead { backlog: true, .. });
        let records = queue.records.iter();
        let backlog = records.filter_map(|(position, record)| waits(record).then_some(position));
        self.ensure(backlog.eq(queue.backlog.iter().copied()), || {
            format!("queue {name}: its backlog is not that of the dead set")
        });
        self.ensure(queue.head.retry.is_some() != queue.backlog.is_empty(), || {
            format!("queue {name}: a backlog is not tried again, or one that is none is")
        });
        if let Some(retry) = queue.head.retry {
            self.deadlines.push((retry.at, Due::Backlog { queue: id }));
        }
    }

    /// Invariant 5.
    fn check_assigned(&mut self, id: QueueId, queue: &Queue) {
        let next = queue
            .next_ready()
            .and_then(|position| queue.records.get(position));
        let waits = next.is_some_and(|record| !record.is_expired(self.broker.now));
        let assigned = !waits || self.broker.next_taker(id).is_none();
        self.ensure(assigned, || {
            let name = &queue.head.name;
            format!("queue {name}: a ready message and a taker were not brought together")
        });
    }

    /// Invariant 8: consumers and takers of a queue are those that say so themselves.
    fn check_takers(&mut self, id: QueueId, queue: &Queue) {
        let name = &queue.head.name;
        let Wanting {
            consumers,
            takers,
            attached,
        } = self.wanting.remove(&id).unwrap_or_default();
        self.ensure(consumers == queue.consumers, || {
            format!("queue {name}: its consumers are not those of the sessions")
        });
        self.ensure(takers == queue.takers, || {
            format!(
                "queue {name}: takers are {:?}, recounted {takers:?}",
                queue.takers
            )
        });
        self.ensure(
            queue
                .takers
                .keys()
                .all(|turn| turn.number <= queue.head.next_turn),
            || format!("queue {name}: a turn was never given out"),
        );
        self.check_active(queue, attached);
    }

    /// Invariants 8 and 9.
    fn check_active(&mut self, queue: &Queue, mut attached: BTreeSet<(Turn, (SessionId, ConsumerId))>) {
        let name = &queue.head.name;
        if !queue.head.settings.single_active_consumer {
            attached.clear();
        }
        let expected = usize::from(!attached.is_empty());
        let before = attached.len();
        attached.retain(|(_, consumer)| queue.head.active != Some(*consumer));
        let is_one_of_them = before - attached.len() == expected;
        self.ensure(
            is_one_of_them && queue.head.active.is_some() == (expected == 1),
            || format!("queue {name}: {:?} is active", queue.head.active),
        );
        let standby = queue.standby.iter().map(|(turn, consumer)| (*turn, *consumer));
        self.ensure(attached.into_iter().eq(standby), || {
            format!("queue {name}: those that stand by are not its consumers")
        });
    }

    /// Invariants 8 and 10.
    fn check_exchanges(&mut self) {
        let exchanges = &self.broker.exchanges;
        let mut recounted = Exchanges::default();
        for exchange in exchanges.by_id.values() {
            let fresh = recounted.insert(Exchange::new(exchange.head.clone()));
            self.ensure(fresh, || {
                format!("exchange {} is there twice", exchange.head.name)
            });
        }
        for (id, exchange) in &exchanges.by_id {
            self.ensure(exchange.dedup.is_consistent(), || {
                let name = &exchange.head.name;
                format!("exchange {name}: dedup ids are not found where they are remembered")
            });
            if let Some(at) = exchange.window_end() {
                self.deadlines.push((at, Due::ExchangeWindow { exchange: *id }));
            }
            for binding in exchange.bindings.iter() {
                match self.broker.node(&binding.destination) {
                    Ok(node) => {
                        recounted.bind(*id, node, binding.clone());
                    }
                    Err(missing) => self.ensure(false, || format!("{binding:?}: {missing}")),
                }
                self.ensure(binding.source == exchange.head.name, || {
                    format!("{binding:?} leads from another exchange")
                });
            }
        }
        for (id, exchange) in &exchanges.by_id {
            self.ensure(exchange.router == recounted.held(*id).router, || {
                format!(
                    "exchange {}: its router is not that of its bindings",
                    exchange.head.name
                )
            });
        }
        let same = exchanges.names == recounted.names
            && exchanges.sources == recounted.sources
            && exchanges.bindings == recounted.bindings;
        self.ensure(same, || {
            "exchanges by name, or bindings by what they lead to, are not those that are there".into()
        });
    }

    /// Invariant 8: references to shared contents.
    fn check_shared(&mut self) {
        let mut recounted = SharedContents::default();
        let queues = self.broker.queues.values().map(|queue| &queue.records);
        let graves = self.broker.graves.queue.iter().map(|grave| &grave.records);
        for records in queues.chain(graves) {
            records.iter().for_each(|(_, record)| recounted.count(record));
        }
        self.ensure(recounted == self.broker.shared, || {
            format!(
                "references to contents are {:?}, recounted {recounted:?}",
                self.broker.shared
            )
        });
    }

    fn collect_wanting(&mut self) {
        for (session_id, session) in &self.broker.sessions.by_id {
            for (consumer_id, consumer) in &session.consumers {
                let wanting = self.wanting.entry(consumer.queue).or_default();
                wanting.consumers.insert((*session_id, *consumer_id));
                if !session.is_attached() {
                    continue;
                }
                wanting
                    .attached
                    .insert((consumer.turn(), (*session_id, *consumer_id)));
                if consumer.has_free_credit() {
                    wanting
                        .takers
                        .insert(consumer.turn(), Taker::Consumer(*session_id, *consumer_id));
                }
            }
        }
        for ((client, sequence), waiter) in &self.broker.waiters.by_request {
            let wanting = self.wanting.entry(waiter.queue).or_default();
            wanting
                .takers
                .insert(Turn::unranked(waiter.turn), Taker::Waiter(*client, *sequence));
        }
    }

    /// Invariants 4, 6 and 8.
    fn check_sessions(&mut self) {
        let sessions = &self.broker.sessions;
        for (id, session) in &sessions.by_id {
            let held = self.held.remove(id).unwrap_or_default();
            self.ensure(held == session.leases, || {
                format!("session {}: its leases are not those of the messages", id.0)
            });
            for (consumer_id, consumer) in &session.consumers {
                let in_flight = held
                    .iter()
                    .filter(|(c, q, _)| c == consumer_id && *q == consumer.queue)
                    .count();
                self.ensure(consumer.in_flight as usize == in_flight, || {
                    format!(
                        "session {}, consumer {}: {in_flight} in flight, counted {}",
                        id.0, consumer_id.0, consumer.in_flight
                    )
                });
                self.ensure(self.broker.queues.contains_key(&consumer.queue), || {
                    format!("session {}, consumer {}: its queue is gone", id.0, consumer_id.0)
                });
            }
            if let Some(at) = session.head.orphaned_until {
                self.deadlines.push((at, Due::Orphan { session: *id }));
            }
            self.ensure(session.head.epoch <= self.broker.epochs, || {
                format!("session {}: its epoch is to come", id.0)
            });
            let known = self.broker.nodes.get(&session.head.node).copied();
            let current = known == Some(session.head.incarnation);
            self.ensure(current || session.head.orphaned_until.is_some(), || {
                format!("session {}: its node's life is over, and it is no orphan", id.0)
            });
        }
        let unowned: Vec<u64> = self.held.keys().map(|id| id.0).collect();
        self.ensure(unowned.is_empty(), || {
            format!("leases hang on sessions that are gone: {unowned:?}")
        });
        let by_node: BTreeSet<_> = sessions.by_id.iter().map(|(id, s)| (s.head.node, *id)).collect();
        self.ensure(by_node == sessions.by_node, || {
            "sessions by node are not the sessions".into()
        });
    }

    /// Invariants 7 and 8.
    fn check_waiters(&mut self) {
        let mut by_node = BTreeSet::new();
        for ((client, sequence), waiter) in &self.broker.waiters.by_request {
            by_node.insert((waiter.node, *client, *sequence));
            self.deadlines.push((
                waiter.until,
                Due::Waiter {
                    client: *client,
                    sequence: *sequence,
                },
            ));
            self.ensure(self.broker.queues.contains_key(&waiter.queue), || {
                "a lease waits on a queue that is gone".into()
            });
            self.ensure(
                (waiter.request.client, waiter.request.sequence) == (*client, *sequence),
                || "a lease waits under the request of another".into(),
            );
        }
        self.ensure(by_node == self.broker.waiters.by_node, || {
            "waiters by node are not the waiters".into()
        });
        let mut waiting = BTreeSet::new();
        for (id, client) in self.broker.requests.clients() {
            waiting.extend(client.waiting().map(|sequence| (*id, sequence)));
            self.ensure(client.is_bounded(), || {
                format!("client {}: its window is not bounded", id.0)
            });
            self.ensure(
                client.is_no_later_than(self.broker.index, self.broker.now),
                || format!("client {}: a request of the future is remembered", id.0),
            );
        }
        self.ensure(waiting.iter().eq(self.broker.waiters.by_request.keys()), || {
            "the requests that are remembered as waiting are not those that wait".into()
        });
    }

    /// Invariant 3.
    fn check_deadlines(&mut self) {
        let mut expected = std::mem::take(&mut self.deadlines);
        expected.sort();
        let mut kept: Vec<_> = self.broker.deadlines.iter().copied().collect();
        kept.sort();
        self.ensure(expected == kept, || {
            format!("deadlines: {} are kept, {} must be", kept.len(), expected.len())
        });
    }
}
