//! What a stranger reads first: what was done, what was seen, what held.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jepsen_lite_core::verdict::{Finding, Verdict};

use crate::axis::Time;
use crate::bands::{until_ms, was_done};
use crate::escape::Text;
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
            let held = results
                .findings
                .iter()
                .filter(|finding| finding.verdict == Verdict::Valid && finding.checked > 0)
                .count();
            format!(
                "{confirmed} went through {faults} on {nodes}, and {} held.",
                match held {
                    1 => "the promise that could be checked".to_owned(),
                    held => format!("all {held} promises that could be checked"),
                }
            )
        }
        Verdict::Violated => {
            let broken: Vec<String> = ordered(&results.findings)
                .iter()
                .filter(|finding| finding.verdict == Verdict::Violated)
                .map(|finding| {
                    let promise = words::promise(&finding.invariant).unwrap_or(&finding.name);
                    format!(
                        "“{}” ({}; {} of {} wrong)",
                        promise.trim_end_matches('.'),
                        finding.invariant,
                        words::count(finding.violations),
                        words::count(finding.checked)
                    )
                })
                .collect();
            let what = if broken.len() == 1 {
                "A promise was"
            } else {
                "Promises were"
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
        .map(|(kind, count)| format!("{} × {kind}", words::count(count)))
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
            .map(|(name, n)| format!("{} {}", name.replace(['_', '-'], " "), words::count(*n)))
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

/// What was seen, against what a run must see to prove anything.
pub(crate) fn seen(run: &Run) -> String {
    let results = &run.results;
    let mut left: BTreeMap<&str, u64> = results.seen.iter().map(|(k, v)| (k.as_str(), *v)).collect();
    let mut rows = String::new();
    let mut row = |words: &str, seen: String, needed: String, enough: Option<bool>| {
        let (class, mark) = match enough {
            Some(true) => ("", "enough"),
            Some(false) => (" class=\"short\"", "too little"),
            None => ("", ""),
        };
        let _ = write!(
            rows,
            "<tr{class}><th scope=\"row\">{}</th><td>{seen}</td><td>{needed}</td><td>{mark}</td></tr>",
            Text(words)
        );
    };
    for (name, words, needed) in words::thresholds(&run.schedule.evidence) {
        let seen = left.remove(name);
        if seen.is_none() && needed == 0 {
            continue;
        }
        let seen = seen.unwrap_or(0);
        let enough = (needed > 0).then_some(seen >= needed);
        let needed = match needed {
            0 => String::new(),
            needed => format!("at least {}", words::count(needed)),
        };
        row(words, words::count(seen), needed, enough);
    }
    if let Some(percent) = left.remove("unknown_percent") {
        let most = match run.schedule.evidence.unknown_percent_max {
            0 => UNKNOWN_PERCENT_MAX,
            most => most,
        };
        row(
            "answers that never came",
            format!("{percent} %"),
            format!("at most {most} %"),
            Some(percent <= most),
        );
    }
    for (name, seen) in left {
        row(
            &name.replace(['_', '-'], " "),
            words::count(seen),
            String::new(),
            None,
        );
    }
    format!(
        "<table class=\"seen\"><thead><tr><th scope=\"col\">of these</th><th scope=\"col\">seen</th>\
         <th scope=\"col\">needed</th><th scope=\"col\"><span class=\"hidden\">enough?</span></th></tr></thead>\
         <tbody>{rows}</tbody></table>"
    )
}

/// The table of promises: what is broken first, what was not seen last.
pub(crate) fn promises(run: &Run) -> String {
    let mut rows = String::new();
    for finding in ordered(&run.results.findings) {
        let (class, result) = match finding.verdict {
            Verdict::Valid if finding.checked == 0 => ("unseen", "not seen"),
            Verdict::Valid => ("valid", "held"),
            Verdict::Unknown => ("unknown", "unknown"),
            Verdict::Violated => ("violated", "violated"),
            Verdict::Harness => ("unknown", "not checked"),
        };
        let _ = write!(
            rows,
            "<tr class=\"{class}\"><th scope=\"row\">{}<small>{} · {}</small></th>\
             <td><span class=\"badge {class}\">{result}</span></td><td>{}</td><td>{}</td></tr>",
            Text(words::promise(&finding.invariant).unwrap_or(&finding.name)),
            Text(&finding.invariant),
            Text(&finding.name),
            words::count(finding.checked),
            words::count(finding.violations),
        );
        if class == "unseen" || !finding.note.is_empty() || !finding.witnesses.is_empty() {
            let _ = write!(rows, "<tr class=\"more {class}\"><td colspan=\"4\">");
            if class == "unseen" && finding.note.is_empty() {
                rows.push_str("<p>Nothing of the kind happened in this run.</p>");
            }
            if !finding.note.is_empty() {
                let _ = write!(rows, "<p>{}</p>", Text(&finding.note));
            }
            witnesses(&mut rows, finding);
            rows.push_str("</td></tr>");
        }
    }
    format!(
        "<table class=\"promises\"><thead><tr><th scope=\"col\">promise</th><th scope=\"col\">result</th>\
         <th scope=\"col\">looked at</th><th scope=\"col\">wrong</th></tr></thead><tbody>{rows}</tbody></table>"
    )
}

fn witnesses(html: &mut String, finding: &Finding) {
    if finding.witnesses.is_empty() {
        return;
    }
    let open = if finding.verdict == Verdict::Violated {
        " open"
    } else {
        ""
    };
    let shown = finding.witnesses.len() as u64;
    let title = match finding.violations > shown {
        true => format!(
            "evidence: the first {shown} of {}",
            words::count(finding.violations)
        ),
        false => format!("evidence: {}", words::counted(shown, "case")),
    };
    let _ = write!(html, "<details{open}><summary>{title}</summary><ol>");
    for witness in &finding.witnesses {
        html.push_str("<li>");
        if let Some(at) = witness.at_ms {
            let _ = write!(html, "<span class=\"when\">{}</span> ", words::moment(at as f64));
        }
        let _ = write!(html, "{}", Text(&witness.evidence));
        if let Some(message) = &witness.message {
            let _ = write!(
                html,
                " <button class=\"message\" data-message=\"{0}\">life of {0}</button>",
                Text(message)
            );
        }
        html.push_str("</li>");
    }
    html.push_str("</ol></details>");
}

/// Findings: violated, unknown, valid, not seen; within these by number.
fn ordered(findings: &[Finding]) -> Vec<&Finding> {
    let mut ordered: Vec<&Finding> = findings.iter().collect();
    ordered.sort_by_key(|finding| {
        let gravity = match finding.verdict {
            Verdict::Violated => 0,
            Verdict::Harness => 1,
            Verdict::Unknown => 2,
            Verdict::Valid if finding.checked > 0 => 3,
            Verdict::Valid => 4,
        };
        let number: u32 = finding
            .invariant
            .trim_start_matches(|c: char| !c.is_ascii_digit())
            .parse()
            .unwrap_or(u32::MAX);
        (gravity, number)
    });
    ordered
}
