//! The lives of messages, as the page carries them.
//!
//! A page may stand for a hundred thousand operations, and is one file. Lives are lists of numbers, with texts
//! that repeat kept once. Those that somebody may ask for go in first: witnesses, losses, whatever did not go
//! smoothly. Of the others so many as there is room for, evenly over the run; the page says how many.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::axis::Time;
use crate::bands::{until_ms, was_done};
use crate::evidence::Links;
use crate::fate::Fate;
use crate::run::{Moment, Run};
use crate::scatter::Dot;

/// How much of the page lives may take, in bytes.
const LIVES_BYTES_MAX: usize = 3 * 1024 * 1024;
/// Most moments of one life; what is between the first and the last is left out.
const MOMENTS_MAX: usize = 400;

/// What the page's script reads, and how many lives are in it.
pub(crate) struct Lives {
    /// The data.
    pub(crate) json: Value,
    /// Messages in it.
    pub(crate) told: usize,
    /// Messages of the run.
    pub(crate) all: usize,
}

/// Lays out the lives that the page carries.
pub(crate) fn lives(run: &Run, links: &Links<'_>, dots: &[Dot<'_>], time: Time) -> Lives {
    let place: BTreeMap<&str, &Dot<'_>> = dots.iter().filter_map(|dot| Some((dot.message?, dot))).collect();
    let mut texts = Texts::default();
    let base = run
        .lives
        .values()
        .flatten()
        .filter_map(|moment| moment.cluster_ms)
        .min()
        .unwrap_or(1)
        .saturating_sub(1);
    let mut told = serde_json::Map::new();
    let mut bytes = 0;
    for message in by_interest(run, links, &place) {
        let life = &run.lives[message];
        let skipped = life.len().saturating_sub(MOMENTS_MAX);
        let half = MOMENTS_MAX / 2;
        let moments: Vec<Value> = life
            .iter()
            .enumerate()
            .filter(|(n, _)| skipped == 0 || *n < half || *n >= half + skipped)
            .map(|(_, moment)| laid_out(moment, base, &mut texts))
            .collect();
        let (x, y, fate) = place.get(message).map_or((-1.0, -1.0, ""), |dot| {
            (dot.x.round(), dot.y.round(), dot.fate.words())
        });
        let fate = texts.number(fate);
        // Both are within the drawing, or -1.
        #[allow(clippy::cast_possible_truncation)]
        let life = json!([x as i64, y as i64, fate, skipped, moments]);
        bytes += message.len() + 4 + life.to_string().len();
        if bytes > LIVES_BYTES_MAX {
            break;
        }
        told.insert(message.to_owned(), life);
    }
    let count = told.len();
    Lives {
        json: json!({
            "clusterBase": base,
            "until": time.until_ms(),
            "length": time.length_ms(),
            "texts": texts.texts,
            "faults": faults(run, time),
            "lives": told,
        }),
        told: count,
        all: run.lives.len(),
    }
}

/// The faults that were done, as lists: number, tenths of a millisecond from which, until which.
fn faults(run: &Run, time: Time) -> Vec<Value> {
    let effects = run
        .effects
        .iter()
        .enumerate()
        .filter(|(_, effect)| was_done(effect));
    effects
        .map(|(place, effect)| {
            let (from, until) = (effect.from_ms as f64, until_ms(effect, time));
            json!([place + 1, tenths(from), tenths(until)])
        })
        .collect()
}

/// Messages, those first that somebody may ask for.
fn by_interest<'a>(run: &'a Run, links: &Links<'_>, place: &BTreeMap<&str, &Dot<'_>>) -> Vec<&'a str> {
    let witnesses: BTreeSet<&str> = run
        .results
        .findings
        .iter()
        .flat_map(|finding| &finding.witnesses)
        .flat_map(|witness| links.messages(witness))
        .collect();
    let (mut first, mut second, mut smooth) = (Vec::new(), Vec::new(), Vec::new());
    for (message, life) in &run.lives {
        let fate = place.get(message.as_str()).map(|dot| dot.fate);
        if witnesses.contains(message.as_str()) || fate.is_some_and(Fate::is_lost) {
            first.push(message.as_str());
        } else if fate != Some(Fate::Delivered) || !is_smooth(life) {
            second.push(message.as_str());
        } else {
            smooth.push(message.as_str());
        }
    }
    first.extend(evenly(second));
    first.extend(evenly(smooth));
    first
}

/// Delivered once, and nothing refused or unknown on the way.
fn is_smooth(life: &[Moment]) -> bool {
    life.iter()
        .all(|moment| moment.attempt.is_none_or(|attempt| attempt <= 1) && !moment.odd)
}

/// In an order of which every beginning is spread over the whole: the middle, the quarters, the eighths, …
fn evenly(items: Vec<&str>) -> Vec<&str> {
    let width = usize::BITS - items.len().leading_zeros();
    let mut order: Vec<(usize, &str)> = items
        .into_iter()
        .enumerate()
        .map(|(n, item)| (n.reverse_bits() >> (usize::BITS - width.max(1)), item))
        .collect();
    order.sort_unstable();
    order.into_iter().map(|(_, item)| item).collect()
}

/// A moment as a list: what, tenths of a millisecond at which, for which, flags (1 estimated, 2 odd), who, node + 1,
/// log index, cluster time, attempt, end of the lease, token, note, queue. What is not there is 0, or left out at the end.
fn laid_out(moment: &Moment, base: u64, texts: &mut Texts) -> Value {
    let took = moment
        .at_ms
        .zip(moment.until_ms)
        .map(|(at, until)| tenths(until - at));
    let cluster = |time: Option<u64>| time.map_or(0, |time| time.saturating_sub(base));
    let mut list = vec![
        json!(texts.number(&moment.what)),
        moment.at_ms.map_or(Value::Null, |at| json!(tenths(at))),
        json!(took.unwrap_or(0)),
        json!(u8::from(moment.estimated) + 2 * u8::from(moment.odd)),
        json!(moment.who.as_deref().map_or(0, |who| texts.number(who))),
        json!(moment.node.map_or(0, |node| node + 1)),
        json!(moment.log_index.unwrap_or(0)),
        json!(cluster(moment.cluster_ms)),
        json!(moment.attempt.unwrap_or(0)),
        json!(cluster(moment.leased_until_ms)),
        moment.token.as_ref().map_or(json!(0), |token| json!(token)),
        json!(texts.number(&moment.note)),
        json!(texts.number(&moment.queue)),
    ];
    while list.last().is_some_and(|value| *value == json!(0)) {
        list.pop();
    }
    Value::Array(list)
}

/// In tenths of a millisecond.
// A run lasts hours, not millennia.
#[allow(clippy::cast_possible_truncation)]
fn tenths(ms: f64) -> i64 {
    (ms * 10.0).round() as i64
}

/// Texts by number; 0 is the empty one.
#[derive(Debug)]
struct Texts {
    numbers: BTreeMap<String, usize>,
    texts: Vec<String>,
}

impl Default for Texts {
    fn default() -> Self {
        Self {
            numbers: [(String::new(), 0)].into(),
            texts: vec![String::new()],
        }
    }
}

impl Texts {
    fn number(&mut self, text: &str) -> usize {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        self.texts.push(text.to_owned());
        self.numbers.insert(text.to_owned(), self.texts.len() - 1);
        self.texts.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_beginning_is_spread_over_the_whole() {
        let names: Vec<String> = (0..100).map(|n| format!("{n:02}")).collect();
        let order = evenly(names.iter().map(String::as_str).collect());
        assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), 100);
        let mut some: Vec<usize> = order[..10].iter().map(|name| name.parse().unwrap()).collect();
        some.sort_unstable();
        let gaps = some.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(gaps.max().unwrap() <= 16, "{some:?}");
    }

    #[test]
    fn a_moment_is_as_short_as_it_can_be() {
        let mut texts = Texts::default();
        let moment = Moment {
            what: "leased".to_owned(),
            at_ms: Some(12.34),
            log_index: Some(7),
            cluster_ms: Some(1005),
            ..Moment::default()
        };
        assert_eq!(
            laid_out(&moment, 1000, &mut texts).to_string(),
            "[1,123,0,0,0,0,7,5]"
        );
        let in_queue = Moment {
            queue: "work".to_owned(),
            ..moment
        };
        assert_eq!(
            laid_out(&in_queue, 1000, &mut texts).to_string(),
            "[1,123,0,0,0,0,7,5,0,0,0,0,2]"
        );
    }
}
