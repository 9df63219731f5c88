//! Which queues a message goes to.

use std::collections::{BTreeMap, BTreeSet};

use super::{ExchangeId, Node};
use crate::broker::Broker;
use crate::ids::QueueId;

/// Of a message without labels.
pub(crate) static NO_HEADERS: BTreeMap<String, String> = BTreeMap::new();

/// Messages that came through one exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) received: u64,
    /// None of its bindings fitted them.
    pub(crate) unroutable: u64,
}

/// What was found of one message, or of several that were routed one after the other.
#[derive(Debug, Default)]
pub(crate) struct Routed {
    /// Of the last message; each once, in the order of their ids.
    pub(crate) queues: BTreeSet<QueueId>,
    /// Of all messages.
    pub(crate) flows: BTreeMap<ExchangeId, Flow>,
}

impl Broker {
    /// Finds the queues of one message: all to which bindings lead that fit it,
    /// through as many exchanges as it takes. An exchange of which no binding
    /// fits passes it to its alternate exchange. Each exchange sees the message
    /// once, so it does not run in circles.
    pub(crate) fn route(
        &self,
        exchange: ExchangeId,
        key: &str,
        headers: &BTreeMap<String, String>,
        routed: &mut Routed,
    ) {
        routed.queues.clear();
        let mut seen = BTreeSet::from([exchange]);
        let mut ahead = vec![exchange];
        while let Some(id) = ahead.pop() {
            let exchange = self.exchanges.held(id);
            let mut fitted = false;
            exchange.router.visit(key, headers, |node| {
                fitted = true;
                match node {
                    Node::Queue(queue) => {
                        routed.queues.insert(queue);
                    }
                    Node::Exchange(next) if seen.insert(next) => ahead.push(next),
                    Node::Exchange(_) => {}
                }
            });
            let flow = routed.flows.entry(id).or_default();
            flow.received += 1;
            if !fitted {
                flow.unroutable += 1;
                let alternate = exchange.head.settings.alternate.as_ref();
                let alternate = alternate.and_then(|name| self.exchanges.names.get(name));
                ahead.extend(alternate.copied().filter(|next| seen.insert(*next)));
            }
        }
    }

    /// Messages came through exchanges.
    pub(crate) fn count_flows(&mut self, flows: &BTreeMap<ExchangeId, Flow>) {
        for (id, flow) in flows {
            let head = &mut self.exchanges.held_mut(*id).head;
            head.received += flow.received;
            head.unroutable += flow.unroutable;
        }
    }
}
