//! Tells the state machine which nodes live.
//!
//! A node that starts says `NodeUp` with its new incarnation, so that the
//! sessions of its earlier life can end. The leader says `NodeSilent` for a node
//! that it has not heard of for [`SILENT_AFTER`]: nothing more is given to what
//! may be a dead connection, where each lease that runs out would use up an
//! attempt of its message. It says `NodeDown` after [`Config::node_down_after`]:
//! what its connections held is given back. And each node ends the sessions that
//! it is said to hold and whose connection is gone: because leadership moved and
//! the client did not come back, or because an attach or a close got no answer.
//!
//! [`Config::node_down_after`]: crate::Config::node_down_after

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quorate_core::command::{Command, Request};

use crate::broker::Broker;
use crate::forward;

/// A node that is not heard of for this long is given nothing more. Some
/// heartbeats; a client whose connection is still there can lose no more by it
/// than the time of a resume.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// Announces this node's new life.
pub(crate) async fn announce(broker: Broker) {
    let command = Command::NodeUp {
        node: broker.consensus().node_id(),
        incarnation: broker.consensus().incarnation(),
    };
    forward::insist(
        &broker,
        Request { id: None, command },
        Duration::from_secs(365 * 24 * 3600),
    )
    .await;
    broker.set_announced();
}

/// While leading, looks for nodes that have gone silent.
pub(crate) async fn watch(broker: Broker, down_after: Duration) {
    let often = (down_after / 10).max(Duration::from_millis(100));
    let mut interval = tokio::time::interval(often.min(SILENT_AFTER / 4));
    let mut leading_since = None;
    let mut told_silent = BTreeSet::new();
    loop {
        interval.tick().await;
        if broker.clock().now().is_none() {
            leading_since = None;
            told_silent.clear();
            continue;
        }
        // A new leader has heard of nobody yet: it waits the whole time.
        let now = broker.consensus().clock().now();
        let leading = now.saturating_duration_since(*leading_since.get_or_insert(now));
        if leading < down_after.min(SILENT_AFTER) {
            continue;
        }
        let mut known = broker
            .consensus()
            .with_state(quorate_core::Broker::nodes_with_sessions);
        known.retain(|(node, _)| *node != broker.consensus().node_id());
        if known.is_empty() {
            continue;
        }
        let members = broker.status().members;
        for life in known {
            let (node, incarnation) = life;
            let member = members.iter().find(|member| member.node_id == node);
            let ack_age = member.and_then(|member| member.ack_age);
            let silence = ack_age.map_or(leading, |age| age.min(leading));
            let command = if silence >= down_after {
                tracing::warn!(node = node.0, "not heard of: ending its sessions");
                Command::NodeDown { node, incarnation }
            } else if silence < SILENT_AFTER {
                told_silent.remove(&life);
                continue;
            } else if told_silent.insert(life) {
                tracing::info!(node = node.0, "not heard of: its sessions are given nothing more");
                Command::NodeSilent { node, incarnation }
            } else {
                continue;
            };
            forward::insist(&broker, Request { id: None, command }, Duration::from_secs(1)).await;
        }
    }
}

/// Ends sessions of this node that have been without a connection for `grace`.
pub(crate) async fn end_abandoned(broker: Broker, grace: Duration) {
    let (node, incarnation) = (broker.consensus().node_id(), broker.consensus().incarnation());
    let mut interval = tokio::time::interval((grace / 4).max(Duration::from_millis(100)));
    // By session and epoch: an attach since is another connection.
    let mut abandoned_since = BTreeMap::new();
    loop {
        interval.tick().await;
        let here = broker.consensus().with_state(|state| {
            state
                .sessions_on(node)
                .filter_map(|session| state.session(session))
                .filter(|session| session.incarnation == incarnation)
                .map(|session| (session.id, session.epoch))
                .collect::<Vec<_>>()
        });
        let now = broker.consensus().clock().now();
        abandoned_since = here
            .into_iter()
            .filter(|(session, _)| !broker.dispatch().holds(*session))
            .map(|key| (key, abandoned_since.get(&key).copied().unwrap_or(now)))
            .collect();
        for ((session, epoch), since) in &abandoned_since {
            if now.duration_since(*since) >= grace {
                tracing::info!(session = session.0, "ended: its client has not come back");
                broker.close_session(*session, *epoch).await;
            }
        }
    }
}
