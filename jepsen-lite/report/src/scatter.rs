//! Every publish as a dot: when it was made, and how long until a worker had the message.
//!
//! What no worker ever had stands above, in rows of its own, so that a hole is seen even among thousands. Losses
//! are buttons, not dots: they can be told apart by their letter and reached by the keyboard.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::axis::{Logarithmic, Time, WIDTH};
use crate::escape::Text;
use crate::fate::Fate;
use crate::plots::{grid, plot};
use crate::run::{Act, Answer, Call, Run};
use crate::words;

/// Height of the plot, as in [`plots`](crate::plots).
const HEIGHT: f64 = 1000.0;
/// The upper part, for what was never delivered.
const NEVER: f64 = 240.0;
/// Places that are told apart, across and down.
const GRID: (f64, f64) = (800.0, 300.0);
/// Rows of losses in the upper part, so that neighbours do not hide each other; below them is what is unknown.
const LOST_ROWS: [f64; 3] = [32.0, 97.0, 162.0];
/// Width of a button, in chart units.
const BUTTON: f64 = 180.0;
/// Most losses that are buttons; further ones are dots.
const BUTTONS_MAX: usize = 300;

/// A publish with its place in the drawing.
#[derive(Clone, Debug)]
pub(crate) struct Dot<'a> {
    /// The message that it became, if it is known.
    pub(crate) message: Option<&'a str>,
    /// What became of it.
    pub(crate) fate: Fate,
    /// In chart units.
    pub(crate) x: f64,
    /// In chart units, downwards.
    pub(crate) y: f64,
}

/// The dots, and the scale of their delays.
pub(crate) fn dots<'a>(run: &'a Run, fates: &[(&'a Call, Fate)], time: Time) -> (Vec<Dot<'a>>, Logarithmic) {
    let mut first: BTreeMap<&str, f64> = BTreeMap::new();
    for call in &run.calls {
        if let (Act::Receive, Answer::Done, Some(message)) = (call.act, call.answer, &call.message) {
            let had = call.end_ms.unwrap_or(call.begin_ms);
            let earliest = first.entry(message).or_insert(had);
            *earliest = earliest.min(had);
        }
    }
    let waited = |call: &Call| {
        let had = first.get(call.message.as_deref()?)?;
        Some((had - call.begin_ms).max(0.0))
    };
    let scale = Logarithmic::around(fates.iter().filter_map(|(call, _)| waited(call)));
    let mut taken = [f64::NEG_INFINITY; LOST_ROWS.len()];
    let mut dots = Vec::with_capacity(fates.len());
    // They come by time, so that a row is free from the end of its last button on.
    for (call, fate) in fates {
        let x = time.x(call.begin_ms);
        let y = match waited(call) {
            _ if fate.is_lost() => {
                let row = taken.iter().position(|until| *until <= x).unwrap_or(0);
                taken[row] = x + BUTTON;
                LOST_ROWS[row]
            }
            Some(waited) => NEVER + scale.down(waited) * (HEIGHT - NEVER),
            None => NEVER * 0.9,
        };
        dots.push(Dot {
            message: call.message.as_deref(),
            fate: *fate,
            x,
            y,
        });
    }
    (dots, scale)
}

/// The drawing.
pub(crate) fn draw(dots: &[Dot<'_>], scale: Logarithmic) -> String {
    let height_of = |tick: f64| (NEVER + scale.down(tick) * (HEIGHT - NEVER)) / HEIGHT;
    let mut svg = String::new();
    grid(&mut svg, scale.ticks().into_iter().map(height_of));
    let mut over = String::new();
    let mut buttons = 0;
    for fate in Fate::ALL {
        let mut places: Vec<(u32, u32)> = Vec::new();
        for dot in dots.iter().filter(|dot| dot.fate == fate) {
            match dot.message {
                Some(message) if fate.is_lost() && buttons < BUTTONS_MAX => {
                    buttons += 1;
                    let _ = write!(
                        over,
                        "<button class=\"lost {class}\" data-message=\"{message}\" style=\"left:{:.2}%;top:{:.1}%\" \
                         title=\"{message}: {words}\" aria-label=\"{message}: {words}\">{mark}</button>",
                        dot.x / WIDTH * 100.0,
                        dot.y / HEIGHT * 100.0,
                        class = fate.class(),
                        words = fate.words(),
                        message = Text(message),
                        mark = mark(fate),
                    );
                }
                _ => places.push(place(dot)),
            }
        }
        places.sort_unstable();
        places.dedup();
        let d = places.iter().fold(String::new(), |mut d, (x, y)| {
            let (x, y) = (f64::from(*x) / GRID.0 * WIDTH, f64::from(*y) / GRID.1 * HEIGHT);
            let _ = write!(d, "M{x:.0} {y:.0}h0");
            d
        });
        let _ = write!(svg, "<path class=\"dots {}\" d=\"{d}\"/>", fate.class());
    }
    let mut labels = vec![(NEVER * 0.5 / HEIGHT, "never".to_owned())];
    labels.extend(
        scale
            .ticks()
            .into_iter()
            .map(|tick| (height_of(tick), words::duration(tick))),
    );
    plot("publishes by time and fate", &svg, &labels, &over)
}

/// The letter of a loss.
pub(crate) fn mark(fate: Fate) -> &'static str {
    match fate {
        Fate::LostPrefix => "P",
        Fate::LostMiddle => "M",
        Fate::LostSuffix => "S",
        Fate::Delivered | Fate::Dead | Fate::Unknown => "",
    }
}

fn place(dot: &Dot<'_>) -> (u32, u32) {
    // Both are within the drawing.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    (
        (dot.x / WIDTH * GRID.0).round() as u32,
        (dot.y / HEIGHT * GRID.1).round() as u32,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn losses_at_one_time_do_not_hide_each_other() {
        let run = sample::violated();
        let call = run.calls.first().expect("somebody publishes");
        let fates = [Fate::LostMiddle, Fate::LostMiddle, Fate::LostMiddle].map(|fate| (call, fate));
        let (dots, _) = dots(&run, &fates, Time::spanning([25_000.0]));
        let heights: Vec<f64> = dots.iter().map(|dot| dot.y).collect();
        assert_eq!(heights, LOST_ROWS);
    }
}
