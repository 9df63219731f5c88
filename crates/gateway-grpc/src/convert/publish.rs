//! Publishes and their confirms.

use quorate_node::BrokerError;
use quorate_node::broker::{Position, Publication, Publish, Published};
use quorate_node::content::Content;
use quorate_node::types::{Duplicate, Millis, PRIORITY_MAX, Target, Timestamp};
use quorate_proto::v1;

use super::{commit, exchange_name, queue_name, request_id, state};
use crate::error::invalid;

pub(crate) fn publish(request: v1::PublishRequest) -> Result<Publish, BrokerError> {
    Ok(Publish {
        id: request_id(request.request_id)?,
        target: target(&request)?,
        messages: request
            .messages
            .into_iter()
            .map(publication)
            .collect::<Result<_, _>>()?,
    })
}

fn target(request: &v1::PublishRequest) -> Result<Target, BrokerError> {
    match (request.queue.as_str(), request.exchange.as_str()) {
        (queue, "") => Ok(Target::Queue(queue_name(queue)?)),
        ("", exchange) => Ok(Target::Exchange {
            name: exchange_name(exchange)?,
            mandatory: request.mandatory,
        }),
        _ => Err(invalid("exchange", "a publish goes to a queue or to an exchange")),
    }
}

fn publication(message: v1::OutgoingMessage) -> Result<Publication, BrokerError> {
    let priority = u8::try_from(message.priority)
        .ok()
        .filter(|priority| *priority <= PRIORITY_MAX)
        .ok_or_else(|| {
            let problem = format!("0 to {PRIORITY_MAX}, not {}", message.priority);
            invalid("priority", problem)
        })?;
    Ok(Publication {
        content: Content {
            headers: message.headers,
            body: message.body,
            exchange: String::new(),
            routing_key: message.routing_key,
            priority,
            group: message.group,
            dedup_id: message.dedup_id,
        },
        delay: Millis(message.delay_ms),
        deliver_at: Timestamp(message.deliver_at_ms),
        ttl: Millis(message.ttl_ms),
    })
}

pub(crate) fn published(position: Position, published: Published) -> v1::PublishResponse {
    let duplicate = |duplicate: Duplicate| v1::Duplicate {
        place: duplicate.place,
        state: state(duplicate.state).into(),
    };
    v1::PublishResponse {
        commit: Some(commit(position)),
        message_ids: published.ids.iter().map(ToString::to_string).collect(),
        unroutable: published.unroutable,
        duplicates: published.duplicates.into_iter().map(duplicate).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publish_goes_to_a_queue_or_to_an_exchange() {
        let to = |queue: &str, exchange: &str| {
            let request = v1::PublishRequest {
                queue: queue.to_owned(),
                exchange: exchange.to_owned(),
                mandatory: true,
                ..v1::PublishRequest::default()
            };
            target(&request)
        };
        assert!(matches!(to("q", ""), Ok(Target::Queue(_))));
        assert!(matches!(
            to("", "x"),
            Ok(Target::Exchange { mandatory: true, .. })
        ));
        let both = to("q", "x").unwrap_err().to_string();
        assert!(both.starts_with("exchange: "), "{both}");
        let neither = to("", "").unwrap_err().to_string();
        assert!(neither.starts_with("queue: "), "{neither}");
    }

    #[test]
    fn a_priority_out_of_bounds_is_refused_as_it_was_given() {
        let error = publication(v1::OutgoingMessage {
            priority: 256,
            ..v1::OutgoingMessage::default()
        })
        .unwrap_err();
        assert_eq!(error.to_string(), "priority: 0 to 9, not 256");
    }
}
