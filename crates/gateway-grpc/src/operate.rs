//! Calls that look at single messages, and do something with them.

use quorate_node::broker::Redrive;
use quorate_node::types::{MessageId, QueueName, Rejection, Selector};
use quorate_node::{Broker, BrokerError};
use quorate_proto::v1;

use crate::{convert, error};

type Answer<T> = Result<T, BrokerError>;

/// Messages that a redrive chooses if it is not told how many.
const REDRIVE_DEFAULT: usize = 1_000;

pub(crate) async fn browse(broker: &Broker, request: v1::BrowseRequest) -> Answer<v1::BrowseResponse> {
    let browse = convert::browse(request)?;
    let (read_index, page) = broker.browse(&browse).await?;
    Ok(v1::BrowseResponse {
        messages: page.messages.into_iter().map(convert::message_info).collect(),
        next: page.next.unwrap_or_default(),
        read_index,
    })
}

pub(crate) async fn get_message(
    broker: &Broker,
    request: v1::GetMessageRequest,
) -> Answer<v1::GetMessageResponse> {
    let queue = convert::queue_name(&request.queue)?;
    let selector = convert::selector(request.message)?;
    let (read_index, seen) = broker
        .message(&queue, &selector, request.with_content, request.local)
        .await?;
    Ok(v1::GetMessageResponse {
        message: Some(convert::message_info(seen)),
        read_index,
    })
}

pub(crate) async fn operate_messages(
    broker: &Broker,
    request: v1::OperateMessagesRequest,
) -> Answer<v1::OperateMessagesResponse> {
    let id = convert::request_id(request.request_id)?;
    let queue = convert::queue_name(&request.queue)?;
    let messages = convert::selectors(request.messages)?;
    let operation = convert::operation(request.operation)?;
    let named: Vec<_> = messages.iter().map(named_by_id).collect();
    let (position, results) = broker.operate(id, queue, messages, operation).await?;
    let results = named
        .into_iter()
        .zip(results)
        .map(|(named, result)| match result {
            Ok(message) => v1::OperateResult {
                message_id: message.to_string(),
                error: None,
            },
            Err(why) => refused(named, why),
        });
    Ok(v1::OperateMessagesResponse {
        commit: Some(convert::commit(position)),
        results: results.collect(),
    })
}

pub(crate) async fn redrive(broker: &Broker, request: v1::RedriveRequest) -> Answer<v1::RedriveResponse> {
    let id = convert::request_id(request.request_id)?;
    let mut wanted = request.filter.unwrap_or_default();
    let redrive = Redrive {
        queue: convert::queue_name(&request.queue)?,
        headers: std::mem::take(&mut wanted.headers),
        filter: convert::filter(wanted)?,
        count_max: match request.max_messages {
            0 => REDRIVE_DEFAULT,
            count => count as usize,
        },
        to: convert::optional(&request.to, convert::target_queue)?,
        from: request.from,
        continues: convert::log_index(request.continues),
    };
    let redriven = broker.redrive(id, redrive).await?;
    Ok(v1::RedriveResponse {
        commit: redriven.position.map(convert::commit),
        redriven: redriven.count,
        refused: redriven
            .refused
            .into_iter()
            .map(|(message, why)| refused(message, why))
            .collect(),
        next: redriven.next.unwrap_or_default(),
        redrive: redriven.redrive.unwrap_or_default(),
        queues: redriven.queues.iter().map(QueueName::to_string).collect(),
    })
}

pub(crate) async fn undo_redrive(
    broker: &Broker,
    request: v1::UndoRedriveRequest,
) -> Answer<v1::UndoRedriveResponse> {
    let id = convert::request_id(request.request_id)?;
    let queue = convert::queue_name(&request.queue)?;
    if request.redrive == 0 {
        return Err(error::invalid("redrive", "names a redrive, and is not 0"));
    }
    let undone = broker
        .undo_redrive(id, queue, request.redrive, request.from)
        .await?;
    Ok(v1::UndoRedriveResponse {
        commit: undone.position.map(convert::commit),
        undone: undone.count,
        next: undone.next.unwrap_or_default(),
    })
}

fn named_by_id(selector: &Selector) -> Option<MessageId> {
    match selector {
        Selector::Message(id) => Some(*id),
        Selector::DedupId(_) => None,
    }
}

/// Without an id if it is not known.
fn refused(message: Option<MessageId>, why: Rejection) -> v1::OperateResult {
    v1::OperateResult {
        message_id: message.map_or_else(String::new, |id| id.to_string()),
        error: Some(error::rejection(why)),
    }
}
