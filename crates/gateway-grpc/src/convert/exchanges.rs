//! Exchanges and bindings.

use std::collections::BTreeMap;

use quorate_node::BrokerError;
use quorate_node::types::{
    Binding, Destination, ExchangeKind, ExchangeName, ExchangeSettings, ExchangeSettingsPatch, ExchangeView,
    HeaderMatch, Millis,
};
use quorate_proto::v1;

use super::queues::cleared_if_empty;
use super::{exchange_name, named, queue_name};
use crate::error::invalid;

pub(crate) fn exchange_kind(kind: i32) -> Result<ExchangeKind, BrokerError> {
    match v1::ExchangeKind::try_from(kind) {
        Ok(v1::ExchangeKind::Direct) => Ok(ExchangeKind::Direct),
        Ok(v1::ExchangeKind::Fanout) => Ok(ExchangeKind::Fanout),
        Ok(v1::ExchangeKind::Topic) => Ok(ExchangeKind::Topic),
        Ok(v1::ExchangeKind::Headers) => Ok(ExchangeKind::Headers),
        Ok(v1::ExchangeKind::Unspecified) | Err(_) => {
            Err(invalid("kind", "is one of direct, fanout, topic and headers"))
        }
    }
}

pub(crate) fn exchange_settings_patch(
    settings: Option<v1::ExchangeSettings>,
) -> Result<ExchangeSettingsPatch, BrokerError> {
    let settings = settings.unwrap_or_default();
    let alternate = |name: &str| named("alternate_exchange", name, ExchangeName::new);
    Ok(ExchangeSettingsPatch {
        alternate: cleared_if_empty(settings.alternate_exchange, alternate)?,
        dedup_window: settings.dedup_window_ms.map(Millis),
        dedup_count_max: settings.dedup_max_ids,
    })
}

pub(crate) fn binding(binding: Option<v1::Binding>) -> Result<Binding, BrokerError> {
    let binding = binding.ok_or_else(|| invalid("binding", "is missing"))?;
    let destination = match binding.destination {
        Some(v1::binding::Destination::Queue(name)) => Destination::Queue(queue_name(&name)?),
        Some(v1::binding::Destination::Exchange(name)) => Destination::Exchange(exchange_name(&name)?),
        None => return Err(invalid("destination", "is a queue or an exchange")),
    };
    Ok(Binding {
        source: named("source", &binding.source, ExchangeName::new)?,
        destination,
        routing_key: binding.routing_key,
        headers: binding.headers.map(header_match).transpose()?,
    })
}

fn header_match(wanted: v1::HeaderMatch) -> Result<HeaderMatch, BrokerError> {
    let mut headers: BTreeMap<String, Option<String>> = wanted
        .headers
        .into_iter()
        .map(|(name, value)| (name, Some(value)))
        .collect();
    for name in wanted.present {
        if headers.get(&name).is_some_and(Option::is_some) {
            let problem = format!("{name:?} is asked for with a value and with any value");
            return Err(invalid("headers", problem));
        }
        headers.insert(name, None);
    }
    Ok(HeaderMatch {
        any: wanted.any,
        headers,
    })
}

pub(crate) fn exchange_info(view: ExchangeView) -> v1::ExchangeInfo {
    let kind = match view.kind {
        ExchangeKind::Direct => v1::ExchangeKind::Direct,
        ExchangeKind::Fanout => v1::ExchangeKind::Fanout,
        ExchangeKind::Topic => v1::ExchangeKind::Topic,
        ExchangeKind::Headers => v1::ExchangeKind::Headers,
    };
    v1::ExchangeInfo {
        name: view.name.to_string(),
        kind: kind.into(),
        settings: Some(exchange_settings(&view.settings)),
        received: view.received,
        unroutable: view.unroutable,
        duplicates: view.duplicates,
        bindings: view.bindings.into_iter().map(binding_info).collect(),
    }
}

fn exchange_settings(settings: &ExchangeSettings) -> v1::ExchangeSettings {
    v1::ExchangeSettings {
        alternate_exchange: settings.alternate.as_ref().map(ToString::to_string),
        dedup_window_ms: Some(settings.dedup_window.0),
        dedup_max_ids: Some(settings.dedup_count_max),
    }
}

fn binding_info(binding: Binding) -> v1::Binding {
    let destination = match binding.destination {
        Destination::Queue(name) => v1::binding::Destination::Queue(name.to_string()),
        Destination::Exchange(name) => v1::binding::Destination::Exchange(name.to_string()),
    };
    v1::Binding {
        source: binding.source.to_string(),
        destination: Some(destination),
        routing_key: binding.routing_key,
        headers: binding.headers.map(header_match_info),
    }
}

fn header_match_info(wanted: HeaderMatch) -> v1::HeaderMatch {
    let mut info = v1::HeaderMatch {
        any: wanted.any,
        ..v1::HeaderMatch::default()
    };
    for (name, value) in wanted.headers {
        match value {
            Some(value) => {
                info.headers.insert(name, value);
            }
            None => info.present.push(name),
        }
    }
    info
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_headers() -> v1::Binding {
        v1::Binding {
            source: "orders".to_owned(),
            destination: Some(v1::binding::Destination::Queue("audit".to_owned())),
            routing_key: "eu.*".to_owned(),
            headers: Some(v1::HeaderMatch {
                any: true,
                headers: BTreeMap::from([("kind".to_owned(), "new".to_owned())]),
                present: vec!["tenant".to_owned()],
            }),
        }
    }

    #[test]
    fn a_binding_comes_back_as_it_was_given() {
        let to_queue = by_headers();
        let to_exchange = v1::Binding {
            destination: Some(v1::binding::Destination::Exchange("all".to_owned())),
            headers: None,
            ..by_headers()
        };
        for asked in [to_queue, to_exchange] {
            assert_eq!(binding_info(binding(Some(asked.clone())).unwrap()), asked);
        }
    }

    #[test]
    fn what_is_missing_or_contradicts_itself_is_named() {
        let problem = |asked| binding(asked).unwrap_err().to_string();
        assert!(problem(None).starts_with("binding: "));
        let nowhere = v1::Binding {
            destination: None,
            ..by_headers()
        };
        assert!(problem(Some(nowhere)).starts_with("destination: "));
        let from_nowhere = v1::Binding {
            source: String::new(),
            ..by_headers()
        };
        assert!(problem(Some(from_nowhere)).starts_with("source: "));
        let mut twice = by_headers();
        twice.headers.as_mut().unwrap().present.push("kind".to_owned());
        assert!(problem(Some(twice)).starts_with("headers: "));
        let kind = exchange_kind(0).unwrap_err().to_string();
        assert!(kind.starts_with("kind: "), "{kind}");
    }
}
