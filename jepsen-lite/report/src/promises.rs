//! The table of promises: what was promised, whether it held, and the evidence where it did not.
//!
//! One promise may be checked in several ways. It stands once in the table, with its gravest result, and the
//! checks under it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jepsen_lite_core::verdict::{Finding, Results, Verdict};

use crate::escape::Text;
use crate::evidence::Links;
use crate::words;

/// What came of a promise, or of one check of it; the gravest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// It was broken.
    Violated,
    /// The check failed.
    NotChecked,
    /// The check came to no end.
    Unknown,
    /// There was something to look at, and all of it was right.
    Held,
    /// There was nothing to look at.
    Unseen,
}

impl Standing {
    fn of(finding: &Finding) -> Self {
        match finding.verdict {
            Verdict::Violated => Self::Violated,
            Verdict::Harness => Self::NotChecked,
            Verdict::Unknown if finding.checked > 0 || !finding.note.is_empty() => Self::Unknown,
            Verdict::Valid if finding.checked > 0 => Self::Held,
            Verdict::Unknown | Verdict::Valid => Self::Unseen,
        }
    }

    fn badge(self) -> String {
        let (class, words) = match self {
            Self::Violated => ("violated", "violated"),
            Self::NotChecked => ("unknown", "not checked"),
            Self::Unknown => ("unknown", "unknown"),
            Self::Held => ("valid", "held"),
            Self::Unseen => ("unseen", "nothing to check"),
        };
        format!("<span class=\"badge {class}\">{words}</span>")
    }
}

/// A promise with its checks, the gravest first.
#[derive(Debug)]
pub(crate) struct Promise<'a> {
    /// `I1` to `I26`.
    pub(crate) invariant: &'a str,
    /// The gravest of its checks.
    pub(crate) standing: Standing,
    checks: Vec<&'a Finding>,
}

impl<'a> Promise<'a> {
    /// In a sentence, without its point.
    pub(crate) fn sentence(&self) -> &'a str {
        let name = self.checks.first().map_or("", |finding| &finding.name);
        words::promise(self.invariant)
            .unwrap_or(name)
            .trim_end_matches('.')
    }

    /// How many cases of the broken checks were wrong, and how many they looked at.
    pub(crate) fn wrong(&self) -> (u64, u64) {
        let broken = self
            .checks
            .iter()
            .filter(|check| check.verdict == Verdict::Violated);
        broken.fold((0, 0), |(wrong, checked), check| {
            (wrong + check.violations, checked + check.checked)
        })
    }
}

/// The promises of a run: what is broken first, what was not seen last, within these by number.
pub(crate) fn promises(results: &Results) -> Vec<Promise<'_>> {
    let mut by_invariant: BTreeMap<&str, Vec<&Finding>> = BTreeMap::new();
    for finding in &results.findings {
        by_invariant.entry(&finding.invariant).or_default().push(finding);
    }
    let mut promises = Vec::new();
    for (invariant, mut checks) in by_invariant {
        checks.sort_by_key(|finding| Standing::of(finding));
        let standing = checks
            .first()
            .map_or(Standing::Unseen, |finding| Standing::of(finding));
        promises.push(Promise {
            invariant,
            standing,
            checks,
        });
    }
    promises.sort_by_key(|promise| {
        let number = promise
            .invariant
            .trim_start_matches(|c: char| !c.is_ascii_digit());
        (promise.standing, number.parse().unwrap_or(u32::MAX))
    });
    promises
}

/// The table.
pub(crate) fn table(results: &Results, links: &Links<'_>) -> String {
    let mut html = String::from(
        "<table class=\"promises\"><thead><tr><th scope=\"col\">promise</th><th scope=\"col\">result</th>\
         <th scope=\"col\">cases looked at</th><th scope=\"col\">wrong</th></tr></thead>",
    );
    for promise in promises(results) {
        let several = promise.checks.len() > 1;
        html.push_str("<tbody>");
        let (name, counts) = match promise.checks.as_slice() {
            [only] => (format!(" · {}", Text(&only.name)), counts(only)),
            _ => (String::new(), "<td></td><td></td>".to_owned()),
        };
        let _ = write!(
            html,
            "<tr><th scope=\"row\">{}.<small>{}{name}</small></th><td>{}</td>{counts}</tr>",
            Text(promise.sentence()),
            Text(promise.invariant),
            promise.standing.badge(),
        );
        for check in &promise.checks {
            let standing = Standing::of(check);
            if several {
                let badge = match standing == promise.standing {
                    true => String::new(),
                    false => standing.badge(),
                };
                let _ = write!(
                    html,
                    "<tr class=\"check\"><th scope=\"row\">{}</th><td>{badge}</td>{}</tr>",
                    Text(&check.name),
                    self::counts(check)
                );
            }
            more(&mut html, check, links);
        }
        html.push_str("</tbody>");
    }
    html.push_str("</table>");
    html
}

fn counts(finding: &Finding) -> String {
    format!(
        "<td>{}</td><td>{}</td>",
        words::count(finding.checked),
        words::count(finding.violations)
    )
}

/// What else there is to say of a check.
fn more(html: &mut String, finding: &Finding, links: &Links<'_>) {
    if finding.note.is_empty() && finding.witnesses.is_empty() {
        return;
    }
    html.push_str("<tr class=\"more\"><td colspan=\"4\">");
    if !finding.note.is_empty() {
        let _ = write!(html, "<p>{}</p>", Text(&finding.note));
    }
    witnesses(html, finding, links);
    html.push_str("</td></tr>");
}

fn witnesses(html: &mut String, finding: &Finding, links: &Links<'_>) {
    let shown = finding.witnesses.len() as u64;
    if shown == 0 {
        return;
    }
    let open = match finding.verdict {
        Verdict::Violated => " open",
        _ => "",
    };
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
        let _ = write!(html, "{}</li>", links.html(witness));
    }
    html.push_str("</ol></details>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn checks_of_one_promise_stand_together_and_the_gravest_decides() {
        let mut results = sample::empty().results;
        results.findings = vec![
            Finding::new("I10", "states", 5, 0, Vec::new()),
            Finding::new("I8", "transactions", 0, 0, Vec::new()),
            Finding::new("I1", "no loss", 7, 0, Vec::new()),
            Finding::new("I10", "convergence", 9, 2, Vec::new()),
            Finding::new("I1", "in the log", 0, 0, Vec::new()),
        ];
        let promises = promises(&results);
        let seen: Vec<(&str, Standing, usize)> = promises
            .iter()
            .map(|promise| (promise.invariant, promise.standing, promise.checks.len()))
            .collect();
        assert_eq!(
            seen,
            [
                ("I10", Standing::Violated, 2),
                ("I1", Standing::Held, 2),
                ("I8", Standing::Unseen, 1)
            ]
        );
        assert_eq!(promises[0].wrong(), (2, 9));
    }
}
