//! Exchanges: lists of bindings, of which every one is looked at.

use quorate_core::command::{
    Binding, Destination, ExchangeKind, ExchangeSettings, ExchangeSettingsPatch, HeaderMatch, Labels,
    NewMessage,
};
use quorate_core::ids::{ExchangeName, QueueId, QueueName};
use quorate_core::outcome::{Outcome, Rejection, Reply};

use super::Model;
use super::dedup::Remembered;

pub(crate) struct Exchange {
    pub(crate) name: ExchangeName,
    kind: ExchangeKind,
    pub(super) settings: ExchangeSettings,
    pub(crate) received: u64,
    pub(crate) unroutable: u64,
    pub(crate) duplicates: u64,
    pub(super) remembered: Vec<Remembered>,
    pub(crate) bindings: Vec<Binding>,
}

impl Model {
    pub(super) fn declare_exchange(
        &mut self,
        name: &ExchangeName,
        kind: ExchangeKind,
        patch: &ExchangeSettingsPatch,
    ) -> Outcome {
        if let Ok(e) = self.exchange(name) {
            let is = &self.exchanges[e];
            if is.kind == kind && is.settings.patched(patch) == is.settings {
                return Ok(Reply::Created(false));
            }
            return Err(Rejection::ExchangeConflict {
                exchange: name.clone(),
                differing: Vec::new(),
            });
        }
        self.exchanges.push(Exchange {
            name: name.clone(),
            kind,
            settings: ExchangeSettings::default().patched(patch),
            received: 0,
            unroutable: 0,
            duplicates: 0,
            remembered: Vec::new(),
            bindings: Vec::new(),
        });
        Ok(Reply::Created(true))
    }

    pub(super) fn update_exchange(&mut self, name: &ExchangeName, patch: &ExchangeSettingsPatch) -> Outcome {
        let e = self.exchange(name)?;
        self.exchanges[e].settings = self.exchanges[e].settings.patched(patch);
        if self.exchanges[e].settings.dedup_window.0 == 0 {
            self.exchanges[e].remembered.clear();
        }
        Ok(Reply::Done)
    }

    pub(super) fn delete_exchange(&mut self, name: &ExchangeName, if_unused: bool) -> Outcome {
        let e = self.exchange(name)?;
        let to = Destination::Exchange(name.clone());
        let all = self.exchanges.iter().flat_map(|exchange| &exchange.bindings);
        let from = self.exchanges[e].bindings.len();
        let bindings = (from + all.filter(|binding| binding.destination == to).count()) as u64;
        if if_unused && bindings > 0 {
            return Err(Rejection::ExchangeInUse {
                exchange: name.clone(),
                bindings,
            });
        }
        self.exchanges.remove(e);
        self.unbind_all(&to);
        Ok(Reply::Done)
    }

    pub(super) fn unbind_all(&mut self, to: &Destination) {
        for exchange in &mut self.exchanges {
            exchange.bindings.retain(|binding| binding.destination != *to);
        }
    }

    pub(super) fn bind(&mut self, binding: &Binding) -> Outcome {
        let e = self.exchange(&binding.source)?;
        match &binding.destination {
            Destination::Queue(name) => self.queue(name)?,
            Destination::Exchange(name) => self.exchange(name)?,
        };
        let bindings = &mut self.exchanges[e].bindings;
        if bindings.contains(binding) {
            return Ok(Reply::Created(false));
        }
        bindings.push(binding.clone());
        bindings.sort();
        Ok(Reply::Created(true))
    }

    pub(super) fn unbind(&mut self, binding: &Binding) -> Outcome {
        for exchange in &mut self.exchanges {
            exchange.bindings.retain(|there| there != binding);
        }
        Ok(Reply::Done)
    }

    /// The queues of each message; `counted` counts at the exchanges.
    pub(super) fn route_all(
        &mut self,
        name: &ExchangeName,
        messages: &[NewMessage],
        counted: bool,
    ) -> Result<Vec<Vec<QueueId>>, Rejection> {
        self.exchange(name)?;
        let labels = |message: &NewMessage| message.labels.as_deref().cloned().unwrap_or_default();
        let routes = messages
            .iter()
            .map(|message| self.route(name, &labels(message), counted));
        Ok(routes.collect())
    }

    /// Goes from exchange to exchange until there is nowhere new.
    pub(super) fn route(&mut self, name: &ExchangeName, labels: &Labels, counted: bool) -> Vec<QueueId> {
        let mut exchanges = vec![name.clone()];
        let mut queues: Vec<QueueName> = Vec::new();
        let mut done = 0;
        while done < exchanges.len() {
            let e = self.exchange(&exchanges[done]).unwrap();
            done += 1;
            let exchange = &mut self.exchanges[e];
            let fitting: Vec<&Binding> = exchange
                .bindings
                .iter()
                .filter(|binding| fits(exchange.kind, binding, labels))
                .collect();
            let mut next: Vec<ExchangeName> = Vec::new();
            for binding in &fitting {
                match &binding.destination {
                    Destination::Queue(name) => queues.push(name.clone()),
                    Destination::Exchange(name) => next.push(name.clone()),
                }
            }
            if fitting.is_empty() {
                next.extend(exchange.settings.alternate.clone());
            }
            exchange.received += u64::from(counted);
            exchange.unroutable += u64::from(counted && fitting.is_empty());
            for name in next {
                if self.exchange(&name).is_ok() && !exchanges.contains(&name) {
                    exchanges.push(name);
                }
            }
        }
        let mut ids: Vec<QueueId> = queues
            .iter()
            .map(|name| self.queues[self.queue(name).unwrap()].id)
            .collect();
        ids.sort();
        ids.dedup();
        ids
    }

    fn exchange(&self, name: &ExchangeName) -> Result<usize, Rejection> {
        let place = self.exchanges.iter().position(|exchange| exchange.name == *name);
        place.ok_or_else(|| Rejection::ExchangeNotFound(name.clone()))
    }
}

fn fits(kind: ExchangeKind, binding: &Binding, labels: &Labels) -> bool {
    match kind {
        ExchangeKind::Direct => binding.routing_key == labels.routing_key,
        ExchangeKind::Fanout => true,
        ExchangeKind::Topic => matches(&words(&binding.routing_key), &words(&labels.routing_key)),
        ExchangeKind::Headers => match &binding.headers {
            None => true,
            Some(HeaderMatch { any, headers }) => {
                let has = |(name, value): (&String, &Option<String>)| {
                    labels
                        .headers
                        .iter()
                        .any(|(n, v)| n == name && value.as_ref().is_none_or(|value| v == value))
                };
                if *any {
                    headers.iter().any(has)
                } else {
                    headers.iter().all(has)
                }
            }
        },
    }
}

fn words(text: &str) -> Vec<&str> {
    if text.is_empty() {
        return Vec::new();
    }
    text.split('.').collect()
}

fn matches(pattern: &[&str], key: &[&str]) -> bool {
    match pattern.first() {
        None => key.is_empty(),
        Some(&"#") => (0..=key.len()).any(|skipped| matches(&pattern[1..], &key[skipped..])),
        Some(word) => {
            key.first().is_some_and(|first| *word == "*" || word == first)
                && matches(&pattern[1..], &key[1..])
        }
    }
}
