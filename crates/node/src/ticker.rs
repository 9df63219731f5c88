//! Lets time pass when something is due.
//!
//! Nothing expires because a node looked at its watch: it expires because an
//! applied entry carried that time. Any entry does; when there is none, the
//! leader proposes a `Tick`, once the state's next deadline has passed.

use std::time::{Duration, Instant};

use quorate_core::command::{Command, Request};

use crate::batcher::Proposal;
use crate::broker::Broker;

/// How late a deadline may be noticed that came up while the ticker slept.
const RESOLUTION: Duration = Duration::from_millis(5);

pub(crate) async fn run(broker: Broker) {
    let dispatch = broker.dispatch().clone();
    let mut leadership = broker.consensus().leadership();
    loop {
        let applied = dispatch.applied.notified();
        let next = broker.consensus().with_state(quorate_core::Broker::next_deadline);
        let (Some(next), Some(now)) = (next, broker.clock().now()) else {
            // Nothing is due, or somebody else leads.
            tokio::select! {
                () = applied => {}
                changed = leadership.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(Duration::from_millis(100)), if next.is_some() => {}
            }
            continue;
        };
        if next > now {
            let left = Duration::from_millis(next.0 - now.0);
            tokio::time::sleep(left.min(RESOLUTION)).await;
            continue;
        }
        let tick = Request {
            id: None,
            command: Command::Tick,
        };
        let proposal = Proposal {
            requests: vec![tick],
            contents: Vec::new(),
        };
        let deadline = Instant::now() + Duration::from_secs(1);
        if broker.batcher().propose(proposal, deadline).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
