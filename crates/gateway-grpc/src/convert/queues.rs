//! Queues: settings, counts, and which states a purge empties.

use std::collections::BTreeMap;

use quorate_node::BrokerError;
use quorate_node::types::{
    ExchangeName, Millis, Overflow, PurgeStates, QueueCounts, QueueName, QueueView, Settings, SettingsPatch,
};
use quorate_proto::v1;

use super::{at_ms, named, optional};
use crate::error::invalid;

pub(crate) fn settings_patch(settings: Option<v1::QueueSettings>) -> Result<SettingsPatch, BrokerError> {
    let settings = settings.unwrap_or_default();
    let dead_letter_queue = |name: &str| named("dead_letter_queue", name, QueueName::new);
    let dead_letter_exchange = |name: &str| named("dead_letter_exchange", name, ExchangeName::new);
    Ok(SettingsPatch {
        lease: settings.lease_ms.map(Millis),
        deliveries_max: settings.max_deliveries,
        dead_letter_queue: cleared_if_empty(settings.dead_letter_queue, dead_letter_queue)?,
        dead_letter_exchange: cleared_if_empty(settings.dead_letter_exchange, dead_letter_exchange)?,
        dead_letter_routing_key: cleared_if_empty(
            settings.dead_letter_routing_key,
            |key| Ok(key.to_owned()),
        )?,
        length_max: settings.max_length,
        bytes_max: settings.max_bytes,
        overflow: overflow(settings.overflow)?,
        message_ttl: settings.message_ttl_ms.map(Millis),
        backoff_initial: settings.backoff_initial_ms.map(Millis),
        backoff_max: settings.backoff_max_ms.map(Millis),
        priority_ageing: settings.priority_ageing_ms.map(Millis),
        group_concurrency: settings.group_concurrency,
        group_weights: settings.group_weights.map(|groups| groups.weights),
        single_active_consumer: settings.single_active_consumer,
        dedup_window: settings.dedup_window_ms.map(Millis),
        dedup_count_max: settings.dedup_max_ids,
    })
}

/// Of a patch: unset leaves a setting, and empty clears it.
pub(super) fn cleared_if_empty<T>(
    text: Option<String>,
    parse: impl FnOnce(&str) -> Result<T, BrokerError>,
) -> Result<Option<Option<T>>, BrokerError> {
    text.map(|text| optional(&text, parse)).transpose()
}

fn overflow(overflow: Option<i32>) -> Result<Option<Overflow>, BrokerError> {
    match overflow.map(v1::Overflow::try_from) {
        None | Some(Ok(v1::Overflow::Unspecified)) => Ok(None),
        Some(Ok(v1::Overflow::Reject)) => Ok(Some(Overflow::Reject)),
        Some(Ok(v1::Overflow::DropHead)) => Ok(Some(Overflow::DropHead)),
        Some(Err(_)) => Err(invalid("overflow", "not a known policy")),
    }
}

fn settings(settings: &Settings) -> v1::QueueSettings {
    let overflow = match settings.overflow {
        Overflow::Reject => v1::Overflow::Reject,
        Overflow::DropHead => v1::Overflow::DropHead,
    };
    let weights: &BTreeMap<String, u32> = &settings.group_weights;
    v1::QueueSettings {
        lease_ms: Some(settings.lease.0),
        max_deliveries: Some(settings.deliveries_max),
        dead_letter_queue: settings.dead_letter_queue.as_ref().map(ToString::to_string),
        max_length: Some(settings.length_max),
        max_bytes: Some(settings.bytes_max),
        overflow: Some(overflow.into()),
        message_ttl_ms: Some(settings.message_ttl.0),
        backoff_initial_ms: Some(settings.backoff_initial.0),
        backoff_max_ms: Some(settings.backoff_max.0),
        dead_letter_exchange: settings.dead_letter_exchange.as_ref().map(ToString::to_string),
        dead_letter_routing_key: settings.dead_letter_routing_key.clone(),
        priority_ageing_ms: Some(settings.priority_ageing.0),
        group_concurrency: Some(settings.group_concurrency),
        group_weights: Some(v1::GroupWeights {
            weights: weights.clone(),
        }),
        single_active_consumer: Some(settings.single_active_consumer),
        dedup_window_ms: Some(settings.dedup_window.0),
        dedup_max_ids: Some(settings.dedup_count_max),
    }
}

pub(crate) fn queue_info(view: &QueueView) -> v1::QueueInfo {
    v1::QueueInfo {
        name: view.name.to_string(),
        id: view.id.0,
        settings: Some(settings(&view.settings)),
        counts: Some(counts(&view.counts)),
        paused: view.paused,
        oldest_ready_published_at_ms: at_ms(view.oldest_ready),
        oldest_leased_published_at_ms: at_ms(view.oldest_leased),
        active_consumer: view.active_consumer.clone().unwrap_or_default(),
    }
}

fn counts(counts: &QueueCounts) -> v1::QueueCounts {
    v1::QueueCounts {
        ready: counts.ready,
        delayed: counts.delayed,
        leased: counts.leased,
        dead: counts.dead,
        bytes: counts.bytes,
        consumers: counts.consumers,
        published: counts.published,
        acked: counts.acked,
        expired: counts.expired,
        dead_lettered: counts.dead_lettered,
        dropped: counts.dropped,
        deleted: counts.deleted,
        redelivered: counts.redelivered,
        moved: counts.moved,
        duplicates: counts.duplicates,
        dead_letter_backlog: counts.dead_letter_backlog,
        groups: counts.groups,
    }
}

/// No state stands for those that wait to be leased.
pub(crate) fn purge_states(states: &[i32]) -> Result<PurgeStates, BrokerError> {
    if states.is_empty() {
        return Ok(PurgeStates::WAITING);
    }
    let mut purge = PurgeStates {
        ready: false,
        delayed: false,
        dead: false,
    };
    for state in states {
        match v1::MessageState::try_from(*state) {
            Ok(v1::MessageState::Ready) => purge.ready = true,
            Ok(v1::MessageState::Delayed) => purge.delayed = true,
            Ok(v1::MessageState::Dead) => purge.dead = true,
            _ => return Err(invalid("states", "ready, delayed and dead can be purged")),
        }
    }
    Ok(purge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_text_clears_and_an_unset_one_leaves() {
        let patch = settings_patch(Some(v1::QueueSettings {
            dead_letter_queue: Some(String::new()),
            dead_letter_exchange: Some("letters".to_owned()),
            ..v1::QueueSettings::default()
        }))
        .unwrap();
        assert_eq!(patch.dead_letter_queue, Some(None));
        assert_eq!(
            patch.dead_letter_exchange,
            Some(Some(ExchangeName::new("letters").unwrap()))
        );
        assert_eq!(patch.dead_letter_routing_key, None);
        assert_eq!(patch.group_weights, None);
        assert_eq!(settings_patch(None).unwrap(), SettingsPatch::default());
    }

    #[test]
    fn a_malformed_setting_is_named() {
        let named = |settings| settings_patch(Some(settings)).unwrap_err().to_string();
        let exchange = named(v1::QueueSettings {
            dead_letter_exchange: Some(" x".to_owned()),
            ..v1::QueueSettings::default()
        });
        assert!(exchange.starts_with("dead_letter_exchange: "), "{exchange}");
        let overflow = named(v1::QueueSettings {
            overflow: Some(77),
            ..v1::QueueSettings::default()
        });
        assert!(overflow.starts_with("overflow: "), "{overflow}");
    }

    #[test]
    fn settings_come_back_as_they_were_given() {
        let asked = v1::QueueSettings {
            lease_ms: Some(1),
            max_deliveries: Some(2),
            dead_letter_queue: None,
            max_length: Some(3),
            max_bytes: Some(4),
            overflow: Some(v1::Overflow::DropHead.into()),
            message_ttl_ms: Some(5),
            backoff_initial_ms: Some(6),
            backoff_max_ms: Some(7),
            dead_letter_exchange: Some("x".to_owned()),
            dead_letter_routing_key: Some("k".to_owned()),
            priority_ageing_ms: Some(8),
            group_concurrency: Some(9),
            group_weights: Some(v1::GroupWeights {
                weights: BTreeMap::from([("g".to_owned(), 10)]),
            }),
            single_active_consumer: Some(true),
            dedup_window_ms: Some(11),
            dedup_max_ids: Some(12),
        };
        let patch = settings_patch(Some(asked.clone())).unwrap();
        let kept = Settings {
            lease: patch.lease.unwrap(),
            deliveries_max: patch.deliveries_max.unwrap(),
            dead_letter_queue: patch.dead_letter_queue.flatten(),
            dead_letter_exchange: patch.dead_letter_exchange.flatten(),
            dead_letter_routing_key: patch.dead_letter_routing_key.flatten(),
            length_max: patch.length_max.unwrap(),
            bytes_max: patch.bytes_max.unwrap(),
            overflow: patch.overflow.unwrap(),
            message_ttl: patch.message_ttl.unwrap(),
            backoff_initial: patch.backoff_initial.unwrap(),
            backoff_max: patch.backoff_max.unwrap(),
            priority_ageing: patch.priority_ageing.unwrap(),
            group_concurrency: patch.group_concurrency.unwrap(),
            group_weights: patch.group_weights.unwrap(),
            single_active_consumer: patch.single_active_consumer.unwrap(),
            dedup_window: patch.dedup_window.unwrap(),
            dedup_count_max: patch.dedup_count_max.unwrap(),
        };
        assert_eq!(settings(&kept), asked);
    }

    #[test]
    fn only_what_nobody_holds_can_be_purged() {
        assert_eq!(purge_states(&[]).unwrap(), PurgeStates::WAITING);
        let dead = purge_states(&[v1::MessageState::Dead.into()]).unwrap();
        assert!(dead.dead && !dead.ready && !dead.delayed);
        for state in [v1::MessageState::Leased, v1::MessageState::Acked] {
            let error = purge_states(&[state.into()]).unwrap_err().to_string();
            assert!(error.starts_with("states: "), "{error}");
        }
    }
}
