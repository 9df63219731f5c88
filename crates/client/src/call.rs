//! One call with all its attempts.

use std::time::Duration;

use quorate_proto::v1;
use quorate_proto::v1::broker_client::BrokerClient;
use quorate_proto::v1::cluster_client::ClusterClient;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::{Response, Status};

use crate::config::{ANSWER_BYTES_MAX, Config};
use crate::error::{Error, Result, Sought};
use crate::failure::{Again, Failure};
use crate::links::{Link, Links};
use crate::request_id::{RequestId, RequestIds, Ticket};
use crate::steering::Steering;

/// What all calls of a client share.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) config: Config,
    pub(crate) links: Links,
    ids: RequestIds,
    /// For calls that wait long by nature: under the ids of all others, one of
    /// them would keep the broker from forgetting any of those.
    waiting_ids: RequestIds,
}

/// A unary method of the API, as its request.
pub(crate) trait Call: Clone + Send {
    type Answer: Send;
    /// What to call it when its outcome is unknown.
    const ACTION: &'static str;
    const EFFECT: Effect;
    /// Only for [`Effect::Repeatable`].
    fn identify(&mut self, _id: v1::RequestId) {}
    fn send(self, link: &Link) -> impl Future<Output = Result<Response<Self::Answer>, Status>> + Send;
}

/// What a call does to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing: repeat it as often as you like.
    None,
    /// Has a request id: repeat it under the same one.
    Repeatable,
    /// Has none: once it may have been applied, do not repeat it.
    Once,
}

/// Time limits of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// All attempts together.
    pub(crate) deadline: Instant,
    /// The first attempt.
    pub(crate) attempt: Duration,
    /// The answer may take long by nature.
    pub(crate) waits: bool,
}

impl Caller {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            links: Links::new(config.clone()),
            ids: RequestIds::new(config.random.clone()),
            waiting_ids: RequestIds::new(config.random.clone()),
            config,
        }
    }

    /// Calls the leader until there is an answer or the deadline has passed.
    pub(crate) async fn call<C: Call>(&self, call: C, limits: Limits) -> Result<C::Answer> {
        let (answer, _) = self.call_named(call, limits).await?;
        Ok(answer)
    }

    /// The same, and the id of the request if it has one.
    pub(crate) async fn call_named<C: Call>(
        &self,
        call: C,
        limits: Limits,
    ) -> Result<(C::Answer, Option<RequestId>)> {
        let mut ticket = self.ticket::<C>(limits).await?;
        let answer = self.attempts(call, limits, &mut ticket).await;
        let id = ticket.map(|ticket| RequestId::from(ticket.id()));
        match (answer, id) {
            (Ok(answer), id) => Ok((answer, id)),
            (Err(error), Some(id)) => Err(error.of(id)),
            (Err(error), None) => Err(error),
        }
    }

    async fn ticket<C: Call>(&self, limits: Limits) -> Result<Option<Ticket>> {
        match C::EFFECT {
            Effect::Repeatable => match timeout_at(limits.deadline, self.ids(limits).begin()).await {
                Ok(ticket) => Ok(Some(ticket)),
                Err(_) => {
                    let cause = "too many calls of this client wait for an answer".to_owned();
                    Err(Error::no_leader(cause))
                }
            },
            Effect::None | Effect::Once => Ok(None),
        }
    }

    async fn attempts<C: Call>(
        &self,
        mut call: C,
        limits: Limits,
        ticket: &mut Option<Ticket>,
    ) -> Result<C::Answer> {
        let mut course = Course::new::<C>(&self.config, limits);
        loop {
            let link = match timeout_at(limits.deadline, self.links.leader()).await {
                Ok(Ok(link)) => link,
                Ok(Err(cause)) => {
                    course.no_leader(cause).await?;
                    continue;
                }
                Err(_) => return Err(course.out_of_time()),
            };
            if let Some(ticket) = ticket.as_ref() {
                call.identify(ticket.id());
            }
            let failure = match timeout_at(course.attempt_ends(&link), call.clone().send(&link)).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) => Failure::from_status(&status),
                Err(_) => Failure::lost(format!("{} did not answer in time", link.address), true),
            };
            match failure {
                Failure::Final(refusal) | Failure::SessionLost(refusal) => return Err(refusal.into()),
                Failure::Forgotten(refusal) => {
                    let Some(known) = ticket.take_if(|_| !course.maybe) else {
                        course.cause = refusal.to_string();
                        return Err(course.out_of_time());
                    };
                    *ticket = Some(self.ids(limits).renew(known));
                }
                Failure::Again(again) => course.again(&self.links, &link, again).await?,
            }
        }
    }

    /// Calls one node, whether or not it leads, within `patience`. For what
    /// changes no replicated state.
    pub(crate) async fn call_node<C: Call>(
        &self,
        address: &str,
        call: C,
        patience: Duration,
    ) -> Result<C::Answer> {
        debug_assert_eq!(C::EFFECT, Effect::None);
        let unreachable = |cause: String| Error::Unreachable {
            who: Sought::Node(address.to_owned()),
            cause,
            request_id: None,
        };
        let ask = async {
            let link = self.links.link(address).await.map_err(unreachable)?;
            match call.send(&link).await {
                Ok(answer) => Ok(answer.into_inner()),
                Err(status) => Err(match Failure::from_status(&status) {
                    Failure::Final(refusal) | Failure::Forgotten(refusal) | Failure::SessionLost(refusal) => {
                        refusal.into()
                    }
                    Failure::Again(again) => unreachable(again.cause),
                }),
            }
        };
        timeout(patience, ask)
            .await
            .unwrap_or_else(|_| Err(unreachable("no answer in time".to_owned())))
    }

    /// Calls the known nodes one after the other until one answers. For what any
    /// node can answer.
    pub(crate) async fn call_any<C: Call>(&self, call: C) -> Result<C::Answer> {
        // The same node is not asked twice, so a slow one gets as much as two
        // attempts elsewhere.
        let patience = self.config.attempt_timeout * 2;
        let mut causes = Vec::new();
        for address in self.links.addresses() {
            let answer = self.call_node(&address, call.clone(), patience).await;
            match answer {
                Ok(answer) => return Ok(answer),
                Err(Error::Unreachable { cause, .. }) => causes.push(format!("{address}: {cause}")),
                Err(error) => return Err(error),
            }
        }
        Err(Error::Unreachable {
            who: Sought::Any,
            cause: causes.join("; "),
            request_id: None,
        })
    }

    fn ids(&self, limits: Limits) -> &RequestIds {
        if limits.waits {
            &self.waiting_ids
        } else {
            &self.ids
        }
    }

    /// Limits with the configured length of an attempt.
    pub(crate) fn limits(&self, timeout: Duration) -> Limits {
        Limits {
            deadline: Instant::now() + timeout,
            attempt: self.config.attempt_timeout,
            waits: false,
        }
    }
}

/// What is remembered from attempt to attempt.
struct Course {
    action: &'static str,
    effect: Effect,
    limits: Limits,
    steering: Steering,
    /// Some attempt may have been applied.
    maybe: bool,
    last_address: String,
    attempt: Duration,
    cause: String,
    overload: Option<Error>,
}

impl Course {
    fn new<C: Call>(config: &Config, limits: Limits) -> Self {
        Self {
            action: C::ACTION,
            effect: C::EFFECT,
            limits,
            steering: Steering::new(config),
            maybe: false,
            last_address: String::new(),
            attempt: limits.attempt,
            cause: "no attempt was made".to_owned(),
            overload: None,
        }
    }

    /// When to give up on the next attempt: later each time it goes to the same
    /// node, which is then slow rather than gone.
    fn attempt_ends(&mut self, link: &Link) -> Instant {
        if self.last_address == link.address {
            self.attempt = self.attempt.saturating_mul(2);
        } else {
            self.attempt = self.limits.attempt;
            self.last_address.clone_from(&link.address);
        }
        let now = Instant::now();
        let left = self.limits.deadline.saturating_duration_since(now);
        now + self.attempt.min(left)
    }

    /// Prepares another attempt, or says that there is none.
    async fn again(&mut self, links: &Links, link: &Link, again: Again) -> Result<()> {
        self.maybe |= again.maybe && self.effect != Effect::None;
        if again.maybe && self.effect == Effect::Once {
            self.cause = again.cause;
            return Err(self.out_of_time());
        }
        self.overload = again.overload.clone().map(Error::from);
        let pause = self.steering.turn(links, &link.address, &again);
        self.wait(pause, again.cause).await
    }

    /// Nobody could be asked: prepares another attempt, or says that there is
    /// none.
    async fn no_leader(&mut self, cause: String) -> Result<()> {
        let pause = self.steering.pause();
        self.wait(pause, cause).await
    }

    async fn wait(&mut self, pause: Duration, cause: String) -> Result<()> {
        self.cause = cause;
        if Instant::now() + pause >= self.limits.deadline {
            return Err(self.out_of_time());
        }
        sleep(pause).await;
        Ok(())
    }

    fn out_of_time(&mut self) -> Error {
        let cause = std::mem::take(&mut self.cause);
        match (self.maybe, self.overload.take()) {
            (true, _) => Error::Unknown {
                action: self.action,
                cause,
                request_id: None,
            },
            (false, Some(overload)) => overload,
            (false, None) => Error::no_leader(cause),
        }
    }
}

/// A client of the broker service with our limits.
pub(crate) fn broker(link: &Link) -> BrokerClient<tonic::transport::Channel> {
    BrokerClient::new(link.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
}

macro_rules! broker_calls {
    ($($request:ident => $answer:ident, $method:ident, $action:literal, $effect:ident;)*) => {$(
        impl Call for v1::$request {
            type Answer = v1::$answer;
            const ACTION: &'static str = $action;
            const EFFECT: Effect = Effect::$effect;
            broker_calls!(@identify $effect);
            async fn send(self, link: &Link) -> Result<Response<Self::Answer>, Status> {
                broker(link).$method(self).await
            }
        }
    )*};
    (@identify Repeatable) => {
        fn identify(&mut self, id: v1::RequestId) {
            self.request_id = Some(id);
        }
    };
    (@identify $effect:ident) => {};
}

broker_calls! {
    DeclareQueueRequest => DeclareQueueResponse, declare_queue, "declare queue", Repeatable;
    UpdateQueueRequest => UpdateQueueResponse, update_queue, "update queue", Repeatable;
    DescribeQueueRequest => DescribeQueueResponse, describe_queue, "describe queue", None;
    ListQueuesRequest => ListQueuesResponse, list_queues, "list queues", None;
    PurgeQueueRequest => PurgeQueueResponse, purge_queue, "purge queue", Repeatable;
    PauseQueueRequest => PauseQueueResponse, pause_queue, "pause queue", Repeatable;
    ExplainQueueRequest => ExplainQueueResponse, explain_queue, "explain queue", None;
    DeleteQueueRequest => DeleteQueueResponse, delete_queue, "delete queue", Repeatable;
    DeclareExchangeRequest => DeclareExchangeResponse, declare_exchange, "declare exchange", Repeatable;
    UpdateExchangeRequest => UpdateExchangeResponse, update_exchange, "update exchange", Repeatable;
    DeleteExchangeRequest => DeleteExchangeResponse, delete_exchange, "delete exchange", Repeatable;
    ListExchangesRequest => ListExchangesResponse, list_exchanges, "list exchanges", None;
    BindRequest => BindResponse, bind, "bind", Repeatable;
    UnbindRequest => UnbindResponse, unbind, "unbind", Repeatable;
    PublishRequest => PublishResponse, publish, "publish", Repeatable;
    LeaseRequest => LeaseResponse, lease, "lease", Repeatable;
    SettleRequest => SettleResponse, settle, "settle", Repeatable;
    TransactRequest => TransactResponse, transact, "transact", Repeatable;
    BrowseRequest => BrowseResponse, browse, "browse", None;
    GetMessageRequest => GetMessageResponse, get_message, "get message", None;
    OperateMessagesRequest => OperateMessagesResponse, operate_messages, "operate on messages", Repeatable;
    RedriveRequest => RedriveResponse, redrive, "redrive", Repeatable;
    UndoRedriveRequest => UndoRedriveResponse, undo_redrive, "undo redrive", Repeatable;
    TraceRequest => TraceResponse, trace, "trace", None;
}

macro_rules! cluster_calls {
    ($($request:ident => $answer:ident, $method:ident, $action:literal, $effect:ident;)*) => {$(
        impl Call for v1::$request {
            type Answer = v1::$answer;
            const ACTION: &'static str = $action;
            const EFFECT: Effect = Effect::$effect;
            async fn send(self, link: &Link) -> Result<Response<Self::Answer>, Status> {
                ClusterClient::new(link.channel.clone()).$method(self).await
            }
        }
    )*};
}

cluster_calls! {
    StatusRequest => StatusResponse, status, "status", None;
    AddNodeRequest => AddNodeResponse, add_node, "add node", Once;
    RemoveNodeRequest => RemoveNodeResponse, remove_node, "remove node", Once;
    TransferLeaderRequest => TransferLeaderResponse, transfer_leader, "transfer leader", Once;
    SnapshotRequest => SnapshotResponse, snapshot, "snapshot", None;
}

#[cfg(test)]
mod tests {
    use tonic::transport::Endpoint;

    use super::*;
    use crate::client::Client;

    #[tokio::test]
    async fn an_attempt_that_is_often_repeated_ends_by_the_deadline() {
        let client = Client::builder().endpoint("nobody:1").connect_lazy().unwrap();
        let limits = client.caller.limits(Duration::from_secs(3_600));
        let mut course = Course::new::<v1::StatusRequest>(&client.caller.config, limits);
        let link = Link {
            address: "nobody:1".to_owned(),
            channel: Endpoint::from_static("http://nobody:1").connect_lazy(),
        };
        assert!(course.attempt_ends(&link) < limits.deadline);
        let last = (0..200).map(|_| course.attempt_ends(&link)).last();
        assert_eq!(last, Some(limits.deadline));
    }
}
