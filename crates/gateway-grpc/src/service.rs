//! Every call of the `Broker` service, handed on to the file of its topic.

use std::pin::Pin;

use futures_util::Stream;
use quorate_node::{Broker, BrokerError};
use quorate_proto::v1;
use tonic::{Request, Response, Status, Streaming};

use crate::{consume, error, exchanges, messages, operate, publish_stream, queues, trace};

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
        answer(queues::declare_queue(&self.broker, request.into_inner())).await
    }

    async fn update_queue(
        &self,
        request: Request<v1::UpdateQueueRequest>,
    ) -> Answer<v1::UpdateQueueResponse> {
        answer(queues::update_queue(&self.broker, request.into_inner())).await
    }

    async fn describe_queue(
        &self,
        request: Request<v1::DescribeQueueRequest>,
    ) -> Answer<v1::DescribeQueueResponse> {
        answer(queues::describe_queue(&self.broker, request.into_inner())).await
    }

    async fn list_queues(&self, request: Request<v1::ListQueuesRequest>) -> Answer<v1::ListQueuesResponse> {
        answer(queues::list_queues(&self.broker, request.into_inner())).await
    }

    async fn purge_queue(&self, request: Request<v1::PurgeQueueRequest>) -> Answer<v1::PurgeQueueResponse> {
        answer(queues::purge_queue(&self.broker, request.into_inner())).await
    }

    async fn pause_queue(&self, request: Request<v1::PauseQueueRequest>) -> Answer<v1::PauseQueueResponse> {
        answer(queues::pause_queue(&self.broker, request.into_inner())).await
    }

    async fn explain_queue(
        &self,
        request: Request<v1::ExplainQueueRequest>,
    ) -> Answer<v1::ExplainQueueResponse> {
        answer(queues::explain_queue(&self.broker, request.into_inner())).await
    }

    async fn delete_queue(
        &self,
        request: Request<v1::DeleteQueueRequest>,
    ) -> Answer<v1::DeleteQueueResponse> {
        answer(queues::delete_queue(&self.broker, request.into_inner())).await
    }

    async fn declare_exchange(
        &self,
        request: Request<v1::DeclareExchangeRequest>,
    ) -> Answer<v1::DeclareExchangeResponse> {
        answer(exchanges::declare_exchange(&self.broker, request.into_inner())).await
    }

    async fn update_exchange(
        &self,
        request: Request<v1::UpdateExchangeRequest>,
    ) -> Answer<v1::UpdateExchangeResponse> {
        answer(exchanges::update_exchange(&self.broker, request.into_inner())).await
    }

    async fn delete_exchange(
        &self,
        request: Request<v1::DeleteExchangeRequest>,
    ) -> Answer<v1::DeleteExchangeResponse> {
        answer(exchanges::delete_exchange(&self.broker, request.into_inner())).await
    }

    async fn list_exchanges(
        &self,
        request: Request<v1::ListExchangesRequest>,
    ) -> Answer<v1::ListExchangesResponse> {
        answer(exchanges::list_exchanges(&self.broker, request.into_inner())).await
    }

    async fn bind(&self, request: Request<v1::BindRequest>) -> Answer<v1::BindResponse> {
        answer(exchanges::bind(&self.broker, request.into_inner())).await
    }

    async fn unbind(&self, request: Request<v1::UnbindRequest>) -> Answer<v1::UnbindResponse> {
        answer(exchanges::unbind(&self.broker, request.into_inner())).await
    }

    async fn publish(&self, request: Request<v1::PublishRequest>) -> Answer<v1::PublishResponse> {
        answer(messages::publish(&self.broker, request.into_inner())).await
    }

    async fn lease(&self, request: Request<v1::LeaseRequest>) -> Answer<v1::LeaseResponse> {
        answer(messages::lease(&self.broker, request.into_inner())).await
    }

    async fn settle(&self, request: Request<v1::SettleRequest>) -> Answer<v1::SettleResponse> {
        answer(messages::settle(&self.broker, request.into_inner())).await
    }

    async fn transact(&self, request: Request<v1::TransactRequest>) -> Answer<v1::TransactResponse> {
        answer(messages::transact(&self.broker, request.into_inner())).await
    }

    async fn browse(&self, request: Request<v1::BrowseRequest>) -> Answer<v1::BrowseResponse> {
        answer(operate::browse(&self.broker, request.into_inner())).await
    }

    async fn get_message(&self, request: Request<v1::GetMessageRequest>) -> Answer<v1::GetMessageResponse> {
        answer(operate::get_message(&self.broker, request.into_inner())).await
    }

    async fn operate_messages(
        &self,
        request: Request<v1::OperateMessagesRequest>,
    ) -> Answer<v1::OperateMessagesResponse> {
        answer(operate::operate_messages(&self.broker, request.into_inner())).await
    }

    async fn redrive(&self, request: Request<v1::RedriveRequest>) -> Answer<v1::RedriveResponse> {
        answer(operate::redrive(&self.broker, request.into_inner())).await
    }

    async fn undo_redrive(
        &self,
        request: Request<v1::UndoRedriveRequest>,
    ) -> Answer<v1::UndoRedriveResponse> {
        answer(operate::undo_redrive(&self.broker, request.into_inner())).await
    }

    type PublishStreamStream = Answers<v1::PublishStreamResponse>;

    async fn publish_stream(
        &self,
        request: Request<Streaming<v1::PublishStreamRequest>>,
    ) -> Answer<Self::PublishStreamStream> {
        let stream = publish_stream::run(self.broker.clone(), request.into_inner());
        Ok(Response::new(Box::pin(stream)))
    }

    type ConsumeStream = Answers<v1::ConsumeResponse>;

    async fn consume(&self, request: Request<Streaming<v1::ConsumeRequest>>) -> Answer<Self::ConsumeStream> {
        let stream = consume::run(self.broker.clone(), request.into_inner());
        Ok(Response::new(Box::pin(stream)))
    }

    async fn trace(&self, request: Request<v1::TraceRequest>) -> Answer<v1::TraceResponse> {
        answer(trace::trace(&self.broker, request.into_inner())).await
    }
}

async fn answer<T>(call: impl Future<Output = Result<T, BrokerError>>) -> Answer<T> {
    call.await
        .map(Response::new)
        .map_err(|error| error::status(&error))
}
