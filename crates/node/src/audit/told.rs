//! From what the state machine tells to records.

use quorate_core::Broker as State;
use quorate_core::command::{self, Command, Operation, Overflow, PurgeStates, Selector, Target, Verdict};
use quorate_core::effect::DeadReason;
use quorate_core::event::{self, LeasedBy, Returned};
use quorate_core::ids::{MessageId, Millis, QueueName, RequestId, Timestamp};
use quorate_core::outcome::{self, Exit, Outcome, Rejection, Reply, Settled};
use quorate_raft::{Answering, Payload};

use super::record::{
    Asked, Binding, Change, Command as Told, Duplicate, Entry, Event, Holder, Members, Operated, Publish,
    Request, Returned as Ready, Settings, Settlement,
};

/// The hash of a state.
pub(super) fn hash(state: &State) -> String {
    format!("{:032x}", state.state_hash())
}

/// An entry, and what came of it.
pub(super) fn entry(entry: Answering<'_>, state: &State) -> Entry {
    let told = Entry {
        index: entry.index,
        term: entry.term,
        at_ms: state.now().0,
        hash: hash(state),
        ..Entry::default()
    };
    match entry.payload {
        Payload::Blank => told,
        Payload::Members { voters, learners } => Entry {
            members: Some(Members {
                voters: voters.iter().map(texts).collect(),
                learners: texts(learners),
            }),
            ..told
        },
        Payload::Batch { requests, applied } => Entry {
            requests: requests
                .iter()
                .zip(&applied.outcomes)
                .zip(0..)
                .map(|((request, outcome), ordinal)| {
                    let repeated = applied
                        .repeated
                        .iter()
                        .find(|repeated| repeated.ordinal == ordinal);
                    Request {
                        id: request.id.map(request_id),
                        command: command(&request.command, outcome, state),
                        refused: refused(outcome),
                        repeats: repeated.map(|repeated| repeated.index),
                    }
                })
                .collect(),
            events: applied.events.iter().map(event).collect(),
            ..told
        },
    }
}

fn request_id(id: RequestId) -> String {
    format!("{}-{}", id.client.0, id.sequence)
}

fn texts<'a>(ids: impl IntoIterator<Item = &'a u64>) -> Vec<String> {
    ids.into_iter().map(u64::to_string).collect()
}

fn refused<T>(outcome: &Result<T, Rejection>) -> Option<String> {
    outcome.as_ref().err().map(|why| reason(why).to_owned())
}

/// The name that the API gives to it; the gateway has the table that counts.
fn reason(why: &Rejection) -> &'static str {
    match why {
        Rejection::QueueNotFound(_) => "QUEUE_NOT_FOUND",
        Rejection::QueueConflict { .. } => "QUEUE_CONFLICT",
        Rejection::QueueNotEmpty { .. } => "QUEUE_NOT_EMPTY",
        Rejection::QueueInUse { .. } => "QUEUE_IN_USE",
        Rejection::QueueFull { .. } => "QUEUE_FULL",
        Rejection::InvalidArgument { .. } => "INVALID_ARGUMENT",
        Rejection::StaleLease => "STALE_LEASE",
        Rejection::RequestForgotten => "REQUEST_FORGOTTEN",
        Rejection::SessionNotFound => "SESSION_LOST",
        Rejection::LimitExceeded(_) => "LIMIT_EXCEEDED",
        Rejection::ExchangeNotFound(_) => "EXCHANGE_NOT_FOUND",
        Rejection::ExchangeConflict { .. } => "EXCHANGE_CONFLICT",
        Rejection::ExchangeInUse { .. } => "EXCHANGE_IN_USE",
        Rejection::Unroutable { .. } => "UNROUTABLE",
        Rejection::MessageNotFound { .. } => "MESSAGE_NOT_FOUND",
        Rejection::WrongState { .. } => "WRONG_STATE",
        Rejection::SingleActiveConsumer(_) => "SINGLE_ACTIVE_CONSUMER",
        Rejection::TransactionRefused { .. } => "TRANSACTION_REFUSED",
    }
}

/// A command and its outcome. A reply that belongs to another command tells nothing.
fn command(command: &Command, outcome: &Outcome, state: &State) -> Told {
    let reply = outcome.as_ref().ok();
    let created = match reply {
        Some(Reply::Created(created) | Reply::Declared { created }) => *created,
        _ => false,
    };
    match command {
        Command::Publish(asked) => Told::Publish(publish(
            asked,
            match reply {
                Some(Reply::Published(published)) => Some(published),
                _ => None,
            },
        )),
        Command::Lease {
            queue,
            count_max,
            lease,
            wait,
            node: _,
        } => Told::Lease {
            queue: queue.to_string(),
            max_messages: *count_max,
            lease_ms: lease.map(|lease| lease.0),
            wait_ms: wait.0,
            leased: match reply {
                Some(Reply::Leased(leased)) => leased.iter().map(|leased| leased.token.to_string()).collect(),
                _ => Vec::new(),
            },
            waits: matches!(reply, Some(Reply::Waiting)),
        },
        Command::Settle { settlements } => Told::Settle {
            settlements: match reply {
                Some(Reply::Settled(results)) => settlements
                    .iter()
                    .zip(results)
                    .map(|(asked, result)| settlement(asked, Some(result)))
                    .collect(),
                _ => settlements.iter().map(|asked| settlement(asked, None)).collect(),
            },
        },
        Command::Transact {
            settlements,
            publishes,
        } => transaction(settlements, publishes, reply),
        Command::Operate {
            queue,
            messages,
            operation,
        } => Told::Operate {
            queue: queue.to_string(),
            operation: operation_word(operation).to_owned(),
            messages: match reply {
                Some(Reply::Operated { results, .. }) => messages
                    .iter()
                    .zip(results)
                    .map(|(asked, result)| operated(asked, Some(result)))
                    .collect(),
                _ => messages.iter().map(|asked| operated(asked, None)).collect(),
            },
        },
        Command::DeclareQueue { name, .. } => Told::DeclareQueue {
            queue: name.to_string(),
            created,
            settings: state.settings(name).map(settings),
        },
        Command::UpdateQueue { name, .. } => Told::UpdateQueue {
            queue: name.to_string(),
            settings: state.settings(name).map(settings),
        },
        Command::PurgeQueue { name, states } => Told::PurgeQueue {
            queue: name.to_string(),
            states: state_words(*states),
            purged: match reply {
                Some(Reply::Purged { count }) => *count,
                _ => 0,
            },
        },
        Command::PauseQueue { name, paused } => Told::PauseQueue {
            queue: name.to_string(),
            paused: *paused,
        },
        Command::DeleteQueue { name, .. } => Told::DeleteQueue {
            queue: name.to_string(),
            deleted: match reply {
                Some(Reply::Deleted { count }) => *count,
                _ => 0,
            },
        },
        Command::DeclareExchange { name, .. } => Told::DeclareExchange {
            exchange: name.to_string(),
            created,
        },
        Command::UpdateExchange { name, .. } => Told::UpdateExchange {
            exchange: name.to_string(),
        },
        Command::DeleteExchange { name, .. } => Told::DeleteExchange {
            exchange: name.to_string(),
        },
        Command::Bind(asked) => Told::Bind(binding(asked)),
        Command::Unbind(asked) => Told::Unbind(binding(asked)),
        Command::AttachSession {
            session,
            node,
            incarnation,
        } => {
            let (epoch, resumed) = match reply {
                Some(Reply::Attached { epoch, resumed }) => (*epoch, *resumed),
                _ => (0, false),
            };
            Told::AttachSession {
                session: session.0.to_string(),
                node: node.0.to_string(),
                incarnation: incarnation.0,
                epoch,
                resumed,
            }
        }
        Command::DetachSession { session, epoch } => Told::DetachSession {
            session: session.0.to_string(),
            epoch: *epoch,
        },
        Command::CloseSession { session, epoch } => Told::CloseSession {
            session: session.0.to_string(),
            epoch: *epoch,
        },
        Command::Consume {
            session,
            consumer,
            queue,
            credit,
            lease,
            ..
        } => Told::Consume {
            session: session.0.to_string(),
            consumer: consumer.0,
            queue: queue.to_string(),
            credit: *credit,
            lease_ms: lease.map(|lease| lease.0),
        },
        Command::CancelConsumer { session, consumer } => Told::CancelConsumer {
            session: session.0.to_string(),
            consumer: consumer.0,
        },
        Command::SetCredit {
            session,
            consumer,
            credit,
        } => Told::SetCredit {
            session: session.0.to_string(),
            consumer: consumer.0,
            credit: *credit,
        },
        Command::NodeUp { node, incarnation } => Told::NodeUp {
            node: node.0.to_string(),
            incarnation: incarnation.0,
        },
        Command::NodeDown { node, incarnation } => Told::NodeDown {
            node: node.0.to_string(),
            incarnation: incarnation.0,
        },
        Command::NodeSilent { node, incarnation } => Told::NodeSilent {
            node: node.0.to_string(),
            incarnation: incarnation.0,
        },
        Command::Tick => Told::Tick,
    }
}

fn publish(asked: &command::Publish, published: Option<&outcome::Published>) -> Publish {
    let (queue, exchange) = match &asked.target {
        Target::Queue(name) => (Some(name.to_string()), None),
        Target::Exchange { name, .. } => (None, Some(name.to_string())),
    };
    let mut messages: Vec<_> = asked.messages.iter().map(message).collect();
    if messages.iter().all(|message| *message == Asked::default()) {
        messages.clear();
    }
    let told = Publish {
        queue,
        exchange,
        count: u32::try_from(asked.messages.len()).unwrap_or(u32::MAX),
        messages,
        ..Publish::default()
    };
    let Some(published) = published else { return told };
    let duplicate = |duplicate: &outcome::Duplicate| Duplicate {
        place: duplicate.place,
        first: duplicate.first.to_string(),
        state: duplicate.state.to_string(),
    };
    Publish {
        first: Some(published.first.to_string()),
        duplicates: published.duplicates.iter().map(duplicate).collect(),
        unroutable: published.unroutable.clone(),
        ..told
    }
}

fn message(message: &command::NewMessage) -> Asked {
    let labels = message.labels.as_deref().cloned().unwrap_or_default();
    Asked {
        routing_key: labels.routing_key,
        group: labels.group,
        dedup_id: labels.dedup_id,
        priority: message.priority,
        delay_ms: message.delay.0,
        deliver_at_ms: message.deliver_at.0,
        ttl_ms: message.ttl.0,
    }
}

/// None: the whole request was refused.
fn settlement(asked: &command::Settlement, result: Option<&Result<Settled, Rejection>>) -> Settlement {
    let ms = |span: Option<Millis>| span.map(|span| span.0);
    let (verdict, delay_ms) = match &asked.verdict {
        Verdict::Ack => ("ack", None),
        Verdict::Nack { delay, .. } => ("nack", ms(*delay)),
        Verdict::Release => ("release", None),
        Verdict::DeadLetter { .. } => ("dead-letter", None),
        Verdict::Extend { lease } => ("extend", ms(*lease)),
    };
    let done = result.and_then(|result| result.as_ref().ok());
    Settlement {
        token: asked.token.to_string(),
        verdict: verdict.to_owned(),
        delay_ms,
        refused: result.and_then(refused),
        until_ms: done.and_then(|settled| settled.leased_until).map(|until| until.0),
    }
}

fn transaction(
    settlements: &[command::Settlement],
    publishes: &[command::Publish],
    reply: Option<&Reply>,
) -> Told {
    let (settled, published) = match reply {
        Some(Reply::Transacted { settled, published }) => (&settled[..], &published[..]),
        _ => (&[][..], &[][..]),
    };
    let settled = settled
        .iter()
        .copied()
        .map(Ok)
        .map(Some)
        .chain(std::iter::repeat(None));
    let published = published.iter().map(Some).chain(std::iter::repeat(None));
    Told::Transact {
        settlements: settlements
            .iter()
            .zip(settled)
            .map(|(asked, result)| settlement(asked, result.as_ref()))
            .collect(),
        publishes: publishes
            .iter()
            .zip(published)
            .map(|(asked, result)| publish(asked, result))
            .collect(),
    }
}

fn operation_word(operation: &Operation) -> &'static str {
    match operation {
        Operation::Delete => "delete",
        Operation::Move { .. } => "move",
        Operation::Reschedule { .. } => "reschedule",
        Operation::Redrive { .. } => "redrive",
        Operation::UndoRedrive { .. } => "undo-redrive",
    }
}

fn operated(asked: &Selector, result: Option<&Result<MessageId, Rejection>>) -> Operated {
    let found = result
        .and_then(|result| result.as_ref().ok())
        .map(ToString::to_string);
    let (message, dedup_id) = match asked {
        Selector::Message(id) => (Some(id.to_string()), None),
        Selector::DedupId(id) => (found, Some(id.clone())),
    };
    Operated {
        message,
        dedup_id,
        refused: result.and_then(refused),
    }
}

fn state_words(states: PurgeStates) -> Vec<String> {
    let words = [
        ("ready", states.ready),
        ("delayed", states.delayed),
        ("dead", states.dead),
    ];
    let chosen = words.into_iter().filter(|(_, chosen)| *chosen);
    chosen.map(|(word, _)| word.to_owned()).collect()
}

fn binding(asked: &command::Binding) -> Binding {
    let (to_queue, to_exchange) = match &asked.destination {
        command::Destination::Queue(name) => (Some(name.to_string()), None),
        command::Destination::Exchange(name) => (None, Some(name.to_string())),
    };
    Binding {
        exchange: asked.source.to_string(),
        to_queue,
        to_exchange,
        routing_key: asked.routing_key.clone(),
    }
}

fn settings(settings: &command::Settings) -> Settings {
    Settings {
        lease_ms: settings.lease.0,
        max_deliveries: settings.deliveries_max,
        max_length: settings.length_max,
        max_bytes: settings.bytes_max,
        overflow: match settings.overflow {
            Overflow::Reject => "reject",
            Overflow::DropHead => "drop-head",
        }
        .to_owned(),
        message_ttl_ms: settings.message_ttl.0,
        backoff_initial_ms: settings.backoff_initial.0,
        backoff_max_ms: settings.backoff_max.0,
        priority_ageing_ms: settings.priority_ageing.0,
        group_concurrency: settings.group_concurrency,
        single_active_consumer: settings.single_active_consumer,
        dedup_window_ms: settings.dedup_window.0,
        dedup_max_ids: settings.dedup_count_max,
        dead_letter_queue: settings.dead_letter_queue.as_ref().map(ToString::to_string),
        dead_letter_exchange: settings.dead_letter_exchange.as_ref().map(ToString::to_string),
    }
}

fn event(event: &event::Event) -> Event {
    Event {
        message: event.message.to_string(),
        queue: event.queue_name.to_string(),
        queue_id: event.queue.0,
        change: change(&event.change),
    }
}

fn change(change: &event::Change) -> Change {
    use event::Change as Core;
    let ms = |at: &Option<Timestamp>| at.map(|at| at.0);
    match change {
        Core::Published {
            exchange,
            delayed_until,
            dedup_id,
        } => Change::Published {
            exchange: exchange.as_ref().map(ToString::to_string),
            until_ms: ms(delayed_until),
            dedup_id: dedup_id.clone(),
        },
        Core::Arrived { from, exit } => Change::Arrived {
            from: from.to_string(),
            exit: exit_word(*exit).to_owned(),
        },
        Core::Duplicate { refused } => Change::Duplicate {
            refused: refused.to_string(),
        },
        Core::Due => Change::Due,
        Core::Leased {
            grant,
            attempt,
            holder,
            until,
            waited: _,
        } => Change::Leased {
            fence: *grant,
            attempt: *attempt,
            until_ms: until.0,
            holder: held_by(*holder),
        },
        Core::Extended { until } => Change::Extended { until_ms: until.0 },
        Core::Returned { reason, until, .. } => {
            let ready = Ready { until_ms: ms(until) };
            match reason {
                Returned::Nacked => Change::Nacked(ready),
                Returned::LeaseExpired => Change::LeaseExpired(ready),
                Returned::Released => Change::Released(ready),
                Returned::SessionEnded => Change::SessionEnded(ready),
            }
        }
        Core::Rescheduled { until } => Change::Rescheduled { until_ms: ms(until) },
        Core::Died { reason, .. } => Change::Died {
            reason: dead_reason(*reason).to_owned(),
        },
        Core::Redriven => Change::Redriven,
        Core::RedriveUndone => Change::RedriveUndone,
        Core::Left { exit, reason, to, .. } => match exit {
            Exit::Acked => Change::Acked,
            Exit::Expired => Change::Expired,
            Exit::DeadLettered => Change::DeadLettered {
                reason: reason.map(|reason| dead_reason(reason).to_owned()),
                to: names(to),
            },
            Exit::Dropped => Change::Dropped,
            Exit::Deleted => Change::Deleted,
            Exit::Moved => Change::Moved { to: names(to) },
        },
    }
}

fn names(queues: &[QueueName]) -> Vec<String> {
    queues.iter().map(ToString::to_string).collect()
}

fn held_by(holder: LeasedBy) -> Holder {
    match holder {
        LeasedBy::Puller(client) => Holder {
            client: client.map(|client| client.0.to_string()),
            ..Holder::default()
        },
        LeasedBy::Consumer {
            session,
            consumer,
            node,
        } => Holder {
            session: Some(session.0.to_string()),
            consumer: Some(consumer.0),
            node: Some(node.0.to_string()),
            client: None,
        },
    }
}

fn exit_word(exit: Exit) -> &'static str {
    outcome::MessageState::Gone(exit).as_str()
}

fn dead_reason(reason: DeadReason) -> &'static str {
    match reason {
        DeadReason::Rejected => "rejected",
        DeadReason::DeliveriesMax => "max-deliveries",
        DeadReason::Expired => "expired",
        DeadReason::DroppedByLimit => "dropped-by-limit",
    }
}
