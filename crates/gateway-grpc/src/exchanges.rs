//! Calls about exchanges and bindings.

use quorate_node::{Broker, BrokerError};
use quorate_proto::v1;

use crate::convert;

type Answer<T> = Result<T, BrokerError>;

pub(crate) async fn declare_exchange(
    broker: &Broker,
    request: v1::DeclareExchangeRequest,
) -> Answer<v1::DeclareExchangeResponse> {
    let id = convert::request_id(request.request_id)?;
    let name = convert::exchange_name(&request.name)?;
    let kind = convert::exchange_kind(request.kind)?;
    let settings = convert::exchange_settings_patch(request.settings)?;
    let (position, created) = broker.declare_exchange(id, name, kind, settings).await?;
    Ok(v1::DeclareExchangeResponse {
        commit: Some(convert::commit(position)),
        created,
    })
}

pub(crate) async fn update_exchange(
    broker: &Broker,
    request: v1::UpdateExchangeRequest,
) -> Answer<v1::UpdateExchangeResponse> {
    let id = convert::request_id(request.request_id)?;
    let name = convert::exchange_name(&request.name)?;
    let settings = convert::exchange_settings_patch(request.settings)?;
    let (position, ()) = broker.update_exchange(id, name, settings).await?;
    Ok(v1::UpdateExchangeResponse {
        commit: Some(convert::commit(position)),
    })
}

pub(crate) async fn delete_exchange(
    broker: &Broker,
    request: v1::DeleteExchangeRequest,
) -> Answer<v1::DeleteExchangeResponse> {
    let id = convert::request_id(request.request_id)?;
    let name = convert::exchange_name(&request.name)?;
    let (position, ()) = broker.delete_exchange(id, name, request.if_unused).await?;
    Ok(v1::DeleteExchangeResponse {
        commit: Some(convert::commit(position)),
    })
}

pub(crate) async fn list_exchanges(
    broker: &Broker,
    request: v1::ListExchangesRequest,
) -> Answer<v1::ListExchangesResponse> {
    if let Some(name) = convert::optional(&request.name, convert::exchange_name)? {
        let (read_index, exchange) = broker.exchange(&name).await?;
        return Ok(v1::ListExchangesResponse {
            exchanges: vec![convert::exchange_info(exchange)],
            next: String::new(),
            read_index,
        });
    }
    let size = convert::page_size(request.page_size)?;
    let after = convert::optional(&request.after, convert::exchange_name)?;
    // One more than asked for tells whether there is a next page.
    let (read_index, mut exchanges) = broker.exchanges(after.as_ref(), size + 1).await?;
    let more = exchanges.len() > size;
    exchanges.truncate(size);
    let last = exchanges.last().filter(|_| more);
    Ok(v1::ListExchangesResponse {
        next: last.map_or_else(String::new, |exchange| exchange.name.to_string()),
        exchanges: exchanges.into_iter().map(convert::exchange_info).collect(),
        read_index,
    })
}

pub(crate) async fn bind(broker: &Broker, request: v1::BindRequest) -> Answer<v1::BindResponse> {
    let id = convert::request_id(request.request_id)?;
    let binding = convert::binding(request.binding)?;
    let (position, created) = broker.bind(id, binding).await?;
    Ok(v1::BindResponse {
        commit: Some(convert::commit(position)),
        created,
    })
}

pub(crate) async fn unbind(broker: &Broker, request: v1::UnbindRequest) -> Answer<v1::UnbindResponse> {
    let id = convert::request_id(request.request_id)?;
    let binding = convert::binding(request.binding)?;
    let (position, ()) = broker.unbind(id, binding).await?;
    Ok(v1::UnbindResponse {
        commit: Some(convert::commit(position)),
    })
}
