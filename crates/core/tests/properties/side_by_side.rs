//! The broker beside a model of it that is as simple as it can be.

use proptest::prelude::*;
use quorate_core::browse::{Filter, MessageView};
use quorate_core::command::Selector;
use quorate_core::effect::Effect;
use quorate_core::ids::Timestamp;
use quorate_core::outcome::{Outcome, Rejection, Reply};
use quorate_core::{Applied, Broker};

use crate::model::{self, Model};
use crate::random_log::{log_of, plan};

proptest! {
    /// The broker does what a naive one does, and shows what that shows.
    #[test]
    fn the_broker_does_what_the_model_does(plan in plan()) {
        let mut broker = Broker::new();
        let mut model = Model::default();
        for entry in log_of(&plan) {
            let applied = entry.apply(&mut broker);
            let expected = model.apply(entry.meta.index, entry.meta.at, &entry.requests, &entry.contents);
            let same = compare(&applied, &expected).and_then(|()| compare_views(&broker, &model));
            let told = |error| TestCaseError::fail(format!("not as the model, at {}: {error}", entry.meta.index));
            same.map_err(told)?;
        }
    }
}

fn compare(applied: &Applied, expected: &Applied) -> Result<(), TestCaseError> {
    let outcomes = |applied: &Applied| applied.outcomes.iter().cloned().map(coarse).collect::<Vec<_>>();
    prop_assert_eq!(outcomes(applied), outcomes(expected));
    let dropped = |effect: &&Effect| matches!(effect, Effect::ContentDropped { .. });
    let told = |applied: &Applied| -> Vec<Effect> {
        applied
            .effects
            .iter()
            .filter(|effect| !dropped(effect))
            .cloned()
            .collect()
    };
    prop_assert_eq!(told(applied), told(expected));
    let contents = |applied: &Applied| {
        let dropped = applied
            .effects
            .iter()
            .filter(dropped)
            .map(|effect| format!("{effect:?}"));
        let mut dropped: Vec<String> = dropped.collect();
        dropped.sort();
        dropped
    };
    prop_assert_eq!(contents(applied), contents(expected));
    prop_assert_eq!(&applied.repeated, &expected.repeated);
    Ok(())
}

/// How a refusal is worded is not compared.
fn coarse(outcome: Outcome) -> Outcome {
    match outcome {
        Ok(Reply::Operated { results, queues }) => {
            let results = results.into_iter().map(|result| result.map_err(coarse_rejection));
            Ok(Reply::Operated {
                results: results.collect(),
                queues,
            })
        }
        other => other.map_err(coarse_rejection),
    }
}

fn coarse_rejection(rejection: Rejection) -> Rejection {
    match rejection {
        Rejection::InvalidArgument { .. } => Rejection::InvalidArgument {
            field: String::new(),
            problem: String::new(),
        },
        Rejection::QueueFull { queue, .. } => Rejection::QueueFull {
            queue,
            limit: String::new(),
        },
        Rejection::ExchangeConflict { exchange, .. } => Rejection::ExchangeConflict {
            exchange,
            differing: Vec::new(),
        },
        Rejection::WrongState { message, state, .. } => Rejection::WrongState {
            message,
            state,
            problem: String::new(),
        },
        Rejection::TransactionRefused { part, cause } => Rejection::TransactionRefused {
            part,
            cause: Box::new(coarse_rejection(*cause)),
        },
        other => other,
    }
}

fn compare_views(broker: &Broker, model: &Model) -> Result<(), TestCaseError> {
    prop_assert_eq!(broker.next_deadline().map(|at| at.0), model.next_deadline());
    prop_assert_eq!(broker.totals().queues, model.queues.len() as u64);
    for queue in &model.queues {
        let view = broker.queue(&queue.name).unwrap();
        prop_assert_eq!(view.counts, model.counts(queue), "counts of {}", queue.name);
        prop_assert_eq!(view.paused, queue.paused);
        prop_assert_eq!(view.active_consumer, model.active_consumer(queue));
        prop_assert_eq!(view.oldest_ready, model.oldest_ready(queue));
        prop_assert_eq!(view.oldest_leased, model.oldest_leased(queue));
        prop_assert_eq!(broker.explain(&queue.name), Some(model.explain(queue)));
        compare_messages(broker, model, queue)?;
    }
    for exchange in &model.exchanges {
        let view = broker.exchange(&exchange.name).unwrap();
        let counts = (view.received, view.unroutable, view.duplicates);
        let expected = (exchange.received, exchange.unroutable, exchange.duplicates);
        prop_assert_eq!(counts, expected, "counts of {}", exchange.name);
        prop_assert_eq!(&view.bindings, &exchange.bindings);
    }
    prop_assert_eq!(broker.totals().exchanges, model.exchanges.len() as u64);
    prop_assert_eq!(broker.totals().sessions, model.sessions.len() as u64);
    for session in &model.sessions {
        let view = broker.session(session.id).unwrap();
        prop_assert_eq!((view.node, view.epoch), (session.node, session.epoch));
        let consumers: Vec<_> = view
            .consumers
            .iter()
            .map(|c| (c.id, c.credit, c.in_flight))
            .collect();
        prop_assert_eq!(consumers, model.consumers_of(session.id));
    }
    Ok(())
}

/// All messages of a queue, and how they are found.
fn compare_messages(broker: &Broker, model: &Model, queue: &model::Queue) -> Result<(), TestCaseError> {
    let browsed = broker.browse(&queue.name, 0, usize::MAX, usize::MAX, &Filter::default());
    let known = |view: MessageView| MessageView {
        lease: None,
        dead: view.dead.map(|(reason, _)| (reason, Timestamp(0))),
        ..view
    };
    let messages: Vec<MessageView> = browsed.unwrap().messages.into_iter().map(known).collect();
    prop_assert_eq!(&messages, &model.browse(queue));
    let ids = messages.iter().map(|message| Selector::Message(message.id));
    let dedup_ids = ["x", "y", "z"].map(|id| Selector::DedupId(id.to_owned()));
    for selector in ids.chain(dedup_ids) {
        let found = broker
            .find(&queue.name, &selector)
            .map(|message| message.position);
        prop_assert_eq!(
            found,
            model.find_selected(queue, &selector),
            "{:?} in {}",
            selector,
            queue.name
        );
    }
    Ok(())
}
