//! Exchanges and bindings: made, changed, deleted, looked at.

use quorate_core::browse::ExchangeView;
use quorate_core::command::{Binding, Command, ExchangeKind, ExchangeSettingsPatch};
use quorate_core::ids::{ExchangeName, RequestId};
use quorate_core::outcome::{Rejection, Reply};

use super::{Answered, Broker, unexpected};
use crate::error::BrokerError;

impl Broker {
    /// Ensures an exchange. True: it was created.
    pub async fn declare_exchange(
        &self,
        id: Option<RequestId>,
        name: ExchangeName,
        kind: ExchangeKind,
        settings: ExchangeSettingsPatch,
    ) -> Answered<bool> {
        self.created(id, Command::DeclareExchange { name, kind, settings })
            .await
    }

    /// Changes the given settings of an exchange.
    pub async fn update_exchange(
        &self,
        id: Option<RequestId>,
        name: ExchangeName,
        settings: ExchangeSettingsPatch,
    ) -> Answered<()> {
        self.done(id, Command::UpdateExchange { name, settings }).await
    }

    /// Deletes an exchange, with the bindings from and to it.
    pub async fn delete_exchange(
        &self,
        id: Option<RequestId>,
        name: ExchangeName,
        if_unused: bool,
    ) -> Answered<()> {
        self.done(id, Command::DeleteExchange { name, if_unused }).await
    }

    /// Ensures a binding. True: it was created.
    pub async fn bind(&self, id: Option<RequestId>, binding: Binding) -> Answered<bool> {
        self.created(id, Command::Bind(binding)).await
    }

    /// Removes a binding, if it is there.
    pub async fn unbind(&self, id: Option<RequestId>, binding: Binding) -> Answered<()> {
        self.done(id, Command::Unbind(binding)).await
    }

    /// One exchange, and the log index that the answer contains. Linearizable.
    pub async fn exchange(&self, name: &ExchangeName) -> Result<(u64, ExchangeView), BrokerError> {
        match self.look(false, |state| state.exchange(name)).await? {
            (index, Some(exchange)) => Ok((index, exchange)),
            (_, None) => Err(Rejection::ExchangeNotFound(name.clone()).into()),
        }
    }

    /// Up to `count_max` exchanges after a name. Linearizable.
    pub async fn exchanges(
        &self,
        after: Option<&ExchangeName>,
        count_max: usize,
    ) -> Result<(u64, Vec<ExchangeView>), BrokerError> {
        self.look(false, |state| state.exchanges(after, count_max)).await
    }

    async fn created(&self, id: Option<RequestId>, command: Command) -> Answered<bool> {
        match self.one(id, command).await? {
            (position, Reply::Created(created)) => Ok((position, created)),
            (_, other) => Err(unexpected(&other)),
        }
    }
}
