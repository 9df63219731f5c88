//! The services of a node.

use quorate_proto::v1;
use quorate_proto::v1::broker_server::Broker;
use quorate_proto::v1::cluster_server::Cluster;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Answer, ConsumeStream, Node, PublishStream, Step, delivery, detail, status};

#[tonic::async_trait]
impl Broker for Node {
    async fn declare_queue(
        &self,
        request: Request<v1::DeclareQueueRequest>,
    ) -> Answer<v1::DeclareQueueResponse> {
        self.reply(request)
    }

    async fn update_queue(
        &self,
        request: Request<v1::UpdateQueueRequest>,
    ) -> Answer<v1::UpdateQueueResponse> {
        self.reply(request)
    }

    async fn describe_queue(
        &self,
        _: Request<v1::DescribeQueueRequest>,
    ) -> Answer<v1::DescribeQueueResponse> {
        std::future::pending().await
    }

    /// Queues a, b, c, in pages of two.
    async fn list_queues(&self, request: Request<v1::ListQueuesRequest>) -> Answer<v1::ListQueuesResponse> {
        let after = request.into_inner().after;
        let names = ["a", "b", "c"].into_iter().filter(|name| *name > after.as_str());
        let queues: Vec<_> = names
            .map(|name| v1::QueueInfo {
                name: name.to_owned(),
                ..Default::default()
            })
            .take(2)
            .collect();
        let next = if queues.len() == 2 {
            queues[1].name.clone()
        } else {
            String::new()
        };
        Ok(Response::new(v1::ListQueuesResponse {
            queues,
            next,
            read_index: 1,
        }))
    }

    async fn purge_queue(&self, request: Request<v1::PurgeQueueRequest>) -> Answer<v1::PurgeQueueResponse> {
        self.reply(request)
    }

    async fn delete_queue(
        &self,
        request: Request<v1::DeleteQueueRequest>,
    ) -> Answer<v1::DeleteQueueResponse> {
        self.reply(request)
    }

    async fn publish(&self, request: Request<v1::PublishRequest>) -> Answer<v1::PublishResponse> {
        let request = request.into_inner();
        self.inner.seen.lock().unwrap().push(request.request_id.unwrap());
        self.check_leads()?;
        let step = self.inner.script.lock().unwrap().pop_front();
        match step {
            None => Ok(Response::new(self.replicated.publish(&request))),
            Some(Step::Answer(answer)) => Ok(Response::new(answer)),
            Some(Step::Fail(detail)) => Err(status(detail)),
            Some(Step::LoseAnswer) => {
                self.replicated.publish(&request);
                Err(Status::unavailable("broken off"))
            }
            Some(Step::Hang) => std::future::pending().await,
        }
    }

    type PublishStreamStream = ReceiverStream<Result<v1::PublishStreamResponse, Status>>;

    async fn publish_stream(
        &self,
        request: Request<Streaming<v1::PublishStreamRequest>>,
    ) -> Answer<Self::PublishStreamStream> {
        self.check_leads()?;
        let (answers, receiver) = mpsc::channel(64);
        let _ = self.inner.publish_streams.send(PublishStream {
            requests: request.into_inner(),
            answers,
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn lease(&self, request: Request<v1::LeaseRequest>) -> Answer<v1::LeaseResponse> {
        let count = request.into_inner().max_messages;
        let deliveries = (1..=count).map(|n| delivery(n.into())).collect();
        Ok(Response::new(v1::LeaseResponse {
            commit: None,
            deliveries,
        }))
    }

    /// Every token that begins with `stale` is.
    async fn settle(&self, request: Request<v1::SettleRequest>) -> Answer<v1::SettleResponse> {
        self.inner.settled.lock().unwrap().push(request.get_ref().clone());
        self.check_leads()?;
        let settlements = request.into_inner().settlements.into_iter();
        let results = settlements.map(|settlement| v1::SettleResult {
            error: settlement
                .token
                .starts_with("stale")
                .then(|| detail(v1::Reason::StaleLease)),
            leased_until_ms: 0,
        });
        Ok(Response::new(v1::SettleResponse {
            commit: None,
            results: results.collect(),
        }))
    }

    type ConsumeStream = ReceiverStream<Result<v1::ConsumeResponse, Status>>;

    async fn consume(&self, request: Request<Streaming<v1::ConsumeRequest>>) -> Answer<Self::ConsumeStream> {
        self.check_leads()?;
        let (answers, receiver) = mpsc::channel(64);
        let _ = self.inner.consume_streams.send(ConsumeStream {
            requests: request.into_inner(),
            answers,
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn pause_queue(&self, request: Request<v1::PauseQueueRequest>) -> Answer<v1::PauseQueueResponse> {
        self.reply(request)
    }

    async fn explain_queue(
        &self,
        request: Request<v1::ExplainQueueRequest>,
    ) -> Answer<v1::ExplainQueueResponse> {
        self.reply(request)
    }

    async fn declare_exchange(
        &self,
        request: Request<v1::DeclareExchangeRequest>,
    ) -> Answer<v1::DeclareExchangeResponse> {
        self.reply(request)
    }

    async fn update_exchange(
        &self,
        request: Request<v1::UpdateExchangeRequest>,
    ) -> Answer<v1::UpdateExchangeResponse> {
        self.reply(request)
    }

    async fn delete_exchange(
        &self,
        request: Request<v1::DeleteExchangeRequest>,
    ) -> Answer<v1::DeleteExchangeResponse> {
        self.reply(request)
    }

    async fn list_exchanges(
        &self,
        request: Request<v1::ListExchangesRequest>,
    ) -> Answer<v1::ListExchangesResponse> {
        self.reply(request)
    }

    async fn bind(&self, request: Request<v1::BindRequest>) -> Answer<v1::BindResponse> {
        self.reply(request)
    }

    async fn unbind(&self, request: Request<v1::UnbindRequest>) -> Answer<v1::UnbindResponse> {
        self.reply(request)
    }

    async fn transact(&self, request: Request<v1::TransactRequest>) -> Answer<v1::TransactResponse> {
        self.reply(request)
    }

    async fn browse(&self, request: Request<v1::BrowseRequest>) -> Answer<v1::BrowseResponse> {
        self.reply(request)
    }

    async fn get_message(&self, request: Request<v1::GetMessageRequest>) -> Answer<v1::GetMessageResponse> {
        self.reply(request)
    }

    async fn operate_messages(
        &self,
        request: Request<v1::OperateMessagesRequest>,
    ) -> Answer<v1::OperateMessagesResponse> {
        self.reply(request)
    }

    async fn redrive(&self, request: Request<v1::RedriveRequest>) -> Answer<v1::RedriveResponse> {
        self.reply(request)
    }

    async fn undo_redrive(
        &self,
        request: Request<v1::UndoRedriveRequest>,
    ) -> Answer<v1::UndoRedriveResponse> {
        self.reply(request)
    }

    async fn trace(&self, request: Request<v1::TraceRequest>) -> Answer<v1::TraceResponse> {
        self.reply(request)
    }
}

#[tonic::async_trait]
impl Cluster for Node {
    async fn status(&self, _: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let role = self.inner.role.lock().unwrap().clone();
        let members = role.members.into_iter().map(|client_address| v1::Member {
            client_address,
            ..Default::default()
        });
        Ok(Response::new(v1::StatusResponse {
            node_id: self.id(),
            role: if role.leads { "leader" } else { "follower" }.to_owned(),
            term: role.term,
            members: members.collect(),
            ..Default::default()
        }))
    }

    async fn add_node(&self, _: Request<v1::AddNodeRequest>) -> Answer<v1::AddNodeResponse> {
        Err(Status::unavailable("broken off"))
    }

    async fn remove_node(&self, _: Request<v1::RemoveNodeRequest>) -> Answer<v1::RemoveNodeResponse> {
        Ok(Response::new(v1::RemoveNodeResponse {}))
    }

    async fn transfer_leader(
        &self,
        _: Request<v1::TransferLeaderRequest>,
    ) -> Answer<v1::TransferLeaderResponse> {
        Ok(Response::new(v1::TransferLeaderResponse::default()))
    }

    async fn snapshot(&self, _: Request<v1::SnapshotRequest>) -> Answer<v1::SnapshotResponse> {
        Ok(Response::new(v1::SnapshotResponse { snapshot_index: 17 }))
    }
}
