//! No message is forgotten where it stands.

use super::{Finding, Violation};
use crate::view::Seen;

/// Every message that a look at a queue has shown waits for something that will
/// come: a taker if it is ready, its time if it is delayed, its holder or the end
/// of its lease if it is leased; or it is in the dead set and says why.
#[must_use]
pub fn nothing_is_forgotten(messages: &[Seen]) -> Vec<Violation> {
    let mut finding = Finding::new("a message that waits has something to wait for");
    for message in messages {
        let lease = message.lease.as_ref();
        let good = match message.state.as_str() {
            "ready" => lease.is_none() && message.ready_at_ms.is_none(),
            "delayed" => lease.is_none() && message.ready_at_ms.is_some(),
            "leased" => lease.is_some_and(|lease| {
                let of_session = lease.session.is_some();
                lease.until_ms > lease.since_ms && lease.fence > 0 && of_session == lease.consumer.is_some()
            }),
            "dead" => lease.is_none() && message.dead.is_some(),
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
    use super::*;
    use crate::view::SeenLease;

    fn message(state: &str) -> Seen {
        Seen {
            state: state.to_owned(),
            ..Seen::default()
        }
    }

    fn leased(lease: SeenLease) -> Seen {
        Seen {
            lease: Some(lease),
            ..message("leased")
        }
    }

    const PULLED: SeenLease = SeenLease {
        session: None,
        consumer: None,
        since_ms: 1_000,
        until_ms: 2_000,
        fence: 7,
    };

    #[test]
    fn what_waits_for_something_is_not_forgotten() {
        let delayed = Seen {
            ready_at_ms: Some(5),
            ..message("delayed")
        };
        let dead = Seen {
            dead: Some("rejected".to_owned()),
            ..message("dead")
        };
        let consumed = SeenLease {
            session: Some(9),
            consumer: Some(0),
            ..PULLED
        };
        let ready = message("ready");
        assert_eq!(
            nothing_is_forgotten(&[ready, delayed, dead, leased(PULLED), leased(consumed)]),
            []
        );
    }

    #[test]
    fn what_waits_for_nothing_is_forgotten() {
        let endless = SeenLease {
            until_ms: 0,
            ..PULLED
        };
        let held_by_nobody = SeenLease {
            session: Some(9),
            ..PULLED
        };
        let forgotten = [
            message("leased"),
            message("delayed"),
            message("dead"),
            message("other"),
            leased(endless),
            leased(held_by_nobody),
            Seen {
                lease: Some(PULLED),
                ..message("ready")
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
