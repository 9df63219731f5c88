//! Which bindings of one exchange fit a message.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::ExchangeId;
use super::trie::Trie;
use crate::command::{Binding, ExchangeKind, HeaderMatch};
use crate::ids::QueueId;

/// What a binding leads to, by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Node {
    Queue(QueueId),
    Exchange(ExchangeId),
}

/// A binding, and what it leads to.
pub(crate) type Lead = (Node, Arc<Binding>);

/// The bindings of an exchange, as its kind looks for them. An index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Router {
    Direct(BTreeMap<String, BTreeSet<Lead>>),
    Fanout(BTreeSet<Lead>),
    Topic(Trie<Lead>),
    Headers(BTreeSet<Lead>),
}

impl Router {
    pub(crate) fn new(kind: ExchangeKind) -> Self {
        match kind {
            ExchangeKind::Direct => Self::Direct(BTreeMap::new()),
            ExchangeKind::Fanout => Self::Fanout(BTreeSet::new()),
            ExchangeKind::Topic => Self::Topic(Trie::default()),
            ExchangeKind::Headers => Self::Headers(BTreeSet::new()),
        }
    }

    pub(crate) fn insert(&mut self, lead: Lead) {
        match self {
            Self::Direct(by_key) => {
                let key = lead.1.routing_key.clone();
                by_key.entry(key).or_default().insert(lead);
            }
            Self::Fanout(leads) | Self::Headers(leads) => {
                leads.insert(lead);
            }
            Self::Topic(patterns) => {
                let binding = lead.1.clone();
                patterns.insert(&binding.routing_key, lead);
            }
        }
    }

    pub(crate) fn remove(&mut self, lead: &Lead) {
        let key = &lead.1.routing_key;
        match self {
            Self::Direct(by_key) => {
                if let Some(leads) = by_key.get_mut(key) {
                    leads.remove(lead);
                    if leads.is_empty() {
                        by_key.remove(key);
                    }
                }
            }
            Self::Fanout(leads) | Self::Headers(leads) => {
                leads.remove(lead);
            }
            Self::Topic(patterns) => patterns.remove(key, lead),
        }
    }

    /// Visits what the fitting bindings lead to, some of it more than once.
    pub(crate) fn visit(&self, key: &str, headers: &BTreeMap<String, String>, mut visit: impl FnMut(Node)) {
        match self {
            Self::Direct(by_key) => {
                let leads = by_key.get(key).into_iter().flatten();
                leads.for_each(|(node, _)| visit(*node));
            }
            Self::Fanout(leads) => leads.iter().for_each(|(node, _)| visit(*node)),
            Self::Topic(patterns) => patterns.visit(key, &mut |(node, _): &Lead| visit(*node)),
            Self::Headers(leads) => leads
                .iter()
                .filter(|(_, binding)| fits(binding.headers.as_ref(), headers))
                .for_each(|(node, _)| visit(*node)),
        }
    }
}

/// A binding without a match fits all: it asks for nothing.
fn fits(wanted: Option<&HeaderMatch>, headers: &BTreeMap<String, String>) -> bool {
    let Some(HeaderMatch { any, headers: wanted }) = wanted else {
        return true;
    };
    let mut fit = wanted
        .iter()
        .map(|(name, value)| match (headers.get(name), value) {
            (Some(is), Some(value)) => is == value,
            (is, None) => is.is_some(),
            (None, Some(_)) => false,
        });
    if *any {
        fit.any(|fits| fits)
    } else {
        fit.all(|fits| fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn wanted(any: bool, pairs: &[(&str, Option<&str>)]) -> HeaderMatch {
        let headers = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)));
        HeaderMatch {
            any,
            headers: headers.collect(),
        }
    }

    #[test]
    fn all_or_any_of_the_headers_are_needed() {
        let pair = [("region", Some("eu")), ("urgent", None)];
        let (all, any) = (wanted(false, &pair), wanted(true, &pair));
        for (there, by_all, by_any) in [
            (
                headers(&[("region", "eu"), ("urgent", "no"), ("x", "y")]),
                true,
                true,
            ),
            (headers(&[("region", "us"), ("urgent", "")]), false, true),
            (headers(&[("region", "eu")]), false, true),
            (headers(&[("region", "us")]), false, false),
            (headers(&[]), false, false),
        ] {
            assert_eq!(fits(Some(&all), &there), by_all, "all of {there:?}");
            assert_eq!(fits(Some(&any), &there), by_any, "any of {there:?}");
        }
    }

    #[test]
    fn who_asks_for_nothing_gets_all_and_any_of_nothing_is_nothing() {
        assert!(fits(None, &headers(&[])));
        assert!(fits(Some(&wanted(false, &[])), &headers(&[("a", "b")])));
        assert!(!fits(Some(&wanted(true, &[])), &headers(&[("a", "b")])));
    }
}
