//! No message is forgotten where it stands.

use quorate_client::{MessageInfo, MessageState};

use super::{Finding, Violation};

/// Every message that a look at a queue has shown waits for something that will
/// come: a taker if it is ready, its time if it is delayed, its holder or the end
/// of its lease if it is leased; or it is in the dead set and says why.
#[must_use]
pub fn nothing_is_forgotten(messages: &[MessageInfo]) -> Vec<Violation> {
    let mut finding = Finding::new("a message that waits has something to wait for");
    for message in messages {
        let lease = message.lease.as_ref();
        let good = match message.state {
            MessageState::Ready => lease.is_none() && message.ready_at_ms.is_none(),
            MessageState::Delayed => lease.is_none() && message.ready_at_ms.is_some(),
            MessageState::Leased => lease.is_some_and(|lease| {
                let of_session = lease.session.is_some();
                lease.until_ms > lease.since_ms && lease.fence > 0 && of_session == lease.consumer.is_some()
            }),
            MessageState::Dead => lease.is_none() && message.dead.is_some(),
            _ => false,
        };
        if !good {
            finding.add(format!("{message:?}"));
        }
    }
    finding.0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use quorate_client::{DeadInfo, LeaseInfo};

    use super::*;

    fn message(state: MessageState) -> MessageInfo {
        MessageInfo {
            message_id: "1-0".to_owned(),
            queue: "jobs".to_owned(),
            position: 1,
            state,
            ready_at_ms: None,
            lease: None,
            priority: 0,
            group: None,
            dedup_id: None,
            attempts: 0,
            grants: 0,
            published_at_ms: 1,
            expires_at_ms: None,
            content_bytes: 0,
            first_error: None,
            last_error: None,
            dead: None,
            dead_letter: None,
            redrive: None,
            body: None,
            headers: BTreeMap::new(),
            exchange: None,
            routing_key: None,
        }
    }

    fn leased(lease: LeaseInfo) -> MessageInfo {
        MessageInfo {
            lease: Some(lease),
            ..message(MessageState::Leased)
        }
    }

    const PULLED: LeaseInfo = LeaseInfo {
        session: None,
        consumer: None,
        node_id: None,
        since_ms: 1_000,
        until_ms: 2_000,
        fence: 7,
    };

    #[test]
    fn what_waits_for_something_is_not_forgotten() {
        let delayed = MessageInfo {
            ready_at_ms: Some(5),
            ..message(MessageState::Delayed)
        };
        let dead = MessageInfo {
            dead: Some(DeadInfo {
                reason: "rejected".to_owned(),
                since_ms: 1,
                backlog: false,
            }),
            ..message(MessageState::Dead)
        };
        let consumed = LeaseInfo {
            session: Some(9),
            consumer: Some(0),
            node_id: Some(3),
            ..PULLED
        };
        let ready = message(MessageState::Ready);
        assert_eq!(
            nothing_is_forgotten(&[ready, delayed, dead, leased(PULLED), leased(consumed)]),
            []
        );
    }

    #[test]
    fn what_waits_for_nothing_is_forgotten() {
        let endless = LeaseInfo {
            until_ms: 0,
            ..PULLED
        };
        let held_by_nobody = LeaseInfo {
            session: Some(9),
            ..PULLED
        };
        let forgotten = [
            message(MessageState::Leased),
            message(MessageState::Delayed),
            message(MessageState::Dead),
            message(MessageState::Other),
            leased(endless),
            leased(held_by_nobody),
            MessageInfo {
                lease: Some(PULLED),
                ..message(MessageState::Ready)
            },
        ];
        for one in forgotten {
            assert_eq!(
                nothing_is_forgotten(std::slice::from_ref(&one)).len(),
                1,
                "{one:?}"
            );
        }
    }
}
