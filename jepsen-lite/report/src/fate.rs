//! What became of each message.
//!
//! A loss is told by where it stands among the messages of its publisher. A *suffix* may be a drain that was
//! not finished, a *prefix* a queue that was emptied; a message missing in the *middle*, with later ones
//! delivered, is the proof of a hole. Nothing is called lost that the checker of I1 did not find lost: without
//! its verdict a message that nobody saw again is only unknown.

use std::collections::{BTreeMap, BTreeSet};

use jepsen_lite_core::verdict::Verdict;

use crate::run::{Act, Answer, Call, Moment, Run};

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    /// A worker got it.
    Delivered,
    /// A rule ended it: dead-lettered, expired, dropped, deleted.
    Dead,
    /// Lost, and so were all of its publisher before it.
    LostPrefix,
    /// Lost between others that were not.
    LostMiddle,
    /// Lost, and so were all of its publisher after it.
    LostSuffix,
    /// Nobody knows: not confirmed, or not seen again without being proved lost.
    Unknown,
}

impl Fate {
    /// All, in the order of a legend.
    pub(crate) const ALL: [Self; 6] = [
        Self::Delivered,
        Self::Dead,
        Self::LostPrefix,
        Self::LostMiddle,
        Self::LostSuffix,
        Self::Unknown,
    ];

    /// The name of its style.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Dead => "dead",
            Self::LostPrefix => "lost-prefix",
            Self::LostMiddle => "lost-middle",
            Self::LostSuffix => "lost-suffix",
            Self::Unknown => "unknown",
        }
    }

    /// In words.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Dead => "dead-lettered, expired or dropped by rule",
            Self::LostPrefix => "lost, with all before it (prefix)",
            Self::LostMiddle => "lost between others (middle)",
            Self::LostSuffix => "lost, with all after it (suffix)",
            Self::Unknown => "unknown",
        }
    }

    /// Whether it is a loss.
    pub(crate) fn is_lost(self) -> bool {
        matches!(self, Self::LostPrefix | Self::LostMiddle | Self::LostSuffix)
    }
}

/// The publishes of a run with their fates, in the order of asking.
pub(crate) fn fates(run: &Run) -> Vec<(&Call, Fate)> {
    let loss_is_proved = run
        .results
        .findings
        .iter()
        .any(|finding| finding.invariant == "I1" && finding.verdict == Verdict::Violated);
    let delivered: BTreeSet<&str> = run
        .calls
        .iter()
        .filter(|call| call.act == Act::Receive && call.answer == Answer::Done)
        .filter_map(|call| call.message.as_deref())
        .collect();
    let mut publishes: Vec<&Call> = run.calls.iter().filter(|call| call.act == Act::Publish).collect();
    publishes.sort_by(|a, b| a.begin_ms.total_cmp(&b.begin_ms));

    // Of each publisher, and queue: the places of what came through, and of what did not.
    let mut came_through: BTreeMap<(&str, &str), (usize, usize)> = BTreeMap::new();
    let mut fates = Vec::with_capacity(publishes.len());
    for (place, call) in publishes.into_iter().enumerate() {
        let fate = match &call.message {
            Some(message) if ended_by_rule(run, message) => Fate::Dead,
            Some(message) if delivered.contains(message.as_str()) => Fate::Delivered,
            // Its place among the others decides, below.
            Some(_) if loss_is_proved && call.answer == Answer::Done => Fate::LostMiddle,
            _ => Fate::Unknown,
        };
        if matches!(fate, Fate::Delivered | Fate::Dead) {
            let (_, last) = came_through
                .entry((&call.client, &call.queue))
                .or_insert((place, place));
            *last = place;
        }
        fates.push((call, fate));
    }
    for (place, (call, fate)) in fates.iter_mut().enumerate() {
        if *fate == Fate::LostMiddle {
            *fate = match came_through.get(&(call.client.as_str(), call.queue.as_str())) {
                Some((first, _)) if place < *first => Fate::LostPrefix,
                Some((_, last)) if place < *last => Fate::LostMiddle,
                _ => Fate::LostSuffix,
            };
        }
    }
    fates
}

/// Whether a rule ended it, and neither a worker nor an operator's second thought, by the log.
fn ended_by_rule(run: &Run, message: &str) -> bool {
    const RULES: [&str; 5] = ["died", "dead-lettered", "expired", "dropped", "deleted"];
    let mut turns = run.lives.get(message).into_iter().flatten().rev();
    let last = turns.find_map(|moment| match moment.what.as_str() {
        "redriven" => Some(false),
        what if RULES.contains(&what) => Some(true),
        _ => is_ack(moment).then_some(false),
    });
    last.unwrap_or(false)
}

/// By the log, or by the worker that was told.
fn is_ack(moment: &Moment) -> bool {
    moment.what == "acked" || (moment.what == "ack" && !moment.odd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_loss_is_told_by_its_place_among_the_messages_of_its_publisher() {
        let lost = [Fate::LostPrefix, Fate::LostMiddle, Fate::LostSuffix];
        let run = sample::violated();
        let found: Vec<Fate> = fates(&run)
            .into_iter()
            .map(|(_, fate)| fate)
            .filter(|fate| fate.is_lost())
            .collect();
        assert_eq!(found, lost);
    }

    #[test]
    fn without_the_verdict_nothing_is_called_lost() {
        let mut run = sample::violated();
        run.results.findings.clear();
        let fates = fates(&run);
        assert!(fates.iter().all(|(_, fate)| !fate.is_lost()));
        assert!(fates.iter().any(|(_, fate)| *fate == Fate::Unknown));
    }
}
