//! Tells the state machine which nodes live.
//!
//! A node that starts says `NodeUp` with its new incarnation, so that the
//! sessions of its earlier life can end. The leader says `NodeDown` for a node
//! that it has not heard of for [`Config::node_down_after`]: what its
//! connections held is given back. And each node ends the sessions that it is
//! said to hold and whose connection is gone: because leadership moved and the
//! client did not come back, or because an attach or a close got no answer.
//!
//! [`Config::node_down_after`]: crate::Config::node_down_after

use std::collections::HashMap;
use std::time::{Duration, Instant};

use quorate_core::command::{Command, Request};

use crate::broker::Broker;
use crate::forward;

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
    let mut interval = tokio::time::interval((down_after / 10).max(Duration::from_millis(100)));
    let mut leading_since = None;
    loop {
        interval.tick().await;
        if broker.clock().now().is_none() {
            leading_since = None;
            continue;
        }
        // A new leader has heard of nobody yet: it waits the whole time.
        let since = *leading_since.get_or_insert_with(Instant::now);
        if since.elapsed() < down_after {
            continue;
        }
        let known = broker
            .consensus()
            .with_state(quorate_core::Broker::nodes_with_sessions);
        let members = broker.status().members;
        for (node, incarnation) in known {
            if node == broker.consensus().node_id() {
                continue;
            }
            let member = members.iter().find(|member| member.node_id == node);
            let ack_age = member.and_then(|member| member.ack_age);
            if ack_age.is_none_or(|age| age >= down_after) {
                tracing::warn!(node = node.0, "not heard of: ending its sessions");
                let command = Command::NodeDown { node, incarnation };
                forward::insist(&broker, Request { id: None, command }, Duration::from_secs(1)).await;
            }
        }
    }
}

/// Ends sessions of this node that have been without a connection for `grace`.
pub(crate) async fn end_abandoned(broker: Broker, grace: Duration) {
    let (node, incarnation) = (broker.consensus().node_id(), broker.consensus().incarnation());
    let mut interval = tokio::time::interval((grace / 4).max(Duration::from_millis(100)));
    // By session and epoch: an attach since is another connection.
    let mut abandoned_since = HashMap::new();
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
        let now = Instant::now();
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
