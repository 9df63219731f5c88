//! What a stranger reads first: what was done, what was seen, what held.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jepsen_lite_core::verdict::Verdict;

use crate::axis::Time;
use crate::bands::{until_ms, was_done};
use crate::escape::Text;
use crate::promises::{Standing, promises};
use crate::run::Run;
use crate::words;

/// The least of unknown answers that is too much, where the schedule names none.
const UNKNOWN_PERCENT_MAX: u64 = 30;
/// More faults than this are folded away.
const FAULTS_SHOWN: usize = 12;

/// The verdict, in one sentence of plain words.
pub(crate) fn sentence(run: &Run) -> String {
    let results = &run.results;
    let seen = |name: &str| results.seen.get(name).copied().unwrap_or(0);
    let confirmed = words::counted(seen("confirmed"), "confirmed message");
    let (nodes, faults) = (words::counted(run.schedule.nodes as u64, "node"), faults(run));
    match results.verdict {
        Verdict::Valid => {
            let promises = promises(results);
            let held = promises
                .iter()
                .filter(|promise| promise.standing == Standing::Held);
            format!(
                "{confirmed} went through {faults} on {nodes}, and {} held.",
                match held.count() {
                    1 => "the promise that could be checked".to_owned(),
                    held => format!("all {held} promises that could be checked"),
                }
            )
        }
        Verdict::Violated => {
            let promises = promises(results);
            let broken: Vec<String> = promises
                .iter()
                .filter(|promise| promise.standing == Standing::Violated)
                .map(|promise| {
                    let (wrong, checked) = promise.wrong();
                    format!(
                        "“{}” ({}; {} of {} wrong)",
                        promise.sentence(),
                        promise.invariant,
                        words::count(wrong),
                        words::count(checked)
                    )
                })
                .collect();
            let what = match broken.len() {
                1 => "A promise was",
                _ => "Promises were",
            };
            format!(
                "{what} broken under {faults} on {nodes}: {}.",
                words::and(&broken)
            )
        }
        Verdict::Unknown => format!(
            "This run proves nothing: no promise was seen to break for {confirmed} under {faults} on {nodes}, but {}.",
            match results.notes.first() {
                Some(why) => why.trim_end_matches('.').to_owned(),
                None => "too little was seen, or a check did not finish".to_owned(),
            }
        ),
        Verdict::Harness => format!(
            "The test itself failed, which says nothing about the broker: {}.",
            match results.notes.first() {
                Some(why) => why.trim_end_matches('.').to_owned(),
                None => "no reason was given".to_owned(),
            }
        ),
    }
}

/// What was done, counted by kind: `3 × kill of a process and 1 × full disk`.
fn faults(run: &Run) -> String {
    let mut kinds: Vec<(String, u64)> = Vec::new();
    for effect in run.effects.iter().filter(|effect| was_done(effect)) {
        let kind = words::kind(&effect.fault);
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((kind, 1)),
        }
    }
    let parts: Vec<String> = kinds
        .into_iter()
        .map(|(kind, count)| format!("{}\u{a0}×\u{a0}{kind}", words::count(count)))
        .collect();
    match parts.is_empty() {
        true => "no fault at all".to_owned(),
        false => words::and(&parts),
    }
}

/// The list of faults, by number, with what each did.
pub(crate) fn done(run: &Run, time: Time) -> String {
    if run.effects.is_empty() {
        return "<p>Nothing: the cluster was left alone under its load.</p>".to_owned();
    }
    let mut items: Vec<String> = Vec::new();
    for (place, effect) in run.effects.iter().enumerate() {
        let from = effect.from_ms as f64;
        let when = match until_ms(effect, time) {
            until if until > from && was_done(effect) => {
                format!("{} to {}", words::moment(from), words::moment(until))
            }
            _ => words::moment(from),
        };
        let (number, told) = (place + 1, words::fault(&effect.fault, &effect.nodes));
        let mut item = format!(
            "<li id=\"fault-{number}\" value=\"{number}\"><span class=\"when\">{when}</span> {}.",
            match was_done(effect) {
                true => Text(&told).to_string(),
                false => format!("<s>{}</s>", Text(&told)),
            },
        );
        let counters: Vec<String> = effect
            .counters
            .iter()
            .filter(|(_, n)| **n > 0)
            .map(|(name, n)| format!("{}: {}", words::counter(name), words::count(*n)))
            .collect();
        if !counters.is_empty() {
            let _ = write!(
                item,
                " <span class=\"counters\">{}</span>",
                Text(&counters.join(", "))
            );
        }
        if let Some(trouble) = words::trouble(effect) {
            let _ = write!(item, " <strong class=\"trouble\">{}</strong>", Text(&trouble));
        }
        item.push_str("</li>");
        items.push(item);
    }
    let rest = items.split_off(items.len().min(FAULTS_SHOWN));
    let mut html = format!("<ol class=\"faults\">{}</ol>", items.concat());
    if !rest.is_empty() {
        let _ = write!(
            html,
            "<details><summary>{} more</summary><ol class=\"faults\">{}</ol></details>",
            words::counted(rest.len() as u64, "fault"),
            rest.concat()
        );
    }
    html
}

/// What was seen, against what a run must see to prove anything. What was neither seen nor needed is left out.
pub(crate) fn seen(run: &Run) -> String {
    let evidence = &run.schedule.evidence;
    let mut left: BTreeMap<&str, u64> = run.results.seen.iter().map(|(k, v)| (k.as_str(), *v)).collect();
    let mut rows = String::new();
    let mut row = |words: &str, seen: String, needed: String, enough: bool, mark: &str| {
        let class = match enough {
            true => "",
            false => " class=\"short\"",
        };
        let _ = write!(
            rows,
            "<tr{class}><th scope=\"row\">{}</th><td>{seen}</td><td>{needed}</td><td>{mark}</td></tr>",
            Text(words)
        );
    };
    let (unknown, asked) = (left.remove("unknown"), left.remove("operations"));
    for (name, words, needed) in words::thresholds(evidence) {
        let seen = left.remove(name).unwrap_or(0);
        if seen == 0 && needed == 0 {
            continue;
        }
        let (wanted, mark) = match needed {
            0 => (String::new(), ""),
            needed if seen >= needed => (format!("at least {}", words::count(needed)), "enough"),
            needed => (format!("at least {}", words::count(needed)), "too little"),
        };
        row(words, words::count(seen), wanted, seen >= needed, mark);
    }
    for (name, seen) in left.into_iter().filter(|(_, seen)| *seen > 0) {
        row(&words::seen(name), words::count(seen), String::new(), true, "");
    }
    if let (Some(unknown), Some(asked)) = (unknown, asked) {
        let percent = unknown as f64 * 100.0 / asked.max(1) as f64;
        let most = match evidence.unknown_percent_max {
            0 => UNKNOWN_PERCENT_MAX,
            most => most,
        };
        let enough = percent <= most as f64;
        let mark = match enough {
            true => "few enough",
            false => "too many",
        };
        let percent = format!("{percent:.1} %");
        row(
            "answers that never came",
            percent,
            format!("at most {most} %"),
            enough,
            mark,
        );
    }
    format!(
        "<table class=\"seen\"><thead><tr><th scope=\"col\"><span class=\"hidden\">what</span></th><th scope=\"col\">seen</th>\
         <th scope=\"col\">needed</th><th scope=\"col\"><span class=\"hidden\">enough?</span></th></tr></thead>\
         <tbody>{rows}</tbody></table>"
    )
}
