//! Lets time pass when something is due.
//!
//! Nothing expires because a node looked at its watch: it expires because an
//! applied entry carried that time. Any entry does; when there is none, the
//! leader proposes a `Tick`, once the state's next deadline has passed.

use std::time::Duration;

use quorate_core::command::{Command, Request};
use quorate_core::ids::Millis;
use tokio::time::Instant;

use crate::batcher::Proposal;
use crate::broker::Broker;

/// How late a deadline may be noticed that an entry has brought up: while many
/// entries come, the state is looked at no more often.
const RESOLUTION: Duration = Duration::from_millis(4);

pub(crate) async fn run(broker: Broker) {
    let dispatch = broker.dispatch().clone();
    let mut leadership = broker.consensus().leadership();
    loop {
        let next = broker.consensus().with_state(quorate_core::Broker::next_deadline);
        let now = broker.clock().now();
        let left = match (next, now) {
            (Some(next), Some(now)) => on_tokios_clock(&broker, next.since(now)),
            // It leads, but does not know the time yet.
            (Some(_), None) if leadership.borrow().leading => RESOLUTION,
            // Nothing is due here, or another node sees to it.
            _ => Duration::MAX,
        };
        if !left.is_zero() {
            tokio::select! {
                biased;
                () = dispatch.applied.notified() => tokio::time::sleep(left.min(RESOLUTION)).await,
                changed = leadership.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(left) => {}
            }
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

/// How long to sleep until this much cluster time has passed. This node's clock
/// may run at another speed than that of its runtime.
fn on_tokios_clock(broker: &Broker, left: Millis) -> Duration {
    let clock = broker.consensus().clock();
    let then = clock.now().checked_add(Duration::from_millis(left.0));
    then.map_or(Duration::MAX, |then| clock.until(then))
}
