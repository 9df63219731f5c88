//! Sessions, and the consumers that hang on them.

use std::sync::Arc;
use std::time::Duration;

use quorate_core::command::{Command, Request};
use quorate_core::ids::{ConsumerId, Millis, QueueName, SessionId};
use quorate_core::outcome::Reply;

use super::{Answered, Broker, unexpected};
use crate::forward;
use crate::session::{Outbox, Session};

/// What a consumer asks for.
#[derive(Clone, Debug)]
pub struct ConsumerOptions {
    /// The queue.
    pub queue: QueueName,
    /// Most unsettled deliveries: 0 (paused) to 65,535.
    pub credit: u32,
    /// None = the queue's default.
    pub lease: Option<Millis>,
    /// For listings; up to 255 bytes.
    pub name: String,
    /// It is given nothing while a consumer of a higher one can take it.
    pub priority: i32,
}

impl Broker {
    /// Attaches a session to this node: a new one, or one that is resumed.
    pub async fn attach(&self, session: SessionId) -> Answered<Session> {
        let outbox = self.dispatch().register(session);
        let command = Command::AttachSession {
            session,
            node: self.0.consensus.node_id(),
            incarnation: self.0.consensus.incarnation(),
        };
        match self.one(None, command).await {
            Ok((position, Reply::Attached { epoch, resumed })) => {
                let broker = self.clone();
                let session = Session {
                    broker,
                    id: session,
                    epoch,
                    resumed,
                    outbox,
                    keep: false,
                };
                Ok((position, session))
            }
            Ok((_, other)) => Err(unexpected(&other)),
            Err(error) => {
                self.dispatch().unregister(session, &outbox);
                Err(error)
            }
        }
    }

    /// Adds a consumer to a session, or sets the credit of one that is there.
    pub async fn consume(
        &self,
        session: &Session,
        consumer: ConsumerId,
        options: ConsumerOptions,
    ) -> Answered<()> {
        let command = Command::Consume {
            session: session.id,
            consumer,
            queue: options.queue,
            credit: options.credit,
            lease: options.lease,
            name: options.name,
            priority: options.priority,
        };
        self.done(None, command).await
    }

    /// Sets a consumer's credit.
    pub async fn set_credit(&self, session: SessionId, consumer: ConsumerId, credit: u32) -> Answered<()> {
        let command = Command::SetCredit {
            session,
            consumer,
            credit,
        };
        self.done(None, command).await
    }

    /// A connection is gone. What is kept for its client is given nothing until
    /// that comes back. If nobody can be told of either now,
    /// [`nodes::end_abandoned`](crate::nodes::end_abandoned) ends it.
    pub(crate) fn end_session(&self, session: SessionId, epoch: u64, outbox: &Arc<Outbox>, keep: bool) {
        self.dispatch().unregister(session, outbox);
        let command = if keep || self.is_draining() {
            Command::DetachSession { session, epoch }
        } else {
            Command::CloseSession { session, epoch }
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let broker = self.clone();
            runtime.spawn(async move { broker.insist(command).await });
        }
    }

    pub(crate) async fn close_session(&self, session: SessionId, epoch: u64) {
        self.insist(Command::CloseSession { session, epoch }).await;
    }

    async fn insist(&self, command: Command) {
        forward::insist(self, Request { id: None, command }, Duration::from_secs(10)).await;
    }
}
