//! Calls about queues.

use quorate_node::{Broker, BrokerError};
use quorate_proto::v1;

use crate::convert;

type Answer<T> = Result<T, BrokerError>;

pub(crate) async fn declare_queue(
    broker: &Broker,
    request: v1::DeclareQueueRequest,
) -> Answer<v1::DeclareQueueResponse> {
    let id = convert::request_id(request.request_id)?;
    let name = convert::queue_name(&request.name)?;
    let settings = convert::settings_patch(request.settings)?;
    let (position, created) = broker.declare_queue(id, name, settings).await?;
    Ok(v1::DeclareQueueResponse {
        commit: Some(convert::commit(position)),
        created,
    })
}

pub(crate) async fn update_queue(
    broker: &Broker,
    request: v1::UpdateQueueRequest,
) -> Answer<v1::UpdateQueueResponse> {
    let id = convert::request_id(request.request_id)?;
    let name = convert::queue_name(&request.name)?;
    let settings = convert::settings_patch(request.settings)?;
    let (position, ()) = broker.update_queue(id, name, settings).await?;
    Ok(v1::UpdateQueueResponse {
        commit: Some(convert::commit(position)),
    })
}

pub(crate) async fn describe_queue(
    broker: &Broker,
    request: v1::DescribeQueueRequest,
) -> Answer<v1::DescribeQueueResponse> {
    let name = convert::queue_name(&request.name)?;
    let (read_index, queue) = broker.queue(&name).await?;
    Ok(v1::DescribeQueueResponse {
        queue: Some(convert::queue_info(&queue)),
        read_index,
    })
}

pub(crate) async fn list_queues(
    broker: &Broker,
    request: v1::ListQueuesRequest,
) -> Answer<v1::ListQueuesResponse> {
    let size = convert::page_size(request.page_size)?;
    let after = convert::optional(&request.after, convert::queue_name)?;
    // One more than asked for tells whether there is a next page.
    let (read_index, mut queues) = broker.queues(after.as_ref(), size + 1).await?;
    let more = queues.len() > size;
    queues.truncate(size);
    let last = queues.last().filter(|_| more);
    Ok(v1::ListQueuesResponse {
        next: last.map_or_else(String::new, |queue| queue.name.to_string()),
        queues: queues.iter().map(convert::queue_info).collect(),
        read_index,
    })
}

pub(crate) async fn purge_queue(
    broker: &Broker,
    request: v1::PurgeQueueRequest,
) -> Answer<v1::PurgeQueueResponse> {
    let id = convert::request_id(request.request_id)?;
    let name = convert::queue_name(&request.name)?;
    let states = convert::purge_states(&request.states)?;
    let (position, purged) = broker.purge_queue(id, name, states).await?;
    Ok(v1::PurgeQueueResponse {
        commit: Some(convert::commit(position)),
        purged,
    })
}

pub(crate) async fn pause_queue(
    broker: &Broker,
    request: v1::PauseQueueRequest,
) -> Answer<v1::PauseQueueResponse> {
    let id = convert::request_id(request.request_id)?;
    let name = convert::queue_name(&request.name)?;
    let (position, ()) = broker.pause_queue(id, name, request.paused).await?;
    Ok(v1::PauseQueueResponse {
        commit: Some(convert::commit(position)),
    })
}

pub(crate) async fn explain_queue(
    broker: &Broker,
    request: v1::ExplainQueueRequest,
) -> Answer<v1::ExplainQueueResponse> {
    let name = convert::queue_name(&request.name)?;
    let (read_index, explanation) = broker.explain_queue(&name).await?;
    Ok(convert::explanation(read_index, &explanation))
}

pub(crate) async fn delete_queue(
    broker: &Broker,
    request: v1::DeleteQueueRequest,
) -> Answer<v1::DeleteQueueResponse> {
    let id = convert::request_id(request.request_id)?;
    let name = convert::queue_name(&request.name)?;
    let (position, deleted) = broker
        .delete_queue(id, name, request.if_empty, request.if_unused)
        .await?;
    Ok(v1::DeleteQueueResponse {
        commit: Some(convert::commit(position)),
        deleted,
    })
}
