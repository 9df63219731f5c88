//! Settlements and publishes as one.

use quorate_core::command::{Command, Request, Settlement};
use quorate_core::ids::RequestId;
use quorate_core::outcome::{Reply, Settled};
use quorate_mutants::mutant;

use super::publish::{Encoder, Publish, Published};
use super::{Answered, Broker, check_count, unexpected};
use crate::error::BrokerError;

/// A transaction that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transacted {
    /// In the order of the settlements.
    pub settled: Vec<Settled>,
    /// In the order of the publishes.
    pub published: Vec<Published>,
}

impl Broker {
    /// Settles leases and publishes messages as one command: all of it is done,
    /// or nothing. The request ids of the publishes do not count.
    pub async fn transact(
        &self,
        id: Option<RequestId>,
        settlements: Vec<Settlement>,
        publishes: Vec<Publish>,
    ) -> Answered<Transacted> {
        if settlements.is_empty() && publishes.is_empty() {
            return Err(BrokerError::Invalid {
                field: "settlements",
                problem: "at least one, or one publish".to_owned(),
            });
        }
        if !settlements.is_empty() {
            check_count("settlements", settlements.len())?;
        }
        let routed = self.queues_that_route(&publishes);
        let mut encoder = Encoder::new(&routed);
        let publishes = publishes
            .into_iter()
            .map(|publish| encoder.publish(publish))
            .collect::<Result<Vec<_>, _>>()?;
        let (settlements, settled_before) = if mutant!("transact-in-two-commands") && !publishes.is_empty() {
            (Vec::new(), self.settle_first(settlements).await?)
        } else {
            (settlements, Vec::new())
        };
        let command = Command::Transact {
            settlements,
            publishes,
        };
        let committed = self
            .propose_here(vec![Request { id, command }], encoder.contents, self.deadline())
            .await?;
        let (position, outcome) = committed.into_answer();
        match outcome? {
            Reply::Transacted { settled, published } => {
                let settled = [settled_before, settled].concat();
                let published = published.into_iter().map(Into::into).collect();
                Ok((position, Transacted { settled, published }))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// The settlements of a transaction by themselves: what a mutant does.
    async fn settle_first(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>, BrokerError> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        let publishes = Vec::new();
        let command = Command::Transact {
            settlements,
            publishes,
        };
        match self.one(None, command).await? {
            (_, Reply::Transacted { settled, .. }) => Ok(settled),
            (_, other) => Err(unexpected(&other)),
        }
    }
}
