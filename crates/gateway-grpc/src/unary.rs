//! Calls with one answer.

use std::pin::Pin;

use futures_util::Stream;
use quorate_node::broker::LeaseOptions;
use quorate_node::types::Millis;
use quorate_node::{Broker, BrokerError};
use quorate_proto::v1;
use tonic::{Request, Response, Status, Streaming};

use crate::error::{self, invalid};
use crate::{consume, convert, publish_stream};

/// Queues on one page of a listing.
const PAGE_SIZE_DEFAULT: u32 = 100;
const PAGE_SIZE_MAX: u32 = 1_000;

pub(crate) struct Service {
    pub(crate) broker: Broker,
}

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl v1::broker_server::Broker for Service {
    async fn declare_queue(
        &self,
        request: Request<v1::DeclareQueueRequest>,
    ) -> Answer<v1::DeclareQueueResponse> {
        let request = request.into_inner();
        answer(async {
            let id = convert::request_id(request.request_id)?;
            let name = convert::queue_name(&request.name)?;
            let settings = convert::settings_patch(request.settings)?;
            let (position, created) = self.broker.declare_queue(id, name, settings).await?;
            Ok(v1::DeclareQueueResponse {
                commit: Some(convert::commit(position)),
                created,
            })
        })
        .await
    }

    async fn update_queue(
        &self,
        request: Request<v1::UpdateQueueRequest>,
    ) -> Answer<v1::UpdateQueueResponse> {
        let request = request.into_inner();
        answer(async {
            let id = convert::request_id(request.request_id)?;
            let name = convert::queue_name(&request.name)?;
            let settings = convert::settings_patch(request.settings)?;
            let (position, ()) = self.broker.update_queue(id, name, settings).await?;
            Ok(v1::UpdateQueueResponse {
                commit: Some(convert::commit(position)),
            })
        })
        .await
    }

    async fn describe_queue(
        &self,
        request: Request<v1::DescribeQueueRequest>,
    ) -> Answer<v1::DescribeQueueResponse> {
        let request = request.into_inner();
        answer(async {
            let name = convert::queue_name(&request.name)?;
            let (read_index, queue) = self.broker.queue(&name).await?;
            Ok(v1::DescribeQueueResponse {
                queue: Some(convert::queue_info(&queue)),
                read_index,
            })
        })
        .await
    }

    async fn list_queues(&self, request: Request<v1::ListQueuesRequest>) -> Answer<v1::ListQueuesResponse> {
        let request = request.into_inner();
        answer(async {
            let size = match request.page_size {
                0 => PAGE_SIZE_DEFAULT,
                size if size <= PAGE_SIZE_MAX => size,
                size => return Err(invalid("page_size", format!("1 to {PAGE_SIZE_MAX}, not {size}"))),
            } as usize;
            let after = match request.after.as_str() {
                "" => None,
                name => Some(convert::queue_name(name)?),
            };
            // One more than asked for tells whether there is a next page.
            let (read_index, mut queues) = self.broker.queues(after.as_ref(), size + 1).await?;
            let more = queues.len() > size;
            queues.truncate(size);
            let next = queues
                .last()
                .filter(|_| more)
                .map_or(String::new(), |queue| queue.name.to_string());
            let queues = queues.iter().map(convert::queue_info).collect();
            Ok(v1::ListQueuesResponse {
                queues,
                next,
                read_index,
            })
        })
        .await
    }

    async fn purge_queue(&self, request: Request<v1::PurgeQueueRequest>) -> Answer<v1::PurgeQueueResponse> {
        let request = request.into_inner();
        answer(async {
            let id = convert::request_id(request.request_id)?;
            let name = convert::queue_name(&request.name)?;
            let states = convert::purge_states(&request.states)?;
            let (position, purged) = self.broker.purge_queue(id, name, states).await?;
            Ok(v1::PurgeQueueResponse {
                commit: Some(convert::commit(position)),
                purged,
            })
        })
        .await
    }

    async fn delete_queue(
        &self,
        request: Request<v1::DeleteQueueRequest>,
    ) -> Answer<v1::DeleteQueueResponse> {
        let request = request.into_inner();
        answer(async {
            let id = convert::request_id(request.request_id)?;
            let name = convert::queue_name(&request.name)?;
            let (position, deleted) = self
                .broker
                .delete_queue(id, name, request.if_empty, request.if_unused)
                .await?;
            Ok(v1::DeleteQueueResponse {
                commit: Some(convert::commit(position)),
                deleted,
            })
        })
        .await
    }

    async fn publish(&self, request: Request<v1::PublishRequest>) -> Answer<v1::PublishResponse> {
        let request = request.into_inner();
        answer(async {
            let (position, ids) = self.broker.publish(convert::publish(request)?).await?;
            Ok(convert::published(position, &ids))
        })
        .await
    }

    type PublishStreamStream = Answers<v1::PublishStreamResponse>;

    async fn publish_stream(
        &self,
        request: Request<Streaming<v1::PublishStreamRequest>>,
    ) -> Answer<Self::PublishStreamStream> {
        let stream = publish_stream::run(self.broker.clone(), request.into_inner());
        Ok(Response::new(Box::pin(stream)))
    }

    async fn lease(&self, request: Request<v1::LeaseRequest>) -> Answer<v1::LeaseResponse> {
        let request = request.into_inner();
        answer(async {
            let id = convert::request_id(request.request_id)?;
            let options = LeaseOptions {
                queue: convert::queue_name(&request.queue)?,
                count_max: request.max_messages,
                lease: convert::nonzero(request.lease_ms),
                wait: Millis(request.wait_ms),
            };
            let (position, leased) = self.broker.lease(id, options).await?;
            let mut deliveries = Vec::with_capacity(leased.len());
            for leased in leased {
                if let Some(content) = self.broker.content(&leased).await {
                    deliveries.push(convert::delivery(leased, content));
                }
            }
            Ok(v1::LeaseResponse {
                commit: Some(convert::commit(position)),
                deliveries,
            })
        })
        .await
    }

    async fn settle(&self, request: Request<v1::SettleRequest>) -> Answer<v1::SettleResponse> {
        let request = request.into_inner();
        answer(async {
            let id = convert::request_id(request.request_id)?;
            let settlements = convert::settlements(request.settlements)?;
            let (position, results) = self.broker.settle(id, settlements).await?;
            Ok(convert::settled(position, results))
        })
        .await
    }

    type ConsumeStream = Answers<v1::ConsumeResponse>;

    async fn consume(&self, request: Request<Streaming<v1::ConsumeRequest>>) -> Answer<Self::ConsumeStream> {
        let stream = consume::run(self.broker.clone(), request.into_inner());
        Ok(Response::new(Box::pin(stream)))
    }

    async fn pause_queue(&self, _: Request<v1::PauseQueueRequest>) -> Answer<v1::PauseQueueResponse> {
        Err(not_served())
    }

    async fn explain_queue(&self, _: Request<v1::ExplainQueueRequest>) -> Answer<v1::ExplainQueueResponse> {
        Err(not_served())
    }

    async fn declare_exchange(
        &self,
        _: Request<v1::DeclareExchangeRequest>,
    ) -> Answer<v1::DeclareExchangeResponse> {
        Err(not_served())
    }

    async fn update_exchange(
        &self,
        _: Request<v1::UpdateExchangeRequest>,
    ) -> Answer<v1::UpdateExchangeResponse> {
        Err(not_served())
    }

    async fn delete_exchange(
        &self,
        _: Request<v1::DeleteExchangeRequest>,
    ) -> Answer<v1::DeleteExchangeResponse> {
        Err(not_served())
    }

    async fn list_exchanges(
        &self,
        _: Request<v1::ListExchangesRequest>,
    ) -> Answer<v1::ListExchangesResponse> {
        Err(not_served())
    }

    async fn bind(&self, _: Request<v1::BindRequest>) -> Answer<v1::BindResponse> {
        Err(not_served())
    }

    async fn unbind(&self, _: Request<v1::UnbindRequest>) -> Answer<v1::UnbindResponse> {
        Err(not_served())
    }

    async fn transact(&self, _: Request<v1::TransactRequest>) -> Answer<v1::TransactResponse> {
        Err(not_served())
    }

    async fn browse(&self, _: Request<v1::BrowseRequest>) -> Answer<v1::BrowseResponse> {
        Err(not_served())
    }

    async fn get_message(&self, _: Request<v1::GetMessageRequest>) -> Answer<v1::GetMessageResponse> {
        Err(not_served())
    }

    async fn operate_messages(
        &self,
        _: Request<v1::OperateMessagesRequest>,
    ) -> Answer<v1::OperateMessagesResponse> {
        Err(not_served())
    }

    async fn redrive(&self, _: Request<v1::RedriveRequest>) -> Answer<v1::RedriveResponse> {
        Err(not_served())
    }

    async fn undo_redrive(&self, _: Request<v1::UndoRedriveRequest>) -> Answer<v1::UndoRedriveResponse> {
        Err(not_served())
    }

    async fn trace(&self, _: Request<v1::TraceRequest>) -> Answer<v1::TraceResponse> {
        Err(not_served())
    }
}

fn not_served() -> Status {
    Status::unimplemented("this call is not served yet")
}

async fn answer<T>(call: impl Future<Output = Result<T, BrokerError>>) -> Answer<T> {
    call.await
        .map(Response::new)
        .map_err(|error| error::status(&error))
}
