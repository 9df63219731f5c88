//! Faults and changes of the leader, across all charts.
//!
//! One drawing lies behind everything that has the time axis. Each fault has a number there, which the list of
//! what was done has too.

use std::fmt::Write as _;

use jepsen_lite_core::cluster::{Done, Effect};

use crate::axis::{Time, WIDTH};
use crate::escape::Text;
use crate::run::{Role, Status};
use crate::words;

/// Room that a character of a label needs, in per cent of the width.
pub(crate) const CHARACTER_PERCENT: f64 = 0.72;
/// Room that a number needs on a narrow screen, in per cent of the width.
const NUMBER_PERCENT: f64 = 8.0;
/// Height of a row, in the font size of the page.
const ROW_REM: f64 = 1.6;
/// With more rows than this, labels become shorter.
const ROWS_MAX: usize = 8;

/// Somebody else leads from here on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Change {
    /// When this was first seen.
    pub(crate) at_ms: f64,
    /// Who leads.
    pub(crate) node: usize,
    /// In which term.
    pub(crate) term: u64,
}

/// The changes of the leader that the statuses show: of several nodes that say they lead, the one with the
/// highest term does. The first leader is not a change.
pub(crate) fn changes(statuses: &[Status]) -> Vec<Change> {
    let mut ordered: Vec<&Status> = statuses.iter().filter(|s| s.role == Role::Leader).collect();
    ordered.sort_by_key(|status| (status.at_ms, status.term));
    let mut leaders: Vec<Change> = Vec::new();
    for status in ordered {
        if leaders.last().is_none_or(|last| status.term > last.term) {
            leaders.push(Change {
                at_ms: status.at_ms as f64,
                node: status.node,
                term: status.term,
            });
        }
    }
    leaders.drain(..1.min(leaders.len()));
    leaders
}

/// When an effect ended: what was never undone lasts as long as the page.
pub(crate) fn until_ms(effect: &Effect, time: Time) -> f64 {
    match effect.until_ms {
        Some(until) => until as f64,
        None if effect.fault.lasts() => time.until_ms(),
        None => effect.from_ms as f64,
    }
}

/// Whether something was done at all.
pub(crate) fn was_done(effect: &Effect) -> bool {
    !matches!(effect.state, Done::Skipped(_))
}

/// The drawing behind all charts.
pub(crate) fn across(effects: &[Effect], changes: &[Change], time: Time) -> String {
    let mut svg = format!(
        "<svg class=\"across\" viewBox=\"0 0 {WIDTH} 100\" preserveAspectRatio=\"none\" aria-hidden=\"true\">"
    );
    for effect in effects.iter().filter(|effect| was_done(effect)) {
        let (from, until) = (time.x(effect.from_ms as f64), time.x(until_ms(effect, time)));
        // What is over at once is still seen.
        let width = (until - from).max(WIDTH / 800.0);
        let _ = write!(
            svg,
            "<rect class=\"band\" x=\"{from:.0}\" y=\"0\" width=\"{width:.0}\" height=\"100\"/>"
        );
    }
    for change in changes {
        let x = time.x(change.at_ms);
        let _ = write!(svg, "<path class=\"change\" d=\"M{x:.0} 0V100\"/>");
    }
    svg.push_str("</svg>");
    svg
}

/// The rows with the faults, each with a label that is a link into the list, over a bar as long as it lasted. The
/// more there are, the less a label says.
pub(crate) fn labels(effects: &[Effect], time: Time) -> String {
    let kind = |effect: &Effect| format!(" {}", words::kind(&effect.fault));
    let kind_and_nodes = |effect: &Effect| match effect.nodes.as_slice() {
        [] => kind(effect),
        nodes => format!("{} · {}", kind(effect), words::these(nodes)),
    };
    let mut drawn = rows(effects, time, kind_and_nodes);
    if drawn.0 > ROWS_MAX {
        drawn = rows(effects, time, kind);
    }
    if drawn.0 > ROWS_MAX {
        drawn = rows(effects, time, |_| String::new());
    }
    let (count, html) = drawn;
    format!(
        "<div class=\"chips\" style=\"height:{}rem\">{html}</div>",
        count as f64 * ROW_REM
    )
}

/// The labels in as many rows as they need, so that none is on another.
fn rows(effects: &[Effect], time: Time, name: impl Fn(&Effect) -> String) -> (usize, String) {
    let mut rows: Vec<f64> = Vec::new();
    let mut html = String::new();
    for (place, effect) in effects.iter().enumerate().filter(|(_, effect)| was_done(effect)) {
        let (number, name) = (place + 1, name(effect));
        let needed = (name.chars().count() + 4) as f64 * CHARACTER_PERCENT;
        let needed = needed.max(NUMBER_PERCENT);
        let from = time.percent(effect.from_ms as f64);
        let until = time.percent(until_ms(effect, time));
        // What begins at the end of the page is told before it.
        let left = from.min(100.0 - needed).max(0.0);
        let row = rows.iter().position(|taken| *taken <= left).unwrap_or_else(|| {
            rows.push(0.0);
            rows.len() - 1
        });
        rows[row] = until.max(left + needed);
        let top = row as f64 * ROW_REM;
        let told = words::fault(&effect.fault, &effect.nodes);
        let _ = write!(
            html,
            "<i class=\"lasts\" style=\"left:{from:.2}%;width:{:.2}%;top:{top}rem\"></i>\
             <a class=\"chip\" href=\"#fault-{number}\" style=\"left:{left:.2}%;top:{top}rem\" \
             title=\"{told}\" aria-label=\"fault {number}: {told}\"><b>{number}</b><span>{}</span></a>",
            until - from,
            Text(&name),
            told = Text(&told),
        );
    }
    (rows.len(), html)
}

#[cfg(test)]
mod tests {
    use super::*;
    use jepsen_lite_core::schedule::Fault;

    fn leads(at_ms: u64, node: usize, term: u64) -> Status {
        Status {
            at_ms,
            node,
            role: Role::Leader,
            term,
        }
    }

    #[test]
    fn a_deposed_leader_that_does_not_know_is_no_change() {
        let changes = changes(&[
            leads(0, 0, 1),
            leads(100, 2, 2),
            leads(200, 0, 1),
            leads(300, 2, 2),
        ]);
        assert_eq!(
            changes,
            [Change {
                at_ms: 100.0,
                node: 2,
                term: 2
            }]
        );
    }

    #[test]
    fn labels_of_faults_at_one_time_stand_in_rows_of_their_own() {
        let effect = |from_ms, until_ms| Effect {
            from_ms,
            until_ms,
            fault: Fault::Kill,
            nodes: vec![0],
            state: Done::Yes,
            counters: [].into(),
        };
        let time = Time::spanning([10_000.0]);
        let effects = [
            effect(0, Some(5000)),
            effect(1000, Some(1001)),
            effect(6000, None),
            effect(9990, Some(9991)),
        ];
        let html = labels(&effects, time);
        assert!(
            html.contains("<b>4</b><span> kill of a process · node 0</span>"),
            "{html}"
        );
        let lefts = |top: &str| -> Vec<f64> {
            let chips = html.split("class=\"chip\"").skip(1);
            let chips = chips.filter_map(|chip| chip.split('>').next());
            let chips = chips.filter(|chip| chip.contains(&format!("top:{top}rem")));
            let left = |chip: &str| chip.split("left:").nth(1)?.split('%').next()?.parse().ok();
            chips.filter_map(left).collect()
        };
        assert_eq!(lefts("0"), [0.0, 60.0]);
        // The last one is moved to the left, so that its label is on the page, and stands below the third.
        assert_eq!(lefts("1.6").len(), 2, "{html}");
        assert!(lefts("1.6")[1] < 80.0, "{html}");

        let many: Vec<Effect> = (0..20).map(|n| effect(n, Some(9000))).collect();
        assert!(!labels(&many, time).contains("kill of a process</span>"));
    }
}
