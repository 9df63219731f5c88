//! The search against histories that are known, and against a witness: the order of the log.

use std::collections::BTreeMap;
use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::history::{Delivery, History, MessageId, Outcome, Place, Publish, STALE_LEASE, Settle, Wish};

const LEASE_MS: u64 = 10;

/// A queue that keeps what it does in a list, and tells it as a history.
#[derive(Debug, Default)]
struct Reference {
    /// In order.
    messages: Vec<Stay>,
    index: u64,
    fence: u64,
    at_ms: u64,
    history: History,
}

/// A message, its leases that failed, and the lease that runs, with its end.
type Stay = (MessageId, u32, Option<(u64, u64)>);

/// What is asked of it next.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Publish,
    Receive,
    /// The last lease but so many is settled so.
    Settle(usize, Wish),
    /// So much time passes.
    Wait(u64),
}

impl Reference {
    /// Operations that are answered one after the other.
    fn told(asks: &[Ask]) -> History {
        let mut queue = Self::default();
        for ask in asks {
            queue.act(*ask);
        }
        queue.history
    }

    fn now(&self) -> Duration {
        Duration::from_millis(10 * self.index)
    }

    fn place(&self) -> Place {
        Place {
            index: self.index,
            time_ms: self.at_ms,
            ..Place::default()
        }
    }

    fn act(&mut self, ask: Ask) {
        self.index += 1;
        self.at_ms += 1;
        let now = self.at_ms;
        for (_, failures, lease) in &mut self.messages {
            if lease.take_if(|(_, until)| *until <= now).is_some() {
                *failures += 1;
            }
        }
        match ask {
            Ask::Wait(ms) => self.at_ms += ms,
            Ask::Publish => self.publish(),
            Ask::Receive => self.receive(),
            Ask::Settle(back, wish) => self.settle(back, wish),
        }
    }

    fn publish(&mut self) {
        let message = MessageId {
            index: self.index,
            number: 0,
        };
        self.messages.push((message, 0, None));
        self.history.publishes.push(Publish {
            invoked: self.now(),
            answered: self.now() + Duration::from_millis(5),
            place: Some(self.place()),
            key: self.index,
            queue: "jobs".to_owned(),
            outcome: Outcome::Done(message),
            ..Publish::default()
        });
    }

    fn receive(&mut self) {
        let received = self.now() + Duration::from_millis(5);
        let Some((message, failures, lease)) = self.messages.iter_mut().find(|(_, _, lease)| lease.is_none())
        else {
            return;
        };
        self.fence += 1;
        let until = self.at_ms + LEASE_MS;
        *lease = Some((self.fence, until));
        self.history.deliveries.push(Delivery {
            received,
            queue: "jobs".to_owned(),
            message: *message,
            key: Some(message.index),
            token: format!("lease {}", self.fence),
            fence: self.fence,
            attempt: *failures + 1,
            lease_ms: LEASE_MS,
            leased_until_ms: until,
            ends_by_time: true,
            ..Delivery::default()
        });
    }

    fn settle(&mut self, back: usize, wish: Wish) {
        let deliveries = &self.history.deliveries;
        let Some(delivery) = deliveries
            .len()
            .checked_sub(back + 1)
            .map(|place| &deliveries[place])
        else {
            return;
        };
        let (fence, token) = (delivery.fence, delivery.token.clone());
        let current = |(_, _, lease): &Stay| lease.is_some_and(|(of_message, _)| of_message == fence);
        let mut settle = Settle {
            invoked: self.now(),
            answered: self.now() + Duration::from_millis(5),
            place: Some(self.place()),
            token,
            wish,
            outcome: Outcome::Done(()),
            ..Settle::default()
        };
        if let Some(place) = self.messages.iter().position(current) {
            let (_, failures, lease) = &mut self.messages[place];
            match wish {
                Wish::Ack | Wish::DeadLetter => drop(self.messages.remove(place)),
                Wish::Nack => (*failures, *lease) = (*failures + 1, None),
                Wish::Release => *lease = None,
                Wish::Extend => {
                    settle.leased_until_ms = Some(self.at_ms + LEASE_MS);
                    *lease = Some((fence, self.at_ms + LEASE_MS));
                }
            }
        } else {
            settle.outcome = Outcome::Refused(Some(STALE_LEASE.to_owned()));
        }
        self.history.settles.push(settle);
    }
}

/// Whether the order of the log explains a history whose operations were answered one after the other: what the
/// search decides without looking at it.
fn witness(history: &History) -> bool {
    let mut entries: Vec<(Duration, Entry<'_>)> = Vec::new();
    let done = history
        .publishes
        .iter()
        .map(|one| (one.answered, Entry::Publish(one)));
    entries.extend(done);
    let received = history.deliveries.iter();
    entries.extend(received.map(|one| (one.received, Entry::Lease(one))));
    entries.extend(
        history
            .settles
            .iter()
            .map(|one| (one.answered, Entry::Settle(one))),
    );
    entries.sort_by_key(|(at, _)| *at);
    // Messages in order: failures, whether it was ever leased, and the lease.
    let mut queue: Vec<(MessageId, u32, bool, Option<&Delivery>)> = Vec::new();
    // The ends of leases, and whether their holders have extended them.
    let mut ends: BTreeMap<&str, (u64, bool)> = BTreeMap::new();
    let mut clock = 0;
    for (_, entry) in entries {
        let at_ms = entry.at_ms();
        if at_ms.is_some_and(|at| at < clock) {
            return false;
        }
        clock = at_ms.unwrap_or(clock);
        match entry {
            Entry::Publish(publish) => {
                let Outcome::Done(message) = publish.outcome else {
                    return false;
                };
                queue.push((message, 0, false, None));
            }
            Entry::Lease(lease) => {
                let Some(place) = queue.iter().position(|(message, ..)| *message == lease.message) else {
                    return false;
                };
                if queue[..place].iter().any(|(_, _, leased, _)| !leased) {
                    return false;
                }
                let (_, failures, leased, held) = &mut queue[place];
                if let Some(before) = held {
                    if ends[before.token.as_str()].0 > clock {
                        return false;
                    }
                    *failures += 1;
                }
                if lease.attempt <= *failures {
                    return false;
                }
                (*failures, *leased, *held) = (lease.attempt - 1, true, Some(lease));
                ends.insert(&lease.token, (lease.leased_until_ms, false));
            }
            Entry::Settle(settle) => {
                let held = queue
                    .iter()
                    .position(|(.., held)| held.is_some_and(|lease| lease.token == settle.token));
                match (settle.outcome.is_done(), held) {
                    (true, None) => return false,
                    (true, Some(place)) => {
                        let (_, failures, _, held) = &mut queue[place];
                        match settle.wish {
                            Wish::Ack | Wish::DeadLetter => drop(queue.remove(place)),
                            Wish::Nack => (*failures, *held) = (*failures + 1, None),
                            Wish::Release => *held = None,
                            Wish::Extend => {
                                let until = settle.leased_until_ms.unwrap_or_default();
                                ends.insert(&settle.token, (until, true));
                            }
                        }
                    }
                    (false, Some(place)) => {
                        let (_, failures, _, held) = &mut queue[place];
                        let (until, extended) = ends[settle.token.as_str()];
                        if extended && until > clock {
                            return false;
                        }
                        (*failures, *held) = (*failures + u32::from(extended), None);
                    }
                    (false, None) => {}
                }
            }
        }
    }
    true
}

enum Entry<'a> {
    Publish(&'a Publish),
    Lease(&'a Delivery),
    Settle(&'a Settle),
}

impl Entry<'_> {
    fn at_ms(&self) -> Option<u64> {
        match self {
            Self::Publish(publish) => publish.place.map(|place| place.time_ms),
            Self::Lease(lease) => Some(lease.granted_at_ms()),
            Self::Settle(settle) => settle.place.map(|place| place.time_ms),
        }
    }
}

/// What the search finds: whether each message, and the queue, has an order.
fn explained(history: &History) -> bool {
    let (messages, queues) = (
        a_message_is_linearizable(history),
        a_small_queue_is_linearizable(history),
    );
    assert_eq!(
        (messages.undecided, queues.undecided),
        (0, 0),
        "so few are decided"
    );
    messages.violations.is_empty() && queues.violations.is_empty()
}

const LIFE: [Ask; 10] = [
    Ask::Publish,
    Ask::Receive,
    Ask::Settle(0, Wish::Nack),
    Ask::Receive,
    Ask::Settle(0, Wish::Extend),
    Ask::Wait(20),
    Ask::Settle(0, Wish::Ack),
    Ask::Receive,
    Ask::Settle(1, Wish::Ack),
    Ask::Settle(0, Wish::Ack),
];

#[test]
fn a_life_with_a_nack_an_extension_and_a_stale_token_is_explained() {
    let history = Reference::told(&LIFE);
    assert_eq!((history.deliveries.len(), history.settles.len()), (3, 5));
    let searched = a_message_is_linearizable(&history);
    assert_eq!((searched.checked, searched.violations), (1, Vec::new()));
    assert_eq!(a_small_queue_is_linearizable(&history).checked, 1);
    assert!(explained(&history) && witness(&history));
}

/// One change of a history.
type Change = fn(&mut History);

#[test]
fn one_event_that_cannot_be_is_seen() {
    let bad: [(&str, Change); 9] = [
        ("acked while another held it", |history| {
            history.settles[3].outcome = Outcome::Done(());
        }),
        ("refused, and works later", |history| {
            history.settles[0].outcome = Outcome::Refused(Some(STALE_LEASE.to_owned()));
            history.deliveries[1].leased_until_ms = 14;
            history.settles[1].token.clone_from(&history.deliveries[0].token);
        }),
        ("leased again before the lease had ended", |history| {
            history.deliveries[2].leased_until_ms -= 20;
        }),
        ("leased again after the ack", |history| {
            history.settles[1].wish = Wish::Ack;
        }),
        ("a nack is not counted", |history| {
            history.deliveries[1].attempt = 1;
        }),
        ("acked twice", |history| {
            let mut again = history.settles[4].clone();
            (again.invoked, again.answered) = (again.answered, again.answered * 2);
            history.settles.push(again);
        }),
        ("leased before it was published", |history| {
            history.publishes[0].invoked = Duration::from_secs(1);
            history.publishes[0].answered = Duration::from_secs(2);
        }),
        ("nacked before it was published", |history| {
            history.settles[0].answered = Duration::from_millis(9);
            history.settles[0].invoked = Duration::from_millis(9);
        }),
        ("an ack of the past", |history| {
            history.settles[4].place = Some(Place {
                time_ms: 3,
                ..Place::default()
            });
        }),
    ];
    for (name, change) in bad {
        let mut history = Reference::told(&LIFE);
        change(&mut history);
        assert_eq!(a_message_is_linearizable(&history).violations.len(), 1, "{name}");
    }
}

#[test]
fn a_lease_may_be_given_back_before_its_holder_is_told_of_it() {
    let mut history = Reference::told(&[Ask::Publish, Ask::Receive]);
    let told_late = history.deliveries[0].clone();
    history.deliveries.push(Delivery {
        received: told_late.received - Duration::from_millis(1),
        token: "lease 2".to_owned(),
        fence: 2,
        leased_until_ms: told_late.leased_until_ms + 3,
        ..told_late.clone()
    });
    assert_eq!(a_message_is_linearizable(&history).violations, []);
    history.deliveries[1].received = told_late.received + Duration::from_millis(1);
    assert_eq!(
        a_message_is_linearizable(&history).violations.len(),
        1,
        "two hold it at a time"
    );
}

#[test]
fn what_is_not_known_is_not_held_against_the_broker() {
    let good: [(&str, Change); 5] = [
        ("the first nack may not have been", |history| {
            history.settles[0].outcome = Outcome::Unknown;
            history.settles[0].place = None;
            history.deliveries[1].leased_until_ms += 20;
            history.deliveries[2].leased_until_ms += 20;
            for settle in &mut history.settles[1..] {
                settle.place = None;
                settle.leased_until_ms = None;
            }
        }),
        ("the first nack may have been", |history| {
            history.settles[0].outcome = Outcome::Unknown;
            history.settles[0].place = None;
        }),
        ("the publish may have been", |history| {
            history.publishes[0].outcome = Outcome::Unknown;
            history.publishes[0].place = None;
        }),
        ("there was a lease that nobody saw", |history| {
            history.deliveries[2].attempt = 4;
        }),
        ("the consumer may have gone", |history| {
            history.deliveries[1].ends_by_time = false;
            history.deliveries[2].leased_until_ms -= 15;
            history.deliveries[2].attempt = 2;
        }),
    ];
    for (name, change) in good {
        let mut history = Reference::told(&LIFE);
        change(&mut history);
        assert_eq!(a_message_is_linearizable(&history).violations, [], "{name}");
    }
}

#[test]
fn a_queue_out_of_order_is_seen_where_each_message_has_an_order() {
    let asks = [Ask::Publish, Ask::Publish, Ask::Receive, Ask::Receive];
    let mut history = Reference::told(&asks);
    assert!(explained(&history));
    let (first, second) = (history.deliveries[0].message, history.deliveries[1].message);
    (history.deliveries[0].message, history.deliveries[1].message) = (second, first);
    assert_eq!(a_message_is_linearizable(&history).violations, []);
    assert_eq!(a_small_queue_is_linearizable(&history).violations.len(), 1);
    // Nobody can tell if both were published at a time.
    history.publishes[1].invoked = history.publishes[0].invoked;
    for publish in &mut history.publishes {
        publish.place = None;
    }
    assert_eq!(a_small_queue_is_linearizable(&history).violations, []);
}

#[test]
fn too_much_that_is_unknown_is_undecided_and_counted() {
    let mut history = Reference::told(&[Ask::Publish, Ask::Receive]);
    for number in 0..40 {
        history.settles.push(Settle {
            token: history.deliveries[0].token.clone(),
            invoked: Duration::from_secs(1),
            leased_until_ms: Some(number),
            wish: Wish::Release,
            ..Settle::default()
        });
        let mut again = history.deliveries[0].clone();
        again.fence = 100 + number;
        again.token = format!("lease {}", again.fence);
        again.attempt = 1;
        again.received = Duration::from_secs(2);
        history.deliveries.push(again);
        history.settles.push(Settle {
            token: format!("lease {}", 100 + number),
            invoked: Duration::from_secs(1),
            wish: Wish::Release,
            ..Settle::default()
        });
    }
    // None of these leases can be the last, so that every order is looked at.
    history.settles.push(Settle {
        token: "lease 1".to_owned(),
        invoked: Duration::from_secs(3),
        answered: Duration::from_secs(4),
        outcome: Outcome::Done(()),
        ..Settle::default()
    });
    let searched = a_message_is_linearizable(&history);
    assert_eq!((searched.checked, searched.undecided), (0, 1));
    assert_eq!(searched.violations, []);
}

#[test]
fn twenty_thousand_messages_are_decided_soon() {
    let mut all = History::default();
    let one = Reference::told(&LIFE);
    for number in 0..20_000 {
        let message = MessageId {
            index: number,
            number: 7,
        };
        let mut publish = one.publishes[0].clone();
        (publish.key, publish.outcome) = (number, Outcome::Done(message));
        all.publishes.push(publish);
        for delivery in &one.deliveries {
            all.deliveries.push(Delivery {
                message,
                key: Some(number),
                fence: number * 10 + delivery.fence,
                token: format!("{number} {}", delivery.token),
                ..delivery.clone()
            });
        }
        for settle in &one.settles {
            all.settles.push(Settle {
                token: format!("{number} {}", settle.token),
                ..settle.clone()
            });
        }
    }
    let began = Instant::now();
    let searched = a_message_is_linearizable(&all);
    let took = began.elapsed();
    assert_eq!((searched.checked, searched.undecided), (20_000, 0));
    assert_eq!(searched.violations, []);
    // A fraction of a second where it is optimized.
    assert!(took < Duration::from_secs(30), "{took:?}");
}

fn an_ask() -> impl Strategy<Value = Ask> {
    let wish = prop_oneof![
        4 => Just(Wish::Ack),
        2 => Just(Wish::Nack),
        1 => Just(Wish::Release),
        1 => Just(Wish::Extend),
        1 => Just(Wish::DeadLetter),
    ];
    prop_oneof![
        2 => Just(Ask::Publish),
        4 => Just(Ask::Receive),
        3 => (0..3_usize, wish).prop_map(|(back, wish)| Ask::Settle(back, wish)),
        1 => (1..15_u64).prop_map(Ask::Wait),
    ]
}

/// Changes one event, drawn by the numbers, so that it may or may not be a history that can be.
fn mutate(history: &mut History, kind: u8, one: usize, other: usize) {
    let (deliveries, settles) = (&mut history.deliveries, &mut history.settles);
    let (leases, count) = (deliveries.len(), settles.len());
    match kind {
        0 if leases > 0 => {
            let (one, other) = (one % leases, other % leases);
            let (first, second) = (deliveries[one].message, deliveries[other].message);
            (deliveries[one].message, deliveries[other].message) = (second, first);
        }
        1 if leases > 0 => deliveries[one % leases].attempt = u32::try_from(other % 4).unwrap_or(1) + 1,
        2 if leases > 0 => deliveries[one % leases].leased_until_ms += other as u64 % 8,
        3 if leases > 0 => deliveries[one % leases].leased_until_ms -= other as u64 % 8,
        4 if count > 0 => settles[one % count].outcome = Outcome::Done(()),
        5 if count > 0 => {
            settles[one % count].outcome = Outcome::Refused(Some(STALE_LEASE.to_owned()));
        }
        6 if count > 0 => {
            settles[one % count].wish = [Wish::Ack, Wish::Nack, Wish::Release, Wish::DeadLetter][other % 4];
        }
        7 if count > 0 && leases > 0 => {
            settles[one % count]
                .token
                .clone_from(&deliveries[other % leases].token);
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn what_a_queue_does_is_explained(asks in prop::collection::vec(an_ask(), 1..13), late in prop::collection::vec(0..40_u64, 13)) {
        let mut history = Reference::told(&asks);
        prop_assert!(witness(&history) && explained(&history));
        // Questions that were asked earlier and answered later leave more orders, and this one still.
        for (publish, late) in history.publishes.iter_mut().zip(&late) {
            publish.answered += Duration::from_millis(*late);
        }
        for (settle, late) in history.settles.iter_mut().zip(late.iter().rev()) {
            settle.answered += Duration::from_millis(*late);
        }
        prop_assert!(explained(&history));
    }

    #[test]
    fn search_and_witness_agree(
        asks in prop::collection::vec(an_ask(), 4..13),
        kind in 0..8_u8,
        one in 0..12_usize,
        other in 0..12_usize,
    ) {
        let mut history = Reference::told(&asks);
        mutate(&mut history, kind, one, other);
        // A lease of another time may have been given earlier, which the witness does not consider.
        let earlier = kind == 2 || kind == 3;
        let (search, witness) = (explained(&history), witness(&history));
        prop_assert!(search == witness || earlier && search, "{search} {witness} {history:#?}");
    }
}
