//! Exchanges come and go, and so do the bindings that lead from them.
//!
//! A binding lives as long as both its ends. Where a message goes is found in
//! [`route`]; exchanges hold none.

mod route;
mod router;
mod settings;
mod trie;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub(crate) use route::{Flow, NO_HEADERS, Routed};
pub(crate) use router::{Node, Router};
pub(crate) use settings::{check_header_bytes, check_routing_key};

use crate::broker::Broker;
use crate::command::{Binding, Destination, ExchangeKind, ExchangeSettings, ExchangeSettingsPatch};
use crate::dedup::Window;
use crate::ids::{ExchangeName, Millis, Timestamp};
use crate::limits;
use crate::outcome::{Outcome, Rejection, Reply};

/// One exchange, among all that ever had its name; made as a
/// [`QueueId`](crate::ids::QueueId) is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct ExchangeId(pub(crate) u64);

/// All exchanges.
#[derive(Debug, Default)]
pub(crate) struct Exchanges {
    pub(crate) by_id: BTreeMap<ExchangeId, Exchange>,
    /// Index.
    pub(crate) names: BTreeMap<ExchangeName, ExchangeId>,
    /// Index: the bindings by what they lead to, and from where they do.
    pub(crate) sources: BTreeMap<Node, BTreeSet<(ExchangeId, Arc<Binding>)>>,
    /// Index: how many bindings there are.
    pub(crate) bindings: usize,
}

/// An exchange. `head`, `bindings` and `dedup` are its state.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) head: Head,
    /// Snapshots have the same set; it is copied before it changes.
    pub(crate) bindings: Arc<BTreeSet<Arc<Binding>>>,
    /// What was published to it last.
    pub(crate) dedup: Window,
    /// Index.
    pub(crate) router: Router,
}

/// What is persisted of an exchange besides its bindings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) name: ExchangeName,
    pub(crate) id: ExchangeId,
    pub(crate) kind: ExchangeKind,
    pub(crate) settings: ExchangeSettings,
    /// Messages that came to it.
    pub(crate) received: u64,
    /// Those of them that none of its bindings fitted.
    pub(crate) unroutable: u64,
    /// Those that were not taken because it knew their dedup ids.
    pub(crate) duplicates: u64,
}

impl Exchange {
    pub(crate) fn new(head: Head) -> Self {
        let router = Router::new(head.kind);
        Self {
            head,
            bindings: Arc::default(),
            dedup: Window::default(),
            router,
        }
    }

    /// When none of its dedup ids is known any more, if it has any.
    pub(crate) fn window_end(&self) -> Option<Timestamp> {
        self.dedup.end(self.head.settings.dedup())
    }
}

impl Exchanges {
    pub(crate) fn id(&self, name: &ExchangeName) -> Result<ExchangeId, Rejection> {
        let id = self.names.get(name).copied();
        id.ok_or_else(|| Rejection::ExchangeNotFound(name.clone()))
    }

    pub(crate) fn held(&self, id: ExchangeId) -> &Exchange {
        self.by_id
            .get(&id)
            .expect("ids of exchanges are not kept longer than the exchanges")
    }

    pub(crate) fn held_mut(&mut self, id: ExchangeId) -> &mut Exchange {
        self.by_id
            .get_mut(&id)
            .expect("ids of exchanges are not kept longer than the exchanges")
    }

    /// Takes a new exchange; false if there is one of its name or id.
    pub(crate) fn insert(&mut self, exchange: Exchange) -> bool {
        let Head { name, id, .. } = &exchange.head;
        let named = self.names.insert(name.clone(), *id).is_none();
        named & self.by_id.insert(*id, exchange).is_none()
    }

    /// Enters a binding between two that are there into the state and all
    /// indexes; false if it was there.
    pub(crate) fn bind(&mut self, source: ExchangeId, node: Node, binding: Arc<Binding>) -> bool {
        let exchange = self.held_mut(source);
        if exchange.bindings.contains(&binding) {
            return false;
        }
        Arc::make_mut(&mut exchange.bindings).insert(binding.clone());
        exchange.router.insert((node, binding.clone()));
        self.sources.entry(node).or_default().insert((source, binding));
        self.bindings += 1;
        true
    }

    fn unbind(&mut self, source: ExchangeId, node: Node, binding: &Arc<Binding>) {
        let exchange = self.held_mut(source);
        if !exchange.bindings.contains(binding) {
            return;
        }
        Arc::make_mut(&mut exchange.bindings).remove(binding);
        exchange.router.remove(&(node, binding.clone()));
        if let Some(sources) = self.sources.get_mut(&node) {
            sources.remove(&(source, binding.clone()));
            if sources.is_empty() {
                self.sources.remove(&node);
            }
        }
        self.bindings -= 1;
    }

    /// What is bound is about to go.
    pub(crate) fn unbind_all_to(&mut self, node: Node) {
        for (source, binding) in self.sources.get(&node).cloned().unwrap_or_default() {
            self.unbind(source, node, &binding);
        }
    }
}

impl Broker {
    /// `ordinal` is the command's place in its entry.
    pub(crate) fn declare_exchange(
        &mut self,
        name: &ExchangeName,
        kind: ExchangeKind,
        patch: &ExchangeSettingsPatch,
        ordinal: usize,
    ) -> Outcome {
        if let Ok(existing) = self.exchanges.id(name) {
            let differing = self.exchanges.held(existing).head.differing(kind, patch);
            if differing.is_empty() {
                return Ok(Reply::Created(false));
            }
            let exchange = name.clone();
            return Err(Rejection::ExchangeConflict { exchange, differing });
        }
        let settings = ExchangeSettings::default().patched(patch);
        settings.check()?;
        if self.exchanges.by_id.len() >= limits::EXCHANGES_MAX {
            return Err(Rejection::LimitExceeded(format!(
                "{} exchanges",
                limits::EXCHANGES_MAX
            )));
        }
        self.exchanges.insert(Exchange::new(Head {
            name: name.clone(),
            id: ExchangeId(self.index << 16 | ordinal as u64),
            kind,
            settings,
            received: 0,
            unroutable: 0,
            duplicates: 0,
        }));
        Ok(Reply::Created(true))
    }

    pub(crate) fn update_exchange(&mut self, name: &ExchangeName, patch: &ExchangeSettingsPatch) -> Outcome {
        let id = self.exchanges.id(name)?;
        let settings = self.exchanges.held(id).head.settings.patched(patch);
        settings.check()?;
        self.change_exchange_window(id, |exchange| {
            if settings.dedup_window == Millis(0) {
                exchange.dedup.clear();
            }
            exchange.head.settings = settings;
        });
        Ok(Reply::Done)
    }

    pub(crate) fn delete_exchange(&mut self, name: &ExchangeName, if_unused: bool) -> Outcome {
        let id = self.exchanges.id(name)?;
        let from = self.exchanges.held(id).bindings.clone();
        let to = self
            .exchanges
            .sources
            .get(&Node::Exchange(id))
            .map_or(0, BTreeSet::len);
        if if_unused && from.len() + to > 0 {
            return Err(Rejection::ExchangeInUse {
                exchange: name.clone(),
                bindings: (from.len() + to) as u64,
            });
        }
        for binding in from.iter() {
            let node = self
                .node(&binding.destination)
                .expect("bindings lead to what is there");
            self.exchanges.unbind(id, node, binding);
        }
        self.exchanges.unbind_all_to(Node::Exchange(id));
        self.change_exchange_window(id, |exchange| exchange.dedup.clear());
        self.exchanges.by_id.remove(&id);
        self.exchanges.names.remove(name);
        Ok(Reply::Done)
    }

    pub(crate) fn bind(&mut self, binding: &Binding) -> Outcome {
        binding.check()?;
        let source = self.exchanges.id(&binding.source)?;
        let node = self.node(&binding.destination)?;
        if self.exchanges.held(source).bindings.contains(binding) {
            return Ok(Reply::Created(false));
        }
        if self.exchanges.bindings >= limits::BINDINGS_MAX {
            return Err(Rejection::LimitExceeded(format!(
                "{} bindings",
                limits::BINDINGS_MAX
            )));
        }
        self.exchanges.bind(source, node, Arc::new(binding.clone()));
        Ok(Reply::Created(true))
    }

    /// Nothing to do is done too: where an end is missing, there is no binding.
    pub(crate) fn unbind(&mut self, binding: &Binding) -> Outcome {
        let ends = (
            self.exchanges.id(&binding.source),
            self.node(&binding.destination),
        );
        if let (Ok(source), Ok(node)) = ends {
            self.exchanges.unbind(source, node, &Arc::new(binding.clone()));
        }
        Ok(Reply::Done)
    }

    /// What a binding leads to.
    pub(crate) fn node(&self, destination: &Destination) -> Result<Node, Rejection> {
        match destination {
            Destination::Queue(name) => self.queue_id(name).map(Node::Queue),
            Destination::Exchange(name) => self.exchanges.id(name).map(Node::Exchange),
        }
    }
}

impl Head {
    /// How it differs from what a declare asks for.
    fn differing(&self, kind: ExchangeKind, patch: &ExchangeSettingsPatch) -> Vec<String> {
        let mut differing = self.settings.differing(&self.settings.patched(patch));
        if kind != self.kind {
            let (is, asked) = (self.kind.name(), kind.name());
            differing.insert(0, format!("kind: is {is}, asked {asked}"));
        }
        differing
    }
}
